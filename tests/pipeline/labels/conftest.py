"""Scenes and vector files that the tests of labels share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pyogrio.raw
import pytest
import shapely
from affine import Affine
from rasterio.crs import CRS
from rasterio.transform import from_origin

from bandstream.pipeline.scene import make_scene

UTM = CRS.from_epsg(32633)
GRID = from_origin(366000, 5810000, 30, 30)


@pytest.fixture
def scene():
    """Return a maker of scenes of 40 x 50 pixels on a UTM grid."""

    def make(transform: Affine | None = GRID, shape: tuple[int, int] = (40, 50), **more: Any):
        crs = None if transform is None else UTM
        data = da.zeros((*shape, 3), dtype="int16", chunks=-1)
        return make_scene(data, crs=crs, transform=transform, **more)

    return make


@pytest.fixture
def write_vector():
    """Return a writer of vector files."""

    def write(path: Path, shapes: list[Any], crs: str | None = "EPSG:32633", **columns: Any) -> Path:
        kinds = {shape.geom_type for shape in shapes}
        pyogrio.raw.write(
            path,
            np.array(shapely.to_wkb(shapes), object),
            [np.asarray(values) for values in columns.values()],
            list(columns),
            geometry_type=kinds.pop() if len(kinds) == 1 else "Unknown",
            crs=crs,
            append=path.suffix == ".gpkg" and path.exists(),
            **(
                {"layer": path.stem if not path.exists() else f"{path.stem}2"}
                if path.suffix == ".gpkg"
                else {}
            ),
        )
        return path

    return write
