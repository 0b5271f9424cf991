"""Keeping a choice of bands: those that see named features, and those that rank best in the training pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...statistics import F8, Moments
from ..affine import Affine
from ..stage import Arrays, BandTable, Settings
from . import ranking
from .config import Rank, SelectConfig
from .diagnostics import Seen, see
from .features import Feature, load_features
from .information import Binned

#: Relative: noise below this share of a band's own variance is raised to it, so that no band has all the weight.
_LEAST_NOISE = 1e-10


@dataclass(frozen=True)
class Select:
    """Some of the bands, unchanged and in their order.

    There is no inverse: what the other bands held is gone.
    """

    kind: ClassVar[str] = "reduce"

    bands: int  #: number of bands that enter
    chosen: NDArray[np.intp]  #: (k,) numbers of the bands kept, ascending, from 0
    scores: F8  #: (bands,) what the rank gave each band (see `band_scores`); NaN without one
    reasons: tuple[
        str, ...
    ]  #: (k,) why each was kept: `kaolinite centre, alunite right shoulder`, or `osp 3`
    rank: Rank | None = None
    notes: list[str] = field(default_factory=list[str])  #: what a user should be told; not stored

    @classmethod
    def fit(
        cls,
        table: BandTable,
        moments: Moments | None,
        *,
        config: SelectConfig,
        differences: Moments | None = None,
        sample_bp: NDArray[np.floating] | None = None,
        sample_labels: NDArray[np.integer] | None = None,
    ) -> Select:
        """Choose bands: those of the features first, the rest of the budget by rank.

        Parameters
        ----------
        table
            Of the n bands that enter, in any order of wavelength.
        moments
            Of the training pixels; None only without a rank (then bands that never change are not recognised).
        config
            What is asked for.
        differences
            Moments of the differences between neighbouring training pixels; for the rank `mnf`.
        sample_bp, sample_labels
            (n, pixels) training spectra and their classes, 0 = unlabelled; for the rank `mutual_information`.

        Raises
        ------
        ConfigError
            Features without wavelengths, more bands asked for than there are, features that need more bands than the
            budget has, or a rank without what it is computed from.
        """
        if config.components is not None and config.components > table.count:
            raise ConfigError(
                f"reduce.components is {config.components}, but {table.count} bands enter the stage; set it to that or less."
            )
        varies = np.ones(table.count, bool) if moments is None else moments.std > 0
        seen = see(table, config.wanted, varies) if config.features else []
        why = _reasons(seen)
        notes = _feature_notes(seen)
        _check_budget(config, seen, why, table)
        taken, scores = sorted(why), np.full(table.count, np.nan)
        if config.rank is not None and config.components is not None:
            data = _Data(table, moments, differences, sample_bp, sample_labels)
            found = _rank(config.rank, data, taken, config.components - len(taken), config.redundancy)
            scores = found.scores
            why |= {band: f"{config.rank} {place}" for place, band in enumerate(found.picked, 1)}
            notes += _rank_notes(config.rank, found, table, varies, sorted(why))
        chosen = np.array(sorted(why), np.intp)
        return cls(table.count, chosen, scores, tuple(why[int(band)] for band in chosen), config.rank, notes)

    @property
    def outputs(self) -> int:
        """Number of bands kept."""
        return len(self.chosen)

    def affine(self) -> Affine:
        """Return the map of this stage: a matrix of zeros and ones."""
        gain = np.zeros((self.bands, self.outputs))
        gain[self.chosen, np.arange(self.outputs)] = 1.0
        return Affine(np.zeros(self.bands), gain, np.zeros(self.outputs))

    def propagate(self, moments: Moments) -> Moments:
        """Return the moments behind the stage, given those in front of it."""
        return moments.select(self.chosen)

    def state(self) -> tuple[Settings, Arrays]:
        """Return settings and arrays, from which `restore` makes the same stage (without its notes)."""
        settings = {"method": "select", "bands": self.bands, "rank": self.rank, "reasons": list(self.reasons)}
        return settings, {"chosen": self.chosen.astype(np.float64), "scores": self.scores}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[np.float64]]) -> Select:
        """Make the stage from its stored state."""
        chosen = arrays["chosen"].astype(np.intp)
        reasons = tuple(str(reason) for reason in settings["reasons"])
        return cls(int(settings["bands"]), chosen, arrays["scores"], reasons, settings["rank"])


@dataclass(frozen=True)
class _Data:
    """What ranks are computed from."""

    table: BandTable
    moments: Moments | None = None
    differences: Moments | None = None
    sample_bp: NDArray[np.floating] | None = None
    sample_labels: NDArray[np.integer] | None = None

    def covariance(self) -> F8:
        """Return the covariances, exactly 0 for bands that never change."""
        assert self.moments is not None
        assert self.moments.full
        varies = self.moments.std > 0
        return np.where(np.outer(varies, varies), self.moments.covariance, 0.0)

    def signal(self) -> F8:
        """Return the share of signal of each band."""
        assert self.moments is not None
        if self.differences is None or not self.differences.count:
            raise ConfigError(
                "reduce.rank mnf measures noise from the differences between neighbouring training pixels, and there are "
                "none; choose the rank osp or mutual_information."
            )
        return ranking.signal_share(self.moments, self.differences)

    def noise_adjusted(self) -> F8:
        """Return the covariances in units of each band's noise."""
        covariance = self.covariance()
        assert self.differences is not None
        total = np.diagonal(covariance)
        noise = np.sqrt(np.maximum(self.differences.std**2 / 2, _LEAST_NOISE * total))
        gain = np.divide(1.0, noise, out=np.zeros_like(noise), where=noise > 0)
        return covariance * np.outer(gain, gain)

    def binned(self) -> Binned:
        """Return the labelled sample in bins."""
        if self.sample_bp is None or self.sample_labels is None:
            return Binned.of(np.zeros((self.table.count, 0), np.float32), np.zeros(0, np.int64))
        return Binned.of(self.sample_bp, self.sample_labels)

    def order(self) -> NDArray[np.intp]:
        """Return the bands by wavelength, or by number where one has none."""
        centres = self.table.wavelength_nm
        if centres is None or not np.isfinite(centres).all():
            return np.arange(self.table.count)
        return np.argsort(centres, kind="stable")


def band_scores(
    rank: Rank,
    moments: Moments,
    *,
    differences: Moments | None = None,
    sample_bp: NDArray[np.floating] | None = None,
    sample_labels: NDArray[np.integer] | None = None,
) -> F8:
    """Return what a rank thinks of each band, for a plot over wavelength.

    Parameters
    ----------
    rank
        `mutual_information`: information on the labels in nats; `mnf`: share of the variance that is signal; `osp`:
        variance that the bands chosen before leave, when its turn comes; `equal_interval` has no scores (NaN).
    moments
        Of the pixels (n bands), with covariances for `osp`.
    differences
        Moments of the differences between neighbours, for `mnf`.
    sample_bp, sample_labels
        (n, pixels) spectra and classes, 0 = unlabelled, for `mutual_information`.

    Returns
    -------
    ndarray
        (n,) float64.
    """
    bands = len(moments.mean)
    data = _Data(BandTable(bands), moments, differences, sample_bp, sample_labels)
    return _rank(rank, data, (), bands, redundancy=rank == "osp").scores


def _rank(rank: Rank, data: _Data, taken: Sequence[int], count: int, redundancy: bool) -> ranking.Ranking:
    if rank == "osp":
        return ranking.orthogonal(data.covariance(), taken, count)
    if rank == "mnf":
        share = data.signal()
        if not redundancy:
            return ranking.by_score(share, taken, count)
        found = ranking.orthogonal(data.noise_adjusted(), taken, count)
        return ranking.Ranking(found.picked, share, found.spent)
    if rank == "mutual_information":
        binned = data.binned()
        if redundancy:
            return ranking.relevant(binned, taken, count)
        return ranking.by_score(binned.with_labels(), taken, count)
    return ranking.equal_intervals(data.order(), taken, count)


def _reasons(seen: Sequence[Seen]) -> dict[int, str]:
    """Map the bands of covered features to why they are kept."""
    why: dict[int, str] = {}
    for item in seen:
        for part, band in item.bands.items() if item.covered else ():
            reason = f"{item.feature.name} {part}"
            why[band] = f"{why[band]}, {reason}" if band in why else reason
    return why


def _check_budget(config: SelectConfig, seen: Sequence[Seen], why: dict[int, str], table: BandTable) -> None:
    if config.components is not None and len(why) > config.components:
        covered = [item.feature.name for item in seen if item.covered]
        raise ConfigError(
            f"reduce.features asks for {len(why)} bands ({len(covered)} features with their shoulders: "
            f"{', '.join(covered)}), and reduce.components is {config.components}. Raise components to {len(why)} or "
            "more, or name fewer features."
        )
    if not why and config.rank is None:
        assert table.wavelength_nm is not None
        low, high = np.nanmin(table.wavelength_nm), np.nanmax(table.wavelength_nm)
        raise ConfigError(
            f"No band covers any of reduce.features ({_listed([item.feature for item in seen])}): the bands lie between "
            f"{low:g} and {high:g} nm. Name others, or give a reduce.rank."
        )


def _feature_notes(seen: Sequence[Seen]) -> list[str]:
    lost = [item.feature for item in seen if not item.covered]
    partly = [item for item in seen if item.covered and item.lacking]
    notes: list[str] = []
    if lost:
        notes.append(f"no band covers the features {_listed(lost)}")
    if partly:
        parts = "; ".join(f"{item.feature.name}: {' and '.join(item.lacking)}" for item in partly)
        notes.append(f"no band of its own covers these shoulders of features: {parts}")
    return notes


def _rank_notes(
    rank: Rank, found: ranking.Ranking, table: BandTable, varies: NDArray[np.bool_], chosen: Sequence[int]
) -> list[str]:
    notes: list[str] = []
    if found.spent is not None:
        notes.append(
            f"the last {len(found.picked) - found.spent} bands chosen by {rank} add nothing that the others do not hold"
        )
    constant = [band + 1 for band in chosen if not varies[band]]
    if constant:
        notes.append(f"bands that never change had to be chosen: {', '.join(map(str, constant))} (1-based)")
    if rank == "equal_interval":
        if table.wavelength_nm is None or not np.isfinite(table.wavelength_nm).any():
            notes.append(
                "equal-interval sampling looks at no data; without wavelengths it is not known what it loses"
            )
            return notes
        left = np.zeros(table.count, bool)
        left[list(chosen)] = True
        every = tuple(load_features().values())
        before, after = see(table, every, varies), see(table, every, left)
        lost = [
            old.feature for old, new in zip(before, after, strict=True) if old.covered and not new.covered
        ]
        if lost:
            notes.append(
                f"equal-interval sampling loses the features {_listed(lost)}; name them in reduce.features"
            )
    return notes


def _listed(features: Sequence[Feature]) -> str:
    return ", ".join(f"{item.name} ({sum(item.centre_nm) / 2:g} nm)" for item in features)
