"""What lies beside an AVIRIS image: sun geometry (`obs`), place of each pixel (`loc`), look-up table (`glt`).

Each file is looked at in three rows before it is believed: a zenith is no more than 90 degrees, a latitude no more
than 90. What does not pass is named in a warning and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from .cube import even_chunks, lazy_cube, rows_per_chunk
from .envi import EnviFile
from .envi_map import georeference
from .options import Notes

FILL = -9999.0
"""Of obs and loc files, where an ortho-image has no pixel."""

_SUN_ZENITH, _SUN_DISTANCE = 4, 10
"""Bands of an obs file, counted from 0 (5 and 11 in the documents)."""

_SAME_DISTANCE_AU = 1e-4


def sun_geometry(scene: xr.Dataset, obs: EnviFile, row_chunks: Sequence[int], notes: Notes) -> bool:
    """Add the layer `sun_zenith` (degrees) and the attribute `earth_sun_distance_au`; return whether `obs` was used."""
    zenith = _sample(obs, _SUN_ZENITH)
    if zenith.size and not (zenith.min() >= 0 and zenith.max() <= 90):
        notes.warn(
            f"{obs.data_path} is not used: band 5 should be the sun's zenith in degrees, but holds {zenith.min():g} "
            f"to {zenith.max():g}"
        )
        return False
    scene["sun_zenith"] = (("y", "x"), _plane(obs, _SUN_ZENITH, row_chunks), {"units": "degree"})
    if obs.place.shape_yxb[2] <= _SUN_DISTANCE:
        return True
    distance = _sample(obs, _SUN_DISTANCE)
    if distance.size and np.ptp(distance) <= _SAME_DISTANCE_AU and 0.98 < distance.min() < 1.02:
        scene.attrs["earth_sun_distance_au"] = float(distance.mean())
    elif distance.size:
        notes.warn(
            f"{obs.data_path}: band 11 should be the distance to the sun, the same everywhere, but holds "
            f"{distance.min():g} to {distance.max():g} au; the scene has none"
        )
    return True


def geolocation(scene: xr.Dataset, loc: EnviFile, row_chunks: Sequence[int], notes: Notes) -> bool:
    """Add the coordinates `lat` and `lon` and the layer `elevation` (m); return whether `loc` was used."""
    lon, lat = _sample(loc, 0), _sample(loc, 1)
    if lon.size and (np.abs(lon).max() > 360 or np.abs(lat).max() > 90):
        notes.warn(
            f"{loc.data_path} is not used: it holds no degrees (bands 1 and 2 reach {np.abs(lon).max():g} and "
            f"{np.abs(lat).max():g}) but metres of a map; the loc file has longitude and latitude"
        )
        return False
    for name, band, standard, unit in (
        ("lon", 0, "longitude", "degrees_east"),
        ("lat", 1, "latitude", "degrees_north"),
    ):
        scene.coords[name] = (
            ("y", "x"),
            _plane(loc, band, row_chunks),
            {"standard_name": standard, "units": unit},
        )
    scene["elevation"] = (("y", "x"), _plane(loc, 2, row_chunks), {"units": "m"})
    return True


def add_glt(scene: xr.Dataset, glt: EnviFile, notes: Notes) -> bool:
    """Add `glt_row` and `glt_col` (int32, from 0, -1 is fill) with the grid of the map; return whether `glt` was used."""
    cube = glt.cube
    crs, transform = georeference(glt.header, notes)
    if cube.dtype.kind not in "iu" or crs is None or transform is None:
        notes.warn(f"{glt.data_path} is not used: a look-up table needs whole numbers and a known map")
        return False
    rows, cols, bands = cube.shape
    chunks = even_chunks(rows, rows_per_chunk(cols * bands * cube.dtype.itemsize, rows))
    table = lazy_cube(cube, chunks)
    for name, band, size in (("glt_col", 0, scene.sizes["x"]), ("glt_row", 1, scene.sizes["y"])):
        index = table[:, :, band].map_blocks(_from_zero, size, dtype=np.int32)
        scene[name] = (("ortho_y", "ortho_x"), index)
    scene.attrs["ortho_crs_wkt"] = str(crs.to_wkt())
    scene.attrs["ortho_transform"] = [float(v) for v in list(transform)[:6]]
    return True


def _from_zero(block: NDArray[Any], size: int) -> NDArray[np.int32]:
    """Return indices from 0 of a look-up table; -1 for fill and for what lies outside the image."""
    index = np.abs(block.astype(np.int64)) - 1
    return np.where(index < size, index, -1).astype(np.int32)


def _plane(file: EnviFile, band: int, row_chunks: Sequence[int]) -> da.Array:
    """Return one band (y, x), lazy, with NaN in place of the fill."""
    plane = lazy_cube(file.cube, row_chunks)[:, :, band]
    return plane.map_blocks(_without_fill, dtype=np.result_type(file.cube.dtype, np.float32))


def _without_fill(block: NDArray[Any]) -> NDArray[Any]:
    """Return floats with NaN in place of the fill."""
    values = block.astype(np.result_type(block.dtype, np.float32))
    values[values == FILL] = np.nan
    return values


def _sample(file: EnviFile, band: int) -> NDArray[np.float64]:
    """Return the numbers of a band in the first, the middle and the last row, without fill."""
    cube = file.cube
    rows = sorted({0, cube.shape[0] // 2, cube.shape[0] - 1})
    values = np.concatenate([cube[row : row + 1, :, band].reshape(-1) for row in rows]).astype(np.float64)
    return values[np.isfinite(values) & (values != FILL)]
