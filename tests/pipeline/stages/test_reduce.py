"""Principal components: their number, whitening, and the names that scikit-learn gives them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.reduce import Pca
from bandstream.pipeline.statistics import Moments


def _values(seed: int = 0, bands: int = 8, pixels: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixed = rng.normal(0, 1, (bands, bands)) @ (
        rng.normal(0, 1, (bands, pixels)) * 2.0 ** -np.arange(bands)[:, None]
    )
    return mixed + rng.normal(50, 20, (bands, 1))


def test_whitened_scores_equal_scikit_learns_with_variances_over_the_count() -> None:
    values = _values()
    stage = Pca.fit(Moments.of(values), 5, whiten=True)
    oracle = PCA(5, svd_solver="full", whiten=True).fit(values.T)
    scores = stage.transform(values.T)
    expected = oracle.transform(values.T) * np.sqrt(400 / 399)
    np.testing.assert_allclose(np.abs(scores), np.abs(expected), atol=1e-9)
    np.testing.assert_allclose(scores.std(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(stage.affine().apply(values), scores.T, atol=1e-4)
    np.testing.assert_allclose(
        stage.inverse_transform(scores), oracle.inverse_transform(oracle.transform(values.T))
    )


@pytest.mark.parametrize("share", [0.3, 0.8, 0.95, 0.999])
def test_as_many_components_as_explain_a_share_are_those_of_scikit_learn(share: float) -> None:
    values = _values()
    stage, oracle = Pca.fit(Moments.of(values), explained=share), PCA(share, svd_solver="full").fit(values.T)
    assert stage.n_components_ == oracle.n_components_
    assert stage.explained.sum() >= share > stage.explained[:-1].sum()


def test_all_of_the_variance_and_no_number_at_all_are_what_the_pixels_span() -> None:
    flat = np.vstack([_values(), np.full(400, 3.0)])
    assert Pca.fit(Moments.of(flat), explained=1.0).outputs == 8
    assert Pca.fit(Moments.of(flat)).outputs == 8


def test_scikit_learns_names_hold_scikit_learns_numbers() -> None:
    values = _values()
    stage, oracle = Pca.fit(Moments.of(values), 4), PCA(4, svd_solver="full").fit(values.T)
    np.testing.assert_allclose(stage.mean_, oracle.mean_)
    np.testing.assert_allclose(np.abs(stage.components_), np.abs(oracle.components_), atol=1e-9)
    np.testing.assert_allclose(stage.explained_variance_, oracle.explained_variance_ * 399 / 400)
    np.testing.assert_allclose(stage.explained_variance_ratio_, oracle.explained_variance_ratio_)
    cube = values.T.reshape(20, 20, 8)
    np.testing.assert_allclose(stage.transform(cube).reshape(-1, 4), stage.transform(values.T))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
def test_all_components_go_back_to_the_spectra_whitened_or_not(seed: int, bands: int, whiten: bool) -> None:
    values = _values(seed, bands, 50)
    stage = Pca.fit(Moments.of(values), whiten=whiten)
    scores = stage.transform(values.T)
    np.testing.assert_allclose(stage.inverse(scores.T), values, rtol=1e-7)
    np.testing.assert_allclose(stage.inverse_transform(scores).T, values, rtol=1e-7)
    found, expected = stage.propagate(Moments.of(values)), Moments.of(scores.T)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-8 * expected.covariance.max())


def test_a_whitened_stage_comes_back_from_its_state() -> None:
    stage = Pca.fit(Moments.of(_values()), 3, whiten=True)
    again = Pca.restore(*stage.state())
    np.testing.assert_array_equal(again.weights, stage.weights)
    np.testing.assert_array_equal(again.explained, stage.explained)


def test_two_rules_and_pixels_that_are_all_alike_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"reduce\.components and reduce\.explained both"):
        Pca.fit(Moments.of(_values()), 3, explained=0.9)
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Pca.fit(Moments.of(_values()), explained=90)
    for choice in ({"components": 1}, {"explained": 0.9}, {}):
        with pytest.raises(ConfigError, match="training pixels are all alike"):
            Pca.fit(Moments.of(np.ones((3, 9))), **choice)
