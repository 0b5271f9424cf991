"""Pass 1: statistics of the training pixels of all scenes in one reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, fold
from .faults import blames_scene
from .nodata import invalid_mask
from .reading import read_block, read_usable, row_pieces
from .sources import OpenScene
from .splits.maps import SplitMap, WholeScene
from .stages.chain import Prefix, take_bands
from .statistics import F8, BandStatistics, Group, Judged, LastRow, Moments, Slab, Wanted, pixel_keys
from .store import SPLIT_CODE

#: Numbers of one task, of one read and of one slab; fixed, since the slabs decide the last bits of a sum. A slab's
#: float64 deviations stay near the processor and are small enough for reused memory.
TASK_VALUES, READ_VALUES, SLAB_VALUES = 8 << 20, 8 << 20, 3 << 19


@dataclass(frozen=True)
class Gather:
    """What every task of pass 1 needs beside its scene."""

    bands: NDArray[np.intp]  #: candidates, numbers of the scenes' own bands
    wanted: Wanted
    judge: bool  #: leave bands without data in a slab out of the judgement of its pixels
    prefix: Prefix | None  #: stages that come before anything is fitted


@dataclass(frozen=True)
class SceneNumbers:
    """What a scene's stored numbers mean, per candidate band."""

    nodata: F8
    scale: F8
    offset: F8

    def select(self, bands: NDArray[np.intp]) -> SceneNumbers:
        """Return the numbers of some bands."""
        return SceneNumbers(self.nodata[bands], self.scale[bands], self.offset[bands])

    def standardised(self, mean: F8, std: F8) -> SceneNumbers:
        """Return the numbers that take `mean` off besides and divide by `std`; a band without spread becomes 0."""
        gain = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        return SceneNumbers(self.nodata, self.scale * gain, (self.offset - mean) * gain)


@dataclass(frozen=True)
class _Edge:
    """The row above a slab, in all candidate bands."""

    values_bx: NDArray[Any]
    invalid_bx: NDArray[np.bool_] | None
    wanted_x: NDArray[np.bool_]


def gather_statistics(
    scenes: Sequence[OpenScene],
    splits: Sequence[SplitMap],
    numbers: Sequence[SceneNumbers],
    settings: Gather,
    engine: Engine,
    *,
    quiet: bool,
) -> BandStatistics:
    """Read the training pixels of all scenes once."""
    compute, shared = engine.task(block_statistics), engine.share(settings)
    parts: list[Any] = []
    for number, item in enumerate(scenes):
        scene, split, own = engine.share(item), engine.share(splits[number]), engine.share(numbers[number])
        for rows in task_rows(item.shape_yx, len(settings.bands)):
            name = f"work-statistics-{number:04d}-{rows.start:08d}"
            place = (number, rows)
            parts.append(compute(scene, split, place, own, shared, dask_key_name=name))
    total = fold(BandStatistics.merge, BandStatistics.empty(len(settings.bands)), parts)
    size = sum(item.scene["data"].nbytes for item in scenes)
    result = engine.run([total], description="statistics", count=len(parts), quiet=quiet, size_bytes=size)[0]
    return cast("BandStatistics", result)


@blames_scene
def standardised(
    scene: OpenScene, numbers: SceneNumbers, bands: NDArray[np.intp], engine: Engine, *, quiet: bool
) -> SceneNumbers:
    """Return a scene's numbers scaled by mean and deviation of all its valid pixels, read for it.

    Parameters
    ----------
    scene
        The scene.
    numbers
        Of all its bands.
    bands
        Candidates; the others are left as they are.
    engine
        Runs the tasks.
    quiet
        No progress.
    """
    settings = Gather(bands, Wanted(), judge=True, prefix=None)
    everything = WholeScene(SPLIT_CODE["train"])
    found = gather_statistics([scene], [everything], [numbers.select(bands)], settings, engine, quiet=quiet)
    moments = found.moments()
    mean, std = np.zeros(len(numbers.scale)), np.ones(len(numbers.scale))
    if moments.count:
        inside = bands[found.present]
        mean[inside], std[inside] = moments.mean, moments.std
    return numbers.standardised(mean, std)


def block_statistics(
    item: OpenScene, split: SplitMap, place: tuple[int, slice], numbers: SceneNumbers, settings: Gather
) -> BandStatistics:
    """Return the statistics of the training pixels of some whole rows of a scene.

    Parameters
    ----------
    item
        The scene (a Dataset of its own would be computed by Dask before the task sees it).
    split
        Its split map.
    place
        Number of the scene, and the rows to read.
    numbers
        Of the scene.
    settings
        What to gather.
    """
    number, rows = place
    total = BandStatistics.empty(len(settings.bands))
    edge: _Edge | None = None
    downwards = bool({"y", "diagonal"} & set(settings.wanted.directions))
    if downwards and rows.start:
        edge = _read(item, split, slice(rows.start - 1, rows.start), numbers, settings).edge()
    for part in row_pieces(item.scene, rows, READ_VALUES):
        piece = _read(item, split, part, numbers, settings)
        for slab in _cut(part, item.shape_yx[1], len(settings.bands), SLAB_VALUES):
            view = piece.rows(slab)
            if view.wanted_yx.any():
                total = total.merge(_slab_statistics(view, edge, number, numbers, settings))
            edge = view.edge() if downwards else None
    # behind a prefix, values are calibrated already
    return total if settings.prefix is not None else total.affine(numbers.scale, numbers.offset)


@dataclass(frozen=True)
class _Piece:
    """Rows as read."""

    top: slice
    values_byx: NDArray[Any]
    wanted_yx: NDArray[np.bool_]  #: training pixels that product and masks allow
    labels_yx: NDArray[np.uint16] | None
    nodata: F8

    def rows(self, rows: slice) -> _Piece:
        part = slice(rows.start - self.top.start, rows.stop - self.top.start)
        labels = None if self.labels_yx is None else self.labels_yx[part]
        return _Piece(rows, self.values_byx[:, part], self.wanted_yx[part], labels, self.nodata)

    def invalid(self) -> NDArray[np.bool_] | None:
        found = invalid_mask(self.values_byx.transpose(1, 2, 0), self.nodata)
        return None if found is None else found.transpose(2, 0, 1)

    def edge(self) -> _Edge:
        last = self.rows(slice(self.top.stop - 1, self.top.stop))
        invalid = last.invalid()
        # copies, so that the whole piece need not stay
        return _Edge(
            last.values_byx[:, 0].copy(), None if invalid is None else invalid[:, 0].copy(), last.wanted_yx[0]
        )


def _read(item: OpenScene, split: SplitMap, rows: slice, numbers: SceneNumbers, settings: Gather) -> _Piece:
    cols = slice(0, item.shape_yx[1])
    wanted = split.codes(rows, cols) == SPLIT_CODE["train"]
    usable = read_usable(item.scene, rows, cols) if wanted.any() else None
    if usable is not None:
        wanted &= usable
    labels = item.labels.read(rows, cols) if item.labels and settings.wanted.classes else None
    if wanted.any():
        block = take_bands(read_block(item.scene, rows, cols), settings.bands)
    else:
        # nothing here counts, and so nothing is read
        shape = (len(settings.bands), rows.stop - rows.start, cols.stop)
        block = np.broadcast_to(np.zeros((), item.scene["data"].dtype), shape)
    return _Piece(rows, block, wanted, labels, numbers.nodata)


def _slab_statistics(
    piece: _Piece, edge: _Edge | None, number: int, numbers: SceneNumbers, settings: Gather
) -> BandStatistics:
    wanted, bands = settings.wanted, len(settings.bands)
    judged = Judged.of(piece.invalid(), piece.wanted_yx, bands, judge=settings.judge)
    present = judged.present
    values = piece.values_byx if present.all() else piece.values_byx[present]
    above = None if edge is None or not wanted.directions else _above(edge, present)
    raw = None
    if settings.prefix is not None and present.any():
        scale, offset = numbers.scale[present], numbers.offset[present]
        raw = Moments.of(values[:, judged.keep_yx], full=False).affine(scale, offset)
        through = settings.prefix.bound(present, scale, offset)
        values = through(values, judged.keep_yx)
        if above is not None:
            row = through(above.values_bx[:, None], above.keep_x[None])
            above = LastRow(row[:, 0], above.keep_x)
    keys = None
    if wanted.sample_below or wanted.labelled_below:
        keys = pixel_keys(number, piece.top, piece.wanted_yx.shape[1])
    group = Group.of(Slab(values, judged.keep_yx, piece.labels_yx, keys, above), wanted, raw)
    return judged.statistics(group)


def _above(edge: _Edge, present: NDArray[np.bool_]) -> LastRow:
    keep = edge.wanted_x
    if edge.invalid_bx is not None:
        keep = keep & ~edge.invalid_bx[present].any(axis=0)
    return LastRow(edge.values_bx[present], keep)


def task_rows(shape_yx: tuple[int, int], bands: int) -> Iterator[slice]:
    """Cut a scene into the row blocks of pass 1's tasks."""
    return _cut(slice(0, shape_yx[0]), shape_yx[1], bands, TASK_VALUES)


def _cut(rows: slice, cols: int, bands: int, values: int) -> Iterator[slice]:
    step = max(1, values // (cols * bands))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def statistics_bytes(shape_yx: tuple[int, int], bands: int, dtype: np.dtype[Any], settings: Gather) -> int:
    """Return an upper bound of the memory that one task of pass 1 takes, in bytes."""
    wanted, cols = settings.wanted, shape_yx[1]
    read, slab = (
        min(max(1, values // (cols * bands)), shape_yx[0]) * cols * bands
        for values in (READ_VALUES, SLAB_VALUES)
    )
    # as read and its bands in front; of a slab its mask, the pixels that count, deviations from the mean
    most = read * 2 * dtype.itemsize + slab * (2 + 2 * dtype.itemsize + 8)
    if settings.prefix is not None:
        most += slab * 8 * 4
    if wanted.directions:
        most += slab * 8
    matrices = 4 * (1 + len(wanted.directions)) + (2 * wanted.classes if wanted.class_covariance else 0)
    return most + matrices * bands * bands * 8 + wanted.histogram * 3 * 65536 * bands * 8
