"""Reducing the number of bands: the minimum noise fraction, which orders components by signal-to-noise ratio."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError
from ..statistics import F8, Moments
from .projection import Projection, enough_components, require_one_choice, signs

#: Smallest share of the largest eigenvalue of the noise correlation that counts as noise: below any instrument's or
#: quantiser's, above what float32 spectra and float64 sums round to.
_NOISE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Mnf(Projection):
    """Projection on the directions of largest signal-to-noise ratio (Green, Berman, Switzer and Craig 1988).

    With the covariance S of the pixels and N of the noise, components solve S a = eigenvalue N a with a' N a = 1: the
    noise of the scores is white with variance 1, the scores are uncorrelated, and their variance, the eigenvalue,
    is the signal-to-noise ratio + 1. N is half the covariance of the differences of neighbouring pixels, in which the
    signal cancels; their mean is removed. The sign is fixed as for `Pca`.

    Noise without full rank (a constant band, a band that stands twice, fewer pairs of pixels than bands) is dealt with
    by one rule: bands are scaled to noise 1, directions whose noise is below 1e-10 of the strongest are left out, and
    a warning gives rank and counts. Where the pixels do not vary in such a direction either, nothing is lost by it:
    eigenvalues, scores and inverse are those of the data without the superfluous bands.

    Covariances divide by the number of pixels (of pairs). SPy divides by one less: its eigenvalues are these times
    (count / (count - 1)) * ((pairs - 1) / pairs), with its default `direction` for diagonal neighbours.
    """

    mean: F8  #: (n,)
    components: F8  #: (k, n) scores of centred spectra
    mixing: F8  #: (n, k) noise covariance @ components', which makes centred spectra of scores
    eigenvalues: F8  #: (k,) signal-to-noise ratio + 1, falling
    total_snr: float  #: sum of the signal-to-noise ratios above 0 of all components
    rank: int  #: number of directions with noise

    @classmethod
    def fit(
        cls,
        moments: Moments,
        differences: Moments,
        *,
        components: int | None = None,
        min_snr: float | None = None,
        explained: float | None = None,
    ) -> Mnf:
        """Fit on the moments of what enters the stage.

        Parameters
        ----------
        moments
            Of the training pixels, with covariances.
        differences
            Of x_i - x_j over pairs of neighbouring training pixels, with covariances; which neighbours (along x,
            along y, diagonal) is decided where they are gathered.
        components
            Number of components; all directions with noise when nothing else is given.
        min_snr
            Instead, the components whose signal-to-noise ratio (eigenvalue - 1) is at least this.
        explained
            Instead, the smallest number that holds this share (0..1) of the sum of signal-to-noise ratios; those
            below 0 count as 0.

        Raises
        ------
        ConfigError
            There is no noise to be measured, or more components are asked for than it has directions.
        """
        require_one_choice(components=components, min_snr=min_snr, explained=explained)
        noise = differences.covariance / 2 if differences.count else np.zeros_like(moments.scatter)
        whitening = _whitening(noise)
        rank = whitening.shape[1]
        counts = (
            f"the noise of {len(moments.mean)} bands has rank {rank} ({moments.count} training pixels, "
            f"{differences.count} pairs of neighbours)"
        )
        if not rank:
            raise ConfigError(
                f"reduce: method mnf finds no noise: {counts}. Neighbours in the training split must differ; take "
                "another direction (reduce.noise), other splits, or method pca."
            )
        inner = whitening.T @ moments.covariance @ whitening
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        wanted = _number(values, counts, components=components, min_snr=min_snr, explained=explained)
        if rank < len(moments.mean):
            warnings.warn(
                f"{counts[0].upper()}{counts[1:]}: the other {len(moments.mean) - rank} directions are left out. Bands "
                "that are constant or equal to another can be dropped (drop_bands); else give more training pixels.",
                BandstreamWarning,
                stacklevel=2,
            )
        basis = (whitening @ vectors[:, :wanted]).T
        basis = np.ascontiguousarray(basis * signs(basis))
        total = float(np.maximum(values - 1, 0).sum())
        return cls(moments.mean, basis, noise @ basis.T, values[:wanted], total, rank)

    @property
    def weights(self) -> F8:
        """Coefficients (n, k) that make scores of centred spectra."""
        return self.components.T

    @property
    def loadings(self) -> F8:
        """Coefficients (n, k) that make centred spectra of scores: exact with all components, else with less noise."""
        return self.mixing

    @property
    def snr(self) -> F8:
        """Signal-to-noise ratio (k,) of each component, below 0 where neighbours differ more than any two pixels."""
        return self.eigenvalues - 1

    @property
    def explained(self) -> F8:
        """Share of the sum of signal-to-noise ratios that each component holds."""
        return np.maximum(self.snr, 0) / self.total_snr if self.total_snr else np.zeros_like(self.snr)

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        arrays = {
            "mean": self.mean,
            "components": self.components,
            "mixing": self.mixing,
            "eigenvalues": self.eigenvalues,
        }
        return {"method": "mnf", "total_snr": self.total_snr, "rank": self.rank}, arrays

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Mnf:
        """Make the stage from its stored state."""
        return cls(
            arrays["mean"],
            arrays["components"],
            arrays["mixing"],
            arrays["eigenvalues"],
            float(str(settings["total_snr"])),
            int(str(settings["rank"])),
        )


def mnf_warning(attrs: Mapping[str, Any]) -> str | None:
    """Return what is to be told about MNF of a scene with these attributes, if anything."""
    if not attrs.get("resampled"):
        return None
    return (
        f"{attrs.get('source')} was interpolated to its grid ({attrs.get('product') or 'resampled'}), which smooths "
        "neighbouring pixels: MNF measures noise by their differences and finds too little of it. Signal-to-noise "
        "ratios come out too high, and components may be ordered otherwise than in sensor geometry."
    )


def _whitening(noise: F8) -> F8:
    """Return w (n, rank) with w' noise w = 1 over the directions that hold noise, bands without any having rows of 0."""
    spread = np.sqrt(np.maximum(np.diagonal(noise), 0))
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    # the correlation, so that the rule does not depend on the bands' units
    values, vectors = np.linalg.eigh(noise * np.outer(inverse, inverse))
    kept = values > max(values[-1], 0) * _NOISE_TOLERANCE
    return inverse[:, None] * vectors[:, kept] / np.sqrt(values[kept])


def _number(
    values: F8, counts: str, *, components: int | None, min_snr: float | None, explained: float | None
) -> int:
    """Return how many components to keep of those with these eigenvalues.

    Raises
    ------
    ConfigError
        None, or more than there are.
    """
    snr = values - 1
    if min_snr is not None:
        number = int((snr >= min_snr).sum())
        if not number:
            raise ConfigError(
                f"reduce.min_snr is {min_snr:g}, and the best component has a signal-to-noise ratio of {snr[0]:.4g}; "
                "set it to less."
            )
        return number
    if explained is not None:
        positive = np.maximum(snr, 0)
        if not positive.any():
            raise ConfigError(
                "reduce.explained is of no use here: no component has more signal than noise; set reduce.components."
            )
        return enough_components(positive / positive.sum(), explained)
    if components is not None and not 0 < components <= len(values):
        raise ConfigError(
            f"reduce.components is {components}, but {counts}, which gives {len(values)} at most; set "
            "reduce.components to that or less."
        )
    return len(values) if components is None else components
