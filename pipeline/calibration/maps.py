"""What all methods share: how a scene is changed, without touching pixels where that is possible, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..nodata import invalid_mask
from ..scene import nodata_values, replaced, scale_offset
from .mapped import LinearCube, lazy

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

F8 = NDArray[np.float64]

UNITS = {
    "surface_reflectance": "1",
    "toa_reflectance": "1",
    "radiance": "W m-2 sr-1 um-1",
    "surface_radiance": "W m-2 sr-1 um-1",
}
"""Unit of each quantity that a scene can be calibrated to."""


class Block(NamedTuple):
    """One chunk of a scene, read."""

    raw_yxb: NDArray[Any]  #: as stored
    invalid_yxb: NDArray[np.bool_] | None  #: no data there; None where there is no such number
    first_col: int


def name_of(scene: xr.Dataset) -> str:
    """Return what a message calls the scene."""
    return str(scene.attrs.get("source", scene.attrs.get("scene_id", "the scene")))


def bands_text(scene: xr.Dataset, chosen_b: NDArray[np.bool_]) -> str:
    """Return the chosen bands (bool, (band,)) as a message lists them: 1-based, with wavelengths where known."""
    numbers = np.flatnonzero(chosen_b)
    centres = scene["wavelength"].values if "wavelength" in scene.coords else None
    listed = [f"{n + 1}" + (f" ({centres[n]:.1f} nm)" if centres is not None else "") for n in numbers[:6]]
    return ", ".join(listed) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")


def per_band(
    scene: xr.Dataset,
    gain_b: F8,
    offset_b: F8,
    quantity: str,
    how: str,
    unusable_b: NDArray[np.bool_] | None = None,
) -> xr.Dataset:
    """Return the scene whose physical value is `gain_b * value + offset_b`.

    Only `scale` and `offset` change. Where a band is unusable, which no number tells, the cube is mapped: that band
    holds NaN and is listed as bad.

    Parameters
    ----------
    scene
        The scene.
    gain_b, offset_b
        float64 (band,).
    quantity
        What the values then are.
    how
        What was done, kept in `attrs["calibration"]`.
    unusable_b
        bool (band,).
    """
    scale, own_offset = scale_offset(scene)
    if unusable_b is not None and unusable_b.any():
        gain = np.where(unusable_b, np.nan, gain_b)
        out = per_pixel(scene, gain * scale, gain * own_offset + offset_b, None, quantity, how)
        good = np.asarray(scene["good_band"].values, bool) & ~unusable_b
        return out.assign_coords(good_band=("band", good))
    out = replaced(
        scene,
        scale=gain_b * scale,
        offset=gain_b * own_offset + offset_b,
        quantity=quantity,
        units=UNITS[quantity],
    )
    return noted(out, how)


def per_pixel(
    scene: xr.Dataset, gain: F8, offset: F8, plane_yx: da.Array | None, quantity: str, how: str
) -> xr.Dataset:
    """Return the scene as a lazily mapped float32 cube, `(raw * gain + offset) * plane_yx`, computed in float64.

    Parameters
    ----------
    scene
        The scene; its own scale and offset must be in `gain` and `offset` already.
    gain, offset
        float64 (band,) or (x, band); NaN gives NaN.
    plane_yx
        Lazy factor per pixel, or None.
    quantity, how
        As for `per_band`.

    Returns
    -------
    xarray.Dataset
        NaN where the stored number was no data (in that band; bands beside it are untouched) or a factor is NaN. The
        memory that a chunk takes while it is mapped is added to `attrs["block_bytes"]`.
    """
    raw, nodata = scene["data"].data, nodata_values(scene)
    cube = LinearCube(raw, gain, offset, nodata, plane_yx)
    data = lazy(cube, gain, offset, nodata, None if plane_yx is None else plane_yx.name)
    return noted(with_data(scene, data, quantity, UNITS[quantity]), how)


def with_data(scene: xr.Dataset, data_yxb: da.Array, quantity: str, units: str) -> xr.Dataset:
    """Return the scene with another cube of the same bands, calibrated float32 in which NaN is no data."""
    out = scene.assign(data=(("y", "x", "band"), data_yxb, scene["data"].attrs))
    out.attrs["block_bytes"] = (
        int(scene.attrs.get("block_bytes", 0)) + chunk_bytes(scene["data"].data) + chunk_bytes(data_yxb)
    )
    nothing = np.full(scene.sizes["band"], np.nan)
    return replaced(out, nodata=nothing, scale=1.0, offset=0.0, quantity=quantity, units=units)


def chunk_bytes(array: da.Array) -> int:
    """Return the bytes of the largest chunk."""
    return int(np.prod([max(sizes) for sizes in array.chunks], dtype=np.int64)) * array.dtype.itemsize


def blocks(scene: xr.Dataset, rows: slice | None = None, cols: slice | None = None) -> Iterator[Block]:
    """Read a window of a scene chunk by chunk, in order.

    Pixels that a product or a mask rules out are no data in every band.
    """
    from ..reading import read_usable

    nodata = nodata_values(scene)
    data = scene["data"].data.rechunk({2: -1})
    for y in _pieces(data.chunks[0], rows):
        for x in _pieces(data.chunks[1], cols):
            raw = np.asarray(data[y, x].compute(scheduler="synchronous"))
            invalid = invalid_mask(raw, nodata)
            usable = read_usable(scene, y, x)
            if usable is not None and not usable.all():
                out = np.broadcast_to(~usable[:, :, None], raw.shape)
                invalid = out.copy() if invalid is None else invalid | out
            yield Block(raw, invalid, x.start)


def sums(block: Block, axis: int | tuple[int, int]) -> tuple[F8, NDArray[np.int64]]:
    """Return sum (float64) and count of the valid numbers of a block along its axes y (0) or y and x (0, 1)."""
    raw, bad = block.raw_yxb, block.invalid_yxb
    if bad is None or not bad.any():
        count = np.full(raw.shape[2:] if isinstance(axis, tuple) else raw.shape[1:], raw.size)
        count //= count.size
        return raw.sum(axis=axis, dtype=np.float64), count.astype(np.int64)
    kept = np.where(bad, 0, raw)
    count = (~bad).sum(axis=axis, dtype=np.int64)
    return kept.sum(axis=axis, dtype=np.float64), count


def mean_spectrum(scene: xr.Dataset, rows: slice | None = None, cols: slice | None = None) -> F8:
    """Return the mean physical value per band over the valid pixels of a window, float64 (band,); NaN without any."""
    bands = scene.sizes["band"]
    total, count = np.zeros(bands), np.zeros(bands, np.int64)
    for block in blocks(scene, rows, cols):
        part, number = sums(block, (0, 1))
        total += part
        count += number
    scale, offset = scale_offset(scene)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count * scale + offset


def noted(scene: xr.Dataset, how: str) -> xr.Dataset:
    """Return the scene with a line more of what was done to it."""
    scene.attrs["calibration"] = [*scene.attrs.get("calibration", []), how]
    return scene


def _pieces(chunks: tuple[int, ...], span: slice | None) -> Iterator[slice]:
    """Cut a span where chunks end."""
    low, high = (0, sum(chunks)) if span is None else (span.start, span.stop)
    end = 0
    for length in chunks:
        start, end = end, end + length
        if start < high and end > low:
            yield slice(max(start, low), min(end, high))
