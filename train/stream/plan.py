"""From the order of samples to units: what is gathered when, and when a block is used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .order import EpochOrder, SampleOrder, rank_samples, steps_of
from .prefetch import Unit
from .samples import Int64s
from .uses import next_use
from .weights import EpochRepeats, Repeats

#: samples whose order is computed at once: numpy's overhead is spread, the arrays stay in cache
_ORDER_SAMPLES = 4096
#: orders of epochs that are kept: units of one epoch are still there when those of the next are planned
_ORDERS = 3


@dataclass(frozen=True)
class Planner:
    """Units of one rank, or of one worker process of it."""

    order: SampleOrder
    batch_size: int  #: samples per rank and batch
    rank: int
    world_size: int
    worker: int
    workers: int
    most_blocks: int  #: of a unit
    last: str = "pad"  #: see `order.LAST`
    repeats: Repeats | None = None  #: how often samples are drawn; None: once
    _orders: dict[int, EpochOrder] = field(default_factory=dict[int, EpochOrder])
    _draws: dict[int, EpochRepeats] = field(default_factory=dict[int, EpochRepeats])

    @property
    def steps(self) -> int:
        """Batches of an epoch, of all workers together."""
        return steps_of(self.order.samples, self.batch_size * self.world_size, self.last)

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        if epoch not in self._orders:
            if len(self._orders) >= _ORDERS:
                oldest = next(iter(self._orders))
                del self._orders[oldest]
                self._draws.pop(oldest, None)
            if self.repeats is None:
                self._orders[epoch] = self.order.epoch(epoch)
            else:
                self._draws[epoch] = self.repeats.epoch(epoch)
                self._orders[epoch] = self.order.epoch(epoch, self._draws[epoch].block_samples)
        return self._orders[epoch]

    def locate(self, epoch: int, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s | None]:
        """Return the block of each sample of an epoch, its number inside the block, and its repeat, (n,) each.

        The repeat says how often the sample came before in the epoch; None where no sample comes twice.
        """
        block, item = self.epoch(epoch).locate(numbers)
        if self.repeats is None:
            return block, item, None
        return block, *self._draws[epoch].samples_of(block, item)

    def units(self, key: tuple[int, int]) -> Iterator[Unit]:
        """Iterate over the units of an epoch.

        Parameters
        ----------
        key
            Epoch and first batch.
        """
        epoch, start = key
        # counted from `start`, so that a DataLoader, which asks its workers in turn, gets the batches in order
        own = np.arange(start + self.worker, self.steps, self.workers, dtype=np.int64)
        per_group = max(1, _ORDER_SAMPLES // self.batch_size)
        for some in np.split(own, range(per_group, len(own), per_group)):
            number_sb, real_sb = rank_samples(
                some, self.batch_size, self.rank, self.world_size, self.order.samples
            )
            block_sb, item_sb, repeat_sb = (
                None if part is None else part.reshape(number_sb.shape)
                for part in self.locate(epoch, number_sb.ravel())
            )
            assert block_sb is not None
            assert item_sb is not None
            for i, step in enumerate(some.tolist()):
                for rows in self._parts(block_sb[i]):
                    yield Unit(
                        epoch,
                        step,
                        rows,
                        block_sb[i, rows],
                        item_sb[i, rows],
                        real_sb[i, rows],
                        int(number_sb[i, rows.start]),
                        repeat_sb if repeat_sb is None else repeat_sb[i, rows],
                    )

    def _parts(self, blocks: Int64s) -> Iterator[slice]:
        """Cut a batch into runs of rows of at most `most_blocks` blocks."""
        if len(blocks) <= self.most_blocks or len(np.unique(blocks)) <= self.most_blocks:
            yield slice(0, len(blocks))
            return
        start, seen = 0, set[int]()
        for row, block in enumerate(blocks.tolist()):
            if block not in seen and len(seen) == self.most_blocks:
                yield slice(start, row)
                start, seen = row, set[int]()
            seen.add(block)
        yield slice(start, len(blocks))

    def next_use(self, blocks: Int64s, unit: Unit) -> Int64s:
        """Return when blocks are used next after a unit, in samples; see `uses.next_use`."""
        return next_use(
            blocks, unit.now, self.epoch(unit.epoch), self.epoch(unit.epoch + 1), self.rank, self.world_size
        )
