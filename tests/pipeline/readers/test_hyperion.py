"""Hyperion: 242 files are one scene, by the published table and the factors of the MTL."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from affine import Affine

import bandstream.catalogs
from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneError, SceneNotFoundError
from bandstream.pipeline.readers import hyperion, hyperion_bands, open_scene, raster
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


@pytest.fixture(scope="module")
def truth(products, tmp_path_factory):
    return products.make("hyperion_l1t", tmp_path_factory.mktemp("hyperion"), scaling=(40.0, 82.0))


def band_file(truth, number):
    return next(truth.extra["folder"].glob(f"*_B{number:03d}_L1T.TIF"))


def test_folder_mtl_and_a_band_file_give_the_same_scene_and_it_is_the_one_written(truth):
    scenes = [quietly(path) for path in (*truth.paths, band_file(truth, 100))]
    assert len({scene["data"].data.name for scene in scenes}) == 1
    for scene in scenes:
        assert scene.attrs["scene_id"] == "EO1H0380342005105110KF"
        assert len(scene.attrs["files"]) == 243
    scene = scenes[0]
    raw = scene["data"].values
    assert raw.dtype == np.int16
    assert np.array_equal(raw, truth.raw_yxb)
    scale_b, offset_b = scale_offset(scene)
    physical = np.where(raw == nodata_values(scene), np.nan, raw * scale_b + offset_b)
    assert np.allclose(physical, truth.physical_yxb, rtol=1e-6, atol=0, equal_nan=True)
    order = truth.order(scene["wavelength"].values, scene["detector"].values, tolerance_nm=0.2)
    assert order.tolist() == list(range(242))
    assert scene["good_band"].values.tolist() == truth.good_band.tolist()
    assert scene["detector"].values.tolist() == truth.detector.tolist()
    assert scene.attrs["nodata"] == 0
    assert (scene.attrs["quantity"], scene.attrs["units"]) == ("radiance", "W m-2 sr-1 um-1")
    assert scene_crs(scene).to_epsg() == truth.crs_epsg
    assert scene_transform(scene) == Affine(*truth.transform6)
    assert scene.attrs["sun_zenith_deg"] == pytest.approx(truth.sun_zenith_deg, abs=1e-9)
    assert scene.attrs["sun_azimuth_deg"] == truth.sun_azimuth_deg
    assert scene.attrs["acquired"] == truth.acquired
    assert np.array_equal(scene["valid"].values, truth.valid_yx)


def test_radiance_is_the_number_over_the_factor_of_its_detector(truth):
    """No other factor: the product's unit is the scene's, W m-2 sr-1 um-1."""
    scale_b, _ = scale_offset(quietly(truth.paths[1]))
    assert np.allclose(scale_b[:70], 1 / 40, rtol=1e-15)
    assert np.allclose(scale_b[70:], 1 / 82, rtol=1e-15)


def test_windows_and_bands_are_read_as_numpy_takes_them(truth):
    scene = quietly(truth.paths[0])
    data, raw = scene["data"].data, truth.raw_yxb
    for key in (np.s_[2:9:3, ::-1, [77, 7, 200]], np.s_[5, 3], np.s_[:, 4:4, 10:20], np.s_[..., 100]):
        assert np.array_equal(data[key].compute(scheduler="sync"), raw[key])
    again = pickle.loads(pickle.dumps(scene["data"].data))  # noqa: S301 - our own bytes
    assert np.array_equal(again[:3].compute(scheduler="sync"), raw[:3])


def test_no_more_files_stay_open_than_the_pool_holds(truth, monkeypatch):
    scene = quietly(truth.paths[0])
    scene["data"].data.compute(scheduler="threads")
    pool = raster._BAND_POOL
    assert 0 < pool.count <= pool.limit <= 256
    monkeypatch.setattr(pool, "limit", 5)
    assert np.array_equal(scene["data"].data.compute(scheduler="threads"), truth.raw_yxb)
    assert pool.count == 5


def test_the_table_equals_the_one_of_the_sensor_catalog():
    """Two copies, made by different hands from the published table."""
    path = Path(bandstream.catalogs.__file__).parent / "sensors" / "hyperion.yaml"
    bands = yaml.safe_load(path.read_text())["bands"]
    assert bands["wavelength_nm"] == list(hyperion_bands.WAVELENGTH_NM)
    assert bands["fwhm_nm"] == list(hyperion_bands.FWHM_NM)
    assert len(hyperion_bands.CALIBRATED) == 198


def copied(truth, folder, *, bands=range(1, 243), mtl=True):
    folder.mkdir()
    for number in bands:
        shutil.copy(band_file(truth, number), folder)
    if mtl:
        shutil.copy(truth.paths[1], folder)
    return folder


def test_a_missing_calibrated_band_is_refused_by_its_name(truth, tmp_path):
    folder = copied(truth, tmp_path / "a", bands=[b for b in range(1, 243) if b not in (8, 150)])
    with pytest.raises(SceneNotFoundError, match=r"2 calibrated bands .* missing \(B008, B150"):
        open_scene(folder)


def test_bands_that_hold_nothing_may_be_missing(truth, tmp_path):
    kept = sorted(hyperion_bands.CALIBRATED)
    scene = quietly(copied(truth, tmp_path / "a", bands=kept, mtl=False))
    assert scene["band_name"].values.tolist() == [f"B{b:03d}" for b in kept]
    assert np.array_equal(scene["data"].values, truth.raw_yxb[:, :, [b - 1 for b in kept]])
    # without the MTL: the published factors with a warning, and no sun angles
    assert sum("the published" in text for text in scene.attrs["warnings"]) == 2
    assert np.unique(scale_offset(scene)[0]).tolist() == [1 / 80, 1 / 40]
    assert "sun_zenith_deg" not in scene.attrs


def test_a_band_file_of_another_grid_is_refused(truth, products, tmp_path):
    folder = copied(truth, tmp_path / "a")
    other = products.make("hyperion_l1t", tmp_path / "other", shape_yx=(13, 10))
    name = band_file(truth, 120).name
    shutil.copy(other.extra["folder"] / name, folder)
    with pytest.raises(FormatError, match=r"B120_L1T.TIF: rows 13, but .*B001_L1T.TIF: rows 12; .*one grid"):
        open_scene(folder)
    (folder / name).write_bytes(b"II*\0 no TIFF")
    with pytest.raises(FormatError, match=r"B120_L1T.TIF cannot be opened"):
        open_scene(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("SCALING_FACTOR_VNIR = 40.0", "SCALING_FACTOR_VNIR = 0", "VNIR = 0; allowed: a positive number"),
        ("SCALING_FACTOR_SWIR = 82.0", "SCALING_FACTOR_SWIR = nan", "allowed: a finite number"),
        ("SUN_ELEVATION = ", "SUN_ELEVATION = up ", "SUN_ELEVATION = 'up"),
    ],
)
def test_a_damaged_mtl_is_told(truth, tmp_path, old, new, message):
    folder = copied(truth, tmp_path / "a")
    mtl = folder / truth.paths[1].name
    mtl.write_text(truth.paths[1].read_text().replace(old, new))
    with pytest.raises(FormatError, match=message):
        open_scene(mtl)


def test_an_mtl_is_of_bounded_size_and_holds_keys(tmp_path):
    path = tmp_path / "EO1H1_MTL_L1T.TXT"
    path.write_text("nothing\n")
    with pytest.raises(FormatError, match="no line"):
        hyperion.read_mtl(str(path))
    path.write_text("A = 1\n" * 200_000)
    with pytest.raises(FormatError, match="more than"):
        hyperion.read_mtl(str(path))


def test_l1r_is_refused_because_it_is_hdf4(products, tmp_path):
    truth = products.make("hyperion_l1r", tmp_path)
    for path in (truth.paths[0], truth.paths[0].parent):
        with pytest.raises(FormatError, match=r"is HDF4 \(Hyperion L1R\).*L1T"):
            open_scene(path)


def test_two_scenes_in_a_folder_are_asked_about(truth, tmp_path):
    folder = copied(truth, tmp_path / "a")
    first = band_file(truth, 8)
    shutil.copy(first, folder / first.name.replace("EO1H038", "EO1H039"))
    with pytest.raises(SceneError, match="holds 2 Hyperion scenes"):
        open_scene(folder)
    assert quietly(folder / first.name).sizes["band"] == 242
