"""What a stream holds in one process: decoded blocks, threads and open files, within its byte budget."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...pipeline.errors import ConfigError
from .blocks import Slots, SlotSize
from .bytes_source import ByteSource
from .pool import KEPT_BATCHES, BatchMemory
from .prefetch import MAX_THREADS, Prefetcher, StreamStats, Unit
from .samples import Int64s, Samples
from .shards import Checksum, ShardReader

#: Part of the decoded blocks' bytes that lists of their samples may take, where blocks do not stay
_LISTED_SHARE = 16
#: Part of the budget for blocks that are on their way, where blocks do not stay: a network needs many at a time
_WORK_SHARE = 4


@dataclass(frozen=True)
class MemoryPlan:
    """How a byte budget is divided."""

    slots: int  #: decoded blocks
    work: int  #: blocks that may be on their way
    listed_bytes: int  #: for lists of samples

    @classmethod
    def of(
        cls, samples: Samples, batch_bytes: int, budget_bytes: int, threads: int | None, least_slots: int
    ) -> MemoryPlan:
        """Divide the budget.

        Parameters
        ----------
        samples
            What is streamed.
        batch_bytes
            Of one batch on this rank.
        budget_bytes
            For everything.
        threads
            That are asked for.
        least_slots
            Blocks that the order uses at a time.

        Raises
        ------
        ConfigError
            The budget does not hold what the order needs; the least that does is named.
        """
        size, patch = SlotSize.of(samples), samples.patch
        slot, work = size.slot_bytes(patch), size.load_bytes(patch)
        filled = int(np.count_nonzero(samples.block_samples))
        least_work = (threads or os.cpu_count() or 1) + 2
        batches = (KEPT_BATCHES + 1) * batch_bytes
        if filled * slot + least_work * work + batches <= budget_bytes:
            return cls(filled, least_work, 0)
        at_a_time = max(least_work, min(MAX_THREADS, budget_bytes // _WORK_SHARE // work))
        left = budget_bytes - batches - at_a_time * work
        slots = min(filled, left * _LISTED_SHARE // (_LISTED_SHARE + 1) // slot)
        least_slots = min(least_slots, filled)
        if slots < least_slots:
            needed = (
                -(-least_slots * slot * (_LISTED_SHARE + 1) // _LISTED_SHARE) + batches + least_work * work
            )
            if budget_bytes >= needed:
                return cls(least_slots, least_work, least_slots * slot // _LISTED_SHARE)
            raise ConfigError(
                f"budget_bytes={budget_bytes} is too little for this stream: it mixes {least_slots} blocks of {slot} "
                f"bytes at a time and gives batches of {batch_bytes} bytes, which takes {needed} bytes. Give at least "
                "that, or fewer lanes, window=1 or a smaller batch_size."
            )
        return cls(slots, at_a_time, slots * slot // _LISTED_SHARE)


class Engine:
    """Made for one process; another one makes its own.

    Parameters
    ----------
    samples
        What is streamed.
    sources
        Of each store's bytes.
    plan
        Of the memory.
    threads, checksum, pinned
        See `PatchStream`.
    next_use, stats
        See `Prefetcher`.
    """

    def __init__(
        self,
        samples: Samples,
        sources: Sequence[ByteSource],
        plan: MemoryPlan,
        threads: int | None,
        checksum: Checksum,
        pinned: bool,
        next_use: Callable[[Int64s, Unit], Int64s],
        stats: StreamStats,
    ) -> None:
        self.process, self.plan = os.getpid(), plan
        self._sources = sources
        readers = [
            ShardReader(one.store, source, checksum)
            for one, source in zip(samples.sets, sources, strict=True)
        ]
        self.slots = Slots(samples, readers, plan.slots, plan.listed_bytes)
        self.prefetcher = Prefetcher(self.slots, threads, plan.work, next_use, stats)
        self.batches = BatchMemory(pinned)

    def close(self, wait: bool = True) -> None:
        """End the threads and close the files."""
        if self.process != os.getpid():
            return
        self.prefetcher.close(wait)
        for source in self._sources:
            source.close()

    def __del__(self) -> None:
        self.close(wait=False)


def blocks_at_a_time(lanes: int, window: int, world_size: int, shuffle: bool) -> int:
    """Return how many blocks the order of a rank mixes at a time."""
    return lanes // math.gcd(lanes, world_size) * window if shuffle else 1
