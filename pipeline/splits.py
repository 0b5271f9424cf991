"""Spatial splits, made before anything is fitted, and the proof that they share no pixel.

A split map gives every pixel of a scene a code: 1 train, 2 validation, 3 test, 0 none. A training sample sees the
pixels within `halo` of its own (Chebyshev distance), so two splits share no pixel when theirs lie more than 2 halo
apart: the margin takes that much away between blocks of different splits. The claim is "no shared pixels", not
"independent": neighbouring fields stay alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import LabelError
from .labels import LabelRaster
from .store import SPLIT_CODE

Codes = NDArray[np.uint8]
_PROOF_PIXELS = 4 << 20


class SplitMap(Protocol):
    """Split codes of one scene."""

    def codes(self, rows: slice, cols: slice) -> Codes:
        """Return the codes (rows, cols) of a window inside the scene."""
        ...

    @property
    def uniform(self) -> int | None:
        """The one code that all pixels have, or None."""
        ...


@dataclass(frozen=True)
class WholeScene:
    """All pixels in one split."""

    code: int

    @property
    def uniform(self) -> int | None:
        """The one code."""
        return self.code

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`."""
        return np.full((rows.stop - rows.start, cols.stop - cols.start), self.code, np.uint8)


@dataclass(frozen=True)
class BlockSplit:
    """Square blocks, each in one split, with a margin between blocks of different splits."""

    shape_yx: tuple[int, int]
    block: int  #: side in pixels
    table: Codes  #: (block rows, block columns) codes
    margin: int  #: pixels kept free between different splits

    @property
    def uniform(self) -> int | None:
        """The code if all blocks have the same."""
        first = int(self.table.flat[0])
        return first if (self.table == first).all() else None

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`."""
        erosion = -(-self.margin // 2)
        y, x = (_clip(span, erosion, n) for span, n in zip((rows, cols), self.shape_yx, strict=True))
        wide = self.table[np.arange(y.start, y.stop) // self.block][
            :, np.arange(x.start, x.stop) // self.block
        ]
        kept = _erode(wide, erosion)
        return kept[rows.start - y.start : rows.stop - y.start, cols.start - x.start : cols.stop - x.start]


def _clip(span: slice, more: int, length: int) -> slice:
    return slice(max(0, span.start - more), min(length, span.stop + more))


def _erode(codes: Codes, distance: int) -> Codes:
    """Set pixels to 0 that have another code within `distance`."""
    if not distance:
        return codes
    from scipy.ndimage import maximum_filter, minimum_filter

    side = 2 * distance + 1
    low = minimum_filter(codes, side, mode="nearest")
    high = maximum_filter(codes, side, mode="nearest")
    return np.where(low == high, codes, 0).astype(np.uint8)


def deal_blocks(weights: Sequence[NDArray[np.int64]], fractions: dict[str, float], seed: int) -> list[Codes]:
    """Deal the blocks of all scenes to the splits so that each class comes near its fractions.

    Blocks are taken from the most to the least labelled, equal ones in an order drawn by `seed`, and each goes to the
    split that lacks most of what the block holds (after Sechidis, Tsoumakas and Vlahavas 2011, "On the stratification
    of multi-label data").

    Parameters
    ----------
    weights
        Per scene (block rows, block columns, classes + 1): pixels by class, the first column all pixels.
    fractions
        By split name; they add up to 1.
    seed
        Of the order among equal blocks.

    Returns
    -------
    list
        Per scene the codes (block rows, block columns).
    """
    names = [name for name in ("train", "validation", "test") if fractions.get(name)]
    codes = np.array([SPLIT_CODE[name] for name in names], np.uint8)
    share = np.array([fractions[name] for name in names])
    flat = np.concatenate([w.reshape(-1, w.shape[-1]) for w in weights]).astype(np.float64)
    # every class counts the same, however rare; all pixels together count as one class more
    flat /= np.maximum(flat.sum(axis=0), 1)
    want = share[:, None] * flat.sum(axis=0)
    order = np.random.default_rng(seed).permutation(len(flat))
    order = order[np.argsort(-flat[order, 1:].sum(axis=1) - 1e-9 * flat[order, 0], kind="stable")]
    dealt = np.zeros(len(flat), np.uint8)
    for block in order:
        gain = (want * flat[block]).sum(axis=1)
        best = int(np.argmax(gain + 1e-12 * want.sum(axis=1)))
        dealt[block] = codes[best]
        want[best] -= flat[block]
    ends = np.cumsum([w.shape[0] * w.shape[1] for w in weights])[:-1]
    return [part.reshape(w.shape[:2]) for part, w in zip(np.split(dealt, ends), weights, strict=True)]


def row_slabs(shape_yx: tuple[int, int], pixels: int = _PROOF_PIXELS) -> Iterator[slice]:
    """Cut a scene into slabs of whole rows with about `pixels` pixels each."""
    rows = max(1, pixels // max(1, shape_yx[1]))
    for start in range(0, shape_yx[0], rows):
        yield slice(start, min(shape_yx[0], start + rows))


def shared_pixels(split: SplitMap, shape_yx: tuple[int, int], halo: int) -> dict[str, int]:
    """Count the pixels that samples of two splits both see, halo included.

    Parameters
    ----------
    split
        Codes of the scene.
    shape_yx
        Its size.
    halo
        How far around its own pixels a sample sees.

    Returns
    -------
    dict
        ``"train-validation"`` and so on -> pixels; empty when the scene lies in one split.
    """
    if split.uniform is not None:
        return {}
    from scipy.ndimage import maximum_filter

    pairs = [("train", "validation"), ("train", "test"), ("validation", "test")]
    counts = {f"{a}-{b}": 0 for a, b in pairs}
    for rows in row_slabs(shape_yx):
        wide = _clip(rows, halo, shape_yx[0])
        codes = split.codes(wide, slice(0, shape_yx[1]))
        inner = slice(rows.start - wide.start, rows.stop - wide.start)
        seen: dict[str, NDArray[np.bool_]] = {
            name: np.asarray(maximum_filter(codes == code, 2 * halo + 1, mode="constant", cval=0), bool)[
                inner
            ]
            for name, code in SPLIT_CODE.items()
            if code
        }
        for a, b in pairs:
            counts[f"{a}-{b}"] += int((seen[a] & seen[b]).sum())
    return counts


@dataclass(frozen=True)
class RasterSplit:
    """Codes read from a raster on the scene's grid; never altered."""

    raster: LabelRaster

    @property
    def uniform(self) -> int | None:
        """Not known without reading."""
        return None

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`.

        Raises
        ------
        LabelError
            The raster holds another number than 0, 1, 2 and 3.
        """
        numbers = self.raster.read(rows, cols)
        if numbers.max(initial=0) > 3:
            raise LabelError(
                f"The split raster {self.raster.path} holds {int(numbers.max())}; it may hold 0 (none), 1 (train), "
                "2 (validation) and 3 (test)."
            )
        return numbers.astype(np.uint8)
