"""`bandstream scene calibrate`: what is written reads back as what was calculated."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from bandstream.pipeline import open_scene
from bandstream.pipeline.cli import app
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.scene import scale_offset

RAW = np.random.default_rng(0).integers(100, 9000, (6, 5, 4)).astype("<u2")
RAW[0, 0], RAW[5, 4] = 200, 8000


@pytest.fixture
def source(tmp_path):
    return envi(tmp_path, "raw", RAW)


def envi(folder, name, cube):
    rows, cols, bands = cube.shape
    path = folder / f"{name}.hdr"
    path.write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {bands}\ninterleave = bip\ndata type = 12\nbyte order = 0\n"
        "wavelength units = nm\nwavelength = {450, 550, 650, 850}\nfwhm = {10, 10, 10, 20}\n"
    )
    cube.tofile(folder / f"{name}.raw")
    return path


def call(*arguments):
    done = CliRunner().invoke(app, ["scene", "calibrate", *map(str, arguments), "--json"])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_frames_and_a_panel(tmp_path, source) -> None:
    dark, white = (envi(tmp_path, n, np.full((3, 5, 4), v, "<u2")) for n, v in (("d", 50), ("w", 10000)))
    out = tmp_path / "out.tif"
    found = call(source, out, "--dark", dark, "--white", white, "--panel", "0.5")
    assert found["quantity"] == "surface_reflectance"
    np.testing.assert_allclose(open_scene(out)["data"].values, (RAW - 50.0) / 9950 * 0.5, rtol=1e-6)


def test_targets_and_field_spectra(tmp_path, source) -> None:
    (tmp_path / "f.csv").write_text("nm,a,b\n400,0.1,0.6\n900,0.1,0.6\n")
    out = tmp_path / "out.nc"
    targets = ("--targets", "a:0:0", "--targets", "b:5:6:4:5")
    call(source, out, "--method", "empirical_line", "--spectra", tmp_path / "f.csv", *targets)
    values = open_scene(out)["data"].values
    np.testing.assert_allclose(values[0, 0], 0.1, rtol=1e-6)
    np.testing.assert_allclose(values[5, 4], 0.6, rtol=1e-6)


def test_stored_numbers_keep_their_type_beside_the_scale(tmp_path, source) -> None:
    out = tmp_path / "out.nc"
    found = call(source, out, "--scale", "1e-4", "--stored")
    again = open_scene(out)
    np.testing.assert_array_equal(again["data"].values, RAW)
    np.testing.assert_allclose(scale_offset(again)[0], 1e-4)
    assert found["calibration"] == ["surface_reflectance by scale and offset"]


def test_resampling_alone(tmp_path, source, monkeypatch) -> None:
    asked = {}

    def fake(scene, *, sensor, missing):
        asked.update(sensor=sensor, missing=missing)
        return scene

    monkeypatch.setattr("bandstream.pipeline.calibration.resample.resample_bands", fake)
    call(source, tmp_path / "out.hdr", "--method", "none", "--sensor", "EnMAP")
    assert asked == {"sensor": "EnMAP", "missing": "refuse"}
    with pytest.raises(ConfigError, match="only resamples"):
        call(source, tmp_path / "out2.hdr", "--method", "none", "--scale", "2")


def test_bands_of_the_sensor_that_the_scene_lacks_are_left_out_on_demand(tmp_path, source) -> None:
    out = tmp_path / "out.hdr"
    with pytest.raises(ConfigError, match="--drop-missing"):
        call(source, out, "--method", "none", "--sensor", "EnMAP")
    with pytest.warns(BandstreamWarning, match="left out"):
        found = call(source, out, "--method", "none", "--sensor", "EnMAP", "--drop-missing")
    assert 0 < found["bands"] < 224


def test_messages_name_the_options_of_the_command(tmp_path, source) -> None:
    with pytest.raises(ConfigError, match=r"tells no scale.*set --scale, for example") as caught:
        call(source, tmp_path / "out.nc")
    assert "calibrate." not in str(caught.value)
    wanted = ("--to", "toa_reflectance", "--read", "quantity=radiance", "--scale", "1", "--distance", "1")
    with pytest.raises(ConfigError, match=r"--sun-zenith\b"):
        call(source, tmp_path / "out.nc", *wanted)


def test_read_says_what_the_file_does_not(tmp_path) -> None:
    np.savez(tmp_path / "two.npz", a=RAW, b=RAW + 1)
    out = tmp_path / "out.nc"
    call(tmp_path / "two.npz", out, "--read", "variable=b", "--scale", "0.5")
    np.testing.assert_allclose(open_scene(out)["data"].values, (RAW + 1) * 0.5, rtol=1e-6)


def test_calibrating_twice_is_refused_in_options_of_the_command_line(tmp_path, source) -> None:
    once = tmp_path / "once.tif"
    call(source, once, "--scale", "1e-4")
    with pytest.raises(ConfigError, match=r"once\.tif holds surface_reflectance already"):
        call(once, tmp_path / "twice.tif")
    assert not (tmp_path / "twice.tif").exists()
