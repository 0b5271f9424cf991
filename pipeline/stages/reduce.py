"""Reducing the number of bands: principal components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..errors import ConfigError
from ..statistics import F8, Moments
from .affine import Affine

#: Smallest share of the largest eigenvalue that counts as variance, far above the rounding of float64 sums.
_RANK_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Pca:
    """Projection on the leading eigenvectors of the training pixels' covariance (Pearson 1901, Hotelling 1933).

    Components have unit length and fall by variance; the sign is fixed so that the largest coefficient by absolute
    value is positive.
    """

    kind = "reduce"

    mean: F8  #: (n,)
    components: F8  #: (k, n)
    variance: F8  #: (k,) eigenvalues, falling
    total_variance: float  #: of all components

    @classmethod
    def fit(cls, moments: Moments, components: int) -> Pca:
        """Fit on the moments of what enters the stage.

        Raises
        ------
        ConfigError
            More components are asked for than there are bands, or than the training pixels span.
        """
        bands = len(moments.mean)
        values, vectors = scipy.linalg.eigh(moments.covariance)
        # a component whose variance is rounding noise would be blown up by a scaling behind it
        spanned = int((values > values[-1] * _RANK_TOLERANCE).sum())
        limit = min(bands, moments.count - 1, spanned)
        if components > limit:
            raise ConfigError(
                f"reduce.components is {components}, but {bands} bands of {moments.count} training pixels give {limit} "
                "at most; set reduce.components to that or less."
            )
        values, vectors = values[::-1], vectors[:, ::-1]
        basis = vectors[:, :components].T
        largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1, keepdims=True), axis=1)
        basis = basis * np.sign(largest)
        total = float(np.maximum(values, 0).sum())
        return cls(moments.mean, np.ascontiguousarray(basis), np.maximum(values[:components], 0), total)

    @property
    def explained(self) -> F8:
        """Share of the variance that each component explains."""
        return self.variance / self.total_variance if self.total_variance else np.zeros_like(self.variance)

    def affine(self) -> Affine:
        """Return the map of this stage."""
        return Affine(self.mean, self.components.T, np.zeros(len(self.components)))

    def outputs(self, moments: Moments) -> Moments:
        """Return the moments of the scores; their range is not known from the bands' (set to NaN)."""
        unknown = np.full(len(self.components), np.nan)
        scatter = self.components @ moments.scatter @ self.components.T
        return Moments(moments.count, np.zeros(len(self.components)), scatter, unknown, unknown)

    def inverse(self, scores_cp: NDArray[np.floating]) -> F8:
        """Map scores (k, pixels) back to bands (n, pixels), with what the other components held lost."""
        return self.components.T @ np.asarray(scores_cp, np.float64) + self.mean[:, None]

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        arrays = {"mean": self.mean, "components": self.components, "variance": self.variance}
        return {"method": "pca", "total_variance": self.total_variance}, arrays

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Pca:
        """Make the stage from its stored state."""
        total = float(str(settings["total_variance"]))
        return cls(arrays["mean"], arrays["components"], arrays["variance"], total)
