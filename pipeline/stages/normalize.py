"""Normalising: per-band scaling fitted on the training pixels (`zscore`, `minmax`, `percentile`), and unit spectra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..statistics import F8, Moments
from .affine import Affine
from .projection import moments_behind


@dataclass(frozen=True)
class Normalize:
    """y = (x - centre) / spread; a band without spread becomes 0 and is reported.

    `zscore` centres on the mean and divides by the population standard deviation, `minmax` maps the range of the
    training pixels to 0..1, `percentile` two of their quantiles. Values outside stay outside: nothing is clipped.
    """

    kind: ClassVar[str] = "normalize"

    method: str
    centre: F8  #: (n,)
    spread: F8  #: (n,)

    @classmethod
    def fit(cls, moments: Moments, method: str, quantiles: NDArray[np.float64] | None = None) -> Normalize:
        """Fit on the moments of what enters the stage.

        Parameters
        ----------
        moments
            Of the training pixels.
        method
            ``zscore``, ``minmax`` or ``percentile``.
        quantiles
            For ``percentile``: the values (2, n) that become 0 and 1.
        """
        if method == "zscore":
            return cls(method, moments.mean, moments.std)
        if method == "minmax":
            return cls(method, moments.minimum, moments.maximum - moments.minimum)
        assert quantiles is not None, "the quantiles are measured where the pixels are read"
        return cls(method, quantiles[0], quantiles[1] - quantiles[0])

    @property
    def outputs(self) -> int:
        """Number of bands."""
        return len(self.centre)

    @property
    def constant(self) -> NDArray[np.intp]:
        """Numbers of the bands that become 0: they never change, or have two equal quantiles."""
        return np.flatnonzero(self.spread == 0)

    def affine(self) -> Affine:
        """Return the map of this stage."""
        gain = np.divide(1.0, self.spread, out=np.zeros_like(self.spread), where=self.spread != 0)
        return Affine.scaling(self.centre, gain, len(self.centre))

    def propagate(self, moments: Moments) -> Moments:
        """Return the moments behind the stage, given those in front of it."""
        return moments_behind(self.affine(), moments)

    def inverse(self, values_bp: NDArray[np.floating]) -> F8:
        """Map normalised values (n, pixels) back, in float64; a band without spread becomes its centre."""
        return np.asarray(values_bp, np.float64) * self.spread[:, None] + self.centre[:, None]

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        return {"method": self.method}, {"centre": self.centre, "spread": self.spread}

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Normalize:
        """Make the stage from its stored state."""
        return cls(str(settings["method"]), arrays["centre"], arrays["spread"])


@dataclass(frozen=True)
class UnitNorm:
    """Every spectrum divided by its length (L2 norm), which takes brightness away; a spectrum of zeros stays so."""

    kind: ClassVar[str] = "normalize"

    bands: int

    @property
    def outputs(self) -> int:
        """Number of bands."""
        return self.bands

    def apply(self, values_bp: NDArray[np.floating]) -> NDArray[np.floating]:
        """Map (bands, pixels), float32 or float64 and finite, to the same shape and dtype."""
        # by the largest value first, so that no square overflows or vanishes
        peak = np.abs(values_bp).max(axis=0)
        out = np.divide(values_bp, peak, out=np.zeros_like(values_bp), where=peak > 0)
        length = np.sqrt(np.einsum("bp,bp->p", out, out))
        return np.divide(out, length, out=out, where=length > 0)

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        return {"method": "unit_norm", "bands": self.bands}, {}

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> UnitNorm:
        """Make the stage from its stored state."""
        del arrays
        return cls(int(str(settings["bands"])))
