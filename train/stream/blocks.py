"""Samples of a store's blocks: counting them, keeping decoded blocks, gathering batches.

A block is an inner chunk of the store: `chunk_tiles` whole tiles with all bands. Decoded blocks live in the slots of
one pool, so that a batch is a single indexing operation over all of them, and a slot is decoded into again when its
block is no longer needed. Everything that depends on the split is done once, when a block is decoded.

Two kinds of samples: whole tiles (`patch` None), and patches centred on single pixels, for which blocks are kept band
last, since a patch's rows are then runs of contiguous memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ...pipeline.errors import StoreCorruptError
from ...pipeline.store import SPLIT_CODE, PatchStore

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
    """A gathered batch; every array is its own memory.

    n samples; b bands; tiles are y = x = size + 2 halo, patches y = x = patch.
    """

    image_nbhw: NDArray[np.float32]  #: (n, band, y, x); patches with the band last in memory
    label: Int64s  #: (n, y, x) for tiles, (n,) for patches
    mask: NDArray[np.bool_]  #: shape of `label`
    tile: Int64s  #: (n,)
    row: Int64s  #: (n,) scene row of the core's first pixel, or of the patch's centre
    col: Int64s  #: (n,)
    ids: Int64s  #: (n,) number of the sample that no other sample of the store has


class BlockPool:
    """The most recently used blocks of a store, decoded, and the gathering of batches from them.

    Parameters
    ----------
    samples
        What is streamed.
    slots
        Number of blocks kept; reading is whole blocks, least recently used ones go first.
    """

    def __init__(self, samples: SampleSet, slots: int) -> None:
        store, patch = samples.store, samples.patch
        self.samples = samples
        self.slots = slots
        self.blocks_read = 0
        self._side = store.tile_size + 2 * store.halo
        side, tiles = self._side, slots * store.chunk_tiles
        shape = (tiles, store.bands, side, side) if patch is None else (tiles, side, side, store.bands)
        self._data = np.empty(shape, np.float32)
        self._labels = np.zeros((tiles, side, side), np.uint16)
        self._mask = np.zeros((tiles if patch is None else 0, side, side), np.bool_)
        # pixel of each sample inside its block, counted over (tile, y, x)
        core_pixels = store.chunk_tiles * store.tile_size**2
        self._pixel = np.zeros((slots, 0 if patch is None else core_pixels), np.int32)
        self._held: OrderedDict[int, int] = OrderedDict()  # block -> slot, least recently used first
        self._free = list(range(slots))
        self._slot_of = np.full(len(samples.block_samples), -1, np.int64)
        self._tile_of_sample = np.flatnonzero(samples.tile_samples).astype(np.int64)
        self._first_sample = np.concatenate([np.zeros(1, np.int64), np.cumsum(samples.block_samples)])

    def gather(self, blocks: Int64s, items: Int64s) -> Samples:
        """Build a batch.

        Parameters
        ----------
        blocks, items
            (n,) block of each sample and its number inside the block.

        Raises
        ------
        StoreCorruptError
            A shard is missing or damaged; its file is named.
        """
        needed = np.unique(blocks)
        if len(needed) <= self.slots:
            self._hold(needed)
            return self._take(blocks, items)
        # more blocks than the pool holds (large batches of small blocks): part by part
        parts = [
            np.flatnonzero(np.isin(blocks, some))
            for some in np.split(needed, range(self.slots, len(needed), self.slots))
        ]
        taken: list[Samples] = []
        for part in parts:
            self._hold(np.unique(blocks[part]))
            taken.append(self._take(blocks[part], items[part]))
        back = np.argsort(np.concatenate(parts))
        joined = {
            name: np.concatenate([getattr(piece, name) for piece in taken])[back]
            for name in Samples.__dataclass_fields__
        }
        return Samples(**joined)

    def _hold(self, needed: Int64s) -> None:
        """Decode the blocks that are not there yet, in place of those not used for longest."""
        missing: list[int] = []
        for block in needed.tolist():
            if block in self._held:
                self._held.move_to_end(block)
            else:
                missing.append(block)
        for block in missing:
            if not self._free:
                oldest, slot = self._held.popitem(last=False)
                self._slot_of[oldest] = -1
                self._free.append(slot)
            # taken only once decoded: an error leaves a free slot rather than a wrong block
            slot = self._free[-1]
            self._decode(block, slot)
            self._free.pop()
            self._held[block] = slot
            self._slot_of[block] = slot

    def _decode(self, block: int, slot: int) -> None:
        samples, store = self.samples, self.samples.store
        first = block * store.chunk_tiles
        stop = min(first + store.chunk_tiles, len(store))
        data_tbyx = store.read_tiles("data", first, stop)
        mask_tyx = self._own_core(first, stop, data_tbyx)
        at = slice(slot * store.chunk_tiles, slot * store.chunk_tiles + stop - first)
        if store.classes:
            labels_tyx = store.read_tiles("labels", first, stop)
            mask_tyx &= labels_tyx > 0
            self._labels[at] = labels_tyx
        self.blocks_read += 1
        if samples.patch is None:
            self._data[at] = data_tbyx
            self._mask[at] = mask_tyx
            if samples.code is not None and store.classes:
                # labels of other splits are not given out either, mask or not
                self._labels[at][store.read_tiles("split", first, stop) != samples.code] = 0
            return
        self._data[at] = data_tbyx.transpose(0, 2, 3, 1)
        pixels = np.flatnonzero(mask_tyx)
        if len(pixels) != samples.block_samples[block]:
            raise StoreCorruptError(
                f"Tiles {first}-{stop - 1} of the store {store.path} hold {len(pixels)} pixels of the split "
                f"{samples.split!r} where their index says {samples.block_samples[block]}. Check it with `bandstream "
                "store verify`; delete the store and run its workflow again."
            )
        self._pixel[slot, : len(pixels)] = pixels

    def _own_core(self, first: int, stop: int, data_tbyx: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return the valid core pixels of the split, (tile, y, x), and blank in `data_tbyx` what only others may see."""
        samples, store = self.samples, self.samples.store
        core = (slice(None), *(slice(store.halo, store.halo + store.tile_size),) * 2)
        own = np.zeros((stop - first, self._side, self._side), np.bool_)
        if samples.code is None:
            own[core] = True
        else:
            own[core] = store.read_tiles("split", first, stop)[core] == samples.code
            if samples.patch is None:
                mixed = np.flatnonzero(~own[core].all(axis=(1, 2)))
                blank_unseen(data_tbyx, own, mixed, store.halo)
        return own & store.read_tiles("valid", first, stop)

    def _take(self, blocks: Int64s, items: Int64s) -> Samples:
        samples, store = self.samples, self.samples.store
        slot = self._slot_of[blocks]
        index = store.index
        if samples.patch is None:
            tile = self._tile_of_sample[self._first_sample[blocks] + items]
            held = slot * store.chunk_tiles + tile - blocks * store.chunk_tiles
            label = self._labels[held].astype(np.int64)
            image = self._data.take(held, axis=0)
            return Samples(image, label, self._mask[held], tile, index.row[tile], index.col[tile], tile)
        pixel = self._pixel[slot, items].astype(np.int64)
        tile_in_block, within = np.divmod(pixel, self._side**2)
        y, x = np.divmod(within, self._side)
        held = slot * store.chunk_tiles + tile_in_block
        image = gather_patches(self._data, held, y, x, samples.patch)
        label = self._labels[held, y, x].astype(np.int64)
        tile = blocks * store.chunk_tiles + tile_in_block
        row, col = index.row[tile] + y - store.halo, index.col[tile] + x - store.halo
        return Samples(
            image, label, np.ones(len(label), np.bool_), tile, row, col, tile * self._side**2 + within
        )


def blank_unseen(
    data_tbyx: NDArray[np.float32], own_tyx: NDArray[np.bool_], tiles: Int64s, halo: int
) -> None:
    """Set to 0 the pixels farther than `halo` (in rows or columns) from every pixel of the split.

    They may belong to another split, and no patch around a pixel of this one, halo wide, sees them.

    Parameters
    ----------
    data_tbyx
        (tile, band, y, x), changed in place.
    own_tyx
        (tile, y, x): core pixels of the split.
    tiles
        Which tiles are not wholly of the split.
    halo
        Pixels.
    """
    if not len(tiles):
        return
    width = 2 * halo + 1
    near = ndimage.maximum_filter(own_tyx[tiles].view(np.uint8), size=(1, width, width), mode="constant")
    data_tbyx[tiles] *= (near > 0)[:, None]


def gather_patches(
    data_tyxb: NDArray[np.float32], tile: Int64s, y: Int64s, x: Int64s, patch: int
) -> NDArray[np.float32]:
    """Cut patches around pixels.

    Parameters
    ----------
    data_tyxb
        (tile, y, x, band), contiguous.
    tile, y, x
        (n,) centres, at least patch // 2 away from the tiles' edges.
    patch
        Side in pixels, odd.

    Returns
    -------
    ndarray
        (n, band, patch, patch), with the band last in memory.
    """
    tiles, height, width, bands = data_tyxb.shape
    # every run of `patch` pixels along x as one overlapping item of bytes: a patch's row is then copied at once
    run_bytes, pixel_bytes = patch * bands * data_tyxb.itemsize, bands * data_tyxb.itemsize
    runs = np.ndarray(
        (tiles * height * width - patch + 1,), f"V{run_bytes}", buffer=data_tyxb.data, strides=(pixel_bytes,)
    )
    half = patch // 2
    corner = (tile * height + y - half) * width + x - half
    rows: NDArray[np.float32] = runs[corner[:, None] + width * np.arange(patch)].view(np.float32)
    return rows.reshape(len(tile), patch, patch, bands).transpose(0, 3, 1, 2)
