"""Empirical line: the fit against NumPy's own, from DN as from radiance."""

from __future__ import annotations

import numpy as np
import pytest

from bandstream.pipeline.calibration import calibrate
from bandstream.pipeline.calibration.empirical_line import fit_line, parse_targets
from bandstream.pipeline.errors import BandstreamWarning, ConfigError

NM = np.array([500.0, 600, 700, 800])
GAIN, OFFSET = np.array([4000.0, 5000, 3000, 2000]), np.array([300.0, 150, 80, 60])
FIELD = {"dark": (0.04, 0.00001), "grey": (0.2, 0.0001), "bright": (0.5, -0.0002)}
WINDOWS = {"dark": [0, 2, 0, 2], "grey": [2, 4, 2, 5], "bright": [5, 7, 1, 3]}


def reflectance(name, nm):
    level, slope = FIELD[name]
    return level + slope * (nm - 500)


def spectra(tmp_path, names=FIELD, top=900):
    nm = np.arange(400.0, top)
    path = tmp_path / "field.csv"
    rows = [",".join(repr(float(v)) for v in (x, *(reflectance(n, x) for n in names))) for x in nm]
    path.write_text("wavelength_nm," + ",".join(names) + "\n" + "\n".join(rows))
    return str(path)


def cube(noise=0.0):
    truth = np.random.default_rng(0).uniform(0, 0.6, (8, 6, 4))
    for name, (row, row_end, col, col_end) in WINDOWS.items():
        truth[row:row_end, col:col_end] = reflectance(name, NM)
    dn = truth * GAIN + OFFSET + np.random.default_rng(1).normal(0, noise, truth.shape)
    return truth, dn


def bands(**facts):
    return {"wavelength_nm": NM, "fwhm_nm": [8.0] * 4} | facts


def test_a_scene_that_is_a_straight_line_of_reflectance_comes_back(scene, physical, tmp_path) -> None:
    truth, dn = cube()
    ds = scene(dn, **bands(quantity="dn"))
    found = calibrate(ds, method="empirical_line", spectra=spectra(tmp_path), targets=WINDOWS)
    assert found["data"].data is ds["data"].data
    assert found.attrs["quantity"] == "surface_reflectance"
    np.testing.assert_allclose(physical(found), truth, atol=1e-9)


def test_the_line_is_that_of_least_squares_and_its_residual_is_told(scene, physical, tmp_path) -> None:
    _, dn = cube(noise=60.0)
    ds = scene(dn, **bands(quantity="radiance", scale=0.01, offset=1.0))
    found = calibrate(ds, spectra=spectra(tmp_path), targets=WINDOWS)  # auto
    line = fit_line(ds, spectra(tmp_path), WINDOWS)
    value = dn * 0.01 + 1.0
    for b in range(4):
        x = [value[r:re, c:ce, b].mean() for r, re, c, ce in WINDOWS.values()]
        y = [reflectance(name, NM[b]) for name in WINDOWS]
        slope, intercept = np.polyfit(x, y, 1)
        np.testing.assert_allclose(physical(found)[..., b], value[..., b] * slope + intercept, atol=1e-9)
        residual = np.sqrt(np.mean((np.polyval([slope, intercept], x) - y) ** 2))
        np.testing.assert_allclose(line.residual_b[b], residual, atol=1e-12)
    assert "residual" in found.attrs["calibration"][0]


def test_one_target_gives_a_line_through_the_origin_and_a_note(scene, physical, tmp_path) -> None:
    _, dn = cube()
    with pytest.warns(BandstreamWarning, match="through the origin"):
        found = calibrate(
            scene(dn, **bands()), spectra=spectra(tmp_path), targets={"bright": WINDOWS["bright"]}
        )
    factor = reflectance("bright", NM) / dn[5, 1]
    np.testing.assert_allclose(physical(found), dn * factor, rtol=1e-9)


def test_nodata_in_a_window_is_left_out(scene, physical, tmp_path) -> None:
    truth, dn = cube()
    dn[0, 0], dn[5, 1, 2] = -9999, -9999
    found = calibrate(scene(dn, **bands(nodata=-9999)), spectra=spectra(tmp_path), targets=WINDOWS)
    data = dn != -9999
    np.testing.assert_allclose(physical(found)[data], truth[data], atol=1e-9)


def test_bands_that_the_spectra_do_not_reach_hold_no_data(scene, tmp_path) -> None:
    truth, dn = cube()
    with pytest.warns(BandstreamWarning, match=r"no rising line in band 4 \(800\.0 nm\)"):
        found = calibrate(scene(dn, **bands()), spectra=spectra(tmp_path, top=750), targets=WINDOWS)
    values = found["data"].values
    assert np.isnan(values[..., 3]).all()
    np.testing.assert_allclose(values[..., :3], truth[..., :3], atol=1e-6)
    assert found["good_band"].values.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"white": [0, 1, 0, 1]}, "no spectrum for the target white"),
        ({"dark": [0, 1, 5, 7]}, "does not lie in"),
        ({"dark": [3, 3, 0, 1]}, "window of dark is"),
        (["dark:1:2:3"], "window of dark is"),
        (["dark:0:1", "dark:1:1"], "stands twice"),
        ("nowhere.csv", "no file nowhere.csv"),
    ],
)
def test_wrong_windows_are_refused(scene, tmp_path, targets, message) -> None:
    _, dn = cube()
    with pytest.raises(ConfigError, match=message):
        calibrate(scene(dn, **bands()), method="empirical_line", spectra=spectra(tmp_path), targets=targets)


def test_an_empty_window_and_calibrated_scenes_are_refused(scene, tmp_path) -> None:
    _, dn = cube()
    dn[0:2, 0:2] = -9999
    with pytest.raises(ConfigError, match="window of dark holds no valid pixel"):
        calibrate(scene(dn, **bands(nodata=-9999)), spectra=spectra(tmp_path), targets=WINDOWS)
    with pytest.raises(ConfigError, match="already"):
        calibrate(
            scene(dn, **bands(quantity="surface_reflectance")),
            method="empirical_line",
            spectra=spectra(tmp_path),
            targets=WINDOWS,
        )


def test_windows_are_written_in_three_ways(tmp_path) -> None:
    path = tmp_path / "targets.csv"
    path.write_text("name,row,row_end,col,col_end\ntarp,10,14,20,24\npoint,3,4,5,6\n")
    expected = {"tarp": (10, 14, 20, 24), "point": (3, 4, 5, 6)}
    assert parse_targets(["tarp:10:14:20:24", "point:3:5"]) == expected
    assert parse_targets({"tarp": [10, 14, 20, 24], "point": [3, 4, 5, 6]}) == expected
    assert parse_targets(str(path)) == expected
    path.write_text("name,row\ntarp,10\n")
    with pytest.raises(ConfigError, match="lacks the column row_end"):
        parse_targets(str(path))
