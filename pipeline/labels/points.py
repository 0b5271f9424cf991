"""Point samples as labels: each gives its class to the pixel in which it lies.

A CSV has the columns `row` and `col` (from 0), `lon` and `lat` (degrees), or `x` and `y` in the CRS of `labels.crs`,
and those of the class and the group; points of vector files are taken too. In sensor geometry a point belongs to the
nearest pixel. Two points of different classes in one pixel cancel each other out; both facts are told.
"""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from ..errors import BandstreamWarning, LabelError
from ..ground import WGS84, Geolocation, earth_centred, in_sensor_geometry, moved, on_grid
from ..scene import scene_crs, scene_transform
from ..sidecars import vector_files
from ..vectors import Features
from .columns import FeatureLabels, class_codes, group_codes

if TYPE_CHECKING:
    import xarray as xr

    from .config import LabelsConfig

F8 = NDArray[np.float64]
MAX_CSV_BYTES = 256 * 2**20
_TABLES = (".csv", ".tsv")
_SLAB_PIXELS = 2**18
_PLACES = (("row", "col"), ("lat", "lon"), ("y", "x"))


@dataclass(frozen=True, eq=False)
class PointLabels(FeatureLabels):
    """Labelled pixels of one scene; picklable."""

    shape_yx: tuple[int, int]
    pixels: NDArray[np.int64]  #: (pixel,) row * columns + column, rising
    codes: NDArray[np.uint16]  #: (pixel,)
    groups: NDArray[np.int32]  #: (pixel,)

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """See `Labels`."""
        return self._window(self.codes, rows, cols)

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """See `Labels`."""
        return self._window(self.groups, rows, cols)

    def _window(self, values: NDArray[Any], rows: slice, cols: slice) -> NDArray[Any]:
        found = np.zeros((rows.stop - rows.start, cols.stop - cols.start), values.dtype)
        width = self.shape_yx[1]
        first, last = np.searchsorted(self.pixels, [rows.start * width, rows.stop * width])
        row, col = np.divmod(self.pixels[first:last], width)
        inside = (col >= cols.start) & (col < cols.stop)
        found[row[inside] - rows.start, col[inside] - cols.start] = values[first:last][inside]
        return found


def is_table(path: Path) -> bool:
    """Return whether a file is named as a CSV."""
    return path.suffix.lower() in _TABLES


def open_points(path: Path, scene: xr.Dataset, config: LabelsConfig) -> PointLabels:
    """Open a CSV of points for a scene.

    Raises
    ------
    LabelError
        It cannot be read, lacks columns, or its points and the scene have no common place.
    """
    for name in ("variable", "layer"):
        if getattr(config, name) is not None:
            raise LabelError(f"labels.{name} is not for tables such as {path}: leave it out.")
    table = _read_table(path)
    for name in (config.column, config.group):
        if name is not None and name not in table:
            raise LabelError(f"The labels {path} have no column {name!r}; they have {', '.join(table)}.")
    places = [pair for pair in _PLACES if set(pair) <= set(table)]
    if len(places) != 1:
        raise LabelError(
            f"The labels {path} need exactly one of the pairs of columns row and col, lon and lat, x and y; they have "
            f"{', '.join(table)}."
        )
    down, across = (_numbers(table[name], name, path) for name in places[0])
    if (places[0][0] == "y") != (config.crs is not None):
        raise LabelError(
            f"labels.crs is the CRS of the columns x and y; {path} has {places[0][1]} and {places[0][0]}: "
            + ("give it, such as EPSG:32633." if config.crs is None else "leave it out.")
        )
    if places[0] == ("row", "col"):
        row, col = down, across
        if (row != np.floor(row)).any() or (col != np.floor(col)).any():
            raise LabelError(f"row and col of the labels {path} are whole numbers, counted from 0.")
    else:
        row, col = _pixels_of(across, down, _crs(config.crs, path), scene, path)
    columns = {name: np.array(values, object) for name, values in table.items()}
    return _placed((str(path),), row, col, columns, scene, config, columns[config.column])


def points_of_features(found: Features, scene: xr.Dataset, config: LabelsConfig) -> PointLabels:
    """Take the points of a vector file, in the CRS of the scene (in degrees, where that is in sensor geometry)."""
    path = Path(found.where)
    xy, of = shapely.get_coordinates(found.shapes, return_index=True)
    own = scene_crs(scene)
    crs = WGS84 if in_sensor_geometry(scene) or own is None else own
    row, col = _pixels_of(xy[:, 0], xy[:, 1], crs, scene, path)
    columns = {name: values[of] for name, values in found.columns.items()}
    paths = tuple(str(file) for file in vector_files(path))
    return _placed(paths, row, col, columns, scene, config, found.all_columns[config.column])


def _placed(
    paths: tuple[str, ...],
    row: F8,
    col: F8,
    columns: dict[str, NDArray[Any]],
    scene: xr.Dataset,
    config: LabelsConfig,
    column: NDArray[Any],
) -> PointLabels:
    """Give the points' classes and groups to their pixels; `column` are the classes of the whole file."""
    shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    inside = (row >= 0) & (col >= 0) & (row < shape[0]) & (col < shape[1])
    if (outside := int((~inside).sum())) and len(row):
        _warn(f"{outside:,} of {len(row):,} points of the labels {paths[0]} lie outside the scene.")
    at = row[inside].astype(np.int64) * shape[1] + col[inside].astype(np.int64)
    codes, names = class_codes(
        columns[config.column][inside],
        config.unlabelled,
        f"The column {config.column} of the labels {paths[0]}",
        column,
    )
    groups, ids = np.zeros(len(codes), np.int32), ()
    if config.group is not None:
        groups, ids = group_codes(
            columns[config.group][inside], f"The column {config.group} of the labels {paths[0]}"
        )
    known = codes > 0
    at, codes, groups = at[known], codes[known], groups[known]
    pixels, first, which = np.unique(at, return_index=True, return_inverse=True)
    torn = np.zeros(len(pixels), bool)
    torn[which[codes != codes[first][which]]] = True
    if torn.any():
        _warn(
            f"{int(torn.sum()):,} pixels hold points of different classes of the labels {paths[0]}; they get no label."
        )
    kept = ~torn
    return PointLabels(paths, names, tuple(ids), shape, pixels[kept], codes[first][kept], groups[first][kept])


def _pixels_of(x: F8, y: F8, crs: CRS, scene: xr.Dataset, path: Path) -> tuple[F8, F8]:
    """Return row and column of the pixels in which points lie; -1 where in none."""
    own, transform = scene_crs(scene), scene_transform(scene)
    if own is not None and transform is not None:
        there = moved(x, y, crs, own)
        col, row = on_grid(~transform, *there)
        known = np.isfinite(col) & np.isfinite(row)
        return np.where(known, np.floor(row), -1), np.where(known, np.floor(col), -1)
    if "lat" not in scene.coords or "lon" not in scene.coords:
        raise LabelError(
            f"The labels {path} tell where their points lie on earth, and {scene.attrs.get('source', 'the scene')} has "
            "neither a CRS with a transform nor latitude and longitude per pixel. Give the columns row and col."
        )
    lon, lat = moved(x, y, crs, WGS84)
    return _nearest(lat, lon, Geolocation.of(scene))


def _nearest(lat: F8, lon: F8, ground: Geolocation) -> tuple[F8, F8]:
    """Return row and column of the nearest pixels; -1 where none lies within half its diagonal."""
    found = np.full(len(lat), -1, np.int64)
    least = np.full(len(lat), np.inf)
    known = np.flatnonzero(np.isfinite(lat) & np.isfinite(lon) & (np.abs(lat) <= 90))
    wanted = earth_centred(lat[known], lon[known])
    rows, cols = ground.shape_yx
    step = max(2, _SLAB_PIXELS // cols)
    for top in range(0, rows, step):
        # with a row above, so that every slab knows the distance between rows
        start = max(0, top - 1)
        xyz = earth_centred(*ground.locations(slice(start, min(rows, top + step)), slice(0, cols)))
        reach = (_spacing(xyz, 0) ** 2 + _spacing(xyz, 1) ** 2) ** 0.5 / 2
        flat, far = xyz.reshape(-1, 3), reach.ravel()
        usable = np.flatnonzero(np.isfinite(flat).all(axis=1))
        if not len(usable) or not len(known):
            continue
        from scipy.spatial import KDTree  # slow to import, and few builds have points

        distance, number = KDTree(flat[usable]).query(wanted)
        pixel = usable[number]
        better = (distance < least[known]) & (distance <= 1.01 * far[pixel])
        found[known[better]] = start * cols + pixel[better]
        least[known[better]] = distance[better]
    row, col = np.divmod(found, cols)
    return np.where(found < 0, -1.0, row), np.where(found < 0, -1.0, col)


def _spacing(xyz: F8, axis: int) -> F8:
    """Return the distance of each pixel (y, x) to its next one along an axis, in metres."""
    if xyz.shape[axis] < 2:
        return np.zeros(xyz.shape[:2])
    steps = np.linalg.norm(np.diff(xyz, axis=axis), axis=-1)
    last = steps[-1:] if axis == 0 else steps[:, -1:]
    return np.concatenate([steps, last], axis=axis)


def _crs(text: str | None, path: Path) -> CRS:
    if text is None:
        return WGS84
    try:
        return CRS.from_user_input(text)
    except CRSError as error:
        raise LabelError(
            f"labels.crs = {text!r} of {path} is no CRS: {error}; give one such as EPSG:32633."
        ) from error


def _read_table(path: Path) -> dict[str, list[str]]:
    """Return the columns of a CSV with a header line."""
    if path.stat().st_size > MAX_CSV_BYTES:
        raise LabelError(
            f"The labels {path} have over {MAX_CSV_BYTES >> 20} MiB; give points as a GeoPackage."
        )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            file.seek(0)
            mark = max("\t;,", key=head.count)
            rows = [row for row in csv.reader(file, delimiter=mark) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise LabelError(f"The labels {path} are no CSV file in UTF-8: {error}.") from error
    header = [cell.strip() for cell in rows[0]] if rows else []
    if len(set(header)) != len(header) or len(rows) < 2:
        what = "name a column twice" if len(rows) > 1 else "hold no points"
        raise LabelError(
            f"The labels {path} {what}; a CSV of points has a header line and a line for each point."
        )
    wrong = next((n for n, row in enumerate(rows, 1) if len(row) != len(header)), None)
    if wrong is not None:
        raise LabelError(
            f"Line {wrong} of the labels {path} (empty ones not counted) has {len(rows[wrong - 1])} entries for "
            f"{len(header)} columns."
        )
    return {name: [row[at].strip() for row in rows[1:]] for at, name in enumerate(header)}


def _numbers(entries: list[str], name: str, path: Path) -> F8:
    numbers = np.full(len(entries), np.nan)
    for at, entry in enumerate(entries):
        try:
            numbers[at] = float(entry)
        except ValueError:
            numbers[at] = np.nan
        if not np.isfinite(numbers[at]):
            raise LabelError(
                f"The labels {path} hold {entry[:40]!r} in the column {name} (point {at + 1}); it must be a number."
            )
    return numbers


def _warn(message: str) -> None:
    warnings.warn(message, BandstreamWarning, stacklevel=4)
