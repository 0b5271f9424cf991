"""Differences between neighbouring pixels, from which the noise is estimated.

Where neighbours show the same ground, their difference is noise: Sigma_N = 1/2 Cov(x_i - x_j), with the mean of the
differences removed (Green, Berman, Switzer and Craig 1988, "A transformation for ordering multispectral data in terms
of image quality with implications for noise removal", IEEE TGRS 26(1)). Only pairs of training pixels that both hold
data count, so that no difference crosses the edge of a scene, of a split or of a region without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..readers.buffers import lend
from .moments import Moments

#: Direction -> how far the second pixel of a pair lies from the first, (rows, columns).
SHIFTS = {"x": (0, 1), "y": (1, 0), "diagonal": (1, 1)}


#: Share of its own squares below which a variance is taken for their rounding.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class LastRow:
    """The row above a slab, whose pixels are the first of pairs that reach into it."""

    values_bx: NDArray[Any]
    keep_x: NDArray[np.bool_]


def difference_moments(
    values_byx: NDArray[Any], keep_yx: NDArray[np.bool_], direction: str, above: LastRow | None
) -> Moments:
    """Return the moments of ``first - second`` over the pairs whose second pixel lies in the slab.

    Parameters
    ----------
    values_byx
        (bands, rows, cols), any real dtype; finite where `keep_yx`.
    keep_yx
        Pixels that count.
    direction
        A key of `SHIFTS`.
    above
        The row above the slab; None at the upper edge of what is read.
    """
    down, right = SHIFTS[direction]
    cols = values_byx.shape[2]
    found = _pairs(
        values_byx[:, : values_byx.shape[1] - down, : cols - right],
        values_byx[:, down:, right:],
        keep_yx[: len(keep_yx) - down, : cols - right] & keep_yx[down:, right:],
    )
    if down and above is not None:
        first = above.values_bx[:, None, : cols - right]
        keep = above.keep_x[None, : cols - right] & keep_yx[:1, right:]
        found = found.merge(_pairs(first, values_byx[:, :1, right:], keep))
    return found


def _pairs(first_byx: NDArray[Any], second_byx: NDArray[Any], keep_yx: NDArray[np.bool_]) -> Moments:
    bands, count = len(first_byx), int(keep_yx.sum())
    if not count:
        return Moments.empty(bands)
    # in float64 before the subtraction: integers would wrap around
    if count == keep_yx.size:
        apart = lend(first_byx.shape, np.float64)
        np.subtract(first_byx, second_byx, out=apart, dtype=np.float64)
        apart = apart.reshape(bands, count)
    else:
        apart = np.subtract(first_byx[:, keep_yx], second_byx[:, keep_yx], dtype=np.float64)
    # their mean is near 0 beside their spread, so that no shift is needed; nobody asks for their range
    mean = apart @ np.ones(count) / count
    squares = apart @ apart.T
    scatter = squares - count * np.outer(mean, mean)
    # a band whose neighbours all differ alike has no noise, whatever rounding leaves of it
    silent = np.diagonal(scatter) < _ROUNDING * np.diagonal(squares)
    scatter[silent], scatter[:, silent] = 0, 0
    unknown = np.full(bands, np.nan)
    return Moments(count, mean, scatter, unknown, unknown)


def pooled(differences: Mapping[str, Moments], directions: tuple[str, ...]) -> Moments:
    """Return the moments of the differences of several directions together, each around its own mean."""
    parts = [differences[name] for name in directions]
    first = parts[0]
    if len(parts) == 1:
        return first
    count = sum(part.count for part in parts)
    scatter = np.sum([part.scatter for part in parts], axis=0)
    return Moments(count, np.zeros_like(first.mean), scatter, first.minimum, first.maximum)
