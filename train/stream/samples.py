"""Which samples a stream gives out, and in which blocks of which stores they lie.

A block is an inner chunk of a store: `chunk_tiles` whole tiles with all bands. The blocks, tiles and pixels of several
stores are numbered one store after the other. Two kinds of samples: whole tiles (`patch` None), and patches centred on
single pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...pipeline.store import SPLIT_CODE, PatchStore
from .weights import rarest_class

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SampleSet:
    """Which samples of a store a stream gives out."""

    store: PatchStore
    split: str  #: train, validation, test or all
    patch: int | None  #: side of pixel-centred patches; None: whole tiles

    @property
    def code(self) -> int | None:
        """The split's number in the store; None: any."""
        return None if self.split == "all" else SPLIT_CODE[self.split]

    @property
    def side(self) -> int:
        """Side of a tile with its halo, in pixels."""
        return self.store.tile_size + 2 * self.store.halo

    @cached_property
    def tile_samples(self) -> Int64s:
        """Samples in each tile, (tile,): from the store's index alone."""
        index = self.store.index
        if self.patch is None and self.code is None:
            return np.ones(len(self.store), np.int64)
        by_split = index.labelled.sum(axis=2) if self.store.classes else index.pixels
        pixels = by_split.sum(axis=1) if self.code is None else by_split[:, self.code]
        return (pixels if self.patch is not None else pixels > 0).astype(np.int64)

    @cached_property
    def block_samples(self) -> Int64s:
        """Samples in each block, (block,)."""
        return np.add.reduceat(self.tile_samples, np.arange(0, len(self.store), self.store.chunk_tiles))

    @cached_property
    def plain_tiles(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """By the index alone: tiles whose core pixels are all valid, and also all of the split, (tile,) each."""
        pixels, core = self.store.index.pixels, self.store.tile_size**2
        valid = pixels.sum(axis=1) == core
        return valid, valid if self.code is None else pixels[:, self.code] == core

    @property
    def class_pixels(self) -> Int64s:
        """Labelled pixels of the split in each tile, (tile, class)."""
        labelled = self.store.index.labelled
        return labelled.sum(axis=1) if self.code is None else labelled[:, self.code]

    def describe(self) -> str:
        """Count the usable pixels by split, for messages."""
        kind = "valid labelled" if self.store.classes else "valid"
        index = self.store.index
        totals = (
            index.labelled.sum(axis=(0, 2)) if self.store.classes else index.pixels.sum(axis=0)
        ).tolist()
        counts = ", ".join(f"{name} {totals[code]}" for name, code in SPLIT_CODE.items())
        return f"{kind} core pixels by split: {counts}"


@dataclass(frozen=True)
class Samples:
    """The samples of several stores as one row of blocks; in the usual case there is one store.

    All sets have the same split, patch and bands, and whole tiles the same side.
    """

    sets: tuple[SampleSet, ...]
    #: Samples of a block are numbered class by class: by the centre pixel's, or the rarest one that a tile holds
    by_class: bool = False

    @property
    def patch(self) -> int | None:
        """Side of pixel-centred patches; None: whole tiles."""
        return self.sets[0].patch

    @cached_property
    def block_samples(self) -> Int64s:
        """Samples in each block of all stores, (block,)."""
        return np.concatenate([one.block_samples for one in self.sets])

    @cached_property
    def first_sample(self) -> Int64s:
        """Number of samples before each block, (block + 1,)."""
        return _ends(self.block_samples)

    @cached_property
    def first_block(self) -> Int64s:
        """Number of blocks before each store, (store + 1,)."""
        return _ends([len(one.block_samples) for one in self.sets])

    @cached_property
    def first_tile(self) -> Int64s:
        """Number of tiles before each store, (store + 1,)."""
        return _ends([len(one.store) for one in self.sets])

    @cached_property
    def first_id(self) -> Int64s:
        """Number of sample ids before each store, (store + 1,): a tile's, or those of all its pixels."""
        per_tile = [1 if self.patch is None else one.side**2 for one in self.sets]
        return _ends([len(one.store) * n for one, n in zip(self.sets, per_tile, strict=True)])

    @cached_property
    def sampled_tile(self) -> Int64s:
        """Tile of each sample that is a whole tile, counted over all stores, (sample,)."""
        tiles = np.flatnonzero(np.concatenate([one.tile_samples for one in self.sets])).astype(np.int64)
        if not self.by_class:
            return tiles
        block = np.repeat(np.arange(len(self.block_samples)), self.block_samples)
        stratum = self.tile_class[tiles]
        # tiles without any labels come last and are not drawn
        return tiles[np.lexsort((np.where(stratum < 0, self.sets[0].store.classes, stratum), block))]

    @cached_property
    def tile_class(self) -> Int64s:
        """Column of the rarest class that each tile of all stores holds, (tile,); -1 where nothing is labelled."""
        labelled = np.concatenate([one.class_pixels for one in self.sets])
        return rarest_class(labelled, labelled.sum(axis=0))

    @cached_property
    def row(self) -> Int64s:
        """Scene row of the first core pixel of each tile of all stores, (tile,)."""
        return np.concatenate([one.store.index.row for one in self.sets])

    @cached_property
    def col(self) -> Int64s:
        """Scene column of the first core pixel of each tile of all stores, (tile,)."""
        return np.concatenate([one.store.index.col for one in self.sets])

    def place(self, block: int) -> tuple[int, int]:
        """Return the store of a block and the block's number in that store."""
        number = int(np.searchsorted(self.first_block, block, side="right")) - 1
        return number, block - int(self.first_block[number])

    def store_of(self, blocks: Int64s) -> Int64s:
        """Return the number of the store of each block, (n,)."""
        if len(self.sets) == 1:
            return np.zeros(len(blocks), np.int64)
        return np.searchsorted(self.first_block, blocks, side="right").astype(np.int64) - 1


def _ends(counts: list[int] | Int64s) -> Int64s:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
