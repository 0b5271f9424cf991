"""What the tags of a TIFF, and the headers beside it, tell about its bands.

Where programs put the wavelengths, in the order in which they are looked up: GDAL's `IMAGERY` domain of the bands
(always micrometres), tags of the bands, the `ENVI` domain of the bands, the `ENVI` domain of the file, lists in the tags
of the file, a STAC item beside it (`x.stac.json`; micrometres too), an ENVI header beside it (`x.hdr`, `x.tif.hdr`). The
first place that has some wins; another that contradicts it is told. (GDAL cuts keys at a colon, so that STAC's
`eo:center_wavelength` cannot be a tag.)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .envi import band_facts, good_bands
from .envi_header import EnviHeader, is_envi, read_header
from .options import Notes, Options
from .wavelengths import numbers, to_nanometres

_SPELLINGS = {
    "wavelength": (
        *("wavelength", "wavelengths", "wl"),
        *("center wavelength", "central wavelength", "centre wavelength"),
    ),
    "unit": ("wavelength units", "wavelength unit", "wlu"),
    "fwhm": ("fwhm", "full width half maximum", "full width half max"),
    "bbl": ("bbl", "bad band multiplier", "bad band list"),
}
"""Keys by meaning, lower case, blanks for underscores: what GDAL, EnMAP-Box and QGIS plugins write."""

_IMAGERY = "IMAGERY domain"
_SAME_NM = 1.0
_MAX_JSON = 16 * 2**20


@dataclass
class _Source:
    """One place in which a file may keep its wavelengths."""

    label: str
    where: str
    values: NDArray[np.float64] | None = None
    unit: str | None = None
    fwhm: NDArray[np.float64] | None = None
    bbl: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class BandTags:
    """What is known about the bands of a raster.

    Attributes
    ----------
    bands
        `wavelength_nm`, `fwhm_nm`, `good_band` and `band_names`, as arguments of `make_scene`.
    files
        Files beside the raster that this was taken from.
    header
        The ENVI header beside it, if that says that it was made for a TIFF: its nodata and scale count too.
    """

    bands: dict[str, Any]
    files: list[str] = field(default_factory=list)
    header: EnviHeader | None = None


def read_band_tags(raster: Any, path: str, kept: tuple[int, ...], options: Options, notes: Notes) -> BandTags:
    """Collect what an open raster, and files beside it, tell about its bands.

    Parameters
    ----------
    raster
        Open rasterio dataset.
    path
        Its file.
    kept
        1-based numbers of the bands of the file that are bands of the cube.

    Raises
    ------
    FormatError
        If a list does not have one number per band, or wavelengths contradict their unit.
    """
    header, own = _envi_sidecar(path, raster, notes)
    sources = _sources(raster, path, kept, notes)
    item, names_beside, item_path = _stac_source(path, len(kept), notes)
    sources += [item] if item is not None else []
    good = next((good_bands(source.bbl, path) for source in sources if source.bbl is not None), None)
    described = [raster.descriptions[b - 1] for b in kept]
    names: list[str] = [text or f"Band {i + 1}" for i, text in enumerate(described)]
    wavelength, fwhm = _choose(sources, options, notes)
    if not any(described) and names_beside is not None:
        names = names_beside
    if header is not None and len(kept) == raster.count:
        beside = band_facts(header, raster.count, options, notes)
        if wavelength is None:
            wavelength, fwhm = beside["wavelength_nm"], beside["fwhm_nm"]
        good = beside["good_band"] if good is None else good
        if not any(described) and names_beside is None and beside["band_names"] is not None:
            names = beside["band_names"]
    files = [name for name in (None if header is None else header.path, item_path) if name is not None]
    facts = {"wavelength_nm": wavelength, "fwhm_nm": fwhm, "good_band": good, "band_names": names}
    return BandTags(facts, files, header if own else None)


def _envi_sidecar(path: str, raster: Any, notes: Notes) -> tuple[EnviHeader | None, bool]:
    """Return the ENVI header beside a TIFF, and whether it says that it was made for a TIFF."""
    for name in (path + ".hdr", os.path.splitext(path)[0] + ".hdr"):
        if not os.path.isfile(name):
            continue
        with open(name, "rb") as file:
            if not is_envi(file.read(64)):
                continue
        header = read_header(name)
        stated = [header.get(key) for key in ("lines", "samples", "bands")]
        actual = [str(raster.height), str(raster.width), str(raster.count)]
        if all(s is None or s == a for s, a in zip(stated, actual, strict=True)):
            return header, "tif" in (header.get("file type") or "").casefold()
        notes.warn(
            f"{name} describes {stated} (lines, samples, bands), the TIFF holds {actual}; it is not used"
        )
    return None, False


def _choose(
    sources: list[_Source], options: Options, notes: Notes
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return the wavelengths of the first place that has some, and warn when another place contradicts them."""
    chosen: NDArray[np.float64] | None = None
    chosen_fwhm: NDArray[np.float64] | None = None
    label = ""
    for source in sources:
        if source.values is None:
            continue
        if chosen is None:
            override = None if source.label == _IMAGERY else options.wavelength_unit
            chosen, chosen_fwhm = to_nanometres(
                source.values, source.unit, source.where, notes, fwhm=source.fwhm, override=override
            )
            label = source.label
            continue
        try:
            other, _ = to_nanometres(source.values, source.unit, source.where, Notes())
        except FormatError:
            other = None
        if other is None or np.abs(other - chosen).max() > _SAME_NM:
            notes.warn(
                f"{source.where}: the wavelengths of the {source.label} differ from those of the {label}, which are used"
            )
    return chosen, chosen_fwhm


def _sources(raster: Any, path: str, kept: tuple[int, ...], notes: Notes) -> list[_Source]:
    """Return the places where the file itself may keep wavelengths, best first."""
    domains = [set(raster.tag_namespaces(b)) for b in kept]
    imagery, envi = (
        [
            _keyed(raster.tags(b, ns=ns)) if ns in domain else {}
            for b, domain in zip(kept, domains, strict=True)
        ]
        for ns in ("IMAGERY", "ENVI")
    )
    plain = [_keyed(raster.tags(b)) for b in kept]
    sources = [
        _of_imagery(imagery, path, notes),
        _of_bands("tags of the bands", plain, path, notes),
        _of_bands("ENVI domain of the bands", envi, path, notes),
    ]
    for label, tags in (
        ("ENVI domain of the file", raster.tags(ns="ENVI")),
        ("tags of the file", raster.tags()),
    ):
        keyed = _keyed(tags)
        source = _Source(label, path, unit=_said(keyed, "unit"))
        source.values, source.fwhm, source.bbl = (
            _file_list(keyed, meaning, raster.count, kept, path) for meaning in ("wavelength", "fwhm", "bbl")
        )
        sources.append(source)
    return sources


def _of_imagery(tags: list[dict[str, str]], path: str, notes: Notes) -> _Source:
    """Return GDAL's own place, whose unit is micrometres by definition."""
    source = _Source(_IMAGERY, path, unit="um")
    source.values, source.fwhm = (
        _column([band.get(key) for band in tags], key, path, notes)
        for key in ("central wavelength um", "fwhm um")
    )
    return source


def _of_bands(label: str, tags: list[dict[str, str]], path: str, notes: Notes) -> _Source:
    """Return the place where each band keeps its own wavelength in any usual spelling."""
    source = _Source(label, path, unit=_common_unit(tags))
    source.values, source.fwhm, source.bbl = (
        _column([_said(band, meaning) for band in tags], meaning, path, notes)
        for meaning in ("wavelength", "fwhm", "bbl")
    )
    return source


def _keyed(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags by lower-case keys with blanks for underscores (`wavelength_units` = `wavelength units`)."""
    return {key.lower().replace("_", " ").strip(): value for key, value in tags.items()}


def _said(keyed: Mapping[str, str], meaning: str) -> str | None:
    """Return the value of the first spelling of a key that is there."""
    return next((keyed[key] for key in _SPELLINGS[meaning] if key in keyed), None)


def _common_unit(tags: list[dict[str, str]]) -> str | None:
    """Return the unit that all bands agree on; a file whose bands name different ones has declared none."""
    units = {_said(band, "unit") for band in tags}
    return units.pop() if len(units) == 1 else None


def _column(texts: list[str | None], key: str, path: str, notes: Notes) -> NDArray[np.float64] | None:
    """Return one number per band from the bands' tags; None unless every band has it."""
    have = [text is not None for text in texts]
    if not any(have):
        return None
    if not all(have):
        missing = have.index(False) + 1
        notes.warn(
            f"{path}: only {sum(have)} of {len(have)} bands have `{key}` (band {missing} lacks it); it is not used"
        )
        return None
    return numbers([text or "" for text in texts], key, path)


def _file_list(
    keyed: Mapping[str, str], meaning: str, count: int, kept: tuple[int, ...], path: str
) -> NDArray[np.float64] | None:
    """Return a comma-separated list of the file's tags, for the bands that are kept.

    Raises
    ------
    FormatError
        If it does not have one entry per band.
    """
    text = (_said(keyed, meaning) or "").strip()
    if not text or text == "{}":
        return None
    values = numbers(text, meaning, path)
    if len(values) == len(kept):
        return values
    if len(values) != count:
        msg = f"{path}: `{meaning}` has {len(values)} entries for {count} bands; it must have one per band"
        raise FormatError(msg)
    return values[[b - 1 for b in kept]]


def _stac_source(path: str, count: int, notes: Notes) -> tuple[_Source | None, list[str] | None, str | None]:
    """Return wavelengths and names of bands of the STAC item beside a raster, and its path; Nones without one."""
    stem = os.path.splitext(path)[0]
    beside = next((name for name in (stem + ".stac.json", path + ".stac.json") if os.path.isfile(name)), None)
    if beside is None:
        return None, None, None
    bands = _stac_bands(beside, os.path.basename(path), notes)
    if not bands:
        return None, None, None
    if len(bands) != count:
        notes.warn(f"{beside} describes {len(bands)} bands, the TIFF holds {count}; it is not used")
        return None, None, None
    source = _Source("STAC item", beside, unit="um")
    centres = [_json_number(band, "center_wavelength") for band in bands]
    widths = [_json_number(band, "full_width_half_max") for band in bands]
    source.values = _column(centres, "center_wavelength", beside, notes)
    source.fwhm = _column(widths, "full_width_half_max", beside, notes)
    names = [band.get("name") for band in bands]
    texts = [str(name)[:200] for name in names] if all(isinstance(name, str) for name in names) else None
    return source, texts, beside


def _stac_bands(path: str, raster_name: str, notes: Notes) -> list[dict[str, Any]]:
    """Return the bands of a STAC item (`bands`, or the older `eo:bands`): of the raster's asset, else of the item."""
    try:
        if os.path.getsize(path) > _MAX_JSON:
            notes.warn(f"{path} is larger than {_MAX_JSON} bytes; it is not used")
            return []
        with open(path, "rb") as file:
            item: Any = json.loads(file.read(_MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        notes.warn(f"{path} cannot be read as JSON ({type(error).__name__}); it is not used")
        return []
    top = _dictionary(item)
    assets = [_dictionary(asset) for asset in _dictionary(top.get("assets")).values()]
    own = [asset for asset in assets if os.path.basename(str(asset.get("href", ""))) == raster_name]
    for holder in (*own, _dictionary(top.get("properties"))):
        for key in ("bands", "eo:bands"):
            found = holder.get(key)
            if isinstance(found, list) and found:
                return [_dictionary(band) for band in cast("list[Any]", found)]
    return []


def _dictionary(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json_number(band: dict[str, Any], key: str) -> str | None:
    """Return a number of a band as text, with or without the prefix of the extension; None for anything else."""
    value = band.get(f"eo:{key}", band.get(key))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return repr(float(value)) if math.isfinite(value) else None
    except OverflowError:
        return None
