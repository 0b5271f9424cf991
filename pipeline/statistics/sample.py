"""A uniform sample of pixels that does not depend on the order in which blocks come.

Each pixel has a key, a hash of its place; the pixels whose keys lie below a threshold are kept, and of these the ones
with the smallest keys in the end (bottom-k sampling: Cohen and Kaplan 2007, "Summarizing data using bottom-k sketches").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .moments import F8

#: Pixels of a sample. Its quantiles are off by less than 1.3 % of the pixels in 99 of 100 cases
#: (Dvoretzky-Kiefer-Wolfowitz: sqrt(ln(2 / 0.01) / (2 n))).
SAMPLE_PIXELS = 16384


def pixel_keys(scene: int, rows: slice, cols: int) -> NDArray[np.uint64]:
    """Return the keys (rows, cols) of whole rows of a scene: splitmix64 of scene number, row and column."""
    row = np.arange(rows.start, rows.stop, dtype=np.uint64)[:, None]
    key = (np.uint64(scene) << np.uint64(52)) ^ (row << np.uint64(26)) ^ np.arange(cols, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for multiplier, shift in (
            (0x9E3779B97F4A7C15, 30),
            (0xBF58476D1CE4E5B9, 27),
            (0x94D049BB133111EB, 31),
        ):
            key = key * np.uint64(multiplier)
            key ^= key >> np.uint64(shift)
    return key


def threshold(pixels: int) -> int:
    """Return the key below which one and a half times `SAMPLE_PIXELS` of so many pixels lie, since masked ones fall out."""
    return min(2**64 - 1, 2**64 * 3 * SAMPLE_PIXELS // (2 * max(1, pixels)))


@dataclass(frozen=True)
class Sample:
    """Pixels with their keys and labels, as parts that are joined when they are asked for."""

    bands: int
    parts: tuple[tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.uint16]], ...] = field(default=())

    @classmethod
    def of(
        cls,
        values_byx: NDArray[Any],
        keep_yx: NDArray[np.bool_],
        keys_yx: NDArray[np.uint64],
        labels_yx: NDArray[np.uint16] | None,
        below: int,
    ) -> Sample:
        """Take the pixels of a block whose keys lie below a threshold."""
        chosen = keep_yx & (keys_yx < np.uint64(below))
        if not chosen.any():
            return cls(len(values_byx))
        labels = np.zeros(int(chosen.sum()), np.uint16) if labels_yx is None else labels_yx[chosen]
        return cls(len(values_byx), ((keys_yx[chosen], values_byx[:, chosen], labels),))

    def merge(self, other: Sample) -> Sample:
        """Return both samples together."""
        return Sample(self.bands, (*self.parts, *other.parts))

    def affine(self, scale: F8, offset: F8) -> Sample:
        """Return the sample of ``value * scale + offset``, in float32, or in float64 where that would lose digits."""
        scaled = tuple(
            (keys, (values * scale[:, None] + offset[:, None]).astype(_floating(values)), labels)
            for keys, values, labels in self.parts
        )
        return Sample(self.bands, scaled)

    def drawn(self) -> tuple[NDArray[np.floating], NDArray[np.uint16]]:
        """Return the spectra (bands, n) with the smallest keys, at most `SAMPLE_PIXELS`, and their labels (n,)."""
        if not self.parts:
            return np.empty((self.bands, 0), np.float32), np.empty(0, np.uint16)
        keys = np.concatenate([part[0] for part in self.parts])
        order = np.argsort(keys, kind="stable")[:SAMPLE_PIXELS]
        values = np.concatenate([part[1] for part in self.parts], axis=1)[:, order]
        return values.astype(_floating(values), copy=False), np.concatenate([p[2] for p in self.parts])[order]

    def select(self, bands: NDArray[np.intp]) -> Sample:
        """Return the sample of some bands."""
        return Sample(len(bands), tuple((keys, values[bands], labels) for keys, values, labels in self.parts))


def _floating(values: NDArray[Any]) -> np.dtype[Any]:
    """Return float32, or float64 for numbers that it does not hold exactly."""
    return np.result_type(values.dtype, np.float32)


def compacted(parts: Sequence[Sample]) -> Sample:
    """Return samples of one block as one part, so that few arrays travel."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    if len(whole.parts) < 2:
        return whole
    keys, values, labels = zip(*whole.parts, strict=True)
    return Sample(
        whole.bands, ((np.concatenate(keys), np.concatenate(values, axis=1), np.concatenate(labels)),)
    )
