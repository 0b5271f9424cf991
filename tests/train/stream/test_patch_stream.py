"""PatchStream against plain Zarr, under ranks, workers and resumption."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bandstream.pipeline.errors import CheckpointError, ConfigError, EmptySplitError, StoreCorruptError
from bandstream.pipeline.store import PatchStore
from bandstream.train.stream import PatchStream
from bandstream.train.stream.augment import dihedral_
from bandstream.train.stream.blocks import Slots, blank_unseen
from bandstream.train.stream.engine import MemoryPlan

CODES = {"train": 1, "validation": 2, "test": 3}
SPLITS = [*CODES, "all"]


class Oracle:
    """A store read whole by plain Zarr, and what a split should give of it."""

    def __init__(self, store: PatchStore, split: str) -> None:
        tiles = zarr.open_group(store.path, mode="r")["tiles"]
        self.data, self.labels, valid, codes = (
            tiles[name][...] for name in ("data", "labels", "valid", "split")
        )
        self.row, self.col, self.scene = (tiles["index"][name][...] for name in ("row", "col", "scene"))
        self.own = np.ones_like(valid) if split == "all" else codes == CODES[split]
        self.core = np.zeros_like(valid)
        self.core[:, store.halo : -store.halo or None, store.halo : -store.halo or None] = True
        self.mask = self.core & valid & self.own & (self.labels > 0 if store.classes else True)
        if split == "all" and not store.classes:
            assert self.mask.any()

    def pixels(self) -> list[tuple[int, int, int]]:
        return [tuple(place) for place in np.argwhere(self.mask).tolist()]


def pixel_key(batch: dict, i: int, store: PatchStore) -> tuple[int, int, int]:
    """Where sample i of a batch of patches lies: tile and its own y and x."""
    index, tile = store.index, int(batch["tile"][i])
    y = int(batch["row"][i]) - int(index.row[tile]) + store.halo
    return tile, y, int(batch["col"][i]) - int(index.col[tile]) + store.halo


def real_ids(batches, store: PatchStore) -> list:
    """Ids of the samples of batches, without those that only fill up."""
    return [
        pixel_key(batch, i, store) if batch["mask"].ndim == 1 else int(batch["tile"][i])
        for batch in batches
        for i in range(len(batch["tile"]))
        if batch["mask"][i].any()
    ]


def snapshot(batches) -> list[dict]:
    return [
        {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in batch.items()} for batch in batches
    ]


def assert_equal_batches(one, other) -> None:
    assert [batch["step"] for batch in one] == [batch["step"] for batch in other]
    for a, b in zip(one, other, strict=True):
        for name in ("image", "label", "mask", "tile", "row", "col"):
            assert torch.equal(a[name], b[name]), (a["step"], name)


# -- what is yielded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("patch", [1, 3, 5])
@pytest.mark.parametrize("shuffle", [True, False])
def test_patches_are_every_own_pixel_once_with_its_surroundings(shared_store, split, patch, shuffle):
    store = shared_store(shapes=[(21, 30), (16, 9)])
    oracle = Oracle(store, split)
    seen = []
    for step, batch in enumerate(
        PatchStream(store, split=split, patch=patch, batch_size=13, shuffle=shuffle)
    ):
        assert batch["step"] == step
        assert batch["image"].shape == (13, store.bands, patch, patch)
        assert (batch["image"].dtype, batch["label"].dtype, batch["mask"].dtype) == (
            torch.float32,
            torch.int64,
            torch.bool,
        )
        assert batch["tile"].dtype == batch["row"].dtype == batch["col"].dtype == torch.int64
        for i in range(13):
            tile, y, x = pixel_key(batch, i, store)
            half = patch // 2
            cut = oracle.data[tile, :, y - half : y + half + 1, x - half : x + half + 1]
            assert np.array_equal(batch["image"][i].numpy(), cut)
            assert batch["label"][i] == oracle.labels[tile, y, x]
        seen += real_ids([batch], store)
    assert sorted(seen) == oracle.pixels()
    if not shuffle:
        assert seen == oracle.pixels()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("halo", [0, 2])
def test_tiles_count_every_own_pixel_once(shared_store, split, halo):
    store = shared_store(halo=halo)
    oracle = Oracle(store, split)
    counted = np.zeros_like(oracle.mask, np.int64)
    for batch in PatchStream(store, split=split, batch_size=4):
        tile, mask = batch["tile"].numpy(), batch["mask"].numpy()
        np.add.at(counted, tile, mask)
        assert np.array_equal(batch["row"].numpy(), oracle.row[tile])
        assert np.array_equal(batch["col"].numpy(), oracle.col[tile])
        assert np.array_equal(batch["label"].numpy(), np.where(oracle.own, oracle.labels, 0)[tile])
    assert np.array_equal(counted, oracle.mask)


def test_tiles_of_all_splits_are_the_stores_own(shared_store):
    store = shared_store(shapes=[(21, 30), (16, 9)])
    oracle = Oracle(store, "all")
    batches = list(PatchStream(store, split="all", batch_size=3))
    for batch in batches:
        assert np.array_equal(batch["image"].numpy(), oracle.data[batch["tile"].numpy()])
    assert {int(tile) for batch in batches for tile in batch["tile"]} == set(range(len(store)))


@pytest.mark.parametrize("patch", [None, 5])
def test_a_store_without_labels_gives_every_valid_pixel_and_label_0(shared_store, patch):
    store = shared_store(classes=0)
    batches = list(PatchStream(store, patch=patch, batch_size=8))
    assert not any(batch["label"].any() for batch in batches)
    assert sum(int(batch["mask"].sum()) for batch in batches) == Oracle(store, "train").mask.sum()


@pytest.mark.parametrize("split", ["train", "all"])
@pytest.mark.parametrize("patch", [None, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {"targets": 2},
        # a block of a single pixel: its arrays are smaller than what they are aligned to
        {"targets": 1, "bands": 1, "size": 1, "halo": 0, "chunk": 1, "shapes": [(4, 4)], "split": "train"},
    ],
)
def test_targets_are_the_stores_own_for_pixels_of_the_split(shared_store, split, patch, changes):
    store = shared_store(classes=0, **changes)
    oracle = Oracle(store, split)
    targets = zarr.open_group(store.path, mode="r")["tiles/targets"][...]
    if split != "all":
        targets[~np.repeat((oracle.own & oracle.core)[:, None], targets.shape[1], axis=1)] = np.nan
    seen = []
    for batch in PatchStream(store, split=split, patch=patch, batch_size=5):
        tile = batch["tile"].numpy()
        expected = targets[tile]
        if patch:
            y, x = np.array([pixel_key(batch, i, store)[1:] for i in range(5)]).T
            expected = targets[tile, :, y, x]
        assert batch["target"].numpy().tobytes() == expected.tobytes()
        seen += real_ids([batch], store)
    assert sorted(seen) == (
        oracle.pixels() if patch else np.flatnonzero(oracle.mask.any(axis=(1, 2))).tolist()
    )


@pytest.mark.parametrize(("codec", "chunk"), [("none", 1), ("zstd", 3), ("default", 100)])
def test_codec_and_chunk_make_no_difference_to_what_is_seen(shared_store, codec, chunk):
    store = shared_store(codec=codec, chunk=chunk, shard=chunk * 2)
    oracle = Oracle(store, "all")
    for batch in PatchStream(store, split="all", batch_size=7):
        assert np.array_equal(batch["image"].numpy(), oracle.data[batch["tile"].numpy()])


def test_images_of_two_splits_share_no_pixel(shared_store):
    """Tiles straddle stripes of uneven width; band 0 numbers the scene's pixels, 0 is blank."""
    store = shared_store(shapes=[(30, 90)], invalid=0.0)
    assert ((store.index.pixels[:, 1:] > 0).sum(axis=1) > 1).any(), "no tile straddles two splits"
    seen = {}
    for split in CODES:
        batches = list(PatchStream(store, split=split, batch_size=5))
        values = np.unique(np.concatenate([batch["image"][:, 0].numpy().ravel() for batch in batches]))
        seen[split] = set(values[values > 0].tolist())
        own = Oracle(store, split)
        assert set(own.data[:, 0][own.mask].tolist()) <= seen[split]
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]


def test_pixels_within_the_halo_of_an_own_core_pixel_stay(shared_store):
    store = shared_store(shapes=[(30, 90)], invalid=0.0)
    oracle, halo, side = Oracle(store, "test"), store.halo, store.tile_size + 2 * store.halo
    for batch in PatchStream(store, split="test", batch_size=5):
        for tile, image in zip(batch["tile"].tolist(), batch["image"].numpy(), strict=True):
            own = np.argwhere(oracle.core[tile] & oracle.own[tile])
            for y in range(side):
                for x in range(side):
                    near = np.abs(own - [y, x]).max(axis=1).min() <= halo
                    assert np.array_equal(image[:, y, x], oracle.data[tile, :, y, x] if near else np.zeros(3))


def test_what_is_blanked_is_0_whatever_it_was():
    data, own = np.full((2, 3, 6, 6), np.inf, np.float32), np.zeros((2, 6, 6), np.bool_)
    data[1, 1], own[1, 2, 0] = -1, True
    expected = data.copy()
    expected[1, :, :, 2:] = expected[1, :, 4:] = expected[1, :, :1] = 0
    blank_unseen(data, own, np.array([1]), 1)
    assert data.tobytes() == expected.tobytes(), "neither NaN nor -0"


def test_batches_stay_unchanged_while_they_are_held(shared_store):
    store = shared_store()
    for patch in (None, 3):
        batches, copies = [], []
        for batch in PatchStream(store, patch=patch, batch_size=5):
            batches.append(batch)
            copies += snapshot([batch])
        assert_equal_batches(batches, copies)


def keep(monkeypatch, slots: int) -> None:
    """Let streams hold `slots` decoded blocks, whatever their budget."""
    monkeypatch.setattr(MemoryPlan, "of", lambda *_: MemoryPlan(slots, 4, 0))


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("patch", [None, 3])
def test_a_batch_that_needs_more_blocks_than_are_kept_is_right(shared_store, monkeypatch, slots, patch):
    store = shared_store(chunk=1, shard=4)
    arguments = {"split": "all", "batch_size": 20, "patch": patch, "lanes": 4, "window": 1}
    expected = list(PatchStream(store, **arguments))
    keep(monkeypatch, slots)
    stream = PatchStream(store, **arguments)
    assert_equal_batches(list(stream), expected)
    assert stream.stats().slots == slots


def test_a_store_that_fits_is_decoded_once_for_all_epochs(shared_store):
    store = shared_store(chunk=1, shard=8)
    stream = PatchStream(store, split="all", batch_size=4, lanes=1, window=1)
    for epoch in range(3):
        stream.set_epoch(epoch)
        assert sum(1 for _ in stream) == len(stream)
    assert stream.stats().blocks_read == len(store)


@pytest.mark.parametrize(("slots", "most"), [(8, 120), (16, 64 + 3 * 4 + 16)])
def test_each_block_is_read_about_once_if_the_order_has_room(shared_store, monkeypatch, slots, most):
    keep(monkeypatch, slots)
    store = shared_store(chunk=1, shard=8, shapes=[(64, 64)], halo=1, split="train")
    stream = PatchStream(store, patch=3, batch_size=32, lanes=4, window=2)
    assert sum(1 for _ in stream) == len(stream)
    stream.close()
    assert len(store) <= stream.stats().blocks_read <= most, "16 more may be read for the next epoch"


def test_of_a_store_that_does_not_fit_as_much_stays_as_has_room(shared_store, monkeypatch):
    """Later epochs read little more than what is not held; least recently used would hold almost nothing."""
    keep(monkeypatch, 48)
    store = shared_store(chunk=1, shard=8, shapes=[(64, 64)], halo=1, split="train")
    assert len(store) == 64
    stream = PatchStream(store, patch=3, batch_size=32, lanes=4, window=1, threads=1)
    for epoch in range(6):
        stream.set_epoch(epoch)
        assert sum(1 for _ in stream) == len(stream)
    later = (stream.stats().blocks_read - 64) / 5
    assert later <= 0.6 * 64


def test_a_budget_below_what_the_order_needs_is_refused_with_the_least_that_is_enough(shared_store):
    store = shared_store()
    with pytest.raises(ConfigError, match=r"budget_bytes=1000 .*which takes (\d+) bytes") as refused:
        list(PatchStream(store, batch_size=4, budget_bytes=1000))
    least = int(str(refused.value).split("which takes ")[1].split()[0])
    expected = list(PatchStream(store, batch_size=4))
    assert_equal_batches(list(PatchStream(store, batch_size=4, budget_bytes=least)), expected)
    with pytest.raises(ConfigError, match="budget_bytes"):
        list(PatchStream(store, batch_size=4, budget_bytes=least - 1))


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch": 4}, "odd"),
        ({"patch": -1}, "odd"),
        ({"patch": True}, "odd"),
        ({"patch": 7}, r"halo of 2 pixels allows patches up to 5.*tiles\.halo to 3"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, r"batch_size=2\.0"),
        ({"split": "val"}, "train, validation, test, all"),
        ({"lanes": 0}, "lanes=0"),
        ({"window": 0}, "window=0"),
        ({"seed": "0"}, "seed='0'"),
        ({"rank": 0}, "go together"),
        ({"rank": 2, "world_size": 2}, "0 to 1"),
    ],
)
def test_bad_arguments_are_refused_by_name(shared_store, arguments, message):
    with pytest.raises(ConfigError, match=message):
        PatchStream(shared_store(), **({"batch_size": 4} | arguments))


def test_a_split_without_samples_is_refused_with_the_counts(shared_store):
    store = shared_store(split="train")
    with pytest.raises(
        EmptySplitError, match=rf"'test'.*train {Oracle(store, 'train').mask.sum()}, validation 0"
    ):
        PatchStream(store, split="test", batch_size=4)


def test_a_path_will_do_for_a_store(shared_store):
    store = shared_store()
    for path in (store.path, str(store.path)):
        assert_equal_batches(list(PatchStream(path, batch_size=9)), list(PatchStream(store, batch_size=9)))


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data", "labels", "valid", "split"])
def test_a_missing_shard_is_named_before_the_first_batch(make_store, name):
    store = make_store()
    stream = PatchStream(store, patch=3, batch_size=4)
    store.shard_path(name, 1).unlink()
    with pytest.raises(StoreCorruptError, match=rf"tiles/{name}/c/1"):
        next(iter(stream))


@pytest.mark.parametrize("patch", [None, 3])
def test_a_flipped_bit_is_found_when_its_block_is_read(make_store, patch):
    store = make_store(codec="none")
    path = store.shard_path("data", 0)
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match="tiles/data/c/0"):
        list(PatchStream(store, patch=patch, batch_size=4))


def test_a_block_that_fails_is_not_taken_for_read(make_store):
    """After an error the same stream asks for the block again and does not serve what its slot held."""
    store = make_store(codec="none")
    stream = PatchStream(store, split="all", batch_size=4)
    path = store.shard_path("data", 0)
    content = path.read_bytes()
    path.write_bytes(b"\0" * len(content))
    for _ in range(3):
        with pytest.raises(StoreCorruptError, match="tiles/data/c/0"):
            list(stream)
    path.write_bytes(content)
    assert_equal_batches(list(stream), list(PatchStream(store, split="all", batch_size=4)))


def test_an_index_that_contradicts_the_tiles_is_told(make_store, monkeypatch):
    store = make_store()
    # the other size of the rewritten shard would be found before anything is read
    monkeypatch.setattr(PatchStore, "check_present", lambda self: None)
    labels = zarr.open_array(store.path / "tiles/labels", mode="r+")
    labels[...] = 1
    with pytest.raises(StoreCorruptError, match="their index says"):
        list(PatchStream(store, patch=3, batch_size=4))


# -- ranks -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 8),
    batch_size=st.integers(1, 6),
    lanes=st.integers(1, 9),
    window=st.sampled_from([None, 1, 3]),
    patch=st.sampled_from([None, 3]),
    seed=st.integers(-5, 2**70),
    flips=st.booleans(),
)
def test_ranks_share_an_epoch_out(shared_store, ranks, batch_size, lanes, window, patch, seed, flips):
    store = shared_store(shapes=[(14, 20)])
    streams = [
        PatchStream(
            store,
            patch=patch,
            batch_size=batch_size,
            lanes=lanes,
            window=window,
            seed=seed,
            rank=r,
            world_size=ranks,
            flips=flips,
        )
        for r in range(ranks)
    ]
    own = Oracle(store, "train")
    expected = own.pixels() if patch else np.flatnonzero(own.mask.any(axis=(1, 2))).tolist()
    batches = [list(stream) for stream in streams]
    assert (
        {len(some) for some in batches}
        == {len(stream) for stream in streams}
        == {-(-len(expected) // (batch_size * ranks))}
    )
    assert sorted(i for some in batches for i in real_ids(some, store)) == sorted(expected)


@pytest.mark.parametrize("ranks", [2, 3, 12])
def test_global_batches_are_equal_for_any_number_of_ranks(shared_store, ranks):
    store = shared_store()
    alone = list(PatchStream(store, patch=3, batch_size=12, flips=True))
    parts = [
        list(PatchStream(store, patch=3, batch_size=12 // ranks, flips=True, rank=r, world_size=ranks))
        for r in range(ranks)
    ]
    for step, whole in enumerate(alone):
        for name in ("image", "label", "mask", "tile", "row", "col"):
            joined = torch.stack([part[step][name] for part in parts], dim=1).flatten(0, 1)
            assert torch.equal(joined, whole[name])


def test_ranks_come_from_torch_distributed_and_travel_to_processes_that_lack_it(shared_store, monkeypatch):
    store = shared_store()
    stream = PatchStream(store, batch_size=2)
    assert stream.global_batch == 2
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        patched.setattr(torch.distributed, "get_rank", lambda: 1)
        patched.setattr(torch.distributed, "get_world_size", lambda: 3)
        assert stream.global_batch == 6
        sent = pickle.dumps(stream)
        mine = list(stream)
    second = list(PatchStream(store, batch_size=2, rank=1, world_size=3))
    assert_equal_batches(mine, second)
    assert_equal_batches(list(pickle.loads(sent)), second)  # noqa: S301


# -- epochs and flips --------------------------------------------------------------------------------------------


def test_epochs_differ_and_repeat(shared_store):
    store = shared_store()
    stream = PatchStream(store, batch_size=4, seed=3)
    orders = []
    for epoch in (0, 1, 2, 1):
        stream.set_epoch(epoch)
        assert stream.epoch == epoch
        orders.append(real_ids(stream, store))
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert real_ids(stream, store) == orders[3], "an epoch repeats until set_epoch"


def test_dihedral_gives_the_eight_symmetries_of_a_square():
    square = np.arange(9).reshape(3, 3)
    out = np.repeat(square[None], 8, axis=0)
    dihedral_(out, np.arange(8, dtype=np.uint8))
    expected = {np.rot90(start, k).tobytes() for start in (square, square[::-1]) for k in range(4)}
    assert {one.tobytes() for one in out} == expected
    assert np.array_equal(out[0], square)


@pytest.mark.parametrize("patch", [None, 5])
def test_flips_turn_image_label_and_mask_alike_and_repeat(shared_store, patch):
    store = shared_store()
    plain, turned = (
        PatchStream(store, patch=patch, batch_size=6, seed=1, flips=flips) for flips in (False, True)
    )
    again = PatchStream(store, patch=patch, batch_size=3, seed=1, flips=True, rank=1, world_size=2)
    codes: dict[int, dict] = {}
    for epoch in (0, 1):
        for stream in (plain, turned, again):
            stream.set_epoch(epoch)
        codes[epoch] = {}
        for one, other, half in zip(plain, turned, again, strict=True):
            assert torch.equal(half["image"], other["image"][1::2])
            for i in range(6):
                every = [one["image"][i].numpy()[None].copy() for _ in range(8)]
                fits = []
                for code in range(8):
                    dihedral_(every[code], np.array([code], np.uint8))
                    if np.array_equal(every[code][0], other["image"][i].numpy()):
                        fits.append(code)
                assert fits
                if len(fits) == 1:  # mirrored scene edges look alike in two ways
                    codes[epoch][pixel_key(one, i, store)] = fits[0]
                for name in ("label", "mask"):
                    own = one[name][i].numpy()[None].copy()
                    if patch is None:
                        dihedral_(own, np.array(fits[:1], np.uint8))
                    assert np.array_equal(own[0], other[name][i].numpy())
    assert set(codes[0].values()) == set(range(8))
    assert codes[0] != codes[1]


# -- resumption --------------------------------------------------------------------------------------------------


def interrupted(stream: PatchStream, stop: int) -> dict:
    """State of a stream that was left after `stop` batches, as it comes out of a JSON file."""
    batches = iter(stream)
    for _ in range(stop):
        next(batches)
    return json.loads(json.dumps(stream.state_dict()))


@pytest.mark.parametrize("patch", [None, 3])
@pytest.mark.parametrize("stop", [0, 1, 3, -1, None])
def test_resumption_gives_the_rest_and_then_whole_epochs(shared_store, patch, stop):
    """Mid-epoch, at the last batch and at the epoch's end; then two more epochs."""
    store = shared_store()

    def new(**more) -> PatchStream:
        return PatchStream(store, patch=patch, batch_size=5, seed=2, flips=True, **more)

    whole = new()
    stop = {-1: len(whole) - 1, None: len(whole)}.get(stop, stop)
    expected = []
    for epoch in (3, 4, 5):
        whole.set_epoch(epoch)
        expected += list(whole)[stop if epoch == 3 else 0 :]
    first = new()
    first.set_epoch(3)
    second = new(window=7, lanes=3)  # the state brings its own
    second.load_state_dict(interrupted(first, stop))
    got = []
    for epoch in (3, 4, 5):
        second.set_epoch(epoch)
        got += list(second)
    assert_equal_batches(got, expected)


def test_the_iteration_after_a_resumed_one_is_whole(shared_store):
    stream = PatchStream(shared_store(), batch_size=5)
    whole = list(stream)
    stream.load_state_dict(stream.state_dict(step=1))
    assert_equal_batches(list(stream), whole[2:])
    assert_equal_batches(list(stream), whole)


def test_state_counts_what_was_trained_not_what_was_yielded(shared_store):
    store = shared_store()
    stream = PatchStream(store, batch_size=2)
    batches = iter(stream)
    step = [next(batches)["step"] for _ in range(4)][1]
    state = stream.state_dict(step=step)
    assert state["samples"] == 4
    assert stream.state_dict()["samples"] == 8
    other = PatchStream(store, batch_size=2)
    other.load_state_dict(state)
    assert next(iter(other))["step"] == 2
    assert other.state_dict() == stream.state_dict(step=2)


def test_another_epoch_forgets_the_place_of_resumption(shared_store):
    stream = PatchStream(shared_store(), batch_size=5)
    stream.load_state_dict(stream.state_dict(step=1))
    assert stream.state_dict()["samples"] == 10
    stream.set_epoch(1)
    assert stream.state_dict()["samples"] == 0
    stream.set_epoch(0)
    assert [batch["step"] for batch in stream] == list(range(len(stream)))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_resumption_on_another_number_of_ranks(shared_store, before, after):
    store = shared_store()

    def of_ranks(ranks: int) -> list[PatchStream]:
        return [
            PatchStream(store, patch=3, batch_size=12 // ranks, seed=5, rank=r, world_size=ranks)
            for r in range(ranks)
        ]

    first = of_ranks(before)
    heads = [list(stream)[:7] for stream in first]
    states = [stream.state_dict(step=6) for stream in first]
    assert all(state == states[0] for state in states), "a state belongs to all ranks"
    second = of_ranks(after)
    tails = []
    for stream in second:
        stream.load_state_dict(states[0])
        tails.append(list(stream))
    ids = [i for part in (*heads, *tails) for i in real_ids(part, store)]
    assert sorted(ids) == Oracle(store, "train").pixels()
    following = []
    for stream in second:
        stream.set_epoch(1)
        following += real_ids(stream, store)
    assert sorted(following) == Oracle(store, "train").pixels()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 6}, "global_batch 5.*global_batch 6"),
        ({"rank": 0, "world_size": 2}, "global_batch 5.*global_batch 10"),
        ({"seed": 1}, "seed 0.*seed 1"),
        ({"split": "test"}, "split 'train'.*split 'test'"),
        ({"patch": 3}, "patch None.*patch 3"),
        ({"shuffle": False}, "shuffle True.*shuffle False"),
        ({"flips": True}, "flips False.*flips True"),
    ],
)
def test_the_state_of_another_stream_is_refused_with_both_values(shared_store, changes, message):
    store = shared_store()
    state = PatchStream(store, batch_size=5).state_dict(step=0)
    with pytest.raises(CheckpointError, match=message):
        PatchStream(store, **({"batch_size": 5} | changes)).load_state_dict(state)


def test_the_state_of_another_store_is_refused_with_both_fingerprints(shared_store):
    one, other = shared_store(), shared_store(seed=1)
    state = PatchStream(one, batch_size=5).state_dict(step=0)
    with pytest.raises(CheckpointError, match=rf"{one.fingerprint}.*{other.fingerprint}"):
        PatchStream(other, batch_size=5).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 3),
        ("samples", 10**9),
        ("samples", -5),
        ("samples", "5"),
        ("epoch", None),
        ("lanes", 0),
        ("seed", ...),
    ],
)
def test_a_damaged_state_is_refused(shared_store, name, value):
    stream = PatchStream(shared_store(), batch_size=5)
    state = stream.state_dict(step=0)
    if value is ...:
        del state[name]
    else:
        state[name] = value
    with pytest.raises(CheckpointError, match="damaged"):
        stream.load_state_dict(state)
    assert next(iter(stream))["step"] == 0, "a refused state changes nothing"


@pytest.mark.parametrize("step", [-1, 10**6, 1.5])
def test_a_step_that_is_no_batch_has_no_state(shared_store, step):
    with pytest.raises(ConfigError, match="step="):
        PatchStream(shared_store(), batch_size=5).state_dict(step=step)


# -- copies and worker processes ---------------------------------------------------------------------------------


def test_copies_are_streams_of_their_own(shared_store):
    stream = PatchStream(shared_store(), batch_size=5)
    whole = list(stream)
    for other in (copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):  # noqa: S301
        other.set_epoch(4)
        assert stream.epoch == 0
        other.set_epoch(0)
        assert_equal_batches(list(other), whole)


def test_a_loader_without_workers_passes_batches_through(shared_store):
    stream = PatchStream(shared_store(), batch_size=5)
    loader = DataLoader(stream, batch_size=None)
    assert len(loader) == len(stream)
    assert_equal_batches(list(loader), list(stream))
    stream.load_state_dict(stream.state_dict(step=2))
    assert [batch["step"] for batch in loader] == list(range(3, len(stream)))
    assert len(list(loader)) == len(stream)


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_any_start_method_after_the_parent_has_read(shared_store, method):
    """All finish, in order, and resumption holds for one iteration."""
    store = shared_store()
    stream = PatchStream(store, patch=3, batch_size=64, flips=True)
    whole = snapshot(stream)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=60)
    stream.load_state_dict(stream.state_dict(step=2))
    assert_equal_batches(list(loader), whole[3:])
    with pytest.raises(ConfigError, match="step"):
        stream.state_dict()
    if method == "fork":  # the others take seconds to start once more
        assert_equal_batches(list(loader), whole)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_persistent_workers_see_epochs_and_resumption(shared_store):
    store = shared_store()
    stream, plain = (PatchStream(store, batch_size=4) for _ in range(2))
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
        timeout=60,
    )
    for epoch in (0, 1, 2):
        stream.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert_equal_batches(list(loader), list(plain))
    stream.load_state_dict(stream.state_dict(step=4))
    plain.load_state_dict(plain.state_dict(step=4))
    for _ in range(2):
        assert_equal_batches(list(loader), list(plain))
    del loader


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_each_patch_once_with_workers_and_ranks(shared_store, workers):
    store = shared_store(shapes=[(21, 30)])
    for ranks in (1, 2, 3):
        ids = []
        for rank in range(ranks):
            stream = PatchStream(store, patch=3, batch_size=16, rank=rank, world_size=ranks)
            loader = DataLoader(
                stream, batch_size=None, num_workers=workers, multiprocessing_context="fork", timeout=60
            )
            batches = list(loader)
            assert [batch["step"] for batch in batches] == list(range(len(stream)))
            ids += real_ids(batches, store)
        assert sorted(ids) == Oracle(store, "train").pixels()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_missing_shard_is_named_through_workers(make_store):
    store = make_store()
    stream = PatchStream(store, batch_size=4)
    store.shard_path("data", 1).unlink()
    with pytest.raises(StoreCorruptError, match="tiles/data/c/1"):
        list(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60))


def test_a_given_up_iteration_does_not_split_the_workers_next_one(shared_store):
    """Worker 0 has begun and worker 1 has not when an iteration is dropped: both begin the next one alike."""
    position = PatchStream(shared_store(), batch_size=4)._position
    position.resume(0, 3)
    assert position.begin_in_worker(0, loader_seed=11) == (0, 3)
    assert [position.begin_in_worker(worker, loader_seed=12) for worker in (0, 1)] == [(0, 0), (0, 0)]
    position.resume(0, 2)
    assert [position.begin_in_worker(worker, loader_seed=5) for worker in (0, 1)] == [(0, 2), (0, 2)]
    # an equal seed, as after torch.manual_seed before each epoch
    assert [position.begin_in_worker(worker, loader_seed=5) for worker in (0, 1)] == [(0, 0), (0, 0)]
    assert position.begin() == (0, 0)


def test_a_stream_that_met_a_missing_shard_gives_right_pixels_once_the_shard_is_back(
    make_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block whose decoding failed must not take the place of another one."""
    keep(monkeypatch, 4)
    store = make_store()
    stream = PatchStream(store, split="all", batch_size=2, seed=3, lanes=2, window=1)
    expected = snapshot(stream)
    decode, calls = Slots.decode, 0

    def failing(*arguments) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise StoreCorruptError("gone for a moment")
        decode(*arguments)

    broken = PatchStream(store, split="all", batch_size=2, seed=3, lanes=2, window=1)
    monkeypatch.setattr(Slots, "decode", failing)
    for _ in range(6):
        with pytest.raises(StoreCorruptError):
            list(broken)
    monkeypatch.setattr(Slots, "decode", decode)
    assert_equal_batches(snapshot(broken), expected)
