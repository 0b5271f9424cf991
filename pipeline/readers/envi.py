"""ENVI: a text header beside a file of plain numbers (bsq, bil or bip; either byte order).

Proved on real files of AVIRIS-NG, AVIRIS Classic, EMIT, PlantCV and EnMAP-Box; see `envi_header` for the traps of the
header and `envi_map` for those of the map. Sizes are checked before anything runs: a file one byte short is an error,
a longer one a warning with the surplus.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError, SceneNotFoundError, TruncatedFileError
from ..scene import make_scene
from .cube import RawCube, even_chunks, lazy_cube, rows_per_chunk
from .envi_header import EnviHeader, EnviLayout, is_envi, layout, read_header, unbraced
from .envi_map import georeference
from .options import Notes, Options
from .wavelengths import numbers, split_list, to_nanometres

__all__ = ["class_table", "find_header", "open_envi", "read_header"]

DATA_SUFFIXES = (
    "",
    ".img",
    ".dat",
    ".raw",
    ".bin",
    ".bsq",
    ".bil",
    ".bip",
    ".hyspex",
    ".envi",
    ".cube",
    ".rfl",
)
"""Endings of the data file beside `x.hdr`, tried in lower and upper case."""


def open_envi(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open an ENVI file, given its header or its data file.

    Parameters
    ----------
    path
        Header or data file.
    options
        Overrides; `data_file` and `header_offset` belong to this reader.
    notes
        Takes the warnings.
    why
        Why this reader was chosen.

    Returns
    -------
    xarray.Dataset
        A lazy scene.

    Raises
    ------
    SceneNotFoundError
        If header or data file is missing.
    FormatError
        If the header is not understood or contradicts itself.
    TruncatedFileError
        If the data file is too short.
    """
    header_path, data_path = locate(path, options.data_file)
    header = read_header(header_path)
    for message in header.warnings:
        notes.warn(message)
    place = layout(header)
    if data_path is None:
        data_path = _find_data(header_path, place)
    start = place.header_offset if options.header_offset is None else options.header_offset
    if not place.byte_order_given:
        notes.warn(f"{header_path}: no `byte order`; the numbers were taken as little-endian (0)")
    _check_size(data_path, start, place, notes)

    rows, cols, bands = place.shape_yxb
    cube = RawCube(data_path, place.shape_yxb, place.dtype, place.interleave, start)
    row_bytes = cols * bands * cube.dtype.itemsize
    data = lazy_cube(cube, even_chunks(rows, rows_per_chunk(row_bytes, rows)))
    crs, transform = georeference(header, notes)
    return make_scene(
        data,
        **band_facts(header, bands, options, notes),
        crs=crs,
        transform=transform,
        units=options.units or "",
        sensor=_sensor(header),
        acquired=header.get("acquisition time"),
        scene_id=scene_name(header_path),
        source=path,
        files=[header_path, data_path],
        reader="envi",
        why=why,
    )


def band_facts(header: EnviHeader, bands: int, options: Options, notes: Notes) -> dict[str, Any]:
    """Return what a header tells about its bands, as arguments of `make_scene`, with the user's overrides.

    Raises
    ------
    FormatError
        If a list does not have one entry per band, or holds something else than numbers.
    """
    where = header.path
    centres = _listed(header, "wavelength", bands)
    widths = _listed(header, "fwhm", bands)
    wavelength_nm, fwhm_nm = None, None
    if centres is not None:
        wavelength_nm, fwhm_nm = to_nanometres(
            centres,
            header.get("wavelength units"),
            where,
            notes,
            fwhm=widths,
            override=options.wavelength_unit,
        )
    bbl = _listed(header, "bbl", bands)
    scale, offset, told = _scaling(header, bands, options)
    return {
        "wavelength_nm": wavelength_nm,
        "fwhm_nm": fwhm_nm,
        "good_band": None if bbl is None else good_bands(bbl, where),
        "band_names": _band_names(header, bands, notes),
        "nodata": options.nodata if options.nodata is not None else _ignore_value(header, notes),
        "scale": options.scale if options.scale is not None else scale,
        "offset": options.offset if options.offset is not None else offset,
        "quantity": options.quantity or told,
    }


def good_bands(bbl: NDArray[np.float64], where: str) -> NDArray[np.bool_]:
    """Return per band whether a list of bad bands (`bbl`: 0 bad, more than 0 good) calls it good.

    Raises
    ------
    FormatError
        If an entry is NaN or infinite.
    """
    wrong = np.flatnonzero(~np.isfinite(bbl))
    if wrong.size:
        msg = f"{where}: `bbl` holds {bbl[wrong[0]]} for band {wrong[0] + 1}; allowed: 0 (bad) or 1 (good)"
        raise FormatError(msg)
    return bbl > 0


def class_table(header: EnviHeader | Mapping[str, str]) -> tuple[list[str], list[str]] | None:
    """Return names and colours of a class raster, or None when the header names no classes.

    Parameters
    ----------
    header
        What `read_header` returned, or its fields.

    Returns
    -------
    tuple or None
        Names of the values 0, 1, 2... (the first is usually `Unclassified`), and `#rrggbb` colours in the same
        order; the colours are empty where the header has no `class lookup`.

    Raises
    ------
    FormatError
        If the counts of `classes`, `class names` and `class lookup` contradict each other.
    """
    fields = header.fields if isinstance(header, EnviHeader) else header
    where = header.path if isinstance(header, EnviHeader) else "ENVI header"
    if "class names" not in fields:
        return None
    names = split_list(fields["class names"])
    count = unbraced(fields.get("classes", "")) or str(len(names))
    if not count.isdigit() or int(count) != len(names):
        msg = f"{where}: classes = {count}, but `class names` has {len(names)} entries; they must agree"
        raise FormatError(msg)
    if "class lookup" not in fields:
        return names, []
    levels = numbers(fields["class lookup"], "class lookup", where)
    if len(levels) != 3 * len(names) or (levels < 0).any() or (levels > 255).any():
        msg = f"{where}: `class lookup` has {len(levels)} numbers; allowed: 3 of 0-255 for each of {len(names)} classes"
        raise FormatError(msg)
    return names, ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in levels.astype(int).reshape(-1, 3).tolist()]


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
        if os.path.isfile(name):
            with open(name, "rb") as file:
                if is_envi(file.read(64)):
                    return name
    return None


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


def _find_data(header_path: str, place: EnviLayout) -> str:
    """Return the data file beside a header; of several, the one whose size fits."""
    base = header_path[:-4] if header_path.lower().endswith(".hdr") else header_path
    names = [base + ending for suffix in DATA_SUFFIXES for ending in (suffix, suffix.upper())]
    found = [name for name in dict.fromkeys(names) if name != header_path and os.path.isfile(name)]
    found = [name for i, name in enumerate(found) if not any(os.path.samefile(name, f) for f in found[:i])]
    if len(found) > 1:
        expected = place.header_offset + place.data_bytes
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
        msg = f"{header_path} has no data file beside it; looked for {base} with the endings {endings}: give data_file="
        raise SceneNotFoundError(msg)
    return found[0]


def _check_size(data_path: str, start: int, place: EnviLayout, notes: Notes) -> None:
    """Compare the file's size with what the header promises."""
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


def _listed(header: EnviHeader, key: str, bands: int) -> NDArray[np.float64] | None:
    """Return a list of one number per band, or None when the key is absent or empty."""
    text = header.get(key)
    if text is None:
        return None
    values = numbers(text, key, header.path)
    if len(values) != bands:
        msg = f"{header.path}: `{key}` has {len(values)} entries for {bands} bands; it must have one per band"
        raise FormatError(msg)
    return values


def _scaling(
    header: EnviHeader, bands: int, options: Options
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None, str]:
    """Return scale and offset per band and the quantity they lead to."""
    gains = _listed(header, "data gain values", bands)
    offsets = _listed(header, "data offset values", bands)
    text = header.get("reflectance scale factor")
    if text is None:
        return gains, offsets, "other"
    factor = float(numbers([text], "reflectance scale factor", header.path)[0])
    if not factor > 0 or not np.isfinite(factor):
        msg = f"{header.path}: reflectance scale factor = {text}; allowed: a positive number"
        raise FormatError(msg)
    gained = (gains is not None and (gains != 1).any()) or (offsets is not None and (offsets != 0).any())
    if gained and factor != 1 and options.scale is None:
        msg = (
            f"{header.path}: both `reflectance scale factor` and data gains or offsets are given, and which comes "
            "first is not defined; give scale= and offset="
        )
        raise FormatError(msg)
    if gained:
        return gains, offsets, "other"
    return np.full(bands, 1.0 / factor), None, "surface_reflectance"


def _ignore_value(header: EnviHeader, notes: Notes) -> float | None:
    text = header.get("data ignore value")
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = np.inf
    if not np.isinf(value):
        return value
    notes.warn(
        f"{header.path}: data ignore value = {text[:40]!r} is no finite number (nor NaN); the scene has no nodata value"
    )
    return None


def _band_names(header: EnviHeader, bands: int, notes: Notes) -> Sequence[str] | None:
    text = header.get("band names")
    if text is None:
        return None
    names = split_list(text)
    if len(names) == bands:
        return names
    notes.warn(f"{header.path}: `band names` has {len(names)} entries for {bands} bands; they are not used")
    return None


def _sensor(header: EnviHeader) -> str | None:
    text = header.get("sensor type")
    return None if text is None or text.casefold() == "unknown" else text
