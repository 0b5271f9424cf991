"""Augmentation: what a sample looks like depends on (seed, epoch, sample), on no rank, worker or device."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.data import DataLoader

from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import ConfigError
from bandstream.train.experiment import Experiment
from bandstream.train.losses import goals, summed_cross_entropy, weight_total
from bandstream.train.parts import make_stream
from bandstream.train.stream import PatchStream, draws
from bandstream.train.stream.augment import (
    Augmentation,
    AugmentConfig,
    band_std,
    dihedral_,
    kept_bands,
    mixup_roll,
    turn_codes,
)
from bandstream.train.stream.order import sample_keys

ALL = AugmentConfig(
    flips=True,
    spectral_shift_bands=0.8,
    mixup_alpha=0.4,
    noise_std=0.1,
    band_dropout_probability=0.3,
)


def augmentation(config: AugmentConfig = ALL, bands: int = 6) -> Augmentation:
    """Return an augmentation for bands of which one neighbour is three bands away."""
    step = np.ones(bands - 1, np.float32)
    step[1:2] = 3
    noise = np.atleast_1d(np.float32(config.noise_std)) if config.noise_std else None
    return Augmentation(config, noise, step if config.spectral_shift_bands else None)


def make_batch(kind: str, number: int = 8, bands: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch as the stream gives it: patches with the band last in memory; some pixels without data."""
    rng = np.random.default_rng(seed)
    side = 5
    image = rng.normal(size=(number, side, side, bands)).astype(np.float32)
    blank = rng.random((number, side, side)) < 0.2
    blank[:, side // 2, side // 2] &= kind == "tiles"
    image[blank] = 0
    image = image.transpose(0, 3, 1, 2)
    shape = (number, side, side) if kind == "tiles" else (number,)
    label = rng.integers(0, 5, shape)
    mask = (label > 0) & (rng.random(shape) < 0.8)
    if kind == "tiles":
        image, mask = np.ascontiguousarray(image), mask & ~blank
        mask[3] = False  # fills up the batch
    target = rng.normal(size=(number, 2, *shape[1:])).astype(np.float32)
    target[rng.random(target.shape) < 0.1] = np.nan
    return {"image": image, "label": label, "mask": mask, "target": target}


def copied(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: value.copy(order="K") for name, value in batch.items()}


def keys(number: int = 8, epoch: int = 0, first: int = 0) -> np.ndarray:
    return sample_keys(7, epoch, np.arange(first, first + number))


KINDS = pytest.mark.parametrize("kind", ["tiles", "patches"])
#: a sample's look depends on no other sample, but for mixup
ALONE = ALL.model_copy(update={"mixup_alpha": 0.0})
EACH = [
    {"flips": True},
    {"flips": True, "quarter_turns": False},
    {"spectral_shift_bands": 1.0},
    {"noise_std": 0.3},
    {"band_dropout_probability": 0.5},
    {"mixup_alpha": 0.2},
]


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_keys", "said"),
    [
        ({"flip": True}, "Did you mean 'flips'"),
        ({"spectral_shift_bands": 1.5}, "less than or equal to 1"),
        ({"spectral_shift_bands": float("nan")}, "finite"),
        ({"mixup_alpha": -1}, "greater than or equal to 0"),
        ({"noise_std": -0.5}, "0 or more"),
        ({"noise_std": [0.1, float("nan")]}, "0 or more"),
        ({"noise_std": []}, "0 or more"),
        ({"noise_std": 0.1, "noise_std_relative": 0.1}, "not both"),
        ({"band_dropout_probability": 1.0}, "less than or equal to 0.9"),
    ],
)
def test_settings_out_of_bounds_are_refused(given_keys, said):
    with pytest.raises(ConfigError, match=said):
        parse(AugmentConfig, given_keys, "augment")


def test_nothing_is_changed_unless_told():
    assert not AugmentConfig().active
    assert not AugmentConfig(quarter_turns=False).active
    assert all(AugmentConfig(**each).active for each in EACH)


# -- draws -------------------------------------------------------------------------------------------------------


def test_noise_is_normal_and_no_two_numbers_go_together():
    drawn = draws.normals(keys(64), 3, 20_001).astype(np.float64)
    assert drawn.shape == (64, 20_001)
    assert abs(drawn.mean()) < 4e-3
    assert abs(drawn.std() - 1) < 3e-3
    quantiles = np.quantile(drawn, [0.001, 0.1, 0.9, 0.999])
    np.testing.assert_allclose(quantiles, [-3.090, -1.2816, 1.2816, 3.090], atol=0.03)
    together = [np.mean(drawn[:, :-lag] * drawn[:, lag:]) for lag in (1, 2, 3, 64)]
    samples = np.corrcoef(drawn)[np.triu_indices(64, 1)]
    assert np.abs(together).max() < 5e-3
    assert np.abs(samples).max() < 0.04


def test_noise_of_few_values_is_the_start_of_that_of_many():
    many = draws.normals(keys(), 3, 1001)
    for count in (1, 2, 7, 1000):
        assert np.array_equal(draws.normals(keys(), 3, count), many[:, :count])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 300))
def test_numpy_and_torch_draw_the_same_numbers(some, use, count):
    key = np.array(some, np.uint64)
    there = draws.normals_on(torch.device("cpu"), key, use, count)
    assert np.array_equal(there.numpy(), draws.normals(key, use, count))


def test_shares_have_the_moments_of_the_beta_distribution():
    for alpha in (0.2, 1.0, 4.0):
        drawn = draws.beta(keys(20_000), 2, alpha)
        assert abs(drawn.mean() - 0.5) < 0.01
        assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


# -- every kind --------------------------------------------------------------------------------------------------


@KINDS
def test_a_sample_looks_the_same_in_any_batch(kind):
    whole, change = make_batch(kind), augmentation(ALONE)
    before = copied(whole)
    change(whole, keys())
    assert not np.array_equal(whole["image"], before["image"])
    for some in ([5], [2, 7], [6, 0, 3]):
        part = {name: value[some] for name, value in before.items()}
        change(part, keys()[some])
        assert all(np.array_equal(part[name], whole[name][some], equal_nan=True) for name in part)


@KINDS
@pytest.mark.parametrize("each", EACH)
def test_epochs_look_different_and_repeat(kind, each):
    found = []
    for epoch in (0, 1, 0):
        batch = make_batch(kind)
        augmentation(AugmentConfig(**each))(batch, keys(epoch=epoch), 4)
        found.append(batch["image"])
    assert np.array_equal(found[0], found[2])
    changed = (found[0] != found[1]).reshape(8, -1).any(1)
    assert changed.sum() >= 3, "samples are drawn one by one"


@KINDS
@pytest.mark.parametrize("each", [*EACH, ALL.model_dump()])
def test_tensors_are_changed_as_arrays_are(kind, each):
    batch, change = make_batch(kind), augmentation(AugmentConfig(**each))
    tensors = {name: torch.from_numpy(value) for name, value in copied(batch).items()}
    change(batch, keys(), 4)
    change.on_device(tensors, keys(), 4)
    assert tensors.keys() == batch.keys()
    for name, value in batch.items():
        there = tensors[name].numpy()
        assert there.dtype == value.dtype
        assert there.shape == value.shape
        np.testing.assert_allclose(there, value, rtol=1e-6, atol=1e-6)


@KINDS
def test_pixels_without_data_stay_0_and_the_mask_says_the_same(kind):
    """Turned with the tile, a pixel is 0 in all bands exactly where it was."""
    batch, change = make_batch(kind), augmentation()
    before = copied(batch)
    change(batch, keys(), 4)
    code = turn_codes(keys())
    dihedral_(before["image"], code)
    blank = (before["image"] == 0).all(1)
    assert blank.any()
    assert np.array_equal((batch["image"] == 0).all(1), blank)
    if kind == "tiles":
        dihedral_(before["mask"], code)
        dihedral_(before["label"], code)
        assert not batch["mask"][3].any()
    assert np.array_equal(batch["mask"], before["mask"])
    assert np.array_equal(batch["label"], before["label"])


# -- one by one --------------------------------------------------------------------------------------------------


@KINDS
def test_flips_without_quarter_turns_keep_rows_rows(kind):
    batch = make_batch(kind, 64)
    before = copied(batch)
    augmentation(AugmentConfig(flips=True, quarter_turns=False))(batch, keys(64))
    seen = set()
    for i in range(64):
        views = {(y, x): before["image"][i][:, ::y, ::x] for y, x in itertools.product((1, -1), repeat=2)}
        seen |= {turn for turn, view in views.items() if np.array_equal(view, batch["image"][i])}
    assert len(seen) == 4


@KINDS
def test_shifted_spectra_lie_on_the_line_between_neighbours(kind):
    """Against np.interp over source bands: ends are kept, and over a gap the step is as wide as anywhere."""
    config = AugmentConfig(spectral_shift_bands=0.8)
    batch, change = make_batch(kind, 64), augmentation(config)
    before = copied(batch)
    change(batch, keys(64))
    place = np.array([0.0, 1, 4, 5, 6, 7])
    shift = 0.8 * (2 * draws.uniforms(keys(64), 1, 1)[:, 0] - 1)
    assert shift.min() < -0.6
    assert shift.max() > 0.6
    for i, y, x in itertools.product(range(64), range(5), range(5)):
        expected = np.interp(place + shift[i], place, before["image"][i, :, y, x])
        np.testing.assert_allclose(batch["image"][i, :, y, x], expected, atol=1e-5)


@KINDS
def test_noise_has_the_std_of_its_band(kind):
    std = np.array([0.01, 0.1, 1, 2, 0, 0.5], np.float32)
    batch = make_batch(kind, 400)
    before = copied(batch)
    Augmentation(AugmentConfig(noise_std=tuple(std.tolist())), std)(batch, keys(400))
    seen = (before["image"] != 0).any(1)
    noise = (batch["image"] - before["image"]).transpose(0, 2, 3, 1)[seen]
    np.testing.assert_allclose(noise.std(0), std, rtol=0.05, atol=1e-6)
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.06)


def test_bands_are_dropped_at_their_rate_and_one_stays():
    kept = kept_bands(keys(4000), 10, 0.3)
    assert set(np.unique(kept)) == {0.0, 1.0}
    assert abs(kept.mean() - 0.7) < 0.01
    assert np.abs(kept.mean(0) - 0.7).max() < 0.04
    assert kept_bands(keys(1000), 2, 0.9).sum(1).min() == 1
    assert kept_bands(keys(10), 1, 0.9).all()


# -- mixup -------------------------------------------------------------------------------------------------------


@KINDS
def test_mixup_is_the_weighted_mean_where_both_have_data(kind):
    """Pixel by pixel in float64; where one of the two has no data, the sample's own stays."""
    batch = make_batch(kind)
    before = copied(batch)
    augmentation(AugmentConfig(mixup_alpha=0.4))(batch, keys(), 3)
    share = draws.beta(keys(), 2, 0.4).astype(np.float64)
    for i in range(8):
        j = (i + 3) % 8
        own, other = before["image"][i].astype(np.float64), before["image"][j].astype(np.float64)
        both = own.any(0) & other.any(0) & before["mask"][j].any()
        weight = np.where(both, share[i], 1)
        np.testing.assert_allclose(batch["image"][i], weight * own + (1 - weight) * other, atol=1e-6)
        mix = weight if kind == "tiles" else weight[2, 2]
        np.testing.assert_allclose(batch["mix"][i], mix, atol=1e-6)
        labels = np.where(before["mask"][i] & before["mask"][j], before["label"][j], 0)
        assert np.array_equal(batch["label_b"][i], labels)
        target, partner = before["target"][i], before["target"][j]
        expected = np.where(mix < 1, mix * target + (1 - mix) * partner, target)
        np.testing.assert_allclose(batch["target"][i], expected, atol=1e-6)
    for name in ("label", "mask"):
        assert np.array_equal(batch[name], before[name])
    assert batch["mix"].dtype == np.float32
    assert batch["label_b"].dtype == np.int64


@pytest.mark.parametrize(("samples", "lanes"), [(16, 8), (64, 8), (24, 4), (12, 8), (512, 8), (6, 1), (2, 8)])
def test_the_partner_is_the_same_under_any_ranks(samples, lanes):
    """Of a global batch, for every number of ranks that is not refused; in another lane where there is one."""
    found = []
    for ranks in range(1, samples + 1):
        if samples % ranks:
            continue
        try:
            roll = mixup_roll(samples // ranks, ranks, lanes)
        except ConfigError:
            continue
        partner = np.empty(samples, np.int64)
        for rank in range(ranks):
            own = np.arange(rank, samples, ranks)
            partner[own] = np.roll(own, -roll)
        found.append(partner)
    assert len(found) >= (1 if samples == 2 else 2)
    assert all(np.array_equal(partner, found[0]) for partner in found)
    assert (found[0] != np.arange(samples)).all()
    assert lanes == 1 or ((found[0] - np.arange(samples)) % lanes != 0).sum() > samples / 3


def test_twice_as_many_lanes_as_ranks_is_enough_for_mixup():
    for ranks, half in itertools.product((1, 2, 4, 8, 16), (1, 2, 8, 32)):
        assert 0 < mixup_roll(2 * half, ranks, 2 * ranks) < 2 * half


def test_mixup_across_ranks_is_refused():
    with pytest.raises(ConfigError, match="even batch_size and lanes=16"):
        mixup_roll(16, 8, 8)
    with pytest.raises(ConfigError, match="even batch_size"):
        mixup_roll(1, 1, 8)


@KINDS
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_mixed_samples_is_that_of_soft_labels(kind, weighted):
    """Where both labels are known; torch's own cross-entropy with probabilities is the oracle."""
    batch = make_batch(kind)
    batch["label"] = np.where(batch["label"] > 0, batch["label"], 1)
    batch["mask"][...] = True
    batch["image"][batch["image"] == 0] = 1e-3
    augmentation(AugmentConfig(mixup_alpha=1.0))(batch, keys(), 4)
    there = {name: torch.from_numpy(value) for name, value in batch.items()}
    assert bool((there["mix"] < 1).all())
    logits = torch.randn(8, 4, *batch["label"].shape[1:], generator=torch.Generator().manual_seed(1))
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0]) if weighted else None
    own, other = (functional.one_hot(there[name] - 1, 4).movedim(-1, 1) for name in ("label", "label_b"))
    mix = there["mix"].unsqueeze(1)
    expected = functional.cross_entropy(logits, mix * own + (1 - mix) * other, weight, reduction="sum")
    found = sum(summed_cross_entropy(logits, goal, weight, share=share) for goal, share in goals(there))
    torch.testing.assert_close(found, expected)
    total = sum(weight_total(goal, weight, share) for goal, share in goals(there))
    ones = torch.ones(4) if weight is None else weight
    expected = ((mix * own + (1 - mix) * other).movedim(1, -1) * ones).sum()
    torch.testing.assert_close(total, expected)


# -- what depends on the store -----------------------------------------------------------------------------------


def test_the_bands_std_is_that_of_the_valid_training_pixels(shared_store):
    store = shared_store(chunk=1, shard=5)
    read = {name: store.read_tiles(name, 0, len(store)) for name in ("data", "valid", "split")}
    filled = np.flatnonzero(store.index.pixels[:, 1])
    tiles = filled[np.linspace(0, len(filled) - 1, 16).round().astype(int)]
    assert len(np.unique(tiles)) == 16 < len(filled)
    own = (read["valid"] & (read["split"] == 1))[tiles]
    pixels = read["data"].transpose(0, 2, 3, 1)[tiles][own].astype(np.float64)
    np.testing.assert_allclose(band_std(store), pixels.std(0), rtol=1e-9)
    change = Augmentation.of(AugmentConfig(noise_std_relative=0.5), store)
    np.testing.assert_allclose(change.noise_std_b, 0.5 * pixels.std(0), rtol=1e-6)


def test_noise_for_other_bands_is_refused(shared_store):
    with pytest.raises(ConfigError, match=r"2 values and the store .* 3 bands"):
        Augmentation.of(AugmentConfig(noise_std=(1.0, 2.0)), shared_store())
    assert Augmentation.of(AugmentConfig(noise_std=(1.0, 2.0, 0.0)), shared_store()).noise_std_b is not None


def test_a_shift_of_components_is_refused_and_gaps_between_bands_are_known(make_store):
    store, config = make_store(), AugmentConfig(spectral_shift_bands=0.5)
    with pytest.raises(ConfigError, match=r"components .*no neighbour in the spectrum"):
        Augmentation.of(config, store)
    zarr.create_array(store.path / "bands" / "output", data=np.array([3, 4, 9]))
    assert Augmentation.of(config, store).step_b.tolist() == [1, 5]


def test_flips_are_done_beside_other_kinds(shared_store):
    noise = {"noise_std": 0.1}
    one, both = (
        list(PatchStream(shared_store(), batch_size=4, **given))
        for given in (
            {"flips": True, "augment": AugmentConfig(**noise)},
            {"augment": AugmentConfig(flips=True, **noise)},
        )
    )
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(one, both, strict=True))


def test_an_experiment_augments_what_it_trains_on_and_nothing_else(shared_store):
    store = shared_store()
    settings = {
        "name": "mixed",
        "store": str(store.path),
        "patch": 3,
        "batch": 16,
        "augment": {"flips": True, "mixup_alpha": 0.2, "noise_std_relative": 0.1},
    }
    experiment = parse(Experiment, settings, "the experiment")
    assert {"label_b", "mix"} <= next(iter(make_stream(experiment, store, "train"))).keys()
    for split in ("validation", "test"):
        batch = next(iter(make_stream(experiment, store, split)))
        plain = next(iter(PatchStream(store, split=split, patch=3, batch_size=16, shuffle=False)))
        assert batch.keys() == plain.keys()
        assert torch.equal(batch["image"], plain["image"])


# -- through the stream ------------------------------------------------------------------------------------------


def by_sample(batches) -> dict[tuple[int, int, int], bytes]:
    """Return the image of each real sample, by its place."""
    found = {}
    for batch in batches:
        real = batch["mask"].reshape(len(batch["mask"]), -1).any(1)
        for i in torch.nonzero(real)[:, 0].tolist():
            place = tuple(int(batch[name][i]) for name in ("tile", "row", "col"))
            found[place] = batch["image"][i].numpy().tobytes()
    return found


@pytest.mark.parametrize("patch", [None, 3])
def test_augmented_samples_are_equal_under_any_ranks_and_differ_between_epochs(shared_store, patch):
    store = shared_store()
    config = ALL.model_copy(update={"spectral_shift_bands": 0.0})
    epochs = []
    for epoch in (0, 1):
        found = []
        for ranks in (1, 2, 4):
            seen = {}
            for rank in range(ranks):
                stream = PatchStream(
                    store,
                    patch=patch,
                    batch_size=16 // ranks,
                    seed=5,
                    augment=config,
                    rank=rank,
                    world_size=ranks,
                )
                stream.set_epoch(epoch)
                seen |= by_sample(stream)
            found.append(seen)
        assert found[0] == found[1] == found[2]
        epochs.append(found[0])
    assert epochs[0].keys() == epochs[1].keys()
    same = sum(epochs[0][place] == epochs[1][place] for place in epochs[0])
    assert same < 0.05 * len(epochs[0])


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_augmented_samples_are_equal_under_any_workers(shared_store):
    store = shared_store()
    config = ALL.model_copy(update={"spectral_shift_bands": 0.0})
    stream = PatchStream(store, patch=3, batch_size=16, seed=5, augment=config)
    alone = by_sample(stream)
    for workers in (1, 2):
        loader = DataLoader(
            stream, batch_size=None, num_workers=workers, multiprocessing_context="fork", timeout=60
        )
        assert by_sample(loader) == alone
