"""DESIS: every variant of the generated products equals what was written, and each trap is met."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from affine import Affine

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneError, SceneNotFoundError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

OUR_NAME = {"aot": "aot550", "vapour": "water_vapour"}


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


def assert_same(scene, truth):
    """All that a scene states equals what was written."""
    raw = scene["data"].values
    assert raw.dtype == truth.raw_yxb.dtype
    assert np.array_equal(raw, truth.raw_yxb)
    scale_b, offset_b = scale_offset(scene)
    physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=1e-12, equal_nan=True)
    assert scene["wavelength"].values.tolist() == truth.wavelength_nm.tolist()
    assert scene["fwhm"].values.tolist() == truth.fwhm_nm.tolist()
    assert set(scene["detector"].values.tolist()) == {"vnir"}  # the instrument has one
    assert (scene.attrs["quantity"], scene.attrs["nodata"]) == (truth.quantity, truth.nodata)
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb.all(axis=2))
    assert scene_crs(scene).to_epsg() == truth.crs_epsg
    assert scene_transform(scene) == Affine(*truth.transform6)
    assert (scene.attrs["sun_zenith_deg"], scene.attrs["sun_azimuth_deg"]) == (
        truth.sun_zenith_deg,
        truth.sun_azimuth_deg,
    )
    assert scene.attrs["acquired"] == truth.acquired
    assert (scene.attrs["sensor"], scene.attrs["reader"], scene.attrs["resampled"]) == (
        "DESIS",
        "desis",
        True,
    )


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("desis_l2a", {}),
        ("desis_l1c", {}),
        ("desis_l1c", {"nodata_tag": True}),
        ("desis_l2a", {"header": False, "shape_yx": (9, 20), "seed": 3}),
    ],
)
def test_folder_metadata_and_image_give_the_same_scene_and_it_is_the_one_written(
    products, tmp_path, name, variant
):
    truth = products.make(name, tmp_path, **variant)
    for path in truth.paths:
        scene = quietly(path)
        assert_same(scene, truth)
        assert scene.attrs["scene_id"] == truth.extra["folder"].name
        for key, layer in truth.quality.items():
            assert np.array_equal(scene[f"quality_{OUR_NAME.get(key, key)}"].values, layer), key
        if truth.quality:
            cloud = (truth.quality["cloud_land"] > 0) | (truth.quality["cloud_water"] > 0)
            assert np.array_equal(scene["quality_cloud"].values, cloud)


def test_radiance_is_ten_times_the_products_unit(products, tmp_path):
    """DN * gain + offset is in mW cm-2 sr-1 um-1; a scene holds W m-2 sr-1 um-1."""
    truth = products.make("desis_l1c", tmp_path)
    text = truth.extra["metadata"].read_text(encoding="utf-8")
    gain = float(text.split("<gainOfBand>")[3].split("<")[0])
    offset = float(text.split("<offsetOfBand>")[3].split("<")[0])
    scale_b, offset_b = scale_offset(quietly(truth.paths[2]))
    assert (scale_b[2], offset_b[2]) == pytest.approx((gain * 10, offset * 10), rel=1e-12)


def test_l1b_has_no_place_whatever_its_tiff_says(products, tmp_path):
    truth = products.make("desis_l1c", tmp_path, level="L1B")
    scene = quietly(truth.paths[0])
    assert "spatial_ref" not in scene.coords
    assert (scene.attrs["product"], "resampled" in scene.attrs) == ("DESIS L1B", False)
    assert np.array_equal(scene["data"].values, truth.raw_yxb)


def test_l1b_is_laid_between_its_four_points_with_a_warning(products, tmp_path):
    truth = products.make("desis_l1c", tmp_path, level="L1B")
    scene = quietly(truth.paths[0])
    np.testing.assert_allclose(scene["lat"].values, truth.lat_yx, atol=1e-12)
    np.testing.assert_allclose(scene["lon"].values, truth.lon_yx, atol=1e-12)
    assert any("interpolated between its four corners" in text for text in scene.attrs["warnings"])
    assert scene.attrs["geolocation"] == "bilinear between four corners"


def test_l1b_lies_where_the_polynomials_in_its_tiff_say(products, tmp_path):
    truth = products.make("desis_l1c", tmp_path, level="L1B", rpc_tags=True)
    scene = quietly(truth.paths[2])
    assert np.abs(scene["lat"].values - truth.lat_yx).max() < 1e-6
    assert np.abs(scene["lon"].values - truth.lon_yx).max() < 1e-6
    assert not any("RPC" in text for text in scene.attrs["warnings"])
    higher = quietly(truth.paths[2], height_m=3000)
    assert np.abs(higher["lat"].values - truth.lat_yx).max() > 1e-5


def test_the_envi_header_of_the_product_can_be_asked_for(products, tmp_path):
    """The header says `file type = TIFF`; the TIFF alone is a plain GeoTIFF with the header's wavelengths."""
    truth = products.make("desis_l2a", tmp_path)
    scene = quietly(truth.paths[2], reader="geotiff")
    assert scene["wavelength"].values.tolist() == truth.wavelength_nm.tolist()
    assert scene.attrs["quantity"] == "other"


def test_metadata_of_other_bands_than_the_image_are_refused(products, tmp_path):
    truth = products.make("desis_l2a", tmp_path, one_band_short=True)
    with pytest.raises(FormatError, match=r"holds 235 bands, .* describes 234"):
        open_scene(truth.paths[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "<bandCharacterisation>",
            "<bandCharacter><x/></bandCharacter><bandCharacterisation2>",
            "no well-formed",
        ),
        ("<bandNumber>9<", "<bandNumber>8<", "lists 235 bands, 234 of which"),
        ("<gainOfBand>0.0001</gainOfBand>", "<gainOfBand>0.0</gainOfBand>", "scale must be finite and not 0"),
        ("<gainOfBand>0.0001</gainOfBand>", "", "band 1 of 235 has no <gainOfBand>"),
        ("<sunZenithAngle>33.417", "<sunZenithAngle>x", "sunZenithAngle is 'x'"),
    ],
)
def test_damaged_metadata_is_told(products, tmp_path, old, new, message):
    truth = products.make("desis_l2a", tmp_path)
    metadata = truth.extra["metadata"]
    text = metadata.read_text(encoding="utf-8")
    assert old in text
    metadata.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SceneError, match=message):
        open_scene(truth.paths[2])


def test_metadata_without_bands_or_image_are_refused(products, tmp_path):
    truth = products.make("desis_l2a", tmp_path)
    truth.paths[2].unlink()
    with pytest.raises(SceneNotFoundError, match="has no image"):
        open_scene(truth.paths[0])
    metadata = tmp_path / "A-METADATA.xml"
    metadata.write_text("<hsi_doc><base><level>L2A</level></base></hsi_doc>")
    with pytest.raises(SceneError):
        open_scene(metadata)
