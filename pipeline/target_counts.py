"""What a store tells about its targets: how many pixels have one, their mean and spread, and whether they add up to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TRAIN = 1
_ONE = 1e-3  #: how far abundances may be from adding up to 1
_FEW = 0.5  #: from this share of pixels on that add up to 1, targets are taken for abundances


@dataclass(frozen=True)
class TargetCounts:
    """Counts of the tiles of one shard, over valid core pixels; plain lists, for a journal."""

    known: list[list[list[int]]]  #: per tile, split and target: pixels where it is known
    mean: list[float]  #: per target, over the training pixels
    scatter: list[float]  #: per target: sum of squared distances from the mean
    complete: int  #: pixels where all targets are known
    ones: int  #: of these, where they add up to 1

    @classmethod
    def of(
        cls, targets: NDArray[np.float32], valid: NDArray[np.bool_], split: NDArray[np.uint8], halo: int
    ) -> TargetCounts:
        """Count targets (tile, target, y, x), valid and split (tile, y, x), all with halo."""
        side = valid.shape[1]
        core = slice(halo, side - halo)
        values, codes = targets[:, :, core, core].astype(np.float64), split[:, core, core]
        use = valid[:, core, core]
        finite = np.isfinite(values) & use[:, None]
        known = np.stack([(finite & (codes == code)[:, None]).sum(axis=(2, 3)) for code in range(4)], axis=1)
        train = finite & (codes == _TRAIN)[:, None]
        count = np.maximum(train.sum(axis=(0, 2, 3)), 1)
        mean = np.where(train, values, 0.0).sum(axis=(0, 2, 3)) / count
        apart = np.where(train, values - mean[:, None, None], 0.0)
        complete = finite.all(axis=1)
        total = np.where(complete, np.where(finite, values, 0.0).sum(axis=1), 0.0)
        ones = complete & (np.abs(total - 1) <= _ONE)
        return cls(
            known.tolist(),
            mean.tolist(),
            (apart**2).sum(axis=(0, 2, 3)).tolist(),
            int(complete.sum()),
            int(ones.sum()),
        )


def read_counts(kept: dict[str, Any] | None) -> TargetCounts | None:
    """Return counts from a journal."""
    return None if kept is None else TargetCounts(**kept)


def describe_targets(
    shards: Sequence[TargetCounts], names: Sequence[str], units: Sequence[str], splits: Sequence[str]
) -> tuple[NDArray[np.int64], dict[str, Any], list[str]]:
    """Put the counts of all shards together, in their order.

    Returns
    -------
    known
        (tile, split, target) valid core pixels where a target is known.
    attrs
        For the store: names, units, mean and (population) standard deviation over the training pixels, pixels by split.
    notes
        What a user should know.
    """
    known = np.concatenate([np.asarray(shard.known, np.int64) for shard in shards])
    count, mean, scatter = (np.zeros(len(names)) for _ in range(3))
    for shard in shards:
        more = np.asarray(shard.known, np.float64)[:, _TRAIN].sum(axis=0)
        step = np.asarray(shard.mean) - mean
        total = np.maximum(count + more, 1)
        scatter += np.asarray(shard.scatter) + step**2 * count * more / total
        mean += step * more / total
        count += more
    std = np.sqrt(scatter / np.maximum(count, 1))
    attrs = {
        "names": list(names),
        "units": list(units),
        "mean": [float(value) if n else None for value, n in zip(mean, count, strict=True)],
        "std": [float(value) if n else None for value, n in zip(std, count, strict=True)],
        "pixels": {name: known[:, code].sum(axis=0).tolist() for code, name in enumerate(splits)},
    }
    notes: list[str] = []
    complete, ones = sum(shard.complete for shard in shards), sum(shard.ones for shard in shards)
    if len(names) > 1 and ones < complete and ones > _FEW * complete:
        notes.append(
            f"the targets add up to 1 within {_ONE:g} in {ones:,} of {complete:,} pixels; as abundances they should in all"
        )
    return known, attrs, notes
