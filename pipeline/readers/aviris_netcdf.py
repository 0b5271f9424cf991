"""AVIRIS-3 (also AVIRIS-5 and AVIRIS-NG) L1B radiance and L2A reflectance as netCDF-4; ENVI files go to `envi`.

Traps
- Bands come first: `radiance/radiance` or `reflectance/reflectance` (wavelength, y, x), unlike EMIT, in chunks of some
  bands, so that a pixel's spectrum is spread over the file.
- Radiance is in uW cm-2 sr-1 nm-1: times 10 for W m-2 sr-1 um-1.
- L2A stands on a map grid: `easting` and `northing` are pixel *centres*, `GeoTransform` is an outer corner.
- L1B may be in the sensor's grid; then the same coordinates belong to `geolocation_lookup_table/line` and `sample`
  (counted from 1, negative where a neighbour was borrowed), which become `glt_row` and `glt_col` from 0.
- Fill is -9999, and undeclared in some files.
- Angles come from the `_OBS` file of the same line beside, by name; never from the cosine of incidence.

Sources: ORNL DAAC user guides of AVIRIS-3 L1B (10.3334/ORNLDAAC/2356) and L2A (2357); JPL's spectral_util. Proved on
generated files only.
"""

from __future__ import annotations

import os
import re

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from ..errors import BandstreamError, FormatError
from ..scene import make_scene
from .hdf import H5File, H5Plane, cube_of, iso_utc, lazy_h5, opened, plane_of, row_chunks
from .hdf_product import (
    beside,
    crs_of,
    fill_of,
    gdal_transform,
    main_file,
    no_detector,
    overrides,
    radiance_factor,
    recognise,
    with_lookup_table,
    without_fill,
)
from .options import Notes, Options
from .reader import Reader
from .wavelengths import to_nanometres

FILL = -9999.0
ANGLES = {"to_sun_zenith": "sun_zenith", "to_sun_azimuth": "sun_azimuth", "to_sensor_zenith": "view_zenith"}
"""Variables of the OBS file, and the layers they become."""

SENSORS = {"av3": "AVIRIS-3", "av5": "AVIRIS-5", "ang": "AVIRIS-NG"}
"""Beginnings of file names."""

_LINE = re.compile(r"((av3|av5|ang)(\d{8})t(\d{6})(?:_\d{3})?)_.*", re.IGNORECASE)
_SENSOR = re.compile(r"AVIRIS[-_ ]?(3|5|NG|Classic)", re.IGNORECASE)
_TABLE = "geolocation_lookup_table"
_WHAT = "AVIRIS netCDF"


def _known(h5: H5File) -> str | None:
    """Return why an HDF5 file is an AVIRIS cube, or None."""
    name = _cube_name(h5)
    if name is None or (_sensor(h5) is None and h5.group(_TABLE) is None):
        return None
    return f"netCDF-4 with {name} by wavelength, of {_sensor(h5) or 'the AVIRIS family'}"


def _cube_name(h5: H5File) -> str | None:
    """Return the path of the cube: a variable in a group of the same name, with its wavelengths beside it."""
    for name in ("radiance", "reflectance"):
        members = h5.members(name)
        if name in members and "wavelength" in members:
            return f"{name}/{name}"
    return None


def _sensor(h5: H5File) -> str | None:
    """Return the sensor by the file's attributes, else by the form of its name."""
    for key in ("instrument", "sensor", "title", "source", "platform"):
        found = _SENSOR.search(h5.text(key) or "")
        if found:
            return f"AVIRIS-{found[1].upper() if found[1].upper() == 'NG' else found[1].capitalize()}"
    line = _LINE.fullmatch(os.path.basename(h5.path))
    return None if line is None else SENSORS[line[2].lower()]


def open_aviris(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open an AVIRIS netCDF file, or a folder that holds one cube, as a lazy scene.

    Raises
    ------
    FormatError
        If the file lacks what the product promises, or contradicts itself.
    """
    file = main_file(path, _known, _WHAT)
    no_detector(options, READER.name)
    with opened(file) as h5:
        name = _cube_name(h5)
        if name is None:
            listed = ", ".join(h5.members()[:8])
            msg = f"{file} has no radiance/radiance or reflectance/reflectance; it holds {listed}: choose another reader"
            raise FormatError(msg)
        return _scene(h5, name, path, options, notes, why)


def _scene(h5: H5File, name: str, path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Make the scene of an open file."""
    group = name.split("/", maxsplit=1)[0]
    wavelength, fwhm, axes = _wavelengths(h5, name, notes)
    cube = cube_of(h5, name, axes)
    shape_yx = cube.shape[:2]
    chunks = row_chunks([cube], h5, notes)
    rows, cols, block_bytes = chunks
    numbers = overrides(
        options,
        READER.name,
        [name, group],
        quantity="radiance" if group == "radiance" else "surface_reflectance",
        units="W m-2 sr-1 um-1" if group == "radiance" else "1",
        nodata=fill_of(h5, name, FILL),
        scale=radiance_factor(h5, name, options) if group == "radiance" else None,
    )
    crs, transform, table = _place(h5, name, shape_yx, notes)
    lat, lon = (_geolocation(h5, key, shape_yx) for key in ("lat", "lon"))
    geographic = None not in (lat, lon) and (table is not None or transform is None)
    angles, distance, files = _angles(h5, shape_yx, notes)
    line = _LINE.fullmatch(os.path.basename(h5.path))
    scene = make_scene(
        lazy_h5(cube, rows, cols),
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        **numbers,
        crs=None if table else crs,
        transform=None if table else transform,
        layers={
            layer: (without_fill(lazy_h5(plane, rows, cols), fill), {"units": "degree"})
            for layer, (plane, fill) in angles.items()
        },
        lat_yx=lazy_h5(lat, rows, cols) if geographic else None,
        lon_yx=lazy_h5(lon, rows, cols) if geographic else None,
        sensor=_sensor(h5),
        product=f"{_sensor(h5) or 'AVIRIS'} {'L1B' if group == 'radiance' else 'L2A'}",
        acquired=iso_utc(h5.text("time_coverage_start"))
        or (iso_utc(f"{line[3]}T{line[4]}") if line else None),
        earth_sun_distance_au=distance,
        scene_id=os.path.splitext(os.path.basename(h5.path))[0],
        source=path,
        files=[h5.path, *files],
        block_bytes=block_bytes,
        reader=READER.name,
        why=why,
    )
    if table is None or crs is None or transform is None:
        return scene
    return with_lookup_table(scene, *table, crs, transform)


def _wavelengths(
    h5: H5File, name: str, notes: Notes
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None, str]:
    """Return wavelengths, widths, and which axis of the cube the bands are."""
    group, shape = name.split("/", maxsplit=1)[0], h5.need(name).shape
    values, widths = h5.floats(f"{group}/wavelength"), h5.floats(f"{group}/fwhm")
    count = 0 if values is None else len(values)
    if values is None or len(shape) != 3 or count not in (shape[0], shape[2]):
        msg = f"{h5.path}: {name} has the shape {shape} and {count} wavelengths; one axis must be as long as they are"
        raise FormatError(msg)
    if widths is not None and len(widths) != count:
        msg = f"{h5.path}: {group}/fwhm has {len(widths)} values for {count} bands; one per band is needed"
        raise FormatError(msg)
    unit = h5.text("units", f"{group}/wavelength") or "nm"
    wavelength, fwhm = to_nanometres(values, unit, h5.path, notes, fwhm=widths)
    return wavelength, fwhm, "byx" if shape[0] == count else "yxb"


def _place(
    h5: H5File, name: str, shape_yx: tuple[int, int], notes: Notes
) -> tuple[CRS | None, Affine | None, tuple[H5Plane, H5Plane] | None]:
    """Return coordinate system and transform, and the look-up table whose grid they are of, if there is one."""
    mapping = next(
        (
            key
            for key in (h5.text("grid_mapping", name), "transverse_mercator", "crs", "spatial_ref")
            if key is not None and h5.find(key) is not None
        ),
        None,
    )
    crs, given = None, None
    if mapping is not None:
        text = h5.text("crs_wkt", mapping) or h5.text("spatial_ref", mapping)
        crs, given = crs_of(text, h5.path, notes), gdal_transform(h5.numbers("GeoTransform", mapping))
    line = h5.dataset(f"{_TABLE}/line")
    if line is not None and len(line.shape) == 2:
        shape = int(line.shape[0]), int(line.shape[1])
        table = plane_of(h5, f"{_TABLE}/line", shape), plane_of(h5, f"{_TABLE}/sample", shape)
        transform = _transform(h5, given, shape, notes)
        if table[0] is not None and table[1] is not None and crs is not None and transform is not None:
            return crs, transform, (table[0], table[1])
        notes.warn(f"{h5.path}: {_TABLE} lacks its grid; the scene has no look-up table")
        return None, None, None
    return crs, _transform(h5, given, shape_yx, notes), None


def _transform(h5: H5File, given: Affine | None, shape: tuple[int, int], notes: Notes) -> Affine | None:
    """Return the transform that the file gives, checked against the coordinates of pixel centres beside it."""
    centres = [
        next(
            (
                values
                for base in ("", f"{_TABLE}/", "reflectance/", "radiance/")
                if (values := h5.floats(base + key)) is not None and len(values) == count
            ),
            None,
        )
        for key, count in (("easting", shape[1]), ("northing", shape[0]))
    ]
    x, y = centres
    if x is None or y is None or min(shape) < 2:
        return given
    steps = (x[-1] - x[0]) / (len(x) - 1), (y[-1] - y[0]) / (len(y) - 1)
    if 0 in steps or not np.isfinite([*steps, x[0], y[0]]).all():
        return given
    measured = Affine(steps[0], 0.0, x[0] - steps[0] / 2, 0.0, steps[1], y[0] - steps[1] / 2)
    if given is None:
        return measured
    if given.b == 0 and given.d == 0:
        apart = max(abs(given.c - measured.c) / abs(steps[0]), abs(given.f - measured.f) / abs(steps[1]))
        if apart > 0.25:
            notes.warn(
                f"{h5.path}: GeoTransform and the coordinates of the pixels lie {apart:.2g} pixels apart; the "
                "coordinates are used"
            )
            return measured
    return given


def _geolocation(h5: H5File, key: str, shape_yx: tuple[int, int]) -> H5Plane | None:
    """Return latitude or longitude of the pixels, from any place where files keep them."""
    long = {"lat": "latitude", "lon": "longitude"}[key]
    places = (f"{base}{name}" for base in ("", "location/", "geolocation/") for name in (key, long))
    return next((plane for place in places if (plane := plane_of(h5, place, shape_yx))), None)


def _angles(
    h5: H5File, shape_yx: tuple[int, int], notes: Notes
) -> tuple[dict[str, tuple[H5Plane, float | None]], float | None, list[str]]:
    """Return angles and distance of the sun from the observation file beside, and that file."""
    line = _LINE.fullmatch(os.path.basename(h5.path))
    tail = "_OBS_ORT" if os.path.splitext(h5.path)[0].lower().endswith("_ort") else "_OBS"
    file = None if line is None else beside(h5.path, rf"{re.escape(line[1])}_.*{tail}\.nc")
    if file is None:
        return {}, None, []
    found: dict[str, tuple[H5Plane, float | None]] = {}
    distance: float | None = None
    try:
        with opened(file) as other:
            for name in (f"observation_parameters/{m}" for m in other.members("observation_parameters")):
                plane, key = plane_of(other, name, shape_yx), name.rsplit("/", maxsplit=1)[1].lower()
                if plane is None:
                    continue
                layer = next((layer for start, layer in ANGLES.items() if key.startswith(start)), None)
                if layer is not None:
                    found[layer] = (plane, fill_of(other, name, FILL))
                elif key.startswith("earth_sun_distance"):
                    row = np.asarray(plane[shape_yx[0] // 2], np.float64)
                    row = row[(row > 0.9) & (row < 1.1)]
                    distance = float(np.median(row)) if row.size else None
    except BandstreamError as error:
        notes.warn(f"{file} lies beside {h5.path} but is not used: {error}")
        return {}, None, []
    return (found, distance, [file]) if found or distance is not None else ({}, None, [])


def _recognise(path: str, head: bytes) -> str | None:
    return recognise(path, head, _known, _WHAT)


READER = Reader("aviris-netcdf", "AVIRIS netCDF-4", _recognise, open_aviris, "generated files")
