"""AVIRIS images: gains, fill, units and the files beside them, on generated and on real files."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
import spectral
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning, FormatError, TruncatedFileError
from bandstream.pipeline.nodata import invalid_mask
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.aviris_names import parse_name, read_gains
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

NG = "ang20170323t202244"
DTYPES = {2: "<i2", 3: "<i4", 4: "<f4", 5: "<f8"}


def write(folder: Path, name: str, values_yxb: np.ndarray, code: int, **keys: str) -> Path:
    """Write a BIP pair by hand and return its header."""
    rows, cols, bands = values_yxb.shape
    values_yxb.astype(DTYPES[code]).tofile(folder / name)
    told = {key.replace("_", " "): value for key, value in keys.items()}
    lines = [
        f"samples = {cols}",
        f"lines = {rows}",
        f"bands = {bands}",
        f"data type = {code}",
        "interleave = bip",
        "byte order = 0",
        *(f"{key} = {value}" for key, value in told.items()),
    ]
    header = folder / f"{name}.hdr"
    header.write_text("ENVI\n" + "\n".join(lines) + "\n")
    return header


def cube(bands: int = 425, shape=(4, 3)) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 9, (*shape, bands)).astype("f4")


def quiet_open(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


def physical(ds) -> np.ndarray:
    """Return physical values as the Scene contract defines them, NaN where there is no data."""
    raw = ds["data"].values
    scale_b, offset_b = scale_offset(ds)
    bad = invalid_mask(raw, nodata_values(ds))
    return np.where(False if bad is None else bad, np.nan, raw * scale_b + offset_b)


# --- generated products, written by someone who has not seen the reader ---


def compare(ds, truth):
    order = truth.order(ds["wavelength"].values)
    assert np.array_equal(order, np.arange(len(order)))  # bands stay in the file's order
    assert np.array_equal(ds["data"].values, truth.raw_yxb)
    assert ds["data"].dtype == truth.raw_yxb.dtype
    np.testing.assert_allclose(physical(ds), truth.physical_yxb, rtol=1e-12)
    np.testing.assert_allclose(ds["fwhm"].values, truth.fwhm_nm, rtol=1e-12)
    assert np.array_equal(ds["valid"].values, truth.valid_yx)
    assert (ds.attrs["quantity"], ds.attrs["units"]) == ("radiance", "W m-2 sr-1 um-1")
    assert ds.attrs["nodata"] == truth.nodata
    assert ds.attrs["reader"] == "aviris"
    if truth.crs_epsg is not None:
        assert scene_crs(ds) == CRS.from_epsg(truth.crs_epsg)
        np.testing.assert_allclose(list(scene_transform(ds))[:6], truth.transform6, rtol=1e-12)
    if truth.sun_zenith_yx is not None:
        np.testing.assert_allclose(ds["sun_zenith"].values, truth.sun_zenith_yx, rtol=1e-12)
    assert ds.attrs.get("earth_sun_distance_au") == pytest.approx(truth.earth_sun_distance_au)


@pytest.mark.parametrize("which", [0, 1])
def test_classic_divides_by_the_gain_and_knows_the_undeclared_fill(products, tmp_path, which):
    truth = products.make("aviris_classic", tmp_path)
    with pytest.warns(BandstreamWarning, match="no `data ignore value`; -50, the fill") as caught:
        ds = open_scene(truth.paths[which])
    assert len(caught) == 1
    compare(ds, truth)
    assert ds.attrs["sensor"] == "AVIRIS-Classic"
    assert ds.attrs["acquired"] == "2020-10-13"
    drops = np.flatnonzero(np.diff(ds["wavelength"].values) < 0)
    assert drops.tolist() == [31, 95, 159]
    assert {Path(name).suffix for name in ds.attrs["files"]} >= {".gain", ".hdr"}
    assert "lat" not in ds.coords


def test_classic_without_its_gain_file_stays_dn_and_takes_the_users_scale(products, tmp_path):
    truth = products.make("aviris_classic", tmp_path, gain=False)
    with pytest.warns(
        BandstreamWarning, match=r"no f201013t01p00r10\*\.gain file beside it, so the numbers stay dn"
    ):
        ds = quiet_twice(truth.paths[0])
    assert ds.attrs["quantity"] == "dn"
    assert "scale" not in ds.attrs
    assert "scale" not in ds.coords
    given = quiet_open(truth.paths[0], scale=truth.scale.tolist())
    np.testing.assert_allclose(physical(given), truth.physical_yxb, rtol=1e-12)
    assert given.attrs["quantity"] == "radiance"


def quiet_twice(path):
    """Open with warnings passed on, those about fill left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the fill of such products.*")
        return open_scene(path)


@pytest.mark.parametrize("ortho", [False, True])
def test_ng_is_in_microwatts_with_the_geometry_of_its_companions(products, tmp_path, ortho):
    truth = products.make("aviris_ng", tmp_path, ortho=ortho)
    ds = open_scene(truth.paths[0])
    compare(ds, truth)
    assert (ds.attrs["sensor"], ds.attrs["acquired"]) == ("AVIRIS-NG", "2017-03-23T20:22:44Z")
    if ortho:
        assert "lat" not in ds.coords
    else:
        np.testing.assert_allclose(ds["lat"].values, truth.lat_yx, rtol=1e-12)
        np.testing.assert_allclose(ds["lon"].values, truth.lon_yx, rtol=1e-12)
        assert (ds["elevation"].values == 812).all()


def test_a_folder_with_one_image_is_that_image(products, tmp_path):
    truth = products.make("aviris_ng", tmp_path)
    ds = open_scene(tmp_path)
    compare(ds, truth)
    assert ds.attrs["scene_id"] == open_scene(truth.paths[0]).attrs["scene_id"]
    shutil.copyfile(truth.paths[1], tmp_path / f"{NG}_rdn_v2p9_1-2.hdr")
    with pytest.raises(FormatError, match="give one of them"):
        open_scene(tmp_path)


# --- rules ---


def test_reflectance_is_named_by_the_product_and_its_fill_is_taken(tmp_path):
    values = cube()
    values[0, 0] = -9999
    ds = quiet_open(write(tmp_path, f"{NG}_rfl_v2_img", values, 4))
    assert (ds.attrs["quantity"], ds.attrs["units"], ds.attrs["nodata"]) == (
        "surface_reflectance",
        "1",
        -9999,
    )
    assert "scale" not in ds.attrs
    assert not ds["valid"].values[0, 0]
    scaled = quiet_open(write(tmp_path, "f130522t01p00r11_refl", cube(224) * 1000, 2))
    assert (scaled.attrs["quantity"], scaled.attrs["scale"]) == ("surface_reflectance", 1e-4)


def test_what_the_header_tells_wins_over_what_is_known_of_the_product(tmp_path):
    header = write(tmp_path, f"{NG}_rdn_v2", cube(), 4, data_ignore_value="-1", reflectance_scale_factor="2")
    with pytest.warns(BandstreamWarning, match="its word counts"):
        ds = open_scene(header)
    assert (ds.attrs["nodata"], ds.attrs["scale"], ds.attrs["quantity"]) == (-1, 0.5, "surface_reflectance")
    told = write(tmp_path, f"{NG}_corr_v2", cube(), 4, data_ignore_value="-1")
    assert quiet_open(told).attrs["nodata"] == -1
    assert quiet_open(told, nodata=3, quantity="other", units="K").attrs["nodata"] == 3


@pytest.mark.parametrize(
    ("name", "bands", "code"),
    [
        (f"{NG}_rdn_v2_img", 3, 4),  # a picture
        (f"{NG}_rdn_v2_img", 425, 2),  # of another type than the product
        ("f080702t01p00r08rdn_c_sc01_ort_img", 224, 4),  # divided by its gains already
        (f"{NG}_h2o_v2_img", 425, 4),
        (f"{NG}_corr_class", 425, 4),
        ("my_rdn", 425, 4),
        (f"{NG}_noted", 425, 4),
    ],
)
def test_other_files_go_to_the_plain_reader_which_guesses_nothing(tmp_path, name, bands, code):
    ds = quiet_open(write(tmp_path, name, cube(bands), code))
    assert ds.attrs["reader"] == "envi"
    assert ds.attrs["quantity"] == "other"
    assert "nodata" not in ds.attrs


def test_the_reader_asked_for_by_name_says_what_names_it_knows(tmp_path):
    header = write(tmp_path, "anything", cube(), 4)
    with pytest.raises(FormatError, match=r"the name tells no AVIRIS product.*reader='envi'"):
        open_scene(header, reader="aviris")
    with pytest.raises(FormatError, match="no AVIRIS image, or several"):
        open_scene(tmp_path, reader="aviris")


def test_igm_files_in_metres_are_no_degrees(tmp_path):
    header = write(tmp_path, f"{NG}_rdn_v2", cube(), 4)
    write(tmp_path, f"{NG}_rdn_v2_igm", np.full((4, 3, 3), 4e5), 5)
    with pytest.warns(BandstreamWarning, match="holds no degrees.*metres of a map"):
        ds = open_scene_but_fill(header)
    assert "lat" not in ds.coords
    assert len(ds.attrs["files"]) == 2


def open_scene_but_fill(header):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the fill of such products.*")
        return open_scene(header)


def test_companions_of_another_part_or_size_are_not_used(tmp_path):
    header = write(tmp_path, f"{NG}_rdn_0-10", cube(), 4)
    obs = np.full((4, 3, 11), 30.0)
    obs[:, :, 10] = 1.0
    write(tmp_path, f"{NG}_obs_10-20", obs, 5)
    write(tmp_path, f"{NG}_obs", obs, 5)
    write(tmp_path, "ang20170323t202245_obs_0-10", obs, 5)
    ds = quiet_open(header)
    assert "sun_zenith" not in ds
    write(tmp_path, f"{NG}_obs_0-10", obs[:3], 5)
    assert "sun_zenith" not in quiet_open(header)
    write(tmp_path, f"{NG}_obs_0-10", obs, 5)
    assert (quiet_open(header)["sun_zenith"].values == 30).all()


@pytest.mark.parametrize(
    ("band", "values", "message"),
    [
        (4, 197.0, "band 5 should be the sun's zenith.* 197"),
        (10, np.linspace(0.99, 1.01, 12).reshape(4, 3), "band 11 should be the distance.* 0.99 to 1.01"),
        (10, 149.6, "band 11 should be the distance"),
    ],
)
def test_geometry_that_cannot_be_is_named_and_left_out(tmp_path, band, values, message):
    header = write(tmp_path, f"{NG}_rdn", cube(), 4)
    obs = np.full((4, 3, 11), 30.0)
    obs[:, :, 10] = 1.0
    obs[:, :, band] = values
    write(tmp_path, f"{NG}_obs", obs, 5)
    with pytest.warns(BandstreamWarning, match=message):
        ds = open_scene_but_fill(header)
    assert ("sun_zenith" in ds) == (band != 4)
    assert "earth_sun_distance_au" not in ds.attrs


def test_fill_of_the_geometry_becomes_nan(tmp_path):
    header = write(tmp_path, f"{NG}_rdn", cube(), 4)
    obs = np.full((4, 3, 11), 30.0)
    obs[:, :, 10] = 1.0
    obs[0, 0] = -9999
    write(tmp_path, f"{NG}_obs", obs, 5)
    ds = quiet_open(header)
    expected = np.full((4, 3), 30.0)
    expected[0, 0] = np.nan
    assert np.array_equal(ds["sun_zenith"].values, expected, equal_nan=True)
    assert ds.attrs["earth_sun_distance_au"] == 1.0


def test_a_damaged_companion_is_named_and_left_out(tmp_path):
    header = write(tmp_path, f"{NG}_rdn", cube(), 4)
    write(tmp_path, f"{NG}_obs", np.full((4, 3, 11), 30.0), 5)
    (tmp_path / f"{NG}_obs").write_bytes(b"short")
    with pytest.warns(BandstreamWarning, match="lies beside the image, is not used.*cut short"):
        assert "sun_zenith" not in open_scene_but_fill(header)
    (tmp_path / f"{NG}_rdn").write_bytes(b"short")
    with pytest.raises(TruncatedFileError):
        open_scene(header)


@pytest.mark.parametrize("code", [2, 3])
def test_a_look_up_table_counts_from_one_and_marks_what_was_filled_in(tmp_path, code):
    header = write(tmp_path, f"{NG}_rdn_v2", cube(), 4)
    table = np.zeros((5, 6, 2), int)
    table[1, 2] = (3, 4)  # sample 3, line 4
    table[1, 3] = (-3, -4)  # the same pixel, filled in
    table[2, 2] = (4, 1)  # outside the image
    grid = "{UTM, 1, 1, 500000, 4000000, 5, 5, 11, North, WGS-84, units=Meters, rotation=30}"
    glt = write(tmp_path, f"{NG}_rdn_v2_glt", table, code, map_info=grid)
    ds = quiet_open(header)
    row, col = ds["glt_row"], ds["glt_col"]
    assert row.dims == col.dims == ("ortho_y", "ortho_x")
    assert row.dtype == col.dtype == np.int32
    assert (row.values[1, 2], col.values[1, 2]) == (3, 2) == (row.values[1, 3], col.values[1, 3])
    assert (row.values[0, 0], col.values[0, 0]) == (-1, -1)
    assert col.values[2, 2] == -1
    with rasterio.open(str(glt)[:-4]) as theirs:
        np.testing.assert_allclose(ds.attrs["ortho_transform"], list(theirs.transform)[:6], rtol=1e-12)
        assert CRS.from_wkt(ds.attrs["ortho_crs_wkt"]) == theirs.crs
    assert row.data.chunks[0] == (5,)


@pytest.mark.parametrize("line", ["{g}", "{g} {n}", "  {n}   {g}", "{g},{n}", "{g}\t{n}"])
def test_gain_files_in_every_column_order(tmp_path, line):
    gains = np.repeat([300.0, 600, 1200], [110, 50, 64])
    path = tmp_path / "x.gain"
    path.write_text("\n".join(line.format(g=g, n=n) for n, g in enumerate(gains, 1)) + "\n\n")
    assert np.array_equal(read_gains(str(path), 224), gains)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "300 1\n",
        "300 1 2\n" * 224,
        "0 1\n" * 224,
        "nan\n" * 224,
        "word\n" * 224,
        "\0\n" * 224,
        "300 300\n" * 224,
    ],
)
def test_gain_files_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "f080702t01p00r08rdn_c.gain").write_text(text)
    header = write(tmp_path, "f080702t01p00r08rdn_c_img", cube(224) * 100, 2)
    with pytest.raises(FormatError, match="gain"):
        quiet_open(header)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f080702t01p00r08rdn_c_sc01_ort_img", ("AVIRIS-Classic", "rdn", (), "2008-07-02")),
        ("f970620t01p02_r05", None),
        ("F951012t01p00r02rdn_b", ("AVIRIS-Classic", "rdn", (), "1995-10-12")),
        ("f080702t01p00r08rdn_c_obs_ort", ("AVIRIS-Classic", "obs", (), "2008-07-02")),
        ("ang20160910t185702_2rdn_img", ("AVIRIS-NG", "rdn", (), "2016-09-10T18:57:02Z")),
        (
            "ang20140912t192359_corr_v1c_img_400-410_10-20",
            ("AVIRIS-NG", "rfl", ("10", "20", "400", "410"), None),
        ),
        (
            "AV320230926t201618_000_L1B_RDN_3f4aef90_RDN",
            ("AVIRIS-3", "rdn", ("000",), "2023-09-26T20:16:18Z"),
        ),
        ("AV320230926t201618_000_L2A_OE_main_98b13fff_RFL_ORT", ("AVIRIS-3", "rfl", ("000",), None)),
        ("AV320230926t201618_000_L2A_OE_main_98b13fff_UNC_ORT", None),
        ("ang20180325t061759_raw_test", None),
    ],
)
def test_names_tell_sensor_product_part_and_time(name, expected):
    got = parse_name(name)
    if expected is None:
        assert got is None
        return
    assert (got.sensor, got.kind, got.part) == expected[:3]
    if expected[3] is not None:
        assert got.acquired == expected[3]


# --- real files ---


@pytest.mark.real
def test_the_real_ng_chunk_holds_radiance_geometry_and_spys_pixels(data_root):
    folder = data_root / "avirisng_radiance_10x10"
    with pytest.warns(BandstreamWarning) as caught:
        ds = open_scene(folder / f"{NG}_rdn_7000-7010.hdr")
    assert len(caught) == 1  # the undeclared fill; the unit of the wavelengths is known
    obs = np.fromfile(folder / f"{NG}_obs_7000-7010", "<f8").reshape(10, 11, 10)
    loc = np.fromfile(folder / f"{NG}_loc_7000-7010", "<f8").reshape(10, 3, 10)
    assert np.array_equal(ds["sun_zenith"].values, obs[:, 4])
    assert 32 < ds["sun_zenith"].values.min() < ds["sun_zenith"].values.max() < 33
    assert ds.attrs["earth_sun_distance_au"] == pytest.approx(obs[:, 10].mean(), abs=1e-12)
    assert np.array_equal(ds["lon"].values, loc[:, 0])
    assert np.array_equal(ds["lat"].values, loc[:, 1])
    assert -115 < ds["lon"].values.mean() < -114
    assert 32 < ds["lat"].values.mean() < 33
    assert (ds.attrs["quantity"], ds.attrs["scale"]) == ("radiance", 10.0)
    blue = physical(ds)[:, :, np.argmin(np.abs(ds["wavelength"].values - 480))]
    assert 20 < blue.mean() < 300  # W m-2 sr-1 um-1 of sunlit ground
    assert_same_pixels(ds, folder / f"{NG}_rdn_7000-7010.hdr")


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "rotation"),
    [
        ("ang20140912t192359_corr_v1c_img_2580-2590_540-550", 53.0),
        ("ang20150422t163638_corr_v1e_img_4000-4010_550-560", -66.0),
        ("f080702t01p00r08rdn_c_sc01_ort_img_123_456", -27.0),
    ],
)
def test_real_ortho_images_keep_their_turned_grid_and_spys_pixels(data_root, name, rotation):
    header = data_root / "pycoal_aviris" / f"{name}.hdr"
    ds = quiet_open(header)
    assert ds.attrs["reader"] == "aviris"
    with rasterio.open(str(header)[:-4] + ".img") as theirs:
        np.testing.assert_allclose(list(scene_transform(ds))[:6], list(theirs.transform)[:6], rtol=1e-12)
    transform = scene_transform(ds)
    assert np.rad2deg(np.arctan2(transform.b, transform.a)) == pytest.approx(rotation, abs=1e-6)
    assert_same_pixels(ds, header)


@pytest.mark.real
def test_pixels_around_the_real_image_of_2015_are_no_data(data_root):
    name = "ang20150422t163638_corr_v1e_img_4000-4010_550-560"
    ds = quiet_open(data_root / "pycoal_aviris" / f"{name}.hdr")
    raw = np.fromfile(data_root / "pycoal_aviris" / f"{name}.img", "<f4").reshape(10, 10, 432)
    outside = np.ptp(raw, axis=2) == 0  # no spectrum of a surface is flat over 432 bands
    assert 0 < outside.sum() < 100
    assert np.array_equal(~ds["valid"].values, outside)


@pytest.mark.real
def test_raw_frames_of_ng_go_to_the_plain_reader(data_root):
    ds = open_scene(data_root / "avirisng_raw_l0" / "ang20180325t061759_raw_test.hdr", quantity="dn")
    assert (ds.attrs["reader"], ds.attrs["quantity"]) == ("envi", "dn")
    assert ds["data"].shape == (2, 640, 481)
    assert_same_pixels(ds, data_root / "avirisng_raw_l0" / "ang20180325t061759_raw_test.hdr")


def assert_same_pixels(ds, header: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = spectral.envi.open(str(header)).open_memmap(interleave="bip")
        assert np.array_equal(ds["data"].values, theirs, equal_nan=True)
