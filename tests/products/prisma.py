"""PRISMA (ASI) HDF-EOS5 files: L1, L1G, L2B, L2C, L2D.

Where each fact is from
-----------------------
- Groups ``HDFEOS/SWATHS/PRS_<level>_HCO/{Data,Geolocation,Geometric} Fields``, cube (row, band, column) uint16,
  66 and 173 bands, shapes and number types of the masks and error matrices (uint8), of ``FrameNumber``
  (uint32): listings of real files in public notebooks and in javierconcha's ``open_PRISMA`` (wavelength, width
  and flag lists of a real L1 file with their types: float32, float32, uint8; ScaleFactor 100, Offset 0,
  float32).
- ``Latitude_VNIR``/``Latitude_SWIR`` in L1 but ``Latitude`` in L2: IREA-CNR-MI/prismaread, SNAP's reader.
- L1 = DN / ScaleFactor - Offset, L2 = Min + DN (Max - Min) / 65535: prismaread, HyperCoast, javierconcha.
  acolite *adds* the offset; it is 0 in every file that a source shows, so real numbers have not settled the
  sign. SNAP (senbox-org/optical-toolbox) *multiplies* L1 by ScaleFactor instead (its recorded band 10 of a real
  file reads 992 900, i.e. DN 9929); 99.29 W m-2 sr-1 um-1 is the radiance of a cloud, 992 900 is not.
- Attributes as fixed-length byte strings, time as ``%Y-%m-%dT%H:%M:%S.%f`` without a zone; ``Processing_Level``
  is "1", "2B", "2C", "2D" (SNAP): public code that decodes them (SNAP, satpy-like handlers);
  ``Sun_zenith_angle``, ``Sun_azimuth_angle``: prismaread.
- L2D: ``Epsg_Code``, ``Product_<corner>_easting/northing``, corners are pixel centres ((n - 1) steps between
  them): SNAP (width - 1); prismaread takes them as edges, so the sources disagree by half a pixel.
- Absent bands: 0.0 nm, flag 0, the first ones of VNIR and the last ones of SWIR: 3 and 2 in a granule of
  January 2020, 0 and 1 in one of July 2019 (marcyin's spectral_response notes), so their number belongs to the
  file (variant). Angles per pixel in L2 (``Solar_Zenith_Angle`` ...), 0 on the padding of L2D: SNAP, hyperproc.
- Error values: SAT_ERR 0 ok, 1 defective, 2 saturated, 3 lower confidence, 4 NaN; L2_ERR 0 ok, 1 invalid, 2
  negative, 3 saturated; Cloud_Mask 0, 1, 10 (not classified), 255 (error): SNAP's codings. hyperproc reads
  SAT_ERR otherwise (1 saturated, 2 error, 3 both): not settled.
- Cubes contiguous, not chunked: hyperproc's notes on real files. Time is days since 2000-01-01 (SNAP: 8858.436
  for 2024-04-02).
- L1G (``PRS_L1G_STD_OFFL_...``, a grid; acolite): group ``PRS_L1_HCO`` as in L1 but ``Latitude``/``Longitude``
  without a suffix and ``Geometric Fields/{Solar_Zenith_Angle, Solar_Azimuth_Angle, Sensor_...}``, ``Terrain
  Fields/DEM``; 65535 is no data in all of them.

Not established
---------------
The rest of L1G: its Processing_Level ("1" is written), whether it carries Epsg_Code and corners (none here),
masks and error matrices; what absent bands hold (0 is written); which corner of the ground the first pixel is
(here columns run westwards, as the corner table of a public converter has it; readers must take it from
latitude and longitude); whether newer L1 files use another ScaleFactor (variant).
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from .truth import COLS, ROWS, Truth, latlon, radiance, reflectance

EPSG = 32632
STEP = 30.0
EAST, NORTH = 672300.0, 5341500.0  #: centre of the upper left pixel of L2D
ACQUIRED = "2020-01-16T10:14:54.123456"


def band_lists(detector: str, absent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lists of one detector as stored: centres and widths (float32), flags (uint8); descending."""
    if detector == "vnir":
        centre = np.interp(np.arange(66), [0, 3, 25, 47, 65], [1010, 972.65, 740, 550, 402.45])
        centre[:absent] = 0
    else:
        centre = np.interp(np.arange(173), [0, 60, 120, 170, 172], [2496.9, 2044, 1500, 942.96, 925])
        centre[173 - absent :] = 0
    width = np.where(centre > 0, 8.9 + 0.0023 * centre, 0.0)
    return centre.astype("f4"), width.astype("f4"), (centre > 0).astype("u1")


def make_prisma(
    folder: Path,
    seed: int = 0,
    *,
    level: str = "L1",
    scale_factor: float = 100.0,
    offset: float = 0.0,
    flagged_off: int | None = None,
    absent: tuple[int, int] = (3, 2),
    shape_yx: tuple[int, int] = (ROWS, COLS),
    external_link: bool = False,
) -> Truth:
    """Write one PRISMA file.

    Parameters
    ----------
    scale_factor, offset
        of L1, both detectors; an offset other than 0 shows on which side of the division it stands.
    flagged_off
        index of a VNIR band with a wavelength whose flag is 0 all the same.
    absent
        bands of 0.0 nm at the start of VNIR and at the end of SWIR.
    external_link
        the SWIR cube is an HDF5 link to another file: must be refused.
    """
    detectors = ("vnir", "swir")
    lists = {name: band_lists(name, count) for name, count in zip(detectors, absent, strict=True)}
    if flagged_off is not None:
        lists["vnir"][2][flagged_off] = 0
    wave = np.concatenate([lists[name][0] for name in detectors]).astype(float)
    present = np.concatenate([lists[name][2] for name in detectors]).astype(bool)
    names = np.repeat(detectors, [66, 173])
    raw, scale, shift, missing = _numbers(level, seed, wave, present, scale_factor, offset, shape_yx)
    physical = np.where(missing, np.nan, raw * scale + shift)
    stem = f"PRS_{level}_STD_{'OFFL_' if level in {'L1', 'L1G'} else ''}20200116101454_20200116101458_0001"
    path = folder / f"{stem}.he5"
    group = "L1" if level == "L1G" else level
    lat, lon = latlon(shape_yx, west=level != "L2D")
    lat, lon = lat.astype("f4"), lon.astype("f4")
    if level == "L1G":
        lat[_frame(shape_yx)], lon[_frame(shape_yx)] = 65535, 65535
    zenith = (61.0 + 0.01 * np.arange(shape_yx[0])[:, None] + 0.02 * np.arange(shape_yx[1])[None, :]).astype(
        "f4"
    )
    cloud = (np.indices(shape_yx).sum(axis=0) % 5 == 0).astype("u1")
    cloud[-1, -1] = 10
    with h5py.File(path, "w") as out:
        _attributes(out, level, lists, scale_factor, offset, shape_yx)
        swath = out.create_group(f"HDFEOS/SWATHS/PRS_{group}_HCO")
        data = swath.create_group("Data Fields")
        _cubes(data, level, raw, link=folder / "elsewhere.h5" if external_link else None)
        if level == "L1":
            data["Cloud_Mask"] = cloud
            data["SunGlint_Mask"] = np.zeros(shape_yx, "u1")
            data["LandCover_Mask"] = np.full(shape_yx, 2, "u1")
            data["FrameNumber"] = np.arange(33, 33 + shape_yx[0], dtype="u4")
        geo = swath.create_group("Geolocation Fields")
        for tail in ("_VNIR", "_SWIR") if level == "L1" else ("",):
            shift_deg = 1e-6 if tail == "_SWIR" else 0
            geo[f"Latitude{tail}"], geo[f"Longitude{tail}"] = lat + np.float32(shift_deg), lon
        geo["Time"] = 7320.427 + np.arange(shape_yx[0]) * 5e-8
        if level != "L1":
            if level in {"L1G", "L2D"}:  # the frame only: a failed pixel keeps its angle
                zenith[_frame(shape_yx)] = 65535 if level == "L1G" else 0
            angles = swath.create_group("Geometric Fields")
            angles["Solar_Zenith_Angle"] = zenith
            pair = (
                ("Sensor_Zenith_Angle", "Solar_Azimuth_Angle")
                if level == "L1G"
                else ("Observing_Angle", "Rel_Azimuth_Angle")
            )
            angles[pair[0]], angles[pair[1]] = np.full(shape_yx, 4.5, "f4"), np.full(shape_yx, 71.0, "f4")
        if level == "L1G":
            swath["Terrain Fields/DEM"] = np.full(shape_yx, 512.0, "f4")
        # a second swath of the same shape: the cubes before co-registration (L1), and the panchromatic one
        if level == "L1":
            _cubes(out.create_group("HDFEOS/SWATHS/PRS_L1_HRC/Data Fields"), level, raw[::-1], link=None)
        pan = np.full((shape_yx[0] * 6, shape_yx[1] * 6), 900, "u2")
        out[f"HDFEOS/SWATHS/PRS_{group}_PCO/Data Fields/Cube"] = pan
        out.create_group("HDFEOS INFORMATION").attrs["HDFEOSVersion"] = np.bytes_("HDFEOS_5.1.15")
        out["HDFEOS INFORMATION/StructMetadata.0"] = np.bytes_(
            "GROUP=SwathStructure\nEND_GROUP=SwathStructure\nEND\n"
        )
    valid = ~missing[:, :, present].any(axis=2)
    on_map = level == "L2D"
    return Truth(
        paths=[path],
        physical_yxb=physical,
        raw_yxb=raw,
        wavelength_nm=np.where(wave > 0, wave, np.nan),
        fwhm_nm=np.where(wave > 0, np.concatenate([lists[n][1] for n in detectors]).astype(float), np.nan),
        good_band=present,
        detector=names,
        quantity={"L1": "radiance", "L1G": "radiance", "L2B": "surface_radiance"}.get(
            level, "surface_reflectance"
        ),
        nodata={"L1": None, "L1G": 65535}.get(level, 0),
        nodata_mask_yxb=missing,
        valid_yx=valid,
        scale=scale,
        offset=shift,
        crs_epsg=EPSG if on_map else None,
        transform6=(STEP, 0.0, EAST - STEP / 2, 0.0, -STEP, NORTH + STEP / 2) if on_map else None,
        lat_yx=None if on_map else np.where(lat == 65535, np.nan, lat),
        lon_yx=None if on_map else np.where(lon == 65535, np.nan, lon),
        sun_zenith_deg=float(np.float32(61.23)),
        sun_azimuth_deg=float(np.float32(163.4)),
        sun_zenith_yx=None if level == "L1" else np.where(zenith == 65535, np.nan, zenith),
        acquired=ACQUIRED + "Z",
        quality={"cloud": cloud} if level == "L1" else {},
        refusal="link" if external_link else "",
    )


def _numbers(level, seed, wave, present, scale_factor, offset, shape_yx):
    """Stored numbers (y, x, band), scale and offset per band, and what is no measurement."""
    count = wave.size
    radiant = level in {"L1", "L1G"}
    if radiant:
        values = radiance(wave, seed, shape_yx)
        scale, shift = np.full(count, 1 / scale_factor), np.full(count, -offset)
        raw = np.clip(np.round((values - shift) / scale), 1, 65534)
    else:
        values = radiance(wave, seed, shape_yx) * 0.8 if level == "L2B" else reflectance(wave, seed, shape_yx)
        low, high = _limits(level)
        span = np.repeat(high - low, [66, 173])
        scale, shift = span / 65535, np.repeat(low, [66, 173])
        raw = np.clip(np.round((values - shift) / scale), 1, 65535)
    raw[:, :, ~present] = 0
    missing = np.zeros(raw.shape, bool)
    missing[:, :, ~present] = True
    raw[2, 3], missing[2, 3] = 0, True  # every band: no measurement in any level
    raw[4, 1, 70:74] = 0  # a few bands only: real and dark in L1, failed in L2
    if not radiant:
        missing[4, 1, 70:74] = True
    if level in {"L1G", "L2D"}:  # the frame around a turned swath
        fill = 65535 if level == "L1G" else 0
        raw[_frame(shape_yx)], missing[_frame(shape_yx)] = fill, True
        raw[2, 3] = fill
    return raw.astype("u2"), scale, shift, missing


def _frame(shape_yx: tuple[int, int]) -> np.ndarray:
    return np.add.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1])) < 3


def _limits(level: str) -> tuple[np.ndarray, np.ndarray]:
    """Minimum and maximum of the two detectors, as the float32 that the file stores."""
    top = [420.5, 96.25] if level == "L2B" else [1.37, 1.12]
    return np.zeros(2), np.array(top, "f4").astype(float)


def _attributes(out, level, lists, scale_factor, offset, shape_yx) -> None:
    text = {
        "Product_ID": f"PRS_{level}_STD",
        "Product_Name": f"PRS_{level}_STD_20200116101454_20200116101458_0001",
        "Processing_Level": "1" if level == "L1G" else level[1:],
        "Processor_Name": level,
        "Product_StartTime": ACQUIRED,
        "Product_StopTime": "2020-01-16T10:14:58.429145",
    }
    for key, value in text.items():
        out.attrs[key] = np.bytes_(value)
    out.attrs["Sun_zenith_angle"] = np.float32(61.23)
    out.attrs["Sun_azimuth_angle"] = np.float32(163.4)
    for name, (centre, width, flags) in lists.items():
        tail = name.capitalize()
        out.attrs[f"List_Cw_{tail}"], out.attrs[f"List_Fwhm_{tail}"] = centre, width
        out.attrs[f"List_Cw_{tail}_Flags"] = flags
    if level in {"L1", "L1G"}:
        for tail in ("Vnir", "Swir", "Pan"):
            out.attrs[f"ScaleFactor_{tail}"], out.attrs[f"Offset_{tail}"] = (
                np.float32(scale_factor),
                np.float32(offset),
            )
        return
    low, high = _limits(level)
    for i, tail in enumerate(("Vnir", "Swir")):
        out.attrs[f"L2Scale{tail}Min"], out.attrs[f"L2Scale{tail}Max"] = (
            np.float32(low[i]),
            np.float32(high[i]),
        )
    out.attrs["L2ScalePanMin"], out.attrs["L2ScalePanMax"] = np.float32(0), np.float32(1)
    if level == "L2D":
        east = EAST + STEP * (shape_yx[1] - 1)
        south = NORTH - STEP * (shape_yx[0] - 1)
        out.attrs["Epsg_Code"] = np.int64(EPSG)
        out.attrs["Projection_Id"], out.attrs["Projection_Name"] = np.bytes_("UTM"), np.bytes_("UTM")
        out.attrs["Reference_Ellipsoid"] = np.bytes_("WGS84")
        for corner, x, y in (
            ("UL", EAST, NORTH),
            ("UR", east, NORTH),
            ("LL", EAST, south),
            ("LR", east, south),
        ):
            out.attrs[f"Product_{corner}corner_easting"] = np.float32(x)
            out.attrs[f"Product_{corner}corner_northing"] = np.float32(y)


def _cubes(group, level, raw, *, link) -> None:
    name = "PIXEL_SAT_ERR_MATRIX" if level in {"L1", "L1G"} else "PIXEL_L2_ERR_MATRIX"
    for detector, bands in (("VNIR", slice(0, 66)), ("SWIR", slice(66, None))):
        cube = np.ascontiguousarray(raw[:, :, bands].transpose(0, 2, 1))
        if link is not None and detector == "SWIR":
            with h5py.File(link, "w") as other:
                other["cube"] = cube
            group["SWIR_Cube"] = h5py.ExternalLink(link.name, "/cube")
        else:
            group[f"{detector}_Cube"] = cube
        error = np.zeros(cube.shape, "u1")
        error[5, 10, 5] = 2
        group[f"{detector}_{name}"] = error
