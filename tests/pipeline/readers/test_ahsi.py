"""AHSI: what is not established is asked of the user, and told loudly."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneNotFoundError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset

NAMES = ("zy1_ahsi", "gf5_ahsi", "gf5b_ahsi")
ASKED = {"quantity": "radiance", "units": "mW m-2 sr-1 nm-1", "nodata": 0}


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


@pytest.mark.parametrize("detector", ["vnir", "swir"])
@pytest.mark.parametrize("name", NAMES)
def test_each_image_is_a_scene_of_its_own(products, tmp_path, name, detector):
    whole = products.make(name, tmp_path)
    truth = whole.parts[detector]
    chosen = [quietly(path, detector=detector, **ASKED) for path in whole.paths]
    for scene in [*chosen, quietly(truth.paths[0], **ASKED)]:
        raw = scene["data"].values
        assert np.array_equal(raw, truth.raw_yxb)
        scale_b, offset_b = scale_offset(scene)
        physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
        assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
        assert scene["wavelength"].values.tolist() == truth.wavelength_nm.tolist()
        assert scene["fwhm"].values.tolist() == truth.fwhm_nm.tolist()
        assert set(scene["detector"].values.tolist()) == {detector}
        assert scene.attrs["units"] == "W m-2 sr-1 um-1"
        assert scene.attrs["scene_id"].endswith("_" + detector.upper())
        assert np.array_equal(scene["valid"].values, truth.valid_yx)


def test_without_the_users_word_numbers_stay_numbers_and_the_warning_is_loud(products, tmp_path):
    truth = products.make("zy1_ahsi", tmp_path).parts["swir"]
    with pytest.warns(BandstreamWarning) as caught:
        scene = open_scene(truth.paths[0])
    assert (scene.attrs["quantity"], scene.attrs["units"], scene.attrs["experimental"]) == ("dn", "", True)
    assert {"scale", "offset", "nodata"}.isdisjoint({*scene.attrs, *scene.coords})
    text = "\n".join(str(w.message) for w in caught)
    assert "unproved" in text
    assert "the unit of AHSI's gains is not established" in text
    assert "give nodata=" in text


@pytest.mark.parametrize("units", [None, "radiance units", "W/m2/sr/um"])
def test_radiance_is_refused_without_a_unit_that_is_known(products, tmp_path, units):
    truth = products.make("gf5b_ahsi", tmp_path).parts["vnir"]
    with pytest.raises(FormatError, match=r"needs the unit .* not established .*'mW m-2 sr-1 nm-1'"):
        open_scene(truth.paths[0], quantity="radiance", units=units)


def test_stored_numbers_are_never_labelled_with_the_unit_of_radiance(products, tmp_path):
    truth = products.make("gf5b_ahsi", tmp_path).parts["vnir"]
    with pytest.raises(FormatError, match="give quantity='radiance' too"):
        quietly(truth.paths[0], units="W m-2 sr-1 um-1", nodata=0)


def test_the_unit_stated_sets_the_factor_and_the_users_scale_replaces_the_files(products, tmp_path):
    truth = products.make("gf5b_ahsi", tmp_path).parts["vnir"]
    for units, factor in (("W m-2 sr-1 nm-1", 1000), ("uW cm-2 sr-1 nm-1", 10), ("W m-2 sr-1 um-1", 1)):
        scale_b, offset_b = scale_offset(quietly(truth.paths[0], quantity="radiance", units=units))
        assert np.allclose(scale_b, truth.scale * factor, rtol=1e-12)
        assert np.allclose(offset_b, truth.offset * factor, rtol=1e-12)
    own = quietly(truth.paths[0], quantity="radiance", scale=0.5)
    assert (own.attrs["scale"], "offset" in own.attrs) == (0.5, False)


def test_a_scene_of_two_images_asks_which(products, tmp_path):
    truth = products.make("gf5_ahsi", tmp_path)
    for path in truth.paths:
        with pytest.raises(FormatError, match=r"two images .*detector='vnir' or detector='swir'"):
            open_scene(path)
    with pytest.raises(FormatError, match="is the SWIR image, but detector = 'vnir'"):
        open_scene(truth.parts["swir"].paths[0], detector="vnir")


@pytest.mark.parametrize(
    "variant", [{"separator": " "}, {"detector_first": True}, {"separator": ",", "suffix": ".tiff"}]
)
def test_text_files_in_other_spellings_are_read(products, tmp_path, variant):
    truth = products.make("gf5b_ahsi", tmp_path, **variant).parts["swir"]
    scene = quietly(truth.paths[0], **ASKED)
    assert scene["wavelength"].values.tolist() == truth.wavelength_nm.tolist()
    assert np.allclose(scale_offset(scene)[0], truth.scale, rtol=1e-12)


def test_gains_without_offsets_mean_none_with_a_warning(products, tmp_path):
    truth = products.make("zy1_ahsi", tmp_path, offset_column=False).parts["vnir"]
    scene = quietly(truth.paths[0], **ASKED)
    assert np.allclose(scale_offset(scene)[0], truth.scale, rtol=1e-12)
    assert any("gains without offsets" in text for text in scene.attrs["warnings"])


def test_radiance_without_gains_is_refused_and_numbers_are_not(products, tmp_path):
    truth = products.make("zy1_ahsi", tmp_path, calibration=False).parts["vnir"]
    with pytest.raises(SceneNotFoundError, match="give scale= and offset="):
        open_scene(truth.paths[0], **ASKED)
    assert quietly(truth.paths[0]).attrs["quantity"] == "dn"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "line 5 is '1,2,3'"),
        ("1,inf", "line 5 is '1,inf'"),
        ("", "has 75 lines for 76 bands"),
        ("x", "'x'"),
    ],
)
def test_a_text_file_that_does_not_fit_is_told_by_line(products, tmp_path, line, message):
    truth = products.make("zy1_ahsi", tmp_path)
    path = next(truth.extra["folder"].glob("*RadCal_VNIR*"))
    lines = path.read_text().splitlines()
    lines[4] = line
    path.write_text("\n".join(lines))
    with pytest.raises(FormatError, match=message):
        open_scene(truth.parts["vnir"].paths[0], **ASKED)


def test_a_tiff_of_another_name_is_a_plain_geotiff(products, tmp_path):
    truth = products.make("zy1_ahsi", tmp_path).parts["vnir"]
    other = truth.paths[0].rename(tmp_path / "scene.tif")
    assert open_scene(other).attrs["reader"] == "geotiff"
