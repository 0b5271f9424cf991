"""One rule for the units of wavelengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import FormatError
from bandstream.pipeline.readers.options import Notes
from bandstream.pipeline.readers.wavelengths import numbers, split_list, to_nanometres

NM = [460.0, 465.0, 2409.0]
UM = [0.46, 0.465, 2.409]


def convert(values, unit, **options):
    notes = Notes()
    wavelength, fwhm = to_nanometres(values, unit, "f.hdr", notes, **options)
    return wavelength, fwhm, notes.messages


@pytest.mark.parametrize("unit", ["nm", "Nanometers", "nanometer", " NM ", "nanometres", "{nm}"])
def test_nanometres_stay_as_they_are(unit):
    wavelength, _, messages = convert(NM, unit)
    assert wavelength.tolist() == NM
    assert messages == []


@pytest.mark.parametrize(
    "unit", ["um", "Micrometers", "micrometer", "Microns", "\u00b5m", "\u03bcm", "micrometres"]
)
def test_micrometres_become_nanometres_without_rounding_noise(unit):
    wavelength, fwhm, messages = convert(UM, unit, fwhm=[0.0058, 0.0058, 0.0091])
    assert wavelength.tolist() == NM
    assert fwhm.tolist() == [5.8, 5.8, 9.1]
    assert messages == []


@pytest.mark.parametrize("unit", [None, "", "Unknown", "Index", "n", "N/A"])
@pytest.mark.parametrize("values", [NM, UM])
def test_without_a_unit_the_magnitude_decides_with_one_warning(unit, values):
    wavelength, _, messages = convert(values, unit)
    assert wavelength.tolist() == NM
    assert len(messages) == 1
    assert "were taken as" in messages[0]


@pytest.mark.parametrize(("values", "unit", "like"), [(UM, "nm", "um"), (NM, "um", "nm"), (NM, "m", "nm")])
def test_a_declared_unit_that_contradicts_the_values_is_an_error(values, unit, like):
    with pytest.raises(FormatError, match=f"look like {like}"):
        convert(values, unit)


def test_the_users_unit_replaces_the_declared_one():
    assert convert(UM, "nm", override="um")[0].tolist() == NM
    with pytest.raises(FormatError, match="no unit of length"):
        convert(UM, "nm", override="furlong")


@pytest.mark.parametrize("unit", ["Wavenumber", "GHz", "MHz", "cm-1", "1/cm"])
def test_other_quantities_than_length_are_refused_by_name(unit):
    with pytest.raises(FormatError, match="is no length"):
        convert(NM, unit)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0, 0, 0], "all zero"),
        ([513.342] * 3, "all 513.342"),
        ([0, 1, 2, 3], "band index"),
        ([1, 2, 3, 4], "band index"),
    ],
)
@pytest.mark.parametrize("unit", [None, "nm"])
def test_placeholders_are_no_wavelengths(values, reason, unit):
    wavelength, fwhm, messages = convert(values, unit, fwhm=values)
    assert wavelength is None
    assert fwhm is None
    assert len(messages) == 1
    assert reason in messages[0]


def test_a_single_zero_among_real_wavelengths_is_kept_and_told():
    wavelength, _, messages = convert([0.0, 475.0, 940.0], "nm")
    assert wavelength.tolist() == [0.0, 475.0, 940.0]
    assert len(messages) == 1
    assert "band 1" in messages[0]


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_wavelengths_are_positive_numbers(bad):
    with pytest.raises(FormatError, match="band 2"):
        convert([400, bad, 500], "nm")


def test_widths_that_are_none_are_left_out():
    assert convert(NM, "nm", fwhm=[0, 0, 0])[1] is None


@pytest.mark.parametrize(("unit", "factor", "widths"), [("nm", 1, 0.0058), ("um", 1e-3, 5.8)])
def test_widths_in_another_unit_than_the_wavelengths_are_left_out_and_told(unit, factor, widths):
    values = np.array([460.0, 700, 2410]) * factor
    wavelength, fwhm, messages = convert(values, unit, fwhm=[widths] * 3)
    assert wavelength.tolist() == [460, 700, 2410]
    assert fwhm is None
    assert len(messages) == 1
    assert f"fwhm {widths:g}" in messages[0]


def test_narrow_and_broad_bands_keep_their_widths():
    assert convert([760.0, 760.2], "nm", fwhm=[0.1, 0.1])[1].tolist() == [0.1, 0.1]
    assert convert([10_000.0, 12_000], "nm", fwhm=[800, 1000])[1].tolist() == [800, 1000]


@settings(deadline=None)
@given(
    st.lists(st.floats(200, 20_000), min_size=2, max_size=50, unique=True),
    st.sampled_from(
        [("nm", 1.0), ("um", 1e-3), ("Unknown", 1.0), ("", 1e-3), ("mm", 1e-6), ("angstrom", 10.0)]
    ),
    st.randoms(),
)
def test_any_order_of_bands_gives_the_same_wavelengths_in_that_order(values, unit, random):
    random.shuffle(values)
    wavelength, _, _ = convert(np.array(values) * unit[1], unit[0])
    assert np.allclose(wavelength, values, rtol=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.sampled_from([", ", " ,", ",\n", ","]))
def test_lists_of_numbers_survive_braces_blanks_and_line_ends(values, comma):
    text = "{" + comma.join(map(repr, values)) + "}"
    assert numbers(text, "k", "f").tolist() == values


def test_a_list_without_any_comma_is_separated_by_blanks():
    assert numbers("{1 0\n1.0  1}", "bbl", "f").tolist() == [1, 0, 1, 1]
    with pytest.raises(FormatError, match="entry 1 of `bbl`"):
        numbers("1 0, 1", "bbl", "f")


def test_a_trailing_comma_is_no_entry_and_a_word_is_an_error():
    assert split_list("{ a , b c,\n d ,}") == ["a", "b c", "d"]
    with pytest.raises(FormatError, match="entry 2 of `bbl`"):
        numbers("1, yes", "bbl", "f")
