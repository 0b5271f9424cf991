"""netCDF-4 of the Scene contract: every variable, coordinate and attribute of a scene, with CF names.

The raw numbers are written, with `_FillValue`, `scale_factor` and `add_offset` beside them where they are the same for
all bands, so that xarray shows physical values and `mask_and_scale=False` the raw ones. What CF has no words for stands
in the attribute `bandstream_attrs`. The cube has the axes (band, y, x), the order of CF, so that GDAL shows it too.
`readers.contract` reads it back.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np

from ..readers.contract import CONVENTIONS, MARKER, MARKER_VERSION, MORE, encode_attrs
from ..scene import scene_crs, scene_transform
from . import refuse_dtype
from .cubes import NOT_CARRIED, appearing, blocks

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

DTYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float32", "float64"),
)
CHUNK_BYTES = 2**21
_SIDE = 256


def write(scene: xr.Dataset, path: Path, interleave: str = "") -> list[Path]:
    """Write a scene as netCDF-4.

    Raises
    ------
    SceneError
        If netCDF has no such number type.
    """
    del interleave  # ENVI's
    refuse_dtype("netCDF", scene["data"].dtype, DTYPES)
    beside, attrs = frame(scene)
    bands, chunk = int(scene.sizes["band"]), chunk_shape(scene)
    fill = attrs.pop("_FillValue", None)
    with appearing([path]) as (hidden,):
        beside.to_netcdf(hidden, engine="h5netcdf", format="NETCDF4")
        with warnings.catch_warnings(), SafeFile(hidden) as target:
            warnings.simplefilter("ignore", FutureWarning)
            with h5netcdf.File(target, "r+") as file:
                if "band" not in file.dimensions:
                    file.dimensions["band"] = bands
                cube = file.create_variable(
                    "data",
                    ("band", "y", "x"),
                    scene["data"].dtype,
                    chunks=(bands, *chunk[:2]),
                    fillvalue=fill,
                    compression="gzip",
                    compression_opts=1,
                    shuffle=True,
                )
                for name, value in attrs.items():
                    cube.attrs[name] = value
                for rows, block in blocks(scene, chunk[0]):
                    cube[:, rows, :] = block
                    target.check()
            target.check()
    return [path]


class SafeFile(io.FileIO):
    """A file for the HDF5 library, which crashes the process if a write fails: an error is kept, and raised by `check`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "r+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes; after an error, pretend to."""
        view = memoryview(data).cast("B")
        done = len(view) if self._error is not None else 0
        try:
            while done < len(view):
                done += self.put(view[done:])
        except OSError as error:
            self._error = error
        return len(view)

    def put(self, data: memoryview) -> int:
        """Write what the system takes, and return how much that is."""
        return super().write(data) or 0

    def truncate(self, size: int | None = None) -> int:
        """Set the size; after an error, pretend to."""
        try:
            return self.tell() if self._error is not None else super().truncate(size)
        except OSError as error:
            self._error = error
            return self.tell()

    def check(self) -> None:
        """Raise the first error of writing."""
        if self._error is not None:
            raise self._error


def chunk_shape(scene: xr.Dataset) -> tuple[int, int, int]:
    """Return the shape of the file's chunks: all bands, and as many rows (a power of two) as fit into `CHUNK_BYTES`."""
    height, width, bands = (int(n) for n in scene["data"].shape)
    cols, rows = min(width, _SIDE), 1
    while rows * 2 * cols * bands * scene["data"].dtype.itemsize <= CHUNK_BYTES and rows * 2 <= height:
        rows *= 2
    return rows, cols, bands


def frame(scene: xr.Dataset) -> tuple[xr.Dataset, dict[str, Any]]:
    """Return the scene without its cube, with the attributes of the file, and the attributes of the cube."""
    beside = _placed(scene.drop_vars(["data"] + ([] if "valid_rule" in scene.attrs else ["valid"])), scene)
    cube: dict[str, Any] = {}
    quantity = str(scene.attrs.get("quantity", "other"))
    cube["long_name"] = quantity.replace("_", " ")
    if scene.attrs.get("units"):
        cube["units"] = scene.attrs["units"]
    if per_band := [name for name in ("scale", "offset") if name in scene.coords]:
        # CF has no scale per band: whoever reads the cube by CF sees stored numbers, which have no unit
        cube.pop("units", None)
        cube["long_name"] += f", as stored: {' and '.join(per_band)} of each band to be applied"
    dtype = scene["data"].dtype
    if "nodata" in scene.attrs:
        nodata = float(scene.attrs["nodata"])
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                cube["_FillValue"] = dtype.type(nodata)
        elif (whole := whole_number(nodata, dtype)) is not None:
            cube["_FillValue"] = dtype.type(whole)
    for name, word in (("scale", "scale_factor"), ("offset", "add_offset")):
        if name in scene.attrs:
            cube[word] = np.float64(scene.attrs[name])
    if "spatial_ref" in scene.coords:
        cube["grid_mapping"] = "spatial_ref"
    names = [
        str(n)
        for n in scene.coords
        if n not in ("y", "x", "spatial_ref") and set(scene[n].dims) <= {"y", "x", "band"}
    ]
    if names:
        cube["coordinates"] = " ".join(names)
    kept = {k: v for k, v in scene.attrs.items() if k not in (*NOT_CARRIED, "nodata", "scale", "offset")}
    beside = beside.drop_encoding()
    for name in beside.variables:
        # xarray would write a fill value for every float, and make NaN of a coordinate that equals it
        beside[name].encoding["_FillValue"] = None
        beside[name].attrs.pop("coordinates", None)
    beside.attrs = {
        "Conventions": CONVENTIONS,
        "title": str(scene.attrs.get("scene_id", "")),
        MARKER: np.int32(MARKER_VERSION),
        MORE: encode_attrs(kept),
    }
    return beside, cube


def _placed(beside: xr.Dataset, scene: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose grid mapping and coordinates tell the place of the scene as it is, cropped or thinned."""
    crs, transform = scene_crs(scene), scene_transform(scene)
    if transform is None:
        return beside
    mapping = {
        **beside["spatial_ref"].attrs,
        "GeoTransform": " ".join(repr(float(v)) for v in transform.to_gdal()),
    }
    beside = beside.assign_coords(spatial_ref=((), np.int32(0), mapping))
    if transform.b or transform.d:
        # rows and columns count from the first pixel of this file
        return beside.assign_coords(
            {axis: (axis, np.arange(scene.sizes[axis], dtype=np.float64) + 0.5) for axis in ("y", "x")}
        )
    for axis in ("y", "x"):
        attrs = {"standard_name": f"projection_{axis}_coordinate", "units": "m"}
        if crs is not None and crs.is_geographic:
            name, unit = {"y": ("latitude", "degrees_north"), "x": ("longitude", "degrees_east")}[axis]
            attrs = {"standard_name": name, "units": unit}
        if crs is not None:
            beside[axis].attrs.update(attrs)
    return beside


def whole_number(value: float, dtype: np.dtype[Any]) -> int | None:
    """Return a number as an integer type holds it; None where it cannot."""
    info = np.iinfo(dtype)
    if not np.isfinite(value) or value != round(value) or not float(info.min) <= value <= float(info.max):
        return None
    # the float nearest to the largest 64-bit number lies outside the type
    return min(max(int(value), info.min), info.max)
