"""Reducing the number of bands: principal components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..statistics import F8, Moments
from .projection import Projection, enough_components, require_one_choice, signs

#: Smallest share of the largest eigenvalue that counts as variance, far above the rounding of float64 sums.
_RANK_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Pca(Projection):
    """Projection on the leading eigenvectors of the training pixels' covariance (Pearson 1901, Hotelling 1933).

    Components have unit length and fall by variance; the sign is fixed so that the largest coefficient by absolute
    value is positive. Variances are those of the pixels as they are (division by their number); scikit-learn's and
    SPy's, which divide by one less, are larger by the factor count / (count - 1).
    """

    mean: F8  #: (n,)
    components: F8  #: (k, n) of unit length
    variance: F8  #: (k,) eigenvalues, falling
    total_variance: float  #: of all components
    whiten: bool = False  #: scores are divided by their standard deviation

    @classmethod
    def fit(
        cls,
        moments: Moments,
        components: int | None = None,
        *,
        explained: float | None = None,
        whiten: bool = False,
    ) -> Pca:
        """Fit on the moments of what enters the stage.

        Parameters
        ----------
        moments
            Of the training pixels, with covariances.
        components
            Number of components; all that the pixels span when `explained` is not given either.
        explained
            Instead, the smallest number that explains this share (0..1) of the variance.
        whiten
            Divide the scores by their standard deviation.

        Raises
        ------
        ConfigError
            More components are asked for than there are bands, or than the training pixels span.
        """
        require_one_choice(components=components, explained=explained)
        bands = len(moments.mean)
        values, vectors = np.linalg.eigh(moments.covariance)
        values, vectors = values[::-1], vectors[:, ::-1]
        # a component whose variance is rounding noise would be blown up by a scaling behind it
        spanned = int((values > values[0] * _RANK_TOLERANCE).sum())
        limit = min(bands, moments.count - 1, spanned)
        total = float(np.maximum(values, 0).sum())
        if not limit:
            raise ConfigError(
                f"reduce: method pca finds no component: the {moments.count} training pixels are all alike in the {bands} "
                "bands that reach it; check `split` and `mask`."
            )
        if explained is not None:
            components = enough_components(values[:limit] / total, explained)
        if components is None:
            components = limit
        if not 0 < components <= limit:
            raise ConfigError(
                f"reduce.components is {components}, but {bands} bands of {moments.count} training pixels give {limit} "
                "at most; set reduce.components to that or less."
            )
        basis = vectors[:, :components].T
        basis = np.ascontiguousarray(basis * signs(basis))
        return cls(moments.mean, basis, values[:components], total, whiten)

    @property
    def weights(self) -> F8:
        """Coefficients (n, k) that make scores of centred spectra."""
        return self.components.T / np.sqrt(self.variance) if self.whiten else self.components.T

    @property
    def loadings(self) -> F8:
        """Coefficients (n, k) that make centred spectra of scores."""
        return self.components.T * np.sqrt(self.variance) if self.whiten else self.components.T

    @property
    def explained(self) -> F8:
        """Share of the variance that each component explains."""
        return self.variance / self.total_variance

    @property
    def explained_variance_(self) -> F8:
        """The variances, by scikit-learn's name."""
        return self.variance

    @property
    def explained_variance_ratio_(self) -> F8:
        """The shares of the variance, by scikit-learn's name."""
        return self.explained

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        arrays = {"mean": self.mean, "components": self.components, "variance": self.variance}
        return {"method": "pca", "total_variance": self.total_variance, "whiten": self.whiten}, arrays

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Pca:
        """Make the stage from its stored state."""
        total = float(str(settings["total_variance"]))
        whiten = bool(settings["whiten"])
        return cls(arrays["mean"], arrays["components"], arrays["variance"], total, whiten)
