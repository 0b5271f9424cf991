"""Damaged and hostile ENVI headers: each ends in a scene or in an error of ours, soon, and without using memory."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import BandstreamError, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.envi import band_facts, class_table, read_header
from bandstream.pipeline.readers.envi_facts import scene_facts
from bandstream.pipeline.readers.envi_header import layout, parse_header
from bandstream.pipeline.readers.envi_map import georeference
from bandstream.pipeline.readers.options import Notes, Options

SECONDS, SECONDS_WITH_CRS = 0.1, 0.5
"""Longest time of one header (of the processor, so that a busy machine does not count).

A damaged coordinate system string is one that PROJ has never seen: it searches its whole database for a code.
"""

LARGEST_DATA = 2**22
"""Data files are made of the size that the header promises, up to this."""

WKT = (
    'PROJCS["UTM_Zone_33N",GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137.0,298.257223563]],'
    'PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],'
    'PARAMETER["False_Easting",500000.0],PARAMETER["False_Northing",0.0],PARAMETER["Central_Meridian",15.0],'
    'PARAMETER["Scale_Factor",0.9996],PARAMETER["Latitude_Of_Origin",0.0],UNIT["Meter",1.0]]'
)

SEEDS = [
    """ENVI
description = {
  a cube [of = text], {with} braces}
samples = 4
lines   = 3
bands   = 2
header offset = 0
file type = ENVI Standard
data type = 2
interleave = bil
byte order = 0
sensor type = Unknown
acquisition time = 2009-08-20T09:44:50Z
sun elevation = 45.5
sun azimuth = 130.25
map info = {UTM, 1.000, 1.000, 380952.370, 5820372.350, 3.0e+001, 3.0e+001, 33, North, WGS-84, units=Meters, rotation=29}
wavelength units = Micrometers
wavelength = {0.46, 2.409}
fwhm = {0.0058, 0.0091}
bbl = {1, 0}
data ignore value = -1.23000002e+034
data gain values = {0.5, 2}
data offset values = {1, -1}
band names = {
 a = b,
 c}
default bands = {2,1,1}
""",
    (
        "ENVI\r\n; a comment\r\nSAMPLES = 10\r\nLINES = 5\r\nBANDS = 1\r\nDATA TYPE = 1\r\nINTERLEAVE = BSQ\r\n"
        "file type = ENVI Classification\r\nclasses = 3\r\nclass names = {Unclassified, {a, b}, c = d}\r\n"
        "class lookup = {0, 0, 0, 255, 0, 0, 1, 2, 3}\r\nmap info = {Arbitrary, 1, 1, 0, 0, 1, 1, 0, North}\r\n"
    ),
    (
        "ENVI\nsamples = 3\nlines = 3\nbands = 3\ndata type = 4\ninterleave = bip\nbyte order = 1\nheader offset = 7\n"
        "reflectance scale factor = 1\nband names = {400.5 Nanometers, 500 Nanometers, 600 Nanometers}\n"
        "acquisition date = DATE(yyyy-mm-dd): 2019-01-29\nStart Time = UTC TIME: 14:46:16\n"
        "data reflectance gain values = {2e-5, 2e-5, 2e-5}\ndata units = uW/(cm^2*nm*sr)\n"
        "map info = {Geographic Lat/Lon, 1.5, 1.5, -44.84, -22.93, 0.003, 0.003, WGS-84, units=Degrees}\n"
    ),
    (
        "ENVI\nbands = 2\nfile compression = 0\nread procedures = {}\nmajor frame offsets = {0, 0}\nlines = 2\nsamples = 2\n"
        "interleave = bil\ndata type = 12\nwavelength = {\n 377.1\n,379.2 }\nhistory = <a[\\\\b]'c'> value:J:\\\\D\n"
    ),
]

SEEDS_WITH_CRS = [f"{SEEDS[0]}coordinate system string = {{{WKT}}}\n"]

TOKENS = [
    *(b"{", b"}", b"=", b",", b";", b"\n", b"\r", b"\0", b"\xff\xfe", b"\xc2", b"\xe2\x80\xa8", b" ", b"\t"),
    *(b"nan", b"inf", b"-1", b"0", b"1e309", b"1e-320", b"9" * 400, b"1_0", b"0x10", b"1d5", b"-0", b"65536"),
    *(b"4294967296", b"18446744073709551616", b"1000000000", b"1.5", b"--", b"e", b"\n{", b"}\n", b"{" * 50),
    *(
        b"units=Feet",
        b"rotation=1e300",
        b"UTM, 1, 1",
        b"wavelength = {",
        b"bands = 1000000000\n",
        b"nm",
        b"GHz",
    ),
    *(b"ENVI", b"bup", b"PROJCS[", b"GEOGCS[", b"DATUM[", b"1e17", b"\xb5m", b"\xe2\x88\x9e", b"'" * 99),
]


def mutate(data: bytes, rng: random.Random, donors: list[bytes]) -> bytes:
    """Change a header in one to four places, as damage and malice do."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 8, 40, 400)))
        choice = rng.randrange(7)
        if choice == 0:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + data[end:]
        elif choice == 1:
            data = data[:at] + data[end:]
        elif choice == 2:
            data = data[:at] + data[at:end] * rng.choice((2, 3, 50)) + data[end:]
        elif choice == 3:
            data = data[:at] + rng.choice(TOKENS) + data[rng.choice((at, end)) :]
        elif choice == 4:
            lines = data.split(b"\n")
            donor = rng.choice(donors).split(b"\n")
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(donor))
            data = b"\n".join(lines)
        elif choice == 5:
            data = value_changed(data, rng)
        else:
            data = data[:at]
    return data if rng.random() < 0.1 else b"ENVI" + data[4:]


def value_changed(data: bytes, rng: random.Random) -> bytes:
    """Give one key of the header another value."""
    lines = data.split(b"\n")
    keyed = [i for i, line in enumerate(lines) if b"=" in line]
    if keyed:
        i = rng.choice(keyed)
        lines[i] = lines[i].partition(b"=")[0] + b"= " + rng.choice(TOKENS)
    return b"\n".join(lines)


def put(folder: Path, raw: bytes) -> Path:
    """Write a header and a sparse data file of the size that it promises, where that is not large."""
    header = folder / "x.hdr"
    header.write_bytes(raw)
    size = 100
    try:
        place = layout(read_header(header))
        if place.header_offset + place.data_bytes <= LARGEST_DATA:
            size = place.header_offset + place.data_bytes
    except BandstreamError:
        pass
    (folder / "x").touch()
    os.truncate(folder / "x", size)
    return header


def try_everything(header: Path) -> bool:
    """Open a header, or else run every function over it; return whether it became a scene.

    Anything but our errors passes through.
    """
    try:
        open_scene(header)
    except BandstreamError as error:
        assert len(str(error)) < 3000  # noqa: PT017 - whatever the header holds, a message is one paragraph
    else:
        return True
    try:
        parsed = read_header(header)
    except BandstreamError:
        return False
    for step in (
        lambda: class_table(parsed),
        lambda: georeference(parsed, Notes()),
        lambda: scene_facts(parsed),
        lambda: band_facts(parsed, 2, Options(), Notes()),
    ):
        try:
            step()
        except BandstreamError as error:
            assert len(str(error)) < 3000  # noqa: PT017
    return False


def timed(header: Path) -> tuple[bool, float]:
    """Return whether a header became a scene, and the seconds it took."""
    start = time.process_time()
    scene = try_everything(header)
    return scene, time.process_time() - start


def fuzz(seeds: list[bytes], cases: range, folder: Path) -> tuple[int, float]:
    """Return how many mutated headers became scenes, and the longest time."""
    opened, slowest = 0, 0.0
    try_everything(put(folder, seeds[0]))  # PROJ starts up once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            rng = random.Random(case)
            raw = mutate(rng.choice(seeds), rng, seeds)
            header = put(folder, raw)
            allowed = SECONDS_WITH_CRS if b"CS[" in raw else SECONDS
            try:
                scene, taken = timed(header)
                if taken > allowed:  # the garbage of many cases is collected in one: try it alone
                    taken = min(taken, timed(header)[1])
            except Exception as error:
                error.add_note(f"case {case}: {raw[:3000]!r}")
                raise
            assert taken < allowed or len(raw) > 10**5, f"case {case} took {taken:.3f} s: {raw[:3000]!r}"
            opened += scene
            slowest = max(slowest, taken)
    return opened, slowest


def seeds_with_the_zoo(data_root: Path | None) -> list[bytes]:
    zoo = [] if data_root is None else sorted((data_root / "hdr_zoo").glob("*.hdr"))
    return [seed.encode() for seed in [*SEEDS * 4, *SEEDS_WITH_CRS]] + [path.read_bytes() for path in zoo]


def test_the_seeds_themselves_are_scenes(tmp_path):
    for seed in [*SEEDS, *SEEDS_WITH_CRS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert try_everything(put(tmp_path, seed.encode()))


def test_2000_damaged_headers_end_in_a_scene_or_in_an_error_of_ours(tmp_path):
    opened, _ = fuzz(seeds_with_the_zoo(None), range(2000), tmp_path)
    assert 100 < opened < 1900  # else the damage is too great, or none


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(7200)
def test_100000_damaged_headers_of_the_zoo(data_root, tmp_path):
    opened, slowest = fuzz(seeds_with_the_zoo(data_root), range(2000, 102_000), tmp_path)
    print(f"{opened} of 100000 headers became scenes; the slowest took {slowest:.3f} s")
    assert opened > 5000


@settings(max_examples=300, deadline=1000)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_first_line_are_parsed_or_refused(raw):
    try:
        header = parse_header("ENVI\n" + raw.decode("latin-1"), "x.hdr")
        class_table(header)
        layout(header)
    except BandstreamError:
        return


NUMBERS = st.one_of(
    st.integers(-10, 10).map(str),
    st.integers(0, 10**30).map(str),
    st.floats().map(repr),
    st.sampled_from(["", "{}", "{1, 2}", "x", "1e400", "nan", "{", "UTM"]),
)


@settings(max_examples=300, deadline=1000)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                *(
                    "samples",
                    "lines",
                    "bands",
                    "data type",
                    "byte order",
                    "header offset",
                    "interleave",
                    "bbl",
                ),
                *("wavelength", "fwhm", "reflectance scale factor", "data ignore value", "data gain values"),
                *("map info", "sun elevation", "default bands", "classes", "class names", "class lookup"),
            ]
        ),
        NUMBERS,
    )
)
def test_any_value_under_any_key_is_understood_or_refused(changes):
    fields = {"samples": "4", "lines": "3", "bands": "2", "data type": "2", "interleave": "bil"} | changes
    text = "\n".join(f"{key} = {value}" for key, value in fields.items())
    try:
        header = parse_header(f"ENVI\n{text}\n", "x.hdr")
        place = layout(header)
        assert place.data_bytes > 0
        scene_facts(header)
        georeference(header, Notes())
        band_facts(header, place.shape_yxb[2], Options(), Notes())
    except BandstreamError:
        return


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bands", 10**9),
        ("bands", 65_536),
        ("lines", 10**18),
        ("samples", 10**9),
        ("lines", 2**24),
        ("samples", "1e300"),
    ],
)
def test_a_gigantic_claim_is_refused_before_memory_follows_it(tmp_path, key, value):
    """The scale factor would be spread over the bands, the coordinates over lines and samples."""
    sizes = {"samples": 300, "lines": 200, "bands": 100, key: value}
    text = "\n".join(f"{k} = {v}" for k, v in sizes.items())
    header = tmp_path / "x.hdr"
    header.write_text(f"ENVI\n{text}\ndata type = 4\ninterleave = bip\nreflectance scale factor = 10000\n")
    (tmp_path / "x").write_bytes(b"\0" * 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(FormatError):
            open_scene(header)
        tracemalloc.start()
        with pytest.raises(FormatError):
            open_scene(header)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize(
    "body",
    [
        "a" + " " * 400_000 + "b",
        "k = {" + "{" * 200_000 + "\n" + "}\n" * 200_000,
        "k = {{\n}" + "\n" * 1_000_000,
        "k = {" + "x}\n\n" * 200_000,
        "k = {" + "{},{" * 100_000 + "}" * 100_000,
        "class names = {" + "{a,b}c" * 100_000 + "}",
        "band names = {" + "1 nm " * 100_000 + "}",
        "band names = {" + "1" * 400_000 + "}",
        "wavelength = {" + "1," * 200_000 + "}",
        ";" * 1_000_000,
        "map info = {" + "units" + " " * 400_000 + "x}",
        "acquisition time = " + "2" * 400_000,
        "a=\n" * 200_000,
    ],
)
def test_time_grows_with_the_length_of_a_header_and_no_faster(body):
    """Each of these took minutes with a parser that looks back; a second is for a machine that is busy."""
    keys = "samples = 4\nlines = 3\nbands = 2\ndata type = 2\ninterleave = bil\n"
    start = time.process_time()
    try:
        header = parse_header(f"ENVI\n{keys}{body}\n", "x.hdr")
        for step in (
            lambda: class_table(header),
            lambda: scene_facts(header),
            lambda: georeference(header, Notes()),
            lambda: band_facts(header, 1, Options(), Notes()),
        ):
            try:
                step()
            except BandstreamError as error:
                assert len(str(error)) < 3000  # noqa: PT017
    except BandstreamError:
        pass
    assert time.process_time() - start < 2
