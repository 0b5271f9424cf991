"""Quicklooks: decoded PNGs against numpy, and what is told about them."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from PIL import Image
from typer.testing import CliRunner

from bandstream.pipeline import open_scene
from bandstream.pipeline.cli import app
from bandstream.pipeline.errors import BandstreamError, ConfigError, SceneError
from bandstream.pipeline.pictures import NODATA_GREY
from bandstream.pipeline.quicklook import Look, band_states, draw_quicklook, spectra_at
from bandstream.pipeline.readers.cube import RawCube
from bandstream.pipeline.scene import make_scene
from bandstream.pipeline.spectraplot import breaks

from .conftest import MadeScene

NM = np.array([860.0, 660.0, 480.0, 560.0, 1400.0, 2200.0])
RNG = np.random.default_rng(0)
RAW = RNG.permutation(4 * 6 * 6).reshape(4, 6, 6).astype(np.int16) + 100
RAW[1, 2] = -9999


def scene(raw: np.ndarray = RAW, chunk: int = 3, **options: Any) -> xr.Dataset:
    defaults: dict[str, Any] = {
        "wavelength_nm": NM,
        "nodata": -9999,
        "scale": 0.01,
        "offset": -1,
        "scene_id": "tiny",
    }
    return make_scene(da.from_array(raw, chunks=(chunk, -1, -1)), **defaults | options)


def page_of(png: Path) -> np.ndarray:
    with Image.open(png) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def colours_of(png: Path) -> set[int]:
    """Return the colours of a page as 0xRRGGBB."""
    page = page_of(png).astype(np.int64)
    return set(np.unique(page @ np.array([65536, 256, 1])).tolist())


def cells(png: Path, rows: int, cols: int) -> np.ndarray:
    """Return the colour in the middle of each cell of the picture on a page: (rows, cols, 3).

    The picture is the frame of its outline, the first and last columns and rows that are grey (#888888) throughout.
    """
    page = page_of(png).astype(int)
    outline = np.abs(page - 0x88).max(-1) < 60
    down, across = np.flatnonzero(outline.mean(1) > 0.5), np.flatnonzero(outline.mean(0) > 0.5)
    top, bottom, left, right = down.min(), down.max(), across.min(), across.max()
    y = (top + (bottom - top) * (np.arange(rows) + 0.5) / rows).astype(int)
    x = (left + (right - left) * (np.arange(cols) + 0.5) / cols).astype(int)
    return page[np.ix_(y, x)]


def expected(bands: list[int], low: float = 2, high: float = 98) -> np.ndarray:
    """Stretch by the book."""
    value = np.where(RAW[..., bands] == -9999, np.nan, RAW[..., bands] * 0.01 - 1)
    floor, top = np.nanpercentile(value, [low, high], axis=(0, 1))
    with np.errstate(invalid="ignore"):
        level = np.rint(255 * np.clip((value - floor) / (top - floor), 0, 1))
    return np.where(np.isnan(level), NODATA_GREY, level)


@pytest.mark.parametrize(
    ("look", "bands", "percent"),
    [
        (Look(), [1, 3, 2], (2, 98)),
        (Look("cir", stretch=(0, 100)), [0, 1, 3], (0, 100)),
        (Look("band", band=6, stretch=(10, 90)), [5, 5, 5], (10, 90)),
        (Look("band", wavelength_nm=1390), [4, 4, 4], (2, 98)),
    ],
)
def test_each_pixel_is_the_stretched_value_and_nodata_is_grey(
    tmp_path: Path, look: Look, bands: list[int], percent
) -> None:
    told = draw_quicklook(scene(), tmp_path / "q.png", look)
    found = cells(tmp_path / "q.png", 4, 6)
    np.testing.assert_allclose(found, expected(bands, *percent), atol=1)
    assert (found[1, 2] == NODATA_GREY).all()
    (picture,) = told["pictures"]
    shown = list(dict.fromkeys(bands))
    assert picture["bands"] == [band + 1 for band in shown]
    assert picture["wavelength_nm"] == NM[shown].tolist()
    value = np.where(RAW[..., shown] == -9999, np.nan, RAW[..., shown] * 0.01 - 1)
    np.testing.assert_allclose(picture["stretch"], np.nanpercentile(value, percent, axis=(0, 1)).T)
    for low, high in picture["stretch"]:
        assert f"{low:.4g} to {high:.4g}" in picture["caption"]


def test_the_picture_is_thinned_to_the_size_asked_for(tmp_path: Path) -> None:
    told = draw_quicklook(scene(), tmp_path / "q.png", Look(stretch=(0, 100), size=3))
    (picture,) = told["pictures"]
    assert (picture["step"], picture["shape_yx"]) == (2, [2, 3])
    assert "every 2nd pixel" in picture["caption"]
    value = RAW[::2, ::2][..., [1, 3, 2]].astype(float)
    low, high = value.min((0, 1)), value.max((0, 1))
    np.testing.assert_allclose(cells(tmp_path / "q.png", 2, 3), 255 * (value - low) / (high - low), atol=1)


def test_a_scene_without_wavelengths_shows_first_middle_and_last_and_says_so(tmp_path: Path) -> None:
    told = draw_quicklook(scene(wavelength_nm=None), tmp_path / "q.png")
    (picture,) = told["pictures"]
    assert picture["bands"] == [1, 4, 6]
    assert picture["wavelength_nm"] is None
    assert "has no wavelengths" in picture["caption"]
    np.testing.assert_allclose(cells(tmp_path / "q.png", 4, 6), expected([0, 3, 5]), atol=1)
    with pytest.raises(SceneError, match="no wavelengths"):
        draw_quicklook(scene(wavelength_nm=None), tmp_path / "q.png", Look("band", wavelength_nm=800))


def test_spectra_are_physical_values_with_bad_bands_left_out(tmp_path: Path) -> None:
    good = np.array([True, True, False, True, True, True])
    raw = RAW.copy()
    raw[2, 3, 1] = -9999
    look = Look("spectra", points=[(2, 3), (0, 0), (1, 2)])
    told = draw_quicklook(
        scene(raw, good_band=good, quantity="surface_reflectance"), tmp_path / "s.png", look
    )
    (picture,) = told["pictures"]
    value = raw[[2, 0, 1], [3, 0, 2]] * 0.01 - 1
    value[0, 1] = value[2] = np.nan
    value[:, 2] = np.nan
    np.testing.assert_allclose(np.array(picture["values"], float), value)
    assert picture["points"] == [[2, 3], [0, 0], [1, 2]]
    assert "No data at 1,2" in picture["caption"]
    assert "2 of 6 bands" in picture["caption"]  # 480 nm is listed as bad, 1400 nm lies in a water window
    np.testing.assert_allclose(
        spectra_at(scene(raw), [(2, 3)])[0], raw[2, 3] * 0.01 - 1 + [0, np.nan, 0, 0, 0, 0]
    )
    found = colours_of(tmp_path / "s.png")
    assert 0xDDDDDD in found, "shaded windows"
    assert {0xE69F00, 0x56B4E9} <= found, "a line for each point with data"


def test_lines_break_where_the_order_turns_bands_are_missing_or_the_detector_changes() -> None:
    x = np.array([500.0, 510, 520, 515, 525, 535, 600, 610, 620])
    assert breaks(x).tolist() == [3, 6]
    assert breaks(x[::-1]).tolist() == [3, 6]
    detector = np.array(["vnir"] * 5 + ["swir"] * 4)
    assert breaks(x, detector).tolist() == [3, 5, 6]


def test_the_state_of_each_band_is_judged_by_a_sample(tmp_path: Path) -> None:
    raw = np.stack([RNG.integers(1, 3000, (100, 130)) for _ in range(6)], -1).astype(np.int16)
    raw[:, :, 1] = -9999
    raw[:, :, 3] = 7
    raw[:50, :, 5] = -9999
    made = scene(raw, good_band=[False, True, True, True, True, True])
    states = band_states(made)
    sample = raw[::2, ::3]
    assert states.pixels == sample[..., 0].size
    np.testing.assert_allclose(states.nodata_share, (sample == -9999).mean((0, 1)))
    np.testing.assert_allclose(states.spread[1, 2], np.median(sample[..., 2]) * 0.01 - 1)
    told = draw_quicklook(made, tmp_path / "b.png", Look("bands"))
    (picture,) = told["pictures"]
    assert picture["listed_bad"] == [1]
    assert picture["without_data"] == [2]
    assert picture["constant"] == [4]
    assert picture["in_water_window"] == [5]
    assert picture["nodata_share"][5] == pytest.approx(0.5)
    assert {0x000000, 0xD55E00, 0xE69F00, 0x56B4E9, 0x009E73} <= colours_of(tmp_path / "b.png")


@pytest.mark.parametrize(("bands", "fill"), [(1, 5), (2, -9999), (6, -9999)])
def test_scenes_of_few_bands_or_without_any_data_are_drawn(tmp_path: Path, bands: int, fill: int) -> None:
    raw = np.full((3, 5, bands), fill, np.int16)
    told = draw_quicklook(scene(raw, wavelength_nm=None), tmp_path / "all.png", Look("all"))
    assert [p["kind"] for p in told["pictures"]] == ["rgb", "spectra", "bands"]
    json.dumps(told, allow_nan=False)
    assert page_of(tmp_path / "all.png").shape[1] > 500


def test_unknown_wavelengths_of_single_bands_do_no_harm(tmp_path: Path) -> None:
    nm = NM.copy()
    nm[2] = np.nan
    told = draw_quicklook(scene(wavelength_nm=nm), tmp_path / "all.png", Look("all"))
    assert [p["kind"] for p in told["pictures"]] == ["rgb", "cir", "spectra", "bands"]
    json.dumps(told, allow_nan=False)
    assert told["pictures"][3]["wavelength_nm"][2] is None


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (Look("colour"), "allowed are rgb, cir"),
        (Look("band"), "either its number"),
        (Look("band", band=1, wavelength_nm=500), "either its number"),
        (Look("band", band=7), "none of the scene's 6"),
        (Look("band", band=0), "counted from 1"),
        (Look("spectra", points=[(4, 0)]), "rows are 0 to 3, columns 0 to 5"),
        (Look("spectra", points=[(0, 0)] * 13), "more than 12"),
        (Look(stretch=(98, 2)), "two percentiles"),
        (Look(stretch=(0, 200)), "two percentiles"),
        (Look(size=0), "at least 1 pixel"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, look: Look, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_quicklook(scene(), tmp_path / "q.png", look)


def test_a_file_of_the_scene_is_never_overwritten(made: MadeScene) -> None:
    opened = open_scene(made.path)
    with pytest.raises(ConfigError, match="is a file of the scene"):
        draw_quicklook(opened, made.path.with_suffix(".img"))


def test_of_a_huge_scene_only_a_thinned_set_of_pixels_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 GB of int16: neither memory nor what is read grows with the file."""
    path, (rows, cols, bands) = tmp_path / "huge.img", (5000, 5000, 200)
    with path.open("wb") as file:
        os.truncate(file.fileno(), rows * cols * bands * 2)  # a hole: takes no room on the disk
    nm = ", ".join(f"{w:.1f}" for w in np.linspace(400, 2400, bands))
    path.with_suffix(".hdr").write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {bands}\ndata type = 2\ninterleave = bil\nbyte order = 0\n"
        f"wavelength units = Nanometers\nwavelength = {{{nm}}}\n"
    )
    opened = open_scene(path.with_suffix(".hdr"))
    sizes: list[int] = []
    original = RawCube.__getitem__

    def watch(self: RawCube, key: Any) -> np.ndarray:
        block = original(self, key)
        sizes.append(block.size)
        return block

    monkeypatch.setattr(RawCube, "__getitem__", watch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # a span of at most half the bands is read for a colour picture, and up to 64 x 64 pixels for the bands' state
    for look, most in (
        (Look(size=100), 100 * 100 * 100),
        (Look("spectra"), 5 * 200),
        (Look("bands"), 64 * 64 * 200),
    ):
        sizes.clear()
        draw_quicklook(opened, tmp_path / "look.png", look)
        assert 0 < sum(sizes) <= most, look.kind
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


# command line


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["scene", "quicklook", *map(str, arguments)])


def test_the_command_draws_and_tells(made: MadeScene, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "look.png"
    done = call(
        made.path,
        "-o",
        out,
        "--kind",
        "all",
        "--band",
        "3",
        "--points",
        "1,2 30,40",
        "--points",
        "9, 9",
        "--json",
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["png"] == str(out)
    assert [p["kind"] for p in told["pictures"]] == ["rgb", "cir", "band", "spectra", "bands"]
    assert told["pictures"][2]["bands"] == [3]
    assert told["pictures"][3]["points"] == [[1, 2], [30, 40], [9, 9]]
    assert told["pictures"][4]["listed_bad"] == [6]
    assert page_of(out).ndim == 3


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ([], "rgb"),
        (["--wavelength", "850"], "band"),
        (["--points", "3,4"], "spectra"),
        (["--kind", "cir", "--stretch", "0,100", "--size", "10"], "cir"),
    ],
)
def test_the_kind_follows_from_what_is_asked_for(
    made: MadeScene, tmp_path: Path, arguments: list[str], kind: str
) -> None:
    done = call(made.path, "-o", tmp_path / "q.png", *arguments)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert re.split(r"\s+", lines[0])[0] == kind
    assert lines[-1] == str(tmp_path / "q.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--points", "3"], "row and column such as 10,20"),
        (["--stretch", "2"], "two percentiles"),
        (["--stretch", "1.2.3,4"], "two percentiles"),
        (["--read", "shape_yx=3x4"], "shape_yx"),
        (["--kind", "rgb", "--points", "1,1"], "--points goes with"),
        (["--kind", "bands", "--band", "1"], "go with --kind band"),
        (["--band", "1", "--wavelength", "500"], "either its number"),
    ],
)
def test_wrong_options_are_named(made: MadeScene, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = call(made.path, "-o", tmp_path / "q.png", *arguments)
    assert isinstance(done.exception, BandstreamError)
    assert message in str(done.exception)


def test_reader_options_reach_the_reader(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros((5, 6, 4)), b=RNG.random((7, 12, 9)))
    done = call(
        tmp_path / "two.npz", "-o", tmp_path / "q.png", "--read", "variable=b", "--read", "axes=byx", "--json"
    )
    assert done.exit_code == 0, done.output
    (picture,) = json.loads(done.output[done.output.index("{") :])["pictures"]
    assert picture["shape_yx"] == [12, 9]
    assert picture["bands"] == [1, 4, 7]
