"""Class rasters in ENVI files as labels: numbers, names and colours, whatever the names hold."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import rasterio
from affine import Affine

from bandstream.pipeline.errors import BandstreamWarning
from bandstream.pipeline.labels import LabelRaster
from bandstream.pipeline.scene import make_scene

SHAPE = (3, 4)


def scene(shape=SHAPE):
    return make_scene(da.zeros((*shape, 2), dtype=np.float32))


def write(folder: Path, *, code: int = 1, legend: str = "", end: str = "\n") -> Path:
    """Write labels 0, 1, 2 as an ENVI pair and return the data file."""
    values = (np.arange(12) % 3).reshape(SHAPE).astype({1: "u1", 2: "<i2", 12: "<u2"}[code])
    values.tofile(folder / "labels.img")
    text = f"ENVI\nsamples = 4\nlines = 3\nbands = 1\ndata type = {code}\ninterleave = bsq\nbyte order = 0\n{legend}\n"
    (folder / "labels.hdr").write_bytes(text.replace("\n", end).encode("latin-1"))
    return folder / "labels.img"


LEGEND = (
    "file type = ENVI Classification\nclasses = 3\n"
    "class names = { Unclassified, Acmite s06av95a=a,\n {stra\xdfe, dach} }\n"
    "class lookup = {0, 0, 0, 255, 0, 16,\n 1, 2, 3}"
)


@pytest.mark.parametrize("code", [1, 2, 12])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_and_colours_come_from_the_header(tmp_path, code, end):
    labels = LabelRaster.on_grid(write(tmp_path, code=code, legend=LEGEND, end=end), scene())
    assert labels.names() == {1: "Acmite s06av95a=a", 2: "stra\xdfe, dach"}
    assert labels.colors() == {1: "#ff0010", 2: "#010203"}
    assert np.array_equal(labels.read(slice(0, 3), slice(0, 4)), (np.arange(12) % 3).reshape(SHAPE))


def test_a_legend_that_contradicts_itself_is_told_and_left_out(tmp_path):
    labels = LabelRaster.on_grid(write(tmp_path, legend="classes = 3\nclass names = {a, b}"), scene())
    with pytest.warns(BandstreamWarning, match="The legend of the labels is not used.*classes = 3"):
        assert labels.names() == {}


def test_names_without_colours_and_neither(tmp_path):
    labels = LabelRaster.on_grid(write(tmp_path, legend="class names = {none, a, b}"), scene())
    assert labels.names() == {1: "a", 2: "b"}
    assert labels.colors() == {}
    assert LabelRaster.on_grid(write(tmp_path), scene()).names() == {}


def test_tags_of_a_geotiff_are_not_looked_up_in_a_header_beside_it(tmp_path):
    write(tmp_path, legend=LEGEND)
    path = tmp_path / "labels.tif"
    with rasterio.open(
        path, "w", driver="GTiff", height=3, width=4, count=1, dtype="uint8", transform=Affine.scale(2)
    ) as out:
        out.write(np.zeros(SHAPE, np.uint8), 1)
        out.update_tags(class_names='["x", "y"]')
    assert LabelRaster.on_grid(path, scene()).names() == {1: "x", 2: "y"}


@pytest.mark.real
def test_the_mineral_map_of_1366_classes(data_root):
    folder = data_root / "pycoal_aviris"
    path = folder / "ang20150420t182808_corr_v1e_img_class_4200-4210_70-80.img"
    labels = LabelRaster.on_grid(path, scene((10, 10)))
    names, colors = labels.names(), labels.colors()
    assert sorted(names) == sorted(colors) == list(range(1, 1366))
    assert names[1] == "Acmite NMNH133746 Pyroxene s06av95a=a"
    assert colors[1] == "#ff0000"
    assert int(labels.read(slice(0, 10), slice(0, 10)).max()) < 1366
