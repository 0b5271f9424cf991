"""Blocks, groups and scenes are dealt so that each split, or each fold, comes near its share of every class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bandstream.pipeline.splits import BlocksSplit, deal_blocks
from bandstream.pipeline.splits.dealing import deal_codes


def test_blocks_are_dealt_so_that_each_class_comes_near_its_fractions() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 50, (12, 12, 4)).astype(np.int64)
    weights[..., 3] = 0
    weights[rng.integers(0, 12, 10), rng.integers(0, 12, 10), 3] = 30  # a rare class in ten blocks
    weights[..., 0] = 4096
    fractions = {"train": 0.6, "validation": 0.2, "test": 0.2}
    codes = deal_blocks([weights], fractions, seed=1)[0]
    for number in range(1, 4):
        total = weights[..., number].sum()
        for code, share in zip((1, 2, 3), fractions.values(), strict=True):
            assert abs(weights[codes == code][:, number].sum() / total - share) < 0.06
    np.testing.assert_array_equal(codes, deal_blocks([weights], fractions, seed=1)[0])
    assert (codes != deal_blocks([weights], fractions, seed=2)[0]).any()


def test_blocks_without_labels_are_dealt_by_area() -> None:
    weights = np.full((20, 10, 1), 64, np.int64)
    codes = deal_blocks([weights], {"train": 0.5, "test": 0.5}, seed=0)[0]
    assert np.bincount(codes.ravel(), minlength=4).tolist() == [0, 100, 0, 100]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 60), st.integers(1, 5), st.integers(0, 999), st.booleans())
def test_over_all_folds_each_unit_is_tested_exactly_once(
    folds: int, units: int, classes: int, seed: int, validation: bool
) -> None:
    validation = validation and folds > 2
    weights = np.random.default_rng(seed).integers(0, 20, (units, classes + 1)).astype(np.int64)
    weights[:, 0] = weights.sum(axis=1)
    tested, validated = np.zeros(units, int), np.zeros(units, int)
    for fold in range(1, folds + 1):
        split = BlocksSplit(by="blocks", folds=folds, fold=fold, validation_fold=validation, seed=seed)
        codes = deal_codes(weights, split)
        assert set(codes.tolist()) <= {1, 2, 3}
        tested += codes == 3
        validated += codes == 2
    assert (tested == 1).all()
    assert (validated == int(validation)).all()


def test_folds_hold_equal_shares_of_each_class() -> None:
    weights = np.random.default_rng(3).integers(0, 50, (200, 5)).astype(np.int64)
    weights[:, 0] = 4096
    for fold in range(1, 6):
        codes = deal_codes(weights, BlocksSplit(by="blocks", folds=5, fold=fold))
        shares = weights[codes == 3].sum(axis=0) / weights.sum(axis=0)
        np.testing.assert_allclose(shares, 0.2, atol=0.02)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"folds": 5, "fold": 6}, "fold is 1 to 5"),
        ({"fold": 2}, "set `folds`"),
        ({"folds": 2}, "nothing is left to train on"),
        ({"folds": 5, "fractions": {"train": 0.5, "test": 0.5}}, "leave `fractions` out"),
        ({"fractions": {"train": 0.5}}, "add up to 1"),
        ({"fractions": {"test": 1.0}}, "above 0"),
        ({"margin": "far"}, "margin"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        BlocksSplit.model_validate({"by": "blocks", **settings})


def test_settings_with_folds_come_back_from_their_own_dump() -> None:
    split = BlocksSplit(by="blocks", folds=4, fold=2)
    assert BlocksSplit.model_validate(split.model_dump(mode="json")) == split
