"""What each split holds of each class: a table, and which classes a split lacks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from ..errors import BandstreamWarning
from .config import SPLIT_NAMES

Labelled = Mapping[str, Sequence[int]]
_ROWS = 60
_WITHOUT = {
    "train": "they cannot be learned",
    "validation": "they do not count when the best epoch is chosen",
    "test": "they are not scored",
}


def class_shares(labelled: Labelled) -> dict[str, list[float]]:
    """Return, by split, the share of each class's labelled pixels that it holds, 0 for a class without any.

    Parameters
    ----------
    labelled
        By split, labelled pixels of each class. The split `none` (margins) counts for nothing.
    """
    totals = [sum(counts) for counts in zip(*(labelled[name] for name in SPLIT_NAMES), strict=True)]
    return {
        name: [count / total if total else 0.0 for count, total in zip(labelled[name], totals, strict=True)]
        for name in SPLIT_NAMES
    }


def balance_lines(
    names: Sequence[str], labelled: Labelled, pixels: Mapping[str, int] | None = None
) -> list[str]:
    """Return a table of what the splits hold: labelled pixels of each class, and which share of them that is.

    Parameters
    ----------
    names
        Of the classes 1, 2, ...
    labelled
        By split, labelled pixels of each class; the split `none` is told as margin, without a share.
    pixels
        By split, all its pixels, as the first line.
    """
    counted = pixels if pixels is not None else {name: sum(counts) for name, counts in labelled.items()}
    splits = [name for name, count in counted.items() if count]
    if not splits or (pixels is None and not names):
        return []
    width = min(max(12, *map(len, names), 0), 30)
    shares = class_shares(labelled)
    lines = [" " * width + "".join(f"{'margin' if name == 'none' else name:>20s}" for name in splits)]
    if pixels is not None:
        lines.append(f"{'pixels':{width}s}" + "".join(f"{pixels[name]:>13,}{'':7s}" for name in splits))
    for number, name in enumerate(names[:_ROWS]):
        cells = [
            f"{labelled[split][number]:>13,}"
            + (f"{shares[split][number]:>7.1%}" if split in shares else f"{'':7s}")
            for split in splits
        ]
        lines.append(f"{name[:30]:{width}s}" + "".join(cells))
    if len(names) > _ROWS:
        lines.append(f"and {len(names) - _ROWS} more classes")
    return [line.rstrip() for line in lines]


def absent_classes(names: Sequence[str], labelled: Labelled) -> list[str]:
    """Return a sentence on each split that holds labels, but none of a class that has some elsewhere."""
    told: list[str] = []
    for split in (name for name in SPLIT_NAMES if sum(labelled[name])):
        absent = [
            name
            for number, name in enumerate(names)
            if not labelled[split][number] and any(counts[number] for counts in labelled.values())
        ]
        if absent:
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            told.append(
                f"The {split} split holds no labelled pixel of {', '.join(absent[:10])}{more}: {_WITHOUT[split]}"
            )
    return told


def warn_of_absent_classes(told: Sequence[str]) -> None:
    """Warn with the sentences of `absent_classes`."""
    for sentence in told:
        warnings.warn(
            f"{sentence}. Smaller blocks or stripes, a smaller margin or another split.seed may spread them.",
            BandstreamWarning,
            stacklevel=4,
        )
