"""What the readers of HDF5 products share: finding the file in a folder, files beside it, overrides, small layers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from ..errors import FormatError
from .hdf import H5File, H5Plane, lazy_h5
from .hdf_file import SIGNATURE, recognised
from .options import Notes, Options

SUFFIXES = (".nc", ".nc4", ".h5", ".he5", ".hdf5")
"""Endings of the files of a folder that are looked into."""

_MOST_FILES = 200

Test = Callable[[H5File], str | None]


def recognise(path: str, head: bytes, test: Test, what: str) -> str | None:
    """Return why a file, or a folder with such a file, is the product that `test` knows; else None."""
    if head:
        return recognised(path, head, test)
    found = _in_folder(path, test)
    return f"the folder holds {what}: {', '.join(map(os.path.basename, found[:3]))}" if found else None


def main_file(path: str, test: Test, what: str) -> str:
    """Return the product's file: the path itself, or the only such file of a folder.

    Raises
    ------
    FormatError
        If the folder holds none or several.
    """
    if not os.path.isdir(path):
        return path
    found = _in_folder(path, test)
    if len(found) != 1:
        named = ", ".join(map(os.path.basename, found[:5])) or "none"
        msg = f"{path} holds {len(found)} files of {what} ({named}); a scene is one: give its path"
        raise FormatError(msg)
    return found[0]


def beside(path: str, pattern: str) -> str | None:
    """Return the first file in the same folder whose whole name matches a regular expression, in order of names."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return None
    found = next((name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)), None)
    return None if found is None else os.path.join(os.path.dirname(path), found)


def overrides(
    options: Options,
    reader: str,
    own: Sequence[str],
    *,
    quantity: str,
    units: str,
    nodata: Any = None,
    scale: Any = None,
    offset: Any = None,
) -> dict[str, Any]:
    """Return the numbers of a product as arguments of `make_scene`, the user's in place of the file's.

    Raises
    ------
    FormatError
        If the user asks for a variable, axes or a shape, which this product does not leave open.
    """
    if options.variable is not None and options.variable.strip("/") not in own:
        msg = (
            f"variable = {options.variable!r}, but the reader {reader} reads {', '.join(own)}; leave `variable` out, or "
            "choose another reader by its name (reader=...) for the file's other variables"
        )
        raise FormatError(msg)
    if options.axes is not None or options.shape_yx is not None:
        msg = f"axes and shape_yx do not apply to the reader {reader}: the product fixes them; leave them out"
        raise FormatError(msg)
    return {
        "quantity": options.quantity or quantity,
        "units": options.units if options.units is not None else units,
        "nodata": nodata if options.nodata is None else options.nodata,
        "scale": scale if options.scale is None else options.scale,
        "offset": offset if options.offset is None else options.offset,
    }


def no_detector(options: Options, reader: str) -> None:
    """Raise where the user chooses a detector of a product that does not keep them apart.

    Raises
    ------
    FormatError
        If `detector` was given.
    """
    if options.detector is not None:
        msg = f"detector = {options.detector!r} does not apply to the reader {reader}: its bands are one cube; leave it out"
        raise FormatError(msg)


def without_fill(plane: da.Array, fill: float | None) -> da.Array:
    """Return a lazy float layer with NaN for the fill value."""
    floats = plane if plane.dtype.kind == "f" else plane.astype(np.float32)
    if fill is None or np.isnan(fill):
        return floats
    return da.map_blocks(partial(_unfilled, fill=fill), floats, dtype=floats.dtype)


def _unfilled(block: NDArray[Any], fill: float) -> NDArray[Any]:
    return np.where(block == np.asarray(fill, block.dtype), np.asarray(np.nan, block.dtype), block)


def fill_of(h5: H5File, name: str, default: float | None = None) -> float | None:
    """Return the fill value that a dataset declares (`_FillValue`, `missing_value`), or the default."""
    for key in ("_FillValue", "missing_value"):
        values = h5.numbers(key, name)
        if values is not None and values.size:
            return float(values[0])
    return default


def radiance_factor(h5: H5File, name: str, options: Options) -> float:
    """Return 10, which makes W m-2 sr-1 um-1 of uW cm-2 sr-1 nm-1, if that is the unit that the dataset declares.

    Raises
    ------
    FormatError
        If it declares another one, and the user gives no `scale`.
    """
    unit = h5.text("units", name)
    if unit is None or options.scale is not None or re.search(r"(?i)[u\u00b5\u03bc]w|microw", unit):
        return 10.0
    msg = (
        f"{h5.path}: the unit of {name} is {unit[:60]!r}; allowed: uW cm-2 sr-1 nm-1 in any spelling. Give scale= such that "
        "number x scale is in W m-2 sr-1 um-1"
    )
    raise FormatError(msg)


def with_lookup_table(
    scene: xr.Dataset, line: H5Plane, sample: H5Plane, crs: CRS, transform: Affine
) -> xr.Dataset:
    """Add a look-up table of the orthorectified grid: for each of its pixels the one of the cube that belongs there.

    Parameters
    ----------
    scene
        In sensor geometry.
    line, sample
        Row and column counted from 1; 0 or a fill value means none, a negative number one borrowed from a neighbour.
    crs, transform
        Of the orthorectified grid.
    """
    table = [lazy_h5(plane) for plane in (line, sample)]
    sizes = (scene.sizes["y"], scene.sizes["x"])
    for which, name in enumerate(("glt_row", "glt_col")):
        index = da.map_blocks(partial(_from_one, which=which, sizes=sizes), *table, dtype=np.int32)
        scene[name] = (
            ("ortho_y", "ortho_x"),
            index,
            {"long_name": f"{name[4:]} of the pixel seen, -1: none"},
        )
    scene.attrs["ortho_crs_wkt"] = str(crs.to_wkt())
    scene.attrs["ortho_transform"] = [float(v) for v in list(transform)[:6]]
    return scene


def _from_one(
    line: NDArray[Any], sample: NDArray[Any], which: int, sizes: tuple[int, int]
) -> NDArray[np.int32]:
    """Return row (0) or column (1) counted from 0, -1 where there is no such pixel: 0, -9999, or beyond the cube."""
    both = [
        np.where(np.isfinite(part) & (part != -9999), part, 0).astype(np.int64) for part in (line, sample)
    ]
    row, col = (np.abs(part) - 1 for part in both)
    known = (row >= 0) & (col >= 0) & (row < sizes[0]) & (col < sizes[1])
    return np.where(known, (row, col)[which], -1).astype(np.int32)


def gdal_transform(numbers: NDArray[np.float64] | None) -> Affine | None:
    """Return the transform of six numbers in GDAL's order; None where they make no grid."""
    if (
        numbers is None
        or len(numbers) != 6
        or not np.isfinite(numbers).all()
        or np.abs(numbers).max() > 1e100
    ):
        return None
    transform = Affine.from_gdal(*(float(v) + 0.0 for v in numbers))
    return None if transform.determinant == 0 else transform


def crs_of(text: str | None, where: str, notes: Notes) -> CRS | None:
    """Return the coordinate system of a WKT or another text that PROJ understands; None, with a warning, for none."""
    if not text:
        return None
    try:
        crs = CRS.from_user_input(text)
    except (CRSError, ValueError):
        notes.warn(f"{where}: the coordinate system {text[:60]!r} cannot be read; the scene has none")
        return None
    epsg = crs.to_epsg()
    return crs if epsg is None else CRS.from_epsg(epsg)


def _in_folder(folder: str, test: Test) -> list[str]:
    """Return the files of a folder that `test` knows."""
    found: list[str] = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES))
    except OSError:
        return found
    for name in names[:_MOST_FILES]:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                head = file.read(len(SIGNATURE))
        except OSError:
            continue
        if head and recognised(path, head, test):
            found.append(path)
    return found
