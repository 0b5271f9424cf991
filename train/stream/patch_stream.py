"""PatchStream: the samples of a patch store, in a seeded order, as batches for training.

A plain `IterableDataset` that builds whole batches: use it bare, or in `DataLoader(stream, batch_size=None)` with or
without workers. What it yields depends on (store, split, patch, seed, epoch, global batch) and not on ranks or
workers, so a run can stop after any batch and go on elsewhere.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from ...pipeline.errors import ConfigError, EmptySplitError
from ...pipeline.store import PatchStore
from .arguments import check_integer, check_patch, check_ranks
from .augment import Augmentation, mixup_roll
from .augment_config import AugmentConfig
from .blocks import SlotSize
from .disk_cache import DEFAULT_CACHE_BYTES, DiskCache
from .engine import Engine, MemoryPlan, blocks_at_a_time
from .mixed import check_mixable, make_repeats
from .order import LAST, SampleOrder, sample_keys, steps_of
from .plan import Planner
from .pool import fields_bytes
from .position import MAX_WORKERS, Position
from .prefetch import StreamStats, Unit
from .samples import Samples, SampleSet
from .shards import CHECKSUMS, Checksum
from .sources import open_source
from .state import read_state, write_state

Batch = dict[str, Any]
SPLIT_NAMES = ("train", "validation", "test", "all")

#: Memory that a stream may take unless it is told otherwise.
BUDGET_BYTES = 1 << 30


class PatchStream(IterableDataset[Batch]):
    """Batches of a store's samples, every sample once per epoch.

    Parameters
    ----------
    store
        An open store, or the path of one; or a sequence of them, whose samples are mixed.
    split
        Whose pixels count: `train`, `validation`, `test`, or `all` for every tile and pixel.
    patch
        None: samples are whole tiles with their halo, for dense tasks. Odd: samples are `patch` x `patch` windows
        around single pixels, at most 2 halo + 1 wide.
    batch_size
        Samples per rank and batch.
    seed
        Of the order and the flips.
    shuffle
        False: samples come as they lie in the store.
    last
        What becomes of samples that fill no batch: `pad` fills the last batch up with masked ones, `drop` leaves them
        out of the epoch.
    balance
        `classes`: every class that holds samples is drawn equally often; class name -> share: in these shares; None:
        every sample once. An epoch has as many draws as there are samples, and a sample is drawn a whole number of
        times, the floor or the ceiling of its class's mean. The class of a tile is the rarest one that it holds. See
        `weights.py`.
    store_weights
        Of several stores, the share of each in an epoch's draws; None: by its samples.
    rank, world_size
        This process and the number of them; None: as torch.distributed says when iteration starts, or 0 of 1.
    lanes
        Blocks that a global batch mixes (L of `order.py`). Each block is read on R / gcd(R, L) of R ranks, so that
        runs on many of them want a multiple of R; a resumed run keeps the number it began with.
    window
        Blocks of a lane that are mixed with each other (V); None: 2, or 1 for stores of few blocks, so that the lanes
        stay on different blocks.
    flips
        Turn and mirror every sample at random, seeded by (seed, epoch, sample): short for
        `augment=AugmentConfig(flips=True)`.
    augment
        What else is done to samples, seeded alike.
    keys
        Batches also have `key` int64 (batch,), by which a `DeviceFeed` augments on the device.
    budget_bytes
        Memory for everything that the stream holds: decoded blocks, those on their way, and batches that nothing
        refers to any more. DataLoader workers share it. A store that fits is decoded once; of a larger one, as much
        as fits stays decoded from epoch to epoch.
    threads
        That read and decode; None: as many as measured times make worth while.
    checksum
        When the checksum of a chunk is compared: `first`, at the first time that it is read, `always` or `never`.
    pin_memory
        Whether batches lie in page-locked memory; None: where there is CUDA.
    cache, cache_bytes
        A folder that keeps what was fetched of stores in a bucket, and its limit.

    Notes
    -----
    A batch is a dict: `step` int, number in the epoch; `image` float32 (batch, band, y, x); `label` int64 and `mask`
    bool, (batch, y, x) for tiles and (batch,) for patches; `tile`, `row`, `col` int64 (batch,), scene coordinates of
    the core's first pixel or of the patch's centre. The mask is false where a pixel is unlabelled, invalid, in the
    halo, of another split, or where a sample only fills up the last batch. Tiles give out no pixel that lies farther
    than the halo from every pixel of their split, and no label of another split: both are 0.

    Batches of a store with targets also have `target` float32, (batch, target, y, x) or (batch, target), NaN where not
    known; those of several stores have `store` int64 (batch,), and `tile` counts in that store.

    The memory of a batch is used again when no tensor of it is referred to any more, views and NumPy arrays included.

    An iteration gives one epoch; call `set_epoch` before each, as with `DistributedSampler`. Threads read ahead of it,
    into the next epoch too; they end when nothing is left to do, and `close` ends them at once.

    Raises
    ------
    ConfigError
        An argument is not allowed.
    EmptySplitError
        The split holds no samples.
    """

    def __init__(
        self,
        store: PatchStore | str | Path | Sequence[PatchStore | str | Path],
        *,
        split: str = "train",
        patch: int | None = None,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "pad",
        balance: str | Mapping[str, float] | None = None,
        store_weights: Sequence[float] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 8,
        window: int | None = None,
        flips: bool = False,
        augment: AugmentConfig | None = None,
        keys: bool = False,
        budget_bytes: int = BUDGET_BYTES,
        threads: int | None = None,
        checksum: Checksum = "first",
        pin_memory: bool | None = None,
        cache: str | Path | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        super().__init__()
        several = [store] if isinstance(store, PatchStore | str | Path) else list(store)
        self.stores = [one if isinstance(one, PatchStore) else PatchStore.open(one) for one in several]
        if not self.stores:
            raise ConfigError("PatchStream was given no store; give one, or several of the same transforms.")
        check_mixable(self.stores, patch)
        self.store = self.stores[0]
        if split not in SPLIT_NAMES:
            raise ConfigError(f"split={split!r} is not known; allowed are {', '.join(SPLIT_NAMES)}.")
        if last not in LAST:
            raise ConfigError(f"last={last!r} is not known; allowed are {', '.join(LAST)}.")
        for one in self.stores:
            check_patch(patch, one)
        for name, value, least in (("batch_size", batch_size, 1), ("lanes", lanes, 1), ("window", window, 1)):
            if name != "window" or value is not None:
                check_integer(name, value, least)
        check_integer("budget_bytes", budget_bytes, 1)
        if threads is not None:
            check_integer("threads", threads, 1)
        if checksum not in CHECKSUMS:
            raise ConfigError(f"checksum={checksum!r} is not known; allowed are {', '.join(CHECKSUMS)}.")
        check_integer("seed", seed, None)
        check_ranks(rank, world_size)
        self.split, self.patch, self.batch_size, self.seed = split, patch, batch_size, seed
        self.shuffle, self.flips, self.last = shuffle, flips, last
        self.balance, self.store_weights = balance, store_weights
        self.budget_bytes, self.threads = budget_bytes, threads
        self.checksum: Checksum = checksum
        self._keys = keys
        self._pinned = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._cache = None if cache is None else DiskCache(cache, cache_bytes)
        config = augment or AugmentConfig()
        config = config.model_copy(update={"flips": True}) if flips else config
        self._augment = Augmentation.of(config, self.store) if config.active else None
        self._given_ranks = None if rank is None or world_size is None else (rank, world_size)
        self._pickled_ranks: tuple[int, int] | None = None
        self._set = self._samples()
        self.samples = int(self._set.block_samples.sum())
        if self.samples == 0:
            raise EmptySplitError(
                f"The split {split!r} of the store {self.store.path} holds no samples ({self._set.sets[0].describe()}). Stream "
                "another split, or change `split` in the workflow and run it again."
            )
        self._repeats = make_repeats(self._set, balance, store_weights, seed)
        if self._repeats is not None:
            self.samples = self._repeats.samples
        if window is None:
            window = 2 if np.count_nonzero(self._set.block_samples) >= 4 * lanes else 1
        self._position = Position(lanes, window)
        self._next = 0  # the batch that this process yields next
        self._worker_epoch = 0  # of the iteration, in a worker process
        self._worker_start: tuple[int, int] | None = None  # that a worker process was given for itself alone
        self._engine: Engine | None = None
        self._stats = StreamStats()
        self._engine_of: tuple[int, ...] = ()
        self._planner: Planner | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives."""
        return self._position.epoch

    @property
    def global_batch(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batch_size * self._ranks()[1]

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        return steps_of(self.samples, self.global_batch, self.last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the iterations to come, in persistent workers too.

        The epoch that `load_state_dict` has set stays where it stands; any other begins at its start.
        """
        check_integer("epoch", epoch, 0)
        if epoch != self.epoch:
            self._position.resume(epoch, 0)
            self._next = 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left of the epoch: all was yielded in this process, or a state of its end was loaded."""
        return self._next >= len(self) > 0

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where training stands, as JSON-serialisable values that are the same on every rank.

        Inside a DataLoader worker, where torchdata's StatefulDataLoader calls it, it is where that worker stands.

        Parameters
        ----------
        step
            `step` of the last batch trained in the current epoch; None: the last batch that was yielded, which only
            this process knows, so that it must be given where DataLoader workers read ahead.

        Raises
        ------
        ConfigError
            `step` is needed, or not a batch of the epoch.
        """
        worker = _own_worker()
        if step is None:
            if worker is None and self._position.by_workers:
                raise ConfigError(
                    "state_dict() was called without a step while DataLoader workers read ahead, so it cannot know "
                    "which batch was trained last. Give state_dict(step=batch['step'])."
                )
            following = self._next
        else:
            check_integer("step", step, 0)
            if step >= len(self):
                raise ConfigError(f"step={step} is no batch of the epoch; there are 0 to {len(self) - 1}.")
            following = step + (1 if worker is None else worker[1])
        order = {"lanes": self._position.lanes, "window": self._position.window}
        epoch = self.epoch if worker is None else self._worker_epoch
        return write_state(self._identity(), order, epoch, following, worker)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken; the one after it gives a whole epoch.

        At the end of an epoch nothing is left of it, and the next iteration yields nothing, unless a later epoch was
        already set, which then stays. Ranks and batch size may differ from those of the state as long as their product
        does not.

        Raises
        ------
        CheckpointError
            The state belongs to another store, split, seed or global batch, or is damaged.
        """
        worker = _own_worker()
        found = read_state(state, self._identity(), len(self), self._ranks()[1], worker)
        self._position.set_order(found.lanes, found.window)
        if worker is not None:
            # of this worker alone: what all of them share stays as the main process has set it
            self._worker_start = (found.epoch, found.step - worker[0])
            return
        if found.step == len(self) and self.epoch > found.epoch:
            return
        self._position.resume(found.epoch, found.step)
        self._next = found.step

    def _identity(self) -> dict[str, Any]:
        """What a resumed stream must share with the one it continues."""
        balance = (
            self.balance if self.balance is None or isinstance(self.balance, str) else dict(self.balance)
        )
        return {
            "stores": [store.fingerprint for store in self.stores],
            "store_weights": None if self.store_weights is None else [float(w) for w in self.store_weights],
            "split": self.split,
            "patch": self.patch,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "balance": balance,
            "flips": self.flips,
            "augment": None if self._augment is None else self._augment.config.model_dump(mode="json"),
            "last": self.last,
            "global_batch": self.global_batch,
        }

    def _ranks(self) -> tuple[int, int]:
        """Rank and world size: as given, as torch.distributed says, or as it said where this stream was sent off."""
        if self._given_ranks is not None:
            return self._given_ranks
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return self._pickled_ranks or (0, 1)

    def _samples(self, stores: Sequence[PatchStore] | None = None) -> Samples:
        sets = tuple(SampleSet(store, self.split, self.patch) for store in stores or self.stores)
        return Samples(sets, by_class=self.balance is not None)

    def __getstate__(self) -> dict[str, Any]:
        # spawned workers see no torch.distributed, and neither need decoded blocks nor open arrays
        stores = [dataclasses.replace(store) for store in self.stores]
        return self.__dict__ | {
            "store": stores[0],
            "stores": stores,
            "_set": self._samples(stores),
            "_engine": None,
            "_planner": None,
            "_stats": StreamStats(),
            "_pickled_ranks": self._ranks(),
        }

    def __iter__(self) -> Iterator[Batch]:
        if len(self) == 0:
            raise EmptySplitError(
                f"The split {self.split!r} gives {self.samples} samples, fewer than one global batch of "
                f"{self.global_batch}, so that last='drop' leaves nothing. Give a smaller batch_size, or last='pad'."
            )
        # the position is read now, not when the first batch is asked for: workers are asked late
        worker = get_worker_info()
        if worker is None:
            epoch, self._next = self._position.begin()
            return self._batches(epoch, self._next, 0, 1)
        if worker.num_workers > MAX_WORKERS:
            raise ConfigError(f"num_workers={worker.num_workers} is more than the {MAX_WORKERS} allowed.")
        shared = self._position.begin_in_worker(worker.id, worker.seed - worker.id)
        (self._worker_epoch, start), self._worker_start = self._worker_start or shared, None
        self._next = start + worker.id
        return self._batches(self._worker_epoch, start, worker.id, worker.num_workers)

    def _batches(self, epoch: int, start: int, worker: int, workers: int) -> Iterator[Batch]:
        engine, planner = self._running(worker, workers)
        stats = engine.prefetcher.stats
        roll = 0
        if self._augment is not None and self._augment.config.mixup_alpha:
            roll = mixup_roll(self.batch_size, planner.world_size, planner.order.lanes)
        fields = engine.slots.fields(self.batch_size)
        arrays = engine.batches.take(fields)
        # closed with this one, also where a traceback would keep it
        with closing(engine.prefetcher.units((epoch, start), (epoch + 1, 0), planner.units)) as units:
            for unit, slot in units:
                self._gather(engine, unit, slot, arrays)
                if unit.rows.stop < self.batch_size:
                    continue
                batch = {"step": unit.step, **self._finish(arrays, epoch, roll, stats)}
                self._next = unit.step + workers
                stats.batches += 1
                stats.samples += self.batch_size
                arrays: dict[str, NDArray[Any]] = {}
                yield batch
                del batch  # or its memory would not come back for the next one
                arrays = engine.batches.take(fields)

    @staticmethod
    def _gather(engine: Engine, unit: Unit, slot: NDArray[np.int64], arrays: dict[str, NDArray[Any]]) -> None:
        begun = time.perf_counter()
        own = {name: array[unit.rows] for name, array in arrays.items()}
        engine.slots.gather(unit.blocks, unit.items, slot, own)
        own["mask"][~unit.real] = False
        if unit.repeats is not None:
            # every draw of a sample is augmented in its own way
            own["ids"] += unit.repeats * engine.slots.samples.first_id[-1]
        engine.prefetcher.stats.gather_s += time.perf_counter() - begun

    def _finish(
        self, arrays: dict[str, NDArray[Any]], epoch: int, roll: int, stats: StreamStats
    ) -> dict[str, torch.Tensor]:
        """Augment a gathered batch, and make tensors of it."""
        ids = arrays.pop("ids")
        if self.patch is not None:
            # patches lie with the band last in memory
            arrays["image"] = arrays["image"].transpose(0, 3, 1, 2)
        if self._keys:
            arrays["key"] = sample_keys(self.seed, epoch, ids).view(np.int64)
        if self._augment is not None:
            begun = time.perf_counter()
            self._augment(arrays, sample_keys(self.seed, epoch, ids), roll)
            stats.augment_s += time.perf_counter() - begun
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _running(self, worker: int, workers: int) -> tuple[Engine, Planner]:
        """Return what reads for this process, new if the order's settings are no longer those that it was made for."""
        rank, world_size = self._ranks()
        lanes, window = self._position.lanes, self._position.window
        made_for = (os.getpid(), lanes, window, rank, world_size, worker, workers)
        if self._engine is None or self._planner is None or self._engine_of != made_for:
            self.close()
            of_blocks = self._set.block_samples
            if self._repeats is not None:
                of_blocks = self._repeats.epoch(0).block_samples  # other ones in every epoch, of equal sum
            order = SampleOrder(of_blocks, self.seed, lanes, window, self.shuffle)
            size = SlotSize.of(self._set)
            plan = MemoryPlan.of(
                self._set,
                fields_bytes(size.fields(self._set, self.batch_size)),
                self.budget_bytes // workers,
                self.threads,
                blocks_at_a_time(lanes, window, world_size, self.shuffle),
            )
            self._planner = Planner(
                order,
                self.batch_size,
                rank,
                world_size,
                worker,
                workers,
                max(1, plan.slots // 2),
                self.last,
                self._repeats,
            )
            self._engine = Engine(
                self._set,
                [open_source(store, self._cache) for store in self.stores],
                plan,
                self.threads,
                self.checksum,
                self._pinned,
                self._planner.next_use,
                self._stats,
            )
            self._engine_of = made_for
        return self._engine, self._planner

    def stats(self) -> StreamStats:
        """Return what has been done in this process so far, and how long it took; nothing before the first batch."""
        return self._stats

    def close(self) -> None:
        """End the threads, close the files and give the memory back; the next iteration begins afresh."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _own_worker() -> tuple[int, int] | None:
    """Number of the DataLoader worker that this is, and of all of them; None outside of one."""
    worker = get_worker_info()
    return None if worker is None else (worker.id, worker.num_workers)
