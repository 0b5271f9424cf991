"""DESIS L1B, L1C and L2A: `*-SPECTRAL_IMAGE.tif` with `*-METADATA.xml` beside it.

Traps
- Value = DN * gainOfBand + offsetOfBand; at L1 both differ from band to band, in mW cm-2 sr-1 um-1, which is 10 times
  W m-2 sr-1 um-1. L2A: 1e-4.
- `<band>` stands under two parents of the XML; only those of `bandCharacterisation` are spectral.
- -32768 is no data.
- L1B is in sensor geometry: the grid that the TIFF may have is no georeference. Latitude and longitude come from
  rational polynomials (RPC) where the TIFF has them as tags, else, roughly, from the four points of the XML: they begin
  with the most starboard pixel of the first scanline and go round counter-clockwise, which is taken for upper left, lower
  left, lower right, upper right. Neither was proved on a real file.
- Of the quality layers, `-QL_QUALITY-2.tif` (L2A) has one band per flag, and two retrievals at the end, in bytes
  (optical depth x 100, water vapour x 42). `-QL_QUALITY.tif` has one band per spectral band and is not read.
- The ENVI header that comes along is not needed and not read.

Element names as in public readers of real DESIS files (hyperproc, HyTools, EnMAP-Box). Proved on generated files.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError
from ..scene import make_scene
from .geotiff import lazy_raster, read_facts
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
from .rpc import located, points_of, rpc_of_raster
from .xml_metadata import number_of, read_xml, text_of

ROOT = "hsi_doc"
PER_MW_CM2 = 10.0
"""W m-2 sr-1 um-1 per mW cm-2 sr-1 um-1."""

_ELEMENTS = BandElements("wavelengthCenterOfBand", "wavelengthWidthOfBand", "gainOfBand", "offsetOfBand")

_POINTS = {
    "point_1": "upper_left",
    "point_2": "lower_left",
    "point_3": "lower_right",
    "point_4": "upper_right",
}
"""Corner pixels by the frames of the XML."""

NODATA = -32768.0
_LEVELS = ("L1B", "L1C", "L2A")
_QUALITY = (
    *("shadow", "land", "snow", "haze_land", "haze_water"),
    *("cloud_land", "cloud_water", "water", "aot550", "water_vapour"),
)
"""Bands of `-QL_QUALITY-2.tif` in order."""

_RETRIEVALS: dict[str, dict[str, Any]] = {
    "aot550": {"long_name": "aerosol optical thickness at 550 nm", "scale_factor": 0.01},
    "water_vapour": {"long_name": "column water vapour", "units": "cm", "scale_factor": 1 / 42},
}


def open_desis(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a DESIS product, given its folder, its METADATA.xml or the spectral image.

    Raises
    ------
    SceneNotFoundError
        If the image is missing.
    FormatError
        If the metadata is damaged or does not fit the image.
    """
    product = find_product(path, ROOT)
    if product is None:
        msg = f"{path} is no DESIS product; give its folder, its *-METADATA.xml or the *-SPECTRAL_IMAGE.tif with the XML beside it"
        raise FormatError(msg)
    root = read_xml(product.metadata)
    level = _level(root, product)
    image = product.given or product.image("spectral_image")
    if image is None:
        raise missing_image(product, "SPECTRAL_IMAGE")
    facts = read_facts(image, options, notes, tags=False)
    bands = _bands(root, product.metadata)
    same_bands(facts, len(bands), product.metadata)
    data = lazy_raster(facts, notes)
    quality, quality_files = _quality(product, data, options, notes)
    placed = level != "L1B"
    return make_scene(
        data,
        **band_facts(
            bands,
            _ELEMENTS,
            product.metadata,
            radiance_factor=None if level == "L2A" else PER_MW_CM2,
            nodata=NODATA if facts.nodata is None else facts.nodata,
            options=options,
            notes=notes,
        ),
        detector=["vnir"] * len(bands),
        crs=facts.crs if placed else None,
        transform=facts.transform if placed else None,
        quality=quality,
        **({} if placed else _place(root, product.metadata, image, data, options, notes)),
        acquired=text_of(root, "base/temporalCoverage/startTime"),
        sun_zenith_deg=number_of(root, "specific/sunZenithAngle", product.metadata),
        sun_azimuth_deg=number_of(root, "specific/sunAzimuthAngle", product.metadata),
        view_zenith_deg=number_of(root, "specific/sceneIncidenceAngle", product.metadata),
        sensor="DESIS",
        product=f"DESIS {level}",
        resampled=True if placed else None,
        scene_id=product.stem,
        source=path,
        files=list(dict.fromkeys([product.metadata, *facts.files, *quality_files])),
        block_bytes=facts.block_bytes,
        reader="desis",
        why=why,
    )


def _place(
    root: Element, metadata: str, image: str, data: da.Array, options: Options, notes: Notes
) -> dict[str, Any]:
    """Return latitude and longitude of an L1B image, as arguments of `make_scene`."""
    points = points_of(root, metadata)
    corners = {name: points[frame] for frame, name in _POINTS.items() if frame in points}
    height = options.height_m
    if height is None:
        height = number_of(root, "specific/terrain/meanGroundElevation", metadata)
    return located(data, rpc_of_raster(image), height, corners, metadata, notes)


def _level(root: Element, product: ProductFiles) -> str:
    """Return the level by the metadata, else by the file's name.

    Raises
    ------
    FormatError
        If neither names one.
    """
    texts = [text_of(root, name) or "" for name in ("base/level", "base/productType", "metadata/name")]
    for text in [*texts, product.stem]:
        found = [level for level in _LEVELS if level in text.upper()]
        if len(found) == 1:
            return found[0]
    msg = f"{product.metadata}: neither the metadata nor the file's name tell the level; allowed: {', '.join(_LEVELS)}"
    raise FormatError(msg)


def _bands(root: Element, path: str) -> list[Element]:
    """Return the spectral bands in the order of their numbers.

    Raises
    ------
    FormatError
        If there is none, or they are not numbered 1, 2, 3...
    """
    listed = root.findall("specific/bandCharacterisation/band")
    numbers = [text_of(band, "bandNumber") for band in listed]
    if not listed:
        msg = f"{path} has no specific/bandCharacterisation/band; it is no complete DESIS metadata file"
        raise FormatError(msg)
    if all(number is None for number in numbers):
        return listed
    by_number = dict(zip(numbers, listed, strict=True))
    bands = [by_number.get(str(i + 1)) for i in range(len(listed))]
    complete = [band for band in bands if band is not None]
    if len(complete) != len(listed):
        msg = (
            f"{path}: bandCharacterisation lists {len(listed)} bands, {len(complete)} of which are numbered within 1 to "
            f"{len(listed)}; each number must stand there once"
        )
        raise FormatError(msg)
    return complete


def _quality(
    product: ProductFiles, data: da.Array, options: Options, notes: Notes
) -> tuple[dict[str, Any], list[str]]:
    """Return the layers of `-QL_QUALITY-2.tif`, and its path, where it has the ten bands that are known."""
    path = product.image("ql_quality-2")
    if path is None:
        return {}, []
    last = quality_plane(path, _QUALITY[-1], data, options, notes, len(_QUALITY) - 1)
    if last is None:
        return {}, []
    planes: dict[str, Any] = {_QUALITY[-1]: (last, _RETRIEVALS[_QUALITY[-1]])}
    for band, name in enumerate(_QUALITY[:-1]):
        plane = quality_plane(path, name, data, options, notes, band)
        if plane is not None:
            planes[name] = (plane, _RETRIEVALS[name]) if name in _RETRIEVALS else plane
    if {"cloud_land", "cloud_water"} <= planes.keys():
        planes["cloud"] = _either(planes["cloud_land"], planes["cloud_water"])
    return planes, [path]


def _either(left: da.Array, right: da.Array) -> da.Array:
    return da.map_blocks(_any, left, right, dtype=bool, meta=np.ones((0, 0), bool))


def _any(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    return (left != 0) | (right != 0)


def _recognise(path: str, head: bytes) -> str | None:
    return recognise_product(path, head, ROOT, "DESIS")


READER = Reader("desis", "DESIS L1B/L1C/L2A", _recognise, open_desis, "generated files")
