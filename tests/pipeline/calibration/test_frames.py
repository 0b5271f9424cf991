"""Dark and white frames: (raw - dark) / (white - dark) by hand, streamed, never infinite."""

from __future__ import annotations

import tracemalloc

import dask.array as da
import numpy as np
import pytest

from bandstream.pipeline import open_scene
from bandstream.pipeline.calibration import calibrate
from bandstream.pipeline.calibration.reference_frames import exposure, load_frame
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.scene import make_scene

RNG = np.random.default_rng(3)
RAW = RNG.integers(200, 3000, (7, 6, 5)).astype(np.uint16)
DARK = RNG.integers(90, 110, (11, 6, 5)).astype(np.uint16)
WHITE = RNG.integers(3000, 3500, (13, 6, 5)).astype(np.uint16)


def expected(panel=1.0):
    dark, white = DARK.mean(axis=0, dtype=np.float64), WHITE.mean(axis=0, dtype=np.float64)
    return (RAW - dark) / (white - dark) * panel


def write_envi(path, cube, **fields):
    rows, cols, bands = cube.shape
    lines = [
        "ENVI",
        f"samples = {cols}",
        f"lines = {rows}",
        f"bands = {bands}",
        "interleave = bil",
        "data type = 12",
    ]
    lines += ["byte order = 0", *(f"{key.replace('_', ' ')} = {value}" for key, value in fields.items())]
    path.write_text("\n".join(lines) + "\n")
    cube.transpose(0, 2, 1).astype("<u2").tofile(path.with_suffix(".raw"))
    return path


def test_frames_of_many_lines_are_averaged_per_column_and_band(scene) -> None:
    ds = scene(RAW)
    found = calibrate(ds, method="dark_white", dark=scene(DARK), white=scene(WHITE), panel=0.98)
    np.testing.assert_allclose(found["data"].values, expected(0.98), rtol=1e-6)
    assert (found.attrs["quantity"], found["data"].dtype) == ("surface_reflectance", np.float32)
    assert "11 and 13 lines" in found.attrs["calibration"][0]


def test_paths_work_as_scenes_do_and_auto_takes_them(tmp_path) -> None:
    paths = [write_envi(tmp_path / f"{n}.hdr", c) for n, c in (("raw", RAW), ("d", DARK), ("w", WHITE))]
    found = calibrate(open_scene(paths[0]), dark=str(paths[1]), white=paths[2], panel=1.0)
    np.testing.assert_allclose(found["data"].values, expected(), rtol=1e-6)
    ds = open_scene(paths[0])
    ds.attrs |= {"dark_file": str(paths[1]), "white_file": str(paths[2])}
    np.testing.assert_array_equal(calibrate(ds, panel=1.0)["data"].values, found["data"].values)


def test_the_frames_own_scale_counts_and_nodata_in_them_is_left_out(scene) -> None:
    white = WHITE.astype(np.int32)
    white[2, 3, 1] = -1
    kept = np.where(white == -1, np.nan, white)
    found = calibrate(
        scene(RAW, scale=2.0, offset=5.0),
        method="dark_white",
        dark=scene(DARK, scale=2.0, offset=5.0),
        white=scene(white, scale=2.0, offset=5.0, nodata=-1),
        panel=1.0,
    )
    dark = DARK.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(
        found["data"].values, (RAW - dark) / (np.nanmean(kept, axis=0) - dark), rtol=1e-6
    )


def test_nodata_of_the_scene_becomes_nan_and_touches_no_neighbour(scene) -> None:
    raw = RAW.copy()
    raw[2, 1, 3] = 0
    found = calibrate(
        scene(raw, nodata=0), method="dark_white", dark=scene(DARK), white=scene(WHITE), panel=1.0
    )["data"].values
    assert np.isnan(found[2, 1, 3])
    assert np.isnan(found).sum() == 1
    np.testing.assert_allclose(found[~np.isnan(found)], expected()[~np.isnan(found)], rtol=1e-6)


def test_a_white_that_is_not_brighter_gives_nodata_and_a_count(scene) -> None:
    white = WHITE.copy()
    white[:, 2, 1] = DARK.mean(axis=0).astype(np.uint16)[2, 1] * 0 + 50  # below the dark
    dark = DARK.copy()
    dark[:, 4, 0], white[:, 4, 0] = 100, 100  # equal
    with pytest.warns(BandstreamWarning, match="not brighter than .* in 2 of 30 places"):
        found = calibrate(scene(RAW), method="dark_white", dark=scene(dark), white=scene(white), panel=1.0)
    values = found["data"].values
    assert np.isnan(values[:, 2, 1]).all()
    assert np.isnan(values[:, 4, 0]).all()
    assert np.isnan(values).sum() == 2 * 7
    assert not np.isinf(values).any()


def test_swapped_frames_are_refused(scene) -> None:
    with pytest.raises(ConfigError, match="swapped"):
        calibrate(scene(RAW), method="dark_white", dark=scene(WHITE), white=scene(DARK), panel=1.0)


def test_a_panel_of_unknown_reflectance_is_said(scene) -> None:
    with pytest.warns(BandstreamWarning, match="relative to the panel"):
        found = calibrate(scene(RAW), method="dark_white", dark=scene(DARK), white=scene(WHITE))
    np.testing.assert_allclose(found["data"].values, expected(), rtol=1e-6)


def test_a_panels_spectrum_is_brought_to_the_bands(scene, tmp_path) -> None:
    path = tmp_path / "panel.csv"
    path.write_text("nm,panel\n" + "".join(f"{nm},{0.5 + nm / 10000}\n" for nm in range(400, 1000)))
    facts = {"wavelength_nm": [450, 500, 550, 600, 650], "fwhm_nm": [5.0] * 5}
    found = calibrate(
        scene(RAW, **facts),
        method="dark_white",
        dark=scene(DARK),
        white=scene(WHITE),
        panel=str(path),
    )
    panel = 0.5 + np.array([450, 500, 550, 600, 650]) / 10000  # a straight line is its own Gaussian mean
    np.testing.assert_allclose(found["data"].values, expected(panel), rtol=1e-6)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (DARK[:, :5], "has 5 columns, and made.hdr has 6"),
        (DARK[:, :, :4], "has 4 bands, and made.hdr has 5"),
    ],
)
def test_frames_of_other_sizes_are_refused(scene, frame, message) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate(scene(RAW), method="dark_white", dark=scene(frame), white=scene(WHITE), panel=1.0)


def test_frames_of_other_bands_are_refused(scene) -> None:
    nm = np.array([450.0, 500, 550, 600, 650])
    with pytest.raises(ConfigError, match=r"Band 1 of the dark frame .* lies at 453\.00 nm"):
        calibrate(
            scene(RAW, wavelength_nm=nm),
            method="dark_white",
            dark=scene(DARK, wavelength_nm=nm + 3),
            white=scene(WHITE),
            panel=1.0,
        )


@pytest.mark.parametrize("quantity", ["surface_reflectance", "toa_reflectance"])
def test_reflectance_is_not_divided_by_a_panel_again(scene, quantity) -> None:
    with pytest.raises(ConfigError, match="already"):
        calibrate(
            scene(RAW, quantity=quantity),
            method="dark_white",
            dark=scene(DARK),
            white=scene(WHITE),
            panel=1.0,
        )


def test_a_frame_that_is_missing_or_not_wanted_is_said(scene) -> None:
    with pytest.raises(ConfigError, match="needs a dark reference frame"):
        calibrate(scene(RAW), method="dark_white", white=scene(WHITE), panel=1.0)
    with pytest.raises(ConfigError, match="no use for dark and white"):
        calibrate(scene(RAW, scale=1e-4), method="scale", dark=scene(DARK), white=scene(WHITE))


def test_another_integration_time_is_refused_unless_its_ratio_is_given(tmp_path) -> None:
    raw = write_envi(tmp_path / "raw.hdr", RAW, tint=8.0)
    dark = write_envi(tmp_path / "d.hdr", DARK, tint=8.0)
    white = write_envi(tmp_path / "w.hdr", WHITE, tint=4.0)
    assert exposure(open_scene(raw)) == ("tint", 8.0)
    with pytest.raises(ConfigError, match=r"tint = 8.* with 4.*exposure_ratio \(scene over white, here 2\)"):
        calibrate(open_scene(raw), dark=dark, white=white, panel=1.0)
    found = calibrate(open_scene(raw), dark=dark, white=white, panel=1.0, exposure_ratio=2.0)
    np.testing.assert_allclose(found["data"].values, expected() / 2, rtol=1e-6)


def test_a_white_at_the_converters_full_scale_is_said(scene) -> None:
    white = WHITE.copy()
    white[3:5, 2, 2] = 4095
    with pytest.warns(BandstreamWarning, match="2 numbers of the white frame .* full scale"):
        calibrate(scene(RAW), method="dark_white", dark=scene(DARK), white=scene(white), panel=1.0)


def test_the_memory_for_a_frame_does_not_grow_with_its_lines(scene) -> None:
    like = scene(np.zeros((2, 128, 100), np.uint16))

    def peak(lines: int) -> int:
        frame = make_scene(da.full((lines, 128, 100), 7, dtype=np.uint16, chunks=(16, -1, -1)))
        load_frame(frame, like, "dark")  # what is imported and cached once
        tracemalloc.start()
        found = load_frame(frame, like, "dark")
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (found.mean_xb == 7).all()
        return top

    line = 128 * 100 * 2
    assert peak(640) < peak(64) + 20 * line, "576 more lines, in the memory of 20"


@pytest.mark.parametrize("order", ["bil", "bip", "bsq"])
def test_any_memory_order_of_the_chunks_gives_the_same(scene, order) -> None:
    axes = {"bil": (0, 2, 1), "bip": (0, 1, 2), "bsq": (2, 0, 1)}[order]
    stored = np.ascontiguousarray(RAW.transpose(axes))
    ds = make_scene(da.from_array(stored.transpose(np.argsort(axes)), chunks=(3, 2, 2)))
    found = calibrate(ds, method="dark_white", dark=scene(DARK), white=scene(WHITE), panel=1.0)
    np.testing.assert_allclose(found["data"].values, expected(), rtol=1e-6)


@pytest.mark.parametrize("role", ["dark", "white"])
def test_frames_of_another_quantity_are_refused(scene, role) -> None:
    raw = np.full((3, 2, 2), 10, np.uint16)
    frames = {"dark": scene(raw - 10), "white": scene(raw * 9)}
    frames[role].attrs["quantity"] = "radiance"
    with pytest.raises(ConfigError, match=f"The {role} frame .* holds radiance"):
        calibrate(scene(raw), method="dark_white", panel=1.0, **frames)


def test_bands_without_a_centre_do_not_hide_that_others_differ(scene) -> None:
    raw = np.full((3, 2, 2), 10, np.uint16)
    ours, others = {"wavelength_nm": [np.nan, 500.0]}, {"wavelength_nm": [np.nan, 600.0]}
    with pytest.raises(ConfigError, match="Band 2 of the white frame"):
        calibrate(
            scene(raw, **ours),
            method="dark_white",
            panel=1.0,
            dark=scene(raw - 10, **ours),
            white=scene(raw, **others),
        )


def test_frames_of_another_scale_than_raw_numbers_are_refused(scene) -> None:
    with pytest.raises(ConfigError, match="different scales"):
        calibrate(scene(RAW, scale=0.5), method="dark_white", dark=scene(DARK), white=scene(WHITE), panel=1.0)
