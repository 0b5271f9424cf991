"""PatchStream: the samples of a patch store, in a seeded order, as batches for training.

A plain `IterableDataset` that builds whole batches: use it bare, or in `DataLoader(stream, batch_size=None)` with or
without workers. What it yields depends on (store, split, patch, seed, epoch, global batch) and not on ranks or
workers, so a run can stop after any batch and go on elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...pipeline.errors import CheckpointError, ConfigError, EmptySplitError
from ...pipeline.store import PatchStore
from .augment import dihedral_
from .blocks import BlockPool, Samples, SampleSet
from .order import SampleOrder, rank_samples, sample_keys, steps_of
from .position import MAX_WORKERS, Position

Batch = dict[str, Any]
SPLIT_NAMES = ("train", "validation", "test", "all")
_STATE_VERSION = 1
_ORDER_SAMPLES = (
    4096  # samples whose order is computed at once: numpy's overhead is spread, the arrays stay in cache
)

#: Decoded blocks that a stream may keep beyond what its order needs.
KEPT_BYTES = 256 << 20


class PatchStream(IterableDataset[Batch]):
    """Batches of a store's samples, every sample once per epoch.

    Parameters
    ----------
    store
        An open store, or the path of one.
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
    rank, world_size
        This process and the number of them; None: as torch.distributed says when iteration starts, or 0 of 1.
    lanes
        Blocks that a global batch mixes (L of `order.py`).
    window
        Blocks of a lane that are mixed with each other (V); None: 2, or 1 for stores of few blocks, so that the lanes
        stay on different blocks. Up to 2 x lanes x window decoded blocks are kept in memory.
    flips
        Turn and mirror every sample at random, seeded by (seed, epoch, sample).

    Notes
    -----
    A batch is a dict: `step` int, number in the epoch; `image` float32 (batch, band, y, x); `label` int64 and `mask`
    bool, (batch, y, x) for tiles and (batch,) for patches; `tile`, `row`, `col` int64 (batch,), scene coordinates of
    the core's first pixel or of the patch's centre. The mask is false where a pixel is unlabelled, invalid, in the
    halo, of another split, or where a sample only fills up the last batch. Tiles give out no pixel that lies farther
    than the halo from every pixel of their split, and no label of another split: both are 0.

    An iteration gives one epoch; call `set_epoch` before each, as with `DistributedSampler`.

    Raises
    ------
    ConfigError
        An argument is not allowed.
    EmptySplitError
        The split holds no samples.
    """

    def __init__(
        self,
        store: PatchStore | str | Path,
        *,
        split: str = "train",
        patch: int | None = None,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 8,
        window: int | None = None,
        flips: bool = False,
    ) -> None:
        super().__init__()
        self.store = store if isinstance(store, PatchStore) else PatchStore.open(store)
        if split not in SPLIT_NAMES:
            raise ConfigError(f"split={split!r} is not known; allowed are {', '.join(SPLIT_NAMES)}.")
        _check_patch(patch, self.store)
        for name, value, least in (("batch_size", batch_size, 1), ("lanes", lanes, 1), ("window", window, 1)):
            if name != "window" or value is not None:
                _check_integer(name, value, least)
        _check_integer("seed", seed, None)
        _check_ranks(rank, world_size)
        self.split, self.patch, self.batch_size, self.seed = split, patch, batch_size, seed
        self.shuffle, self.flips = shuffle, flips
        self._given_ranks = None if rank is None or world_size is None else (rank, world_size)
        self._pickled_ranks: tuple[int, int] | None = None
        self._set = SampleSet(self.store, split, patch)
        self.samples = int(self._set.block_samples.sum())
        if self.samples == 0:
            raise EmptySplitError(
                f"The split {split!r} of the store {self.store.path} holds no samples ({self._set.describe()}). Stream "
                "another split, or change `split` in the workflow and run it again."
            )
        if window is None:
            window = 2 if np.count_nonzero(self._set.block_samples) >= 4 * lanes else 1
        self._position = Position(lanes, window)
        self._done = 0  # batches of the current epoch yielded in this process
        self._pool: BlockPool | None = None

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
        return steps_of(self.samples, self.global_batch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the iterations to come, in persistent workers too.

        The epoch that `load_state_dict` has set stays where it stands; any other begins at its start.
        """
        _check_integer("epoch", epoch, 0)
        if epoch != self.epoch:
            self._position.resume(epoch, 0)
            self._done = 0

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where training stands, as JSON-serialisable values that are the same on every rank.

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
        if step is None:
            if self._position.by_workers:
                raise ConfigError(
                    "state_dict() was called without a step while DataLoader workers read ahead, so it cannot know "
                    "which batch was trained last. Give state_dict(step=batch['step'])."
                )
            done = self._done
        else:
            _check_integer("step", step, 0)
            if step >= len(self):
                raise ConfigError(f"step={step} is no batch of the epoch; there are 0 to {len(self) - 1}.")
            done = step + 1
        return {
            **self._identity(),
            **self._order_state(),
            "epoch": self.epoch,
            "samples": done * self.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken; the one after it gives a whole epoch.

        At the end of an epoch nothing is left of it, and the next iteration yields nothing. Ranks and batch size may
        differ from those of the state as long as their product does not.

        Raises
        ------
        CheckpointError
            The state belongs to another store, split, seed or global batch, or is damaged.
        """
        for name, own in self._identity().items():
            if name not in state:
                raise CheckpointError(f"The stream state of the checkpoint lacks {name!r}; it is damaged.")
            if state[name] != own or isinstance(state[name], bool) != isinstance(own, bool):
                raise CheckpointError(
                    f"The checkpoint was made with {name} {state[name]!r}, while this stream of {self.store.path} has "
                    f"{name} {own!r}. Resume with the same {name}, or start a new run."
                )
        lanes, window = _state_integer(state, "lanes", 1), _state_integer(state, "window", 1)
        epoch, samples = _state_integer(state, "epoch", 0), _state_integer(state, "samples", 0)
        step, rest = divmod(samples, self.global_batch)
        if rest or step > len(self):
            raise CheckpointError(
                f"The stream state of the checkpoint has {samples} samples, which is no whole number of batches of "
                f"{self.global_batch} within an epoch of {len(self)} batches; it is damaged."
            )
        self._position.set_order(lanes, window)
        self._position.resume(epoch, step)
        self._done = step

    def _identity(self) -> dict[str, Any]:
        """What a resumed stream must share with the one it continues."""
        return {
            "version": _STATE_VERSION,
            "store": self.store.fingerprint,
            "split": self.split,
            "patch": self.patch,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "flips": self.flips,
            "global_batch": self.global_batch,
        }

    def _order_state(self) -> dict[str, int]:
        return {"lanes": self._position.lanes, "window": self._position.window}

    def _ranks(self) -> tuple[int, int]:
        """Rank and world size: as given, as torch.distributed says, or as it said where this stream was sent off."""
        if self._given_ranks is not None:
            return self._given_ranks
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return self._pickled_ranks or (0, 1)

    def __getstate__(self) -> dict[str, Any]:
        # spawned workers see no torch.distributed, and neither need decoded blocks nor open arrays
        store = dataclasses.replace(self.store)
        return self.__dict__ | {
            "store": store,
            "_set": SampleSet(store, self.split, self.patch),
            "_pool": None,
            "_pickled_ranks": self._ranks(),
        }

    def __iter__(self) -> Iterator[Batch]:
        # the position is read now, not when the first batch is asked for: workers are asked late
        worker = get_worker_info()
        if worker is None:
            epoch, start = self._position.begin()
            return self._batches(epoch, start, 0, 1)
        if worker.num_workers > MAX_WORKERS:
            raise ConfigError(f"num_workers={worker.num_workers} is more than the {MAX_WORKERS} allowed.")
        epoch, start = self._position.begin_in_worker(worker.id, worker.seed - worker.id)
        return self._batches(epoch, start, worker.id, worker.num_workers)

    def _batches(self, epoch: int, start: int, worker: int, workers: int) -> Iterator[Batch]:
        self.store.check_present()
        rank, world_size = self._ranks()
        steps = len(self)
        pool = self._blocks(world_size)
        order = SampleOrder(
            self._set.block_samples, self.seed, self._position.lanes, self._position.window, self.shuffle
        ).epoch(epoch)
        # counted from `start`, so that a DataLoader, which asks its workers in turn, gets the batches in order
        own = np.arange(start + worker, steps, workers, dtype=np.int64)
        self._done = start
        per_group = max(1, _ORDER_SAMPLES // self.batch_size)
        for some in np.split(own, range(per_group, len(own), per_group)):
            number_sb, real_sb = rank_samples(some, self.batch_size, rank, world_size, self.samples)
            block, item = (part.reshape(number_sb.shape) for part in order.locate(number_sb.ravel()))
            for i, step in enumerate(some.tolist()):
                samples = pool.gather(block[i], item[i])
                samples.mask[~real_sb[i]] = False
                if self.flips:
                    self._flip(samples, epoch)
                self._done = step + 1
                yield _as_batch(step, samples)

    def _blocks(self, world_size: int) -> BlockPool:
        """The pool, with as many slots as the order needs on this rank, or as fit into `KEPT_BYTES`; at most all blocks."""
        lanes = self._position.lanes // math.gcd(self._position.lanes, world_size)
        slots = 2 * lanes * self._position.window if self.shuffle else 2
        side = self.store.tile_size + 2 * self.store.halo
        block_bytes = self.store.chunk_tiles * self.store.bands * side**2 * 4
        # a store that fits is decoded once, and every later epoch reads memory
        slots = min(max(slots, KEPT_BYTES // block_bytes), int(np.count_nonzero(self._set.block_samples)))
        if self._pool is None or self._pool.slots != slots:
            self._pool = BlockPool(self._set, slots)
        return self._pool

    def _flip(self, samples: Samples, epoch: int) -> None:
        code = (sample_keys(self.seed, epoch, samples.ids) >> np.uint64(61)).astype(np.uint8)
        dihedral_(samples.image_nbhw, code)
        if self.patch is None:
            dihedral_(samples.label, code)
            dihedral_(samples.mask, code)


def _as_batch(step: int, samples: Samples) -> Batch:
    return {
        "step": step,
        "image": torch.from_numpy(samples.image_nbhw),
        "label": torch.from_numpy(samples.label),
        "mask": torch.from_numpy(samples.mask),
        "tile": torch.from_numpy(samples.tile),
        "row": torch.from_numpy(samples.row),
        "col": torch.from_numpy(samples.col),
    }


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(name: str, value: object, least: int | None) -> None:
    if not _is_integer(value) or (least is not None and cast("int", value) < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r} is not allowed; give an integer{bound}.")


def _check_patch(patch: int | None, store: PatchStore) -> None:
    if patch is None:
        return
    if not _is_integer(patch) or patch < 1 or patch % 2 == 0:
        raise ConfigError(
            f"patch={patch!r} is not allowed; give an odd integer, so that a patch has a centre pixel."
        )
    if patch > 2 * store.halo + 1:
        raise ConfigError(
            f"patch={patch} does not fit the store {store.path}: its halo of {store.halo} pixels allows patches up to "
            f"{2 * store.halo + 1}. Give a smaller patch, or set tiles.halo to {patch // 2} or more in the workflow and "
            "run it again."
        )


def _check_ranks(rank: int | None, world_size: int | None) -> None:
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None:
        raise ConfigError(f"rank={rank!r} and world_size={world_size!r} go together; give both or neither.")
    _check_integer("world_size", world_size, 1)
    _check_integer("rank", rank, 0)
    if rank >= world_size:
        raise ConfigError(
            f"rank={rank} is not allowed with world_size={world_size}; ranks are 0 to {world_size - 1}."
        )


def _state_integer(state: Mapping[str, Any], name: str, least: int) -> int:
    value = state.get(name)
    if not _is_integer(value) or cast("int", value) < least:
        raise CheckpointError(
            f"The stream state of the checkpoint has {name} {value!r} where an integer of at least {least} belongs; it "
            "is damaged."
        )
    return cast("int", value)
