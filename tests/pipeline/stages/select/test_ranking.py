"""What orders bands, against least squares, SciPy's generalised eigenvectors and definitions written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.stages.select import ranking
from bandstream.pipeline.stages.select.information import Binned, mutual_information
from bandstream.pipeline.statistics import Moments


def _mixed(seed: int, bands: int = 9, sources: int = 9, pixels: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(bands, sources)) @ rng.normal(size=(sources, pixels)) + rng.normal(
        50, 9, (bands, 1)
    )


def _residual(values: np.ndarray, band: int, chosen: list[int]) -> float:
    """Variance of a band that a linear model with a constant leaves, by least squares over the pixels."""
    design = np.column_stack([np.ones(values.shape[1]), values[chosen].T])
    fit, *_ = np.linalg.lstsq(design, values[band], rcond=None)
    return float(np.mean((values[band] - design @ fit) ** 2))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 8), max_size=3, unique=True))
def test_the_next_band_is_the_one_that_least_squares_predicts_worst(seed: int, taken: list[int]) -> None:
    values = _mixed(seed)
    found = ranking.orthogonal(Moments.of(values).covariance, taken, 4)
    chosen = list(taken)
    for band in found.picked:
        left = {other: _residual(values, other, chosen) for other in range(9) if other not in chosen}
        assert left[band] == pytest.approx(max(left.values()), rel=1e-6)
        assert found.scores[band] == pytest.approx(left[band], rel=1e-6)
        chosen.append(band)
    assert found.spent is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 8), st.sampled_from([1.0, -3.0, 1e-3]), st.integers(1, 9))
def test_a_copy_of_a_band_is_never_picked_beside_it(seed: int, band: int, gain: float, count: int) -> None:
    """Scaled copies too; only when nothing else is left does the budget take it."""
    values = _mixed(seed)
    found = ranking.orthogonal(Moments.of(np.vstack([values, gain * values[band] + 7])).covariance, (), count)
    assert not {band, 9} <= set(found.picked)
    full = ranking.orthogonal(Moments.of(np.vstack([values, gain * values[band] + 7])).covariance, (), 10)
    assert full.spent == 9
    assert full.picked[-1] in (band, 9)


def test_after_the_rank_is_spent_bands_follow_by_number() -> None:
    values = _mixed(3, bands=12, sources=4)
    found = ranking.orthogonal(Moments.of(values).covariance, (), 12)
    assert found.spent == 4
    assert found.picked[4:] == sorted(set(range(12)) - set(found.picked[:4]))


def test_equal_bands_are_taken_from_the_lowest_number() -> None:
    assert ranking.by_score(np.array([1.0, 2.0, 2.0 * (1 - 1e-12), 2.0 * (1 + 1e-12)]), (), 3).picked == [
        1,
        2,
        3,
    ]
    assert ranking.orthogonal(np.eye(4), (2,), 3).picked == [0, 1, 3]
    assert ranking.by_score(np.array([-2.0, -1.0, -1.0]), (), 3).picked == [1, 2, 0]
    assert ranking.by_score(np.zeros(3), (1,), 2).picked == [0, 2]


def test_the_share_of_signal_is_what_all_mnf_components_hold_of_a_band() -> None:
    values = _mixed(8)
    noise = _mixed(9) * 0.3
    moments, differences = Moments.of(values), Moments.of(noise)
    total, sigma_n = moments.covariance, differences.covariance / 2
    eigenvalues, vectors = scipy.linalg.eigh(total, sigma_n)
    loadings = sigma_n @ vectors
    np.testing.assert_allclose(loadings @ np.diag(eigenvalues) @ loadings.T, total, rtol=1e-8, atol=1e-8)
    expected = (loadings**2 @ (eigenvalues - 1)) / (loadings**2 @ eigenvalues)
    np.testing.assert_allclose(ranking.signal_share(moments, differences), expected, rtol=1e-8)


def test_a_band_that_never_changes_has_no_signal() -> None:
    values = np.vstack([np.full(50, 3.0), np.arange(50.0)])
    differences = Moments.of(np.diff(values, axis=1))
    np.testing.assert_array_equal(ranking.signal_share(Moments.of(values), differences), [0.0, 1.0])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 6), max_size=2, unique=True))
def test_the_next_band_tells_most_beyond_any_one_chosen(seed: int, taken: list[int]) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, 4, 600)
    values = _mixed(seed, bands=7, pixels=600) + rng.normal(0, 4, (7, 3))[:, labels - 1]
    binned = Binned.of(values, labels)
    found = ranking.relevant(binned, taken, 4)
    np.testing.assert_array_equal(found.scores, binned.with_labels())
    chosen = list(taken)
    for band in found.picked[: found.spent]:
        gain = {
            other: min(
                mutual_information(bins, binned.labels, known)
                for known in (None, *(binned.bins_bp[one] for one in chosen))
            )
            for other, bins in enumerate(binned.bins_bp)
            if other not in chosen
        }
        assert gain[band] == pytest.approx(max(gain.values()), rel=1e-8)
        chosen.append(band)


def test_noise_and_bands_that_never_change_come_behind_all_that_tell_something() -> None:
    rng = np.random.default_rng(11)
    labels = rng.integers(1, 5, 4000)
    telling = rng.normal(0, 1, (3, 4000)) + rng.normal(0, 2, (3, 5))[:, labels]
    values = np.vstack([np.full((1, 4000), 5.0), rng.normal(size=(4, 4000)), telling, telling])
    found = ranking.relevant(Binned.of(values, labels), (), 11)
    assert {5, 6, 7} == set(found.picked[:3])
    assert found.picked[-1] == 0
    assert found.spent is not None
    assert not {8, 9, 10} & set(found.picked[: found.spent])


def test_equal_intervals_reach_from_end_to_end_and_repeat_no_band() -> None:
    assert ranking.equal_intervals(np.arange(11), (), 3).picked == [0, 5, 10]
    assert ranking.equal_intervals(np.arange(11)[::-1], (), 3).picked == [10, 5, 0]
    assert ranking.equal_intervals(np.arange(11), (), 1).picked == [5]
    assert ranking.equal_intervals(np.arange(4), (), 0).picked == []
    for bands in range(1, 40):
        for count in range(1, bands + 1):
            picked = ranking.equal_intervals(np.arange(bands), (), count).picked
            assert len(set(picked)) == count
            assert len(set(np.diff(picked))) <= 2
