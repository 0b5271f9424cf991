"""Features of vector files (GeoPackage, GeoJSON, Shapefile) in the CRS of a scene, for masks and labels.

Only files that begin as one of these formats are opened: OGR knows others that refer to further files and addresses.
An edge is straight in the CRS of the file, so that long edges get vertices before they are brought to another CRS.
Shapes across the 180th meridian must be cut there, as GeoJSON (RFC 7946) demands.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio._err import (
    CPLE_BaseError,  # pyright: ignore[reportPrivateUsage, reportMissingModuleSource] - PROJ's refusals come as this
)
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as transform_points

from .errors import ConfigError, SceneNotFoundError

Source = str | Path | Mapping[str, Any]
"""A vector file, or a GeoJSON object (longitude and latitude)."""

MAX_GEOJSON_BYTES = 256 * 2**20
POLYGONS = frozenset({"Polygon", "MultiPolygon"})
POINTS = frozenset({"Point", "MultiPoint"})
_STEPS = 256  #: vertices that an edge as long as the scene gets
_MOST_VERTICES = 200_000  #: that an outline gets
_FARTHEST = 1e12  #: coordinate that still can be a place
_MAGIC = {b"SQLite format 3\0": "GeoPackage", b"\x00\x00\x27\x0a": "Shapefile", b"{": "GeoJSON"}


@dataclass(frozen=True)
class Features:
    """Geometries with the columns that were asked for."""

    where: str  #: the file, for messages
    shapes: NDArray[Any]  #: (feature,) shapely geometries
    fids: NDArray[np.int64]  #: (feature,) numbers of the features in the file
    columns: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    all_columns: dict[str, NDArray[Any]] = field(  #: as they stand in the file, whatever `of` has left out
        default_factory=dict[str, NDArray[Any]]
    )
    repaired: int = 0  #: polygons that were not valid
    empty: int = 0  #: features without a geometry, or with one that could not be read; left out

    def of(self, which: NDArray[Any]) -> Features:
        """Return some of the features, by a mask or by their positions."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return replace(self, shapes=self.shapes[which], fids=self.fids[which], columns=columns)


def vector_format(path: Path) -> str | None:
    """Return the name of the vector format as which a file begins, or None."""
    with path.open("rb") as file:
        head = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def read_features(
    source: Source,
    crs: CRS,
    around: shapely.Polygon | None = None,
    *,
    columns: Sequence[str] = (),
    layer: str | None = None,
    kinds: frozenset[str] = POLYGONS,
    taken: str = "a mask takes polygons only",
) -> Features:
    """Return the features of a file, or of a GeoJSON object, in `crs`.

    Parameters
    ----------
    source
        GeoJSON, GeoPackage or Shapefile; or a GeoJSON object.
    crs
        Where they are wanted.
    around
        Outline of the scene, in `crs`: what lies farther away may be left out, or cut off.
    columns
        Names of the columns to read.
    layer
        Of a GeoPackage; the first one by default.
    kinds
        Types of geometries that may occur.
    taken
        What the caller takes, for messages.

    Returns
    -------
    Features
        Polygons valid and with an area; features without a geometry are left out.

    Raises
    ------
    SceneNotFoundError
        There is no such file.
    ConfigError
        The file cannot be read, has no CRS or not the columns, or holds geometries of another kind.
    """
    raw, own = _read(source, columns, layer)
    found = raw.of(~(shapely.is_missing(raw.shapes) | shapely.is_empty(raw.shapes)))
    empty = len(raw.shapes) - len(found.shapes)
    other = next((s.geom_type for s in found.shapes if s.geom_type not in kinds), None)
    if other is not None:
        raise ConfigError(
            f"{raw.where} holds a {other}; {taken}. Buffer points and lines, or leave them out."
        )
    bounds = shapely.bounds(found.shapes)
    if not (np.abs(bounds) <= _FARTHEST).all():
        raise ConfigError(
            f"{raw.where} holds coordinates that are no place (infinite, or beyond {_FARTHEST:g})"
        )
    shapes, repaired = shapely.force_2d(found.shapes), 0
    areas = shapely.get_dimensions(shapes) == 2
    if areas.any():
        if not areas.all():
            raise ConfigError(f"{raw.where} holds both polygons and points; put them in files of their own.")
        repaired = int((~shapely.is_valid(shapes)).sum())
        shapes = shapely.make_valid(shapes, method="structure", keep_collapsed=False)
        kept = ~shapely.is_empty(shapes)
        found, shapes = found.of(kept), shapes[kept]
    if own != crs:
        shapes, left = _prepared(shapes, own, crs, around)
        found, shapes = found.of(left), _moved(shapes, own, crs, raw.where)
    return replace(found, shapes=shapes, repaired=repaired, empty=empty)


def _moved(shapes: NDArray[Any], own: CRS, crs: CRS, where: str) -> NDArray[Any]:
    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack(transform_points(own, crs, xy[:, 0], xy[:, 1])[:2])

    try:
        moved = cast("NDArray[Any]", shapely.transform(shapes, move))
    except (RasterioError, CPLE_BaseError) as error:
        msg = f"the shapes of {where} cannot be brought to the scene's CRS: {error}"
        raise ConfigError(msg) from error
    if not np.isfinite(shapely.bounds(moved)).all():
        msg = f"the shapes of {where} lie where the scene's CRS ({crs.to_string()[:40]}) is not defined"
        raise ConfigError(msg)
    return moved


def _prepared(
    shapes: NDArray[Any], own: CRS, crs: CRS, around: shapely.Polygon | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Cut shapes to the surroundings of a scene, and put vertices on edges, in the CRS of the file.

    Returns also which shapes are left.
    """
    step = 0.01 if own.is_geographic else 1000.0 / float(own.linear_units_factor[1])
    box = shapely.box(-540.0, -90.0, 540.0, 90.0) if own.is_geographic else None
    near = None if around is None else _surroundings(around, crs, own)
    if near is not None:
        west, south, east, north = near.bounds
        step = max(east - west, north - south) / _STEPS
        box = near if box is None else shapely.intersection(box, near)
    kept = np.arange(len(shapes))
    if box is not None:
        kept = np.flatnonzero(shapely.intersects(shapes, box))
        shapes, left = _parts(shapely.intersection(shapes[kept], box), shapes[kept])
        kept = kept[left]
    longest = max((float(length) for length in shapely.length(shapes)), default=0.0)
    return cast("NDArray[Any]", shapely.segmentize(shapes, max(step, longest / _MOST_VERTICES))), kept


def _surroundings(around: shapely.Polygon, crs: CRS, own: CRS) -> shapely.Polygon | None:
    """Return a box around a scene in another CRS; None where that is not one piece (at the 180th meridian, a pole)."""
    xy = shapely.get_coordinates(shapely.segmentize(around, around.length / _STEPS))
    try:
        there = np.array(transform_points(crs, own, xy[:, 0], xy[:, 1])[:2], np.float64)
    except (RasterioError, CPLE_BaseError):
        return None
    low, high = there.min(axis=1), there.max(axis=1)
    if not np.isfinite([low, high]).all() or (own.is_geographic and high[0] - low[0] > 180):
        return None
    pad = 0.1 * float((high - low).max())
    return shapely.box(*(low - pad), *(high + pad))


def _parts(cut: NDArray[Any], whole: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return what is left of shapes that were cut, and of which; cutting an area leaves points and lines, too."""
    parts, of = shapely.get_parts(cut, return_index=True)
    own = shapely.get_dimensions(whole)
    fit = (shapely.get_dimensions(parts) == own[of]) & ~shapely.is_empty(parts)
    parts, of = parts[fit], of[fit]
    left, group = np.unique(of, return_inverse=True)
    made = np.empty(len(left), object)
    if len(left):
        areas = own[left] == 2
        join = shapely.multipolygons if areas.all() else shapely.multipoints
        made[:] = join(parts, indices=group)
    return made, left.astype(np.int64)


def _read(source: Source, columns: Sequence[str], layer: str | None) -> tuple[Features, CRS]:
    """Return the features in the CRS of the file, and that CRS."""
    import pyogrio.raw
    from pyogrio.errors import DataLayerError, DataSourceError, FieldError, GeometryError

    if isinstance(source, Mapping):
        where, handed = "the GeoJSON object", _geojson_bytes(source)
    else:
        where, handed = str(source), str(source)
        _check_file(Path(source))
    try:
        with warnings.catch_warnings():
            # GDAL's remarks on damaged files; what matters of them becomes an error
            warnings.simplefilter("ignore", RuntimeWarning)
            meta, fids, wkb, fields = pyogrio.raw.read(
                handed, layer=layer, columns=list(columns), force_2d=True, return_fids=True
            )
            shapes = None if wkb is None else shapely.from_wkb(np.asarray(wkb, object), on_invalid="fix")
    except (
        DataSourceError, DataLayerError, FieldError, GeometryError, ValueError, UnicodeDecodeError,
        shapely.errors.ShapelyError,
    ) as error:  # fmt: skip
        # GDAL's advice is none for a user of a workflow
        reason = str(error).split("; It might help")[0].rstrip(".")
        msg = f"{where} cannot be read as a vector file: {reason}"
        raise ConfigError(msg) from error
    if shapes is None:
        msg = f"{where} is a table without geometries; give one with polygons or points"
        raise ConfigError(msg)
    told = meta.get("crs")
    if not told:
        msg = f"{where} does not tell its CRS, so that its shapes have no place; add it (a .prj file for a Shapefile)"
        raise ConfigError(msg)
    try:
        crs = CRS.from_user_input(told)
    except CRSError as error:
        msg = f"the CRS of {where} cannot be read: {error}"
        raise ConfigError(msg) from error
    names = [str(name) for name in meta["fields"]]
    values: dict[str, NDArray[Any]] = dict(zip(names, fields or (), strict=True))
    missing = [name for name in columns if name not in values]
    if missing:
        msg = f"{where} has no column {missing[0]!r}; it has {_columns(handed, layer) or 'none'}"
        raise ConfigError(msg)
    return Features(where, cast("NDArray[Any]", shapes), np.asarray(fids, np.int64), values, values), crs


def _columns(handed: str | bytes, layer: str | None) -> str:
    import pyogrio

    return ", ".join(str(name) for name in pyogrio.read_info(handed, layer=layer)["fields"][:20])


def layers_of(path: Path) -> list[str]:
    """Return the names of a file's layers with geometries.

    Raises
    ------
    SceneNotFoundError
        There is no such file.
    ConfigError
        It cannot be read.
    """
    import pyogrio
    from pyogrio.errors import DataSourceError

    _check_file(path)
    try:
        return [str(name) for name, kind in pyogrio.list_layers(path) if kind is not None]
    except (DataSourceError, ValueError, UnicodeDecodeError) as error:
        reason = str(error).split("; It might help")[0].rstrip(".")
        msg = f"{path} cannot be read as a vector file: {reason}"
        raise ConfigError(msg) from error


def _geojson_bytes(source: Mapping[str, Any]) -> bytes:
    kind = source.get("type")
    if kind == "FeatureCollection":
        return json.dumps(source).encode()
    feature = source if kind == "Feature" else {"type": "Feature", "properties": {}, "geometry": dict(source)}
    return json.dumps({"type": "FeatureCollection", "features": [feature]}).encode()


def _check_file(path: Path) -> None:
    """Raise unless the file begins as one of the formats that are read."""
    if not path.is_file():
        msg = f"there is no vector file {path}"
        raise SceneNotFoundError(msg)
    kind = vector_format(path)
    if kind is None:
        msg = f"{path} is no vector file that can be read; give {', '.join(_MAGIC.values())}"
        raise ConfigError(msg)
    if kind == "GeoJSON" and path.stat().st_size > MAX_GEOJSON_BYTES:
        msg = f"{path} has {path.stat().st_size >> 20} MiB; GeoJSON is read as a whole: convert it to GeoPackage"
        raise ConfigError(msg)
