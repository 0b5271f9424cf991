"""EnMAP products: L1B (two files, sensor geometry), L1C and L2A (one file on a UTM grid).

Where each fact is from
-----------------------
- The XML tree: METADATA.XML of the three DLR test products (L1B, L1C, L2A of datatake 326721, 2020), which
  senbox-org/optical-toolbox keeps whole among SNAP's test files. Root ``level_X`` *without* an element
  namespace, only ``xsi:noNamespaceSchemaLocation``;
  ``specific/bandCharacterisation/bandID[@number]/{wavelengthCenterOfBand, FWHMOfBand, GainOfBand,
  OffsetOfBand}``; ``bandID`` occurs also under ``product/navigation/RPC``, ``product/bandStatistics`` and, in
  newer files, ``product/smileCorrection``.
- Order of the bands: L1B lists VNIR, then SWIR; L1C and L2A are sorted by wavelength, so the detectors
  alternate in the overlap; ``specific/{vnir,swir}ProductQuality/expectedChannelsList`` counts from 1. In the
  L1B test product that list is the *sorted* numbering although the bands stand detector by detector, so it must
  not be used there; EnPT takes ``product/image/{vnir,swir}/channels``. Band counts 91 + 133 = 224 in mission
  products (SNAP's records of datatakes 1049, 2446, 63982), 88 + 130 = 218 in the test products.
- value = DN * GainOfBand + OffsetOfBand, W m-2 sr-1 nm-1 in L1, reflectance in L2A (gain 0.0001, offset 0): the
  XML, EnPT, SNAP, EnMAP-Box.
- uint16 and 0 in L1, int16 and -32768 in L2A; ``specific/backgroundValue`` says 0 even in the L2A test product
  (SNAP: "not available or wrong"), so it must not be trusted there. Real L2A tiles are int16 with -32768.
- Sun *elevation* ``specific/sunElevationAngle/center``; times ``base/temporalCoverage/startTime``.
- Quality files ``-QL_QUALITY_{CLASSES,CLOUD,CLOUDSHADOW,CIRRUS,HAZE,SNOW,TESTFLAGS}.TIF`` uint8 on the grid of
  the image (the L2A test product has one whole: no nodata tag, strips, classes 0-3), ``-QL_PIXELMASK.TIF`` one
  band per spectral band; in L1B TESTFLAGS and PIXELMASK per detector. Codes: CLASSES 1 land, 2 water, 3
  background; CIRRUS 1 thin, 2 medium, 3 thick; the others 0/1; TESTFLAGS bits 0-1 quality, 2/3 interpolated,
  4/5 saturated, 6/7 artefact (SWIR/VNIR): SNAP.
- ``_COG`` files: the DLR Geoservice serves ``...-SPECTRAL_IMAGE_COG.TIF`` and ``...-QL_QUALITY_CLOUD_COG.TIF``
  (a recorded search of its catalogue).
- File names may lack the long prefix (``METADATA.XML`` alone): SNAP's test ``enmap_L2A_noPrefix``.

Not established
---------------
Whether the XML of a ``_COG`` product names the files with or without ``_COG`` (without, here); whether the
spectral image carries a GDAL nodata tag (variant); strips or tiles and the interleave of the GeoTIFF (variant);
what L1C holds in the overlap beyond the order; whether the RPC of mission products differ within a detector (in the
L1B test product all bands of a detector have one set, and the sets of the detectors lie 20 rows apart; here 2).
L1B brings no latitude and longitude per pixel but RPC (see ``rpc.py``), ``specific/meanGroundElevation`` in metres, and
four corners, the same for both detectors.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import from_origin

from .rpc import Model, model
from .truth import COLS, ROWS, Truth, radiance, reflectance

EPSG = 32632
LEFT, TOP, STEP = 628785.0, 5294265.0, 30.0
ELEVATION, AZIMUTH = 63.038384, 149.106702
STEM = "ENMAP01-____{level}-DT0000002446_20220810T112429Z_001_V010502_20230502T101010Z"


def band_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return wavelength and width (nm, as printed in the XML) and detector of the 91 + 133 bands, VNIR first."""
    vnir = np.interp(np.arange(91), [0, 15, 40, 65, 90], [418.24, 491.633, 622.732, 793.402, 993.083])
    swir = np.concatenate(
        [
            np.interp(np.arange(44), [0, 10, 43], [902.257, 1004.21, 1390.84]),
            np.interp(np.arange(28), [0, 27], [1461.46, 1759.83]),
            np.interp(np.arange(61), [0, 30, 60], [1939.44, 2208.12, 2445.53]),
        ]
    )
    wave = np.array([float(f"{w:.6g}") for w in np.concatenate([vnir, swir])])
    width = np.array([float(f"{w:.6g}") for w in 6.1 + (wave - 418) * 0.0021])
    return wave, width, np.repeat(["vnir", "swir"], [91, 133])


def make_enmap(
    folder: Path,
    seed: int = 0,
    *,
    level: str = "L2A",
    cog: bool = False,
    interleave: str = "band",
    nodata_tag: bool = False,
    background: str | None = None,
    namespace: bool = False,
    prefix: bool = True,
    missing_quality: bool = False,
    sequential_list: bool = False,
    missing_gain: bool = False,
    with_rpc: bool = True,
    elevation: str | None = "1039.77677701",
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write one EnMAP product into its own folder.

    Parameters
    ----------
    interleave
        "band" or "pixel", of the GeoTIFF.
    nodata_tag
        the images carry GDAL's nodata tag.
    background
        text of ``specific/backgroundValue``; None writes "0", as all three test products have it.
    namespace
        the root declares a default namespace (real files do not; a reader should not care).
    prefix
        False: file names without the long prefix (`METADATA.XML`).
    missing_quality
        no quality files, as after a partial download.
    sequential_list
        L1B: the channel lists count 1-91 and 92-224 instead of the sorted numbering.
    missing_gain
        one band has no GainOfBand: must be refused.
    with_rpc
        L1B: the metadata hold rational polynomials per band.
    elevation
        text of ``specific/meanGroundElevation``; None leaves the element out.
    """
    wave, width, detector = band_table()
    if level != "L1B":
        rank = np.argsort(wave, kind="stable")
        wave, width, detector = wave[rank], width[rank], detector[rank]
    stem = STEM.format(level=level)
    home = folder / stem
    home.mkdir(parents=True, exist_ok=True)
    raw, missing, gain, offset, factor = _numbers(level, seed, wave, detector, shape_yx)
    nodata = -32768 if level == "L2A" else 0
    physical = np.where(missing, np.nan, (raw * gain + offset) * factor)
    lead = f"{stem}-" if prefix else ""
    tail = "_COG.TIF" if cog else ".TIF"
    form = {
        "interleave": interleave,
        "nodata": nodata if nodata_tag else None,
        "cog": cog,
        "ortho": level != "L1B",
    }
    sets = {"VNIR": detector == "vnir", "SWIR": detector == "swir"} if level == "L1B" else {"": slice(None)}
    images, quality = {}, {}
    for name, bands in sets.items():
        end = f"_{name}" if name else ""
        images[name] = home / f"{lead}SPECTRAL_IMAGE{end}{tail}"
        _tiff(images[name], raw[:, :, bands], form)
    layers = _quality(missing)
    per_detector = {"TESTFLAGS"} if level == "L1B" else set()
    for key, layer in layers.items():
        quality[key.lower()] = layer
        for end in ("_VNIR", "_SWIR") if key in per_detector else ("",):
            if not missing_quality:
                _tiff(
                    home / f"{lead}QL_QUALITY_{key}{end}{tail}", layer[:, :, None], {**form, "nodata": None}
                )
    if not missing_quality:
        for name, bands in sets.items():
            end = f"_{name}" if name else ""
            mask = np.zeros(raw[:, :, bands].shape, "u1")
            mask[3, 4, :2] = 1
            _tiff(home / f"{lead}QL_PIXELMASK{end}{tail}", mask, {**form, "nodata": None})
    metadata = home / f"{lead}METADATA.XML"
    views = {
        n: model(shape_yx, 7, lat=47.6256 + 5.4e-4 * i, lon=10.9371) for i, n in enumerate(("vnir", "swir"))
    }
    numbers = {
        "wave": wave, "width": width, "gain": gain, "offset": offset, "detector": detector,
        "views": views if with_rpc and level == "L1B" else {}, "vnir": views["vnir"], "elevation": elevation,
    }  # fmt: skip
    height = views["vnir"].numbers["HEIGHT_OFF"] if elevation is None else float(elevation)
    text = _xml(level, stem, numbers, shape_yx, background or "0", sequential_list=sequential_list)
    if missing_gain:
        text = text.replace(f"<GainOfBand>{float(gain[7])!r}</GainOfBand>", "", 1)
    if namespace:
        text = text.replace("<level_X ", '<level_X xmlns="http://www.enmap.org/schema" ', 1)
    metadata.write_text(text, encoding="utf-8")

    def truth(bands: slice | np.ndarray, image: Path, name: str = "") -> Truth:
        bad = missing[:, :, bands]
        ortho = level != "L1B"
        row, col = np.indices(shape_yx)
        seen = views[name].ground(row, col, height) if name and with_rpc else (None, None)
        return Truth(
            paths=[home, metadata, image] if ortho else [image],
            physical_yxb=physical[:, :, bands],
            raw_yxb=raw[:, :, bands],
            wavelength_nm=wave[bands],
            fwhm_nm=width[bands],
            detector=detector[bands],
            quantity="surface_reflectance" if level == "L2A" else "radiance",
            nodata=nodata,
            nodata_mask_yxb=bad,
            valid_yx=~bad.any(axis=2),
            scale=gain[bands] * factor,
            offset=offset[bands] * factor,
            crs_epsg=EPSG if ortho else None,
            transform6=(STEP, 0.0, LEFT, 0.0, -STEP, TOP) if ortho else None,
            lat_yx=seen[0],
            lon_yx=seen[1],
            sun_zenith_deg=90 - ELEVATION,
            sun_azimuth_deg=AZIMUTH,
            acquired="2022-08-10T11:24:29.404092Z",
            quality={} if missing_quality else quality,
            refusal="GainOfBand" if missing_gain else "",
            extra={"folder": home, "metadata": metadata},
        )

    if level != "L1B":
        return truth(slice(None), images[""])
    parts = {name.lower(): truth(sets[name], images[name], name.lower()) for name in sets}
    # the folder and the metadata stand for two cubes that are not co-registered: which one, only the user can say
    return Truth(**{**vars(parts["vnir"]), "paths": [home, metadata], "parts": parts})


def _numbers(level, seed, wave, detector, shape_yx):
    """Stored numbers (y, x, band), what is no data, gain and offset, and the factor to W m-2 sr-1 um-1."""
    if level == "L2A":
        raw = np.round(reflectance(wave, seed, shape_yx) * 1e4).astype("i2")
        raw[3, 3, 20] = 0  # a black pixel, not the background
        raw[4, 4, 20] = -35  # over-corrected, and real
        gain, offset, factor, nodata = np.full(wave.size, 1e-4), np.zeros(wave.size), 1.0, -32768
    else:
        values = radiance(wave, seed, shape_yx) / 1000
        gain = np.array([float(f"{g:.12g}") for g in 2.4e-6 + 1.1e-9 * np.arange(wave.size)])
        # the offset of VNIR is positive and large in real files: a stored 0 would read as a bright pixel
        offset = np.array([float(f"{o:.12g}") for o in values.min(axis=(0, 1)) - 20 * gain])
        raw = np.round((values - offset) / gain).astype("u2")
        factor, nodata = 1000.0, 0
    missing = np.zeros(raw.shape, bool)
    if level == "L1B":
        missing[:, 0, detector == "vnir"] = True  # the detectors do not see the same ground
        missing[:, -1, detector == "swir"] = True
    else:
        missing[np.add.outer(np.arange(shape_yx[0]), np.arange(shape_yx[1])) < 3] = True
        missing[6, 2, 100:105] = True
    raw[missing] = nodata
    return raw, missing, gain, offset, factor


def _quality(missing: np.ndarray) -> dict[str, np.ndarray]:
    outside = missing.all(axis=2)
    row, col = np.indices(outside.shape)
    layers = {
        "CLOUD": row < 4,
        "CLOUDSHADOW": (row >= 4) & (row < 6) & (col > 5),
        "CIRRUS": np.where(col > 6, 1 + row % 3, 0),
        "HAZE": (row + col) % 7 == 0,
        "SNOW": (row > 9) & (col < 3),
        "CLASSES": np.where(col < 5, 1, 2),
        "TESTFLAGS": np.where((row == 7) & (col == 7), 16, 0),
    }
    fill = {"CLASSES": 3}
    return {k: np.where(outside, fill.get(k, 0), v).astype("u1") for k, v in layers.items()}


def _tiff(path: Path, data_yxb: np.ndarray, form) -> None:
    rows, cols, count = data_yxb.shape
    profile = {
        "driver": "GTiff", "height": rows, "width": cols, "count": count, "dtype": data_yxb.dtype.name,
        "nodata": form["nodata"], "interleave": form["interleave"],
    }  # fmt: skip
    if form["ortho"]:
        profile |= {"crs": f"EPSG:{EPSG}", "transform": from_origin(LEFT, TOP, STEP, STEP)}
    if form[
        "cog"
    ]:  # tiled and compressed as those files are; GDAL's own COG driver takes a second and a half here
        profile |= {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "DEFLATE", "predictor": 2}
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", NotGeoreferencedWarning
        )  # sensor geometry has no place, and rasterio says so
        with rasterio.open(path, "w", **profile) as out:
            out.write(np.ascontiguousarray(data_yxb.transpose(2, 0, 1)))


def _element(tag: str, value: object, unit: str = "") -> str:
    attribute = f' unit="{unit}"' if unit else ""
    return f"<{tag}{attribute}>{value}</{tag}>"


def _corners(level: str, view: Model, shape_yx: tuple[int, int]):
    """Frame, latitude and longitude of the bounding polygon, in the order of the test products."""
    if level != "L1B":
        return (
            ("upper_left", 47.787525214, 10.796023441), ("lower_left", 47.521881069, 10.711705296),
            ("lower_right", 47.458060876, 11.082250647), ("upper_right", 47.723513534, 11.16872025),
            ("upper_left", 47.787525214, 10.796023441), ("center", 47.6227451732, 10.9396749085),
        )  # fmt: skip
    bottom, right = shape_yx[0] - 1, shape_yx[1] - 1
    places = (
        ("upper_left", 0, 0), ("lower_left", bottom, 0), ("lower_right", bottom, right), ("upper_right", 0, right),
        ("upper_left", 0, 0), ("center", bottom / 2, right / 2),
    )  # fmt: skip
    found = (
        (frame, view.ground(np.array([row]), np.array([col]), 900.0)) for frame, row, col in places
    )  # as if over ground of 900 m
    return tuple((frame, round(float(lat[0]), 9), round(float(lon[0]), 9)) for frame, (lat, lon) in found)


def _xml(level, stem, numbers, shape_yx, background, *, sequential_list) -> str:
    rows, cols = shape_yx
    wave, detector, views = numbers["wave"], numbers["detector"], numbers["views"]
    ground = (
        "" if numbers["elevation"] is None else _element("meanGroundElevation", numbers["elevation"], "m")
    )
    bands = "".join(
        f'<bandID number="{i + 1}">' + _element("wavelengthCenterOfBand", repr(float(wave[i])))
        + _element("FWHMOfBand", repr(float(numbers["width"][i])))
        + _element("GainOfBand", repr(float(numbers["gain"][i])))
        + _element("OffsetOfBand", repr(float(numbers["offset"][i]))) + "</bandID>\n"
        for i in range(wave.size)
    )  # fmt: skip
    numbering = np.arange(1, wave.size + 1)
    if level == "L1B" and not sequential_list:
        numbering[np.argsort(wave, kind="stable")] = np.arange(1, wave.size + 1)
    quality = ""
    for name in ("vnir", "swir"):
        chosen = ",".join(str(n) for n in sorted(numbering[detector == name]))
        quality += f"<{name}ProductQuality><{name}ProductStatus>OK</{name}ProductStatus>"
        quality += _element("numChannelsExpected", int((detector == name).sum()))
        quality += _element("expectedChannelsList", chosen)
        quality += (
            f"<numChannelsMissing>0</numChannelsMissing><missingChannelsList/></{name}ProductQuality>\n"
        )
    corners = {"upper_left": 0, "upper_right": 0.18, "lower_right": 0.2, "lower_left": 0.02, "center": 0}
    sun = "".join(
        f"<{tag}>" + "".join(_element(k, round(centre + d, 6), "DEG") for k, d in corners.items()) + f"</{tag}>\n"
        for tag, centre in (("sunElevationAngle", ELEVATION), ("sunAzimuthAngle", AZIMUTH),
                            ("acrossOffNadirAngle", -0.087160657),
                            ("alongOffNadirAngle", -0.118806959), ("sceneAzimuthAngle", 14.25283462))
    )  # fmt: skip
    points = "".join(
        f"<point><frame>{frame}</frame>{_element('latitude', lat, 'DEG')}{_element('longitude', lon, 'DEG')}</point>"
        for frame, lat, lon in _corners(level, numbers["vnir"], shape_yx)
    )
    size = f"<dimension>{_element('columns', cols)}{_element('rows', rows)}</dimension>"
    names = ["METADATA.XML"]
    if level == "L1B":
        image = ""
        for name in ("vnir", "swir"):
            file = f"{stem}-SPECTRAL_IMAGE_{name.upper()}.TIF"
            count = int((detector == name).sum())
            image += f"<{name}>{_element('channels', count)}{_element('name', file)}{size}</{name}>"
        names += [
            "QL_PIXELMASK_SWIR.TIF",
            "QL_PIXELMASK_VNIR.TIF",
            "SPECTRAL_IMAGE_SWIR.TIF",
            "SPECTRAL_IMAGE_VNIR.TIF",
        ]
        scene = _element("widthOfScene", cols, "pixel") + _element("heightOfScene", rows, "pixel")
        ortho = (
            "<ortho><projection>NA</projection><resolution>NA</resolution><resampling>NA</resampling></ortho>"
        )
    else:
        file = f"{stem}-SPECTRAL_IMAGE.TIF"
        image = f"<merge>{_element('channels', wave.size)}{_element('name', file)}{size}</merge>"
        names += ["QL_PIXELMASK.TIF", "SPECTRAL_IMAGE.TIF"]
        scene = _element("widthOfScene", 1000, "pixel") + _element("heightOfScene", 1024, "pixel")
        scene += _element("widthOfOrthoScene", cols) + _element("heightOfOrthoScene", rows)
        scene += _element("pixelSizeOfOrthoScene", 30)
        ortho = (
            "<ortho><projection>UTM_Zone32_North</projection><resolution>30</resolution>"
            "<resampling>bilinear</resampling></ortho>"
        )
    names += [f"QL_QUALITY_{k}.TIF" for k in ("CIRRUS", "CLASSES", "CLOUD", "CLOUDSHADOW", "HAZE", "SNOW")]
    files = "".join(
        f'<file number="{i + 1}">{_element("name", f"{stem}-{name}")}'
        f"{_element('format', 'xml' if i == 0 else 'binary')}</file>"
        for i, name in enumerate(names)
    )
    # other elements of the same name: a search for bandID anywhere finds these too
    rpc = "".join(
        f'<bandID number="{i + 1}">{views[detector[i]].xml() if views else "<ROW_OFF>512.0</ROW_OFF>"}</bandID>'
        for i in range(wave.size)
    )
    smile = "".join(
        f'<bandID number="{i + 1}"><wavelength>{w + 0.5:.6g}</wavelength><coeff0>2.97283E-01</coeff0></bandID>'
        for i, w in enumerate(wave[detector == "vnir"])
    )
    statistics = "".join(
        f'<bandID number="{i + 1}"><waveLength>{w:.6g}</waveLength><mean>0.05</mean></bandID>'
        for i, w in enumerate(wave)
    )
    resampled = "NA" if level == "L1B" else "Bilinear_Interpolation"
    return (
        '<level_X xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        'xsi:noNamespaceSchemaLocation="metadata_Lx_00-06-00.xsd">\n'
        f"<metadata><schema><versionSchema>00.06.00</versionSchema><processingLevel>{level}</processingLevel></schema>"
        f"{_element('name', f'{stem}-METADATA.XML')}<comment>EnMAP product, tile 1</comment></metadata>\n"
        f"<processing><productFormat>GeoTIFF+Metadata</productFormat>{_element('imageResampling', resampled)}</processing>\n"
        f"<base><spatialCoverage><boundingPolygon>{points}</boundingPolygon></spatialCoverage>"
        "<temporalCoverage><startTime>2022-08-10T11:24:29.404092Z</startTime>"
        "<stopTime>2022-08-10T11:24:33.938818Z</stopTime></temporalCoverage>"
        f"<revision>01.05.02</revision>{_element('format', f'ENMAP_{level}')}{_element('level', level)}</base>\n"
        f"<specific><qualityFlag><sceneSZA>26.961616</sceneSZA></qualityFlag>\n{quality}"
        f"<mission>EnMAP</mission><sensor>HSI</sensor>{_element('numberOfSWIRBands', 133)}"
        f"{_element('numberOfVNIRBands', 91)}"
        f"{_element('backgroundValue', background)}{scene}\n{ground}{sun}"
        f"{_element('code', level)}<bandCharacterisation>\n{bands}</bandCharacterisation></specific>\n"
        f"<product><image>{image}</image><navigation><RPC>{rpc}</RPC></navigation>{ortho}"
        f"<productFileInformation>{files}</productFileInformation>"
        f"<smileCorrection><VNIR>{smile}</VNIR></smileCorrection>"
        f"<bandStatistics>{statistics}</bandStatistics></product>\n"
        "</level_X>\n"
    )
