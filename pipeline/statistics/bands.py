"""Statistics of the training pixels over all candidate bands, in one pass, bands without data among them.

Bands without any data are found in the same pass: a slab's statistics are taken over the bands that hold data *there*,
and slabs that lack a band which others have are dropped at the end, since none of their pixels is valid in every kept
band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .differences import LastRow, difference_moments
from .histogram import Histogram
from .moments import F8, Moments
from .sample import Sample


@dataclass(frozen=True)
class Wanted:
    """What is gathered beside count, mean, variance and range."""

    covariance: bool = False
    directions: tuple[str, ...] = ()  #: of the differences between neighbours
    classes: int = 0  #: moments of each class
    class_covariance: bool = False  #: with covariances between bands
    sample_below: int = 0  #: keys below it are sampled
    labelled_below: int = 0  #: the same among labelled pixels alone
    histogram: bool = False  #: exact, of integers

    def covers(self, other: Wanted) -> bool:
        """Return whether all that `other` wants is gathered too."""
        return (
            self.covariance >= other.covariance
            and set(self.directions) >= set(other.directions)
            and self.class_covariance >= other.class_covariance
            and self.sample_below >= other.sample_below
            and self.labelled_below >= other.labelled_below
            and self.histogram >= other.histogram
        )


@dataclass(frozen=True)
class Slab:
    """Some rows of a scene as the statistics see them."""

    values_byx: NDArray[Any]  #: (bands, rows, cols); finite where `keep_yx`
    keep_yx: NDArray[np.bool_]  #: training pixels with data in every band
    labels_yx: NDArray[np.uint16] | None
    keys_yx: NDArray[np.uint64] | None
    above: LastRow | None = None  #: the row before, in the same bands


@dataclass(frozen=True)
class Group:
    """Statistics of the pixels that are valid in one set of bands."""

    moments: Moments
    raw: Moments | None = None  #: variances of the bands themselves, where stages stand before the statistics
    differences: Mapping[str, Moments] = field(default_factory=dict[str, Moments])
    classes: tuple[Moments, ...] = ()
    sample: Sample | None = None
    labelled: Sample | None = None
    histogram: Histogram | None = None

    @classmethod
    def of(cls, slab: Slab, wanted: Wanted, raw: Moments | None = None) -> Group:
        """Compute the statistics of a slab."""
        values, keep, labels = slab.values_byx, slab.keep_yx, slab.labels_yx
        kept = values if keep.all() else values[:, keep]
        differences = {name: difference_moments(values, keep, name, slab.above) for name in wanted.directions}
        if labels is None:  # of this scene; others may have some
            classes = (Moments.empty(len(values), full=wanted.class_covariance),) * wanted.classes
        else:
            classes = tuple(
                Moments.of(values[:, keep & (labels == number)], full=wanted.class_covariance)
                for number in range(1, wanted.classes + 1)
            )
        sample, labelled = (
            None
            if not below or slab.keys_yx is None
            else Sample.of(values, chosen, slab.keys_yx, labels, below)
            for below, chosen in (
                (wanted.sample_below, keep),
                (wanted.labelled_below, np.zeros_like(keep) if labels is None else keep & (labels > 0)),
            )
        )
        histogram = Histogram.of(kept.reshape(len(kept), -1)) if wanted.histogram else None
        moments = Moments.of(kept, full=wanted.covariance)
        return cls(moments, raw, differences, classes, sample, labelled, histogram)

    def merge(self, other: Group) -> Group:
        """Return the statistics of both sets of pixels."""
        return Group(
            self.moments.merge(other.moments),
            _merged(self.raw, other.raw),
            {name: part.merge(other.differences[name]) for name, part in self.differences.items()},
            tuple(a.merge(b) for a, b in zip(self.classes, other.classes, strict=True)),
            _merged(self.sample, other.sample),
            _merged(self.labelled, other.labelled),
            _merged(self.histogram, other.histogram),
        )

    def affine(self, scale: F8, offset: F8) -> Group:
        """Return the statistics of ``value * scale + offset`` (bands,)."""
        none = np.zeros_like(offset)
        return Group(
            self.moments.affine(scale, offset),
            self.raw,
            {name: part.affine(scale, none) for name, part in self.differences.items()},
            tuple(part.affine(scale, offset) for part in self.classes),
            self.sample and self.sample.affine(scale, offset),
            self.labelled and self.labelled.affine(scale, offset),
            self.histogram and self.histogram.affine(scale, offset),
        )

    def select(self, bands: NDArray[np.intp]) -> Group:
        """Return the statistics over some bands, in the given order."""
        return Group(
            self.moments.select(bands),
            self.raw and self.raw.select(bands),
            {name: part.select(bands) for name, part in self.differences.items()},
            tuple(part.select(bands) for part in self.classes),
            self.sample and self.sample.select(bands),
            self.labelled and self.labelled.select(bands),
            self.histogram and self.histogram.select(bands),
        )


def _merged(first: Any, second: Any) -> Any:
    return first if second is None else second if first is None else first.merge(second)


@dataclass(frozen=True)
class BandStatistics:
    """Statistics of blocks over all candidate bands, kept apart by which bands hold data.

    `groups` maps a pattern of bands with data (bytes of a bool array) to the statistics over just those bands of the
    pixels that are valid in all of them. There are as many patterns as there are kinds of slabs, usually one or two.
    """

    considered: int  #: training pixels looked at, valid or not
    blank: int  #: of them, pixels without data in any band
    valid: NDArray[np.int64]  #: (bands,) of them, pixels with data in the band
    groups: Mapping[bytes, Group] = field(default_factory=dict[bytes, Group])

    @classmethod
    def empty(cls, bands: int) -> BandStatistics:
        """Return the statistics of no pixel."""
        return cls(0, 0, np.zeros(bands, np.int64))

    @classmethod
    def of(
        cls,
        values_bp: NDArray[Any],
        invalid_bp: NDArray[np.bool_] | None,
        *,
        judge: bool,
        wanted: Wanted | None = None,
    ) -> BandStatistics:
        """Compute the statistics of training pixels without regard to where they lie.

        Parameters
        ----------
        values_bp
            (bands, pixels) as read.
        invalid_bp
            Same shape, true where there is no data; None when every value is data.
        judge
            Leave bands without data in this block out of the judgement of pixels; else every band counts.
        wanted
            Covariances by default.
        """
        bands, pixels = values_bp.shape
        judged = Judged.of(
            None if invalid_bp is None else invalid_bp[:, None],
            np.ones((1, pixels), bool),
            bands,
            judge=judge,
        )
        slab = Slab(values_bp[:, None][judged.present], judged.keep_yx, None, None)
        return judged.statistics(Group.of(slab, wanted or Wanted(covariance=True)))

    def affine(self, scale: F8, offset: F8) -> BandStatistics:
        """Return the statistics of ``value * scale + offset`` (bands,)."""
        changed: dict[bytes, Group] = {}
        for pattern, group in self.groups.items():
            present = np.frombuffer(pattern, bool)
            changed[pattern] = group.affine(scale[present], offset[present])
        return replace(self, groups=changed)

    def merge(self, other: BandStatistics) -> BandStatistics:
        """Return the statistics of both; call in block order where bytes must repeat."""
        groups = dict(self.groups)
        for pattern, group in other.groups.items():
            groups[pattern] = groups[pattern].merge(group) if pattern in groups else group
        return BandStatistics(
            self.considered + other.considered, self.blank + other.blank, self.valid + other.valid, groups
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """(bands,) true for the bands with data somewhere."""
        return self.valid > 0

    def group(self) -> Group | None:
        """Return the statistics over the bands that hold data, of the pixels valid in all of them; None without any."""
        return self.groups.get(self.present.tobytes())

    def moments(self) -> Moments:
        """Return the moments of `group`."""
        found = self.group()
        if found is not None:
            return found.moments
        full = all(group.moments.full for group in self.groups.values())
        return Moments.empty(int(self.present.sum()), full=full)


@dataclass(frozen=True)
class Judged:
    """Which bands of a slab hold data, and which training pixels hold it in all of these."""

    considered: int
    blank: int
    valid: NDArray[np.int64]
    present: NDArray[np.bool_]  #: (bands,) bands that take part in the judgement
    keep_yx: NDArray[np.bool_]

    @classmethod
    def of(
        cls, invalid_byx: NDArray[np.bool_] | None, wanted_yx: NDArray[np.bool_], bands: int, *, judge: bool
    ) -> Judged:
        """Judge the training pixels `wanted_yx` of a slab; see `BandStatistics.of`."""
        count = int(wanted_yx.sum())
        if invalid_byx is None or not invalid_byx.any():
            return cls(count, 0, np.full(bands, count, np.int64), np.ones(bands, bool), wanted_yx)
        inside = invalid_byx if count == wanted_yx.size else invalid_byx & wanted_yx
        valid = count - inside.sum(axis=(1, 2), dtype=np.int64)
        blank = int((inside.all(axis=0) & wanted_yx).sum())
        present = valid > 0 if judge else np.ones(bands, bool)
        keep = np.zeros_like(wanted_yx)
        if present.any():
            keep = wanted_yx & ~(invalid_byx if present.all() else invalid_byx[present]).any(axis=0)
        return cls(count, blank, valid, present, keep)

    def statistics(self, group: Group) -> BandStatistics:
        """Return the slab's statistics, given those of the kept pixels."""
        groups = {self.present.tobytes(): group} if self.considered else {}
        return BandStatistics(self.considered, self.blank, self.valid, groups)
