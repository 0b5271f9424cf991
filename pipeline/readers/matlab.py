"""MATLAB: `.mat` files of version 5 to 7 (level 5) and 7.3 (HDF5).

Traps: numbers are kept column by column, so that rows run fastest; version 7 deflates each variable as a whole, so
that it can only be unpacked whole into memory (save big cubes with -v7.3, or uncompressed with -v6); version 7.3 is
HDF5 with its axes listed backwards. Nothing in a file says what its axes are: see `arrays`. Jasper Ridge, Urban and
Samson come as tables (bands x pixels) with rows and columns in variables beside them, pixels column by column, and
without wavelengths. Proved on the real Jasper Ridge file (version 7), label files of three benchmarks, and on files
of version 5 to 7.3 written by other programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import dask.array as da
import h5py
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError
from .array_scene import load_plane_of, scene_of
from .arrays import SMALL_BYTES, Variable, slow_chunks
from .hdf import H5Cube, H5File, H5Plane, is_hdf5, lazy_h5, opened, row_chunks
from .hdf_file import attribute
from .indexing import hull, split_key, squeeze
from .matlab5 import is_matlab5, read_variables
from .options import Notes, Options
from .reader import Reader

_HDF_NAMES = (b"MATLAB 7.3", b"MATLAB 7.4")
_CLASS = "MATLAB_class"


def open_matlab(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a `.mat` file as a lazy scene.

    Parameters
    ----------
    path
        The file.
    options
        Overrides; `variable`, `axes` and `shape_yx` belong to this reader.
    notes
        Takes the warnings.
    why
        Why this reader was chosen.

    Raises
    ------
    FormatError
        If it holds no array of real numbers that can be a cube, or several, or is damaged.
    TruncatedFileError
        If it is shorter than it says.
    """
    return scene_of(path, _variables(path), options, notes, reader="matlab", why=why)


def load_plane(path: str, variable: str | None = None) -> NDArray[Any]:
    """Return the one array with two axes of a file, such as a label raster (read into memory)."""
    return load_plane_of(path, _variables(path), variable)


def _variables(path: str) -> list[Variable]:
    with open(path, "rb") as file:
        head = file.read(512)
    if is_hdf5(path, head):
        return list(hdf_variables(path))
    return list(read_variables(path))


@dataclass(frozen=True)
class HdfVariable:
    """A variable of a version 7.3 file: a dataset whose axes are listed backwards.

    Attributes
    ----------
    stored_shape
        Shape as HDF5 has it, slowest first.
    """

    path: str
    name: str
    stored_shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    kind: str

    column_major = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as MATLAB shows it."""
        return self.stored_shape[::-1]

    @property
    def small(self) -> bool:
        """Whether its values may be read for what they tell."""
        return math.prod(self.stored_shape) <= SMALL_BYTES // 8

    def values(self) -> NDArray[Any]:
        """Read the whole array, in MATLAB's shape."""
        with opened(self.path) as h5:
            found = h5.need(self.name)
            return np.asarray(found[()]).transpose()

    def lazy(
        self, shape_yxb: tuple[int, int, int], file_axes: str, notes: Notes
    ) -> tuple[da.Array, int | None]:
        """Return the lazy cube."""
        assert self.dtype is not None
        native = self.dtype.newbyteorder("=")
        with opened(self.path) as h5:
            found = h5.need(self.name)
            chunks, chunk_bytes = cast("tuple[int, ...] | None", found.chunks), 0
            if chunks is not None:
                chunk_bytes = math.prod(chunks) * native.itemsize
            columns_first = file_axes.index("x") < file_axes.index("y")
            if len(self.stored_shape) == 2:
                plane = H5Plane(self.path, self.name, (self.stored_shape[0], self.stored_shape[1]), native)
                table = H5Table(plane, shape_yxb, file_axes)
                return lazy_h5(
                    table, *slow_chunks(shape_yxb, native.itemsize, columns_first)
                ), chunk_bytes or None
            cube = H5Cube(self.path, self.name, shape_yxb, native, file_axes)
            if chunks is None:
                return lazy_h5(cube, *slow_chunks(shape_yxb, native.itemsize, columns_first)), None
            rows, cols, held = row_chunks([cube], h5, notes)
            return lazy_h5(cube, rows, cols), held


@dataclass(frozen=True)
class H5Table:
    """A table of pixels and bands in one dataset, unfolded into a cube.

    Attributes
    ----------
    plane
        The dataset as it is stored.
    shape
        (y, x, band).
    file_axes
        The axes after unfolding, slowest first: `b` first or last.
    """

    plane: H5Plane
    shape: tuple[int, int, int]
    file_axes: str

    ndim = 3

    @property
    def path(self) -> str:
        """The HDF5 file."""
        return self.plane.path

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type, native byte order."""
        return self.plane.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read the pixels between the first and the last row (or column, where those are slower) of a window."""
        (y, x, band), drop = split_key(key, self.shape)
        slow, fast = (axis for axis in self.file_axes if axis != "b")
        wanted = {"y": y, "x": x, "b": band}
        count = self.shape["yxb".index(fast)]
        first, last, inside = hull(wanted[slow])
        pixels = slice(first * count, last * count)
        bands_first = self.file_axes[0] == "b"
        stored = self.plane[:, pixels] if bands_first else self.plane[pixels, :]
        sizes = {slow: last - first, fast: count, "b": self.shape[2]}
        cube = stored.reshape([sizes[axis] for axis in self.file_axes])
        cube = cube.transpose([self.file_axes.index(axis) for axis in "yxb"])
        wanted[slow] = inside
        return squeeze(cube[wanted["y"]][:, wanted["x"]][:, :, wanted["b"]], drop)


def hdf_variables(path: str) -> list[HdfVariable]:
    """List the variables at the root of a version 7.3 file.

    Raises
    ------
    FormatError
        If it cannot be read as HDF5.
    """
    with opened(path) as h5:
        # names with a # are MATLAB's own tables of references
        return [_hdf_variable(h5, name) for name in h5.members() if not name.startswith("#")]


def _hdf_variable(h5: H5File, name: str) -> HdfVariable:
    """Return what is known of one variable."""
    try:
        node = h5.dataset(name)
        group = h5.group(name) if node is None else None
    except FormatError as error:
        return HdfVariable(h5.path, name, (), None, f"refused ({error})")
    if node is None:
        sparse = group is not None and attribute(group, "MATLAB_sparse", h5.path) is not None
        return HdfVariable(h5.path, name, (), None, "sparse" if sparse else "struct")
    label = attribute(node, _CLASS, h5.path)
    kind = label.decode("latin-1") if isinstance(label, bytes) else str(label or node.dtype)[:60]
    shape = tuple(int(n) for n in cast("tuple[int, ...]", node.shape))
    if attribute(node, "MATLAB_empty", h5.path):
        return HdfVariable(h5.path, name, (0,), None, f"empty {kind}")
    if h5py.check_dtype(ref=node.dtype) is not None or kind in ("char", "cell", "function_handle", "struct"):
        return HdfVariable(h5.path, name, shape, None, kind)
    if node.dtype.names is not None:
        return HdfVariable(h5.path, name, shape, None, f"complex {kind}")
    if node.dtype.kind not in "iuf" or node.dtype.itemsize > 8:
        return HdfVariable(h5.path, name, shape, None, kind)
    return HdfVariable(h5.path, name, shape, node.dtype, kind)


def _recognise(path: str, head: bytes) -> str | None:
    if is_matlab5(head):
        return "the file begins with the header of a MATLAB 5 file"
    if head.startswith(_HDF_NAMES) and is_hdf5(path, head):
        return "the file begins with the header of a MATLAB 7.3 file"
    if head and path.lower().endswith(".mat"):
        return "the file is named .mat"
    return None


READER = Reader("matlab", "MATLAB", _recognise, open_matlab, proved="real files")
