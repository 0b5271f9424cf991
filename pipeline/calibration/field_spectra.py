"""Spectra measured outside a scene: field spectra, panel certificates, solar irradiance.

Two forms are read: text with one wavelength column and one column per spectrum (comma, semicolon or tab between them,
names in the first line, `#` before comments), and ENVI spectral libraries (`.sli` with `.hdr`). Wavelengths become nm
by the one rule of `readers.wavelengths`; a unit in the header's first cell, as in `wavelength_um`, counts as declared.
"""

from __future__ import annotations

import csv
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, FormatError, SceneNotFoundError, TruncatedFileError
from ..readers.envi_header import EnviHeader, is_envi, read_header
from ..readers.options import Notes
from ..readers.wavelengths import numbers, split_list, to_nanometres, unit_factor
from .gaussian import convolve

F8 = NDArray[np.float64]

MAX_TEXT_BYTES, MAX_LIBRARY_BYTES = 16 * 2**20, 256 * 2**20
"""Larger files are no tables of spectra."""

_MISSING_BELOW = -1e30
"""ENVI writes -1.23e34 where a channel of a library was deleted."""

_TYPES = {"1": "u1", "2": "i2", "3": "i4", "4": "f4", "5": "f8", "12": "u2", "13": "u4"}


@dataclass(frozen=True)
class Spectra:
    """Spectra on common wavelengths."""

    path: str
    wavelength_nm: F8  #: (n,) as listed
    spectra: dict[str, F8]  #: (n,) by name; NaN where missing

    def of_bands(self, name: str, centres_nm: F8, fwhm_nm: F8) -> F8:
        """Return one spectrum as bands with Gaussian response see it, (band,); NaN where it does not reach."""
        return convolve(self.wavelength_nm, self.spectra[name], centres_nm, fwhm_nm)

    def require_reflectance(self) -> None:
        """Refuse percentages and stored integers.

        Raises
        ------
        FormatError
            A value is too large for a reflectance.
        """
        for name, values in self.spectra.items():
            if (highest := float(np.nanmax(values, initial=-np.inf))) > 2:
                raise FormatError(
                    f"{self.path}: the spectrum {name!r} reaches {highest:g}; reflectance lies between 0 and about 1: "
                    "divide percentages by 100."
                )


def read_spectra(path: str) -> Spectra:
    """Read a text table or an ENVI spectral library.

    Raises
    ------
    SceneNotFoundError
        There is no such file.
    FormatError
        It is neither, or holds something else than numbers.
    TruncatedFileError
        The library's data are shorter than its header promises.
    """
    if not Path(path).is_file():
        raise SceneNotFoundError(f"There is no file {path} with spectra.")
    most = MAX_LIBRARY_BYTES if path.lower().endswith(".sli") else MAX_TEXT_BYTES
    if Path(path).stat().st_size > most:
        raise FormatError(f"{path} is larger than {most // 2**20} MiB: no table of spectra.")
    with Path(path).open("rb") as file:
        head = file.read(64)
    notes = Notes()
    if is_envi(head):
        found = _library(path, None, notes)
    elif path.lower().endswith(".sli"):
        header = next((name for name in (path + ".hdr", path[:-4] + ".hdr") if Path(name).is_file()), None)
        if header is None:
            raise SceneNotFoundError(
                f"{path} has no header beside it; looked for {path}.hdr and {path[:-4]}.hdr."
            )
        found = _library(header, path, notes)
    else:
        found = _table(path, notes)
    for message in notes.messages:
        warnings.warn(message, BandstreamWarning, stacklevel=2)
    return found


def _table(path: str, notes: Notes) -> Spectra:
    """Read a text table."""
    with Path(path).open("rb") as file:
        raw = file.read()
    if b"\0" in raw[:4096]:
        raise FormatError(f"{path} is no text; give a CSV table or an ENVI spectral library.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    lines = [
        (n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise FormatError(
            f"{path} is empty; a table of spectra has a wavelength column and one per spectrum."
        )
    delimiter = next((mark for mark in ("\t", ";", ",") if mark in lines[0][1]), None)
    cells = [(n, _cells(line, delimiter, f"{path}, line {n}")) for n, line in lines]
    width = len(cells[0][1])
    names = [str(column) for column in range(width)]
    if not _is_number(cells[0][1][0]):
        names = cells.pop(0)[1]
    if width < 2 or not cells:
        raise FormatError(
            f"{path} has {width} columns and {len(cells)} rows; it needs a wavelength column and a spectrum."
        )
    if len(set(names[1:])) < width - 1 or "" in names[1:]:
        raise FormatError(
            f"{path}: every column needs a name of its own in the first line, got {', '.join(names[:12])}."
        )
    values = np.array([_row(path, n, row, width) for n, row in cells], np.float64)
    nm = _nanometres(values[:, 0], _unit(names[0], path), path, notes)
    return Spectra(path, nm, {name: values[:, c] for c, name in enumerate(names) if c})


def _cells(line: str, delimiter: str | None, where: str) -> list[str]:
    if delimiter is None:
        return line.split()
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    except csv.Error as error:
        raise FormatError(f"{where} is no row of a table: {error}") from error


def _row(path: str, number: int, row: list[str], width: int) -> list[float]:
    """Return one line's numbers; empty cells are missing values."""
    if len(row) != width:
        raise FormatError(
            f"{path}, line {number}: {len(row)} cells, and the first line has {width}; they must agree."
        )
    out: list[float] = []
    for cell in row:
        if cell and not _is_number(cell):
            raise FormatError(
                f"{path}, line {number}: {cell[:40]!r} is no number; allowed: 0.123, 1e-3, nan or nothing."
            )
        value = float(cell) if cell else np.nan
        out.append(np.nan if value < _MISSING_BELOW or np.isinf(value) else value)
    return out


def _library(header_path: str, data_path: str | None, notes: Notes) -> Spectra:
    """Read an ENVI spectral library: `lines` spectra of `samples` channels."""
    header = read_header(header_path)
    kind = (header.get("file type") or "").casefold()
    if "spectral library" not in kind:
        raise FormatError(
            f"{header_path}: file type = {header.get('file type')!r}; a spectral library is needed."
        )
    data = data_path or _library_data(header_path)
    channels, count = (_whole(header, key) for key in ("samples", "lines"))
    code = header.get("data type") or ""
    if code not in _TYPES:
        raise FormatError(f"{header_path}: data type = {code[:20]!r}; allowed: {', '.join(_TYPES)}.")
    dtype = np.dtype((">" if header.get("byte order") == "1" else "<") + _TYPES[code])
    start = _whole(header, "header offset", 0)
    expected, actual = start + channels * count * dtype.itemsize, Path(data).stat().st_size
    if actual < expected:
        raise TruncatedFileError(
            f"{data} holds {actual} bytes, but its header promises {expected} ({count} spectra of {channels} channels)."
        )
    values = (
        np.fromfile(data, dtype, channels * count, offset=start).reshape(count, channels).astype(np.float64)
    )
    values[(values < _MISSING_BELOW) | ~np.isfinite(values)] = np.nan
    ignored = header.get("data ignore value")
    if ignored is not None:
        values[values == float(numbers([ignored], "data ignore value", header_path)[0])] = np.nan
    factor = header.get("reflectance scale factor")
    if factor is not None:
        divisor = float(numbers([factor], "reflectance scale factor", header_path)[0])
        if not (np.isfinite(divisor) and divisor > 0):
            raise FormatError(
                f"{header_path}: reflectance scale factor = {factor[:40]!r}; allowed: a positive number."
            )
        values /= divisor
    nm = numbers(header.get("wavelength") or "", "wavelength", header_path)
    if len(nm) != channels:
        raise FormatError(f"{header_path}: `wavelength` has {len(nm)} entries for {channels} channels.")
    names = split_list(header.get("spectra names") or "")
    if len(names) != count or len(set(names)) < count:
        names = [f"{n}" for n in range(1, count + 1)]
    nm = _nanometres(nm, header.get("wavelength units"), header_path, notes)
    return Spectra(header_path, nm, dict(zip(names, values, strict=True)))


def _library_data(header_path: str) -> str:
    base = header_path[:-4] if header_path.lower().endswith(".hdr") else header_path
    for name in (base, base + ".sli", base + ".SLI"):
        if name != header_path and Path(name).is_file():
            return name
    raise SceneNotFoundError(f"{header_path} has no library beside it; looked for {base} and {base}.sli.")


def _whole(header: EnviHeader, key: str, default: int | None = None) -> int:
    text = header.get(key)
    if text is None and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text or "") or (default is None and int(text or 0) < 1):
        raise FormatError(f"{header.path}: `{key}` = {(text or '')[:40]!r}; allowed: one whole number.")
    return int(text or 0)


def _nanometres(values: F8, unit: str | None, path: str, notes: Notes) -> F8:
    if not np.isfinite(values).all():
        raise FormatError(f"{path}: a wavelength is missing; every row needs one.")
    nm, _ = to_nanometres(values, unit, path, notes)
    if nm is None:
        raise FormatError(f"{path}: its first column holds no wavelengths in nm or um; they must come first.")
    return nm


def _unit(name: str, path: str) -> str | None:
    """Return the unit that a column's name tells, such as `wavelength_um` or `Wavelength (nm)`."""
    words = re.split(r"[\s_()\[\],/]+", name)
    return next(
        (word for word in words if word and unit_factor(word, path) is not None and word.lower() != "a"), None
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000
