"""Looking at labels and splits before any pixel is read: classes, the deal of blocks, and the proof of the split."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BandstreamWarning, ConfigError, EmptySplitError
from .pictures import class_palette
from .scene import scene_crs, scene_transform
from .sources import OpenScene
from .splits import BlockSplit, RasterSplit, SplitMap, WholeScene, deal_blocks, row_slabs, shared_pixels
from .store import SPLIT_CODE, SPLITS
from .workflow import BlocksSplit, Workflow, require_fractions


@dataclass(frozen=True)
class Survey:
    """Splits of all scenes and what they hold."""

    splits: list[SplitMap]  #: per scene
    class_names: list[str]  #: of the classes 1, 2, ...; empty without labels
    class_colors: list[str]
    pixels: dict[str, int]  #: pixels by split, valid or not
    labelled: dict[str, list[int]]  #: labelled pixels by split and class
    shared: dict[str, int]  #: pixels seen by both of two splits, halo included

    def lines(self) -> list[str]:
        """Return what a build prints about the splits."""
        lines: list[str] = []
        for name, count in self.pixels.items():
            if count:
                labelled = f", {sum(self.labelled[name]):,} labelled" if self.class_names else ""
                lines.append(f"{'margin' if name == 'none' else name}: {count:,} pixels{labelled}")
        if not self.shared:
            return [*lines, "shared pixels: 0 (every scene lies wholly in one split)"]
        return [
            *lines,
            "shared pixels: " + ", ".join(f"{pair} {count:,}" for pair, count in self.shared.items()),
        ]


def survey(workflow: Workflow, scenes: Sequence[OpenScene], names: list[str] | None) -> Survey:
    """Deal the splits, count classes by split and prove that splits share no pixel.

    Raises
    ------
    EmptySplitError
        The training split has no pixels, or no labelled ones though there are labels.
    ConfigError
        More classes occur than have names.
    """
    require_fractions(workflow)
    block = workflow.split.block if isinstance(workflow.split, BlocksSplit) else None
    counts = [_count_blocks(item, block) for item in scenes]
    classes = max(part.shape[-1] for part in counts) - 1
    splits = _deal(workflow, scenes, counts, classes)
    pixels: dict[str, int] = dict.fromkeys(SPLITS, 0)
    labelled = {name: np.zeros(classes, np.int64) for name in SPLITS}
    shared: dict[str, int] = {}
    for item, split in zip(scenes, splits, strict=True):
        _count_splits(item, split, classes, pixels, labelled)
        for pair, count in shared_pixels(split, item.shape_yx, workflow.tiles.halo).items():
            shared[pair] = shared.get(pair, 0) + count
    result = Survey(
        splits,
        _class_names(scenes, classes, names),
        _class_colors(scenes, classes),
        pixels,
        {name: found.tolist() for name, found in labelled.items()},
        shared,
    )
    _warn_of_overlaps(scenes)
    occurring = int(np.count_nonzero(sum(labelled.values())))
    if classes > 2 * occurring + 10:
        warnings.warn(
            f"The labels hold {occurring} classes with numbers up to {classes}; if {classes} means that there is no label, "
            "set labels.unlabelled to it.",
            BandstreamWarning,
            stacklevel=2,
        )
    _require_training(workflow, result, labels=any(item.labels for item in scenes))
    return result


def _count_blocks(item: OpenScene, block: int | None) -> NDArray[np.int64]:
    """Count pixels by block and class: (block rows, block columns, classes + 1), the first column all pixels."""
    rows, cols = item.shape_yx
    side = block or max(rows, cols)
    down, across = -(-rows // side), -(-cols // side)
    parts: list[NDArray[np.int64]] = []
    for slab in row_slabs(item.shape_yx):
        labels = (
            item.labels.read(slab, slice(0, cols))
            if item.labels
            else np.zeros((slab.stop - slab.start, cols), int)
        )
        where = (np.arange(slab.start, slab.stop) // side)[:, None] * across + (np.arange(cols) // side)[
            None, :
        ]
        top = int(labels.max(initial=0)) + 1
        flat = np.bincount((where * top + labels).ravel(), minlength=down * across * top)
        parts.append(flat.reshape(down, across, top).astype(np.int64))
    widest = max(part.shape[-1] for part in parts)
    total = sum(np.pad(part, ((0, 0), (0, 0), (0, widest - part.shape[-1]))) for part in parts)
    counts = np.asarray(total)
    counts[..., 0] = counts.sum(axis=-1)
    return counts


def _deal(
    workflow: Workflow, scenes: Sequence[OpenScene], counts: list[NDArray[np.int64]], classes: int
) -> list[SplitMap]:
    split = workflow.split
    if isinstance(split, BlocksSplit):
        weights = [np.pad(c, ((0, 0), (0, 0), (0, classes + 1 - c.shape[-1]))) for c in counts]
        tables = deal_blocks(weights, {str(k): v for k, v in split.fractions.items()}, split.seed)
        margin = 2 * workflow.tiles.halo if split.margin == "auto" else split.margin
        return [BlockSplit(s.shape_yx, split.block, t, margin) for s, t in zip(scenes, tables, strict=True)]
    maps: list[SplitMap] = []
    for item in scenes:
        if item.split is not None:
            maps.append(RasterSplit(item.split))
        else:
            maps.append(WholeScene(SPLIT_CODE[item.files.split_code or "train"]))
    return maps


def _count_splits(
    item: OpenScene,
    split: SplitMap,
    classes: int,
    pixels: dict[str, int],
    labelled: dict[str, NDArray[np.int64]],
) -> None:
    for slab in row_slabs(item.shape_yx):
        cols = slice(0, item.shape_yx[1])
        codes = split.codes(slab, cols)
        labels = item.labels.read(slab, cols) if item.labels else np.zeros(codes.shape, np.uint16)
        table = np.bincount(
            (codes.astype(np.int64) * (classes + 1) + labels).ravel(), minlength=4 * (classes + 1)
        )
        for name, row in zip(SPLITS, table.reshape(4, classes + 1), strict=True):
            pixels[name] += int(row.sum())
            labelled[name] += row[1:]


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


def _warn_of_overlaps(scenes: Sequence[OpenScene]) -> None:
    """Tell of scenes that show the same ground: only pixels within a scene are kept apart."""
    boxes = [(item, box) for item in scenes if (box := _box(item)) is not None]
    for number, (first, a) in enumerate(boxes):
        for other, b in boxes[number + 1 :]:
            if a.crs != b.crs:
                continue
            across, down = (
                min(a.right, b.right) - max(a.left, b.left),
                min(a.top, b.top) - max(a.bottom, b.bottom),
            )
            pixels = int(across * down / a.pixel_area) if across > 0 < down else 0
            if pixels:
                warnings.warn(
                    f"The scenes {first.files.scene_id} and {other.files.scene_id} overlap by about {pixels:,} pixels on "
                    "the ground, which may stand in two splits; shared pixels are counted within a scene only.",
                    BandstreamWarning,
                    stacklevel=2,
                )


@dataclass(frozen=True)
class _Box:
    crs: str
    left: float
    bottom: float
    right: float
    top: float
    pixel_area: float


def _box(item: OpenScene) -> _Box | None:
    crs, transform = scene_crs(item.scene), scene_transform(item.scene)
    if crs is None or transform is None or transform.b or transform.d:
        return None
    rows, cols = item.shape_yx
    xs = sorted((transform.c, transform.c + cols * transform.a))
    ys = sorted((transform.f, transform.f + rows * transform.e))
    return _Box(crs.to_wkt(), xs[0], ys[0], xs[1], ys[1], abs(transform.a * transform.e))


def _require_training(workflow: Workflow, found: Survey, *, labels: bool) -> None:
    counts = ", ".join(f"{name} {count:,}" for name, count in found.pixels.items())
    if isinstance(workflow.split, BlocksSplit):
        empty = [name for name, share in workflow.split.fractions.items() if share and not found.pixels[name]]
        if empty and found.pixels["train"]:
            warnings.warn(
                f"No pixel is left for {' and '.join(empty)} (pixels by split: {counts}); make split.block (now "
                f"{workflow.split.block}) smaller, so that there are more blocks to deal.",
                BandstreamWarning,
                stacklevel=2,
            )
    if not found.pixels["train"]:
        hint = {
            "blocks": "make split.block larger, split.margin or tiles.halo smaller, or fractions.train larger",
            "given": "give code 1 in the split raster, or the training scenes in split.files.train",
            "none": "check the scenes",
        }[workflow.split.by]
        raise EmptySplitError(f"The training split holds no pixels (pixels by split: {counts}); {hint}.")
    if labels and not sum(found.labelled["train"]):
        counts = ", ".join(f"{name} {sum(found.labelled[name]):,}" for name in SPLITS)
        raise EmptySplitError(
            f"The training split holds no labelled pixel (labelled by split: {counts}). Check that the labels lie on the "
            "scene, or choose another split.seed or split.block."
        )
