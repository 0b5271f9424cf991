"""Products of DLR that are a GeoTIFF with an XML file beside it (EnMAP, DESIS): which files belong together, and what they say of bands.

The files of one product share the beginning of their names, or have none; what follows (`METADATA.XML`,
`SPECTRAL_IMAGE.TIF`, `QL_QUALITY_CLOUD_COG.TIF`...) is compared without regard to case.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import dask.array as da

from ..errors import FormatError, SceneNotFoundError
from .geotiff import RasterFacts, cube_of, lazy_plane, read_facts
from .options import Notes, Options
from .wavelengths import to_nanometres
from .xml_metadata import required_numbers, root_name

_METADATA = re.compile(r"\A(|.+-)metadata(?:\.xml)+\Z", re.IGNORECASE)
_IMAGE = re.compile(r"\A(|.+-)spectral_image(?:_vnir|_swir)?(?:_cog)?\.tiff?\Z", re.IGNORECASE)


@dataclass(frozen=True)
class BandElements:
    """Names of the elements that describe a band."""

    wavelength: str
    fwhm: str
    gain: str
    offset: str


@dataclass(frozen=True)
class ProductFiles:
    """The files of one product.

    Attributes
    ----------
    stem
        Name of the scene: the beginning that all names share, else the name of the folder.
    metadata
        Path of the XML file.
    beside
        Paths by the lower-case rest of the name, such as `ql_quality_cloud.tif`.
    given
        The image that the user pointed at; None when it was the folder or the XML file.
    """

    stem: str
    metadata: str
    beside: dict[str, str]
    given: str | None

    def image(self, name: str) -> str | None:
        """Return the path of a raster of the product by the lower-case middle of its name, such as `ql_quality_cloud`."""
        endings = (f"{name}{cog}{ending}" for cog in ("", "_cog") for ending in (".tif", ".tiff"))
        return next((self.beside[ending] for ending in endings if ending in self.beside), None)


def find_product(path: str, root: str) -> ProductFiles | None:
    """Return the product to which a folder, an XML file or a spectral image belongs, or None.

    Parameters
    ----------
    path
        What the user gave.
    root
        Name of the outermost element of the product's XML file.

    Raises
    ------
    FormatError
        If a folder holds several products.
    """
    if os.path.isdir(path):
        found = [(name, m[1]) for name in files_in(path) if (m := _METADATA.match(name))]
        found = [(name, stem) for name, stem in found if root_name(os.path.join(path, name)) == root]
        if len(found) > 1:
            msg = f"{path} holds {len(found)} products ({', '.join(n for n, _ in found[:5])}); give one of these files"
            raise FormatError(msg)
        return _product(path, found[0][1], os.path.join(path, found[0][0]), None) if found else None
    folder, name = os.path.split(path)
    match = _METADATA.match(name)
    if match is not None:
        return _product(folder, match[1], path, None) if root_name(path) == root else None
    match = _IMAGE.match(name)
    if match is None:
        return None
    for other in files_in(folder):
        beside = _METADATA.match(other)
        if beside is not None and beside[1].casefold() == match[1].casefold():
            metadata = os.path.join(folder, other)
            if root_name(metadata) == root:
                return _product(folder, match[1], metadata, path)
    return None


def recognise_product(path: str, head: bytes, root: str, product: str) -> str | None:
    """Return why a folder or file belongs to such a product, or None; cheap, and never raises."""
    if head and not (_METADATA.match(os.path.basename(path)) or _IMAGE.match(os.path.basename(path))):
        return None
    try:
        found = find_product(path, root)
    except FormatError:
        return f"it holds metadata of several {product} products"
    if found is None:
        return None
    return f"{os.path.basename(found.metadata)} holds the metadata of {product} (<{root}>)"


def quality_plane(
    path: str, name: str, like_yxb: da.Array, options: Options, notes: Notes, band: int = 0
) -> da.Array | None:
    """Return a band of a quality raster as a lazy plane (y, x); None, with a warning, where it does not fit the cube.

    Parameters
    ----------
    path, name
        The raster, and what it is called in messages.
    like_yxb
        The cube whose size and chunks the plane takes over.
    band
        0-based.
    """
    try:
        facts = read_facts(path, options, Notes(), tags=False)
    except FormatError as error:
        notes.warn(f"the quality layer {name} is left out: {error}")
        return None
    if facts.shape[:2] != tuple(like_yxb.shape[:2]) or band >= facts.shape[2]:
        notes.warn(
            f"{path}: the quality layer {name} is left out: it has (y, x, band) = {facts.shape}, the cube "
            f"{tuple(like_yxb.shape)}"
        )
        return None
    return lazy_plane(cube_of(facts), like_yxb, band)


def same_bands(facts: RasterFacts, count: int, metadata: str) -> None:
    """Raise unless a raster has the bands that its metadata describe.

    Raises
    ------
    FormatError
        With both counts.
    """
    if facts.shape[2] != count:
        msg = (
            f"{facts.path} holds {facts.shape[2]} bands, {metadata} describes {count}: the two do not belong together, "
            "or bands were taken out; give the original image, or open the TIFF alone with reader='geotiff'"
        )
        raise FormatError(msg)


def missing_image(product: ProductFiles, what: str) -> SceneNotFoundError:
    """Return the error for a product whose image is not there."""
    tried = f"...{what}.TIF"
    images = [os.path.basename(p) for rest, p in product.beside.items() if "spectral_image" in rest]
    hint = f"; the folder holds {', '.join(images[:4])}" if images else ""
    return SceneNotFoundError(
        f"{product.metadata} has no image {tried} (or _COG) beside it{hint}. Products delivered as ENVI or JPEG 2000 "
        "files are not read as products: order GeoTIFF, or give the ENVI header alone"
    )


def _product(folder: str, start: str, metadata: str, given: str | None) -> ProductFiles:
    beside = {
        name[len(start) :].casefold(): os.path.join(folder, name)
        for name in files_in(folder)
        if name.casefold().startswith(start.casefold())
    }
    stem = start[:-1] or os.path.basename(os.path.abspath(folder))
    return ProductFiles(stem, metadata, beside, given)


def files_in(folder: str) -> list[str]:
    """Return the names of the files in a folder, sorted; nothing for one that cannot be listed."""
    try:
        with os.scandir(folder or ".") as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
    except OSError:
        return []


def band_facts(
    bands: list[Element],
    names: BandElements,
    path: str,
    *,
    radiance_factor: float | None,
    nodata: Any,
    options: Options,
    notes: Notes,
) -> dict[str, Any]:
    """Return wavelengths, scaling, nodata and quantity, as arguments of `make_scene`, with the user's overrides.

    Parameters
    ----------
    bands
        Elements of the bands, in the image's order.
    names
        What their children are called.
    path
        The XML file, for messages.
    radiance_factor
        From the product's unit of radiance to W m-2 sr-1 um-1; None for surface reflectance.
    nodata
        What the product says, or its level's default.
    options, notes
        As for a reader.

    Raises
    ------
    FormatError
        If a number is missing in a band or is none.
    """
    wavelength, fwhm = to_nanometres(
        required_numbers(bands, names.wavelength, path),
        "nm",
        path,
        notes,
        fwhm=required_numbers(bands, names.fwhm, path),
        override=options.wavelength_unit,
    )
    factor = 1.0 if radiance_factor is None else radiance_factor
    gain = required_numbers(bands, names.gain, path) * factor
    offset = required_numbers(bands, names.offset, path) * factor
    return {
        "wavelength_nm": wavelength,
        "fwhm_nm": fwhm,
        "nodata": nodata if options.nodata is None else options.nodata,
        "scale": gain if options.scale is None else options.scale,
        "offset": offset if options.offset is None else options.offset,
        "quantity": options.quantity or ("surface_reflectance" if radiance_factor is None else "radiance"),
        "units": options.units or ("1" if radiance_factor is None else "W m-2 sr-1 um-1"),
    }
