"""Dark object, flat field and IARR against NumPy on the whole array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.calibration import calibrate, scene_based
from bandstream.pipeline.calibration.scene_based import darkest
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.scene import make_scene

RAW = np.random.default_rng(5).integers(100, 9000, (17, 9, 4)).astype(np.int16)
NM = {"wavelength_nm": [450.0, 550, 650, 850], "fwhm_nm": [10.0] * 4}
SUN = {"sun_zenith_deg": 40.0, "earth_sun_distance_au": 1.0}


def with_nodata():
    raw = RAW.copy()
    raw[3, 4, 1] = -9999
    raw[0, 0] = -9999
    return raw, np.where(raw == -9999, np.nan, raw.astype(np.float64))


def test_iarr_divides_by_the_mean_of_the_valid_pixels(scene, physical) -> None:
    raw, values = with_nodata()
    ds = scene(raw, nodata=-9999, scale=0.01, offset=0.5, quantity="radiance")
    found = calibrate(ds, method="iarr")
    assert found["data"].data is ds["data"].data
    value = values * 0.01 + 0.5
    np.testing.assert_allclose(physical(found), value / np.nanmean(value, axis=(0, 1)), rtol=1e-9)
    assert found.attrs["units"] == "1"


def test_masked_pixels_take_no_part_in_the_mean(scene, physical) -> None:
    import dask.array as da

    valid = np.ones(RAW.shape[:2], bool)
    valid[:5] = False
    ds = scene(RAW, quantity="dn", valid_yx=da.from_array(valid, chunks=(4, 9)))
    np.testing.assert_allclose(
        physical(calibrate(ds, method="iarr")), RAW / RAW[5:].mean(axis=(0, 1)), rtol=1e-9
    )


def test_the_flat_field_divides_by_the_mean_of_its_window(scene, physical) -> None:
    raw, values = with_nodata()
    found = calibrate(scene(raw, nodata=-9999, quantity="dn"), method="flat_field", window=[2, 8, 3, 6])
    np.testing.assert_allclose(physical(found), values / np.nanmean(values[2:8, 3:6], axis=(0, 1)), rtol=1e-9)


def test_a_band_whose_mean_is_not_above_0_holds_no_data(scene) -> None:
    raw = RAW.copy()
    raw[..., 2] = 0
    raw[..., 0] = -5
    with pytest.warns(BandstreamWarning, match="a mean that is not above 0 in band 1, 3"):
        found = calibrate(scene(raw, quantity="dn"), method="iarr")
    values = found["data"].values
    assert np.isnan(values[..., [0, 2]]).all()
    assert np.isfinite(values[..., [1, 3]]).all()
    assert found["good_band"].values.tolist() == [False, True, False, True]
    with pytest.raises(ConfigError, match="every band"):
        calibrate(scene(np.zeros_like(raw), quantity="dn"), method="iarr")


@pytest.mark.parametrize("method", ["iarr", "flat_field"])
def test_reflectance_is_not_divided_again(scene, method) -> None:
    options = {"window": [0, 2, 0, 2]} if method == "flat_field" else {}
    once = calibrate(scene(RAW, quantity="dn"), method=method, **options)
    with pytest.raises(ConfigError, match="already"):
        calibrate(once, method=method, **options)


def test_the_dark_object_is_subtracted_after_the_way_to_reflectance(scene, physical) -> None:
    """Chavez' DOS1: top-of-atmosphere reflectance less that of the dark object."""
    raw, _ = with_nodata()
    ds = scene(raw, nodata=-9999, scale=0.01, quantity="radiance", **NM)
    toa = physical(calibrate(ds, "toa_reflectance", **SUN))
    dark = np.stack([np.percentile(b[np.isfinite(b)], 2, method="lower") for b in np.moveaxis(toa, 2, 0)])
    found = calibrate(ds, method="dark_object", percentile=2.0, **SUN)
    np.testing.assert_allclose(physical(found), toa - dark, atol=1e-9)
    assert (found.attrs["quantity"], found["data"].data is ds["data"].data) == ("surface_reflectance", True)


def test_the_dark_object_of_radiance_leads_to_surface_radiance_too(scene, physical) -> None:
    found = calibrate(
        scene(RAW, scale=0.01, quantity="radiance"), "surface_radiance", "dark_object", percentile=0
    )
    np.testing.assert_allclose(physical(found), (RAW - RAW.min(axis=(0, 1)).astype(float)) * 0.01, atol=1e-9)


@pytest.mark.parametrize("quantity", ["dn", "other", "surface_reflectance", "surface_radiance"])
def test_the_dark_object_needs_radiance_or_toa_reflectance(scene, quantity) -> None:
    with pytest.raises(ConfigError, match=f"holds {quantity}"):
        calibrate(scene(RAW, quantity=quantity, **NM), method="dark_object", **SUN)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["uint8", "int16", "uint16", "float32", "float64"]),
    st.floats(0, 5),
    st.sampled_from([1.0, 0.5, -2.0]),
)
def test_the_darkest_values_are_those_of_a_sort(seed, dtype, percentile, scale) -> None:
    import dask.array as da

    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 200, (23, 7, 3)).astype(dtype)
    raw[rng.random(raw.shape) < 0.3] = 0
    ds = make_scene(da.from_array(raw, chunks=(5, -1, -1)), nodata=0, scale=scale, offset=3.0)
    for band, found in enumerate(darkest(ds, percentile)):
        valid = raw[..., band][raw[..., band] != 0].astype(np.float64) * scale + 3.0
        assert found == np.sort(valid)[int(percentile / 100 * (len(valid) - 1))]


def test_large_scenes_are_thinned_to_whole_rows_in_bounded_memory(scene, monkeypatch) -> None:
    monkeypatch.setattr(scene_based, "KEPT_BYTES", 64)
    found = darkest(scene(RAW), 5.0)
    # 64 bytes are 8 numbers for each of 4 bands: a rank of 8 is reached by every row, 153 pixels
    np.testing.assert_array_equal(found, np.percentile(RAW, 5, axis=(0, 1), method="lower"))
    monkeypatch.setattr(scene_based, "KEPT_BYTES", 40)
    found = darkest(scene(RAW), 5.0)
    np.testing.assert_array_equal(found, np.percentile(RAW[::2], 5, axis=(0, 1), method="lower"))


def test_a_band_without_valid_pixels_holds_no_data(scene) -> None:
    raw = RAW.copy()
    raw[..., 1] = -9999
    with pytest.warns(BandstreamWarning, match=r"no valid pixel in band 2"):
        found = calibrate(
            scene(raw, nodata=-9999, scale=0.01, quantity="radiance", **NM), method="dark_object", **SUN
        )
    assert np.isnan(found["data"].values[..., 1]).all()
