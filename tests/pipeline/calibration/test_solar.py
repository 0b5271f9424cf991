"""The solar table against published figures, and the sun's place against published examples."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from scipy.integrate import quad

from bandstream.pipeline.calibration.gaussian import convolve, spacing
from bandstream.pipeline.calibration.solar import (
    earth_sun_distance,
    load_solar,
    parse_time,
    solar_folder,
    sun_zenith,
)
from bandstream.pipeline.config import load_yaml
from bandstream.pipeline.errors import ConfigError


def test_the_table_is_the_one_that_was_published() -> None:
    facts = load_yaml(solar_folder() / "tsis1_hsrs.yaml")
    assert hashlib.sha256((solar_folder() / facts["file"]).read_bytes()).hexdigest() == facts["sha256"]
    table = load_solar()
    assert (table.wavelength_nm[0], table.wavelength_nm[-1]) == tuple(facts["range_nm"])
    # published samples in mW m-2 nm-1
    for nm, published in {
        300: 434.808426,
        550: 1906.30987,
        656: 1356.48722,
        1000: 728.416176,
        2200: 81.4688079,
    }.items():
        assert np.interp(nm, table.wavelength_nm, table.irradiance) == pytest.approx(published, rel=1e-6)


def test_the_table_adds_up_to_the_published_share_of_the_solar_constant() -> None:
    """739.39 W m-2 between 360 and 830 nm (the same spectrum at 0.1 nm, summed by others); 96 % of 1361 in all."""
    table = load_solar()
    visible = (table.wavelength_nm >= 360) & (table.wavelength_nm <= 830)
    total = np.trapezoid(table.irradiance[visible], table.wavelength_nm[visible]) / 1000
    assert total == pytest.approx(739.39, abs=0.01)
    whole = np.trapezoid(table.irradiance, table.wavelength_nm) / 1000
    assert whole / 1361 == pytest.approx(0.9597, abs=0.0005)


def test_a_band_sees_the_gaussian_mean_of_the_table() -> None:
    table = load_solar()
    for centre, fwhm in ((400.0, 5.0), (656.3, 10.0), (1500.0, 6.5), (2500.0, 8.0)):
        sigma = fwhm / 2.3548200450309493
        weight = np.exp(-((table.wavelength_nm - centre) ** 2) / 2 / sigma**2)
        by_hand = (weight * table.irradiance).sum() / weight.sum()
        found = table.of_bands(np.array([centre]), np.array([fwhm]))
        np.testing.assert_allclose(found, by_hand, rtol=1e-9)


def test_coarse_tables_are_interpolated_and_integrated() -> None:
    """The exact integral of the straight lines between samples, by quadrature."""
    nm = np.array([400.0, 420, 435, 460, 480, 500, 520])
    values = np.array([1.0, 3, 2, 5, 4, 4, 1])
    for centre, fwhm in ((440.0, 8.0), (470.0, 12.0)):
        sigma = fwhm / 2.3548200450309493

        def integrand(x, c=centre, s=sigma):
            return np.interp(x, nm, values) * np.exp(-((x - c) ** 2) / 2 / s**2)

        knots = nm[(nm > centre - 3 * fwhm) & (nm < centre + 3 * fwhm)]
        area = quad(integrand, centre - 3 * fwhm, centre + 3 * fwhm, points=knots)[0]
        expected = area / (sigma * np.sqrt(2 * np.pi))
        np.testing.assert_allclose(convolve(nm, values, [centre], [fwhm]), expected, rtol=2e-4)
    order = np.random.default_rng(0).permutation(len(nm))
    np.testing.assert_array_equal(
        convolve(nm[order], values[order], [440.0], [8.0]), convolve(nm, values, [440.0], [8.0])
    )


def test_bands_beyond_a_table_or_in_its_gaps_are_nan() -> None:
    nm = np.concatenate([np.arange(400.0, 1340), np.arange(1450.0, 1800)])
    flat = np.ones(len(nm))
    found = convolve(nm, flat, [350, 397, 400, 403, 900, 1390, 1600, 1850, np.nan], [5.0] * 9)
    np.testing.assert_array_equal(
        np.isfinite(found), [False, False, False, True, True, False, True, False, False]
    )
    holed = np.where((nm > 880) & (nm < 920), np.nan, 1.0)
    np.testing.assert_array_equal(np.isfinite(convolve(nm, holed, [900.0, 800.0], [5.0, 5.0])), [False, True])


def test_the_distance_to_an_unknown_width_is_that_to_the_nearer_neighbour() -> None:
    np.testing.assert_allclose(spacing(np.array([400.0, 405, 411, 408, 416])), [5, 5, 3, 3, 8])


@pytest.mark.parametrize(
    ("when", "published"),
    [
        (datetime(1992, 10, 13, tzinfo=UTC), 0.99766),  # Meeus 1998, example 25.a
        (datetime(2020, 1, 5, 7, 48, tzinfo=UTC), 0.98324),  # perihelion
        (datetime(2020, 7, 4, 11, 35, tzinfo=UTC), 1.01669),  # aphelion
        (
            datetime(2017, 3, 23, 20, 22, 44, tzinfo=UTC),
            0.99691637,
        ),  # by the algorithm of Reda and Andreas 2008
    ],
)
def test_the_distance_of_the_sun_is_right_to_a_ten_thousandth(when, published) -> None:
    assert earth_sun_distance(when) == pytest.approx(published, abs=1e-4)


def test_the_height_of_the_sun_is_that_of_a_published_example() -> None:
    """Reda and Andreas (2008), appendix: 50.11162 degrees with a refraction of 0.01633, so 50.12795 without."""
    when = datetime(2003, 10, 17, 12, 30, 30, tzinfo=timezone(timedelta(hours=-7)))
    assert sun_zenith(when, 39.742476, -105.1786) == pytest.approx(50.12795, abs=0.02)
    assert sun_zenith(datetime(2020, 6, 20, 12, tzinfo=UTC), 23.44, 0.0) == pytest.approx(0, abs=0.5)
    assert sun_zenith(datetime(2020, 6, 21, 0, tzinfo=UTC), 0.0, 0.0) > 90


def test_times_without_a_zone_are_utc_and_other_texts_none() -> None:
    assert parse_time("2017-03-23T20:22:44Z") == parse_time("2017-03-23 22:22:44+02:00")
    assert parse_time("2017-03-23") == datetime(2017, 3, 23, tzinfo=UTC)
    assert parse_time("23 March 2017") is None


@pytest.mark.parametrize("unit", [1.0, 1000.0, 10.0])
def test_the_unit_of_a_table_of_ones_own_is_told_by_the_sun(tmp_path, unit) -> None:
    own = load_solar()
    path = tmp_path / "sun.csv"
    rows = [
        f"{nm / 1000},{value / unit}" for nm, value in zip(own.wavelength_nm, own.irradiance, strict=True)
    ]
    path.write_text("wavelength_um,irradiance\n" + "\n".join(rows))
    np.testing.assert_allclose(load_solar(str(path)).irradiance, own.irradiance, rtol=1e-12)


def test_what_is_no_solar_table_is_refused(tmp_path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("wavelength_nm,reflectance\n400,0.2\n900,0.4\n")
    with pytest.raises(ConfigError, match="no table of solar irradiance"):
        load_solar(str(path))
    with pytest.raises(ConfigError, match="there are tsis1_hsrs"):
        load_solar("kurucz")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_solar(str(tmp_path / "missing.csv"))


def test_a_table_of_ones_own_that_changed_is_read_again(tmp_path) -> None:
    nm = np.arange(300.0, 1000.0)
    path = tmp_path / "sun.csv"
    for level in (1526.0, 1540.0):
        np.savetxt(
            path,
            np.stack([nm, np.full(len(nm), level)], axis=1),
            delimiter=",",
            header="wavelength_nm,e0",
            comments="",
        )
        assert load_solar(str(path)).of_bands(np.array([600.0]), np.array([10.0])) == pytest.approx(level)
