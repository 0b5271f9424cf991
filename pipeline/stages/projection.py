"""What projections of spectra on a few components share: their signs, their number, and what is known behind them."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..statistics import F8, Moments
from .affine import Affine


class Projection:
    """Scores = (spectrum - mean) @ weights, and back by spectrum = loadings @ scores + mean.

    `affine`, `propagate` and `inverse` are what a build uses, bands first. `transform` and `inverse_transform` take
    spectra with bands last, as scikit-learn (pixels, bands) and SPy (rows, columns, bands) have them.
    """

    kind: ClassVar[str] = "reduce"

    mean: F8  #: (n,) of the training pixels
    components: F8  #: (k, n)

    @property
    @abstractmethod
    def weights(self) -> F8:
        """Coefficients (n, k) that make scores of centred spectra."""

    @property
    @abstractmethod
    def loadings(self) -> F8:
        """Coefficients (n, k) that make centred spectra of scores."""

    @property
    def outputs(self) -> int:
        """Number of components."""
        return len(self.components)

    def affine(self) -> Affine:
        """Return the map of this stage."""
        return Affine(self.mean, self.weights, np.zeros(self.outputs))

    def propagate(self, moments: Moments) -> Moments:
        """Return the moments of the scores; their range is not known from the bands' (NaN)."""
        return moments_behind(self.affine(), moments)

    def inverse(self, scores_cp: NDArray[np.floating]) -> F8:
        """Map scores (k, pixels) back to bands (n, pixels) in float64; what the other components held is lost."""
        return self.loadings @ np.asarray(scores_cp, np.float64) + self.mean[:, None]

    def transform(self, spectra: NDArray[np.generic]) -> F8:
        """Return the scores (..., k) of spectra (..., n) in float64."""
        return (np.asarray(spectra, np.float64) - self.mean) @ self.weights

    def inverse_transform(self, scores: NDArray[np.floating]) -> F8:
        """Return the spectra (..., n) of scores (..., k), as `inverse` does."""
        return np.asarray(scores, np.float64) @ self.loadings.T + self.mean

    @property
    def mean_(self) -> F8:
        """The mean, by scikit-learn's name."""
        return self.mean

    @property
    def components_(self) -> F8:
        """The components, by scikit-learn's name."""
        return self.components

    @property
    def n_components_(self) -> int:
        """The number of components, by scikit-learn's name."""
        return self.outputs


def moments_behind(affine: Affine, moments: Moments) -> Moments:
    """Return the moments of what an affine map makes of pixels with `moments`.

    Behind a matrix the range is not known (NaN), and `moments` must hold covariances.
    """
    if affine.gain.ndim == 1:
        return moments.affine(affine.gain, affine.bias - affine.centre * affine.gain)
    assert moments.full, "a matrix mixes bands, so that variances alone do not tell those behind it"
    unknown = np.full(affine.gain.shape[1], np.nan)
    mean = (moments.mean - affine.centre) @ affine.gain + affine.bias
    return Moments(moments.count, mean, affine.gain.T @ moments.scatter @ affine.gain, unknown, unknown)


def signs(components: F8) -> F8:
    """Return the signs (k, 1) that make each row's largest coefficient by absolute value positive."""
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1, keepdims=True), axis=1)
    return np.where(largest < 0, -1.0, 1.0)


def enough_components(shares: F8, explained: float) -> int:
    """Return the smallest number of leading components whose shares (k,), all of which make 1, reach `explained`.

    Raises
    ------
    ConfigError
        `explained` is not above 0 and at most 1.
    """
    if not 0 < explained <= 1:
        raise ConfigError(f"reduce.explained is {explained:g}; it must be above 0 and at most 1.")
    # all components explain everything, however the sum was rounded
    reached = np.cumsum(shares) >= explained - 1e-12
    return int(reached.argmax()) + 1 if reached.any() else len(shares)


def require_one_choice(**choices: float | None) -> None:
    """Refuse two rules for the number of components.

    Raises
    ------
    ConfigError
        More than one of them is given.
    """
    given = [f"reduce.{name}" for name, value in choices.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} both set the number of components; leave one of them.")
