"""EMIT: every variant of the generated granules equals what was written, and each trap is met."""

from __future__ import annotations

import shutil
import warnings

import h5py
import netCDF4
import numpy as np
import pytest
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs

FLAGS = ("cloud", "cirrus", "water", "spacecraft", "dilated_cloud", "aggregate")


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


def told(scene):
    """Return what the reader warned of, beside the word that it is experimental."""
    return [text for text in scene.attrs["warnings"] if "experimental" not in text]


def flag_name(text):
    """Return the layer's name of a mask band; None for what is no flag. Spelt out by hand, not by the reader's rule."""
    return {
        "cloud flag": "cloud",
        "cirrus flag": "cirrus",
        "water flag": "water",
        "spacecraft flag": "spacecraft",
        "dilated cloud flag": "dilated_cloud",
        "aggregate flag": "aggregate",
        "spectf-cloud flag": "spectf_cloud",
    }.get(text.lower())


def assert_same(scene, truth):
    raw = scene["data"].values
    assert raw.dtype == truth.raw_yxb.dtype
    assert np.array_equal(raw, truth.raw_yxb)
    scale_b, offset_b = scale_offset(scene)
    physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
    assert np.array_equal(scene["wavelength"].values, truth.wavelength_nm.astype(float))
    assert np.array_equal(scene["fwhm"].values, truth.fwhm_nm.astype(float))
    assert np.array_equal(scene["good_band"].values, truth.good())
    assert (scene.attrs["quantity"], scene.attrs["nodata"]) == (truth.quantity, truth.nodata)
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb.all(axis=2))
    assert np.array_equal(scene["lat"].values, truth.lat_yx)
    assert np.array_equal(scene["lon"].values, truth.lon_yx)
    assert np.array_equal(scene["glt_row"].values, truth.glt_row)
    assert np.array_equal(scene["glt_col"].values, truth.glt_col)
    assert scene["glt_row"].dtype == scene["glt_col"].dtype == np.int32
    assert CRS.from_wkt(scene.attrs["ortho_crs_wkt"]).to_epsg() == truth.ortho_epsg
    assert np.allclose(scene.attrs["ortho_transform"], truth.ortho_transform6, rtol=1e-12, atol=0)
    assert scene.attrs["acquired"] == truth.acquired
    assert scene.attrs.get("earth_sun_distance_au") == truth.earth_sun_distance_au
    assert ("sun_zenith" in scene) == (truth.sun_zenith_yx is not None)
    if truth.sun_zenith_yx is not None:
        assert np.allclose(scene["sun_zenith"].values, truth.sun_zenith_yx, equal_nan=True, rtol=1e-6)
    expected = {flag_name(name): values for name, values in truth.quality.items() if flag_name(name)}
    assert {n for n in scene if str(n).startswith("quality_")} == {f"quality_{name}" for name in expected}
    for name, values in expected.items():
        assert np.array_equal(scene[f"quality_{name}"].values, values)
    assert scene_crs(scene) is None
    assert (scene.attrs["sensor"], scene.attrs["reader"], scene.attrs["experimental"]) == (
        "EMIT",
        "emit",
        True,
    )
    assert told(scene) == []


@pytest.mark.parametrize("name", ["emit_rad", "emit_rfl"])
def test_file_and_folder_give_the_scene_that_was_written(products, tmp_path, name):
    truth = products.make(name, tmp_path)
    for path in {*truth.paths, tmp_path}:
        scene = quietly(path)
        assert_same(scene, truth)
        assert len(scene.attrs["files"]) == 2, "the companion decides the content too"


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("emit_rad", {"companion": False}),
        ("emit_rfl", {"companion": False, "seed": 4}),
        ("emit_rfl", {"mask_version": "003"}),
        ("emit_rfl", {"shape_yx": (13, 15)}),
    ],
)
def test_every_variant(products, tmp_path, name, variants):
    truth = products.make(name, tmp_path, **variants)
    assert_same(quietly(truth.paths[0]), truth)


def test_radiance_is_ten_times_the_number(products, tmp_path):
    """UW cm-2 sr-1 nm-1 is 10 W m-2 sr-1 um-1: 1e-6 W / (1e-4 m2 x 1e-3 um)."""
    truth = products.make("emit_rad", tmp_path)
    with netCDF4.Dataset(truth.paths[0]) as file:
        number = float(file["radiance"][5, 4, 100])
    scene = quietly(truth.paths[0])
    scale_b, offset_b = scale_offset(scene)
    value = float(scene["data"][5, 4, 100].values) * scale_b[100] + offset_b[100]
    assert value == pytest.approx(number * 1e-6 / (1e-4 * 1e-3), rel=1e-6)
    assert scene.attrs["units"] == "W m-2 sr-1 um-1"


def test_another_unit_of_radiance_is_asked_about(products, tmp_path):
    path = products.make("emit_rad", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        file["radiance"].attrs["units"] = "W/m2/sr/um"
    with pytest.raises(FormatError, match="scale="):
        quietly(path)
    assert "scale" not in quietly(path, scale=1).attrs


def test_all_constant_water_bands_are_bad_and_no_other(products, tmp_path):
    """The bands that hold -0.01 in every pixel are exactly those that the product marks: dropping these drops them."""
    truth = products.make("emit_rfl", tmp_path)
    scene = quietly(truth.paths[0])
    raw = scene["data"].values
    constant = ((raw == np.float32(-0.01)) | (raw == -9999)).all(axis=(0, 1))
    assert constant.sum() > 20
    assert np.array_equal(~scene["good_band"].values, constant)
    kept = scene.isel(band=scene["good_band"].values)
    assert not (kept["data"].values == np.float32(-0.01)).any()
    assert kept.sizes["band"] == kept["wavelength"].size == kept["fwhm"].size == (~constant).sum()


def test_flags_1101_of_a_netcdf_leave_three_bands(products, tmp_path):
    """Case of the good-band list that is no ENVI `bbl`."""
    path = products.make("emit_rfl", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        flags = np.zeros(285, "u1")
        flags[:4] = 1, 1, 0, 1
        file["sensor_band_parameters/good_wavelengths"][()] = flags
    scene = quietly(path)
    assert np.flatnonzero(scene["good_band"].values).tolist() == [0, 1, 3]


def test_an_entry_of_the_table_beyond_the_cube_is_none(products, tmp_path):
    """Neither its row nor its column is taken."""
    truth = products.make("emit_rad", tmp_path, glt_out_of_range=True)
    scene = quietly(truth.paths[0])
    rows, cols = truth.raw_yxb.shape[:2]
    inside = (truth.glt_row < rows) & (truth.glt_col < cols)
    assert not inside.all()
    assert np.array_equal(scene["glt_row"].values, np.where(inside, truth.glt_row, -1))
    assert np.array_equal(scene["glt_col"].values, np.where(inside, truth.glt_col, -1))


def test_flags_are_found_by_name_in_any_order_and_case(products, tmp_path):
    truth = products.make("emit_rfl", tmp_path)
    mask = truth.extra["mask_path"]
    with netCDF4.Dataset(mask, "r+") as file:
        names = list(file["sensor_band_parameters/mask_bands"][:])
        file["mask"].set_auto_maskandscale(False)
        cube = np.array(file["mask"][:])
        turned = list(reversed(range(len(names))))
        file["mask"][:] = cube[:, :, turned]
        for at, old in enumerate(turned):
            file["sensor_band_parameters/mask_bands"][at] = names[old].upper() + " "
    scene = quietly(truth.paths[0])
    for at, name in enumerate(names):
        layer = flag_name(name)
        if layer is not None:
            assert np.array_equal(scene[f"quality_{layer}"].values, cube[:, :, at])
    assert set(FLAGS) <= {str(n).removeprefix("quality_") for n in scene}


@pytest.mark.parametrize("spoil", ["cut", "another size", "unnamed bands"])
def test_a_companion_that_does_not_fit_is_left_out_with_a_warning(products, tmp_path, spoil):
    truth = products.make("emit_rfl", tmp_path)
    mask = truth.extra["mask_path"]
    if spoil == "cut":
        mask.write_bytes(mask.read_bytes()[:3000])
    elif spoil == "another size":
        other = products.make("emit_rfl", tmp_path / "other", shape_yx=(10, 14))
        shutil.copy(other.extra["mask_path"], mask)
    else:
        with h5py.File(mask, "r+") as file:
            del file["sensor_band_parameters/mask_bands"]
    scene = quietly(truth.paths[0])
    assert not [n for n in scene if str(n).startswith("quality_")]
    assert len(told(scene)) == 1
    assert "MASK" in told(scene)[0]
    assert scene.attrs["files"] == [str(truth.paths[0])]


def test_a_companion_of_another_granule_is_not_taken(products, tmp_path):
    truth = products.make("emit_rfl", tmp_path)
    mask = truth.extra["mask_path"]
    mask.rename(mask.with_name(mask.name.replace("2222203_001", "2222203_002")))
    scene = quietly(truth.paths[0])
    assert "quality_cloud" not in scene
    assert told(scene) == []


@pytest.mark.parametrize(
    "name",
    ["sensor_band_parameters/wavelengths", "location/lat", "location/glt_x", "sensor_band_parameters/fwhm"],
)
def test_what_is_not_there_is_an_error_or_left_out(products, tmp_path, name):
    path = products.make("emit_rfl", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        del file[name]
    if "wavelengths" in name:
        with pytest.raises(FormatError, match="wavelengths"):
            quietly(path)
        return
    scene = quietly(path)
    gone = {"location/lat": "lat", "location/glt_x": "glt_col", "sensor_band_parameters/fwhm": "fwhm"}[name]
    assert gone not in scene.variables


def test_detector_and_variable_do_not_apply(products, tmp_path):
    path = products.make("emit_rad", tmp_path).paths[0]
    for wrong in ({"detector": "vnir"}, {"variable": "obs"}, {"axes": "byx"}):
        with pytest.raises(FormatError, match=next(iter(wrong))):
            quietly(path, **wrong)
    assert quietly(path, variable="radiance")["data"].shape[2] == 285


def test_the_mask_file_itself_is_no_scene_of_this_reader(products, tmp_path):
    mask = products.make("emit_rfl", tmp_path).extra["mask_path"]
    with pytest.raises(FormatError, match="neither `radiance` nor `reflectance`"):
        quietly(mask, reader="emit")
