"""Raw hyperspectral files to scenes: `open_scene` for one scene, `open_scenes` for many.

A reader is chosen by what a file or folder holds, not by its name; `registry` lists the readers.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Sequence
from typing import Any

import xarray as xr

from ..errors import BandstreamWarning, FormatError
from ..storage import is_remote
from . import envi, geotiff, mosaic
from .anywhere import first_bytes
from .options import Notes, Number, Options
from .paths import PathLike, common_name, expand, is_virtual, must_exist, one_per_scene, tiles_of
from .registry import READERS, candidates, head_of, named

__all__ = ["READERS", "open_scene", "open_scenes"]


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
    variable: str | None = None,
    detector: str | None = None,
    axes: str | None = None,
    shape_yx: tuple[int, int] | None = None,
    height_m: float | None = None,
) -> xr.Dataset:
    """Open a file, a product folder, or several GeoTIFF tiles of one grid, as one lazy scene.

    Parameters
    ----------
    path
        A file (for ENVI the header or the data file), a product's folder, metadata or image file, a list of GeoTIFF
        tiles, a pattern such as `tiles/*.tif`, or a folder of GeoTIFF tiles.
    reader
        Name of a reader, such as `envi` or `geotiff`; by default the content decides.
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
    variable
        Which variable to read, where a file holds several (MATLAB, NumPy archives, HDF5, netCDF).
    detector
        `vnir` or `swir`, where a product keeps them apart.
    axes
        What the stored axes are, slowest first, such as `yxb` or `byx`, where a file does not tell.
    shape_yx
        Rows and columns of a cube that is stored as a table of pixels.
    height_m
        Height of the ground above the ellipsoid, at which the pixels of EnMAP and DESIS L1B are located; by default
        the mean that the metadata give, or the middle of their rational polynomials.

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
        variable=variable,
        detector=detector,
        axes=axes,
        shape_yx=shape_yx,
        height_m=height_m,
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
    for path in one_per_scene(expand(pattern)):
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
        if is_remote(name) and not glob.has_magic(name):
            must_exist(name)
            return _open_one(name, reader, options, notes)
        if is_virtual(name) and not os.path.exists(name):
            return _open_virtual(name, options, notes)
        if os.path.isdir(name):
            return _open_folder(name, reader, options, notes)
        if os.path.isfile(name):
            return _open_one(name, reader, options, notes)
    paths = one_per_scene(expand(path))
    if len(paths) == 1:
        return _open_one(paths[0], reader, options, notes)
    given = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ", ".join(paths)
    return _open_many(paths, options, notes, reader, given, common_name(paths))


def _open_folder(name: str, reader: str | None, options: Options, notes: Notes) -> xr.Dataset:
    """Open a product's folder, else a folder of GeoTIFF tiles."""
    if reader not in (None, "geotiff") or next(candidates(name), None) is not None:
        return _open_one(name, reader, options, notes)
    return _open_many(tiles_of(name), options, notes, reader, name, os.path.basename(os.path.abspath(name)))


def _open_one(path: str, name: str | None, options: Options, notes: Notes) -> xr.Dataset:
    """Open one file or product folder with the reader that its content, or the user, asks for."""
    head = head_of(path)
    if name is not None:
        chosen, why = named(name), "asked for"
        if chosen is None:
            msg = f"reader = {name!r} is unknown; allowed: {', '.join(r.name for r in READERS)}"
            raise FormatError(msg)
        if is_remote(path) and not chosen.remote:
            raise FormatError(_only_local(path, f"reader = {name!r}"))
    elif options.allow_vrt and head.lstrip().startswith(b"<VRTDataset"):
        chosen, why = geotiff.READER, "a VRT, which the user allowed"
    else:
        chosen, why = next(candidates(path), (None, ""))
    if chosen is None and path.lower().endswith(".hdr"):
        chosen, why = envi.READER, "named .hdr"  # says what kind of header it is in place of ENVI's
    if chosen is None:
        raise FormatError(_only_local(path, "its format") if is_remote(path) else _unknown(path, head))
    scene = chosen.open(path, options, notes, why)
    if chosen.proved != "real files":
        scene.attrs["experimental"] = True
        notes.warn(
            f"{path}: the reader {chosen.name} ({chosen.title}) is experimental: it was proved on {chosen.proved}, "
            "not on files of the instrument; compare wavelengths, units and georeference with another program"
            if chosen.proved != "unproved"
            else f"{path}: the reader {chosen.name} ({chosen.title}) is unproved: no file of the instrument was at "
            "hand; check every value against another program before you rely on it"
        )
    return scene


def _open_many(
    paths: Sequence[str], options: Options, notes: Notes, reader: str | None, source: str, scene_id: str
) -> xr.Dataset:
    """Open several files as one scene."""
    if len(paths) == 1:
        return _open_one(paths[0], reader, options, notes)
    for path in paths:
        must_exist(path)
        if not (geotiff.is_tiff(first_bytes(path, 8)) and reader in (None, "geotiff")):
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


def _only_local(path: str, what: str) -> str:
    """Say that a format is not read from a bucket."""
    far = ", ".join(f"{r.title} ({r.name})" for r in READERS if r.remote)
    return f"{path}: {what} is not read from s3://; allowed there: {far}. Copy the scene to a local disc"


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
    packed = head.startswith((b"PK\x03\x04", b"\x1f\x8b"))
    todo = "Unpack it and give what is in it" if packed else "Convert the file, or give its header's path"
    return f"{path} {what}; readers: {known}. {todo}"
