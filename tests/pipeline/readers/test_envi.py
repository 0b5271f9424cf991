"""ENVI scenes against SPy and GDAL, and what their headers say about bands and place."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
import spectral
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneNotFoundError, TruncatedFileError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.envi import class_table, read_header
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform, summary

DTYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
ORDERS = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}
SHAPE = (5, 4, 3)


def write(
    folder: Path,
    values_yxb=None,
    *,
    interleave="bil",
    code=2,
    order=0,
    offset=0,
    name="scene",
    data=".img",
    **keys,
) -> Path:
    """Write an ENVI pair by hand, without any library, and return the header."""
    values = np.arange(60).reshape(SHAPE) if values_yxb is None else values_yxb
    dtype = np.dtype("<>"[order] + DTYPES[code])
    rows, cols, bands = values.shape
    raw = values.transpose(ORDERS[interleave]).astype(dtype).tobytes()
    (folder / f"{name}{data}").write_bytes(b"\xff" * offset + raw)
    fields = {
        "samples": cols,
        "lines": rows,
        "bands": bands,
        "header offset": offset,
        "file type": "ENVI Standard",
        "data type": code,
        "interleave": interleave,
        "byte order": order,
        **{key.replace("_", " "): value for key, value in keys.items()},
    }
    header = folder / f"{name}.hdr"
    header.write_text("ENVI\n" + "\n".join(f"{k} = {v}" for k, v in fields.items() if v is not None) + "\n")
    return header


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("interleave", ORDERS)
def test_numbers_equal_spy_and_gdal_in_every_layout(tmp_path, interleave, code, order):
    rng = np.random.default_rng(code)
    kind = np.dtype(DTYPES[code])
    info = np.iinfo(kind) if kind.kind in "iu" else None
    values = (
        rng.normal(0, 1e3, SHAPE)
        if info is None
        else rng.integers(info.min, info.max, SHAPE, kind, endpoint=True)
    )
    header = write(tmp_path, values, interleave=interleave, code=code, order=order, offset=3)
    ds = open_scene(header)
    assert ds["data"].dtype == kind
    got = ds["data"].values
    assert got.dtype.isnative
    assert np.array_equal(got, values.astype(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no georeference; SPy's own deprecations
        with rasterio.open(tmp_path / "scene.img") as gdal:
            assert np.array_equal(got, gdal.read().transpose(1, 2, 0))
        # not load(), which goes through float32
        assert np.array_equal(got, spectral.envi.open(str(header)).open_memmap(interleave="bip"))


@pytest.mark.parametrize("given", ["scene.hdr", "scene.img"])
@pytest.mark.parametrize("kind", [str, Path])
def test_header_and_data_file_lead_to_the_same_scene(tmp_path, given, kind):
    write(tmp_path)
    ds = open_scene(kind(tmp_path / given))
    assert np.array_equal(ds["data"].values, np.arange(60).reshape(SHAPE))
    assert ds.attrs["files"] == [str(tmp_path / "scene.hdr"), str(tmp_path / "scene.img")]
    assert "block_bytes" not in ds.attrs  # raw numbers are read without decoding
    assert (ds.attrs["scene_id"], ds.attrs["reader"]) == ("scene", "envi")
    assert ds.attrs["source"] == str(tmp_path / given)


@pytest.mark.parametrize(
    "data", ["", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".hyspex", ".IMG", ".BIL"]
)
def test_the_data_file_is_found_under_its_usual_names(tmp_path, data):
    write(tmp_path, data=data)
    assert open_scene(tmp_path / "scene.hdr").attrs["files"][1].endswith(f"scene{data}")
    assert open_scene(tmp_path / f"scene{data}").attrs["files"][0].endswith("scene.hdr")


def test_a_header_may_be_named_after_the_whole_data_file(tmp_path):
    header = write(tmp_path)
    header.rename(tmp_path / "scene.img.HDR")
    for given in ("scene.img.HDR", "scene.img"):
        assert open_scene(tmp_path / given).attrs["scene_id"] == "scene"


def test_of_several_data_files_the_one_that_fits_is_taken_or_the_user_asked(tmp_path):
    header = write(tmp_path)
    (tmp_path / "scene.dat").write_bytes(b"too short")
    assert open_scene(header).attrs["files"][1].endswith(".img")
    (tmp_path / "scene.dat").write_bytes((tmp_path / "scene.img").read_bytes())
    with pytest.raises(FormatError, match="say which by data_file="):
        open_scene(header)
    assert open_scene(header, data_file="scene.dat").attrs["files"][1] == str(tmp_path / "scene.dat")
    with pytest.raises(SceneNotFoundError, match=r"other\.dat"):
        open_scene(header, data_file="other.dat")


def test_missing_halves_are_told_with_the_names_looked_for(tmp_path):
    header = write(tmp_path)
    (tmp_path / "scene.img").unlink()
    with pytest.raises(SceneNotFoundError, match=r"looked for .*scene with the endings .*give data_file="):
        open_scene(header)
    lonely = tmp_path / "lonely.img"
    lonely.write_bytes(b"\0" * 10)
    with pytest.raises(SceneNotFoundError, match=r"lonely\.img\.hdr"):
        open_scene(lonely, reader="envi")


def test_a_file_one_byte_short_is_an_error_before_any_work(tmp_path):
    header = write(tmp_path)
    os.truncate(tmp_path / "scene.img", 119)
    with pytest.raises(TruncatedFileError, match=r"119 bytes.*promises 120"):
        open_scene(header)


def test_a_longer_file_warns_with_the_surplus_and_takes_an_explicit_offset(tmp_path):
    header = write(tmp_path)
    raw = (tmp_path / "scene.img").read_bytes()
    (tmp_path / "scene.img").write_bytes(b"head" + raw)
    with pytest.warns(BandstreamWarning, match="4 more than its header promises.*header_offset=4"):
        open_scene(header)
    ds = open_scene(header, header_offset=4)
    assert np.array_equal(ds["data"].values, np.arange(60).reshape(SHAPE))
    assert ds.attrs["warnings"] == []


def test_a_missing_byte_order_is_one_warning_kept_with_the_scene(tmp_path):
    header = write(tmp_path, byte_order=None, header_offset=None, file_type=None)
    with pytest.warns(BandstreamWarning, match="no `byte order`") as caught:
        ds = open_scene(header)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(ds.attrs["warnings"]) == 1


@pytest.mark.parametrize(
    "bbl", ["{1, 0, 1}", "{1.0,0.0,1.0}", "{ 1 ,\n 0 , 1 , }", "1, 0, 1", "{1.000e+00, 0, 1}"]
)
def test_bad_bands_in_every_spelling(tmp_path, bbl):
    assert open_scene(write(tmp_path, bbl=bbl))["good_band"].values.tolist() == [True, False, True]


@pytest.mark.parametrize("key", ["bbl", "wavelength", "fwhm", "data gain values", "data offset values"])
def test_a_list_one_entry_short_is_an_error_with_both_counts(tmp_path, key):
    lists = {"wavelength": "{400, 500, 600}", "wavelength units": "nm", key: "{400, 500}"}
    with pytest.raises(FormatError, match=f"`{key}` has 2 entries for 3 bands"):
        open_scene(write(tmp_path, **lists))


def test_wavelengths_and_widths_share_their_unit(tmp_path):
    header = write(
        tmp_path,
        wavelength="{2.2, 0.56, 0.46}",
        fwhm="{0.01, 0.0061, 0.0058}",
        wavelength_units="Micrometers",
    )
    ds = open_scene(header)
    assert ds["wavelength"].values.tolist() == [2200, 560, 460]
    assert ds["fwhm"].values.tolist() == [10, 6.1, 5.8]


def test_gains_and_offsets_are_kept_per_band(tmp_path):
    header = write(tmp_path, data_gain_values="{0.5, 2, 1}", data_offset_values="{1, 0, -1}")
    scale_b, offset_b = scale_offset(open_scene(header))
    assert (scale_b.tolist(), offset_b.tolist()) == ([0.5, 2, 1], [1, 0, -1])


def test_a_reflectance_scale_factor_divides(tmp_path):
    ds = open_scene(write(tmp_path, reflectance_scale_factor="10000"))
    assert ds.attrs["scale"] == 1e-4
    assert ds.attrs["quantity"] == "surface_reflectance"
    assert (
        open_scene(tmp_path / "scene.hdr", quantity="toa_reflectance").attrs["quantity"] == "toa_reflectance"
    )


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "many"])
def test_a_senseless_scale_factor_is_refused(tmp_path, factor):
    with pytest.raises(FormatError, match="reflectance scale factor"):
        open_scene(write(tmp_path, reflectance_scale_factor=factor))


def test_gains_beside_a_scale_factor_are_asked_about(tmp_path):
    header = write(tmp_path, reflectance_scale_factor="10000", data_gain_values="{0.5, 2, 1}")
    with pytest.raises(FormatError, match="give scale= and offset="):
        open_scene(header)
    assert open_scene(header, scale=0.25).attrs["scale"] == 0.25


@pytest.mark.parametrize(
    ("text", "code", "special"),
    [("-9999", 2, -9999), ("NaN", 4, np.nan), ("-1.23000002e+034", 4, -1.23000002e34)],
)
def test_the_ignore_value_is_found_in_the_files_own_type(tmp_path, text, code, special):
    values = np.arange(60, dtype=float).reshape(SHAPE)
    values[1, 2] = special
    ds = open_scene(write(tmp_path, values, code=code, data_ignore_value=text))
    expected = np.ones(SHAPE[:2], bool)
    expected[1, 2] = False
    assert np.array_equal(ds["valid"].values, expected)
    assert np.array_equal(nodata_values(ds), np.full(3, float(text)), equal_nan=True)


def test_an_ignore_value_that_is_no_number_warns(tmp_path):
    with pytest.warns(BandstreamWarning, match="data ignore value = 'none'"):
        assert "nodata" not in open_scene(write(tmp_path, data_ignore_value="none")).attrs


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e999"])
def test_an_infinite_ignore_value_warns(tmp_path, text):
    with pytest.warns(BandstreamWarning, match=f"data ignore value = '{text}' is no finite number"):
        ds = open_scene(write(tmp_path, code=4, data_ignore_value=text))
    assert "nodata" not in ds.attrs


@pytest.mark.parametrize("entry", ["nan", "inf", "-inf"])
def test_bad_bands_that_are_no_finite_numbers_are_refused(tmp_path, entry):
    with pytest.raises(FormatError, match=rf"scene\.hdr: `bbl` holds {entry} for band 2"):
        open_scene(write(tmp_path, bbl=f"{{1, {entry}, 0}}"))


def test_options_replace_what_the_header_says(tmp_path):
    header = write(tmp_path, data_ignore_value="-1", reflectance_scale_factor="10000")
    ds = open_scene(header, nodata=7, scale=[1, 2, 3], offset=5, quantity="radiance", units="W m-2 sr-1 um-1")
    assert ds.attrs["nodata"] == 7
    assert ds["scale"].values.tolist() == [1, 2, 3]
    assert ds.attrs["offset"] == 5
    assert (ds.attrs["quantity"], ds.attrs["units"]) == ("radiance", "W m-2 sr-1 um-1")


def test_band_names_with_commas_of_their_own_are_not_used(tmp_path):
    header = write(tmp_path, band_names="{azimuth (0, 360), zenith, slope}")
    with pytest.warns(BandstreamWarning, match="`band names` has 4 entries for 3 bands"):
        assert open_scene(header)["band_name"].values.tolist() == ["Band 1", "Band 2", "Band 3"]
    assert open_scene(write(tmp_path, band_names="{a = b,\n c,d}"))["band_name"].values.tolist() == [
        "a = b",
        "c",
        "d",
    ]


MAPS = [
    "{UTM, 1, 1, 384342.37, 5818392.35, 30, 30, 33, North,WGS-84}",
    "{UTM, 1.000, 1.000, 380952.370, 5820372.350, 3.0000000000e+001, 3.0e+001, 33, South, WGS-84, units=Meters}",
    "{ UTM , 1.000 , 1.000 , 736600.089 , 4078126.750 , 2.7 , 2.7 , 12 , North , WGS-84 , units=Meters , rotation=-66.0 }",
    "{UTM, 10.5, 3, 384342.37, 5818392.35, 30, 20, 33, North, WGS-84}",
    "{UTM, 1.0, 1.0, 441357.287073, 4855944.77, 0.04, 0.04, 15, T, WGS-84, units  meters, rotation  0.000}",
    "{UTM, 1, 1, 384342.37, 5818392.35, 30, 30, 17, North, North America 1983}",
    "{UTM, 1, 1, 384342.37, 5818392.35, 30, 30, 17, North, North America 1927}",
    "{Geographic Lat/Lon, 1, 1, -44.84032, -22.932584, 0.003432, 0.003432,WGS-84}",
    "{Geographic Lat/Lon, 1.5, 1.5, -44.84, -22.93, 0.003, 0.003, WGS-84, units=Degrees}",
]


@pytest.mark.parametrize("text", MAPS)
def test_map_info_means_what_gdal_reads_from_it(tmp_path, text):
    ds = open_scene(write(tmp_path, map_info=text))
    with rasterio.open(tmp_path / "scene.img") as gdal:
        assert np.allclose(list(scene_transform(ds))[:6], list(gdal.transform)[:6], rtol=1e-12)
        assert scene_crs(ds) == gdal.crs
    if "rotation" not in text or "rotation  0" in text:
        with rasterio.open(tmp_path / "scene.img") as gdal:
            assert np.allclose((ds["x"].values[2], ds["y"].values[3]), gdal.xy(3, 2), rtol=1e-12)


def test_a_rotated_grid_turns_around_its_tie_point(tmp_path):
    header = write(tmp_path, map_info="{UTM, 3.5, 2, 500, 900, 30, 20, 33, North, WGS-84, rotation=30}")
    a, b, c, d, e, f = list(scene_transform(open_scene(header)))[:6]
    assert np.allclose((a * 2.5 + b * 1 + c, d * 2.5 + e * 1 + f), (500, 900))
    with rasterio.open(tmp_path / "scene.img") as gdal:
        assert np.allclose((a, b, d, e), [gdal.transform[i] for i in (0, 1, 3, 4)])


@pytest.mark.parametrize(
    "text",
    [
        "{State Plane (NAD 83), 1, 1, 100, 200, 3, 3, 401, North America 1983, units=Feet}",
        "{UTM, 1, 1, 100, 200, 3, 3, 11, S, WGS-84}",
        "{UTM, 1, 1, 100, 200, 3, 3, 61, North, WGS-84}",
        "{UTM, 1, 1, 100, 200, 3, 3, 11, North, Tokyo}",
        "{UTM, 1, 1, 100, 200, 3, 3, 11, North, WGS-84, units=Feet}",
        "{UTM, 1, 1, 100, 200, 3, 3}",
        "{Geographic Lat/Lon, 1, 1, 100, 200, 3, 3, WGS-84, units=Meters}",
    ],
)
def test_a_projection_that_leaves_a_doubt_keeps_the_transform_and_warns(tmp_path, text):
    with pytest.warns(BandstreamWarning, match="the scene has no CRS"):
        ds = open_scene(write(tmp_path, map_info=text))
    assert scene_crs(ds) is None
    assert list(scene_transform(ds))[:6] == [3, 0, 100, 0, -3, 200]


def test_the_coordinate_system_string_wins_over_map_info(tmp_path):
    wkt = CRS.from_epsg(3035).to_wkt(version="WKT1_ESRI")
    header = write(tmp_path, map_info=MAPS[0], coordinate_system_string="{" + wkt + "}")
    assert scene_crs(open_scene(header)) == CRS.from_epsg(3035)
    header = write(tmp_path, map_info=MAPS[0], coordinate_system_string="{PROJCS[broken}")
    with pytest.warns(BandstreamWarning, match="cannot be read; map info alone"):
        assert scene_crs(open_scene(header)) == CRS.from_epsg(32633)


def test_an_arbitrary_grid_has_no_crs_and_no_warning(tmp_path):
    ds = open_scene(write(tmp_path, map_info="{Arbitrary, 1, 1, 0, 0, 2, 2, 0, North}"))
    assert scene_crs(ds) is None
    assert ds["x"].values.tolist() == [1, 3, 5, 7]


def test_map_info_without_numbers_is_refused(tmp_path):
    with pytest.raises(FormatError, match="six numbers"):
        open_scene(write(tmp_path, map_info="{UTM, 1, 1, east, 0, 2, 2}"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1, 1, nan, 0, 2, 2", "easting of map info = nan"),
        ("1, 1, 0, -inf, 2, 2", "northing of map info = -inf"),
        ("1e999, 1, 0, 0, 2, 2", "tie point column of map info = inf"),
        ("1, 1, 0, 0, 0, 2", "pixel width of map info = 0; allowed: a finite number other than 0"),
        ("1, 1, 0, 0, 2, 1e200", r"pixel height of map info = 1e\+200"),
        ("1, 1, 0, 0, 2, 2, rotation=nan", "rotation of map info = nan"),
        ("1, 1, 0, 0, 2, 2, rotation=inf", "rotation of map info = inf"),
    ],
)
def test_map_info_that_makes_no_grid_warns_and_leaves_no_transform(tmp_path, text, named):
    numbers, _, rotation = text.partition(", rotation")
    rest = f", rotation{rotation}" if rotation else ""
    header = write(tmp_path, map_info=f"{{UTM, {numbers}, 33, North, WGS-84{rest}}}")
    with pytest.warns(BandstreamWarning, match=named):
        ds = open_scene(header)
    assert scene_transform(ds) is None
    assert scene_crs(ds) == CRS.from_epsg(32633)
    assert np.array_equal(ds["data"].values, np.arange(60).reshape(SHAPE))
    json.dumps(summary(ds), allow_nan=False)


def test_an_infinite_zone_is_an_unknown_projection(tmp_path):
    with pytest.warns(BandstreamWarning, match="is not known; the scene has no CRS"):
        assert (
            scene_crs(open_scene(write(tmp_path, map_info="{UTM, 1, 1, 0, 0, 2, 2, inf, North, WGS-84}")))
            is None
        )


def test_class_names_hold_equals_signs_and_colours_follow_them(tmp_path):
    header = write(
        tmp_path,
        file_type="ENVI Classification",
        classes=3,
        class_names="{Unclassified, Acmite s06av95a=a,\n Beryl}",
        class_lookup="{0, 0, 0, 255, 0, 16,\n 1, 2, 3}",
    )
    names, colors = class_table(read_header(header))
    assert names == ["Unclassified", "Acmite s06av95a=a", "Beryl"]
    assert colors == ["#000000", "#ff0010", "#010203"]
    assert class_table(read_header(write(tmp_path))) is None
    assert class_table({"class names": "{a, b}"}) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": "3", "class names": "{a, b}"}, "classes = 3, but `class names` has 2"),
        ({"classes": "\u00b2", "class names": "{a, b}"}, "classes = \u00b2, but `class names` has 2"),
        ({"class names": "{a, b}", "class lookup": "{0, 0, 0}"}, "3 numbers"),
        ({"class names": "{a}", "class lookup": "{0, 0, 256}"}, "0-255"),
    ],
)
def test_class_lists_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(FormatError, match=message):
        class_table(fields)


def test_sensor_and_time_are_told_when_known(tmp_path):
    ds = open_scene(write(tmp_path, sensor_type="HySpex", acquisition_time="2009-08-20T09:44:50"))
    assert (ds.attrs["sensor"], ds.attrs["acquired"]) == ("HySpex", "2009-08-20T09:44:50")
    assert "sensor" not in open_scene(write(tmp_path, sensor_type="Unknown")).attrs


@pytest.mark.process
def test_a_scene_computes_in_other_processes(tmp_path):
    ds = open_scene(write(tmp_path, order=1))
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301 - our own bytes
    assert np.array_equal(
        again["data"].data.compute(scheduler="processes", num_workers=1), np.arange(60).reshape(SHAPE)
    )
