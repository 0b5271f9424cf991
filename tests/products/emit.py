"""EMIT netCDF4 files: L1B RAD (with OBS), L2A RFL (with MASK).

Where each fact is from
-----------------------
- Dimensions downtrack, crosstrack, bands, ortho_y, ortho_x; variables, number types, units, fill -9999 on every
  numeric variable, zlib on the look-up table and the mask; global attributes ``spatial_ref`` and
  ``geotransform`` (GDAL order), ``time_coverage_start``: the writers themselves, emit-sds/emit-utils
  ``daac_converter.py`` and the ``output_conversion.py`` of emit-sds-l1b and emit-sds-l2a.
- ``radiance`` in "uW/cm/SR/nm", i.e. uW cm-2 sr-1 nm-1: x 10 gives W m-2 sr-1 um-1 (the writer's text).
- ``good_wavelengths`` uint8 in L2A only, 0 for 1325-1435 nm and 1770-1962 nm; reflectance there is a constant
  -0.01: emit-sds-l2a; the 10 x 10 ENVI clip of emit-sds/SpectralUnmixing shows the constant.
- The table ``glt_x``/``glt_y`` counts from 1, 0 is fill: readers of real granules (georeader, hyperproc).
- Mask bands: V001 ``Cloud flag, Cirrus flag, Water flag, Spacecraft Flag, Dilated Cloud Flag, AOD550, H2O (g
  cm-2), Aggregate Flag``; V003 ``Cloud Flag, Cirrus Flag, Water Flag, Dilated Cloud Flag, SpecTf-Cloud
  Probability, SpecTf-Cloud Flag, SpecTf-Buffer Distance``: emit-sds-l2a, georeader's tests. Flags must be found
  by name.
- Older versions of the writers call the dimensions number_of_scans, pixels_per_scan, number_of_bands and the
  lists radiance_wl, radiance_fwhm; not made here.
- File names ``EMIT_L2A_RFL_001_<start>_<orbit>_<scene>.nc``; MASK of the same granule has the same tail.
  Version 002 granules end after the start time and their masks are version 003: georeader's tests.
- OBS: bands by name in ``sensor_band_parameters/observation_bands``, "To-sun zenith (0 to 90 degrees from
  zenith)" is the fifth, "Earth-sun distance (AU)" the last (eleventh). The writer copies the names of its input;
  their order is that of the AVIRIS family, their exact spelling was not looked up.

Not established
---------------
``_FillValue`` of ``good_wavelengths``: the writer asks for -9999 in uint8, which cannot be; none is written
here. Whether chunks of the cube are set: the writer sets none, so the library's own default stands.
"""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
from rasterio.crs import CRS

from .truth import COLS, ROWS, Truth, latlon, radiance, reflectance

FILL = -9999.0
MASKS = {
    "001": (
        "Cloud flag", "Cirrus flag", "Water flag", "Spacecraft Flag", "Dilated Cloud Flag",
        "AOD550", "H2O (g cm-2)", "Aggregate Flag",
    ),
    "003": (
        "Cloud Flag", "Cirrus Flag", "Water Flag", "Dilated Cloud Flag",
        "SpecTf-Cloud Probability", "SpecTf-Cloud Flag", "SpecTf-Buffer Distance",
    ),
}  # fmt: skip
OBS = (
    "Path length (sensor-to-ground in meters)",
    "To-sensor azimuth (0 to 360 degrees CW from N)",
    "To-sensor zenith (0 to 90 degrees from zenith)",
    "To-sun azimuth (0 to 360 degrees CW from N)",
    "To-sun zenith (0 to 90 degrees from zenith)",
    "Solar phase (degrees between to-sensor and to-sun vectors in principal plane)",
    "Slope (local surface slope as derived from DEM in degrees)",
    "Aspect (local surface aspect 0 to 360 degrees clockwise from N)",
    "Cosine(i) (apparent local illumination factor based on DEM slope and aspect and to sun vector)",
    "UTC Time (decimal hours for mid-line pixels)",
    "Earth-sun distance (AU)",
)


def make_emit(
    folder: Path,
    seed: int = 0,
    *,
    level: str = "RFL",
    companion: bool = True,
    mask_version: str = "001",
    shape_yx: tuple[int, int] = (ROWS, COLS),
    glt_out_of_range: bool = False,
) -> Truth:
    """Write one EMIT granule: RAD with OBS, or RFL with MASK.

    Parameters
    ----------
    companion
        False leaves OBS or MASK out.
    mask_version
        "001" or "003"; the second comes with the file names of granule version 002.
    glt_out_of_range
        one entry of the table points behind the last line.
    """
    # the instrument's own step is about 7.4 nm; float32 as the file has it
    wave = np.interp(np.arange(285), [0, 142, 284], [381.0056, 1438.3, 2492.924]).astype("f4")
    width = np.interp(np.arange(285), [0, 284], [8.415, 8.807]).astype("f4")
    good = ~(((wave > 1325) & (wave < 1435)) | ((wave > 1770) & (wave < 1962)))
    stored = (
        radiance(wave, seed, shape_yx) / 10 if level == "RAD" else reflectance(wave, seed, shape_yx)
    ).astype("f4")
    if level == "RFL":
        stored[:, :, ~good] = -0.01
    stored[5, 2], stored[9, 7] = FILL, FILL
    stored[0, 6:] = FILL
    bad = stored == np.float32(FILL)
    factor = 10.0 if level == "RAD" else 1.0
    tail = "20220810T034103" + ("" if mask_version == "003" else "_2222203_001")
    version = "002" if mask_version == "003" else "001"
    kind = "L1B_RAD" if level == "RAD" else "L2A_RFL"
    path = folder / f"EMIT_{kind}_{version}_{tail}.nc"
    lat, lon = latlon(shape_yx)
    glt_x, glt_y = _look_up(shape_yx)
    if glt_out_of_range:
        glt_y[3, 3], glt_x[3, 3] = shape_yx[0] + 1, 1
    transform = (11.2985, 0.000542232520256367, -0.0, 48.2015, -0.0, -0.000542232520256367)
    common = (shape_yx, glt_x.shape, transform)
    with _open(path, *common, bands=285) as out:
        out.title = "EMIT " + (
            "L1B At-Sensor Calibrated Radiance" if level == "RAD" else "L2A Surface Reflectance"
        )
        _add(out, "sensor_band_parameters/wavelengths", wave, ("bands",), "Wavelength Centers", "nm")
        _add(out, "sensor_band_parameters/fwhm", width, ("bands",), "Full Width at Half Max", "nm")
        if level == "RFL":
            name = "sensor_band_parameters/good_wavelengths"
            _add(
                out,
                name,
                good.astype("u1"),
                ("bands",),
                "Wavelengths where reflectance is useable",
                "unitless",
            )
        _place(out, lat, lon, glt_x, glt_y)
        cube = ("downtrack", "crosstrack", "bands")
        if level == "RAD":
            _add(out, "radiance", stored, cube, "Radiance Data", "uW/cm/SR/nm")
        else:
            _add(out, "reflectance", stored, cube, "Surface Reflectance", "unitless")
    quality, extra = {}, {}
    zenith = distance = None
    if companion and level == "RFL":
        mask_path = folder / f"EMIT_L2A_MASK_{mask_version}_{tail}.nc"
        quality = _mask(mask_path, common, lat, lon, glt_x, glt_y, mask_version)
        extra["mask_path"] = mask_path
    if companion and level == "RAD":
        obs_path = folder / f"EMIT_L1B_OBS_{version}_{tail}.nc"
        zenith, distance = _obs(obs_path, common, lat, lon, glt_x, glt_y)
        extra["obs_path"] = obs_path
    valid = ~bad[:, :, good].any(axis=2)
    return Truth(
        paths=[path],
        physical_yxb=np.where(bad, np.nan, stored.astype(float) * factor),
        raw_yxb=stored,
        wavelength_nm=wave.astype(float),
        fwhm_nm=width.astype(float),
        good_band=good if level == "RFL" else None,
        quantity="radiance" if level == "RAD" else "surface_reflectance",
        nodata=FILL,
        nodata_mask_yxb=bad,
        valid_yx=valid,
        scale=factor,
        offset=0.0,
        lat_yx=lat,
        lon_yx=lon,
        glt_row=np.where(glt_y > 0, glt_y - 1, -1),
        glt_col=np.where(glt_x > 0, glt_x - 1, -1),
        ortho_epsg=4326,
        ortho_transform6=(transform[1], 0.0, transform[0], 0.0, transform[5], transform[3]),
        sun_zenith_yx=zenith,
        earth_sun_distance_au=distance,
        acquired="2022-08-10T03:41:03Z",
        quality=quality,
        extra=extra,
    )


def _look_up(shape_yx: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return a turned table (ortho_y, ortho_x) that counts from 1: the swath stands aslant in its frame."""
    rows, cols = shape_yx
    y, x = np.mgrid[: rows + 5, : cols + 7]
    row = np.round(y - 2 - 0.18 * (x - 3)).astype(int)
    col = np.round(x - 3 + 0.18 * (y - 2)).astype(int)
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return np.where(inside, col + 1, 0).astype("i4"), np.where(inside, row + 1, 0).astype("i4")


def _open(path: Path, shape_yx, ortho_yx, transform, bands: int) -> netCDF4.Dataset:
    out = netCDF4.Dataset(path, "w", format="NETCDF4")
    out.instrument, out.platform = "EMIT", "ISS"
    out.sensor = "EMIT (Earth Surface Mineral Dust Source Investigation)"
    out.time_coverage_start, out.time_coverage_end = "2022-08-10T03:41:03+0000", "2022-08-10T03:41:15+0000"
    out.spatial_ref = CRS.from_epsg(4326).to_wkt(version="WKT1_GDAL")
    out.geotransform = np.array(transform)
    out.day_night_flag = "Day"
    sizes = (*shape_yx, bands, *ortho_yx)
    for name, size in zip(("downtrack", "crosstrack", "bands", "ortho_y", "ortho_x"), sizes, strict=True):
        out.createDimension(name, size)
    return out


def _add(out, name, values, dimensions, long_name, units=None, *, zlib: bool = False) -> None:
    kind = str if values.dtype == object else values.dtype
    fill = None if kind is str or kind == np.uint8 else FILL
    variable = out.createVariable(name, kind, dimensions, fill_value=fill, zlib=zlib)
    variable.set_auto_maskandscale(False)
    variable.long_name = long_name
    if units:
        variable.units = units
    variable[...] = values


def _place(out, lat, lon, glt_x, glt_y) -> None:
    swath, ortho = ("downtrack", "crosstrack"), ("ortho_y", "ortho_x")
    _add(out, "location/lon", lon, swath, "Longitude (WGS-84)", "degrees east")
    _add(out, "location/lat", lat, swath, "Latitude (WGS-84)", "degrees north")
    _add(out, "location/elev", np.full(lat.shape, 410.0), swath, "Surface Elevation", "m")
    _add(out, "location/glt_x", glt_x, ortho, "GLT Sample Lookup", "pixel location", zlib=True)
    _add(out, "location/glt_y", glt_y, ortho, "GLT Line Lookup", "pixel location", zlib=True)


def _mask(path: Path, common, lat, lon, glt_x, glt_y, version: str) -> dict[str, np.ndarray]:
    names = MASKS[version]
    row, col = np.indices(lat.shape)
    layers = {
        "cloud": (row < 3) & (col < 4),
        "cirrus": (row > 8) & (col < 3),
        "water": col > 7,
        "spacecraft": (row == 6) & (col == 6),
        "dilated": (row < 4) & (col < 5),
        "spectf": (row < 2) & (col < 4),
    }
    table = np.zeros((*lat.shape, len(names)), "f4")
    for i, name in enumerate(names):
        lower = name.lower()
        if "probability" in lower or "aod" in lower or "h2o" in lower:
            table[:, :, i] = 0.2 + 0.01 * row
        elif "distance" in lower:
            table[:, :, i] = 100 + row
        elif "aggregate" in lower:
            table[:, :, i] = (
                layers["cloud"]
                | layers["cirrus"]
                | layers["water"]
                | layers["spacecraft"]
                | layers["dilated"]
            )
        else:
            key = "spectf" if "spectf" in lower else lower.split()[0]
            table[:, :, i] = layers[key]
    with _open(path, *common, bands=len(names)) as out:
        out.title = "EMIT L2A Masks 60 m V" + version
        text = np.array(names, object)
        _add(out, "sensor_band_parameters/mask_bands", text, ("bands",), "Mask Band Names")
        _place(out, lat, lon, glt_x, glt_y)
        _add(out, "mask", table, ("downtrack", "crosstrack", "bands"), "Masks", "unitless", zlib=True)
    return {name: table[:, :, i] for i, name in enumerate(names)}


def _obs(path: Path, common, lat, lon, glt_x, glt_y) -> tuple[np.ndarray, float]:
    table = np.zeros((*lat.shape, len(OBS)), "f4")
    table[:, :, 0], table[:, :, 2], table[:, :, 3] = 420000, 7.5, 101.0
    table[:, :, 4] = 38.0 + 0.05 * np.arange(lat.shape[0])[:, None] + 0.02 * np.arange(lat.shape[1])[None, :]
    table[:, :, 8], table[:, :, 9], table[:, :, 10] = 0.71, 3.684, 1.01386
    with _open(path, *common, bands=285) as out:
        out.title = "EMIT L1B Observation Data 60 m V001"
        out.createDimension("observation_bands", len(OBS))
        text = np.array(OBS, object)
        _add(
            out,
            "sensor_band_parameters/observation_bands",
            text,
            ("observation_bands",),
            "Observation Band Names",
        )
        _place(out, lat, lon, glt_x, glt_y)
        _add(out, "obs", table, ("downtrack", "crosstrack", "observation_bands"), "Observation Data")
    return table[:, :, 4].astype(float), float(table[0, 0, 10])
