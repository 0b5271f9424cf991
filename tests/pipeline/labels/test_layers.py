"""Targets: layers of numbers on a scene's own grid, NaN where nothing is known."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import scipy.io
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rasterio.warp import transform as transform_points

from bandstream.pipeline.errors import LabelError, SceneNotFoundError
from bandstream.pipeline.labels import Targets, TargetsConfig, require_same_targets

UTM, GRID = CRS.from_epsg(32633), from_origin(366000, 5810000, 30, 30)
ALL = slice(0, 40), slice(0, 50)


def targets_of(scene, *paths: Path, **settings) -> Targets:
    config = TargetsConfig(path=[str(path) for path in paths], **settings)
    return Targets.on_grid(paths, scene, config)


def raster(path: Path, values: np.ndarray, crs=UTM, transform=GRID, names=(), scale=None, **more) -> Path:
    layers, height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=layers, dtype=values.dtype, crs=crs,
        transform=transform, **more,
    ) as out:  # fmt: skip
        out.write(values)
        for number, name in enumerate(names, 1):
            out.set_band_description(number, name)
        if scale:
            out.scales, out.offsets = [scale[0]] * layers, [scale[1]] * layers
    return path


def draw(shape=(2, 40, 50), seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, 1, shape).astype("float32")


def test_layers_on_the_scenes_grid_are_read_as_they_are(tmp_path: Path, scene) -> None:
    values = draw()
    values[0, 3, 4] = -9999
    values[1, 5, 6] = np.nan
    values[1, 7, 8] = np.inf
    one = raster(tmp_path / "lai.tif", values, names=("lai", "cab"), nodata=-9999)
    two = raster(tmp_path / "n.tif", (values[:1] * 100).astype("int16"), scale=(0.01, 2.0))
    targets = pickle.loads(pickle.dumps(targets_of(scene(), one, two, units=["m2 m-2", "ug", ""])))  # noqa: S301
    assert targets.names == ("lai", "cab", "target 3")
    assert targets.units == ("m2 m-2", "ug", "")
    found = targets.read(*ALL)
    assert found.dtype == np.float32
    expected = values.copy()
    expected[0, 3, 4] = expected[1, 7, 8] = np.nan
    np.testing.assert_array_equal(found[:2], expected)
    np.testing.assert_allclose(found[2], (values[0] * 100).astype("int16") * 0.01 + 2.0, rtol=1e-6)
    np.testing.assert_array_equal(targets.read(slice(3, 9), slice(4, 5)), found[:, 3:9, 4:5])
    assert targets.files() == [str(one), str(two)]


def test_coarser_layers_in_another_crs_are_bilinear(tmp_path: Path, scene) -> None:
    other = CRS.from_epsg(32632)
    (east,), (north,) = transform_points(UTM, other, [366000], [5810000])
    place = from_origin(east - 900, north + 900, 45, 45)
    values = np.random.default_rng(3).normal(2, 1, (1, 86, 86)).astype("float32")
    values[0, 30:40, 30:50] = -1
    path = raster(tmp_path / "l.tif", values, other, place, nodata=-1)
    targets = targets_of(scene(), path)
    found = targets.read(*ALL)[0]
    x, y = np.meshgrid(366000 + 30 * (np.arange(50) + 0.5), 5810000 - 30 * (np.arange(40) + 0.5))
    x, y = transform_points(UTM, other, x.ravel(), y.ravel())
    col, row = (np.array(x) - place.c) / 45 - 0.5, (place.f - np.array(y)) / 45 - 0.5
    i, j = np.floor(row).astype(int), np.floor(col).astype(int)
    corners = np.stack([values[0, i + down, j + right] for down in (0, 1) for right in (0, 1)])
    v, u = row - i, col - j
    weights = np.stack([(1 - v) * (1 - u), (1 - v) * u, v * (1 - u), v * u])
    whole = (corners != -1).all(axis=0).reshape(40, 50)
    assert 0.5 < whole.mean() < 1
    expected = (corners * weights).sum(axis=0).reshape(40, 50)
    np.testing.assert_allclose(found[whole], expected[whole], rtol=1e-4, atol=1e-6)
    assert np.isnan(found[(corners == -1).all(axis=0).reshape(40, 50)]).all()
    for rows, cols in [(slice(0, 7), slice(0, 50)), (slice(13, 14), slice(20, 41))]:
        np.testing.assert_array_equal(targets.read(rows, cols)[0], found[rows, cols])


def test_finer_layers_with_a_crs_give_the_average_of_what_is_known(tmp_path: Path, scene) -> None:
    fine = np.random.default_rng(4).normal(2, 1, (1, 126, 156)).astype("float32")
    fine[0, 30:40, 30:50] = -1
    path = raster(tmp_path / "l.tif", fine, UTM, from_origin(365970, 5810030, 10, 10), nodata=-1)
    found = targets_of(scene(), path).read(*ALL)[0]
    cells = fine[0, 3:123, 3:153].astype(float).reshape(40, 3, 50, 3)
    known = cells != -1
    count = known.sum(axis=(1, 3))
    expected = np.where(known, cells, 0).sum(axis=(1, 3)) / np.where(count, count, np.nan)
    assert np.isnan(expected).any()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_finer_layers_without_a_place_give_the_mean_of_what_is_known(tmp_path: Path, scene) -> None:
    fine = draw((80, 100))
    fine[:2, :2] = -1
    fine[2, 0] = -1
    np.save(tmp_path / "t.npy", fine)
    found = targets_of(scene(), tmp_path / "t.npy", nodata=-1).read(*ALL)
    assert np.isnan(found[0, 0, 0])
    assert found[0, 1, 0] == pytest.approx((fine[2, 1] + fine[3, 0] + fine[3, 1]) / 3, rel=1e-6)
    assert found[0, 39, 49] == pytest.approx(fine[78:, 98:].mean(), rel=1e-6)


def test_abundances_of_array_files_are_taken_in_all_their_shapes(tmp_path: Path, scene) -> None:
    """Unmixing scenes tell abundances as a table (material x pixel), the pixels column by column."""
    share = np.random.default_rng(5).dirichlet(np.ones(3), (40, 50)).transpose(2, 0, 1)
    scipy.io.savemat(
        tmp_path / "table.mat", {"A": share.transpose(0, 2, 1).reshape(3, -1), "M": np.ones((9, 3))}
    )
    np.save(tmp_path / "last.npy", share.transpose(1, 2, 0))
    np.save(tmp_path / "first.npy", share)
    for name, variable in (("table.mat", "A"), ("last.npy", None), ("first.npy", None)):
        targets = targets_of(scene(None), tmp_path / name, variable=variable, names=["tree", "soil", "water"])
        targets = pickle.loads(pickle.dumps(targets))  # noqa: S301
        np.testing.assert_allclose(targets.read(*ALL), share, rtol=1e-6)
        np.testing.assert_array_equal(
            targets.read(slice(3, 9), slice(2, 31)), targets.read(*ALL)[:, 3:9, 2:31]
        )
        assert targets.files() == [str(tmp_path / name)]


def test_sensor_geometry_takes_the_layers_pixel_in_which_each_of_its_own_lies(tmp_path: Path, scene) -> None:
    values = draw((2, 60, 60), 7)
    values[0, 30, 30] = -5
    path = raster(tmp_path / "l.tif", values, CRS.from_epsg(4326), from_origin(13, 53, 0.01, 0.01), nodata=-5)
    rows, cols = np.mgrid[0:40, 0:50].astype(float)
    lat, lon = 53.0203 - 0.011 * rows - 0.001 * cols, 13.0014 + 0.011 * cols
    found = targets_of(scene(None, lat_yx=lat, lon_yx=lon), path).read(*ALL)
    at = np.floor((53 - lat) / 0.01).astype(int), np.floor((lon - 13) / 0.01).astype(int)
    inside = (at[0] >= 0) & (at[0] < 60) & (at[1] < 60)
    expected = np.where(inside, values[:, at[0].clip(0, 59), at[1].clip(0, 59)], np.nan)
    expected[expected == -5] = np.nan
    np.testing.assert_array_equal(found, expected)


def test_targets_that_do_not_fit_are_refused(tmp_path: Path, scene) -> None:
    path = raster(tmp_path / "l.tif", draw())
    with pytest.raises(SceneNotFoundError, match=r"none\.tif"):
        targets_of(scene(), tmp_path / "none.tif")
    with pytest.raises(LabelError, match=r"3 names .* 2 layers"):
        targets_of(scene(), path, names=["a", "b", "c"])
    with pytest.raises(LabelError, match="1 entries for 2 layers"):
        targets_of(scene(), path, units=["a"])
    with pytest.raises(LabelError, match=r"targets\.variable"):
        targets_of(scene(), path, variable="A")
    with pytest.raises(LabelError, match="39 x 50 pixels"):
        np.save(tmp_path / "small.npy", np.ones((39, 50)))
        targets_of(scene(), tmp_path / "small.npy")
    with pytest.raises(LabelError, match=r"junk\.tif"):
        (tmp_path / "junk.tif").write_text("no raster")
        targets_of(scene(), tmp_path / "junk.tif")
    with pytest.raises(LabelError, match=r"junk\.mat"):
        (tmp_path / "junk.mat").write_text("no array")
        targets_of(scene(), tmp_path / "junk.mat")
    with pytest.raises(LabelError, match="differ: target 1, target 2 in"):
        require_same_targets([targets_of(scene(), path), None, targets_of(scene(), path, names=["a", "b"])])
