"""Where a spectrum is one curve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.segments import segments
from bandstream.pipeline.stages.stage import BandTable


def _pieces(centres, detector=None) -> list[list[int]]:
    centres = np.asarray(centres, float)
    table = BandTable(len(centres), centres, None, detector)
    return [piece.tolist() for piece in segments(table, "smooth")]


def test_evenly_spaced_bands_are_one_segment_in_ascending_order() -> None:
    assert _pieces(np.arange(900, 400, -10)) == [list(range(49, -1, -1))]


def test_a_dropped_window_ends_a_segment_and_a_few_missing_bands_do_not() -> None:
    centres = np.arange(400, 2500, 10.0)
    water = (centres > 1340) & (centres < 1450)
    found = _pieces(centres[~water])
    assert [len(piece) for piece in found] == [95, 105]
    assert _pieces(np.delete(centres, [50, 51, 52, 53]))[0] == list(range(len(centres) - 4))


def test_a_band_alone_between_two_windows_is_a_segment_of_its_own() -> None:
    assert _pieces([400, 410, 420, 430, 530, 630, 640, 650]) == [[0, 1, 2, 3], [4], [5, 6, 7]]


def test_multispectral_spacings_that_grow_with_wavelength_are_one_segment() -> None:
    sentinel_2 = [443, 490, 560, 665, 705, 740, 783, 842, 865, 945, 1375, 1610, 2190]
    assert _pieces(sentinel_2) == [list(range(13))]
    landsat_8 = [443, 482, 561, 655, 865, 1609, 2201]
    assert _pieces(landsat_8) == [list(range(7))]


def test_detectors_that_overlap_are_kept_apart() -> None:
    centres = [900, 910, 920, 905, 915, 925]
    assert _pieces(centres, ("vnir",) * 3 + ("swir",) * 3) == [[0, 1, 2], [3, 4, 5]]
    assert _pieces(centres) == [[0, 3, 1, 4, 2, 5]]


def test_equal_centres_are_no_gap_and_keep_their_order() -> None:
    assert _pieces([500, 510, 510, 510, 520, 530]) == [[0, 1, 2, 3, 4, 5]]


def test_no_wavelengths_and_single_unknown_ones_are_refused_by_the_key() -> None:
    with pytest.raises(ConfigError, match=r"^smooth needs wavelengths"):
        segments(BandTable(3), "smooth")
    with pytest.raises(ConfigError, match="band 2 of the 3"):
        _pieces([400, np.nan, 420])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([300.0, 301, 340, 350, 360, 900, 2000]), st.sampled_from("ab"))))
def test_every_band_is_in_one_segment_of_its_detector(bands: list[tuple[float, str]]) -> None:
    centres, detector = np.array([b[0] for b in bands]), tuple(b[1] for b in bands)
    found = _pieces(centres, detector)
    assert sorted(band for piece in found for band in piece) == list(range(len(bands)))
    for piece in found:
        assert len({detector[band] for band in piece}) == 1
        assert (np.diff(centres[piece]) >= 0).all()
