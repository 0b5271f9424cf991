"""Where pixels lie: from a grid's affine transform to coordinates and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS


def pixel_coordinates(
    rows: int, cols: int, transform: Affine | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return y and x of the pixel centres; pixel indices + 0.5 when the grid is rotated or its place unknown."""
    y, x = np.arange(rows, dtype=np.float64) + 0.5, np.arange(cols, dtype=np.float64) + 0.5
    if transform is not None and axis_aligned(transform):
        y, x = np.multiply(y, transform.e) + transform.f, np.multiply(x, transform.a) + transform.c
    return np.asarray(y, np.float64), np.asarray(x, np.float64)


def grid_mapping_attrs(crs: CRS | None, transform: Affine | None) -> dict[str, str] | None:
    """Return the attributes of the CF grid mapping variable, or None when nothing is known."""
    attrs: dict[str, str] = {}
    if crs is not None:
        wkt = str(crs.to_wkt())
        attrs = {"crs_wkt": wkt, "spatial_ref": wkt}
    if transform is not None:
        attrs["GeoTransform"] = " ".join(repr(float(v)) for v in transform.to_gdal())
    return attrs or None


def shifted(
    transform: Affine, col: float, row: float, col_step: float = 1.0, row_step: float = 1.0
) -> Affine:
    """Return the transform of the grid that starts at pixel corner (`col`, `row`), with pixels that many times larger.

    Spelled out, since the operator for products of transforms differs between versions of `affine`.
    """
    a, b, c, d, e, f = (float(v) for v in list(transform)[:6])
    return Affine(
        a * col_step, b * row_step, c + a * col + b * row, d * col_step, e * row_step, f + d * col + e * row
    )


def index_origin(centres: NDArray[Any], transform: Affine, origin: float, size: float) -> tuple[float, float]:
    """Return where the first pixel starts on the full grid, and the step, both in pixels of the full grid."""
    index = (centres - origin) / size if axis_aligned(transform) else np.asarray(centres, np.float64)
    step = float(np.round(index[1] - index[0])) if len(index) > 1 else 1.0
    return float(np.round(index[0] - 0.5)), step


def axis_aligned(transform: Affine) -> bool:
    """Return whether rows run along one axis of the map and columns along the other."""
    return transform.b == 0 and transform.d == 0
