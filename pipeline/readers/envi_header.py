"""ENVI headers as they are met: parsed leniently in form, strictly in what decides the layout of the bytes.

Lenient: CR/LF line ends, a byte-order mark, `;` comment lines, blanks everywhere, keys in any case and order, lists
with or without braces, braces inside braces, `=` inside values, text that is no UTF-8, a value that starts on the next
line. Strict: a missing or senseless layout key, an unknown interleave, file type or data type, compression, frame
offsets and read procedures are errors that name the key, since reading such a file "somehow" gives garbage silently.

Parsing takes time in proportion to the header's length, whatever it holds, and numbers that a header merely claims
cost nothing: more bands or a longer side than any instrument has are refused before the data file is looked at.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import FormatError
from .wavelengths import split_list, to_float

REQUIRED = ("lines", "samples", "bands", "data type", "interleave")
"""Keys that no header may lack. `byte order`, `header offset` and `file type` have defaults."""

DATA_TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
"""ENVI's `data type` numbers (NumPy codes without byte order)."""

COMPLEX_TYPES = {6: "complex64", 9: "complex128"}

FILE_TYPES = ("envi standard", "envi", "standard", "envi classification", "envi mask", "")
"""Values of `file type` whose data file is a plain cube of numbers."""

MAX_BANDS = 2**16
"""More bands than any spectrometer has; beyond it `bands` is another number that strayed there."""

MAX_SIDE = 2**24
"""Most lines or samples: a table of that many pixels is still read, and the coordinates of its pixels still fit."""

_LISTS = ("wavelength", "fwhm", "bbl", "map info", "data gain values", "data offset values", "band names")
"""Keys whose loss changes a scene without any other sign."""

_MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class EnviHeader:
    """A parsed header.

    Attributes
    ----------
    path
        The header file.
    fields
        Values by lower-case key; braces around a value are kept, so that lists can be told from text.
    warnings
        What the user should know about the header's form.
    """

    path: str
    fields: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())

    def get(self, key: str) -> str | None:
        """Return a value without its braces, or None when absent or blank."""
        value = self.fields.get(key)
        if value is None:
            return None
        value = unbraced(value)
        return value or None


@dataclass(frozen=True)
class EnviLayout:
    """Where the numbers lie in the data file."""

    shape_yxb: tuple[int, int, int]
    dtype: str
    interleave: str
    header_offset: int
    byte_order_given: bool

    @property
    def data_bytes(self) -> int:
        """Bytes of the cube, without the header offset."""
        rows, cols, bands = self.shape_yxb
        return rows * cols * bands * int(self.dtype[2:])


def is_envi(first_bytes: bytes) -> bool:
    """Return whether a file that begins so is an ENVI header."""
    return first_bytes.removeprefix(b"\xef\xbb\xbf").lstrip()[:4].upper() == b"ENVI"


def read_header(path: str | os.PathLike[str]) -> EnviHeader:
    """Read and parse an ENVI header.

    Raises
    ------
    FormatError
        If it is no ENVI header, or a brace is never closed.
    """
    name = os.fspath(path)
    if os.path.getsize(name) > _MAX_BYTES:
        msg = f"{name} is larger than {_MAX_BYTES // 2**20} MiB: no header; give the .hdr file"
        raise FormatError(msg)
    with open(name, "rb") as file:
        raw = file.read()
    if not is_envi(raw[:64]):
        raise FormatError(_not_envi(name, raw))
    return parse_header(decode(raw), name)


def decode(raw: bytes) -> str:
    """Decode header bytes: UTF-8 where they are that, else Latin-1 (which every byte sequence is)."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse_header(text: str, where: str) -> EnviHeader:
    """Parse the text of a header.

    Of a key given twice the last value counts; if the values differ there is a warning.

    Parameters
    ----------
    text
        The whole header; its first line is not looked at.
    where
        Name of the file, for messages.

    Raises
    ------
    FormatError
        If a brace is never closed.
    """
    stripped = [line.strip() for line in re.split(r"\r\n|\n|\r", text)[1:]]  # the first line is the word ENVI
    lines = [line for line in stripped if line and not line.startswith(";")]
    fields: dict[str, str] = {}
    warnings: list[str] = []
    at = 0
    while at < len(lines):
        key = _key(lines[at])
        if key is None:
            at += 1
            continue
        start = at
        value, at = _value(lines, at, key, where)
        if value.count("{") != value.count("}") and any(
            _key(line) in _LISTS for line in lines[start + 1 : at]
        ):
            warnings.append(
                f"{where}: the brace after `{key[:80]} =` is not closed in its place, and took the lines after it up to the "
                "next `}` with it; close it"
            )
        if key in fields and _normal(fields[key]) != _normal(value):
            warnings.append(f"{where}: `{key}` is given twice with different values; the last one counts")
        fields[key] = value
    return EnviHeader(where, fields, tuple(dict.fromkeys(warnings)))


def _key(line: str) -> str | None:
    """Return the key that a line starts with, or None."""
    key, equals, _ = line.partition("=")
    if not equals or not key.strip() or any(c in key for c in ";{}"):
        return None
    return " ".join(key.split()).lower()


def _value(lines: list[str], at: int, key: str, where: str) -> tuple[str, int]:
    """Return the value that starts in line `at`, and the number of the line after it."""
    value = lines[at].partition("=")[2].strip()
    at += 1
    if not value:
        if at == len(lines) or not lines[at].startswith("{"):
            return "", at
        value, at = lines[at], at + 1
    if not value.startswith("{"):
        return value, at
    pieces = [value]
    depth = value.count("{") - value.count("}")
    while depth > 0 and not (pieces[-1].endswith("}") and _is_key_or_end(lines, at)):
        if at == len(lines):
            msg = f"{where}: the brace after `{key[:80]} =` is never closed; the header is damaged"
            raise FormatError(msg)
        pieces.append(lines[at])
        depth += lines[at].count("{") - lines[at].count("}")
        at += 1
    text = "\n".join(pieces)
    return text[: text.rindex("}") + 1], at


def _is_key_or_end(lines: list[str], at: int) -> bool:
    """Return whether what follows starts a new key (or nothing follows), so that a lone `{` can be forgiven."""
    return at == len(lines) or _key(lines[at]) is not None


def _normal(value: str) -> str:
    return "".join(value.split()).casefold()


def unbraced(value: str) -> str:
    """Return a value without its outer braces and the blanks around."""
    value = value.strip()
    if value.startswith("{") and value.endswith("}"):
        value = value[1:-1].strip()
    return value


def layout(header: EnviHeader) -> EnviLayout:
    """Return where the numbers lie, or refuse.

    Raises
    ------
    FormatError
        If a required key is missing or senseless, or the layout is one that is not understood.
    """
    where = header.path
    file_type = (header.get("file type") or "").casefold()
    if file_type not in FILE_TYPES:
        raise FormatError(_unknown_file_type(where, header.get("file type") or ""))
    missing = [key for key in REQUIRED if header.get(key) is None]
    if missing:
        msg = (
            f"{where}: the header lacks {', '.join(f'`{key}`' for key in missing)}; an ENVI header needs "
            f"{', '.join(REQUIRED)}: add the missing key"
        )
        raise FormatError(msg)
    _refuse_special(header)
    interleave = (header.get("interleave") or "").casefold()
    if interleave not in ("bsq", "bil", "bip"):
        msg = f"{where}: interleave = {interleave[:40]!r} is unknown; allowed: bsq, bil, bip"
        raise FormatError(msg)
    rows, cols = (_count(header, key, MAX_SIDE) for key in ("lines", "samples"))
    bands = _count(header, "bands", MAX_BANDS)
    code = _integer(header, "data type")
    if code in COMPLEX_TYPES:
        msg = f"{where}: data type = {code} ({COMPLEX_TYPES[code]}); a scene holds real numbers: export the magnitude"
        raise FormatError(msg)
    if code not in DATA_TYPES:
        msg = f"{where}: data type = {code} is unknown; allowed: {', '.join(map(str, DATA_TYPES))}"
        raise FormatError(msg)
    order = 0 if header.get("byte order") is None else _integer(header, "byte order")
    if order not in (0, 1):
        msg = f"{where}: byte order = {order}; allowed: 0 (little-endian), 1 (big-endian)"
        raise FormatError(msg)
    offset = 0 if header.get("header offset") is None else _integer(header, "header offset")
    if offset < 0:
        msg = f"{where}: header offset = {offset}; it must be 0 or more bytes"
        raise FormatError(msg)
    size = DATA_TYPES[code]
    given = header.get("byte order") is not None or size[1:] == "1"
    return EnviLayout((rows, cols, bands), ("<", ">")[order] + size, interleave, offset, given)


def _refuse_special(header: EnviHeader) -> None:
    """Refuse layouts that other programs misread as a plain cube."""
    where = header.path
    compression = header.get("file compression")
    if compression is not None and compression not in ("0", "0.0"):
        msg = (
            f"{where}: file compression = {compression}: compressed data are not read. ENVI compresses with gzip: "
            "rename the data file to end in .gz, run gunzip on it, and set file compression = 0 in the header"
        )
        raise FormatError(msg)
    for key in ("major frame offsets", "minor frame offsets"):
        entries = split_list(header.get(key) or "")
        if any(entry not in ("0", "0.0", "") for entry in entries):
            msg = f"{where}: {key} = {{{', '.join(entries)[:80]}}}: frames with extra bytes are not supported; only zeros are"
            raise FormatError(msg)
    procedures = header.get("read procedures")
    if procedures is not None:
        msg = f"{where}: read procedures = {procedures[:80]}: the layout is known to that program only; export plain ENVI"
        raise FormatError(msg)


def _unknown_file_type(where: str, file_type: str) -> str:
    kind = file_type.casefold()
    allowed = "allowed: ENVI Standard, ENVI Classification"
    file_type = file_type[:80]
    if "spectral library" in kind:
        return f"{where}: file type = {file_type!r}: a library of spectra is no scene; {allowed}"
    if "tif" in kind:
        return (
            f"{where}: file type = {file_type!r}: the header describes a TIFF beside it; open the TIFF itself"
        )
    return f"{where}: file type = {file_type!r} is not supported, its layout is not known; {allowed}"


def _integer(header: EnviHeader, key: str) -> int:
    """Return an integer value (`10.0` is one)."""
    text = header.get(key) or ""
    try:
        number = to_float(text)
    except ValueError:
        number = float("nan")
    if not math.isfinite(number) or number != round(number):
        msg = f"{header.path}: `{key}` = {text[:40]!r}; allowed: one whole number"
        raise FormatError(msg)
    return int(number)


def _count(header: EnviHeader, key: str, most: int) -> int:
    number = _integer(header, key)
    if number < 1:
        msg = f"{header.path}: `{key}` = {number}: the file holds no image; allowed: 1 or more"
        raise FormatError(msg)
    if number > most:
        msg = f"{header.path}: `{key}` = {number:.6g} is no size of an image; allowed: 1 to {most}; correct the header"
        raise FormatError(msg)
    return number


def _not_envi(name: str, raw: bytes) -> str:
    """Say what a .hdr file is that does not begin with the word ENVI."""
    words = {line.split()[0].upper() for line in decode(raw[:4096]).splitlines() if line.split()}
    if words & {"NROWS", "NCOLS", "LAYOUT", "BYTEORDER", "NBITS"}:
        return (
            f"{name} is an ESRI/ArcGIS .hdr (NROWS, LAYOUT, ...), not an ENVI header: the first line must be `ENVI`; "
            "convert it, e.g. with gdal_translate -of ENVI"
        )
    return f"{name} is no ENVI header: the first line must be `ENVI`, got {decode(raw[:40])!r}"
