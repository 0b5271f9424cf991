"""Which pixels lie in which polygons: on a scene's grid by its rows, in sensor geometry by latitude and longitude.

A pixel is inside where its centre is. GDAL's rasteriser is not used, since rasterio's wrapper changes Python's warning
filters, which threads share; the rule is the same: each row is cut at the crossings of its middle line with the edges
(an even-odd scan), and of two polygons with a common edge exactly one gets a centre that lies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

F8 = NDArray[np.float64]
_TILE = 64  #: side of the pieces in which places are compared with polygons


@dataclass(frozen=True, eq=False)
class Outlines:
    """Polygons in pixels of a grid (x to the right, y down, from the grid's corner); picklable."""

    edges: F8  #: (edge, 4) x, y of the upper end and x, y of the lower one; level edges are left out
    starts: NDArray[np.int64]  #: (polygon + 1,) where each polygon's edges begin
    boxes: F8  #: (polygon, 4) lowest x and y, highest x and y

    def __len__(self) -> int:
        return len(self.boxes)

    @classmethod
    def of(cls, shapes: NDArray[Any] | Sequence[Any], transform: Affine) -> Outlines:
        """Bring valid polygons (polygon,) in the coordinates of a grid to its pixels."""
        shapes = np.asarray(shapes, object)
        rings, ring_of = _rings(shapes)
        xy, of = shapely.get_coordinates(rings, return_index=True)
        inverse = ~transform
        a, b, c, d, e, f = (float(v) for v in tuple(inverse)[:6])
        pixels = np.column_stack([a * xy[:, 0] + b * xy[:, 1] + c, d * xy[:, 0] + e * xy[:, 1] + f])
        boxes = np.tile([np.inf, np.inf, -np.inf, -np.inf], (len(shapes), 1))
        owner = ring_of[of]
        np.minimum.at(boxes[:, :2], owner, pixels)
        np.maximum.at(boxes[:, 2:], owner, pixels)
        joined = of[1:] == of[:-1]
        first, second, owner = pixels[:-1][joined], pixels[1:][joined], owner[1:][joined]
        # from the upper to the lower end, so that an edge is the same numbers in both polygons that share it
        down = (first[:, 1] <= second[:, 1])[:, None]
        edges = np.hstack([np.where(down, first, second), np.where(down, second, first)])
        sloped = edges[:, 1] < edges[:, 3]
        starts = np.searchsorted(owner[sloped], np.arange(len(shapes) + 1))
        return cls(edges[sloped], starts.astype(np.int64), boxes)

    def burn(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """Return which polygon each pixel (rows, cols) of a window lies in: its number from 1, the last one's; else 0."""
        found = np.zeros((rows.stop - rows.start, cols.stop - cols.start), np.int32)
        x0, y0, x1, y1 = self.boxes.T
        near = (x1 > cols.start) & (x0 < cols.stop) & (y1 > rows.start) & (y0 < rows.stop)
        for number in np.flatnonzero(near).tolist():
            left, top, right, bottom = np.clip(
                self.boxes[number],
                (cols.start, rows.start, cols.start, rows.start),
                (cols.stop, rows.stop, cols.stop, rows.stop),
            )
            y, x = slice(int(top), int(np.ceil(bottom))), slice(int(left), int(np.ceil(right)))
            inside = self.inside(number, y, x)
            part = found[
                y.start - rows.start : y.stop - rows.start, x.start - cols.start : x.stop - cols.start
            ]
            part[inside] = number + 1
        return found

    def inside(self, number: int, rows: slice, cols: slice) -> NDArray[np.bool_]:
        """Return which pixels of a window lie in one polygon (counted from 0)."""
        x0, y0, x1, y1 = self.edges[self.starts[number] : self.starts[number + 1]].T
        # the rows whose middle line an edge crosses: from its upper end on, to before its lower one
        low = np.clip(np.ceil(y0 - 0.5), rows.start, rows.stop).astype(np.int64)
        high = np.clip(np.ceil(y1 - 0.5), rows.start, rows.stop).astype(np.int64)
        count = high - low
        edge = np.repeat(np.arange(len(count)), count)
        row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + low[edge]
        x = x0[edge] + (row + 0.5 - y0[edge]) * ((x1 - x0) / (y1 - y0))[edge]
        col = np.clip(np.floor(x + 0.5), cols.start, cols.stop).astype(np.int64) - cols.start
        turns = np.zeros((rows.stop - rows.start, cols.stop - cols.start + 1), np.uint8)
        np.bitwise_xor.at(turns, (row - rows.start, col), 1)
        return np.bitwise_xor.accumulate(turns, axis=1)[:, :-1].astype(bool)

    def count(self, number: int, shape_yx: tuple[int, int]) -> int:
        """Return how many pixels of a grid lie in one polygon (counted from 0)."""
        low = np.clip(np.floor(self.boxes[number, 1::-1]), 0, shape_yx).astype(np.int64)
        high = np.clip(np.ceil(self.boxes[number, 3:1:-1]), 0, shape_yx).astype(np.int64)
        step = max(1, 2**22 // max(1, int(high[1] - low[1])))
        return sum(
            int(
                self.inside(
                    number, slice(y, min(y + step, int(high[0]))), slice(int(low[1]), int(high[1]))
                ).sum()
            )
            for y in range(int(low[0]), int(high[0]), step)
        )


def _rings(shapes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return all rings, outer and inner, and the number of the shape of each."""
    parts, part_of = shapely.get_parts(shapes, return_index=True)
    rings, ring_of = shapely.get_rings(parts, return_index=True)
    return rings, part_of[ring_of].astype(np.int64)


class Places:
    """Polygons in degrees, in which places are looked up; longitudes may count from -180 or from 0. Picklable."""

    def __init__(self, wkb: Sequence[bytes]) -> None:
        self.wkb = tuple(wkb)
        self._tree: shapely.STRtree | None = None

    def __len__(self) -> int:
        return len(self.wkb)

    def __getstate__(self) -> tuple[bytes, ...]:
        return self.wkb

    def __setstate__(self, state: tuple[bytes, ...]) -> None:
        self.wkb, self._tree = state, None

    def find(self, lat_yx: NDArray[Any], lon_yx: NDArray[Any]) -> NDArray[np.int32]:
        """Return which polygon each place (y, x) lies in: its number from 1, the last one's; 0 outside and where NaN."""
        tree = self._tree
        if tree is None:
            tree = self._tree = shapely.STRtree(shapely.from_wkb(list(self.wkb)))
        lat, lon = np.asarray(lat_yx, np.float64), np.asarray(lon_yx, np.float64)
        found = np.zeros(lat.shape, np.int32)
        for top in range(0, lat.shape[0], _TILE):
            for left in range(0, lat.shape[1], _TILE):
                at = slice(top, top + _TILE), slice(left, left + _TILE)
                for turn in (0.0, -360.0, 360.0):
                    np.maximum(found[at], self._found(tree, lon[at] + turn, lat[at]), out=found[at])
        return found

    def _found(self, tree: shapely.STRtree, x: F8, y: F8) -> NDArray[np.int32]:
        found = np.zeros(x.shape, np.int32)
        known = np.isfinite(x) & np.isfinite(y)
        if not known.any():
            return found
        box = shapely.box(x[known].min(), y[known].min(), x[known].max(), y[known].max())
        for number in np.sort(tree.query(box)).tolist():
            # a geometry of this call's own: preparing those of the tree is not safe among threads
            shape = cast("Any", shapely.from_wkb(self.wkb[number]))
            west, south, east, north = shape.bounds
            near = known & (x >= west) & (x <= east) & (y >= south) & (y <= north)
            if near.any():
                shapely.prepare(shape)
                found[near] = np.where(shapely.contains_xy(shape, x[near], y[near]), number + 1, found[near])
        return found


def outline(transform: Affine, shape_yx: tuple[int, ...]) -> shapely.Polygon:
    """Return the outline of a grid in coordinates."""
    a, b, c, d, e, f = (float(v) for v in tuple(transform)[:6])
    height, width = shape_yx
    corners = ((0, 0), (width, 0), (width, height), (0, height))
    return shapely.Polygon([(a * col + b * row + c, d * col + e * row + f) for col, row in corners])


def to_wkb(shapes: NDArray[Any]) -> tuple[bytes, ...]:
    """Return geometries as WKB, which pickles and hashes."""
    return tuple(cast("list[bytes]", shapely.to_wkb(shapes).tolist()))
