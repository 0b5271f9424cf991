"""ENVI: a text header beside a file of plain numbers (bsq, bil or bip; either byte order).

Proved on real files of AVIRIS-NG, AVIRIS Classic, EMIT, PlantCV and EnMAP-Box, and on real headers of Specim, Headwall,
Resonon and ASD data; HyMap, CASI and HySpex headers were written by hand from what is published. The traps:

- of the header's form and layout: `envi_header`; of its map: `envi_map`; of wavelengths and units: `wavelengths`;
- of gains, scale factors and reflectance: `envi_bands`; of times and angles: `envi_facts`;
- of file names and sizes: `envi_files`.

Raw frames of Specim and Headwall cameras come with dark and white reference frames: where these lie beside the scene,
their headers are named in the attributes `dark_file` and `white_file`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr

from ..errors import FormatError
from ..scene import make_scene
from .cube import RawCube, even_chunks, lazy_cube, rows_per_chunk
from .envi_bands import band_facts, good_bands
from .envi_facts import scene_facts
from .envi_files import check_size, find_data, find_header, locate, reference_frames, scene_name
from .envi_header import EnviHeader, EnviLayout, is_envi, layout, read_header, unbraced
from .envi_map import georeference
from .options import Notes, Options
from .reader import Reader
from .wavelengths import numbers, split_list, to_float

__all__ = ["band_facts", "class_table", "find_header", "good_bands", "open_envi", "read_header"]


@dataclass(frozen=True)
class EnviFile:
    """A header with its data file, whose size was checked.

    Attributes
    ----------
    header
        The parsed header.
    place
        Where the numbers lie.
    data_path
        The file of numbers.
    start
        Bytes before the first number.
    """

    header: EnviHeader
    place: EnviLayout
    data_path: str
    start: int

    @property
    def cube(self) -> RawCube:
        """The numbers, as an array-like (y, x, band)."""
        place = self.place
        return RawCube(self.data_path, place.shape_yxb, place.dtype, place.interleave, self.start)

    @property
    def files(self) -> list[str]:
        """Both files."""
        return [self.header.path, self.data_path]


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
    file = check_file(path, options, notes)
    facts = band_facts(file.header, file.place.shape_yxb[2], options, notes)
    return envi_scene(file, facts, notes, source=path, reader="envi", why=why)


def check_file(path: str, options: Options, notes: Notes) -> EnviFile:
    """Find header and data file, parse the header and compare sizes; nothing of the data is read.

    Raises
    ------
    SceneError
        As `open_envi`.
    """
    header_path, data_path = locate(path, options.data_file)
    header = read_header(header_path)
    for message in header.warnings:
        notes.warn(message)
    place = layout(header)
    if data_path is None:
        data_path = find_data(header_path, place)
    start = place.header_offset if options.header_offset is None else options.header_offset
    if not place.byte_order_given:
        notes.warn(f"{header_path}: no `byte order`; the numbers were taken as little-endian (0)")
    check_size(data_path, start, place, notes)
    return EnviFile(header, place, data_path, start)


def envi_scene(file: EnviFile, facts: Mapping[str, Any], notes: Notes, **more: Any) -> xr.Dataset:
    """Put a checked file into a scene.

    Parameters
    ----------
    file
        What `check_file` returned.
    facts
        What `band_facts` returned, or as much as a product knows better.
    notes
        Takes the warnings about the map.
    **more
        Further arguments of `make_scene`; they win over what the header tells.
    """
    rows, cols, bands = file.place.shape_yxb
    cube = file.cube
    data = lazy_cube(cube, even_chunks(rows, rows_per_chunk(cols * bands * cube.dtype.itemsize, rows)))
    crs, transform = georeference(file.header, notes)
    told: dict[str, Any] = {
        "scene_id": scene_name(file.header.path),
        "files": file.files,
        **scene_facts(file.header),
        **reference_frames(file.header.path),
    }
    return make_scene(data, crs=crs, transform=transform, **{**facts, **told, **more})


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
    try:
        agrees = to_float(count) == len(names)
    except ValueError:
        agrees = False
    if not agrees:
        msg = f"{where}: classes = {count[:40]}, but `class names` has {len(names)} entries; they must agree"
        raise FormatError(msg)
    if "class lookup" not in fields:
        return names, []
    levels = numbers(fields["class lookup"], "class lookup", where)
    if len(levels) != 3 * len(names) or (levels < 0).any() or (levels > 255).any():
        msg = f"{where}: `class lookup` has {len(levels)} numbers; allowed: 3 of 0-255 for each of {len(names)} classes"
        raise FormatError(msg)
    return names, ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in levels.astype(int).reshape(-1, 3).tolist()]


def _recognise(path: str, head: bytes) -> str | None:
    if is_envi(head):
        return "the file begins with the word ENVI"
    if not head or head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return None  # a folder; a TIFF, which may have an ENVI header beside it
    header = find_header(path)
    return None if header is None else f"an ENVI header lies beside it ({os.path.basename(header)})"


READER = Reader("envi", "ENVI", _recognise, open_envi)
