"""Gains and offsets: applied once, never to another quantity, and never touching a pixel."""

from __future__ import annotations

import numpy as np
import pytest

from bandstream.pipeline.calibration import calibrate
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.scene import scale_offset

RAW = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("facts", "asked", "expected"),
    [
        ({"scale": 1e-4}, {}, (1e-4, 0)),
        ({"scale": 1e-4, "offset": -0.1}, {}, (1e-4, -0.1)),
        ({"scale": 1e-4}, {"scale": 2e-4}, (2e-4, 0)),
        ({}, {"scale": 0.5, "offset": 1.0}, (0.5, 1)),
    ],
)
def test_the_scenes_own_numbers_count_or_those_given_in_their_place(scene, facts, asked, expected) -> None:
    ds = scene(RAW, **facts)
    found = calibrate(ds, "surface_reflectance", **asked)
    scale, offset = scale_offset(found)
    assert scale.tolist() == [expected[0]] * 4
    assert offset.tolist() == [expected[1]] * 4
    assert found.attrs["quantity"] == "surface_reflectance"
    assert found["data"].data is ds["data"].data, "a scale must not cost a pixel"
    assert ds.attrs.get("quantity") == facts.get("quantity", "other"), "the scene given must stay as it was"


def test_calibrating_twice_is_calibrating_once(scene, physical) -> None:
    gains = np.array([1.0, 2.0, 3.0, 4.0])
    once = calibrate(scene(RAW, scale=gains, offset=gains / 10), "radiance")
    twice = calibrate(once, "radiance")
    np.testing.assert_allclose(physical(twice), RAW * gains + gains / 10)
    assert twice.attrs["units"] == "W m-2 sr-1 um-1"


@pytest.mark.parametrize("asked", [{}, {"scale": 1}, {"scale": 1.0, "offset": 0}])
@pytest.mark.parametrize(
    ("to", "method"),
    [
        ("surface_reflectance", "auto"),
        ("surface_reflectance", "scale"),
        ("toa_reflectance", "auto"),
        ("toa_reflectance", "toa"),
        ("radiance", "auto"),
        ("surface_radiance", "scale"),
    ],
)
def test_what_is_calibrated_is_refused_where_nothing_is_left_to_apply(scene, to, method, asked) -> None:
    for raw in (RAW.astype(np.float32), RAW):
        with pytest.raises(ConfigError, match=f"made.hdr holds {to} already.*nothing to calibrate"):
            calibrate(scene(raw, quantity=to), to, method, **asked)
    # what the file tells is still to be applied
    pending = scene(RAW, quantity=to, scale=1e-4, offset=0.5)
    assert scale_offset(calibrate(pending, to, method))[0].tolist() == [1e-4] * 4


@pytest.mark.parametrize(
    ("quantity", "to"),
    [
        ("radiance", "surface_reflectance"),
        ("toa_reflectance", "surface_reflectance"),
        ("surface_reflectance", "radiance"),
        ("surface_radiance", "radiance"),
    ],
)
def test_no_scale_turns_one_physical_quantity_into_another(scene, quantity, to) -> None:
    with pytest.raises(ConfigError, match=f"holds {quantity}, which no scale turns into it"):
        calibrate(scene(RAW, quantity=quantity, scale=0.1), to, "scale")


def test_a_scene_that_tells_no_scale_needs_one(scene) -> None:
    with pytest.raises(ConfigError, match=r"calibrate\.scale"):
        calibrate(scene(RAW))
    with pytest.raises(ConfigError, match=r"set calibrate\.scale to 1"):
        calibrate(scene(RAW.astype(np.float32)))
    with pytest.raises(ConfigError, match="tells no scale"):
        calibrate(scene(RAW, quantity="dn", scale=2.0), "radiance")


def test_nodata_stays_the_raw_number(scene, physical) -> None:
    raw = RAW.copy()
    raw[0, 1, 2] = -9999
    found = calibrate(scene(raw, scale=1e-4, nodata=-9999))
    assert found.attrs["nodata"] == -9999
    values = physical(found)
    assert np.isnan(values[0, 1, 2])
    assert np.isnan(values).sum() == 1


@pytest.mark.parametrize("facts", [{}, {"scale": 1.0}, {"scale": 2e-4}])
@pytest.mark.parametrize(("quantity", "method"), [("surface_reflectance", "scale"), ("radiance", "toa")])
def test_a_scale_is_not_applied_to_numbers_that_are_calibrated(scene, facts, quantity, method) -> None:
    to = "toa_reflectance" if method == "toa" else quantity
    ds = scene(RAW.astype(np.float32), quantity=quantity, **facts)
    with pytest.raises(ConfigError, match=f"holds {quantity} already"):
        calibrate(ds, to, method, scale=1e-4)


def test_the_scale_that_a_scene_tells_itself_may_be_given_too(scene) -> None:
    ds = scene(RAW, quantity="surface_reflectance", scale=1e-4)
    assert calibrate(ds, scale=1e-4).attrs["scale"] == 1e-4
    # integers without a scale are no reflectance, whatever their file says
    assert calibrate(scene(RAW, quantity="surface_reflectance"), scale=1e-4).attrs["scale"] == 1e-4
