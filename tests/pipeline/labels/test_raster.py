"""Label rasters on the scene's grid."""

from __future__ import annotations

import pickle
import tracemalloc
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
from bandstream.pipeline.labels import LabelRaster, Targets, TargetsConfig
from bandstream.pipeline.resampling import resample
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


@pytest.mark.parametrize("finer", [1, 3])
def test_warped_labels_do_not_depend_on_the_window_they_are_read_in(tmp_path: Path, finer: int) -> None:
    """Splits are counted on whole rows and tiles written in small windows: both must see the same labels."""
    scene = make_scene(
        da.zeros((300, 400, 1), dtype="int16", chunks=-1), crs=UTM,
        transform=from_origin(366000, 5810000, 30, 30),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    size = (300 * finer, 430 * finer)
    place = from_origin(13.0, 52.43, 0.19 / size[1], 0.085 / size[0])
    path = _raster(tmp_path / "l.tif", rng.integers(1, 9, size, "uint8"), "EPSG:4326", place)
    labels = LabelRaster.on_grid(path, scene)
    assert labels.factor == finer
    whole = _read_all(labels)
    assert (whole > 0).mean() > 0.8
    for rows, cols in ((slice(130, 260), slice(0, 400)), (slice(17, 97), slice(111, 201))):
        np.testing.assert_array_equal(labels.read(rows, cols), whole[rows, cols])
    if finer == 1:
        y, x = np.mgrid[:300, :400] + 0.5
        lon, lat = transform_points(UTM, "EPSG:4326", (366000 + 30 * x).ravel(), (5810000 - 30 * y).ravel())
        col, row = (
            np.floor(v).astype(int)
            for v in ((np.array(lon) - place.c) / place.a, (np.array(lat) - place.f) / place.e)
        )
        inside = (row >= 0) & (col >= 0) & (row < size[0]) & (col < size[1])
        with rasterio.open(path) as raster:
            values = raster.read(1)
        expected = np.where(inside, values[np.clip(row, 0, size[0] - 1), np.clip(col, 0, size[1] - 1)], 0)
        assert (whole.ravel() != expected).mean() < 1e-4  # but for places on the very edge of a pixel


def test_much_finer_labels_take_little_memory(tmp_path: Path) -> None:
    scene = make_scene(
        da.zeros((100, 100, 1), dtype="int16", chunks=-1), crs=UTM,
        transform=from_origin(366000, 5810000, 30, 30),
    )  # fmt: skip
    cells = np.random.default_rng(0).integers(0, 5, (100, 100)).astype("uint8")
    fine = np.repeat(np.repeat(cells, 30, axis=0), 30, axis=1)
    fine[::2, ::3] = 7  # never the most
    path = _raster(tmp_path / "l.tif", fine, UTM, from_origin(366000, 5810000, 1, 1), compress="deflate")
    labels = LabelRaster.on_grid(path, scene)
    tracemalloc.start()
    found = _read_all(labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, cells)
    assert peak < 64 << 20  # as int64, 9 million labels would take 72 MB several times over


@pytest.mark.parametrize(("size", "factor"), [((23, 31), 2), ((7, 11), 4), ((24, 30), 3)])
def test_labels_of_the_size_before_resample_are_taken_by_majority(tmp_path: Path, size, factor: int) -> None:
    values = np.random.default_rng(1).integers(0, 5, size).astype("uint8")
    before = make_scene(da.zeros((*size, 2), dtype="int16", chunks=-1))
    scene = resample(before, factor=factor)
    rows, cols = size[0] // factor, size[1] // factor
    cells = values[: rows * factor, : cols * factor].reshape(rows, factor, cols, factor).swapaxes(1, 2)
    expected = np.array([[np.bincount(cell.ravel()).argmax() for cell in row] for row in cells])
    found = LabelRaster.on_grid(_raster(tmp_path / "l.tif", values), scene)
    assert found.factor == factor
    np.testing.assert_array_equal(_read_all(found), expected)
    twice = _raster(tmp_path / "m.tif", np.repeat(np.repeat(values, 2, axis=0), 2, axis=1))
    np.testing.assert_array_equal(_read_all(LabelRaster.on_grid(twice, scene)), expected)
    targets = Targets.on_grid(
        [_raster(tmp_path / "t.tif", values.astype("f4"))], scene, TargetsConfig(path="t")
    )
    np.testing.assert_allclose(
        targets.read(slice(0, rows), slice(0, cols))[0], cells.mean(axis=(2, 3)), rtol=1e-6
    )
    with pytest.raises(LabelError, match="integer multiple"):
        LabelRaster.on_grid(_raster(tmp_path / "n.tif", values), resample(before, factor=1.5))


def test_what_a_file_tells_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, names and colours are asked for often, and hundreds of scenes have hundreds of label files."""
    from bandstream.pipeline.labels import raster as module

    path = _raster(tmp_path / "l.tif", np.ones((20, 30), "uint8"))
    labels = LabelRaster.on_grid(path, _scene(crs=None))
    calls: list[Path] = []
    original = module.opened
    monkeypatch.setattr(module, "opened", lambda *args: (calls.append(args[0]), original(*args))[1])
    for _ in range(3):
        assert labels.files() == [str(path)]
        assert labels.names() == labels.colors() == {}
    assert len(calls) == 1
    assert _read_all(pickle.loads(pickle.dumps(labels))).all()  # noqa: S301
