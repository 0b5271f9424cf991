"""Polygons of vector files as labels, burned on a scene's own pixels window by window.

A pixel gets the class of the polygon in which its centre lies; where polygons overlap, of the one that stands last in
the file (as GDAL burns them). Polygons across the 180th meridian must be cut there, as GeoJSON (RFC 7946) demands.
Where no column of groups is named, every polygon is a group of its own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from ..burning import Outlines, Places, outline, to_wkb
from ..errors import BandstreamWarning, ConfigError, LabelError
from ..ground import WGS84, Geolocation, in_sensor_geometry
from ..scene import scene_crs, scene_transform
from ..sidecars import vector_files
from ..vectors import POINTS, POLYGONS, Features, layers_of, read_features, vector_format
from .columns import FeatureLabels, class_codes, group_codes

if TYPE_CHECKING:
    import xarray as xr

    from .config import LabelsConfig
    from .protocol import Labels


@dataclass(frozen=True, eq=False)
class VectorLabels(FeatureLabels):
    """Polygons on the pixels of one scene; picklable."""

    shapes: Outlines | tuple[Places, Geolocation]  #: on the scene's grid, or by latitude and longitude
    codes: NDArray[np.uint16]  #: (polygon + 1,) classes, of no polygon first
    groups: NDArray[np.int32]  #: (polygon + 1,)

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """See `Labels`."""
        return self.codes[self._polygons(rows, cols)]

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """See `Labels`."""
        return self.groups[self._polygons(rows, cols)]

    def _polygons(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """Return in which polygon each pixel lies, 0 in none."""
        if isinstance(self.shapes, Outlines):
            return self.shapes.burn(rows, cols)
        places, ground = self.shapes
        return places.find(*ground.locations(rows, cols))


def is_vector(path: Path) -> bool:
    """Return whether a file begins as a vector file."""
    return vector_format(path) is not None


def open_vector(path: Path, scene: xr.Dataset, config: LabelsConfig) -> Labels:
    """Open the polygons, or points, of a vector file for a scene.

    Parameters
    ----------
    path
        GeoPackage, GeoJSON or Shapefile.
    scene
        With a CRS and a transform, or with latitude and longitude per pixel.
    config
        Layer and columns.

    Raises
    ------
    LabelError
        The file cannot be used, or the scene has no place.
    """
    for name in ("variable", "crs"):
        if getattr(config, name) is not None:
            raise LabelError(f"labels.{name} is not for vector files such as {path}: leave it out.")
    where = scene_outline(scene, str(path))
    columns = [config.column]
    if config.group not in (None, config.column):
        columns.append(str(config.group))
    try:
        layer = config.layer or _only_layer(path)
        found = read_features(
            path, where[0], where[1], columns=columns, layer=layer, kinds=POLYGONS | POINTS,
            taken="labels take polygons or points",
        )  # fmt: skip
    except ConfigError as error:
        raise LabelError(f"The labels cannot be used: {error}") from error
    if where[1] is not None:
        found = found.of(np.asarray(shapely.intersects(found.shapes, where[1]), bool))
    else:
        found = found.of(_near(found, Geolocation.of(scene)))
    if found.repaired:
        _warn(
            f"{found.repaired} polygons of the labels {path} cross themselves and were repaired; check them."
        )
    if found.empty:
        _warn(
            f"{found.empty} features of the labels {path} have no geometry that can be read and are left out."
        )
    if not len(found.shapes):
        _warn(f"No shape of the labels {path} lies on the scene {scene.attrs.get('source')}.")
    if len(found.shapes) and shapely.get_dimensions(found.shapes)[0] == 0:
        from .points import points_of_features

        return points_of_features(found, scene, config)
    return _polygon_labels(path, found, scene, config)


def _polygon_labels(path: Path, found: Features, scene: xr.Dataset, config: LabelsConfig) -> VectorLabels:
    column = f"The column {config.column} of the labels {path}"
    codes, names = class_codes(
        found.columns[config.column], config.unlabelled, column, found.all_columns[config.column]
    )
    if (missing := int((codes == 0).sum())) and len(codes):
        _warn(f"{missing} of {len(codes)} polygons of the labels {path} have no class and are left out.")
    if config.group is not None:
        groups, ids = group_codes(
            found.columns[config.group], f"The column {config.group} of the labels {path}"
        )
    else:
        own = np.array([f"{path.name}:{fid}" for fid in found.fids.tolist()], object)
        groups, ids = group_codes(own, str(path))
    # a polygon without a class hides nothing
    kept = codes > 0
    shapes, codes, groups = found.shapes[kept], codes[kept], groups[kept]
    transform = scene_transform(scene)
    burned: Outlines | tuple[Places, Geolocation]
    if in_sensor_geometry(scene) or transform is None:
        burned = Places(to_wkb(shapes)), Geolocation.of(scene)
        grid = None
    else:
        burned = Outlines.of(shapes, transform)
        grid = (transform, (int(scene.sizes["y"]), int(scene.sizes["x"])))
    _tell_overlaps(path, shapes, codes, grid)
    return VectorLabels(
        tuple(str(file) for file in vector_files(path)),
        names,
        ids,
        burned,
        np.concatenate([np.zeros(1, np.uint16), codes]),
        np.concatenate([np.zeros(1, np.int32), groups]),
    )


def scene_outline(scene: xr.Dataset, what: str) -> tuple[Any, shapely.Polygon | None]:
    """Return the CRS in which shapes are wanted for a scene, and its outline there; None in sensor geometry.

    Raises
    ------
    LabelError
        The scene's place on earth is not known.
    """
    crs, transform = scene_crs(scene), scene_transform(scene)
    if crs is not None and transform is not None:
        return crs, outline(transform, (int(scene.sizes["y"]), int(scene.sizes["x"])))
    if "lat" in scene.coords and "lon" in scene.coords:
        return WGS84, None
    raise LabelError(
        f"{what} tells where its shapes lie on earth, and {scene.attrs.get('source', 'the scene')} has neither a CRS "
        "with a transform nor latitude and longitude per pixel. Give labels as a raster of the scene's size, or a CSV "
        "with the columns row and col."
    )


def _only_layer(path: Path) -> str | None:
    """Return None, for the only layer; several have to be chosen from."""
    if vector_format(path) != "GeoPackage":
        return None
    layers = layers_of(path)
    if len(layers) > 1:
        raise LabelError(
            f"The labels {path} have {len(layers)} layers ({', '.join(layers[:10])}); choose one by labels.layer."
        )
    return layers[0] if layers else None


def _near(found: Features, ground: Geolocation) -> NDArray[np.bool_]:
    """Return which shapes (in degrees) can touch a scene in sensor geometry, by the box around its pixels."""
    rows, cols = ground.shape_yx
    step = max(1, 2**21 // cols)
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for top in range(0, rows, step):
        lat, lon = ground.locations(slice(top, min(rows, top + step)), slice(0, cols))
        for axis, values in enumerate((lon, lat)):
            if np.isfinite(values).any():
                low[axis] = min(low[axis], np.nanmin(values))
                high[axis] = max(high[axis], np.nanmax(values))
    if not np.isfinite([*low, *high]).all():
        return np.zeros(len(found.shapes), bool)
    west, south, east, north = shapely.bounds(found.shapes).reshape(-1, 4).T
    across = np.zeros(len(found.shapes), bool)
    for turn in (-360.0, 0.0, 360.0):
        across |= (west <= high[0] + turn) & (east >= low[0] + turn)
    return across & (south <= high[1]) & (north >= low[1])


def _tell_overlaps(
    path: Path,
    shapes: NDArray[Any],
    codes: NDArray[np.uint16],
    grid: tuple[Affine, tuple[int, int]] | None,
) -> None:
    """Warn of polygons of different classes that overlap, with the pixels where they do."""
    if len(shapes) < 2:
        return
    first, second = shapely.STRtree(shapes).query(shapes, predicate="intersects")
    differ = (first < second) & (codes[first] != codes[second])
    common = shapely.intersection(shapes[first[differ]], shapes[second[differ]])
    common = common[shapely.area(common) > 0]
    if not len(common):
        return
    count = f"{len(common)} pairs of polygons"
    if grid is not None:
        union = shapely.union_all(common)
        areas = [part for part in shapely.get_parts(union) if part.geom_type == "Polygon"]
        burned = Outlines.of(np.array(areas, object), grid[0])
        pixels = sum(burned.count(number, grid[1]) for number in range(len(burned)))
        if not pixels:
            return
        count = f"{count} ({pixels:,} pixels)"
    _warn(
        f"{count} of different classes overlap in the labels {path}; there the polygon that stands last in the file counts."
    )


def _warn(message: str) -> None:
    warnings.warn(message, BandstreamWarning, stacklevel=4)
