"""Which numbers of a cube are no data, and so which pixels hold any."""

from __future__ import annotations

from typing import Any, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray


def invalid_mask(block_yxb: NDArray[Any], nodata_b: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """Mark the numbers of a block that are no data: equal to nodata or not finite.

    Parameters
    ----------
    block_yxb
        Raw numbers; the last axis is the band.
    nodata_b
        Nodata per band as `nodata_values` gives it. It is compared in the block's own number type, since
        -1.23e34 as float64 equals no float32.

    Returns
    -------
    numpy.ndarray or None
        Bool, the block's shape and memory order; None when no number of this type can be invalid.
    """
    dtype = block_yxb.dtype
    own, exists = _in_dtype(nodata_b, dtype)
    bad: NDArray[np.bool_] | None = None
    if exists.any():
        if exists.all() and (own == own[0]).all():
            bad = np.equal(block_yxb, own[0])
        else:
            bad = np.equal(block_yxb, own)
            if not exists.all():
                np.logical_and(bad, exists, out=bad)
    if dtype.kind == "f":
        finite = np.isfinite(block_yxb)
        np.logical_not(finite, out=finite)
        bad = finite if bad is None else np.logical_or(bad, finite, out=bad)
    return bad


def _in_dtype(nodata_b: NDArray[np.float64], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return nodata in the block's number type, and where such a number exists in it at all."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            own = nodata_b.astype(dtype)
        return own, np.isfinite(own)
    info = np.iinfo(dtype)
    exists = np.isfinite(nodata_b) & (nodata_b == np.round(nodata_b))
    exists &= (nodata_b >= float(info.min)) & (nodata_b <= float(info.max))
    own = np.zeros(nodata_b.shape, dtype)
    # through int: the float nearest to the largest (u)int64 lies outside the type
    own[exists] = [min(max(int(v), info.min), info.max) for v in nodata_b[exists]]
    return own, exists


def _valid_block(block_yxb: NDArray[Any], nodata_b: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where at least one band of the block holds data.

    One band settles nearly every pixel, so the others are looked at only where that one is no data.
    """
    bands = block_yxb.shape[2]
    valid = np.zeros(block_yxb.shape[:2], bool)
    for b in sorted({bands // 2, bands // 4}, reverse=True):
        bad = invalid_mask(block_yxb[:, :, b : b + 1], nodata_b[b : b + 1])
        if bad is None:
            return np.ones_like(valid)
        valid |= ~bad[:, :, 0]
        if valid.all():
            return valid
    left = ~valid
    bad = invalid_mask(block_yxb[left], nodata_b)
    valid[left] = True if bad is None else ~bad.all(axis=1)
    return valid


def _valid_blocks(blocks: Any, nodata_b: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return `valid` of the blocks that lie behind each other along the bands."""
    pieces = cast("list[NDArray[Any]]", blocks if isinstance(blocks, list) else [blocks])
    edges = np.cumsum([0] + [piece.shape[2] for piece in pieces])
    valid = _valid_block(pieces[0], nodata_b[: edges[1]])
    for piece, start, stop in zip(pieces[1:], edges[1:-1], edges[2:], strict=True):
        valid |= _valid_block(piece, nodata_b[start:stop])
    return valid


def lazy_valid(data_yxb: da.Array, nodata_b: NDArray[np.float64]) -> da.Array:
    """Return `valid(y, x)` of a lazy cube; constant where no number of its type can be invalid."""
    if invalid_mask(np.zeros((1, 1, len(nodata_b)), data_yxb.dtype), nodata_b) is None:
        return da.ones(data_yxb.shape[:2], dtype=bool, chunks=data_yxb.chunks[:2])
    # not map_blocks(drop_axis=): that copies each block before it calls the function
    valid = da.blockwise(
        _valid_blocks,
        "yx",
        data_yxb,
        "yxb",
        nodata_b,
        None,
        dtype=bool,
        concatenate=False,
        meta=np.ones((0, 0), bool),
    )
    return cast("da.Array", valid)
