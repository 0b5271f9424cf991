"""Polygons of vector files as masks on a scene's own pixels, burned block by block.

A pixel is inside where its centre is. Scenes with a CRS and a transform get the polygons in their own CRS; cubes in
sensor geometry are compared in degrees, with the latitude and longitude that the product gives. (GDAL's rasteriser is
not used: rasterio's wrapper changes Python's warning filters, which threads share.) Polygons across the 180th meridian must be cut there, as GeoJSON (RFC 7946) demands.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dask.array as da
import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import (
    CPLE_BaseError,  # pyright: ignore[reportPrivateUsage, reportMissingModuleSource] - PROJ's refusals come as this
)
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as transform_points

from ..errors import ConfigError, SceneNotFoundError
from ..place import shifted
from ..scene import scene_crs, scene_transform

if TYPE_CHECKING:
    import xarray as xr

Source = str | Path | Mapping[str, Any]
"""A vector file, or a GeoJSON object (longitude and latitude)."""

WGS84 = CRS.from_epsg(4326)
MAX_GEOJSON_BYTES = 256 * 2**20
_STEPS = 256  #: vertices that an edge as long as the scene gets
_MOST_VERTICES = 200_000  #: that an outline gets
#: Content with which the formats begin that are read; OGR knows others that open further files and addresses.
_MAGIC = {b"SQLite format 3\0": "GeoPackage", b"\x00\x00\x27\x0a": "Shapefile", b"{": "GeoJSON"}


def read_polygons(source: Source, crs: CRS, outline: shapely.Polygon | None = None) -> NDArray[Any]:
    """Return the polygons of a file, or of a GeoJSON object, in `crs`.

    An edge is straight in the CRS of the file, so that long edges get vertices before they are brought to another CRS.

    Parameters
    ----------
    source
        GeoJSON, GeoPackage (first layer) or Shapefile; or a GeoJSON object.
    crs
        Where the polygons are wanted.
    outline
        Of the scene, in `crs`: what lies farther away may be cut off.

    Returns
    -------
    numpy.ndarray
        (polygon,) shapely geometries; empty ones left out.

    Raises
    ------
    SceneNotFoundError
        There is no such file.
    ConfigError
        The file cannot be read, has no CRS, or holds points or lines.
    """
    where, wkb, own = _read(source)
    shapes = cast("NDArray[Any]", shapely.from_wkb(wkb, on_invalid="fix"))
    shapes = shapes[~(shapely.is_missing(shapes) | shapely.is_empty(shapes))]
    kinds = set(shapely.get_type_id(shapes).tolist())
    if kinds - {3, 6}:
        other = next(s.geom_type for s in shapes if s.geom_type not in {"Polygon", "MultiPolygon"})
        msg = f"{where} holds a {other}; a mask takes polygons only. Buffer points and lines, or leave them out."
        raise ConfigError(msg)
    shapes = shapely.make_valid(shapely.force_2d(shapes), method="structure", keep_collapsed=False)
    if own == crs:
        return shapes

    def move(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack(transform_points(own, crs, xy[:, 0], xy[:, 1])[:2])

    try:
        moved = cast("NDArray[Any]", shapely.transform(_prepared(shapes, own, crs, outline), move))
    except (RasterioError, CPLE_BaseError) as error:
        msg = f"the polygons of {where} cannot be brought to the scene's CRS: {error}"
        raise ConfigError(msg) from error
    if not np.isfinite(shapely.bounds(moved)).all():
        msg = f"the polygons of {where} lie where the scene's CRS ({crs.to_string()[:40]}) is not defined"
        raise ConfigError(msg)
    return moved


def _prepared(shapes: NDArray[Any], own: CRS, crs: CRS, outline: shapely.Polygon | None) -> NDArray[Any]:
    """Cut polygons to the surroundings of a scene, and put vertices on their edges, in the CRS of the file."""
    step = 0.01 if own.is_geographic else 1000.0 / float(own.linear_units_factor[1])
    box = shapely.box(-540.0, -90.0, 540.0, 90.0) if own.is_geographic else None
    around = None if outline is None else _surroundings(outline, crs, own)
    if around is not None:
        west, south, east, north = around.bounds
        step = max(east - west, north - south) / _STEPS
        box = around if box is None else shapely.intersection(box, around)
    if box is not None:
        shapes = _areas(shapely.intersection(shapes[shapely.intersects(shapes, box)], box))
    longest = max((float(length) for length in shapely.length(shapes)), default=0.0)
    return cast("NDArray[Any]", shapely.segmentize(shapes, max(step, longest / _MOST_VERTICES)))


def _surroundings(outline: shapely.Polygon, crs: CRS, own: CRS) -> shapely.Polygon | None:
    """Return a box around a scene in another CRS; None where that is not one piece (at the 180th meridian, a pole)."""
    xy = shapely.get_coordinates(shapely.segmentize(outline, outline.length / _STEPS))
    try:
        there = np.array(transform_points(crs, own, xy[:, 0], xy[:, 1])[:2], np.float64)
    except (RasterioError, CPLE_BaseError):
        return None
    low, high = there.min(axis=1), there.max(axis=1)
    if not np.isfinite([low, high]).all() or (own.is_geographic and high[0] - low[0] > 180):
        return None
    pad = 0.1 * float((high - low).max())
    return shapely.box(*(low - pad), *(high + pad))


def _areas(shapes: NDArray[Any]) -> NDArray[Any]:
    """Return the parts that have an area, one geometry for each that has any; cutting leaves points and lines, too."""
    parts, of = shapely.get_parts(shapes, return_index=True)
    areas = (shapely.get_type_id(parts) == 3) & ~shapely.is_empty(parts)
    if not areas.any():
        return np.array([], object)
    _, of = np.unique(of[areas], return_inverse=True)
    return cast("NDArray[Any]", shapely.multipolygons(parts[areas], indices=of))


def _read(source: Source) -> tuple[str, NDArray[Any], CRS]:
    """Return what the source is called, its geometries as WKB, and their CRS."""
    import pyogrio.raw
    from pyogrio.errors import DataLayerError, DataSourceError, GeometryError

    if isinstance(source, Mapping):
        where, handed = "the GeoJSON object", _geojson_bytes(source)
    else:
        where, handed = str(source), str(source)
        _check_file(Path(source))
    try:
        with warnings.catch_warnings():
            # GDAL's remarks on damaged files; what matters of them becomes an error
            warnings.simplefilter("ignore", RuntimeWarning)
            meta, _, wkb, _ = pyogrio.raw.read(handed, columns=[], force_2d=True)
    except (DataSourceError, DataLayerError, GeometryError, ValueError, UnicodeDecodeError) as error:
        reason = (
            str(error).split("; It might help")[0].rstrip(".")
        )  # GDAL's advice is none for a user of a workflow
        msg = f"{where} cannot be read as polygons: {reason}"
        raise ConfigError(msg) from error
    if wkb is None:
        msg = f"{where} is a table without geometries; a mask needs polygons"
        raise ConfigError(msg)
    told = meta.get("crs")
    if not told:
        msg = f"{where} does not tell its CRS, so that its polygons have no place; add it (a .prj file for a Shapefile)"
        raise ConfigError(msg)
    try:
        return where, np.asarray(wkb, object), CRS.from_user_input(told)
    except CRSError as error:
        msg = f"the CRS of {where} cannot be read: {error}"
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
        msg = f"there is no polygon file {path}"
        raise SceneNotFoundError(msg)
    with path.open("rb") as file:
        head = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        msg = f"{path} is no vector file that a mask takes; give {', '.join(_MAGIC.values())}"
        raise ConfigError(msg)
    if kind == "GeoJSON" and path.stat().st_size > MAX_GEOJSON_BYTES:
        msg = f"{path} has {path.stat().st_size >> 20} MiB; GeoJSON is read as a whole: convert it to GeoPackage"
        raise ConfigError(msg)


class BurnedPolygons:
    """Polygons on the grid of a scene; only windows asked for are looked at. Picklable."""

    def __init__(self, transform: Affine, wkb: tuple[bytes, ...]) -> None:
        self.transform, self.wkb = transform, wkb

    @cached_property
    def _tree(self) -> shapely.STRtree:
        return shapely.STRtree(shapely.from_wkb(list(self.wkb)))

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(self.transform)[:6], self.wkb

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.transform, self.wkb = Affine(*state[0]), state[1]

    def burn(self, row: int, col: int, shape_yx: tuple[int, int]) -> NDArray[np.bool_]:
        """Return where the pixels of a window have their centre inside a polygon, bool (y, x)."""
        grid = shifted(self.transform, col, row)
        outline = _outline(grid, shape_yx)
        near = self._tree.query(outline)
        inside = np.zeros(shape_yx, bool)
        if len(near):
            # geometries of this call's own: preparing those of the tree is not safe among threads
            shapes = shapely.from_wkb([self.wkb[number] for number in near.tolist()])
            if shapely.covers(shapes, outline).any():
                return ~inside
            y, x = np.ogrid[0.5 : shape_yx[0], 0.5 : shape_yx[1]]
            a, b, c, d, e, f = (float(v) for v in tuple(grid)[:6])
            inside = _inside(a * x + b * y + c, d * x + e * y + f, shapes)
        return inside


def _burn_block(burned: BurnedPolygons, block_info: Any = None) -> NDArray[np.bool_]:
    (top, bottom), (left, right) = block_info[None]["array-location"]
    return burned.burn(top, left, (bottom - top, right - left))


def _outline(transform: Affine, shape_yx: tuple[int, ...]) -> shapely.Polygon:
    """Return the outline of a grid in coordinates."""
    a, b, c, d, e, f = (float(v) for v in tuple(transform)[:6])
    height, width = shape_yx
    corners = ((0, 0), (width, 0), (width, height), (0, height))
    return shapely.Polygon([(a * col + b * row + c, d * col + e * row + f) for col, row in corners])


def _wkb(shapes: NDArray[Any]) -> tuple[bytes, ...]:
    return tuple(cast("list[bytes]", shapely.to_wkb(shapes).tolist()))


def inside_lat_lon(lat_yx: NDArray[Any], lon_yx: NDArray[Any], wkb: tuple[bytes, ...]) -> NDArray[np.bool_]:
    """Return where (y, x) points lie inside a polygon; all in degrees, false where a coordinate is not finite.

    Longitudes may be counted from -180 or from 0, in the scene and in the polygons.
    """
    lon, lat = np.asarray(lon_yx, np.float64), np.asarray(lat_yx, np.float64)
    shapes = shapely.from_wkb(list(wkb))
    inside = _inside(lon, lat, shapes)
    for turn in (-360.0, 360.0):
        inside |= _inside(lon + turn, lat, shapes)
    return inside


def _inside(x: NDArray[np.float64], y: NDArray[np.float64], shapes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which places lie inside a polygon, each tested only for those whose box holds it."""
    inside = np.zeros(x.shape, bool)
    for shape in shapes:
        west, south, east, north = shape.bounds
        near = (x >= west) & (x <= east) & (y >= south) & (y <= north) & ~inside
        if near.any():
            shapely.prepare(shape)
            inside[near] = shapely.contains_xy(shape, x[near], y[near])
    return inside


def polygon_plane(scene: xr.Dataset, sources: Sequence[Source]) -> tuple[da.Array, int]:
    """Return lazily where the pixels of a scene lie inside polygons, and how many polygons there are.

    Parameters
    ----------
    scene
        With a CRS and a transform, or with `lat` and `lon`.
    sources
        Vector files or GeoJSON objects.

    Returns
    -------
    plane
        Lazy bool (y, x), in the chunks of `valid`.
    count
        Number of polygons; those that certainly lie outside the scene are not counted.

    Raises
    ------
    ConfigError
        The scene's place on earth is not known, or a source cannot be used.
    """
    crs, transform = scene_crs(scene), scene_transform(scene)
    chunks = scene["valid"].data.chunks
    placed = crs is not None and transform is not None
    if not placed and not ("lat" in scene.coords and "lon" in scene.coords):
        msg = (
            f"polygons cannot mask {scene.attrs.get('source', 'the scene')}: it has neither a CRS with a transform nor "
            "latitude and longitude per pixel, so the polygons have no place in it. Give a georeferenced scene, or "
            "mask by a quality layer."
        )
        raise ConfigError(msg)
    shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    outline = _outline(transform, shape) if placed and transform is not None else None
    own = crs if placed and crs else WGS84
    shapes = np.concatenate([read_polygons(source, own, outline) for source in sources])
    if outline is not None and transform is not None:
        near = shapely.intersects(shapes, outline)
        wkb = _wkb(shapes[near])
        digest = hashlib.sha256(repr((chunks, tuple(transform), wkb)).encode()).hexdigest()
        lazy = da.map_blocks(
            _burn_block,
            BurnedPolygons(transform, wkb),
            chunks=chunks,
            dtype=bool,
            meta=np.ones((0, 0), bool),
            token=f"polygons-{digest[:32]}",
        )
        return lazy, len(wkb)
    wkb = _wkb(shapes)
    lat, lon = (scene[name].data for name in ("lat", "lon"))
    lat, lon = (da.asarray(values).rechunk(chunks) for values in (lat, lon))
    lazy = da.map_blocks(inside_lat_lon, lat, lon, wkb, dtype=bool, meta=np.ones((0, 0), bool))
    return lazy, len(wkb)
