"""Label rasters on the scene's grid."""

from __future__ import annotations

import pickle
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import rasterio
import scipy.io
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rasterio.warp import Resampling, reproject
from rasterio.warp import transform as transform_points

from bandstream.pipeline.errors import LabelError, SceneNotFoundError
from bandstream.pipeline.labels import LabelRaster
from bandstream.pipeline.scene import make_scene

UTM = CRS.from_epsg(32633)


def _scene(crs=UTM):
    transform = from_origin(366000, 5810000, 30, 30) if crs else None
    return make_scene(da.zeros((20, 30, 3), dtype="int16", chunks=-1), crs=crs, transform=transform)


def _raster(path: Path, values: np.ndarray, crs=None, transform=None, **profile) -> Path:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        height, width = values.shape
        with rasterio.open(
            path, "w", driver="GTiff", height=height, width=width, count=1, dtype=values.dtype, crs=crs,
            transform=transform, **profile,
        ) as out:  # fmt: skip
            out.write(values, 1)
    return path


def _read_all(labels: LabelRaster) -> np.ndarray:
    return labels.read(slice(0, labels.shape_yx[0]), slice(0, labels.shape_yx[1]))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_labels_of_the_scenes_size_are_read_as_they_are(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 7, (20, 30)).astype(dtype)
    labels = LabelRaster.on_grid(_raster(tmp_path / "l.tif", values), _scene(crs=None))
    np.testing.assert_array_equal(_read_all(labels), values)
    np.testing.assert_array_equal(labels.read(slice(3, 9), slice(10, 11)), values[3:9, 10:11])


def test_nodata_and_the_unlabelled_number_become_0(tmp_path: Path) -> None:
    values = np.full((20, 30), 2, "float32")
    values[0, 0], values[1, 1] = -9999, 255
    path = _raster(tmp_path / "l.tif", values, nodata=-9999)
    found = _read_all(LabelRaster.on_grid(path, _scene(crs=None), unlabelled=255))
    assert found[0, 0] == found[1, 1] == 0
    assert found[2, 2] == 2


def test_finer_labels_without_a_crs_give_the_majority(tmp_path: Path) -> None:
    fine = np.random.default_rng(1).integers(0, 3, (60, 90)).astype("uint8")
    found = _read_all(LabelRaster.on_grid(_raster(tmp_path / "l.tif", fine), _scene(crs=None)))
    for y, x in [(0, 0), (7, 13), (19, 29)]:
        cell = fine[3 * y : 3 * y + 3, 3 * x : 3 * x + 3]
        assert found[y, x] == np.bincount(cell.ravel()).argmax()


def test_labels_in_another_crs_are_warped_as_gdal_does(tmp_path: Path) -> None:
    scene = _scene()
    other = CRS.from_epsg(32632)
    (east,), (north,) = transform_points(UTM, other, [366000], [5810000])
    transform = from_origin(east - 900, north + 900, 30, 30)
    values = np.random.default_rng(2).integers(1, 6, (100, 120)).astype("uint8")
    path = _raster(tmp_path / "l.tif", values, other, transform)
    expected = np.zeros((20, 30), "uint8")
    reproject(
        values, expected, src_transform=transform, src_crs=other, dst_crs=UTM,
        dst_transform=from_origin(366000, 5810000, 30, 30), resampling=Resampling.nearest,
    )  # fmt: skip
    found = _read_all(LabelRaster.on_grid(path, scene))
    assert (expected > 0).any()
    assert (found == expected).mean() > 0.99


def test_finer_labels_with_a_crs_give_the_majority(tmp_path: Path) -> None:
    fine = np.repeat(np.repeat(np.arange(1, 601).reshape(20, 30), 3, 0), 3, 1).astype("uint16")
    fine[::3, ::3] = 1
    path = _raster(tmp_path / "l.tif", fine, UTM, from_origin(366000, 5810000, 10, 10))
    np.testing.assert_array_equal(
        _read_all(LabelRaster.on_grid(path, _scene())), np.arange(1, 601).reshape(20, 30)
    )


def test_a_shifted_grid_of_the_same_size_is_not_taken_as_the_scenes(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(1, 9, (20, 30)).astype("uint8")
    path = _raster(tmp_path / "l.tif", values, UTM, from_origin(366060, 5810000, 30, 30))
    found = _read_all(LabelRaster.on_grid(path, _scene()))
    np.testing.assert_array_equal(found[:, 2:], values[:, :-2])
    assert (found[:, :2] == 0).all()


def test_labels_of_another_size_without_a_crs_are_refused(tmp_path: Path) -> None:
    path = _raster(tmp_path / "l.tif", np.ones((21, 30), "uint8"))
    with pytest.raises(LabelError, match=r"21 x 30 pixels.*20 x 30"):
        LabelRaster.on_grid(path, _scene(crs=None))


@pytest.mark.parametrize(
    ("bad", "dtype"), [(1.5, "float32"), (-3, "int16"), (70000, "int32"), (np.nan, "float32")]
)
def test_what_is_no_class_number_is_refused_with_its_place(tmp_path: Path, bad: float, dtype: str) -> None:
    values = np.ones((20, 30), dtype)
    values[4, 7] = bad
    labels = LabelRaster.on_grid(_raster(tmp_path / "l.tif", values), _scene(crs=None))
    with pytest.raises(LabelError, match="row 4, column 7"):
        labels.read(slice(2, 20), slice(0, 30))


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SceneNotFoundError, match=r"none\.tif"):
        LabelRaster.on_grid(tmp_path / "none.tif", _scene())
    (tmp_path / "text.tif").write_text("no raster")
    with pytest.raises(LabelError, match=r"text\.tif"):
        LabelRaster.on_grid(tmp_path / "text.tif", _scene())


def test_class_0_is_not_lost_where_another_number_means_unlabelled(tmp_path: Path) -> None:
    values = np.full((20, 30), 255, "uint8")
    values[3, 4] = 0
    labels = LabelRaster.on_grid(_raster(tmp_path / "l.tif", values), _scene(crs=None), unlabelled=255)
    with pytest.raises(LabelError, match="class 0 would be lost"):
        _read_all(labels)


def test_sparse_finer_labels_mean_the_same_with_and_without_a_crs(tmp_path: Path) -> None:
    fine = np.zeros((60, 90), "uint8")
    fine[1::3, 1::3] = 4
    placed = _raster(tmp_path / "a.tif", fine, UTM, from_origin(366000, 5810000, 10, 10))
    plain = _raster(tmp_path / "b.tif", fine)
    assert (_read_all(LabelRaster.on_grid(placed, _scene())) == 0).all()
    assert (_read_all(LabelRaster.on_grid(plain, _scene(crs=None))) == 0).all()


def test_labels_that_refer_to_other_files_are_refused(tmp_path: Path) -> None:
    target = _raster(tmp_path / "l.tif", np.ones((20, 30), "uint8"))
    vrt = tmp_path / "l.vrt"
    vrt.write_text(
        '<VRTDataset rasterXSize="30" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f"<SourceFilename>{target}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    with pytest.raises(LabelError, match=r"l\.vrt"):
        LabelRaster.on_grid(vrt, _scene(crs=None))


# arrays of MATLAB and NumPy files


def test_labels_of_array_files_are_read_like_rasters_without_a_place(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 7, (20, 30)).astype("uint8")
    scipy.io.savemat(tmp_path / "gt.mat", {"gt": values, "other": np.arange(3.0)})
    np.save(tmp_path / "gt.npy", values.astype("float64"))
    np.savez(tmp_path / "gt.npz", gt=values)
    for name in ("gt.mat", "gt.npy", "gt.npz"):
        for scene in (_scene(), _scene(crs=None)):
            labels = pickle.loads(pickle.dumps(LabelRaster.on_grid(tmp_path / name, scene)))  # noqa: S301
            np.testing.assert_array_equal(_read_all(labels), values)
            np.testing.assert_array_equal(labels.read(slice(3, 9), slice(10, 11)), values[3:9, 10:11])
            assert labels.files() == [str(tmp_path / name)]
            assert labels.names() == labels.colors() == {}


def test_the_variable_of_an_array_file_is_chosen_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    train, test = (rng.integers(0, 5, (20, 30)).astype("uint8") for _ in range(2))
    scipy.io.savemat(tmp_path / "gt.mat", {"train": train, "test": test})
    for name, values in (("train", train), ("test", test)):
        labels = LabelRaster.on_grid(tmp_path / "gt.mat", _scene(crs=None), variable=name)
        np.testing.assert_array_equal(_read_all(labels), values)
    with pytest.raises(LabelError, match="several arrays"):
        LabelRaster.on_grid(tmp_path / "gt.mat", _scene(crs=None))
    with pytest.raises(LabelError, match="nothing_such"):
        LabelRaster.on_grid(tmp_path / "gt.mat", _scene(crs=None), variable="nothing_such")
    raster = _raster(tmp_path / "l.tif", np.ones((20, 30), "uint8"))
    with pytest.raises(LabelError, match="chooses an array of a MATLAB or NumPy file"):
        LabelRaster.on_grid(raster, _scene(crs=None), variable="train")


def test_an_array_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "gt.npy"
    np.save(path, np.ones((20, 30), "uint8"))
    labels = LabelRaster.on_grid(path, _scene(crs=None))
    assert (_read_all(labels) == 1).all()
    np.save(path, np.full((20, 30), 2, "uint16"))
    assert (_read_all(labels) == 2).all()


@pytest.mark.parametrize("name", ["gt.mat", "gt.npy", "gt.npz"])
def test_damaged_array_files_and_wrong_numbers_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no array at all")
    with pytest.raises(LabelError, match=name.replace(".", r"\.")):
        LabelRaster.on_grid(tmp_path / name, _scene(crs=None))
    np.save(tmp_path / "small.npy", np.ones((19, 30), "uint8"))
    with pytest.raises(LabelError, match="19 x 30 pixels"):
        LabelRaster.on_grid(tmp_path / "small.npy", _scene(crs=None))
    np.save(tmp_path / "half.npy", np.full((20, 30), 1.5))
    with pytest.raises(LabelError, match="row 0, column 0"):
        _read_all(LabelRaster.on_grid(tmp_path / "half.npy", _scene(crs=None)))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        # classes and counts as published with the scenes (GIC, University of the Basque Country)
        ("Indian_pines_gt.mat", (145, 145), {1: 46, 2: 1428, 16: 93}),
        ("PaviaU_gt.mat", (610, 340), {1: 6631, 2: 18649, 9: 947}),
        ("Salinas_gt.mat", (512, 217), {1: 2009, 8: 11271, 16: 1807}),
    ],
)
def test_published_ground_truth_is_read(data_root: Path, name: str, shape, counts) -> None:
    scene = make_scene(da.zeros((*shape, 3), dtype="int16", chunks=-1))
    found = _read_all(LabelRaster.on_grid(data_root / "ground_truth_only" / name, scene))
    count = np.bincount(found.ravel())
    assert {k: int(count[k]) for k in counts} == counts
