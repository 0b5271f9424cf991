"""EO-1 Hyperion: L1T (242 GeoTIFFs and an MTL text), and an L1R file that nothing here can open.

Where each fact is from
-----------------------
- ``EO1H<...>_B001_L1T.TIF`` to ``_B242_L1T.TIF``, ``EO1H<...>_MTL_L1T.TXT``, int16, 0 without data: public
  readers of real scenes (acolite, arcsi, pygaarst, lpinner/metageta).
- MTL: groups ``L1_METADATA_FILE`` > ``METADATA_FILE_INFO``, ``PRODUCT_METADATA`` (``SPACECRAFT_ID, SENSOR_ID,
  ACQUISITION_DATE, START_TIME, PRODUCT_LINES, PRODUCT_SAMPLES, BANDn_FILE_NAME``), ``PRODUCT_PARAMETERS``
  (``SENSOR_LOOK_ANGLE, SUN_AZIMUTH, SUN_ELEVATION``), ``RADIANCE_SCALING``, ``PROJECTION_PARAMETERS``,
  ``UTM_PARAMETERS``: the keys those readers ask for. START_TIME is "year day-of-year time" (acolite takes the
  last word; an R script reads the eighth word of the line as the day of the year, which also fixes the indent
  of four blanks).
- radiance = DN / SCALING_FACTOR_VNIR (40) for bands 1-70, DN / SCALING_FACTOR_SWIR (80) for 71-242, W m-2 sr-1
  um-1; the EO-1 documentation states bands 8-57 and 77-224 as the calibrated ones; the rest are 0.
- An HDF4 file starts with the bytes 0e 03 13 01 (well known, not looked up).

Not established
---------------
Wavelengths stand in no file of L1T. `Truth.wavelength_nm` follows the usual table from memory (355.59 nm for band 1,
steps of 10.175 nm; 851.92 nm for band 71, steps of 10.089 nm) to 0.1 nm only: use `Truth.order(...,
tolerance_nm=0.2)`. Blanks and the order of lines in the MTL beyond what is said above; compression of the
GeoTIFFs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rasterio.io import MemoryFile
from rasterio.transform import from_origin

from .truth import COLS, ROWS, Truth, radiance

EPSG = 32612
LEFT, TOP, STEP = 323385.0, 4238715.0, 30.0
STEM = "EO1H0380342005105110KF"


def make_hyperion(
    folder: Path,
    seed: int = 0,
    *,
    scaling: tuple[float, float] = (40.0, 80.0),
    missing_band: int | None = None,
    mtl: bool = True,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one L1T scene into its own folder.

    Parameters
    ----------
    scaling
        the VNIR and SWIR factors of the MTL.
    missing_band
        number (from 1) of a band whose file is absent: must be refused.
    mtl
        False leaves the MTL out.
    """
    number = np.arange(1, 243)
    vnir = number <= 70
    wave = np.where(vnir, 355.59 + 10.1752 * (number - 1), 851.92 + 10.0886 * (number - 71))
    good = ((number >= 8) & (number <= 57)) | ((number >= 77) & (number <= 224))
    divisor = np.where(vnir, *scaling)
    raw = np.round(radiance(wave, seed, shape_yx) * divisor).astype("i2")
    missing = np.zeros(raw.shape, bool)
    missing[:, :, ~good] = True
    missing[np.subtract.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1])) > 7] = True
    raw[missing] = 0
    home = folder / f"{STEM}_1T"
    home.mkdir(parents=True, exist_ok=True)
    names = [f"{STEM}_B{n:03d}_L1T.TIF" for n in number]
    profile = {
        "driver": "GTiff", "height": shape_yx[0], "width": shape_yx[1], "count": 1, "dtype": "int16",
        "crs": f"EPSG:{EPSG}", "transform": from_origin(LEFT, TOP, STEP, STEP),
    }  # fmt: skip
    # GDAL writes one file of recognisable numbers; the 242 differ in them alone
    marker = np.random.default_rng(seed).integers(1, 30000, shape_yx, dtype="i2")
    with MemoryFile() as memory:
        with memory.open(**profile) as out:
            out.write(marker, 1)
        head, tail = memory.read().split(marker.astype("<i2").tobytes())
    for i, name in enumerate(names):
        if number[i] != missing_band:
            (home / name).write_bytes(head + raw[:, :, i].astype("<i2").tobytes() + tail)
    text = home / f"{STEM}_MTL_L1T.TXT"
    if mtl:
        text.write_text(_mtl(names, scaling, shape_yx))
    return Truth(
        paths=[home, text] if mtl else [home],
        physical_yxb=np.where(missing, np.nan, raw / divisor),
        raw_yxb=raw,
        wavelength_nm=wave,
        good_band=good,
        detector=np.where(vnir, "vnir", "swir"),
        quantity="radiance",
        nodata=0,
        nodata_mask_yxb=missing,
        valid_yx=~missing[:, :, good].any(axis=2),
        scale=1 / divisor,
        offset=0.0,
        crs_epsg=EPSG,
        transform6=(STEP, 0.0, LEFT, 0.0, -STEP, TOP),
        sun_zenith_deg=90 - 57.316212,
        sun_azimuth_deg=136.504,
        acquired="2005-04-15T17:58:18Z",
        refusal=f"B{missing_band:03d}" if missing_band else "",
        extra={"folder": home},
    )


def make_hyperion_l1r(folder: Path, seed: int = 0) -> Truth:
    """Write the first bytes of an HDF4 file under the name of an L1R scene: it must be refused with that reason."""
    home = folder / f"{STEM}_1R"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{STEM}.L1R"
    rng = np.random.default_rng(seed)
    path.write_bytes(b"\x0e\x03\x13\x01" + rng.integers(0, 256, 4000, dtype="u1").tobytes())
    nothing = np.full((0, 0, 0), np.nan)
    return Truth(
        paths=[path],
        physical_yxb=nothing,
        raw_yxb=nothing,
        wavelength_nm=np.array([]),
        quantity="radiance",
        refusal="HDF4",
    )


def _mtl(names: list[str], scaling: tuple[float, float], shape_yx: tuple[int, int]) -> str:
    rows, cols = shape_yx
    right, bottom = LEFT + STEP * (cols - 1), TOP - STEP * (rows - 1)
    groups = {
        "METADATA_FILE_INFO": [
            'ORIGIN = "Image courtesy of the U.S. Geological Survey"',
            "PRODUCT_CREATION_TIME = 2012-01-06T15:49:56Z",
        ],
        "PRODUCT_METADATA": [
            'PRODUCT_TYPE = "L1T"',
            'SPACECRAFT_ID = "EO1"',
            'SENSOR_ID = "HYPERION"',
            'SENSOR_MODE = "EO1"',
            "ACQUISITION_DATE = 2005-04-15",
            "START_TIME = 2005 105 17:58:18",
            "END_TIME = 2005 105 17:58:32",
            "TARGET_WRS_PATH = 038",
            f"PRODUCT_UL_CORNER_MAPX = {LEFT + STEP / 2:.6f}",
            f"PRODUCT_UL_CORNER_MAPY = {TOP - STEP / 2:.6f}",
            f"PRODUCT_LR_CORNER_MAPX = {right + STEP / 2:.6f}",
            f"PRODUCT_LR_CORNER_MAPY = {bottom - STEP / 2:.6f}",
            f"PRODUCT_SAMPLES = {cols}",
            f"PRODUCT_LINES = {rows}",
            *(f'BAND{i + 1}_FILE_NAME = "{name}"' for i, name in enumerate(names)),
            f'METADATA_L1T_FILE_NAME = "{STEM}_MTL_L1T.TXT"',
        ],
        "PRODUCT_PARAMETERS": [
            "SENSOR_LOOK_ANGLE = -7.9842",
            "SUN_AZIMUTH = 136.504000",
            "SUN_ELEVATION = 57.316212",
        ],
        "CORRECTIONS_APPLIED": ['STRIPING = "N"', 'INOPERABLE_DETECTORS = "N"'],
        "RADIANCE_SCALING": [
            f"SCALING_FACTOR_VNIR = {scaling[0]:.1f}",
            f"SCALING_FACTOR_SWIR = {scaling[1]:.1f}",
        ],
        "PROJECTION_PARAMETERS": [
            'REFERENCE_DATUM = "WGS84"',
            'REFERENCE_ELLIPSOID = "WGS84"',
            "GRID_CELL_SIZE = 30.000",
            'MAP_PROJECTION = "UTM"',
            'RESAMPLING_OPTION = "CC"',
        ],
        "UTM_PARAMETERS": ["ZONE_NUMBER = +12"],
    }
    inner = "".join(
        f"  GROUP = {name}\n" + "".join(f"    {line}\n" for line in lines) + f"  END_GROUP = {name}\n"
        for name, lines in groups.items()
    )
    return f"GROUP = L1_METADATA_FILE\n{inner}END_GROUP = L1_METADATA_FILE\nEND\n"
