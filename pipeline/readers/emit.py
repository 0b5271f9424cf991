"""EMIT (NASA/JPL, on the ISS) L1B radiance and L2A reflectance: netCDF-4 in sensor geometry.

Traps
- Stored (downtrack, crosstrack, bands), no row being due east: `location/lat`, `location/lon`, and a look-up table
  `location/glt_x`, `glt_y`, which is counted from 1 with 0 = fill. Here it becomes `glt_col`, `glt_row`, counted from
  0 with -1 = fill, on the grid of `ortho_transform`.
- Radiance is in uW cm-2 sr-1 nm-1: times 10 for W m-2 sr-1 um-1.
- The fill value is -9999. `good_wavelengths` exists in L2A only; the bands it marks hold the constant -0.01, which is
  no fill.
- Masks are a file of their own. If `EMIT_L2A_MASK_...` of the same granule lies beside, its *flags* become quality
  layers. They are found by their names, since the order differs between versions, and the other layers (optical depth,
  water vapour, probability, distance) are no flags.
- The angles are a file of their own, too: from `EMIT_L1B_OBS_...` beside come `sun_zenith`, `sun_azimuth`,
  `view_zenith` and the distance of the sun. Never the cosine of incidence, which is another band.
- Some files label latitude as longitude in `long_name`; the names of the variables are right.

Sources: the converters of the EMIT science data system (emit-sds-l1b, emit-sds-l2a, emit-utils) and the LP DAAC user
guides. Proved on generated files only.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

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
CUBES = {"radiance": "EMIT L1B RAD", "reflectance": "EMIT L2A RFL"}
"""Dataset of the cube, and the product that it makes."""

ANGLES = {"to-sun zenith": "sun_zenith", "to-sun azimuth": "sun_azimuth", "to-sensor zenith": "view_zenith"}
"""Beginnings of the names of OBS bands, and the layers they become."""

_BANDS = "sensor_band_parameters"
_GRANULE = re.compile(r"EMIT_L\w\w_\w+?_\d+_(\d{8}T\d{6}(?:_\d+)*)\.nc", re.IGNORECASE)
_WHAT = "EMIT radiance or reflectance"


def _known(h5: H5File) -> str | None:
    """Return why an HDF5 file is an EMIT cube, or None."""
    named = " ".join(h5.text(key) or "" for key in ("title", "instrument", "sensor"))
    if "EMIT" not in named or h5.group(_BANDS) is None:
        return None
    name = _cube_name(h5)
    return None if name is None else f"netCDF-4 of EMIT with the variable {name}"


def _cube_name(h5: H5File) -> str | None:
    names = set(h5.members())
    return next((name for name in CUBES if name in names), None)


def open_emit(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open an EMIT file, or a folder that holds one cube, as a lazy scene in sensor geometry.

    Raises
    ------
    FormatError
        If the file lacks what its product promises, or contradicts itself.
    """
    file = main_file(path, _known, _WHAT)
    no_detector(options, READER.name)
    with opened(file) as h5:
        name = _cube_name(h5)
        if name is None:
            listed = ", ".join(h5.members()[:8])
            msg = (
                f"{file} holds neither `radiance` nor `reflectance`; it holds {listed}: choose another reader"
            )
            raise FormatError(msg)
        return _scene(h5, name, path, options, notes, why)


def _scene(h5: H5File, name: str, path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Make the scene of an open file."""
    cube = cube_of(h5, name, "yxb")
    bands = cube.shape[2]
    shape_yx = cube.shape[:2]
    rows, cols, block_bytes = row_chunks([cube], h5, notes)
    numbers = overrides(
        options,
        READER.name,
        [name],
        quantity="radiance" if name == "radiance" else "surface_reflectance",
        units="W m-2 sr-1 um-1" if name == "radiance" else "1",
        nodata=fill_of(h5, name, FILL),
        scale=radiance_factor(h5, name, options) if name == "radiance" else None,
    )
    good = h5.floats(f"{_BANDS}/good_wavelengths", bands)
    lat, lon = (plane_of(h5, f"location/{axis}", shape_yx) for axis in ("lat", "lon"))
    granule = _GRANULE.fullmatch(os.path.basename(h5.path))
    key = None if granule is None else re.escape(granule[1])
    angles = _beside(h5.path, rf"EMIT_L1B_OBS_\d+_{key}\.nc", key, partial(_angles, shape_yx), notes)
    masks = _beside(h5.path, rf"EMIT_L2A_MASK_\d+_{key}\.nc", key, partial(_masks, shape_yx), notes)
    files = [h5.path, *(str(found.pop("file")) for found in (angles, masks) if "file" in found)]
    distance = angles.pop("earth_sun_distance_au", None)
    scene = make_scene(
        lazy_h5(cube, rows, cols),
        **_wavelengths(h5, bands, notes),
        good_band=None if good is None else good != 0,
        **numbers,
        quality={flag: (lazy_h5(plane, rows, cols), attrs) for flag, (plane, attrs) in masks.items()},
        layers={
            layer: (without_fill(lazy_h5(plane, rows, cols), attrs.pop("fill")), attrs)
            for layer, (plane, attrs) in angles.items()
        },
        lat_yx=None if lat is None or lon is None else lazy_h5(lat, rows, cols),
        lon_yx=None if lat is None or lon is None else lazy_h5(lon, rows, cols),
        sensor="EMIT",
        product=CUBES[name],
        acquired=iso_utc(h5.text("time_coverage_start")),
        earth_sun_distance_au=distance,
        scene_id=os.path.splitext(os.path.basename(h5.path))[0],
        source=path,
        files=files,
        block_bytes=block_bytes,
        reader=READER.name,
        why=why,
    )
    return _with_glt(scene, h5, notes)


def _wavelengths(h5: H5File, bands: int, notes: Notes) -> dict[str, Any]:
    """Return wavelengths and widths; early files call them `radiance_wl` and `radiance_fwhm`."""
    names = h5.members(_BANDS)
    centre = next((n for n in ("wavelengths", "radiance_wl") if n in names), "wavelengths")
    width = next((n for n in ("fwhm", "radiance_fwhm") if n in names), "fwhm")
    values = h5.floats(f"{_BANDS}/{centre}", bands)
    if values is None:
        msg = f"{h5.path} has no {_BANDS}/{centre}, which EMIT needs; the file is incomplete or another one"
        raise FormatError(msg)
    unit = h5.text("units", f"{_BANDS}/{centre}") or "nm"
    wavelength, fwhm = to_nanometres(values, unit, h5.path, notes, fwhm=h5.floats(f"{_BANDS}/{width}", bands))
    return {"wavelength_nm": wavelength, "fwhm_nm": fwhm}


def _beside(path: str, pattern: str, key: str | None, take: Any, notes: Notes) -> dict[str, Any]:
    """Return what `take` finds in the file of the same granule that lies beside; nothing where there is none."""
    file = None if key is None else beside(path, pattern)
    if file is None:
        return {}
    try:
        with opened(file) as h5:
            found: dict[str, Any] = take(h5)
    except BandstreamError as error:
        notes.warn(f"{file} lies beside {path} but is not used: {error}")
        return {}
    if not found:
        notes.warn(f"{file} lies beside {path} but holds no layer of its size; it is not used")
        return {}
    return {**found, "file": file}


def _named_bands(h5: H5File, cube: str, names: str) -> list[tuple[int, str]]:
    """Return the bands of a file of layers with their names in lower case, single blanks."""
    texts = h5.texts(f"{_BANDS}/{names}") or []
    found = h5.need(cube)
    if len(found.shape) != 3 or found.shape[2] != len(texts):
        msg = f"{h5.path}: {cube} has the shape {found.shape}, and {len(texts)} layers are named"
        raise FormatError(msg)
    return [(band, " ".join(text.lower().split())) for band, text in enumerate(texts)]


def _masks(shape_yx: tuple[int, int], h5: H5File) -> dict[str, tuple[H5Plane, dict[str, Any]]]:
    """Return the flags of a mask file."""
    found: dict[str, tuple[H5Plane, dict[str, Any]]] = {}
    for band, name in _named_bands(h5, "mask", "mask_bands"):
        plane = plane_of(h5, "mask", shape_yx, "yxb", band)
        if name.endswith("flag") and plane is not None:
            layer = re.sub(r"[^a-z0-9]+", "_", name.removesuffix("flag")).strip("_")
            found[layer] = (plane, {"flag_meanings": "0 no, 1 yes, -9999 fill", "long_name": name})
    return found


def _angles(shape_yx: tuple[int, int], h5: H5File) -> dict[str, Any]:
    """Return the angles of an observation file, and the distance of the sun (the same in all its pixels)."""
    found: dict[str, Any] = {}
    fill = fill_of(h5, "obs", FILL)
    for band, name in _named_bands(h5, "obs", "observation_bands"):
        plane = plane_of(h5, "obs", shape_yx, "yxb", band)
        if plane is None:
            continue
        layer = next((layer for start, layer in ANGLES.items() if name.startswith(start)), None)
        if layer is not None:
            found[layer] = (plane, {"units": "degree", "fill": fill})
        elif name.startswith("earth-sun distance"):
            row = np.asarray(plane[shape_yx[0] // 2], np.float64)
            row = row[(row > 0.9) & (row < 1.1)]
            if row.size:
                found["earth_sun_distance_au"] = float(np.median(row))
    return found


def _with_glt(scene: xr.Dataset, h5: H5File, notes: Notes) -> xr.Dataset:
    """Add the look-up table of the orthorectified grid, where the file brings it whole."""
    found = h5.dataset("location/glt_y")
    if found is None or h5.dataset("location/glt_x") is None:
        return scene
    shape = tuple(int(n) for n in found.shape)
    tables = [plane_of(h5, f"location/{name}", (shape[0], shape[-1])) for name in ("glt_y", "glt_x")]
    line, sample = tables
    crs, transform = (
        crs_of(h5.text("spatial_ref"), h5.path, notes),
        gdal_transform(h5.numbers("geotransform")),
    )
    if line is None or sample is None or crs is None or transform is None:
        notes.warn(
            f"{h5.path}: glt_x, glt_y, geotransform and spatial_ref make no look-up table; the scene has none"
        )
        return scene
    return with_lookup_table(scene, line, sample, crs, transform)


def _recognise(path: str, head: bytes) -> str | None:
    return recognise(path, head, _known, _WHAT)


READER = Reader("emit", "EMIT netCDF-4", _recognise, open_emit, "generated files")
