"""EnMAP: every variant of the generated products equals what was written, and each trap is met."""

from __future__ import annotations

import re
import shutil
import warnings

import numpy as np
import pytest
from affine import Affine

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneError, SceneNotFoundError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

LEVELS = ("enmap_l1c", "enmap_l2a", "enmap_l2a_cog")


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
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
    assert scene["wavelength"].values.tolist() == truth.wavelength_nm.tolist()
    assert scene["fwhm"].values.tolist() == truth.fwhm_nm.tolist()
    assert scene["detector"].values.tolist() == truth.detector.tolist()
    assert scene["good_band"].values.all()
    assert (scene.attrs["quantity"], scene.attrs["nodata"]) == (truth.quantity, truth.nodata)
    assert scene.attrs["units"] == ("1" if truth.quantity == "surface_reflectance" else "W m-2 sr-1 um-1")
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb.all(axis=2))
    assert (scene_crs(scene) is None) == (truth.crs_epsg is None)
    if truth.crs_epsg is not None:
        assert scene_crs(scene).to_epsg() == truth.crs_epsg
        assert scene_transform(scene) == Affine(*truth.transform6)
    assert scene.attrs["sun_zenith_deg"] == pytest.approx(truth.sun_zenith_deg, abs=1e-9)
    assert scene.attrs["sun_azimuth_deg"] == truth.sun_azimuth_deg
    assert scene.attrs["acquired"] == truth.acquired
    assert (scene.attrs["sensor"], scene.attrs["reader"], scene.attrs["experimental"]) == (
        "EnMAP",
        "enmap",
        True,
    )


@pytest.mark.parametrize("name", LEVELS)
def test_folder_metadata_and_image_give_the_same_scene_and_it_is_the_one_written(products, tmp_path, name):
    truth = products.make(name, tmp_path)
    scenes = [quietly(path) for path in truth.paths]
    for scene in scenes:
        assert_same(scene, truth)
        assert scene.attrs["scene_id"] == truth.extra["folder"].name
        assert scene.attrs["resampled"] is True
        assert scene.attrs["files"] == scenes[0].attrs["files"]
        assert {"quality_" + key for key in truth.quality} <= set(scene.data_vars)
        for key, layer in truth.quality.items():
            assert np.array_equal(scene[f"quality_{key}"].values, layer), key
            assert scene[f"quality_{key}"].chunks == scene["data"].chunks[:2]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("enmap_l1c", {"interleave": "pixel"}),
        ("enmap_l1c", {"nodata_tag": True}),
        ("enmap_l2a", {"nodata_tag": True, "interleave": "pixel"}),
        ("enmap_l2a", {"namespace": True}),
        ("enmap_l2a", {"prefix": False}),
        ("enmap_l1c", {"missing_quality": True}),
        ("enmap_l2a", {"background": "-32768"}),
        ("enmap_l1c", {"background": "nonsense"}),
        ("enmap_l2a_cog", {"shape_yx": (7, 31), "seed": 5}),
    ],
)
def test_every_variant_is_read_as_written(products, tmp_path, name, variant):
    truth = products.make(name, tmp_path, **variant)
    for path in truth.paths:
        scene = quietly(path)
        assert_same(scene, truth)
        assert len([v for v in scene.data_vars if v.startswith("quality_")]) == len(truth.quality)


@pytest.mark.parametrize("variant", [{}, {"sequential_list": True}, {"nodata_tag": True}, {"prefix": False}])
@pytest.mark.parametrize("detector", ["vnir", "swir"])
def test_l1b_is_one_detector_by_name_or_by_its_image(products, tmp_path, detector, variant):
    """The bands of an image follow from the number of channels, whichever way the lists of channels count."""
    whole = products.make("enmap_l1b", tmp_path, **variant)
    truth = whole.parts[detector]
    scenes = [quietly(path, detector=detector) for path in whole.paths] + [quietly(truth.paths[0])]
    for scene in scenes:
        assert_same(scene, truth)
        assert scene.attrs["scene_id"] == f"{whole.extra['folder'].name}_{detector.upper()}"
        assert "resampled" not in scene.attrs
        layers = {name.removeprefix("quality_") for name in scene.data_vars if name.startswith("quality_")}
        # the other masks are in the geometry of VNIR
        assert layers == (set(truth.quality) if detector == "vnir" else {"testflags"})
        for key in layers:
            assert np.array_equal(scene[f"quality_{key}"].values, truth.quality[key])


@pytest.mark.parametrize("detector", ["vnir", "swir"])
def test_l1b_lies_where_the_polynomials_of_its_own_detector_say(products, tmp_path, detector):
    """Against Newton's method in NumPy, at the mean height of the ground; the detectors lie apart."""
    whole = products.make("enmap_l1b", tmp_path)
    truth, other = whole.parts[detector], whole.parts["vnir" if detector == "swir" else "swir"]
    scene = quietly(truth.paths[0])
    degree = 30 / 111_000  # a pixel
    assert np.abs(scene["lat"].values - truth.lat_yx).max() < 2e-3 * degree
    assert np.abs(scene["lon"].values - truth.lon_yx).max() < 3e-3 * degree
    assert np.abs(scene["lat"].values - other.lat_yx).min() > 1.5 * degree
    assert scene.attrs["geolocation"] == "RPC at 1039.78 m"
    assert not any("RPC" in text for text in scene.attrs["warnings"])
    assert scene["lat"].chunks == scene["data"].chunks[:2]
    np.testing.assert_array_equal(scene["lon"][2:5, 3].values, scene["lon"].values[2:5, 3])


def test_the_height_of_the_ground_is_the_metadatas_the_users_or_the_polynomials_middle(products, tmp_path):
    plain = products.make("enmap_l1b", tmp_path / "a", elevation=None).parts["vnir"]
    found = quietly(plain.paths[0])
    assert found.attrs["geolocation"] == "RPC at 1792.5 m"
    assert np.abs(found["lat"].values - plain.lat_yx).max() < 1e-6
    other = products.make("enmap_l1b", tmp_path / "b", elevation="200").parts["vnir"]
    image = products.make("enmap_l1b", tmp_path / "c").parts["vnir"].paths[0]
    found = quietly(image, height_m=200)
    assert np.abs(found["lon"].values - other.lon_yx).max() < 1e-6
    assert np.abs(found["lon"].values - plain.lon_yx).max() > 1e-5


def test_l1b_without_usable_polynomials_is_laid_between_its_corners_with_a_warning(products, tmp_path):
    truth = products.make("enmap_l1b", tmp_path, with_rpc=False)
    seen = products.make("enmap_l1b", tmp_path / "seen", elevation="900").parts["vnir"]
    scene = quietly(truth.parts["vnir"].paths[0])
    assert any("interpolated between its four corners" in text for text in scene.attrs["warnings"])
    for name, expected in (("lat", seen.lat_yx), ("lon", seen.lon_yx)):
        corners = expected[[0, 0, -1, -1], [0, -1, 0, -1]].reshape(2, 2)
        down, across = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 10)
        between = np.outer(1 - down, [1]) * ((1 - across) * corners[0, 0] + across * corners[0, 1])
        between = between + down * ((1 - across) * corners[1, 0] + across * corners[1, 1])
        np.testing.assert_allclose(scene[name].values, between, atol=2e-9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<LAT_SCALE>", "<LAT_SCALE>0</LAT_SCALE><old>", "no place on earth"),
        ("<ROW_NUM_07>", "<old>", "four corners"),
        ("<LAT_OFF>4", "<LAT_OFF>5", "at different places"),
        ("<frame>lower_left", "<frame>elsewhere", None),
    ],
)
def test_polynomials_that_cannot_be_true_are_told(products, tmp_path, old, new, message):
    truth = products.make("enmap_l1b", tmp_path)
    metadata = truth.extra["metadata"]
    text = metadata.read_text()
    assert old in text
    if "old" in new:
        text = text.replace(old.replace("<", "</"), "</old>")
    metadata.write_text(text.replace(old, new))
    scene = quietly(truth.parts["vnir"].paths[0])
    told = [text for text in scene.attrs["warnings"] if "proved on" not in text]
    assert (message is None and not told) or any(re.search(message, text) for text in told)
    assert np.isfinite(scene["lat"].values).all()


def test_l1b_that_tells_no_place_has_none_and_says_so(products, tmp_path):
    truth = products.make("enmap_l1b", tmp_path, with_rpc=False)
    metadata = truth.extra["metadata"]
    metadata.write_text(metadata.read_text().replace("<frame>lower_left", "<frame>"))
    scene = quietly(truth.parts["swir"].paths[0])
    assert "lat" not in scene.coords
    assert any("where its pixels lie is not known" in text for text in scene.attrs["warnings"])


def test_l1b_detectors_are_never_stacked(products, tmp_path):
    truth = products.make("enmap_l1b", tmp_path)
    for path in truth.paths:
        with pytest.raises(FormatError, match=r"not co-registered.*detector='vnir' or detector='swir'.*L1C"):
            open_scene(path)
    with pytest.raises(FormatError, match="detector = 'tir' is unknown"):
        open_scene(truth.paths[0], detector="tir")
    with pytest.raises(FormatError, match="is the VNIR image, but detector = 'swir'"):
        open_scene(truth.parts["vnir"].paths[0], detector="swir")
    merged = products.make("enmap_l1c", tmp_path)
    with pytest.raises(FormatError, match="both detectors in one image"):
        open_scene(merged.paths[0], detector="vnir")


def test_radiance_is_a_thousand_times_the_products_unit(products, tmp_path):
    """DN * gain + offset is in W m-2 sr-1 nm-1; a scene holds W m-2 sr-1 um-1."""
    truth = products.make("enmap_l1c", tmp_path)
    text = truth.extra["metadata"].read_text(encoding="utf-8")
    gain = float(text.split("<GainOfBand>")[8].split("<")[0])
    offset = float(text.split("<OffsetOfBand>")[8].split("<")[0])
    scene = quietly(truth.paths[0])
    scale_b, offset_b = scale_offset(scene)
    assert (scale_b[7], offset_b[7]) == pytest.approx((gain * 1000, offset * 1000), rel=1e-12)


def test_the_users_word_replaces_the_products(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    scene = quietly(truth.paths[0], nodata=0, scale=2.0, offset=1.0, quantity="dn", units="counts")
    assert [scene.attrs[k] for k in ("nodata", "scale", "offset", "quantity", "units")] == [
        *(0, 2.0, 1.0),
        *("dn", "counts"),
    ]


def test_the_warning_says_on_what_the_reader_was_proved(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    with pytest.warns(BandstreamWarning, match="proved on generated files") as caught:
        scene = open_scene(truth.paths[0])
    assert len(caught) == 1
    assert "level_X" in scene.attrs["why"]


def test_a_band_without_gain_is_refused(products, tmp_path):
    truth = products.make("enmap_l1c", tmp_path, missing_gain=True)
    with pytest.raises(FormatError, match=r"band 8 of 224 has no <GainOfBand>"):
        open_scene(truth.paths[1])


@pytest.mark.parametrize("name", ["enmap_l2a", "enmap_l2a_cog", "enmap_l1c", "desis_l1c"])
def test_an_image_without_its_metadata_is_a_plain_geotiff_with_a_warning(products, tmp_path, name):
    """Its background of 0 or -32768 is data then, and its numbers have no scale: nobody may miss that."""
    truth = products.make(name, tmp_path)
    truth.paths[1].unlink()
    with pytest.warns(BandstreamWarning, match="without the product's metadata"):
        scene = open_scene(truth.paths[2])
    assert (scene.attrs["reader"], scene.attrs["quantity"]) == ("geotiff", "other")
    assert ("wavelength" in scene.coords) == name.startswith("desis")  # in the TIFF itself


def test_metadata_without_its_image_says_what_is_missing(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    truth.paths[2].unlink()
    for path in truth.paths[:2]:
        with pytest.raises(SceneNotFoundError, match=r"no image \.\.\.SPECTRAL_IMAGE\.TIF"):
            open_scene(path)


def test_names_in_small_letters_are_the_same_names(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    folder = truth.extra["folder"]
    for file in list(folder.iterdir()):
        file.rename(folder / file.name.lower())
    for path in (folder, next(folder.glob("*metadata.xml")), next(folder.glob("*spectral_image.tif"))):
        scene = quietly(path)
        assert_same(scene, truth)
        assert "quality_cloud" in scene


def test_a_folder_of_two_products_asks_which(products, tmp_path):
    first, second = (products.make(name, tmp_path / name) for name in ("enmap_l1c", "enmap_l2a"))
    for file in second.extra["folder"].iterdir():
        shutil.copy(file, first.extra["folder"])
    with pytest.raises(FormatError, match="holds 2 products"):
        open_scene(first.extra["folder"])
    assert_same(quietly(first.paths[1]), first)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<level>L2A</level>", "<level>L3</level>", r"base/level is 'L3'; allowed: L1B, L1C, L2A"),
        ('<bandID number="9"><wave', '<bandID number="8"><wave', r"lists 224 bands, 223 of which"),
        ('<bandID number="9"><wave', '<bandID number="9.0"><wave', r"lists 224 bands, 223 of which"),
        ("<GainOfBand>0.0001</GainOfBand>", "<GainOfBand>NaN</GainOfBand>", r"GainOfBand of band 1 is 'NaN'"),
        (
            "<OffsetOfBand>0.0</OffsetOfBand>",
            "<OffsetOfBand>1e999</OffsetOfBand>",
            "allowed: a finite number",
        ),
        ("<expectedChannelsList>1,2", "<expectedChannelsList>1,-2", "entry 2 of .* is '-2'"),
        ('<center unit="DEG">63.038384', '<center unit="DEG">high', "sunElevationAngle/center is 'high'"),
        ("<wavelengthCenterOfBand>418.24<", "<wavelengthCenterOfBand>0.41824<", "nm.* contradicts"),
        (
            "</bandCharacterisation>",
            '<bandID number="225"/></bandCharacterisation>',
            "has no <wave|224 bands, .*225",
        ),
    ],
)
def test_damaged_metadata_is_told_by_file_and_element(products, tmp_path, old, new, message):
    truth = products.make("enmap_l2a", tmp_path)
    metadata = truth.extra["metadata"]
    text = metadata.read_text(encoding="utf-8")
    assert old in text
    metadata.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SceneError, match=message) as caught:
        open_scene(truth.paths[2])
    assert str(metadata) in str(caught.value)


def test_lists_of_channels_that_do_not_fit_leave_the_detector_unknown(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    metadata = truth.extra["metadata"]
    metadata.write_text(metadata.read_text().replace("<expectedChannelsList>1,2", "<expectedChannelsList>2"))
    scene = quietly(truth.paths[0])
    assert "detector" not in scene.coords
    assert any("which detector a band belongs to is not known" in text for text in scene.attrs["warnings"])


def test_l1b_metadata_that_do_not_tell_the_bands_of_an_image_are_refused(products, tmp_path):
    """Neither detector by detector nor sorted with lists that share the bands out: no guess."""
    truth = products.make("enmap_l1b", tmp_path)
    metadata = truth.extra["metadata"]
    text = metadata.read_text()
    metadata.write_text(text.replace("<channels>91</channels>", "<channels>90</channels>"))
    with pytest.raises(FormatError, match=r"holds 91 bands, .* describes 90"):
        open_scene(truth.parts["vnir"].paths[0])
    metadata.write_text(text.replace("902.257</wave", "995.0</wave"))
    with pytest.raises(FormatError, match="which bands the image holds is not known"):
        open_scene(truth.parts["swir"].paths[0])


def test_a_quality_layer_of_another_size_is_left_out_with_a_warning(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    other = products.make("enmap_l2a", tmp_path / "other", shape_yx=(8, 5))
    name = f"{truth.extra['folder'].name}-QL_QUALITY_CLOUD.TIF"
    shutil.copy(other.extra["folder"] / name, truth.extra["folder"])
    (truth.extra["folder"] / name.replace("CLOUD", "HAZE")).write_bytes(b"no TIFF")
    scene = quietly(truth.paths[0])
    assert {"quality_cloud", "quality_haze"}.isdisjoint(scene.data_vars)
    assert "quality_snow" in scene
    assert sum("is left out" in text for text in scene.attrs["warnings"]) == 2
