"""HDF5 files (netCDF-4 among them) opened with care: what they claim is checked before it is believed.

Refused, since a file from the archive must not reach beyond itself: external links, user-defined links, virtual
datasets and datasets whose bytes lie in other files. Soft links are followed inside the file only. A dataset that
claims far more numbers than the bytes it stores could ever decode to is refused before anything is allocated, and
every error of the library becomes a `FormatError` that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import h5py
import h5py.h5l
import h5py.h5o
import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamError, FormatError, SceneNotFoundError, TruncatedFileError
from .hdf_handles import HANDLES

SIGNATURE = b"\x89HDF\r\n\x1a\n"

LARGEST_EXPANSION = 2000
"""Most numbers' bytes per stored byte: deflate reaches 1030, and parts never written are stored as nothing."""

SMALL_BYTES = 64 * 2**20
"""Claims up to this size are believed."""

_LARGEST_ATTRIBUTE = 4 * 2**20
_LARGEST_LIST = 1_000_000
_MOST_OBJECTS = 5_000
_DEEPEST = 16
_LARGEST_USER_BLOCK = 2**20
_LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
_ADD_FILTER = "install the package hdf5plugin, or rewrite the file with gzip (h5repack -f GZIP=4)"


def is_hdf5(path: str, head: bytes) -> bool:
    """Return whether a file is HDF5: its signature stands at 0, or behind a user block of 512, 1024, 2048... bytes."""
    if head.startswith(SIGNATURE):
        return True
    try:
        if not head or not os.path.isfile(path):
            return False
        size, at = os.path.getsize(path), 512
        with open(path, "rb") as file:
            while at < min(size, _LARGEST_USER_BLOCK):
                file.seek(at)
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    return True
                at *= 2
    except OSError:
        return False
    return False


@contextmanager
def guarded(path: str, doing: str = "read") -> Generator[None]:
    """Turn whatever the HDF5 library raises into an error that names the file."""
    try:
        yield
    except BandstreamError:
        raise
    except FileNotFoundError as error:
        msg = f"{path} has gone since the scene was opened"
        raise SceneNotFoundError(msg) from error
    except _LIBRARY_ERRORS as error:
        text = " ".join(str(error).split())[:300]
        if "truncated file" in text:
            msg = f"{path} is shorter than its HDF5 header promises ({text}); fetch it again"
            raise TruncatedFileError(msg) from error
        msg = f"{path} cannot be {doing} as HDF5: {text or type(error).__name__}; the file is damaged: fetch it again"
        raise FormatError(msg) from error


@contextmanager
def opened(path: str) -> Generator[H5File]:
    """Open a file for reading its structure and small lists.

    Raises
    ------
    FormatError
        If the library cannot read it, here or anywhere inside the block.
    TruncatedFileError
        If it is shorter than its header promises.
    """
    with guarded(path, "opened"):
        HANDLES.close_earlier(path)
        file = h5py.File(path, "r")
    try:
        with guarded(path):
            yield H5File(path, file)
    finally:
        with guarded(path, "closed"):
            file.close()


def recognised(path: str, head: bytes, test: Callable[[H5File], str | None]) -> str | None:
    """Return what `test` says of an HDF5 file; None for whatever is none, or is damaged."""
    if not is_hdf5(path, head):
        return None
    try:
        with opened(path) as h5:
            return test(h5)
    except (BandstreamError, OSError):
        return None


class H5File:
    """An open HDF5 file whose objects are found by paths that never leave it.

    Attributes
    ----------
    path
        The file.
    file
        The h5py file.
    """

    def __init__(self, path: str, file: h5py.File) -> None:
        self.path = path
        self.file = file

    def find(self, name: str) -> h5py.Group | h5py.Dataset | None:
        """Return the object at a path from the root, or None where there is none.

        Raises
        ------
        FormatError
            If a link on the way leads out of the file or in circles.
        """
        return self._walk(self.file, name, 0)

    def _walk(self, start: h5py.Group, name: str, depth: int) -> h5py.Group | h5py.Dataset | None:
        """Follow a path link by link."""
        if depth > _DEEPEST:
            msg = f"{self.path}: the links at {name} lead in circles; the file is damaged"
            raise FormatError(msg)
        node: Any = start
        for part in name.split("/"):
            if not part or part == ".":
                continue
            if not isinstance(node, h5py.Group):
                return None
            node = self._step(node, part, depth)
            if node is None:
                return None
        return cast("h5py.Group | h5py.Dataset", node)

    def _step(self, group: h5py.Group, part: str, depth: int) -> Any:
        """Return the member of a group; None where there is none."""
        links, key = cast("Any", group.id).links, part.encode()
        if not links.exists(key):
            return None
        kind = links.get_info(key).type
        if kind == h5py.h5l.TYPE_HARD:
            return group[part]
        if kind == h5py.h5l.TYPE_SOFT:
            target = links.get_val(key).decode("utf-8", "replace")
            return self._walk(self.file if target.startswith("/") else group, target, depth + 1)
        msg = (
            f"{self.path}: {group.name}/{part} is a link to another file; links out of the file are refused. "
            "Copy its contents into one file (h5repack, or h5py's copy with expand_external)"
        )
        raise FormatError(msg)

    def group(self, name: str) -> h5py.Group | None:
        """Return the group at a path, or None."""
        node = self.find(name)
        return node if isinstance(node, h5py.Group) else None

    def dataset(self, name: str) -> h5py.Dataset | None:
        """Return the checked dataset at a path, or None where there is none.

        Raises
        ------
        FormatError
            If it is refused; see `check_dataset`.
        """
        node = self.find(name)
        if not isinstance(node, h5py.Dataset):
            return None
        check_dataset(node, self.path)
        return node

    def need(self, name: str) -> h5py.Dataset:
        """Return the checked dataset at a path.

        Raises
        ------
        FormatError
            If it is missing.
        """
        found = self.dataset(name)
        if found is None:
            msg = f"{self.path} has no dataset {name}, which this product needs; the file is incomplete or another one"
            raise FormatError(msg)
        return found

    def members(self, name: str = "") -> list[str]:
        """Return the sorted names in a group, none where there is no such group; at most 1000."""
        group = self.group(name)
        if group is None:
            return []
        names: list[str] = []
        for member in group:
            names.append(str(member))
            if len(names) >= 1000:
                break
        return sorted(names)

    def floats(self, name: str, count: int | None = None) -> NDArray[np.float64] | None:
        """Return a small list of numbers, float64, flat; None where there is none.

        Raises
        ------
        FormatError
            If it is no list of numbers, or does not have `count` of them.
        """
        found = self.dataset(name)
        if found is None:
            return None
        _must_be_small(found, self.path)
        if found.dtype.kind not in "iufb":
            msg = f"{self.path}: {name} holds {found.dtype}; allowed: numbers"
            raise FormatError(msg)
        values = np.asarray(found[()], np.float64).reshape(-1)
        if count is not None and len(values) != count:
            msg = f"{self.path}: {name} has {len(values)} values; {count} are needed, one per band"
            raise FormatError(msg)
        return values

    def texts(self, name: str) -> list[str] | None:
        """Return a small list of texts (a scalar as a list of one); None where there is none."""
        found = self.dataset(name)
        if found is None:
            return None
        _must_be_small(found, self.path)
        return [_text(value) for value in np.asarray(found[()], object).reshape(-1)]

    def attribute(self, name: str, at: str = "") -> Any:
        """Return an attribute of the object at a path (the root by default), or None where there is none.

        Raises
        ------
        FormatError
            If it claims to be larger than any attribute of a product is.
        """
        node = self.find(at)
        return None if node is None else attribute(node, name, self.path)

    def text(self, name: str, at: str = "") -> str | None:
        """Return a text attribute without the blanks around it; None where there is none or it is empty."""
        value = self.attribute(name, at)
        if value is None:
            return None
        array = np.asarray(value, object).reshape(-1)
        return _text(array[0]).strip() or None if array.size else None

    def number(self, name: str, at: str = "") -> float | None:
        """Return a finite number from an attribute; None where there is none."""
        values = self.numbers(name, at)
        return float(values[0]) if values is not None and values.size and np.isfinite(values[0]) else None

    def numbers(self, name: str, at: str = "") -> NDArray[np.float64] | None:
        """Return the numbers of an attribute, flat; None where there is none.

        Raises
        ------
        FormatError
            If it holds something else.
        """
        value = self.attribute(name, at)
        if value is None:
            return None
        try:
            if isinstance(value, (str, bytes)):
                return np.array([float(part) for part in _text(value).replace(",", " ").split()])
            return np.asarray(value, np.float64).reshape(-1)
        except (ValueError, TypeError) as error:
            msg = f"{self.path}: attribute {at}@{name} is {str(value)[:40]!r}; allowed: numbers"
            raise FormatError(msg) from error

    def need_numbers(self, name: str, count: int, at: str = "") -> NDArray[np.float64]:
        """Return `count` finite numbers of an attribute.

        Raises
        ------
        FormatError
            If it is missing, or holds something else.
        """
        values = self.numbers(name, at)
        if values is None:
            msg = f"{self.path}: attribute {at}@{name} is missing; the file is incomplete or another product"
            raise FormatError(msg)
        if len(values) != count or not np.isfinite(values).all():
            msg = f"{self.path}: attribute {at}@{name} holds {values[:4]} ({len(values)} values); allowed: {count} numbers"
            raise FormatError(msg)
        return values


def attribute(node: h5py.Group | h5py.Dataset, name: str, path: str) -> Any:
    """Return an attribute of an open object, or None.

    Raises
    ------
    FormatError
        If it claims to be larger than any attribute of a product is.
    """
    key = name.encode()
    if not h5py.h5a.exists(node.id, key):
        return None
    found: Any = h5py.h5a.open(node.id, key)
    shape = cast("tuple[int, ...] | None", found.shape)
    if shape is None:
        return None
    if _product(shape) * int(found.dtype.itemsize) > _LARGEST_ATTRIBUTE:
        msg = f"{path}: attribute {node.name}@{name} claims the shape {shape}; the file is damaged"
        raise FormatError(msg)
    return node.attrs[name]


def check_dataset(found: h5py.Dataset, path: str) -> None:
    """Raise unless a dataset can be read from this file alone, and holds what it claims.

    Raises
    ------
    FormatError
        If it is virtual, lies in other files, is packed by a filter that is not installed, or claims more than its
        stored bytes can hold.
    TruncatedFileError
        If its bytes would lie behind the end of the file.
    """
    where = f"{path}: {found.name}"
    if found.is_virtual or found.external is not None:
        msg = f"{where} is put together from other files; virtual and external datasets are refused. Copy it into one file"
        raise FormatError(msg)
    if found.shape is None:
        msg = f"{where} is empty"
        raise FormatError(msg)
    identity: Any = found.id
    plist: Any = identity.get_create_plist()
    for i in range(plist.get_nfilters()):
        code, _, _, label = plist.get_filter(i)
        if not h5py.h5z.filter_avail(code):
            name = label.decode("utf-8", "replace").strip("\0 ") or "unknown"
            msg = f"{where} is packed by the HDF5 filter {code} ({name[:40]}), which is not installed; {_ADD_FILTER}"
            raise FormatError(msg)
    claimed = _product(found.shape) * found.dtype.itemsize
    chunk = 0 if found.chunks is None else _product(found.chunks) * found.dtype.itemsize
    stored, size = int(identity.get_storage_size()), os.path.getsize(path)
    start = identity.get_offset() if found.chunks is None else None
    if stored > size or (start is not None and start + stored > size):
        msg = f"{where} needs {stored} bytes, but the file holds {size}: it was cut short or is damaged; fetch it again"
        raise TruncatedFileError(msg)
    if max(claimed, chunk) > max(SMALL_BYTES, stored * LARGEST_EXPANSION):
        msg = (
            f"{where} claims the shape {found.shape} (chunks {found.chunks}), {max(claimed, chunk)} bytes, of which "
            f"{stored} are stored; the file is damaged or was never filled"
        )
        raise FormatError(msg)


def list_cubes(path: str) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and number type of the datasets of a file that could be an image or a cube.

    Those are the ones with two axes or more, of real numbers, in the order of their names. Links out of the file and
    datasets that are refused are left out.

    Raises
    ------
    FormatError
        If the file cannot be read as HDF5.
    """
    with opened(path) as h5:
        return [
            (name, tuple(int(n) for n in found.shape), found.dtype)
            for name, found in _datasets(h5)
            if len(found.shape or ()) >= 2 and found.dtype.kind in "iuf"
        ]


def _datasets(h5: H5File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the readable datasets of a file, each once, however its groups are linked."""
    waiting: list[tuple[str, h5py.Group]] = [("", h5.file)]
    seen: set[Any] = set()
    count = 0
    while waiting:
        prefix, group = waiting.pop(0)
        for member in sorted(str(name) for name, _ in zip(group, range(_MOST_OBJECTS), strict=False)):
            count += 1
            if count > _MOST_OBJECTS:
                return
            name = f"{prefix}/{member}" if prefix else member
            try:
                node = h5.dataset(name) or h5.find(name)
            except FormatError:
                continue
            if node is None:
                continue
            address = cast("Any", h5py.h5o.get_info(node.id)).addr
            if address in seen:
                continue
            seen.add(address)
            if isinstance(node, h5py.Group):
                waiting.append((name, node))
            else:
                yield name, node


def iso_utc(text: str | None) -> str | None:
    """Return a time as ISO 8601 in UTC (`2024-05-01T10:20:30Z`); None for what is no date with a time.

    Products give UTC, with or without saying so.
    """
    if not text or not text[:4].isdigit():
        return None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return time.isoformat().replace("+00:00", "Z")


def _must_be_small(found: h5py.Dataset, path: str) -> None:
    if (found.size or 0) > _LARGEST_LIST:
        msg = f"{path}: {found.name} has the shape {found.shape}; a list of at most {_LARGEST_LIST} entries was expected"
        raise FormatError(msg)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _product(shape: tuple[int, ...]) -> int:
    """Return the product as Python's integer, which does not overflow."""
    total = 1
    for length in shape:
        total *= int(length)
    return total
