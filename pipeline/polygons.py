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
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as transform_points

from .errors import ConfigError, SceneNotFoundError
from .scene import scene_crs, scene_transform, shifted

if TYPE_CHECKING:
    import xarray as xr

Source = str | Path | Mapping[str, Any]
"""A vector file, or a GeoJSON object (longitude and latitude)."""

WGS84 = CRS.from_epsg(4326)
MAX_GEOJSON_BYTES = 256 * 2**20
#: Content with which the formats begin that are read; OGR knows others that open further files and addresses.
_MAGIC = {b"SQLite format 3\0": "GeoPackage", b"\x00\x00\x27\x0a": "Shapefile", b"{": "GeoJSON"}


def read_polygons(source: Source, crs: CRS) -> NDArray[Any]:
    """Return the polygons of a file, or of a GeoJSON object, in `crs`.

    Parameters
    ----------
    source
        GeoJSON, GeoPackage (first layer) or Shapefile; or a GeoJSON object.
    crs
        Where the polygons are wanted.

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
        moved = cast("NDArray[Any]", shapely.transform(shapes, move))
    except RasterioError as error:
        msg = f"the polygons of {where} cannot be brought to the scene's CRS: {error}"
        raise ConfigError(msg) from error
    if not np.isfinite(shapely.bounds(moved)).all():
        msg = f"the polygons of {where} lie where the scene's CRS ({crs.to_string()[:40]}) is not defined"
        raise ConfigError(msg)
    return moved


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
        msg = f"{where} cannot be read as polygons: {error}"
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
    """Return where (y, x) points lie inside a polygon; all in degrees, false where a coordinate is not finite."""
    return _inside(
        np.asarray(lon_yx, np.float64), np.asarray(lat_yx, np.float64), shapely.from_wkb(list(wkb))
    )


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
    shapes = np.concatenate([read_polygons(source, crs if placed and crs else WGS84) for source in sources])
    if placed and transform is not None:
        shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
        near = shapely.intersects(shapes, _outline(transform, shape))
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
