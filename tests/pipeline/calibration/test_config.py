"""Settings of the stages, and which files decide their result."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bandstream.pipeline.calibration import (
    CalibrateConfig,
    ResampleBandsConfig,
    calibrate,
    stage_files,
    with_files,
)
from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import ConfigError


def test_the_old_keys_keep_their_defaults() -> None:
    found = CalibrateConfig()
    assert (found.to, found.scale, found.offset, found.method) == ("surface_reflectance", None, None, "auto")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "iarr", "percentile": 1.0}, "iarr has no use for percentile"),
        ({"method": "scale", "panel": 0.9}, "scale has no use for panel; it takes offset, scale"),
        ({"method": "toa"}, "toa leads to toa_reflectance, not to surface_reflectance"),
        ({"method": "iarr", "to": "radiance"}, "leads to surface_reflectance"),
        ({"method": "flat_field"}, "needs window"),
        ({"method": "empirical_line", "spectra": "a.csv"}, "needs targets"),
        ({"spectra": "a.csv"}, "belong together"),
        ({"scale": 0}, "a scale of 0"),
        ({"method": "toa", "to": "toa_reflectance", "sun_zenith_deg": 90}, "sun_zenith_deg"),
        ({"method": "dark_object", "percentile": 50}, "percentile"),
        ({"metod": "toa"}, "Did you mean 'method'"),
        ({"to": "dn"}, "to"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(CalibrateConfig, settings, "calibrate")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of sensor and wavelength_nm"),
        ({"sensor": "EnMAP", "wavelength_nm": [500]}, "exactly one"),
        ({"sensor": "EnMAP", "fwhm_nm": 5}, "leave fwhm_nm out"),
        ({"wavelength_nm": [-5]}, "wavelength_nm"),
    ],
)
def test_targets_of_resampling_are_told_once(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ResampleBandsConfig, settings, "resample_bands")


def test_the_files_that_decide_the_result_are_named_and_found() -> None:
    lines = CalibrateConfig(method="empirical_line", spectra="field.csv", targets="where.csv")
    assert stage_files(lines) == ["field.csv", "where.csv"]
    found = with_files(lines, lambda path: f"/data/{path}")
    assert (found.spectra, found.targets) == ("/data/field.csv", "/data/where.csv")
    frames = CalibrateConfig(method="dark_white", panel="panel.csv")
    assert stage_files(frames) == ["panel.csv"]
    assert stage_files(CalibrateConfig(method="dark_white", panel=0.99)) == []
    sun = CalibrateConfig(to="toa_reflectance", method="toa", solar="own.csv")
    assert stage_files(sun) == ["own.csv"]
    assert stage_files(CalibrateConfig(to="toa_reflectance", method="toa", solar="tsis1_hsrs")) == []
    assert stage_files(ResampleBandsConfig(sensor="EnMAP")) == []


def test_settings_of_a_workflow_can_be_handed_over_as_they_are(scene, physical) -> None:
    raw = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    settings = CalibrateConfig(scale=0.5).model_dump(mode="json")
    np.testing.assert_allclose(physical(calibrate(scene(raw), **settings)), raw * 0.5)


@pytest.mark.process
def test_the_settings_load_without_the_heavy_libraries() -> None:
    code = (
        "import sys, bandstream.pipeline.calibration.config as c; c.CalibrateConfig();"
        "print([m for m in ('xarray', 'dask', 'scipy', 'rasterio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
