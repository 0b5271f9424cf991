"""Array-like over a headerless cube, read by position, and what all array-likes need to become Dask arrays.

Array-likes have the axes (y, x, band), can be pickled, and give arrays in native byte order. What they return may be
a transposed *view* of the file's own layout, which costs nothing and lets the arithmetic that follows run along the
memory. A raw file is never mapped as a whole: mapped pages count as memory of the process.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from ..errors import SceneNotFoundError, TruncatedFileError
from ..storage import is_remote, locate
from .buffers import lend
from .indexing import Axis, as_run, indices, is_whole, length, split_key, squeeze

CHUNK_BYTES = 16 * 2**20
"""Largest chunk where the file's layout leaves the choice: beyond it no read gets faster, only memory grows."""

INTERLEAVES = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}
"""Axes of (y, x, band) in the order in which the file holds them, slowest first."""

_MAP_BELOW = 0.5
"""A raw read that wants less than this share of the rows' bytes maps the file briefly in place of reading the rows."""


@dataclass(frozen=True)
class RawCube:
    """A headerless cube of numbers in one file.

    Attributes
    ----------
    path
        The file that holds the numbers.
    shape
        (y, x, band).
    file_dtype
        Number type with its byte order, such as `>i2`.
    interleave
        `bsq`, `bil` or `bip`.
    start
        Bytes before the first number.
    """

    path: str
    shape: tuple[int, int, int]
    file_dtype: str
    interleave: str
    start: int = 0

    ndim = 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type of the arrays given, always in native byte order."""
        return np.dtype(self.file_dtype).newbyteorder("=")

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window; the bytes of it once, and none besides where the interleave allows."""
        (y, x, band), drop = split_key(key, self.shape)
        block = self._read(y, x, band)
        return squeeze(block, drop)

    def _read(self, y: Axis, x: Axis, band: Axis) -> NDArray[Any]:
        """Return the block (y, x, band) of three resolved axes."""
        rows = as_run(y)
        every_column = is_whole(x, self.shape[1])
        every_band = is_whole(band, self.shape[2])
        if rows is not None and every_column and self.interleave == "bsq":
            return self._read_bsq(rows, indices(band, self.shape[2]))
        if rows is not None and every_column and every_band:
            return self._read_rows(rows)
        share = length(x) * length(band) / (self.shape[1] * self.shape[2])
        if rows is not None and self.interleave != "bsq" and share >= _MAP_BELOW:
            return self._read_rows(rows)[:, x][:, :, band]
        return self._read_mapped(y, x, band)

    def _read_rows(self, rows: slice) -> NDArray[Any]:
        """Read full rows of a bil or bip file with one positioned read."""
        count = rows.stop - rows.start
        itemsize = np.dtype(self.file_dtype).itemsize
        row_bytes = self.shape[1] * self.shape[2] * itemsize
        order = INTERLEAVES[self.interleave]
        buffer = lend(tuple((count, *self.shape[1:])[axis] for axis in order), self.file_dtype)
        with _opened(self.path) as fd:
            _read_into(fd, buffer, self.start + rows.start * row_bytes, self.path)
        return _native(buffer).transpose(np.argsort(order))

    def _read_bsq(self, rows: slice, bands: NDArray[np.intp]) -> NDArray[Any]:
        """Read full rows of some bands of a bsq file, one positioned read per band."""
        count = rows.stop - rows.start
        row_bytes = self.shape[1] * np.dtype(self.file_dtype).itemsize
        buffer = lend((len(bands), count, self.shape[1]), self.file_dtype)
        with _opened(self.path) as fd:
            for i, band in enumerate(bands):
                offset = self.start + (int(band) * self.shape[0] + rows.start) * row_bytes
                _read_into(fd, buffer[i], offset, self.path)
        return _native(buffer).transpose(1, 2, 0)

    def _read_mapped(self, y: Axis, x: Axis, band: Axis) -> NDArray[Any]:
        """Copy a scattered window out of a short-lived map of the file."""
        order = INTERLEAVES[self.interleave]
        self._check_size()
        mapped = np.memmap(
            self.path,
            self.file_dtype,
            "r",
            offset=self.start,
            shape=cast("Any", tuple(self.shape[a] for a in order)),
        )
        window: NDArray[Any] = np.asarray(mapped)
        for position, axis in enumerate(order):
            window = window[(slice(None),) * position + ((y, x, band)[axis],)]
        # the copy keeps the file's layout; the map goes with its last reference, here
        block = np.array(window, dtype=self.dtype, order="C")
        return block.transpose(np.argsort(order))

    def _check_size(self) -> None:
        """Raise when the file has shrunk since it was opened (touching a map beyond its end kills the process)."""
        expected = self.start + int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.file_dtype).itemsize
        with _opened(self.path) as fd:
            actual = os.fstat(fd).st_size
        if actual < expected:
            raise _truncated(self.path, expected, actual)


def lazy_cube(
    cube: Any,
    row_chunks: Sequence[int],
    col_chunks: Sequence[int] | None = None,
    *,
    paths: Sequence[str] = (),
) -> da.Array:
    """Wrap an array-like (y, x, band) into a Dask array with all bands in each chunk.

    The name is made of the paths, their sizes and times of change, and the cube's layout, so that the same file gives
    the same keys in every process.
    """
    digest = hashlib.sha256(repr((type(cube).__name__, cube.shape, str(cube.dtype))).encode())
    if isinstance(cube, RawCube):
        digest.update(repr((cube.file_dtype, cube.interleave, cube.start)).encode())
    for path in paths or [str(cube.path)]:
        digest.update(repr((os.path.abspath(path), *file_stamp(path))).encode())
    cols = (cube.shape[1],) if col_chunks is None else tuple(col_chunks)
    chunks = (tuple(row_chunks), cols, (cube.shape[2],))
    digest.update(repr(chunks).encode())
    return lazy_array(cube, chunks, f"scene-{digest.hexdigest()[:32]}")


def lazy_array(source: Any, chunks: Any, name: str) -> da.Array:
    """Wrap an array-like into a Dask array that reads windows of it, under a name that tells its content."""
    return da.from_array(
        source,
        chunks=chunks,
        name=name,
        asarray=False,
        inline_array=True,
        meta=np.empty((0,) * len(source.shape), source.dtype),
    )


def file_stamp(path: str) -> tuple[int, int]:
    """Return size and time of change of a file (of an object a number that its ETag gives); zeros for paths of GDAL's."""
    if is_remote(path):
        return _object_stamp(path)
    if path.startswith("/vsi") or "://" in path:
        return 0, 0
    try:
        stat = os.stat(path)
    except FileNotFoundError as error:
        msg = f"{path} has gone since the scene was opened"
        raise SceneNotFoundError(msg) from error
    return stat.st_size, stat.st_mtime_ns


def _object_stamp(url: str) -> tuple[int, int]:
    path = locate(url)
    try:
        # of the folder of a Zarr array its metadata stand for it
        stat = cast("Any", (path if path.is_file() else path / "zarr.json").stat())
    except FileNotFoundError as error:
        msg = f"{url} has gone since the scene was opened"
        raise SceneNotFoundError(msg) from error
    return stat.st_size, int(hashlib.sha256(stat.etag.encode()).hexdigest()[:15], 16)


def even_chunks(length: int, size: int) -> tuple[int, ...]:
    """Cut `length` into pieces of `size` and a rest."""
    whole, rest = divmod(length, size)
    return (size,) * whole + ((rest,) if rest else ())


def rows_per_chunk(row_bytes: int, rows: int, multiple: int = 1) -> int:
    """Return how many rows go into a chunk of at most `CHUNK_BYTES`: a power of two times `multiple`."""
    count = max(1, multiple)
    while count * 2 * row_bytes <= CHUNK_BYTES and count < rows:
        count *= 2
    return min(count, rows)


def _native(buffer: NDArray[Any]) -> NDArray[Any]:
    """Swap the bytes in place where needed."""
    if buffer.dtype.isnative:
        return buffer
    return buffer.byteswap(inplace=True).view(buffer.dtype.newbyteorder("="))


@contextmanager
def _opened(path: str) -> Generator[int]:
    """Open a file for positioned reads for the length of one read."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        msg = f"{path} has gone since the scene was opened"
        raise SceneNotFoundError(msg) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _read_into(fd: int, buffer: NDArray[Any], offset: int, path: str) -> None:
    """Fill a contiguous buffer from a place in the file."""
    view = buffer.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        if sys.platform == "win32":  # no preadv there; the descriptor is this read's own, so seeking is safe
            os.lseek(fd, offset + done, os.SEEK_SET)
            piece = os.read(fd, min(len(view) - done, 2**30))
            view[done : done + len(piece)] = piece
            got = len(piece)
        else:
            got = os.preadv(fd, [view[done : done + 2**30]], offset + done)
        if got == 0:
            raise _truncated(path, offset + len(view), os.fstat(fd).st_size)
        done += got


def _truncated(path: str, expected: int, actual: int) -> TruncatedFileError:
    return TruncatedFileError(
        f"{path} holds {actual} bytes, at least {expected} are needed: it has changed since the scene was opened"
    )
