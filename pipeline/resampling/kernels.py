"""Which old pixels make a new one along one axis, and with what weights.

All three kernels are as wide as the new pixels, as `gdalwarp` has them, so that nothing finer folds into the result:

- `average`: the share of each old pixel that lies in the new one;
- `bilinear`: a triangle that falls to 0 at one new pixel from the centre;
- `cubic`: Keys' kernel (IEEE Trans. ASSP 29, 1981) with a = -0.5, 0 at two new pixels from the centre.

New pixels begin where the first old pixel begins. A rest at the end that fills no new pixel is left out. Weights follow
from the place on the whole grid alone, never from how the scene is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
Index = NDArray[np.int64]

REACH = {"average": 0.5, "bilinear": 1.0, "cubic": 2.0}
"""Half the width of each kernel, in new pixels."""

_NEGLIGIBLE = 1e-9
"""Smaller parts of a pixel are errors of rounding."""


@dataclass(frozen=True, eq=False)
class Taps:
    """The old pixels `first` ... `first + K - 1` of each new one.

    Attributes
    ----------
    size
        Old pixels along the axis.
    first
        int64 (new,); may lie outside the axis, where the weights are 0.
    weights
        float64 (new, K).
    """

    size: int
    first: Index
    weights: F8

    def __len__(self) -> int:
        """Return the number of new pixels."""
        return len(self.first)

    def span(self, new: Index) -> tuple[int, int]:
        """Return first and last + 1 old pixel that new ones need."""
        first = self.first[new]
        return max(0, int(first.min())), min(self.size, int(first.max()) + self.weights.shape[1])


def new_size(size: int, factor: float) -> int:
    """Return how many whole new pixels an axis of `size` old ones makes."""
    return int(size / factor + _NEGLIGIBLE)


def kernel_taps(size: int, factor: float, method: str) -> Taps:
    """Return the weights of a kernel along an axis.

    Parameters
    ----------
    size
        Old pixels.
    factor
        Side of a new pixel in old ones, 1 or more.
    method
        `average`, `bilinear` or `cubic`.
    """
    number = np.arange(new_size(size, factor))
    centre = (number + 0.5) * factor
    reach = REACH[method] * factor
    edge = 0.5 if method == "average" else 0.0  # an old pixel counts from its edge on, or from its centre on
    first = np.floor(centre - reach - 0.5 - edge + _NEGLIGIBLE).astype(np.int64) + 1
    old = first[:, None] + np.arange(int(np.ceil(2 * (reach + edge))) + 1)
    away = (old + 0.5 - centre[:, None]) / factor
    if method == "average":
        weights = np.clip((0.5 + 0.5 / factor - np.abs(away)) * factor, 0, 1) / factor
    elif method == "bilinear":
        weights = np.clip(1 - np.abs(away), 0, None) / factor
    else:
        weights = _keys(np.abs(away)) / factor
    weights[np.abs(weights) < _NEGLIGIBLE] = 0
    weights[(old < 0) | (old >= size)] = 0
    used = np.flatnonzero(weights.any(axis=0))
    return Taps(size, first + used[0], np.ascontiguousarray(weights[:, used[0] : used[-1] + 1]))


def cell_taps(size: int, factor: float) -> Taps:
    """Return the old pixels whose centres lie in each new one, with weight 1; a centre on the edge belongs to the next."""
    edges = np.ceil(np.arange(new_size(size, factor) + 1) * factor - 0.5 - _NEGLIGIBLE).astype(np.int64)
    number = np.diff(edges)
    return Taps(size, edges[:-1], (np.arange(number.max()) < number[:, None]).astype(np.float64))


def _keys(distance: F8) -> F8:
    """Return Keys' cubic convolution kernel with a = -0.5 at distances from the centre."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def weigh(block: NDArray[np.floating], taps: Taps, new: Index, low: int, axis: int) -> NDArray[np.floating]:
    """Return weighted sums along an axis, number by number in one order, whatever else the block holds.

    Parameters
    ----------
    block
        Old pixels from `low` on, along `axis`.
    taps
        Weights.
    new
        Which new pixels to make.
    low
        First old pixel of the block.
    axis
        Of `block`.
    """
    shape = [1] * block.ndim
    shape[axis] = len(new)
    out: NDArray[np.floating] | None = None
    for k in range(taps.weights.shape[1]):
        at = np.clip(taps.first[new] + k - low, 0, block.shape[axis] - 1)
        part = _take(block, at, axis) * taps.weights[new, k].astype(block.dtype).reshape(shape)
        out = part if out is None else np.add(out, part, out=out)
    assert out is not None, "a kernel has at least one weight"
    return out


def _take(block: NDArray[np.floating], at: Index, axis: int) -> NDArray[np.floating]:
    """Return `block.take(at, axis)`, as a view where `at` rises evenly."""
    steps = np.diff(at)
    if len(at) > 1 and steps[0] > 0 and (steps == steps[0]).all():
        return block[(slice(None),) * axis + (slice(int(at[0]), int(at[-1]) + 1, int(steps[0])),)]
    return block.take(at, axis)
