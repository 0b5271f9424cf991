"""The order of samples against the design's formulas in plain Python, and its promises for any layout."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bandstream.train.stream.order import EqualBlocks, SampleOrder, rank_samples, sample_keys, steps_of
from bandstream.train.stream.permutation import keys_of, mix64, permute, unpermute

seeds = st.integers(-(2**63), 2**64 - 1)
MASK64 = 2**64 - 1


def splitmix64(word: int) -> int:
    """Finaliser of the published SplitMix64 in Python integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK64
    return word ^ (word >> 31)


def order_of(
    block_samples: list[int], seed: int = 0, lanes: int = 8, window: int = 2, **more: bool
) -> SampleOrder:
    return SampleOrder(np.array(block_samples, np.int64), seed, lanes, window, **more)


def epoch_ids(order: SampleOrder, epoch: int) -> list[int]:
    """Ids of the samples of an epoch in order; an id counts samples over the blocks as they lie in the store."""
    block, item = order.epoch(epoch).locate(np.arange(order.samples))
    first = np.concatenate([[0], np.cumsum(order.block_samples)])
    return (first[block] + item).tolist()


def batches_of(order: SampleOrder, batch_size: int, ranks: int, workers: int) -> list[list[list[int]]]:
    """Real ids by step and rank, each batch built by the worker whose turn it is."""
    steps = steps_of(order.samples, batch_size * ranks)
    ids = np.array(epoch_ids(order, 0))
    built: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in range(steps)]
    for rank in range(ranks):
        for worker in range(max(workers, 1)):
            own = np.arange(worker, steps, max(workers, 1), dtype=np.int64)
            numbers, real = rank_samples(own, batch_size, rank, ranks, order.samples)
            assert numbers.shape == (len(own), batch_size)
            for step, row, keep in zip(own.tolist(), numbers, real, strict=True):
                built[step][rank] = ids[row[keep]].tolist()
    return built


@given(st.lists(st.integers(0, MASK64), min_size=1, max_size=20))
def test_mix64_is_the_published_finaliser(words):
    assert mix64(np.array(words, np.uint64)).tolist() == [splitmix64(word) for word in words]


def test_keys_depend_on_every_part_and_its_place():
    parts = [(0, 0), (0, 1), (1, 0), (-1, 0), (0,), (0, 0, 0)]
    assert len({int(keys_of(*some)[0]) for some in parts}) == len(parts)
    many = keys_of(3, np.arange(5), np.arange(5) * 7)
    assert many.tolist() == [int(keys_of(3, k, 7 * k)[0]) for k in range(5)]


@given(st.integers(1, 400), st.integers(0, 2**62))
def test_permute_is_one_to_one_on_any_domain(domain, number):
    out = permute(np.arange(domain, dtype=np.int64), domain, keys_of(number))
    assert sorted(out.tolist()) == list(range(domain))


@pytest.mark.parametrize("domain", [2, 3, 4])
def test_permute_gives_every_order_of_a_small_domain_about_equally_often(domain):
    keys = 2400
    seen = Counter(tuple(permute(np.arange(domain), domain, keys_of(key)).tolist()) for key in range(keys))
    orders = {2: 2, 3: 6, 4: 24}[domain]
    assert len(seen) == orders
    assert min(seen.values()) > 0.6 * keys / orders


def test_permute_moves_each_value_anywhere_equally_often():
    """Chi-square of where 5 of 100 goes under 20,000 keys, and of where neighbours go relative to each other."""
    keys = keys_of(np.arange(20_000, dtype=np.int64))
    to, beside = (permute(np.full(20_000, value), 100, keys) for value in (5, 6))
    assert stats.chisquare(np.bincount(to, minlength=100)).pvalue > 1e-4
    assert stats.chisquare(np.bincount((beside - to) % 100, minlength=100)[1:]).pvalue > 1e-4


@given(st.integers(1, 2**53), seeds, st.data())
def test_unpermute_undoes_permute(domain, number, data):
    values = np.array(data.draw(st.lists(st.integers(0, domain - 1), min_size=1, max_size=20)), np.int64)
    key = keys_of(number)
    assert np.array_equal(unpermute(permute(values, domain, key), domain, key), values)
    assert np.array_equal(permute(unpermute(values, domain, key), domain, key), values)


def test_permute_needs_no_memory_of_its_domain():
    out = permute(np.arange(2**52, 2**52 + 1000, dtype=np.int64), 2**53, keys_of(1))
    assert len(set(out.tolist())) == 1000
    assert out.min() >= 0
    assert out.max() < 2**53
    assert np.ptp(out) > 2**51


def plain_order(order: SampleOrder, epoch: int) -> list[int]:
    """The design's words in loops: blocks permuted, laid end to end, lanes cut, windows of V blocks permuted."""
    first_id = np.concatenate([[0], np.cumsum(order.block_samples)]).tolist()
    filled = [b for b, n in enumerate(order.block_samples.tolist()) if n]
    turned = permute(np.arange(len(filled)), len(filled), keys_of(1, order.seed, epoch)).tolist()
    laid = [
        (slot, first_id[filled[b]] + k)
        for slot, b in enumerate(turned)
        for k in range(order.block_samples[filled[b]])
    ]
    quotient, rest = divmod(len(laid), order.lanes)
    lanes: list[list[int]] = []
    for lane in range(order.lanes):
        start = lane * quotient + min(lane, rest)
        own = laid[start : start + quotient + (lane < rest)]
        mixed: list[int] = []
        for number in range(len(filled)):
            low = (own[0][0] if own else 0) + number * order.window
            window = [i for slot, i in own if low <= slot < low + order.window]
            to = permute(
                np.arange(len(window)), max(len(window), 1), keys_of(2, order.seed, epoch, lane, number)
            )
            mixed += [window[k] for k in to.tolist()]
        lanes.append(mixed)
    return [lanes[i % order.lanes][i // order.lanes] for i in range(len(laid))]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any),
    seeds,
    st.integers(0, 9),
    st.integers(1, 10),
    st.integers(1, 4),
)
def test_order_is_the_one_of_the_design(block_samples, seed, epoch, lanes, window):
    order = order_of(block_samples, seed, lanes, window)
    assert epoch_ids(order, epoch) == plain_order(order, epoch)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any),
    seeds,
    st.integers(1, 10),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_samples_place_tells_its_number(block_samples, seed, lanes, window, shuffle):
    order = order_of(block_samples, seed, lanes, window, shuffle=shuffle)
    numbers = np.arange(order.samples)
    for epoch in (0, 3):
        of_epoch = order.epoch(epoch)
        assert np.array_equal(of_epoch.number_of(*of_epoch.locate(numbers)), numbers)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 30),
    size=st.integers(1, 9),
    last=st.integers(1, 9),
    seed=seeds,
    lanes=st.integers(1, 10),
    shuffle=st.booleans(),
)
def test_equal_blocks_by_formula_are_ordered_as_counted_ones(count, size, last, seed, lanes, shuffle):
    last = min(last, size)
    blocks = np.array([size] * (count - 1) + [last], np.int64)
    assert EqualBlocks.of(blocks) in (EqualBlocks(count, size, last), EqualBlocks(1, last, last))
    by_formula = SampleOrder(EqualBlocks(count, size, last), seed, lanes, 2, shuffle)
    assert by_formula.samples == blocks.sum()
    numbers = np.arange(by_formula.samples)
    counted = order_of([], seed, lanes, shuffle=shuffle).epoch(2, blocks)
    counted = dataclasses.replace(counted, order=by_formula)
    for one, other in zip(by_formula.epoch(2).locate(numbers), counted.locate(numbers), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("blocks", [[3, 4], [4, 3, 4], [4, 4, 5], [4, 4, 0], [0, 4]])
def test_blocks_that_are_not_equal_are_counted(blocks):
    assert EqualBlocks.of(np.array(blocks, np.int64)) is None


@pytest.mark.parametrize("blocks", [[5] * 9, [5] * 8 + [2], [1, 7, 0, 3] * 4])
def test_many_blocks_are_ordered_as_few(blocks, monkeypatch):
    """Above a number of blocks their order is computed as needed, and not kept."""
    expected = epoch_ids(order_of(blocks, 4), 1)
    monkeypatch.setattr("bandstream.train.stream.order._LOOKED_UP", 2)
    assert epoch_ids(order_of(blocks, 4), 1) == expected


@settings(max_examples=200, deadline=None)
@given(
    tiles=st.integers(1, 200),
    chunk=st.integers(1, 17),
    ranks=st.integers(1, 8),
    workers=st.integers(0, 4),
    batch_size=st.integers(1, 9),
    lanes=st.integers(1, 9),
    window=st.integers(1, 4),
    seed=seeds,
)
def test_every_sample_once_and_equal_steps(tiles, chunk, ranks, workers, batch_size, lanes, window, seed):
    blocks = [min(chunk, tiles - first) for first in range(0, tiles, chunk)]
    built = batches_of(order_of(blocks, seed, lanes, window), batch_size, ranks, workers)
    assert len(built) == -(-tiles // (batch_size * ranks))
    assert sorted(i for step in built for batch in step for i in batch) == list(range(tiles))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    st.sampled_from([1, 2, 6, 8, 12]),
    st.integers(0, 4),
    seeds,
)
def test_global_batches_do_not_depend_on_ranks_or_workers(block_samples, global_batch, workers, seed):
    order = order_of(block_samples, seed)
    alone = [sorted(step[0]) for step in batches_of(order, global_batch, 1, 0)]
    for ranks in (r for r in range(1, global_batch + 1) if global_batch % r == 0):
        built = batches_of(order, global_batch // ranks, ranks, workers)
        assert [sorted(i for batch in step for i in batch) for step in built] == alone


@given(st.integers(1, 500), st.integers(1, 60))
def test_dropping_leaves_out_less_than_a_batch_and_pads_nothing(samples, global_batch):
    steps = steps_of(samples, global_batch, "drop")
    assert 0 <= samples - steps * global_batch < global_batch
    assert steps_of(samples, global_batch, "pad") - steps in (0, 1)
    _, real = rank_samples(np.arange(steps), global_batch, 0, 1, samples)
    assert real.all()


def test_padding_repeats_the_first_samples_and_is_not_real():
    numbers, real = rank_samples(np.array([0, 1, 2]), 2, 1, 2, 9)
    assert numbers.tolist() == [[1, 3], [5, 7], [0, 2]]
    assert real.tolist() == [[True, True], [True, True], [False, False]]
    numbers, real = rank_samples(np.array([0]), 4, 1, 2, 3)
    assert numbers.tolist() == [[1, 0, 2, 1]]
    assert real.tolist() == [[True, False, False, False]]


@given(seeds)
def test_epochs_differ_and_repeat_for_a_seed(seed):
    blocks = [5] * 12
    orders = [epoch_ids(order_of(blocks, seed), epoch) for epoch in range(3)]
    assert len({tuple(ids) for ids in orders}) == 3
    assert orders == [epoch_ids(order_of(blocks, seed), epoch) for epoch in range(3)]
    assert epoch_ids(order_of(blocks, seed + 1), 0) != orders[0]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any), st.integers(0, 3))
def test_without_shuffle_samples_come_as_they_lie(block_samples, epoch):
    assert epoch_ids(order_of(block_samples, shuffle=False), epoch) == list(range(sum(block_samples)))


@settings(deadline=None)
@given(blocks=st.integers(8, 80), size=st.integers(1, 20), seed=seeds)
def test_batches_mix_eight_blocks_where_there_are_as_many(blocks, size, seed):
    order = order_of([size] * blocks, seed, 8, window=2 if blocks >= 32 else 1)
    block, _ = order.epoch(0).locate(np.arange(order.samples))
    for first in range(0, order.samples - 7, 8):
        assert len(set(block[first : first + 8].tolist())) == 8


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 12),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
)
def test_blocks_in_use_are_bounded_by_lanes_and_window(blocks, size, lanes, window, ranks):
    """Of equal blocks, a rank that keeps 2 V L / gcd(R, L) of them reads each once per lane that lies in it."""
    order = order_of([size] * blocks, 0, lanes, window)
    block, _ = order.epoch(0).locate(np.arange(order.samples))
    keep = 2 * window * lanes // np.gcd(ranks, lanes)
    for rank in range(ranks):
        held: list[int] = []
        reads = 0
        for number in block[rank::ranks].tolist():
            if number in held:
                held.remove(number)
            else:
                reads += 1
                held = held[-(keep - 1) :] if keep > 1 else []
            held.append(number)
        assert reads <= blocks + lanes


def test_the_first_sample_of_an_epoch_is_any_equally_often():
    order = order_of([4] * 16, 3)
    firsts = [order.epoch(epoch).locate(np.array([0])) for epoch in range(3200)]
    firsts = np.array([4 * int(block[0]) + int(item[0]) for block, item in firsts])
    assert stats.chisquare(np.bincount(firsts, minlength=64)).pvalue > 1e-4


def test_sample_keys_depend_on_seed_epoch_and_sample():
    ids = np.arange(100, dtype=np.int64)
    keys = [sample_keys(seed, epoch, ids) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len(np.unique(np.concatenate(keys))) == 300
    assert np.array_equal(sample_keys(0, 1, ids[::-1]), keys[1][::-1])
