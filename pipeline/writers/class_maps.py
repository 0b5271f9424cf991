"""Maps of class numbers with names and colours: GeoTIFF with a palette, ENVI classification, netCDF with CF flags.

The number 0 is no class. Names and colours stand where each format has them, and in a GeoTIFF also in the tags that
label files carry, so that a map can serve as labels.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np
import rasterio
from rasterio.windows import Window

from ..errors import ConfigError, SceneError
from ..readers.contract import CONVENTIONS
from .cubes import BLOCK_BYTES, appearing
from .envi import data_path, header_path, layout_lines, listed, place_lines, plain_name
from .geotiff import block_rows, profile, quiet

if TYPE_CHECKING:
    from affine import Affine
    from numpy.typing import NDArray
    from rasterio.crs import CRS

NO_CLASS = "Unclassified"
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
_SIDE = 256


@dataclass(frozen=True)
class ClassMap:
    """What is to be written: class numbers (y, x), lazy or not, and what they mean."""

    classes_yx: Any
    dtype: np.dtype[Any]
    names: list[str]
    rgb: list[tuple[int, int, int]]
    colors: list[str]
    crs: CRS | None
    transform: Affine | None

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield runs of rows, from top to bottom.

        Raises
        ------
        SceneError
            If a number has no class.
        """
        height, width = self.classes_yx.shape
        count = max(
            multiple, min(height, BLOCK_BYTES // (4 * width * self.dtype.itemsize)) // multiple * multiple
        )
        for top in range(0, height, count):
            rows = slice(top, min(height, top + count))
            block = np.asarray(self.classes_yx[rows])
            if block.size and not 0 <= int(block.min()) <= int(block.max()) <= len(self.names):
                worst = int(block.max()) if int(block.max()) > len(self.names) else int(block.min())
                msg = f"the map holds the number {worst}, but there are {len(self.names)} classes; allowed: 0 (none) to that"
                raise SceneError(msg)
            yield rows, block.astype(self.dtype)


def facts(
    classes_yx: Any,
    class_names: Sequence[str],
    colors: Sequence[str],
    crs: CRS | None,
    transform: Affine | None,
) -> ClassMap:
    """Check what a map is made of.

    Raises
    ------
    SceneError
        If the array is no plane of whole numbers.
    ConfigError
        If names and colours do not fit each other.
    """
    if getattr(classes_yx, "ndim", 0) != 2 or classes_yx.dtype.kind not in "iu" or 0 in classes_yx.shape:
        got = f"{getattr(classes_yx, 'dtype', type(classes_yx))} {getattr(classes_yx, 'shape', '')}"
        msg = f"a class map is a plane (y, x) of whole numbers, got {got}"
        raise SceneError(msg)
    if not 1 <= len(class_names) < 2**16:
        msg = f"a class map needs names of its classes, got {len(class_names)}"
        raise ConfigError(msg)
    if colors and len(colors) != len(class_names):
        msg = f"{len(colors)} colours for {len(class_names)} classes; give one each, or none"
        raise ConfigError(msg)
    wrong = next((color for color in colors if not _COLOR.fullmatch(color)), None)
    if wrong is not None:
        msg = f"colour {wrong!r}; allowed: #rrggbb"
        raise ConfigError(msg)
    rgb = [(int(c[1:3], 16), int(c[3:5], 16), int(c[5:7], 16)) for c in colors]
    dtype = np.dtype("uint8" if len(class_names) < 256 else "uint16")
    return ClassMap(classes_yx, dtype, [str(n) for n in class_names], rgb, list(colors), crs, transform)


def _geotiff(found: ClassMap, path: Path) -> list[Path]:
    """Write a GeoTIFF with a palette (of up to 255 classes), names as GDAL categories in tags."""
    height, width = found.classes_yx.shape
    rows = max(16, block_rows(height, width * found.dtype.itemsize))
    given: dict[str, Any] = profile((height, width), 1, found.dtype, found.crs, found.transform)
    given |= {"predictor": 1, "tiled": True, "blockxsize": _SIDE, "blockysize": rows, "nodata": 0}
    with appearing([path]) as (hidden,), quiet(), rasterio.open(hidden, "w", **given) as raster:
        raster.set_band_description(1, "class")
        tags = {"class_names": json.dumps(found.names)}
        if found.colors:
            tags["class_colors"] = json.dumps(found.colors)
            palette = {k: (*color, 255) for k, color in enumerate(found.rgb, start=1)}
            raster.write_colormap(1, {0: (0, 0, 0, 0), **palette})
        raster.update_tags(**tags)
        for run, block in found.blocks(rows):
            raster.write(block, 1, window=Window(0, run.start, width, len(block)))  # pyright: ignore[reportCallIssue] # attrs class without stubs
    return [path]


def _envi(found: ClassMap, path: Path) -> list[Path]:
    """Write an ENVI classification."""
    height, width = found.classes_yx.shape
    lines = layout_lines((height, width, 1), found.dtype, "bsq", "ENVI Classification")
    lines.append(f"classes = {len(found.names) + 1}")
    lines += listed("class names", [NO_CLASS, *map(plain_name, found.names)])
    if found.rgb:
        levels = [(0, 0, 0), *found.rgb]
        lines += listed("class lookup", [str(v) for color in levels for v in color])
    lines += ["band names = {class}", *place_lines(found.crs, found.transform)]
    data, header = data_path(path), header_path(path)
    with appearing([data, header]) as (data_file, header_file):
        with data_file.open("wb") as file:
            for _, block in found.blocks():
                file.write(np.ascontiguousarray(block, found.dtype.newbyteorder("<")).data)
        header_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [header, data]


def _netcdf(found: ClassMap, path: Path) -> list[Path]:
    """Write netCDF-4 with CF flags; blanks in names become underscores in `flag_meanings`, as CF wants."""
    height, width = found.classes_yx.shape
    with appearing([path]) as (hidden,), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with h5netcdf.File(hidden, "w") as file:
            file.attrs["Conventions"] = CONVENTIONS
            file.dimensions = {"y": height, "x": width}
            variable = file.create_variable(
                "class",
                ("y", "x"),
                found.dtype,
                compression="gzip",
                compression_opts=1,
                fillvalue=found.dtype.type(0),
            )
            variable.attrs["flag_values"] = np.arange(1, len(found.names) + 1, dtype=found.dtype)
            variable.attrs["flag_meanings"] = " ".join(
                "_".join(name.split()) or "unnamed" for name in found.names
            )
            variable.attrs["class_names"] = json.dumps(found.names)
            if found.colors:
                variable.attrs["flag_colors"] = " ".join(found.colors)
            _put_place(file, variable, found)
            for rows, block in found.blocks():
                variable[rows, :] = block
    return [path]


def _put_place(file: Any, variable: Any, found: ClassMap) -> None:
    """Add the grid mapping, and coordinates where the grid is not turned."""
    if found.crs is None and found.transform is None:
        return
    variable.attrs["grid_mapping"] = "spatial_ref"
    mapping = file.create_variable("spatial_ref", (), np.int32)
    if found.crs is not None:
        mapping.attrs["crs_wkt"] = mapping.attrs["spatial_ref"] = found.crs.to_wkt()
    place = found.transform
    if place is None:
        return
    mapping.attrs["GeoTransform"] = " ".join(repr(float(v)) for v in place.to_gdal())
    if place.b or place.d:
        return
    for axis, size, origin, count in (
        ("y", place.e, place.f, file.dimensions["y"].size),
        ("x", place.a, place.c, file.dimensions["x"].size),
    ):
        centres = file.create_variable(axis, (axis,), np.float64)
        centres[:] = (np.arange(count) + 0.5) * size + origin
        geographic = found.crs is not None and found.crs.is_geographic
        names = {"y": ("latitude", "degrees_north"), "x": ("longitude", "degrees_east")}
        standard, unit = names[axis] if geographic else (f"projection_{axis}_coordinate", "m")
        centres.attrs["standard_name"], centres.attrs["units"] = standard, unit


WRITERS: dict[str, Callable[[ClassMap, Path], list[Path]]] = {
    "geotiff": _geotiff,
    "envi": _envi,
    "netcdf": _netcdf,
}
"""Formats of class maps."""
