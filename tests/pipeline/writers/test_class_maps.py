"""Class maps: numbers, names, colours and place, as GDAL, SPy, xarray and our own readers see them."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
import rasterio
import spectral
import xarray as xr
from rasterio.crs import CRS

from bandstream.pipeline.errors import ConfigError, SceneError
from bandstream.pipeline.readers.envi import class_table
from bandstream.pipeline.readers.envi_header import read_header
from bandstream.pipeline.writers import write_class_map

from .conftest import NORTH_UP, TURNED

NAMES = ["Broccoli green weeds 1", "Soil = bare", "Water"]
COLORS = ["#00ff00", "#a0522d", "#0000ff"]
CLASSES = np.random.default_rng(0).integers(0, 4, (37, 29))
UTM = CRS.from_epsg(32633)


@pytest.mark.parametrize("array", [CLASSES, CLASSES.astype("u1"), da.from_array(CLASSES, chunks=(10, 10))])
@pytest.mark.parametrize("place", [NORTH_UP, TURNED])
def test_a_geotiff_map_has_a_palette_and_names(tmp_path, array, place):
    (path,) = write_class_map(array, tmp_path / "a.tif", NAMES, COLORS, crs=UTM, transform=place)
    with rasterio.open(path) as raster:
        assert raster.dtypes == ("uint8",)
        assert np.array_equal(raster.read(1), CLASSES)
        assert raster.nodata == 0
        assert raster.crs == UTM
        assert np.allclose(list(raster.transform), list(place))
        assert raster.colormap(1)[2] == (0xA0, 0x52, 0x2D, 255)
        assert raster.colormap(1)[0][3] == 0
        assert json.loads(raster.tags()["class_names"]) == NAMES
        assert json.loads(raster.tags()["class_colors"]) == COLORS


@pytest.mark.parametrize("place", [NORTH_UP, TURNED])
def test_an_envi_map_is_a_classification(tmp_path, place):
    header, data = write_class_map(CLASSES, tmp_path / "a.hdr", NAMES, COLORS, crs=UTM, transform=place)
    assert data.read_bytes() == CLASSES.astype("u1").tobytes()
    assert class_table(read_header(header)) == (["Unclassified", *NAMES], ["#000000", *COLORS])
    theirs = spectral.open_image(str(header))
    assert theirs.metadata["class names"] == ["Unclassified", *NAMES]
    assert np.array_equal(theirs.read_band(0), CLASSES)
    with rasterio.open(data) as raster:
        assert np.array_equal(raster.read(1), CLASSES)
        assert raster.crs == UTM
        assert np.allclose(list(raster.transform), list(place))
        assert raster.colormap(1)[2][:3] == (0xA0, 0x52, 0x2D)


def test_a_netcdf_map_has_flags(tmp_path):
    (path,) = write_class_map(CLASSES, tmp_path / "a.nc", NAMES, COLORS, crs=UTM, transform=NORTH_UP)
    with xr.open_dataset(path, engine="h5netcdf", mask_and_scale=False) as theirs:
        assert np.array_equal(theirs["class"].values, CLASSES)
        assert theirs["class"].attrs["flag_values"].tolist() == [1, 2, 3]
        assert theirs["class"].attrs["flag_meanings"].split() == [
            "Broccoli_green_weeds_1",
            "Soil_=_bare",
            "Water",
        ]
        assert theirs["x"].values[0] == 366015
        assert theirs["y"].values[1] == 5810000 - 45
    with rasterio.open(f"netcdf:{path}:class") as raster:
        assert np.array_equal(raster.read(1), CLASSES)
        assert raster.crs == UTM
        assert np.allclose(list(raster.transform), list(NORTH_UP))


def test_many_classes_need_two_bytes(tmp_path):
    names = [f"class {k}" for k in range(300)]
    classes = np.full((4, 5), 300)
    _, data = write_class_map(classes, tmp_path / "a.hdr", names)
    assert np.array_equal(np.fromfile(data, "<u2"), np.full(20, 300))
    (path,) = write_class_map(classes, tmp_path / "a.tif", names, transform=NORTH_UP)
    with rasterio.open(path) as raster:
        assert (raster.read(1) == 300).all()


@pytest.mark.parametrize("name", ["a.tif", "a.hdr", "a.nc"])
@pytest.mark.parametrize("wrong", [4, -1])
def test_a_number_without_a_class_is_an_error_and_leaves_nothing(tmp_path, name, wrong):
    classes = CLASSES.copy()
    classes[30, 3] = wrong
    with pytest.raises(SceneError, match=f"holds the number {wrong}, but there are 3 classes"):
        write_class_map(classes, tmp_path / name, NAMES)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    for args, word in (
        ((CLASSES, NAMES, COLORS[:2]), "2 colours for 3 classes"),
        ((CLASSES, NAMES, ["red", "#000000", "#000000"]), "colour 'red'; allowed: #rrggbb"),
        ((CLASSES, [], []), "needs names"),
    ):
        with pytest.raises(ConfigError, match=word):
            write_class_map(args[0], tmp_path / "a.tif", *args[1:])
    with pytest.raises(SceneError, match="a plane"):
        write_class_map(CLASSES.astype(float), tmp_path / "a.tif", NAMES)
    with pytest.raises(ConfigError, match="cannot be written as zarr"):
        write_class_map(CLASSES, tmp_path / "a.zarr", NAMES)
