"""PRISMA (ASI) L1, L1G, L2B, L2C and L2D: one HDF-EOS5 file with a VNIR and a SWIR cube.

Traps
- The cubes are stored (row, band, column), and both list their wavelengths downwards.
- Bands that were never acquired have the wavelength 0.0, or the flag 0 in `List_Cw_*_Flags`; they are left out.
- VNIR and SWIR overlap between 943 and 977 nm. All bands are kept, and the coordinate `detector` tells them apart;
  `detector="vnir"` or `"swir"` picks one.
- L1 is radiance = DN / ScaleFactor - Offset (W m-2 sr-1 um-1). There a single 0 is a real, dark radiance; only a pixel
  that is 0 in all bands is missing. In L2 value = Min + DN (Max - Min) / 65535, per detector, and 0 means failed or
  padding. L2B is radiance at the *surface*, L2C and L2D are surface reflectance.
- L1, L2B and L2C are in sensor geometry and bring latitude and longitude. L2D is a UTM grid whose corner coordinates
  are pixel *centres*; which axis runs east is read off its latitudes and longitudes, never assumed.
- The cubes called HRC are not coregistered; HCO is read.
- L1G calls its swath L1 too; it is known by `Latitude` without a detector's name, and pads everything with 65535.
- Error matrices have a value per band. Of them only "saturated in some band" is offered: 2 in L1 (1 is a defective
  pixel), 3 in L2 (2 is negative).

Sources: ASI, PRISMA Products Specification (issue 2.3); the structure as read by prismaread and EnMAP-Box. Proved on
generated files only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as reproject

from ..errors import FormatError
from ..scene import make_scene
from .hdf import H5Cube, H5File, StackedCube, cube_of, iso_utc, lazy_h5, opened, plane_of, row_chunks
from .hdf_product import main_file, overrides, recognise, without_fill
from .options import Notes, Options
from .reader import Reader

DETECTORS = ("vnir", "swir")
SWATHS = "HDFEOS/SWATHS"
L1_FILL = 65535
"""Padding of L1G."""

QUANTITIES = {
    "L1": "radiance",
    "L1G": "radiance",
    "L2B": "surface_radiance",
    "L2C": "surface_reflectance",
    "L2D": "surface_reflectance",
}
"""What the values of each level are."""

MASKS = {
    "cloud": ("Cloud_Mask", "0 clear, 1 cloud, 10 not processed, 255 error"),
    "sunglint": ("SunGlint_Mask", "0 none, 1 sun glint, 10 not processed, 255 error"),
    "landcover": (
        "LandCover_Mask",
        "0 water, 1 snow, 2 bare soil, 3 crop and rangeland, 4 forest, 5 wetland, 6 urban, 10 not processed, 255 error",
    ),
}
"""Quality layers of L1: name, dataset, meanings."""

_WHAT = "PRISMA"
_SWATH = re.compile(r"PRS_(L1|L1G|L2B|L2C|L2D)_HCO")
_SAMPLES = 64


@dataclass(frozen=True)
class _Part:
    """One detector."""

    detector: str
    cube: H5Cube
    wavelength: NDArray[np.float64]
    fwhm: NDArray[np.float64]
    scale: float
    offset: float


@dataclass(frozen=True)
class _Grid:
    """Where an L2D lies: the meaning of the stored axes, and the place on earth."""

    axes: str
    crs: CRS | None
    transform: Affine | None


@dataclass(frozen=True)
class _SomeBand:
    """Array-like (y, x): whether a pixel is anything but 0 in some band.

    One band settles nearly every pixel, so the others are read only in windows where that one holds a 0.
    """

    cube: StackedCube

    ndim = 2
    dtype = np.dtype(bool)

    @property
    def path(self) -> str:
        """The file."""
        return self.cube.path

    @property
    def shape(self) -> tuple[int, int]:
        """(y, x)."""
        return self.cube.shape[:2]

    def __getitem__(self, key: Any) -> NDArray[np.bool_]:
        """Read a window."""
        window = key if isinstance(key, tuple) else (key,)
        window = (*window, *(slice(None),) * (2 - len(window)))
        some = np.asarray(self.cube[(*window, self.cube.parts[0].shape[2] // 2)] != 0)
        return some if some.all() else np.asarray((self.cube[(*window, slice(None))] != 0).any(axis=-1))


def _known(h5: H5File) -> str | None:
    """Return why an HDF5 file is PRISMA, or None."""
    level = _level(h5)
    return None if level is None else f"HDF5 with {_swath(h5, level)} of PRISMA {level}"


def _level(h5: H5File) -> str | None:
    """Return the level of the coregistered swath, or None where there is none."""
    matches = (_SWATH.fullmatch(name) for name in h5.members(SWATHS))
    level = next((match[1] for match in matches if match), None)
    if level == "L1" and "Latitude" in h5.members(f"{SWATHS}/PRS_L1_HCO/Geolocation Fields"):
        return "L1G"
    return level


def _swath(h5: H5File, level: str) -> str:
    names = h5.members(SWATHS)
    return f"{SWATHS}/PRS_{level}_HCO" if f"PRS_{level}_HCO" in names else f"{SWATHS}/PRS_L1_HCO"


def open_prisma(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a PRISMA file, or a folder that holds one, as a lazy scene.

    Raises
    ------
    FormatError
        If the file lacks what its level promises, or contradicts itself.
    """
    file = main_file(path, _known, _WHAT)
    with opened(file) as h5:
        level = _level(h5)
        if level is None:
            listed = ", ".join(h5.members(SWATHS)[:6]) or "none"
            msg = f"{file} has no swath PRS_<level>_HCO of PRISMA; its swaths: {listed}"
            raise FormatError(msg)
        return _scene(h5, level, path, options, notes, why)


def _scene(h5: H5File, level: str, path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Make the scene of an open file."""
    if options.detector not in (None, *DETECTORS):
        msg = f"detector = {options.detector!r}; PRISMA has {' and '.join(DETECTORS)}: choose one, or leave it out for both"
        raise FormatError(msg)
    swath = _swath(h5, level)
    chosen = [name for name in DETECTORS if options.detector in (None, name)]
    grid = _grid(h5, level, swath, notes) if level in ("L1G", "L2D") else _Grid("ybx", None, None)
    parts = [_part(h5, level, swath, name, grid.axes) for name in chosen]
    if len({(part.cube.shape[:2], part.cube.dtype) for part in parts}) > 1:
        sizes = [f"{part.cube.shape[:2]} {part.cube.dtype}" for part in parts]
        msg = f"{h5.path}: VNIR and SWIR differ ({' and '.join(sizes)}); open one of them with detector="
        raise FormatError(msg)
    cube = StackedCube(tuple(part.cube for part in parts))
    rows, cols, block_bytes = row_chunks(cube.parts, h5, notes)
    shape_yx = cube.shape[:2]
    counts = [len(part.wavelength) for part in parts]
    place = _place(h5, swath, shape_yx, grid, chosen[0], L1_FILL if level == "L1G" else 0, (rows, cols))
    stem = os.path.splitext(os.path.basename(h5.path))[0]
    numbers = overrides(
        options,
        READER.name,
        [f"{swath}/Data Fields/{name.upper()}_Cube" for name in DETECTORS],
        quantity=QUANTITIES[level],
        units="1" if level in ("L2C", "L2D") else "W m-2 sr-1 um-1",
        nodata={"L1": None, "L1G": L1_FILL}.get(level, 0),
        scale=np.repeat([part.scale for part in parts], counts),
        offset=np.repeat([part.offset for part in parts], counts),
    )
    return make_scene(
        lazy_h5(cube, rows, cols),
        wavelength_nm=np.concatenate([part.wavelength for part in parts]),
        fwhm_nm=np.concatenate([part.fwhm for part in parts]),
        band_names=[f"{p.detector.upper()} {b + 1}" for p in parts for b in p.cube.bands or ()],
        detector=[part.detector for part in parts for _ in part.wavelength],
        **numbers,
        # a number that the user declares missing settles validity the usual way
        valid_yx=lazy_h5(_SomeBand(cube), rows, cols) if level == "L1" and options.nodata is None else None,
        quality=_quality(h5, level, swath, parts, grid.axes, (rows, cols)),
        **place,
        sensor="PRISMA",
        product=f"PRISMA {level}",
        acquired=iso_utc(h5.text("Product_StartTime")),
        sun_zenith_deg=h5.number("Sun_zenith_angle"),
        sun_azimuth_deg=h5.number("Sun_azimuth_angle"),
        resampled=True if level in ("L1G", "L2D") else None,
        scene_id=stem if options.detector is None else f"{stem}_{options.detector}",
        source=path,
        files=[h5.path],
        block_bytes=block_bytes,
        reader=READER.name,
        why=why,
    )


def _part(h5: H5File, level: str, swath: str, detector: str, axes: str) -> _Part:
    """Read what one detector's attributes say, and find its cube."""
    name, key = f"{swath}/Data Fields/{detector.upper()}_Cube", detector.capitalize()
    count = cube_of(h5, name, axes).shape[2]
    wavelength = h5.need_numbers(f"List_Cw_{key}", count)
    fwhm = h5.need_numbers(f"List_Fwhm_{key}", count)
    flags = h5.need_numbers(f"List_Cw_{key}_Flags", count)
    kept = np.flatnonzero((wavelength > 0) & (flags != 0))
    if not len(kept):
        msg = f"{h5.path}: all {count} bands of {detector.upper()} are flagged as not acquired; open the other detector"
        raise FormatError(msg)
    if level in ("L1", "L1G"):
        factor = float(h5.need_numbers(f"ScaleFactor_{key}", 1)[0])
        if factor == 0:
            msg = f"{h5.path}: attribute @ScaleFactor_{key} is 0; radiance = DN / factor needs another number"
            raise FormatError(msg)
        scale, offset = 1 / factor, -float(h5.need_numbers(f"Offset_{key}", 1)[0])
    else:
        offset = float(h5.need_numbers(f"L2Scale{key}Min", 1)[0])
        scale = (float(h5.need_numbers(f"L2Scale{key}Max", 1)[0]) - offset) / 65535
        if scale == 0:
            msg = f"{h5.path}: attributes @L2Scale{key}Min and Max are equal ({offset:g}); they tell no value"
            raise FormatError(msg)
    return _Part(
        detector, cube_of(h5, name, axes, kept.tolist()), wavelength[kept], fwhm[kept], scale, offset
    )


def _place(
    h5: H5File,
    swath: str,
    shape_yx: tuple[int, int],
    grid: _Grid,
    detector: str,
    padding: float,
    chunks: tuple[tuple[int, ...], tuple[int, ...]],
) -> dict[str, Any]:
    """Return where the scene lies and how the sun stands, as arguments of `make_scene`."""
    axes = grid.axes.replace("b", "")
    sun = plane_of(h5, f"{swath}/Geometric Fields/Solar_Zenith_Angle", shape_yx, axes)
    place: dict[str, Any] = {"layers": {}}
    if sun is not None:
        place["layers"] = {"sun_zenith": (without_fill(lazy_h5(sun, *chunks), padding), _DEGREES)}
    if grid.crs is not None and grid.transform is not None:
        return place | {"crs": grid.crs, "transform": grid.transform}
    lat, lon = (
        next(
            (
                plane
                for tail in ("", f"_{detector.upper()}")
                if (plane := plane_of(h5, f"{swath}/Geolocation Fields/{name}{tail}", shape_yx, axes))
            ),
            None,
        )
        for name in ("Latitude", "Longitude")
    )
    if lat is not None and lon is not None:
        # 0 degrees is a place on earth; 65535 is none
        fill = L1_FILL if padding == L1_FILL else None
        place |= {
            key: without_fill(lazy_h5(plane, *chunks), fill)
            for key, plane in (("lat_yx", lat), ("lon_yx", lon))
        }
    return place


_DEGREES = {"units": "degree", "standard_name": "solar_zenith_angle"}


def _quality(
    h5: H5File,
    level: str,
    swath: str,
    parts: list[_Part],
    axes: str,
    chunks: tuple[tuple[int, ...], tuple[int, ...]],
) -> dict[str, Any]:
    """Return the masks of L1, and where some band is saturated."""
    shape_yx = parts[0].cube.shape[:2]
    quality: dict[str, Any] = {}
    for name, (dataset, meanings) in MASKS.items():
        plane = plane_of(h5, f"{swath}/Data Fields/{dataset}", shape_yx, axes.replace("b", ""))
        if plane is not None:
            quality[name] = (lazy_h5(plane, *chunks), {"flag_meanings": meanings})
    first = level in ("L1", "L1G")
    kind = "PIXEL_SAT_ERR_MATRIX" if first else "PIXEL_L2_ERR_MATRIX"
    names = [f"{swath}/Data Fields/{part.detector.upper()}_{kind}" for part in parts]
    found = [h5.dataset(name) for name in names]
    if all(f is not None and len(f.shape) == 3 and f.dtype.kind in "iu" for f in found):
        errors = [cube_of(h5, name, axes, part.cube.bands) for name, part in zip(names, parts, strict=True)]
        if all(
            e.shape[:2] == shape_yx
            and e.dtype == errors[0].dtype
            and max(e.bands or ()) < f.shape[axes.index("b")]
            for e, f in zip(errors, found, strict=True)
            if f is not None
        ):
            lazy = lazy_h5(StackedCube(tuple(errors)), *chunks)
            values = (2,) if first else (3,)
            flagged = da.map_blocks(partial(_some, values=values), lazy, dtype=bool, drop_axis=2)
            quality["saturated"] = (flagged, {"long_name": "saturated in at least one band"})
    return quality


def _some(block_yxb: NDArray[Any], values: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return where at least one band holds one of the values."""
    return np.asarray(np.isin(block_yxb, values).any(axis=-1), bool)


def _grid(h5: H5File, level: str, swath: str, notes: Notes) -> _Grid:
    """Return the meaning of an L2D's stored axes and its transform, from corners, latitudes and longitudes."""
    code = h5.number("Epsg_Code")
    corners = {
        (corner, axis): h5.number(f"Product_{corner}corner_{axis}")
        for corner in ("UL", "UR", "LL", "LR")
        for axis in ("easting", "northing")
    }
    known = [value for value in corners.values() if value is not None]
    if code is None or len(known) < len(corners):
        if level == "L2D":
            notes.warn(
                f"{h5.path}: no EPSG code or corner coordinates; the scene has latitudes and longitudes only"
            )
        return _Grid("ybx", None, None)
    try:
        crs = CRS.from_epsg(int(code))
    except (CRSError, OverflowError) as error:
        msg = f"{h5.path}: attribute @Epsg_Code is {code:g}, which PROJ does not know"
        raise FormatError(msg) from error
    east = [value for (_, axis), value in corners.items() if axis == "easting" and value is not None]
    north = [value for (_, axis), value in corners.items() if axis == "northing" and value is not None]
    shape = h5.need(f"{swath}/Data Fields/VNIR_Cube").shape
    measured = _fit(h5, swath, (int(shape[0]), int(shape[-1])), crs)
    if measured is None:
        notes.warn(f"{h5.path}: its latitudes and longitudes tell no orientation; north was taken to be up")
    fit = np.array([[0.0, 1.0], [-1.0, 0.0]]) if measured is None else measured
    axes = "ybx" if abs(fit[0, 1]) >= abs(fit[0, 0]) else "xby"
    sizes = {axes[0]: int(shape[0]), axes[-1]: int(shape[-1])}
    # index // 2: the first stored axis is column 0 of the fit, the last one column 1
    right, up = float(fit[0, axes.index("x") // 2]), float(fit[1, axes.index("y") // 2])
    x = _axis(min(east), max(east), sizes["x"], forwards=right > 0)
    y = _axis(min(north), max(north), sizes["y"], forwards=up > 0)
    if x is None or y is None:
        notes.warn(
            f"{h5.path}: the corner coordinates span no grid; the scene has latitudes and longitudes only"
        )
        return _Grid(axes, None, None)
    steps = np.array([x[1], y[1]])
    if measured is not None and (np.abs(steps - [right, up]) > 0.1 * np.abs(steps)).any():
        notes.warn(
            f"{h5.path}: pixels are {x[1]:.2f} x {y[1]:.2f} by the corners and {right:.2f} x {up:.2f} by latitude "
            "and longitude; the corners are used"
        )
    return _Grid(axes, crs, Affine(x[1], 0.0, x[0], 0.0, y[1], y[0]))


def _axis(low: float, high: float, count: int, *, forwards: bool) -> tuple[float, float] | None:
    """Return edge and step of an axis whose first and last pixel *centres* are `low` and `high`."""
    if count < 2 or high <= low:
        return None
    step = (high - low) / (count - 1)
    return (low - step / 2, step) if forwards else (high + step / 2, -step)


def _fit(h5: H5File, swath: str, shape: tuple[int, int], crs: CRS) -> NDArray[np.float64] | None:
    """Return how easting (row 0) and northing (row 1) grow along the first and the last stored axis, per pixel."""
    lat, lon = (h5.dataset(f"{swath}/Geolocation Fields/{name}") for name in ("Latitude", "Longitude"))
    if lat is None or lon is None or lat.shape != shape or lon.shape != shape:
        return None
    steps = [max(1, n // _SAMPLES) for n in shape]
    lats, lons = (
        np.stack([np.asarray(d[i], np.float64)[:: steps[1]] for i in range(0, shape[0], steps[0])])
        for d in (lat, lon)
    )
    first, last = np.meshgrid(
        np.arange(0, shape[0], steps[0]), np.arange(0, shape[1], steps[1]), indexing="ij"
    )
    usable = np.isfinite(lats) & np.isfinite(lons) & ((lats != 0) | (lons != 0))
    usable &= (np.abs(lats) <= 90) & (np.abs(lons) <= 180)
    if usable.sum() < 3:
        return None
    try:
        east, north = reproject(CRS.from_epsg(4326), crs, lons[usable].tolist(), lats[usable].tolist())[:2]
    except RasterioError:
        return None
    design = np.stack([np.ones(usable.sum()), first[usable], last[usable]], axis=1)
    target = np.stack([np.asarray(east), np.asarray(north)], axis=1)
    if not np.isfinite(target).all() or np.linalg.matrix_rank(design) < 3:
        return None
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0][1:].T, np.float64)


def _recognise(path: str, head: bytes) -> str | None:
    return recognise(path, head, _known, _WHAT)


READER = Reader("prisma", "PRISMA HDF-EOS5", _recognise, open_prisma, "generated files")
