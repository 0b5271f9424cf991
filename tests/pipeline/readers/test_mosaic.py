"""Several tiles as one scene on their common grid."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.merge import merge
from rasterio.transform import from_origin

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import scene_transform

BIG = np.random.default_rng(3).integers(1, 9999, (40, 50, 3)).astype("int16")


def tile(folder, name, y, x, *, values=BIG, size=10.0, shift=0.0, crs=32633, nodata=-9999, **profile):
    """Write the part `values[y, x]` of the big picture where it belongs."""
    part = values[y, x]
    path = folder / f"{name}.tif"
    transform = from_origin(1000 + size * x.start + shift, 5000 - size * y.start, size, size)
    profile = {"driver": "GTiff", "dtype": part.dtype, "crs": CRS.from_epsg(crs), "nodata": nodata, **profile}
    height, width, count = part.shape
    with rasterio.open(
        path, "w", height=height, width=width, count=count, transform=transform, **profile
    ) as out:
        out.write(part.transpose(2, 0, 1))
    return path


A, B, C = slice(0, 20), slice(20, 30), slice(30, 50)


def test_tiles_side_by_side_are_the_whole_picture(tmp_path):
    paths = [
        tile(tmp_path, f"t{i}{j}", y, x)
        for i, y in enumerate([A, slice(20, 40)])
        for j, x in enumerate([A, B, C])
    ]
    for given_as in (paths, [str(p) for p in reversed(paths)], str(tmp_path / "*.tif"), tmp_path):
        ds = open_scene(given_as)
        assert np.array_equal(ds["data"].values, BIG)
        assert ds["valid"].values.all()
        assert tuple(scene_transform(ds))[:6] == (10, 0, 1000, 0, -10, 5000)
    assert open_scene(tmp_path).attrs["scene_id"] == tmp_path.name
    assert open_scene(paths).attrs["scene_id"] == "t"
    assert sorted(open_scene(paths).attrs["files"]) == sorted(str(p) for p in paths)


def test_the_bytes_of_a_block_are_those_of_the_worst_tile(tmp_path):
    paths = [
        tile(tmp_path, "a", A, A, interleave="pixel", blockysize=1),
        tile(tmp_path, "b", A, B, interleave="pixel", blockysize=20, compress="deflate"),
        tile(tmp_path, "c", A, C, interleave="band", blockysize=1),
    ]
    singles = [open_scene(path).attrs["block_bytes"] for path in paths]
    assert open_scene(paths).attrs["block_bytes"] == max(singles) == singles[1]


def test_gaps_are_nodata_and_rasterio_merges_to_the_same(tmp_path):
    paths = [
        tile(tmp_path, "a", A, B),
        tile(tmp_path, "b", slice(25, 40), C),
        tile(tmp_path, "c", A, slice(35, 45)),
    ]
    ds = open_scene(paths)
    theirs, transform = merge(paths)
    assert np.array_equal(ds["data"].values, theirs.transpose(1, 2, 0))
    assert scene_transform(ds) == transform
    assert np.array_equal(ds["valid"].values, (theirs != -9999).any(axis=0))


def test_gaps_without_nodata_are_refused(tmp_path):
    paths = [tile(tmp_path, "a", A, A, nodata=None), tile(tmp_path, "b", A, C, nodata=None)]
    with pytest.raises(FormatError, match=r"leave 200 of 1000 pixels uncovered.*give nodata="):
        open_scene(paths)
    with pytest.raises(FormatError, match="does not exist in int16"):
        open_scene(paths, nodata=1e6)
    assert (open_scene(paths, nodata=-1)["data"].values == -1).sum() == 600


def test_of_overlapping_tiles_the_first_given_is_taken_and_told(tmp_path):
    first = tile(tmp_path, "a", A, slice(0, 30))
    second = tile(tmp_path, "b", A, slice(20, 50), values=BIG + 1)
    with pytest.warns(BandstreamWarning, match="overlap in 200 pixels; there the first"):
        forward = open_scene([first, second])
    with pytest.warns(BandstreamWarning, match="overlap"):
        backward = open_scene([second, first])
    assert np.array_equal(forward["data"].values, np.concatenate([BIG[A, :30], BIG[A, 30:] + 1], axis=1))
    assert np.array_equal(backward["data"].values, np.concatenate([BIG[A, :20], BIG[A, 20:] + 1], axis=1))


def test_files_of_the_same_ground_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cover the same ground"):
        open_scene([tile(tmp_path, "a", A, A), tile(tmp_path, "b", A, A, values=BIG + 1)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crs": 32634}, "has the CRS EPSG:32634"),
        ({"size": 20.0}, "has the pixel size"),
        ({"shift": 3.0}, r"lies \+0.300 columns and \+0.000 rows beside the pixel grid"),
        ({"nodata": 0}, "has other nodata"),
        ({"values": BIG.astype("float32")}, "has the number type float32"),
        ({"values": BIG[:, :, :2]}, "has bands: 2"),
    ],
)
def test_tiles_that_do_not_fit_are_refused_with_both_names(tmp_path, change, message):
    first = tile(tmp_path, "a", A, A)
    second = tile(tmp_path, "b", A, B, **change)
    with pytest.raises(FormatError, match=message) as caught:
        open_scene([first, second])
    assert str(second) in str(caught.value)
    assert str(first) in str(caught.value)


def test_tiles_with_other_wavelengths_are_refused(tmp_path):
    paths = [tile(tmp_path, "a", A, A), tile(tmp_path, "b", A, B)]
    for path, last in zip(paths, (600, 601), strict=True):
        with rasterio.open(path, "r+") as out:
            out.update_tags(wavelength=f"400,500,{last}", wavelength_units="nm")
    with pytest.raises(FormatError, match="has other wavelengths"):
        open_scene(paths)


def test_only_tiffs_are_joined(tmp_path):
    first = tile(tmp_path, "a", A, A)
    other = tmp_path / "b.tif"
    other.write_bytes(b"no tiff")
    with pytest.raises(FormatError, match=r"b\.tif is no GeoTIFF.*open_scenes"):
        open_scene([first, other])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_window_equals_that_of_the_whole(mosaic, data):
    ds, whole = mosaic
    key = tuple(data.draw(st.slices(n)) for n in whole.shape)
    axis = data.draw(st.sampled_from([None, 0, 1, 2]))
    if axis is not None:
        chosen = data.draw(st.lists(st.integers(0, whole.shape[axis] - 1), min_size=1, max_size=5))
        key = (*key[:axis], chosen, *key[axis + 1 :])
    assert np.array_equal(ds["data"].data[key].compute(scheduler="sync"), whole[key])


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiles")
    paths = [
        tile(folder, "a", slice(3, 20), A),
        tile(folder, "b", slice(0, 37), C),
        tile(folder, "c", slice(30, 40), A),
    ]
    theirs, _ = merge(paths)
    return open_scene(paths), theirs.transpose(1, 2, 0)


def test_chunks_cut_no_block_and_no_tile(tmp_path, monkeypatch):
    monkeypatch.setattr("bandstream.pipeline.readers.mosaic.CHUNK_BYTES", 16 * 50 * 6)
    block = {"tiled": True, "blockxsize": 16, "blockysize": 16}
    paths = [
        tile(tmp_path, "a", slice(0, 40), A, **block),
        tile(tmp_path, "b", slice(0, 40), slice(20, 50), **block),
    ]
    assert open_scene(paths)["data"].data.chunks[0] == (16, 16, 8)
    monkeypatch.setattr("bandstream.pipeline.readers.mosaic._LARGEST_CHUNK", 100)
    monkeypatch.setattr("bandstream.pipeline.readers.mosaic.CHUNK_BYTES", 16 * 49 * 6)
    ds = open_scene(paths)
    assert ds["data"].data.chunks[:2] == ((16, 16, 8), (20, 30))
    assert np.array_equal(ds["data"].values, BIG)
