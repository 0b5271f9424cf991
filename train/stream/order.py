"""The order in which samples are streamed: a pure function of (seed, epoch), needing no memory per sample.

Blocks (the store's inner chunks) are put in a keyed order and laid end to end, which gives every sample a position.
The positions are cut into L lanes of equal length. Inside a lane, runs of V blocks are mixed by another keyed
permutation, and samples are dealt from the lanes in turn. A batch thus mixes samples of about L blocks, while at any
time only V blocks of each lane are needed. Global batch k is samples kG .. kG + G - 1, of which rank j of R takes those
with number mod R = j. The sequence of global batches therefore does not depend on ranks or workers, which is what
lets a run go on with another number of them.

The keyed permutations are unbalanced Feistel networks over the smallest power of two that holds the domain, walked
along their cycles until they come back into it (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = 3
_MAX_DOMAIN = 1 << 53  # a bit length is read from a float64's exponent, exact up to here
# what a key is for: keys of different use must differ though seed, epoch and number are equal
_USE_BLOCKS, _USE_WINDOW, _USE_SAMPLE = 1, 2, 3


def mix64(values: UInt64s) -> UInt64s:
    """Scramble 64-bit words one by one (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLY_1
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLY_2
    return values ^ (values >> np.uint64(31))


def keys_of(*parts: int | Int64s) -> UInt64s:
    """Hash integers, or equally long arrays of them, into one 64-bit key per element.

    Parameters
    ----------
    parts
        Integers, negative ones too, or int64 arrays of shape (n,).

    Returns
    -------
    ndarray
        uint64 keys, (n,), or (1,) where all parts are integers.
    """
    key = np.zeros(1, np.uint64)
    for part in parts:
        if isinstance(part, int):
            word = np.array([part & 0xFFFFFFFFFFFFFFFF], np.uint64)
        else:
            word = part.astype(np.uint64)
        key = mix64((key ^ word) + _GOLDEN)
    return key


def permute(values: Int64s, domain: int | Int64s, key: UInt64s) -> Int64s:
    """Map each value of 0 .. domain - 1 to another one, one to one for equal domain and key.

    Parameters
    ----------
    values
        (n,) int64, each at least 0 and below its domain.
    domain
        Size of the set permuted, at most 2^53; one for all or (n,).
    key
        uint64 keys, (1,) or (n,).

    Returns
    -------
    ndarray
        (n,) int64.
    """
    domain_n, key_n = np.broadcast_to(domain, values.shape), np.broadcast_to(key, values.shape)
    bits_n = np.frexp((domain_n - 1).astype(np.float64))[1].astype(np.uint64)
    out = _feistel(values.astype(np.uint64), bits_n, key_n).astype(np.int64)
    outside = np.flatnonzero(out >= domain_n)
    while outside.size:
        again = _feistel(out[outside].astype(np.uint64), bits_n[outside], key_n[outside]).astype(np.int64)
        out[outside] = again
        outside = outside[again >= domain_n[outside]]
    return out


def _feistel(words: UInt64s, bits: UInt64s, key: UInt64s) -> UInt64s:
    """Permute words of `bits` bits: halves scramble each other in turn, which can be undone and so is one to one."""
    low_bits = bits >> np.uint64(1)
    one = np.uint64(1)
    low_mask, high_mask = (one << low_bits) - one, (one << (bits - low_bits)) - one
    low, high = words & low_mask, words >> low_bits
    for _ in range(_ROUNDS):
        key = key + _GOLDEN
        high = high ^ (_scramble(low, key) & high_mask)
        key = key + _GOLDEN
        low = low ^ (_scramble(high, key) & low_mask)
    return (high << low_bits) | low


def _scramble(half: UInt64s, key: UInt64s) -> UInt64s:
    """Half of `mix64`, whose upper 32 bits suffice: halves have at most 27 bits."""
    words = (half ^ key) * _MULTIPLY_1
    return ((words ^ (words >> np.uint64(32))) * _MULTIPLY_2) >> np.uint64(32)


def sample_keys(seed: int, epoch: int, sample_ids: Int64s) -> UInt64s:
    """Return a random word per sample that depends on nothing but (seed, epoch, sample id)."""
    return keys_of(_USE_SAMPLE, seed, epoch, sample_ids)


def steps_of(samples: int, global_batch: int) -> int:
    """Return the number of batches of an epoch, the same for every rank: ceil(samples / global_batch)."""
    return -(-samples // global_batch)


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
class SampleOrder:
    """The order of every epoch of a stream."""

    block_samples: Int64s  #: (block,) samples in each block; may be 0
    seed: int
    lanes: int  #: L, blocks mixed at a time
    window: int  #: V, blocks of a lane mixed with each other
    shuffle: bool = True  #: False: blocks and samples as they lie in the store

    @cached_property
    def samples(self) -> int:
        """Samples of an epoch."""
        return int(self.block_samples.sum())

    @cached_property
    def filled(self) -> Int64s:
        """Numbers of the blocks that hold any sample."""
        return np.flatnonzero(self.block_samples).astype(np.int64)

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of one epoch; equal numbers give equal orders."""
        blocks = self.filled
        if self.shuffle:
            slots = np.arange(len(blocks), dtype=np.int64)
            blocks = blocks[permute(slots, len(blocks), keys_of(_USE_BLOCKS, self.seed, epoch))]
        starts = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self.block_samples[blocks], dtype=np.int64)]
        )
        return EpochOrder(self, epoch, blocks, starts)


@dataclass(frozen=True)
class EpochOrder:
    """Where each sample of one epoch lies; made by `SampleOrder.epoch`."""

    order: SampleOrder
    epoch: int
    blocks: Int64s  #: (slot,) blocks as they follow each other
    starts: Int64s  #: (slot + 1,) first position of each block, and the end

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
        slots = self._slots(positions)
        return self.blocks[slots], positions - self.starts[slots]

    def _slots(self, positions: Int64s) -> Int64s:
        return np.searchsorted(self.starts, positions, side="right") - 1

    @cached_property
    def _lanes(self) -> tuple[Int64s, Int64s]:
        """First position of each lane, with the end, and the slot in which it lies."""
        quotient, rest = divmod(self.order.samples, self.order.lanes)
        lane = np.arange(self.order.lanes + 1, dtype=np.int64)
        first = lane * quotient + np.minimum(lane, rest)
        return first, self._slots(first)

    def _positions(self, numbers: Int64s) -> Int64s:
        order = self.order
        first, first_slot = self._lanes
        lane, item = numbers % order.lanes, numbers // order.lanes
        start = first[lane]
        # the window of V blocks, cut off at the lane's ends, inside which this item is mixed
        window = (self._slots(start + item) - first_slot[lane]) // order.window
        slot = first_slot[lane] + window * order.window
        low = np.maximum(self.starts[slot], start)
        high = np.minimum(self.starts[np.minimum(slot + order.window, len(self.blocks))], first[lane + 1])
        key = keys_of(_USE_WINDOW, order.seed, self.epoch, lane, window)
        return low + permute(start + item - low, high - low, key)
