"""ENVI: a header and a file of little-endian numbers in the interleave that the header states.

What ENVI has no words for (quantity, units, product, angles) stands under keys that begin with `bandstream`, which
other programs keep or ignore. Names in ENVI lists cannot hold commas or braces; those are written as `;` and `( )`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import SceneError
from ..readers.carried import key_of
from ..scene import scale_offset, scene_crs, scene_transform
from . import refuse_dtype
from .cubes import appearing, blocks, carried, known, number, one_nodata, varies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import xarray as xr
    from affine import Affine
    from numpy.typing import NDArray
    from rasterio.crs import CRS

DATA_TYPES = {
    "uint8": 1,
    "int16": 2,
    "int32": 3,
    "float32": 4,
    "float64": 5,
    "uint16": 12,
    "uint32": 13,
    "int64": 14,
    "uint64": 15,
}
"""ENVI's numbers of the types."""

AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}
"""Axes of a block (band, y, x) in the order of the file."""

STANDARD = {
    "sensor": "sensor type",
    "acquired": "acquisition time",
    "sun_azimuth_deg": "sun azimuth",
    "cloud_cover_percent": "cloud cover",
}
"""Attributes for which ENVI has a key of its own."""

_LOST_DEGREES = 1e-9


def header_path(path: Path) -> Path:
    """Return the header of an ENVI file, given header or data file."""
    return path if path.suffix.lower() == ".hdr" else path.with_suffix(".hdr")


def data_path(path: Path) -> Path:
    """Return the data file of an ENVI file, given header or data file."""
    return path.with_suffix(".img") if path.suffix.lower() == ".hdr" else path


def write(scene: xr.Dataset, path: Path, interleave: str) -> list[Path]:
    """Write a scene as ENVI.

    Raises
    ------
    SceneError
        If ENVI has no such number type, more than one nodata value, or a sheared grid.
    """
    text = "\n".join(_header(scene, interleave)) + "\n"
    data, header = data_path(path), header_path(path)
    with appearing([data, header]) as (data_file, header_file):
        with data_file.open("wb") as file:
            for rows, block in blocks(scene):
                _put(file, block, rows, scene["data"].shape[0], interleave)
        header_file.write_text(text, encoding="utf-8")
    return [header, data]


def _put(file: BinaryIO, block: NDArray[Any], rows: slice, height: int, interleave: str) -> None:
    """Write one block (band, y, x) to its place or places."""
    little = block.dtype.newbyteorder("<")
    if interleave != "bsq":
        file.write(np.ascontiguousarray(block.transpose(AXES[interleave]), little).data)
        return
    row_bytes = block.shape[2] * block.dtype.itemsize
    for band, plane in enumerate(block):
        file.seek((band * height + rows.start) * row_bytes)
        file.write(np.ascontiguousarray(plane, little).data)


def layout_lines(shape_yxb: tuple[int, int, int], dtype: Any, interleave: str, file_type: str) -> list[str]:
    """Return the lines of a header that say where the numbers lie."""
    refuse_dtype("ENVI", dtype, list(DATA_TYPES))
    rows, cols, bands = shape_yxb
    return [
        "ENVI",
        f"samples = {cols}",
        f"lines = {rows}",
        f"bands = {bands}",
        "header offset = 0",
        f"file type = {file_type}",
        f"data type = {DATA_TYPES[str(dtype)]}",
        f"interleave = {interleave}",
        "byte order = 0",
    ]


def _header(scene: xr.Dataset, interleave: str) -> list[str]:
    """Return the lines of the header."""
    rows, cols, bands = scene["data"].shape
    lines = layout_lines((rows, cols, bands), scene["data"].dtype, interleave, "ENVI Standard")
    nodata = one_nodata(scene, "ENVI")
    if nodata is not None:
        lines.append(f"data ignore value = {number(nodata)}")
    lines += _scale_lines(scene)
    if "wavelength" in scene.coords:
        lines.append("wavelength units = Nanometers")
        lines += listed("wavelength", map(number, known(scene["wavelength"].values)))
    if "fwhm" in scene.coords and not np.isnan(scene["fwhm"].values).all():
        lines += listed("fwhm", map(number, known(scene["fwhm"].values)))
    if not scene["good_band"].values.all():
        lines += listed("bbl", (str(int(good)) for good in scene["good_band"].values))
    if "band_name" in scene.coords:
        lines += listed("band names", map(plain_name, scene["band_name"].values.tolist()))
    lines += place_lines(scene_crs(scene), scene_transform(scene))
    return lines + _fact_lines(scene)


def _scale_lines(scene: xr.Dataset) -> list[str]:
    """Return what takes the raw numbers to physical ones, in the one way that every reader understands alike."""
    scale_b, offset_b = scale_offset(scene)
    uniform = (scale_b == scale_b[0]).all() and not varies(offset_b, 0.0)
    if uniform and scene.attrs.get("quantity") == "surface_reflectance":
        factor = float(1.0 / scale_b[0])
        if factor > 0 and 1.0 / factor == scale_b[0]:
            return [f"reflectance scale factor = {number(factor)}"]
    lines: list[str] = []
    if varies(scale_b, 1.0) or varies(offset_b, 0.0):
        kind = "data reflectance" if scene.attrs.get("quantity") == "toa_reflectance" else "data"
        lines += listed(f"{kind} gain values", map(number, scale_b))
        lines += listed(f"{kind} offset values", map(number, offset_b))
    return lines


def _fact_lines(scene: xr.Dataset) -> list[str]:
    """Return what is known of the whole scene, under ENVI's keys where it has one, and all of it under our own."""
    facts = carried(scene)
    lines = [f"{key_of(name, ' ')} = {_text(value)}" for name, value in facts.items()]
    lines += [f"{key} = {_text(facts[name])}" for name, key in STANDARD.items() if name in facts]
    if "sun_zenith_deg" in facts:
        lines.append(f"sun elevation = {number(90.0 - float(facts['sun_zenith_deg']))}")
    if facts.get("quantity") == "radiance" and "units" in facts:
        lines.append(f"data units = {_text(facts['units'])}")
    shown = scene.attrs.get("default_bands")
    if isinstance(shown, (list, tuple)) and len(shown) in (1, 3):
        lines.append(f"default bands = {{{', '.join(str(int(band) + 1) for band in shown)}}}")
    return lines


def listed(key: str, entries: Iterable[str]) -> list[str]:
    """Return a list in braces, some entries per line, since some programs cut long lines."""
    texts = list(entries)
    runs = [", ".join(texts[i : i + 8]) for i in range(0, len(texts), 8)]
    return [f"{key} = {{", *(run + "," for run in runs[:-1]), runs[-1] + "}"]


def plain_name(name: str) -> str:
    """Return a name that an ENVI list can hold."""
    return " ".join(str(name).translate(str.maketrans(",{}", ";()")).split()) or "unnamed"


def _text(value: str) -> str:
    return value.translate(str.maketrans("{}", "()"))


def place_lines(crs: CRS | None, transform: Affine | None) -> list[str]:
    """Return `map info` and `coordinate system string`.

    Raises
    ------
    SceneError
        If the grid is sheared, which `map info` cannot say.
    """
    lines: list[str] = []
    if transform is not None:
        name, tail = _projection(crs)
        size_x, size_y, rotation = _turned(transform)
        six = (1.0, 1.0, transform.c, transform.f, size_x, size_y)
        fields = [name, *map(number, six), *tail]
        if rotation:
            fields.append(f"rotation={rotation!r}")
        lines.append(f"map info = {{{', '.join(fields)}}}")
    if crs is not None:
        lines.append(f"coordinate system string = {{{crs.to_wkt(version='WKT1_ESRI')}}}")
    return lines


def _projection(crs: CRS | None) -> tuple[str, Sequence[str]]:
    """Return the name of a projection as `map info` has it, and what follows the six numbers."""
    epsg = None if crs is None else crs.to_epsg()
    if epsg is not None and 0 < epsg % 100 <= 60 and epsg // 100 in (326, 327):
        return "UTM", (str(epsg % 100), "North" if epsg // 100 == 326 else "South", "WGS-84", "units=Meters")
    if crs is not None and crs.is_geographic:
        return "Geographic Lat/Lon", ("WGS-84" if epsg == 4326 else "Unknown", "units=Degrees")
    return "Arbitrary", ()


def _turned(transform: Affine) -> tuple[float, float, float]:
    """Return pixel width, height and rotation in degrees, in the sense in which GDAL and `envi_map` read them."""
    a, b, _, d, e, _ = (float(v) for v in list(transform)[:6])
    if b == 0 and d == 0:
        return a, -e, 0.0
    angle = math.atan2(b, a)
    sin, cos = math.sin(angle), math.cos(angle)
    size_x, size_y = math.hypot(a, b), d * sin - e * cos
    if max(abs(sin * size_y - d), abs(cos * size_y + e)) > _LOST_DEGREES * max(abs(size_x), abs(size_y)):
        msg = (
            f"the grid {list(transform)[:6]} is sheared, or turned with pixels that are not square; ENVI's map info can "
            "only turn square pixels: write GeoTIFF, netCDF or Zarr"
        )
        raise SceneError(msg)
    return size_x, size_y, math.degrees(angle)
