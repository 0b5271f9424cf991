"""STAC items, 1.0 and 1.1, as catalog entries.

Read are `bands` and the older `eo:bands`, of the asset or of the whole item, `proj:code` and the older `proj:epsg`, and
`file:checksum`. An item may come from anywhere: nothing in it leads to a local file outside its own folder.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from ..config import parse
from ..errors import BandstreamWarning, ConfigError
from .add import plain_name
from .entries import CatalogEntry
from .to_stac import LABEL_FIELDS, MULTIHASH_SHA256, OWN_FIELDS, OWN_KEY

MAX_JSON_BYTES = 5_000_000
# what an item may say of how its file is read: nothing that names another file
_READING = (
    "reader",
    "variable",
    "axes",
    "shape_yx",
    "detector",
    "nodata",
    "scale",
    "offset",
    "quantity",
    "units",
    "wavelength_unit",
    "header_offset",
)
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,150}")


def read_item(path: Path) -> dict[str, Any]:
    """Read the JSON of a STAC item.

    Raises
    ------
    ConfigError
        It is missing, too large, no JSON, or no item.
    """
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ConfigError(f"{path} has more than {MAX_JSON_BYTES} bytes, which no STAC item needs.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {str(error)[:200] or type(error).__name__}.") from error
    if not isinstance(found, dict) or found.get("type") != "Feature":
        kind = found.get("type") if isinstance(found, dict) else type(found).__name__
        raise ConfigError(f'{path} is no STAC item: its "type" must be "Feature", got {str(kind)[:60]!r}.')
    version = found.get("stac_version")
    if not isinstance(version, str) or version.split(".")[:2] not in (["1", "0"], ["1", "1"]):
        raise ConfigError(f"{path} is of STAC version {str(version)[:40]!r}; 1.0 and 1.1 are read.")
    return cast("dict[str, Any]", found)


def from_stac(document: Mapping[str, Any], path: Path, *, allow_outside: bool = False) -> CatalogEntry:
    """Make a catalog entry of a STAC item.

    Parameters
    ----------
    document
        The item, from `read_item`.
    path
        Its file; relative addresses count from its folder.
    allow_outside
        Take local files outside that folder too.

    Raises
    ------
    ConfigError
        Something that is needed is missing, is of another kind, or leads out of the item's folder.
    """
    where = str(path)
    properties = _mapping(document.get("properties"), f"{where}: properties")
    assets = _mapping(document.get("assets"), f"{where}: assets")
    key, asset = _data_asset(assets, where)
    data_path, url = _place(asset.get("href"), path, f"assets.{key}", allow_outside=allow_outside)
    scene: dict[str, Any] = {"path": data_path}
    files = [_file(data_path, url, asset)]
    for other, value in assets.items():
        if other != key and isinstance(value, dict) and "labels" in _words(value.get("roles")):
            label_path, label_url = _place(
                value.get("href"), path, f"assets.{other}", allow_outside=allow_outside
            )
            scene["labels"] = {"path": label_path}
            files.append(_file(label_path, label_url, value))
            break
    for other, value in assets.items():
        # what `to_stac` adds beside cube and labels: the data file of a header, and the like
        if other.startswith("file-") and isinstance(value, dict):
            place, url = _place(value.get("href"), path, f"assets.{other}", allow_outside=allow_outside)
            files.append(_file(place, url, value))
    own = properties.get(OWN_KEY)
    own = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
    for name in LABEL_FIELDS:
        given = own.get(f"labels_{name}")
        if given is not None and "labels" in scene:
            scene["labels"][name] = given
    reading = own.get("reading")
    if isinstance(reading, dict):
        scene = {key: value for key, value in reading.items() if key in _READING} | scene
    text = str(document.get("id") or path.stem)
    remote = any(file["urls"] for file in files)
    entry = {
        "version": 1,
        "name": plain_name(text),
        "title": _text(properties.get("title")) or text[:200],
        "description": _text(properties.get("description")) or f"From the STAC item {path.name}.",
        "license": _text(properties.get("license")) or "unknown",
        "providers": [
            _text(p.get("name"))
            for p in _list(properties.get("providers"))
            if isinstance(p, dict) and p.get("name")
        ],
        "datetime": _text(properties.get("datetime")) or _text(properties.get("start_datetime")),
        "sensor": next(iter(_words(properties.get("instruments"))), None),
        "folder": plain_name(text) if remote else str(path.absolute().parent),
        "scenes": [scene],
        "files": [file for file in files if file["urls"] or file.get("sha256")],
        **_read_place(document, properties, asset),
        **_read_bands(properties, asset, where),
        **{key: own[key] for key in OWN_FIELDS if key in own},
    }
    return parse(CatalogEntry, {k: v for k, v in entry.items() if v is not None}, where)


def _data_asset(assets: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """Choose the asset that holds the cube: of those with the role `data`, or all, the one with the most bands."""
    usable = {
        k: cast("dict[str, Any]", v) for k, v in assets.items() if isinstance(v, dict) and v.get("href")
    }
    data = {k: v for k, v in usable.items() if "data" in _words(v.get("roles"))} or {
        k: v
        for k, v in usable.items()
        if not set(_words(v.get("roles"))) & {"thumbnail", "overview", "metadata", "labels"}
    }
    if not data:
        raise ConfigError(
            f"{where} has no asset with the role `data`; its assets are {', '.join(assets) or 'none'}."
        )
    most = max(len(_list(v.get("bands")) or _list(v.get("eo:bands"))) for v in data.values())
    best = [k for k, v in data.items() if len(_list(v.get("bands")) or _list(v.get("eo:bands"))) == most]
    if len(best) > 1:
        message = (
            f"{where} has several assets with {most} bands; taken: {best[0]}, left: {', '.join(best[1:6])}."
        )
        warnings.warn(message, BandstreamWarning, stacklevel=3)
    return best[0], data[best[0]]


def _place(href: Any, item: Path, what: str, *, allow_outside: bool) -> tuple[str, str | None]:
    """Return the path of a file in the entry's folder, and its address if it lies on the web."""
    where = f"{item}: the href of {what}"
    if not isinstance(href, str) or not href.strip() or len(href) > 4096 or "\0" in href:
        raise ConfigError(f"{where} must be text, got {str(href)[:80]!r}.")
    try:
        parts = urlsplit(href)
    except ValueError as error:
        raise ConfigError(f"{where} is no address: {href[:200]!r}.") from error
    if parts.scheme in ("http", "https"):
        name = PurePosixPath(unquote(parts.path)).name
        if not name or name in (".", ".."):
            raise ConfigError(f"{where} names no file: {href[:200]!r}.")
        return name if _PLAIN_FILE.fullmatch(name) else plain_name(name), href
    if parts.scheme and len(parts.scheme) > 1:  # one letter is a drive
        raise ConfigError(
            f"{where} is {href[:200]!r}; local paths, http and https are taken. Get the file by other means and write "
            "its path into the item."
        )
    target = Path(item.absolute().parent, href)
    try:
        inside = target.resolve().is_relative_to(item.absolute().parent.resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{where} is no path: {href[:200]!r}.") from error
    if not inside:
        if not allow_outside:
            raise ConfigError(
                f"{where} is {href[:200]!r}, outside the item's folder. If the item comes from you or someone you trust, "
                "add --allow-outside."
            )
        return str(target.resolve()), None
    return target.resolve().relative_to(item.absolute().parent.resolve()).as_posix(), None


def _file(path: str, url: str | None, asset: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"path": path, "urls": [url] if url else []}
    checksum, size = asset.get("file:checksum"), asset.get("file:size")
    if (
        isinstance(checksum, str)
        and checksum.lower().startswith(MULTIHASH_SHA256)
        and not Path(path).is_absolute()
    ):
        found["sha256"] = checksum.lower()[len(MULTIHASH_SHA256) :]
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        found["size_bytes"] = size
    return found


def _read_place(
    document: Mapping[str, Any], properties: Mapping[str, Any], asset: Mapping[str, Any]
) -> dict[str, Any]:
    def told(key: str) -> Any:
        return asset.get(key, properties.get(key))

    found: dict[str, Any] = {}
    bbox = document.get("bbox")
    if isinstance(bbox, list) and len(bbox) in (4, 6) and all(map(_is_number, bbox)):
        found["bbox"] = bbox if len(bbox) == 4 else [bbox[i] for i in (0, 1, 3, 4)]
    code, epsg = told("proj:code"), told("proj:epsg")
    if isinstance(code, str):
        found["proj_code"] = code[:100]
    elif isinstance(epsg, int) and not isinstance(epsg, bool):
        found["proj_code"] = f"EPSG:{epsg}"
    transform = told("proj:transform")
    if isinstance(transform, list) and len(transform) in (6, 9) and all(map(_is_number, transform)):
        found["proj_transform"] = transform[:6]
    shape, bands = told("proj:shape"), _band_objects(properties, asset)
    whole = isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) and n > 0 for n in shape)
    if whole and bands:
        found["shape_yxb"] = [*shape, len(bands)]
    return found


def _band_objects(properties: Mapping[str, Any], asset: Mapping[str, Any]) -> list[Any]:
    """Return the bands of the data asset: of STAC 1.1, else of 1.0, else those of the whole item."""
    places = ((asset, "bands"), (asset, "eo:bands"), (properties, "bands"), (properties, "eo:bands"))
    return next((found for holder, key in places if (found := _list(holder.get(key)))), [])


def _read_bands(properties: Mapping[str, Any], asset: Mapping[str, Any], where: str) -> dict[str, Any]:
    bands = _band_objects(properties, asset)
    found: dict[str, Any] = {}
    # 1.0 wrote these names without the prefix
    for field, names in (
        ("wavelength_nm", ("eo:center_wavelength", "center_wavelength")),
        ("fwhm_nm", ("eo:full_width_half_max", "full_width_half_max")),
    ):
        values = list(_numbers(bands, names))
        if values and len(values) == len(bands):
            if field == "wavelength_nm" and not all(0.1 <= v <= 100 for v in values):
                raise ConfigError(
                    f"{where}: the centres of the bands reach from {min(values):g} to {max(values):g}; STAC has "
                    "micrometres."
                )
            found[field] = [round(value * 1000, 6) for value in values]
    return found


def _numbers(bands: list[Any], names: tuple[str, ...]) -> Iterator[float]:
    for band in bands:
        if isinstance(band, dict):
            value = next((band[name] for name in names if name in band), None)
            if _is_number(value):
                yield float(cast("float", value))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (isinstance(value, float) or abs(value) < 10**15)
        and math.isfinite(value)
    )


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be an object, got {type(value).__name__}.")
    return cast("dict[str, Any]", value)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _words(value: Any) -> list[str]:
    return [word for word in _list(value) if isinstance(word, str)]


def _text(value: Any) -> str | None:
    return value[:10_000] if isinstance(value, str) and value.strip() else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
