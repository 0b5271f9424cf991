"""Blocks are read and decoded before they are needed: the order says which ones come.

The consumer's own thread plans: it takes units (a batch, or a part of one) from the order, pins the slots of their
blocks, and gives the blocks that are missing to threads. It goes ahead as far as slots and memory allow, over the end
of the epoch into the next one, and waits only for the blocks of the unit that is due. A slot that nobody has pinned
keeps its block until another one needs the room; the block whose next use is farthest goes first.
"""

from __future__ import annotations

import heapq
import math
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from .blocks import Slots
from .crew import Crew
from .samples import Int64s
from .shards import ReadTimes

#: units that are planned before they are due, however small they are
_UNITS_AHEAD = 256
#: threads at most, where reading waits for a network
MAX_THREADS = 256
#: blocks whose times say how many threads are worth having
_MEASURED = 64


Epoch = tuple[int, int]  #: its number, and the first batch


@dataclass(slots=True)
class Unit:
    """Samples that are gathered at once: a batch, or a run of its rows if its blocks would not fit together."""

    epoch: int
    step: int  #: number of the batch
    rows: slice  #: which rows of the batch
    blocks: Int64s  #: (n,) block of each sample
    items: Int64s  #: (n,) number of each sample inside its block
    real: NDArray[np.bool_]  #: (n,) false where a sample only fills up
    now: int  #: number of the unit's first sample in the epoch
    repeats: Int64s | None = (
        None  #: (n,) how often each sample came before in the epoch; None: no sample comes twice
    )
    pinned: dict[int, int] = field(default_factory=dict[int, int])  #: block -> slot that is held for the unit
    missing: int = 0  #: blocks that were not there when the unit was planned
    pending: int = 0  #: blocks that are not there yet
    error: BaseException | None = None


@dataclass
class StreamStats:
    """What a stream has done so far, and how long it took; seconds of all threads together."""

    batches: int = 0
    samples: int = 0
    blocks_read: int = 0
    bytes_read: int = 0  #: as they lie in the store
    read_s: float = 0.0  #: waiting for bytes
    decode_s: float = 0.0  #: comparing checksums and decoding
    gather_s: float = 0.0  #: copying samples into batches
    augment_s: float = 0.0
    wait_s: float = 0.0  #: the consumer waited for blocks
    threads: int = 0  #: the most that were wanted at a time
    slots: int = 0  #: decoded blocks that are held at most
    blocks: int = 0  #: blocks that hold samples


class Prefetcher:
    """Blocks ahead of their use.

    Parameters
    ----------
    slots
        Where blocks lie.
    threads
        That read and decode; None: as many as measured times make worth while.
    work
        Blocks that may be read at a time at the least, for which there is memory beside the slots.
    next_use
        Says for blocks, (n,), which are done for now after a unit, when they are used next: any rising number.
    stats
        Counted on.
    """

    def __init__(
        self,
        slots: Slots,
        threads: int | None,
        work: int,
        next_use: Callable[[Int64s, Unit], Int64s],
        stats: StreamStats,
    ) -> None:
        self.slots, self.stats = slots, stats
        blocks = slots.samples.block_samples
        self.stats.slots, self.stats.blocks = slots.count, int(np.count_nonzero(blocks))
        self.crew = Crew()
        self._given, self._work_least, self._next_use = threads, work, next_use
        self._processors = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        self._wanted = self._threads = self._processors
        self._timed = 0  #: blocks since `_wanted` was set
        self._changed = threading.Condition()
        self._slot_of = np.full(len(blocks), -1, np.int64)
        self._block_in = [-1] * slots.count
        self._pins = [0] * slots.count
        self._next = [0] * slots.count  #: next use of what lies idle in a slot
        self._idle: list[
            tuple[int, int, int]
        ] = []  #: heap of (- next use, slot, block); some are out of date
        self._untouched = list(range(slots.count - 1, -1, -1))  #: slots that have never been used
        self._free: list[int] = []
        self._ahead = 0  #: blocks that are read, or being read, for units that wait
        self._loading: dict[int, list[Unit]] = {}  #: block -> the units that wait for it
        self._evicts = slots.count < self.stats.blocks
        self._work: deque[NDArray[np.uint8]] = deque()
        self._times: deque[tuple[float, float]] = deque(
            maxlen=_MEASURED
        )  #: (waited, at work) of the last blocks
        self._queue: deque[tuple[Epoch, Unit]] = deque()
        self._plan: tuple[Epoch, Iterator[Unit]] | None = None
        self._postponed: Unit | None = None
        self._awaited: Unit | None = None  #: the one that the consumer waits for
        self._turn = 0  #: number of the iteration that the plan is for
        self._begun = False  #: whether it has taken units and is not at its end

    # -- the consumer's side -------------------------------------------------------------------------------------

    def units(
        self,
        key: Epoch,
        following: Epoch,
        plan: Callable[[Epoch], Iterator[Unit]],
    ) -> Generator[tuple[Unit, Int64s]]:
        """Iterate over units whose blocks are there, and stay until the next one is asked for.

        Parameters
        ----------
        key
            Of the epoch to iterate over.
        following
            Of the epoch that probably comes next; blocks are read for it near the end of this one.
        plan
            Makes the units of the epoch of a key.

        Yields
        ------
        tuple
            Unit, and the slot of each of its samples, int64 (n,).

        Raises
        ------
        StoreCorruptError
            A block of the unit cannot be read.
        ConfigError
            Another iteration has begun, or the stream was closed.
        """
        if self._begun or (self._queue[0][0] if self._queue else self._plan and self._plan[0]) != key:
            self.drop()
            self._plan = (key, plan(key))
        self._turn += 1
        self._begun = True
        turn, complete = self._turn, False
        try:
            while True:
                if turn != self._turn:
                    raise ConfigError(
                        "Another iteration over the same stream has begun, or it was closed; this one cannot go on. "
                        "Make a stream of its own for each loop that runs at the same time."
                    )
                self._plan_ahead(key, following, plan)
                if not self._queue or self._queue[0][0] != key:
                    complete = True
                    return
                unit = self._queue[0][1]
                self._await(unit, turn)
                if turn != self._turn:
                    continue
                yield unit, self._slot_of[unit.blocks]
                if turn == self._turn:
                    self._queue.popleft()
                    self._release(unit)
        finally:
            if turn == self._turn:
                self._begun = False
                if not complete:
                    self.drop()

    def drop(self) -> None:
        """Forget what is planned; blocks that are being read come to lie idle."""
        while self._queue:
            self._release(self._queue.pop()[1])
        self._plan = self._postponed = None

    def close(self, wait: bool = True) -> None:
        """Forget what is planned and end the threads; an iteration that is under way cannot go on."""
        with self._changed:
            self._turn += 1
            self._begun = False
            self._changed.notify_all()
        self.drop()
        self.crew.stop(wait)

    def _plan_ahead(self, key: Epoch, following: Epoch, plan: Callable[[Epoch], Iterator[Unit]]) -> None:
        while self._plan is not None and len(self._queue) < _UNITS_AHEAD:
            unit, self._postponed = self._postponed or next(self._plan[1], None), None
            if unit is None:
                if self._plan[0] != key:
                    return
                self._plan = (following, plan(following))
                continue
            if not self._admit(unit):
                self._postponed = unit
                # what an earlier iteration had begun to read may hold the slots that even the first unit needs
                if self._queue:
                    return
                with self._changed:
                    if self._loading:
                        self._changed.wait()
                continue
            self._queue.append((self._plan[0], unit))

    def _admit(self, unit: Unit) -> bool:
        """Pin the blocks of a unit and let those that are missing be read; False, and nothing, if there is no room."""
        needed = np.unique(unit.blocks)
        limit = self._limit()
        with self._changed:
            there = list(zip(needed.tolist(), self._slot_of[needed].tolist(), strict=True))
            missing = [block for block, slot in there if slot < 0]
            # what is read too early takes room from blocks that would have been used sooner
            if missing and self._queue and (len(self._loading) >= limit or self._ahead >= 2 * limit):
                return False
            for _, slot in there:
                if slot >= 0:
                    self._pins[slot] += 1
            taken: list[int] = []
            while len(taken) < len(missing) and (slot := self._take_slot()) is not None:
                taken.append(slot)
            if len(taken) < len(missing):
                self._free += taken
                for block, slot in there:
                    if slot >= 0:
                        self._unpin(block, slot)
                return False
            for block, slot in zip(missing, taken, strict=True):
                self._slot_of[block], self._block_in[slot], self._pins[slot] = slot, block, 1
                self._loading[block] = []
            unit.missing = len(missing)
            self._ahead += unit.missing
            unit.pinned = dict(there) | dict(zip(missing, taken, strict=True))
            for block in unit.pinned:
                if block in self._loading:
                    self._loading[block].append(unit)
                    unit.pending += 1
        for block, slot in zip(missing, taken, strict=True):
            self.crew.submit(partial(self._load, block, slot), self._threads)
        return True

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._untouched:
            return self._untouched.pop()
        while self._idle:
            farthest, slot, block = heapq.heappop(self._idle)
            if self._block_in[slot] == block and not self._pins[slot] and self._next[slot] == -farthest:
                if block in self._loading:
                    continue  # it comes back when it is read
                self._slot_of[block] = self._block_in[slot] = -1
                return slot
        return None

    def _unpin(self, block: int, slot: int) -> None:
        self._pins[slot] -= 1
        if not self._pins[slot] and self._evicts:
            heapq.heappush(self._idle, (-self._next[slot], slot, block))

    def _release(self, unit: Unit) -> None:
        blocks = np.array(list(unit.pinned), np.int64)
        uses = self._next_use(blocks, unit).tolist() if self._evicts and len(blocks) else [0] * len(blocks)
        with self._changed:
            pinned = unit.pinned
            for block, use in zip(blocks.tolist(), uses, strict=True):
                if (slot := pinned.get(block)) is None:
                    continue  # it could not be read
                self._next[slot] = use
                self._unpin(block, slot)
            unit.pinned = {}
            self._ahead -= unit.missing
            unit.missing = 0
            if len(self._idle) > 8 * self.slots.count + 64:
                self._idle = [
                    (use, slot, block)
                    for use, slot, block in set(self._idle)
                    if self._block_in[slot] == block and not self._pins[slot] and self._next[slot] == -use
                ]
                heapq.heapify(self._idle)

    def _await(self, unit: Unit, turn: int) -> None:
        if unit.pending:
            start = time.perf_counter()
            with self._changed:
                self._awaited = unit
                while unit.pending and unit.error is None and turn == self._turn:
                    self._changed.wait()
                self._awaited = None
            self.stats.wait_s += time.perf_counter() - start
        if unit.error is not None:
            raise unit.error

    # -- the threads' side ---------------------------------------------------------------------------------------

    def _load(self, block: int, slot: int) -> None:
        error: BaseException | None = None
        times = ReadTimes()
        start, started = time.perf_counter(), time.thread_time()
        try:
            work = self._work.pop()
        except IndexError:
            # mapped on its own: the allocator would keep what a thread gives back
            length = self.slots.size.work_bytes(self.slots.samples.patch)
            work = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        try:
            self.slots.decode(block, slot, work, times)
        except BaseException as caught:  # noqa: BLE001 - raised where the block is needed
            error = caught
        at_work = time.thread_time() - started
        waited = time.perf_counter() - start - at_work
        with self._changed:
            if len(self._work) < self._room():
                self._work.append(work)
            self._times.append((waited, at_work))
            self._timed += 1
            stats = self.stats
            stats.blocks_read += 1
            stats.bytes_read += times.bytes_read
            stats.read_s += times.read_s
            stats.decode_s += times.decode_s
            waiting = self._loading.pop(block)
            if error is not None:
                # a slot without a block, so that the next one who needs the block tries again
                self._slot_of[block] = self._block_in[slot] = -1
                self._pins[slot] = 0
                self._free.append(slot)
            elif not self._pins[slot] and self._evicts:
                heapq.heappush(self._idle, (-self._next[slot], slot, block))
            for unit in waiting:
                unit.pending -= 1
                if error is not None:
                    unit.error = error
                    unit.pinned.pop(block, None)
            due = self._awaited
            if due is None or due.error is not None or not due.pending:
                self._changed.notify_all()

    def _room(self) -> int:
        """Blocks that can be read at a time within the memory of what is not yet used of the slots."""
        size, patch = self.slots.size, self.slots.samples.patch
        untouched = len(self._untouched) * size.slot_bytes(patch)
        return self._work_least + untouched // size.load_bytes(patch)

    def _limit(self) -> int:
        """Set the number of threads, and return how many blocks may be on their way."""
        room = self._room()
        if self._given is None and self._timed >= _MEASURED // 4:
            with self._changed:
                self._timed, times = 0, list(self._times)
            # the quicker ones: the others waited for a processor, not for bytes
            waited, at_work = (sorted(part)[len(times) // 4] for part in zip(*times, strict=True))
            self._wanted = math.ceil(self._processors * (1 + max(waited, 0) / max(at_work, 1e-5)))
        self._threads = max(1, min(self._given or self._wanted, room, MAX_THREADS))
        self.stats.threads = max(self.stats.threads, self._threads)
        return min(room, self._threads + max(2, self._threads // 4))
