"""The files of an ENVI scene: header, data file, and the reference frames that stand beside them.

Traps: the header may be named after the data file (`x.img.hdr`) or after its stem (`x.hdr`), the data file may have
any ending or none, and several files may share a stem. Sizes are checked before anything runs: a file one byte short is
an error, a longer one a warning with the surplus.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import FormatError, SceneNotFoundError, TruncatedFileError
from .envi_header import EnviLayout, is_envi
from .options import Notes

DATA_SUFFIXES = (
    *("", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".hyspex", ".envi", ".cube", ".rfl"),
    *(".pix", ".rad", ".float", ".ref", ".data"),
)
"""Endings of the data file beside `x.hdr`, tried in lower and upper case."""

_NO_DATA = (
    ".hdr",
    ".gz",
    ".zip",
    ".xml",
    ".txt",
    ".log",
    ".png",
    ".jpg",
    ".jpeg",
    ".json",
    ".csv",
    ".gain",
    ".spc",
    ".enp",
)
"""Endings of what accompanies a scene without being its numbers."""

_REFERENCES = (
    ("dark_file", ("DARKREF_{}", "darkReference")),
    ("white_file", ("WHITEREF_{}", "whiteReference")),
)
"""Reference frames as Specim's Lumo (`capture` folder) and Headwall's software name them."""


def locate(path: str, data_file: str | None = None) -> tuple[str, str | None]:
    """Return the header of `path` and the data file where it is known already.

    Raises
    ------
    SceneNotFoundError
        If there is no header, or the `data_file` given does not exist.
    """
    with open(path, "rb") as file:
        header_given = is_envi(file.read(64)) or path.lower().endswith(".hdr")
    header = path if header_given else find_header(path)
    if header is None:
        tried = ", ".join(os.path.basename(name) for name in _header_names(path))
        msg = (
            f"{path} has no ENVI header beside it; looked for {tried}: give the header's path and data_file="
        )
        raise SceneNotFoundError(msg)
    if data_file is not None:
        beside = os.path.join(os.path.dirname(header), data_file)
        found = next((name for name in (data_file, beside) if os.path.isfile(name)), None)
        if found is None:
            msg = f"data_file = {data_file!r} does not exist, neither as given nor beside {header}"
            raise SceneNotFoundError(msg)
        return header, found
    return header, None if header_given else path


def find_header(data_path: str) -> str | None:
    """Return the ENVI header beside a data file, or None."""
    for name in _header_names(data_path):
        if os.path.isfile(name) and starts_as_envi(name):
            return name
    return None


def starts_as_envi(path: str) -> bool:
    """Return whether a file can be read and begins with the word ENVI."""
    try:
        with open(path, "rb") as file:
            return is_envi(file.read(64))
    except OSError:
        return False


def scene_name(header_path: str) -> str:
    """Return the name of a scene: its header's without `.hdr` and the ending of a data file."""
    stem = Path(header_path).name
    if stem.lower().endswith(".hdr"):
        stem = stem[:-4]
    suffix = Path(stem).suffix
    return stem[: -len(suffix)] if suffix and suffix.lower() in DATA_SUFFIXES else stem


def _header_names(data_path: str) -> list[str]:
    """Return the names a header of this data file may have."""
    stem = os.path.splitext(data_path)[0]
    names = [base + ending for base in (data_path, stem) for ending in (".hdr", ".HDR")]
    return list(dict.fromkeys(names))


def find_data(header_path: str, place: EnviLayout) -> str:
    """Return the data file beside a header; of several, the one whose size fits.

    Raises
    ------
    SceneNotFoundError
        If there is none.
    FormatError
        If several fit.
    """
    base = header_path[:-4] if header_path.lower().endswith(".hdr") else header_path
    names = [base + ending for suffix in DATA_SUFFIXES for ending in (suffix, suffix.upper())]
    found = [name for name in dict.fromkeys(names) if name != header_path and os.path.isfile(name)]
    found = [name for i, name in enumerate(found) if not any(os.path.samefile(name, f) for f in found[:i])]
    expected = place.header_offset + place.data_bytes
    if not found:
        found = [name for name in _same_stem(base) if os.path.getsize(name) == expected]
    if len(found) > 1:
        fitting = [name for name in found if os.path.getsize(name) == expected]
        if len(fitting) != 1:
            msg = (
                f"{header_path} could belong to {', '.join(os.path.basename(name) for name in found)}: "
                "say which by data_file="
            )
            raise FormatError(msg)
        found = fitting
    if not found:
        endings = " ".join(suffix or "(none)" for suffix in DATA_SUFFIXES)
        packed = next((name for name in (f"{base}.gz", f"{base}.img.gz") if os.path.isfile(name)), None)
        hint = "" if packed is None else f" ({packed} is compressed: run gunzip on it)"
        msg = (
            f"{header_path} has no data file beside it; looked for {base} with the endings {endings}{hint}: "
            "give data_file="
        )
        raise SceneNotFoundError(msg)
    return found[0]


def _same_stem(base: str) -> list[str]:
    """Return the files named like the header with an ending that nobody expects, whatever the case of the letters."""
    folder, stem = os.path.split(base)
    with os.scandir(folder or ".") as entries:
        names = sorted(
            entry.name
            for entry in entries
            if os.path.splitext(entry.name)[0].casefold() == stem.casefold() and entry.is_file()
        )
    return [os.path.join(folder, name) for name in names if not name.lower().endswith(_NO_DATA)]


def check_size(data_path: str, start: int, place: EnviLayout, notes: Notes) -> None:
    """Compare the file's size with what the header promises; a longer file gives a warning.

    Raises
    ------
    TruncatedFileError
        If the file is too short.
    """
    actual = os.path.getsize(data_path)
    expected = start + place.data_bytes
    rows, cols, bands = place.shape_yxb
    promise = f"{rows} lines x {cols} samples x {bands} bands of {place.dtype} after {start} bytes"
    if actual < expected:
        msg = (
            f"{data_path} holds {actual} bytes, but its header promises {expected} ({promise}): it is cut short by "
            f"{expected - actual} bytes; fetch it again, or correct the header"
        )
        raise TruncatedFileError(msg)
    if actual > expected:
        notes.warn(
            f"{data_path} holds {actual} bytes, {actual - expected} more than its header promises ({promise}); the "
            f"surplus at the end is ignored; if it lies before the numbers give header_offset={start + actual - expected}"
        )


def reference_frames(header_path: str) -> dict[str, str]:
    """Return the headers of the dark and white reference frames beside a scene, as `dark_file` and `white_file`."""
    folder, name = os.path.split(header_path)
    if name.casefold().startswith(("darkref", "whiteref", "whitedarkref")):
        return {}
    found: dict[str, str] = {}
    stem = name[:-4] if name.lower().endswith(".hdr") else name
    for key, patterns in _REFERENCES:
        for pattern in patterns:
            frame = os.path.join(folder, pattern.replace("{}", stem) + ".hdr")
            if key not in found and os.path.isfile(frame):
                found[key] = frame
    return found
