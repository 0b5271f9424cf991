"""Where pixels lie on the earth: latitude and longitude per pixel, and georeferenced rasters sampled at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.warp import transform as transform_points

from .errors import SceneError
from .scene import scene_crs, scene_transform

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr

F8 = NDArray[np.float64]
WGS84 = CRS.from_epsg(4326)
MOST_SAMPLED = 2**22
"""Most pixels of a raster that are read at once to sample it."""

_AXIS_M, _FLATTENING = 6378137.0, 1 / 298.257223563  # WGS 84


def in_sensor_geometry(scene: xr.Dataset) -> bool:
    """Return whether a scene has no map grid but tells where its pixels lie, by latitude and longitude or a GLT."""
    placed = scene_crs(scene) is not None and scene_transform(scene) is not None
    return not placed and ("lat" in scene.coords or "glt_row" in scene)


class Geolocation:
    """Latitude and longitude of a scene's pixels, read window by window; picklable."""

    def __init__(self, lat_yx: da.Array, lon_yx: da.Array) -> None:
        self._lat, self._lon = lat_yx, lon_yx
        self.shape_yx = (int(lat_yx.shape[0]), int(lat_yx.shape[1]))

    @classmethod
    def of(cls, scene: xr.Dataset) -> Geolocation:
        """Take them from a scene.

        Raises
        ------
        SceneError
            The scene has none.
        """
        if not ("lat" in scene.coords and "lon" in scene.coords):
            msg = (
                f"{scene.attrs.get('source', 'the scene')} has no latitude and longitude per pixel, so that nothing "
                "georeferenced can be brought to it"
            )
            raise SceneError(msg)
        return cls(da.asarray(scene["lat"].data), da.asarray(scene["lon"].data))

    def locations(self, rows: slice, cols: slice) -> tuple[F8, F8]:
        """Return latitude and longitude (y, x) of a window in degrees, NaN where the product has none."""
        parts = (self._lat[rows, cols], self._lon[rows, cols])
        # on this thread: it may already be one of Dask's own
        lat, lon = (np.array(part, np.float64) for part in da.compute(*parts, scheduler="synchronous"))
        # fill values such as -9999 lie outside the globe
        away = ~((np.abs(lat) <= 90) & (np.abs(lon) <= 360))
        lat[away] = lon[away] = np.nan
        return lat, lon


def locations(scene: xr.Dataset, rows: slice, cols: slice) -> tuple[F8, F8]:
    """Return latitude and longitude (y, x) of pixel centres in degrees (WGS 84).

    Parameters
    ----------
    scene
        With `lat` and `lon`, or with a CRS and a transform.
    rows, cols
        Window inside the scene.

    Raises
    ------
    SceneError
        Its place on earth is not known.
    """
    crs, transform = scene_crs(scene), scene_transform(scene)
    if crs is None or transform is None:
        return Geolocation.of(scene).locations(rows, cols)
    row, col = np.mgrid[rows, cols] + 0.5
    lon, lat = moved(*on_grid(transform, col, row), crs, WGS84)
    return lat, lon


def on_grid(transform: Affine, col: F8, row: F8) -> tuple[F8, F8]:
    """Return the coordinates x, y of places (col, row) of a grid; spelled out for arrays."""
    a, b, c, d, e, f = (float(v) for v in tuple(transform)[:6])
    return a * col + b * row + c, d * col + e * row + f


def moved(x: F8, y: F8, source: CRS, target: CRS) -> tuple[F8, F8]:
    """Return points in another CRS (longitude before latitude), NaN where that is not defined."""
    known = np.isfinite(x) & np.isfinite(y)
    out_x, out_y = np.full(x.shape, np.nan), np.full(y.shape, np.nan)
    if source == target:
        out_x[known], out_y[known] = x[known], y[known]
    elif known.any():
        out_x[known], out_y[known] = _there(x[known], y[known], source, target)
        lost = ~(np.isfinite(out_x) & np.isfinite(out_y))
        out_x[lost] = out_y[lost] = np.nan
    return out_x, out_y


def _there(x: F8, y: F8, source: CRS, target: CRS) -> tuple[F8, F8]:
    """Return finite points in another CRS; one that PROJ refuses, such as metres taken for degrees, spoils no other."""
    try:
        there = transform_points(source, target, x, y)
    except (RasterioError, CPLE_BaseError):
        out = np.full((2, len(x)), np.nan)
        usable = np.flatnonzero(np.abs(y) <= 90) if source.is_geographic else np.arange(len(x))
        parts = [usable] if len(usable) < len(x) else np.array_split(usable, 2)
        for part in parts if len(x) > 1 else ():
            if len(part):
                out[:, part] = _there(x[part], y[part], source, target)
        return out[0], out[1]
    return np.asarray(there[0], np.float64), np.asarray(there[1], np.float64)


def earth_centred(lat: F8, lon: F8) -> F8:
    """Return earth-centred coordinates (..., 3) in metres of points on the WGS 84 ellipsoid, NaN where unknown.

    Straight distances between neighbours equal those on the ground to better than a millionth over a kilometre, at
    every latitude and across the 180th meridian.
    """
    phi, lam = np.radians(lat), np.radians(lon)
    square = _FLATTENING * (2 - _FLATTENING)
    normal = _AXIS_M / np.sqrt(1 - square * np.sin(phi) ** 2)
    xyz = (
        normal * np.cos(phi) * np.cos(lam),
        normal * np.cos(phi) * np.sin(lam),
        normal * (1 - square) * np.sin(phi),
    )
    return np.stack(xyz, axis=-1)


def degrees_of(metres: float) -> float:
    """Return how many degrees of a great circle a distance on the ground is."""
    return float(np.degrees(metres / _AXIS_M))


def utm_zone(lat: float, lon: float) -> CRS:
    """Return the UTM zone of a place (degrees), or the polar stereographic CRS beyond 84 degrees north, 80 south."""
    if lat > 84 or lat < -80:
        return CRS.from_epsg(32661 if lat > 0 else 32761)
    zone = int((lon + 180) % 360 // 6) + 1
    return CRS.from_epsg((32600 if lat >= 0 else 32700) + zone)


def sample_nearest(
    read: Callable[[slice, slice], NDArray[Any]],
    crs: CRS,
    transform: Affine,
    shape_yx: tuple[int, int],
    lat: F8,
    lon: F8,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the raster's pixels in which places lie, and which places lie in the raster at all.

    Parameters
    ----------
    read
        Gives a window (rows, cols) of the raster.
    crs, transform, shape_yx
        Place and size of the raster.
    lat, lon
        Places (y, x) in degrees, NaN where unknown.

    Returns
    -------
    values
        (y, x) in the raster's number type; 0 outside the raster.
    inside
        Bool (y, x).
    """
    x, y = moved(lon, lat, WGS84, crs)
    if crs.is_geographic:
        x = _round_the_globe(x, transform, shape_yx)
    found = on_grid(~transform, x, y)
    known = np.isfinite(found[0]) & np.isfinite(found[1])
    col, row = (np.full(lat.shape, -1.0) for _ in range(2))
    col[known], row[known] = np.floor(found[0][known]), np.floor(found[1][known])
    inside = known & (row >= 0) & (col >= 0) & (row < shape_yx[0]) & (col < shape_yx[1])
    row, col = np.where(inside, row, 0).astype(np.int64), np.where(inside, col, 0).astype(np.int64)
    values = np.zeros(lat.shape, read(slice(0, 1), slice(0, 1)).dtype)
    _gather(read, row, col, inside, values)
    return values, inside


def _round_the_globe(lon: F8, transform: Affine, shape_yx: tuple[int, int]) -> F8:
    """Return longitudes as a raster counts them, from its western edge on: it may reach beyond 180 degrees."""
    height, width = shape_yx
    corners = np.array([[0.0, width, 0.0, width], [0.0, 0.0, height, height]])
    west = float(on_grid(transform, corners[0], corners[1])[0].min())
    return np.where((lon < west) | (lon >= west + 360), west + (lon - west) % 360, lon)


def _gather(
    read: Callable[[slice, slice], NDArray[Any]],
    row: NDArray[np.int64],
    col: NDArray[np.int64],
    inside: NDArray[np.bool_],
    out: NDArray[Any],
) -> None:
    """Fill `out` from windows of bounded size; places that lie too far apart are halved."""
    if not inside.any():
        return
    top, bottom = int(row[inside].min()), int(row[inside].max()) + 1
    left, right = int(col[inside].min()), int(col[inside].max()) + 1
    if (bottom - top) * (right - left) > MOST_SAMPLED and out.size > 1:
        axis = int(np.argmax(out.shape))
        middle = out.shape[axis] // 2
        for part in (slice(0, middle), slice(middle, None)):
            at = (slice(None),) * axis + (part,)
            _gather(read, row[at], col[at], inside[at], out[at])
        return
    piece = read(slice(top, bottom), slice(left, right))
    out[inside] = piece[row[inside] - top, col[inside] - left]
