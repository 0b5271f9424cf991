"""Deflated stretches of files, unpacked whole and with their claims checked first.

A stream can only be unpacked from its beginning. The one used last is kept, since all chunks of a cube ask for it.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .cube import file_stamp

BEST_RATIO = 1032
"""No deflate stream gets longer than this times its packed size, so a claim beyond it is false."""


@dataclass(frozen=True)
class Packed:
    """A deflated stretch of a file.

    Attributes
    ----------
    start, size
        Place of the packed bytes.
    wbits
        As `zlib.decompressobj` takes it: 15 with a zlib header, -15 without.
    total
        Bytes that come out.
    crc
        CRC-32 of what comes out, where the container states it.
    """

    start: int
    size: int
    wbits: int
    total: int
    crc: int | None = None


_unpacked_lock = threading.Lock()
_unpacked: dict[Any, NDArray[np.uint8]] = {}


def unpack(path: str, packed: Packed) -> NDArray[np.uint8]:
    """Return the unpacked bytes; the stream used last is kept, since all chunks of a cube ask for the same one.

    Raises
    ------
    FormatError
        If the stream is damaged or holds more or less than stated.
    """
    key = (path, file_stamp(path), packed)
    with _unpacked_lock:
        if key not in _unpacked:
            _unpacked.clear()
            whole = _inflate(path, packed)
            whole.flags.writeable = False
            _unpacked[key] = whole
        return _unpacked[key]


def check_claim(path: str, name: str, total: int, packed_size: int) -> None:
    """Refuse a packed variable that claims to unpack into more than any such stream can.

    Raises
    ------
    FormatError
        Before any memory is taken.
    """
    if total > packed_size * BEST_RATIO + 1024:
        msg = (
            f"{path}: the variable {name!r} claims {total} bytes, more than its {packed_size} packed bytes can hold; "
            "the file is damaged"
        )
        raise FormatError(msg)


def _inflate(path: str, packed: Packed) -> NDArray[np.uint8]:
    check_claim(path, "?", packed.total, packed.size)
    out = np.empty(packed.total, np.uint8)
    inflater, done, left, crc = zlib.decompressobj(packed.wbits), 0, packed.size, 0
    try:
        with open(path, "rb") as file:
            file.seek(packed.start)
            pending = b""
            while not inflater.eof:
                if not pending:
                    pending = file.read(min(left, 2**20))
                    left -= len(pending)
                piece = inflater.decompress(pending, 2**22)
                if not pending and not piece:
                    break
                pending = inflater.unconsumed_tail
                if done + len(piece) > packed.total:
                    break
                out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                done += len(piece)
                crc = zlib.crc32(piece, crc) if packed.crc is not None else crc
    except zlib.error as error:
        msg = f"{path}: a packed variable is damaged ({error}); fetch the file again"
        raise FormatError(msg) from error
    if done != packed.total or not inflater.eof or (packed.crc is not None and crc != packed.crc):
        msg = f"{path}: a packed variable unpacks into {done} bytes or other ones than stated ({packed.total}); the file is damaged"
        raise FormatError(msg)
    return out


def begin_of(raw: bytes, wbits: int, most: int) -> bytes:
    """Unpack the first bytes of a stream, at most `most`; none where it is no such stream."""
    try:
        return zlib.decompressobj(wbits).decompress(raw, most)
    except zlib.error:
        return b""
