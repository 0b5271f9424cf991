"""Polygons of vector files as masks on a scene's own pixels, burned block by block.

A pixel is inside where its centre is. Scenes with a CRS and a transform get the polygons in their own CRS; cubes in
sensor geometry are compared in degrees, with the latitude and longitude that the product gives. Polygons across the
180th meridian must be cut there, as GeoJSON (RFC 7946) demands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from ..burning import Outlines, Places, outline, to_wkb
from ..errors import ConfigError
from ..ground import WGS84
from ..scene import scene_crs, scene_transform
from ..vectors import Source, read_features

if TYPE_CHECKING:
    import xarray as xr


def read_polygons(source: Source, crs: CRS, around: shapely.Polygon | None = None) -> NDArray[Any]:
    """Return the polygons (polygon,) of a file, or of a GeoJSON object, in `crs`; see `read_features`."""
    return read_features(source, crs, around).shapes


class BurnedPolygons:
    """Polygons on the grid of a scene; only windows asked for are looked at. Picklable."""

    def __init__(self, transform: Affine, wkb: tuple[bytes, ...]) -> None:
        self._outlines = Outlines.of(np.asarray(shapely.from_wkb(list(wkb)), object), transform)

    def burn(self, row: int, col: int, shape_yx: tuple[int, int]) -> NDArray[np.bool_]:
        """Return where the pixels of a window have their centre inside a polygon, bool (y, x)."""
        return self._outlines.burn(slice(row, row + shape_yx[0]), slice(col, col + shape_yx[1])) > 0


def _burn_block(burned: BurnedPolygons, block_info: Any = None) -> NDArray[np.bool_]:
    (top, bottom), (left, right) = block_info[None]["array-location"]
    return burned.burn(top, left, (bottom - top, right - left))


def _inside_lat_lon(lat_yx: NDArray[Any], lon_yx: NDArray[Any], wkb: tuple[bytes, ...]) -> NDArray[np.bool_]:
    """Return where (y, x) places lie inside a polygon; all in degrees, false where a coordinate is not finite."""
    return Places(wkb).find(lat_yx, lon_yx) > 0


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
    around = outline(transform, shape) if placed and transform is not None else None
    own = crs if placed and crs else WGS84
    shapes = np.concatenate([read_polygons(source, own, around) for source in sources])
    if around is not None and transform is not None:
        near = shapely.intersects(shapes, around)
        wkb = to_wkb(shapes[near])
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
    wkb = to_wkb(shapes)
    lat, lon = (scene[name].data for name in ("lat", "lon"))
    lat, lon = (da.asarray(values).rechunk(chunks) for values in (lat, lon))
    lazy = da.map_blocks(_inside_lat_lon, lat, lon, wkb, dtype=bool, meta=np.ones((0, 0), bool))
    return lazy, len(wkb)
