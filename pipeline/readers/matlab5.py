"""The variables of a MATLAB file of version 5 to 7: names, shapes, types and where the numbers lie.

Level 5 MAT-files are a list of elements, each with a tag (type, size); version 7 deflates each variable as a whole. A
variable's numbers may be stored in a smaller type than its class (a `double` of small whole numbers as `uint8`), and
the stored type is the one that counts here. Only the beginning of each element is read, so that listing the variables
costs nothing however large they are, and a size is believed only after it was compared with the file's.
(The MathWorks, *MAT-File Format*; SciPy's reader takes variables whole and allocates what they claim.)
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ..errors import FormatError, TruncatedFileError
from .arrays import RawVariable
from .unpacking import Packed, begin_of, check_claim

HEADER_BYTES = 128
_BEGIN_BYTES = 8192
"""What is read of a variable to know it: flags, dimensions, name and the tag of the numbers."""

_MOST_VARIABLES = 10_000
_MATRIX, _COMPRESSED = 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {
    1: "cell",
    2: "struct",
    3: "object",
    4: "char",
    5: "sparse",
    6: "double",
    7: "single",
    8: "int8",
    9: "uint8",
    10: "int16",
    11: "uint16",
    12: "int32",
    13: "uint32",
    14: "int64",
    15: "uint64",
    16: "function",
    17: "opaque",
}
_NUMERIC = range(6, 16)
_COMPLEX, _LOGICAL = 0x0800, 0x0200


class _DamagedError(Exception):
    """The beginning of a variable makes no sense."""


@dataclass(frozen=True)
class _Begin:
    """What the beginning of a variable tells; `at` is where its numbers start, counted from the element's tag."""

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: np.dtype[Any] | None
    at: int
    size: int


def is_matlab5(head: bytes) -> bool:
    """Return whether a file that begins so is a Level 5 MAT-file: version 1.0 and the order mark."""
    return len(head) >= HEADER_BYTES and head[124:128] in (b"\0\1IM", b"\1\0MI")


def read_variables(path: str) -> list[RawVariable]:
    """List the variables of a file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list
        In the order of the file; those that hold no plain real numbers have no dtype.

    Raises
    ------
    TruncatedFileError
        If a variable ends beyond the end of the file.
    FormatError
        If the file is no Level 5 MAT-file or is damaged.
    """
    end = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
        if not is_matlab5(head):
            msg = f"{path} is no MATLAB file of version 5 to 7; version 4 is not supported: save it with -v7"
            raise FormatError(msg)
        order = "<" if head[126:128] == b"IM" else ">"
        found: list[RawVariable] = []
        at = HEADER_BYTES
        while at + 8 <= end:
            file.seek(at)
            kind, size = struct.unpack(order + "II", file.read(8))
            if at + 8 + size > end:
                msg = (
                    f"{path} holds {end} bytes, but an element at byte {at} ends at {at + 8 + size}: it is cut short "
                    "or damaged; fetch it again"
                )
                raise TruncatedFileError(msg)
            if kind in (_MATRIX, _COMPRESSED) and size:
                try:
                    variable = _variable(file, path, order, at, size, packed=kind == _COMPRESSED)
                except (_DamagedError, struct.error) as error:
                    msg = f"{path}: the variable at byte {at} is damaged ({error}); fetch the file again"
                    raise FormatError(msg) from error
                if variable is not None:
                    found.append(variable)
            elif kind not in range(1, 19):
                msg = f"{path}: an element of unknown type {kind} at byte {at}; the file is damaged"
                raise FormatError(msg)
            if len(found) > _MOST_VARIABLES:
                msg = (
                    f"{path} holds more than {_MOST_VARIABLES} variables; it is damaged, or no file of scenes"
                )
                raise FormatError(msg)
            at += 8 + size
    return found


def _variable(
    file: BinaryIO, path: str, order: str, at: int, size: int, *, packed: bool
) -> RawVariable | None:
    """Return the variable whose element's tag is at byte `at`; None for MATLAB's nameless workspace of functions."""
    file.seek(at + 8 if packed else at)
    raw = file.read(min(size if packed else size + 8, _BEGIN_BYTES))
    text = begin_of(raw, 15, _BEGIN_BYTES) if packed else raw
    if len(text) < 8:
        msg = "its packed bytes cannot be unpacked"
        raise _DamagedError(msg)
    kind, inside = struct.unpack(order + "II", text[:8])
    if kind != _MATRIX:
        msg = f"it holds an element of type {kind} in place of a matrix"
        raise _DamagedError(msg)
    begin = _begin(text, order, 8 + inside)
    if not begin.name:
        return None
    total = 8 + inside
    if begin.dtype is not None and begin.size != math.prod(begin.shape) * begin.dtype.itemsize:
        msg = f"{begin.name}: {begin.size} bytes for {begin.shape} numbers of type {begin.dtype}"
        raise _DamagedError(msg)
    if begin.dtype is not None and begin.at + begin.size > total:
        msg = f"{begin.name}: its numbers end beyond the variable"
        raise _DamagedError(msg)
    place: dict[str, Any] = {"start": at + begin.at}
    if packed:
        check_claim(path, begin.name, total, size)
        place = {"start": begin.at, "packed": Packed(at + 8, size, 15, total)}
    return RawVariable(
        path, begin.name, begin.shape, begin.dtype, column_major=True, kind=begin.kind, **place
    )


def _begin(text: bytes, order: str, total: int) -> _Begin:
    """Parse the beginning of a matrix element."""
    flags, at = _part(text, 8, order)
    if len(flags) < 8:
        msg = "no array flags"
        raise _DamagedError(msg)
    (word,) = struct.unpack(order + "I", flags[:4])
    number = word & 0xFF
    kind = _CLASSES.get(number, f"class {number}")
    if number == 17:  # opaque objects have no dimensions
        return _Begin("", (), kind, None, 0, 0)
    dims, at = _part(text, at, order)
    shape = struct.unpack(f"{order}{len(dims) // 4}i", dims[: len(dims) // 4 * 4])
    if not 1 <= len(shape) <= 32 or min(shape) < 0:
        msg = f"dimensions {shape}"
        raise _DamagedError(msg)
    name, at = _part(text, at, order)
    label = name.decode("latin-1")
    if number not in _NUMERIC or word & (_COMPLEX | _LOGICAL):
        prefix = "complex " if word & _COMPLEX else "logical " if word & _LOGICAL else ""
        kind = (prefix + kind).replace("logical uint8", "logical")
        if kind != "logical":
            return _Begin(label, shape, kind, None, 0, 0)
    code, size, start = _tag(text, at, order)
    if code not in _STORED:
        msg = f"{label}: numbers of unknown type {code}"
        raise _DamagedError(msg)
    dtype = np.dtype(order + _STORED[code])
    if start > total:
        msg = f"{label}: nothing after its name"
        raise _DamagedError(msg)
    own = {"double": "float64", "single": "float32", "logical": "uint8"}.get(kind, kind)
    stored = kind if own == dtype.name else f"{kind} stored as {dtype.name}"
    return _Begin(label, shape, stored, dtype, start, size)


def _tag(text: bytes, at: int, order: str) -> tuple[int, int, int]:
    """Return type, size and start of the content of the element at `at`; small elements lie within their tag."""
    (first,) = struct.unpack_from(order + "I", text, at)
    if first >> 16:
        if first >> 16 > 4:
            msg = f"a small element of {first >> 16} bytes"
            raise _DamagedError(msg)
        return first & 0xFFFF, first >> 16, at + 4
    (size,) = struct.unpack_from(order + "I", text, at + 4)
    return first, size, at + 8


def _part(text: bytes, at: int, order: str) -> tuple[bytes, int]:
    """Return the content of the element at `at`, and where the next one starts."""
    _, size, start = _tag(text, at, order)
    if start + size > len(text):
        msg = f"its beginning is longer than {len(text)} bytes"
        raise _DamagedError(msg)
    after = at + 8 if start == at + 4 else start + -(-size // 8) * 8
    return text[start : start + size], after
