"""Rules of the ENVI reader beyond the layout: gains, units, names, times, places, files, and headers of instruments."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneNotFoundError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.wavelengths import from_names, split_list, to_float
from bandstream.pipeline.scene import scale_offset, scene_crs, scene_transform

LAYOUT = "samples = 4\nlines = 3\nbands = 3\ndata type = 2\ninterleave = bil\nbyte order = 0\n"


def write(folder: Path, text: str, *, name: str = "x", data: str = "", size: int = 72) -> Path:
    """Write a header as given (after the word ENVI and a layout, unless it brings its own) and a data file."""
    layout = "" if "samples" in text else LAYOUT
    header = folder / f"{name}.hdr"
    header.write_bytes(f"ENVI\n{layout}{text}\n".encode("latin-1"))
    (folder / f"{name}{data}").write_bytes(bytes(range(256)) * (size // 256 + 1))
    os.truncate(folder / f"{name}{data}", size)
    return header


# --- from numbers to physical values ---


def test_gains_to_reflectance_lead_to_reflectance_at_the_top_of_the_atmosphere(tmp_path):
    text = (
        "data reflectance gain values = {2e-5, 3e-5, 4e-5}\ndata reflectance offset values = {-0.1, -0.2, 0}"
    )
    ds = open_scene(write(tmp_path, text))
    scale_b, offset_b = scale_offset(ds)
    assert scale_b.tolist() == [2e-5, 3e-5, 4e-5]
    assert offset_b.tolist() == [-0.1, -0.2, 0]
    assert (ds.attrs["quantity"], ds.attrs["units"]) == ("toa_reflectance", "1")
    short = write(tmp_path, "data reflectance gain values = {2e-5, 3e-5}")
    with pytest.raises(FormatError, match="`data reflectance gain values` has 2 entries for 3 bands"):
        open_scene(short)


def test_beside_gains_to_radiance_those_to_reflectance_are_only_told_as_in_gdal(tmp_path):
    text = "data gain values = {0.5, 2, 3}\ndata offset values = {1, 0, -1}\ndata reflectance gain values = {2e-5, 3e-5, 4e-5}"
    header = write(tmp_path, text)
    with pytest.warns(BandstreamWarning, match="both given; the first are used"):
        ds = open_scene(header)
    scale_b, offset_b = scale_offset(ds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(tmp_path / "x", driver="ENVI") as gdal:
            assert scale_b.tolist() == list(gdal.scales)
            assert offset_b.tolist() == list(gdal.offsets)
    assert (ds.attrs["quantity"], ds.attrs["units"]) == ("other", "")
    assert open_scene(header, scale=[1, 2, 3], quantity="toa_reflectance").attrs["warnings"] == []


@pytest.mark.parametrize(
    ("code", "value", "told"),
    [
        (2, "65535", True),
        (1, "-1", True),
        (12, "0.5", True),
        (2, "-9999", False),
        (4, "70000", False),
        (3, "NaN", False),
        (2, "-1.23e34", False),
    ],
)
def test_an_ignore_value_that_the_numbers_cannot_hold_is_told(tmp_path, code, value, told):
    """65535 for int16 would else leave every pixel valid without a word."""
    layout = LAYOUT.replace("data type = 2", f"data type = {code}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_scene(write(tmp_path, f"{layout}data ignore value = {value}", size=144))
    assert any(f"data ignore value = {value} is no number of" in str(w.message) for w in caught) == told


def test_gains_that_do_nothing_give_way(tmp_path):
    text = "data gain values = {1, 1, 1}\ndata offset values = {0.0, 0, 0}\ndata reflectance gain values = {2e-5, 3e-5, 4e-5}"
    ds = open_scene(write(tmp_path, text))
    assert ds.attrs["quantity"] == "toa_reflectance"
    ones = open_scene(write(tmp_path, "data gain values = {1, 1, 1}\nreflectance scale factor = 10000"))
    assert (ones.attrs["scale"], ones.attrs["quantity"]) == (1e-4, "surface_reflectance")


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("uW/(cm^2*nm*sr)", 10.0),
        ("W/(m^2 * sr * um)", 1.0),
        ("{\xb5W cm-2 nm-1 sr-1}", 10.0),
        ("W m-2 sr-1 um-1", 1.0),
    ],
)
def test_a_spelt_out_unit_of_radiance_brings_the_scale_to_ours(tmp_path, unit, factor):
    header = write(
        tmp_path, f"data units = {unit}\ndata gain values = {{0.5, 2, 3}}\ndata offset values = {{1, 0, -1}}"
    )
    ds = open_scene(header)
    scale_b, offset_b = scale_offset(ds)
    assert scale_b.tolist() == [factor * v for v in (0.5, 2, 3)]
    assert offset_b.tolist() == [factor * v for v in (1, 0, -1)]
    assert (ds.attrs["quantity"], ds.attrs["units"]) == ("radiance", "W m-2 sr-1 um-1")


@pytest.mark.parametrize(
    "text",
    [
        "description = {at-sensor radiance}",
        "data units = radiance",
        "data units = W/(cm^2*furlong)",
        "z plot titles = {Wavelength, Radiance}\ndata gain values = {0.5, 2, 3}",
        "sensor type = radiometer",
    ],
)
def test_words_that_only_hint_at_radiance_decide_nothing(tmp_path, text):
    assert open_scene(write(tmp_path, text)).attrs["quantity"] == "other"


def test_a_users_scale_makes_a_senseless_factor_harmless(tmp_path):
    header = write(tmp_path, "reflectance scale factor = 0")
    with pytest.raises(FormatError, match="reflectance scale factor = 0; allowed: a positive number"):
        open_scene(header)
    assert open_scene(header, scale=0.5).attrs["scale"] == 0.5


# --- wavelengths ---


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("400.5 Nanometers, 500 Nanometers, 600 Nanometers", [400.5, 500, 600]),
        ("Band 1 (400.0 nm), Band 2 (500.0 nm), Band 3 (600.0 nm)", [400, 500, 600]),
        ("Band 1: 0.4005 Micrometers, b2 0.5 micrometers, b3 (2.41 Micrometers)", [400.5, 500, 2410]),
        ("b1_700nm, b2_600nm, b3_500nm", [700, 600, 500]),
        ("Band 1 (400.0 nm), Band 2, Band 3 (600.0 nm)", None),  # never half
        ("400 nm, 0.5 um, 600 nm", None),
        ("400 to 410 nm, 500 nm to 510 nm, 600 nm", None),
        ("10 nm, 20 nm, 30 nm", None),  # widths
        ("1 nm, 2 nm, 3 nm", None),
        ("500 m, 600 m, 700 m", None),  # heights
        ("500 nmol, 600 nmol, 700 nmol", None),
        ("Band 1, Band 2, Band 3", None),
    ],
)
def test_wavelengths_in_band_names_count_if_every_name_has_one(tmp_path, names, expected):
    header = write(
        tmp_path,
        f"band names = {{{names}}}\nfwhm = {{5, 6, 7}}" if expected is None else f"band names = {{{names}}}",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = open_scene(header)
    assert (ds["wavelength"].values.tolist() if "wavelength" in ds.coords else None) == expected
    assert [len(caught), len(ds.attrs["warnings"])] == ([0, 0] if expected is None else [1, 1])
    if expected:
        assert "were read from the names of the bands" in str(caught[0].message)


def test_a_list_of_wavelengths_wins_over_names(tmp_path):
    text = "wavelength units = nm\nwavelength = {700, 600, 500}\nband names = {1000 nm, 1100 nm, 1200 nm}"
    ds = open_scene(write(tmp_path, text))
    assert ds["wavelength"].values.tolist() == [700, 600, 500]
    assert from_names([]) is None


def test_single_widths_that_are_none_become_nan(tmp_path):
    ds = open_scene(write(tmp_path, "wavelength units = nm\nwavelength = {700, 600, 500}\nfwhm = {5, 0, -1}"))
    assert np.array_equal(ds["fwhm"].values, [5, np.nan, np.nan], equal_nan=True)


def test_numbers_in_idls_spelling_and_no_others():
    assert to_float("1.5D+02") == to_float("1.5d2") == 150
    assert to_float(" -1.23000002e+034 ") == -1.23000002e34
    for text in ("1_000", "\u0661", "d", "0x10", "1d2d3", ""):
        with pytest.raises(ValueError, match=r".*"):
            to_float(text)


def test_commas_in_inner_braces_split_nothing():
    assert split_list("{a, {b, c}, d = {e, f} g}") == ["a", "b, c", "d = {e, f} g"]
    assert split_list("{a {, b, c}") == ["a {", "b", "c"]  # a lone brace is a letter


# --- what is told about the scene ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acquisition time = 2009-08-20T09:44:50", "2009-08-20T09:44:50"),
        ("acquisition time = 2009-08-20", "2009-08-20"),
        ("acquisition time = 2009-08-20T09:44:50.5Z", "2009-08-20T09:44:50.500000Z"),
        ("acquisition time = {2009-08-20T09:44:50+02:00}", "2009-08-20T07:44:50Z"),
        ("acquisition time = 20.8.2009", None),
        ("acquisition time = 20090820", None),
        ("acquisition time = 0001-01-01T00:00:00+14:00", None),
        ("acquisition date = 2009-08-20", "2009-08-20"),
        ("acquisition date = DATE(yyyy-mm-dd): 2019-01-29", "2019-01-29"),
        (
            "acquisition date = DATE(dd-mm-yyyy): 29-01-2019\nStart Time = UTC TIME: 14:46:16",
            "2019-01-29T14:46:16Z",
        ),
        ("acquisition date = DATE(yyyy-mm-dd): 2019-01-29\nStart Time = LOCAL TIME: 14:46:16", "2019-01-29"),
        ("acquisition date = DATE(yyyy-mm-dd): 2019-13-29", None),
        ("acquisition date = 03/04/2019", None),
        ("acquisition time = noon\nacquisition date = 2009-08-20", "2009-08-20"),
    ],
)
def test_the_time_is_taken_over_where_it_can_only_mean_one(tmp_path, text, expected):
    assert open_scene(write(tmp_path, text)).attrs.get("acquired") == expected


def test_sun_clouds_and_bands_to_show(tmp_path):
    text = "sun elevation = 40.5\nsun azimuth = 151.25\ncloud cover = 12\ndefault bands = {3,2,1}\ndescription = {\n two\n lines}"
    told = open_scene(write(tmp_path, text)).attrs
    assert (told["sun_zenith_deg"], told["sun_azimuth_deg"], told["cloud_cover_percent"]) == (
        49.5,
        151.25,
        12,
    )
    assert told["default_bands"] == [2, 1, 0]
    assert told["description"] == "two lines"
    text = "sun elevation = 91\nsun azimuth = south\ncloud cover = nan\ndefault bands = {4,2,1}\ndescription = {}"
    told = open_scene(write(tmp_path, text)).attrs
    assert not {
        "sun_zenith_deg",
        "sun_azimuth_deg",
        "cloud_cover_percent",
        "default_bands",
        "description",
    } & set(told)


# --- place ---


@pytest.mark.parametrize(
    ("text", "epsg"),
    [
        ("UTM, 1, 1, 100, 200, 3, 3, 33, North, WGS_1984", 32633),
        ("UTM, 1, 1, 100, 200, 3, 3, 33, South, WGS-72", 32333),
        ("UTM, 1, 1, 100, 200, 3, 3, 32, North, European 1950", 23032),
        ("UTM, 1, 1, 100, 200, 3, 3, 55, South, GDA94", 28355),
        ("UTM, 1, 1, 100, 200, 3, 3, 32, North, ETRS89, units=Meters", 25832),
        ("UTM, 1, 1, 100, 200, 3, 3, 10.0, North, NAD 83", 26910),
        ("Geographic Lat/Lon, 1, 1, 10, 50, 1e-3, 1e-3, North America 1983, units=Degrees", 4269),
        ("Geographic Lat/Lon, 1, 1, 10, 50, 1e-3, 1e-3, European 1950", 4230),
    ],
)
def test_datums_by_their_names(tmp_path, text, epsg):
    assert scene_crs(open_scene(write(tmp_path, f"map info = {{{text}}}"))) == CRS.from_epsg(epsg)


@pytest.mark.parametrize(
    "text",
    [
        "UTM, 1, 1, 100, 200, 3, 3, 29, North, North America 1983",  # 26929 is a zone of Alabama
        "UTM, 1, 1, 100, 200, 3, 3, 60, North, North America 1927",
        "UTM, 1, 1, 100, 200, 3, 3, 5, North, ETRS89",
        "UTM, 1, 1, 100, 200, 3, 3, 33, South, ETRS89",
        "UTM, 1, 1, 100, 200, 3, 3, 33.5, North, WGS-84",
    ],
)
def test_zones_that_a_datum_does_not_have_are_not_made_up(tmp_path, text):
    with pytest.warns(BandstreamWarning, match="is not known; the scene has no CRS"):
        assert scene_crs(open_scene(write(tmp_path, f"map info = {{{text}}}"))) is None


def test_the_tie_point_counts_corners_from_one_and_halves_are_centres(tmp_path):
    corner = open_scene(write(tmp_path, "map info = {Arbitrary, 1, 1, 100, 200, 2, 4, 0, North}"))
    centre = open_scene(write(tmp_path, "map info = {Arbitrary, 1.5, 1.5, 101, 198, 2, 4, 0, North}"))
    later = open_scene(write(tmp_path, "map info = {Arbitrary, 3, 2, 104, 196, 2, 4, 0, North}"))
    assert scene_transform(corner) == scene_transform(centre) == scene_transform(later)
    assert (corner["x"].values[0], corner["y"].values[0]) == (101, 198)


def test_a_local_system_is_no_crs(tmp_path):
    text = 'map info = {Arbitrary, 1, 1, 0, 0, 1, 1}\ncoordinate system string = {LOCAL_CS["Arbitrary",UNIT["Meter",1]]}'
    ds = open_scene(write(tmp_path, text))
    assert scene_crs(ds) is None
    assert ds.attrs["warnings"] == []


# --- files ---


def test_an_unusual_ending_is_found_if_the_size_fits(tmp_path):
    header = write(tmp_path, "", data=".strange")
    (tmp_path / "x.txt").write_bytes(b"\0" * 72)
    assert open_scene(header).attrs["files"][1].endswith("x.strange")
    with (tmp_path / "x.strange").open("ab") as file:
        file.write(b"more")
    with pytest.raises(SceneNotFoundError, match="no data file beside it"):
        open_scene(header)


def test_compressed_data_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(FormatError, match=r"file compression = 1.*gunzip.*file compression = 0"):
        open_scene(write(tmp_path, "file compression = 1"))
    header = write(tmp_path, "", data=".gz", name="y")
    with pytest.raises(SceneNotFoundError, match=r"y\.gz is compressed: run gunzip"):
        open_scene(header)


@pytest.mark.parametrize(
    ("dark", "white"), [("DARKREF_a_1", "WHITEREF_a_1"), ("darkReference", "whiteReference"), (None, None)]
)
def test_reference_frames_beside_raw_frames_are_named(tmp_path, dark, white):
    header = write(tmp_path, "", name="a_1", data=".raw")
    for name in filter(None, (dark, white)):
        write(tmp_path, "", name=name, data=".raw")
    told = open_scene(header).attrs
    assert told.get("dark_file") == (dark and str(tmp_path / f"{dark}.hdr"))
    assert told.get("white_file") == (white and str(tmp_path / f"{white}.hdr"))
    assert len(told["files"]) == 2  # the scene does not depend on them
    if dark:
        frame = open_scene(told["dark_file"])
        assert frame["data"].shape == (3, 4, 3)
        assert "white_file" not in frame.attrs


# --- headers of instruments: keys that only one program writes must not get in the way ---

HYMAP = """description = {\r
  HyMap reflectance, [Tue Jan 12 2010]}\r
samples = 4\r
lines   = 3\r
bands   = 3\r
header offset = 0\r
file type = ENVI Standard\r
data type = 2\r
interleave = bil\r
sensor type = HyMap\r
byte order = 1\r
y start = 1201\r
reflectance scale factor = 10000.000000\r
wavelength units = Micrometers\r
z plot titles = {Wavelength (um), Reflectance}\r
band names = {\r
 HyMap Band 1, HyMap Band 2, HyMap Band 3}\r
wavelength = {\r
 0.457400, 0.881700, 0.878300}\r
fwhm = {\r
 0.015600, 0.016100, 0.015700}\r
bbl = {\r
 1, 1, 0}"""

CASI = """samples = 4
lines = 3
bands = 3
header offset = 0
file type = ENVI Standard
data type = 12
interleave = bsq
sensor type = CASI
byte order = 0
pixel scaling = 1000
radiance units = uW cm-2 sr-1 nm-1 x 1000
wavelength units = nm
wavelength = { 371.3 , 428.2 , 1046.5 }
fwhm = { 4.8 , 4.8 , 4.8 }
map info = {UTM, 1.5, 1.5, 500000.5, 4999999.5, 1, 1, 19, North, WGS-84, units=Meters}"""

HYSPEX = """description = {HySpex VNIR-1800 SN0906}
samples = 4
lines = 3
bands = 3
header offset = 128
file type = ENVI Standard
data type = 12
interleave = bil
byte order = 0
default bands = {3, 2, 1}
wavelength units = nm
wavelength = {410.12, 600.4, 995.9}
Integration time = 15000
Number of background = 200
pixelsize x = 0.000185
pixelsize y = 0.00037
aperture size = 0.014
ID = VNIR_1800_SN0906
comment = =none="""

SPECIM = """description = {
File Imported into ENVI}
file type = ENVI

sensor type = FX17, Lumo - Recorder v2017-449
acquisition date = DATE(yyyy-mm-dd): 2021-05-31
Start Time = UTC TIME: 00:50:20
Stop Time = UTC TIME: 00:50:45

samples = 4
bands = 3
lines = 3
errors = {none}
interleave = bil
data type = 12
header offset = 0
byte order = 0
x start = 0
y start = 0
default bands = {3, 2, 1}
himg = {1, 4}
vimg = {1, 3}
hroi = {1, 4}
vroi = {1, 3}
fps = 50.00
tint = 6.500000
binning = {1, 1}
trigger mode = Internal
fodis = {0, 0}
sensorid = 420061
acquisitionwindow left = 0
calibration pack = C:/Calibrations/420061.scp
VNIR temperature = {12.3, 0.0}
Wavelength = {
935.61,
939.02,
1720.23
}
fwhm = {
3.40,
3.41,
3.52
}
"""

HEADWALL = """description = {[HEADWALL Hyperspec III]}
samples = 4
lines = 3
bands = 3
header offset = 0
file type = ENVI Standard
data type = 12
interleave = bil
sensor type = Unknown
byte order = 0
rotation = {0, 0, 0}
tdi = 1
label = raw_0
wavelength units = nm
wavelength = {
379.027
,600.5
,999.9
}
; wavelength start = 379
"""

RESONON = """interleave = bil
data type = 12
lines = 3
samples = 4
bands = 3
bit depth = 12
ceiling = 4095
shutter = 14.9
gain = 0.0
framerate = 62.6
imager type = pika_l
imager serial number = 100121-163
byte order = 0
header offset = 0
wavelength units = nm
direction = logo right
binning = 2
spectral binning = 2
rotation = ((1.0, 0.0), (0.0, 1.0))
timestamp = 2018-06-28_16:56:31
history = cube -> Radiance Conversion<SpecGroup>[<SpecFilename label:'Imager Calibration' value:J:\\\\x>, {a=b]
wavelength = {387.12, 601.5, 1023.6}"""


@pytest.mark.parametrize(
    ("text", "name", "data", "size", "expected"),
    [
        (
            HYMAP,
            "hymap",
            ".bil",
            72,
            {"sensor": "HyMap", "quantity": "surface_reflectance", "nm": [457.4, 881.7, 878.3]},
        ),
        (CASI, "casi", ".pix", 72, {"sensor": "CASI", "quantity": "other", "nm": [371.3, 428.2, 1046.5]}),
        (
            HYSPEX,
            "flight_VNIR_1800_SN0906_raw",
            ".hyspex",
            200,
            {"quantity": "other", "nm": [410.12, 600.4, 995.9]},
        ),
        (
            SPECIM,
            "leaf_2021-05-31_00-50-20",
            ".raw",
            72,
            {
                "sensor": "FX17, Lumo - Recorder v2017-449",
                "acquired": "2021-05-31T00:50:20Z",
                "nm": [935.61, 939.02, 1720.23],
            },
        ),
        (HEADWALL, "raw_0", "", 72, {"quantity": "other", "nm": [379.027, 600.5, 999.9]}),
        (RESONON, "pika.bil", "", 72, {"quantity": "other", "nm": [387.12, 601.5, 1023.6]}),
    ],
)
def test_headers_of_instruments_are_read_whatever_their_own_keys(tmp_path, text, name, data, size, expected):
    header = write(tmp_path, text, name=name, data=data, size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)  # Specim's headers name no unit
        ds = open_scene(header)
    raw = np.fromfile(tmp_path / f"{name}{data}", np.uint8)[-72:].view(">i2" if text is HYMAP else "<u2")
    order = (1, 2, 0) if text is CASI else (0, 2, 1)
    assert np.array_equal(ds["data"].values, raw.reshape(3, 3, 4).transpose(order))
    assert ds["wavelength"].values.tolist() == expected.pop("nm")
    assert {key: ds.attrs.get(key) for key in expected} == expected
    if text is HYMAP:
        assert ds["good_band"].values.tolist() == [True, True, False]
        assert ds.attrs["scale"] == 1e-4
    if text in (HYSPEX, SPECIM):
        assert ds.attrs["default_bands"] == [2, 1, 0]


# --- large files ---

OPEN_LARGE = """
import resource, sys, time, warnings
from bandstream.pipeline.readers import open_scene
warnings.simplefilter("ignore")
open_scene(sys.argv[1])  # the first scene of a process pays for what libraries load late
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
ds = open_scene(sys.argv[2])
took = time.perf_counter() - start
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
assert ds["data"].nbytes == 10_000_000_000, ds["data"].nbytes
print(took, grown, len(ds["data"].data.dask), sum(v.nbytes for v in ds.coords.values()))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="resource is not there")
@pytest.mark.parametrize("interleave", ["bsq", "bip"])
def test_a_file_of_10_gb_opens_at_once_and_takes_no_memory(tmp_path, interleave):
    names = ",".join(f"{400 + i * 4.25:.2f} Nanometers" for i in range(400))
    lists = f"bbl = {{{','.join('1' * 400)}}}\nfwhm = {{{','.join(['5'] * 400)}}}\nband names = {{{names}}}"
    grid = "map info = {UTM, 1, 1, 500000, 4000000, 5, 5, 11, North, WGS-84, units=Meters, rotation=30}"
    text = f"samples = 500\nlines = 12500\nbands = 400\ndata type = 4\ninterleave = {interleave}\nbyte order = 0\n{lists}\n{grid}"
    large = write(tmp_path, text, name="large", size=4)
    os.truncate(tmp_path / "large", 10_000_000_000)
    small = write(tmp_path, grid, name="small")
    command = [sys.executable, "-c", OPEN_LARGE, str(small), str(large)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 0, out.stderr
    took, grown, tasks, coords = (float(word) for word in out.stdout.split())
    assert took < 0.3
    assert grown < 50 * 2**20
    assert tasks < 2000
    assert coords < 2**20
