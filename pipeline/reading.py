"""Reading a window of a scene with its bands in front, in one copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .readers.buffers import lend

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr


def read_block(scene: xr.Dataset, rows: slice, cols: slice) -> NDArray[Any]:
    """Read a window of a scene as stored, (band, y, x), with the columns behind each other in memory.

    Each of the scene's chunks that the window touches is read on its own and copied to its place: letting Dask join
    them would copy everything once more, into an order that no later step wants. A window of one chunk that lies well
    is not copied at all.

    Parameters
    ----------
    scene
        The scene.
    rows, cols
        Window inside it.
    """
    data = scene["data"].data
    data = data if data.numblocks[2] == 1 else data.rechunk({2: -1})
    pieces = [(y, x) for y in _pieces(data.chunks[0], rows) for x in _pieces(data.chunks[1], cols)]
    if len(pieces) == 1:
        block = _compute(data[pieces[0]]).transpose(2, 0, 1)
        if block.strides[2] == block.itemsize:
            return block
        out = lend(block.shape, block.dtype)
        out[...] = block
        return out
    out = lend((data.shape[2], rows.stop - rows.start, cols.stop - cols.start), data.dtype)
    for y, x in pieces:
        target = (
            slice(y.start - rows.start, y.stop - rows.start),
            slice(x.start - cols.start, x.stop - cols.start),
        )
        out[:, target[0], target[1]] = _compute(data[y, x]).transpose(2, 0, 1)
    return out


def row_pieces(scene: xr.Dataset, rows: slice, values: int) -> Iterator[slice]:
    """Cut rows where the scene's chunks end, so that no chunk is decoded twice, and into about `values` numbers each."""
    step = max(1, values // (scene.sizes["x"] * scene.sizes["band"]))
    for piece in _pieces(scene["data"].data.chunks[0], rows):
        for start in range(piece.start, piece.stop, step):
            yield slice(start, min(start + step, piece.stop))


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
