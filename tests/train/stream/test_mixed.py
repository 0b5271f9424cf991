"""Several stores as one stream: what may be mixed, what comes out, and in which shares."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from bandstream.pipeline.errors import (
    CheckpointError,
    ConfigError,
    EmptySplitError,
    StoreSchemaError,
)
from bandstream.pipeline.store import PatchStore
from bandstream.train.stream import PatchStream
from bandstream.train.stream.mixed import check_mixable


def changed(store: PatchStore, **attrs: Any) -> PatchStore:
    return dataclasses.replace(store, attrs=store.attrs | attrs)


@pytest.fixture
def pair(shared_store) -> list[PatchStore]:
    """Two stores of other scenes and chunks, the same transforms."""
    one = shared_store(shapes=[(40, 52)])
    two = shared_store(shapes=[(24, 30), (16, 16)], seed=5, chunk=3, shard=6)
    return [one, changed(two, transform_fingerprint=one.transform_fingerprint)]


def bands_at(tmp_path: Path, centres: list[float] | None, fwhm: list[float] | None) -> PatchStore:
    """Return a store of which nothing but the bands is there."""
    folder = tmp_path / f"bands-{len(list(tmp_path.iterdir()))}.zarr"
    for name, values in (("wavelength", centres), ("fwhm", fwhm)):
        if values is not None:
            array = zarr.create_array(
                folder, name=f"bands/{name}", shape=(len(values),), dtype="float64", chunks=(len(values),)
            )
            array[...] = values
    folder.mkdir(exist_ok=True)
    attrs = {
        "transform_fingerprint": "f",
        "bands": 3,
        "tiles": {"size": 8, "halo": 2},
        "classes": {"names": []},
    }
    return PatchStore(folder, attrs)


def test_each_sample_of_both_comes_once_with_its_stores_number(pair):
    alone: list[dict] = []
    for number, store in enumerate(pair):
        for batch in PatchStream(store, patch=3, batch_size=1):
            if batch["mask"].all():
                place = tuple(int(batch[name][0]) for name in ("tile", "row", "col"))
                alone.append({(number, *place): (batch["image"][0], int(batch["label"][0]))})
    expected = {where: what for one in alone for where, what in one.items()}
    seen = []
    for batch in PatchStream(pair, patch=3, batch_size=32):
        assert batch["store"].dtype == torch.int64
        for i in np.flatnonzero(batch["mask"].numpy()).tolist():
            where = tuple(int(batch[name][i]) for name in ("store", "tile", "row", "col"))
            assert torch.equal(batch["image"][i], expected[where][0])
            assert int(batch["label"][i]) == expected[where][1]
            seen.append(where)
    assert sorted(seen) == sorted(expected)


def test_tiles_of_both_are_mixed(pair):
    batches = list(PatchStream(pair, split="all", batch_size=4))
    where = [
        (int(s), int(t)) for batch in batches for s, t in zip(batch["store"], batch["tile"], strict=True)
    ]
    assert {s for s, _ in where} == {0, 1}
    assert set(where) == {(s, t) for s, store in enumerate(pair) for t in range(len(store))}
    together = [set(batch["store"].tolist()) for batch in batches]
    assert any(len(both) == 2 for both in together)


@pytest.mark.parametrize("balance", [None, "classes"])
def test_stores_are_drawn_in_their_shares(pair, balance):
    stream = PatchStream(pair, patch=1, batch_size=10, store_weights=[1, 3], balance=balance)
    drawn = np.zeros((2, 5), np.int64)
    for batch in stream:
        own = batch["mask"].numpy()
        np.add.at(drawn, (batch["store"].numpy()[own], batch["label"].numpy()[own]), 1)
    total = sum(PatchStream(store, patch=1, batch_size=10).samples for store in pair)
    assert drawn.sum() == stream.samples == total
    assert np.abs(drawn.sum(axis=1) - [total / 4, 3 * total / 4]).max() < 1
    if balance:
        assert (np.ptp(drawn[:, 1:], axis=1) <= 1).all()


def test_classes_are_balanced_over_all_stores_unless_these_have_shares(pair):
    drawn = np.zeros(5, np.int64)
    for batch in PatchStream(pair, patch=1, batch_size=10, balance="classes"):
        drawn += np.bincount(batch["label"].numpy()[batch["mask"].numpy()], minlength=5)
    assert np.ptp(drawn[1:]) <= 1


def test_the_state_carries_all_stores_and_their_shares(pair):
    def new(stores: list[PatchStore], **more) -> PatchStream:
        return PatchStream(stores, patch=3, batch_size=16, **more)

    stream = new(pair, store_weights=[2, 1])
    rest = [batch["tile"].clone() for batch in list(stream)[3:]]
    state = json.loads(json.dumps(stream.state_dict(step=2)))
    assert state["stores"] == [store.fingerprint for store in pair]
    assert state["store_weights"] == [2.0, 1.0]
    again = new(pair, store_weights=(2, 1))
    again.load_state_dict(state)
    assert all(torch.equal(batch["tile"], tile) for batch, tile in zip(again, rest, strict=True))
    with pytest.raises(CheckpointError, match=r"store_weights \[2.0, 1.0\].*store_weights \[1.0, 2.0\]"):
        new(pair, store_weights=[1, 2]).load_state_dict(state)
    with pytest.raises(
        CheckpointError, match=f"stores.*{pair[0].fingerprint}.*stores.*{pair[1].fingerprint}"
    ):
        new(pair[::-1], store_weights=[2, 1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "2 stores and 1 store_weights"),
        ([1, -1], r"store_weights\[1\]=-1"),
        ([0, 0], "All store_weights are 0"),
        (["1", 1], r"store_weights\[0\]='1'"),
    ],
)
def test_bad_weights_are_refused(pair, weights, message):
    with pytest.raises(ConfigError, match=message):
        PatchStream(pair, patch=3, batch_size=4, store_weights=weights)


def test_a_store_without_samples_has_no_weight(shared_store):
    one, empty = shared_store(), shared_store(split="train")
    stores = [one, changed(empty, transform_fingerprint=one.transform_fingerprint)]
    with pytest.raises(EmptySplitError, match=r"'test'.*holds no samples.*weight of 1"):
        PatchStream(stores, split="test", patch=3, batch_size=4, store_weights=[1, 1])
    assert len(PatchStream(stores, split="test", patch=3, batch_size=4, store_weights=[1, 0])) > 0
    assert len(PatchStream(stores, split="test", patch=3, batch_size=4)) > 0


def test_balance_needs_labels_and_known_words(shared_store):
    with pytest.raises(StoreSchemaError, match="no labels"):
        PatchStream(shared_store(classes=0), batch_size=4, balance="classes")
    for balance in ("equal", ["class 1"], True):
        with pytest.raises(ConfigError, match=f"{re.escape(repr(balance))} is not known"):
            PatchStream(shared_store(), batch_size=4, balance=balance)


# -- what may be mixed -------------------------------------------------------------------------------------------


def test_other_transforms_are_refused_with_both_fingerprints(shared_store):
    one, two = shared_store(), shared_store(seed=1)
    with pytest.raises(
        StoreSchemaError, match=f"{one.transform_fingerprint}.*{two.transform_fingerprint}.*resample_bands"
    ):
        PatchStream([one, two], batch_size=4)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"size": 16}, r"tiles.size is 8 in the first and 16"),
        ({"halo": 1}, r"tiles.halo is 2 in the first and 1"),
        ({"bands": 2}, r"bands is 3 in the first and 2"),
        ({"classes": 3}, r"classes is \['class 1', .*'class 4'\] in the first and \['class 1'"),
    ],
)
def test_other_tiles_or_classes_are_refused(shared_store, other, message):
    one, two = shared_store(), shared_store(**other)
    with pytest.raises(StoreSchemaError, match=message):
        PatchStream([one, changed(two, transform_fingerprint=one.transform_fingerprint)], batch_size=4)


def test_patches_come_from_tiles_of_any_size(shared_store):
    one, two = shared_store(), shared_store(size=16, halo=1, seed=3)
    stores = [one, changed(two, transform_fingerprint=one.transform_fingerprint)]
    samples = sum(PatchStream(store, patch=3, batch_size=9).samples for store in stores)
    assert sum(int(batch["mask"].sum()) for batch in PatchStream(stores, patch=3, batch_size=9)) == samples
    with pytest.raises(ConfigError, match=r"patch=5 does not fit.*halo of 1"):
        PatchStream(stores, patch=5, batch_size=9)


def test_band_centres_within_a_tenth_of_their_width_are_the_same(tmp_path):
    one = bands_at(tmp_path, [500.0, 510.0, 520.0], [10.0, 10.0, 8.0])
    check_mixable([one, bands_at(tmp_path, [501.0, 509.0, 520.8], [10.0, 10.0, 8.0])], None)
    check_mixable([one], None)
    far = bands_at(tmp_path, [500.0, 510.0, 520.9], [10.0, 10.0, 8.0])
    with pytest.raises(
        StoreSchemaError, match=r"1 of 3.*band 2 at 520 nm and 520\.9 nm.*width 8 nm.*resample_bands"
    ):
        check_mixable([one, far], None)
    with pytest.raises(StoreSchemaError, match=r"3 and 2 bands.*resample_bands"):
        check_mixable([one, bands_at(tmp_path, [500.0, 510.0], [10.0, 10.0])], None)


def test_without_widths_the_distance_of_neighbours_counts(tmp_path):
    one = bands_at(tmp_path, [500.0, 520.0, 540.0], None)
    check_mixable([one, bands_at(tmp_path, [501.0, 519.0, 540.0], [float("nan")] * 3)], None)
    with pytest.raises(StoreSchemaError, match="band 0 at 500 nm and 503 nm"):
        check_mixable([one, bands_at(tmp_path, [503.0, 520.0, 540.0], None)], None)


def test_bands_without_centres_mix_with_none_that_have_them(tmp_path):
    known, unknown = bands_at(tmp_path, [500.0, 510.0, 520.0], None), bands_at(tmp_path, None, None)
    check_mixable([unknown, unknown], None)
    for stores in ([known, unknown], [unknown, known]):
        with pytest.raises(StoreSchemaError, match=f"{unknown.path} does not say where its bands lie"):
            check_mixable(stores, None)
