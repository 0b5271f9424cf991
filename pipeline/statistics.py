"""One-pass statistics that merge: count, mean, covariance, minimum and maximum of the training pixels.

Sums are taken in float64 around a shift near the block's own mean and merged pairwise (Chan, Golub and LeVeque 1979,
"Updating formulae and a pairwise algorithm for computing sample variances"), so that an offset of 1e5 with a spread of
1 keeps its digits. Bands without any data are found in the same pass: a block's moments are taken over the bands that
hold data *there*, and blocks that lack a band which others have are dropped at the end, since none of their pixels is
valid in every kept band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

F8 = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Count, mean, centred second moments and range of pixels over `n` bands."""

    count: int
    mean: F8  #: (n,)
    scatter: F8  #: (n, n) sum of outer products of deviations; (n,) squares alone when not `full`
    minimum: F8  #: (n,)
    maximum: F8  #: (n,)

    @classmethod
    def empty(cls, bands: int, *, full: bool = True) -> Moments:
        """Return the moments of no pixel."""
        zeros = np.zeros(bands)
        scatter = np.zeros((bands, bands)) if full else zeros.copy()
        return cls(0, zeros, scatter, np.full(bands, np.inf), np.full(bands, -np.inf))

    @classmethod
    def of(cls, values_bp: NDArray[np.generic], *, full: bool = True) -> Moments:
        """Compute the moments of `values_bp` (bands, pixels), any real dtype.

        Parameters
        ----------
        values_bp
            One row per band.
        full
            Also the covariances between bands; without, variances only.
        """
        bands, count = values_bp.shape
        if not count:
            return cls.empty(bands, full=full)
        # Any shift near the mean serves; this one is cheap and depends on the block alone.
        shift = values_bp[:, :: max(1, count // 64)].mean(axis=1, dtype=np.float64)
        centred = np.subtract(values_bp, shift[:, None], dtype=np.float64)
        delta = centred.sum(axis=1) / count
        if full:
            scatter = centred @ centred.T - count * np.outer(delta, delta)
        else:
            scatter = np.einsum("bp,bp->b", centred, centred) - count * delta**2
        low = values_bp.min(axis=1).astype(np.float64)
        return cls(count, shift + delta, scatter, low, values_bp.max(axis=1).astype(np.float64))

    @property
    def full(self) -> bool:
        """Whether covariances between bands are there."""
        return self.scatter.ndim == 2

    @property
    def covariance(self) -> F8:
        """Population covariance (n, n), symmetric to the last bit."""
        cov = self.scatter / self.count
        return (cov + cov.T) / 2

    @property
    def std(self) -> F8:
        """Population standard deviation (n,); exactly 0 for a constant band, never NaN."""
        squares = np.diagonal(self.scatter) if self.full else self.scatter
        std = np.sqrt(np.maximum(squares, 0.0) / self.count)
        return np.where(self.minimum == self.maximum, 0.0, std)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of pixels together."""
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        cross = np.outer(delta, delta) if self.full else delta**2
        return Moments(
            count,
            self.mean + delta * (other.count / count),
            self.scatter + other.scatter + cross * (self.count * other.count / count),
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
        )

    def affine(self, scale: ArrayLike, offset: ArrayLike) -> Moments:
        """Return the moments of ``value * scale + offset``, both per band."""
        scale = np.broadcast_to(np.asarray(scale, np.float64), self.mean.shape)
        offset = np.broadcast_to(np.asarray(offset, np.float64), self.mean.shape)
        factor = np.outer(scale, scale) if self.full else scale**2
        ends = np.stack([self.minimum * scale + offset, self.maximum * scale + offset])
        return Moments(
            self.count, self.mean * scale + offset, self.scatter * factor, ends.min(0), ends.max(0)
        )

    def select(self, bands: NDArray[np.intp]) -> Moments:
        """Return the moments of some bands, in the given order."""
        scatter = self.scatter[np.ix_(bands, bands)] if self.full else self.scatter[bands]
        return Moments(self.count, self.mean[bands], scatter, self.minimum[bands], self.maximum[bands])


@dataclass(frozen=True)
class BandStatistics:
    """Statistics of blocks over all candidate bands, kept apart by which bands hold data.

    `groups` maps a pattern of bands with data (bytes of a bool array) to the moments over just those bands of the
    pixels that are valid in all of them. There are as many patterns as there are kinds of blocks, usually one or two.
    """

    considered: int  #: training pixels looked at, valid or not
    blank: int  #: of them, pixels without data in any band
    valid: NDArray[np.int64]  #: (bands,) of them, pixels with data in the band
    groups: Mapping[bytes, Moments] = field(default_factory=dict[bytes, Moments])

    @classmethod
    def empty(cls, bands: int) -> BandStatistics:
        """Return the statistics of no pixel."""
        return cls(0, 0, np.zeros(bands, np.int64))

    @classmethod
    def of(
        cls, values_bp: NDArray[np.generic], invalid_bp: NDArray[np.bool_] | None, *, full: bool, judge: bool
    ) -> BandStatistics:
        """Compute the statistics of one block's training pixels.

        Parameters
        ----------
        values_bp
            (bands, pixels) as read.
        invalid_bp
            Same shape, true where there is no data; None when every value is data.
        full
            Also covariances.
        judge
            Leave bands without data in this block out of the judgement of pixels; else every band counts.
        """
        bands, count = values_bp.shape
        if invalid_bp is None:
            present = np.ones(bands, bool)
            valid, blank = np.full(bands, count, np.int64), 0
            moments = Moments.of(values_bp, full=full)
        else:
            valid = count - invalid_bp.sum(axis=1, dtype=np.int64)
            blank = int(invalid_bp.all(axis=0).sum())
            present = valid > 0 if judge else np.ones(bands, bool)
            keep = ~invalid_bp[present].any(axis=0) if present.any() else np.zeros(count, bool)
            moments = Moments.of(values_bp[np.ix_(present, keep)], full=full)
        return cls(count, blank, valid, {present.tobytes(): moments} if count else {})

    def affine(self, scale: F8, offset: F8) -> BandStatistics:
        """Return the statistics of ``value * scale + offset`` (bands,)."""
        changed: dict[bytes, Moments] = {}
        for pattern, moments in self.groups.items():
            present = np.frombuffer(pattern, bool)
            changed[pattern] = moments.affine(scale[present], offset[present])
        return BandStatistics(self.considered, self.blank, self.valid, changed)

    def merge(self, other: BandStatistics) -> BandStatistics:
        """Return the statistics of both; call in block order where bytes must repeat."""
        groups = dict(self.groups)
        for pattern, moments in other.groups.items():
            groups[pattern] = groups[pattern].merge(moments) if pattern in groups else moments
        return BandStatistics(
            self.considered + other.considered, self.blank + other.blank, self.valid + other.valid, groups
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """(bands,) true for the bands with data somewhere."""
        return self.valid > 0

    def moments(self) -> Moments:
        """Return the moments over the bands that hold data, of the pixels valid in all of them."""
        pattern = self.present.tobytes()
        if pattern in self.groups:
            return self.groups[pattern]
        full = all(moments.full for moments in self.groups.values())
        return Moments.empty(int(self.present.sum()), full=full)
