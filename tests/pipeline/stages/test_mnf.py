"""The minimum noise fraction against SciPy's generalised eigenvalues and against SPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import spectral
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.stages.mnf import Mnf, mnf_warning
from bandstream.pipeline.stages.normalize import Normalize
from bandstream.pipeline.statistics import Moments


def _scene(seed: int = 0, bands: int = 6, side: int = 20) -> np.ndarray:
    """Return a smooth scene (y, x, band) of bands with noise and units of their own."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    signal = np.stack([np.sin(3 * x + k) + np.cos(2 * y * k) for k in range(3)], axis=-1)
    cube = signal @ rng.normal(0, 1, (3, bands)) + rng.normal(0, 0.05, (side, side, bands))
    return cube * 10.0 ** rng.uniform(-2, 3, bands) + rng.uniform(0, 500, bands)


def _moments(cube: np.ndarray) -> tuple[Moments, Moments]:
    """Return the moments of pixels and of differences of diagonal neighbours, as SPy takes them."""
    bands = cube.shape[-1]
    apart = cube[:-1, :-1] - cube[1:, 1:]
    return Moments.of(cube.reshape(-1, bands).T), Moments.of(apart.reshape(-1, bands).T)


def _generalised(pixels: Moments, differences: Moments) -> np.ndarray:
    values = scipy.linalg.eigh(pixels.covariance, differences.covariance / 2, eigvals_only=True)
    return values[::-1]


@pytest.mark.real
def test_a_real_scene_has_scipys_and_spys_eigenvalues(data_root: Path) -> None:
    """Case: a symmetric square root differs from the literature by a rotation."""
    path = data_root / "jasper_ridge_mat" / "jasperRidge2_R198.mat"
    cube = np.asarray(scipy.io.loadmat(path)["Y"], float).reshape(198, 100, 100, order="F").transpose(1, 2, 0)
    pixels, differences = _moments(cube)
    stage = Mnf.fit(pixels, differences)
    expected = _generalised(pixels, differences)
    assert np.abs(stage.eigenvalues - expected).max() < 1e-8 * expected[0]
    assert (np.diff(stage.eigenvalues) <= 0).all()

    noise = stage.components @ (differences.covariance / 2) @ stage.components.T
    np.testing.assert_allclose(noise, np.eye(198), atol=1e-9)
    data = stage.components @ pixels.covariance @ stage.components.T
    np.testing.assert_allclose(data, np.diag(stage.eigenvalues), atol=1e-9 * expected[0])

    oracle = spectral.mnf(spectral.calc_stats(cube), spectral.noise_from_diffs(cube))
    n, pairs = pixels.count, differences.count
    ratio = (n / (n - 1)) * ((pairs - 1) / pairs)
    assert np.abs(stage.eigenvalues * ratio - oracle.napc.eigenvalues).max() < 1e-8 * expected[0]
    scores = oracle.reduce(cube, num=10) * np.sqrt(pairs / (pairs - 1))
    np.testing.assert_allclose(np.abs(stage.transform(cube)[..., :10]), np.abs(scores), atol=1e-8)

    few = Mnf.fit(pixels, differences, components=10)
    cleaned = few.inverse_transform(few.transform(cube))
    np.testing.assert_allclose(cleaned, oracle.denoise(cube, num=10), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7))
def test_noise_is_white_scores_are_uncorrelated_and_all_of_them_go_back(seed: int, bands: int) -> None:
    cube = _scene(seed, bands)
    pixels, differences = _moments(cube)
    stage = Mnf.fit(pixels, differences)
    np.testing.assert_allclose(stage.eigenvalues, _generalised(pixels, differences), rtol=1e-7)
    np.testing.assert_allclose(stage.propagate(differences).covariance / 2, np.eye(bands), atol=1e-8)
    behind = stage.propagate(pixels)
    np.testing.assert_allclose(
        behind.covariance, np.diag(stage.eigenvalues), atol=1e-8 * stage.eigenvalues[0]
    )
    scores = stage.transform(cube)
    np.testing.assert_allclose(stage.inverse_transform(scores), cube, rtol=1e-6, atol=1e-6)
    flat = scores.reshape(-1, bands).T
    np.testing.assert_allclose(stage.inverse(flat), cube.reshape(-1, bands).T, rtol=1e-6, atol=1e-6)
    largest = np.abs(stage.components).argmax(axis=1)
    assert (stage.components[np.arange(bands), largest] > 0).all()


def test_eigenvalues_do_not_depend_on_a_scaling_in_front() -> None:
    pixels, differences = _moments(_scene())
    front = Normalize.fit(pixels, "zscore")
    behind = Mnf.fit(front.propagate(pixels), front.propagate(differences))
    np.testing.assert_allclose(behind.eigenvalues, Mnf.fit(pixels, differences).eigenvalues, rtol=1e-9)


@pytest.mark.parametrize("extra", ["constant", "twice", "sum"])
def test_a_band_without_noise_of_its_own_changes_nothing_and_is_told(extra: str) -> None:
    """Case: the noise covariance is singular, and MNF dies in linear algebra."""
    cube = _scene()
    more = {
        "constant": np.full_like(cube[..., :1], 7),
        "twice": cube[..., 2:3],
        "sum": cube[..., 2:3] - cube[..., :1],
    }
    wide = np.concatenate([cube, more[extra]], axis=-1)
    plain = Mnf.fit(*_moments(cube))
    with pytest.warns(
        BandstreamWarning, match=r"noise of 7 bands has rank 6 \(400 training.*361 pairs.*other 1 dir"
    ):
        stage = Mnf.fit(*_moments(wide))
    assert stage.rank == 6
    np.testing.assert_allclose(stage.eigenvalues, plain.eigenvalues, rtol=1e-7)
    np.testing.assert_allclose(np.abs(stage.transform(wide)), np.abs(plain.transform(cube)), atol=1e-5)
    np.testing.assert_allclose(stage.inverse_transform(stage.transform(wide)), wide, rtol=1e-6, atol=1e-5)
    with (
        pytest.raises(
            ConfigError, match=r"components is 7, but the noise of 7 bands has rank 6.*gives 6 at most"
        ),
    ):
        Mnf.fit(*_moments(wide), components=7)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 5))
def test_fewer_spectra_than_bands_give_real_falling_finite_components(seed: int, side: int) -> None:
    """Case: few spectra; SPy's eigenvalues turn complex."""
    cube = _scene(seed, bands=40, side=side)
    with pytest.warns(BandstreamWarning, match="has rank"):
        stage = Mnf.fit(*_moments(cube))
    assert stage.rank == (side - 1) ** 2 - 1
    assert np.isrealobj(stage.eigenvalues)
    assert (stage.eigenvalues >= 0).all()
    assert (np.diff(stage.eigenvalues) <= 0).all()
    assert np.isfinite(stage.transform(cube)).all()
    noise = stage.propagate(_moments(cube)[1]).covariance / 2
    np.testing.assert_allclose(noise, np.eye(stage.rank), atol=1e-6)


def test_no_pairs_or_only_one_are_refused() -> None:
    """The mean of the differences is taken off, so that a single one tells nothing."""
    pixels, differences = _moments(_scene(side=2))
    with pytest.raises(ConfigError, match=r"finds no noise.*rank 0 \(4 training pixels, 1 pairs"):
        Mnf.fit(pixels, differences)
    with pytest.raises(ConfigError, match=r"finds no noise.*0 pairs"):
        Mnf.fit(pixels, Moments.empty(6))


def test_bands_that_are_nearly_alike_keep_the_eigenvalues_digits() -> None:
    cube = _scene()
    rng = np.random.default_rng(5)
    near = cube * (1 + 1e-5 * rng.normal(0, 1, cube.shape))
    pixels, differences = _moments(np.concatenate([cube, near], axis=-1))
    found, expected = Mnf.fit(pixels, differences).eigenvalues, _generalised(pixels, differences)
    assert np.abs(found - expected).max() < 1e-8 * expected[0]


def test_the_number_of_components_by_ratio_or_by_share() -> None:
    pixels, differences = _moments(_scene())
    snr = Mnf.fit(pixels, differences).snr
    assert Mnf.fit(pixels, differences, min_snr=float(snr[2])).outputs == 3
    assert Mnf.fit(pixels, differences, min_snr=float(np.nextafter(snr[2], np.inf))).outputs == 2
    assert Mnf.fit(pixels, differences, components=4).outputs == 4
    shares = np.maximum(snr, 0) / np.maximum(snr, 0).sum()
    for number in (1, 2, 3):
        just = float(shares[:number].sum()) - 1e-9
        stage = Mnf.fit(pixels, differences, explained=just)
        assert stage.outputs == number
        np.testing.assert_allclose(stage.explained, shares[:number], rtol=1e-9)
    with pytest.raises(ConfigError, match=r"min_snr is 1e\+09, and the best"):
        Mnf.fit(pixels, differences, min_snr=1e9)
    with pytest.raises(ConfigError, match="leave one of them"):
        Mnf.fit(pixels, differences, min_snr=3, components=2)


def test_the_stage_comes_back_from_its_state() -> None:
    stage = Mnf.fit(*_moments(_scene()), components=4)
    again = Mnf.restore(*stage.state())
    for name in ("weights", "loadings", "eigenvalues", "explained", "mean", "rank"):
        np.testing.assert_array_equal(getattr(again, name), getattr(stage, name))


def test_a_resampled_scene_is_warned_of_and_others_are_not() -> None:
    assert mnf_warning({"source": "a.hdr"}) is None
    text = mnf_warning({"source": "a.tif", "resampled": True, "product": "EnMAP L2A"})
    assert text is not None
    assert text.startswith("a.tif was interpolated to its grid (EnMAP L2A)")
