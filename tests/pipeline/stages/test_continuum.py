"""Continuum removal against SPy, and against a convex hull from SciPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import spectral
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from bandstream.pipeline import open_scene
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.continuum import ContinuumRemoval, continuum, require_reflectance
from bandstream.pipeline.stages.segments import segments
from bandstream.pipeline.stages.stage import BandTable


def _spectra(bands: int = 60, pixels: int = 80, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    place = np.linspace(0, 1, bands)[:, None]
    depth, centre = rng.uniform(0.1, 0.6, pixels), rng.uniform(0.2, 0.8, pixels)
    bend = 1 - depth * np.exp(-(((place - centre) / 0.08) ** 2))
    return (0.2 + 0.3 * place - 0.25 * place**2) * bend + rng.normal(0, 0.004, (bands, pixels)) + 0.05


def _stage(centres, detector=None) -> ContinuumRemoval:
    return ContinuumRemoval.of(BandTable(len(centres), np.asarray(centres, float), None, detector))


def _by_scipy(spectrum: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Divide by the upper hull that `ConvexHull` finds with the spectrum's feet as its lower side."""
    feet = [[centres[0], -1.0], [centres[-1], -1.0]]
    points = np.vstack([np.column_stack([centres, spectrum]), feet])
    upper = np.sort([vertex for vertex in ConvexHull(points).vertices if vertex < len(centres)])
    return spectrum / np.interp(centres, centres[upper], spectrum[upper])


def test_one_ascending_segment_equals_spys_continuum_removal() -> None:
    centres, values = np.linspace(2000, 2400, 60), _spectra()
    expected = spectral.remove_continuum(values.T.copy(), centres).T
    np.testing.assert_allclose(_stage(centres).apply(values), expected, atol=1e-12)
    found = _stage(centres).apply(values.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.real
def test_a_real_scene_equals_spys_piece_by_piece_between_its_water_windows(data_root: Path) -> None:
    scene = open_scene(data_root / "enmap_potsdam_tiles" / "images" / "enmap_potsdam_tile_160_160.tif")
    scene = scene.isel(band=np.flatnonzero(scene["good_band"].values))
    centres = scene["wavelength"].values
    values = np.maximum(scene["data"].values.reshape(-1, len(centres)).T[:, :300], 1) * 1e-4
    found, pieces = _stage(centres).apply(values), segments(BandTable(len(centres), centres), "smooth")
    assert [round(centres[piece[0]], -2) for piece in pieces] == [400, 1500, 1900]
    for piece in pieces:
        expected = spectral.remove_continuum(values[piece].T.copy(), centres[piece]).T
        np.testing.assert_allclose(found[piece], expected, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_uneven_bands_equal_a_convex_hull_from_scipy(seed: int, bands: int) -> None:
    rng = np.random.default_rng(seed)
    centres = np.cumsum(rng.uniform(1, 4, bands)) + 400
    values = rng.uniform(0.01, 1, (bands, 5))
    found = values / continuum(values, centres)
    for pixel in range(5):
        np.testing.assert_allclose(found[:, pixel], _by_scipy(values[:, pixel], centres), atol=1e-9)


def test_the_order_of_the_bands_does_not_matter() -> None:
    centres, values = np.linspace(2000, 2400, 60), _spectra()
    expected = _stage(centres).apply(values)
    order = np.random.default_rng(1).permutation(60)
    np.testing.assert_array_equal(_stage(centres[order]).apply(values[order]), expected[order])
    np.testing.assert_array_equal(_stage(centres[::-1]).apply(values[::-1]), expected[::-1])


def test_each_detector_and_each_side_of_a_window_has_a_hull_of_its_own() -> None:
    values = _spectra()
    centres = np.r_[np.linspace(900, 1000, 20), np.linspace(950, 1150, 20), np.linspace(1450, 1640, 20)]
    found = _stage(centres, ("vnir",) * 20 + ("swir",) * 40).apply(values)
    for part in (slice(0, 20), slice(20, 40), slice(40, 60)):
        np.testing.assert_array_equal(found[part], _stage(centres[part]).apply(values[part]))
        np.testing.assert_array_equal(found[part][[0, -1]], 1)


def test_more_pixels_than_are_worked_on_together_are_each_treated_alike() -> None:
    centres, values = np.linspace(2000, 2400, 30), _spectra(bands=30, pixels=9000)
    found = _stage(centres).apply(values)
    for pixel in (0, 4095, 4096, 8999):
        np.testing.assert_array_equal(found[:, pixel], _stage(centres).apply(values[:, [pixel]])[:, 0])


def test_bands_of_equal_centre_share_the_highest_point() -> None:
    values = np.array([[0.4], [0.2], [0.6], [0.5], [0.4]])
    found = _stage([500, 510, 520, 520, 530]).apply(values)
    np.testing.assert_allclose(found[:, 0], [1, 0.2 / 0.5, 1, 0.5 / 0.6, 1])


def test_reflectance_below_0_counts_as_0_and_no_light_gives_1() -> None:
    values = np.array([[0.2, -0.1, 0.0, -0.3], [-0.1, -0.2, 0.0, 0.4], [0.2, -0.3, 0.0, -0.2]])
    found = _stage([500, 510, 520]).apply(values)
    np.testing.assert_array_equal(found, [[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])


def test_segments_of_one_and_two_bands_are_1() -> None:
    values = np.full((4, 3), 0.25)
    np.testing.assert_array_equal(_stage([400, 500, 510, 900], ("a", "b", "b", "c")).apply(values), 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-1, 2, width=32), min_size=7, max_size=7), min_size=1, max_size=8))
def test_results_always_lie_between_0_and_1(rows: list[list[float]]) -> None:
    values = np.array(rows, np.float32).T
    found = _stage([400, 401, 405, 405, 411, 430, 437]).apply(values)
    assert ((found >= 0) & (found <= 1)).all()


def test_the_stage_comes_back_from_its_state() -> None:
    values = _spectra(bands=12)
    stage = _stage([500, 505, 510, 900, 905, 505, 920, 505, 1500, 910, 915, 1505], tuple("aaabbcbcbbbb"))
    again = ContinuumRemoval.restore(*stage.state())
    np.testing.assert_array_equal(again.apply(values), stage.apply(values))
    assert [piece.tolist() for piece in again.pieces] == [piece.tolist() for piece in stage.pieces]


def test_only_reflectance_is_taken() -> None:
    require_reflectance({"quantity": "surface_reflectance"})
    with pytest.raises(ConfigError, match=r"a\.hdr is radiance; put calibrate"):
        require_reflectance({"quantity": "radiance", "source": "a.hdr"})
    with pytest.raises(ConfigError, match="unknown quantity"):
        require_reflectance({"source": "a.hdr"})
