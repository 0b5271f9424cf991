"""Builds against NumPy and scikit-learn, and what a failed or interrupted build leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from bandstream.pipeline import PatchStore, build, open_scene, transform
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import (
    BandstreamError,
    BandstreamWarning,
    ConfigError,
    EmptySplitError,
    LabelError,
    MemoryBudgetError,
    NoValidPixelsError,
    SceneError,
    SceneNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    TruncatedFileError,
)
from bandstream.pipeline.store import SCHEMA

from .conftest import NODATA, SCALE, MadeScene, make_envi

Flow = dict[str, Any]


def _scene_of(store: PatchStore, name: str = "data") -> np.ndarray:
    """Put the cores of a one-scene store back together, (..., y, x)."""
    tiles = np.asarray(store.array(name)[:])
    halo, size = store.halo, store.tile_size
    cores = tiles[..., halo : halo + size, halo : halo + size]
    rows, cols = store.scenes[0].shape_yx
    out = np.zeros((*cores.shape[1:-2], rows + size, cols + size), cores.dtype)
    for core, row, col in zip(cores, store.index.row, store.index.col, strict=True):
        out[..., row : row + size, col : col + size] = core
    return out[..., :rows, :cols]


def _with(flow: Flow, **changes: Any) -> Flow:
    return {**flow, **changes}


def test_a_store_equals_scikit_learn_fitted_on_the_training_pixels(flow: Flow, made: MadeScene) -> None:
    store = build(flow)
    split, valid = _scene_of(store, "split"), _scene_of(store, "valid")
    np.testing.assert_array_equal(valid, made.valid)
    np.testing.assert_array_equal(_scene_of(store, "labels"), made.labels)
    kept = np.flatnonzero(~made.bad)
    np.testing.assert_array_equal(store.chain.kept, kept)
    reflectance = made.raw_yxb[:, :, kept] * SCALE
    train = reflectance[(split == 1) & valid]
    scaler = StandardScaler().fit(train)
    pca = PCA(5, svd_solver="full").fit(scaler.transform(train))
    last = StandardScaler().fit(pca.transform(scaler.transform(train)))
    expected = last.transform(pca.transform(scaler.transform(reflectance[valid])))
    found = _scene_of(store)[:, valid].T
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=2e-4)
    assert (_scene_of(store)[:, ~valid] == 0).all()
    explained = store.chain.stages[1].explained
    np.testing.assert_allclose(explained, pca.explained_variance_ratio_, rtol=1e-9)


def test_minmax_and_no_stages_at_all(flow: Flow, made: MadeScene) -> None:
    plain = build(_with(flow, stages=[{"drop_bands": {"all_nodata": False}}], name="plain"))
    expected = np.where(made.valid[..., None], made.raw_yxb[:, :, ~made.bad], 0)
    np.testing.assert_array_equal(_scene_of(plain).transpose(1, 2, 0), expected)
    store = build(_with(flow, stages=["drop_bands", {"normalize": {"method": "minmax"}}]))
    kept = made.raw_yxb[:, :, ~made.bad].astype(float)
    train = kept[(_scene_of(store, "split") == 1) & made.valid]
    expected = (kept - train.min(axis=0)) / (train.max(axis=0) - train.min(axis=0))
    np.testing.assert_allclose(_scene_of(store)[:, made.valid], expected[made.valid].T, atol=1e-5)


def test_halos_hold_the_neighbours_and_mirror_the_scenes_edge(flow: Flow) -> None:
    store = build(flow)
    scene = _scene_of(store)
    down, across = (-(-n // 16) for n in scene.shape[1:])
    rows, cols = scene.shape[1:]
    pad = [(0, 0), (2, 2 + down * 16 - rows), (2, 2 + across * 16 - cols)]
    padded = np.pad(scene, pad, mode="reflect")
    valid = np.pad(_scene_of(store, "valid"), pad[1:], constant_values=False)
    for tile, (row, col) in enumerate(zip(store.index.row, store.index.col, strict=True)):
        np.testing.assert_array_equal(store.array("data")[tile], padded[:, row : row + 20, col : col + 20])
        np.testing.assert_array_equal(store.array("valid")[tile], valid[row : row + 20, col : col + 20])


def test_the_index_counts_what_the_tiles_hold(flow: Flow) -> None:
    store = build(flow)
    assert store.index.pixels.sum() == _scene_of(store, "valid").sum()
    labels, split, valid = (_scene_of(store, name) for name in ("labels", "split", "valid"))
    for code in range(4):
        here = valid & (split == code)
        expected = np.bincount(labels[here], minlength=5)[1:]
        np.testing.assert_array_equal(store.index.labelled[:, code].sum(axis=0), expected)


def test_statistics_come_from_the_training_split_alone(flow: Flow, made: MadeScene) -> None:
    store = build(flow)
    split = _scene_of(store, "split")
    train = made.raw_yxb[:, :, ~made.bad][(split == 1) & made.valid] * SCALE
    everything = made.raw_yxb[:, :, ~made.bad][made.valid] * SCALE
    np.testing.assert_allclose(store.chain.stages[0].centre, train.mean(axis=0), rtol=1e-10)
    assert np.abs(store.chain.stages[0].centre / everything.mean(axis=0) - 1).max() > 1e-4


def test_the_splits_share_no_pixel_and_the_build_says_so(flow: Flow) -> None:
    result = run_build(flow, quiet=True)
    assert any(line.startswith("shared pixels: train-validation 0") for line in result.notes)
    assert result.store is not None
    assert result.store.attrs["shared_pixels"] == {
        "train-validation": 0,
        "train-test": 0,
        "validation-test": 0,
    }


def test_the_same_workflow_is_reused_and_another_is_not(flow: Flow) -> None:
    first = run_build(flow, quiet=True)
    again = run_build(flow, quiet=True)
    other = run_build(flow, ["stages.reduce.components=4"], quiet=True)
    assert (first.reused, again.reused, other.reused) == (False, True, False)
    assert first.path == again.path != other.path


def test_a_changed_source_makes_another_store(flow: Flow, made: MadeScene) -> None:
    first = run_build(flow, quiet=True)
    data = made.path.with_suffix(".img")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    again = run_build(flow, quiet=True)
    assert not again.reused
    assert again.fingerprint != first.fingerprint


def test_names_and_folders_do_not_matter_to_the_fingerprint(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    first = run_build(flow, quiet=True)
    moved = tmp_path / "moved"
    made.path.parent.rename(moved)
    scenes = [{"path": str(moved / made.path.name), "labels": str(moved / made.labels_path.name)}]
    again = run_build(_with(flow, scenes=scenes), quiet=True)
    assert again.reused
    assert again.fingerprint == first.fingerprint


def test_equal_inputs_give_equal_bytes_whatever_the_memory(flow: Flow, tmp_path: Path) -> None:
    stores = [
        run_build(_with(flow, store={"root": str(tmp_path / name)}), memory_bytes=memory, quiet=True).path
        for name, memory in (("a", 1 << 40), ("b", 1 << 31))
    ]
    names = [sorted(str(p.relative_to(s)) for p in s.rglob("*") if p.is_file()) for s in stores]
    assert names[0] == names[1]
    for name in names[0]:
        assert (stores[0] / name).read_bytes() == (stores[1] / name).read_bytes(), name


def test_an_interrupted_build_keeps_its_finished_shards(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandstream.pipeline import writer
    from bandstream.pipeline.writer import StoreWriter

    monkeypatch.setattr(writer, "SHARD_BYTES", (1, 1))  # one chunk a shard
    monkeypatch.setattr(writer, "MIN_CHUNK_BYTES", 1)
    whole = build(_with(flow, store={"root": str(tmp_path / "whole")}))
    written: list[int] = []
    original = StoreWriter.write_shard

    def stops(self: StoreWriter, shard: int, tiles: Any, classes: int) -> Any:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(shard)
        return original(self, shard, tiles, classes)

    monkeypatch.setattr(StoreWriter, "write_shard", stops)
    with pytest.raises(KeyboardInterrupt):
        run_build(flow, quiet=True)
    partial = next((tmp_path / "stores").glob("*.zarr"))
    assert not (partial / "zarr.json").exists()
    with pytest.raises(BandstreamError, match="not finished"):
        PatchStore.open(partial)
    torn = PatchStore(partial, {}).shard_path("data", written[0])
    torn.write_bytes(torn.read_bytes()[:-7])
    first, written[:] = list(written), []
    monkeypatch.setattr(
        StoreWriter, "write_shard", lambda s, n, t, c: (written.append(n), original(s, n, t, c))[1]
    )
    store = build(flow)
    assert sorted(written) == [n for n in range(len(whole)) if n == first[0] or n not in first]
    store.verify()
    for file in whole.path.rglob("*"):
        if file.is_file():
            assert (store.path / file.relative_to(whole.path)).read_bytes() == file.read_bytes()


def test_pixels_that_a_product_rules_out_are_masked_though_they_hold_numbers(
    flow: Flow, made: MadeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array as da

    from bandstream.pipeline import readers

    def ruled(*args: Any, **options: Any) -> Any:
        scene = open_scene(*args, **options)
        allowed = np.ones(made.valid.shape, bool)
        allowed[20:, 30:] = False
        scene["valid"] = (("y", "x"), da.from_array(allowed, chunks=9))
        scene.attrs["valid_rule"] = "product"
        return scene

    monkeypatch.setattr(readers, "open_scene", ruled)
    store = build(_with(flow, stages=[*flow["stages"][:3], {"normalize": {"method": "zscore"}}]))
    expected = made.valid.copy()
    expected[20:, 30:] = False
    np.testing.assert_array_equal(_scene_of(store, "valid"), expected)
    # the mean is that of the pixels left: the training pixels come out with mean 0
    train = expected & (_scene_of(store, "split") == 1)
    assert train[:20].any()
    np.testing.assert_allclose(_scene_of(store)[:, train].mean(axis=1), 0, atol=1e-5)
    np.testing.assert_array_equal(transform(ruled(made.path), store)["valid"].values, expected)


def test_lazy_transform_in_a_notebook_gives_the_numbers_of_the_build(flow: Flow, made: MadeScene) -> None:
    store = build(flow)
    lazy = transform(open_scene(made.path), store, chunk_rows=7)
    assert lazy["data"].chunks is not None
    # another GEMM shape may round the last digit otherwise
    np.testing.assert_allclose(lazy["data"].values.transpose(2, 0, 1), _scene_of(store), atol=1e-5)
    np.testing.assert_array_equal(lazy["valid"].values, made.valid)


def test_several_scenes_are_never_mosaicked(flow: Flow, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    scenes = [make_envi(folder, (20, 24), seed=n, stem=f"part{n}", east=366000 + 9000 * n) for n in range(3)]
    entries = [{"path": str(folder / "part*.hdr"), "labels": str(folder / "{stem}_labels.tif")}]
    store = build(_with(flow, scenes=entries, split={"by": "none"}))
    assert [grid.scene_id for grid in store.scenes] == ["part0", "part1", "part2"]
    assert np.bincount(store.index.scene).tolist() == [4, 4, 4]
    assert store.index.labelled.sum() == sum((s.labels[s.valid] > 0).sum() for s in scenes)


def test_a_given_split_of_files_is_taken_as_it_is(flow: Flow, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    for n in range(3):
        make_envi(folder, (20, 24), seed=n, stem=f"part{n}", east=366000 + 9000 * n)
    for name, parts in (("train", (0,)), ("validation", (2,)), ("test", (1,))):
        (folder / f"{name}.csv").write_text("image,mask\n" + "".join(f"part{p}.hdr,x\n" for p in parts))
    entries = [{"path": str(folder / "part*.hdr"), "labels": str(folder / "{stem}_labels.tif")}]
    files = {name: str(folder / f"{name}.csv") for name in ("train", "validation", "test")}
    store = build(_with(flow, scenes=entries, split={"by": "given", "files": files}))
    codes = [int(np.unique(store.array("split")[store.index.scene == n, 2:-2, 2:-2]).max()) for n in range(3)]
    assert codes == [1, 3, 2]
    (folder / "test.csv").write_text("image\npart9.hdr\n")
    with pytest.raises(ConfigError, match=r"part9\.hdr, which is no scene"):
        build(_with(flow, scenes=entries, split={"by": "given", "files": files}))


def test_a_given_raster_is_never_altered_and_its_shared_pixels_are_counted(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    codes = np.ones((40, 52), np.uint8)
    codes[:, 20:] = 3
    codes[25:, :] = 2
    path = tmp_path / "split.tif"
    with rasterio.open(made.labels_path) as like:
        profile = like.profile
    with rasterio.open(path, "w", **profile) as out:
        out.write(codes, 1)
    store = build(_with(flow, split={"by": "given", "raster": str(path)}))
    np.testing.assert_array_equal(_scene_of(store, "split"), codes)
    assert store.attrs["shared_pixels"]["train-test"] > 0


def test_a_dry_run_reads_no_pixel_and_writes_no_store(flow: Flow, tmp_path: Path) -> None:
    result = run_build(flow, dry_run=True, quiet=True)
    assert result.tiles == 12
    assert result.predicted_peak_bytes > 0
    assert not list((tmp_path / "stores").glob("*.zarr"))


def test_a_store_opens_with_plain_xarray(flow: Flow) -> None:
    import xarray as xr

    store = build(flow)
    tiles = xr.open_zarr(store.path, group="tiles", consolidated=False)
    assert tiles["data"].dims == ("tile", "band", "y", "x")
    np.testing.assert_array_equal(tiles["data"].values, store.read_tiles("data", 0, len(store)))
    assert set(store.to_xarray()) >= {
        "data",
        "labels",
        "valid",
        "split",
        "scene",
        "row",
        "col",
        "pixels",
        "labelled",
    }


def test_nothing_in_a_store_names_time_host_or_path(flow: Flow, tmp_path: Path) -> None:
    import platform

    store = build(flow)
    for file in store.path.rglob("*.json"):
        text = file.read_text()
        assert str(tmp_path) not in text
        assert platform.node() not in text
    sidecar = json.loads(store.path.with_name(store.path.stem + ".provenance.json").read_text())
    assert sidecar["fingerprint"] == store.fingerprint
    assert any(name.endswith("scene.img") for name in sidecar["files"])


def test_deleting_a_shard_is_named_by_verify_and_by_reuse(flow: Flow) -> None:
    store = build(flow)
    shard = store.shard_path("valid", 0)
    shard.unlink()
    with pytest.raises(StoreCorruptError, match="tiles/valid/c/0/0/0"):
        store.verify()
    with pytest.raises(StoreCorruptError, match="tiles/valid/c/0/0/0"):
        run_build(flow, quiet=True)


def test_every_flipped_bit_is_found(flow: Flow) -> None:
    store = build(flow)
    rng = np.random.default_rng(0)
    path = store.shard_path("data", 0)
    original = path.read_bytes()
    for position in rng.integers(0, len(original), 25):
        changed = bytearray(original)
        changed[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(StoreCorruptError, match="tiles/data"):
            store.verify()
        with pytest.raises(StoreCorruptError):
            PatchStore.open(store.path).read_tiles("data", 0, len(store))
    path.write_bytes(original)
    assert store.verify() > 0


def _truncate(made: MadeScene, flow: Flow) -> None:
    data = made.path.with_suffix(".img")
    data.write_bytes(data.read_bytes()[:-1])


def _mask_all(made: MadeScene, flow: Flow) -> None:
    np.full(made.raw_yxb.size, NODATA, "<i2").tofile(made.path.with_suffix(".img"))


def _no_labels_left(made: MadeScene, flow: Flow) -> None:
    with rasterio.open(made.labels_path, "r+") as raster:
        raster.write(np.zeros((40, 52), np.uint8), 1)


def _labels_of_another_size(made: MadeScene, flow: Flow) -> None:
    path = made.labels_path.with_suffix(".raw.tif")
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(path, "w", driver="GTiff", height=3, width=5, count=1, dtype="uint8") as out,
    ):
        out.write(np.ones((3, 5), np.uint8), 1)
    flow["scenes"][0]["labels"] = str(path)


@pytest.mark.parametrize(
    ("spoil", "error", "word"),
    [
        (_truncate, TruncatedFileError, "bytes"),
        (_mask_all, NoValidPixelsError, "masked"),
        (_no_labels_left, EmptySplitError, "no labelled pixel"),
        (_labels_of_another_size, LabelError, "3 x 5"),
        (lambda made, flow: made.path.unlink(), SceneNotFoundError, "scene"),
        (lambda made, flow: flow["split"].update(block=4), ConfigError, r"split\.block"),
        (lambda made, flow: flow["stages"][4]["reduce"].update(components=12), ConfigError, "11 at most"),
        (lambda made, flow: flow["stages"][2]["drop_bands"].update(windows_nm="watr"), ConfigError, "water"),
        (
            lambda made, flow: flow["stages"][2]["drop_bands"].update(windows_nm=[[100, 9000]]),
            ConfigError,
            "no band",
        ),
        (lambda made, flow: flow.update(class_names=["a"]), ConfigError, "class_names"),
    ],
)
def test_bad_input_ends_in_one_clear_error_and_leaves_nothing(
    flow: Flow, made: MadeScene, tmp_path: Path, spoil: Any, error: type[BandstreamError], word: str
) -> None:
    spoil(made, flow)
    with pytest.raises(error, match=word) as caught:
        build(flow)
    assert str(caught.value).count("\n") == 0
    assert not list((tmp_path / "stores").glob("*.zarr"))


def test_a_training_split_without_pixels_is_refused(flow: Flow, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    with rasterio.open(folder / "scene_labels.tif") as like:
        profile = like.profile
    with rasterio.open(tmp_path / "split.tif", "w", **profile) as out:
        out.write(np.full((40, 52), 3, np.uint8), 1)
    with pytest.raises(EmptySplitError, match="training split holds no pixels"):
        build(_with(flow, split={"by": "given", "raster": str(tmp_path / "split.tif")}))


def test_too_small_a_budget_is_refused_before_work(flow: Flow) -> None:
    with pytest.raises(MemoryBudgetError, match="Raise --memory"):
        run_build(flow, memory_bytes=1 << 20, quiet=True)


def test_a_store_that_is_being_built_is_not_built_twice(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    from bandstream.pipeline import fitting

    original = fitting.fit

    def second(*args: Any) -> Any:
        with pytest.raises(StoreBusyError, match="Another process"):
            run_build(flow, quiet=True)
        return original(*args)

    monkeypatch.setattr(fitting, "fit", second)
    assert run_build(flow, quiet=True).store is not None


@pytest.mark.real
def test_potsdam_statistics_equal_those_of_another_program(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 19: mean and population standard deviation of the 14 training tiles, to 1e-6."""
    from importlib import resources

    monkeypatch.setenv("BANDSTREAM_DATA", str(data_root))
    workflow = resources.files("bandstream.workflows") / "enmap_potsdam.yaml"
    store = build(str(workflow), store__root=str(tmp_path))
    table = np.genfromtxt(
        data_root / "enmap_potsdam_tiles" / "Normalize_Bands.csv", delimiter=",", skip_header=1
    )
    kept = store.chain.kept
    assert sorted(set(range(1, 225)) - set((kept + 1).tolist())) == [130, 131, 132, 133, 134, 135]
    normalize = store.chain.stages[0]
    np.testing.assert_allclose(normalize.centre / 1e-4, table[kept, 2], rtol=1e-6)
    np.testing.assert_allclose(normalize.spread / 1e-4, table[kept, 1], rtol=1e-6)
    data = store.read_tiles("data", 0, len(store))
    assert np.isfinite(data).all()
    reflectance = data * normalize.spread[:, None, None] + normalize.centre[:, None, None]
    assert reflectance.min() > -0.1
    raw = build(
        str(workflow), store__root=str(tmp_path), stages=[{"calibrate": {}}, {"drop_bands": {}}], name="raw"
    )
    values = raw.read_tiles("data", 0, len(raw))
    assert not np.isclose(values, -3.2768, atol=1e-3).any()
    assert 0.9 < values.max() < 1.1
    store.verify()


def test_components_that_are_rounding_noise_are_refused(flow: Flow, tmp_path: Path) -> None:
    """Three bands repeated: a fourth component has no variance, and scaling it would blow up rounding."""
    made = make_envi(tmp_path / "raw", bands=12, stem="copies")
    raw = np.tile(made.raw_yxb[:, :, :3], (1, 1, 4))
    raw.transpose(0, 2, 1).astype("<i2").tofile(made.path.with_suffix(".img"))
    with pytest.raises(ConfigError, match="give 3 at most"):
        build(_with(flow, scenes=[{"path": str(made.path), "labels": str(made.labels_path)}]))


def test_the_same_scene_twice_is_refused_and_a_header_stands_for_its_data_file(
    flow: Flow, made: MadeScene
) -> None:
    entry = {"path": str(made.path), "labels": str(made.labels_path)}
    with pytest.raises(ConfigError, match="hold the same data"):
        build(_with(flow, scenes=[entry, entry]))
    store = build(_with(flow, scenes=[{**entry, "path": str(made.path.parent / "scene.*")}]))
    assert len(store.scenes) == 1


def test_scenes_that_overlap_on_the_ground_are_told(flow: Flow, tmp_path: Path) -> None:
    for n in range(2):
        make_envi(tmp_path / "raw", (20, 24), seed=n, stem=f"part{n}")
    with pytest.warns(BandstreamWarning, match="overlap by about 480 pixels"):
        build(_with(flow, scenes=[{"path": str(tmp_path / "raw" / "part*.hdr")}]))


def test_a_world_file_that_changes_makes_another_store(flow: Flow, made: MadeScene) -> None:
    """Files beside a raster decide what it means: they count for reuse and for the fingerprint."""
    with rasterio.open(made.labels_path) as raster:
        values, profile = raster.read(1), raster.profile
    profile.pop("transform")
    plain = made.labels_path.with_name("placed.tif")
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning), rasterio.open(plain, "w", **profile) as out:
        out.write(values, 1)
    world = plain.with_suffix(".tfw")
    world.write_text("30\n0\n0\n-30\n366015\n5809985\n")
    changed = _with(flow, scenes=[{"path": str(made.path), "labels": str(plain)}])
    first = run_build(changed, quiet=True)
    world.write_text("30\n0\n0\n-30\n366105\n5809985\n")
    again = run_build(changed, quiet=True)
    assert not again.reused
    assert again.fingerprint != first.fingerprint


def test_a_source_that_changes_during_the_build_is_named(
    flow: Flow, made: MadeScene, monkeypatch: Any
) -> None:
    from bandstream.pipeline import fitting

    original = fitting.fit

    def touching(*args: Any) -> Any:
        data = made.path.with_suffix(".img")
        data.write_bytes(data.read_bytes()[::-1])
        return original(*args)

    monkeypatch.setattr(fitting, "fit", touching)
    with pytest.raises(SceneError, match="has changed while"):
        build(flow)


def test_a_store_that_another_process_finished_meanwhile_is_kept(flow: Flow, monkeypatch: Any) -> None:
    from bandstream.pipeline import survey as module

    original, first = module.survey, []

    def slow(*args: Any) -> Any:
        found = original(*args)
        if not first:
            first.append(True)
            first.append(run_build(flow, quiet=True).path.stat().st_ino)
        return found

    monkeypatch.setattr(module, "survey", slow)
    result = run_build(flow, quiet=True)
    assert result.reused
    assert result.path.stat().st_ino == first[1]
    assert result.store is not None
    assert result.store.verify() > 0


def test_masked_training_pixels_are_refused_without_fitted_stages_too(flow: Flow, made: MadeScene) -> None:
    with pytest.raises(NoValidPixelsError, match="masked"):
        build(_with(flow, stages=[]))
    labels = np.where(made.valid, 0, made.labels).astype(np.uint8)
    assert labels.any()
    with rasterio.open(made.labels_path, "r+") as raster:
        raster.write(labels, 1)
    with pytest.raises(EmptySplitError, match="where the scene has no data"):
        build(_with(flow, split={"by": "none"}))


def test_scenes_of_other_scales_are_not_mixed_uncalibrated(flow: Flow, tmp_path: Path) -> None:
    for n in range(2):
        made = make_envi(tmp_path / "raw", (20, 24), seed=n, stem=f"part{n}", east=366000 + 9000 * n)
    made.path.write_text(made.path.read_text().replace("factor = 10000", "factor = 1000"))
    scenes = [{"path": str(tmp_path / "raw" / "part*.hdr")}]
    with pytest.raises(ConfigError, match="different scales"):
        build(_with(flow, scenes=scenes, stages=["drop_bands"], split={"by": "none"}))


def test_a_pattern_may_lie_in_a_folder_with_brackets(flow: Flow, tmp_path: Path) -> None:
    folder = tmp_path / "flight [1]"
    folder.mkdir()
    make_envi(folder, (20, 24))
    for path in ("scene.hdr", "*.hdr"):
        assert len(build(_with(flow, scenes=[{"path": str(folder / path)}], split={"by": "none"}))) == 4


def test_a_csv_without_a_header_line_is_taken_and_one_that_is_no_text_is_refused(
    flow: Flow, tmp_path: Path
) -> None:
    folder = tmp_path / "raw"
    for n in range(2):
        make_envi(folder, (20, 24), seed=n, stem=f"part{n}", east=366000 + 9000 * n)
    for n, name in enumerate(("train", "test")):
        (folder / f"{name}.csv").write_text(f"part{n}.hdr\n")
    files = {name: str(folder / f"{name}.csv") for name in ("train", "test")}
    changed = _with(flow, scenes=[{"path": str(folder / "part*.hdr")}], split={"by": "given", "files": files})
    assert build(changed).attrs["pixels"]["test"] > 0
    (folder / "test.csv").write_bytes("part1.hdr\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="no CSV file"):
        build(changed)


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        '{"attributes": {"bandstream": null}}',
        '{"attributes": {"bandstream": {"schema": ' + f"{SCHEMA}}}}}}}",
    ],
)
def test_root_metadata_that_were_replaced_are_named(flow: Flow, damage: str) -> None:
    store = build(flow)
    (store.path / "zarr.json").write_text(damage)
    with pytest.raises(StoreCorruptError, match=r"zarr\.json"):
        PatchStore.open(store.path)


def test_a_border_without_data_is_told_apart_from_bands_without_data(flow: Flow, made: MadeScene) -> None:
    notes = run_build(_with(flow, split={"by": "none"}), quiet=True).notes
    blank = (made.raw_yxb[:, :, ~made.bad] == NODATA).all(axis=2).mean()
    assert f"{blank:.1%} of the training pixels have no data in any band" in notes[0]
    assert not any("more than 5%" in note for note in notes)


def test_a_split_that_was_asked_for_and_gets_no_pixel_is_told(flow: Flow) -> None:
    with pytest.warns(BandstreamWarning, match="No pixel is left for validation and test"):
        build(_with(flow, split={"by": "blocks", "block": 500}))


def test_a_scene_without_wavelengths_is_transformed_with_a_warning(flow: Flow, made: MadeScene) -> None:
    store = build(flow)
    scene = open_scene(made.path).drop_vars("wavelength")
    with pytest.warns(BandstreamWarning, match="tells no wavelengths"):
        transform(scene, store)


def test_an_experiment_given_as_a_workflow_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("version: 1\nname: x\nworkflow: flow.yaml\n")
    with pytest.raises(ConfigError, match="use `bandstream train"):
        run_build(path)


def test_a_number_far_above_the_classes_is_asked_about(flow: Flow, made: MadeScene) -> None:
    with rasterio.open(made.labels_path, "r+") as raster:
        raster.write(np.where(made.labels == 0, 255, made.labels).astype(np.uint8), 1)
    with pytest.warns(BandstreamWarning, match="5 classes with numbers up to 255"):
        build(flow)
    flow["scenes"][0]["labels"] = {"path": str(made.labels_path), "unlabelled": 255}
    assert build(flow).classes == 4


@pytest.mark.parametrize("key", ["path", "labels"])
def test_a_catalog_entry_reaches_no_file_outside_its_folder(
    flow: Flow, made: MadeScene, tmp_path: Path, key: str
) -> None:
    from bandstream.pipeline.config import dump_yaml

    folder = tmp_path / "entry"
    folder.mkdir()
    inside = {"path": made.path.name, "labels": made.labels_path.name}
    entry = {
        "version": 1, "name": "own", "title": "own", "description": "own", "license": "own", "providers": ["own"],
        "folder": str(made.path.parent), "scenes": [inside],
    }  # fmt: skip
    (folder / "own.yaml").write_text(dump_yaml(entry))
    asked = _with(flow, scenes={"catalog": str(folder / "own.yaml")})
    assert run_build(asked, quiet=True, dry_run=True).tiles
    entry |= {"folder": str(folder), "scenes": [inside | {"path": "raw.hdr", "labels": "raw.tif"}]}
    for name, file in (
        ("raw.hdr", made.path),
        ("raw.img", made.path.with_suffix(".img")),
        ("raw.tif", made.labels_path),
    ):
        (folder / name).write_bytes(file.read_bytes())
    entry["scenes"] = [entry["scenes"][0] | {key: f"../raw/{inside[key]}"}]
    (folder / "own.yaml").write_text(dump_yaml(entry))
    with pytest.raises(ConfigError, match="outside the entry's folder"):
        run_build(asked, quiet=True, dry_run=True)


def test_provenance_does_not_keep_what_another_program_was_started_with(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["mine.py", "--password", "a-secret"])
    store = build(flow)
    told = store.path.with_name(f"{store.path.stem}.provenance.json").read_text()
    assert "mine.py" in told
    assert "a-secret" not in told
