"""The order in which samples are streamed: a pure function of (seed, epoch), needing no memory per sample.

Blocks (the store's inner chunks) are put in a keyed order and laid end to end, which gives every sample a position.
The positions are cut into L lanes of equal length. Inside a lane, runs of V blocks are mixed by another keyed
permutation, and samples are dealt from the lanes in turn. A batch thus mixes samples of about L blocks, while at any
time only V blocks of each lane are needed. Global batch k is samples kG .. kG + G - 1, of which rank j of R takes those
with number mod R = j. The sequence of global batches therefore does not depend on ranks or workers, which is what
lets a run go on with another number of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from .permutation import Int64s, UInt64s, keys_of, permute, unpermute

# what a key is for: keys of different use must differ though seed, epoch and number are equal
_USE_BLOCKS, _USE_WINDOW, _USE_SAMPLE = 1, 2, 3
_LOOKED_UP = 1 << 16  # blocks whose order is kept as a table

#: What becomes of samples that fill no batch: the batch is filled up with masked ones, or they are left out.
LAST = ("pad", "drop")


def sample_keys(seed: int, epoch: int, sample_ids: Int64s) -> UInt64s:
    """Return a random word per sample that depends on nothing but (seed, epoch, sample id)."""
    return keys_of(_USE_SAMPLE, seed, epoch, sample_ids)


def steps_of(samples: int, global_batch: int, last: str = "pad") -> int:
    """Return the number of batches of an epoch, the same for every rank.

    Parameters
    ----------
    samples
        Of an epoch.
    global_batch
        Samples of a batch over all ranks.
    last
        One of `LAST`: `pad` fills the last batch up, `drop` leaves out samples that fill none.
    """
    return samples // global_batch if last == "drop" else -(-samples // global_batch)


def rank_samples(
    steps: Int64s, batch_size: int, rank: int, world_size: int, samples: int
) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return the sample numbers of a rank's batches.

    Parameters
    ----------
    steps
        (s,) numbers of batches in the epoch.
    batch_size
        Samples per rank and batch.
    rank, world_size
        This rank and the number of them.
    samples
        Samples of an epoch, at least 1.

    Returns
    -------
    tuple
        Numbers in 0 .. samples - 1, int64 (s, batch_size), and whether each is real: the last batch is filled up
        with samples from the start of the epoch, which are not.
    """
    within = rank + world_size * np.arange(batch_size, dtype=np.int64)
    number_sb = steps[:, None] * (batch_size * world_size) + within
    return number_sb % samples, number_sb < samples


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks that all hold the same number of samples, but for the last one, which may hold fewer."""

    count: int  #: blocks, at least 1
    size: int  #: samples of each but the last, at least 1
    last: int  #: samples of the last, 1 to `size`

    @classmethod
    def of(cls, block_samples: Int64s) -> EqualBlocks | None:
        """Return the blocks as equal ones; None if they are not."""
        size, last = int(block_samples[0]), int(block_samples[-1])
        if not 0 < last <= size or not np.array_equal(
            block_samples[:-1], np.full(len(block_samples) - 1, size)
        ):
            return None
        return cls(len(block_samples), size, last)

    @property
    def samples(self) -> int:
        """Samples of all blocks."""
        return (self.count - 1) * self.size + self.last


class Line(ABC):
    """Blocks laid end to end in a keyed order: which position of an epoch lies in which block.

    A slot is the place of a block in the line.

    Parameters
    ----------
    key
        Of the order; None: as they lie in the store.
    count
        Blocks that hold samples.
    """

    def __init__(self, key: UInt64s | None, count: int) -> None:
        self._key, self.count = key, count
        # few blocks are looked up rather than computed: the same, and faster
        self._turned = self._turn(np.arange(count, dtype=np.int64)) if count <= _LOOKED_UP else None

    def _turn(self, slots: Int64s) -> Int64s:
        return slots if self._key is None else permute(slots, self.count, self._key)

    def _ranks(self, slots: Int64s) -> Int64s:
        """Number of each slot's block among those that hold samples."""
        return self._turn(slots) if self._turned is None else self._turned[slots]

    def _slots_of_ranks(self, ranks: Int64s) -> Int64s:
        return ranks if self._key is None else unpermute(ranks, self.count, self._key)

    @abstractmethod
    def blocks(self, slots: Int64s) -> Int64s:
        """Return the block of each slot, int64 (n,)."""

    @abstractmethod
    def slots_of(self, blocks: Int64s) -> Int64s:
        """Return the slot of each block, int64 (n,); undoes `blocks`."""

    @abstractmethod
    def starts(self, slots: Int64s) -> Int64s:
        """Return the first position of each slot, int64 (n,); slot `count` is the end."""

    @abstractmethod
    def slots_at(self, positions: Int64s) -> Int64s:
        """Return the slot in which each position lies, int64 (n,)."""


class EqualLine(Line):
    """A line of equal blocks, by formula: no memory per block."""

    def __init__(self, blocks: EqualBlocks, key: UInt64s | None) -> None:
        super().__init__(key, blocks.count)
        self._size, self._missing = blocks.size, blocks.size - blocks.last
        # where the shorter block went; whatever comes after it lies that much earlier
        self._short = int(self._slots_of_ranks(np.array([blocks.count - 1], np.int64))[0])

    def blocks(self, slots: Int64s) -> Int64s:
        """Return the block of each slot."""
        return self._ranks(slots)

    def slots_of(self, blocks: Int64s) -> Int64s:
        """Return the slot of each block."""
        return self._slots_of_ranks(blocks)

    def starts(self, slots: Int64s) -> Int64s:
        """Return the first position of each slot."""
        return slots * self._size - np.where(slots > self._short, self._missing, 0)

    def slots_at(self, positions: Int64s) -> Int64s:
        """Return the slot in which each position lies."""
        before = (self._short + 1) * self._size - self._missing
        return np.where(positions < before, positions, positions + self._missing) // self._size


class CountedLine(Line):
    """A line of blocks of any size: a prefix sum of 8 bytes per block, and as much again where some are empty."""

    def __init__(self, block_samples: Int64s, key: UInt64s | None) -> None:
        count = int(np.count_nonzero(block_samples))
        super().__init__(key, count)
        full = count == len(block_samples)
        self._filled = None if full else np.flatnonzero(block_samples).astype(np.int64)
        self._starts = np.zeros(self.count + 1, np.int64)
        for first in range(0, self.count, _LOOKED_UP):
            slots = np.arange(first, min(first + _LOOKED_UP, self.count), dtype=np.int64)
            self._starts[slots + 1] = block_samples[self.blocks(slots)]
        np.cumsum(self._starts, out=self._starts)

    def blocks(self, slots: Int64s) -> Int64s:
        """Return the block of each slot."""
        ranks = self._ranks(slots)
        return ranks if self._filled is None else self._filled[ranks]

    def slots_of(self, blocks: Int64s) -> Int64s:
        """Return the slot of each block, that of any other one where a block holds no samples."""
        if self._filled is None:
            return self._slots_of_ranks(blocks)
        ranks = np.searchsorted(self._filled, blocks).astype(np.int64)
        return self._slots_of_ranks(np.minimum(ranks, self.count - 1))

    def starts(self, slots: Int64s) -> Int64s:
        """Return the first position of each slot."""
        return self._starts[slots]

    def slots_at(self, positions: Int64s) -> Int64s:
        """Return the slot in which each position lies."""
        return np.searchsorted(self._starts, positions, side="right") - 1


@dataclass(frozen=True)
class SampleOrder:
    """The order of every epoch of a stream."""

    block_samples: Int64s | EqualBlocks  #: samples in each block, (block,), which may be 0
    seed: int
    lanes: int  #: L, blocks mixed at a time
    window: int  #: V, blocks of a lane mixed with each other
    shuffle: bool = True  #: False: blocks and samples as they lie in the store

    @cached_property
    def samples(self) -> int:
        """Samples of an epoch."""
        if isinstance(self.block_samples, EqualBlocks):
            return self.block_samples.samples
        return int(self.block_samples.sum())

    @cached_property
    def _equal(self) -> EqualBlocks | None:
        if isinstance(self.block_samples, EqualBlocks):
            return self.block_samples
        return EqualBlocks.of(self.block_samples)

    def epoch(self, epoch: int, block_samples: Int64s | None = None) -> EpochOrder:
        """Return the order of one epoch; equal numbers give equal orders.

        Parameters
        ----------
        epoch
            Number of the epoch.
        block_samples
            (block,) samples in each block where they are other ones in every epoch; their sum is not.
        """
        key = keys_of(_USE_BLOCKS, self.seed, epoch) if self.shuffle else None
        if block_samples is not None:
            return EpochOrder(self, epoch, CountedLine(block_samples, key))
        if self._equal is not None:
            return EpochOrder(self, epoch, EqualLine(self._equal, key))
        return EpochOrder(self, epoch, CountedLine(cast("Int64s", self.block_samples), key))


@dataclass(frozen=True)
class EpochOrder:
    """Where each sample of one epoch lies; made by `SampleOrder.epoch`."""

    order: SampleOrder
    epoch: int
    line: Line

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return where samples lie.

        Parameters
        ----------
        numbers
            (n,) numbers in the epoch, 0 .. samples - 1.

        Returns
        -------
        tuple
            Block and number inside the block of each, int64 (n,).
        """
        positions = self._positions(numbers) if self.order.shuffle else numbers
        slots = self.line.slots_at(positions)
        return self.line.blocks(slots), positions - self.line.starts(slots)

    def number_of(self, blocks: Int64s, items: Int64s) -> Int64s:
        """Return the numbers in the epoch of samples that lie in `blocks` at `items`, (n,) each; undoes `locate`."""
        positions = self.line.starts(self.line.slots_of(blocks)) + items
        if not self.order.shuffle:
            return positions
        first, _ = self._lanes
        lane = np.searchsorted(first, positions, side="right") - 1
        low, high, key = self._window(lane, positions)
        item = low + unpermute(positions - low, high - low, key) - first[lane]
        return item * self.order.lanes + lane

    @cached_property
    def _lanes(self) -> tuple[Int64s, Int64s]:
        """First position of each lane, with the end, and the slot in which it lies."""
        quotient, rest = divmod(self.order.samples, self.order.lanes)
        lane = np.arange(self.order.lanes + 1, dtype=np.int64)
        first = lane * quotient + np.minimum(lane, rest)
        return first, self.line.slots_at(first)

    def _positions(self, numbers: Int64s) -> Int64s:
        lane, item = numbers % self.order.lanes, numbers // self.order.lanes
        at = self._lanes[0][lane] + item
        low, high, key = self._window(lane, at)
        return low + permute(at - low, high - low, key)

    def _window(self, lane: Int64s, positions: Int64s) -> tuple[Int64s, Int64s, UInt64s]:
        """First position, end and key of the windows of V blocks, cut off at their lanes' ends, that hold positions."""
        order, (first, first_slot) = self.order, self._lanes
        window = (self.line.slots_at(positions) - first_slot[lane]) // order.window
        slot = first_slot[lane] + window * order.window
        low = np.maximum(self.line.starts(slot), first[lane])
        high = np.minimum(self.line.starts(np.minimum(slot + order.window, self.line.count)), first[lane + 1])
        return low, high, keys_of(_USE_WINDOW, order.seed, self.epoch, lane, window)
