"""NEON AOP reflectance: every variant of the generated files equals what was written, and each trap is met."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest
from affine import Affine

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

KINDS = ("neon_directional", "neon_bidirectional")


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
    assert raw.dtype == truth.raw_yxb.dtype == np.int16
    assert np.array_equal(raw, truth.raw_yxb)
    scale_b, offset_b = scale_offset(scene)
    physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
    assert np.array_equal(scene["wavelength"].values, truth.wavelength_nm.astype(float))
    assert np.array_equal(scene["fwhm"].values, truth.fwhm_nm.astype(float))
    assert np.array_equal(scene["good_band"].values, truth.good())
    assert (scene.attrs["quantity"], scene.attrs["nodata"]) == ("surface_reflectance", truth.nodata)
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb.all(axis=2))
    assert scene_crs(scene).to_epsg() == truth.crs_epsg
    assert scene_transform(scene) == Affine(*truth.transform6)
    if truth.sun_zenith_deg is not None:
        assert scene.attrs["sun_zenith_deg"] == pytest.approx(truth.sun_zenith_deg, rel=1e-6)
        assert scene.attrs["sun_azimuth_deg"] == pytest.approx(truth.sun_azimuth_deg, rel=1e-6)
    for name, values in truth.quality.items():
        assert np.array_equal(scene[f"quality_{name}"].values, values)
    assert (scene.attrs["reader"], scene.attrs["experimental"]) == ("neon", True)
    assert told(scene) == []


@pytest.mark.parametrize("name", KINDS)
def test_file_and_folder_give_the_scene_that_was_written(products, tmp_path, name):
    truth = products.make(name, tmp_path)
    for path in {*truth.paths, tmp_path}:
        assert_same(quietly(path), truth)


@pytest.mark.parametrize(
    "variants",
    [
        {"kind": "reflectance"},
        {"attributes_as_lists": True, "seed": 2},
        {"step": 0.1, "shape_yx": (9, 30)},
    ],
)
def test_every_variant(products, tmp_path, variants):
    truth = products.make("neon_directional", tmp_path, **variants)
    assert_same(quietly(truth.paths[0]), truth)


def _change(path, function):
    with h5py.File(path, "r+") as file:
        function(file[next(iter(file))]["Reflectance"])
    return path


def test_bands_within_the_windows_are_bad(products, tmp_path):
    path = products.make("neon_directional", tmp_path).paths[0]
    _change(path, lambda r: r.attrs.__setitem__("Band_Window_1_Nanometers", [500.0, 600.0]))
    scene = quietly(path)
    wave, good = scene["wavelength"].values, scene["good_band"].values
    assert np.array_equal(~good, ((wave >= 500) & (wave <= 600)) | ((wave >= 1790) & (wave <= 1955)))


def test_the_suns_angles_are_the_mean_of_the_lines(products, tmp_path):
    """A tile's lines are groups; azimuths of 350 and 20 degrees meet at 5."""
    path = products.make("neon_bidirectional", tmp_path).paths[0]

    def lines(reflectance):
        logs = reflectance["Metadata/Logs"]
        for name in list(logs):
            del logs[name]
        for name, zenith, azimuth in (("100000", 30.0, 350.0), ("110000", 40.0, 20.0)):
            logs[f"{name}/Solar_Zenith_Angle"], logs[f"{name}/Solar_Azimuth_Angle"] = zenith, azimuth

    scene = quietly(_change(path, lines))
    assert scene.attrs["sun_zenith_deg"] == 35
    assert scene.attrs["sun_azimuth_deg"] == pytest.approx(5)


def test_the_weather_picture_becomes_classes(products, tmp_path):
    path = products.make("neon_directional", tmp_path).paths[0]

    def paint(reflectance):
        images = reflectance["Metadata/Ancillary_Imagery"]
        if "Weather_Quality_Indicator" in images:
            del images["Weather_Quality_Indicator"]
        picture = np.zeros((12, 10, 3), "u1")
        picture[0, 0], picture[1, 1], picture[2, 2], picture[3, 3] = (
            (0, 255, 0),
            (255, 255, 0),
            (255, 0, 0),
            (255,) * 3,
        )
        images["Weather_Quality_Indicator"] = picture

    weather = quietly(_change(path, paint))["quality_weather"].values
    assert [weather[i, i] for i in range(5)] == [1, 2, 3, 0, 0]


def test_map_info_gives_the_place_where_there_is_no_epsg_code(products, tmp_path):
    truth = products.make("neon_directional", tmp_path)
    _change(truth.paths[0], lambda r: r["Metadata/Coordinate_System"].__delitem__("EPSG Code"))
    scene = quietly(truth.paths[0])
    assert scene_crs(scene).to_epsg() == truth.crs_epsg
    assert scene_transform(scene) == Affine(*truth.transform6)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda r: r["Metadata/Spectral_Data"].__delitem__("Wavelength"), "Wavelength"),
        (lambda r: r["Metadata/Coordinate_System/EPSG Code"].write_direct(np.array(b"no code")), "EPSG"),
        (lambda r: r["Metadata/Coordinate_System/Map_Info"].write_direct(np.array(b"UTM, 1, x")), "map info"),
    ],
)
def test_what_is_missing_or_wrong_is_named(products, tmp_path, function, named):
    path = products.make("neon_directional", tmp_path).paths[0]

    def replace(reflectance):
        try:
            function(reflectance)
        except TypeError:  # a text of variable length is written whole
            system = reflectance["Metadata/Coordinate_System"]
            name, text = ("EPSG Code", "no code") if named == "EPSG" else ("Map_Info", "UTM, 1, x")
            del system[name]
            system[name] = text

    with pytest.raises(FormatError, match=named):
        quietly(_change(path, replace))


def test_a_group_of_reflectance_without_spectral_data_is_another_format(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out["SITE/Reflectance/Reflectance_Data"] = np.zeros((3, 3, 3), "i2")
    with pytest.raises(FormatError, match="no <SITE>"):
        quietly(tmp_path / "a.h5", reader="neon")
