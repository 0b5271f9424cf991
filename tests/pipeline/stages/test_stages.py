"""Each stage on its own, against NumPy and scikit-learn."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from bandstream.pipeline.calibration import CalibrateConfig
from bandstream.pipeline.calibration.radiance_scale import calibration
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.masks.config import MaskConfig
from bandstream.pipeline.masks.nodata import nodata_per_band
from bandstream.pipeline.scene import make_scene
from bandstream.pipeline.stages.affine import Affine
from bandstream.pipeline.stages.bands import candidate_bands, named_windows
from bandstream.pipeline.stages.chain import FittedChain
from bandstream.pipeline.stages.normalize import Normalize
from bandstream.pipeline.stages.prepare import Preparation, prepare_scene
from bandstream.pipeline.stages.reduce import Pca
from bandstream.pipeline.statistics import Moments


def _scene(dtype="int16", bands=4, **facts):
    return make_scene(da.zeros((3, 5, bands), dtype=dtype, chunks=-1), **facts)


def _values(seed=0, bands=6, pixels=500):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (bands, bands)) @ rng.normal(0, 1, (bands, pixels)) + rng.normal(
        50, 20, (bands, 1)
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(["diagonal", "matrix"]), min_size=1, max_size=4))
def test_a_composed_map_equals_its_parts_one_after_the_other(seed: int, kinds: list[str]) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(300, 40, (5, 30))
    expected, composed, width = values, None, 5
    for kind in kinds:
        wide = width if kind == "diagonal" else int(rng.integers(1, width + 1))
        gain = rng.normal(0, 1, wide) if kind == "diagonal" else rng.normal(0, 1, (width, wide))
        part = Affine(rng.normal(0, 1, width), gain, rng.normal(0, 1, wide))
        moved = expected - part.centre[:, None]
        expected = moved * gain[:, None] if kind == "diagonal" else gain.T @ moved
        expected = expected + part.bias[:, None]
        composed = part if composed is None else composed.then(part)
        width = wide
    assert composed is not None
    found = composed.around(values.mean(axis=1)).apply(values)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max() + 1e-4)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "float32", "float64"])
def test_a_large_offset_keeps_its_digits_in_every_number_type(dtype: str) -> None:
    rng = np.random.default_rng(1)
    offset = 30_000 if dtype.endswith("16") else 8_000_000
    values = (offset + rng.integers(-50, 50, (3, 400))).astype(dtype)
    exact = values.astype(np.float64)
    stage = Normalize.fit(Moments.of(values), "zscore")
    expected = (exact - exact.mean(axis=1, keepdims=True)) / exact.std(axis=1, keepdims=True)
    np.testing.assert_allclose(stage.affine().apply(values), expected, atol=2e-5)


def test_a_band_without_spread_becomes_0_and_is_reported() -> None:
    values = np.vstack([np.full(50, 7.0), np.arange(50.0)])
    for method in ("zscore", "minmax"):
        stage = Normalize.fit(Moments.of(values), method)
        assert stage.constant.tolist() == [0]
        found = stage.affine().apply(values)
        assert (found[0] == 0).all()
        assert np.isfinite(found).all()


def test_principal_components_equal_scikit_learns_up_to_their_sign() -> None:
    values = _values()
    stage = Pca.fit(Moments.of(values), 4)
    oracle = PCA(4, svd_solver="full").fit(values.T)
    np.testing.assert_allclose(np.abs((stage.components * oracle.components_).sum(axis=1)), 1, rtol=1e-9)
    np.testing.assert_allclose(stage.explained, oracle.explained_variance_ratio_, rtol=1e-9)
    assert (np.diff(stage.variance) <= 0).all()
    largest = np.abs(stage.components).argmax(axis=1)
    assert (stage.components[np.arange(4), largest] > 0).all()


def test_all_components_together_can_be_mapped_back() -> None:
    values = _values()
    stage = Pca.fit(Moments.of(values), 6)
    scores = stage.components @ (values - stage.mean[:, None])
    np.testing.assert_allclose(stage.inverse(scores), values, rtol=1e-9)


def test_the_moments_behind_a_stage_are_those_of_what_comes_out() -> None:
    values = _values()
    moments = Moments.of(values)
    for stage in (Normalize.fit(moments, "zscore"), Normalize.fit(moments, "minmax"), Pca.fit(moments, 3)):
        affine = stage.affine()
        moved = values - affine.centre[:, None]
        out = moved * affine.gain[:, None] if affine.gain.ndim == 1 else affine.gain.T @ moved
        found, expected = stage.propagate(moments), Moments.of(out)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9, atol=1e-9)


def test_more_components_than_the_pixels_span_are_refused() -> None:
    with pytest.raises(ConfigError, match="give 6 at most"):
        Pca.fit(Moments.of(_values()), 7)
    with pytest.raises(ConfigError, match="give 3 at most"):
        Pca.fit(Moments.of(_values(pixels=4)), 4)


def test_a_chain_comes_back_from_its_stored_state(tmp_path) -> None:
    import zarr

    values = _values()
    moments = Moments.of(values)
    first = Normalize.fit(moments, "zscore")
    second = Pca.fit(first.propagate(moments), 3)
    bands = np.arange(6)
    preparation = Preparation(CalibrateConfig(to="radiance"), None, MaskConfig(nodata=-1.0))
    chain = FittedChain(6, bands, bands, preparation, moments.mean, (first, second))
    group = zarr.open_group(tmp_path, mode="w", attributes=chain.attrs())
    for path, (_, array) in chain.arrays().items():
        zarr.create_array(tmp_path / path.removeprefix("transforms/"), data=np.asarray(array))
        if path.count("/") == 2:
            group.require_group(path.split("/")[1])
    again = FittedChain.load(tmp_path)
    assert again.fingerprint == chain.fingerprint
    block = values.reshape(6, 20, 25).copy()
    block[2, 4, 5] = -1
    scene = make_scene(da.from_array(block.transpose(1, 2, 0)), quantity="radiance", nodata=7)
    bound = again.bind(prepare_scene(scene, again.preparation))
    data, valid = bound.apply(block)
    assert not valid[4, 5]
    assert valid.sum() == 499
    assert (data[:, 4, 5] == 0).all()
    oracle = second.components @ ((values - values.mean(1)[:, None]) / values.std(1)[:, None])
    np.testing.assert_allclose(data.reshape(3, -1)[:, valid.ravel()], oracle[:, valid.ravel()], atol=1e-4)


@pytest.mark.parametrize(
    ("facts", "asked", "expected"),
    [
        ({"scale": 1e-4}, {}, (1e-4, 0)),
        ({"scale": 1e-4, "offset": -0.1}, {}, (1e-4, -0.1)),
        ({"scale": 1e-4}, {"scale": 2e-4}, (2e-4, 0)),
        ({"quantity": "surface_reflectance"}, {}, (1, 0)),
        ({}, {"scale": 0.5, "offset": 1.0}, (0.5, 1)),
    ],
)
def test_calibration_takes_the_scenes_own_numbers_or_those_given(facts, asked, expected) -> None:
    settings = {"scale": None, "offset": None} | asked
    scale, offset = calibration(_scene(**facts), "surface_reflectance", **settings)
    assert scale.tolist() == [expected[0]] * 4
    assert offset.tolist() == [expected[1]] * 4


def test_no_scale_or_another_quantity_is_refused() -> None:
    """Case: scale applied twice, or radiance called reflectance."""
    with pytest.raises(ConfigError, match=r"calibrate\.scale"):
        calibration(_scene(), "surface_reflectance", None, None)
    with pytest.raises(ConfigError, match="radiance, which no scale turns"):
        calibration(_scene(quantity="radiance", scale=0.1), "surface_reflectance", None, None)


def test_nodata_is_the_scenes_or_the_one_given() -> None:
    scene = _scene(nodata=-9999)
    assert nodata_per_band(scene, "auto").tolist() == [-9999] * 4
    assert nodata_per_band(scene, 0.0).tolist() == [0] * 4
    assert np.isnan(nodata_per_band(scene, "none")).all()


def test_listed_bands_and_windows_are_dropped_whatever_their_order() -> None:
    """Case: wavelengths are not ascending at a detector join."""
    wavelength = np.array([2000.0, 900, 1400, 950, 930, 1850])
    good = np.array([True, True, True, False, True, True])
    scene = _scene(bands=6, wavelength_nm=wavelength, good_band=good)
    assert candidate_bands([scene], listed=True, windows_nm=[]).tolist() == [0, 1, 2, 4, 5]
    assert candidate_bands([scene], listed=False, windows_nm=named_windows("water")).tolist() == [0, 1, 3, 4]
    other = _scene(bands=6, wavelength_nm=wavelength, good_band=~good)
    with pytest.raises(ConfigError, match="no band"):
        candidate_bands([scene, other], listed=True, windows_nm=[])
    with pytest.raises(ConfigError, match="needs wavelengths"):
        candidate_bands([_scene()], listed=True, windows_nm=[(1, 2)])
