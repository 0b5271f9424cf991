"""Affine maps of spectra, and how they are composed.

Every stage so far is affine per pixel, so a whole chain is one centre, one matrix and one bias: it is composed in
float64 and applied once, in float32, to pixels from which the centre has been taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..readers.buffers import lend

F8 = NDArray[np.float64]


@dataclass(frozen=True)
class Affine:
    """y = (x - centre) * gain + bias for a vector gain, y = (x - centre) @ gain + bias for a matrix."""

    centre: F8  #: (n,)
    gain: F8  #: (n,) or (n, m)
    bias: F8  #: (n,) or (m,)

    @classmethod
    def scaling(cls, centre: ArrayLike, gain: ArrayLike, bands: int) -> Affine:
        """Return y = (x - centre) * gain over `bands` bands."""
        spread = np.zeros(bands)
        return cls(spread + np.asarray(centre), spread + np.asarray(gain), spread)

    def then(self, after: Affine) -> Affine:
        """Return the map that applies `self` and then `after`."""
        if after.gain.ndim == 1:
            gain, bias = self.gain * after.gain, (self.bias - after.centre) * after.gain + after.bias
        else:
            gain = self.gain[:, None] * after.gain if self.gain.ndim == 1 else self.gain @ after.gain
            bias = (self.bias - after.centre) @ after.gain + after.bias
        return Affine(self.centre, gain, bias)

    def around(self, centre: F8) -> Affine:
        """Return the same map written around another centre: near the data's mean float32 keeps its digits."""
        moved = centre - self.centre
        shift = moved * self.gain if self.gain.ndim == 1 else moved @ self.gain
        return Affine(centre, self.gain, self.bias + shift)

    def picked(self) -> tuple[NDArray[np.intp], Affine]:
        """Return which inputs the map looks at, and the same map of these alone.

        A matrix that only picks and scales becomes a vector gain, since a product with zeros costs as much as any.
        """
        everything = np.arange(len(self.centre))
        if self.gain.ndim == 1:
            return everything, self
        used = self.gain != 0
        if (used.sum(axis=0) == 1).all() and (used.sum(axis=1) <= 1).all():
            chosen = used.argmax(axis=0)
            return chosen, Affine(self.centre[chosen], self.gain[chosen, np.arange(len(chosen))], self.bias)
        # of a scene without any variation, scaled by itself, nothing is looked at; something has to be read
        chosen = np.flatnonzero(used.any(axis=1)) if used.any() else everything
        return chosen, Affine(self.centre[chosen], self.gain[chosen], self.bias)

    def apply(self, values_bp: NDArray[np.generic]) -> NDArray[np.float32]:
        """Map (bands, ...pixels) values, any real dtype and strides, to (outputs, pixels) float32, C-contiguous."""
        # 32-bit integers and doubles lose digits in float32 unless the centre is taken off first
        exact = values_bp.dtype.itemsize <= 2 or values_bp.dtype == np.float32
        work = np.float32 if exact else np.float64
        # what rounding the centre takes away goes to the bias
        rounded = self.around(self.centre.astype(work).astype(np.float64))
        centred = lend(values_bp.shape, work)
        centre = rounded.centre.astype(work).reshape(-1, *[1] * (values_bp.ndim - 1))
        np.subtract(values_bp, centre, out=centred, dtype=work)
        centred = centred.reshape(len(values_bp), -1).astype(np.float32, copy=False)
        bias = rounded.bias.astype(np.float32)[:, None]
        if self.gain.ndim == 1:
            centred *= self.gain.astype(np.float32)[:, None]
            centred += bias
            return centred
        out = self.gain.T.astype(np.float32) @ centred
        out += bias
        return out
