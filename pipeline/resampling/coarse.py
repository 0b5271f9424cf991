"""`resample`: a scene on larger pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from ..calibration.maps import chunk_bytes, name_of
from ..config import parse
from ..errors import ConfigError
from ..place import shifted
from ..readers.cube import even_chunks, lazy_array
from ..scene import make_scene, nodata_values, scale_offset, scene_crs, scene_transform
from .config import LARGEST_FACTOR, ResampleConfig
from .cube import BANDS_AT_ONCE, AxisPair, CoarseCube, CoarsePlane
from .kernels import cell_taps, kernel_taps, new_size

if TYPE_CHECKING:
    import xarray as xr

_SAME = 1e-6
"""Relative difference of pixel sizes that is none."""

_PASSED = ("quantity", "units", "nodata", "scale", "offset", "valid_rule", "block_bytes")
"""Attributes that `make_scene` takes otherwise, or that are no longer true."""


def resample(
    scene: xr.Dataset,
    method: str = "average",
    *,
    factor: float | None = None,
    pixel: float | None = None,
    min_valid: float = 0.5,
) -> xr.Dataset:
    """Return the scene on larger pixels, lazily.

    The new grid begins at the same corner and has the same orientation, rotated ones too; a rest of rows or columns
    that fills no new pixel is left out. Chunks, and windows cut from them, do not change a bit of the result.

    Parameters
    ----------
    scene
        Any scene.
    method
        `average`: the mean over the area of the new pixel. `bilinear`, `cubic`: kernels as wide as the new pixels, as
        `gdalwarp` has them.
    factor
        Side of the new pixels in old ones, above 1.
    pixel
        Or their side in the unit of the scene's CRS. A scene that has such pixels is returned as it is.
    min_valid
        Least share of a new pixel's weights that must lie on valid old pixels, band by band; below it is no data.

    Returns
    -------
    xarray.Dataset
        - `data` float32 (float64 from float64), stored numbers still to be scaled, NaN for no data: numbers without
          data are left out of every mean. A cubic kernel, whose negative weights would make noise of a gap, gives way to
          the bilinear one where it meets a pixel without data.
        - `valid`: where at least one band has data.
        - `quality_*`: the largest number of the old pixels, so that a flag stands where any of them has it; layers with
          `flag_values`, which are classes, by majority; floats, and integers with a `scale_factor`, by their mean.
        - `lat`, `lon` and other layers: means. The look-up table of a product (GLT) points to the new pixels.
        - `attrs["resampled"]`: True unless whole pixels were averaged, which leaves the noise of neighbours independent.
        - `attrs["resampled_from_yx"]`, `attrs["resampled_by_yx"]`: rows and columns before, and how many of them make a
          new one, for labels on the old grid.

    Raises
    ------
    ConfigError
        The pixels would be smaller than they are, or larger than the scene; or `pixel` is given for a scene without
        a transform.
    """
    given = {"method": method, "factor": factor, "pixel": pixel, "min_valid": min_valid}
    config = parse(ResampleConfig, {k: v for k, v in given.items() if v is not None}, "resample")
    factors = _factors(scene, config)
    if factors == (1.0, 1.0):
        return scene
    sizes = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    shape = tuple(new_size(size, f) for size, f in zip(sizes, factors, strict=True))
    if 0 in shape:
        raise ConfigError(
            f"resample would make pixels of {factors[0]:g} x {factors[1]:g} old ones of {name_of(scene)}, which has only "
            f"{sizes[0]} x {sizes[1]}; choose smaller ones."
        )
    data = _cube(scene, config, factors)
    cells = (cell_taps(sizes[0], factors[0]), cell_taps(sizes[1], factors[1]))
    planes = _planes(scene, cells, factors, data.chunks[:2])
    transform = scene_transform(scene)
    scale, offset = scale_offset(scene)
    attrs = {str(k): v for k, v in scene.attrs.items() if k not in _PASSED}
    if config.method != "average" or any(f != int(f) for f in factors):
        attrs["resampled"] = True
    attrs["resampled_from_yx"], attrs["resampled_by_yx"] = list(sizes), list(factors)
    attrs["resampling"] = _described(config, factors)
    out = make_scene(
        data,
        **_bands(scene),
        crs=scene_crs(scene),
        transform=None if transform is None else shifted(transform, 0, 0, factors[1], factors[0]),
        scale=scale,
        offset=offset,
        quantity=str(scene.attrs.get("quantity", "other")),
        units=str(scene.attrs.get("units", "")),
        **planes,
        block_bytes=_block_bytes(scene, data),
        **attrs,
    )
    return _with_table(out, scene, factors)


def is_resampled(scene: xr.Dataset, config: ResampleConfig) -> bool:
    """Return whether `resample` made a scene by a factor with just these settings."""
    if config.factor is None:
        return False  # a size in the unit of the CRS is its own proof
    return scene.attrs.get("resampling") == _described(config, (config.factor, config.factor))


def _described(config: ResampleConfig, factors: tuple[float, float]) -> str:
    """Return what was done, as `attrs["resampling"]` keeps it."""
    return f"{config.method}, {factors[0]:g} x {factors[1]:g} pixels, min_valid {config.min_valid:g}"


def _factors(scene: xr.Dataset, config: ResampleConfig) -> tuple[float, float]:
    """Return the side of the new pixels in old ones along y and x.

    Raises
    ------
    ConfigError
        See `resample`.
    """
    if config.factor is not None:
        return config.factor, config.factor
    transform = scene_transform(scene)
    if transform is None:
        raise ConfigError(
            f"resample.pixel needs to know the size of the pixels of {name_of(scene)}, which has no transform; give "
            "resample.factor instead."
        )
    assert config.pixel is not None
    a, b, _, d, e, _ = (float(v) for v in tuple(transform)[:6])
    sides = float(np.hypot(b, e)), float(np.hypot(a, d))
    factors = [config.pixel / side for side in sides]
    # whole numbers where only rounding differs
    factors = [float(round(f)) if abs(f - round(f)) <= _SAME * f else f for f in factors]
    if min(factors) < 1 or max(factors) > LARGEST_FACTOR:
        raise ConfigError(
            f"resample.pixel is {config.pixel:g}, and the pixels of {name_of(scene)} measure {sides[1]:g} x "
            f"{sides[0]:g} (x, y): the stage makes larger pixels only, up to {LARGEST_FACTOR} times."
        )
    return factors[0], factors[1]


def _cube(scene: xr.Dataset, config: ResampleConfig, factors: tuple[float, float]) -> da.Array:
    """Return the lazy cube, in chunks that need about one of the scene's."""
    source = scene["data"].data.rechunk({2: -1})
    usable = scene["valid"].data if "valid_rule" in scene.attrs else None
    nodata = nodata_values(scene)

    def kernel(method: str) -> AxisPair:
        down, across = (kernel_taps(int(source.shape[n]), factors[n], method) for n in (0, 1))
        return down, across

    fallback = kernel("bilinear") if config.method == "cubic" else None
    cube = CoarseCube(source, usable, nodata, kernel(config.method), fallback, config.min_valid)
    sizes = [max(1, int(max(source.chunks[n]) / factors[n])) for n in (0, 1)]
    chunks = (even_chunks(cube.shape[0], sizes[0]), even_chunks(cube.shape[1], sizes[1]), (cube.shape[2],))
    identity = tokenize(
        source.name, None if usable is None else usable.name, nodata, config.model_dump(), factors
    )
    return lazy_array(cube, chunks, f"resampled-{identity}")


def _planes(scene: xr.Dataset, cells: AxisPair, factors: tuple[float, float], chunks: Any) -> dict[str, Any]:
    """Return quality layers, other layers, and latitude and longitude, as arguments of `make_scene`."""

    def coarse(name: str, rule: str) -> da.Array:
        source = da.asarray(scene[name].data)
        plane = CoarsePlane(source, cells, rule)
        return da.from_array(
            plane,
            chunks=chunks,
            name=f"resampled-{tokenize(source.name, rule, factors)}",
            asarray=False,
            inline_array=True,
            meta=np.empty((0, 0), plane.dtype),
        )

    quality: dict[str, Any] = {}
    layers: dict[str, Any] = {}
    for name in map(str, scene.data_vars):
        variable = scene[name]
        if variable.dims != ("y", "x") or name == "valid":
            continue
        attrs = {str(k): v for k, v in variable.attrs.items() if k != "grid_mapping"}
        layer = coarse(name, _rule(variable.dtype, attrs)), attrs
        kind, short = (
            (quality, name.removeprefix("quality_")) if name.startswith("quality_") else (layers, name)
        )
        kind[short] = layer
    found: dict[str, Any] = {"quality": quality, "layers": layers}
    if "lat" in scene.coords and "lon" in scene.coords:
        found |= {"lat_yx": coarse("lat", "latitude"), "lon_yx": coarse("lon", "longitude")}
    return found


def _rule(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> str:
    """Return how a layer is taken along; see `resample`."""
    if dtype.kind == "f" or (dtype.kind in "iu" and "scale_factor" in attrs):
        return "mean"
    return "majority" if "flag_values" in attrs else "largest"


def _bands(scene: xr.Dataset) -> dict[str, Any]:
    """Return what the scene tells of its bands, as arguments of `make_scene`."""
    names = {"wavelength": "wavelength_nm", "fwhm": "fwhm_nm", "good_band": "good_band"}
    found: dict[str, Any] = {ours: scene[name].values for name, ours in names.items() if name in scene.coords}
    for name, ours in {"band_name": "band_names", "detector": "detector"}.items():
        if name in scene.coords:
            found[ours] = [str(text) for text in scene[name].values]
    return found


def _block_bytes(scene: xr.Dataset, data: da.Array) -> int:
    """Return what a chunk takes while it is computed: the old pixels, floats and masks of some bands, the new pixels."""
    source = chunk_bytes(scene["data"].data)
    share = min(1.0, BANDS_AT_ONCE / max(1, scene.sizes["band"]))
    pixels = source / scene["data"].dtype.itemsize
    temporary = 4 * 8 * pixels * share
    return int(scene.attrs.get("block_bytes", 0)) + source + int(temporary) + chunk_bytes(data)


def _with_table(out: xr.Dataset, scene: xr.Dataset, factors: tuple[float, float]) -> xr.Dataset:
    """Return the new scene with the product's look-up table, if it has one, pointing to the new pixels."""
    if not ("glt_row" in scene and "glt_col" in scene):
        return out
    for name, axis, factor in (("glt_row", "y", factors[0]), ("glt_col", "x", factors[1])):
        # the table counts in the full scene, of which this one may be a part
        first = round(float(scene[axis].values[0]) - 0.5)
        table = da.map_blocks(
            _moved,
            da.asarray(scene[name].data),
            first,
            factor,
            int(out.sizes[axis]),
            dtype=np.int32,
            meta=np.empty((0, 0), np.int32),
        )
        out[name] = (scene[name].dims, table, scene[name].attrs)
    return out


def _moved(block: NDArray[Any], first: int, factor: float, size: int) -> NDArray[np.int32]:
    """Return the new pixel in which the centre of each old one lies, -1 for none."""
    new = np.floor((block.astype(np.float64) - first + 0.5) / factor)
    return np.where((block >= 0) & (new >= 0) & (new < size), new, -1).astype(np.int32)
