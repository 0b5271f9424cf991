"""Raw hyperspectral files to scenes: `open_scene` for one scene, `open_scenes` for many.

A reader is chosen by what a file holds, not by its name: the word `ENVI` or an ENVI header beside it, the first bytes
of a TIFF. Adding a format means adding a module here with one function of `open_envi`'s shape, and a `Reader`.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import xarray as xr

from ..errors import BandstreamWarning, FormatError, SceneNotFoundError
from . import envi, geotiff, mosaic
from .envi_header import is_envi
from .options import Notes, Number, Options

__all__ = ["READERS", "open_scene", "open_scenes"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Reader:
    """One format: how to know it, and how to open it.

    Attributes
    ----------
    name
        Name by which a user can ask for it.
    title
        Name for people.
    recognise
        From path and first bytes to the reason why the file is this format, or None.
    open
        From path, options, notes and that reason to a scene.
    """

    name: str
    title: str
    recognise: Callable[[str, bytes], str | None]
    open: Callable[[str, Options, Notes, str], xr.Dataset]


def _recognise_envi(path: str, head: bytes) -> str | None:
    if is_envi(head):
        return "the file begins with the word ENVI"
    header = None if geotiff.is_tiff(head) else envi.find_header(path)
    return None if header is None else f"an ENVI header lies beside it ({os.path.basename(header)})"


def _recognise_geotiff(path: str, head: bytes) -> str | None:
    del path
    return (
        f"the file begins with the signature of a TIFF ({head[:2].decode()})"
        if geotiff.is_tiff(head)
        else None
    )


READERS = (
    Reader("envi", "ENVI", _recognise_envi, envi.open_envi),
    Reader("geotiff", "GeoTIFF", _recognise_geotiff, geotiff.open_geotiff),
)
"""All readers, in the order in which they are asked."""

_OTHERS = (
    (b"\x89HDF\r\n\x1a\n", "HDF5 or netCDF-4"),
    (b"\x0e\x03\x13\x01", "HDF4"),
    (b"CDF", "netCDF-3"),
    (b"MATLAB 5.0", "MATLAB"),
    (b"\x93NUMPY", "NumPy .npy"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip-compressed"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"\0\0\0\x0cjP", "JPEG 2000"),
    (b"NITF", "NITF"),
    (b"<VRTDataset", "a GDAL VRT, which refers to other files"),
    (b"<?xml", "XML"),
    (b"{", "JSON"),
    (b"", "empty"),
)


def open_scene(
    path: PathLike | Sequence[PathLike],
    *,
    reader: str | None = None,
    nodata: Number | None = None,
    scale: Number | None = None,
    offset: Number | None = None,
    quantity: str | None = None,
    units: str | None = None,
    wavelength_unit: str | None = None,
    data_file: PathLike | None = None,
    header_offset: int | None = None,
    allow_vrt: bool = False,
) -> xr.Dataset:
    """Open a file, or several GeoTIFF tiles of one grid, as one lazy scene.

    Parameters
    ----------
    path
        A file (for ENVI the header or the data file), a list of GeoTIFF tiles, a pattern such as `tiles/*.tif`, or a
        folder of GeoTIFF tiles.
    reader
        `envi` or `geotiff`; by default the file's content decides.
    nodata, scale, offset
        Replace what the file says; one number, or one per band. Physical value = raw * scale + offset.
    quantity, units
        What the physical value is (`dn`, `radiance`, `toa_reflectance`, `surface_radiance`, `surface_reflectance`,
        `other`), and in which unit.
    wavelength_unit
        Unit of the wavelengths (`nm`, `um`...), where the file declares none or a wrong one.
    data_file, header_offset
        ENVI: the file of numbers where its name does not follow from the header's, and the bytes before them.
    allow_vrt
        Let GDAL open files that refer to others (VRT) and virtual paths (`/vsi...`), which can read any file and
        address that this process can.

    Returns
    -------
    xarray.Dataset
        A scene as `scene` describes it. Nothing but metadata has been read.

    Raises
    ------
    SceneNotFoundError
        If nothing is at `path`; names like it are told.
    FormatError
        If no reader knows the format, the file contradicts itself, or tiles do not fit together.
    TruncatedFileError
        If a raw file is shorter than its header promises.

    Warns
    -----
    BandstreamWarning
        Once for each thing that had to be assumed; all are kept in `attrs["warnings"]`.
    """
    options = Options(
        nodata=nodata,
        scale=scale,
        offset=offset,
        quantity=quantity,
        units=units,
        wavelength_unit=wavelength_unit,
        data_file=None if data_file is None else os.fspath(data_file),
        header_offset=header_offset,
        allow_vrt=allow_vrt,
    )
    return _with_warnings(path, reader, options, stacklevel=3)


def open_scenes(
    pattern: PathLike | Sequence[PathLike],
    *,
    reader: str | None = None,
    **options: Any,
) -> list[xr.Dataset]:
    """Open each file as a scene of its own.

    Parameters
    ----------
    pattern
        One file, a pattern such as `flight*/*.hdr`, or a list of files; in natural order (`line2` before `line10`).
        A header and its data file are one scene.
    reader, **options
        As for `open_scene`, the same for all.

    Returns
    -------
    list of xarray.Dataset
        The scenes, sorted by path; those of a list in its order.
    """
    scenes: list[xr.Dataset] = []
    given = Options(**options)
    for path in _one_per_scene(_expand(pattern)):
        scenes.append(_with_warnings(path, reader, given, stacklevel=3))  # noqa: PERF401 - a frame less for warnings
    return scenes


def _with_warnings(
    path: PathLike | Sequence[PathLike], reader: str | None, options: Options, *, stacklevel: int
) -> xr.Dataset:
    """Open what `path` stands for, and emit what there is to tell at the caller's line."""
    notes = Notes()
    scene = _open(path, reader, options, notes)
    scene.attrs["warnings"] = list(notes.messages)
    for message in notes.messages:
        warnings.warn(message, BandstreamWarning, stacklevel=stacklevel)
    return scene


def _open(
    path: PathLike | Sequence[PathLike], reader: str | None, options: Options, notes: Notes
) -> xr.Dataset:
    """Open what `path` stands for."""
    if isinstance(path, (str, os.PathLike)):
        name = os.fspath(path)
        if _is_virtual(name) and not os.path.exists(name):
            return _open_virtual(name, options, notes)
        if os.path.isdir(name):
            tiles = _tiles_of(name)
            return _open_many(tiles, options, notes, reader, name, os.path.basename(os.path.abspath(name)))
        if os.path.isfile(name):
            return _open_one(name, reader, options, notes)
    paths = _one_per_scene(_expand(path))
    if len(paths) == 1:
        return _open_one(paths[0], reader, options, notes)
    given = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ", ".join(paths)
    return _open_many(paths, options, notes, reader, given, _common_name(paths))


def _open_one(path: str, reader: str | None, options: Options, notes: Notes) -> xr.Dataset:
    """Open one file with the reader that its content, or the user, asks for."""
    with open(path, "rb") as file:
        head = file.read(512)
    if reader is not None:
        chosen = next((r for r in READERS if r.name == reader), None)
        if chosen is None:
            msg = f"reader = {reader!r} is unknown; allowed: {', '.join(r.name for r in READERS)}"
            raise FormatError(msg)
        return chosen.open(path, options, notes, "asked for")
    if options.allow_vrt and head.lstrip().startswith(b"<VRTDataset"):
        return geotiff.open_geotiff(path, options, notes, "a VRT, which the user allowed")
    for candidate in READERS:
        why = candidate.recognise(path, head)
        if why is not None:
            return candidate.open(path, options, notes, why)
    if path.lower().endswith(".hdr"):
        return envi.open_envi(
            path, options, notes, "named .hdr"
        )  # says what kind of header it is in place of ENVI's
    raise FormatError(_unknown(path, head))


def _open_many(
    paths: Sequence[str], options: Options, notes: Notes, reader: str | None, source: str, scene_id: str
) -> xr.Dataset:
    """Open several files as one scene."""
    if len(paths) == 1:
        return _open_one(paths[0], reader, options, notes)
    for path in paths:
        _must_exist(path)
        with open(path, "rb") as file:
            if not (geotiff.is_tiff(file.read(8)) and reader in (None, "geotiff")):
                msg = (
                    f"{path} is no GeoTIFF; only GeoTIFF tiles are joined into one scene. Give one file, or open "
                    f"the {len(paths)} files one by one (open_scenes)"
                )
                raise FormatError(msg)
    why = f"{len(paths)} TIFF files were given as tiles"
    return mosaic.open_mosaic(paths, options, notes, why, source=source, scene_id=scene_id)


def _open_virtual(name: str, options: Options, notes: Notes) -> xr.Dataset:
    """Open a path that only GDAL understands, if the user allows it."""
    if not options.allow_vrt:
        msg = (
            f"{name}: GDAL's virtual paths and addresses can reach any file or host, and are refused; give a local "
            "file, or allow_vrt=True if you trust where the path comes from"
        )
        raise FormatError(msg)
    return geotiff.open_geotiff(name, options, notes, "a virtual path, which the user allowed")


def _is_virtual(name: str) -> bool:
    return name.startswith("/vsi") or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:(//|/vsi|[^\\/])", name) is not None


def _expand(pattern: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the files of a path, a pattern or a list, in natural order (a list keeps its own).

    Raises
    ------
    SceneNotFoundError
        If there is none.
    """
    if not isinstance(pattern, (str, os.PathLike)):
        paths = [os.fspath(path) for path in pattern]
        if not paths:
            msg = "the list of scene files is empty; give at least one"
            raise SceneNotFoundError(msg)
        for path in paths:
            _must_exist(path)
        return paths
    name = os.fspath(pattern)
    if os.path.isfile(name):
        return [name]
    if os.path.isdir(name):
        return _tiles_of(name)
    if glob.has_magic(name):
        found = sorted((p for p in glob.glob(name, recursive=True) if os.path.isfile(p)), key=_natural)
        if not found:
            msg = f"no file matches {name!r}{_near(name)}"
            raise SceneNotFoundError(msg)
        return found
    _must_exist(name)
    return [name]


def _one_per_scene(paths: Sequence[str]) -> list[str]:
    """Drop from a header and its data file the data file, and from both what only accompanies a raster."""
    listed = {os.path.abspath(path) for path in paths}
    kept: list[str] = []
    for path in paths:
        if path.lower().endswith(".aux.xml") and os.path.abspath(path)[: -len(".aux.xml")] in listed:
            continue
        if not path.lower().endswith(".hdr"):
            header = envi.find_header(path) if len(paths) > 1 else None
            with open(path, "rb") as file:
                tiff = geotiff.is_tiff(file.read(8))
            if header is not None and os.path.abspath(header) in listed and not tiff:
                continue
        elif len(paths) > 1 and _is_sidecar_of_tiff(path, listed):
            continue
        kept.append(path)
    return kept


def _is_sidecar_of_tiff(header: str, listed: set[str]) -> bool:
    """Return whether a `.hdr` belongs to a TIFF that is listed too."""
    base = os.path.abspath(header)[:-4]
    return any(
        base + ending in listed
        for ending in ("", *geotiff.SUFFIXES)
        if (base + ending).lower() != base + ".hdr"
    )


def _tiles_of(folder: str) -> list[str]:
    """Return the TIFF files of a folder in natural order.

    Raises
    ------
    FormatError
        If it holds none.
    """
    names = sorted(os.listdir(folder), key=_natural)
    tiles = [os.path.join(folder, name) for name in names if name.lower().endswith(geotiff.SUFFIXES)]
    if tiles:
        return tiles
    headers = [name for name in names if name.lower().endswith(".hdr")]
    hint = f"; it holds ENVI headers ({', '.join(headers[:3])}): give one of them" if headers else ""
    listed = ", ".join(names[:5]) or "nothing"
    msg = f"{folder} is a folder without TIFF files (it holds {listed}); allowed: a file, or a folder of TIFF tiles{hint}"
    raise FormatError(msg)


def _must_exist(path: str) -> None:
    if not os.path.isfile(path):
        msg = f"{path} does not exist{_near(path)}"
        raise SceneNotFoundError(msg)


def _near(path: str) -> str:
    """Return the names in the folder that are like the missing one, worded for a message."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f"; neither does the folder {folder}"
    names = [entry.name for entry in os.scandir(folder or ".")]
    lower = {n.lower(): n for n in names}
    close = get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    if not close:
        return f"; the folder holds {len(names)} other files" if names else "; the folder is empty"
    return f"; near it: {', '.join(lower[n] for n in close)}"


def _unknown(path: str, head: bytes) -> str:
    """Say what a file is that no reader opens."""
    start = head.lstrip() if head[:1].isspace() else head
    kind = next((name for magic, name in _OTHERS if (start.startswith(magic) if magic else not head)), None)
    known = ", ".join(f"{r.title} ({r.name})" for r in READERS)
    what = (
        f"is {kind}"
        if kind
        else f"begins with {head[:8]!r}, which no reader knows, and has no ENVI header beside it"
    )
    return f"{path} {what}; readers: {known}. Convert the file, or give its header's path"


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Sort key by which `tile2` comes before `tile10`."""
    parts = re.split(r"(\d+)", path)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part.lower()) for part in parts if part]


def _common_name(paths: Sequence[str]) -> str:
    """Return what the names of the tiles have in common."""
    stems = [geotiff.stem(path) for path in paths]
    alike = 0
    while all(len(stem) > alike and stem[alike] == stems[0][alike] for stem in stems):
        alike += 1
    return stems[0][:alike].rstrip("_-. ") or stems[0]
