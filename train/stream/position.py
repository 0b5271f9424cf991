"""Where a stream stands, in memory shared with its DataLoader workers.

Worker processes are started with a copy of the stream and, when they are persistent, outlive an epoch. What they must
see changing therefore lies in a shared tensor: the epoch, and the place from which the next iteration goes on.
"""

from __future__ import annotations

import torch

#: DataLoader workers whose progress can be told apart
MAX_WORKERS = 1024
_EPOCH, _START, _LOADS, _TICKET, _BY_WORKERS, _LANES, _WINDOW, _USED = range(8)
_NO_TICKET = -1


class Position:
    """Epoch, start and order settings of a stream, the same in all its processes.

    A start set by `resume` holds for one iteration only. The main process of a DataLoader is not told when one begins,
    so each worker notes that it has used the start, and all note the loader's seed, which tells iterations apart also
    where one was given up before every worker had begun.
    """

    def __init__(self, lanes: int, window: int) -> None:
        self._shared = torch.zeros(_USED + MAX_WORKERS, dtype=torch.int64).share_memory_()
        self._set(_TICKET, _NO_TICKET)
        self.set_order(lanes, window)

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        # what comes from plain pickle or a deep copy is another stream, with workers of its own
        shared = state["_shared"]
        self._shared = shared if shared.is_shared() else shared.share_memory_()

    def _get(self, field: int) -> int:
        return int(self._shared[field].item())

    def _set(self, field: int, value: int) -> None:
        self._shared[field] = value

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._get(_EPOCH)

    @property
    def lanes(self) -> int:
        """L of the order."""
        return self._get(_LANES)

    @property
    def window(self) -> int:
        """V of the order."""
        return self._get(_WINDOW)

    @property
    def by_workers(self) -> bool:
        """Whether worker processes have read since the position was last set."""
        return bool(self._get(_BY_WORKERS))

    def set_order(self, lanes: int, window: int) -> None:
        """Change L and V, for iterations to come."""
        self._set(_LANES, lanes)
        self._set(_WINDOW, window)

    def resume(self, epoch: int, start: int) -> None:
        """Let the next iteration, and that one only, begin at batch `start` of `epoch`."""
        self._set(_EPOCH, epoch)
        self._set(_START, start)
        self._set(_LOADS, self._get(_LOADS) + 1)
        self._set(_TICKET, _NO_TICKET)
        self._set(_BY_WORKERS, 0)

    def begin(self) -> tuple[int, int]:
        """Begin an iteration in the main process: return its epoch and first batch."""
        start = self._get(_START) if self._get(_TICKET) == _NO_TICKET else 0
        self._set(_START, 0)
        self._set(_BY_WORKERS, 0)
        return self.epoch, start

    def begin_in_worker(self, worker: int, loader_seed: int) -> tuple[int, int]:
        """Begin an iteration in a worker process: return its epoch and the first batch of all workers together."""
        self._set(_BY_WORKERS, 1)
        loads, ticket, start = self._get(_LOADS), self._get(_TICKET), self._get(_START)
        if start == 0 or self._get(_USED + worker) == loads or ticket not in (_NO_TICKET, loader_seed):
            return self.epoch, 0
        self._set(_TICKET, loader_seed)
        self._set(_USED + worker, loads)
        return self.epoch, start
