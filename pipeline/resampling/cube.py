"""The cube and the layers of a scene on larger pixels, computed for just the window that is asked for.

Array-likes behind Dask, as in `calibration.mapped`: only the old pixels that the window needs are read, with the few
around it that a kernel reaches. What comes out of a window is the same bit for bit however the scene is cut.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..calibration.mapped import read_window
from ..nodata import invalid_mask
from ..readers.indexing import indices, split_key, squeeze
from .kernels import Index, Taps, weigh

if TYPE_CHECKING:
    import dask.array as da

Floats = NDArray[np.floating]

BANDS_AT_ONCE = 16
"""Bands that are worked on together, which bounds the memory for floats and masks."""

_SHARE_ERROR = 1e-5
"""By how much a sum of float32 weights may fall short."""

AxisPair = tuple[Taps, Taps]
"""Weights along y and x."""


class CoarseCube:
    """Weighted means of the stored numbers over valid pixels, NaN where too few are valid.

    Parameters
    ----------
    source
        Lazy stored numbers (y, x, band).
    usable_yx
        Lazy bool (y, x) of the pixels that a product or a mask allows; None where nodata alone decides.
    nodata_b
        float64 (band,), as `nodata_values` gives it.
    kernel
        Weights of the method.
    fallback
        Positive weights that take over where a kernel with negative ones meets pixels without data; None for others.
    min_valid
        Least share of the weights on valid pixels.
    """

    ndim = 3

    def __init__(
        self,
        source: da.Array,
        usable_yx: da.Array | None,
        nodata_b: NDArray[np.float64],
        kernel: AxisPair,
        fallback: AxisPair | None,
        min_valid: float,
    ) -> None:
        self.source, self.usable_yx, self.nodata_b = source, usable_yx, nodata_b
        self.kernel, self.fallback, self.min_valid = kernel, fallback, min_valid
        self.shape = (len(kernel[0]), len(kernel[1]), int(source.shape[2]))
        small = source.dtype == np.float32 or (source.dtype.kind in "iu" and source.dtype.itemsize <= 2)
        self.work = np.dtype(np.float32 if small else np.float64)
        self.dtype = np.dtype(np.float64 if source.dtype == np.float64 else np.float32)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Compute a window."""
        axes, drop = split_key(key, self.shape)
        new = tuple(indices(axis, size).astype(np.int64) for axis, size in zip(axes, self.shape, strict=True))
        out = np.empty((len(new[2]), len(new[0]), len(new[1])), self.dtype)
        if out.size:
            rows, cols = (slice(*_span(self._kernels(n), new[n])) for n in (0, 1))
            raw = read_window(self.source, rows, cols, axes[2])
            usable = None
            if self.usable_yx is not None:
                usable = np.asarray(read_window(self.usable_yx, rows, cols), bool)
            nodata = self.nodata_b[new[2]]
            for start in range(0, len(out), BANDS_AT_ONCE):
                some = slice(start, start + BANDS_AT_ONCE)
                window = _Window((new[0], new[1]), (rows.start, cols.start))
                out[some] = self._bands(raw[:, :, some], nodata[some], usable, window)
        return squeeze(out.transpose(1, 2, 0), drop)

    def _kernels(self, axis: int) -> list[Taps]:
        return [pair[axis] for pair in (self.kernel, self.fallback) if pair is not None]

    def _bands(
        self,
        raw_yxb: NDArray[Any],
        nodata_b: NDArray[np.float64],
        usable: NDArray[np.bool_] | None,
        window: _Window,
    ) -> Floats:
        """Return the new pixels (band, y, x) of some bands."""
        bad_yxb = invalid_mask(raw_yxb, nodata_b)
        if usable is not None and not usable.all():
            out = np.broadcast_to(~usable[:, :, None], raw_yxb.shape)
            bad_yxb = out if bad_yxb is None else bad_yxb | out
        data = np.array(raw_yxb.transpose(2, 0, 1), self.work, order="C")
        if bad_yxb is None or not bad_yxb.any():
            return self._mean(data, None, self.kernel, window)
        bad = np.ascontiguousarray(bad_yxb.transpose(2, 0, 1))
        data[bad] = 0
        found = self._mean(data, bad, self.kernel, window)
        if self.fallback is not None:
            magnitude = tuple(Taps(t.size, t.first, np.abs(t.weights)) for t in self.kernel)
            missing = window.weigh(bad.astype(self.work), (magnitude[0], magnitude[1])) > 0
            found = np.where(missing, self._mean(data, bad, self.fallback, window), found)
        return found

    def _mean(self, data: Floats, bad: NDArray[np.bool_] | None, kernel: AxisPair, window: _Window) -> Floats:
        """Return weighted means (band, y, x); data must be 0 where bad."""
        inside = window.weigh(np.ones((1, *data.shape[1:]), self.work), kernel)
        total = inside if bad is None else window.weigh((~bad).astype(self.work), kernel)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = window.weigh(data, kernel) / total
        if bad is not None:
            mean[total < inside * self.min_valid * (1 - _SHARE_ERROR)] = np.nan
            mean[total <= 0] = np.nan
        return mean


class _Window:
    """New pixels (rows, cols), and where the old pixels that were read for them begin."""

    def __init__(self, new: tuple[Index, Index], low: tuple[int, int]) -> None:
        self.new, self.low = new, low

    def weigh(self, block_byx: Floats, kernel: AxisPair) -> Floats:
        """Return the weighted sums (band, new y, new x) of old pixels (band, y, x)."""
        down = weigh(block_byx, kernel[0], self.new[0], self.low[0], 1)
        return weigh(down, kernel[1], self.new[1], self.low[1], 2)


class CoarsePlane:
    """A layer (y, x) on larger pixels, by one of the rules in `RULES`.

    Parameters
    ----------
    source
        Lazy (y, x).
    cells
        Old pixels of each new one.
    rule
        - `largest`: of the cell's numbers, so that a flag stands where any pixel of the cell has it;
        - `majority`: the commonest number, the smallest of equally common ones;
        - `mean`: over finite numbers, float; NaN where there is none;
        - `latitude`, `longitude`: `mean` in degrees, fill values outside the globe left out, across the 180th meridian.
    """

    ndim = 2

    def __init__(self, source: da.Array, cells: AxisPair, rule: str) -> None:
        self.source, self.cells, self.rule = source, cells, rule
        self.shape = (len(cells[0]), len(cells[1]))
        kept = rule in ("largest", "majority") or source.dtype.kind == "f"
        self.dtype: np.dtype[Any] = source.dtype if kept else np.dtype(np.float32)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Compute a window."""
        parts = key if isinstance(key, tuple) else (key,)
        axes, drop = split_key((*parts, *(slice(None),) * (2 - len(parts)), 0), (*self.shape, 1))
        new = [indices(axis, size).astype(np.int64) for axis, size in zip(axes[:2], self.shape, strict=True)]
        out = np.zeros((len(new[0]), len(new[1])), self.dtype)
        if out.size:
            rows, cols = (slice(*_span([self.cells[n]], new[n])) for n in (0, 1))
            block = read_window(self.source, rows, cols)
            stack, present = self._stacked(block, new, (rows.start, cols.start))
            out = RULES[self.rule](stack, present).astype(self.dtype)
        return squeeze(out[:, :, None], drop)

    def _stacked(
        self, block: NDArray[Any], new: list[Index], low: tuple[int, int]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the old pixels of each new one (pixel of the cell, y, x), and which of them there are."""
        places: list[Index] = []
        there: list[NDArray[np.bool_]] = []
        for n in (0, 1):
            cell = self.cells[n]
            at = cell.first[new[n]] + np.arange(cell.weights.shape[1])[:, None] - low[n]
            places.append(np.clip(at, 0, block.shape[n] - 1))
            there.append(cell.weights[new[n]].T > 0)
        stack = block[places[0][:, None, :, None], places[1][None, :, None, :]]
        present = there[0][:, None, :, None] & there[1][None, :, None, :]
        flat = (-1, len(new[0]), len(new[1]))
        return stack.reshape(flat), present.reshape(flat)


def largest(stack: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the largest number of each cell."""
    if stack.dtype == np.bool_:
        return np.logical_or.reduce(stack & present, axis=0)
    low = np.iinfo(stack.dtype).min
    return np.where(present, stack, low).max(axis=0)


def majority(stack: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the commonest whole number of each cell, the smallest of equally common ones."""
    none = np.iinfo(np.int64).max
    numbers = np.sort(np.where(present, stack.astype(np.int64), none), axis=0)
    best, most = numbers[0].copy(), np.ones(numbers.shape[1:], np.int64)
    run = most.copy()
    for before, now in pairwise(numbers):
        run = np.where(now == before, run + 1, 1)
        better = (run > most) & (now != none)
        best, most = np.where(better, now, best), np.where(better, run, most)
    return best


def mean(stack: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean of the finite numbers of each cell."""
    known = present & np.isfinite(stack)
    total = np.where(known, stack, 0).sum(axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / known.sum(axis=0)


def latitude(stack: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean latitude of each cell."""
    return mean(np.where(np.abs(stack) <= 90, stack, np.nan), present)


def longitude(stack: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean longitude of each cell, counted from its first known pixel."""
    known = present & (np.abs(stack) <= 360)
    start = np.take_along_axis(stack, known.argmax(axis=0)[None], axis=0)[0].astype(np.float64)
    apart = (stack - start + 180) % 360 - 180
    found = start + mean(np.where(known, apart, np.nan), present)
    return np.where((found < -180) | (found > 360), found % 360, found)


RULES = {
    "largest": largest,
    "majority": majority,
    "mean": mean,
    "latitude": latitude,
    "longitude": longitude,
}


def _span(kernels: list[Taps], new: Index) -> tuple[int, int]:
    """Return the old pixels that new ones need for any of several kernels."""
    spans = [taps.span(new) for taps in kernels]
    return min(low for low, _ in spans), max(high for _, high in spans)
