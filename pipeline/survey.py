"""Looking at labels and splits before the first pass: classes, the deal, the proof of the split, and its balance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import BandstreamWarning, ConfigError, EmptySplitError
from .faults import blames_scene
from .kept_tiles import count_by_cell, enough, require_tiles
from .pictures import class_palette
from .scene import scene_crs, scene_transform
from .sources import OpenScene
from .splits.balance import absent_classes, balance_lines, warn_of_absent_classes
from .splits.config import BlocksSplit, DealtSplit, GivenSplit, RandomSplit, SplitConfig
from .splits.making import find_margin, make_splits
from .splits.maps import SplitMap
from .splits.proof import added, code_slabs
from .store import SPLITS
from .tiling import TileGrid
from .workflow import TilesConfig, Workflow

Int64s = NDArray[np.int64]
_TOLD_OVERLAPS = 5


@dataclass(frozen=True)
class Survey:
    """Splits of all scenes and what they hold."""

    splits: list[SplitMap]  #: per scene
    class_names: list[str]  #: of the classes 1, 2, ...; empty without labels
    class_colors: list[str]
    pixels: dict[str, int]  #: pixels by split, valid or not
    labelled: dict[str, list[int]]  #: labelled pixels by split and class
    shared: dict[str, int]  #: pixels seen by both of two splits, halo included
    kept: list[Int64s | None]  #: per scene the cells whose tiles are kept; None = all
    dropped: dict[str, int] = field(default_factory=dict[str, int])  #: tiles left out, by setting
    notes: list[str] = field(default_factory=list[str])  #: for the store

    def lines(self) -> list[str]:
        """Return what a build prints about the splits."""
        lines = list(self.notes)
        for name, count in self.pixels.items():
            if count:
                labelled = f", {sum(self.labelled[name]):,} labelled" if self.class_names else ""
                lines.append(f"{'margin' if name == 'none' else name}: {count:,} pixels{labelled}")
        lines += balance_lines(self.class_names, self.labelled)
        pairs = ", ".join(f"{pair} {count:,}" for pair, count in self.shared.items())
        lines.append(f"shared pixels: {pairs or '0 (every scene lies wholly in one split)'}")
        lines += [f"tiles left out by tiles.{name}: {count:,}" for name, count in self.dropped.items()]
        return lines


def survey(workflow: Workflow, scenes: Sequence[OpenScene], names: list[str] | None) -> Survey:
    """Deal the splits, count classes by split and prove that splits share no pixel.

    No pixel of a scene is read, but for a few strips with `split.margin: range`. Labels are read once to deal blocks,
    stripes, groups or scenes, and once to count.

    Raises
    ------
    EmptySplitError
        The training split has no pixels, or no labelled ones though there are labels; or no tile is left.
    ConfigError
        More classes occur than have names, or the margin leaves nothing.
    """
    halo = workflow.tiles.halo
    margin = find_margin(workflow.split, halo, scenes)
    splits = make_splits(workflow.split, scenes, margin.pixels)
    looks = [_look(item, split, workflow.tiles) for item, split in zip(scenes, splits, strict=True)]
    table, shared = np.zeros((len(SPLITS), 1), np.int64), dict[str, int]()
    for look in looks:
        table, shared = _joined(table, look.table), added(shared, look.shared)
    classes = table.shape[1] - 1
    class_names = _class_names(scenes, classes, names)
    # class_names may name classes that no pixel has
    table = _joined(table, np.zeros((len(SPLITS), len(class_names) + 1), np.int64))
    labelled = {name: row[1:].tolist() for name, row in zip(SPLITS, table, strict=True)}
    kept, dropped = _keep_labelled(workflow.tiles, scenes, looks)
    result = Survey(
        splits,
        class_names,
        _class_colors(scenes, len(class_names)),
        {name: int(row.sum()) for name, row in zip(SPLITS, table, strict=True)},
        labelled,
        shared,
        kept,
        dropped,
        margin.notes(),
    )
    _warn_of_overlaps(scenes, splits)
    occurring = int(np.count_nonzero(table[:, 1:].sum(axis=0)))
    if classes > 2 * occurring + 10:
        warnings.warn(
            f"The labels hold {occurring} classes with numbers up to {classes}; if {classes} means that there is no label, "
            "set labels.unlabelled to it.",
            BandstreamWarning,
            stacklevel=2,
        )
    _require_training(workflow.split, result, labels=any(item.labels for item in scenes))
    absent = absent_classes(result.class_names, labelled)
    if isinstance(workflow.split, GivenSplit):
        # taken as it is, and often a benchmark's own: told, and no fault of this workflow
        result.notes.extend(absent)
    else:
        warn_of_absent_classes(absent)
    if isinstance(workflow.split, RandomSplit):
        _warn_of_leak(result, halo)
    elif not isinstance(workflow.split, GivenSplit) and any(shared.values()):
        warnings.warn(
            f"Splits share pixels ({', '.join(f'{pair} {count:,}' for pair, count in shared.items())}): split.margin is "
            f"{margin.pixels} and patches reach {halo} pixels (tiles.halo), which takes {2 * halo}. Scores may come out "
            "too good; set split.margin: auto.",
            BandstreamWarning,
            stacklevel=2,
        )
    return result


@dataclass(frozen=True)
class _Look:
    """What one scene holds."""

    table: Int64s  #: (split, classes + 1) pixels
    shared: dict[str, int]
    cells: Int64s | None  #: (cell rows, cell columns) labelled pixels, where tiles are judged by them


@blames_scene
def _look(item: OpenScene, split: SplitMap, tiles: TilesConfig) -> _Look:
    table, shared = np.zeros((len(SPLITS), 1), np.int64), dict[str, int]()
    rows, cols = item.shape_yx
    if split.uniform is not None and item.labels is None and not (item.targets and tiles.min_labelled):
        table[split.uniform, 0] = rows * cols
        return _Look(table, shared, None)
    grid = TileGrid(item.shape_yx, tiles.size, tiles.halo)
    cells = np.zeros(grid.tiles_yx, np.int64) if tiles.min_labelled else None
    for slab, codes, seen in code_slabs(split, item.shape_yx, tiles.halo):
        labels = item.labels.read(slab, slice(0, cols)) if item.labels else np.zeros((1, 1), np.uint16)
        top = int(labels.max(initial=0)) + 1
        counts = np.bincount((codes.astype(np.int64) * top + labels).ravel(), minlength=len(SPLITS) * top)
        table, shared = _joined(table, counts.reshape(len(SPLITS), top)), added(shared, seen)
        if cells is not None and (item.labels or item.targets):
            known = item.labelled(slab, slice(0, cols)) if item.targets else labels > 0
            found = count_by_cell(known, slab.start, tiles.size, cells.shape[1])
            first = slab.start // tiles.size
            cells[first : first + len(found)] += found
    return _Look(table, shared, cells)


def _joined(a: Int64s, b: Int64s) -> Int64s:
    """Add two tables of (split, classes + 1), whichever has more classes."""
    total = np.zeros((len(a), max(a.shape[1], b.shape[1])), np.int64)
    total[:, : a.shape[1]] += a
    total[:, : b.shape[1]] += b
    return total


def _keep_labelled(
    tiles: TilesConfig, scenes: Sequence[OpenScene], looks: Sequence[_Look]
) -> tuple[list[Int64s | None], dict[str, int]]:
    if not tiles.min_labelled:
        return [None] * len(scenes), {}
    if not any(item.labels or item.targets for item in scenes):
        raise ConfigError("tiles.min_labelled needs labels or targets, and no scene has any; leave it out.")
    kept: list[Int64s] = []
    cells = 0
    for item, look in zip(scenes, looks, strict=True):
        grid = TileGrid(item.shape_yx, tiles.size, tiles.halo)
        counts = np.zeros(grid.tiles_yx, np.int64) if look.cells is None else look.cells
        kept.append(np.flatnonzero(enough(counts, tiles.min_labelled, grid)))
        cells += grid.cells
    require_tiles(kept, f"tiles.min_labelled: {tiles.min_labelled:g}")
    return [*kept], {"min_labelled": cells - sum(map(len, kept))}


def _class_names(scenes: Sequence[OpenScene], classes: int, names: list[str] | None) -> list[str]:
    if names is not None:
        if classes > len(names):
            raise ConfigError(
                f"The labels hold class {classes}, and class_names gives {len(names)} names; add the rest."
            )
        return list(names) if classes else []
    told: dict[int, str] = {}
    for item in scenes:
        told |= item.labels.names() if item.labels else {}
    return [told.get(number, f"class {number}") for number in range(1, classes + 1)]


def _class_colors(scenes: Sequence[OpenScene], classes: int) -> list[str]:
    told: dict[int, str] = {}
    for item in scenes:
        told |= item.labels.colors() if item.labels else {}
    colors = [told.get(number) for number in range(1, classes + 1)]
    # a table that gives two classes one colour is a grey ramp or a default, no legend
    if None not in colors and len(set(colors)) == classes:
        return [str(color) for color in colors]
    return class_palette(classes)


def _warn_of_overlaps(scenes: Sequence[OpenScene], splits: Sequence[SplitMap]) -> None:
    """Tell of scenes that show the same ground: only pixels within a scene are kept apart."""
    found = [
        (pixels, first, other)
        for pixels, first, other in _overlaps(scenes)
        if splits[first].uniform is None or splits[first].uniform != splits[other].uniform
    ]
    # the worst are told one by one: hundreds of scenes of one place would fill the screen
    found.sort(key=lambda item: (-item[0], *item[1:]))
    for pixels, first, other in found[:_TOLD_OVERLAPS]:
        warnings.warn(
            f"The scenes {scenes[first].files.scene_id} and {scenes[other].files.scene_id} overlap by about {pixels:,} "
            "pixels on the ground, which may stand in two splits; shared pixels are counted within a scene only.",
            BandstreamWarning,
            stacklevel=3,
        )
    if len(found) > _TOLD_OVERLAPS:
        warnings.warn(
            f"{len(found) - _TOLD_OVERLAPS:,} more pairs of scenes overlap on the ground; deal whole scenes "
            "(split.by: scenes with lists) where they must not stand in two splits.",
            BandstreamWarning,
            stacklevel=3,
        )


def _overlaps(scenes: Sequence[OpenScene]) -> Iterator[tuple[int, int, int]]:
    """Yield the pairs of scenes of one CRS that overlap: pixels of the first, and the numbers of both."""
    import shapely

    by_crs: dict[str, list[int]] = {}
    boxes: dict[int, tuple[float, float, float, float]] = {}
    areas: dict[int, float] = {}
    for number, item in enumerate(scenes):
        crs, transform = scene_crs(item.scene), scene_transform(item.scene)
        if crs is None or transform is None or transform.b or transform.d:
            continue
        rows, cols = item.shape_yx
        xs = sorted((transform.c, transform.c + cols * transform.a))
        ys = sorted((transform.f, transform.f + rows * transform.e))
        boxes[number], areas[number] = (xs[0], ys[0], xs[1], ys[1]), abs(transform.a * transform.e)
        by_crs.setdefault(crs.to_wkt(), []).append(number)
    for numbers in by_crs.values():
        box = np.array([boxes[number] for number in numbers])
        shapes = shapely.box(*box.T)
        a, b = shapely.STRtree(shapes).query(shapes, predicate="intersects")
        a, b = a[a < b], b[a < b]
        across = np.minimum(box[a, 2], box[b, 2]) - np.maximum(box[a, 0], box[b, 0])
        down = np.minimum(box[a, 3], box[b, 3]) - np.maximum(box[a, 1], box[b, 1])
        for first, other, ground in zip(a.tolist(), b.tolist(), (across * down).tolist(), strict=True):
            pixels = int(ground / areas[numbers[first]])
            if pixels:
                yield pixels, numbers[first], numbers[other]


def _warn_of_leak(found: Survey, halo: int) -> None:
    leaked = sum(count for pair, count in found.shared.items() if pair.startswith("train"))
    warnings.warn(
        f"split.by: random puts neighbouring pixels, which are alike, into different splits; {leaked:,} times a pixel is "
        f"seen by a training sample and by one of validation or test (halo {halo}), of {sum(found.pixels.values()):,} "
        "pixels. Scores measured so come out too good; split by blocks, groups or scenes to judge a model.",
        BandstreamWarning,
        stacklevel=3,
    )


_HINTS = {
    "blocks": "make split.block larger, split.margin or tiles.halo smaller, or fractions.train larger",
    "stripes": "make split.width larger, split.margin or tiles.halo smaller, or fractions.train larger",
    "groups": "make split.margin or tiles.halo smaller, or fractions.train larger, and check that the groups lie on "
    "the scenes",
    "scenes": "name training scenes in split.lists.train, or make fractions.train larger",
    "random": "make fractions.train larger",
    "given": "give code 1 in the split raster, or the training scenes in split.files.train",
    "none": "check the scenes",
}


def _require_training(split: SplitConfig, found: Survey, *, labels: bool) -> None:
    counts = ", ".join(f"{name} {count:,}" for name, count in found.pixels.items())
    if isinstance(split, DealtSplit):
        empty = [name for name in split.wanted() if not found.pixels[name]]
        if empty and found.pixels["train"]:
            hint = (
                f"make split.block (now {split.block}) smaller, so that there are more blocks to deal"
                if isinstance(split, BlocksSplit)
                else f"there are too few {split.by} to deal"
            )
            warnings.warn(
                f"No pixel is left for {' and '.join(empty)} (pixels by split: {counts}); {hint}.",
                BandstreamWarning,
                stacklevel=3,
            )
    if not found.pixels["train"]:
        raise EmptySplitError(
            f"The training split holds no pixels (pixels by split: {counts}); {_HINTS[split.by]}."
        )
    if labels and not sum(found.labelled["train"]):
        counts = ", ".join(f"{name} {sum(found.labelled[name]):,}" for name in SPLITS)
        raise EmptySplitError(
            f"The training split holds no labelled pixel (labelled by split: {counts}). Check that the labels lie on the "
            "scene, or choose another split.seed or larger units (split.block, split.width)."
        )
