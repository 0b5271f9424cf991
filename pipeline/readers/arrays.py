"""The arrays of files that hold arrays by name (MATLAB, NumPy): their shapes and types, and cubes over their numbers.

Such an array lies in its file as plain numbers, in one of two orders, or deflated as a whole. Either way it becomes an
array-like (y, x, band) as `cube` describes them; what its axes mean is decided in `array_scene`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from ..errors import TruncatedFileError
from .cube import INTERLEAVES, RawCube, even_chunks, rows_per_chunk
from .hdf import lazy_h5
from .indexing import split_key, squeeze
from .options import Notes
from .unpacking import Packed, unpack

SMALL_BYTES = 2**20
"""Largest variable that is read for what it tells about the cube (wavelengths, sizes)."""


class Variable(Protocol):
    """One named array of a file, whatever the format."""

    @property
    def name(self) -> str:
        """Its name in the file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as the program that wrote it shows it."""
        ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Number type as stored; None where it holds no real numbers, and `kind` tells what."""
        ...

    @property
    def column_major(self) -> bool:
        """Whether the first axis of `shape` runs fastest in the file."""
        ...

    @property
    def kind(self) -> str:
        """What it is, for messages: `uint16`, `struct`, `complex double`."""
        ...

    @property
    def small(self) -> bool:
        """Whether its values may be read for what they tell about the cube."""
        ...

    def values(self) -> NDArray[Any]:
        """Read the whole array, in `shape`."""
        ...

    def lazy(
        self, shape_yxb: tuple[int, int, int], file_axes: str, notes: Notes
    ) -> tuple[da.Array, int | None]:
        """Return the lazy cube (y, x, band), and the bytes that reading takes beside a window.

        `file_axes` are the axes in the file, slowest first; a table of pixels is unfolded.
        """
        ...


@dataclass(frozen=True)
class RawVariable:
    """An array that lies in a file as plain numbers, or deflated as a whole."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    column_major: bool
    kind: str
    start: int = 0
    packed: Packed | None = None

    @property
    def small(self) -> bool:
        """Whether it is small, unpacked too."""
        return math.prod(self.shape) <= SMALL_BYTES // 8 and (
            self.packed is None or self.packed.total <= SMALL_BYTES
        )

    def values(self) -> NDArray[Any]:
        """Read the whole array, in `shape`, native byte order."""
        assert self.dtype is not None
        count = math.prod(self.shape)
        if self.packed is not None:
            raw = unpack(self.path, self.packed)[self.start : self.start + count * self.dtype.itemsize]
        else:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                raw = np.frombuffer(file.read(count * self.dtype.itemsize), np.uint8)
        if raw.size != count * self.dtype.itemsize:
            msg = f"{self.path}: the variable {self.name!r} is cut short; fetch the file again"
            raise TruncatedFileError(msg)
        flat = raw.view(self.dtype).astype(self.dtype.newbyteorder("="))
        return flat.reshape(self.shape, order="F" if self.column_major else "C")

    def lazy(
        self, shape_yxb: tuple[int, int, int], file_axes: str, notes: Notes
    ) -> tuple[da.Array, int | None]:
        """Return the lazy cube; cut along the slower of rows and columns, so that no byte is read twice.

        A packed variable can only be unpacked whole, and stays in memory while its chunks are read.
        """
        del notes
        assert self.dtype is not None
        rows, cols, bands = shape_yxb
        columns_first = file_axes.index("x") < file_axes.index("y")
        row_chunks, col_chunks = slow_chunks(
            shape_yxb, self.dtype.itemsize, columns_first and self.packed is None
        )
        if self.packed is not None:
            packed = PackedCube(self.path, shape_yxb, self.dtype.str, file_axes, self.start, self.packed)
            return lazy_h5(packed, row_chunks, col_chunks), self.packed.total
        plain = file_axes.translate(_SWAP) if columns_first else file_axes
        interleave = _INTERLEAVES[plain]
        if not columns_first:
            cube: Any = RawCube(self.path, shape_yxb, self.dtype.str, interleave, self.start)
        else:
            cube = ColumnsFirst(
                RawCube(self.path, (cols, rows, bands), self.dtype.str, interleave, self.start)
            )
        return lazy_h5(cube, row_chunks, col_chunks), None


def slow_chunks(
    shape_yxb: tuple[int, int, int], itemsize: int, columns_first: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return row and column chunks, all bands in each, that cut rows, or columns where those are slower in the file."""
    rows, cols, bands = shape_yxb
    if columns_first:
        return (rows,), even_chunks(cols, rows_per_chunk(rows * bands * itemsize, cols))
    return even_chunks(rows, rows_per_chunk(cols * bands * itemsize, rows)), (cols,)


_INTERLEAVES = {"".join("yxb"[axis] for axis in order): name for name, order in INTERLEAVES.items()}
_SWAP = str.maketrans("yx", "xy")


@dataclass(frozen=True)
class ColumnsFirst:
    """A raw cube whose columns are slower than its rows in the file, as MATLAB keeps them.

    Attributes
    ----------
    inner
        The same bytes with rows and columns taken for each other.
    """

    inner: RawCube

    ndim = 3

    @property
    def path(self) -> str:
        """File that holds the numbers."""
        return self.inner.path

    @property
    def shape(self) -> tuple[int, int, int]:
        """(y, x, band)."""
        cols, rows, bands = self.inner.shape
        return rows, cols, bands

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type, native byte order."""
        return self.inner.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window."""
        (y, x, band), drop = split_key(key, self.shape)
        return squeeze(self.inner[x, y, band].transpose(1, 0, 2), drop)


@dataclass(frozen=True)
class PackedCube:
    """A cube that is deflated as a whole, so that the first window unpacks it all and the next ones find it there."""

    path: str
    shape: tuple[int, int, int]
    file_dtype: str
    file_axes: str
    start: int
    packed: Packed

    ndim = 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type, native byte order."""
        return np.dtype(self.file_dtype).newbyteorder("=")

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Copy a window out of the unpacked variable."""
        (y, x, band), drop = split_key(key, self.shape)
        stored = np.dtype(self.file_dtype)
        sizes = [self.shape["yxb".index(axis)] for axis in self.file_axes]
        raw = unpack(self.path, self.packed)[self.start : self.start + math.prod(sizes) * stored.itemsize]
        whole = raw.view(stored).reshape(sizes).transpose([self.file_axes.index(axis) for axis in "yxb"])
        return squeeze(np.array(whole[y][:, x][:, :, band], self.dtype), drop)
