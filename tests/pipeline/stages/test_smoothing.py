"""Savitzky-Golay smoothing and derivatives against SciPy and against polynomials."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import savgol_filter

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.smoothing import Derivative, Smooth
from bandstream.pipeline.stages.stage import BandTable
from bandstream.pipeline.statistics import Moments


def _table(centres, detector=None) -> BandTable:
    return BandTable(len(centres), np.asarray(centres, float), None, detector)


def _exact(stage: Smooth | Derivative, values: np.ndarray) -> np.ndarray:
    return stage.gain.T @ values


@pytest.mark.parametrize(("window", "polynomial"), [(3, 1), (5, 2), (7, 3), (11, 2), (9, 0), (5, 4)])
def test_evenly_spaced_bands_equal_scipys_filter(window: int, polynomial: int) -> None:
    values = np.random.default_rng(0).normal(0.3, 0.1, (40, 12))
    table = _table(500 + 6.5 * np.arange(40))
    smooth = Smooth.of(table, window=window, polynomial=polynomial)
    expected = savgol_filter(values, window, polynomial, axis=0, mode="interp")
    np.testing.assert_allclose(_exact(smooth, values), expected, atol=1e-12)
    np.testing.assert_allclose(smooth.affine().apply(values.astype(np.float32)), expected, atol=1e-6)
    for order in range(1, min(polynomial, 3) + 1):
        found = _exact(Derivative.of(table, order=order, window=window, polynomial=polynomial), values)
        expected = savgol_filter(values, window, polynomial, order, delta=6.5, axis=0, mode="interp")
        np.testing.assert_allclose(found, expected, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_polynomials_on_uneven_bands_are_kept_and_derived_exactly(
    seed: int, degree: int, falling: bool
) -> None:
    rng = np.random.default_rng(seed)
    centres = np.cumsum(rng.uniform(4, 9, 30)) + 400
    centres = centres[::-1] if falling else rng.permutation(centres)
    polynomial = np.polynomial.Polynomial(rng.normal(0, 1, degree + 1), domain=[400, 670])
    values = polynomial(centres)[:, None]
    table = _table(centres)
    found = _exact(Smooth.of(table, window=7, polynomial=degree), values)
    np.testing.assert_allclose(found, values, atol=1e-9)
    for order in range(1, degree + 1):
        found = _exact(Derivative.of(table, order=order, window=7, polynomial=degree), values)
        expected = polynomial.deriv(order)(centres)[:, None]
        np.testing.assert_allclose(found, expected, atol=1e-8 * max(1, np.abs(expected).max()))


def test_a_window_of_3_and_a_parabola_is_the_central_difference() -> None:
    values = np.random.default_rng(0).normal(0, 1, (10, 3))
    found = _exact(Derivative.of(_table(10 * np.arange(10.0)), order=1, window=3, polynomial=2), values)
    np.testing.assert_allclose(found[1:-1], np.gradient(values, 10, axis=0)[1:-1], atol=1e-12)


def test_segments_are_smoothed_each_by_itself() -> None:
    rng = np.random.default_rng(0)
    centres = np.r_[900 + 5 * np.arange(12), 930 + 8 * np.arange(12), 1500 + 8 * np.arange(12)]
    values = rng.normal(0, 1, (36, 4))
    found = _exact(Smooth.of(_table(centres, ("v",) * 12 + ("s",) * 24), window=5, polynomial=2), values)
    for part in (slice(0, 12), slice(12, 24), slice(24, 36)):
        np.testing.assert_allclose(
            found[part], savgol_filter(values[part], 5, 2, axis=0, mode="interp"), atol=1e-12
        )


def test_a_segment_shorter_than_the_window_is_one_window() -> None:
    centres = np.r_[500, 700 + 10 * np.arange(3), 900 + 10 * np.arange(4.0)]
    values = np.random.default_rng(0).normal(0, 1, (8, 4))
    detector = ("a",) + ("b",) * 3 + ("c",) * 4
    found = _exact(Smooth.of(_table(centres, detector), window=7, polynomial=2), values)
    np.testing.assert_allclose(found[:4], values[:4], atol=1e-12)
    fitted = [
        np.polyval(np.polyfit(centres[4:] - 900, values[4:, p], 2), centres[4:] - 900) for p in range(4)
    ]
    np.testing.assert_allclose(found[4:], np.transpose(fitted), atol=1e-12)


def test_a_segment_without_a_derivative_is_refused_by_its_bands() -> None:
    table = _table([500, 510, 520, 530, 900], ("a",) * 4 + ("b",))
    with pytest.raises(ConfigError, match=r"derivative\.order is 1.*band 5 \(900 nm\) has 1"):
        Derivative.of(table, order=1, window=3, polynomial=2)
    table = _table([500, 510, 520, 530, 900, 910], ("a",) * 4 + ("b",) * 2)
    with pytest.raises(ConfigError, match="the run of 2 bands at 900 to 910 nm has 2"):
        Derivative.of(table, order=2, window=3, polynomial=2)


def test_bands_of_equal_centre_are_fitted_together() -> None:
    centres = np.array([500.0, 510, 510, 520, 530])
    values = 0.1 + (centres[:, None] - 500) / 1000
    found = _exact(Derivative.of(_table(centres), order=1, window=3, polynomial=2), values)
    np.testing.assert_allclose(found, 1e-3, atol=1e-12)


def test_without_wavelengths_both_are_refused_by_their_keys() -> None:
    with pytest.raises(ConfigError, match=r"^smooth needs wavelengths"):
        Smooth.of(BandTable(9), window=5, polynomial=2)
    with pytest.raises(ConfigError, match=r"^derivative needs wavelengths"):
        Derivative.of(BandTable(9), order=1, window=5, polynomial=2)


def test_moments_behind_and_state_are_those_of_the_smoothed_spectra() -> None:
    values = np.random.default_rng(0).normal(0, 1, (12, 300)).cumsum(axis=0)
    stage = Derivative.of(_table(400 + 5 * np.arange(12)), order=1, window=5, polynomial=2)
    found, expected = stage.propagate(Moments.of(values)), Moments.of(_exact(stage, values))
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-12)
    again = Derivative.restore(*stage.state())
    assert isinstance(again, Derivative)
    np.testing.assert_array_equal(again.gain, stage.gain)
