"""Reading a window of a scene with its bands in front, in one copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr


def read_block(scene: xr.Dataset, rows: slice, cols: slice) -> NDArray[Any]:
    """Read a window of a scene as stored, (band, y, x), C-contiguous.

    Each of the scene's chunks that the window touches is read on its own and copied to its place: letting Dask join
    them would copy everything once more, into an order that no later step wants.

    Parameters
    ----------
    scene
        The scene.
    rows, cols
        Window inside it.
    """
    data = scene["data"].data.rechunk({2: -1})
    out = np.empty((data.shape[2], rows.stop - rows.start, cols.stop - cols.start), data.dtype)
    for y in _pieces(data.chunks[0], rows):
        for x in _pieces(data.chunks[1], cols):
            piece = _compute(data[y, x])
            target = (
                slice(y.start - rows.start, y.stop - rows.start),
                slice(x.start - cols.start, x.stop - cols.start),
            )
            out[:, target[0], target[1]] = piece.transpose(2, 0, 1)
    return out


def read_usable(scene: xr.Dataset, rows: slice, cols: slice) -> NDArray[np.bool_] | None:
    """Read where a product or a mask allows a pixel, (y, x); None where only nodata decides, as the bands tell.

    Parameters
    ----------
    scene
        The scene.
    rows, cols
        Window inside it.
    """
    if "valid_rule" not in scene.attrs:
        return None
    return np.asarray(scene["valid"].data[rows, cols].compute(scheduler="synchronous"), bool)


def _compute(part: da.Array) -> NDArray[Any]:
    """Compute an array of one chunk; `compute` would copy the result once more, in case somebody writes to it."""
    from dask.local import get_sync

    keys = part.__dask_keys__()
    return np.asarray(get_sync(part.__dask_optimize__(part.__dask_graph__(), keys), keys)[0][0][0])


def _pieces(chunks: tuple[int, ...], span: slice) -> Iterator[slice]:
    """Cut a span where chunks end."""
    end = 0
    for length in chunks:
        start, end = end, end + length
        if start < span.stop and end > span.start:
            yield slice(max(start, span.start), min(end, span.stop))
