"""An HDF5 file as a container of arrays with named axes, the way `contract` and `netcdf` look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import dask.array as da
import h5py
import h5py.h5o
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .contract import Entry, is_small
from .cube import even_chunks, rows_per_chunk
from .hdf import H5Plane, cube_of, lazy_h5, opened, row_chunks
from .hdf_file import H5File, attribute
from .options import Notes

_MOST_OBJECTS = 5000


class HdfContainer:
    """An HDF5 file, and its arrays by their paths from the root."""

    def __init__(self, h5: H5File) -> None:
        self.path = h5.path
        self.attrs: Mapping[str, Any] = _attributes(h5, "")
        self.entries: Mapping[str, Entry] = {name: _entry(h5, name) for name in _names(h5)}

    def values(self, name: str) -> NDArray[Any]:
        """Read a small array."""
        entry = self.entries[name]
        with opened(self.path) as h5:
            if entry.dtype is None:
                return np.asarray(h5.texts(name), object)
            if not is_small(entry):
                msg = f"{self.path}: {name} has the shape {entry.shape}; a list was expected"
                raise FormatError(msg)
            values = np.asarray(h5.need(name)[()])
        return values.astype(bool) if text_of(entry.attrs.get("dtype")) == "bool" else values

    def cube(self, name: str, axes: str, notes: Notes) -> tuple[da.Array, int | None]:
        """Return an array as lazy cube."""
        with opened(self.path) as h5:
            cube = cube_of(h5, name, axes)
            rows, cols, held = row_chunks([cube], h5, notes)
        return lazy_h5(cube, rows, cols), held

    def plane(self, name: str, axes: str) -> da.Array:
        """Return an array as lazy plane."""
        entry = self.entries[name]
        assert entry.dtype is not None
        rows, cols = (entry.shape[axes.index(axis)] for axis in "yx")
        plane = H5Plane(self.path, name, (rows, cols), entry.dtype.newbyteorder("="), axes)
        lazy = lazy_h5(plane, even_chunks(rows, rows_per_chunk(cols * entry.dtype.itemsize, rows)))
        return lazy.astype(bool) if text_of(entry.attrs.get("dtype")) == "bool" else lazy


def _names(h5: H5File) -> Iterator[str]:
    """Yield the paths of the datasets of a file, groups in breadth; links out of the file are left out."""
    waiting, count = [""], 0
    seen: set[Any] = set()
    while waiting:
        group = waiting.pop(0)
        for member in h5.members(group):
            name = f"{group}/{member}" if group else member
            count += 1
            if count > _MOST_OBJECTS:
                return
            try:
                node = h5.find(name)
                dataset = h5.dataset(name)
            except FormatError:
                continue
            if node is None:
                continue
            address = cast("Any", h5py.h5o.get_info(node.id)).addr
            if address in seen:
                continue
            seen.add(address)
            if dataset is not None:
                yield name
            else:
                waiting.append(name)


def _entry(h5: H5File, name: str) -> Entry:
    """Return what is known of a dataset."""
    found = h5.need(name)
    shape = tuple(int(n) for n in cast("tuple[int, ...]", found.shape))
    dtype = found.dtype if found.dtype.kind in "iufb" and found.dtype.itemsize <= 8 else None
    return Entry(name, _dims(found, name, shape), shape, dtype, _attributes(h5, name))


def _dims(found: h5py.Dataset, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of the axes by the dimension scales of HDF5; empty texts where there are none."""
    if len(shape) == 1 and h5py.h5ds.is_scale(found.id):
        return (name,)
    out: list[str] = []
    for axis in range(len(shape)):
        scales = cast("Any", found.dims[axis])
        out.append(str(scales[0].name).strip("/") if len(scales) else "")
    return tuple(out)


def _attributes(h5: H5File, name: str) -> dict[str, Any]:
    """Return the attributes of an object that are numbers or texts."""
    node = h5.find(name)
    out: dict[str, Any] = {}
    if node is None:
        return out
    for key, _ in zip(node.attrs, range(500), strict=False):
        if key in ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME"):
            continue
        value = attribute(node, str(key), h5.path)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(-1)[0]
        if isinstance(value, np.generic):
            value = value.item()
        if value is not None:
            out[str(key)] = value
    return out


def text_of(value: Any) -> str | None:
    """Return a text attribute; None for anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
