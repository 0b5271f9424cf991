"""Catalog entries as STAC 1.1 items.

Written are `bands` with `eo:center_wavelength` and `eo:full_width_half_max` in micrometres, `proj:code`, `proj:shape`,
`proj:transform` and `file:checksum`. The item is checked against the STAC schemas that come with pystac; those of the
extensions lie on the web only and are not consulted.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import parse
from ..errors import ConfigError
from .entries import CatalogEntry

if TYPE_CHECKING:
    import xarray as xr

EO, PROJ, FILE = (
    f"https://stac-extensions.github.io/{name}/schema.json"
    for name in ("eo/v2.0.0", "projection/v2.0.0", "file/v2.1.0")
)
OWN_KEY = "bandstream:entry"  #: property with what STAC has no field for
OWN_FIELDS = ("license", "sensor", "citation", "dtype", "class_names", "class_counts")
#: what a reader of labels is told; a raster of groups is a file, which an item may not name in passing
LABEL_FIELDS = ("unlabelled", "variable", "layer", "attribute", "group", "crs", "classes")
MULTIHASH_SHA256 = "1220"  #: code of SHA-256 and its length, 32 bytes
_MEDIA = {
    ".tif": "image/tiff; application=geotiff",
    ".tiff": "image/tiff; application=geotiff",
    ".nc": "application/netcdf",
    ".h5": "application/x-hdf5",
    ".he5": "application/x-hdf5",
    ".mat": "application/octet-stream",
}


def to_stac(entry: CatalogEntry, out: Path, scene: xr.Dataset | None = None) -> dict[str, Any]:
    """Return an entry with one scene as a STAC 1.1 item.

    Parameters
    ----------
    entry
        The entry.
    out
        Where the item will be written; paths of files below its folder become relative to it.
    scene
        The opened scene, which tells bands, place and shape; without it the entry's own fields do.

    Raises
    ------
    ConfigError
        The entry has several scenes, no date, or makes no valid item.
    """
    import pystac

    if len(entry.scenes) != 1 or any(c in str(entry.scenes[0].get("path", "")) for c in "*?["):
        raise ConfigError(
            f"{entry.name} has several scenes; a STAC item describes one. Make an entry for the one you mean: "
            "`bandstream catalog add SCENE`."
        )
    if scene is not None:
        from .add import place_of_scene

        told = place_of_scene(scene) | {"shape_yxb": [int(scene.sizes[axis]) for axis in ("y", "x", "band")]}
        told["datetime"] = scene.attrs.get("acquired") or entry.datetime
        told["sensor"] = scene.attrs.get("sensor") or entry.sensor
        entry = parse(CatalogEntry, entry.model_dump() | told, entry.name)
    if entry.datetime is None:
        raise ConfigError(
            f"{entry.name} does not tell when its scene was taken, which every STAC item needs. Write `datetime` "
            '(such as "2022-07-24T10:45:26Z") into the entry.'
        )
    geometry, bbox = None, None
    if entry.bbox is not None:
        west, south, east, north = entry.bbox
        ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
        geometry, bbox = {"type": "Polygon", "coordinates": [ring]}, list(entry.bbox)
    properties: dict[str, Any] = {"title": entry.title, "description": entry.description}
    properties["license"] = "other" if " " in entry.license or entry.license == "unknown" else entry.license
    if entry.providers:
        properties["providers"] = [{"name": name} for name in entry.providers]
    if entry.sensor:
        properties["instruments"] = [entry.sensor.lower()]
    properties |= {OWN_KEY: _own_fields(entry)} | _projection(entry)
    item = pystac.Item(
        entry.name,
        geometry,
        bbox,
        _moment(entry.datetime, entry.name),
        properties,
        stac_extensions=[EO, PROJ, FILE],
    )
    folder = Path(entry.folder).expanduser()
    path = str(entry.scenes[0]["path"])
    data = _asset(entry, folder, path, out, ["data"])
    data.extra_fields["bands"] = _bands(entry, scene)
    item.add_asset("data", data)
    labels = entry.scenes[0].get("labels")
    label_path = labels.get("path") if isinstance(labels, dict) else labels
    if label_path:
        item.add_asset("labels", _asset(entry, folder, str(label_path), out, ["labels"]))
    listed = {path, label_path}
    for number, file in enumerate(f for f in entry.files if f.path not in listed):
        item.add_asset(f"file-{number + 1}", _asset(entry, folder, file.path, out, ["metadata"]))
    document = item.to_dict(include_self_link=False, transform_hrefs=False)
    problems = core_problems(document) if can_validate() else []
    if problems:
        raise ConfigError(f"{entry.name} makes no valid STAC item: {'; '.join(problems[:3])}.")
    return document


def can_validate() -> bool:
    """Tell whether the package is installed that compares documents with schemas."""
    return importlib.util.find_spec("jsonschema") is not None


def core_problems(document: Mapping[str, Any]) -> list[str]:
    """Return what the STAC 1.1 item schema, as it comes with pystac, has against an item."""
    import jsonschema
    from pystac.validation.local_validator import get_local_schema_cache
    from referencing import Registry, Resource

    cache = get_local_schema_cache()
    registry = Registry().with_resources(
        [(key, Resource.from_contents(value)) for key, value in cache.items()]
    )
    schema = cache["https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"]
    errors = jsonschema.Draft7Validator(schema, registry=registry).iter_errors(dict(document))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]


def _own_fields(entry: CatalogEntry) -> dict[str, Any]:
    """Return what STAC has no field for, or only in another form."""
    found: dict[str, Any] = {name: getattr(entry, name, None) for name in OWN_FIELDS}
    scene = dict(entry.scenes[0])
    labels = scene.pop("labels", None)
    scene.pop("path")
    found["reading"] = scene or None
    if isinstance(labels, dict):
        found |= {f"labels_{name}": labels.get(name) for name in LABEL_FIELDS}
    return {key: value for key, value in found.items() if value is not None}


def _projection(entry: CatalogEntry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if entry.proj_code is not None:
        found["proj:code"] = entry.proj_code
    if entry.proj_transform is not None:
        found["proj:transform"] = entry.proj_transform
    if entry.shape_yxb is not None:
        found["proj:shape"] = list(entry.shape_yxb[:2])
    return found


def _bands(entry: CatalogEntry, scene: xr.Dataset | None) -> list[dict[str, Any]]:
    """Return the STAC bands: names, and centres and widths in micrometres where they are known."""
    if scene is not None:
        count, names = int(scene.sizes["band"]), [str(v) for v in scene["band_name"].values]
        centres = scene["wavelength"].values.tolist() if "wavelength" in scene.coords else None
        widths = scene["fwhm"].values.tolist() if "fwhm" in scene.coords else None
    else:
        centres, widths = entry.wavelength_nm, entry.fwhm_nm
        count = entry.shape_yxb[2] if entry.shape_yxb else len(centres or ())
        names = [f"Band {number}" for number in range(1, count + 1)]
    bands: list[dict[str, Any]] = []
    for number in range(count):
        band: dict[str, Any] = {"name": names[number]}
        for field, values in (("eo:center_wavelength", centres), ("eo:full_width_half_max", widths)):
            if values is not None and math.isfinite(values[number]):
                band[field] = round(values[number] / 1000, 9)
        bands.append(band)
    return bands


def _asset(entry: CatalogEntry, folder: Path, path: str, out: Path, roles: list[str]) -> Any:
    import pystac

    file = next((f for f in entry.files if f.path == path), None)
    local = Path(path) if Path(path).is_absolute() else folder / path
    if not local.is_absolute() and entry.origin is not None:
        local = entry.origin.parent / local
    local, home = local.absolute(), out.absolute().parent
    href = f"./{local.relative_to(home).as_posix()}" if local.is_relative_to(home) else local.as_posix()
    if file is not None and file.urls and not local.exists():
        href = file.urls[0]
    extra: dict[str, Any] = {}
    if file is not None and file.sha256:
        extra["file:checksum"] = MULTIHASH_SHA256 + file.sha256
    if file is not None and file.size_bytes is not None:
        extra["file:size"] = file.size_bytes
    return pystac.Asset(href, media_type=_MEDIA.get(local.suffix.lower()), roles=roles, extra_fields=extra)


def _moment(text: str, name: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f'{name}: datetime is {text!r}; it must look like "2022-07-24T10:45:26Z" or "2022-07-24".'
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
