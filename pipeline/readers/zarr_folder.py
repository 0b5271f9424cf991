"""Zarr format 3 folders that hold a scene (written by `writers`).

Chunks are read here and not through the zarr package: no event loop (which does not survive a fork), a missing chunk is
an error and not a run of fill values, and no size is believed that the chunk shape does not give. Only plain numbers,
bare or packed by Blosc, are read; format 2, shards, other codecs and object arrays are refused by name.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import dask.array as da
import numpy as np
import xarray as xr
from numcodecs.blosc import decompress
from numpy.typing import NDArray

from ..errors import FormatError, TruncatedFileError
from ..storage import is_remote
from .anywhere import content, files_below, folders_in, is_file
from .contract import MARKER, Container, Entry, files_of, is_small, scene_of
from .cube import even_chunks, rows_per_chunk
from .hdf import lazy_h5
from .indexing import hull, split_key, squeeze
from .options import Notes, Options
from .reader import Reader

_MOST_JSON = 8 * 2**20
_LARGEST_CHUNK = 256 * 2**20
_MOST_ARRAYS = 1000
_TYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "float16",
)


@dataclass(frozen=True)
class ZarrArray:
    """An array of a Zarr folder with the axes (y, x, band), whatever their order in the folder.

    Attributes
    ----------
    path
        Folder of the array.
    stored_shape, chunk
        Shape of array and chunks as stored.
    file_dtype
        Number type with its byte order.
    packed
        Whether chunks are packed by Blosc.
    axes
        The stored axes, slowest first; a plane lacks `b`.
    """

    path: str
    stored_shape: tuple[int, ...]
    chunk: tuple[int, ...]
    file_dtype: str
    packed: bool
    axes: str

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """(y, x, band), or (y, x)."""
        return tuple(self.stored_shape[self.axes.index(axis)] for axis in "yxb" if axis in self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number type, native byte order."""
        return np.dtype(self.file_dtype).newbyteorder("=")

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window: the chunks that it touches, each once."""
        parts = key if isinstance(key, tuple) else (key,)
        if self.ndim == 2:
            parts = (*parts, *(() if Ellipsis in parts else (Ellipsis,)), 0)
        rows, cols, bands = (*self.shape, 1)[:3]
        keys, drop = split_key(parts, (rows, cols, bands))
        spans = {axis: hull(part) for axis, part in zip("yxb", keys, strict=True)}
        low = [spans[axis][0] for axis in self.axes]
        high = [spans[axis][1] for axis in self.axes]
        out = np.empty([h - w for w, h in zip(low, high, strict=True)], self.dtype)
        if out.size:
            self.fill(out, low, high)
        order = [self.axes.index(axis) for axis in "yxb" if axis in self.axes]
        block = out.transpose(order).reshape([spans[axis][1] - spans[axis][0] for axis in "yxb"])
        for at, axis in enumerate("yxb"):
            block = block[(slice(None),) * at + (spans[axis][2],)]
        return squeeze(block, drop)

    def fill(self, out: NDArray[Any], low: list[int], high: list[int]) -> None:
        """Copy what the chunks hold of a box into an array."""
        first = [w // c for w, c in zip(low, self.chunk, strict=True)]
        count = [-(-h // c) - f for h, c, f in zip(high, self.chunk, first, strict=True)]
        for offset in np.ndindex(*count):
            number = [f + o for f, o in zip(first, offset, strict=True)]
            whole = read_chunk(self.path, number, self.chunk, self.file_dtype, packed=self.packed)
            source: list[slice] = []
            target: list[slice] = []
            for n, size, start, stop in zip(number, self.chunk, low, high, strict=True):
                begin, end = max(start, n * size), min(stop, (n + 1) * size)
                source.append(slice(begin - n * size, end - n * size))
                target.append(slice(begin - start, end - start))
            out[tuple(target)] = whole[tuple(source)]


def read_chunk(
    path: str, number: list[int], shape: tuple[int, ...], dtype: str, *, packed: bool
) -> NDArray[Any]:
    """Read one chunk.

    Raises
    ------
    TruncatedFileError
        If it is missing or too short.
    FormatError
        If it does not unpack into a chunk.
    """
    name = os.path.join(path, "c", *map(str, number))
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        raw = content(name, size + 4096 + size // 16)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        msg = f"{name} is missing, a chunk of the scene; copy the folder again"
        raise TruncatedFileError(msg) from error
    if raw is None:
        msg = f"{name} is larger than a chunk of {size} bytes can be; it is damaged"
        raise FormatError(msg)
    if packed:
        # the header of Blosc states the size that unpacking allocates
        if (
            len(raw) < 16
            or struct.unpack_from("<I", raw, 4)[0] != size
            or struct.unpack_from("<I", raw, 12)[0] != len(raw)
        ):
            msg = f"{name} does not hold a chunk of {size} bytes; it is damaged or was cut short"
            raise TruncatedFileError(msg)
        try:
            raw = cast("bytes", decompress(raw))
        except (RuntimeError, ValueError) as error:
            msg = f"{name} cannot be unpacked ({error}); it is damaged"
            raise FormatError(msg) from error
    if len(raw) != size:
        msg = f"{name} holds {len(raw)} bytes of a chunk of {size}; copy the folder again"
        raise TruncatedFileError(msg)
    return np.frombuffer(raw, dtype).reshape(shape)


class ZarrFolder:
    """A Zarr group in a folder, and its arrays."""

    def __init__(self, path: str) -> None:
        self.path = path
        top = _metadata(path)
        if top.get("node_type") != "group":
            msg = f"{path} is a Zarr array, not a group; a scene is a group with data(y, x, band)"
            raise FormatError(msg)
        self.attrs: Mapping[str, Any] = _dictionary(top.get("attributes"))
        self.arrays: dict[str, ZarrArray] = {}
        self.entries: Mapping[str, Entry] = {}
        found: dict[str, Entry] = {}
        for name in folders_in(path)[:_MOST_ARRAYS]:
            folder = os.path.join(path, name)
            if is_file(os.path.join(folder, "zarr.json")):
                meta = _metadata(folder)
                if meta.get("node_type") == "array":
                    found[name], self.arrays[name] = _array(folder, name, meta)
        self.entries = found

    def values(self, name: str) -> NDArray[Any]:
        """Read a small array."""
        array, entry = self.arrays[name], self.entries[name]
        if not is_small(entry) or len(entry.shape) > 1:
            msg = f"{self.path}: {name} has the shape {entry.shape}; a list was expected"
            raise FormatError(msg)
        out = np.empty(entry.shape, array.dtype)
        if out.size and out.ndim:
            array.fill(out, [0], list(entry.shape))
        return out.astype(bool) if entry.attrs.get("dtype") == "bool" else out

    def cube(self, name: str, axes: str, notes: Notes) -> tuple[da.Array, int | None]:
        """Return an array as lazy cube."""
        del notes
        array = _with_axes(self.arrays[name], axes)
        _must_be_whole(array)
        rows, cols, bands = array.shape
        high, wide, _ = (array.chunk[axes.index(axis)] for axis in "yxb")
        item = array.dtype.itemsize
        held = 2 * math.prod(array.chunk) * item
        if high * cols * bands * item <= 64 * 2**20:
            return lazy_h5(
                array, even_chunks(rows, rows_per_chunk(cols * bands * item, rows, high)), (cols,)
            ), held
        return lazy_h5(array, even_chunks(rows, min(high, rows)), even_chunks(cols, min(wide, cols))), held

    def plane(self, name: str, axes: str) -> da.Array:
        """Return an array as lazy plane."""
        array = _with_axes(self.arrays[name], axes)
        _must_be_whole(array)
        rows, cols = array.shape
        chunks = even_chunks(
            rows, rows_per_chunk(cols * array.dtype.itemsize, rows, array.chunk[axes.index("y")])
        )
        lazy = lazy_h5(array, chunks, (cols,))
        return lazy.astype(bool) if self.entries[name].attrs.get("dtype") == "bool" else lazy


def _with_axes(array: ZarrArray, axes: str) -> ZarrArray:
    return ZarrArray(array.path, array.stored_shape, array.chunk, array.file_dtype, array.packed, axes)


def _must_be_whole(array: ZarrArray) -> None:
    """Refuse an array with fewer files than chunks, before anything is planned for as many as it claims."""
    claimed = math.prod(-(-n // c) for n, c in zip(array.stored_shape, array.chunk, strict=True))
    found = len(files_below(os.path.join(array.path, "c")))
    if found < claimed:
        msg = f"{array.path} holds {found} of its {claimed} chunks; copy the folder again"
        raise TruncatedFileError(msg)


def _metadata(folder: str) -> dict[str, Any]:
    """Read the `zarr.json` of a folder."""
    name = os.path.join(folder, "zarr.json")
    try:
        raw = content(name, _MOST_JSON)
        if raw is None:
            msg = f"{name} is larger than {_MOST_JSON} bytes; the folder is damaged"
            raise FormatError(msg)
        found: Any = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{name} cannot be read ({type(error).__name__}); the folder is damaged"
        raise FormatError(msg) from error
    meta = _dictionary(found)
    if meta.get("zarr_format") != 3:
        msg = f"{name}: zarr_format = {str(meta.get('zarr_format'))[:20]}; only format 3 is read"
        raise FormatError(msg)
    return meta


def _dictionary(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(folder: str, name: str, meta: dict[str, Any]) -> tuple[Entry, ZarrArray]:
    """Check the metadata of an array."""
    try:
        shape = tuple(int(n) for n in meta["shape"])
        grid, keys = meta["chunk_grid"], meta.get("chunk_key_encoding", {"name": "default"})
        chunk = tuple(int(n) for n in grid["configuration"]["chunk_shape"])
        plain = grid["name"] == "regular" and keys["name"] == "default"
        plain = plain and _dictionary(keys.get("configuration")).get("separator", "/") == "/"
        codecs = [(str(codec["name"]), _dictionary(codec.get("configuration"))) for codec in meta["codecs"]]
        dims = tuple(
            str(dim) for dim in meta.get("dimension_names") or [f"axis_{i}" for i in range(len(shape))]
        )
        kind = meta["data_type"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"{folder}: zarr.json lacks or garbles {error}; the folder is damaged"
        raise FormatError(msg) from error
    names = [codec for codec, _ in codecs]
    if kind not in _TYPES:
        msg = f"{folder} holds {str(kind)[:60]}; allowed: {', '.join(_TYPES)}"
        raise FormatError(msg)
    if not plain or names not in (["bytes"], ["bytes", "blosc"]):
        msg = f"{folder} is packed by {', '.join(names)[:80]}; allowed: regular chunks of bytes, packed by blosc or not"
        raise FormatError(msg)
    if (
        len(chunk) != len(shape)
        or len(dims) != len(shape)
        or any(n < 1 for n in chunk)
        or any(n < 0 for n in shape)
    ):
        msg = f"{folder}: shape {shape}, chunks {chunk} and axes {dims} do not fit each other; the folder is damaged"
        raise FormatError(msg)
    order = ">" if codecs[0][1].get("endian") == "big" else "<"
    dtype = np.dtype(kind).newbyteorder(order)
    if math.prod(chunk) * dtype.itemsize > _LARGEST_CHUNK:
        msg = f"{folder} has chunks of {math.prod(chunk) * dtype.itemsize} bytes; allowed: at most {_LARGEST_CHUNK}"
        raise FormatError(msg)
    attrs = _dictionary(meta.get("attributes"))
    if isinstance(attrs.get("_FillValue"), str):
        attrs["_FillValue"] = _fill_value(attrs["_FillValue"])
    entry = Entry(name, dims, shape, dtype.newbyteorder("="), attrs)
    return entry, ZarrArray(folder, shape, chunk, dtype.str, "blosc" in names, "".join("yxb"[: len(shape)]))


def _fill_value(text: str) -> float | None:
    """Return the fill value of floats, which xarray writes as the base64 of a double."""
    import base64
    import binascii

    try:
        return float(struct.unpack("<d", base64.standard_b64decode(text))[0])
    except (binascii.Error, struct.error, ValueError):
        return None


def open_zarr(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a Zarr folder that holds a scene.

    Raises
    ------
    FormatError
        If it is no scene, of format 2, or packed in another way than `writers` does.
    """
    if not is_file(os.path.join(path, "zarr.json")):
        msg = f"{path} is a Zarr folder of format 2; only format 3 is read: write it again with zarr_format=3"
        raise FormatError(msg)
    top = _metadata(path)
    attrs = _dictionary(top.get("attributes"))
    if MARKER not in attrs:
        if "bandstream" in attrs:
            msg = f"{path} is a patch store, not a scene; `bandstream store info` describes it"
            raise FormatError(msg)
        names = ", ".join(folders_in(path)[:10])
        msg = (
            f"{path} is no scene that Bandstream wrote (it holds {names or 'nothing'}); open it with xarray and write it "
            "with write_scene"
        )
        raise FormatError(msg)
    store: Container = ZarrFolder(path)
    files = files_of(path)
    return scene_of(store, options, notes, reader="zarr", why=why, files=files)


def _recognise(path: str, head: bytes) -> str | None:
    if head or not (is_remote(path) or os.path.isdir(path)):
        return None
    if is_file(os.path.join(path, "zarr.json")):
        return "the folder holds a zarr.json"
    return "the folder holds a .zgroup" if is_file(os.path.join(path, ".zgroup")) else None


READER = Reader("zarr", "Zarr", _recognise, open_zarr, proved="real files", remote=True)
