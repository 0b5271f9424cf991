"""The Scene contract: what `make_scene` promises, what `check_scene` refuses, and the helpers that read a scene."""

from __future__ import annotations

import json
import pickle

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS

from bandstream.pipeline.errors import SceneError
from bandstream.pipeline.nodata import invalid_mask
from bandstream.pipeline.scene import (
    check_scene,
    make_scene,
    nearest_band,
    nodata_values,
    replaced,
    scale_offset,
    scene_crs,
    scene_transform,
    summary,
)

NORTH_UP = Affine(30, 0, 500_000, 0, -30, 5_800_000)
ROTATED = Affine(2.5, 1.5, 277_811, 1.5, -2.5, 4_483_607)


def cube(shape=(6, 5, 4), dtype="int16", chunks=(2, -1, -1)) -> da.Array:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return da.from_array(values, chunks=chunks)


def test_everything_known_about_bands_moves_with_them_when_bands_are_chosen():
    ds = make_scene(
        cube(),
        wavelength_nm=[900, 700, 500, 400],
        fwhm_nm=[9, 7, 5, 4],
        good_band=[True, False, True, True],
        band_names=list("abcd"),
        detector=["swir", "vnir", "vnir", "vnir"],
        nodata=[-1, -2, -3, -4],
        scale=[1, 2, 3, 4],
        offset=[0, 0, 1, 1],
    )
    chosen = ds.isel(band=[3, 1])
    assert chosen["wavelength"].values.tolist() == [400, 700]
    assert chosen["fwhm"].values.tolist() == [4, 7]
    assert chosen["good_band"].values.tolist() == [True, False]
    assert chosen["band_name"].values.tolist() == ["d", "b"]
    assert chosen["detector"].values.tolist() == ["vnir", "vnir"]
    assert nodata_values(chosen).tolist() == [-4, -2]
    scale_b, offset_b = scale_offset(chosen)
    assert (scale_b.tolist(), offset_b.tolist()) == ([4, 2], [1, 0])
    assert not {"nodata", "scale", "offset"} & set(chosen.attrs)


def test_uniform_numbers_are_attributes_and_what_changes_nothing_is_left_out():
    ds = make_scene(cube(), nodata=[-9999.0] * 4, scale=np.full(4, 1e-4), offset=0.0)
    assert ds.attrs["nodata"] == -9999.0
    assert ds.attrs["scale"] == 1e-4
    assert "offset" not in ds.attrs
    assert not {"nodata", "scale", "offset"} & set(ds.coords)
    assert scale_offset(ds)[1].tolist() == [0.0] * 4
    assert np.isnan(nodata_values(make_scene(cube()))).all()


def test_absent_facts_are_absent_and_the_good_bands_always_there():
    ds = make_scene(cube())
    assert "wavelength" not in ds.coords
    assert "fwhm" not in ds.coords
    assert "spatial_ref" not in ds.coords
    assert ds["good_band"].values.tolist() == [True] * 4
    assert ds["band_name"].values.tolist() == ["Band 1", "Band 2", "Band 3", "Band 4"]
    assert ds["y"].values.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert (ds.attrs["quantity"], ds.attrs["warnings"]) == ("other", [])


def test_coordinates_of_a_north_up_grid_are_pixel_centres():
    ds = make_scene(cube(), crs=CRS.from_epsg(32633), transform=NORTH_UP)
    assert ds["x"].values[:2].tolist() == [500_015, 500_045]
    assert ds["y"].values[:2].tolist() == [5_799_985, 5_799_955]
    assert ds["data"].attrs["grid_mapping"] == ds["valid"].attrs["grid_mapping"] == "spatial_ref"
    assert scene_crs(ds) == CRS.from_epsg(32633)
    assert scene_transform(ds) == NORTH_UP


def test_a_rotated_grid_keeps_its_transform_and_has_pixel_indices_as_coordinates():
    ds = make_scene(cube(), transform=ROTATED)
    assert ds["x"].values.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert scene_transform(ds) == ROTATED
    assert scene_crs(ds) is None
    gdal_order = [float(v) for v in ds["spatial_ref"].attrs["GeoTransform"].split()]
    assert gdal_order == [277_811, 2.5, 1.5, 4_483_607, 1.5, -2.5]


@pytest.mark.parametrize("transform", [NORTH_UP, ROTATED])
def test_the_transform_follows_cropping_and_thinning(transform):
    ds = make_scene(cube((20, 30, 2)), transform=transform).isel(y=slice(4, None, 3), x=slice(7, 20))
    got = scene_transform(ds)
    a, b, c, d, e, f = list(transform)[:6]
    # corner of the first pixel, and one step of the thinned grid, by hand
    assert (got.c, got.f) == (a * 7 + b * 4 + c, d * 7 + e * 4 + f)
    assert (got.a, got.b, got.d, got.e) == (a, 3 * b, d, 3 * e)


@pytest.mark.parametrize("chunks", [(2, -1, -1), (3, 2, 1)])
def test_valid_is_true_where_any_band_holds_data(chunks):
    values = np.full((6, 5, 4), -9999, np.int16)
    values[0, 0, 3] = 7
    values[5, 4, 0] = 7
    values[2] = 1
    ds = make_scene(da.from_array(values, chunks=chunks), nodata=-9999)
    assert np.array_equal(ds["valid"].values, (values != -9999).any(axis=2))


def test_valid_knows_numbers_that_are_not_finite_and_nodata_per_band():
    values = np.ones((3, 2, 3), np.float32)
    values[0, 0] = np.nan
    values[0, 1] = [np.inf, -np.inf, np.nan]
    values[1, 0] = [-1, -2, -3]
    values[1, 1] = [-2, -1, -3]
    ds = make_scene(da.from_array(values), nodata=[-1, -2, -3])
    assert ds["valid"].values.tolist() == [[False, False], [False, True], [True, True]]


def test_valid_needs_no_reading_where_nothing_can_be_invalid():
    def never(block):
        msg = "read"
        raise AssertionError(msg)

    ds = make_scene(cube().map_blocks(never, dtype="int16"))
    assert ds["valid"].values.all()


@settings(deadline=None)
@given(
    dtype=st.sampled_from(["u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]),
    nodata=st.lists(
        st.sampled_from([0.0, 1.0, -9999.0, -32768.0, 65535.0, 1.5, -1.23000002e34, 255.0, float("nan")]),
        min_size=3,
        max_size=3,
    ),
    seed=st.integers(0, 99),
)
def test_invalid_is_what_numpy_finds_number_by_number(dtype, nodata, seed):
    rng = np.random.default_rng(seed)
    pool = np.array([0, 1, 2, -9999, -32768, 65535, 255, -1.23000002e34])
    kind = np.dtype(dtype)
    if kind.kind != "f":
        info = np.iinfo(kind)
        pool = pool[(pool >= info.min) & (pool <= info.max)]
    block = rng.choice(pool, (4, 5, 3)).astype(kind)
    if kind.kind == "f":
        block[0, 0] = [np.nan, np.inf, 1]
    mask = invalid_mask(block, np.array(nodata))
    expected = np.zeros(block.shape, bool)
    for b, value in enumerate(nodata):
        for place in np.ndindex(4, 5):
            number = block[(*place, b)]
            same = not np.isnan(value) and float(number) == float(
                kind.type(value) if kind.kind == "f" else value
            )
            expected[(*place, b)] = same or not np.isfinite(number)
    assert np.array_equal(np.zeros(block.shape, bool) if mask is None else mask, expected)


def test_invalid_keeps_the_memory_order_of_the_block():
    block = np.zeros((3, 7, 5), "f4").transpose(0, 2, 1)
    assert invalid_mask(block, np.full(7, np.nan)).strides == (35, 1, 5)


def test_the_largest_integers_are_nodata_in_their_own_type():
    for kind in ("i8", "u8"):
        top = np.iinfo(kind).max
        block = np.array([[[top, 0]]], kind)
        assert invalid_mask(block, np.full(2, float(top))).tolist() == [[[True, False]]]


def test_nearest_band_needs_no_order():
    ds = make_scene(cube(), wavelength_nm=[2000, 500, 1000, 499])
    assert [nearest_band(ds, nm) for nm in (480, 501, 1200, 9000)] == [3, 1, 2, 0]
    with pytest.raises(SceneError, match="no wavelengths"):
        nearest_band(make_scene(cube()), 500)


def test_summary_is_plain_json():
    ds = make_scene(
        cube(dtype="float32"),
        wavelength_nm=[400, 500, 600, 700],
        nodata=float("nan"),
        crs=CRS.from_epsg(32633),
        transform=NORTH_UP,
        scene_id="s",
        files=["a", "b"],
        warnings=["w"],
    )
    got = json.loads(json.dumps(summary(ds), allow_nan=False))
    assert got["shape_yxb"] == [6, 5, 4]
    assert got["dtype"] == "float32"
    assert got["crs"] == "EPSG:32633"
    assert got["nodata"] == "nan"
    assert got["fwhm_nm"] is None
    assert (got["files"], got["warnings"]) == (["a", "b"], ["w"])
    assert got["transform"] == [30, 0, 500_000, 0, -30, 5_800_000]


def test_a_scene_can_be_pickled():
    ds = make_scene(cube(), wavelength_nm=[1000, 2000, 3000, 4000], nodata=0)
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301 - our own bytes
    xr.testing.assert_identical(again.compute(), ds.compute())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wavelength_nm": [1, 2]}, "2 values for 4 bands"),
        ({"fwhm_nm": [1, 2, 3, 4, 5]}, "5 values for 4 bands"),
        ({"good_band": [True]}, "1 values for 4 bands"),
        ({"band_names": ["a"]}, "1 entries for 4 bands"),
        ({"scale": [1, 2]}, "2 values for 4 bands"),
        ({"scale": 0.0}, "scale must be finite and not 0"),
        ({"quantity": "reflectance"}, "allowed: dn, radiance"),
        ({"wavelength_nm": [0.4, 0.5, 0.6, 0.7]}, "multiply micrometres by 1000"),
    ],
)
def test_what_contradicts_the_bands_is_refused(options, message):
    with pytest.raises(SceneError, match=message):
        make_scene(cube(), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.drop_vars("valid"), "no variable `valid`"),
        (lambda ds: ds.transpose("band", "y", "x"), r"needs \('y', 'x', 'band'\)"),
        (lambda ds: ds.assign(data=ds["data"].astype("complex64")), "complex64"),
        (lambda ds: ds.assign(valid=ds["valid"].astype("uint8")), "must be bool"),
        (lambda ds: ds.drop_vars("good_band"), "good_band"),
        (lambda ds: ds.isel(y=slice(0, 0)), "empty"),
        (lambda ds: ds.assign_attrs(scale=2.0).assign_coords(scale=("band", [1.0, 2, 3, 4])), "both"),
        (lambda ds: ds.assign_coords(wavelength=("y", np.arange(6.0))), "needs .'band'"),
    ],
)
def test_a_dataset_of_the_users_own_is_checked(change, message):
    with pytest.raises(SceneError, match=message):
        check_scene(change(make_scene(cube())))


def test_quality_layers_and_positions_come_along_and_stay_lazy():
    plane = da.arange(6, chunks=3).reshape(2, 3)
    scene = make_scene(
        cube((2, 3, 4)),
        quality={"cloud": (plane > 3, {"flag_meanings": "clear cloud"})},
        layers={"sun_zenith": plane.astype("f4")},
        lat_yx=plane * 1.0,
        lon_yx=plane * 2.0,
    )
    assert scene["quality_cloud"].chunks is not None
    assert scene["quality_cloud"].attrs["flag_meanings"] == "clear cloud"
    assert scene["lon"].attrs["units"] == "degrees_east"
    assert summary(scene)["layers"] == ["quality_cloud", "sun_zenith", "lat", "lon"]
    assert "valid_rule" not in scene.attrs
    assert make_scene(cube((2, 3, 4)), valid_yx=plane > 2).attrs["valid_rule"] == "product"


def test_replaced_numbers_take_the_place_of_those_per_band_and_valid_follows_nodata():
    scene = make_scene(cube((2, 2, 3)), nodata=[0, 5, np.nan], scale=[1, 2, 3])
    other = replaced(scene, nodata=3.0, scale=0.5, quantity="radiance")
    assert (other.attrs["nodata"], other.attrs["scale"], other.attrs["quantity"]) == (3.0, 0.5, "radiance")
    assert "nodata" not in other.coords
    assert "scale" not in other.coords
    assert replaced(other, offset=[0, 1, 2])["offset"].values.tolist() == [0, 1, 2]
    raw = scene["data"].values
    np.testing.assert_array_equal(other["valid"].values, (raw != 3).any(axis=2))
    assert replaced(scene, units="1")["nodata"].values.tolist()[:2] == [0, 5]
