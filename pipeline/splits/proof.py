"""Counting the pixels that samples of two splits both see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..store import SPLIT_CODE
from .maps import widened

if TYPE_CHECKING:
    from .maps import Codes, SplitMap

_PIXELS = 4 << 20
PAIRS = (("train", "validation"), ("train", "test"), ("validation", "test"))


def row_slabs(shape_yx: tuple[int, int], pixels: int = _PIXELS) -> Iterator[slice]:
    """Cut a scene into slabs of whole rows with about `pixels` pixels each."""
    rows = max(1, pixels // max(1, shape_yx[1]))
    for start in range(0, shape_yx[0], rows):
        yield slice(start, min(shape_yx[0], start + rows))


def code_slabs(
    split: SplitMap, shape_yx: tuple[int, int], halo: int
) -> Iterator[tuple[slice, Codes, dict[str, int]]]:
    """Go through a scene slab by slab: its rows, their codes, and the pixels in them that two splits see.

    Parameters
    ----------
    split
        Codes of the scene.
    shape_yx
        Its size.
    halo
        How far around its own pixels a sample sees.
    """
    for rows in row_slabs(shape_yx):
        wide = widened(rows, 0 if split.uniform is not None else halo, shape_yx[0])
        codes = split.codes(wide, slice(0, shape_yx[1]))
        inner = slice(rows.start - wide.start, rows.stop - wide.start)
        yield rows, codes[inner], {} if split.uniform is not None else seen_by_two(codes, inner, halo)


def seen_by_two(codes: Codes, rows: slice, halo: int) -> dict[str, int]:
    """Count the pixels within `halo` (in rows and columns) of pixels of two splits.

    Parameters
    ----------
    codes
        (y, x) split codes.
    rows
        Which of the rows are counted; the others are seen from.
    halo
        Pixels.

    Returns
    -------
    dict
        ``"train-validation"`` and so on -> pixels.
    """
    from scipy.ndimage import maximum_filter

    seen: dict[str, NDArray[np.bool_]] = {}
    for name, code in SPLIT_CODE.items():
        own = codes == code
        if code and own.any():
            near = maximum_filter(own, 2 * halo + 1, mode="constant", cval=0) if halo else own
            seen[name] = np.asarray(near, bool)[rows]
    return {f"{a}-{b}": int((seen[a] & seen[b]).sum()) if a in seen and b in seen else 0 for a, b in PAIRS}


def shared_pixels(split: SplitMap, shape_yx: tuple[int, int], halo: int) -> dict[str, int]:
    """Count the pixels of a scene that samples of two splits both see, halo included.

    Returns
    -------
    dict
        ``"train-validation"`` and so on -> pixels; empty when the scene lies in one split.
    """
    counts: dict[str, int] = {}
    for _, _, shared in code_slabs(split, shape_yx, halo):
        counts = added(counts, shared)
    return counts


def added(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    """Return the sum of two counts by pair."""
    return {pair: counts.get(pair, 0) + more.get(pair, 0) for pair in dict.fromkeys([*counts, *more])}
