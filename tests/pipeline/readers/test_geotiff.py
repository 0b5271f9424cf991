"""GeoTIFF scenes: numbers against rasterio, and every place where programs put wavelengths."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import dask
import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.enums import ColorInterp

from bandstream.pipeline.errors import BandstreamWarning, FormatError, TruncatedFileError
from bandstream.pipeline.readers import geotiff, open_scene, raster
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

SHAPE = (40, 48, 3)
PLACE = {"crs": CRS.from_epsg(32633), "transform": Affine(30, 0, 500_000, 0, -30, 5_800_000)}


def write(
    path,
    values_yxb=None,
    *,
    tags=None,
    band_tags=None,
    scales=None,
    offsets=None,
    descriptions=None,
    **profile,
):
    """Write a GeoTIFF; `tags` by domain, `band_tags` by domain with one value per band and key."""
    values = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE) if values_yxb is None else values_yxb
    rows, cols, bands = values.shape
    profile = {"driver": "GTiff", "dtype": values.dtype, **PLACE, **profile}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no georeference, asked for
        with rasterio.open(path, "w", height=rows, width=cols, count=bands, **profile) as out:
            out.write(values.transpose(2, 0, 1))
            for domain, items in (tags or {}).items():
                out.update_tags(ns=domain, **items)
            for domain, items in (band_tags or {}).items():
                for band in range(bands):
                    out.update_tags(band + 1, ns=domain, **{k: v[band] for k, v in items.items()})
            if scales:
                out.scales, out.offsets = scales, offsets or [0.0] * bands
            if descriptions:
                out.descriptions = descriptions
    return path


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "float32", "float64", "int64"]
)
@pytest.mark.parametrize(
    "profile",
    [
        {"interleave": "pixel"},
        {"interleave": "band", "compress": "deflate"},
        {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "lzw"},
        {"interleave": "band", "tiled": True, "blockxsize": 32, "blockysize": 16},
        {"BIGTIFF": "YES", "ENDIANNESS": "BIG"},
    ],
)
def test_numbers_and_place_equal_rasterio_in_every_layout(tmp_path, dtype, profile):
    values = np.random.default_rng(0).integers(0, 127, SHAPE).astype(dtype)
    path = write(tmp_path / "a.tif", values, **profile)
    ds = open_scene(path)
    assert ds["data"].dtype == dtype
    assert np.array_equal(ds["data"].values, values)
    assert np.array_equal(ds["data"][3:20:2, ::-1, [2, 0]].values, values[3:20:2, ::-1, [2, 0]])
    with rasterio.open(path) as theirs:
        assert scene_crs(ds) == theirs.crs
        assert scene_transform(ds) == theirs.transform
        assert (ds["x"].values[5], ds["y"].values[7]) == theirs.xy(7, 5)


def test_the_place_of_a_file_without_georeference_is_unknown(tmp_path):
    path = write(tmp_path / "a.tif", crs=None, transform=None)
    ds = open_scene(path)  # and rasterio's own warning is not passed on
    assert "spatial_ref" not in ds.coords
    assert ds["x"].values[0] == 0.5
    assert ds["data"].values[0, 1].tolist() == [3, 4, 5]


def test_chunks_end_where_blocks_end_so_that_no_block_is_decoded_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("bandstream.pipeline.readers.cube.CHUNK_BYTES", 16 * 48 * 3 * 2)
    path = write(tmp_path / "a.tif", tiled=True, blockxsize=16, blockysize=16)
    assert open_scene(path)["data"].data.chunks == ((16, 16, 8), (48,), (3,))
    monkeypatch.setattr(geotiff, "BLOCK_ROW_BYTES", 100)
    monkeypatch.setattr(geotiff, "CHUNK_BYTES", 2 * 16 * 16 * 3 * 2)
    ds = open_scene(path)
    assert ds["data"].data.chunks == ((16, 16, 8), (32, 16), (3,))
    assert np.array_equal(ds["data"].values, np.arange(np.prod(SHAPE)).reshape(SHAPE))


def test_huge_blocks_are_cut_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(geotiff, "BLOCK_ROW_BYTES", 100)
    monkeypatch.setattr(geotiff, "_LARGEST_CHUNK", 100)
    monkeypatch.setattr("bandstream.pipeline.readers.cube.CHUNK_BYTES", 4 * 48 * 3 * 2)
    path = write(tmp_path / "a.tif", tiled=True, blockxsize=16, blockysize=16)
    with pytest.warns(BandstreamWarning, match=r"decoded 4 times; rewrite it with tiles"):
        assert open_scene(path)["data"].data.chunks[0] == (4,) * 10


def test_the_bytes_of_a_block_count_all_bands_only_where_it_holds_them(tmp_path):
    """Decoded block + compressed block + cached bands, for a plain file of blocks that GDAL's cache holds."""
    one = 48 * 2 * 32  # a band of a strip of 32 rows
    cached = 3 * one
    plain = write(tmp_path / "a.tif", interleave="pixel", blockysize=32)
    assert open_scene(plain).attrs["block_bytes"] == 3 * one + cached
    plain = write(tmp_path / "b.tif", interleave="band", blockysize=32)
    assert open_scene(plain).attrs["block_bytes"] == one + cached
    tiled = write(tmp_path / "c.tif", interleave="pixel", tiled=True, blockxsize=32, blockysize=16)
    assert open_scene(tiled).attrs["block_bytes"] == 3 * 32 * 16 * 2 + 2 * 3 * 32 * 16 * 2
    packed = write(tmp_path / "d.tif", interleave="pixel", blockysize=32, compress="deflate")
    size = min(packed.stat().st_size, 3 * one)
    assert open_scene(packed).attrs["block_bytes"] == 3 * one + size + cached


_PEAK = """
import sys
from bandstream.pipeline.readers import open_scene
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
small, big = (open_scene(path) for path in sys.argv[1:])
small["data"].data[:4].compute(scheduler="sync")
before = status("VmRSS")
out = big["data"].data[:4].compute(scheduler="sync")
print(status("VmHWM") - before, out.nbytes, big.attrs["block_bytes"])
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak of memory")
@pytest.mark.parametrize("interleave", ["pixel", "band"])
def test_reading_a_window_of_a_huge_block_holds_no_more_than_its_bytes(tmp_path, interleave):
    values = np.random.default_rng(0).integers(0, 30_000, (512, 512, 64)).astype("int16")
    profile = {"interleave": interleave, "blockysize": 512, "compress": "deflate", "zlevel": 1}
    paths = [write(tmp_path / "small.tif"), write(tmp_path / "big.tif", values, **profile)]
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *map(str, paths)], check=True, capture_output=True, text=True
    )
    grown, window, allowed = map(int, done.stdout.split())
    chunk = 16 * 2**20  # `data` is read by chunks of up to this size, of which the window is a part
    assert grown <= allowed + window + chunk + 4 * 2**20
    if interleave == "pixel":
        assert grown > values.nbytes  # the block is decoded whole indeed


def test_all_bands_of_a_window_are_read_in_one_call(tmp_path, monkeypatch):
    """So that a block that holds all bands is decoded once per chunk, not once per band."""
    calls = []
    lend = raster.pooled_raster

    class Counting:
        def __init__(self, handle):
            self.handle = handle

        def __getattr__(self, name):
            return getattr(self.handle, name)

        def read(self, bands, **options):
            calls.append(list(bands))
            return self.handle.read(bands, **options)

    @contextmanager
    def counting(*args, **kwargs):
        with lend(*args, **kwargs) as handle:
            yield Counting(handle)

    monkeypatch.setattr(raster, "pooled_raster", counting)
    ds = open_scene(write(tmp_path / "a.tif", interleave="pixel"))
    ds["data"].data.compute(scheduler="sync")
    assert calls == [[1, 2, 3]] * ds["data"].data.numblocks[0]


def test_every_sidecar_that_decides_content_is_listed(tmp_path):
    path = write(tmp_path / "a.tif", crs=None, transform=None)
    (tmp_path / "a.tfw").write_text("30\n0\n0\n-30\n500015\n5799985\n")
    (tmp_path / "a.tif.aux.xml").write_text(
        "<PAMDataset><Metadata><MDI key='bbl'>1, 0, 1</MDI></Metadata></PAMDataset>"
    )
    (tmp_path / "a.txt").write_text("no sidecar")
    write(tmp_path / "a.tif.ovr", np.zeros((20, 24, 3), "int16"), crs=None, transform=None)
    with rasterio.open(path) as theirs:
        assert str(tmp_path / "a.tif.ovr") in theirs.files
    ds = open_scene(path)
    assert ds.attrs["files"][0] == str(path)
    assert {*ds.attrs["files"]} == {str(tmp_path / name) for name in ("a.tif", "a.tfw", "a.tif.aux.xml")}
    assert ds["good_band"].values.tolist() == [True, False, True]
    assert scene_transform(ds) == PLACE["transform"]


@pytest.mark.parametrize(
    "six", [(np.nan, 0, 0, 0, -1, 0), (1, 0, np.inf, 0, -1, 0), (1, 0, np.nan, 0, -1, 0)]
)
def test_a_transform_that_makes_no_grid_warns_and_is_left_out(tmp_path, six):
    path = write(tmp_path / "a.tif", transform=Affine(*six))
    with pytest.warns(BandstreamWarning, match=r"a\.tif: its transform .* makes no grid"):
        ds = open_scene(path)
    assert scene_transform(ds) is None
    assert scene_crs(ds) == PLACE["crs"]


def test_bad_bands_of_a_tag_are_finite_numbers(tmp_path):
    with pytest.raises(FormatError, match=r"a\.tif: `bbl` holds nan for band 2"):
        open_scene(write(tmp_path / "a.tif", tags={"ENVI": {"bbl": "{1, nan, 1}"}}))


def test_nodata_scales_offsets_and_names_come_from_the_file(tmp_path):
    path = write(
        tmp_path / "a.tif",
        nodata=-9999,
        scales=[1e-4, 2e-4, 1e-4],
        offsets=[0, 0, 1],
        descriptions=["r", None, "b"],
    )
    ds = open_scene(path)
    assert nodata_values(ds).tolist() == [-9999] * 3
    scale_b, offset_b = scale_offset(ds)
    assert (scale_b.tolist(), offset_b.tolist()) == ([1e-4, 2e-4, 1e-4], [0, 0, 1])
    assert ds["band_name"].values.tolist() == ["r", "Band 2", "b"]
    assert (ds.attrs["quantity"], ds.attrs["reader"], ds.attrs["scene_id"]) == ("other", "geotiff", "a")
    other = open_scene(path, nodata=0, scale=1.0, offset=0.0, quantity="dn")
    assert (other.attrs["nodata"], other.attrs["quantity"]) == (0, "dn")
    assert "scale" not in other.coords


WL = {
    "wavelength": ["460.0", "2409.0", "650.5"],
    "wavelength_units": ["Nanometers"] * 3,
    "fwhm": ["5.8", "9.1", "6"],
}
LISTS = {
    "wavelength": "460.0, 2409.0,\n 650.5",
    "wavelength_units": "nm",
    "fwhm": "{5.8,9.1,6}",
    "bbl": "1,0,1",
}
ENVI_LISTS = {
    "wavelength": "{460.0,2409.0,650.5}",
    "wavelength units": "nm",
    "fwhm": "{5.8,9.1,6}",
    "bbl": "{1,0,1}",
}
UM = {"CENTRAL_WAVELENGTH_UM": ["0.46", "2.409", "0.6505"], "FWHM_UM": ["0.0058", "0.0091", "0.006"]}


@pytest.mark.parametrize(
    ("options", "bbl"),
    [
        ({"band_tags": {"IMAGERY": UM}}, False),
        ({"band_tags": {None: {**WL, "bbl": ["1", "0", "1"]}}}, True),
        ({"band_tags": {"ENVI": {**WL, "bbl": ["1", "0.0", "1"]}}}, True),
        ({"band_tags": {None: {k.upper(): v for k, v in WL.items()}}}, False),
        (
            {
                "band_tags": {
                    None: {"wl": WL["wavelength"], "wlu": ["nm"] * 3, "full_width_half_maximum": WL["fwhm"]}
                }
            },
            False,
        ),
        ({"band_tags": {None: {**WL, "bad_band_multiplier": ["1", "0", "1"]}}}, True),
        ({"tags": {"ENVI": ENVI_LISTS}}, True),
        ({"tags": {None: LISTS}}, True),
    ],
)
def test_wavelengths_are_found_in_every_usual_place(tmp_path, options, bbl):
    ds = open_scene(write(tmp_path / "a.tif", **options))
    assert ds["wavelength"].values.tolist() == [460, 2409, 650.5]
    assert np.allclose(ds["fwhm"].values, [5.8, 9.1, 6], rtol=1e-12)
    assert ds["good_band"].values.tolist() == [True, not bbl, True]
    assert ds.attrs["warnings"] == []


@pytest.mark.parametrize("name", ["a.tif.hdr", "a.hdr"])
def test_an_envi_header_beside_a_tiff_tells_its_bands(tmp_path, name):
    path = write(tmp_path / "a.tif")
    text = "\n".join(f"{k} = {v if v == 'nm' else '{' + v.strip('{}') + '}'}" for k, v in ENVI_LISTS.items())
    (tmp_path / name).write_text(f"ENVI\nfile type = TIFF\nlines = 40\ndata ignore value = -7\n{text}\n")
    ds = open_scene(path)
    assert ds["wavelength"].values.tolist() == [460, 2409, 650.5]
    assert ds["good_band"].values.tolist() == [True, False, True]
    assert ds.attrs["nodata"] == -7
    assert ds.attrs["files"] == [str(path), str(tmp_path / name)]
    (tmp_path / name).write_text(f"ENVI\nlines = 41\n{text}\n")
    with pytest.warns(BandstreamWarning, match="it is not used"):
        assert "wavelength" not in open_scene(path).coords


def stac(band: dict[str, object], *, where: str = "asset", key: str = "bands") -> str:
    """Return a STAC item with three bands."""
    bands = [{"name": f"b{i}", **band} for i in range(3)]
    for i, entry in enumerate(bands):
        for name in list(entry):
            if name.endswith("wavelength"):
                entry[name] = [0.46, 2.409, 0.6505][i]
    asset = {"href": "./x/a.tif", **({key: bands} if where == "asset" else {})}
    return json.dumps({"assets": {"image": asset}, "properties": {key: bands} if where == "item" else {}})


@pytest.mark.parametrize("name", ["a.stac.json", "a.tif.stac.json"])
@pytest.mark.parametrize(
    ("prefix", "where", "key"),
    [("eo:", "asset", "bands"), ("", "item", "eo:bands"), ("", "asset", "eo:bands")],
)
def test_a_stac_item_beside_a_tiff_tells_its_bands_in_micrometres(tmp_path, name, prefix, where, key):
    path = write(tmp_path / "a.tif")
    band = {f"{prefix}center_wavelength": 0.0, f"{prefix}full_width_half_max": 0.01}
    (tmp_path / name).write_text(stac(band, where=where, key=key))
    ds = open_scene(path)
    assert ds["wavelength"].values.tolist() == [460, 2409, 650.5]
    assert ds["fwhm"].values.tolist() == [10, 10, 10]
    assert ds["band_name"].values.tolist() == ["b0", "b1", "b2"]
    assert ds.attrs["files"] == [str(path), str(tmp_path / name)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"properties": {"bands": [{"eo:center_wavelength": 0.5}]}}', "describes 1 bands, the TIFF holds 3"),
        ('{"properties": {"bands": [{"eo:center_wavelength": 0.5}, {}, {}]}}', "only 1 of 3 bands have"),
        ("[]", None),
        ('{"assets": 5, "properties": []}', None),
        ('{"properties": {"bands": [1, 2, 3]}}', None),
        ('{"properties": {"bands": [{"center_wavelength": "0.5"}, {"center_wavelength": true}, {}]}}', None),
    ],
)
def test_a_stac_item_that_says_nothing_usable_is_not_used(tmp_path, text, message):
    path = write(tmp_path / "a.tif")
    (tmp_path / "a.stac.json").write_text(text)
    if message is None:
        assert "wavelength" not in open_scene(path).coords
    else:
        with pytest.warns(BandstreamWarning, match=message):
            assert "wavelength" not in open_scene(path).coords


def test_places_that_contradict_each_other_are_told(tmp_path):
    other = {"wavelength": "460.0, 2409.0, 700", "wavelength_units": "nm"}
    path = write(tmp_path / "a.tif", band_tags={"IMAGERY": UM}, tags={None: other})
    with pytest.warns(BandstreamWarning, match="tags of the file differ from those of the IMAGERY domain"):
        assert open_scene(path)["wavelength"].values.tolist() == [460, 2409, 650.5]


def test_bands_that_name_different_units_have_declared_none(tmp_path):
    tags = {"wavelength": ["400", "500", "600"], "wavelength_units": ["n", "m", "nm"]}
    with pytest.warns(BandstreamWarning, match="no wavelength unit.*taken as nm"):
        ds = open_scene(write(tmp_path / "a.tif", band_tags={"ENVI": tags}))
    assert ds["wavelength"].values.tolist() == [400, 500, 600]


def test_wavelengths_of_only_some_bands_are_not_used(tmp_path):
    path = write(tmp_path / "a.tif")
    with rasterio.open(path, "r+") as out:
        out.update_tags(2, wavelength="500")
    with pytest.warns(BandstreamWarning, match="only 1 of 3 bands have `wavelength`"):
        assert "wavelength" not in open_scene(path).coords


def test_a_list_of_the_wrong_length_is_an_error_with_both_counts(tmp_path):
    with pytest.raises(FormatError, match="`bbl` has 2 entries for 3 bands"):
        open_scene(write(tmp_path / "a.tif", tags={None: {"bbl": "1,0"}}))


def test_complex_numbers_are_refused(tmp_path):
    with pytest.raises(FormatError, match="complex64"):
        open_scene(write(tmp_path / "a.tif", np.zeros(SHAPE, np.complex64)))


@pytest.mark.parametrize("internal", [True, False])
@pytest.mark.parametrize("tiled", [{}, {"tiled": True, "blockxsize": 16, "blockysize": 16}])
def test_a_mask_of_the_file_says_which_pixels_hold_data(tmp_path, internal, tiled):
    mask = np.random.default_rng(0).random(SHAPE[:2]) > 0.3
    path = write(tmp_path / "a.tif", **tiled)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as out:
        out.write_mask(mask)
    assert (tmp_path / "a.tif.msk").exists() != internal
    ds = open_scene(path)
    with rasterio.open(path) as theirs:
        assert np.array_equal(ds["valid"].values, theirs.dataset_mask() > 0)
    assert np.array_equal(ds["valid"].values, mask)
    assert ds["valid"].chunks == ds["data"].chunks[:2]
    assert (ds.attrs["valid_rule"], ds.sizes["band"]) == ("product", 3)
    assert (str(tmp_path / "a.tif.msk") in ds.attrs["files"]) != internal
    again = pickle.loads(pickle.dumps(ds["valid"].data))  # noqa: S301 - our own bytes
    assert np.array_equal(again.compute(scheduler="sync"), mask)


@pytest.mark.parametrize("at", [3, 0])
def test_an_alpha_band_is_no_band_and_says_which_pixels_hold_data(tmp_path, at):
    values = np.random.default_rng(0).integers(0, 255, (*SHAPE[:2], 4)).astype("uint8")
    values[:5, :, at] = 0
    tags = {"wavelength": ["400", "500", "600", "700"], "wavelength_units": ["nm"] * 4}
    path = write(
        tmp_path / "a.tif",
        values,
        band_tags={None: tags},
        tags={None: {"bbl": "1,0,1,1"}},
        photometric="minisblack",
        alpha="unspecified",
    )
    with rasterio.open(path, "r+") as out:
        out.colorinterp = [ColorInterp.alpha if b == at else ColorInterp.gray for b in range(4)]
    with pytest.warns(BandstreamWarning, match=rf"band {at + 1} is declared as transparency"):
        ds = open_scene(path)
    kept = [b for b in range(4) if b != at]
    assert np.array_equal(ds["data"].values, values[:, :, kept])
    assert np.array_equal(
        ds["data"][2:9:3, ::-1, [2, 0]].values, values[2:9:3, ::-1][:, :, [kept[2], kept[0]]]
    )
    assert np.array_equal(ds["valid"].values, values[:, :, at] > 0)
    assert ds["wavelength"].values.tolist() == [400 + 100 * b for b in kept]
    assert ds["good_band"].values.tolist() == [b != 1 for b in kept]


def test_nothing_but_alpha_is_refused(tmp_path):
    path = write(tmp_path / "a.tif", np.ones((*SHAPE[:2], 1), "uint8"))
    with rasterio.open(path, "r+") as out:
        out.colorinterp = [ColorInterp.alpha]
    with pytest.raises(FormatError, match="nothing but transparency"):
        open_scene(path)


def test_tiles_with_masks_need_no_nodata_for_their_gaps(tmp_path):
    values = np.arange(16 * 16 * 2, dtype=np.int16).reshape(16, 16, 2)
    mask = np.random.default_rng(1).random((16, 16)) > 0.5
    for name, east in (("a", 0), ("b", 48)):  # a gap of 32 columns between them
        place = Affine(30, 0, 500_000 + 30 * east, 0, -30, 5_800_000)
        path = write(tmp_path / f"{name}.tif", values, transform=place)
        if name == "a":
            with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as out:
                out.write_mask(mask)
    ds = open_scene(tmp_path)
    expected = np.zeros((16, 64), bool)
    expected[:, :16], expected[:, 48:] = mask, True
    assert np.array_equal(ds["valid"].values, expected)
    assert np.array_equal(ds["data"].values[:, 48:], values)
    assert ds.attrs["valid_rule"] == "product"


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    path = write(tmp_path / "a.tif")
    ds = open_scene(path)
    os.truncate(path, 5000)
    with pytest.raises(FormatError, match=r"a\.tif cannot be read"):
        ds["data"].values  # noqa: B018 - reading is the point
    path.write_bytes(b"II*\0 and nothing else")
    with pytest.raises(FormatError, match=r"a\.tif cannot be opened as GeoTIFF"):
        open_scene(path)


def test_threads_read_at_once_and_handles_stay_few(tmp_path):
    values = np.random.default_rng(0).integers(0, 99, (64, 64, 4)).astype("int16")
    scenes = [
        open_scene(write(tmp_path / f"{i}.tif", values + i, tiled=True, blockxsize=16, blockysize=16))
        for i in range(40)
    ]
    failures = []

    def work(number):
        for i, ds in list(enumerate(scenes))[number::2]:
            if not np.array_equal(ds["data"].data.compute(scheduler="sync"), values + i):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert raster._POOL.count <= raster._POOL.limit
    assert raster._POOL.count == sum(len(handles) for handles in raster._POOL.idle.values())


def test_idle_handles_hold_few_blocks_but_the_last_one_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(raster, "_POOL", pool := raster._RasterPool(limit=32, limit_bytes=5_000))
    values, block = np.zeros((40, 48, 3), "int16"), 32 * 48 * 3 * 2
    scenes = [
        open_scene(write(tmp_path / f"{i}.tif", values, interleave="pixel", blockysize=32)) for i in range(3)
    ]
    for ds in scenes:
        ds["data"].data.compute(scheduler="sync")
        assert (pool.count, pool.held) == (1, block)
    ((path, *_),) = pool.idle
    assert str(path) == scenes[-1].attrs["source"]
    pool.limit_bytes = 2 * block
    for ds in scenes:
        ds["data"].data.compute(scheduler="sync")
    assert (pool.count, pool.held) == (2, 2 * block)


def test_a_scene_can_be_pickled(tmp_path):
    ds = open_scene(write(tmp_path / "a.tif"))
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301 - our own bytes
    with dask.config.set(scheduler="sync"):
        assert np.array_equal(again["data"].values, ds["data"].values)


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 4, 12), (1, 6, 12)])
def test_a_file_replaced_by_a_smaller_one_is_told_and_never_stretched(tmp_path, shape):
    path = tmp_path / "a.tif"

    def write(shape_byx):
        with rasterio.open(
            path, "w", driver="GTiff", count=shape_byx[0], height=shape_byx[1], width=shape_byx[2], dtype="uint16",
            transform=Affine(30, 0, 0, 0, -30, 0),
        ) as out:  # fmt: skip
            out.write(np.ones(shape_byx, "u2"))

    write((2, 6, 12))
    scene = open_scene(path)
    write(shape)
    with pytest.raises(TruncatedFileError, match="has changed"):
        scene["data"].values  # noqa: B018 - read
