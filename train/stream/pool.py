"""Memory that is used again: touching fresh memory costs several times what copying into warm memory does."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGN = 64
#: Batches whose memory is kept for the next ones: one that is made, one in use, one that is just let go
KEPT_BATCHES = 3

Fields = dict[str, tuple[tuple[int, ...], Any]]  #: name -> (shape, dtype)


def fields_bytes(fields: Fields) -> int:
    """Return the bytes of memory that arrays of these shapes and dtypes share."""
    return sum(_length(*field) for field in fields.values())


def _length(shape: tuple[int, ...], dtype: Any) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN


class BatchMemory:
    """Lends memory for the arrays of a batch, and takes it back when nothing refers to any of them any more.

    Parameters
    ----------
    pinned
        Page-locked memory, which a GPU copies from while the program goes on. It comes from torch's own pool, which
        also knows of copies that are still under way.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._free: deque[NDArray[np.uint8]] = deque()

    def take(self, fields: Fields) -> dict[str, NDArray[Any]]:
        """Return uninitialised arrays that share one piece of memory.

        Parameters
        ----------
        fields
            Shape and dtype by name.
        """
        at, places = 0, dict[str, int]()
        for name, field in fields.items():
            places[name] = at
            at += _length(*field)
        if self._pinned:
            memory = torch.empty(at, dtype=torch.uint8, pin_memory=True).numpy()
        else:
            memory = np.asarray(_Loan(self._warm(at), self._free))
        return {
            name: np.ndarray(shape, dtype, memory, places[name]) for name, (shape, dtype) in fields.items()
        }

    def _warm(self, length: int) -> NDArray[np.uint8]:
        while True:
            try:
                memory = self._free.pop()
            except IndexError:
                return np.empty(length, np.uint8)
            if len(memory) == length:
                return memory


class _Loan:
    """Owner, in numpy's eyes, of lent memory: it goes when the last array or tensor over it does.

    The deque is shared with the lender. Its methods are atomic, so that memory may come back in any thread, also in
    the middle of another loan.
    """

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        if len(self._free) < KEPT_BATCHES:
            self._free.append(self._memory)
