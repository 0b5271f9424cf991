"""When blocks are used, by the order: what to keep and what to give up."""

from __future__ import annotations

import math

import numpy as np

from .order import EpochOrder
from .samples import Int64s

_NEVER = np.int64(1) << np.int64(62)


def spans(order: EpochOrder, blocks: Int64s, rank: int, world_size: int) -> tuple[Int64s, Int64s]:
    """Return between which samples of an epoch a rank uses blocks.

    Parameters
    ----------
    order
        Of the epoch.
    blocks
        (n,)
    rank, world_size
        Whose samples.

    Returns
    -------
    tuple
        Numbers in the epoch of the first and the last sample, int64 (n,), at most a window too early and too late;
        both very large where the rank uses none.
    """
    line, lanes = order.line, order.order.lanes
    slot = np.minimum(line.slots_of(blocks), line.count - 1)
    start, end = line.starts(slot), line.starts(slot + 1) - 1
    if not order.order.shuffle:
        return start, end
    quotient, rest = divmod(order.order.samples, lanes)
    lane = np.arange(lanes + 1, dtype=np.int64)
    first_of = lane * quotient + np.minimum(lane, rest)
    lane, last_lane = (np.searchsorted(first_of, at, side="right") - 1 for at in (start, end))
    first_slot = line.slots_at(first_of[lane])
    window = first_slot + (slot - first_slot) // order.order.window * order.order.window
    low = np.maximum(line.starts(window), first_of[lane])
    high = np.minimum(line.starts(np.minimum(window + order.order.window, line.count)), first_of[lane + 1])
    first, last = (low - first_of[lane]) * lanes + lane, (high - 1 - first_of[lane]) * lanes + lane
    # the end of one lane and the beginning of the next: needed early and late
    both = lane != last_lane
    first, last = np.where(both, 0, first), np.where(both, order.order.samples, last)
    shared = math.gcd(lanes, world_size)
    own = (lane % shared == rank % shared) | (last_lane % shared == rank % shared)
    return np.where(own, first, _NEVER), np.where(own, last, _NEVER)


def next_use(
    blocks: Int64s, now: int, current: EpochOrder, following: EpochOrder, rank: int, world_size: int
) -> Int64s:
    """Return when blocks are used next, after sample `now` of an epoch; samples of the next one are counted on.

    Parameters
    ----------
    blocks
        (n,)
    now
        Number of a sample in the epoch.
    current, following
        Orders of the epoch and the next one.
    rank, world_size
        Whose samples.

    Returns
    -------
    ndarray
        int64 (n,).
    """
    first, last = spans(current, blocks, rank, world_size)
    later = np.minimum(spans(following, blocks, rank, world_size)[0], _NEVER - current.order.samples)
    return np.where(now <= last, np.maximum(first, now), current.order.samples + later)
