"""What all writers share: blocks of rows of a scene, physical values, one nodata, and files that appear whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SceneError
from ..nodata import invalid_mask
from ..readers.carried import CARRIED
from ..reading import read_block
from ..scene import PER_BAND, nodata_values, scale_offset

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

BLOCK_BYTES = 64 * 2**20
"""Most bytes of the cube in memory at a time, unless `multiple` rows are more."""

NOT_CARRIED = ("source", "files", "reader", "why", "warnings", "block_bytes")
"""Attributes that tell about the file a scene came from, not about the scene; paths never go into a file."""


def blocks(scene: xr.Dataset, multiple: int = 1) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the cube in runs of whole rows, from top to bottom.

    Parameters
    ----------
    scene
        The scene.
    multiple
        The number of rows of every block but the last is a multiple of this.

    Yields
    ------
    tuple
        Rows, and the raw numbers (band, y, x), C-contiguous, native byte order.
    """
    height, width, bands = scene["data"].shape
    row_bytes = width * bands * scene["data"].dtype.itemsize
    # blocks end where the chunks of the scene end, if they are powers of two as the readers make them
    count = multiple
    while count * 2 * row_bytes <= BLOCK_BYTES and count < height:
        count *= 2
    for top in range(0, height, count):
        rows = slice(top, min(height, top + count))
        yield rows, read_block(scene, rows, slice(0, width))


def as_physical(scene: xr.Dataset) -> xr.Dataset:
    """Return a scene of physical values, float32 with NaN for no data, and for pixels that a mask took out."""
    import dask.array as da

    nodata_b = nodata_values(scene)
    scale_b, offset_b = scale_offset(scene)
    masked = "valid_rule" in scene.attrs
    data = scene["data"].data
    valid = scene["valid"].data.rechunk(data.chunks[:2]) if masked else None
    values = da.blockwise(
        _physical_blocks,
        "yxb",
        data.rechunk({2: -1}),
        "yxb",
        *((valid, "yx") if masked else (None, None)),
        nodata_b,
        None,
        scale_b,
        None,
        offset_b,
        None,
        dtype=np.float32,
        meta=np.empty((0, 0, 0), np.float32),
    )
    out = scene.drop_vars([name for name in PER_BAND if name in scene.coords])
    out["data"] = (scene["data"].dims, values, scene["data"].attrs)
    attrs = {k: v for k, v in scene.attrs.items() if k not in PER_BAND}
    return out.assign_attrs(attrs).drop_attrs(deep=False).assign_attrs({**attrs, "nodata": float("nan")})


def _physical_blocks(
    block: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    nodata_b: NDArray[np.float64],
    scale_b: NDArray[np.float64],
    offset_b: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return physical values of a block (y, x, band); computed in float64, row by row."""
    out = np.empty(block.shape, np.float32)
    with np.errstate(over="ignore"):
        for i, row in enumerate(block):
            out[i] = row * scale_b + offset_b
    bad = invalid_mask(block, nodata_b)
    if bad is not None:
        out[bad] = np.nan
    if valid is not None:
        out[~valid] = np.nan
    return out


def one_nodata(scene: xr.Dataset, kind: str) -> float | None:
    """Return the one nodata value that a file can state; None where no number of the cube's type can be nodata.

    Raises
    ------
    SceneError
        If bands have different ones.
    """
    values = nodata_values(scene)
    if np.isnan(values).all():
        return float("nan") if scene["data"].dtype.kind == "f" and "nodata" in scene.attrs else None
    own = np.unique(values)
    if len(own) != 1:
        msg = (
            f"{kind} holds one nodata value for all bands, the scene has {len(own)} (the first: {own[:3].tolist()}); "
            "write it with physical=True, or as netCDF or Zarr"
        )
        raise SceneError(msg)
    dtype = scene["data"].dtype
    probe = np.zeros((1, 1, 1), dtype)
    if dtype.kind in "iu" and invalid_mask(probe, own) is None:
        return None
    return float(own[0])


def number(value: float) -> str:
    """Return a number as the shortest text that reads back as the same float64; whole numbers without a point."""
    value = float(value)
    return str(int(value)) if value == round_or_nan(value) and abs(value) < 2**63 else repr(value)


def round_or_nan(value: float) -> float:
    """Return a finite value rounded, else NaN."""
    return float(round(value)) if np.isfinite(value) else float("nan")


def known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a list with 0 for NaN, for formats that have no word for the unknown."""
    return np.where(np.isnan(values), 0.0, values)


def carried(scene: xr.Dataset) -> dict[str, str]:
    """Return what else is known of a scene, as text by name: quantity, units, sensor, product, angles..."""
    out: dict[str, str] = {}
    for name in CARRIED:
        value = scene.attrs.get(name)
        if isinstance(value, (bool, np.bool_)):
            value = "true" if value else None
        elif isinstance(value, (float, int, np.number)):
            value = number(float(value))
        if value is not None and value != "":
            out[name] = " ".join(str(value).split())
    return out


def varies(values: NDArray[np.float64], default: float) -> bool:
    """Return whether a per-band number says anything."""
    return bool((values != default).any())


@contextmanager
def appearing(targets: list[Path]) -> Generator[list[Path]]:
    """Give other names to write under; rename when all went well, else remove what was written.

    Of several targets the last one (a header) is taken away first and put in place last, so that a header never stands
    beside the numbers of another scene.
    """
    hidden = [path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}") for path in targets]
    try:
        yield hidden
        if len(targets) > 1:
            targets[-1].unlink(missing_ok=True)
        for path, final in zip(hidden, targets, strict=True):
            if final.is_dir():
                shutil.rmtree(final)
            path.replace(final)
    finally:
        for path in hidden:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
