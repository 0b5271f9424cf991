"""Dealing units (blocks, stripes, groups, scenes) to splits or folds so that each class comes near its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..store import SPLIT_CODE
from .config import SPLIT_NAMES, SplitName

if TYPE_CHECKING:
    from .config import DealtSplit

Codes = NDArray[np.uint8]


def deal(weights_uc: NDArray[np.int64], shares: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Deal units to parts.

    Units are taken from the most to the least labelled, equal ones in an order drawn by `seed`, and each goes to the
    part that lacks most of what the unit holds (after Sechidis, Tsoumakas and Vlahavas 2011, "On the stratification of
    multi-label data").

    Parameters
    ----------
    weights_uc
        (units, classes + 1): pixels of each unit by class, the first column all its pixels.
    shares
        Of the parts; they add up to 1.
    seed
        Of the order among equal units.

    Returns
    -------
    numpy.ndarray
        (units,) number of the part, from 0.
    """
    share = np.asarray(shares)
    flat = weights_uc.astype(np.float64)
    # every class counts the same, however rare; all pixels together count as one class more
    flat /= np.maximum(flat.sum(axis=0), 1)
    want = share[:, None] * flat.sum(axis=0)
    order = np.random.default_rng(seed).permutation(len(flat))
    order = order[np.argsort(-flat[order, 1:].sum(axis=1) - 1e-9 * flat[order, 0], kind="stable")]
    dealt = np.zeros(len(flat), np.int64)
    for unit in order:
        gain = (want * flat[unit]).sum(axis=1)
        best = int(np.argmax(gain + 1e-12 * want.sum(axis=1)))
        dealt[unit] = best
        want[best] -= flat[unit]
    return dealt


def deal_codes(weights_uc: NDArray[np.int64], split: DealtSplit) -> Codes:
    """Return the split code of each unit, (units,), as the settings ask: by fractions, or one fold of several.

    The folds do not depend on which one is the test split, so that over all of them each unit is tested exactly once.
    """
    if split.folds is None:
        return _by_fractions(weights_uc, split.fractions, split.seed)
    parts = deal(weights_uc, [1 / split.folds] * split.folds, split.seed)
    return fold_codes(parts, split.folds, split.fold, validation=split.validation_fold)


def _by_fractions(weights_uc: NDArray[np.int64], fractions: Mapping[SplitName, float], seed: int) -> Codes:
    names: list[SplitName] = [name for name in SPLIT_NAMES if fractions.get(name)]
    codes = np.array([SPLIT_CODE[name] for name in names], np.uint8)
    return codes[deal(weights_uc, [fractions[name] for name in names], seed)]


def fold_codes(parts: NDArray[np.int64], folds: int, fold: int, *, validation: bool) -> Codes:
    """Return split codes where part `fold` (from 1) is test, the next one (the first after the last) validation."""
    codes = np.full(parts.shape, SPLIT_CODE["train"], np.uint8)
    if validation:
        codes[parts == fold % folds] = SPLIT_CODE["validation"]
    codes[parts == fold - 1] = SPLIT_CODE["test"]
    return codes


def deal_blocks(
    weights: Sequence[NDArray[np.int64]], split: DealtSplit | Mapping[SplitName, float], seed: int = 0
) -> list[Codes]:
    """Deal the blocks of all scenes together.

    Parameters
    ----------
    weights
        Per scene (block rows, block columns, classes + 1): pixels by class, the first column all pixels.
    split
        Settings, or fractions by split name that add up to 1.
    seed
        With fractions: of the order among equal blocks.

    Returns
    -------
    list
        Per scene the codes (block rows, block columns).
    """
    flat = np.concatenate([w.reshape(-1, w.shape[-1]) for w in weights])
    dealt = _by_fractions(flat, split, seed) if isinstance(split, Mapping) else deal_codes(flat, split)
    ends = np.cumsum([w.shape[0] * w.shape[1] for w in weights])[:-1]
    return [part.reshape(w.shape[:2]) for part, w in zip(np.split(dealt, ends), weights, strict=True)]
