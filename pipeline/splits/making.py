"""From the settings and the counts of what the scenes hold to one split map per scene."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError, LabelError
from ..faults import blames_scene
from ..store import SPLIT_CODE
from .config import (
    SPLIT_NAMES,
    BlocksSplit,
    GroupsSplit,
    NoSplit,
    RandomSplit,
    ScenesSplit,
    SplitName,
    StripesSplit,
)
from .dealing import deal_blocks, deal_codes
from .maps import BlockSplit, GroupSplit, PixelSplit, RasterSplit, SplitMap, WholeScene
from .proof import row_slabs

if TYPE_CHECKING:
    from ..sources import OpenScene
    from .config import GivenSplit, SplitConfig

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Margin:
    """Pixels kept free between splits, and where the number comes from."""

    pixels: int
    why: str | None = None  #: None where the settings alone decide

    def notes(self) -> list[str]:
        """Return what a build and its store tell of it."""
        return [f"margin {self.pixels} pixels: {self.why}"] if self.why else []


def find_margin(split: SplitConfig, halo: int, scenes: Sequence[OpenScene]) -> Margin:
    """Work out the margin of a split; `range` reads a few strips of the scenes.

    Raises
    ------
    ConfigError
        The margin is as wide as a block or stripe, so that nothing would be left of one between two others.
    """
    asked = getattr(split, "margin", None)
    if asked is None:
        return Margin(0)
    if asked == "auto":
        margin = Margin(2 * halo)
    elif asked == "range":
        from .variogram import spatial_range

        found = spatial_range(scenes)
        reach = ceil(found.pixels)
        more = f"; 2 halo are more than the range of {reach}" if 2 * halo > reach else ""
        margin = Margin(max(reach, 2 * halo), found.told() + more)
    else:
        margin = Margin(int(asked))
    if isinstance(split, BlocksSplit):
        _require_room(margin, split.block, "block", "block")
    elif isinstance(split, StripesSplit):
        _require_room(margin, split.width, "width", "stripe")
    return margin


def _require_room(margin: Margin, side: int, key: str, unit: str) -> None:
    if margin.pixels >= side:
        told = f" ({margin.why})" if margin.why else ""
        raise ConfigError(
            f"split.margin is {margin.pixels} pixels{told} and split.{key} {side}: nothing would be left of a {unit} "
            f"between two others. Set split.{key} to more than {margin.pixels}, or split.margin or tiles.halo to less."
        )


def make_splits(split: SplitConfig, scenes: Sequence[OpenScene], margin: int) -> list[SplitMap]:
    """Return the split map of each scene; labels are read where they decide.

    Raises
    ------
    ConfigError
        The lists of scenes and the scenes do not match.
    LabelError
        `by: groups`, and no labels tell groups.
    """
    if isinstance(split, (BlocksSplit, StripesSplit)):
        sides = [_sides(split, item.shape_yx) for item in scenes]
        counts = padded([count_units(item, side) for item, side in zip(scenes, sides, strict=True)])
        tables = deal_blocks(counts, split)
        return [
            BlockSplit(item.shape_yx, side, table, margin)
            for item, side, table in zip(scenes, sides, tables, strict=True)
        ]
    if isinstance(split, GroupsSplit):
        return _group_splits(split, scenes, margin)
    if isinstance(split, ScenesSplit):
        return [WholeScene(int(code)) for code in _scene_codes(split, scenes)]
    if isinstance(split, RandomSplit):
        return [_pixel_split(split, item) for item in scenes]
    return [_given_split(split, item) for item in scenes]


def _sides(split: BlocksSplit | StripesSplit, shape_yx: tuple[int, int]) -> tuple[int, int]:
    if isinstance(split, BlocksSplit):
        return split.block, split.block
    return (split.width, shape_yx[1]) if split.along == "rows" else (shape_yx[0], split.width)


@blames_scene
def count_units(item: OpenScene, side_yx: tuple[int, int]) -> Counts:
    """Count pixels by block and class: (block rows, block columns, classes + 1), the first column all pixels."""
    rows, cols = item.shape_yx
    down, across = -(-rows // side_yx[0]), -(-cols // side_yx[1])
    total = np.zeros((down, across, 1), np.int64)
    for slab in row_slabs(item.shape_yx):
        first, stop = slab.start // side_yx[0], -(-slab.stop // side_yx[0])
        where = (np.arange(slab.start, slab.stop) // side_yx[0] - first)[:, None] * across + (
            np.arange(cols) // side_yx[1]
        )[None, :]
        labels = item.labels.read(slab, slice(0, cols)) if item.labels else np.zeros((1, 1), np.uint16)
        top = int(labels.max(initial=0)) + 1
        flat = np.bincount((where * top + labels).ravel(), minlength=(stop - first) * across * top)
        total = np.pad(total, ((0, 0), (0, 0), (0, max(0, top - total.shape[-1]))))
        total[first:stop, :, :top] += flat.reshape(stop - first, across, top)
    total[..., 0] = total.sum(axis=-1)
    return total


def padded(counts: Sequence[Counts]) -> list[Counts]:
    """Return counts (..., classes + 1) with the classes of all of them."""
    widest = max(part.shape[-1] for part in counts)
    return [np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, widest - part.shape[-1])]) for part in counts]


def _group_splits(split: GroupsSplit, scenes: Sequence[OpenScene], margin: int) -> list[SplitMap]:
    groups = max((len(item.labels.group_names) for item in scenes if item.labels), default=0)
    if not groups:
        raise LabelError(
            "split.by: groups needs labels that tell groups: polygons or points (labels.group names the column that "
            "holds the ids; each polygon is a group by itself), or labels.groups, a raster of ids."
        )
    # the same number is the same group in every scene
    counts = np.sum(padded([_count_groups(item, groups) for item in scenes]), axis=0)
    if lost := int(counts[0, 1:].sum()):
        warnings.warn(
            f"{lost:,} labelled pixels belong to no group, and so to no split; give every label a group, or split by blocks.",
            BandstreamWarning,
            stacklevel=4,
        )
    there = np.flatnonzero(counts[1:, 0]) + 1
    table = np.zeros(groups + 1, np.uint8)
    table[there] = deal_codes(counts[there], split)
    maps: list[SplitMap] = [
        GroupSplit(item.shape_yx, item.labels, table, margin)
        if item.labels
        else WholeScene(SPLIT_CODE["none"])
        for item in scenes
    ]
    return maps


@blames_scene
def _count_groups(item: OpenScene, groups: int) -> Counts:
    """Count pixels by group and class: (groups + 1, classes + 1), the first column all pixels."""
    total = np.zeros((groups + 1, 1), np.int64)
    for slab in row_slabs(item.shape_yx) if item.labels else ():
        assert item.labels is not None
        cols = slice(0, item.shape_yx[1])
        labels, group = item.labels.read(slab, cols), item.labels.group_codes(slab, cols)
        top = int(labels.max(initial=0)) + 1
        total = np.pad(total, ((0, 0), (0, max(0, top - total.shape[1]))))
        key, count = np.unique(group.astype(np.int64) * top + labels, return_counts=True)
        total[key // top, key % top] += count
    total[:, 0] = total.sum(axis=1)
    return total


def _scene_codes(split: ScenesSplit, scenes: Sequence[OpenScene]) -> NDArray[np.uint8]:
    if split.lists is not None:
        return _listed(split.lists, [item.files.scene_id for item in scenes])
    counts = padded([count_units(item, item.shape_yx)[0, 0] for item in scenes])
    return deal_codes(np.stack(counts), split)


def _listed(lists: Mapping[SplitName, Sequence[str]], names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the code of each scene by the lists of names and patterns."""
    codes = np.zeros(len(names), np.uint8)
    for split, patterns in lists.items():
        for pattern in patterns:
            hits = [n for n, name in enumerate(names) if name == pattern or fnmatchcase(name, pattern)]
            if not hits:
                raise ConfigError(
                    f"split.lists.{split} names {pattern}, and no scene is called so; the scenes are "
                    f"{_some(names)}."
                )
            for hit in hits:
                if codes[hit] not in (0, SPLIT_CODE[split]):
                    raise ConfigError(
                        f"The scene {names[hit]} stands in two of split.lists; each belongs to exactly one."
                    )
                codes[hit] = SPLIT_CODE[split]
    left = [name for name, code in zip(names, codes, strict=True) if not code]
    if left:
        raise ConfigError(
            f"{len(left)} of {len(names)} scenes stand in none of split.lists: {_some(left)}. Add them, or narrow the "
            "scene pattern."
        )
    return codes


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _pixel_split(split: RandomSplit, item: OpenScene) -> PixelSplit:
    # by the scene's name, so that its pixels stay where they are when other scenes come or go
    key = hashlib.blake2b(f"{split.seed} {item.files.scene_id}".encode(), digest_size=8).digest()
    return PixelSplit(item.shape_yx, pixel_ends(split), int.from_bytes(key, "little"))


def pixel_ends(split: RandomSplit) -> tuple[float, float, float]:
    """Return where the shares of train, validation and test end; that of the last one that has any, exactly at 1."""
    shares = [split.fractions.get(name, 0.0) for name in SPLIT_NAMES]
    last = max(number for number, share in enumerate(shares) if share)
    first, second, third = [*list(accumulate(shares))[:last], *[1.0] * (3 - last)]
    return first, second, third


def _given_split(split: GivenSplit | NoSplit, item: OpenScene) -> SplitMap:
    if isinstance(split, NoSplit):
        return WholeScene(SPLIT_CODE["train"])
    if item.split is not None:
        return RasterSplit(item.split)
    assert item.files.split_code is not None
    return WholeScene(SPLIT_CODE[item.files.split_code])
