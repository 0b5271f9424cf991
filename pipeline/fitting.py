"""Pass 1: statistics of the training pixels in one reading of the scenes, and the stages fitted on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .calibration.radiance_scale import REFLECTANCES
from .engine import Engine, fold
from .errors import BandstreamWarning, ConfigError, EmptySplitError, NoValidPixelsError
from .nodata import invalid_mask
from .progress import runs_of
from .reading import read_block, read_usable
from .scene import nodata_values, scale_offset
from .sources import OpenScene
from .splits import SplitMap
from .stages.bands import candidate_bands, named_windows
from .stages.chain import FittedChain, Stage, take_bands
from .stages.normalize import Normalize
from .stages.prepare import Preparation
from .stages.reduce import Pca
from .statistics import F8, BandStatistics, Moments
from .store import SPLIT_CODE
from .workflow import Workflow

#: Pixels x bands x 8 bytes of a statistics block; fixed, since the blocks decide the last bits of a sum.
BLOCK_BYTES = 48 << 20
_REPORTED_INVALID = 0.05


@dataclass(frozen=True)
class Prepared:
    """A workflow's stages, before fitting, for its scenes."""

    candidates: NDArray[np.intp]  #: bands that metadata do not rule out
    preparation: Preparation
    nodata: list[F8]  #: per scene, per source band
    scale: list[F8]
    offset: list[F8]
    windows_nm: list[tuple[float, float]]

    @classmethod
    def of(cls, workflow: Workflow, scenes: Sequence[OpenScene], preparation: Preparation) -> Prepared:
        """Work out what needs no pixel.

        Raises
        ------
        ConfigError
            No band is left, or the scenes' stored numbers cannot be mixed.
        """
        drop = workflow.stage("drop_bands")
        datasets = [item.scene for item in scenes]
        windows: list[tuple[float, float]] = []
        if drop and drop.windows_nm:
            windows = (
                named_windows(drop.windows_nm) if isinstance(drop.windows_nm, str) else list(drop.windows_nm)
            )
        candidates = candidate_bands(datasets, listed=bool(drop and drop.listed), windows_nm=windows)
        if preparation.calibrate is None:
            _require_one_scale(datasets)
        numbers = [preparation.numbers(d) for d in datasets]
        return cls(
            candidates,
            preparation,
            [nodata_values(d) for d in datasets],
            [scale for scale, _ in numbers],
            [offset for _, offset in numbers],
            windows,
        )


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


def block_statistics(
    item: OpenScene,
    split: SplitMap,
    rows: slice,
    bands: NDArray[np.intp],
    numbers: tuple[F8, F8, F8],
    *,
    full: bool,
    judge: bool,
) -> BandStatistics:
    """Return the calibrated statistics of the training pixels of some whole rows of a scene.

    Parameters
    ----------
    item
        The scene (a Dataset of its own would be computed by Dask before the task sees it).
    split
        Its split map.
    rows
        Rows to read.
    bands
        Candidate bands.
    numbers
        nodata, scale and offset of each candidate band.
    full
        Also covariances.
    judge
        Leave bands without data in this block out of the judgement of pixels.
    """
    nodata, scale, offset = numbers
    cols = slice(0, item.shape_yx[1])
    wanted = split.codes(rows, cols) == SPLIT_CODE["train"]
    usable = read_usable(item.scene, rows, cols) if wanted.any() else None
    if usable is not None:
        wanted &= usable
    if not wanted.any():
        return BandStatistics.empty(len(bands))
    block = take_bands(read_block(item.scene, rows, cols), bands)
    invalid = invalid_mask(block.transpose(1, 2, 0), nodata)
    values = _wanted(block, wanted)
    missing = None if invalid is None or not invalid.any() else _wanted(invalid.transpose(2, 0, 1), wanted)
    return BandStatistics.of(values, missing, full=full, judge=judge).affine(scale, offset)


def _wanted(block_byx: NDArray[Any], wanted: NDArray[np.bool_]) -> NDArray[Any]:
    flat = block_byx.reshape(len(block_byx), -1)
    return flat if wanted.all() else flat[:, wanted.ravel()]


def statistics_blocks(shape_yx: tuple[int, int], bands: int) -> Iterator[slice]:
    """Cut a scene into the row blocks of pass 1."""
    rows = max(1, BLOCK_BYTES // (shape_yx[1] * bands * 8))
    for start in range(0, shape_yx[0], rows):
        yield slice(start, min(start + rows, shape_yx[0]))


def statistics_bytes(shape_yx: tuple[int, int], bands: int, dtype: np.dtype[Any]) -> int:
    """Return an upper bound of the memory that one block of pass 1 takes, in bytes."""
    block = next(iter(statistics_blocks(shape_yx, bands)))
    values = (block.stop - block.start) * shape_yx[1] * bands
    # as read, bands in front, the training pixels of it and its mask; float64 around the mean; two covariances each
    return values * (3 * dtype.itemsize + 2 + 8) + 4 * bands * bands * 8


def needs_statistics(workflow: Workflow) -> bool:
    """Whether anything is fitted on pixels."""
    drop, normalize, reduce = (workflow.stage(kind) for kind in ("drop_bands", "normalize", "reduce"))
    fitted = [stage for stage in (normalize, reduce) if stage and stage.method != "none"]
    return bool(fitted or (drop and drop.all_nodata))


def gather_statistics(
    workflow: Workflow,
    scenes: Sequence[OpenScene],
    splits: Sequence[SplitMap],
    prepared: Prepared,
    engine: Engine,
    *,
    quiet: bool,
) -> BandStatistics:
    """Read the training pixels of all scenes once."""
    import dask

    drop, reduce = workflow.stage("drop_bands"), workflow.stage("reduce")
    full, judge = bool(reduce and reduce.method != "none"), bool(drop and drop.all_nodata)
    chosen = prepared.candidates
    compute = dask.delayed(block_statistics, pure=False)
    parts: list[Any] = []
    for number, item in enumerate(scenes):
        shared = dask.delayed(item, pure=False, traverse=False)
        numbers = tuple(
            values[number][chosen] for values in (prepared.nodata, prepared.scale, prepared.offset)
        )
        for rows in statistics_blocks(item.shape_yx, len(chosen)):
            name = f"work-statistics-{number:04d}-{rows.start:08d}"
            task = compute(
                shared, splits[number], rows, chosen, numbers, full=full, judge=judge, dask_key_name=name
            )
            parts.append(task)
    total = fold(BandStatistics.merge, BandStatistics.empty(len(chosen)), parts)
    return cast(
        "BandStatistics", engine.run([total], description="statistics", count=len(parts), quiet=quiet)[0]
    )


@dataclass(frozen=True)
class Fit:
    """The fitted chain, the statistics it was fitted on, and what to tell about it."""

    chain: FittedChain
    moments: Moments | None  #: calibrated, over the kept bands
    invalid_share: F8 | None  #: (candidates,) share of training pixels without data
    notes: list[str]


def fit(workflow: Workflow, prepared: Prepared, statistics: BandStatistics | None, source_bands: int) -> Fit:
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
    calibrate = workflow.stage("calibrate")
    everything = prepared.candidates.astype(np.int64)
    if statistics is None:
        chain = FittedChain(source_bands, everything, everything, prepared.preparation, None)
        return Fit(chain, None, None, [])
    if not statistics.considered:
        raise EmptySplitError(
            "The training split holds no pixel of any scene that the masks leave; check `split` and `mask`."
        )
    drop = workflow.stage("drop_bands")
    judged = everything[statistics.present] if drop and drop.all_nodata else everything
    moments = statistics.moments()
    if not moments.count:
        raise NoValidPixelsError(_all_masked(statistics, prepared))
    constant = moments.minimum == moments.maximum
    notes = _band_notes(statistics, everything, judged[constant])
    keep = np.flatnonzero(~constant) if drop and drop.all_nodata else np.arange(len(judged))
    if not len(keep):
        raise NoValidPixelsError(
            "Every band is constant over the training pixels; there is nothing to learn from."
        )
    moments = moments.select(keep)
    if calibrate and calibrate.to in REFLECTANCES:
        _check_reflectance(moments)
    chain = FittedChain(
        source_bands,
        judged,
        judged[keep],
        prepared.preparation,
        moments.mean,
        tuple(_fit_stages(workflow, moments)),
    )
    return Fit(chain, moments, 1 - statistics.valid / statistics.considered, notes)


def _fit_stages(workflow: Workflow, moments: Moments) -> Iterator[Stage]:
    for stage in workflow.stages:
        fitted: Stage
        if stage.normalize and stage.normalize.method != "none":
            fitted = Normalize.fit(moments, stage.normalize.method)
        elif stage.reduce and stage.reduce.method != "none":
            fitted = Pca.fit(moments, stage.reduce.components)
        else:
            continue
        moments = fitted.outputs(moments)
        yield fitted


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
        f"{prepared.nodata[0][prepared.candidates[worst]]:g}). Check mask.nodata, or drop such bands with "
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
