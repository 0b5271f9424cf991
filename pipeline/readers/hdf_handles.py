"""The HDF5 datasets that stay open between reads, and the one lock under which they are used.

The library shares what it knows of a file among all handles to it. A file that was rewritten in place would therefore
be read with the old one's structure for as long as any handle is left: handles of an earlier state are closed first.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import SceneNotFoundError

FileState = tuple[int, int, int, int]
"""Device, number, size and time of change of a file."""


def file_state(path: str) -> FileState:
    """Return what tells a file, and its state, from others.

    Raises
    ------
    SceneNotFoundError
        If it is not there.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        msg = f"{path} cannot be found any more ({error.strerror}); it has gone since the scene was opened"
        raise SceneNotFoundError(msg) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Handle:
    """An open dataset."""

    file: Any  #: h5py.File
    dataset: Any  #: h5py.Dataset
    plan: Any  #: how it is kept decoded
    cache_bytes: int


_Key = tuple[FileState, str, int]


class Handles:
    """Open datasets, the one used last at the end, none across a fork.

    `lock` must be held from asking for a dataset until it has been read. Never more than `limit` are kept, and unless
    they are the two used last (which may belong to one read), none beyond `limit_bytes` of cache.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.clear()

    def clear(self) -> None:
        """Start afresh, as a forked child must."""
        self.lock = threading.RLock()
        self.open: OrderedDict[_Key, Handle] = OrderedDict()

    def get(self, path: str, name: str, which: int, make: Callable[[], Handle]) -> Handle:
        """Return the handle of a dataset; `which` tells apart several of the same dataset."""
        state = file_state(path)
        key = (state, name, which)
        if key not in self.open:
            self._close_earlier(state)
            self.open[key] = make()
        self.open.move_to_end(key)
        while len(self.open) > self.limit or (len(self.open) > 2 and self._held() > self.limit_bytes):
            self.open.popitem(last=False)[1].file.close()
        return self.open[key]

    def close_earlier(self, path: str) -> None:
        """Close the handles of earlier states of a file, before it is opened."""
        if os.path.exists(path):
            with self.lock:
                self._close_earlier(file_state(path))

    def _close_earlier(self, state: FileState) -> None:
        for key in [key for key in self.open if key[0][:2] == state[:2] and key[0] != state]:
            self.open.pop(key).file.close()

    def _held(self) -> int:
        return sum(handle.cache_bytes for handle in self.open.values())


CACHE_BYTES = 320 * 2**20
"""Most decoded chunks that are kept. A tile of NEON (1000 x 1000 x 426 int16, 336 rows per chunk) needs 273 MiB."""

HANDLES = Handles(limit=32, limit_bytes=CACHE_BYTES)
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HANDLES.clear)
