"""Radiance to top-of-atmosphere reflectance: pi L d^2 / (E0 cos theta), by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bandstream.pipeline import open_scene
from bandstream.pipeline.calibration import calibrate
from bandstream.pipeline.calibration.solar import earth_sun_distance, load_solar, parse_time, solar_folder
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.scene import check_scene, make_scene

CENTRES = np.array([450.0, 860.0, 550.0, 2200.0])
WIDTHS = np.array([10.0, 10.0, 5.0, 12.0])


def by_hand(radiance, zenith_deg, distance):
    """Return the reflectance with the Gaussian means of the table's text spelled out."""
    table = np.loadtxt(solar_folder() / "tsis1_hsrs.csv", delimiter=",", skiprows=1)
    sigma = WIDTHS / np.sqrt(8 * np.log(2))
    weight = np.exp(-((table[:, :1] - CENTRES) ** 2) / (2 * sigma**2))
    irradiance = (weight * table[:, 1:]).sum(axis=0) / weight.sum(axis=0)
    return np.pi * radiance * distance**2 / (irradiance * np.cos(np.deg2rad(zenith_deg)))


def radiance_scene(scene, raw, **facts):
    facts = {"wavelength_nm": CENTRES, "fwhm_nm": WIDTHS, "quantity": "radiance", "scale": 0.01} | facts
    return scene(raw, **facts)


RAW = np.random.default_rng(1).integers(0, 30000, (7, 5, 4)).astype(np.int16)


def test_one_zenith_for_the_scene_costs_no_pixel(scene, physical) -> None:
    ds = radiance_scene(scene, RAW, nodata=RAW[0, 0, 0], sun_zenith_deg=35.0, earth_sun_distance_au=0.99)
    found = calibrate(ds, "toa_reflectance")
    assert found["data"].data is ds["data"].data
    assert (found.attrs["quantity"], found.attrs["units"]) == ("toa_reflectance", "1")
    expected = by_hand(RAW * 0.01, 35.0, 0.99)
    values = physical(found)
    assert np.isnan(values[RAW[0, 0, 0] == RAW]).all()
    np.testing.assert_allclose(values[RAW[0, 0, 0] != RAW], expected[RAW[0, 0, 0] != RAW], rtol=1e-9)


def test_a_zenith_per_pixel_is_followed_and_nodata_touches_no_neighbour(scene) -> None:
    zenith = np.random.default_rng(2).uniform(20, 60, (7, 5))
    zenith[1, 1], zenith[2, 2], zenith[3, 3] = -9999, 95, np.nan
    raw = RAW.copy()
    raw[4, 2, 1] = -32768
    import dask.array as da

    layer = da.from_array(zenith, chunks=(7, 5))
    ds = radiance_scene(scene, raw, nodata=-32768, layers={"sun_zenith": layer}, earth_sun_distance_au=1.01)
    found = calibrate(ds, "toa_reflectance")
    values = found["data"].values
    assert values.dtype == np.float32
    bad = np.zeros(values.shape, bool)
    bad[4, 2, 1] = True
    for y, x in ((1, 1), (2, 2), (3, 3)):
        bad[y, x] = True
    np.testing.assert_array_equal(np.isnan(values), bad)
    expected = by_hand(raw * 0.01, zenith[:, :, None], 1.01)
    np.testing.assert_allclose(values[~bad], expected[~bad], rtol=1e-6)
    np.testing.assert_array_equal(found["valid"].values, ~bad.all(axis=2))
    assert "nodata" not in found.attrs
    assert "scale" not in found.attrs
    assert found.attrs["block_bytes"] >= 3 * 5 * 4 * 2
    check_scene(found)


def test_a_few_bands_of_a_window_are_those_of_the_whole_and_nothing_else_is_read() -> None:
    import dask.array as da

    asked = []

    class Cube:
        shape, dtype, ndim = RAW.shape, RAW.dtype, 3

        def __getitem__(self, key):
            asked.append(RAW[key].size)
            return RAW[key]

    meta = np.empty((0, 0, 0), np.int16)
    raw = da.from_array(Cube(), chunks=(4, 5, 4), name="cube", asarray=False, inline_array=True, meta=meta)
    layer = da.from_array(np.random.default_rng(2).uniform(20, 60, (7, 5)), chunks=(7, 5))
    ds = make_scene(
        raw,
        wavelength_nm=CENTRES,
        fwhm_nm=WIDTHS,
        quantity="radiance",
        layers={"sun_zenith": layer},
        earth_sun_distance_au=1.0,
    )
    data = calibrate(ds, "toa_reflectance")["data"]
    whole = data.values
    asked.clear()
    window = {"y": slice(1, 3), "x": slice(2, 4)}
    np.testing.assert_array_equal(data.isel(band=slice(1, 3), **window).values, whole[1:3, 2:4, 1:3])
    assert asked == [2 * 2 * 2]
    np.testing.assert_array_equal(data.isel(band=[3, 0], **window).values, whole[1:3, 2:4][..., [3, 0]])
    np.testing.assert_array_equal(data.isel(band=[3, 0]).values, whole[..., [3, 0]])
    np.testing.assert_array_equal(data.isel(band=2, y=5, x=4).values, whole[5, 4, 2])
    again = calibrate(ds, "toa_reflectance")["data"].data
    assert again.name == data.data.name, "equal numbers under equal keys, in every process"


def test_the_angle_given_goes_before_the_layer_and_the_attribute(scene, physical) -> None:
    import dask.array as da

    layer = da.full((7, 5), 10.0, chunks=-1)
    ds = radiance_scene(scene, RAW, layers={"sun_zenith": layer}, sun_zenith_deg=20.0)
    found = calibrate(ds, "toa_reflectance", sun_zenith_deg=50.0, earth_sun_distance_au=1.0)
    np.testing.assert_allclose(physical(found), by_hand(RAW * 0.01, 50.0, 1.0), rtol=1e-9)


def test_the_distance_follows_from_the_date(scene, physical) -> None:
    ds = radiance_scene(scene, RAW, sun_zenith_deg=30.0, acquired="2020-07-04T11:00:00Z")
    found = calibrate(ds, "toa_reflectance")
    np.testing.assert_allclose(physical(found), by_hand(RAW * 0.01, 30.0, 1.016694), rtol=2e-4)


def test_calibrating_reflectance_again_changes_nothing(scene, physical) -> None:
    ds = radiance_scene(scene, RAW, sun_zenith_deg=30.0, earth_sun_distance_au=1.0)
    once = calibrate(ds, "toa_reflectance")
    for method in ("auto", "toa", "scale"):
        np.testing.assert_array_equal(physical(calibrate(once, "toa_reflectance", method)), physical(once))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"quantity": "surface_radiance"}, "the atmosphere is out of it already"),
        ({"quantity": "dn"}, r"give that factor as calibrate\.scale"),
        ({"quantity": "other"}, r"give that factor as calibrate\.scale"),
        ({"quantity": "surface_reflectance"}, "calibrated already"),
        ({"units": "uW cm-2 sr-1 nm-1"}, "x 10 from uW"),
        ({"sun_zenith_deg": 93.5}, r"is 93\.5 degrees.*does not shine"),
        ({"sun_zenith_deg": None}, r"set calibrate\.sun_zenith_deg"),
        ({"sun_zenith_deg": None, "acquired": "2020-07-04"}, r"set calibrate\.sun_zenith_deg"),
        ({"earth_sun_distance_au": None}, r"set calibrate\.earth_sun_distance_au"),
        ({"earth_sun_distance_au": 149.6}, "is 149.6 AU"),
        ({"wavelength_nm": None, "fwhm_nm": None}, "needs wavelengths"),
        ({"wavelength_nm": CENTRES + 5000}, "No band of made.hdr lies within"),
    ],
)
def test_what_cannot_be_known_or_makes_no_sense_is_refused(scene, facts, message) -> None:
    ds = radiance_scene(scene, RAW, **({"sun_zenith_deg": 30.0, "earth_sun_distance_au": 1.0} | facts))
    with pytest.raises(ConfigError, match=message):
        calibrate(ds, "toa_reflectance", "toa")


def test_numbers_that_a_factor_makes_radiance_are_taken_with_it(scene, physical) -> None:
    ds = radiance_scene(scene, RAW, quantity="other", scale=None)
    found = calibrate(
        ds, "toa_reflectance", "toa", scale=0.02, sun_zenith_deg=30.0, earth_sun_distance_au=1.0
    )
    np.testing.assert_allclose(physical(found), by_hand(RAW * 0.02, 30.0, 1.0), rtol=1e-9)


def test_bands_without_irradiance_become_nan_and_are_named(scene) -> None:
    """PRISMA lists absent bands at 0 nm; the table ends at 2600 nm."""
    centres = np.array([450.0, 0.0, 550.0, 2700.0])
    ds = radiance_scene(scene, RAW, wavelength_nm=centres, sun_zenith_deg=30.0, earth_sun_distance_au=1.0)
    with pytest.warns(BandstreamWarning, match=r"band 2 .*, 4 \(2700"):
        found = calibrate(ds, "toa_reflectance")
    values = found["data"].values
    assert np.isnan(values[:, :, [1, 3]]).all()
    np.testing.assert_allclose(values[:, :, [0, 2]], by_hand(RAW * 0.01, 30.0, 1.0)[:, :, [0, 2]], rtol=1e-6)
    assert found["good_band"].values.tolist() == [True, False, True, False]


def test_widths_that_the_scene_does_not_tell_are_the_spacing(scene) -> None:
    ds = radiance_scene(
        scene,
        RAW,
        wavelength_nm=[450, 460, 470, 480],
        fwhm_nm=None,
        sun_zenith_deg=0.0,
        earth_sun_distance_au=1.0,
    )
    with pytest.warns(BandstreamWarning, match="no width for 4 of 4 bands"):
        found = calibrate(ds, "toa_reflectance")
    expected = np.pi / load_solar().of_bands(np.array([450.0, 460, 470, 480]), np.full(4, 10.0))
    np.testing.assert_allclose(found["scale"].values, expected * 0.01, rtol=1e-12)


@pytest.mark.real
def test_avirisng_radiance_equals_the_hand_calculation(data_root) -> None:
    """Sun zenith from band 5 of the obs file, distance from its band 11, both read with NumPy alone."""
    folder = data_root / "avirisng_radiance_10x10"
    name = "ang20170323t202244_{}_7000-7010"
    obs = np.fromfile(folder / name.format("obs"), "<f8").reshape(10, 11, 10).transpose(0, 2, 1)
    rdn = np.fromfile(folder / name.format("rdn"), "<f4").reshape(10, 425, 10).transpose(0, 2, 1)
    with pytest.warns(BandstreamWarning, match="data ignore value"):
        ds = open_scene(folder / (name.format("rdn") + ".hdr"))
    found = calibrate(ds, "toa_reflectance")["data"].values
    table = np.loadtxt(solar_folder() / "tsis1_hsrs.csv", delimiter=",", skiprows=1)
    sigma = ds["fwhm"].values / np.sqrt(8 * np.log(2))
    weight = np.exp(-((table[:, :1] - ds["wavelength"].values) ** 2) / (2 * sigma**2))
    irradiance = weight.T @ table[:, 1] / weight.sum(axis=0)
    zenith, distance = np.deg2rad(obs[:, :, 4:5]), obs[:, :, 10:11]
    expected = np.pi * rdn.astype(np.float64) * 10 * distance**2 / (irradiance * np.cos(zenith))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert 0 < np.nanmedian(found) < 1, "a reflectance"


@pytest.mark.real
def test_the_computed_place_of_the_sun_is_that_of_the_obs_file(data_root) -> None:
    folder = data_root / "avirisng_radiance_10x10"
    obs = np.fromfile(folder / "ang20170323t202244_obs_7000-7010", "<f8").reshape(10, 11, 10)
    with pytest.warns(BandstreamWarning, match="data ignore value"):
        ds = open_scene(folder / "ang20170323t202244_rdn_7000-7010.hdr").drop_vars("sun_zenith")
    with pytest.warns(BandstreamWarning, match="was computed for its centre"):
        found = calibrate(ds, "toa_reflectance")
    computed = float(found.attrs["calibration"][0].split("zenith ")[1].split()[0])
    # the file's name tells when the line began; the chunk lies 7000 lines (a minute) further
    assert computed == pytest.approx(obs[:, 4].mean(), abs=0.2)
    when = parse_time(ds.attrs["acquired"])
    assert when is not None
    # the file gives one distance for the whole day, which changes by 3e-4 a day in March
    assert earth_sun_distance(when) == pytest.approx(obs[:, 10].mean(), abs=3e-4)


def test_a_scene_on_a_map_gets_its_sun_from_time_and_place(physical) -> None:
    import dask.array as da
    from affine import Affine
    from rasterio.crs import CRS

    ds = make_scene(
        da.from_array(RAW, chunks=-1),
        wavelength_nm=CENTRES,
        fwhm_nm=WIDTHS,
        quantity="radiance",
        crs=CRS.from_epsg(32613),
        transform=Affine(30, 0, 484_700, 0, -30, 4_399_300),  # Golden, Colorado
        acquired="2003-10-17T19:30:30Z",
    )
    with pytest.warns(BandstreamWarning, match=r"50\.1"):
        found = calibrate(ds, "toa_reflectance")
    np.testing.assert_allclose(physical(found), by_hand(RAW, 50.128, 0.99654), rtol=2e-3)
