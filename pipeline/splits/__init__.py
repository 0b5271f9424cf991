"""Spatial splits, made before anything is fitted, and the proof that they share no pixel.

A split map gives every pixel of a scene a code: 1 train, 2 validation, 3 test, 0 none. A training sample sees the
pixels within `halo` of its own (Chebyshev distance), so two splits share no pixel when theirs lie more than 2 halo
apart: the margin takes that much away between units of different splits. The claim is "no shared pixels", not
"independent": neighbouring fields stay alike (`margin: range` goes as far as the data say they do).

`config` holds the settings, `dealing` gives units to splits or folds, `maps` says which pixel is where, `making` brings
the three together, `proof` counts the pixels that two splits see, `balance` tells what each split holds, and
`variogram` measures how far pixels stay alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import (
    BlocksSplit,
    GivenSplit,
    GroupsSplit,
    NoSplit,
    RandomSplit,
    ScenesSplit,
    SplitConfig,
    StripesSplit,
)

if TYPE_CHECKING:
    from .dealing import deal, deal_blocks, fold_codes
    from .maps import BlockSplit, GroupSplit, PixelSplit, RasterSplit, SplitMap, WholeScene
    from .proof import row_slabs, seen_by_two, shared_pixels

__all__ = [
    "BlockSplit",
    "BlocksSplit",
    "GivenSplit",
    "GroupSplit",
    "GroupsSplit",
    "NoSplit",
    "PixelSplit",
    "RandomSplit",
    "RasterSplit",
    "ScenesSplit",
    "SplitConfig",
    "SplitMap",
    "StripesSplit",
    "WholeScene",
    "deal",
    "deal_blocks",
    "fold_codes",
    "row_slabs",
    "seen_by_two",
    "shared_pixels",
]

_HOMES = {
    **dict.fromkeys(("deal", "deal_blocks", "fold_codes"), "dealing"),
    **dict.fromkeys(
        ("BlockSplit", "GroupSplit", "PixelSplit", "RasterSplit", "SplitMap", "WholeScene"), "maps"
    ),
    **dict.fromkeys(("row_slabs", "seen_by_two", "shared_pixels"), "proof"),
}


def __getattr__(name: str) -> Any:
    """Import what works on pixels when it is first asked for: workflow files need the settings only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
