"""Where a stream stands: written, read, refused, and gone on from with any number of ranks and workers."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import CheckpointError, EmptySplitError
from bandstream.train.stream import PatchStream
from bandstream.train.stream.augment_config import AugmentConfig
from bandstream.train.stream.state import read_state, write_state

IDENTITY = {"stores": ["a"], "split": "train", "seed": 3, "shuffle": True, "global_batch": 12}
ORDER = {"lanes": 8, "window": 2}


def through_json(state: dict) -> dict:
    return json.loads(json.dumps(state))


@given(st.integers(0, 9), st.integers(0, 40))
def test_a_state_says_where_to_go_on_and_nothing_of_ranks(epoch, step):
    state = through_json(write_state(IDENTITY, ORDER, epoch, step))
    assert state["samples"] == 12 * step
    assert not {"rank", "world_size", "worker"} & set(state)
    for ranks in (1, 3, 12):
        found = read_state(state, IDENTITY, 40, ranks)
        assert (found.lanes, found.window, found.epoch, found.step) == (8, 2, epoch, step)


@pytest.mark.parametrize(
    ("theirs", "world_size", "message"),
    [
        (16, 3, r"global_batch 16.*global_batch 12.*3 ranks cannot share.*1, 2, 4, 8, 16"),
        (16, 4, r"global_batch 16.*global_batch 12.*batch_size=4"),
        (13, 1, r"batch_size=13"),
        ("x", 1, r"Resume with the same global_batch"),
    ],
)
def test_another_global_batch_is_refused_with_what_would_fit(theirs, world_size, message):
    state = write_state(IDENTITY, ORDER, 0, 1) | {"global_batch": theirs}
    with pytest.raises(CheckpointError, match=message):
        read_state(state, IDENTITY, 40, world_size)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 4), ("stores", ["b"]), ("shuffle", 1), ("split", "test"), ("version", 1)],
)
def test_what_differs_is_refused_with_both_values(name, value):
    state = write_state(IDENTITY, ORDER, 0, 1) | {name: value}
    own = ({"version": 2} | IDENTITY)[name]
    with pytest.raises(CheckpointError) as caught:
        read_state(state, IDENTITY, 40, 1)
    assert f"{name} {value!r}" in str(caught.value)
    assert f"{name} {own!r}" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 7},
        {"samples": 12 * 41},
        {"samples": -12},
        {"samples": True},
        {"lanes": 0},
        {"window": None},
    ],
)
def test_damage_is_refused(change):
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(write_state(IDENTITY, ORDER, 0, 1) | change, IDENTITY, 40, 1)


@pytest.mark.parametrize(
    ("written", "read"), [(None, (0, 2)), ((0, 2), None), ((0, 2), (1, 2)), ((0, 2), (0, 3))]
)
def test_the_state_of_a_worker_is_for_the_same_worker_of_as_many(written, read):
    state = through_json(write_state(IDENTITY, ORDER, 0, 1, written))
    with pytest.raises(CheckpointError, match=r"whole stream|worker 0 of 2"):
        read_state(state, IDENTITY, 40, 1, read)
    assert read_state(state, IDENTITY, 40, 1, written).step == 1


# -- the stream --------------------------------------------------------------------------------------------------


def worker_ids(stream: PatchStream, workers: int, monkeypatch: pytest.MonkeyPatch) -> dict[int, list]:
    """What the workers of one iteration give out, by step; they are asked one after the other in this process."""
    if not workers:
        return {batch["step"]: ids_of(batch) for batch in stream}
    found: dict[int, list] = {}
    for number in range(workers):
        own = copy.copy(stream)
        own._position = stream._position  # shared with the workers, unlike with a copy
        info = SimpleNamespace(id=number, num_workers=workers, seed=77 + number)
        monkeypatch.setattr("bandstream.train.stream.patch_stream.get_worker_info", lambda info=info: info)
        found |= {batch["step"]: ids_of(batch) for batch in own}
    monkeypatch.undo()
    return found


def ids_of(batch: dict) -> list:
    """Real samples of a batch by their place."""
    real = batch["mask"].reshape(len(batch["tile"]), -1).any(dim=1).tolist()
    place = zip(*(batch[name].tolist() for name in ("tile", "row", "col")), strict=True)
    return [where for where, keep in zip(place, real, strict=True) if keep]


def global_batches(make, ranks: int, workers: int, state: dict | None, monkeypatch) -> dict[int, list]:
    joined: dict[int, list] = {}
    for rank in range(ranks):
        stream = make(rank=rank, world_size=ranks, batch_size=12 // ranks)
        stream.set_epoch(2)
        if state is not None:
            stream.load_state_dict(state)
        for step, ids in worker_ids(stream, workers, monkeypatch).items():
            joined.setdefault(step, []).extend(ids)
    return {step: sorted(joined[step]) for step in sorted(joined)}


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 6, 12]),
    st.integers(0, 4),
    st.sampled_from([None, 3]),
    st.sampled_from(["pad", "drop"]),
    st.sampled_from([None, "classes"]),
    st.integers(0, 30),
    st.integers(0, 2**40),
)
def test_global_batches_and_resumption_do_not_depend_on_ranks_or_workers(
    shared_store, ranks, workers, patch, last, balance, at, seed
):
    """Also with draws that are repeated, and where samples that fill no batch are left out."""
    store = shared_store(shapes=[(24, 40)], split="train", labelled=0.3, chunk=2, shard=4)

    def make(**more) -> PatchStream:
        return PatchStream(store, patch=patch, last=last, balance=balance, seed=seed, **more)

    with pytest.MonkeyPatch.context() as monkeypatch:
        whole = global_batches(make, 1, 0, None, monkeypatch)
        assert global_batches(make, ranks, workers, None, monkeypatch) == whole
        one = make(batch_size=12)
        one.set_epoch(2)
        step = at % len(one)
        state = through_json(one.state_dict(step=step))
        rest = {number: ids for number, ids in whole.items() if number > step}
        assert global_batches(make, ranks, workers, state, monkeypatch) == rest


def test_dropping_gives_whole_batches_only(shared_store):
    store = shared_store()
    padded, dropped = (PatchStream(store, patch=3, batch_size=64, last=last) for last in ("pad", "drop"))
    assert padded.samples % 64
    assert len(dropped) == padded.samples // 64 == len(padded) - 1
    for one, other in zip(dropped, padded, strict=False):
        assert other["mask"].all()
        assert ids_of(one) == ids_of(other)
    with pytest.raises(EmptySplitError, match=r"fewer than one global batch of 100000.*last='pad'"):
        iter(PatchStream(store, patch=3, batch_size=100_000, last="drop"))


def test_a_stream_goes_on_only_as_what_it_was(shared_store):
    store = shared_store()
    state = PatchStream(store, batch_size=5).state_dict(step=0)
    for change, message in (
        ({"last": "drop"}, "last 'pad'.*last 'drop'"),
        ({"balance": "classes"}, "balance None.*balance 'classes'"),
        ({"store_weights": [2]}, r"store_weights None.*store_weights \[2\.0\]"),
        ({"augment": AugmentConfig(noise_std=0.1)}, "augment None.*augment {.*'noise_std': 0.1"),
    ):
        with pytest.raises(CheckpointError, match=message):
            PatchStream(store, **({"batch_size": 5} | change)).load_state_dict(state)


def test_a_finished_epoch_leaves_a_later_one_that_was_set(shared_store):
    """As when torchdata's loader restores the end of an epoch while the next one is about to begin."""
    stream = PatchStream(shared_store(), batch_size=5)
    end = stream.state_dict(step=len(stream) - 1)
    stream.load_state_dict(end)
    assert stream.finished
    assert list(stream) == []
    stream.set_epoch(1)
    assert not stream.finished
    stream.load_state_dict(end)
    assert stream.epoch == 1
    assert [batch["step"] for batch in stream] == list(range(len(stream)))


def test_classes_are_drawn_in_their_shares_and_samples_whole_times(shared_store):
    """Of patches: as often as another, to one draw; each pixel the floor or the ceiling of its class's mean."""
    store = shared_store(shapes=[(40, 90)])
    totals = store.index.labelled[:, 1].sum(axis=0)
    for balance, shares in (
        ("classes", [1, 1, 1, 1]),
        ({f"class {k + 1}": k for k in range(4)}, [0, 1, 2, 3]),
    ):
        stream = PatchStream(store, patch=3, batch_size=50, balance=balance, last="drop")
        assert stream.samples == totals.sum()
        for epoch in (0, 1):
            stream.set_epoch(epoch)
            seen: dict = {}
            classes = np.zeros(5, np.int64)
            for batch in stream:
                classes += np.bincount(batch["label"].numpy(), minlength=5)
                for where, label in zip(ids_of(batch), batch["label"].tolist(), strict=True):
                    seen.setdefault(label, {}).setdefault(where, []).append(batch["step"])
            left = stream.samples - len(stream) * 50
            expected = stream.samples * np.array(shares) / sum(shares)
            assert classes[0] == 0
            assert np.abs(classes[1:] - expected).max() <= left + 1
            for label, places in seen.items():
                most = -(-expected[label - 1] // totals[label - 1]) + 1
                assert max(map(len, places.values())) <= most


def test_tiles_are_drawn_by_their_rarest_class(shared_store):
    store = shared_store(shapes=[(64, 64)], size=4, halo=1, chunk=8, shard=16, labelled=0.08)
    labelled = store.index.labelled[:, 1]
    rare = np.argsort(labelled.sum(axis=0))
    rarest = np.array([next((c for c in rare if row[c]), -1) for row in labelled])
    stream = PatchStream(store, batch_size=7, balance="classes")
    drawn = [tile for batch in stream for tile in np.array(ids_of(batch)).reshape(-1, 3)[:, 0].tolist()]
    counts = np.bincount(rarest[drawn], minlength=4)
    assert len(drawn) == stream.samples == (rarest >= 0).sum()
    assert counts.max() - counts.min() <= 1


def test_repeated_draws_of_a_sample_are_augmented_each_in_its_own_way(shared_store):
    store = shared_store()
    augment = AugmentConfig(noise_std=1.0)
    shares = {"class 1": 30, "class 2": 1, "class 3": 1, "class 4": 1}
    images: dict = {}
    for batch in PatchStream(store, patch=1, batch_size=16, balance=shares, augment=augment):
        for where, image in zip(ids_of(batch), batch["image"], strict=False):
            images.setdefault(where, []).append(image.numpy().tobytes())
    assert max(map(len, images.values())) > 2
    assert all(len(set(some)) == len(some) for some in images.values())
