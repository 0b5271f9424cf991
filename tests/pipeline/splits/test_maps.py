"""Which pixel stands in which split: the same whatever window is asked for, and never nearer than the margin."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.splits import BlockSplit, GroupSplit, PixelSplit, SplitMap, WholeScene
from bandstream.pipeline.splits.config import RandomSplit
from bandstream.pipeline.splits.proof import shared_pixels


@dataclass(frozen=True)
class Groups:
    """Labels with groups, in memory."""

    groups: np.ndarray

    def group_codes(self, rows: slice, cols: slice) -> np.ndarray:
        return self.groups[rows, cols]


def whole(split: SplitMap, shape: tuple[int, int]) -> np.ndarray:
    return split.codes(slice(0, shape[0]), slice(0, shape[1]))


def table(shape: tuple[int, int], block: tuple[int, int], seed: int) -> np.ndarray:
    cells = [-(-n // side) for n, side in zip(shape, block, strict=True)]
    return np.random.default_rng(seed).integers(1, 4, cells, dtype=np.uint8)


def make_groups(shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rectangles of group numbers on 0, some touching, some apart; and a split code of each."""
    rng = np.random.default_rng(seed)
    groups = np.zeros(shape, np.int32)
    for number in range(1, 9):
        y, x = rng.integers(0, shape[0]), rng.integers(0, shape[1])
        groups[y : y + rng.integers(1, 12), x : x + rng.integers(1, 12)] = number
    return groups, np.concatenate([[0], rng.integers(1, 4, 8)]).astype(np.uint8)


def least_distance(codes: np.ndarray) -> float:
    """Return the least Chebyshev distance between pixels of different splits, by looking at every pair."""
    places = [np.argwhere(codes == code) for code in (1, 2, 3)]
    found = [
        np.abs(a[:, None] - b[None]).max(axis=2).min()
        for n, a in enumerate(places)
        for b in places[n + 1 :]
        if len(a) and len(b)
    ]
    return min(found, default=np.inf)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 9))
def test_groups_of_different_splits_lie_further_apart_than_the_margin(seed: int, margin: int) -> None:
    shape = (27, 31)
    groups, codes = make_groups(shape, seed)
    kept = whole(GroupSplit(shape, Groups(groups), codes, margin), shape)
    assert least_distance(kept) > margin
    assert set(np.unique(kept[groups == 0])) <= {0}
    inside = kept > 0
    np.testing.assert_array_equal(kept[inside], codes[groups[inside]])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 9))
def test_a_group_loses_no_pixel_that_is_far_enough_from_the_others(seed: int, margin: int) -> None:
    """The margin takes no more than it must: pixels farther from other splits than the margin all stay."""
    shape = (27, 31)
    groups, codes = make_groups(shape, seed)
    wanted = codes[groups]
    kept = whole(GroupSplit(shape, Groups(groups), codes, margin), shape)
    reach = 2 * -(-margin // 2)
    for y, x in np.argwhere(wanted > 0):
        near = wanted[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
        if not ((near != wanted[y, x]) & (near > 0)).any():
            assert kept[y, x] == wanted[y, x]


def test_groups_that_touch_lose_half_the_margin_each() -> None:
    groups = np.repeat([[1, 2]], 10, axis=1).repeat(4, axis=0).astype(np.int32)
    kept = whole(GroupSplit((4, 20), Groups(groups), np.array([0, 1, 3], np.uint8), 4), (4, 20))
    assert kept[0].tolist() == [1] * 8 + [0] * 4 + [3] * 8


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(0, 8),
    st.sampled_from(["blocks", "rows", "columns", "groups", "random"]),
    st.data(),
)
def test_a_window_of_codes_equals_the_same_part_of_all_codes(
    seed: int, margin: int, kind: str, data: st.DataObject
) -> None:
    shape = (37, 29)
    sides = {"blocks": (10, 10), "rows": (10, 29), "columns": (37, 10)}
    split: SplitMap
    if kind == "groups":
        groups, codes = make_groups(shape, seed)
        split = GroupSplit(shape, Groups(groups), codes, margin)
    elif kind == "random":
        split = PixelSplit(shape, (0.5, 0.7, 1.0), seed)
    else:
        split = BlockSplit(shape, sides[kind], table(shape, sides[kind], seed), margin)
    y = sorted(data.draw(st.lists(st.integers(0, shape[0]), min_size=2, max_size=2, unique=True)))
    x = sorted(data.draw(st.lists(st.integers(0, shape[1]), min_size=2, max_size=2, unique=True)))
    np.testing.assert_array_equal(
        split.codes(slice(*y), slice(*x)), whole(split, shape)[slice(*y), slice(*x)]
    )
    again = pickle.loads(pickle.dumps(split))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(whole(again, shape), whole(split, shape))


def test_one_split_for_the_whole_scene_has_no_margin() -> None:
    assert whole(BlockSplit((8, 8), (4, 4), np.ones((2, 2), np.uint8), 6), (8, 8)).min() == 1
    assert (WholeScene(3).codes(slice(0, 2), slice(0, 5)) == 3).all()
    assert shared_pixels(WholeScene(1), (5, 5), 2) == {}


def test_stripes_of_rows_leave_whole_columns_alike() -> None:
    codes = np.array([[1], [3], [2]], np.uint8)
    kept = whole(BlockSplit((25, 6), (10, 6), codes, 2), (25, 6))
    assert (kept == kept[:, :1]).all()
    assert kept[:, 0].tolist() == [1] * 9 + [0] * 2 + [3] * 8 + [0] * 2 + [2] * 4


def test_random_pixels_come_near_their_fractions_and_depend_on_the_key_alone() -> None:
    shape = (400, 500)
    codes = whole(PixelSplit(shape, (0.6, 0.8, 1.0), 7), shape)
    shares = np.bincount(codes.ravel(), minlength=4) / codes.size
    # four standard deviations of a share of 200,000 draws
    np.testing.assert_allclose(shares, [0, 0.6, 0.2, 0.2], atol=4 * np.sqrt(0.24 / codes.size))
    along = np.corrcoef(codes[:, 1:].ravel(), codes[:, :-1].ravel())[0, 1]
    assert abs(along) < 0.01
    assert (whole(PixelSplit(shape, (0.6, 0.8, 1.0), 8), shape) != codes).any()


@pytest.mark.parametrize("left_out", ["validation", "test"])
def test_random_pixels_never_go_to_a_split_without_a_fraction(left_out: str) -> None:
    from bandstream.pipeline.splits.making import pixel_ends

    fractions = {"train": 0.7, "validation": 0.3, "test": 0.3}
    del fractions[left_out]
    ends = pixel_ends(RandomSplit(by="random", fractions=fractions))
    codes = whole(PixelSplit((200, 200), ends, 3), (200, 200))
    assert {"validation": 2, "test": 3}[left_out] not in codes
    assert PixelSplit((2, 2), pixel_ends(RandomSplit(by="random", fractions={"train": 1.0})), 3).uniform == 1
