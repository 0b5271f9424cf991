"""Fitting the stages on the statistics of the training pixels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .calibration.radiance_scale import REFLECTANCES
from .errors import BandstreamWarning, ConfigError, EmptySplitError, NoValidPixelsError
from .gathering import Gather, SceneNumbers
from .progress import runs_of
from .scene import nodata_values, scale_offset
from .stages.affine import Affine
from .stages.bands import candidate_bands, named_windows
from .stages.chain import FittedChain, Prefix, composed, run_steps
from .stages.config import is_fitted, shift_directions
from .stages.continuum import require_reflectance
from .stages.kinds import unfitted
from .stages.mnf import Mnf, mnf_warning
from .stages.normalize import Normalize
from .stages.prepare import Preparation
from .stages.projection import moments_behind
from .stages.reduce import Pca
from .stages.select import Select
from .stages.stage import AffineStage, BandTable, Stage
from .statistics import BandStatistics, Group, Histogram, Moments, Wanted, balanced, pooled, threshold
from .workflow import Workflow

if TYPE_CHECKING:
    from .sources import OpenScene
    from .statistics import F8
    from .survey import Survey

_REPORTED_INVALID = 0.05


@dataclass(frozen=True)
class Prepared:
    """A workflow's stages, before fitting, for its scenes."""

    candidates: NDArray[np.intp]  #: bands that metadata do not rule out
    preparation: Preparation
    table: BandTable  #: of the scenes' own bands
    numbers: list[SceneNumbers]  #: per scene, over all of its bands
    windows_nm: list[tuple[float, float]]
    constant: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  #: left out since

    @classmethod
    def of(cls, workflow: Workflow, scenes: Sequence[OpenScene], preparation: Preparation) -> Prepared:
        """Work out what needs no pixel.

        Raises
        ------
        ConfigError
            No band is left, or the scenes' stored numbers cannot be mixed.
        """
        drop, reduce = workflow.stage("drop_bands"), workflow.stage("reduce")
        datasets = [item.scene for item in scenes]
        windows: list[tuple[float, float]] = []
        if drop and drop.windows_nm:
            windows = (
                named_windows(drop.windows_nm) if isinstance(drop.windows_nm, str) else list(drop.windows_nm)
            )
        candidates = candidate_bands(datasets, listed=bool(drop and drop.listed), windows_nm=windows)
        if preparation.calibrate is None:
            _require_one_scale(datasets)
        if any(s.normalize and s.normalize.method == "continuum_removal" for s in workflow.stages):
            for dataset in datasets:
                require_reflectance(dataset.attrs)
        if reduce and (reduce.method == "mnf" or (reduce.method == "select" and reduce.needs_differences)):
            for told in sorted({text for d in datasets if (text := mnf_warning(d.attrs))})[:3]:
                warnings.warn(told, BandstreamWarning, stacklevel=2)
        numbers = [SceneNumbers(nodata_values(d), *preparation.numbers(d)) for d in datasets]
        return cls(candidates, preparation, band_table(datasets[0]), numbers, windows)

    def without(self, constant: NDArray[np.int64]) -> Prepared:
        """Return the same without candidates that turned out to be constant."""
        return replace(self, candidates=np.setdiff1d(self.candidates, constant), constant=constant)

    def scene_numbers(self) -> list[SceneNumbers]:
        """Return what each scene's stored numbers mean, per candidate."""
        return [numbers.select(self.candidates) for numbers in self.numbers]

    def gather(self, workflow: Workflow, found: Survey, dtypes: Sequence[np.dtype[Any]]) -> Gather:
        """Return what pass 1 is to gather."""
        drop, reduce = workflow.stage("drop_bands"), workflow.stage("reduce")
        configs = [config for _, config in workflow.spectral()]
        fitted = [config for config in configs if is_fitted(config)]
        unfitted_ = configs[: configs.index(fitted[0])] if fitted else []
        prefix = Prefix(_Maker(tuple(unfitted_)), self.table.select(self.candidates)) if unfitted_ else None
        balance = workflow.statistics.balance == "classes"
        percentiles = sum(getattr(config, "method", None) == "percentile" for config in fitted)
        one_scale = all(
            np.array_equal(getattr(n, name), getattr(self.numbers[0], name))
            for n in self.numbers
            for name in ("scale", "offset")
        )
        exact = (
            percentiles > 0
            and prefix is None
            and one_scale
            and all(dtype.kind in "iu" and dtype.itemsize <= 2 for dtype in dtypes)
            and getattr(fitted[0], "method", None) == "percentile"
        )
        select = reduce if reduce and reduce.method == "select" else None
        wanted = Wanted(
            covariance=_needs_covariance(workflow),
            directions=shift_directions(reduce),
            classes=len(found.class_names),
            class_covariance=balance and _needs_covariance(workflow),
            # a second percentile may stand behind bands that are mixed, whose histograms are not known
            sample_below=threshold(found.pixels["train"]) if percentiles > exact else 0,
            labelled_below=threshold(sum(found.labelled["train"])) if select and select.needs_sample else 0,
            histogram=exact,
        )
        return Gather(self.candidates, wanted, bool(drop and drop.all_nodata), prefix)


@dataclass(frozen=True)
class _Maker:
    """Makes stages that are not fitted; a function of its own could not travel to another process."""

    configs: tuple[Any, ...]

    def __call__(self, table: BandTable) -> tuple[Stage, ...]:
        return tuple(unfitted(config, table) for config in self.configs)


def band_table(scene: Any) -> BandTable:
    """Return what a scene tells of its bands."""
    detector = tuple(map(str, scene["detector"].values)) if "detector" in scene.coords else None
    wavelength, fwhm = (
        np.asarray(scene[name].values, np.float64) if name in scene.coords else None
        for name in ("wavelength", "fwhm")
    )
    return BandTable(int(scene.sizes["band"]), wavelength, fwhm, detector)


def _needs_covariance(workflow: Workflow) -> bool:
    """Whether bands are mixed by what is fitted, or behind something fitted."""
    reduce = workflow.stage("reduce")
    seen_fitted = False
    for kind, config in workflow.spectral():
        seen_fitted = seen_fitted or is_fitted(config)
        if seen_fitted and kind in ("smooth", "derivative"):
            return True
    if reduce is None or reduce.method == "none":
        return False
    return reduce.method in ("pca", "mnf") or reduce.needs_covariance


def _require_one_scale(datasets: Sequence[Any]) -> None:
    """Refuse to mix stored numbers that mean different values.

    Raises
    ------
    ConfigError
        Two scenes have other scales or offsets, and there is no calibrate stage.
    """
    first = scale_offset(datasets[0])
    for other in datasets[1:]:
        if not all(np.array_equal(a, b) for a, b in zip(first, scale_offset(other), strict=True)):
            raise ConfigError(
                f"{datasets[0].attrs.get('source')} and {other.attrs.get('source')} have different scales, so that their "
                "stored numbers cannot be mixed; add the stage calibrate."
            )


def needs_statistics(workflow: Workflow) -> bool:
    """Whether anything is fitted on pixels."""
    drop = workflow.stage("drop_bands")
    return any(is_fitted(config) for _, config in workflow.spectral()) or bool(drop and drop.all_nodata)


def constant_bands(prepared: Prepared, statistics: BandStatistics) -> NDArray[np.int64]:
    """Return the scenes' bands that never change over the training pixels, of those that hold data."""
    group = statistics.group()
    if group is None:
        return np.empty(0, np.int64)
    own = group.raw or group.moments
    return prepared.candidates[statistics.present][own.minimum == own.maximum].astype(np.int64)


@dataclass(frozen=True)
class Fit:
    """The fitted chain, the statistics it was fitted on, and what to tell about it."""

    chain: FittedChain
    moments: Moments | None  #: calibrated, over the kept bands
    classes: tuple[
        Moments, ...
    ]  #: the same for each class; empty without labels, or where stages come before
    notes: list[str]


def fit(workflow: Workflow, prepared: Prepared, gather: Gather, statistics: BandStatistics | None) -> Fit:
    """Fit the stages on the statistics of the training pixels.

    Raises
    ------
    EmptySplitError
        No pixel is in the training split.
    NoValidPixelsError
        All training pixels are masked.
    ConfigError
        More components than bands.
    """

    def chain(
        judged: NDArray[np.int64], kept: NDArray[np.int64], mean: F8 | None, stages: tuple[Stage, ...]
    ) -> FittedChain:
        return FittedChain(
            prepared.table.count,
            judged,
            kept,
            prepared.preparation,
            mean,
            stages,
            per_scene=workflow.per_scene,
            # as the scenes of the workflow were, before a band turned out to be of no use
            measured=np.union1d(prepared.candidates, prepared.constant) if workflow.per_scene else None,
        )

    everything = prepared.candidates.astype(np.int64)
    if statistics is None:
        make = _Maker(tuple(config for _, config in workflow.spectral()))
        stages = make(prepared.table.select(prepared.candidates))
        return Fit(chain(everything, everything, None, stages), None, (), [])
    if not statistics.considered:
        raise EmptySplitError(
            "The training split holds no pixel of any scene that the masks leave; check `split` and `mask`."
        )
    drop = workflow.stage("drop_bands")
    judged = everything[statistics.present] if drop and drop.all_nodata else everything
    group = statistics.group()
    if group is None or not group.moments.count:
        raise NoValidPixelsError(_all_masked(statistics, prepared))
    own = group.raw or group.moments
    constant = own.minimum == own.maximum
    notes = _band_notes(statistics, everything, np.union1d(prepared.constant, judged[constant]))
    keep = np.arange(len(judged))
    if drop and drop.all_nodata and gather.prefix is None:
        keep = np.flatnonzero(~constant)
        group = group.select(keep)
    if not len(keep) or constant.all():
        raise NoValidPixelsError(
            "Every band is constant over the training pixels; there is nothing to learn from."
        )
    kept = judged[keep]
    own = group.raw or group.moments
    calibrate = workflow.stage("calibrate")
    if calibrate and calibrate.to in REFLECTANCES:
        _check_reflectance(own)
    prefix = () if gather.prefix is None else gather.prefix.stages(statistics.present)
    fitted, told = _fit_stages(workflow, prefix, group, prepared.table.select(kept), gather.wanted)
    classes = group.classes if gather.prefix is None else ()
    return Fit(chain(judged, kept, own.mean, (*prefix, *fitted)), own, classes, [*notes, *told])


@dataclass(frozen=True)
class _Entering:
    """What is known of the training pixels where a stage stands."""

    table: BandTable
    moments: Moments
    differences: Moments | None
    sample_bp: NDArray[np.floating] | None
    labelled: tuple[NDArray[np.floating], NDArray[np.uint16]] | None
    histogram: Histogram | None

    def behind(self, stage: Stage) -> _Entering:
        """Return the same behind an affine stage; behind another nothing is fitted any more."""
        if not isinstance(stage, AffineStage):
            return self
        affine = stage.affine()
        shift = Affine(np.zeros_like(affine.centre), affine.gain, np.zeros_like(affine.bias))
        chosen = getattr(stage, "chosen", None)
        banded = affine.gain.ndim == 1
        steps = composed(affine, ())
        return _Entering(
            _table_behind(stage, self.table),
            self.moments.select(chosen) if chosen is not None else moments_behind(affine, self.moments),
            self.differences and moments_behind(shift, self.differences),
            None if self.sample_bp is None else run_steps(steps, self.sample_bp),
            self.labelled and (run_steps(steps, self.labelled[0]), self.labelled[1]),
            self.histogram.affine(affine.gain, affine.bias - affine.centre * affine.gain)
            if self.histogram and banded
            else None,
        )


def _fit_stages(
    workflow: Workflow, prefix: Sequence[Stage], group: Group, table: BandTable, wanted: Wanted
) -> tuple[list[Stage], list[str]]:
    moments = group.moments
    if workflow.statistics.balance == "classes":
        if not any(part.count for part in group.classes):
            raise EmptySplitError(
                "statistics.balance is classes, and no training pixel that is valid has a label; leave it out, or give "
                "labels."
            )
        moments = balanced(group.classes)
    entering = _Entering(
        table,
        moments,
        pooled(group.differences, wanted.directions) if wanted.directions else None,
        group.sample.drawn()[0] if group.sample else None,
        group.labelled.drawn() if group.labelled else None,
        group.histogram,
    )
    stages: list[Stage] = []
    notes: list[str] = []
    configs = [config for _, config in workflow.spectral()[len(prefix) :]]
    for number, config in enumerate(configs, 1):
        stage = _fit_one(config, entering) if is_fitted(config) else unfitted(config, entering.table)
        notes += getattr(stage, "notes", [])
        stages.append(stage)
        if any(map(is_fitted, configs[number:])):
            entering = entering.behind(stage)
        else:
            entering = replace(entering, table=_table_behind(stage, entering.table))
    return stages, notes


def _table_behind(stage: Stage, table: BandTable) -> BandTable:
    """Return what is known of the values that come out of a stage: components have no wavelengths."""
    chosen = getattr(stage, "chosen", None)
    if chosen is not None:
        return table.select(chosen)
    return BandTable(stage.outputs) if stage.kind == "reduce" else table


def _fit_one(config: Any, entering: _Entering) -> Stage:
    if config.method in ("zscore", "minmax"):
        return Normalize.fit(entering.moments, config.method)
    if config.method == "percentile":
        shares = np.array([config.low_percent, config.high_percent]) / 100
        if entering.histogram is not None:
            quantiles = entering.histogram.quantiles(shares)
        else:
            assert entering.sample_bp is not None
            quantiles = np.quantile(entering.sample_bp.astype(np.float64), shares, axis=1)
        return Normalize.fit(entering.moments, config.method, quantiles)
    if config.method == "pca":
        return Pca.fit(entering.moments, config.components, explained=config.explained, whiten=config.whiten)
    if config.method == "mnf":
        assert entering.differences is not None
        return Mnf.fit(
            entering.moments,
            entering.differences,
            components=config.components,
            min_snr=config.min_snr,
            explained=config.explained,
        )
    spectra, labels = entering.labelled or (None, None)
    return Select.fit(
        entering.table,
        entering.moments,
        config=config,
        differences=entering.differences,
        sample_bp=spectra,
        sample_labels=labels,
    )


def _band_notes(
    statistics: BandStatistics, bands: NDArray[np.int64], constant: NDArray[np.int64]
) -> list[str]:
    # the border of a scene has no data in any band, which says nothing about a band
    inner = statistics.considered - statistics.blank
    invalid = 1 - statistics.valid / max(1, inner)
    absent = bands[~statistics.present]
    partly = bands[statistics.present & (invalid > _REPORTED_INVALID)]
    notes: list[str] = []
    if statistics.blank:
        share = statistics.blank / statistics.considered
        notes.append(f"{share:.1%} of the training pixels have no data in any band; they are masked")
    for found, what in (
        (absent, "without data in every training pixel"),
        (constant, "constant over the training pixels"),
        (partly, f"without data in more than {_REPORTED_INVALID:.0%} of the training pixels"),
    ):
        if len(found):
            notes.append(f"bands {runs_of([int(band) + 1 for band in found])} (1-based) are {what}")
    return notes


def _all_masked(statistics: BandStatistics, prepared: Prepared) -> str:
    worst = int(np.argmin(statistics.valid))
    return (
        f"All {statistics.considered:,} training pixels are masked: none has data in every kept band. Band "
        f"{int(prepared.candidates[worst]) + 1} has data in {int(statistics.valid[worst]):,} of them (nodata: "
        f"{prepared.numbers[0].nodata[prepared.candidates[worst]]:g}). Check mask.nodata, or drop such bands with "
        "drop_bands."
    )


def _check_reflectance(moments: Moments) -> None:
    middle = float(np.median(moments.mean))
    if not -0.2 < middle < 2:
        warnings.warn(
            f"The median band has a mean reflectance of {middle:.4g}, which is no reflectance; check the scale "
            "(calibrate.scale).",
            BandstreamWarning,
            stacklevel=3,
        )
