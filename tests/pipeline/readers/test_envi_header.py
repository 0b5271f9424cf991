"""The header parser: lenient in form, strict in what decides the layout."""

from __future__ import annotations

import pytest
import spectral.io.envi as spy
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import FormatError
from bandstream.pipeline.readers.envi_header import layout, parse_header, read_header, unbraced
from bandstream.pipeline.readers.wavelengths import split_list

BASE = {"samples": "4", "lines": "3", "bands": "2", "data type": "2", "interleave": "bil", "byte order": "0"}


def header(**changes):
    fields = {**BASE, **{key.replace("_", " "): value for key, value in changes.items()}}
    text = "\n".join(f"{key} = {value}" for key, value in fields.items() if value is not None)
    return parse_header("ENVI\n" + text + "\n", "x.hdr")


keys = st.text("abcdefghijklmnopqrstuvwxyz0123456789 _-/()[]#'", min_size=1).map(
    lambda w: " ".join(w.split())
)
keys = keys.filter(bool)
texts = st.text(
    st.characters(codec="latin-1", exclude_characters="{}\r\n\x85", exclude_categories=["C"])
).map(str.strip)
items = st.text(
    st.characters(codec="latin-1", exclude_characters="{},;\r\n\x85", exclude_categories=["C"])
).map(lambda t: " ".join(t.split()))


@settings(deadline=None)
@given(
    fields=st.dictionaries(keys, st.one_of(texts, st.lists(items.filter(bool), min_size=1)), max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    gap=st.sampled_from(["", " ", "\t "]),
    comma=st.sampled_from([",", " , ", ",\n "]),
    codec=st.sampled_from(["utf-8", "latin-1", "utf-8-sig"]),
)
def test_whatever_is_written_is_read_back(tmp_path_factory, fields, end, gap, comma, codec):
    lines = ["ENVI", "; made by a test"]
    for key, value in fields.items():
        text = value if isinstance(value, str) else "{" + gap + comma.join(value) + gap + "}"
        lines += [f"{gap}{key.upper()}{gap}={gap}{text}", "; a comment = { no value", gap]
    raw = "\n".join(lines).replace("\n", end).encode(codec)
    path = tmp_path_factory.mktemp("h") / "x.hdr"
    path.write_bytes(raw)
    got = read_header(path)
    assert got.warnings == ()
    for key, value in fields.items():
        if codec == "latin-1" and not _is_latin_when_read(raw):
            continue
        if isinstance(value, str):
            assert got.fields[key] == value.strip()
        else:
            assert split_list(got.fields[key]) == value


def _is_latin_when_read(raw: bytes) -> bool:
    """Return whether Latin-1 bytes cannot be mistaken for UTF-8 (some pairs of accented letters can)."""
    try:
        return raw.decode("utf-8").isascii()
    except UnicodeDecodeError:
        return True


def test_the_parser_agrees_with_spy_on_a_plain_header(tmp_path):
    path = tmp_path / "x.hdr"
    path.write_text(
        "ENVI\ndescription = {\n  two lines [of = text],\n  more}\nsamples = 4\nlines   = 3\n; c\nbands = 2\n"
        "band names = {\n a = 1 ,\n b}\nwavelength = {400.0,\n 500.5}\nempty =\n"
    )
    ours, theirs = read_header(path), spy.read_envi_header(str(path))
    assert set(ours.fields) == set(theirs)
    for key in ("samples", "lines", "bands"):
        assert ours.get(key) == theirs[key]
    for key in ("band names", "wavelength"):
        assert split_list(ours.fields[key]) == theirs[key]
    assert ours.get("empty") is None
    assert ours.get("description") == "two lines [of = text],\nmore"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k = {a {b} c}", "a {b} c"),
        ("k = {{a, b},\n {c, d}}", "{a, b},\n{c, d}"),
        ("k = {a { b}\nsamples = 4", "a { b"),
        ("k = {a}} b}", "a}} b"),
        ("k =\n\n {a,\n b}", "a,\nb"),
        ("k = {a, ; b}", "a, ; b"),
        ("k = {a,\n; comment }\n b}", "a,\nb"),
        ("k = {}", ""),
        ("k = a {b", "a {b"),
        ("k = {a = b,\n c = d}", "a = b,\nc = d"),
        ("k = {a\n\n\n\n b}", "a\nb"),
        ("; x = {\nk = a", "a"),
    ],
)
def test_braces_and_equals_signs_inside_values(text, value):
    got = parse_header(f"ENVI\n{text}\nafter = 1\n", "x.hdr")
    assert unbraced(got.fields["k"]) == value
    assert got.get("after") == "1"


def test_a_brace_that_is_never_closed_is_named():
    with pytest.raises(FormatError, match=r"after `wavelength =` is never closed"):
        parse_header("ENVI\nsamples = 1\nwavelength = {1, 2,\n 3\n", "x.hdr")


def test_a_brace_that_swallows_a_list_of_the_bands_is_told():
    found = parse_header("ENVI\ndescription = {abc\nbbl = {1, 0}\nunits = nm\n", "x.hdr")
    assert found.get("bbl") is None
    assert found.get("units") == "nm"
    assert [("`description =`" in w, "not closed" in w) for w in found.warnings] == [(True, True)]
    assert parse_header("ENVI\nclass names = {a {b,\n c}\nbbl = {1}\n", "x.hdr").warnings == ()


def test_of_a_key_given_twice_the_last_counts_with_a_warning_only_if_they_differ():
    assert header().warnings == ()
    same = parse_header("ENVI\nunits = {nm}\nUNITS = { NM }\n", "x.hdr")
    assert same.warnings == ()
    other = parse_header("ENVI\nlines = 1\nlines = 2\n", "x.hdr")
    assert other.get("lines") == "2"
    assert len(other.warnings) == 1
    assert "`lines` is given twice" in other.warnings[0]


@pytest.mark.parametrize("key", ["samples", "lines", "bands", "data type", "interleave"])
def test_a_missing_required_key_is_named_with_the_header(key):
    with pytest.raises(FormatError, match=rf"x\.hdr: the header lacks `{key}`"):
        layout(header(**{key: None}))


def test_byte_order_offset_and_file_type_have_defaults():
    got = layout(header(byte_order=None))
    assert (got.dtype, got.header_offset, got.byte_order_given) == ("<i2", 0, False)
    assert layout(header(byte_order=None, data_type="1")).byte_order_given
    assert layout(header(byte_order="1", header_offset="12.0")) == layout(
        header(byte_order=" 1", header_offset="12")
    )
    assert layout(header(byte_order="1")).dtype == ">i2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interleave": "bup"}, "interleave = 'bup' is unknown; allowed: bsq, bil, bip"),
        ({"data_type": "6"}, "complex64"),
        ({"data_type": "9"}, "complex128"),
        ({"data_type": "7"}, "data type = 7 is unknown"),
        ({"data_type": "two"}, "allowed: one whole number"),
        ({"bands": "0"}, "`bands` = 0"),
        ({"lines": "-3"}, "`lines` = -3"),
        ({"samples": "3.5"}, "`samples` = '3.5'"),
        ({"lines": "inf"}, "`lines` = 'inf'; allowed: one whole number"),
        ({"samples": "1e999"}, "`samples` = '1e999'"),
        ({"bands": "nan"}, "`bands` = 'nan'"),
        ({"bands": "65537"}, "`bands` = 65537 is no size of an image; allowed: 1 to 65536"),
        ({"lines": "1e18"}, r"`lines` = 1e\+18 is no size of an image"),
        ({"samples": "1_0"}, "`samples` = '1_0'; allowed: one whole number"),
        ({"data_type": "-inf"}, "`data type` = '-inf'"),
        ({"header_offset": "inf"}, "`header offset` = 'inf'"),
        ({"byte_order": "2"}, "byte order = 2"),
        ({"header_offset": "-1"}, "header offset = -1"),
        ({"file_type": "PCI"}, "file type = 'PCI'"),
        ({"file_type": "ENVI Spectral Library"}, "library of spectra is no scene"),
        ({"file_type": "TIFF"}, "open the TIFF itself"),
        ({"file_compression": "1"}, "file compression = 1"),
        ({"major_frame_offsets": "{0, 128}"}, "major frame offsets"),
        ({"minor_frame_offsets": "{4, 4}"}, "minor frame offsets"),
        ({"read_procedures": "{my_read, my_tile}"}, "read procedures"),
    ],
)
def test_layouts_that_are_not_understood_are_refused_by_name(changes, message):
    with pytest.raises(FormatError, match=message):
        layout(header(**changes))


def test_harmless_values_of_special_keys_are_no_reason_to_refuse():
    got = layout(
        header(
            file_compression="0",
            major_frame_offsets="{0, 0}",
            minor_frame_offsets="{ 0, 0 }",
            file_type="ENVI Classification",
            interleave=" BSQ ",
        )
    )
    assert (got.shape_yxb, got.interleave) == ((3, 4, 2), "bsq")


def test_other_hdr_dialects_are_recognised(tmp_path):
    path = tmp_path / "x.hdr"
    path.write_text("BYTEORDER      I\nLAYOUT BIL\nNROWS 3\nNCOLS 4\n")
    with pytest.raises(FormatError, match="ESRI"):
        read_header(path)
    path.write_bytes(b"\0\1\2 something else")
    with pytest.raises(FormatError, match="the first line must be `ENVI`"):
        read_header(path)
