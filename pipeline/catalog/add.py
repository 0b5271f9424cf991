"""Catalog entries of one's own: described from a scene, written as YAML, read back by `load_catalog`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import dump_yaml, parse
from ..errors import ConfigError
from ..files import write_text
from .entries import CatalogEntry
from .fetch import digest

if TYPE_CHECKING:
    import xarray as xr


def entry_of_scene(
    scene: xr.Dataset, *, name: str | None = None, labels: Path | None = None, unlabelled: int = 0
) -> CatalogEntry:
    """Describe an opened scene as a catalog entry; every file that determines it is read for its checksum.

    Parameters
    ----------
    scene
        From `open_scene`.
    name
        Of the entry; by default made of the scene's own.
    labels
        Label raster, which must fit the scene.
    unlabelled
        Its number that means "no label".

    Raises
    ------
    LabelError, SceneNotFoundError
        The labels do not fit, or do not exist.
    """
    source = Path(str(scene.attrs["source"])).absolute()
    folder = source.parent
    item: dict[str, Any] = {"path": source.name}
    if set(source.name) & set("*?[") and not source.exists():
        item["mosaic"] = True  # a pattern was opened as one scene
    files = [Path(str(f)).absolute() for f in scene.attrs.get("files", [source])]
    names = None
    if labels is not None:
        from ..labels import LabelRaster

        raster = LabelRaster.on_grid(labels, scene, unlabelled)
        where = {"path": _relative(labels.absolute(), folder)}
        item["labels"] = where | ({"unlabelled": unlabelled} if unlabelled else {})
        files += [Path(f).absolute() for f in raster.files()]
        told = raster.names()
        if told:
            names = [told.get(number, f"class {number}") for number in range(1, max(told) + 1)]
    inside = [f for f in dict.fromkeys(files) if f.is_relative_to(folder) and f.is_file()]
    found: dict[str, Any] = {
        "version": 1,
        "name": plain_name(name or str(scene.attrs.get("scene_id", source.stem))),
        "title": str(scene.attrs.get("product") or scene.attrs.get("scene_id", source.stem)),
        "description": f"Described by `bandstream catalog add` from {source.name} ({scene.attrs.get('reader')}).",
        "license": "unknown",
        "providers": [],
        "datetime": scene.attrs.get("acquired"),
        "sensor": scene.attrs.get("sensor"),
        "folder": str(folder),
        "scenes": [item],
        "shape_yxb": [int(scene.sizes[axis]) for axis in ("y", "x", "band")],
        "dtype": str(scene["data"].dtype),
        "class_names": names,
        "files": [
            {"path": f.relative_to(folder).as_posix(), "sha256": digest(f), "size_bytes": f.stat().st_size}
            for f in inside
        ],
        **place_of_scene(scene),
    }
    return parse(CatalogEntry, found, f"the entry of {source}")


def place_of_scene(scene: xr.Dataset) -> dict[str, Any]:
    """Return `bbox` (degrees), `proj_code` and `proj_transform` of a scene, as far as its place is known."""
    from rasterio.errors import RasterioError
    from rasterio.warp import transform as project

    from ..scene import scene_crs, scene_transform

    crs, transform = scene_crs(scene), scene_transform(scene)
    if transform is None or crs is None:
        if "lat" in scene.coords and "lon" in scene.coords:
            lat, lon = scene["lat"].values, scene["lon"].values
            edges = [float(f(v)) for f, v in ((_low, lon), (_low, lat), (_high, lon), (_high, lat))]
            return {"bbox": edges} if all(math.isfinite(v) for v in edges) else {}
        return {}
    rows, cols = int(scene.sizes["y"]), int(scene.sizes["x"])
    # the edges bend when they are projected: many points along each, not only the corners
    along = [i / 20 for i in range(21)]
    edge = [(cols * t, rows * u) for t in along for u in along if t in (0, 1) or u in (0, 1)]
    a, b, c, d, e, f = (float(v) for v in list(transform)[:6])
    x, y = [a * p + b * q + c for p, q in edge], [d * p + e * q + f for p, q in edge]
    code = crs.to_authority()
    found: dict[str, Any] = {"proj_transform": [a, b, c, d, e, f]}
    if code is not None:
        found["proj_code"] = ":".join(code)
    try:
        lon, lat = (list(map(float, v)) for v in project(crs, "EPSG:4326", x, y)[:2])
    except RasterioError:
        return found
    if all(math.isfinite(v) for v in (*lon, *lat)):
        found["bbox"] = [min(lon), min(lat), max(lon), max(lat)]
    return found


def write_entry(entry: CatalogEntry, path: Path, *, force: bool = False) -> None:
    """Write an entry as YAML, whole or not at all.

    Raises
    ------
    ConfigError
        There is a file already and `force` is not set.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; give another --out, or --force to replace it.")
    data = entry.model_dump(mode="json", exclude_none=True)
    data["files"] = [{k: v for k, v in f.items() if v not in ([], False)} for f in data["files"]]
    data = {key: value for key, value in data.items() if value != []} | {"providers": data["providers"]}
    write_text(path, dump_yaml(data))


def plain_name(text: str) -> str:
    """Return a name of letters, digits, dots and dashes, fit for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:100] or "scene"


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _low(values: Any) -> Any:
    import numpy as np

    kept = values[np.isfinite(values)]
    return kept.min() if kept.size else np.nan


def _high(values: Any) -> Any:
    return -_low(-values)
