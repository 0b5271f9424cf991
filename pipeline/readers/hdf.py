"""Array-likes over datasets of an HDF5 file, whatever the order of their axes, and the open handles behind them.

The HDF5 library does one thing at a time in a process, so threads share one open dataset under one lock. Compressed
chunks can only be decoded whole. The pipeline reads rows from top to bottom in windows that are lower than a chunk may
be (NEON: 336 rows); therefore each open dataset keeps the row of chunks that it is in, up to `CACHE_BYTES`. Where a row
of chunks is larger, the columns on the left are kept and only the others are decoded again: a cache through which more
passes than it holds would keep nothing at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dask.array as da
import h5py
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .buffers import lend
from .cube import CHUNK_BYTES, even_chunks, file_stamp, lazy_array, rows_per_chunk
from .hdf_file import H5File, guarded, is_hdf5, iso_utc, list_cubes, opened, recognised
from .hdf_handles import CACHE_BYTES, HANDLES, Handle
from .indexing import Axis, hull, indices, length, split_key, squeeze
from .options import Notes

__all__ = [
    "CACHE_BYTES",
    "H5Cube",
    "H5File",
    "H5Plane",
    "StackedCube",
    "cube_of",
    "guarded",
    "is_hdf5",
    "iso_utc",
    "lazy_h5",
    "list_cubes",
    "opened",
    "plane_of",
    "recognised",
    "row_chunks",
]

BLOCK_ROW_BYTES = 64 * 2**20
"""A row of chunks up to this size makes one block of a scene; a larger one is cut between chunk columns."""

_LARGEST_BLOCK = 256 * 2**20
_MOST_RUNS = 16
_SMALL_CACHE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class H5Cube:
    """A cube in one dataset.

    Attributes
    ----------
    path
        The HDF5 file.
    dataset
        Path of the dataset in it.
    shape
        (y, x, band).
    dtype
        Number type, native byte order.
    axes
        What the stored axes are, slowest first: `yxb`, `ybx`, `byx`...
    bands
        0-based stored bands that make the cube; all when None.
    """

    path: str
    dataset: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    axes: str = "yxb"
    bands: tuple[int, ...] | None = None

    ndim = 3

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window; a transposed view of the stored order."""
        return _read((self,), key, self.shape, self.dtype)


@dataclass(frozen=True)
class StackedCube:
    """Cubes of one grid that follow each other along the bands, as one cube.

    Attributes
    ----------
    parts
        The cubes: same rows, columns, number type and order of axes.
    """

    parts: tuple[H5Cube, ...]

    ndim = 3

    @property
    def path(self) -> str:
        """The file of the first part."""
        return self.parts[0].path

    @property
    def shape(self) -> tuple[int, int, int]:
        """(y, x, band)."""
        first = self.parts[0].shape
        return first[0], first[1], sum(part.shape[2] for part in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type, native byte order."""
        return self.parts[0].dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window of all parts into one buffer."""
        return _read(self.parts, key, self.shape, self.dtype)


@dataclass(frozen=True)
class H5Plane:
    """A plane (y, x) in one dataset.

    Attributes
    ----------
    path, dataset
        File, and path of the dataset in it.
    shape
        (y, x).
    dtype
        Number type, native byte order.
    axes
        `yx`, `xy`, or with three stored axes one of `yxb`, `byx`...
    band
        0-based stored band of a dataset with three axes.
    """

    path: str
    dataset: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    axes: str = "yx"
    band: int = 0

    ndim = 2

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window; a transposed view of the stored order."""
        parts = key if isinstance(key, tuple) else (key,)
        if Ellipsis not in parts:
            parts = (*parts, Ellipsis)
        axes = self.axes if "b" in self.axes else self.axes + "b"
        cube = H5Cube(self.path, self.dataset, (*self.shape, 1), self.dtype, axes, (self.band,))
        return _read((cube,), (*parts, 0), cube.shape, self.dtype)


def cube_of(h5: H5File, name: str, axes: str, bands: Sequence[int] | None = None) -> H5Cube:
    """Return the array-like of a dataset with three axes.

    Raises
    ------
    FormatError
        If it is missing, has other axes, or holds no real numbers.
    """
    found = h5.need(name)
    shape = _logical(found, axes, h5.path)
    if bands is not None:
        shape = (shape[0], shape[1], len(bands))
    kept = None if bands is None else tuple(int(b) for b in bands)
    return H5Cube(h5.path, name, shape, found.dtype.newbyteorder("="), axes, kept)


def plane_of(
    h5: H5File, name: str, shape_yx: tuple[int, int], axes: str = "yx", band: int = 0
) -> H5Plane | None:
    """Return the array-like of a plane; None where the dataset is missing or of another size than the cube."""
    found = h5.dataset(name)
    if found is None or len(found.shape) != len(axes) or found.dtype.kind not in "iufb":
        return None
    sizes = dict(zip(axes, found.shape, strict=True))
    if (sizes["y"], sizes["x"]) != shape_yx or not 0 <= band < sizes.get("b", 1):
        return None
    return H5Plane(h5.path, name, shape_yx, found.dtype.newbyteorder("="), axes, band)


def row_chunks(
    cubes: Sequence[H5Cube], h5: H5File, notes: Notes
) -> tuple[tuple[int, ...], tuple[int, ...], int | None]:
    """Return row and column chunks that end where the file's chunks end, and the bytes that decoding holds beside them.

    Parameters
    ----------
    cubes
        The parts of one cube.
    h5
        Their open file.
    notes
        Takes the warning that some chunks have to be decoded again and again.

    Returns
    -------
    tuple
        Chunks along y, chunks along x, and `block_bytes` of the scene (None where nothing is decoded).
    """
    rows, cols = cubes[0].shape[:2]
    plans = [_plan(h5.need(cube.dataset), cube) for cube in cubes]
    pixel_bytes = sum(cube.shape[2] * cube.dtype.itemsize for cube in cubes)
    block_rows = min(rows, max(plan.rows for plan in plans))
    block_cols = min(cols, max(plan.cols for plan in plans))
    held = sum(plan.held_bytes for plan in plans) or None
    if block_rows * cols * pixel_bytes <= BLOCK_ROW_BYTES:
        return even_chunks(rows, rows_per_chunk(cols * pixel_bytes, rows, block_rows)), (cols,), held
    again = [plan for plan in plans if plan.cached_cols < cols and plan.packed]
    if again:
        share = 1 - min(plan.cached_cols for plan in again) / cols
        notes.warn(
            f"{cubes[0].path} is packed in chunks {block_rows} rows high; a row of them does not fit the "
            f"{CACHE_BYTES >> 20} MiB kept decoded, so that {share:.0%} of it is decoded once per window of rows: "
            "slow. Rewrite it with lower chunks (h5repack -l CHUNK=...)"
        )
    block = block_rows * block_cols * pixel_bytes
    if block <= _LARGEST_BLOCK:
        return (
            even_chunks(rows, block_rows),
            even_chunks(cols, block_cols * max(1, CHUNK_BYTES // block)),
            held,
        )
    return even_chunks(rows, rows_per_chunk(cols * pixel_bytes, rows)), (cols,), held


def lazy_h5(source: Any, *chunks: tuple[int, ...]) -> da.Array:
    """Wrap an array-like of this module, (y, x, band) or (y, x), into a Dask array with all bands in each chunk.

    Parameters
    ----------
    source
        `H5Cube`, `StackedCube`, `H5Plane`, or an array-like made of them with a `repr` that tells it from others.
    *chunks
        Chunks along y and x; one chunk where left out.
    """
    given = (*chunks, *((int(n),) for n in source.shape[len(chunks) :]))
    digest = hashlib.sha256(repr(source).encode())
    digest.update(repr((os.path.abspath(source.path), *file_stamp(source.path), given)).encode())
    return lazy_array(source, given, f"scene-{digest.hexdigest()[:32]}")


def _logical(found: h5py.Dataset, axes: str, path: str) -> tuple[int, int, int]:
    """Return (y, x, band) of a dataset."""
    if len(found.shape) != 3 or found.dtype.kind not in "iuf":
        msg = f"{path}: {found.name} has the shape {found.shape} of {found.dtype}; a cube needs three axes of real numbers"
        raise FormatError(msg)
    sizes = dict(zip(axes, (int(n) for n in found.shape), strict=True))
    return sizes["y"], sizes["x"], sizes["b"]


@dataclass(frozen=True)
class _Plan:
    """How a dataset is kept decoded."""

    rows: int  #: rows of a chunk; 1 where nothing is chunked
    cols: int  #: columns of a chunk
    packed: bool  #: whether chunks must be decoded whole
    cached_cols: int  #: columns, from the left, whose chunks are kept
    slots: int
    cache_bytes: int
    held_bytes: int  #: cache, and a chunk while it is decoded


def _plan(found: h5py.Dataset, cube: H5Cube) -> _Plan:
    """Work out how much of a row of chunks is kept."""
    chunks = cast("tuple[int, ...] | None", found.chunks)
    if chunks is None:
        return _Plan(1, cube.shape[1], packed=False, cached_cols=0, slots=1, cache_bytes=0, held_bytes=0)
    # a plane's dataset lacks the axis of bands
    size = dict(zip(cube.axes, (int(n) for n in chunks), strict=False))
    full = dict(zip(cube.axes, (int(n) for n in found.shape), strict=False))
    chunk_bytes = int(np.prod(chunks, dtype=np.int64)) * found.dtype.itemsize
    along = -(-full.get("b", 1) // size.get("b", 1))
    across = -(-full["x"] // size["x"])
    limit = CACHE_BYTES if cube.bands is None or len(cube.bands) > 1 else _SMALL_CACHE_BYTES
    kept = min(across, limit // (along * chunk_bytes))
    cache = kept * along * chunk_bytes
    return _Plan(
        rows=size["y"],
        cols=size["x"],
        packed=True,
        cached_cols=min(full["x"], kept * size["x"]),
        slots=100 * kept * along + 1,  # what the library's manual advises
        cache_bytes=cache,
        held_bytes=cache + 2 * chunk_bytes,
    )


def _read(
    parts: Sequence[H5Cube], key: Any, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Read a window of cubes that follow each other along the bands."""
    (y, x, band), drop = split_key(key, shape)
    wanted = indices(band, shape[2])
    y0, y1, y_inside = hull(y)
    x0, x1, x_inside = hull(x)
    if 0 in (y1 - y0, x1 - x0, len(wanted)):
        return squeeze(np.empty((length(y), length(x), len(wanted)), dtype), drop)
    axes = parts[0].axes
    sizes = {"y": y1 - y0, "x": x1 - x0, "b": len(wanted)}
    buffer = lend(tuple(sizes[axis] for axis in axes), dtype)
    first = 0
    for part in parts:
        here = np.flatnonzero((wanted >= first) & (wanted < first + part.shape[2]))
        stored = wanted[here] - first
        if part.bands is not None:
            stored = np.asarray(part.bands)[stored]
        if len(here):
            _fill(part, (y0, y1), (x0, x1), stored, buffer, here)
        first += part.shape[2]
    block = buffer.transpose([axes.index(axis) for axis in "yxb"])
    return squeeze(_inside(block, y_inside, x_inside), drop)


def _inside(block: NDArray[Any], y: Axis, x: Axis) -> NDArray[Any]:
    return block[y][:, x]


def _fill(
    cube: H5Cube,
    y: tuple[int, int],
    x: tuple[int, int],
    stored: NDArray[np.intp],
    buffer: NDArray[Any],
    here: NDArray[np.intp],
) -> None:
    """Read stored bands of a window to the places `here` along the bands of a buffer in the stored order of axes."""
    runs = list(_runs(stored, here))
    with guarded(cube.path), HANDLES.lock:
        for found, x0, x1 in _datasets(cube, x):
            place = {"y": slice(0, y[1] - y[0]), "x": slice(x0 - x[0], x1 - x[0])}
            source = {"y": slice(*y), "x": slice(x0, x1)}
            if len(runs) <= _MOST_RUNS:
                for count, from_band, to_band in runs:
                    source["b"] = slice(from_band, from_band + count)
                    place["b"] = slice(to_band, to_band + count)
                    stored_axes = cube.axes[: len(found.shape)]
                    if found.shape and len(stored_axes) == len(cube.axes):
                        found.read_direct(buffer, _pick(cube.axes, source), _pick(cube.axes, place))
                    else:  # a plane: no stored axis of bands
                        buffer[_pick(cube.axes, place)] = found[_pick(stored_axes, source)][..., None]
                continue
            low, high = int(stored.min()), int(stored.max()) + 1
            source["b"] = slice(low, high)
            whole = found[_pick(cube.axes, source)]
            at = cube.axes.index("b")
            target = np.moveaxis(buffer[_pick(cube.axes, {**place, "b": slice(None)})], at, 0)
            target[here] = np.moveaxis(whole, at, 0)[stored - low]


def _pick(axes: str, by_axis: dict[str, slice]) -> tuple[slice, ...]:
    return tuple(by_axis[axis] for axis in axes)


def _runs(stored: NDArray[np.intp], here: NDArray[np.intp]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of bands that follow each other in the file and in the buffer: count, first stored, first place."""
    breaks = np.flatnonzero((np.diff(stored) != 1) | (np.diff(here) != 1)) + 1
    for piece in np.split(np.arange(len(stored)), breaks):
        yield len(piece), int(stored[piece[0]]), int(here[piece[0]])


def _datasets(cube: H5Cube, x: tuple[int, int]) -> Iterator[tuple[h5py.Dataset, int, int]]:
    """Yield open datasets and the columns that each of them shall read: those that are kept decoded first."""
    handle = HANDLES.get(cube.path, cube.dataset, 0, lambda: _open(cube, keep=True))
    kept = cast("_Plan", handle.plan).cached_cols
    if kept == 0 or x[1] <= kept:
        yield handle.dataset, *x
        return
    edge = max(x[0], kept)
    if x[0] < edge:
        yield handle.dataset, x[0], edge
    yield HANDLES.get(cube.path, cube.dataset, 1, lambda: _open(cube, keep=False)).dataset, edge, x[1]


def _open(cube: H5Cube, *, keep: bool) -> Handle:
    """Open a dataset whose chunk cache holds what the plan says, or nothing."""
    file = h5py.File(cube.path, "r")
    try:
        found = H5File(cube.path, file).need(cube.dataset)
        plan = _plan(found, cube)
        access: Any = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(plan.slots if keep else 1, plan.cache_bytes if keep else 0, 0.0)
        name = cast("str", found.name).encode()
        del found
        dataset = h5py.Dataset(h5py.h5d.open(file.id, name, access))
        return Handle(file, dataset, plan, plan.cache_bytes if keep else 0)
    except BaseException:
        file.close()
        raise
