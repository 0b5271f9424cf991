"""AVIRIS Classic (ENVI, integers and gain), AVIRIS-NG (ENVI, floats), AVIRIS-3 (netCDF, bands first).

Where each fact is from
-----------------------
Classic (``f201013t01p00r10rdn_e_sc01_ort_img`` with ``.hdr``; ``..rdn_e.gain``, ``..rdn_e.spc``,
``..rdn_e_obs_ort``): big-endian int16 BIP, to be *divided* by the first column of the .gain file (300, 600,
1200), giving uW cm-2 sr-1 nm-1, so x 10 for W m-2 sr-1 um-1; off the swath -50 without any ``data ignore
value`` in the header; wavelengths step back after the 0-based bands 31, 95 and 159; ``map info`` with
``rotation``; 224 bands; OBS of ten bands (no sun-earth distance): hyperproc's notes on a real line; a
MATLAB script reads such a file as 'int16', 'bip', 'ieee-be'. The .spc file has centre and width in its columns.

NG (``ang20170323t202244_rdn_v2p9_img``; ``_obs_ort``/``_obs``, ``_loc``): float32 BIL, 425 bands, -9999, the
same unit; OBS of eleven bands, LOC of longitude, latitude, elevation (in that order), both float64: a real clip
of such a line (isofit's examples), whose band names are copied here.

AVIRIS-3 (``AV320241005t175313_005_L1B_RDN_f6524bfe_RDN.nc``, ``.._L2A_OE_main_..._RFL_ORT.nc``): group
``radiance`` or ``reflectance`` with a variable of the same name in (wavelength, line, sample) order,
``wavelength`` (nm) and ``fwhm`` beside it; float32, -9999; L1B in the sensor's grid with ``lat``, ``lon`` and
``geolocation_lookup_table/{line, sample}`` counted from 1, and ``easting``, ``northing`` of the map;
``transverse_mercator`` with ``spatial_ref`` and ``GeoTransform`` (six numbers in a string): EnSpec/hytools,
JPL's spectral_util, a converter that lists a real file (284 x 1280 x 1234). L2A stands on the map with
``easting``, ``northing`` at the root. OBS in a file of its own with one variable per band in
``observation_parameters`` (``to_sun_zenith``, ``earth_sun_distance`` ...).

Not established
---------------
Fill of the AVIRIS-3 table (0 here; some tables of this family mark pixels filled from a neighbour by a negative
number: variant `negative_glt`); order of the two columns of old .gain files beyond "first"; where OBS files of
AVIRIS-3 say their fill.
"""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
from rasterio.crs import CRS

from .truth import COLS, ROWS, Truth, latlon, radiance, reflectance

OBS_NG = (
    "Path length (m)", "To-sensor azimuth (0 to 360 degrees cw from N)",
    "To-sensor zenith (0 to 90 degrees from zenith)", "To-sun azimuth (0 to 360 degrees cw from N)",
    "To-sun zenith (0 to 90 degrees from zenith)", "Solar phase", "Slope", "Aspect", "Cosine(i)", "UTC Time",
    "Earth-sun distance (AU)",
)  # fmt: skip
OBS_AV3 = (
    "path_length", "to_sensor_azimuth", "to_sensor_zenith", "to_sun_azimuth", "to_sun_zenith", "solar_phase", "slope",
    "aspect", "cosine_i", "utc_time", "earth_sun_distance",
)  # fmt: skip
EPSG = 32611
EAST, NORTH = 432100.0, 3891200.0


def make_aviris_classic(
    folder: Path,
    seed: int = 0,
    *,
    gain: bool = True,
    rotation: float = 29.0,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one line of AVIRIS Classic radiance; `gain` False leaves the gain file out."""
    wave = np.concatenate(
        [
            np.linspace(365.9, 667.5, 32),
            np.linspace(655.5, 1263.3, 64),
            np.linspace(1253.3, 1872.4, 64),
            np.linspace(1867.2, 2496.2, 64),
        ]
    ).round(3)
    width = np.linspace(9.8, 11.9, 224).round(3)
    factor = np.repeat([300.0, 600.0, 1200.0], [110, 50, 64])
    raw = np.round(radiance(wave, seed, shape_yx) / 10 * factor)
    raw[6, 4, 40:43] = -3  # noise below zero is a measurement
    off = np.abs(np.subtract.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1]))) > 8
    raw[off] = -50
    raw = raw.astype("i2")
    stem = "f201013t01p00r10rdn_e"
    image = folder / f"{stem}_sc01_ort_img"
    raw.astype(">i2").tofile(image)
    _header(
        Path(f"{image}.hdr"),
        raw.shape,
        2,
        "bip",
        order=1,
        map_info=_map(16.4, rotation),
        wave=wave,
        width=width,
        indent="  ",
    )
    if gain:
        (folder / f"{stem}.gain").write_text("".join(f"{g:12.4f} {i + 1:6d}\n" for i, g in enumerate(factor)))
    lines = zip(wave, width, strict=True)
    (folder / f"{stem}.spc").write_text("".join(f"{w:10.4f} {f:9.4f}  0.1000  0.1000\n" for w, f in lines))
    zenith = _obs_file(folder / f"{stem}_obs_ort", shape_yx, OBS_NG[:10], ">f8", 1, _map(16.4, rotation))
    missing = np.broadcast_to(off[:, :, None], raw.shape).copy()
    return Truth(
        paths=[image, Path(f"{image}.hdr")],
        physical_yxb=np.where(missing, np.nan, raw / factor * 10),
        raw_yxb=raw,
        wavelength_nm=wave,
        fwhm_nm=width,
        quantity="radiance",
        nodata=-50,
        nodata_mask_yxb=missing,
        valid_yx=~off,
        scale=10 / factor,
        offset=0.0,
        crs_epsg=EPSG,
        transform6=_affine(16.4, rotation),
        sun_zenith_yx=zenith,
        extra={"gain": factor},
    )


def make_aviris_ng(
    folder: Path,
    seed: int = 0,
    *,
    rotation: float = -50.0,
    ortho: bool = False,
    companions: bool = True,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write AVIRIS-NG radiance, OBS and LOC; `ortho`: on the turned map grid, else in the sensor's grid."""
    wave = np.linspace(376.86, 2500.5, 425).round(2)
    width = np.linspace(5.5, 6.1, 425).round(4)
    raw = (radiance(wave, seed, shape_yx) / 10).astype("f4")
    missing = np.zeros(raw.shape, bool)
    missing[:2, :3] = True
    raw[missing] = -9999
    stem = "ang20170323t202244"
    tail = "_img" if ortho else ""
    image = folder / f"{stem}_rdn_v2p9{tail}"
    raw.transpose(0, 2, 1).astype("<f4").tofile(image)
    place = _map(5.2, rotation) if ortho else ""
    _header(Path(f"{image}.hdr"), raw.shape, 4, "bil", map_info=place, wave=wave, width=width, ignore=-9999)
    lat, lon = latlon(shape_yx)
    zenith = None
    if companions:
        zenith = _obs_file(folder / f"{stem}_obs{'_ort' if ortho else ''}", shape_yx, OBS_NG, "<f8", 0, place)
        if not ortho:
            loc = np.stack([lon, lat, np.full(shape_yx, 812.0)], axis=2)
            loc.transpose(0, 2, 1).astype("<f8").tofile(folder / f"{stem}_loc")
            names = ("Longitude (WGS-84)", "Latitude (WGS-84)", "Elevation (m)")
            _header(folder / f"{stem}_loc.hdr", loc.shape, 5, "bil", names=names)
    return Truth(
        paths=[image, Path(f"{image}.hdr")],
        physical_yxb=np.where(missing, np.nan, raw.astype(float) * 10),
        raw_yxb=raw,
        wavelength_nm=wave,
        fwhm_nm=width,
        quantity="radiance",
        nodata=-9999.0,
        nodata_mask_yxb=missing,
        valid_yx=~missing.any(axis=2),
        scale=10.0,
        offset=0.0,
        crs_epsg=EPSG if ortho else None,
        transform6=_affine(5.2, rotation) if ortho else None,
        lat_yx=lat if companions and not ortho else None,
        lon_yx=lon if companions and not ortho else None,
        sun_zenith_yx=zenith,
        earth_sun_distance_au=1.0041 if companions else None,
        extra={"folder": folder},
    )


def make_aviris3(
    folder: Path,
    seed: int = 0,
    *,
    level: str = "RDN",
    negative_glt: bool = False,
    obs: bool = True,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write AVIRIS-3: "RDN" in the sensor's grid with its table, or "RFL" on the map."""
    radiant = level == "RDN"
    wave = np.linspace(389.76, 2493.48, 284).astype("f4")
    width = np.linspace(8.1, 9.0, 284).astype("f4")
    raw = (radiance(wave, seed, shape_yx) / 10 if radiant else reflectance(wave, seed, shape_yx)).astype("f4")
    missing = np.zeros(raw.shape, bool)
    missing[0, :5], missing[8, 8] = True, True
    raw[missing] = -9999
    factor = 10.0 if radiant else 1.0
    stem = "AV320241005t175313_005"
    name = f"{stem}_L1B_RDN_f6524bfe_RDN.nc" if radiant else f"{stem}_L2A_OE_main_27577724_RFL_ORT.nc"
    path = folder / name
    lat, lon = latlon(shape_yx)
    line, sample = _table(shape_yx, negative=negative_glt)
    grid = line.shape if radiant else shape_yx
    transform = (8.4, 0.0, EAST, 0.0, -8.4, NORTH)
    variable = "radiance" if radiant else "reflectance"
    with netCDF4.Dataset(path, "w", format="NETCDF4") as out:
        out.title = "AVIRIS-3 L1B Calibrated Radiance" if radiant else "AVIRIS-3 L2A Surface Reflectance"
        out.time_coverage_start, out.platform, out.instrument = "2024-10-05T17:53:13Z", "B200", "AVIRIS-3"
        _mercator(out, transform)
        _axes(out, out.createGroup("geolocation_lookup_table") if radiant else out, grid, transform)
        group = out.createGroup(variable)
        dims = ("lines", "samples") if radiant else ("northing", "easting")
        if radiant:
            out.createDimension("lines", shape_yx[0])
            out.createDimension("samples", shape_yx[1])
        group.createDimension("wavelength", 284)
        chunks = (2, *shape_yx)
        cube = group.createVariable(
            variable, "f4", ("wavelength", *dims), fill_value=-9999.0, zlib=True, chunksizes=chunks
        )
        cube.set_auto_maskandscale(False)
        cube.units = "uW nm-1 cm-2 sr-1" if radiant else "unitless"
        cube.grid_mapping = "transverse_mercator"
        cube[...] = raw.transpose(2, 0, 1)
        for key, values in (("wavelength", wave), ("fwhm", width)):
            listed = group.createVariable(key, "f4", ("wavelength",))
            listed.units = "nm"
            listed[...] = values
        if radiant:
            for key, values in (("lat", lat), ("lon", lon)):
                out.createVariable(key, "f8", dims)[...] = values
            table = out["geolocation_lookup_table"]
            for key, values in (("line", line), ("sample", sample)):
                table.createVariable(key, "i4", ("northing", "easting"), fill_value=0, zlib=True)[...] = (
                    values
                )
    zenith = distance = None
    extra = {}
    if obs and radiant:
        extra["obs_path"] = folder / f"{stem}_L1B_ORT_55901fd4_OBS.nc"
        zenith, distance = _obs_netcdf(extra["obs_path"], shape_yx)
    absolute = (np.abs(line), np.abs(sample))
    return Truth(
        paths=[path],
        physical_yxb=np.where(missing, np.nan, raw.astype(float) * factor),
        raw_yxb=raw,
        wavelength_nm=wave.astype(float),
        fwhm_nm=width.astype(float),
        quantity="radiance" if radiant else "surface_reflectance",
        nodata=-9999.0,
        nodata_mask_yxb=missing,
        valid_yx=~missing.any(axis=2),
        scale=factor,
        offset=0.0,
        crs_epsg=None if radiant else EPSG,
        transform6=None if radiant else transform,
        lat_yx=lat if radiant else None,
        lon_yx=lon if radiant else None,
        glt_row=np.where(absolute[0] > 0, absolute[0] - 1, -1) if radiant else None,
        glt_col=np.where(absolute[1] > 0, absolute[1] - 1, -1) if radiant else None,
        ortho_epsg=EPSG if radiant else None,
        ortho_transform6=transform if radiant else None,
        sun_zenith_yx=zenith,
        earth_sun_distance_au=distance,
        acquired="2024-10-05T17:53:13Z",
        extra=extra,
    )


def _mercator(out, transform) -> None:
    mapping = out.createVariable("transverse_mercator", "S1")
    mapping.grid_mapping_name = "transverse_mercator"
    mapping.spatial_ref = CRS.from_epsg(EPSG).to_wkt(version="WKT1_GDAL")
    a, b, c, d, e, f = transform
    mapping.GeoTransform = f"{c} {a} {b} {f} {d} {e}"


def _axes(out, owner, grid, transform) -> None:
    """Make the map's dimensions and pixel centres in the group that owns them."""
    for name, size, start, step in (
        ("northing", grid[0], transform[5], transform[4]),
        ("easting", grid[1], transform[2], transform[0]),
    ):
        owner.createDimension(name, size)
        axis = owner.createVariable(name, "f8", (name,))
        axis.units = "m"
        axis[...] = start + (np.arange(size) + 0.5) * step


def _table(shape_yx, *, negative: bool) -> tuple[np.ndarray, np.ndarray]:
    rows, cols = shape_yx
    y, x = np.mgrid[: rows + 3, : cols + 4]
    row, col = y - 1 + (x > cols // 2), x - 2
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    line, sample = np.where(inside, row + 1, 0), np.where(inside, col + 1, 0)
    if negative:  # as the tables of this family mark a pixel that was filled from its neighbour
        line[4, 5], sample[4, 5] = -line[4, 5], -sample[4, 5]
    return line.astype("i4"), sample.astype("i4")


def _affine(step: float, rotation: float) -> tuple[float, float, float, float, float, float]:
    """Return the grid that ENVI's rotation stands for: counter-clockwise degrees, as GDAL reads it."""
    angle = np.deg2rad(-rotation)
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    return (step * cos, -step * sin, EAST, step * -sin, -step * cos, NORTH)


def _map(step: float, rotation: float) -> str:
    turn = f", rotation={rotation}" if rotation else ""
    return f"{{UTM, 1, 1, {EAST}, {NORTH}, {step}, {step}, 11, North, WGS-84, units=Meters{turn}}}"


def _header(
    path,
    shape,
    data_type,
    interleave,
    *,
    order=0,
    map_info="",
    wave=None,
    width=None,
    names=(),
    ignore=None,
    indent="",
) -> None:
    rows, cols, bands = shape
    lines = [
        "ENVI", "description = { generated }", f"samples = {cols}", f"lines = {rows}", f"bands = {bands}",
        "header offset = 0", "file type = ENVI Standard", f"data type = {data_type}", f"interleave = {interleave}",
        f"byte order = {order}",
    ]  # fmt: skip
    lines += [f"map info = {map_info}"] if map_info else []
    lines += [f"data ignore value = {ignore}"] if ignore is not None else []
    if wave is not None:
        lines += [
            "wavelength units = Nanometers",
            f"{indent}wavelength = {{{', '.join(map(str, wave.tolist()))}}}",
        ]
        lines += [f"{indent}fwhm = {{{', '.join(map(str, width.tolist()))}}}"]
    joined = ",\n".join(names)
    lines += [f"band names = {{\n{joined}}}"] if names else []
    path.write_text("\n".join(lines) + "\n")


def _obs_values(shape_yx, count: int) -> np.ndarray:
    table = np.zeros((*shape_yx, count))
    table[:, :, 0], table[:, :, 2], table[:, :, 3] = 5100, 6.0, 152.0
    table[:, :, 4] = 31.0 + 0.03 * np.arange(shape_yx[0])[:, None] + 0.01 * np.arange(shape_yx[1])[None, :]
    table[:, :, 8], table[:, :, 9] = 0.83, 20.379
    if count == 11:
        table[:, :, 10] = 1.0041
    return table


def _obs_file(path, shape_yx, names, kind: str, order: int, map_info: str) -> np.ndarray:
    table = _obs_values(shape_yx, len(names))
    table.transpose(0, 2, 1).astype(kind).tofile(path)
    _header(Path(f"{path}.hdr"), table.shape, 5, "bil", order=order, map_info=map_info, names=names)
    return table[:, :, 4]


def _obs_netcdf(path: Path, shape_yx) -> tuple[np.ndarray, float]:
    table = _obs_values(shape_yx, 11)
    with netCDF4.Dataset(path, "w", format="NETCDF4") as out:
        _mercator(out, (8.4, 0.0, EAST, 0.0, -8.4, NORTH))
        out.createDimension("lines", shape_yx[0])
        out.createDimension("samples", shape_yx[1])
        group = out.createGroup("observation_parameters")
        for i, name in enumerate(OBS_AV3):
            group.createVariable(name, "f8", ("lines", "samples"), fill_value=-9999.0)[...] = table[:, :, i]
    return table[:, :, 4], 1.0041
