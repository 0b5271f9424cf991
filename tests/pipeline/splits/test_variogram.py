"""The range of a variogram: from pairs counted by hand, from models known exactly, and from fields of known covariance."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.scene import make_scene
from bandstream.pipeline.splits import variogram
from bandstream.pipeline.splits.variogram import (
    choose_strips,
    practical_range,
    semivariances,
    spatial_range,
)


class Item:
    """What `spatial_range` needs of an opened scene."""

    def __init__(self, cube: np.ndarray, nodata: float | None = None) -> None:
        self.scene = make_scene(da.from_array(cube, chunks=(50, -1, -1)), nodata=nodata)
        self.scene_id, self.shape_yx = "made", cube.shape[:2]


def field(shape: tuple[int, int], reach: float, seed: int) -> np.ndarray:
    """Draw a Gaussian field with the covariance exp(-3 h / reach), by circulant embedding."""
    size = [2 * n for n in shape]
    y, x = (np.minimum(np.arange(n), n - np.arange(n)) for n in size)
    spectrum = np.fft.fft2(np.exp(-3 * np.hypot(y[:, None], x[None, :]) / reach)).real.clip(0)
    noise = np.random.default_rng(seed).normal(size=size)
    return np.fft.ifft2(np.sqrt(spectrum) * np.fft.fft2(noise)).real[: shape[0], : shape[1]]


def cube_of(values: np.ndarray, bands: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    gains = rng.uniform(200, 900, bands)
    return (3000 + values[:, :, None] * gains + rng.normal(0, 5, (*values.shape, bands))).astype(np.int16)


def test_semivariances_are_those_of_every_pair_counted_by_hand() -> None:
    values = np.random.default_rng(0).normal(size=(7, 9))
    values[2, 3] = np.nan
    found, pairs = semivariances([values], 4)
    for lag in range(1, 5):
        squares = [
            (values[y, x] - values[other]) ** 2
            for y, x in np.ndindex(values.shape)
            for other in ((y + lag, x), (y, x + lag))
            if other[0] < 7 and other[1] < 9
        ]
        there = np.array(squares)[np.isfinite(squares)]
        assert pairs[lag - 1] == len(there)
        assert found[lag - 1] == pytest.approx(there.mean() / 2, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(2, 50), st.floats(0, 2), st.floats(0.1, 1000))
def test_the_range_of_an_exact_model_is_found_again(reach: float, nugget: float, sill: float) -> None:
    lag = np.arange(1, 65)
    gamma = nugget * sill + sill * (1 - np.exp(-3 * lag / reach))
    found, capped = practical_range(gamma, np.full(64, 1000))
    assert not capped
    assert found == pytest.approx(reach, rel=0.01)


def test_a_variogram_that_rises_beyond_the_longest_lag_is_capped_there() -> None:
    assert practical_range(np.arange(1, 65) ** 1.0, np.full(64, 1000)) == (64.0, True)


def test_noise_without_any_likeness_needs_no_margin() -> None:
    values = np.random.default_rng(0).normal(size=(128, 300))
    found = spatial_range([Item(cube_of(values))])
    assert found.pixels <= 3


@pytest.mark.parametrize("reach", [8.0, 24.0])
def test_the_range_of_a_field_of_known_covariance_is_found(reach: float) -> None:
    items = [Item(cube_of(field((256, 256), reach, seed), seed=9)) for seed in range(3)]
    found = spatial_range(items)
    # a few hundred independent patches: the estimate itself scatters by some 10 %
    assert found.pixels == pytest.approx(reach, rel=0.3)
    assert found == spatial_range(items)


def test_nodata_says_nothing_about_likeness() -> None:
    cube = cube_of(field((128, 200), 12, 4))
    holes = cube.copy()
    holes[:, 120:] = -9999
    holes[np.random.default_rng(1).random((128, 200)) < 0.2] = -9999
    whole, parted = (spatial_range([Item(c, -9999)]).pixels for c in (cube[:, :120], holes))
    assert parted == pytest.approx(whole, rel=0.15)


def test_what_is_read_stays_within_its_bound_and_is_told() -> None:
    shapes = [(5000, 3000)] * 40
    row = 3000 * 224 * 2
    strips = choose_strips(shapes, row)
    read = sum((s.rows.stop - s.rows.start) * row for s in strips)
    assert read <= variogram.READ_BYTES
    assert len({s.scene for s in strips}) == len(strips)
    assert strips == choose_strips(shapes, row)
    few = choose_strips([(5000, 100)], 100 * 8)
    assert len(few) == variogram.STRIPS
    assert len({s.rows.start for s in few}) == len(few)
    found = spatial_range([Item(cube_of(field((60, 50), 6, 0)))])
    assert found.read_bytes == 60 * 50 * 5 * 2
    assert "1 strip, 0.0 MiB read" in found.told()


@pytest.mark.parametrize(
    "cube",
    [np.full((40, 40, 3), 7, np.int16), np.full((40, 40, 3), -9999, np.int16), np.ones((3, 3, 2), np.int16)],
)
def test_scenes_that_say_nothing_are_refused(cube: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="a number of pixels"):
        spatial_range([Item(cube, -9999)])
