"""Moments of pixels that merge: count, mean, covariance, minimum and maximum.

Sums are taken in float64 around a shift near the block's own mean and merged pairwise (Chan, Golub and LeVeque 1979,
"Updating formulae and a pairwise algorithm for computing sample variances"), so that an offset of 1e5 with a spread of
1 keeps its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..readers.buffers import lend

F8 = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Count, mean, centred second moments and range of pixels over `n` bands."""

    count: int
    mean: F8  #: (n,)
    scatter: F8  #: (n, n) sum of outer products of deviations; (n,) squares alone when not `full`
    minimum: F8  #: (n,)
    maximum: F8  #: (n,)

    @classmethod
    def empty(cls, bands: int, *, full: bool = True) -> Moments:
        """Return the moments of no pixel."""
        zeros = np.zeros(bands)
        scatter = np.zeros((bands, bands)) if full else zeros.copy()
        return cls(0, zeros, scatter, np.full(bands, np.inf), np.full(bands, -np.inf))

    @classmethod
    def of(cls, values_bp: NDArray[np.generic], *, full: bool = True) -> Moments:
        """Compute the moments of `values_bp` (bands, ...pixels), any real dtype.

        Parameters
        ----------
        values_bp
            One row, or one image, per band; a strided view is as good as an array of its own.
        full
            Also the covariances between bands; without, variances only.
        """
        bands, count = len(values_bp), int(np.prod(values_bp.shape[1:]))
        if not count:
            return cls.empty(bands, full=full)
        # Any shift near the mean serves; this one is cheap and depends on the block alone.
        step = max(1, values_bp.shape[-1] // 64)
        shift = values_bp[..., ::step].reshape(bands, -1).mean(axis=1, dtype=np.float64)
        # fresh memory would cost as much as the sums
        centred = lend(values_bp.shape, np.float64)
        np.subtract(values_bp, shift.reshape(-1, *[1] * (values_bp.ndim - 1)), out=centred)
        centred = centred.reshape(bands, count)
        delta = centred @ np.ones(count) / count
        # the squares are summed in one way, so that no variance depends on whether covariances were asked for too
        scatter = np.einsum("bp,bp->b", centred, centred)
        if full:
            squares, scatter = scatter, centred @ centred.T
            np.fill_diagonal(scatter, squares)
        scatter -= count * (np.outer(delta, delta) if full else delta**2)
        pixels = tuple(range(1, values_bp.ndim))
        low, high = values_bp.min(axis=pixels), values_bp.max(axis=pixels)
        return cls(count, shift + delta, scatter, low.astype(np.float64), high.astype(np.float64))

    @property
    def full(self) -> bool:
        """Whether covariances between bands are there."""
        return self.scatter.ndim == 2

    @property
    def covariance(self) -> F8:
        """Population covariance (n, n), symmetric to the last bit."""
        cov = self.scatter / self.count
        return (cov + cov.T) / 2

    @property
    def std(self) -> F8:
        """Population standard deviation (n,); exactly 0 for a constant band, never NaN."""
        squares = np.diagonal(self.scatter) if self.full else self.scatter
        std = np.sqrt(np.maximum(squares, 0.0) / self.count)
        return np.where(self.minimum == self.maximum, 0.0, std)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of pixels together."""
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        cross = np.outer(delta, delta) if self.full else delta**2
        return Moments(
            count,
            self.mean + delta * (other.count / count),
            self.scatter + other.scatter + cross * (self.count * other.count / count),
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
        )

    def affine(self, scale: ArrayLike, offset: ArrayLike) -> Moments:
        """Return the moments of ``value * scale + offset``, both per band."""
        scale = np.broadcast_to(np.asarray(scale, np.float64), self.mean.shape)
        offset = np.broadcast_to(np.asarray(offset, np.float64), self.mean.shape)
        factor = np.outer(scale, scale) if self.full else scale**2
        ends = np.stack([self.minimum * scale + offset, self.maximum * scale + offset])
        return Moments(
            self.count, self.mean * scale + offset, self.scatter * factor, ends.min(0), ends.max(0)
        )

    def select(self, bands: NDArray[np.intp]) -> Moments:
        """Return the moments of some bands, in the given order."""
        scatter = self.scatter[np.ix_(bands, bands)] if self.full else self.scatter[bands]
        return Moments(self.count, self.mean[bands], scatter, self.minimum[bands], self.maximum[bands])


def balanced(classes: Sequence[Moments]) -> Moments:
    """Return the moments in which each class has the same weight, however many pixels it has.

    Parameters
    ----------
    classes
        Moments by class; those without a pixel do not take part.

    Returns
    -------
    Moments
        `count` is that of the real pixels, and mean and covariance are those of the balanced mixture.
    """
    held = [part for part in classes if part.count]
    count = sum(part.count for part in held)
    if not held:
        return classes[0]
    mean = np.sum([part.mean for part in held], axis=0) / len(held)
    total = np.zeros_like(held[0].scatter)
    for part in held:
        away = part.mean - mean
        spread = part.scatter / part.count
        total += spread + (np.outer(away, away) if part.full else away**2)
    low = np.min([part.minimum for part in held], axis=0)
    high = np.max([part.maximum for part in held], axis=0)
    return Moments(count, mean, total / len(held) * count, low, high)
