"""AHSI of GaoFen-5 and its successors (GF5, GF5A, GF5B) and of ZY1-02D/E (ZY1E, ZY1F).

Where each fact is from
-----------------------
- Images ``<scene>_VN.tif`` and ``<scene>_SW.tif`` (also ``.tiff``, and ``_VN.geotiff``/``_SW.geotiff``, or one
  ``<scene>.geotiff`` of GF-5), scene names such as ``ZY1E_AHSI_E108.96_N34.68_20200203_002068_L1A0000083728``,
  ``GF5B_AHSI_E111.6_N35.8_20231031_011422_L10000412729``,
  ``GF5_AHSI_E34.27_N60.83_20190614_005849_L10000047825``: lists in public processing codes.
- Text files ``<mission>_AHSI_RadCal_VNIR.raw``, ``<mission>_AHSI_Spectralresponse_VNIR.raw`` and the same with
  SWIR (also written ``<mission>_AHSI_VNIR_RadCal.raw``): one line per band, "gain,offset" and "centre,width" in
  nm, separated by a comma or by blanks; some ZY1E files hold the gain alone: public readers that try these in
  turn.
- Bands: GF5B 150 + 180 (a script that joins them); ZY1-02D 76 + 90 and uint16 are commonly stated, not looked up.
- radiance = DN * gain + offset; a retrieval that compares the result with a model in W m-2 sr-1 um-1 (mW m-2
  sr-1 nm-1, the same number) uses it as it is. Most codes leave the offset out, since it is 0 in the files that
  they had.
- XML ``ProductMetaData/{StartTime, EndTime, SolarZenith, SolarAzimuth, SatelliteZenith, CenterLatitude,
  TopLeftLatitude, SamplesInPixels, LinesInPixels ...}``, flat: the same readers.
- ``<scene>_VN.rpb`` and ``_SW.rpb`` beside the images (RPC); the image itself has no map grid.

Not established
---------------
The unit in words; the number that means no data (0 is written off the swath here, and nothing says so); whether
VNIR and SWIR pixels coincide; whether StartTime is UTC (one code subtracts eight hours first); band counts of
GF5A and ZY1F; the content of the one-file form of GF-5 (one script notes 180 bands). So these files are an aid,
not a proof.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from .truth import COLS, ROWS, Truth, radiance

SCENES = {
    "ZY1E": "ZY1E_AHSI_E108.96_N34.68_20200203_002068_L1A0000083728",
    "GF5B": "GF5B_AHSI_E111.6_N35.8_20231031_011422_L10000412729",
    "GF5": "GF5_AHSI_E34.27_N60.83_20190614_005849_L10000047825",
}
COUNTS = {"ZY1E": (76, 90), "GF5B": (150, 180), "GF5": (150, 180)}


def make_ahsi(
    folder: Path,
    seed: int = 0,
    *,
    mission: str = "ZY1E",
    suffix: str = ".tif",
    separator: str = ",",
    detector_first: bool = False,
    offset_column: bool = True,
    calibration: bool = True,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one AHSI scene into its own folder.

    Parameters
    ----------
    suffix
        of the images: ".tif", ".tiff" or ".geotiff".
    separator
        between the two columns of the text files.
    detector_first
        names as ``..._VNIR_RadCal.raw`` in place of ``..._RadCal_VNIR.raw``.
    offset_column
        False: the calibration file holds the gain alone.
    calibration
        False leaves the calibration files out.
    """
    scene, counts = SCENES[mission], COUNTS[mission]
    home = folder / scene
    home.mkdir(parents=True, exist_ok=True)
    spans = {"vnir": (396.4, 1038.6), "swir": (1007.9, 2495.6)}
    parts = {}
    for name, count in zip(("vnir", "swir"), counts, strict=True):
        wave = np.linspace(*spans[name], count).round(3)
        width = np.linspace(4.4, 5.1, count).round(3) * (2 if name == "swir" else 1)
        gain = np.array([float(f"{g:.6g}") for g in 0.031 + 1.3e-5 * np.arange(count)])
        shift = np.array([float(f"{o:.6g}") for o in 0.02 * np.sin(np.arange(count))]) * offset_column
        raw = np.clip(np.round((radiance(wave, seed, shape_yx) - shift) / gain), 1, None)
        missing = np.zeros(raw.shape, bool)
        missing[:, 0 if name == "vnir" else -1] = True
        raw[missing] = 0
        image = home / f"{scene}_{'VN' if name == 'vnir' else 'SW'}{suffix}"
        _tiff(image, raw.astype("u2"))
        upper = name.upper()
        label = (
            (lambda what, upper=upper: f"{upper}_{what}")
            if detector_first
            else (lambda what, upper=upper: f"{what}_{upper}")
        )
        columns = np.stack([gain, shift], axis=1) if offset_column else gain[:, None]
        if calibration:
            _text(home / f"{mission}_AHSI_{label('RadCal')}.raw", columns, separator)
        _text(
            home / f"{mission}_AHSI_{label('Spectralresponse')}.raw",
            np.stack([wave, width], axis=1),
            separator,
        )
        image.with_suffix(".rpb").write_text('satId = "????";\nbandId = "????";\n')
        parts[name] = Truth(
            paths=[image],
            physical_yxb=np.where(missing, np.nan, raw * gain + shift),
            raw_yxb=raw.astype("u2"),
            wavelength_nm=wave,
            fwhm_nm=width,
            detector=np.full(count, name),
            quantity="radiance",
            nodata=0,
            nodata_mask_yxb=missing,
            valid_yx=~missing.any(axis=2),
            scale=gain,
            offset=shift,
            sun_zenith_deg=52.37,
            sun_azimuth_deg=151.2,
            extra={"folder": home},
        )
    metadata = home / f"{scene}.xml"
    metadata.write_text(_xml(mission, shape_yx), encoding="utf-8")
    return Truth(**{**vars(parts["vnir"]), "paths": [home, metadata], "parts": parts})


def _text(path: Path, columns: np.ndarray, separator: str) -> None:
    path.write_text("".join(separator.join(repr(float(v)) for v in line) + "\n" for line in columns))


def _tiff(path: Path, data_yxb: np.ndarray) -> None:
    rows, cols, count = data_yxb.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(
            path, "w", driver="GTiff", height=rows, width=cols, count=count, dtype="uint16", interleave="band"
        ) as out:
            out.write(np.ascontiguousarray(data_yxb.transpose(2, 0, 1)))


def _xml(mission: str, shape_yx: tuple[int, int]) -> str:
    fields = {
        "SatelliteID": mission, "SensorID": "AHSI", "StartTime": "2020-02-03 11:21:44",
        "EndTime": "2020-02-03 11:21:54",
        "LinesInPixels": shape_yx[0], "SamplesInPixels": shape_yx[1], "SolarAzimuth": 151.2, "SolarZenith": 52.37,
        "SatelliteAzimuth": 98.3, "SatelliteZenith": 3.1, "CenterLatitude": 34.68, "CenterLongitude": 108.96,
        "TopLeftLatitude": 34.98, "TopLeftLongitude": 108.7, "TopRightLatitude": 34.88, "TopRightLongitude": 109.3,
        "BottomRightLatitude": 34.38, "BottomRightLongitude": 109.2, "BottomLeftLatitude": 34.48,
        "BottomLeftLongitude": 108.6,
    }  # fmt: skip
    inner = "".join(f"  <{key}>{value}</{key}>\n" for key, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<ProductMetaData>\n{inner}</ProductMetaData>\n'
