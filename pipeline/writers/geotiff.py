"""GeoTIFF, plain or cloud-optimised, with wavelengths where GDAL keeps them.

Wavelengths and widths stand in the `IMAGERY` domain of the bands (micrometres) and, with the bad bands, in tags of the
bands as GDAL's ENVI driver names them (nanometres); scale, offset, nodata, names and units where GDAL has them; the rest
in tags of the file that begin with `bandstream_` (a cloud-optimised GeoTIFF keeps no domain of its own). Blocks hold
one band each, as high as a run of rows that fits into memory.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window

from ..errors import SceneError
from ..readers.carried import key_of
from ..scene import scale_offset, scene_crs, scene_transform
from . import refuse_dtype
from .cubes import BLOCK_BYTES, appearing, blocks, carried, known, number, one_nodata, varies

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import xarray as xr

DTYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float32", "float64"),
)
CACHE_BYTES = 64 * 2**20
"""GDAL's block cache while we write (its default is 5 % of the machine's memory)."""

LARGEST_NODATA = 2**53
"""Whole numbers up to this are doubles."""

_SIDE = 256
_LARGEST_COG_BLOCK = 32 * 2**20


def write(scene: xr.Dataset, path: Path, interleave: str = "") -> list[Path]:
    """Write a scene as a tiled GeoTIFF.

    Raises
    ------
    SceneError
        If GeoTIFF has no such number type, or the bands differ in nodata.
    """
    del interleave  # ENVI's
    with appearing([path]) as (hidden,):
        _write(scene, hidden)
    return [path]


def write_cog(scene: xr.Dataset, path: Path, interleave: str = "") -> list[Path]:
    """Write a scene as a cloud-optimised GeoTIFF, in a second pass over a plain one.

    Raises
    ------
    SceneError
        As `write` does.
    """
    del interleave
    bands, item = scene["data"].shape[2], scene["data"].dtype.itemsize
    side = next((n for n in (512, 256) if n * n * bands * item <= _LARGEST_COG_BLOCK), 128)
    with appearing([path]) as (hidden,):
        plain = hidden.with_name(hidden.name + ".plain.tif")
        try:
            _write(scene, plain)
            with quiet():
                rasterio.shutil.copy(
                    plain,
                    hidden,
                    driver="COG",
                    compress="deflate",
                    predictor="yes",
                    blocksize=side,
                    bigtiff="if_safer",
                    overview_resampling="nearest",  # spectra stay measured ones, and nodata stays nodata
                )
        finally:
            plain.unlink(missing_ok=True)
    return [path]


def profile(shape_yx: tuple[int, int], count: int, dtype: Any, crs: Any, transform: Any) -> dict[str, Any]:
    """Return what all our GeoTIFFs have in common, as arguments of `rasterio.open`."""
    kind = np.dtype(dtype)
    return {
        "driver": "GTiff",
        "height": shape_yx[0],
        "width": shape_yx[1],
        "count": count,
        "dtype": str(kind),
        "interleave": "band",
        "compress": "deflate",
        # the TIFF readers of other programs know the predictor for integers up to 32 bits only
        "predictor": 3 if kind.kind == "f" else 2 if kind.itemsize <= 4 else 1,
        "bigtiff": "if_safer",
        # else GDAL takes the last of four bands for transparency
        "photometric": "minisblack",
        "alpha": "unspecified",
        **({} if crs is None else {"crs": crs}),
        **({} if transform is None else {"transform": transform}),
    }


def _write(scene: xr.Dataset, path: Path) -> None:
    """Stream the cube into a GeoTIFF."""
    height, width, bands = (int(n) for n in scene["data"].shape)
    refuse_dtype("GeoTIFF", scene["data"].dtype, DTYPES)
    nodata = one_nodata(scene, "GeoTIFF")
    if nodata is not None and scene["data"].dtype.kind in "iu" and abs(nodata) > LARGEST_NODATA:
        msg = (
            f"GeoTIFF keeps nodata as text of a double, so that {nodata:.0f} would not come back; write the scene as ENVI, "
            "netCDF or Zarr, or with physical=True"
        )
        raise SceneError(msg)
    rows = block_rows(height, width * bands * scene["data"].dtype.itemsize)
    tiled: dict[str, Any] = (
        {"tiled": True, "blockxsize": _SIDE, "blockysize": rows} if rows >= 16 else {"blockysize": rows}
    )
    given = profile((height, width), bands, scene["data"].dtype, scene_crs(scene), scene_transform(scene))
    with quiet(), rasterio.open(path, "w", **given, **tiled, nodata=nodata) as raster:
        _describe(raster, scene)
        for run, block in blocks(scene, rows):
            raster.write(block, window=Window(0, run.start, width, len(block[0])))  # pyright: ignore[reportCallIssue] # attrs class without stubs


def block_rows(height: int, row_bytes: int) -> int:
    """Return the height of the file's blocks: a power of two, at most 256, of which one run of rows fits in memory."""
    rows = 1
    while rows < _SIDE and rows * 2 * row_bytes <= BLOCK_BYTES and rows < height:
        rows *= 2
    return min(_SIDE, rows)


def _describe(raster: Any, scene: xr.Dataset) -> None:
    """Put what is known of the bands and of the scene into the file, before the numbers."""
    scale_b, offset_b = scale_offset(scene)
    if varies(scale_b, 1.0) or varies(offset_b, 0.0):
        raster.scales, raster.offsets = scale_b.tolist(), offset_b.tolist()
    if "band_name" in scene.coords:
        raster.descriptions = [str(name) for name in scene["band_name"].values]
    units = str(scene.attrs.get("units", ""))
    if units:
        raster.units = [units] * raster.count
    centres = known(scene["wavelength"].values) if "wavelength" in scene.coords else None
    widths = known(scene["fwhm"].values) if "fwhm" in scene.coords else None
    good = scene["good_band"].values
    for band in range(raster.count):
        imagery: dict[str, str] = {}
        plain: dict[str, str] = {}
        if centres is not None:
            imagery["CENTRAL_WAVELENGTH_UM"] = micrometres(centres[band])
            plain |= {"wavelength": number(centres[band]), "wavelength_units": "Nanometers"}
        if widths is not None:
            imagery["FWHM_UM"] = micrometres(widths[band])
            plain["fwhm"] = number(widths[band])
        if not good.all():
            plain["bbl"] = str(int(good[band]))
        if imagery:
            raster.update_tags(band + 1, ns="IMAGERY", **imagery)
        if plain:
            raster.update_tags(band + 1, **plain)
    more = carried(scene)
    tags = {key_of(name, "_"): value for name, value in more.items()}
    if "acquired" in more:
        tags["start_time"] = more["acquired"]
    raster.update_tags(**tags)


def micrometres(nm: float) -> str:
    """Return nanometres as micrometres, without the digits that dividing adds."""
    return number(round(float(nm) / 1000.0, 15))


@contextmanager
def quiet() -> Generator[None]:
    """Bound GDAL's cache, and keep rasterio from warning of a scene without a place on earth."""
    with warnings.catch_warnings(), rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
