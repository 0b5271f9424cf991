"""Where the pixels of a cube in sensor geometry lie on the earth, and how a finished map gets there.

Cubes are never resampled: labels are brought to the sensor's pixels (`Geolocation.locations`), and only the class map
is orthorectified, by nearest neighbour, since class numbers cannot be averaged. The product's own look-up table (GLT)
decides where it has one; else the pixel whose latitude and longitude are nearest on the ground. Everything is done
in windows, so that memory does not grow with the scene.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import dask.array as da
import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from .errors import ConfigError, SceneError
from .ground import (
    WGS84,
    Geolocation,
    degrees_of,
    earth_centred,
    in_sensor_geometry,
    locations,
    moved,
    on_grid,
    utm_zone,
)

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["OrthoGrid", "in_sensor_geometry", "locations", "ortho_grid", "orthorectify"]

F8 = NDArray[np.float64]
Index = NDArray[np.int64]
Reader = Callable[[slice, slice], NDArray[Any]]
"""Gives a window (rows, cols) of a map in sensor geometry, as (..., y, x)."""

BLOCK = 256
"""Side of the windows in pixels."""
MAX_PIXELS = 2**36
"""Largest output grid; more means that latitudes, longitudes or the resolution are wrong."""


class OrthoGrid(ABC):
    """A map grid on the ground, and for each of its pixels the pixel of the scene that belongs there."""

    def __init__(self, crs: CRS, transform: Affine, shape_yx: tuple[int, int]) -> None:
        self.crs, self.transform, self.shape_yx = crs, transform, shape_yx
        self.block = BLOCK

    @abstractmethod
    def source(self, rows: slice, cols: slice) -> tuple[Index, Index]:
        """Return row and column (y, x) of the scene's pixel for a window of the grid; -1 where there is none."""

    def windows(self) -> Iterator[tuple[slice, slice]]:
        """Yield the windows of the grid, row by row."""
        (height, width), block = self.shape_yx, self.block
        for top in range(0, height, block):
            for left in range(0, width, block):
                yield slice(top, min(top + block, height)), slice(left, min(left + block, width))

    def take(self, read: Reader, rows: slice, cols: slice, fill: float) -> NDArray[Any]:
        """Return a window of a map (..., y, x) on this grid, reading only the pixels around those needed."""
        row, col = self.source(rows, cols)
        known = row >= 0
        if not known.any():
            sample = read(slice(0, 1), slice(0, 1))
            return np.full((*sample.shape[:-2], *row.shape), fill, sample.dtype)
        top, left = int(row[known].min()), int(col[known].min())
        piece = read(slice(top, int(row[known].max()) + 1), slice(left, int(col[known].max()) + 1))
        out = np.full((*piece.shape[:-2], *row.shape), fill, piece.dtype)
        out[..., known] = piece[..., row[known] - top, col[known] - left]
        return out


class _TableGrid(OrthoGrid):
    """The grid of the product's own geometric look-up table."""

    def __init__(self, scene: xr.Dataset) -> None:
        rows, cols = scene["glt_row"], scene["glt_col"]
        try:
            crs = CRS.from_wkt(str(scene.attrs["ortho_crs_wkt"]))
            transform = Affine(*(float(v) for v in list(scene.attrs["ortho_transform"])[:6]))
        except (KeyError, TypeError, ValueError, CRSError) as error:
            msg = (
                f"{scene.attrs.get('source', 'the scene')} has a look-up table without a usable grid: {error}"
            )
            raise SceneError(msg) from error
        super().__init__(crs, transform, (int(rows.shape[0]), int(rows.shape[1])))
        self._table = (da.asarray(rows.data), da.asarray(cols.data))
        # the table counts in the full scene, of which this one may be a part
        self._first = [round(float(scene[axis].values[0]) - 0.5) for axis in ("y", "x")]
        self._sizes = [int(scene.sizes[axis]) for axis in ("y", "x")]
        for axis in ("y", "x"):
            if scene.sizes[axis] > 1 and float(scene[axis].values[1] - scene[axis].values[0]) != 1:
                msg = f"{scene.attrs.get('source', 'the scene')} is thinned, so that its look-up table does not fit it"
                raise SceneError(msg)

    def source(self, rows: slice, cols: slice) -> tuple[Index, Index]:
        parts = da.compute(*(table[rows, cols] for table in self._table), scheduler="synchronous")
        row, col = (np.asarray(part, np.int64) for part in parts)
        known = (row >= 0) & (col >= 0)
        row, col = row - self._first[0], col - self._first[1]
        known &= (row >= 0) & (col >= 0) & (row < self._sizes[0]) & (col < self._sizes[1])
        return np.where(known, row, -1), np.where(known, col, -1)


class _NearestGrid(OrthoGrid):
    """A regular grid of which each pixel takes the scene's pixel that is nearest on the ground."""

    def __init__(self, scene: xr.Dataset, resolution: float | None, crs: CRS | None) -> None:
        self._places = Geolocation.of(scene)
        self._name = scene.attrs.get("source", "the scene")
        self._survey()
        own = crs or utm_zone(*self._centre)
        self._reach = float(np.hypot(*self._spacing))
        step = resolution or self._pixel_size(own)
        west, south, east, north = self._bounds(own)
        # whole multiples of the step, so that maps of one area lie on one grid
        left, top = np.floor(west / step) * step, np.ceil(north / step) * step
        shape = (max(1, int(np.ceil((top - south) / step))), max(1, int(np.ceil((east - left) / step))))
        if shape[0] * shape[1] > MAX_PIXELS:
            msg = (
                f"the map of {self._name} would have {shape[0]} x {shape[1]} pixels of {step:g}; its latitudes and "
                "longitudes are damaged, or the resolution is too fine"
            )
            raise ConfigError(msg)
        super().__init__(own, Affine(step, 0, left, 0, -step, top), shape)
        # a pixel coarser than the sensor's may lie farther from the next centre, and covers more of the scene
        coarse = max(1.0, step / self._pixel_size(own))
        self._reach *= coarse
        self.block = max(16, int(BLOCK / coarse))

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        height, width = self._places.shape_yx
        for top in range(0, height, BLOCK):
            for left in range(0, width, BLOCK):
                yield slice(top, min(top + BLOCK, height)), slice(left, min(left + BLOCK, width))

    def _survey(self) -> None:
        """Note spacing (down, across) in metres, centre, and the box of each block in earth-centred metres."""
        steps: tuple[list[float], list[float]] = ([], [])
        self._boxes: list[tuple[slice, slice, F8, F8]] = []
        total, count = np.zeros(3), 0
        for rows, cols in self._blocks():
            xyz = earth_centred(*self._places.locations(rows, cols))
            for axis, found in enumerate(steps):
                apart = np.linalg.norm(np.diff(xyz, axis=axis), axis=-1)
                apart = apart[np.isfinite(apart)]
                if apart.size:
                    found.append(float(np.median(apart)))
            known = xyz[np.isfinite(xyz).all(axis=-1)]
            if len(known):
                self._boxes.append((rows, cols, known.min(axis=0), known.max(axis=0)))
                total, count = total + known.sum(axis=0), count + len(known)
        if not count:
            msg = f"no pixel of {self._name} has a latitude and longitude, so that there is nowhere to map it to"
            raise SceneError(msg)
        down, across = (float(np.median(found)) if found else 0.0 for found in steps)
        if max(down, across) <= 0:
            msg = f"all pixels of {self._name} lie at one place; their latitudes and longitudes are wrong"
            raise SceneError(msg)
        self._spacing = (down or across, across or down)
        lon = np.degrees(np.arctan2(total[1], total[0]))
        lat = np.degrees(np.arctan2(total[2], np.hypot(total[0], total[1])))
        self._centre = (float(lat), float(lon))

    def _pixel_size(self, crs: CRS) -> float:
        """Return the geometric mean of both spacings, in the unit of the CRS."""
        metres = float(np.sqrt(self._spacing[0] * self._spacing[1]))
        if crs.is_geographic:
            return degrees_of(metres)
        return metres / float(crs.linear_units_factor[1])

    def _bounds(self, crs: CRS) -> tuple[float, float, float, float]:
        """Return west, south, east and north of the pixels' centres, half a pixel added."""
        low, high = np.full(2, np.inf), np.full(2, -np.inf)
        for rows, cols, *_ in self._boxes:
            lat, lon = self._places.locations(rows, cols)
            xy = np.stack(moved(lon, lat, WGS84, crs), axis=-1)
            xy = xy[np.isfinite(xy).all(axis=-1)]
            if len(xy):
                low, high = np.minimum(low, xy.min(axis=0)), np.maximum(high, xy.max(axis=0))
        if not np.isfinite(low).all():
            msg = f"{self._name} lies where {crs.to_string()} is not defined; choose another CRS"
            raise ConfigError(msg)
        half = self._pixel_size(crs) / 2
        return low[0] - half, low[1] - half, high[0] + half, high[1] + half

    def source(self, rows: slice, cols: slice) -> tuple[Index, Index]:
        row, col = np.mgrid[rows, cols] + 0.5
        lon, lat = moved(*on_grid(self.transform, col, row), self.crs, WGS84)
        wanted = earth_centred(lat, lon)
        shape = row.shape
        found_row, found_col = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        known = np.isfinite(wanted).all(axis=-1)
        if not known.any():
            return found_row, found_col
        points = wanted[known]
        near_xyz, near_row, near_col = self._near(points.min(axis=0), points.max(axis=0))
        if not len(near_xyz):
            return found_row, found_col
        from scipy.spatial import KDTree  # slow to import, and few scenes need it

        found = KDTree(near_xyz).query(points, distance_upper_bound=self._reach)
        distance, index = cast("tuple[F8, Index]", found)
        hit = np.isfinite(distance)
        place = np.flatnonzero(known.ravel())[hit]
        found_row.ravel()[place] = near_row[index[hit]]
        found_col.ravel()[place] = near_col[index[hit]]
        return found_row, found_col

    def _near(self, low: F8, high: F8) -> tuple[F8, Index, Index]:
        """Return place (n, 3), row and column of the scene's pixels in and around a box, in the scene's order."""
        low, high = low - self._reach, high + self._reach
        parts: list[tuple[F8, Index, Index]] = []
        for rows, cols, least, most in self._boxes:
            if (least <= high).all() and (most >= low).all():
                xyz = earth_centred(*self._places.locations(rows, cols))
                inside = ((xyz >= low) & (xyz <= high)).all(axis=-1)
                row, col = np.nonzero(inside)
                parts.append((xyz[inside], row + rows.start, col + cols.start))
        if not parts:
            nothing = np.zeros(0, np.int64)
            return np.zeros((0, 3)), nothing, nothing
        return cast("tuple[F8, Index, Index]", tuple(np.concatenate(p) for p in zip(*parts, strict=True)))


def ortho_grid(
    scene: xr.Dataset, *, resolution: float | None = None, crs: CRS | str | None = None
) -> OrthoGrid:
    """Return the map grid of a scene in sensor geometry.

    Parameters
    ----------
    scene
        With a GLT (`glt_row`, `glt_col`, attrs `ortho_crs_wkt` and `ortho_transform`), or with `lat` and `lon`.
    resolution
        Side of the map's pixels in the unit of the CRS. By default the GLT's, or the median spacing of the pixels.
    crs
        Of the map. By default the GLT's, or the UTM zone of the scene's centre.

    Returns
    -------
    OrthoGrid
        The GLT's own grid, unless another resolution or CRS is asked for and `lat` and `lon` are there.

    Raises
    ------
    SceneError
        The scene tells no place, or an unusable one.
    ConfigError
        The CRS is unknown or not defined there, the resolution is not positive, or the map would be absurdly large.
    """
    if resolution is not None and not (np.isfinite(resolution) and resolution > 0):
        msg = f"resolution = {resolution}; it must be a positive number, in the unit of the CRS"
        raise ConfigError(msg)
    if resolution is None and crs is None and "glt_row" in scene and "glt_col" in scene:
        return _TableGrid(scene)
    try:
        own = None if crs is None else CRS.from_user_input(crs)
    except CRSError as error:
        msg = f"crs = {crs!r} is no coordinate reference system; give one such as EPSG:32633"
        raise ConfigError(msg) from error
    return _NearestGrid(scene, resolution, own)


def orthorectify(
    map_yx: NDArray[Any] | Reader,
    scene: xr.Dataset,
    *,
    resolution: float | None = None,
    crs: CRS | str | None = None,
    fill: float = 0,
) -> tuple[NDArray[Any], CRS, Affine]:
    """Bring a map of a scene in sensor geometry onto a map grid, by nearest neighbour.

    Parameters
    ----------
    map_yx
        The map (..., y, x) of the scene's size, or a function that reads windows of it.
    scene
        The scene.
    resolution, crs
        As for `ortho_grid`.
    fill
        What stands where the scene has no pixel, or none within about one and a half pixels.

    Returns
    -------
    array, crs, transform
        The map (..., y, x), and its place.

    Raises
    ------
    SceneError, ConfigError
        As `ortho_grid`; or the map has not got the scene's size.
    """
    read = map_yx
    if isinstance(map_yx, np.ndarray):
        whole = map_yx
        shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
        if whole.shape[-2:] != shape:
            msg = f"the map has {whole.shape[-2:]} pixels (y, x) and the scene {shape}"
            raise SceneError(msg)
        read = lambda rows, cols: whole[..., rows, cols]  # noqa: E731 - a named function would say no more
    grid = ortho_grid(scene, resolution=resolution, crs=crs)
    out: NDArray[Any] | None = None
    for rows, cols in grid.windows():
        piece = grid.take(cast("Reader", read), rows, cols, fill)
        if out is None:
            out = np.empty((*piece.shape[:-2], *grid.shape_yx), piece.dtype)
        out[..., rows, cols] = piece
    assert out is not None, "a grid has at least one pixel"
    return out, grid.crs, grid.transform
