"""The count of pixels that samples of two splits both see is exact, whatever made the split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.splits import BlockSplit, proof, row_slabs, shared_pixels


class Codes:
    """A split map of given codes."""

    uniform = None

    def __init__(self, codes: np.ndarray) -> None:
        self.all = codes

    def codes(self, rows: slice, cols: slice) -> np.ndarray:
        return self.all[rows, cols]


def brute_force(codes: np.ndarray, halo: int) -> dict[str, int]:
    seen = np.zeros((4, *codes.shape), bool)
    for y, x in np.ndindex(codes.shape):
        seen[codes[y, x], max(0, y - halo) : y + halo + 1, max(0, x - halo) : x + halo + 1] = True
    return {
        "train-validation": int((seen[1] & seen[2]).sum()),
        "train-test": int((seen[1] & seen[3]).sum()),
        "validation-test": int((seen[2] & seen[3]).sum()),
    }


def table(shape: tuple[int, int], block: int, seed: int) -> np.ndarray:
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
    """Case: random splits of overlapping patches leak."""
    split = BlockSplit(shape, (block, block), table(shape, block, seed), 2 * halo)
    codes = split.codes(slice(0, shape[0]), slice(0, shape[1]))
    assert sum(brute_force(codes, halo).values()) == 0
    assert sum(shared_pixels(split, shape, halo).values()) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 24), st.integers(1, 24)),
    st.integers(0, 5),
    st.integers(0, 9999),
    st.sampled_from([0.02, 0.2, 1.0]),
)
def test_the_count_is_the_brute_force_one_for_any_codes(
    shape: tuple[int, int], halo: int, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    codes = (rng.integers(1, 4, shape) * (rng.random(shape) < share)).astype(np.uint8)
    assert shared_pixels(Codes(codes), shape, halo) == brute_force(codes, halo)


def test_the_count_does_not_depend_on_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, halo = (60, 40), 4
    split = BlockSplit(shape, (13, 13), table(shape, 13, 7), 3)
    whole = shared_pixels(split, shape, halo)
    assert sum(whole.values()) > 0
    monkeypatch.setattr(proof, "row_slabs", lambda shape: row_slabs(shape, pixels=300))
    assert shared_pixels(split, shape, halo) == whole
