"""Which pixel of a scene stands in which split, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import LabelError

if TYPE_CHECKING:
    from ..labels import LabelRaster, Labels

Codes = NDArray[np.uint8]


class SplitMap(Protocol):
    """Split codes of one scene; small and picklable, since every task takes it along."""

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
    """Blocks or stripes, each in one split, with a margin between those of different splits."""

    shape_yx: tuple[int, int]
    block_yx: tuple[int, int]  #: sides in pixels
    table: Codes  #: (block rows, block columns) codes
    margin: int  #: pixels kept free between different splits

    @property
    def uniform(self) -> int | None:
        """The code if all blocks have the same."""
        first = int(self.table.flat[0])
        return first if (self.table == first).all() else None

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`."""
        distance = -(-self.margin // 2)
        y, x = (widened(span, distance, n) for span, n in zip((rows, cols), self.shape_yx, strict=True))
        wide = self.table[np.arange(y.start, y.stop) // self.block_yx[0]][
            :, np.arange(x.start, x.stop) // self.block_yx[1]
        ]
        kept = _eroded(wide, distance)
        return kept[rows.start - y.start : rows.stop - y.start, cols.start - x.start : cols.stop - x.start]


@dataclass(frozen=True)
class GroupSplit:
    """Groups of pixels, each in one split; a pixel of no group is in none.

    The margin is taken from both sides alike: half of it from each side of the line that lies midway between groups of
    different splits, so that groups that lie far enough apart lose nothing.
    """

    shape_yx: tuple[int, int]
    labels: Labels  #: that tell the groups
    table: Codes  #: (groups + 1,) codes by group number; none for number 0
    margin: int  #: pixels kept free between different splits

    @property
    def uniform(self) -> int | None:
        """Never known: there may be pixels outside all groups."""
        return None

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`."""
        distance = -(-self.margin // 2)
        y, x = (widened(span, 2 * distance, n) for span, n in zip((rows, cols), self.shape_yx, strict=True))
        wide = self.table[self.labels.group_codes(y, x)]
        kept = np.where(_eroded(_nearest(wide, distance), distance) == wide, wide, 0).astype(np.uint8)
        return kept[rows.start - y.start : rows.stop - y.start, cols.start - x.start : cols.stop - x.start]


@dataclass(frozen=True)
class PixelSplit:
    """Every pixel drawn on its own, from its place, the scene's key and a seed alone."""

    shape_yx: tuple[int, int]
    ends: tuple[float, float, float]  #: where the shares of train, validation and test end, the last at 1
    key: int  #: of scene and seed, below 2**64

    @property
    def uniform(self) -> int | None:
        """The code if one split has everything."""
        shares = np.diff((0.0, *self.ends))
        return int(np.argmax(shares)) + 1 if shares.max() == 1 else None

    def codes(self, rows: slice, cols: slice) -> Codes:
        """See `SplitMap`."""
        y = np.arange(rows.start, rows.stop, dtype=np.uint64)[:, None]
        x = np.arange(cols.start, cols.stop, dtype=np.uint64)[None, :]
        mixed = _mixed(_mixed(y * np.uint64(self.shape_yx[1]) + x) ^ np.uint64(self.key))
        drawn = (mixed >> np.uint64(11)) * 2.0**-53
        return (1 + np.searchsorted(np.array(self.ends[:2]), drawn, side="right")).astype(np.uint8)


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


def widened(span: slice, more: int, length: int) -> slice:
    """Return a span grown by `more` on both sides, inside 0..length."""
    return slice(max(0, span.start - more), min(length, span.stop + more))


def _eroded(codes: Codes, distance: int) -> Codes:
    """Set pixels to 0 that have another code within `distance`."""
    if not distance:
        return codes
    from scipy.ndimage import maximum_filter, minimum_filter

    side = 2 * distance + 1
    low = minimum_filter(codes, side, mode="nearest")
    high = maximum_filter(codes, side, mode="nearest")
    return np.where(low == high, codes, 0).astype(np.uint8)


def _nearest(codes: Codes, distance: int) -> Codes:
    """Give pixels of code 0 the nearest code within `distance` (Chebyshev), 4 where two codes are equally near.

    Pixels farther than that from all others become 0; `_eroded` with the same distance, which looks at pixels that
    have the wanted one within `distance`, never meets them.
    """
    if not distance:
        return codes
    from scipy.ndimage import distance_transform_cdt

    far = np.iinfo(np.int32).max
    nearest, best = np.zeros(codes.shape, np.uint8), np.full(codes.shape, far, np.int32)
    for code in (1, 2, 3):
        own = codes == code
        if not own.any():
            continue
        away = np.asarray(distance_transform_cdt(~own, "chessboard"), np.int32)
        nearest[(away == best) & (away <= distance)] = 4
        closer = (away < best) & (away <= distance)
        nearest[closer], best = code, np.minimum(best, away)
    return nearest


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit numbers: one step of SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
