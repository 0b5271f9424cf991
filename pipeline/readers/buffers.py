"""Reused memory for blocks: the first touch of fresh memory costs several times what reading a cached file does.

A block lent by `lend` is an ordinary array. When the last array that looks into it is gone, its memory goes back to
the pool and the next block of about that size gets it. The pool keeps few buffers, so that what it holds idle stays
small beside the blocks in use.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

POOLED_BYTES = (2**20, 64 * 2**20)
"""Smallest and largest block worth keeping."""

IDLE_BYTES = 64 * 2**20
"""Most memory that the pool keeps idle in a process."""


class _Lease:
    """Owns a buffer for as long as an array refers to it (NumPy keeps it as the base of every view)."""

    __slots__ = ("__array_interface__", "_buffer", "_pool")

    def __init__(self, pool: _Pool, buffer: NDArray[np.uint8]) -> None:
        self._pool = pool
        self._buffer = buffer
        self.__array_interface__ = buffer.__array_interface__

    def __del__(self) -> None:
        self._pool.give(self._buffer)


class _Pool:
    """Idle buffers, the one used last first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer of at least `size` bytes, a new one if no idle one fits within a quarter."""
        with self._lock:
            for i in range(len(self._idle) - 1, -1, -1):
                if size <= self._idle[i].size <= size + size // 4:
                    return self._idle.pop(i)
        return np.empty(size, np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Take a buffer back, letting go of the oldest ones beyond the limit.

        It runs whenever the garbage collector likes, even while this thread holds the lock; then the buffer is let go.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._idle.append(buffer)
                while sum(b.size for b in self._idle) > IDLE_BYTES:
                    self._idle.pop(0)
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Let go of all idle buffers."""
        self._lock = threading.Lock()
        self._idle = []


_POOL = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.clear)


def lend(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised C-contiguous array, from reused memory where it is large enough to matter."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if not POOLED_BYTES[0] <= size <= POOLED_BYTES[1]:
        return np.empty(shape, kind)
    whole = np.asarray(_Lease(_POOL, _POOL.take(size)))
    return whole[:size].view(kind).reshape(shape)
