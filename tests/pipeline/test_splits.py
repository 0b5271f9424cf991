"""Spatial splits share no pixel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.splits import BlockSplit, WholeScene, deal_blocks, row_slabs, shared_pixels


def _all(split: BlockSplit) -> np.ndarray:
    return split.codes(slice(0, split.shape_yx[0]), slice(0, split.shape_yx[1]))


def _table(shape: tuple[int, int], block: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(
        1, 4, (-(-shape[0] // block), -(-shape[1] // block)), dtype=np.uint8
    )


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 999),
)
def test_with_a_margin_of_two_halos_no_pixel_is_seen_from_two_splits(
    shape: tuple[int, int], block: int, halo: int, seed: int
) -> None:
    split = BlockSplit(shape, block, _table(shape, block, seed), 2 * halo)
    codes = _all(split)
    seen = np.zeros((4, *shape), bool)
    for y, x in np.ndindex(shape):
        seen[codes[y, x], max(0, y - halo) : y + halo + 1, max(0, x - halo) : x + halo + 1] = True
    assert seen[1:].sum(axis=0).max(initial=0) <= 1
    assert sum(shared_pixels(split, shape, halo).values()) == 0


def test_without_a_margin_the_count_of_shared_pixels_is_the_brute_force_one() -> None:
    shape, halo = (30, 26), 3
    split = BlockSplit(shape, 9, _table(shape, 9, 4), 0)
    codes = _all(split)
    seen = np.zeros((4, *shape), bool)
    for y, x in np.ndindex(shape):
        seen[codes[y, x], max(0, y - halo) : y + halo + 1, max(0, x - halo) : x + halo + 1] = True
    expected = {
        "train-validation": int((seen[1] & seen[2]).sum()),
        "train-test": int((seen[1] & seen[3]).sum()),
        "validation-test": int((seen[2] & seen[3]).sum()),
    }
    assert shared_pixels(split, shape, halo) == expected
    assert sum(expected.values()) > 0


def test_the_count_does_not_depend_on_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandstream.pipeline import splits

    shape, halo = (60, 40), 4
    split = BlockSplit(shape, 13, _table(shape, 13, 7), 3)
    whole = shared_pixels(split, shape, halo)
    monkeypatch.setattr(splits, "row_slabs", lambda shape: row_slabs(shape, pixels=300))
    assert shared_pixels(split, shape, halo) == whole


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 99), st.integers(0, 8), st.data())
def test_a_window_of_codes_equals_the_same_part_of_all_codes(
    seed: int, margin: int, data: st.DataObject
) -> None:
    shape = (37, 29)
    split = BlockSplit(shape, 10, _table(shape, 10, seed), margin)
    y = sorted(data.draw(st.lists(st.integers(0, shape[0]), min_size=2, max_size=2, unique=True)))
    x = sorted(data.draw(st.lists(st.integers(0, shape[1]), min_size=2, max_size=2, unique=True)))
    np.testing.assert_array_equal(split.codes(slice(*y), slice(*x)), _all(split)[slice(*y), slice(*x)])


def test_one_split_for_the_whole_scene_has_no_margin() -> None:
    assert _all(BlockSplit((8, 8), 4, np.ones((2, 2), np.uint8), 6)).min() == 1
    assert (WholeScene(3).codes(slice(0, 2), slice(0, 5)) == 3).all()
    assert shared_pixels(WholeScene(1), (5, 5), 2) == {}


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
