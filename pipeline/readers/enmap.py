"""EnMAP L1B, L1C and L2A: `*-SPECTRAL_IMAGE*.TIF` with `*-METADATA.XML` beside it (`_COG` files too).

Traps
- L1B comes as two images, VNIR (91 bands) and SWIR (133), that are not co-registered (20 rows apart): they are never
  stacked, and one must be chosen. The EPSG:4326 grid in these files is a fit to the scene's corners, no georeference.
  Latitude and longitude come from the rational polynomials (`product/navigation/RPC`) of the detector's middle band, at
  `meanGroundElevation`; the corners in the XML are the same for both detectors.
- The detectors overlap between 902 and 993 nm. In L1C and L2A the bands are sorted by wavelength, so that the detectors
  alternate there: `detector` comes from the lists of channels in the XML (`expectedChannelsList`), never from the
  position. In L1B those lists count the *sorted* bands too, although its bands stand detector by detector: there the
  number of channels per image counts.
- Value = DN * GainOfBand + OffsetOfBand, per band: W m-2 sr-1 nm-1 at L1, which is 1000 times W m-2 sr-1 um-1.
- The background is 0 (L1) or -32768 (L2A), unless the TIFF says otherwise; `backgroundValue` of the XML says 0 even at
  L2A, where 0 is a black pixel.
- The XML gives the sun's *elevation*.
- At L1B the layers for cloud, haze, snow... lie in the geometry of the VNIR image, and are left out for SWIR.
- The pixel masks (one layer per band) are not read.
- A tile cut from a product, without its XML file, is a plain GeoTIFF.

Element names as in the EnMAP reader of ESA's SNAP toolbox, EnPT and EnMAP-Box. Proved on generated files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import dask.array as da
import numpy as np
import xarray as xr

from ..errors import FormatError
from ..scene import make_scene
from .geotiff import RasterFacts, lazy_raster, read_facts
from .options import Notes, Options
from .product_files import (
    BandElements,
    ProductFiles,
    band_facts,
    find_product,
    missing_image,
    quality_plane,
    recognise_product,
    same_bands,
)
from .reader import Reader
from .rpc import located, points_of, rpc_of_element
from .xml_metadata import integers_of, number_of, read_xml, required_numbers, text_of

ROOT = "level_X"
_ELEMENTS = BandElements("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")

PER_NM = 1000.0
"""W m-2 sr-1 um-1 per W m-2 sr-1 nm-1."""

_BACKGROUND = {"L1B": 0.0, "L1C": 0.0, "L2A": -32768.0}
_DETECTORS = ("vnir", "swir")
_QUALITY = ("cloud", "cirrus", "cloudshadow", "haze", "snow", "classes", "testflags")
_CLASSES = {"flag_values": [1, 2, 3], "flag_meanings": "land water background"}


@dataclass(frozen=True)
class _Metadata:
    """What the XML file tells, bands in the order of their numbers."""

    path: str
    root: Element
    level: str
    bands: list[Element]
    channels: dict[str, list[int]]  # 1-based numbers of bands by detector


def open_enmap(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open an EnMAP product, given its folder, its METADATA.XML or a spectral image.

    Raises
    ------
    SceneNotFoundError
        If the image is missing.
    FormatError
        If the metadata is damaged or does not fit the image, or a detector of an L1B product must be chosen.
    """
    product = find_product(path, ROOT)
    if product is None:
        msg = f"{path} is no EnMAP product; give its folder, its *-METADATA.XML or a *-SPECTRAL_IMAGE*.TIF with the XML beside it"
        raise FormatError(msg)
    metadata = _read(product.metadata)
    sensor_geometry = metadata.level == "L1B"
    if sensor_geometry:
        detector = _chosen_detector(product, options)
        image = product.given or product.image(f"spectral_image_{detector}")
        if image is None:
            raise missing_image(product, f"SPECTRAL_IMAGE_{detector.upper()}")
        facts = read_facts(image, options, notes, tags=False)
        picked = _bands_of_image(metadata, detector, facts)
        detectors, scene_id = [detector] * len(picked), f"{product.stem}_{detector.upper()}"
    else:
        if options.detector is not None:
            msg = (
                f"detector = {options.detector!r}: EnMAP {metadata.level} holds both detectors in one image; leave it "
                "out, and choose bands by the coordinate `detector`"
            )
            raise FormatError(msg)
        image = product.given or product.image("spectral_image")
        if image is None:
            raise missing_image(product, "SPECTRAL_IMAGE")
        facts = read_facts(image, options, notes, tags=False)
        same_bands(facts, len(metadata.bands), metadata.path)
        picked, scene_id = list(range(len(metadata.bands))), product.stem
        detectors = _detectors(metadata, notes)
    data = lazy_raster(facts, notes)
    quality, quality_files = _quality(product, metadata, detectors, data, options, notes)
    return make_scene(
        data,
        **band_facts(
            [metadata.bands[i] for i in picked],
            _ELEMENTS,
            metadata.path,
            radiance_factor=None if metadata.level == "L2A" else PER_NM,
            nodata=_BACKGROUND[metadata.level] if facts.nodata is None else facts.nodata,
            options=options,
            notes=notes,
        ),
        band_names=[f"Band {i + 1}" for i in picked],
        detector=detectors,
        crs=None if sensor_geometry else facts.crs,
        transform=None if sensor_geometry else facts.transform,
        quality=quality,
        **(_place(metadata, picked, data, options, notes) if sensor_geometry else {}),
        **_conditions(metadata),
        sensor="EnMAP",
        product=f"EnMAP {metadata.level}",
        resampled=None if sensor_geometry else True,
        scene_id=scene_id,
        source=path,
        files=list(dict.fromkeys([metadata.path, *facts.files, *quality_files])),
        block_bytes=facts.block_bytes,
        reader="enmap",
        why=why,
    )


def _read(path: str) -> _Metadata:
    """Read the XML file.

    Raises
    ------
    FormatError
        If it names no known level, or its bands are not numbered 1, 2, 3...
    """
    root = read_xml(path)
    level = (text_of(root, "base/level") or "").upper()
    if level not in _BACKGROUND:
        msg = f"{path}: base/level is {level[:40]!r}; allowed: {', '.join(_BACKGROUND)}"
        raise FormatError(msg)
    listed = root.findall("specific/bandCharacterisation/bandID")
    by_number: dict[str, Element] = {node.get("number", "").strip(): node for node in listed}
    bands = [by_number.get(str(i + 1)) for i in range(len(listed))]
    complete = [node for node in bands if node is not None]
    if not listed or len(complete) != len(listed):
        msg = (
            f"{path}: bandCharacterisation lists {len(listed)} bands, {len(complete)} of which are numbered within "
            f"1 to {len(listed)}; each number must stand there once"
        )
        raise FormatError(msg)
    channels = {
        d: integers_of(root, f"specific/{d}ProductQuality/expectedChannelsList", path) for d in _DETECTORS
    }
    return _Metadata(path, root, level, complete, channels)


def _chosen_detector(product: ProductFiles, options: Options) -> str:
    """Return the detector that the user chose, by name or by pointing at its image."""
    wanted = options.detector
    if wanted is not None and wanted not in _DETECTORS:
        msg = f"detector = {wanted!r} is unknown; allowed: {', '.join(_DETECTORS)}"
        raise FormatError(msg)
    name = "" if product.given is None else product.given[-len("_vnir_cog.tiff") :].casefold()
    given = next((d for d in _DETECTORS if f"_{d}" in name), None)
    if given is not None and wanted is not None and given != wanted:
        msg = f"{product.given} is the {given.upper()} image, but detector = {wanted!r} was asked for; leave one out"
        raise FormatError(msg)
    chosen = given or wanted
    if chosen is None:
        msg = (
            f"{product.metadata}: EnMAP L1B keeps its two detectors in two images that are not co-registered, so they "
            "make no one cube. Choose by detector='vnir' or detector='swir', give one of the two images, or use L1C"
        )
        raise FormatError(msg)
    return chosen


def _bands_of_image(metadata: _Metadata, detector: str, facts: RasterFacts) -> list[int]:
    """Return the 0-based bands of the metadata that an L1B image holds.

    Raises
    ------
    FormatError
        If the metadata does not say which they are, or the image has another number of bands.
    """
    count, path = len(metadata.bands), metadata.path
    first, second = (
        number_of(metadata.root, f"product/image/{d}/channels", path) or len(metadata.channels[d])
        for d in _DETECTORS
    )
    same_bands(facts, int(first if detector == "vnir" else second), path)
    wave = required_numbers(metadata.bands, "wavelengthCenterOfBand", path)
    vnir = int(first)
    if first + second == count and 0 < vnir < count and wave[vnir] < wave[vnir - 1]:
        return list(range(vnir)) if detector == "vnir" else list(range(vnir, count))
    if first + second == count and (np.diff(wave) >= 0).all() and _shared_out(metadata):
        return sorted(number - 1 for number in metadata.channels[detector])
    msg = (
        f"{path}: it describes {count} bands, {first:g} of VNIR and {second:g} of SWIR, neither detector by detector nor "
        "sorted with lists of channels that share them out; which bands the image holds is not known"
    )
    raise FormatError(msg)


def _shared_out(metadata: _Metadata) -> bool:
    """Return whether the lists of channels give each band to one detector."""
    listed = sorted(metadata.channels["vnir"] + metadata.channels["swir"])
    return listed == list(range(1, len(metadata.bands) + 1))


def _detectors(metadata: _Metadata, notes: Notes) -> list[str] | None:
    """Return the detector of each band of a merged cube; None, with a warning, where the lists do not tell."""
    count, vnir = len(metadata.bands), set(metadata.channels["vnir"])
    if not _shared_out(metadata):
        notes.warn(
            f"{metadata.path}: the lists of channels ({len(vnir)} VNIR, {len(metadata.channels['swir'])} SWIR) do not share "
            f"out the {count} bands; which detector a band belongs to is not known"
        )
        return None
    return ["vnir" if number in vnir else "swir" for number in range(1, count + 1)]


def _place(
    metadata: _Metadata, picked: list[int], data: da.Array, options: Options, notes: Notes
) -> dict[str, Any]:
    """Return latitude and longitude of an L1B image, as arguments of `make_scene`."""
    number = str(picked[len(picked) // 2] + 1)
    nodes = metadata.root.findall("product/navigation/RPC/bandID")
    node = next((node for node in nodes if node.get("number", "").strip() == number), None)
    height = options.height_m
    if height is None:
        height = number_of(metadata.root, "specific/meanGroundElevation", metadata.path)
    return located(
        data,
        None if node is None else rpc_of_element(node, metadata.path),
        height,
        points_of(metadata.root, metadata.path),
        metadata.path,
        notes,
    )


def _conditions(metadata: _Metadata) -> dict[str, Any]:
    """Return time and angles at the scene's centre, as attributes."""

    def angle(name: str) -> float | None:
        return number_of(metadata.root, f"specific/{name}/center", metadata.path)

    elevation = angle("sunElevationAngle")
    return {
        "acquired": text_of(metadata.root, "base/temporalCoverage/startTime")
        or text_of(metadata.root, "specific/datatakeStart"),
        "sun_zenith_deg": None if elevation is None else 90.0 - elevation,
        "sun_azimuth_deg": angle("sunAzimuthAngle"),
        "view_zenith_deg": angle("viewingZenithAngle"),
    }


def _quality(
    product: ProductFiles,
    metadata: _Metadata,
    detectors: list[str] | None,
    data: da.Array,
    options: Options,
    notes: Notes,
) -> tuple[dict[str, Any], list[str]]:
    """Return the quality layers in the cube's geometry, and their files."""
    per_detector = detectors[0] if metadata.level == "L1B" and detectors else None
    planes: dict[str, Any] = {}
    files: list[str] = []
    for name in _QUALITY:
        file = f"ql_quality_{name}"
        if per_detector is not None and name == "testflags":
            file = f"{file}_{per_detector}"
        elif per_detector == "swir":
            continue
        path = product.image(file)
        plane = None if path is None else quality_plane(path, name, data, options, notes)
        if path is not None and plane is not None:
            planes[name] = (plane, _CLASSES) if name == "classes" else plane
            files.append(path)
    return planes, files


def _recognise(path: str, head: bytes) -> str | None:
    return recognise_product(path, head, ROOT, "EnMAP")


READER = Reader("enmap", "EnMAP L1B/L1C/L2A", _recognise, open_enmap, "generated files")
