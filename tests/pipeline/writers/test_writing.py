"""Bytes on disk, refusals before any work, files that appear whole or not at all, and memory."""

from __future__ import annotations

import errno
import tracemalloc

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from bandstream.pipeline.errors import ConfigError, SceneError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.envi_header import read_header
from bandstream.pipeline.scene import make_scene
from bandstream.pipeline.writers import cubes, netcdf, write_scene

from .conftest import SHEARED, raw_of

TARGETS = ["a.hdr", "a.tif", "a.nc", "a.zarr"]
AXES = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}


@pytest.mark.parametrize("interleave", list(AXES))
@pytest.mark.parametrize("rows_per_block", [1, 4, 64])
def test_an_envi_file_has_the_interleave_that_its_header_says(
    scene, tmp_path, monkeypatch, interleave, rows_per_block
):
    """Case: written with an interleave other than asked."""
    raw = raw_of("int16")
    monkeypatch.setattr(cubes, "BLOCK_BYTES", rows_per_block * 17 * 7 * 2)
    header, data = write_scene(scene(raw), tmp_path / "a.hdr", interleave=interleave)
    assert data.read_bytes() == raw.transpose(AXES[interleave]).astype("<i2").tobytes()
    fields = read_header(header).fields
    assert fields["interleave"] == interleave
    assert fields["byte order"] == "0"
    assert fields["data type"] == "2"
    assert (fields["lines"], fields["samples"], fields["bands"]) == ("23", "17", "7")


def test_the_data_file_of_an_envi_pair_may_be_named_in_place_of_the_header(scene, tmp_path):
    assert write_scene(scene(), tmp_path / "a.bil") == [tmp_path / "a.hdr", tmp_path / "a.bil"]
    assert write_scene(scene(), tmp_path / "b", format="envi") == [tmp_path / "b.hdr", tmp_path / "b"]
    assert open_scene(tmp_path / "b.hdr")["data"].shape == (23, 17, 7)


def test_names_that_an_envi_list_cannot_hold_are_changed_but_stay_as_many(scene, tmp_path):
    names = ["a, b", "{x}", "", "c\nd", "e = f", "g", "\N{GREEK SMALL LETTER MU}m"]
    found = open_scene(write_scene(scene(band_names=names), tmp_path / "a.hdr")[0])
    assert found["band_name"].values.tolist() == [
        "a; b",
        "(x)",
        "unnamed",
        "c d",
        "e = f",
        "g",
        "\N{GREEK SMALL LETTER MU}m",
    ]


def test_attributes_cannot_put_lines_of_their_own_into_a_header(scene, tmp_path):
    evil = scene(sensor="x}\nbands = 999\nfile type = {", units="1\ninterleave = bsq")
    found = open_scene(write_scene(evil, tmp_path / "a.hdr", interleave="bip")[0])
    assert found["data"].shape == (23, 17, 7)
    assert np.array_equal(found["data"].values, evil["data"].values)


@pytest.mark.parametrize(
    ("more", "name", "word"),
    [
        ({"nodata": [1, 2, 3, 4, 5, 6, 7]}, "a.hdr", "one nodata value for all bands, the scene has 7"),
        ({"nodata": [1, 2, 3, 4, 5, 6, 7]}, "a.tif", "physical=True"),
        ({"place": SHEARED}, "a.hdr", "sheared"),
        ({"raw": raw_of("int8")}, "a.hdr", "ENVI cannot hold int8"),
        ({"raw": raw_of("float16"), "nodata": None}, "a.tif", "GeoTIFF cannot hold float16"),
        ({"raw": raw_of("float16"), "nodata": None}, "a.nc", "netCDF cannot hold float16"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_left(scene, tmp_path, more, name, word):
    with pytest.raises(SceneError, match=word):
        write_scene(scene(**more), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_nodata_that_differs_between_bands_is_nan_in_physical_values(scene, tmp_path):
    raw = raw_of("int16")
    nodata = [77, 77, np.nan, 77, 5, 77, 77]
    found = open_scene(
        write_scene(scene(raw, nodata=nodata, scale=None), tmp_path / "a.hdr", physical=True)[0]
    )
    by_hand = np.where(raw == np.nan_to_num(nodata, nan=1e9), np.nan, raw)
    assert np.array_equal(found["data"].values, by_hand, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "more", "word"),
    [
        ("a.xyz", {}, "no known ending"),
        (
            "a.tif",
            {"format": "gif"},
            "format = 'gif' is unknown; give format=: envi, geotiff, cog, netcdf, zarr",
        ),
        ("a.hdr", {"interleave": "bup"}, "interleave = 'bup'; allowed: bsq, bil, bip"),
        ("there.tif", {}, "exists already"),
        ("there", {"format": "zarr", "overwrite": True}, "is not replaced"),
        ("there", {"format": "geotiff", "overwrite": True}, "is a folder"),
        ("there.tif/a.tif", {}, "cannot be made"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_any_work(scene, tmp_path, name, more, word):
    (tmp_path / "there.tif").write_text("mine")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with pytest.raises(ConfigError, match=word):
        write_scene(scene(), tmp_path / name, **more)
    assert (tmp_path / "there.tif").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "there.tif"]
    assert (tmp_path / "there" / "file").read_text() == "mine"


@pytest.mark.parametrize("name", TARGETS)
def test_overwrite_replaces_what_was_written_before(scene, tmp_path, name):
    write_scene(scene(raw_of("int16", seed=1)), tmp_path / name)
    second = scene(raw_of("int16", seed=2))
    with pytest.raises(ConfigError, match="exists already; choose another name, or overwrite"):
        write_scene(second, tmp_path / name)
    path = write_scene(second, tmp_path / name, overwrite=True)[0]
    assert np.array_equal(open_scene(path)["data"].values, second["data"].values)


@pytest.mark.parametrize("name", TARGETS)
def test_a_scene_never_replaces_the_file_that_it_is_read_from(scene, tmp_path, name):
    path = write_scene(scene(), tmp_path / name)[0]
    mine = open_scene(path)
    with pytest.raises(ConfigError, match="a file of the scene itself"):
        write_scene(mine, path, overwrite=True)
    assert np.array_equal(open_scene(path)["data"].values, mine["data"].values)


@pytest.mark.parametrize("name", [*TARGETS, "cog.tif"])
def test_a_failure_half_way_leaves_what_was_there_and_nothing_else(scene, tmp_path, name, monkeypatch):
    monkeypatch.setattr(cubes, "BLOCK_BYTES", 17 * 7 * 2)
    more = {"format": "cog"} if name == "cog.tif" else {}
    first = scene(raw_of("int16", seed=1))
    path = write_scene(first, tmp_path / name, **more)[0]
    before = sorted(tmp_path.iterdir())

    def broken(block, block_info=None):
        if block_info[0]["array-location"][0][0] > 8:
            raise SceneError("the disk of the source is gone")
        return block

    bad = scene(raw_of("int16", seed=2))
    bad["data"] = (bad["data"].dims, bad["data"].data.map_blocks(broken, dtype="i2"))
    with pytest.raises(SceneError, match="is gone"):
        write_scene(bad, tmp_path / name, overwrite=True, **more)
    assert sorted(tmp_path.iterdir()) == before
    assert np.array_equal(open_scene(path)["data"].values, first["data"].values)


@pytest.mark.parametrize("name", TARGETS)
def test_no_path_of_this_machine_gets_into_a_file(scene, tmp_path, name):
    source = tmp_path / "secret_folder"
    source.mkdir()
    first = open_scene(write_scene(scene(), source / "a.tif")[0])
    out = tmp_path / "out"
    written = write_scene(first, out / name)
    for path in written:
        for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
            assert b"secret_folder" not in file.read_bytes()


@pytest.mark.parametrize("name", TARGETS)
def test_every_chunk_of_a_scene_is_read_once(scene, tmp_path, name):
    reads: list[tuple] = []

    def seen(block, block_info=None):
        reads.append(tuple(block_info[0]["chunk-location"]))
        return block

    raw = raw_of("int16", shape=(64, 17, 7))
    counted = make_scene(da.from_array(raw, chunks=(8, -1, -1)).map_blocks(seen, dtype="i2"), nodata=77)
    reads.clear()
    write_scene(counted, tmp_path / name)
    assert sorted(reads) == [(i, 0, 0) for i in range(8)]


@pytest.mark.parametrize("name", ["a.hdr", "a.tif", "a.nc", "a.zarr"])
def test_memory_does_not_grow_with_the_scene(tmp_path, name, monkeypatch):
    """Python's own allocations (NumPy's among them): a few blocks, of a cube of 32 of them."""
    monkeypatch.setattr(cubes, "BLOCK_BYTES", 2**20)
    monkeypatch.setattr("bandstream.pipeline.writers.geotiff.BLOCK_BYTES", 2**20)
    rows, cols, bands = 1024, 512, 32  # 32 MiB of int16
    cube = da.zeros((rows, cols, bands), dtype="i2", chunks=(32, -1, -1))
    ramp = cube + da.arange(rows, chunks=32, dtype="i2")[:, None, None]
    big = make_scene(ramp, nodata=-1)
    tracemalloc.start()
    path = write_scene(big, tmp_path / name)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert np.array_equal(open_scene(path)["data"][::97, 5, 3].values, np.arange(rows, dtype="i2")[::97])


def test_one_pixel_and_one_band_can_be_written(scene, tmp_path):
    for name in TARGETS:
        tiny = make_scene(da.from_array(np.array([[[7]]], "u2")))
        path = write_scene(tiny, tmp_path / name)[0]
        assert open_scene(path)["data"].values.tolist() == [[[7]]]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("end", ["min", "max"])
def test_the_ends_of_64_bit_types_stay_nodata_or_are_refused(tmp_path, dtype, end):
    """Case: no double equals the largest one, and GDAL's text of the smallest one was read as -9."""
    value = int(getattr(np.iinfo(dtype), end))
    raw = np.array([[[value], [5]]], dtype)
    made = make_scene(da.from_array(raw), nodata=float(value))
    for name in TARGETS:
        if name == "a.tif" and value:
            with pytest.raises(SceneError, match="would not come back"):
                write_scene(made, tmp_path / name)
            continue
        found = open_scene(write_scene(made, tmp_path / name)[0])
        assert found["data"].values.tolist() == raw.tolist()
        assert found["valid"].values.tolist() == [[False, True]]


def test_an_error_of_the_disk_ends_netcdf_writing_without_a_crash_of_the_library(tmp_path, monkeypatch):
    """Case: HDF5 printed hundreds of lines and crashed the process when the disk was full."""
    written = 0

    def full(self, data):
        nonlocal written
        written += len(data)
        if written > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, data)

    original = netcdf.SafeFile.put
    monkeypatch.setattr(netcdf.SafeFile, "put", full)
    noise = np.random.default_rng(0).integers(0, 60000, (64, 64, 32)).astype("u2")
    with pytest.raises(OSError, match="No space left"):
        write_scene(make_scene(da.from_array(noise)), tmp_path / "a.nc")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_scene_is_refused(tmp_path):
    with pytest.raises(SceneError, match="no variable `data`"):
        write_scene(xr.Dataset(), tmp_path / "a.tif")
