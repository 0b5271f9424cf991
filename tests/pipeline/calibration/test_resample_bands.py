"""Spectral resampling by Gaussian weights, against SPy where the definitions agree and against hand integration."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
from scipy.stats import norm
from spectral.algorithms.resampling import BandResampler

from bandstream.pipeline.calibration import resample_bands
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.scene import check_scene, make_scene

NM = np.arange(400.0, 1000.0, 5.0)
WIDTH = np.full(len(NM), 5.0)
RAW = np.random.default_rng(0).integers(0, 10000, (7, 5, len(NM))).astype(np.int16)
FACTS = {"wavelength_nm": NM, "fwhm_nm": WIDTH, "scale": 1e-4, "quantity": "surface_reflectance"}


def by_hand(values, centre, fwhm, nm=NM, width=WIDTH):
    """Integrate the target's Gaussian over each source band, least contributions left out."""
    target = norm(centre, fwhm / np.sqrt(8 * np.log(2)))
    weight = target.cdf(nm + width / 2) - target.cdf(nm - width / 2)
    weight[weight / weight.sum() < 1e-3] = 0
    return (values * weight).sum(axis=-1) / weight.sum()


def test_targets_are_the_gaussian_means_of_the_source(scene) -> None:
    centres, widths = np.array([800.0, 450, 560.3]), np.array([30.0, 20, 65])
    ds = scene(RAW, **FACTS)
    found = resample_bands(ds, centres, widths)
    expected = np.stack([by_hand(RAW * 1e-4, c, w) for c, w in zip(centres, widths, strict=True)], axis=-1)
    np.testing.assert_allclose(found["data"].values, expected, rtol=2e-6)
    np.testing.assert_array_equal(found["wavelength"].values, centres)
    np.testing.assert_array_equal(found["fwhm"].values, widths)
    assert (found.attrs["quantity"], found.attrs["units"]) == (ds.attrs["quantity"], ds.attrs["units"])
    assert "scale" not in found.attrs
    check_scene(found)


def test_where_spys_definition_is_the_same_so_is_the_result(scene) -> None:
    """SPy cuts the Gaussian at its half maximum: the same where the source bands fill just that width."""
    few = slice(40, 46)  # 600 to 625 nm in bands of 5 nm: 597.5 to 627.5
    ds = scene(RAW[..., few], wavelength_nm=NM[few], fwhm_nm=WIDTH[few], quantity="dn")
    found = resample_bands(ds, [612.5], [30.0])["data"].values[..., 0]
    spy = BandResampler(NM[few], [612.5], WIDTH[few], [30.0])
    oracle = np.array([[spy(pixel)[0] for pixel in row] for row in RAW[..., few].astype(float)])
    np.testing.assert_allclose(found, oracle, rtol=1e-6)


def test_on_smooth_spectra_spy_agrees_nearly_everywhere(scene) -> None:
    smooth = np.broadcast_to(0.3 + 0.2 * np.sin(NM / 90), (2, 3, len(NM))).astype(np.float64)
    centres, widths = np.linspace(430, 960, 30), np.full(30, 12.0)
    found = resample_bands(scene(smooth, **(FACTS | {"scale": 1.0})), centres, widths)["data"].values[0, 0]
    oracle = BandResampler(NM, centres, WIDTH, widths)(smooth[0, 0])
    np.testing.assert_allclose(found, oracle, rtol=3e-3)


def test_the_order_of_the_source_does_not_matter(scene) -> None:
    order = np.random.default_rng(1).permutation(len(NM))
    found = resample_bands(scene(RAW, **FACTS), [500.0, 700], 20.0)["data"].values
    shuffled = scene(RAW[..., order], **(FACTS | {"wavelength_nm": NM[order]}))
    np.testing.assert_allclose(resample_bands(shuffled, [500.0, 700], 20.0)["data"].values, found, rtol=1e-6)


def test_nodata_stays_with_the_targets_it_contributes_to(scene) -> None:
    raw = RAW.copy()
    raw[2, 3, 20] = -9999  # 500 nm
    found = resample_bands(scene(raw, nodata=-9999, **FACTS), [505.0, 700.0, 540.0], 20.0)["data"].values
    assert np.isnan(found[2, 3, 0])
    assert np.isnan(found).sum() == 1
    clean = resample_bands(scene(RAW, **FACTS), [505.0, 700.0, 540.0], 20.0)["data"].values
    np.testing.assert_array_equal(found[~np.isnan(found)], clean[~np.isnan(found)])


def test_bad_bands_take_no_part(scene) -> None:
    good = np.ones(len(NM), bool)
    good[[20, 21]] = False
    raw = RAW.copy()
    raw[..., [20, 21]] = 30000
    found = resample_bands(scene(raw, good_band=good, **FACTS), [502.0], [40.0])["data"].values[..., 0]
    expected = by_hand(RAW[..., good] * 1e-4, 502.0, 40.0, NM[good], WIDTH[good])
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_targets_that_are_not_covered_are_refused_or_dropped_by_name(scene) -> None:
    good = (NM < 700) | (NM > 760)
    ds = scene(RAW, good_band=good, **FACTS)
    centres = [390.0, 450, 730, 800, 1010, 2200]
    with pytest.raises(ConfigError, match=r"4 of 6 bands .*\(390\.0, 730\.0, 1010\.0, 2200\.0 nm\)"):
        resample_bands(ds, centres, 10.0)
    with pytest.warns(BandstreamWarning, match="left out"):
        found = resample_bands(ds, centres, 10.0, missing="drop")
    assert found["wavelength"].values.tolist() == [450, 800]
    with pytest.raises(ConfigError, match="no good band"):
        resample_bands(ds, [2200.0], 10.0, missing="drop")


def test_overlapping_detectors_take_part_together_and_are_named(scene) -> None:
    detector = np.where(NM < 700, "vnir", "swir").tolist()
    found = resample_bands(scene(RAW, detector=detector, **FACTS), [500.0, 699.0, 800.0], 20.0)
    assert found["detector"].values.tolist() == ["vnir", "vnir+swir", "swir"]


def test_place_layers_and_mask_come_along(scene) -> None:
    import dask.array as da

    valid = np.ones(RAW.shape[:2], bool)
    valid[0] = False
    layer = da.from_array(np.arange(35.0).reshape(7, 5))
    ds = scene(
        RAW, valid_yx=da.from_array(valid), layers={"sun_zenith": layer}, acquired="2020-01-01", **FACTS
    )
    found = resample_bands(ds, [500.0], [20.0])
    np.testing.assert_array_equal(found["valid"].values, valid)
    np.testing.assert_array_equal(found["sun_zenith"].values, layer)
    assert found.attrs["acquired"] == "2020-01-01"
    assert found.attrs["block_bytes"] >= 3 * 5 * len(NM) * 2


def test_a_few_bands_of_a_window_are_those_of_the_whole(scene) -> None:
    centres = np.linspace(450.0, 950.0, 20)
    found = resample_bands(scene(RAW, **FACTS), centres, 15.0)
    whole = found["data"].values
    np.testing.assert_array_equal(
        found["data"].isel(band=[3, 17, 5], y=slice(2, 5), x=1).values, whole[2:5, 1][:, [3, 17, 5]]
    )


def test_a_sensor_is_known_by_name(scene) -> None:
    from bandstream.pipeline.sensors import load_sensor

    nm = np.arange(380.0, 2520.0, 4.0)
    values = np.broadcast_to(nm / 3000, (2, 2, len(nm))).astype(np.float64)
    ds = scene(values, wavelength_nm=nm, fwhm_nm=np.full(len(nm), 4.0), quantity="surface_reflectance")
    sensor = load_sensor("EnMAP")
    found = resample_bands(ds, sensor="EnMAP")
    # a straight line is its own Gaussian mean, but where it is cut
    np.testing.assert_allclose(found["data"].values[0, 0, 5:-5], sensor.wavelength_nm[5:-5] / 3000, rtol=2e-4)
    assert found.attrs["resampled_bands"] == "EnMAP"
    assert resample_bands(ds, "EnMAP").sizes == found.sizes


@pytest.mark.parametrize(
    ("facts", "targets", "message"),
    [
        (
            {"wavelength_nm": None, "fwhm_nm": None},
            {"wavelength_nm": [500.0], "fwhm_nm": [5.0]},
            "needs wavelengths",
        ),
        ({}, {"wavelength_nm": [500.0]}, "give fwhm_nm"),
        ({}, {"wavelength_nm": [500.0, -1.0], "fwhm_nm": 5.0}, "positive centre"),
        ({}, {}, "needs the wavelengths of the target bands"),
        ({"good_band": np.zeros(len(NM), bool)}, {"wavelength_nm": [500.0], "fwhm_nm": 5.0}, "no good band"),
        ({}, {"sensor": "EnMop"}, "no sensor"),
    ],
)
def test_what_cannot_be_resampled_is_said(scene, facts, targets, message) -> None:
    with pytest.raises(ConfigError, match=message):
        resample_bands(scene(RAW, **(FACTS | facts)), **targets)


def test_widths_that_are_not_as_many_as_the_centres_are_refused(scene) -> None:
    ds = scene(np.ones((2, 2, 3)), wavelength_nm=[500.0, 510.0, 520.0], fwhm_nm=[10.0] * 3)
    with pytest.raises(ConfigError, match=r"fwhm_nm has 3 numbers for 2"):
        resample_bands(ds, [505.0, 515.0], [10.0, 10.0, 10.0])


def test_a_resampled_scene_is_not_taken_for_one_of_its_old_sensor() -> None:
    centres = np.arange(400.0, 2450.0, 5.0)
    data = da.ones((2, 2, len(centres)), chunks=-1, dtype=np.float32)
    scene = make_scene(data, wavelength_nm=centres, fwhm_nm=np.full(len(centres), 5.0), sensor="AVIRIS-NG")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        found = resample_bands(scene, sensor="emit", missing="drop")
    assert found.attrs["sensor"].startswith("AVIRIS-NG in the bands of ")
    assert "EMIT" in found.attrs["sensor"].upper()
