"""Normalising by quantiles and to unit length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import normalize

from bandstream.pipeline.stages.normalize import Normalize, UnitNorm
from bandstream.pipeline.statistics import Moments


def test_percentile_maps_two_quantiles_to_0_and_1_and_clips_nothing() -> None:
    values = np.random.default_rng(0).normal(100, 10, (3, 500))
    values[2] = 7
    quantiles = np.percentile(values, [2, 98], axis=1)
    stage = Normalize.fit(Moments.of(values), "percentile", quantiles)
    found = stage.affine().apply(values)
    np.testing.assert_allclose(np.percentile(found[:2], [2, 98], axis=1), [[0, 0], [1, 1]], atol=1e-5)
    assert found[:2].min() < 0
    assert found[:2].max() > 1
    assert stage.constant.tolist() == [2]
    assert (found[2] == 0).all()


@pytest.mark.parametrize("method", ["zscore", "minmax", "percentile"])
def test_scaled_bands_go_back(method: str) -> None:
    values = np.random.default_rng(0).normal(100, 10, (3, 500))
    values[2] = 7
    stage = Normalize.fit(Moments.of(values), method, np.percentile(values, [2, 98], axis=1))
    np.testing.assert_allclose(stage.inverse(stage.affine().apply(values)), values, atol=1e-4)
    again = Normalize.restore(*stage.state())
    np.testing.assert_array_equal(again.affine().gain, stage.affine().gain)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unit_norm_equals_scikit_learns(dtype: str) -> None:
    values = np.random.default_rng(0).normal(0, 3000, (20, 50)).astype(dtype)
    values[:, 3] = 0
    found = UnitNorm(20).apply(values)
    assert found.dtype == values.dtype
    np.testing.assert_allclose(found, normalize(values.astype(float), axis=0), atol=1e-6)
    assert (found[:, 3] == 0).all()


@settings(max_examples=100, deadline=None)
@given(arrays(np.float32, (4, 3), elements=st.floats(-(2.0**127), 2.0**127, width=32)))
def test_unit_norm_is_1_or_0_for_all_finite_spectra(values: np.ndarray) -> None:
    before = values.copy()
    length = np.linalg.norm(UnitNorm(4).apply(values).astype(float), axis=0)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_allclose(length, (values != 0).any(axis=0), atol=1e-6)


def test_unit_norm_comes_back_from_its_state() -> None:
    assert UnitNorm.restore(*UnitNorm(7).state()) == UnitNorm(7)
