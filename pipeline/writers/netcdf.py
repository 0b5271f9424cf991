"""netCDF-4 of the Scene contract: every variable, coordinate and attribute of a scene, with CF names.

The raw numbers are written, with `_FillValue`, `scale_factor` and `add_offset` beside them where they are the same for
all bands, so that xarray shows physical values and `mask_and_scale=False` the raw ones. What CF has no words for stands
in the attribute `bandstream_attrs`. The cube has the axes (band, y, x), the order of CF, so that GDAL shows it too.
`readers.contract` reads it back.
"""

from __future__ import annotations

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            with h5netcdf.File(hidden, "a") as file:
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
    return [path]


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
    dtype = scene["data"].dtype
    if "nodata" in scene.attrs:
        nodata = float(scene.attrs["nodata"])
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                cube["_FillValue"] = dtype.type(nodata)
        elif nodata == round_trip(nodata, dtype):
            cube["_FillValue"] = dtype.type(int(nodata))
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


def round_trip(value: float, dtype: np.dtype[Any]) -> float:
    """Return a number as an integer type holds it; NaN where it cannot."""
    info = np.iinfo(dtype)
    inside = np.isfinite(value) and float(info.min) <= value <= float(info.max)
    return float(int(value)) if inside and int(value) <= info.max else float("nan")
