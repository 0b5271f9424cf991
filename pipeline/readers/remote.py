"""TIFF files in a bucket: GDAL reads them through a Python file that fetches ranges, never the whole object.

GDAL has an S3 client of its own. It is not used: two clients would mean two sets of settings, retries and messages, and
a body that breaks off is no error to it. Files beside the object (`.aux.xml`, `.tfw`, `.msk`, headers) are not looked
for. rasterio keeps what it needs to close such a file per thread, so that one is opened, read and closed by one thread;
opening it again costs no request, since the beginning of each object stays in memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Any, cast

import rasterio
from rasterio.abc import FileContainer
from rasterio.errors import RasterioError

from ..errors import SceneNotFoundError
from ..storage import RemoteFile, RemotePath, RemoteStat, locate

BLOCK_BYTES = 256 * 2**10
"""Smaller reads, of headers and small TIFF tiles, fetch whole blocks of this size, and find the next ones there."""

_BLOCKS_KEPT = 64
_VERSIONS: dict[str, RemoteStat] = {}


@lru_cache(maxsize=_BLOCKS_KEPT)
def _block(path: RemotePath, stat: RemoteStat, number: int) -> bytes:
    """Return one block of an object, from memory where it was fetched lately."""
    start = number * BLOCK_BYTES
    return path.read_range(start, min(start + BLOCK_BYTES, stat.st_size), stat.etag or None)


class _Ranges(RemoteFile):
    """An object as GDAL reads it; what goes wrong is kept, since no error passes through GDAL."""

    def __init__(self, path: RemotePath, stat: RemoteStat) -> None:
        super().__init__(path, stat)
        self.stat = stat
        self.failed: Exception | None = None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; after a failure with nothing, which GDAL takes for a damaged file."""
        try:
            if self.failed is None:
                return self._fill(memoryview(buffer).cast("B"))
        except Exception as error:  # noqa: BLE001 - kept for the one who opened the file
            self.failed = error
        return 0

    def _fill(self, buffer: memoryview) -> int:
        stop = min(self._at + len(buffer), self.size)
        if stop - self._at >= BLOCK_BYTES:
            return super().readinto(buffer)
        done = 0
        while self._at < stop:
            number, skip = divmod(self._at, BLOCK_BYTES)
            piece = _block(self.path, self.stat, number)[skip : skip + stop - self._at]
            buffer[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done


class _OneObject:
    """The one file that GDAL finds."""

    def __init__(self, path: RemotePath, stat: RemoteStat) -> None:
        self.path = path
        self.stat = stat
        self.opened: list[_Ranges] = []

    @property
    def failed(self) -> Exception | None:
        """The first thing that went wrong."""
        return next((file.failed for file in self.opened if file.failed is not None), None)

    def open(self, path: str, mode: str = "r", **_: Any) -> io.RawIOBase:
        """Return the object at its beginning."""
        if path != str(self.path) or mode not in ("r", "rb"):
            raise FileNotFoundError(path)
        self.opened.append(_Ranges(self.path, self.stat))
        return self.opened[-1]

    def isfile(self, path: str) -> bool:
        """Return whether the path is the object's."""
        return path == str(self.path)

    def isdir(self, path: str) -> bool:
        """Return False."""
        del path
        return False

    def ls(self, path: str) -> list[str]:
        """Return nothing."""
        del path
        return []

    def mtime(self, path: str) -> int:
        """Return 0."""
        del path
        return 0

    def size(self, path: str) -> int:
        """Return the object's size in bytes."""
        if not self.isfile(path):
            raise FileNotFoundError(path)
        return self.stat.st_size


FileContainer.register(_OneObject)


class RemoteRaster:
    """A raster in a bucket, to be used in a `with` by one thread.

    Parameters
    ----------
    url
        Its address.
    open_with
        Opens the address with what it is given as rasterio's `opener`.
    again
        Whether the version is meant that this process opened last, and another is an error; else it is what is there.

    Raises
    ------
    SceneNotFoundError
        On entering, if there is no such object.
    RemoteError
        On entering and leaving, if it could not be read; whatever GDAL made of that gives way.
    """

    def __init__(self, url: str, open_with: Callable[[FileContainer], Any], *, again: bool = False) -> None:
        self.path = cast("RemotePath", locate(url))
        self.open_with = open_with
        self.again = again

    def __enter__(self) -> Any:
        """Return the open rasterio dataset."""
        self._object = _OneObject(self.path, self._version())
        # nothing lies beside it: GDAL need not ask
        with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR", GDAL_PAM_ENABLED="NO"):
            try:
                self._raster: Any = self.open_with(self._object)
            except RasterioError:
                self._tell()
                raise
        return self._raster

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the dataset and tell what went wrong with the object."""
        self._raster.close()
        self._tell()

    def _tell(self) -> None:
        if self._object.failed is not None:
            raise self._object.failed from None

    def _version(self) -> RemoteStat:
        url = str(self.path)
        known = _VERSIONS.get(url) if self.again else None
        if known is None:
            try:
                known = self.path.stat()
            except FileNotFoundError as error:
                msg = f"{url} does not exist"
                raise SceneNotFoundError(msg) from error
            _VERSIONS[url] = known
        return known
