"""Larger pixels: GDAL's numbers where all is valid, means by hand where not, and the same bits however it is cut."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.warp import Resampling, reproject

from bandstream.pipeline import resample
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.scene import make_scene, scale_offset, scene_crs, scene_transform

GRID = Affine(10, 0, 500, 0, -10, 900)
UTM = CRS.from_epsg(32633)
NONE = -9999


def cube(shape=(23, 31, 3), seed=0, dtype="i2") -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 4000, shape).astype(dtype)


def scene(raw: np.ndarray, *, rows: int = 7, cols: int = -1, **facts: Any):
    return make_scene(da.from_array(raw, chunks=(rows, cols, -1)), **facts)


def by_gdal(raw: np.ndarray, method: str, factor: float, nodata: float | None = None) -> np.ndarray:
    rows, cols = (int(n / factor) for n in raw.shape[:2])
    larger = Affine(10 * factor, 0, 500, 0, -10 * factor, 900)
    out = np.full((rows, cols, raw.shape[2]), np.nan)
    for b in range(raw.shape[2]):  # band by band: else a pixel without data is one that has none in any band
        out[..., b], _ = reproject(
            raw[..., b].astype("f8"), np.full((rows, cols), np.nan), src_transform=GRID, src_crs=UTM,
            dst_transform=larger, dst_crs=UTM, resampling=Resampling[method], tolerance=0, src_nodata=nodata,
            dst_nodata=np.nan,
        )  # fmt: skip
    return out


@pytest.mark.parametrize("method", ["average", "bilinear", "cubic"])
@pytest.mark.parametrize("factor", [2, 3, 2.5, 1.3, 7])
def test_valid_pixels_become_what_gdalwarp_makes_of_them_to_the_very_edge(method, factor) -> None:
    raw = cube()
    found = resample(scene(raw, crs=UTM, transform=GRID), method, factor=factor)
    assert found["data"].dtype == np.float32
    np.testing.assert_allclose(found["data"].values, by_gdal(raw, method, factor), rtol=2e-6)


@pytest.mark.parametrize("method", ["average", "bilinear"])
def test_numbers_without_data_take_no_part_as_with_gdalwarp(method) -> None:
    raw = cube()
    raw[np.random.default_rng(1).random(raw.shape) < 0.4] = NONE
    found = resample(scene(raw, nodata=NONE), method, factor=3, min_valid=1e-6)["data"].values
    expected = by_gdal(raw, method, 3, NONE)
    if (
        method == "bilinear"
    ):  # where the pixel under the centre has no data GDAL gives none, whatever is around it
        there = np.isfinite(expected)
        assert 0.4 < there.mean() < 0.8
        found, expected = found[there], expected[there]
    np.testing.assert_allclose(found, expected, rtol=2e-6, equal_nan=True)


def test_a_block_mean_is_of_valid_numbers_band_by_band_and_needs_half_of_them() -> None:
    raw = cube((8, 6, 2))
    raw[0, 0, 0] = NONE  # one of four
    raw[0:2, 2, 1] = NONE  # two of four
    raw[4, 4:6, 0] = raw[5, 4, 0] = NONE  # three of four
    raw[6:8, 0:2] = NONE
    found = resample(scene(raw, nodata=NONE), factor=2)
    values = np.where(raw == NONE, np.nan, raw.astype("f8")).reshape(4, 2, 3, 2, 2)
    expected = np.full((4, 3, 2), np.nan)
    for index in np.ndindex(4, 3, 2):
        cell = values[index[0], :, index[1], :, index[2]]
        if np.isfinite(cell).sum() >= 2:
            expected[index] = np.nanmean(cell)
    assert np.isnan(expected).sum() == 3
    np.testing.assert_allclose(found["data"].values, expected, rtol=1e-6, equal_nan=True)
    np.testing.assert_array_equal(found["valid"].values, np.isfinite(expected).any(axis=2))
    assert "nodata" not in found.attrs


def test_the_least_valid_share_is_a_setting() -> None:
    raw = cube((2, 2, 1))
    raw[0, 0] = NONE
    for least, valid in ((0.75, True), (0.76, False), (1, False)):
        assert (
            bool(resample(scene(raw, nodata=NONE), factor=2, min_valid=least)["valid"].values[0, 0]) == valid
        )


def test_pixels_that_a_mask_rules_out_take_no_part() -> None:
    raw = cube((4, 4, 2))
    usable = np.ones((4, 4), bool)
    usable[0, 0] = usable[2:, 2:] = False
    found = resample(scene(raw, valid_yx=da.from_array(usable)), factor=2)["data"].values
    np.testing.assert_allclose(found[0, 0], raw[:2, :2].reshape(4, 2)[1:].mean(axis=0), rtol=1e-6)
    assert np.isnan(found[1, 1]).all()
    assert np.isfinite(found).sum() == 6


@pytest.mark.parametrize("method", ["bilinear", "cubic"])
def test_a_gap_smears_into_nothing(method) -> None:
    """A constant stays that constant beside a gap, whatever stands in the gap."""
    raw = np.full((24, 24, 1), 700, "i2")
    raw[9:13, 8:17] = NONE
    found = resample(scene(raw, nodata=NONE), method, factor=2)["data"].values
    assert np.isnan(found).any()
    np.testing.assert_allclose(found[np.isfinite(found)], 700, rtol=1e-6)


def test_cubic_gives_way_to_bilinear_at_gaps_only() -> None:
    raw = cube((24, 24, 1))
    raw[12, 12] = NONE
    ds = scene(raw, nodata=NONE)
    cubic, bilinear = (resample(ds, m, factor=2)["data"].values[..., 0] for m in ("cubic", "bilinear"))
    whole = resample(scene(cube((24, 24, 1))), "cubic", factor=2)["data"].values[..., 0]
    near = np.zeros((12, 12), bool)
    near[4:8, 4:8] = True  # centres within 4 old pixels of that pixel's
    np.testing.assert_array_equal(cubic[near], bilinear[near])
    assert np.array_equal(cubic[:4], whole[:4])
    assert (cubic == whole).sum() == 144 - near.sum()


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["average", "bilinear", "cubic"]),
    st.sampled_from([2, 3, 2.6]),
    st.integers(3, 20),
    st.sampled_from([-1, 9]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 6),
)
def test_no_cut_changes_a_bit(method, factor, rows, cols, top, left, seed) -> None:
    raw = cube((20, 17, 17), seed)
    raw[np.random.default_rng(seed).random(raw.shape[:2]) < 0.05 * (seed % 3)] = NONE
    whole = resample(scene(raw, rows=-1, nodata=NONE), method, factor=factor)["data"].values
    cut = resample(scene(raw, rows=rows, cols=cols, nodata=NONE), method, factor=factor)["data"].data
    np.testing.assert_array_equal(cut.compute(scheduler="synchronous"), whole)
    window = (slice(top, top + 3), slice(left, None), slice(3, 16))
    np.testing.assert_array_equal(cut[window].compute(scheduler="synchronous"), whole[window])


def test_only_the_rows_that_a_window_needs_are_read() -> None:
    class Counted:
        shape, ndim, dtype, read = (1000, 4, 2), 3, np.dtype("i2"), 0

        def __getitem__(self, key):
            part = np.ones(self.shape, "i2")[key]
            Counted.read += part.size
            return part

    lazy = da.from_array(Counted(), chunks=(100, -1, -1), asarray=False, meta=np.empty((0, 0, 0), "i2"))
    found = resample(make_scene(lazy), factor=2)["data"].data
    Counted.read = 0
    found[40:60].compute(scheduler="synchronous")
    assert Counted.read == 40 * 4 * 2


def test_place_scale_and_bands_stay_true() -> None:
    scale = np.array([1e-4, 2e-4, 3e-4])
    facts = {"wavelength_nm": [500, 600, 700], "fwhm_nm": [10, 10, 12], "good_band": [True, False, True],
             "band_names": ["a", "b", "c"], "detector": ["vnir", "vnir", "swir"]}  # fmt: skip
    before = scene(cube(), crs=UTM, transform=GRID, scale=scale, offset=0.5, quantity="surface_reflectance", units="1",
                   sensor="X", source="x.tif", **facts)  # fmt: skip
    found = resample(before, factor=2)
    assert found["data"].shape == (11, 15, 3), "what fills no pixel is left out"
    assert scene_transform(found) == Affine(20, 0, 500, 0, -20, 900)
    assert scene_crs(found) == UTM
    np.testing.assert_array_equal(found["x"].values, 510 + 20 * np.arange(15))
    np.testing.assert_array_equal(found["y"].values, 890 - 20 * np.arange(11))
    np.testing.assert_array_equal(scale_offset(found)[0], scale)
    np.testing.assert_array_equal(scale_offset(found)[1], [0.5] * 3)
    for name in ("wavelength", "fwhm", "good_band", "band_name", "detector"):
        np.testing.assert_array_equal(found[name].values, before[name].values)
    assert {k: found.attrs[k] for k in ("quantity", "units", "sensor", "source")} == {
        "quantity": "surface_reflectance", "units": "1", "sensor": "X", "source": "x.tif"}  # fmt: skip
    assert found.attrs["resampled_from_yx"] == [23, 31]
    assert found["data"].data.name != resample(before, factor=3)["data"].data.name
    assert pickle.dumps(found), "workers are sent it"


def test_a_rotated_grid_stays_rotated_about_the_same_corner() -> None:
    grid = Affine(8, 6, 500, 6, -8, 900)
    found = resample(scene(cube(), crs=UTM, transform=grid), factor=3)
    assert scene_transform(found) == Affine(24, 18, 500, 18, -24, 900)
    # 30 in the unit of the CRS is the same, since the sides measure 10
    assert scene_transform(resample(scene(cube(), crs=UTM, transform=grid), pixel=30)) == scene_transform(
        found
    )


def test_a_size_leaves_alone_what_has_it_and_makes_nothing_smaller() -> None:
    ds = scene(cube(), crs=UTM, transform=Affine(10, 0, 0, 0, -20, 0))
    assert resample(ds, pixel=20)["data"].shape == (23, 15, 3)
    square = scene(cube(), crs=UTM, transform=GRID)
    assert resample(square, pixel=10) is square
    with pytest.raises(ConfigError, match=r"10 x 20 \(x, y\)"):
        resample(ds, pixel=10)
    with pytest.raises(ConfigError, match=r"resample\.factor"):
        resample(scene(cube()), pixel=20)
    with pytest.raises(ConfigError, match="23 x 31"):
        resample(ds, factor=24)
    for wrong in (
        {},
        {"factor": 2, "pixel": 20},
        {"factor": 1},
        {"factor": 2, "min_valid": 0},
        {"factor": 1e9},
    ):
        with pytest.raises(ConfigError, match="resample"):
            resample(ds, **wrong)


def test_only_whole_pixels_averaged_keep_noise_independent() -> None:
    ds = scene(cube())
    told = {
        (m, f): resample(ds, m, factor=f).attrs.get("resampled")
        for m in ("average", "bilinear", "cubic")
        for f in (2, 2.5)
    }
    assert told.pop(("average", 2)) is None
    assert set(told.values()) == {True}
    already = scene(cube(), resampled=True)
    assert resample(already, factor=2).attrs["resampled"] is True


def test_layers_follow_by_their_rules() -> None:
    flag = np.zeros((4, 6), bool)
    flag[1, 0] = True
    codes = np.array([[0, 1, 2, 3, 1, 1], [1, 1, 3, 2, 2, 1]] * 2, "u1")
    angle = np.arange(24, dtype="f4").reshape(4, 6)
    angle[0, 0] = np.nan
    found = resample(
        scene(
            cube((4, 6, 2)), rows=3,
            quality={"cloud": da.from_array(flag), "cirrus": da.from_array(codes),
                     "classes": (da.from_array(codes), {"flag_values": [1, 2, 3]}),
                     "aot": (da.from_array(codes), {"scale_factor": 0.01})},
            layers={"sun_zenith": da.from_array(angle)},
        ),
        factor=2,
    )  # fmt: skip
    assert found["quality_cloud"].values.tolist() == [[True, False, False], [False] * 3]
    assert found["quality_cloud"].dtype == bool
    assert found["quality_cirrus"].values.tolist() == [[1, 3, 2]] * 2
    assert found["quality_classes"].values.tolist() == [[1, 2, 1]] * 2, "the smallest of equally common ones"
    assert found["quality_classes"].dtype == np.uint8
    np.testing.assert_allclose(found["quality_aot"].values, [[0.75, 2.5, 1.25]] * 2)
    np.testing.assert_allclose(
        found["sun_zenith"].values, [[14 / 3, 5.5, 7.5], [15.5, 17.5, 19.5]], rtol=1e-6
    )
    assert found["quality_classes"].attrs["flag_values"] == [1, 2, 3]


def test_the_centre_of_a_pixel_decides_the_cell_where_cells_cut_pixels() -> None:
    codes = np.arange(1, 11, dtype="u1")[None].repeat(2, axis=0)
    found = resample(
        scene(cube((2, 10, 1)), quality={"n": da.from_array(codes)}), factor=2
    )["quality_n"]  # fmt: skip
    assert found.values.tolist() == [[2, 4, 6, 8, 10]]
    found = resample(
        scene(cube((5, 10, 1)), quality={"n": da.from_array(codes[:1].repeat(5, 0))}), factor=2.5
    )
    # centres 0.5, 1.5 | 2.5, 3.5, 4.5 | 5.5, 6.5 | 7.5, ...
    assert found["quality_n"].values[0].tolist() == [2, 5, 7, 10]


def test_latitude_and_longitude_are_the_cells_mean_over_the_date_line_too() -> None:
    lat = np.add.outer(np.arange(4) * -0.1 + 50, np.zeros(4))
    lon = np.add.outer(np.zeros(4), [179.8, 179.95, -179.9, -179.75])
    lat[3, 3] = lon[3, 3] = -9999
    shifted = lon.copy()
    shifted[:, 1] = -179.9
    ds = scene(cube((4, 4, 1)), lat_yx=da.from_array(lat), lon_yx=da.from_array(shifted))
    found = resample(ds, factor=2)
    np.testing.assert_allclose(found["lat"].values, [[49.95, 49.95], [49.75, 49.8 - 0.1 / 3]])
    np.testing.assert_allclose(found["lon"].values[0], [179.95, -179.825])
    assert np.isfinite(found["lon"].values).all()


def test_a_look_up_table_points_to_the_new_pixels() -> None:
    ds = scene(cube((6, 5, 1)))
    rows = np.array([[-1, 0, 1], [2, 5, 4]], "i4")
    ds["glt_row"] = (("ortho_y", "ortho_x"), da.from_array(rows))
    ds["glt_col"] = (("ortho_y", "ortho_x"), da.from_array(np.array([[-1, 0, 3], [2, 4, 1]], "i4")))
    found = resample(ds, factor=2)
    assert found["glt_row"].values.tolist() == [[-1, 0, 0], [1, 2, 2]]
    assert found["glt_col"].values.tolist() == [[-1, 0, 1], [1, -1, 0]], "column 4 fills no new pixel"
    part = resample(ds.isel(y=slice(2, 6)), factor=2)
    assert part["glt_row"].values.tolist() == [[-1, -1, -1], [0, 1, 1]]


def test_wide_numbers_keep_their_precision() -> None:
    raw = np.full((2, 2, 1), 2**24, "i4")
    raw[0, 0] += 4
    assert resample(scene(raw), factor=2)["data"].values.item() == np.float32(2**24 + 1)
    doubles = scene(raw.astype("f8"))
    assert resample(doubles, factor=2)["data"].values.item() == 2**24 + 1
