"""A local folder that keeps what was fetched of remote stores: bounded, shared by processes, checked at every read.

An entry is one range of one file of one store: a chunk of a shard, or the index behind them. All of them end with the
CRC-32C of what comes before, so that an entry proves by itself that it is whole. What does not is never kept and never
served: a byte that has flipped on the disk costs another request, no more.

Entries appear by renaming, under a name made from what they hold, so that two processes that fetch the same range do no
harm. A lock is held only while bytes are counted and old entries removed, never during a download. Whoever dies leaves
a temporary file, which its successors remove.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import google_crc32c
import numpy as np

from ...pipeline.errors import BandstreamWarning, ConfigError
from .bytes_source import ByteSource

DEFAULT_CACHE_BYTES = 32 << 30
KEPT_SHARE = 0.9
"""Of the limit that an eviction leaves, so that the folder is not listed for every new entry."""

DISK_BLOCK_BYTES = 4096
"""What a file takes on a disk is a multiple of this; labels and splits of a chunk are often a few hundred bytes."""

_FOLDER = "bandstream-chunks-1"  # the number changes with the format
_COUNT = "bytes"
_ENTRY = re.compile(r"[0-9a-f]{40}\.chunk")
_TEMPORARY = re.compile(r"[0-9a-f]{32}\.partial")


class DiskCache:
    """Byte strings by key in a local folder, the least recently used ones removed when it is full.

    Several processes and threads may use one folder at once. Pickled, it is its address and limit.

    Parameters
    ----------
    folder
        Made if it is not there. Nothing but the cache's own files below it is counted or removed.
    limit_bytes
        Most that the entries take on the disk, temporary files included.

    Raises
    ------
    ConfigError
        The folder cannot be made or written, or the limit is no number from 1.
    """

    def __init__(self, folder: str | Path, limit_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"cache_bytes={limit_bytes!r} is not allowed; give the bytes that the cache may take, 1 or more."
            )
        self.limit_bytes = limit_bytes
        self.hits = self.misses = self.damaged = 0
        self._root = Path(os.path.abspath(folder)) / _FOLDER
        self._full = False
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with self._locked():
                for item in _files(self._root, deep=False):
                    _remove_abandoned(item)
        except OSError as error:
            raise ConfigError(
                f"The folder {folder} cannot hold a cache: {error.strerror or error}. Give one on a local disk that can be "
                "written."
            ) from error

    def __reduce__(self) -> tuple[type[DiskCache], tuple[Path, int]]:
        return DiskCache, (self._root.parent, self.limit_bytes)

    def load(self, key: str, out: Sequence[memoryview]) -> bool:
        """Fill buffers, one after the other, with the entry of a key.

        Returns
        -------
        bool
            False, with anything in the buffers, if there is no entry of their length together.
        """
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.misses += 1
            return False
        length = sum(map(len, out))
        try:
            found = os.preadv(descriptor, out, 0) if os.fstat(descriptor).st_size == length else -1
            with suppress(OSError):  # a folder that may only be read
                os.utime(descriptor)  # used now
        except OSError:  # a bad sector
            found = -1
        finally:
            os.close(descriptor)
        if found == length and is_whole(out):
            self.hits += 1
            return True
        with suppress(OSError):
            path.unlink()
        self.damaged += 1
        return False

    def save(self, key: str, content: Sequence[memoryview]) -> None:
        """Keep the content of buffers as one entry, if it is whole and the disk takes it.

        Warns
        -----
        BandstreamWarning
            Once: the disk is full or broken, and nothing more will be kept by this process.
        """
        length = sum(map(len, content))
        if self._full or _on_disk(length) > self.limit_bytes or not is_whole(content):
            return
        path = self._path(key)
        temporary = self._root / f"{uuid.uuid4().hex}.partial"
        try:
            descriptor = self._reserve(temporary, length)
            try:
                _write(descriptor, content)
                path.parent.mkdir(exist_ok=True)
                temporary.rename(path)
            finally:
                os.close(descriptor)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            first, self._full = not self._full, True
            if first:
                warnings.warn(
                    f"The cache {self._root.parent} takes no more ({error.strerror or error}); what is not in it comes "
                    "from the store each time. Make room, or give a smaller cache_bytes.",
                    BandstreamWarning,
                    stacklevel=2,
                )

    def _path(self, key: str) -> Path:
        digest = blake2b(key.encode(), digest_size=20).hexdigest()
        return self._root / digest[:2] / f"{digest}.chunk"

    @contextmanager
    def _locked(self) -> Generator[int]:
        """Hold the folder's lock, and give the descriptor of the file that counts its bytes."""
        descriptor = os.open(self._root / _COUNT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _reserve(self, temporary: Path, size_bytes: int) -> int:
        """Count a new entry, make room for it, and return the descriptor of its temporary file, locked while in use."""
        needed = _on_disk(size_bytes)
        with self._locked() as counter:
            text = os.pread(counter, 32, 0)
            total = int(text) if text.isdigit() else self._clean(self.limit_bytes)
            if total + needed > self.limit_bytes:
                total = self._clean(min(self.limit_bytes - needed, int(KEPT_SHARE * self.limit_bytes)))
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.truncate(descriptor, size_bytes)  # so that whoever counts finds all of it
                # counted before it is written: a crash leaves the count too high, which the next cleaning puts right
                _put_count(counter, total + needed)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    def _clean(self, keep_bytes: int) -> int:
        """Remove what dead processes left, and the oldest entries beyond `keep_bytes`; return the bytes that are left.

        Called with the lock held.
        """
        found: list[tuple[int, int, str]] = []  # last use, bytes, path
        total = 0
        for item in _files(self._root):
            with suppress(FileNotFoundError):  # renamed or removed since it was listed
                stat = item.stat(follow_symlinks=False)
                if _ENTRY.fullmatch(item.name):
                    found.append((stat.st_mtime_ns, _on_disk(stat.st_size), item.path))
                elif not _remove_abandoned(item):
                    total += _on_disk(stat.st_size)
        total += sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= keep_bytes:
                break
            with suppress(FileNotFoundError):
                Path(path).unlink()
            total -= size
        return total


class CachedBytes:
    """A `ByteSource` that asks a cache first.

    Parameters
    ----------
    source
        Where the bytes really are.
    cache
        Where they are kept.
    identity
        Text that is another one for every other content of the store.
    """

    def __init__(self, source: ByteSource, cache: DiskCache, identity: str) -> None:
        self.cache = cache
        self._source, self._identity = source, identity

    def size(self, name: str) -> int:
        """Return the bytes of a file; see `ByteSource`."""
        key = f"{self._identity}\0{name}\0size"
        entry = bytearray(12)
        if self.cache.load(key, [memoryview(entry)]):
            return int.from_bytes(entry[:8], "little")
        size = self._source.size(name)
        number = size.to_bytes(8, "little")
        self.cache.save(
            key, [memoryview(number), memoryview(google_crc32c.value(number).to_bytes(4, "little"))]
        )
        return size

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        """Read ranges of a file; see `ByteSource`. Ranges that touch, in the order given, make one entry."""
        runs: list[tuple[str, list[int]]] = []
        first = 0
        for i, (offset, length) in enumerate(ranges):
            if i + 1 == len(ranges) or ranges[i + 1][0] != offset + length:
                start = ranges[first][0]
                key = f"{self._identity}\0{name}\0{start}\0{offset + length - start}"
                runs.append((key, list(range(first, i + 1))))
                first = i + 1
        missing = [(key, run) for key, run in runs if not self.cache.load(key, [out[i] for i in run])]
        if missing:
            wanted = [i for _, run in missing for i in run]
            self._source.read(name, [ranges[i] for i in wanted], [out[i] for i in wanted])
            for key, run in missing:
                self.cache.save(key, [out[i] for i in run])

    def close(self) -> None:
        """Let go of what is open; see `ByteSource`."""
        self._source.close()


def is_whole(content: Sequence[memoryview]) -> bool:
    """Return whether bytes end with the CRC-32C of those before, as chunks and indexes of shards do.

    Parameters
    ----------
    content
        In any number of parts.
    """
    tail = b"".join(bytes(part[-4:]) for part in content)[-4:]
    left, checksum = sum(map(len, content)) - 4, 0
    for part in content:
        if left > 0:
            checksum = google_crc32c.extend(checksum, np.frombuffer(part[:left], np.uint8))
            left -= len(part)
    return len(tail) == 4 and checksum == int.from_bytes(tail, "little")


def _on_disk(size_bytes: int) -> int:
    return -(-size_bytes // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES


def _files(root: Path, *, deep: bool = True) -> Iterator[os.DirEntry[str]]:
    """Yield the files of the cache's folder, and of the folders in it if `deep`; no link is followed."""
    with os.scandir(root) as items:
        for item in items:
            if item.is_file(follow_symlinks=False):
                yield item
            elif deep and item.is_dir(follow_symlinks=False):
                with os.scandir(item) as inner:
                    yield from (one for one in inner if one.is_file(follow_symlinks=False))


def _remove_abandoned(item: os.DirEntry[str]) -> bool:
    """Remove a temporary file that no process writes any more, and return whether it was one.

    Each writer holds a lock on its own, which dies with it.
    """
    if not _TEMPORARY.fullmatch(item.name):
        return False
    with suppress(FileNotFoundError):
        descriptor = os.open(item.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(item.path).unlink()
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
    return True


def _write(descriptor: int, content: Sequence[memoryview]) -> None:
    at = 0
    for part in content:
        done = 0
        while done < len(part):
            done += os.pwrite(descriptor, part[done:], at + done)
        at += len(part)


def _put_count(descriptor: int, total: int) -> None:
    text = str(total).encode()
    os.pwrite(descriptor, text, 0)
    os.truncate(descriptor, len(text))
