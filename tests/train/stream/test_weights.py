"""Whole repeats of samples: how often each is drawn, against plain counting."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import ConfigError
from bandstream.train.stream.weights import Repeats, Strata, class_shares, rarest_class, share_out

seeds = st.integers(-(2**63), 2**64 - 1)


@st.composite
def some_repeats(draw) -> Repeats:
    """Up to 3 groups of blocks, up to 4 strata, any draws for those that hold samples."""
    strata = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    rows = draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=strata, max_size=strata),
            min_size=sum(lengths),
            max_size=sum(lengths),
        )
    )
    first_block = np.cumsum([0, *lengths], dtype=np.int64)
    made = Strata(np.array(rows, np.int32), first_block)
    draws = [[draw(st.integers(0, 60)) if n else 0 for n in row] for row in made.totals.tolist()]
    return Repeats(made, np.array(draws, np.int64), draw(seeds))


def drawn_samples(repeats: Repeats, epoch: int) -> list[tuple[int, int, int]]:
    """Every draw of an epoch as (block, sample, repeat)."""
    of_epoch = repeats.epoch(epoch)
    per_block = of_epoch.block_samples
    blocks = np.repeat(np.arange(len(per_block)), per_block)
    items = np.concatenate([np.arange(n) for n in per_block.tolist()]).astype(np.int64)
    samples, repeat = of_epoch.samples_of(blocks, items)
    return list(zip(blocks.tolist(), samples.tolist(), repeat.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(some_repeats(), st.integers(0, 9))
def test_each_sample_is_drawn_floor_or_floor_plus_one_times_and_the_sum_is_exact(repeats, epoch):
    counts, draws = repeats.strata.counts, repeats.draws
    found = Counter((block, sample) for block, sample, _ in drawn_samples(repeats, epoch))
    of_stratum = np.zeros_like(draws)
    for group in range(len(draws)):
        for block in range(*repeats.strata.first_block[group : group + 2].tolist()):
            first = 0
            for stratum, count in enumerate(counts[block].tolist()):
                times = [found.pop((block, first + k), 0) for k in range(count)]
                if count:
                    low = draws[group, stratum] // repeats.strata.totals[group, stratum]
                    assert set(times) <= {low, low + 1}
                of_stratum[group, stratum] += sum(times)
                first += count
    assert not found, "draws of samples that are not there"
    assert np.array_equal(of_stratum, draws)
    assert repeats.samples == draws.sum()


@settings(max_examples=60, deadline=None)
@given(some_repeats())
def test_repeats_of_a_sample_are_numbered_and_blocks_get_their_share(repeats):
    by_sample: dict[tuple[int, int], list[int]] = {}
    for block, sample, repeat in drawn_samples(repeats, 3):
        by_sample.setdefault((block, sample), []).append(repeat)
    assert all(sorted(some) == list(range(len(some))) for some in by_sample.values())
    if len(repeats.draws) == 1 and repeats.draws.shape[1] == 1:
        total, draws = int(repeats.strata.totals[0, 0]), int(repeats.draws[0, 0])
        for got, own in zip(
            repeats.epoch(3).block_samples.tolist(), repeats.strata.counts[:, 0].tolist(), strict=True
        ):
            assert abs(got - Fraction(own * draws, max(total, 1))) < 1


def test_who_is_drawn_once_more_changes_with_the_epoch_and_repeats_for_it():
    strata = Strata(np.array([[10], [10]], np.int32), np.array([0, 2]))
    epochs = [drawn_samples(Repeats(strata, np.array([[13]]), 5), epoch) for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]
    assert epochs[0] != drawn_samples(Repeats(strata, np.array([[13]]), 6), 0)


def test_over_epochs_every_sample_is_drawn_equally_often():
    """7 of 12 per epoch: each sample's share of 1,200 epochs within 5 standard deviations of 7 / 12."""
    repeats = Repeats(Strata(np.array([[5], [4], [3]], np.int32), np.array([0, 3])), np.array([[7]]), 0)
    found = Counter(draw[:2] for epoch in range(1200) for draw in drawn_samples(repeats, epoch))
    assert len(found) == 12
    off = [abs(times - 700) / np.sqrt(1200 * 7 / 12 * 5 / 12) for times in found.values()]
    assert max(off) < 5


@given(st.integers(0, 10**12), st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(any))
def test_shares_are_whole_and_less_than_one_off(samples, shares):
    parts = share_out(samples, shares)
    assert sum(parts) == samples
    whole = sum(map(Fraction, shares))
    assert all(
        abs(part - samples * Fraction(share) / whole) < 1 for part, share in zip(parts, shares, strict=True)
    )


def test_equal_remainders_go_to_the_first():
    assert share_out(8, [1, 1, 1]) == [3, 3, 2]
    assert share_out(5, [0, 1, 1]) == [0, 3, 2]


def test_balanced_classes_are_those_that_hold_samples():
    assert class_shares("classes", ["a", "b", "c"], [5, 0, 7]) == [1, 0, 1]
    assert class_shares({"a": 0.25, "c": 3}, ["a", "b", "c"], [5, 0, 7]) == [0.25, 0, 3]


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        ({"a": 1, "d": 1}, "'d'.*'a', 'b', 'c'"),
        ({"a": 1}, "no share to 'c'"),
        ({"a": 1, 4: 1}, "names 4"),
        ({"d": 1, 4: 1}, "'d', 4"),
        ({"a": 1, "b": 1, "c": 1}, "'b' a share of 1.*no sample.*rarest"),
        ({"a": -1, "c": 1}, r"balance\['a'\]=-1"),
        ({"a": True, "c": 1}, r"balance\['a'\]=True"),
        ({"a": float("nan"), "c": 1}, "nan"),
        ({"a": 0, "c": 0}, "share of 0"),
    ],
)
def test_bad_shares_are_refused_by_name(balance, message):
    with pytest.raises(ConfigError, match=message):
        class_shares(balance, ["a", "b", "c"], [5, 0, 7])


def test_the_stratum_of_a_tile_is_its_rarest_class():
    labelled = np.array([[9, 0, 1], [9, 5, 0], [0, 0, 0], [4, 0, 0]])
    assert rarest_class(labelled, labelled.sum(axis=0)).tolist() == [2, 1, -1, 0]


def test_draws_of_many_samples_do_not_overflow():
    """4 blocks of 10^9 samples, 3 * 10^9 + 1 draws: exact in whole numbers."""
    strata = Strata(np.full((4, 1), 10**9, np.int32), np.array([0, 4]))
    per_block = Repeats(strata, np.array([[3 * 10**9 + 1]]), 1).epoch(0).block_samples
    assert per_block.sum() == 3 * 10**9 + 1
    assert set(per_block.tolist()) <= {750_000_000, 750_000_001}
