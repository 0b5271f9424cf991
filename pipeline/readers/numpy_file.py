"""NumPy's own files: one array (`.npy`) or a zip archive of them (`.npz`).

Traps: an array may be in Fortran order or big-endian; object arrays are pickles, which run code when they are loaded
and are refused by name like every other type that is no real number; an archive's members may be stored (read in
place) or deflated (unpacked whole). A size is believed only after it was compared with the file's.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import struct
import zipfile
from typing import Any, BinaryIO, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError, TruncatedFileError
from .array_scene import listing, load_plane_of, scene_of
from .arrays import RawVariable
from .options import Notes, Options
from .reader import Reader
from .unpacking import Packed, begin_of, check_claim

MAGIC = b"\x93NUMPY"
ZIP = b"PK\x03\x04"
_NUMBERS = re.compile(r"\|[iu]1|[<>=]?[iu][1248]|[<>=]?f[248]")
_HEADER_BYTES = 2**16
_LOCAL = 30
_MOST_MEMBERS = 10_000
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def open_numpy(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a `.npy` or `.npz` file as a lazy scene.

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
        If it holds no array of real numbers that can be a cube, or is damaged.
    TruncatedFileError
        If it is shorter than its header promises.
    """
    return scene_of(path, read_variables(path, notes), options, notes, reader="numpy", why=why)


def load_plane(path: str, variable: str | None = None) -> NDArray[Any]:
    """Return the one array with two axes of a file, such as a label raster (read into memory)."""
    return load_plane_of(path, read_variables(path, Notes()), variable)


def read_variables(path: str, notes: Notes) -> list[RawVariable]:
    """List the arrays of a file; the one of a `.npy` file is called `array`.

    Raises
    ------
    TruncatedFileError
        If the file is shorter than its header promises.
    FormatError
        If it is damaged.
    """
    with open(path, "rb") as file:
        head = file.read(len(MAGIC))
        if head != MAGIC:
            return _members(path)
        file.seek(0)
        found = _array(file, path, "array")
    expected, actual = found.start + _bytes(found), os.path.getsize(path)
    if actual < expected:
        msg = (
            f"{path} holds {actual} bytes, but its header promises {expected} ({listing([found])}): it is cut short; "
            "write or fetch it again"
        )
        raise TruncatedFileError(msg)
    if actual > expected:
        notes.warn(f"{path} holds {actual - expected} bytes more than its header promises; they are ignored")
    return [found]


def _bytes(variable: RawVariable) -> int:
    """Return the bytes of the numbers; 0 for what cannot be read."""
    return 0 if variable.dtype is None else math.prod(variable.shape) * variable.dtype.itemsize


def _array(file: BinaryIO | io.BytesIO, path: str, name: str) -> RawVariable:
    """Parse the header at the file's position; the numbers start where it ends.

    Not by NumPy's own function, which repairs what it cannot parse, with a warning, and fails in many ways on bytes that
    are no header.
    """
    try:
        descr, column_major, shape = _header(file)
    except (ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError, struct.error) as error:
        msg = f"{path}, array {name!r}: its header cannot be read ({str(error)[:200]}); the file is damaged"
        raise FormatError(msg) from error
    start = file.tell()
    if not isinstance(descr, str):
        return RawVariable(path, name, shape, None, column_major, "an array with named fields", start)
    if descr.strip("|<>=").startswith("O"):
        return RawVariable(path, name, shape, None, column_major, "object (a pickle)", start)
    if descr == "|b1":
        return RawVariable(path, name, shape, np.dtype("u1"), column_major, "logical", start)
    if not _NUMBERS.fullmatch(descr):
        return RawVariable(path, name, shape, None, column_major, _spelled(descr), start)
    dtype = np.dtype(descr)
    return RawVariable(path, name, shape, dtype, column_major, dtype.name, start)


def _header(file: BinaryIO | io.BytesIO) -> tuple[Any, bool, tuple[int, ...]]:
    """Return type, whether the first axis runs fastest, and shape, as a header spells them."""
    start = file.read(len(MAGIC) + 2)
    if not start.startswith(MAGIC) or start[len(MAGIC) :] not in (b"\1\0", b"\2\0", b"\3\0"):
        msg = f"it begins with {start[:8]!r}"
        raise ValueError(msg)
    kind = "<H" if start[len(MAGIC)] == 1 else "<I"
    (size,) = struct.unpack(kind, file.read(struct.calcsize(kind)))
    text = file.read(size) if size <= _HEADER_BYTES else b""
    if len(text) != size:
        msg = f"{size} bytes long"
        raise ValueError(msg)
    # Python 2 wrote whole numbers as 10L
    found = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text.decode("utf-8")).strip())
    shape, column_major = found["shape"], found["fortran_order"]
    if not isinstance(shape, tuple) or not isinstance(column_major, bool):
        msg = f"shape {str(shape)[:60]}, fortran_order {str(column_major)[:60]}"
        raise TypeError(msg)
    lengths = cast("tuple[Any, ...]", shape)
    if any(type(n) is not int or n < 0 for n in lengths) or len(lengths) > 32:
        msg = f"shape {str(lengths)[:60]}"
        raise ValueError(msg)
    return found["descr"], column_major, lengths


def _spelled(descr: str) -> str:
    """Return a type that is no real number by its name."""
    letters = descr.strip("|<>=")[:60]
    names = {"c8": "complex64", "c16": "complex128"}
    words = {"M": f"datetime64 ({letters})", "m": f"timedelta64 ({letters})", "U": f"text ({letters})"}
    return names.get(letters) or words.get(letters[:1]) or letters


def _members(path: str) -> list[RawVariable]:
    """List the arrays of an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        NotImplementedError,
        struct.error,
        UnicodeError,
    ) as error:
        msg = f"{path} cannot be read as a NumPy archive ({error}); it is damaged or was cut short"
        raise FormatError(msg) from error
    if len(infos) > _MOST_MEMBERS:
        msg = f"{path} holds {len(infos)} members; an archive of arrays has at most {_MOST_MEMBERS}"
        raise FormatError(msg)
    end = os.path.getsize(path)
    with open(path, "rb") as file:
        return [_member(file, path, end, info) for info in infos if info.filename.endswith(".npy")]


def _member(file: BinaryIO, path: str, end: int, info: zipfile.ZipInfo) -> RawVariable:
    """Return one array of an archive, by its header alone."""
    name = info.filename.removesuffix(".npy")
    if info.flag_bits & 1 or info.compress_type not in (_STORED, _DEFLATED):
        how = "encrypted" if info.flag_bits & 1 else f"packed by method {info.compress_type}"
        return RawVariable(path, name, (), None, column_major=False, kind=f"{how}, which is not supported")
    file.seek(max(0, info.header_offset))
    local = file.read(_LOCAL)
    if info.header_offset < 0 or len(local) < _LOCAL or not local.startswith(ZIP):
        msg = f"{path}: the member {name!r} does not start where the archive says; the file is damaged"
        raise FormatError(msg)
    start = info.header_offset + _LOCAL + sum(struct.unpack("<HH", local[26:30]))
    packed_size, total = info.compress_size, info.file_size
    if start + packed_size > end:
        msg = (
            f"{path}: the member {name!r} ends at byte {start + packed_size} of {end}; the file is cut short"
        )
        raise TruncatedFileError(msg)
    file.seek(start)
    raw = file.read(min(packed_size, _HEADER_BYTES))
    packed = info.compress_type == _DEFLATED
    text = begin_of(raw, -15, _HEADER_BYTES) if packed else raw
    found = _array(io.BytesIO(text), path, name)
    expected = found.start + _bytes(found)
    if found.dtype is not None and (expected > total or (not packed and total != packed_size)):
        msg = f"{path}: the array {listing([found])} needs {expected} bytes, its member holds {total}; the file is damaged"
        raise FormatError(msg)
    if not packed:
        return RawVariable(
            path, name, found.shape, found.dtype, found.column_major, found.kind, start + found.start
        )
    check_claim(path, name, total, packed_size)
    place = Packed(start, packed_size, -15, total, info.CRC)
    return RawVariable(
        path, name, found.shape, found.dtype, found.column_major, found.kind, found.start, place
    )


def _recognise(path: str, head: bytes) -> str | None:
    if head.startswith(MAGIC):
        return "the file begins with the signature of a NumPy array"
    if not head.startswith(ZIP):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            found = next(
                (info.filename for info in archive.infolist() if info.filename.endswith(".npy")), None
            )
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, UnicodeError):
        found = path.lower().endswith(".npz") or None
        return found and "a damaged zip archive named .npz"
    return None if found is None else f"a zip archive that holds NumPy arrays ({found})"


READER = Reader("numpy", "NumPy", _recognise, open_numpy, proved="real files")
