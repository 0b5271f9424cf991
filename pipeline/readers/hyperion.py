"""Hyperion (EO-1) L1T: 242 GeoTIFFs of one band, `EO1H..._B001_L1T.TIF` and so on, with `EO1H..._MTL_L1T.TXT`.

Traps
- Radiance in W m-2 sr-1 um-1 = DN / 40 (bands 1-70, VNIR) or DN / 80 (71-242, SWIR); the MTL states the two factors.
- Only the bands 8-57 and 77-224 are calibrated; the others hold nothing and are no good bands.
- The detectors overlap: bands 56-57 (VNIR) see what 77-78 (SWIR) see, so wavelengths are not ascending.
- 0 is no data.
- Wavelengths stand in no file of the product; they come from the published table (`hyperion_bands`).
- L1R (`.L1R`) is HDF4, which nothing here can open: it is refused.

Keys as public readers of real scenes use them (ACOLITE, ARCSI, pygaarst). Proved on generated files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from ..errors import FormatError, SceneNotFoundError
from ..scene import make_scene
from .buffers import lend
from .cube import even_chunks, lazy_cube, rows_per_chunk
from .geotiff import RasterFacts, read_facts
from .hyperion_bands import BANDS, CALIBRATED, FWHM_NM, VNIR_BANDS, WAVELENGTH_NM
from .indexing import hull, indices, split_key, squeeze
from .options import Notes, Options
from .product_files import files_in
from .raster import GDAL_CACHE_BYTES, open_quietly, pooled_raster, window_of
from .reader import Reader

FACTORS = {"SCALING_FACTOR_VNIR": 40.0, "SCALING_FACTOR_SWIR": 80.0}
"""Numbers per W m-2 sr-1 um-1, as published; the MTL states them too."""

HANDLE_BYTES = 2**16
"""What an open file of one band costs, generously (49 KB were seen)."""

NODATA = 0.0
_BAND = re.compile(r"\A(EO1H\w+)_B(\d{3})_(L1\w+)\.tiff?\Z", re.IGNORECASE)
_MTL = re.compile(r"\A(EO1H\w+)_MTL_(L1\w+)\.txt\Z", re.IGNORECASE)
_HDF4 = b"\x0e\x03\x13\x01"
_L1R = re.compile(r"\A(EO1H.*|.*\.L1R)\Z", re.IGNORECASE)
_MAX_MTL = 2**20


@dataclass(frozen=True)
class _Files:
    """The files of one scene: band files by 1-based number, and the MTL if it is there."""

    scene_id: str
    bands: dict[int, str]
    mtl: str | None


class BandFilesCube:
    """Array-like (y, x, band) over files of one band each; no more of them are open at a time than the pool holds."""

    ndim = 3

    def __init__(self, paths: tuple[str, ...], facts: RasterFacts) -> None:
        self.paths = paths
        self.shape = (*facts.shape[:2], len(paths))
        self.dtype = facts.dtype
        self._placed = facts.transform is not None

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window of some bands."""
        (y, x, band), drop = split_key(key, self.shape)
        y0, y1, y_inside = hull(y)
        x0, x1, x_inside = hull(x)
        picked = indices(band, self.shape[2])
        block = lend((len(picked), y1 - y0, x1 - x0), self.dtype)
        if y1 > y0 and x1 > x0:
            window = window_of(y0, y1, x0, x1)
            for i, b in enumerate(picked):
                path = self.paths[int(b)]
                with pooled_raster(path, driver="GTiff", placed=self._placed, one_of_many=True) as raster:
                    raster.read(1, window=window, out=block[i])
        return squeeze(block.transpose(1, 2, 0)[y_inside][:, x_inside], drop)


def open_hyperion(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a Hyperion L1T scene, given its folder, its MTL or one of its band files.

    Raises
    ------
    SceneNotFoundError
        If the file of a calibrated band is missing.
    FormatError
        If it is L1R (HDF4), the files do not fit each other, or the MTL is damaged.
    """
    if _is_l1r(path):
        msg = (
            f"{path} is HDF4 (Hyperion L1R), which this program cannot open: the HDF4 library is in no usual build of "
            "GDAL or Python. Take the L1T product of the same scene (GeoTIFF), or convert the file to ENVI with gdal_translate "
            "of a GDAL with HDF4 and open that header"
        )
        raise FormatError(msg)
    files = _find(path)
    if files is None:
        msg = f"{path} is no Hyperion L1T scene; give its folder, its EO1H..._MTL_L1T.TXT or one of its EO1H..._B001_L1T.TIF"
        raise FormatError(msg)
    mtl = {} if files.mtl is None else read_mtl(files.mtl)
    numbers = _complete(files, path)
    paths = tuple(files.bands[number] for number in numbers)
    facts = _same_grid(paths, options, notes)
    rows, cols = facts.shape[:2]
    pixel_bytes = len(paths) * facts.dtype.itemsize
    block_rows = min(facts.block[0], rows) if facts.block[0] * cols * pixel_bytes <= 64 * 2**20 else 1
    data = lazy_cube(
        BandFilesCube(paths, facts),
        even_chunks(rows, rows_per_chunk(cols * pixel_bytes, rows, block_rows)),
        paths=paths,
    )
    vnir = np.array(numbers) <= VNIR_BANDS
    factor = {key: _factor(mtl, key, files, notes) for key in FACTORS}
    scale = 1 / np.where(vnir, factor["SCALING_FACTOR_VNIR"], factor["SCALING_FACTOR_SWIR"])
    where = files.mtl or path
    elevation = _mtl_number(mtl, "SUN_ELEVATION", where)
    return make_scene(
        data,
        wavelength_nm=[WAVELENGTH_NM[n - 1] for n in numbers],
        fwhm_nm=[FWHM_NM[n - 1] for n in numbers],
        good_band=[n in CALIBRATED for n in numbers],
        band_names=[f"B{n:03d}" for n in numbers],
        detector=["vnir" if v else "swir" for v in vnir],
        crs=facts.crs,
        transform=facts.transform,
        nodata=NODATA if options.nodata is None else options.nodata,
        scale=scale if options.scale is None else options.scale,
        offset=options.offset,
        quantity=options.quantity or "radiance",
        units=options.units or "W m-2 sr-1 um-1",
        acquired=_acquired(mtl),
        sun_zenith_deg=None if elevation is None else 90.0 - elevation,
        sun_azimuth_deg=_mtl_number(mtl, "SUN_AZIMUTH", where),
        sensor="Hyperion",
        product="Hyperion L1T",
        resampled=True,
        scene_id=files.scene_id,
        source=path,
        files=[*([files.mtl] if files.mtl else []), *paths],
        # what GDAL caches of all files, and the handles that stay open
        block_bytes=facts.block_bytes + GDAL_CACHE_BYTES + len(paths) * HANDLE_BYTES,
        reader="hyperion",
        why=why,
    )


def read_mtl(path: str) -> dict[str, str]:
    """Return the `KEY = value` lines of an MTL without quotes; of a repeated key the first.

    Raises
    ------
    FormatError
        If the file is too large, or holds no such line.
    """
    with open(path, "rb") as file:
        content = file.read(_MAX_MTL + 1)
    if len(content) > _MAX_MTL:
        msg = f"{path} has more than {_MAX_MTL} bytes; an MTL has some 20,000"
        raise FormatError(msg)
    keys: dict[str, str] = {}
    for line in content.decode("latin-1").splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip().upper() not in ("GROUP", "END_GROUP"):
            keys.setdefault(key.strip().upper(), value.strip().strip('"').strip())
    if not keys:
        msg = f"{path} holds no line `KEY = value`; it is no MTL file, or empty: fetch it again"
        raise FormatError(msg)
    return keys


def _find(path: str) -> _Files | None:
    """Return the files of the scene to which a path belongs, or None.

    Raises
    ------
    FormatError
        If a folder holds several scenes.
    """
    folder, name = (path, None) if os.path.isdir(path) else os.path.split(path)
    given = None if name is None else _BAND.match(name) or _MTL.match(name)
    if name is not None and given is None:
        return None
    scenes: dict[str, _Files] = {}
    for entry in files_in(folder):
        band, mtl = _BAND.match(entry), _MTL.match(entry)
        match = band or mtl
        if match is None or (given is not None and match[1].casefold() != given[1].casefold()):
            continue
        files = scenes.setdefault(match[1].casefold(), _Files(match[1], {}, None))
        place = os.path.join(folder, entry)
        if band is not None:
            files.bands[int(band[2])] = place
        else:
            scenes[match[1].casefold()] = _Files(files.scene_id, files.bands, place)
    found = [files for files in scenes.values() if files.bands or given is not None]
    if len(found) > 1:
        ids = ", ".join(files.scene_id for files in found[:5])
        msg = f"{path} holds {len(found)} Hyperion scenes ({ids}); give the MTL or a band file of one of them"
        raise FormatError(msg)
    return found[0] if found else None


def _complete(files: _Files, path: str) -> list[int]:
    """Return the numbers of the bands that are there, which must be all that are calibrated.

    Raises
    ------
    SceneNotFoundError
        Naming the missing ones.
    """
    missing = sorted(CALIBRATED - files.bands.keys())
    if missing:
        names = ", ".join(f"B{n:03d}" for n in missing[:5])
        msg = (
            f"{path}: the files of {len(missing)} calibrated bands of {files.scene_id} are missing ({names}...); the product "
            f"has {BANDS} band files: unpack or fetch it again"
        )
        raise SceneNotFoundError(msg)
    return sorted(n for n in files.bands if 1 <= n <= BANDS)


def _same_grid(paths: tuple[str, ...], options: Options, notes: Notes) -> RasterFacts:
    """Return the facts of the first file after a look into each that it has the same size, type and place.

    Raises
    ------
    FormatError
        Naming the first file that differs, or holds several bands.
    """
    first = read_facts(paths[0], options, notes, tags=False)
    expected = _grid(paths[0])
    for path in paths:
        found = _grid(path)
        wrong = next((name for name, value in found.items() if value != expected[name]), None)
        if wrong is not None or found["bands"] != "1":
            what = wrong or "bands"
            msg = (
                f"{path}: {what} {found[what]}, but {paths[0]}: {what} {expected[what]}; the files of a scene hold one band "
                "each on one grid: fetch the scene again"
            )
            raise FormatError(msg)
    return first


def _grid(path: str) -> dict[str, str]:
    """Return what the band files of a scene must have in common, as text."""
    try:
        with open_quietly(path, "GTiff") as raster:
            return {
                "rows": str(raster.height),
                "columns": str(raster.width),
                "bands": str(raster.count),
                "number type": str(raster.dtypes[0]),
                "transform": str([float(v) for v in list(raster.transform)[:6]]),
                "CRS": raster.crs.to_string() if raster.crs else "none",
            }
    except RasterioError as error:
        msg = f"{path} cannot be opened as GeoTIFF: {error}"
        raise FormatError(msg) from error


def _factor(mtl: dict[str, str], key: str, files: _Files, notes: Notes) -> float:
    """Return a scaling factor of the MTL, or, with a warning, the published one."""
    value = _mtl_number(mtl, key, files.mtl or files.scene_id)
    if value is None:
        notes.warn(
            f"{files.mtl or files.scene_id}: {key} is not stated; the published {FACTORS[key]:g} was taken"
        )
        return FACTORS[key]
    if value <= 0:
        msg = f"{files.mtl}: {key} = {value:g}; allowed: a positive number"
        raise FormatError(msg)
    return value


def _mtl_number(mtl: dict[str, str], key: str, where: str) -> float | None:
    """Return a number of the MTL, None where it has none.

    Raises
    ------
    FormatError
        If it is no finite number.
    """
    if key not in mtl:
        return None
    try:
        value = float(mtl[key])
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        msg = f"{where}: {key} = {mtl[key][:40]!r}; allowed: a finite number"
        raise FormatError(msg)
    return value


def _acquired(mtl: dict[str, str]) -> str | None:
    """Return date and start (`START_TIME` is year, day of the year, time), as ISO 8601."""
    date = mtl.get("ACQUISITION_DATE")
    time = mtl.get("START_TIME", "").split()
    if date is None or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        return None
    return f"{date}T{time[-1]}Z" if time and re.fullmatch(r"[\d:.]{5,20}", time[-1]) else date


def _is_l1r(path: str) -> bool:
    """Return whether a file, or one in a folder, is a Hyperion scene in HDF4."""
    if os.path.isdir(path):
        return any(
            name.upper().endswith(".L1R") and _is_l1r(os.path.join(path, name)) for name in files_in(path)
        )
    try:
        with open(path, "rb") as file:
            return file.read(4) == _HDF4 and _L1R.match(os.path.basename(path)) is not None
    except OSError:
        return False


def _recognise(path: str, head: bytes) -> str | None:
    name = os.path.basename(path)
    if head and head[:4] != _HDF4 and not (_BAND.match(name) or _MTL.match(name)):
        return None
    if _is_l1r(path):
        return "an HDF4 file of Hyperion (L1R)"
    try:
        files = _find(path)
    except FormatError:
        return "it holds several Hyperion scenes"
    if files is None or not files.bands:
        return None
    return f"it belongs to the {len(files.bands)} band files of the Hyperion scene {files.scene_id}"


READER = Reader("hyperion", "Hyperion L1T", _recognise, open_hyperion, "generated files")
