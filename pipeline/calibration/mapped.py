"""Lazily mapped cubes: float32 values computed from a scene's stored numbers for just the window that is asked for.

Array-likes behind Dask rather than Dask operations, since Dask would compute whole chunks of an operation for every
window cut from it, and all bands for a picture of three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..nodata import invalid_mask
from ..readers.indexing import Axis, split_key, squeeze

if TYPE_CHECKING:
    import dask.array as da
    from scipy.sparse import csr_array

F8 = NDArray[np.float64]


class LinearCube:
    """`(raw * gain + offset) * plane`, in float64 row by row; NaN where the stored number is no data.

    Parameters
    ----------
    source
        Lazy stored numbers (y, x, band).
    gain, offset
        (band,) or (x, band).
    nodata_b
        (band,), as `nodata_values` gives it.
    plane_yx
        Lazy factor per pixel, or None.
    """

    ndim = 3
    dtype = np.dtype(np.float32)

    def __init__(
        self, source: da.Array, gain: F8, offset: F8, nodata_b: F8, plane_yx: da.Array | None
    ) -> None:
        self.source = source
        self.gain = gain
        self.offset = offset
        self.nodata_b = nodata_b
        self.plane_yx = plane_yx
        self.shape = cast("tuple[int, int, int]", source.shape)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """Read and map a window of some bands."""
        (y, x, band), drop = split_key(key, self.shape)
        raw = read_window(self.source, y, x, band)
        # rows are worked on in the order in which they lie in memory
        order = "F" if raw.strides[1] < raw.strides[2] else "C"
        gain, offset = (
            np.asarray(v[x][:, band], order=order) if v.ndim == 2 else v[band]
            for v in (self.gain, self.offset)
        )
        plane = None if self.plane_yx is None else np.asarray(read_window(self.plane_yx, y, x), np.float64)
        nodata = self.nodata_b[band]
        out = np.empty_like(raw, dtype=np.float32)
        row = np.empty(raw.shape[1:], np.float64, order=order)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, stored in enumerate(raw):
                np.multiply(stored, gain, out=row)
                row += offset
                if plane is not None:
                    row *= plane[number][:, None]
                bad = invalid_mask(stored, nodata)
                if bad is not None and bad.any():
                    np.copyto(row, np.nan, where=bad)
                out[number] = row
        return squeeze(out, drop)


class WeightedCube:
    """Each band a weighted sum of the source's physical values; NaN where one that takes part is no data.

    Parameters
    ----------
    source
        Lazy stored numbers (y, x, band), all bands in a chunk.
    weights
        Sparse (target, band). Bands of no weight are not stored in it, so that their NaN stay away.
    scale_b, offset_b, nodata_b
        (band,).
    """

    ndim = 3
    dtype = np.dtype(np.float32)

    def __init__(self, source: da.Array, weights: csr_array, scale_b: F8, offset_b: F8, nodata_b: F8) -> None:
        self.source = source
        self.weights = weights
        self.scale_b = scale_b
        self.offset_b = offset_b
        self.nodata_b = nodata_b
        rows, cols = (int(n) for n in source.shape[:2])
        self.shape = (rows, cols, int(cast("Any", weights).shape[0]))

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """Read a window with all source bands and weigh those of some targets."""
        (y, x, band), drop = split_key(key, self.shape)
        raw = read_window(self.source, y, x)
        weights: Any = cast("Any", self.weights)[band]
        out = np.empty((*raw.shape[:2], int(weights.shape[0])), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, stored in enumerate(raw):
                row = stored * self.scale_b + self.offset_b
                bad = invalid_mask(stored, self.nodata_b)
                if bad is not None and bad.any():
                    np.copyto(row, np.nan, where=bad)
                out[number] = (weights @ row.T).T
        return squeeze(out, drop)


def lazy(cube: LinearCube | WeightedCube, *identity: Any) -> da.Array:
    """Wrap a mapped cube, in the chunks of its source.

    Parameters
    ----------
    cube
        What to wrap.
    *identity
        What its numbers follow from beside the source, so that equal ones get equal keys in every process.
    """
    import dask.array as da
    from dask.base import tokenize

    bands = cube.source.chunks[2] if isinstance(cube, LinearCube) else cube.shape[2]
    return da.from_array(
        cube,
        chunks=cast("Any", (*cube.source.chunks[:2], bands)),
        name=f"calibrated-{tokenize(type(cube).__name__, cube.source.name, *identity)}",
        asarray=False,
        inline_array=True,
        meta=np.empty((0, 0, 0), np.float32),
    )


def read_window(source: da.Array, *axes: Axis) -> NDArray[Any]:
    """Compute a window, with all slices in one key: Dask passes only the first of several on to the reader."""
    part = source[tuple(axis if isinstance(axis, slice) else slice(None) for axis in axes)]
    block = np.asarray(part.compute(scheduler="synchronous"))
    for number, axis in enumerate(axes):
        if not isinstance(axis, slice):
            block = np.take(block, axis, axis=number)
    return block
