"""AHSI of Gaofen-5 (GF5, GF5A, GF5B) and ZY1-02D/E (ZY1E, ZY1F): `..._AHSI_..._VN.tif` and `..._SW.tif`. Unproved.

No file of the instrument, and no document of its maker, was at hand. What is known comes from scripts that read such
files: two images per scene (GF-5 150 + 180 bands, ZY1 76 + 90), text files beside them with "gain,offset" per band, or
the gain alone (`*RadCal*`), and "wavelength,width" per band in nm (`*Spectralresponse*`). Not established, and so asked of the user:
the unit of the result, the number that means no data, and whether the two images are co-registered.

Traps
- Without the user's word the numbers stay what they are, DN: gains are applied only when quantity='radiance' and the
  unit of gain times DN are stated.
- The two images are never stacked: each is a scene of its own.
- What the TIFF says about its place is passed on as it is; L1 images have rational polynomials (`.rpb`), not read.
- Times and sun angles of the XML are not read: it is not known whether the time is UTC.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError, SceneNotFoundError
from ..scene import make_scene
from .geotiff import RasterFacts, is_tiff, lazy_raster, read_facts
from .options import Notes, Options
from .product_files import files_in
from .reader import Reader
from .wavelengths import to_nanometres

UNITS = {
    "W m-2 sr-1 um-1": 1.0,
    "mW m-2 sr-1 nm-1": 1.0,
    "W m-2 sr-1 nm-1": 1000.0,
    "uW cm-2 sr-1 nm-1": 10.0,
    "mW cm-2 sr-1 um-1": 10.0,
}
"""W m-2 sr-1 um-1 per unit of radiance that a user may state."""

_IMAGE = re.compile(r"\A((GF5|ZY1)[0-9A-Z]*_AHSI_.+)_(VN|SW)\.(?:geo)?tiff?\Z", re.IGNORECASE)
_XML = re.compile(r"\A((?:GF5|ZY1)[0-9A-Z]*_AHSI_.+)\.xml\Z", re.IGNORECASE)
_BANDS = {("GF5", "vnir"): 150, ("GF5", "swir"): 180, ("ZY1", "vnir"): 76, ("ZY1", "swir"): 90}
_SENSORS = {"GF5": "GF-5-AHSI", "ZY1": "ZY1-02D-AHSI"}
_DETECTOR = {"VN": "vnir", "SW": "swir"}
_MAX_TEXT = 2**20


@dataclass(frozen=True)
class _Image:
    """One of the two images of a scene."""

    path: str
    scene_id: str
    mission: str
    detector: str


def open_ahsi(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open one of the two images of an AHSI scene, given the image, or folder or XML and `detector`.

    Raises
    ------
    SceneNotFoundError
        If the image of that detector, or the gains for the radiance asked for, are missing.
    FormatError
        If a detector must be chosen, the unit of the radiance is not stated, or a text file has not one line per band.
    """
    image = _chosen(path, options)
    facts = read_facts(image.path, options, notes, tags=False)
    expected = _BANDS[image.mission, image.detector]
    if facts.shape[2] != expected:
        notes.warn(
            f"{image.path} holds {facts.shape[2]} bands; the {image.detector.upper()} images known so far {expected}"
        )
    spectral = _beside(image, "spectralresponse")
    wavelength, fwhm = None, None
    if spectral is not None:
        table = _table(spectral, facts.shape[2])
        wavelength, fwhm = to_nanometres(
            table[:, 0], "nm", spectral, notes, fwhm=table[:, 1], override=options.wavelength_unit
        )
    scaling = _scaling(image, facts, options, notes)
    if options.nodata is None and facts.nodata is None:
        notes.warn(
            f"{image.path}: which number means no data is not known for AHSI, so every pixel counts as data; give nodata="
        )
    data = lazy_raster(facts, notes)
    return make_scene(
        data,
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        detector=[image.detector] * facts.shape[2],
        crs=facts.crs,
        transform=facts.transform,
        nodata=facts.nodata if options.nodata is None else options.nodata,
        **scaling,
        sensor=_SENSORS[image.mission],
        product=f"{_SENSORS[image.mission]} L1",
        scene_id=f"{image.scene_id}_{image.detector.upper()}",
        source=path,
        files=[*facts.files, *([spectral] if spectral else []), *_gain_files(image, options)],
        block_bytes=facts.block_bytes,
        reader="ahsi",
        why=why,
    )


def _scaling(image: _Image, facts: RasterFacts, options: Options, notes: Notes) -> dict[str, Any]:
    """Return quantity, units, scale and offset: the user's word, and the file's gains only with it.

    Raises
    ------
    FormatError
        If radiance is asked for, but not in which unit the gains give it.
    """
    allowed = ", ".join(repr(unit) for unit in UNITS)
    if options.quantity is None and options.scale is None and options.units in UNITS:
        msg = (
            f"{image.path}: units = {options.units!r} without quantity: give quantity='radiance' too, so that the gains are "
            "applied, or leave units out for the stored numbers"
        )
        raise FormatError(msg)
    if options.quantity != "radiance" or options.scale is not None:
        if options.quantity is None:
            notes.warn(
                f"{image.path}: the unit of AHSI's gains is not established, so the numbers are taken as they are (dn). To "
                f"get radiance give quantity='radiance' and units= the unit of gain x DN + offset: {allowed}"
            )
        return {
            "quantity": options.quantity or "dn",
            "units": options.units or ("W m-2 sr-1 um-1" if options.quantity == "radiance" else ""),
            "scale": options.scale,
            "offset": options.offset,
        }
    if options.units not in UNITS:
        msg = (
            f"{image.path}: quantity = 'radiance' needs the unit in which gain x DN + offset comes out, which is not "
            f"established for AHSI; got units = {options.units!r}; allowed: {allowed}"
        )
        raise FormatError(msg)
    gains = _beside(image, "radcal")
    if gains is None:
        msg = f"{image.path} has no *RadCal*{image.detector.upper()}* text file beside it; give scale= and offset="
        raise SceneNotFoundError(msg)
    table = _table(gains, facts.shape[2], may_lack_second=True) * UNITS[options.units]
    if np.isnan(table[:, 1]).any():
        notes.warn(f"{gains} holds gains without offsets; 0 was taken")
        table[:, 1] = np.nan_to_num(table[:, 1])
    return {
        "quantity": "radiance",
        "units": "W m-2 sr-1 um-1",
        "scale": table[:, 0],
        "offset": table[:, 1] if options.offset is None else options.offset,
    }


def _gain_files(image: _Image, options: Options) -> list[str]:
    """Return the file of gains where it was used."""
    if options.quantity != "radiance" or options.scale is not None:
        return []
    gains = _beside(image, "radcal")
    return [] if gains is None else [gains]


def _chosen(path: str, options: Options) -> _Image:
    """Return the image that the user pointed at, or chose by detector."""
    wanted = options.detector
    if wanted is not None and wanted not in _DETECTOR.values():
        msg = f"detector = {wanted!r} is unknown; allowed: vnir, swir"
        raise FormatError(msg)
    metadata = _XML.match(os.path.basename(path))
    if not os.path.isdir(path) and metadata is None:
        image = _image(path)
        if image is None:
            msg = f"{path} is no AHSI image; its name must end in _VN.tif or _SW.tif and begin like GF5_AHSI_ or ZY1E_AHSI_"
            raise FormatError(msg)
        if wanted not in (None, image.detector):
            msg = f"{path} is the {image.detector.upper()} image, but detector = {wanted!r} was asked for; leave one out"
            raise FormatError(msg)
        return image
    images = _images(path) if metadata is None else _images(os.path.dirname(path), metadata[1])
    scenes = sorted({image.scene_id for image in images})
    if len(scenes) > 1:
        msg = f"{path} holds {len(scenes)} AHSI scenes ({', '.join(scenes[:5])}); give one of the images"
        raise FormatError(msg)
    if wanted is None and len(images) != 1:
        msg = (
            f"{path}: an AHSI scene is two images of which it is not known whether they are co-registered, so they make no "
            "one cube. Choose by detector='vnir' or detector='swir', or give one of the two images"
        )
        raise FormatError(msg)
    image = next((image for image in images if wanted in (None, image.detector)), None)
    if image is None:
        msg = f"{path} holds no {str(wanted).upper()} image of the AHSI scene {scenes[0] if scenes else ''}"
        raise SceneNotFoundError(msg)
    return image


def _image(path: str) -> _Image | None:
    match = _IMAGE.match(os.path.basename(path))
    if match is None:
        return None
    return _Image(path, match[1], match[2].upper(), _DETECTOR[match[3].upper()])


def _images(folder: str, scene_id: str | None = None) -> list[_Image]:
    """Return the images in a folder, of one scene if it is named."""
    found = (_image(os.path.join(folder, name)) for name in files_in(folder))
    images = [image for image in found if image is not None]
    return [i for i in images if scene_id is None or i.scene_id.casefold() == scene_id.casefold()]


def _beside(image: _Image, word: str) -> str | None:
    """Return the text file of that kind for the image's detector, or None.

    Raises
    ------
    FormatError
        If several could be meant.
    """
    folder = os.path.dirname(image.path)
    names = [
        name
        for name in files_in(folder)
        if word in name.casefold()
        and image.detector in name.casefold()
        and name.casefold().startswith(image.mission.casefold())
        and name.casefold().endswith((".raw", ".txt"))
    ]
    if len(names) > 1:
        own = image.scene_id.partition("_")[0].casefold()
        names = [name for name in names if name.casefold().partition("_")[0] == own] or names
    if len(names) > 1:
        msg = f"{folder} holds {len(names)} files that could be meant for {image.path} ({', '.join(names[:4])}); leave one"
        raise FormatError(msg)
    return os.path.join(folder, names[0]) if names else None


def _table(path: str, bands: int, *, may_lack_second: bool = False) -> NDArray[np.float64]:
    """Return the two numbers of each line of a text file, float64 (band, 2); NaN for a second one that may be lacking.

    Raises
    ------
    FormatError
        If there is not one line of two finite numbers per band.
    """
    with open(path, "rb") as file:
        content = file.read(_MAX_TEXT + 1)
    lines = [line.strip() for line in content.decode("latin-1").splitlines() if line.strip()]
    if len(content) > _MAX_TEXT or len(lines) != bands:
        msg = (
            f"{path} has {len(lines)} lines for {bands} bands; it must have one per band. If it is of another kind, move it "
            "away, or open the TIFF alone with reader='geotiff'"
        )
        raise FormatError(msg)
    table = np.empty((bands, 2), np.float64)
    for i, line in enumerate(lines):
        parts = line.replace(",", " ").split()
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            numbers = []
        if may_lack_second and len(numbers) == 1 and np.isfinite(numbers[0]):
            numbers.append(np.nan)
        elif len(numbers) != 2 or not np.isfinite(numbers).all():
            msg = f"{path}: line {i + 1} is {line[:60]!r}; allowed: two finite numbers, such as 0.0123,-0.4"
            raise FormatError(msg)
        table[i] = numbers
    return table


def _recognise(path: str, head: bytes) -> str | None:
    if not head:
        return "it holds images named like AHSI's" if os.path.isdir(path) and _images(path) else None
    name = os.path.basename(path)
    if is_tiff(head) and _image(path) is not None:
        return f"a TIFF named like an image of AHSI ({name})"
    metadata = _XML.match(name)
    if metadata is not None and _images(os.path.dirname(path), metadata[1]):
        return f"it lies beside the images of the AHSI scene {metadata[1]}"
    return None


READER = Reader("ahsi", "AHSI of GF-5 and ZY1-02D", _recognise, open_ahsi, "unproved")
