"""`bandstream scene convert`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from bandstream.pipeline.cli import app
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.readers import open_scene

CUBE = np.random.default_rng(0).integers(0, 4000, (9, 7, 5)).astype("u2")


def run(*args):
    result = CliRunner().invoke(app, ["scene", "convert", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_table_of_pixels_becomes_an_envi_file(tmp_path):
    np.save(tmp_path / "a.npy", CUBE.reshape(63, 5))
    out = run(
        tmp_path / "a.npy", tmp_path / "b.hdr", "--read", "shape_yx=[9, 7]", "--read", "axes=yxb", "--interleave",
        "bip", "--read", "scale=0.5", "--read", "offset=[1,2,3,4,5]", "--read", "nodata=0", "--json",
    )  # fmt: skip
    assert json.loads(out.stdout) == {"written": [str(tmp_path / "b.hdr"), str(tmp_path / "b.img")]}
    assert (tmp_path / "b.img").read_bytes() == CUBE.tobytes()
    found = open_scene(tmp_path / "b.hdr")
    assert found["offset"].values.tolist() == [1, 2, 3, 4, 5]
    assert found.attrs["nodata"] == 0


def test_physical_values_overwriting_and_formats(tmp_path):
    np.save(tmp_path / "a.npy", CUBE)
    assert run(tmp_path / "a.npy", tmp_path / "b.tif", "--physical", "--read", "scale=2").stdout.split() == [
        str(tmp_path / "b.tif")
    ]
    assert np.array_equal(open_scene(tmp_path / "b.tif")["data"].values, CUBE * 2.0)
    with pytest.raises(ConfigError, match="exists already"):
        run(tmp_path / "a.npy", tmp_path / "b.tif")
    run(tmp_path / "a.npy", tmp_path / "b.tif", "--overwrite", "--format", "cog", "--read", "quantity=dn")
    assert np.array_equal(open_scene(tmp_path / "b.tif")["data"].values, CUBE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("shape_yx=[9]", "shape_yx"),
        ("shape_yx=[0, 7]", "shape_yx"),
        ("scale=x", "scale"),
        ("nodata=[1, a]", "nodata"),
        ("quantity=albedo", "surface_reflectance"),
        ("wavelength_units=nm", "wavelength_unit"),
        ("nodata", "KEY=VALUE"),
    ],
)
def test_reader_options_that_mean_nothing_are_refused_with_what_is_allowed(tmp_path, given, message):
    np.save(tmp_path / "a.npy", CUBE)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "a.npy", tmp_path / "b.tif", "--read", given)
    assert not (tmp_path / "b.tif").exists()


def test_the_help_names_the_keys_that_are_read():
    from bandstream.pipeline.cli.options import READ_KEYS
    from bandstream.pipeline.reader_options import ReaderOptions

    assert list(READ_KEYS) == list(ReaderOptions.model_fields)
