"""Mutual information from a sample of spectra with class labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...statistics import F8

I4 = NDArray[np.int32]

#: Bins of equal frequency per band, at most.
BINS = 8
#: Pixels for each cell of (bin, bin of another band, class) at the least; fewer pixels get fewer bins.
_PER_CELL = 5
#: Nats: a sum of entropies that is less is rounding.
_ROUNDING = 1e-12


def equal_frequency(values_bp: NDArray[np.floating], bins: int = BINS) -> I4:
    """Return the bin of each value, (bands, n) int32 from 0.

    A value's bin is ``floor(bins * rank)``, where `rank` is the share of the band's values below it and half of those
    equal to it: equal values share a bin, and a band of two values always has two.
    """
    out = np.empty(values_bp.shape, np.int32)
    for band, values in enumerate(values_bp):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        out[band] = ((np.cumsum(counts) - counts / 2) * (bins / len(values))).astype(np.int32)[inverse]
    return out


def mutual_information(first: I4, second: I4, given: I4 | None = None) -> float:
    """Return I(first; second), or I(first; second | given), in nats of discrete variables (n,), corrected for bias.

    The plug-in estimate plus (m_xz + m_yz - m_xyz - m_z) / (2 n), where m counts the cells that are not empty: Miller
    (1955), "Note on the bias of information estimates". Without it a variable of more values seems to tell more. At
    least 0.
    """
    count = len(first)
    third = np.zeros_like(first) if given is None else given
    shape = tuple(int(part.max()) + 1 for part in (first, second, third))
    cells = np.bincount(np.ravel_multi_index((first, second, third), shape), minlength=math.prod(shape))
    table = cells.reshape(shape)
    # I(x; y | z) = H(x, z) + H(y, z) - H(x, y, z) - H(z)
    tables = (table.sum(axis=1), table.sum(axis=0), table, table.sum(axis=(0, 1)))
    xz, yz, xyz, z = (_entropy(part, count) for part in tables)
    found = xz + yz - xyz - z
    return found if found > _ROUNDING else 0.0


def _entropy(counts: NDArray[np.integer], total: int) -> float:
    filled = counts[counts > 0]
    return float(np.log(total) - (filled * np.log(filled)).sum() / total + (len(filled) - 1) / (2 * total))


@dataclass(frozen=True)
class Binned:
    """The labelled spectra of a sample, in bins."""

    bins_bp: I4  #: (bands, n)
    labels: I4  #: (n,) classes, numbered from 0

    @classmethod
    def of(cls, sample_bp: NDArray[np.floating], sample_labels: NDArray[np.integer]) -> Binned:
        """Bin the labelled pixels of a sample.

        Parameters
        ----------
        sample_bp
            (bands, n) spectra.
        sample_labels
            (n,) classes, 0 = unlabelled.

        Raises
        ------
        ConfigError
            Fewer than two classes are in the sample.
        """
        labelled = sample_labels != 0
        classes, labels = np.unique(sample_labels[labelled], return_inverse=True)
        if len(classes) < 2:
            found = f"only class {int(classes[0])}" if len(classes) else "none"
            raise ConfigError(
                f"reduce.rank mutual_information needs training pixels of two classes at least; of "
                f"{len(sample_labels):,} sampled training pixels {int(labelled.sum()):,} are labelled ({found}). Give the "
                "scenes `labels`, or choose the rank mnf or osp, which need none."
            )
        bins = int(np.clip(np.sqrt(labelled.sum() / (_PER_CELL * len(classes))), 2, BINS))
        return cls(equal_frequency(sample_bp[:, labelled], bins), labels.astype(np.int32).ravel())

    def with_labels(self) -> F8:
        """Return the information of each band on the labels, (bands,) nats."""
        return np.array([mutual_information(bins, self.labels) for bins in self.bins_bp])

    def beyond(self, band: int, known: int) -> float:
        """Return the information of a band on the labels beyond that of a known one, nats."""
        return mutual_information(self.bins_bp[band], self.labels, self.bins_bp[known])

    @property
    def constant(self) -> NDArray[np.bool_]:
        """(bands,) true where all values share one bin."""
        return self.bins_bp.max(axis=1) == self.bins_bp.min(axis=1)
