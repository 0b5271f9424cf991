"""DESIS products (L1C and L2A; L1B on request): one GeoTIFF of 235 bands, its XML, quality files, an ENVI header.

Where each fact is from
-----------------------
- Files of a granule ``-HISTORY.xml -METADATA.xml -QL_IMAGE.tif -QL_QUALITY.tif -QL_QUALITY-2.tif
  -SPECTRAL_IMAGE.hdr -SPECTRAL_IMAGE.tif`` (suffixes in small letters, unlike EnMAP): public scripts that list
  real granules; DLR's STAC.
- int16, -32768, ``value = DN * gainOfBand + offsetOfBand`` with a gain *and* an offset per band in L1, 1e-4 and
  0 in L2A; radiance in mW cm-2 sr-1 um-1 (ATBD PAV-DLR-TN-004, quoted by hyperproc), so x 10 gives W m-2 sr-1
  um-1. Another reader (EnSpec/sister) calls the unit uW cm-2 sr-1, which is not a spectral radiance at all.
- ``<band>`` stands under ``specific/bandCharacterisation`` and again under an ``interiorOrientation``; a band
  has ``bandNumber, wavelengthCenterOfBand, wavelengthWidthOfBand, response, wavelengths, gainOfBand,
  offsetOfBand, deadPixels, suspiciousPixel`` (several readers of real files).
- ``specific/sunZenithAngle`` (zenith, not elevation), ``sunAzimuthAngle``, ``sceneIncidenceAngle``,
  ``sceneAzimuthAngle``; ``base/temporalCoverage/{startTime, endTime}``; the third and fourth child of the root
  are base and specific (EnSpec/sister).
- QL_QUALITY-2: ten uint8 bands shadow, land, snow, haze over land, haze over water, cloud over land, cloud over
  water, water, AOT x 100, water vapour x 42; L2A only. QL_QUALITY: one band per spectral band.
- ``base/spatialCoverage/boundingPolygon/point/{frame, latitude, longitude}`` with frames point_1...point_4 (EnSpec/sister,
  acolite). Their order: "starting with the most starboard pixel of the first scanline and followed by a
  counter-clockwise sequence" (DLR's document, quoted in acolite), which EnSpec/sister takes for (first row, first
  column), (last, first), (last, last), (first, last); EnMAP of the same makers lists its named frames in this order.
- The ENVI header beside the tif lists wavelength and fwhm: EnMAP-Box reads them there.

Not established
---------------
The name of the root element and namespaces; the rest of the ENVI header; whether the tif carries a nodata tag
(variant); whether the ``wavelength`` list of the header equals that of the XML in every product (it does here);
whether and where L1B brings rational polynomials (as tags of the TIFF, in a variant); whether the four points are
centres or corners of pixels (centres here).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from rasterio.rpc import RPC
from rasterio.transform import from_origin

from .rpc import Model, model
from .truth import COLS, ROWS, Truth, radiance, reflectance

EPSG = 32611
LEFT, TOP, STEP = 345600.0, 3812400.0, 30.0
FILL = -32768
LAYERS = (
    "shadow", "land", "snow", "haze_land", "haze_water", "cloud_land", "cloud_water", "water", "aot", "vapour",
)  # fmt: skip


def make_desis(
    folder: Path,
    seed: int = 0,
    *,
    level: str = "L2A",
    nodata_tag: bool = False,
    header: bool = True,
    one_band_short: bool = False,
    rpc_tags: bool = False,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one DESIS granule into its own folder.

    Parameters
    ----------
    header
        the ENVI header beside the tif.
    one_band_short
        the XML describes 234 bands while the tif has 235: must be refused.
    rpc_tags
        the tif carries rational polynomials as tags, as GDAL writes and reads them.
    """
    wave = np.array([float(f"{w:.3f}") for w in np.linspace(401.275, 999.517, 235)])
    width = np.array([float(f"{w:.3f}") for w in 3.5 + 0.2 * np.sin(np.arange(235) / 40)])
    if level == "L2A":
        gain, offset, factor = np.full(235, 1e-4), np.zeros(235), 1.0
        raw = np.round(reflectance(wave, seed, shape_yx) * 1e4)
        raw[3, 3, 5] = -40  # over-corrected, and real
    else:
        values = radiance(wave, seed, shape_yx) / 10
        gain = np.array([float(f"{g:.8g}") for g in 1.1e-3 + 2e-6 * np.arange(235)])
        offset = np.array([float(f"{o:.8g}") for o in 0.05 * np.cos(np.arange(235) / 17)])
        raw, factor = np.round((values - offset) / gain), 10.0
    missing = np.zeros(raw.shape, bool)
    missing[np.add.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1])) < 3] = True
    missing[7, 7] = True
    raw[missing] = FILL
    raw = raw.astype("i2")
    stem = f"DESIS-HSI-{level}-DT0865788448_014-20230607T153935-V0221"
    home = folder / stem
    home.mkdir(parents=True, exist_ok=True)
    image, metadata = home / f"{stem}-SPECTRAL_IMAGE.tif", home / f"{stem}-METADATA.xml"
    view = model(shape_yx, 3, lat=34.25, lon=-118.45)
    _tiff(image, raw, FILL if nodata_tag else None, view if rpc_tags else None)
    corners = _corners(view, shape_yx) if level == "L1B" else _BOX
    row, col = np.indices(shape_yx)
    seen = view.ground(row, col, view.numbers["HEIGHT_OFF"]) if rpc_tags else _between(corners, row, col)
    _tiff(home / f"{stem}-QL_QUALITY.tif", np.zeros(raw.shape, "u1"), None)
    quality = {}
    if level == "L2A":
        row, col = np.indices(shape_yx)
        table = np.zeros((*shape_yx, 10), "u1")
        table[:, :, 0], table[:, :, 1] = row == 5, col < 6
        table[:, :, 5], table[:, :, 6], table[:, :, 7] = (
            (row < 3) & (col < 5),
            (row < 2) & (col > 6),
            col >= 6,
        )
        table[:, :, 8], table[:, :, 9] = 17, 84
        _tiff(home / f"{stem}-QL_QUALITY-2.tif", table, None)
        quality = {name: table[:, :, i] for i, name in enumerate(LAYERS)}
    metadata.write_text(
        _xml(level, wave, width, gain, offset, 234 if one_band_short else 235, corners), encoding="utf-8"
    )
    (home / f"{stem}-HISTORY.xml").write_text("<history/>", encoding="utf-8")
    if header:
        (home / f"{stem}-SPECTRAL_IMAGE.hdr").write_text(
            f"ENVI\nsamples = {shape_yx[1]}\nlines = {shape_yx[0]}\nbands = 235\nheader offset = 0\n"
            "file type = TIFF\ndata type = 2\ninterleave = bsq\nbyte order = 0\nwavelength units = Nanometers\n"
            f"wavelength = {{{', '.join(map(str, wave.tolist()))}}}\nfwhm = {{{', '.join(map(str, width.tolist()))}}}\n"
        )
    return Truth(
        paths=[home, metadata, image],
        physical_yxb=np.where(missing, np.nan, (raw * gain + offset) * factor),
        raw_yxb=raw,
        wavelength_nm=wave,
        fwhm_nm=width,
        quantity="surface_reflectance" if level == "L2A" else "radiance",
        nodata=FILL,
        nodata_mask_yxb=missing,
        valid_yx=~missing.any(axis=2),
        scale=gain * factor,
        offset=offset * factor,
        crs_epsg=EPSG,
        transform6=(STEP, 0.0, LEFT, 0.0, -STEP, TOP),
        lat_yx=seen[0] if level == "L1B" else None,
        lon_yx=seen[1] if level == "L1B" else None,
        sun_zenith_deg=33.417,
        sun_azimuth_deg=118.2,
        acquired="2023-06-07T15:39:35.192921Z",
        quality=quality,
        refusal="bands" if one_band_short else "",
        extra={"folder": home, "metadata": metadata},
    )


_BOX = ((34.4, -118.6), (34.4, -118.3), (34.1, -118.3), (34.1, -118.6))


def _corners(view: Model, shape_yx: tuple[int, int]):
    """Latitude and longitude of point_1 to point_4."""
    bottom, right = shape_yx[0] - 1, shape_yx[1] - 1
    row, col = np.array([0, bottom, bottom, 0]), np.array([0, 0, right, right])
    lat, lon = view.ground(row, col, 500.0)
    return tuple(zip(lat.round(9).tolist(), lon.round(9).tolist(), strict=True))


def _between(corners, row, col):
    """Bilinear between the four points."""
    down, across = row / max(1, row.max()), col / max(1, col.max())
    weights = ((1 - down) * (1 - across), down * (1 - across), down * across, (1 - down) * across)
    return tuple(sum(w * c[axis] for w, c in zip(weights, corners, strict=True)) for axis in (0, 1))


def _rpcs(view: Model) -> RPC:
    n, p = view.numbers, view.polynomials
    return RPC(
        height_off=n["HEIGHT_OFF"], height_scale=n["HEIGHT_SCALE"], lat_off=n["LAT_OFF"], lat_scale=n["LAT_SCALE"],
        long_off=n["LONG_OFF"], long_scale=n["LONG_SCALE"], line_off=n["ROW_OFF"], line_scale=n["ROW_SCALE"],
        samp_off=n["COL_OFF"], samp_scale=n["COL_SCALE"], line_num_coeff=p["ROW_NUM"].tolist(),
        line_den_coeff=p["ROW_DEN"].tolist(), samp_num_coeff=p["COL_NUM"].tolist(), samp_den_coeff=p["COL_DEN"].tolist(),
    )  # fmt: skip


def _tiff(path: Path, data_yxb: np.ndarray, nodata: float | None, view: Model | None = None) -> None:
    rows, cols, count = data_yxb.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=rows, width=cols, count=count, dtype=data_yxb.dtype.name, nodata=nodata,
        crs=f"EPSG:{EPSG}", transform=from_origin(LEFT, TOP, STEP, STEP), interleave="band",
    ) as out:  # fmt: skip
        if view is not None:
            out.rpcs = _rpcs(view)
        out.write(np.ascontiguousarray(data_yxb.transpose(2, 0, 1)))


def _xml(level, wave, width, gain, offset, count: int, corners) -> str:
    bands = "".join(
        f"<band><bandNumber>{i + 1}</bandNumber><wavelengthCenterOfBand>{float(wave[i])!r}</wavelengthCenterOfBand>"
        f"<wavelengthWidthOfBand>{float(width[i])!r}</wavelengthWidthOfBand><response>0.1,1.0,0.1</response>"
        f"<wavelengths>{wave[i] - 3:.2f},{wave[i]:.2f},{wave[i] + 3:.2f}</wavelengths>"
        f"<gainOfBand>{float(gain[i])!r}</gainOfBand><offsetOfBand>{float(offset[i])!r}</offsetOfBand>"
        "<deadPixels>0</deadPixels><suspiciousPixel>2</suspiciousPixel></band>\n"
        for i in range(count)
    )
    # the same element under another parent: reading every <band> doubles the count
    orientation = "".join(
        f"<band><bandNumber>{i + 1}</bandNumber><A_1_X>0.02</A_1_X></band>" for i in range(235)
    )
    points = "".join(
        f"<point><frame>point_{i}</frame><latitude>{lat}</latitude><longitude>{lon}</longitude></point>"
        for i, (lat, lon) in enumerate(corners, 1)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<hsi_doc>\n'
        f"<metadata><schema><processingLevel>{level}</processingLevel></schema></metadata>\n"
        "<processing><productFormat>GeoTIFF+Metadata</productFormat></processing>\n"
        f"<base><spatialCoverage><boundingPolygon>{points}</boundingPolygon></spatialCoverage><temporalCoverage>"
        "<startTime>2023-06-07T15:39:35.192921Z</startTime><endTime>2023-06-07T15:39:39.602921Z</endTime>"
        f"</temporalCoverage><altitudeCoverage>421000</altitudeCoverage><format>DESIS_HSI_{level}</format>"
        f"<level>{level}</level></base>\n"
        "<specific><mission>DESIS</mission><sunZenithAngle>33.417</sunZenithAngle>"
        "<sunAzimuthAngle>118.2</sunAzimuthAngle><sceneIncidenceAngle>5.2</sceneIncidenceAngle>"
        "<sceneAzimuthAngle>307.9</sceneAzimuthAngle><pointingMirrorAngle>90.2</pointingMirrorAngle>\n"
        f"<bandCharacterisation>\n{bands}</bandCharacterisation></specific>\n"
        f"<product><navigation><interiorOrientation>{orientation}</interiorOrientation></navigation></product>\n"
        "</hsi_doc>\n"
    )
