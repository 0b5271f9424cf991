"""Which bands see a feature."""

from __future__ import annotations

import numpy as np
import pytest

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.select.diagnostics import Seen, reach_nm, see
from bandstream.pipeline.stages.select.features import Feature
from bandstream.pipeline.stages.stage import BandTable

CLAY = Feature(
    centre_nm=(2200, 2210), left_nm=(2120, 2140), right_nm=(2280, 2280), tells="", sets=["x"], sources=["x"]
)


def _table(centres, fwhm=None) -> BandTable:
    widths = None if fwhm is None else np.broadcast_to(np.asarray(fwhm, float), len(centres)).copy()
    return BandTable(len(centres), np.asarray(centres, float), widths)


def _see(table: BandTable, usable=None) -> Seen:
    return see(table, [CLAY], np.ones(table.count, bool) if usable is None else np.asarray(usable))[0]


def test_the_nearest_bands_to_centre_and_shoulders_are_seen() -> None:
    table = _table(np.arange(2000, 2400, 10.0), 10)
    assert {part: table.wavelength_nm[band] for part, band in _see(table).bands.items()} == {
        "centre": 2200,  # as near to 2205 as 2210 is, and the lower number
        "left shoulder": 2130,
        "right shoulder": 2280,
    }
    assert _see(table).lacking == []


@pytest.mark.parametrize("order", [slice(None, None, -1), np.random.default_rng(0).permutation(43)])
def test_the_order_of_the_bands_does_not_matter(order) -> None:
    """Descending centres, and those of two detectors interleaved; the tie above is avoided by an odd step."""
    centres = 2000 + 9.3 * np.arange(43)
    straight, turned = _table(centres, 10), _table(centres[order], 10)
    found = {part: turned.wavelength_nm[band] for part, band in _see(turned).bands.items()}
    assert found == {part: straight.wavelength_nm[band] for part, band in _see(straight).bands.items()}


def test_of_overlapping_detectors_the_lower_number_wins_at_equal_distance() -> None:
    table = _table([2130, 2205, 2280, 2130, 2205, 2280], 10)
    assert _see(table).bands == {"centre": 1, "left shoulder": 0, "right shoulder": 2}


def test_a_band_reaches_one_fwhm_and_no_farther() -> None:
    assert not _see(_table([2130, 2189.9, 2280], 10)).covered
    assert _see(_table([2130, 2190.0, 2280], 10)).bands["centre"] == 1
    assert _see(_table([2130, 2220.0, 2280], 10)).bands["centre"] == 1
    assert not _see(_table([2130, 2220.1, 2280], 10)).covered


def test_without_widths_a_band_reaches_to_the_next_other_centre() -> None:
    np.testing.assert_array_equal(reach_nm(_table([500, 510, 510, 530, np.nan])), [10, 10, 10, 20, 0])
    np.testing.assert_array_equal(reach_nm(_table([500, 510, 530], [np.nan, 7, 0])), [10, 7, 20])
    np.testing.assert_array_equal(reach_nm(_table([500])), [0])


def test_a_lost_shoulder_and_a_lost_centre_are_told_apart() -> None:
    no_right = _see(_table([2130, 2205], 10))
    assert no_right.covered
    assert no_right.lacking == ["right shoulder"]
    no_centre = _see(_table([2130, 2280], 10))
    assert not no_centre.covered
    assert no_centre.lacking == ["centre"]


def test_a_band_too_wide_to_resolve_a_feature_leaves_it_without_shoulders() -> None:
    wide = _see(_table([1650, 2215], [80, 180]))  # the SWIR bands of a multispectral sensor
    assert wide.bands == {"centre": 1, "left shoulder": 1, "right shoulder": 1}
    assert wide.lacking == ["left shoulder", "right shoulder"]


def test_bands_without_a_wavelength_and_bands_not_usable_see_nothing() -> None:
    table = _table([2130, np.nan, 2205, 2212, 2280], 10)
    assert _see(table).bands["centre"] == 2
    assert _see(table, [True, True, False, True, True]).bands["centre"] == 3


@pytest.mark.parametrize("table", [BandTable(3), _table([np.nan] * 3)])
def test_without_any_wavelength_the_key_is_named(table: BandTable) -> None:
    with pytest.raises(ConfigError, match=r"reduce\.features needs wavelengths"):
        _see(table)
