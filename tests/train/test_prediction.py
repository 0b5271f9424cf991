"""Maps: equal however the scene is cut, equal to what the store holds, and complete as files."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import rasterio
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from rasterio.errors import NotGeoreferencedWarning
from rasterio.warp import transform as transform_points
from scipy.spatial import KDTree
from sklearn import metrics as oracle

from bandstream.pipeline import build, open_scene, simulate
from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import ConfigError, RunConflictError, StoreSchemaError, TrainingError
from bandstream.pipeline.scene import scene_crs, scene_transform
from bandstream.pipeline.store import PatchStore
from bandstream.train import predict
from bandstream.train.experiment import Experiment
from bandstream.train.maps import read_map, scene_number, score_map, store_layer, stored_scene
from bandstream.train.prediction import Predictor, map_grid, map_scene, reflect
from bandstream.train.trainer import run_experiment

MakeStore = Callable[..., PatchStore]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Generator[None]:
    """Threads that wait for each other by spinning take minutes on a machine that others use too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Trained(NamedTuple):
    scene: Path
    labels: Path
    store: PatchStore
    run: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, PatchStore]:
    """A simulated scene of 75 x 90 pixels and its store."""
    folder = tmp_path_factory.mktemp("predict")
    scene = simulate(folder / "s.hdr", rows=75, cols=90, bands=30, classes=3, seed=2)
    stages = [
        {"calibrate": {}},
        {"mask": {}},
        {"normalize": {"method": "zscore"}},
        {"reduce": {"method": "pca", "components": 5}},
        {"normalize": {"method": "zscore"}},
    ]
    store = build(
        {
            "version": 1,
            "name": "small",
            "scenes": [{"path": str(scene.header), "labels": str(scene.labels)}],
            "class_names": ["rock", "grass & herbs", "water"],
            "stages": stages,
            "tiles": {"size": 16, "halo": 2},
            "split": {
                "by": "blocks",
                "block": 16,
                "fractions": {"train": 0.6, "validation": 0.2, "test": 0.2},
            },
            "store": {"root": str(folder / "stores")},
        }
    )
    return scene.header, scene.labels, store


def trained(made: tuple[Path, Path, PatchStore], out: Path, **changes: Any) -> Trained:
    base: dict[str, Any] = {
        "version": 1,
        "name": "small",
        "store": str(made[2].path),
        "out": str(out),
        "batch": 32,
        "precision": "fp32",
        "epochs": 2,
        "threads": 1,
        "optimizer": {"lr": 0.02},
        "map": True,
    }
    result = run_experiment(parse(Experiment, base | changes, "the test"), quiet=True)
    return Trained(*made, result.path, result.summary)


@pytest.fixture(scope="module")
def patches(made: tuple[Path, Path, PatchStore], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model = {"channels": 4, "batch_norm": True}
    return trained(made, tmp_path_factory.mktemp("patches") / "run", patch=5, model=model)


@pytest.fixture(scope="module")
def dense(made: tuple[Path, Path, PatchStore], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model = {"width": 8, "dilations": [1, 1]}
    out = tmp_path_factory.mktemp("dense") / "run"
    return trained(made, out, task={"kind": "segment"}, batch=4, epochs=6, model=model)


@pytest.fixture(params=["patches", "dense"])
def run(request: pytest.FixtureRequest) -> Trained:
    return request.getfixturevalue(request.param)


def logits_of(run: Trained, tile: int) -> tuple[np.ndarray, np.ndarray]:
    predictor = Predictor.of(run.run)
    scene = predictor.transform(run.scene)
    z_khw = np.zeros((run.store.classes, 75, 90), np.float32)
    valid = np.zeros((75, 90), bool)
    seen = np.zeros((75, 90), int)
    for top, left, piece, inside in predictor.tiles(scene, tile):
        place = slice(top, top + inside.shape[0]), slice(left, left + inside.shape[1])
        z_khw[:, *place], valid[place] = piece, inside
        seen[place] += 1
    assert (seen == 1).all(), "every pixel in exactly one tile"
    return z_khw, valid


@pytest.mark.parametrize("tile", [1000, 32, 13])
def test_logits_do_not_depend_on_the_tile_size(run: Trained, tile: int) -> None:
    (a, valid), (b, other) = logits_of(run, 75), logits_of(run, tile)
    np.testing.assert_array_equal(valid, other)
    assert np.abs(a - b)[:, valid].max() <= 1e-5
    np.testing.assert_array_equal(a.argmax(0)[valid], b.argmax(0)[valid])


def test_maps_are_equal_for_any_tile_size_and_row_chunk(run: Trained, tmp_path: Path) -> None:
    maps = [
        read_map(predict(run.run, run.scene, tmp_path / f"{tile}.tif", tile=tile)["map"])
        for tile in (256, 20)
    ]
    thin = open_scene(run.scene).chunk({"y": 7})
    maps.append(read_map(predict(run.run, thin, tmp_path / "thin.tif", tile=31)["map"]))
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])


def test_a_map_is_the_network_applied_to_the_reflected_scene_pixel_by_pixel(patches: Trained) -> None:
    """Against patches cut by hand from numpy.pad of the transformed scene."""
    predictor = Predictor.of(patches.run)
    scene = predictor.transform(patches.scene).compute()
    padded = np.pad(scene["data"].values, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    z_khw, valid = logits_of(patches, 40)
    rng = np.random.default_rng(0)
    corner = np.argwhere(valid)[[0, -1]]
    for y, x in [*corner, *rng.permutation(np.argwhere(valid))[:40]]:
        patch = torch.from_numpy(padded[y : y + 5, x : x + 5].transpose(2, 0, 1)[None].copy())
        with torch.no_grad():
            expected = predictor.model(patch)[0].numpy()
        np.testing.assert_allclose(z_khw[:, y, x], expected, atol=1e-5)


def test_the_test_score_of_a_map_is_that_of_the_run(run: Trained, tmp_path: Path) -> None:
    """Pixels that training streamed from the store and pixels that the map read from the file are the same."""
    found = predict(run.run, run.scene, tmp_path / "map.tif")
    truth, split = store_layer(run.store, "labels", 0), store_layer(run.store, "split", 0)
    scores = score_map(read_map(found["map"]), truth, run.store.classes, split)
    assert scores["test"] == {name: run.summary["metrics"][name] for name in scores["test"]}
    assert scores["validation"]["oa"] == run.summary["validation"]["oa"]


def test_training_beats_guessing_the_commonest_class(run: Trained) -> None:
    counts = np.sum(run.summary["confusion"], axis=1)
    assert run.summary["metrics"]["oa"] > counts.max() / counts.sum() + 0.1
    assert run.summary["metrics"]["kappa"] > 0.2


def test_the_run_maps_its_test_scenes_from_the_store(run: Trained, tmp_path: Path) -> None:
    (item,) = run.summary["maps"]
    assert item["scene"] == "s"
    found = predict(run.run, run.scene, tmp_path / "map.tif")
    differ = read_map(item["map"]) != read_map(found["map"])
    assert differ.mean() <= 1e-3, (
        "the file's own pixels and the store's agree to 1e-5 of a standard deviation"
    )
    assert item["scores"]["test"]["pixels"] == run.summary["metrics"]["pixels"]


def test_a_scene_put_together_from_tiles_is_the_transformed_scene(
    made: tuple[Path, Path, PatchStore], tmp_path: Path
) -> None:
    path, labels, store = made
    scene = open_scene(path)
    expected = Predictor.transform(_bare(store), path)
    found = stored_scene(store, 0)
    np.testing.assert_array_equal(found["valid"].values, expected["valid"].values)
    np.testing.assert_allclose(found["data"].values, expected["data"].values, atol=1e-5)
    assert scene_transform(found) == scene_transform(scene)
    assert scene_crs(found) == scene_crs(scene)
    kept = store_layer(store, "valid", 0)
    with rasterio.open(labels) as raster:
        np.testing.assert_array_equal(store_layer(store, "labels", 0)[kept], raster.read(1)[kept])
    assert scene_number(store, scene) == 0
    assert scene_number(store, scene.isel(y=slice(0, 70))) is None
    assert scene_number(store, scene.assign_attrs(scene_id="other")) == 0  # the content tells, not the name
    other = tmp_path / "scene.hdr"
    other.write_text(path.with_suffix(".hdr").read_text())
    content = bytearray(path.with_suffix(".img").read_bytes())
    content[1000] ^= 1
    other.with_suffix(".img").write_bytes(content)
    assert scene_number(store, open_scene(other)) is None


def _bare(store: PatchStore) -> Predictor:
    return Predictor(torch.nn.Conv2d(store.bands, 1, 1), store, patch=1, batch=4)


def test_the_file_has_place_names_colours_and_nodata(patches: Trained, tmp_path: Path) -> None:
    found = predict(patches.run, patches.scene, tmp_path / "map.tif")
    scene = open_scene(patches.scene)
    with rasterio.open(tmp_path / "map.tif") as raster:
        codes = raster.read(1)
        assert raster.transform == scene_transform(scene)
        assert raster.crs == scene_crs(scene)
        assert (raster.dtypes, raster.nodata, raster.compression.name) == (("uint8",), 0, "deflate")
        assert raster.profile["tiled"]
        assert raster.block_shapes == [(256, 256)]
        assert json.loads(raster.tags()["class_names"]) == ["rock", "grass & herbs", "water"]
        table = raster.colormap(1)
        for k, color in enumerate(patches.store.class_colors, start=1):
            assert "#{:02x}{:02x}{:02x}".format(*table[k][:3]) == color.lower()
    valid = store_layer(patches.store, "valid", 0)
    np.testing.assert_array_equal(codes > 0, valid)
    assert 0 < (~valid).sum() < valid.size
    assert found["pixels"] == valid.sum()
    assert list(found["classes"].values()) == np.bincount(codes[valid], minlength=4)[1:].tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["map.tif"]


def test_a_scene_without_a_place_is_mapped_without_one(shared_store: MakeStore, tmp_path: Path) -> None:
    store = shared_store(shapes=[(24, 60)])
    map_scene(_with_classes(store), stored_scene(store, 0), tmp_path / "map.tif")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(tmp_path / "map.tif") as raster:
            assert raster.crs is None
            assert raster.transform == rasterio.Affine.identity()
            np.testing.assert_array_equal(raster.read(1) > 0, store_layer(store, "valid", 0))


def _with_classes(store: PatchStore) -> Predictor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(store.bands * 9, store.classes))
    return Predictor(model, store, patch=3, batch=16)


def test_more_than_255_classes_take_16_bits(shared_store: MakeStore, tmp_path: Path) -> None:
    store = shared_store(shapes=[(16, 16)], classes=300, split="train")
    map_scene(_with_classes(store), stored_scene(store, 0), tmp_path / "map.tif")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(tmp_path / "map.tif") as raster:
            assert raster.dtypes == ("uint16",)


def test_probabilities_add_up_and_their_largest_is_the_map(run: Trained, tmp_path: Path) -> None:
    found = predict(run.run, run.scene, tmp_path / "map.tif", probabilities=True)
    with rasterio.open(found["probabilities"]) as raster:
        share_khw = raster.read()
        assert raster.descriptions == ("rock", "grass & herbs", "water")
    codes = read_map(found["map"])
    np.testing.assert_allclose(share_khw.sum(0)[codes > 0], 1, atol=1e-5)
    np.testing.assert_array_equal(share_khw.argmax(0)[codes > 0] + 1, codes[codes > 0])
    assert np.isnan(share_khw[:, codes == 0]).all()


def test_a_failure_leaves_neither_a_map_nor_half_of_one(
    patches: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "map.tif").write_text("an older map")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "logits", fail)
    with pytest.raises(KeyboardInterrupt):
        predict(patches.run, patches.scene, tmp_path / "map.tif")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("map.tif", "an older map")]


def test_each_row_of_the_scene_is_transformed_once(patches: Trained) -> None:
    predictor = Predictor.of(patches.run)
    scene = predictor.transform(open_scene(patches.scene).chunk({"y": 10}))
    rows: list[int] = []

    def watch(block: np.ndarray) -> np.ndarray:
        rows.append(len(block))
        return block

    watched = scene.assign(
        data=(scene["data"].dims, scene["data"].data.map_blocks(watch, meta=np.empty((0, 0, 0), np.float32)))
    )
    for _ in predictor.tiles(watched, 9):
        pass
    assert sum(rows) == 75


@given(start=st.integers(-40, 40), length=st.integers(0, 60), size=st.integers(1, 12))
def test_reflection_is_that_of_numpy_pad(start: int, length: int, size: int) -> None:
    index = np.arange(start, start + length)
    padded = np.pad(np.arange(size), 120, mode="reflect") if size > 1 else np.zeros(241, int)
    np.testing.assert_array_equal(reflect(index, size), padded[index + 120])


def test_context_wider_than_the_scene_is_reflected_again(made: tuple[Path, Path, PatchStore]) -> None:
    store = made[2]
    rng = np.random.default_rng(0)
    cube = rng.normal(size=(4, 3, store.bands)).astype(np.float32)
    scene = xr.Dataset(
        {"data": (("y", "x", "band"), cube), "valid": (("y", "x"), np.ones((4, 3), bool))}
    ).chunk({"y": 2})
    predictor = Predictor(torch.nn.Conv2d(1, 1, 1), store, patch=15, batch=4)
    seen: list[np.ndarray] = []
    predictor.logits = lambda piece, valid: seen.append(piece) or np.zeros((1, *valid.shape), np.float32)  # type: ignore[method-assign]
    for _ in predictor.tiles(scene, 1000):
        pass
    np.testing.assert_array_equal(seen[0], np.pad(cube, ((7, 7), (7, 7), (0, 0)), mode="reflect"))


def test_a_scene_with_other_bands_is_refused(patches: Trained, tmp_path: Path) -> None:
    other = simulate(tmp_path / "other.hdr", rows=20, cols=20, bands=31, classes=3)
    with pytest.raises(StoreSchemaError, match="31 bands"):
        predict(patches.run, other.header, tmp_path / "map.tif")
    assert not (tmp_path / "map.tif").exists()


def test_a_moved_store_is_named_and_another_one_refused(
    patches: Trained, shared_store: MakeStore, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.zarr"
    shutil.copytree(patches.store.path, moved)
    assert Predictor.of(patches.run, moved).store.path == moved
    with pytest.raises(RunConflictError, match="was trained on"):
        Predictor.of(patches.run, shared_store().path)


def test_a_dense_model_of_unknown_view_is_refused(made: tuple[Path, Path, PatchStore]) -> None:
    with pytest.raises(TrainingError, match="receptive_radius"):
        Predictor(torch.nn.Conv2d(5, 3, 1), made[2], patch=None, batch=1)


def test_folders_that_hold_no_run_and_tiles_of_no_size_are_refused(patches: Trained, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no training run at .*\(no config\.yaml"):
        predict(tmp_path, patches.scene, tmp_path / "map.tif")
    with pytest.raises(ConfigError, match="tile must be 1 or more"):
        predict(patches.run, patches.scene, tmp_path / "map.tif", tile=0)


def test_map_scores_are_those_of_scikit_learn_per_split() -> None:
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 4, (30, 40)), rng.integers(1, 4, (30, 40))
    split = rng.integers(0, 3, (30, 40)).astype(np.uint8)
    found = score_map(guess, truth, 3, split)
    assert list(found) == ["all", "train", "validation"]
    for name, part in (
        ("all", truth > 0),
        ("train", (truth > 0) & (split == 1)),
        ("validation", (truth > 0) & (split == 2)),
    ):
        assert found[name]["pixels"] == part.sum()
        assert found[name]["oa"] == pytest.approx(oracle.accuracy_score(truth[part], guess[part]))
        assert found[name]["kappa"] == pytest.approx(oracle.cohen_kappa_score(truth[part], guess[part]))
    assert list(score_map(guess, truth, 3)) == ["all"]


# scenes in sensor geometry


def in_sensor_geometry(scene: xr.Dataset) -> tuple[xr.Dataset, np.ndarray, np.ndarray]:
    """Return a scene without its grid but with latitude and longitude, turned against north, as readers give them."""
    height, width = scene.sizes["y"], scene.sizes["x"]
    row, col = np.mgrid[:height, :width].astype(float)
    lat, lon = 48.2 - 2.6e-4 * row - 5.0e-5 * col, 11.3 + 4.0e-4 * col - 7.0e-5 * row
    bare = scene.drop_vars("spatial_ref").assign_coords(
        y=np.arange(height) + 0.5, x=np.arange(width) + 0.5, lat=(("y", "x"), lat), lon=(("y", "x"), lon)
    )
    return bare, lat, lon


def test_the_map_of_a_scene_in_sensor_geometry_is_brought_to_the_ground(run: Trained, tmp_path: Path) -> None:
    """Every pixel of the map is that of the nearest sensor pixel; nothing but the place changes."""
    scene, lat, lon = in_sensor_geometry(open_scene(run.scene))
    found = predict(run.run, scene, tmp_path / "map.tif", probabilities=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "map.tif", "map_sensor.tif", "map_probabilities.tif", "map_sensor_probabilities.tif",
    }  # fmt: skip
    sensor = read_map(found["map_sensor"])
    flat = predict(run.run, run.scene, tmp_path / "flat.tif")
    assert flat["map_sensor"] is None
    np.testing.assert_array_equal(sensor, read_map(flat["map"]))
    with rasterio.open(found["map"]) as raster:
        assert raster.crs.to_epsg() == 32632
        assert raster.nodata == 0
        assert json.loads(raster.tags()["class_names"]) == ["rock", "grass & herbs", "water"]
        assert raster.tags()["bandstream_store"] == run.store.fingerprint
        assert raster.colormap(1)[1][:3] == tuple(
            int(run.store.class_colors[0][i : i + 2], 16) for i in (1, 3, 5)
        )
        codes, transform = raster.read(1), raster.transform
    east, north = (
        np.array(v).reshape(lat.shape)
        for v in transform_points("EPSG:4326", "EPSG:32632", lon.ravel(), lat.ravel())
    )
    row, col = np.mgrid[: codes.shape[0], : codes.shape[1]] + 0.5
    x, y = transform.a * col + transform.c, transform.e * row + transform.f
    distance, nearest = KDTree(np.column_stack([east.ravel(), north.ravel()])).query(np.stack([x, y], -1))
    covered = distance < 20
    assert covered.sum() > 0.9 * sensor.size
    np.testing.assert_array_equal(codes[covered], sensor.ravel()[nearest[covered]])
    assert (codes[distance > 60] == 0).all()
    with rasterio.open(found["probabilities"]) as raster:
        share_khw = raster.read()
        assert raster.descriptions == ("rock", "grass & herbs", "water")
    np.testing.assert_array_equal(share_khw.argmax(0)[codes > 0] + 1, codes[codes > 0])
    assert np.isnan(share_khw[:, codes == 0]).all()


def test_the_map_lies_on_the_larger_pixels_of_a_store_that_has_resampled(
    made: tuple[Path, Path, PatchStore], tmp_path: Path
) -> None:
    flow = {
        "version": 1,
        "name": "coarse",
        "scenes": [{"path": str(made[0]), "labels": str(made[1])}],
        "stages": [{"calibrate": {}}, {"mask": {}}, {"resample": {"factor": 3}}],
        "tiles": {"size": 16, "halo": 1},
        "store": {"root": str(tmp_path / "stores")},
    }
    store = build(flow)
    predictor, opened = _with_classes(store), open_scene(made[0])
    assert map_grid(predictor.placed(opened)) is None
    found = map_scene(predictor, predictor.transform(opened), tmp_path / "map.tif")
    with rasterio.open(found["map"]) as raster, rasterio.open(made[1]) as labels:
        assert raster.shape == (25, 30)
        assert raster.transform == labels.transform * rasterio.Affine.scale(3)
    scene, lat, lon = in_sensor_geometry(opened)
    grid = map_grid(predictor.placed(scene))
    found = map_scene(predictor, predictor.transform(scene), tmp_path / "ground.tif", grid=grid)
    with rasterio.open(found["map"]) as raster:
        codes, centre = raster.read(1), (raster.width / 2, raster.height / 2)
        east, north = raster.transform * centre
        # three times the spacing of the scene's own pixels
        assert raster.transform.a == pytest.approx(3 * map_grid(scene).transform.a, rel=0.05)
    x, y = transform_points("EPSG:4326", "EPSG:32632", [float(lon.mean())], [float(lat.mean())])
    assert np.hypot(east - x[0], north - y[0]) < 200
    assert (codes > 0).sum() > 0.8 * 25 * 30


def test_the_grid_of_an_orthorectified_map_can_be_chosen(patches: Trained, tmp_path: Path) -> None:
    scene, *_ = in_sensor_geometry(open_scene(patches.scene))
    found = predict(patches.run, scene, tmp_path / "map.tif", crs="EPSG:32633", resolution=90)
    with rasterio.open(found["map"]) as raster:
        assert raster.crs.to_epsg() == 32633
        assert raster.res == (90, 90)
    with pytest.raises(ConfigError, match="not in sensor geometry"):
        predict(patches.run, patches.scene, tmp_path / "flat.tif", resolution=90)
    with pytest.raises(ConfigError, match="no coordinate reference system"):
        predict(patches.run, scene, tmp_path / "other.tif", crs="nowhere")
    assert {path.name for path in tmp_path.iterdir()} == {"map.tif", "map_sensor.tif"}
