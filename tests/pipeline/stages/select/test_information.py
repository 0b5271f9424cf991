"""Binning and mutual information, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.select.information import BINS, Binned, equal_frequency, mutual_information


def test_bins_hold_equally_many_pixels() -> None:
    values = np.random.default_rng(0).lognormal(size=(3, 1600)).astype(np.float32)
    for bins in equal_frequency(values):
        counts = np.bincount(bins)
        assert len(counts) == BINS
        assert np.abs(counts - 200).max() <= 1


def test_bins_follow_the_values_and_equal_values_share_one() -> None:
    values = np.random.default_rng(1).integers(0, 9, (2, 500)).astype(np.float32)
    for row, bins in zip(values, equal_frequency(values), strict=True):
        order = np.argsort(row, kind="stable")
        assert (np.diff(bins[order]) >= 0).all()
        for value in np.unique(row):
            assert len(np.unique(bins[row == value])) == 1
    assert (
        equal_frequency(np.full((1, 50), 3.0, np.float32)) == equal_frequency(np.full((1, 50), 9.0))
    ).all()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_two_values_are_always_told_apart(share: float) -> None:
    """However rare one of them is: a mask, a flag, a band that is almost constant."""
    values = (np.arange(200) < 200 * share).astype(np.float32)
    for bins in (2, 8):
        (found,) = equal_frequency(values[None], bins)
        assert len(np.unique(found)) == 2
        assert 0 <= found.min() < found.max() < bins


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(-1e3, 1e3))
def test_scaling_a_band_changes_no_bin(seed: int, gain: float, offset: float) -> None:
    values = np.random.default_rng(seed).normal(size=(2, 200))
    assert (equal_frequency(values) == equal_frequency(values * gain + offset)).all()


def _cells(*parts: np.ndarray) -> int:
    return len(set(zip(*(part.tolist() for part in parts), strict=True)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.floats(0, 1))
def test_information_is_scikit_learns_plus_millers_correction(seed: int, x: int, y: int, tied: float) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, x, 300).astype(np.int32)
    second = np.where(rng.random(300) < tied, first % y, rng.integers(0, y, 300)).astype(np.int32)
    bias = (_cells(first) + _cells(second) - _cells(first, second) - 1) / 600
    expected = max(0.0, mutual_info_score(first, second) + bias)
    assert mutual_information(first, second) == pytest.approx(expected, abs=1e-12)
    assert mutual_information(second, first) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0, 1))
def test_conditional_information_is_the_mean_over_what_is_given(seed: int, z: int, tied: float) -> None:
    rng = np.random.default_rng(seed)
    first, third = (rng.integers(0, top, 400).astype(np.int32) for top in (6, z))
    second = np.where(rng.random(400) < tied, (first + third) % 3, rng.integers(0, 3, 400)).astype(np.int32)
    parts = [(third == value) for value in np.unique(third)]
    plug_in = sum(part.mean() * mutual_info_score(first[part], second[part]) for part in parts)
    bias = _cells(first, third) + _cells(second, third) - _cells(first, second, third) - _cells(third)
    assert mutual_information(first, second, third) == pytest.approx(
        max(0.0, plug_in + bias / 800), abs=1e-12
    )


def test_nothing_is_told_beyond_a_copy() -> None:
    rng = np.random.default_rng(2)
    first, labels = (rng.integers(0, 8, 500).astype(np.int32) for _ in range(2))
    assert mutual_information(first, labels, 7 - first) < 1e-12


def test_noise_tells_nothing_on_average_however_many_bins_it_has() -> None:
    """Without the correction 8 bins and 4 classes would seem to tell 21 / (2 n) nats, 0.013 here."""
    rng = np.random.default_rng(5)
    labels = rng.integers(1, 5, 800)
    binned = Binned.of(rng.normal(size=(120, 800)), labels)
    found = binned.with_labels()
    plain = np.mean([mutual_info_score(bins, binned.labels) for bins in binned.bins_bp])
    assert plain > 0.008
    # clipped at 0, so the mean stays a little above it
    assert found.mean() < 0.003


def test_unlabelled_pixels_do_not_count() -> None:
    rng = np.random.default_rng(6)
    values, labels = rng.normal(size=(4, 300)), rng.integers(0, 3, 300)
    alone = Binned.of(values[:, labels > 0], labels[labels > 0]).with_labels()
    np.testing.assert_array_equal(Binned.of(values, labels).with_labels(), alone)


@pytest.mark.parametrize(("pixels", "bins"), [(4, 2), (135, 3), (240, 4), (957, 7), (960, 8), (9000, 8)])
def test_few_pixels_get_few_bins(pixels: int, bins: int) -> None:
    """So many that (bin, bin, class) has 5 pixels on average."""
    labels = np.arange(pixels) % 3 + 1
    values = np.random.default_rng(7).normal(size=(1, pixels))
    assert Binned.of(values, labels).bins_bp.max() == bins - 1


@pytest.mark.parametrize(
    ("labels", "found"), [([0] * 9, "none"), ([0, 7, 7] * 3, "only class 7"), ([], "none")]
)
def test_fewer_than_two_classes_are_refused(labels: list[int], found: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"reduce\.rank mutual_information.*\({found}\).*labels.*mnf or osp"
    ):
        Binned.of(np.zeros((3, len(labels)), np.float32), np.array(labels, int))
