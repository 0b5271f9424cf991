"""Where the bytes of a store's files come from.

Everything above asks for ranges of named files and gives the memory they are to lie in. A source is used by several
threads at once and does its waiting with the interpreter lock released.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from ...pipeline.errors import StoreCorruptError

#: files of a store that are kept open; the least recently used one is closed for another
OPEN_FILES = 64


class ByteSource(Protocol):
    """Ranges of the files of one store, for several threads at once."""

    def size(self, name: str) -> int:
        """Return the bytes of the file `name`, a path inside the store with ``/``.

        Raises
        ------
        StoreCorruptError
            There is no such file; it is named.
        """
        ...

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        """Read ranges of the file `name`.

        Parameters
        ----------
        name
            Path inside the store, with ``/``.
        ranges
            (offset, length) in bytes, in any order.
        out
            A writable buffer of bytes per range, of its length.

        Raises
        ------
        StoreCorruptError
            The file is missing, or ends before a range does; it is named.
        """
        ...

    def close(self) -> None:
        """Let go of what is open; a later read opens it again."""
        ...


class LocalSource:
    """The files of a store in a local folder.

    Parameters
    ----------
    folder
        Of the store.

    Notes
    -----
    Reads are positional (`os.preadv`), so that threads, and processes after a fork, share descriptors.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._open: OrderedDict[str, _File] = OrderedDict()

    def size(self, name: str) -> int:
        """Return the bytes of a file; see `ByteSource`."""
        try:
            return (self._folder / name).stat().st_size
        except OSError as error:
            raise missing_file(self._folder, name) from error

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        """Read ranges of a file; see `ByteSource`."""
        file = self._file(name)
        for (offset, length), buffer in zip(ranges, out, strict=True):
            done = 0
            while done < length:
                count = os.preadv(file.descriptor, [buffer[done:length]], offset + done)
                if count == 0:
                    raise truncated_file(self._folder, name, offset + length, offset + done)
                done += count

    def close(self) -> None:
        """Close all files; see `ByteSource`."""
        with self._lock:
            self._open.clear()

    def _file(self, name: str) -> _File:
        with self._lock:
            file = self._open.get(name)
            if file is None:
                try:
                    file = _File(os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    raise missing_file(self._folder, name) from error
                self._open[name] = file
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(name)
            return file

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_folder"])


class _File:
    """An open descriptor, closed once no thread reads from it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def missing_file(store: Path, name: str) -> StoreCorruptError:
    """Return the error for a file that a store should have and has not."""
    return StoreCorruptError(
        f"The file {name} of the store {store} is missing. Delete the store and run its workflow again; "
        "`bandstream store verify` lists everything that is wrong."
    )


def truncated_file(store: Path, name: str, wanted: int, found: int) -> StoreCorruptError:
    """Return the error for a file that ends too early."""
    return StoreCorruptError(
        f"The file {name} of the store {store} ends after {found} bytes, where its index tells of {wanted}. The file "
        "has changed since it was written; delete the store and run its workflow again."
    )
