"""NEON AOP reflectance (flight lines DP1.30006, tiles DP3.30006; directional and bidirectional): HDF5, a map grid.

Traps
- Everything lies in a group named by the site: `<SITE>/Reflectance/Reflectance_Data` (y, x, band). The attribute
  `Interleave = BSQ` does not describe that order.
- int16, reflectance x `Scale_Factor` (10,000), fill `Data_Ignore_Value` (-9999), negative reflectance is real.
- Bands within `Band_Window_1_Nanometers` and `Band_Window_2_Nanometers` (water vapour) are bad.
- `Map_Info` is ENVI's: its coordinates are the outer corner of the first pixel. The EPSG code is a text.
- The angles of the sun are one number per flight line. A tile holds several lines, each with a group of its own below
  `Metadata/Logs`; their mean is given.
- `Weather_Quality_Indicator` is a coloured picture (green, yellow, red), not a number per pixel. It becomes
  1 = green (less than 10 % cloud), 2 = yellow (10 to 50 %), 3 = red, 0 = none of them.

Sources: NEON.DOC.001288 and the NEON data skills tutorials. Proved on generated files only.
"""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from ..errors import FormatError
from ..scene import make_scene
from .envi_header import EnviHeader
from .envi_map import georeference
from .hdf import H5File, cube_of, iso_utc, lazy_h5, opened, plane_of, row_chunks
from .hdf_product import main_file, no_detector, overrides, recognise
from .options import Notes, Options
from .reader import Reader
from .wavelengths import to_nanometres

FILL = -9999.0
FACTOR = 10_000.0

_DATA = "Reflectance_Data"
_WHAT = "NEON reflectance"


def _known(h5: H5File) -> str | None:
    """Return why an HDF5 file is NEON reflectance, or None."""
    site = _site(h5)
    return None if site is None else f"HDF5 with {site}/Reflectance/{_DATA} of NEON"


def _site(h5: H5File) -> str | None:
    """Return the group of the site."""
    names = h5.members()
    if len(names) > 8:
        return None
    for name in names:
        base = f"{name}/Reflectance"
        if _DATA in h5.members(base) and h5.group(f"{base}/Metadata/Spectral_Data") is not None:
            return name
    return None


def open_neon(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a NEON reflectance file, or a folder that holds one, as a lazy scene.

    Raises
    ------
    FormatError
        If the file lacks what the product promises, or contradicts itself.
    """
    file = main_file(path, _known, _WHAT)
    no_detector(options, READER.name)
    with opened(file) as h5:
        site = _site(h5)
        if site is None:
            listed = ", ".join(h5.members()[:8])
            msg = f"{file} has no <SITE>/Reflectance/{_DATA} of NEON; its groups: {listed}"
            raise FormatError(msg)
        return _scene(h5, site, path, options, notes, why)


def _scene(h5: H5File, site: str, path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Make the scene of an open file."""
    base, name = f"{site}/Reflectance", f"{site}/Reflectance/{_DATA}"
    meta = f"{base}/Metadata"
    cube = cube_of(h5, name, "yxb")
    rows, cols, block_bytes = row_chunks([cube], h5, notes)
    bands = _bands(h5, base, cube.shape[2], notes)
    factor = h5.number("Scale_Factor", name) or FACTOR
    fill = h5.number("Data_Ignore_Value", name)
    crs, transform = _place(h5, f"{meta}/Coordinate_System", notes)
    numbers = overrides(
        options,
        READER.name,
        [name],
        quantity="surface_reflectance",
        units="1",
        nodata=FILL if fill is None else fill,
        scale=1 / factor,
    )
    return make_scene(
        lazy_h5(cube, rows, cols),
        **bands,
        **numbers,
        crs=crs,
        transform=transform,
        quality=_quality(h5, f"{meta}/Ancillary_Imagery", cube.shape[:2], (rows, cols)),
        sensor="NEON-NIS",
        product="NEON AOP reflectance",
        acquired=iso_utc(h5.text("Acquisition_Time", base)),
        sun_zenith_deg=_sun(h5, f"{meta}/Logs", "Solar_Zenith_Angle"),
        sun_azimuth_deg=_sun(h5, f"{meta}/Logs", "Solar_Azimuth_Angle"),
        scene_id=os.path.splitext(os.path.basename(h5.path))[0],
        source=path,
        files=[h5.path],
        block_bytes=block_bytes,
        reader=READER.name,
        why=why,
    )


def _bands(h5: H5File, base: str, count: int, notes: Notes) -> dict[str, Any]:
    """Return wavelengths, widths and good bands."""
    spectral = f"{base}/Metadata/Spectral_Data"
    names = {name.casefold(): name for name in h5.members(spectral)}
    centre, width = (f"{spectral}/{names.get(key, key)}" for key in ("wavelength", "fwhm"))
    values = h5.floats(centre, count)
    if values is None:
        msg = f"{h5.path} has no {spectral}/Wavelength, which NEON reflectance needs; the file is incomplete"
        raise FormatError(msg)
    # the unit is written `nanometers` or left out
    unit = h5.text("Units", centre) or h5.text("units", centre) or "nm"
    wavelength, fwhm = to_nanometres(values, unit, h5.path, notes, fwhm=h5.floats(width, count))
    good = np.ones(count, bool)
    for number in (1, 2):
        window = h5.numbers(f"Band_Window_{number}_Nanometers", base)
        if window is not None and len(window) == 2 and wavelength is not None:
            good &= ~((wavelength >= window.min()) & (wavelength <= window.max()))
    return {"wavelength_nm": wavelength, "fwhm_nm": fwhm, "good_band": good}


def _place(h5: H5File, base: str, notes: Notes) -> tuple[CRS | None, Affine | None]:
    """Return coordinate system and transform: the EPSG code wins over the projection that `Map_Info` names."""
    names = {name.casefold().replace(" ", "_"): name for name in h5.members(base)}

    def text(key: str) -> str | None:
        found = h5.texts(f"{base}/{names[key]}") if key in names else None
        return ", ".join(found).strip() if found else None

    code, info = text("epsg_code"), text("map_info")
    if info is None:
        notes.warn(f"{h5.path} has no {base}/Map_Info; the scene has no place on earth")
        return None, None
    header = EnviHeader(f"{h5.path}: {base}", {"map info": info}, ())
    if code is None:
        return georeference(header, notes)
    try:
        crs = CRS.from_epsg(int(float(code)))
    except (CRSError, ValueError, OverflowError) as error:
        msg = f"{h5.path}: {base}/EPSG Code is {code[:40]!r}, which PROJ does not know"
        raise FormatError(msg) from error
    return crs, georeference(header, Notes())[1]


def _sun(h5: H5File, base: str, name: str) -> float | None:
    """Return an angle of the sun in degrees, the mean of the flight lines where there are several."""
    places = [base, *(f"{base}/{line}" for line in h5.members(base)[:200])]
    values = [h5.floats(f"{place}/{name}") for place in places if h5.group(place) is not None]
    usable = [float(v[0]) for v in values if v is not None and v.size and 0 <= v[0] <= 360]
    if len(usable) > 1 and name == "Solar_Azimuth_Angle":  # 359 and 1 are 0 on average, not 180
        turns = np.deg2rad(usable)
        return float(np.rad2deg(np.arctan2(np.sin(turns).mean(), np.cos(turns).mean())) % 360)
    return float(np.mean(usable)) if usable else None


def _quality(
    h5: H5File, base: str, shape_yx: tuple[int, int], chunks: tuple[tuple[int, ...], tuple[int, ...]]
) -> dict[str, Any]:
    """Return the class map of haze, cloud and water as it is, and the weather picture as classes."""
    quality: dict[str, Any] = {}
    plane = plane_of(h5, f"{base}/Haze_Cloud_Water_Map", shape_yx)
    if plane is not None:
        quality["haze_cloud_water"] = (
            lazy_h5(plane, *chunks),
            {"long_name": "ATCOR classes of haze, cloud, water"},
        )
    name = f"{base}/Weather_Quality_Indicator"
    found = h5.dataset(name)
    if found is not None and found.shape == (*shape_yx, 3) and found.dtype.kind in "iu":
        picture = lazy_h5(cube_of(h5, name, "yxb"), *chunks)
        classes: da.Array = da.map_blocks(_colours, picture, dtype=np.uint8, drop_axis=2)
        quality["weather"] = (classes, {"flag_meanings": "0 none, 1 green, 2 yellow, 3 red"})
    return quality


def _colours(block_yxb: NDArray[Any]) -> NDArray[np.uint8]:
    """Return 1 where green, 2 where red and green, 3 where red."""
    strongest = block_yxb.max(axis=-1, initial=0)
    red, green = (2 * block_yxb[..., i].astype(np.int64) > strongest for i in (0, 1))
    blue = 2 * block_yxb[..., 2].astype(np.int64) > strongest
    coloured = ~blue & (red | green)
    return np.where(coloured, np.where(red & green, 2, np.where(green, 1, 3)), 0).astype(np.uint8)


def _recognise(path: str, head: bytes) -> str | None:
    return recognise(path, head, _known, _WHAT)


READER = Reader("neon", "NEON AOP HDF5", _recognise, open_neon, "generated files")
