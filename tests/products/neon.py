"""NEON AOP surface reflectance (HDF5): flight lines (DP1) and 1 km tiles (DP3).

Where each fact is from
-----------------------
- Tree ``<SITE>/Reflectance/{Reflectance_Data, Metadata/{Coordinate_System, Spectral_Data, Ancillary_Imagery,
  Logs, ...}}``: the h5ls listing of a real tile in NEON's own tutorial (NEONScience/NEON-Data-Skills); 426
  bands, int16, (row, column, band); "EPSG Code" and "Map_Info" are strings, ``Wavelength`` and ``FWHM`` floats
  in nm.
- ``Reflectance_Data`` attributes ``Data_Ignore_Value`` -9999, ``Scale_Factor`` 10000 (the number is *divided*),
  ``Dimensions``, ``Spatial_Extent_meters`` (left, right, bottom, top): NEON's tutorials. Older files spell
  "Data Ignore Value" and "Scale Factor" with blanks; not made here.
- ``Map_Info``: "UTM, 1.000, 1.000, easting, northing, 1.0, 1.0, zone, North, WGS-84, units=Meters", the corner
  of the upper left pixel (EnSpec/hytools, hyperproc's check against the extent). "rotation=0" may follow.
- ``Band_Window_1_Nanometers``, ``Band_Window_2_Nanometers`` on the Reflectance group: the product's own bad
  bands.
- Sun: ``Logs/Solar_Zenith_Angle`` in a flight line; in a tile one group per flight line that it was made of, so
  no single number (listing of a tile). ``to-sensor_zenith_angle`` in new files, ``to-sensor_Zenith_Angle`` in
  old ones.
- File names: ``NEON_D17_SJER_DP3_257000_4112000_reflectance.h5``, with ``_directional_reflectance.h5`` (DP1)
  and ``_bidirectional_reflectance.h5`` (DP3) since revision 2: NEON's tutorials.
- ``Weather_Quality_Indicator`` (1000 x 1000 x 3, a colour picture), ``Haze_Cloud_Water_Map`` codes: here plain
  integers. gzip, chunked (hyperproc: 336 x 39 x 14 in a flight line).

Not established
---------------
Whether scalar strings are of fixed or variable length (variable here); Scale_Factor as a number or a list of
one number (both have been seen in readers: variant).
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from .truth import COLS, ROWS, Truth, reflectance

EPSG = 32611
LEFT, TOP = 257000.0, 4113000.0
FILL = -9999


def make_neon(
    folder: Path,
    seed: int = 0,
    *,
    kind: str = "directional",
    attributes_as_lists: bool = False,
    step: float = 1.0,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one NEON file.

    Parameters
    ----------
    kind
        "directional" (a flight line of DP1), "bidirectional" (a tile of DP3) or "reflectance" (a tile, old name).
    attributes_as_lists
        Scale_Factor and Data_Ignore_Value as arrays of one number.
    step
        metres per pixel, in Map_Info and in the extent.
    """
    line = kind == "directional"
    wave = np.linspace(381.6035, 2510.7, 426).astype("f4")
    width = np.linspace(5.84, 6.02, 426).astype("f4")
    windows = ((1340.0, 1445.0), (1790.0, 1955.0))
    good = np.ones(426, bool)
    for low, high in windows:
        good &= ~((wave >= low) & (wave <= high))
    raw = np.round(reflectance(wave, seed, shape_yx) * 1e4).astype("i2")
    raw[:, :, ~good] = 15000  # what the windows hold is no reflectance
    missing = np.zeros(raw.shape, bool)
    missing[np.add.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1])) > 17] = True
    raw[missing] = FILL
    tail = "20210331_195724_directional_reflectance" if line else f"257000_4112000_{kind}"
    tail = tail if line or kind == "reflectance" else f"257000_4112000_{kind}_reflectance"
    path = folder / f"NEON_D17_SJER_{'DP1' if line else 'DP3'}_{tail}.h5"
    row, col = np.indices(shape_yx)
    with h5py.File(path, "w") as out:
        group = out.create_group("SJER/Reflectance")
        for i, window in enumerate(windows):
            group.attrs[f"Band_Window_{i + 1}_Nanometers"] = np.array(window)
        data = group.create_dataset(
            "Reflectance_Data",
            data=raw,
            chunks=(min(6, shape_yx[0]), min(5, shape_yx[1]), 71),
            compression="gzip",
        )
        pack = (lambda x: np.array([x])) if attributes_as_lists else (lambda x: x)
        data.attrs["Data_Ignore_Value"], data.attrs["Scale_Factor"] = (
            pack(np.float64(FILL)),
            pack(np.float64(10000)),
        )
        data.attrs["Dimensions"] = np.array(raw.shape)
        right, bottom = LEFT + step * shape_yx[1], TOP - step * shape_yx[0]
        data.attrs["Spatial_Extent_meters"] = np.array([LEFT, right, bottom, TOP])
        data.attrs["Interleave"] = "BSQ"  # the idea of the layout, not the order of the axes
        meta = group.create_group("Metadata")
        system = meta.create_group("Coordinate_System")
        system["EPSG Code"] = str(EPSG)
        system["Map_Info"] = (
            f"UTM,  1.000,  1.000,       {LEFT:.3f},       {TOP:.3f},       {step:.10e},       {step:.10e},"
            "  11,  North,  WGS-84,  units=Meters, 0"
        )
        system["Proj4"] = "+proj=utm +zone=11 +datum=WGS84 +units=m +no_defs"
        spectral = meta.create_group("Spectral_Data")
        spectral["Wavelength"], spectral["FWHM"] = wave, width
        spectral["Wavelength"].attrs["Units"] = "nanometers"
        extra = meta.create_group("Ancillary_Imagery")
        cloud = ((row < 3) & (col < 4)).astype("u1") * 16
        extra["Haze_Cloud_Water_Map"] = cloud
        extra["Aspect"], extra["Slope"] = np.full(shape_yx, 190.0, "f4"), np.full(shape_yx, 3.0, "f4")
        extra["Path_Length"] = np.full(shape_yx, 1010.0, "f4")
        extra["Weather_Quality_Indicator"] = np.full((*shape_yx, 3), 120, "u1")
        logs = meta.create_group("Logs")
        for name, zenith in (("", 41.23),) if line else (("195724/", 41.23), ("200251/", 40.9)):
            logs[f"{name}Solar_Zenith_Angle"], logs[f"{name}Solar_Azimuth_Angle"] = (
                np.float64(zenith),
                np.float64(151.6),
            )
        meta["to-sensor_zenith_angle"] = np.full(shape_yx, 4.0, "f4")
        meta["to-sensor_azimuth_angle"] = np.full(shape_yx, 88.0, "f4")
    return Truth(
        paths=[path],
        physical_yxb=np.where(missing, np.nan, raw / 1e4),
        raw_yxb=raw,
        wavelength_nm=wave.astype(float),
        fwhm_nm=width.astype(float),
        good_band=good,
        quantity="surface_reflectance",
        nodata=FILL,
        nodata_mask_yxb=missing,
        valid_yx=~missing[:, :, good].any(axis=2),
        scale=1e-4,
        offset=0.0,
        crs_epsg=EPSG,
        transform6=(step, 0.0, LEFT, 0.0, -step, TOP),
        sun_zenith_deg=41.23 if line else None,
        sun_azimuth_deg=151.6 if line else None,
        quality={"haze_cloud_water": cloud},
    )
