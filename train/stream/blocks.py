"""Decoded blocks in the slots of one pool, and the gathering of batches from them.

A batch is a single indexing operation over all slots, straight into the batch's memory. Everything that depends on the
split is done once, when a block is decoded: what only other splits may see is blanked, and pixels that are samples are
listed. For patches, blocks are kept band last, since a patch's rows are then runs of contiguous memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from ...pipeline.errors import StoreCorruptError
from .pool import Fields
from .samples import Int64s, Samples, SampleSet
from .shards import BlockReader, ReadTimes, packed_bytes, shard_file

#: What a thread takes beside that: its stack, the codec's temporaries, what the allocator keeps for it (1.2 MiB measured, 2.5 on a busy machine).
_THREAD_BYTES = 3 << 20


@dataclass(frozen=True)
class SlotSize:
    """Bytes and shapes of a slot, the largest that any of the stores needs."""

    tiles: int
    pixels: int  #: of all its tiles, halo included
    core: int  #: core pixels of all its tiles: the most samples
    bands: int
    targets: int
    labels: bool  #: whether any store has classes

    @classmethod
    def of(cls, samples: Samples) -> SlotSize:
        """Return the size for these samples."""
        stores = [one.store for one in samples.sets]
        return cls(
            max(store.chunk_tiles for store in stores),
            max(one.store.chunk_tiles * one.side**2 for one in samples.sets),
            max(store.chunk_tiles * store.tile_size**2 for store in stores),
            stores[0].bands,
            len(stores[0].targets),
            any(store.classes for store in stores),
        )

    @property
    def data_bytes(self) -> int:
        """Bytes of the pixels of a block."""
        return 4 * self.pixels * self.bands

    def slot_bytes(self, patch: int | None) -> int:
        """Bytes of a slot."""
        per_pixel = 2 * self.labels + 4 * self.targets
        if patch is None:
            return self.data_bytes + self.pixels * (per_pixel + 1)
        return self.data_bytes + self.core * (per_pixel + 4)

    def load_bytes(self, patch: int | None) -> int:
        """Bytes that a thread takes while it reads a block, beside the slot."""
        return self.work_bytes(patch) + _THREAD_BYTES

    def work_bytes(self, patch: int | None) -> int:
        """Bytes of memory in which a block is unpacked."""
        unpacked = 0 if patch is None else self.data_bytes
        targets = 4 * self.pixels * self.targets
        packed = packed_bytes(max(self.data_bytes, targets))
        return sum(map(_padded, (packed, unpacked, targets))) + 6 * self.pixels

    def fields(self, samples: Samples, count: int) -> Fields:
        """Return shapes and dtypes of a batch of `count` samples; images of patches have the band last here."""
        side = samples.sets[0].side if samples.patch is None else samples.patch
        wide = (side, side) if samples.patch is None else ()
        shape = (self.bands, side, side) if samples.patch is None else (side, side, self.bands)
        fields: Fields = {"image": ((count, *shape), np.float32), "label": ((count, *wide), np.int64)}
        fields["mask"] = ((count, *wide), np.bool_)
        if self.targets:
            fields["target"] = ((count, self.targets, *wide), np.float32)
        names = ("tile", "row", "col", "ids", *(() if len(samples.sets) == 1 else ("store",)))
        return fields | dict.fromkeys(names, ((count,), np.int64))


class Slots:
    """Decoded blocks, each in its slot.

    Parameters
    ----------
    samples
        What is streamed.
    readers
        Of each store's blocks.
    slots
        Blocks that are held at a time.
    listed_bytes
        That labels, masks and lists of samples may take beside the slots, so that they are read once.
    """

    def __init__(
        self, samples: Samples, readers: Sequence[BlockReader], slots: int, listed_bytes: int = 0
    ) -> None:
        self.samples, self._readers, self.count = samples, readers, slots
        size = self.size = SlotSize.of(samples)
        side, patch = samples.sets[0].side, samples.patch
        tiles = slots * size.tiles
        # not touched before blocks come, so that memory which is never needed is never taken
        if patch is None:
            self._data = np.empty((tiles, size.bands, side, side), np.float32)
            self._mask = np.empty((tiles, side, side), np.bool_)
            self._labels = np.zeros((tiles if size.labels else 0, side, side), np.uint16)
            self._targets = np.empty((tiles if size.targets else 0, size.targets, side, side), np.float32)
        else:
            self._data = np.empty((slots * size.pixels, size.bands), np.float32)
            # of each sample: its pixel in the block, counted over (tile, y, x)
            self._pixel = np.empty((slots, size.core), np.int32)
            self._labels = np.zeros((slots, size.core if size.labels else 0), np.uint16)
            self._targets = np.empty((slots, size.core if size.targets else 0, size.targets), np.float32)
        self._finite = np.zeros(len(samples.block_samples), np.bool_)
        self._listed: dict[int, tuple[NDArray[Any], ...]] = {}
        self._listed_left = listed_bytes

    # -- decoding ------------------------------------------------------------------------------------------------

    def decode(self, block: int, slot: int, work: NDArray[np.uint8], times: ReadTimes) -> None:
        """Read a block into a slot; in any thread.

        Parameters
        ----------
        block
            Counted over all stores.
        slot
            Which nothing else uses.
        work
            (`SlotSize.work_bytes`,)
        times
            Added to.

        Raises
        ------
        StoreCorruptError
            A shard is missing or damaged, or a pixel is NaN; the file is named.
        """
        number, local = self.samples.place(block)
        one, reader, size = self.samples.sets[number], self._readers[number], self.size
        cut = _Cutter(work)
        packed = cut(packed_bytes(max(size.data_bytes, 4 * size.pixels * size.targets)), np.uint8)
        side = one.side
        if one.patch is None:
            at = slot * size.tiles
            data_tbyx = self._data[at : at + one.store.chunk_tiles]
        else:
            data_tbyx = cut((one.store.chunk_tiles, size.bands, side, side), np.float32)
        reader.read("data", local, data_tbyx, packed, times)
        first = local * one.store.chunk_tiles
        tiles = min(one.store.chunk_tiles, len(one.store) - first)
        self._check_finite(one, block, first, data_tbyx[:tiles])
        listed = self._listed.get(block) or self._list(_Facts(one, local, reader, packed, times), block)
        targets = None
        if size.targets:
            targets = cut((one.store.chunk_tiles, size.targets, side, side), np.float32)
            reader.read("targets", local, targets, packed, times)
            targets = targets[:tiles]
        if one.patch is None:
            self._place_tiles(one, slot, data_tbyx[:tiles], listed, targets)
        else:
            self._place_pixels(slot, data_tbyx[:tiles], listed, targets)

    def _place_tiles(
        self,
        one: SampleSet,
        slot: int,
        data_tbyx: NDArray[np.float32],
        listed: tuple[NDArray[Any], ...],
        targets: NDArray[np.float32] | None,
    ) -> None:
        """Complete a slot of whole tiles whose pixels are there."""
        mask, labels, own = listed
        at = slice(slot * self.size.tiles, slot * self.size.tiles + len(data_tbyx))
        if len(own):
            mixed = np.flatnonzero(~own[_core(one)].all(axis=(1, 2)))
            blank_unseen(data_tbyx, own, mixed, one.store.halo)
        self._mask[at] = mask
        if self.size.labels:
            self._labels[at] = labels if len(labels) else 0
        if targets is not None:
            self._targets[at] = np.where(own[:, None], targets, np.float32(np.nan)) if len(own) else targets

    def _place_pixels(
        self,
        slot: int,
        data_tbyx: NDArray[np.float32],
        listed: tuple[NDArray[Any], ...],
        targets: NDArray[np.float32] | None,
    ) -> None:
        """Fill a slot of pixels."""
        pixels, labels = listed
        tiles, bands, side, _ = data_tbyx.shape
        start = slot * self.size.pixels
        data_tyxb = self._data[start : start + tiles * side**2].reshape(tiles, side, side, bands)
        np.copyto(data_tyxb, data_tbyx.transpose(0, 2, 3, 1))
        self._pixel[slot, : len(pixels)] = pixels
        if self.size.labels:
            self._labels[slot, : len(pixels)] = labels if len(labels) else 0
        if targets is not None:
            tile, within = np.divmod(pixels, side**2)
            self._targets[slot, : len(pixels)] = targets.reshape(tiles, -1, side**2)[tile, :, within]

    def _list(self, facts: _Facts, block: int) -> tuple[NDArray[Any], ...]:
        """Return what must be known of a block beside its pixels, and keep it where there is room."""
        one = facts.samples
        own, mask, labels = facts.own(), facts.mask(), facts.labels()
        if labels is not None:
            mask &= labels > 0
            if own is not None:
                # labels of other splits are not given out either, mask or not
                labels[facts.foreign()] = 0
        none = np.empty(0, np.uint16)
        if one.patch is None:
            listed = (mask, none if labels is None else labels, none if own is None else own)
        else:
            pixels = np.flatnonzero(mask).astype(np.int32)
            expected = int(self.samples.block_samples[block])
            if len(pixels) != expected:
                raise StoreCorruptError(
                    f"Tiles {facts.first}-{facts.stop - 1} of the store {one.store.path} hold {len(pixels)} pixels of "
                    f"the split {one.split!r} where their index says {expected}. Check it with `bandstream store "
                    "verify`; delete the store and run its workflow again."
                )
            of_pixels = none if labels is None else labels.reshape(-1)[pixels]
            if self.samples.by_class:
                order = np.argsort(of_pixels, kind="stable")
                pixels, of_pixels = pixels[order], of_pixels[order]
            listed = (pixels, of_pixels)
        length = sum(part.nbytes for part in listed)
        if length <= self._listed_left:
            self._listed_left -= length
            self._listed[block] = listed
        return listed

    def _check_finite(self, one: SampleSet, block: int, first: int, data_tbyx: NDArray[np.float32]) -> None:
        if self._finite[block]:
            return
        with np.errstate(invalid="ignore"):
            lowest = data_tbyx.min()
        if np.isnan(lowest):
            tile = first + int(np.flatnonzero(np.isnan(data_tbyx).any(axis=(1, 2, 3)))[0])
            raise StoreCorruptError(
                f"Tile {tile} of the store {one.store.path} holds NaN, in the file "
                f"{shard_file(one.store, 'data', tile // one.store.shard_tiles)}; a store has 0 where a pixel has no "
                "data. Delete the store and run its workflow again."
            )
        self._finite[block] = True

    # -- gathering -----------------------------------------------------------------------------------------------

    def fields(self, count: int) -> Fields:
        """Return shapes and dtypes of a batch of `count` samples; images of patches have the band last here."""
        return self.size.fields(self.samples, count)

    def gather(self, blocks: Int64s, items: Int64s, slots: Int64s, out: dict[str, NDArray[Any]]) -> None:
        """Copy samples into a part of a batch.

        Parameters
        ----------
        blocks, items, slots
            (n,) block of each sample, its number inside the block, and the slot where the block lies.
        out
            Arrays as `fields` says, of n samples.
        """
        samples, size = self.samples, self.size
        store = samples.store_of(blocks)
        if "store" in out:
            out["store"][...] = store
        if samples.patch is None:
            tile = samples.sampled_tile[samples.first_sample[blocks] + items]
            local = tile - samples.first_tile[store]
            chunk_tiles = np.array([one.store.chunk_tiles for one in samples.sets])[store]
            held = slots * size.tiles + local - (blocks - samples.first_block[store]) * chunk_tiles
            _take(self._data, held, out["image"])
            # `clip` writes straight into `out`; the other modes copy twice
            np.take(self._mask, held, axis=0, out=out["mask"], mode="clip")
            out["label"][...] = self._labels[held] if size.labels else 0
            if size.targets:
                _take(self._targets, held, out["target"])
            out["tile"][...], out["row"][...], out["col"][...] = local, samples.row[tile], samples.col[tile]
            out["ids"][...] = tile
            return
        side, size_, halo, chunk = (
            np.array(values)[store]
            for values in zip(
                *((one.side, one.side**2, one.store.halo, one.store.chunk_tiles) for one in samples.sets),
                strict=True,
            )
        )
        pixel = self._pixel[slots, items].astype(np.int64)
        tile_in_block, within = np.divmod(pixel, size_)
        y, x = np.divmod(within, side)
        gather_patches(self._data, slots * size.pixels + pixel, side, samples.patch, out["image"])
        out["label"][...] = self._labels[slots, items] if size.labels else 0
        out["mask"][...] = True
        if size.targets:
            out["target"][...] = self._targets[slots, items]
        local = (blocks - samples.first_block[store]) * chunk + tile_in_block
        tile = samples.first_tile[store] + local
        out["tile"][...], out["ids"][...] = local, samples.first_id[store] + local * size_ + within
        out["row"][...], out["col"][...] = samples.row[tile] + y - halo, samples.col[tile] + x - halo


class _Cutter:
    """Cuts arrays from a piece of memory, one behind the other."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._at = memory, 0

    def __call__(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        array = np.ndarray(shape, dtype, self._memory, self._at)
        self._at += _padded(array.nbytes)
        return array


def _padded(length: int) -> int:
    """Return the bytes of memory that a `_Cutter` takes for an array of `length` bytes."""
    return -(-length // 8) * 8


class _Facts:
    """Labels, validity and splits of a block; what the tile index already says is not read.

    Arrays are (tile, y, x) over the block's tiles in the store, with halo.
    """

    def __init__(
        self, samples: SampleSet, block: int, reader: BlockReader, packed: NDArray[np.uint8], times: ReadTimes
    ) -> None:
        store = samples.store
        self.samples, self.first = samples, block * store.chunk_tiles
        self.stop = min(self.first + store.chunk_tiles, len(store))
        self._block, self._reader, self._packed, self._times = block, reader, packed, times
        self._split: NDArray[np.uint8] | None = None

    def _read(self, name: str, dtype: Any) -> NDArray[Any]:
        store, side = self.samples.store, self.samples.side
        out = np.empty((store.chunk_tiles, side, side), dtype)
        self._reader.read(name, self._block, out, self._packed, self._times)
        return out[: self.stop - self.first]

    def _inside(self) -> NDArray[np.bool_]:
        inside = np.zeros((self.stop - self.first, self.samples.side, self.samples.side), np.bool_)
        inside[_core(self.samples)] = True
        return inside

    def foreign(self) -> NDArray[np.bool_]:
        """Return which pixels, halo included, are of another split."""
        if self._split is None:
            self._split = self._read("split", np.uint8)
        return self._split != self.samples.code

    def own(self) -> NDArray[np.bool_] | None:
        """Return the core pixels of the split, None where the split does not matter."""
        if self.samples.code is None:
            return None
        if self.samples.plain_tiles[1][self.first : self.stop].all():
            return self._inside()
        return self._inside() & ~self.foreign()

    def mask(self) -> NDArray[np.bool_]:
        """Return the valid core pixels of the split."""
        own = self.own()
        mask = self._inside() if own is None else own.copy()
        if not self.samples.plain_tiles[0][self.first : self.stop].all():
            mask &= self._read("valid", np.bool_)
        return mask

    def labels(self) -> NDArray[np.uint16] | None:
        """Return the labels, None where the store has none."""
        return self._read("labels", np.uint16) if self.samples.store.classes else None


def _core(samples: SampleSet) -> tuple[slice, slice, slice]:
    halo = samples.store.halo
    inside = slice(halo, halo + samples.store.tile_size)
    return slice(None), inside, inside


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
    for tile, near_yx in zip(tiles.tolist(), near, strict=True):
        # not by a product, which would make NaN of infinity
        np.copyto(data_tbyx[tile], np.float32(0), where=near_yx == 0)


def gather_patches(
    data_pb: NDArray[np.float32],
    pixel: Int64s,
    side: Int64s,
    patch: int,
    out_nyxb: NDArray[np.float32],
) -> None:
    """Copy the patches around pixels of tiles.

    Parameters
    ----------
    data_pb
        (pixel, band), contiguous; tiles lie in it row by row.
    pixel
        (n,) centres, at least patch // 2 away from the edges of their tiles.
    side
        (n,) pixels in a row of the centre's tile.
    patch
        Side in pixels, odd.
    out_nyxb
        (n, patch, patch, band), contiguous.
    """
    pixels, bands = data_pb.shape
    # runs of `patch` pixels along x as overlapping items: a row of a patch is one copy
    runs = torch.from_numpy(data_pb).as_strided((pixels - patch + 1, patch * bands), (bands, 1))
    half = patch // 2
    first = (pixel - half)[:, None] + side[:, None] * np.arange(-half, half + 1)
    out = torch.from_numpy(out_nyxb).view(-1, patch * bands)
    torch.index_select(runs, 0, torch.from_numpy(first.ravel()), out=out)


def _take(source: NDArray[np.float32], index: Int64s, out: NDArray[np.float32]) -> None:
    """Copy items of the first axis into `out`, by as many threads as torch has."""
    torch.index_select(torch.from_numpy(source), 0, torch.from_numpy(index), out=torch.from_numpy(out))
