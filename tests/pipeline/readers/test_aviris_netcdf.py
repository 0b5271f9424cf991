"""AVIRIS netCDF: every variant of the generated files equals what was written, and each trap is met."""

from __future__ import annotations

import warnings

import h5py
import netCDF4
import numpy as np
import pytest
from affine import Affine
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


def told(scene):
    """Return what the reader warned of, beside the word that it is experimental."""
    return [text for text in scene.attrs["warnings"] if "experimental" not in text]


def assert_same(scene, truth):
    raw = scene["data"].values
    assert raw.dtype == truth.raw_yxb.dtype
    assert np.array_equal(raw, truth.raw_yxb)
    scale_b, offset_b = scale_offset(scene)
    physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
    assert np.array_equal(scene["wavelength"].values, truth.wavelength_nm.astype(float))
    assert np.array_equal(scene["fwhm"].values, truth.fwhm_nm.astype(float))
    assert (scene.attrs["quantity"], scene.attrs["nodata"]) == (truth.quantity, truth.nodata)
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb.all(axis=2))
    assert scene.attrs["acquired"] == truth.acquired
    assert (scene.attrs["sensor"], scene.attrs["reader"]) == ("AVIRIS-3", "aviris-netcdf")
    if truth.glt_row is None:
        assert scene_crs(scene).to_epsg() == truth.crs_epsg
        assert scene_transform(scene) == Affine(*truth.transform6)
        assert "glt_row" not in scene
    else:
        assert scene_crs(scene) is None
        assert scene_transform(scene) is None
        assert np.array_equal(scene["glt_row"].values, truth.glt_row)
        assert np.array_equal(scene["glt_col"].values, truth.glt_col)
        assert CRS.from_wkt(scene.attrs["ortho_crs_wkt"]).to_epsg() == truth.ortho_epsg
        assert np.allclose(scene.attrs["ortho_transform"], truth.ortho_transform6, rtol=1e-12)
        assert np.array_equal(scene["lat"].values, truth.lat_yx)
        assert np.array_equal(scene["lon"].values, truth.lon_yx)
    assert scene.attrs.get("earth_sun_distance_au") == truth.earth_sun_distance_au
    assert ("sun_zenith" in scene) == (truth.sun_zenith_yx is not None)
    if truth.sun_zenith_yx is not None:
        assert np.allclose(scene["sun_zenith"].values, truth.sun_zenith_yx, rtol=1e-6, equal_nan=True)
    assert told(scene) == []


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("aviris3_rdn", {}),
        ("aviris3_rfl", {}),
        ("aviris3_rdn", {"negative_glt": True}),
        ("aviris3_rdn", {"obs": False, "seed": 5}),
        ("aviris3_rdn", {"shape_yx": (10, 17)}),
        ("aviris3_rfl", {"shape_yx": (17, 11)}),
    ],
)
def test_file_and_folder_give_the_scene_that_was_written(products, tmp_path, name, variants):
    truth = products.make(name, tmp_path, **variants)
    for path in {*truth.paths, tmp_path}:
        assert_same(quietly(path), truth)


def test_radiance_is_ten_times_the_number(products, tmp_path):
    """UW cm-2 sr-1 nm-1 is 10 W m-2 sr-1 um-1; the stored axes are (band, y, x)."""
    path = products.make("aviris3_rdn", tmp_path).paths[0]
    with netCDF4.Dataset(path) as file:
        number = float(file["radiance/radiance"][100, 5, 4])
    scene = quietly(path)
    assert float(scene["data"][5, 4, 100].values) * scale_offset(scene)[0][100] == pytest.approx(
        10 * number, rel=1e-6
    )
    assert scene.attrs["units"] == "W m-2 sr-1 um-1"


def test_bands_last_are_known_by_the_wavelengths(products, tmp_path):
    truth = products.make("aviris3_rfl", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        group = file["reflectance"]
        values = group["reflectance"][()].transpose(1, 2, 0)
        kept = dict(group["reflectance"].attrs)
        del group["reflectance"]
        group["reflectance"] = values
        for key in ("_FillValue", "grid_mapping", "units"):
            group["reflectance"].attrs[key] = kept[key]
    assert_same(quietly(truth.paths[0]), truth)


def test_coordinates_are_centres_and_win_over_a_contradicting_geotransform(products, tmp_path):
    truth = products.make("aviris3_rfl", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        grid = file["transverse_mercator"]
        numbers = [
            float(v)
            for v in str(
                grid.attrs["GeoTransform"].decode()
                if isinstance(grid.attrs["GeoTransform"], bytes)
                else grid.attrs["GeoTransform"]
            ).split()
        ]
        numbers[0] += numbers[1] / 2  # as if the corner were a centre
        grid.attrs["GeoTransform"] = " ".join(map(str, numbers))
    scene = quietly(truth.paths[0])
    assert "0.5 pixels apart" in told(scene)[0]
    assert np.allclose(list(scene_transform(scene))[:6], truth.transform6, rtol=1e-9)


def test_coordinates_alone_give_the_grid(products, tmp_path):
    truth = products.make("aviris3_rfl", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        del file["transverse_mercator"].attrs["GeoTransform"]
    scene = quietly(truth.paths[0])
    assert np.allclose(list(scene_transform(scene))[:6], truth.transform6, rtol=1e-9)


def test_a_rotated_geotransform_is_kept(products, tmp_path):
    truth = products.make("aviris3_rfl", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        file["transverse_mercator"].attrs["GeoTransform"] = "432100 8 1.5 3891200 1.5 -8"
        for name in ("easting", "northing"):
            file.move(name, f"unused_{name}")
    assert scene_transform(quietly(truth.paths[0])) == Affine(8, 1.5, 432100, 1.5, -8, 3891200)


def test_fill_that_is_not_declared_is_still_missing(products, tmp_path):
    truth = products.make("aviris3_rdn", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        del file["radiance/radiance"].attrs["_FillValue"]
    assert quietly(truth.paths[0]).attrs["nodata"] == -9999


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: f["radiance/radiance"].attrs.__setitem__("units", "counts"), "scale="),
        (lambda f: f["radiance"].move("fwhm", "unused"), None),
    ],
)
def test_units_are_asked_about_and_widths_may_lack(products, tmp_path, change, named):
    path = products.make("aviris3_rdn", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        change(file)
    if named is None:
        assert "fwhm" not in quietly(path).coords
    else:
        with pytest.raises(FormatError, match=named):
            quietly(path)


def test_wavelengths_that_fit_no_axis_are_an_error(products, tmp_path):
    path = products.make("aviris3_rdn", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        file["radiance"].move("wavelength", "unused")
        file["radiance/wavelength"] = np.linspace(400, 2500, 283)
    with pytest.raises(FormatError, match="283 wavelengths"):
        quietly(path)


def test_the_sensor_is_read_from_the_name_where_the_attributes_lack(products, tmp_path):
    path = products.make("aviris3_rfl", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        for name in list(file.attrs):
            if not name.startswith("_"):
                del file.attrs[name]
    scene = quietly(path)
    assert scene.attrs["sensor"] == "AVIRIS-3"
    assert scene.attrs["acquired"] == "2024-10-05T17:53:13Z"
