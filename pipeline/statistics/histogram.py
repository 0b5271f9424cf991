"""Exact histograms of integers of up to 16 bits, for quantiles without any error of rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .moments import F8


@dataclass(frozen=True)
class Histogram:
    """How often each number occurs in each band; the value it stands for is ``number * scale + offset``."""

    low: int  #: number of the first column
    counts: NDArray[np.int64]  #: (bands, numbers)
    scale: F8  #: (bands,)
    offset: F8

    @classmethod
    def of(cls, values_bp: NDArray[Any]) -> Histogram:
        """Count the numbers of (bands, pixels) integers."""
        bands, pixels = values_bp.shape
        low = int(values_bp.min()) if pixels else 0
        width = int(values_bp.max()) - low + 1 if pixels else 0
        place = values_bp.astype(np.int64)
        place += (np.arange(bands) * width - low)[:, None]
        counts = np.bincount(place.ravel(), minlength=bands * width).reshape(bands, width)
        return cls(low, counts.astype(np.int64, copy=False), np.ones(bands), np.zeros(bands))

    def merge(self, other: Histogram) -> Histogram:
        """Return the counts of both, which must have the same scale and offset."""
        if not self.counts.size:
            return other
        if not other.counts.size:
            return self
        low = min(self.low, other.low)
        high = max(self.low + self.counts.shape[1], other.low + other.counts.shape[1])
        counts = np.zeros((len(self.counts), high - low), np.int64)
        for part in (self, other):
            counts[:, part.low - low : part.low - low + part.counts.shape[1]] += part.counts
        return Histogram(low, counts, self.scale, self.offset)

    def affine(self, scale: F8, offset: F8) -> Histogram:
        """Return the histogram of ``value * scale + offset``."""
        return Histogram(self.low, self.counts, self.scale * scale, self.offset * scale + offset)

    def select(self, bands: NDArray[np.intp]) -> Histogram:
        """Return the histogram of some bands."""
        return Histogram(self.low, self.counts[bands], self.scale[bands], self.offset[bands])

    def quantiles(self, shares: NDArray[np.float64]) -> F8:
        """Return the quantiles (shares, bands), between two numbers as `numpy.quantile` interpolates."""
        upto = self.counts.cumsum(axis=1)
        found = np.empty((len(shares), len(self.counts)))
        for band, total in enumerate(upto):
            asked = shares if self.scale[band] >= 0 else 1 - shares
            place = asked * (total[-1] - 1)
            below = np.searchsorted(total, np.floor(place), side="right")
            above = np.searchsorted(total, np.ceil(place), side="right")
            number = self.low + below + (above - below) * (place - np.floor(place))
            found[:, band] = number * self.scale[band] + self.offset[band]
        return found
