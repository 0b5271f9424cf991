"""One-pass statistics against two-pass float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.statistics import BandStatistics, Moments, Wanted


def _two_pass(values_bp: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = values_bp.astype(np.longdouble)
    mean = wide.mean(axis=1)
    centred = wide - mean[:, None]
    return mean.astype(float), (centred @ centred.T / values_bp.shape[1]).astype(float)


def test_a_large_offset_does_not_cost_digits() -> None:
    """Case: 1e6 pixels, offset 1e5, spread 1, in chunks."""
    rng = np.random.default_rng(0)
    values = rng.normal(1e5, 1, (3, 1_000_000))
    values[1] += 0.5 * values[0]
    merged = Moments.empty(3)
    for start in range(0, values.shape[1], 7919):
        merged = merged.merge(Moments.of(values[:, start : start + 7919]))
    mean, cov = _two_pass(values)
    scale = np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert np.abs(merged.mean / mean - 1).max() < 1e-12
    assert (np.abs(merged.covariance - cov) / scale).max() < 1e-10
    assert np.abs(merged.std - values.std(axis=1)).max() < 1e-10


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["int16", "float32", "float64"]),
    st.booleans(),
)
def test_merging_any_blocks_equals_all_pixels_at_once(
    bands: int, sizes: list[int], seed: int, dtype: str, full: bool
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [(rng.normal(300, 50, (bands, size))).astype(dtype) for size in sizes]
    merged = Moments.empty(bands, full=full)
    for block in blocks:
        merged = merged.merge(Moments.of(block, full=full))
    together = np.concatenate(blocks, axis=1)
    assert merged.count == together.shape[1]
    if together.shape[1]:
        mean, cov = _two_pass(together)
        np.testing.assert_allclose(merged.mean, mean, rtol=1e-12)
        np.testing.assert_allclose(merged.std, np.sqrt(np.diag(cov)), rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(merged.minimum, together.min(axis=1))
        np.testing.assert_array_equal(merged.maximum, together.max(axis=1))
        if full:
            np.testing.assert_allclose(merged.covariance, cov, rtol=1e-9, atol=1e-7)


def test_a_constant_band_has_deviation_zero_and_nothing_is_nan() -> None:
    values = np.vstack([np.full(1000, 0.1), np.arange(1000.0)])
    merged = Moments.of(values[:, :300]).merge(Moments.of(values[:, 300:]))
    assert merged.std[0] == 0
    assert np.isfinite(merged.covariance).all()
    assert merged.std[1] == pytest.approx(values[1].std())


def test_scaling_the_moments_equals_the_moments_of_scaled_values() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(100, 20, (4, 500))
    scale, offset = np.array([1e-4, -2, 1, 3]), np.array([0, 1, -5, 2.5])
    found = Moments.of(values).affine(scale, offset)
    expected = Moments.of(values * scale[:, None] + offset[:, None])
    for name in ("mean", "scatter", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_masked_pixels_do_not_count_and_a_band_without_data_masks_nothing(dtype: type) -> None:
    """Case: 5 % of the pixels hold the ignore value: the same moments as of the valid pixels alone."""
    rng = np.random.default_rng(2)
    values = rng.normal(500, 80, (5, 4000)).astype(dtype)
    gone = rng.random((5, 4000)) < 0.01
    gone[3] = True
    found = BandStatistics.empty(5)
    for start in range(0, 4000, 640):
        part = slice(start, start + 640)
        found = found.merge(BandStatistics.of(values[:, part], gone[:, part], judge=True))
    others = np.array([0, 1, 2, 4])
    keep = ~gone[others].any(axis=0)
    expected = Moments.of(values[others][:, keep])
    assert found.present.tolist() == [True, True, True, False, True]
    assert found.valid.tolist() == (~gone).sum(axis=1).tolist()
    np.testing.assert_allclose(found.moments().mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.moments().covariance, expected.covariance, rtol=1e-9, atol=1e-7)


def test_a_block_that_lacks_a_band_which_others_have_gives_no_pixel() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 50)), rng.normal(size=(2, 30))
    gone = np.zeros((2, 50), bool)
    gone[1] = True
    for parts in ([(first, gone), (second, None)], [(second, None), (first, gone)]):
        found = BandStatistics.empty(2)
        for values, missing in parts:
            found = found.merge(BandStatistics.of(values, missing, judge=True, wanted=Wanted()))
        assert found.moments().count == 30
        np.testing.assert_allclose(found.moments().mean, second.mean(axis=1))


def test_without_judging_a_band_without_data_masks_every_pixel() -> None:
    gone = np.zeros((2, 10), bool)
    gone[0] = True
    found = BandStatistics.of(np.ones((2, 10)), gone, judge=False, wanted=Wanted())
    assert found.moments().count == 0
