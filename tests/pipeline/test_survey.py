"""Splits of whole workflows: what a build deals, counts, proves and warns of."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin

from bandstream.pipeline import build
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import BandstreamWarning, ConfigError, LabelError
from bandstream.pipeline.store import PatchStore

from .conftest import MadeScene, make_envi

Flow = dict[str, Any]


def _with(flow: Flow, **changes: Any) -> Flow:
    return {**flow, **changes}


def layer(store: PatchStore, name: str, scene: int = 0) -> np.ndarray:
    """Put the cores of a scene together."""
    out = np.zeros(store.scenes[scene].shape_yx, store.array(name).dtype)
    halo, size = store.halo, store.tile_size
    for tile in np.flatnonzero(store.index.scene == scene).tolist():
        core = store.read_tiles(name, tile, tile + 1)[0, halo : halo + size, halo : halo + size]
        row, col = int(store.index.row[tile]), int(store.index.col[tile])
        part = out[row : row + size, col : col + size]
        part[...] = core[: part.shape[0], : part.shape[1]]
    return out


def seen_by_two(codes: np.ndarray, halo: int) -> int:
    seen = np.zeros((4, *codes.shape), bool)
    for y, x in np.ndindex(codes.shape):
        seen[codes[y, x], max(0, y - halo) : y + halo + 1, max(0, x - halo) : x + halo + 1] = True
    return int((seen[1:].sum(axis=0) > 1).sum())


@pytest.fixture
def scenes(tmp_path: Path) -> list[MadeScene]:
    """Five small scenes that lie side by side."""
    folder = tmp_path / "many"
    folder.mkdir()
    return [
        make_envi(folder, (24, 30), seed=number, stem=f"s{number}", east=366000 + 900 * number)
        for number in range(5)
    ]


@pytest.fixture
def many(flow: Flow, scenes: list[MadeScene]) -> Flow:
    """A workflow over them."""
    return _with(flow, scenes=[{"path": str(s.path), "labels": str(s.labels_path)} for s in scenes])


def group_raster(made: MadeScene, folder: Path) -> tuple[Path, np.ndarray]:
    """Write rectangles of ids in an order of their own; some pixels have none."""
    rows, cols = made.labels.shape
    ids = (7 * (np.arange(rows)[:, None] // 10) + 100 * (np.arange(cols)[None, :] // 8) + 5).astype(np.int32)
    ids[:, cols - 4 :] = 0
    path = folder / "ids.tif"
    with rasterio.open(made.labels_path) as labels:
        profile = labels.profile | {"dtype": "int32"}
    with rasterio.open(path, "w", **profile) as out:
        out.write(ids, 1)
    return path, ids


@pytest.mark.parametrize(("along", "axis"), [("rows", 1), ("columns", 0)])
def test_stripes_cross_the_scene_and_share_no_pixel(flow: Flow, along: str, axis: int) -> None:
    store = build(_with(flow, split={"by": "stripes", "along": along, "width": 8}))
    split = layer(store, "split")
    assert (split == split.take([0], axis=axis)).all()
    assert set(np.unique(split)) == {0, 1, 2, 3}
    assert sum(store.attrs["shared_pixels"].values()) == 0 == seen_by_two(split, 2)


def test_groups_stay_whole_and_share_no_pixel(flow: Flow, made: MadeScene, tmp_path: Path) -> None:
    path, ids = group_raster(made, tmp_path)
    labels = {"path": str(made.labels_path), "groups": str(path)}
    asked = _with(
        flow, scenes=[{"path": str(made.path), "labels": labels}], split={"by": "groups", "seed": 3}
    )
    lost = int(((made.labels > 0) & (ids == 0)).sum())
    with pytest.warns(BandstreamWarning, match=f"{lost} labelled pixels belong to no group"):
        store = build(asked)
    split = layer(store, "split")
    for number in np.unique(ids[ids > 0]):
        assert len(set(split[ids == number].tolist()) - {0}) <= 1
    assert (split[ids == 0] == 0).all()
    assert sum(store.attrs["shared_pixels"].values()) == 0 == seen_by_two(split, 2)
    assert all(sum(store.attrs["labelled"][name]) for name in ("train", "validation", "test"))


def test_groups_without_groups_are_refused(flow: Flow) -> None:
    with pytest.raises(LabelError, match=r"labels\.groups, a raster of ids"):
        build(_with(flow, split={"by": "groups"}))


def test_whole_scenes_are_dealt_each_to_one_split(many: Flow) -> None:
    store = build(_with(many, split={"by": "scenes"}))
    codes = [set(np.unique(layer(store, "split", scene)).tolist()) for scene in range(5)]
    assert sorted(codes, key=min) == [{1}, {1}, {1}, {2}, {3}]
    assert store.attrs["shared_pixels"] == {}


def test_whole_scenes_are_taken_by_lists_of_names_and_patterns(many: Flow) -> None:
    store = build(_with(many, split={"by": "scenes", "lists": {"train": ["s[0-2]"], "test": ["s3", "s4"]}}))
    assert [int(layer(store, "split", scene).max()) for scene in range(5)] == [1, 1, 1, 3, 3]


@pytest.mark.parametrize(
    ("lists", "match"),
    [
        ({"train": ["s0", "s1"]}, "3 of 5 scenes stand in none of split.lists: s2, s3, s4"),
        ({"train": ["*"], "test": ["s4"]}, "s4 stands in two"),
        ({"train": ["s*"], "test": ["t1"]}, "names t1, and no scene is called so"),
    ],
)
def test_lists_that_do_not_match_the_scenes_are_refused(many: Flow, lists: Flow, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build(_with(many, split={"by": "scenes", "lists": lists}))


def test_random_pixels_leak_and_how_much_is_told(flow: Flow) -> None:
    with pytest.warns(BandstreamWarning, match="Scores measured so come out too good") as caught:
        store = build(_with(flow, split={"by": "random"}))
    split = layer(store, "split")
    counts = store.attrs["shared_pixels"]
    seen = np.zeros((4, *split.shape), bool)
    for y, x in np.ndindex(split.shape):
        seen[split[y, x], max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = True
    assert counts["train-test"] == (seen[1] & seen[3]).sum() > 1000
    leaked = counts["train-test"] + counts["train-validation"]
    assert f"{leaked:,} times a pixel" in str(caught[0].message)


def test_each_fold_is_a_store_of_its_own_fitted_on_its_own_training_pixels(
    flow: Flow, made: MadeScene
) -> None:
    """Over the folds every labelled pixel that no margin takes is tested exactly once."""
    split = {"by": "blocks", "block": 10, "folds": 3, "validation_fold": False}
    tested, means = np.zeros(made.labels.shape, int), []
    for fold in (1, 2, 3):
        store = build(_with(flow, split=split, tiles={"size": 16, "halo": 0}), split__fold=fold)
        codes = layer(store, "split")
        tested += codes == 3
        kept = (codes == 1) & layer(store, "valid")
        raw = made.raw_yxb[kept][:, ~made.bad] * 1e-4
        np.testing.assert_allclose(store.band_values("mean"), raw.mean(axis=0), rtol=1e-9)
        means.append(store.band_values("mean"))
        assert store.attrs["workflow"]["split"]["fold"] == fold
    assert (tested == 1).all()
    assert not np.allclose(means[0], means[1])


def test_a_margin_from_the_variogram_is_told_and_kept(flow: Flow, tmp_path: Path) -> None:
    large = make_envi(tmp_path, (96, 150), stem="large")
    split = {"by": "blocks", "block": 40, "margin": "range", "seed": 1}
    asked = _with(flow, scenes=[{"path": str(large.path), "labels": str(large.labels_path)}], split=split)
    result = run_build(asked, quiet=True)
    told = next(line for line in result.notes if line.startswith("margin ") and "variogram" in line)
    pixels = int(told.split()[1])
    # the fields of the scene are 7 x 9 pixels
    assert 7 <= pixels < 40
    assert result.store is not None
    assert told in result.store.attrs["notes"]
    fixed = build(_with(asked, split=split | {"margin": pixels}))
    np.testing.assert_array_equal(layer(result.store, "split"), layer(fixed, "split"))


def test_a_margin_from_the_variogram_is_no_less_than_two_halos(flow: Flow) -> None:
    asked = _with(
        flow, split={"by": "blocks", "block": 52, "margin": "range"}, tiles={"size": 16, "halo": 13}
    )
    with pytest.warns(BandstreamWarning, match="No pixel is left for validation and test"):
        notes = run_build(asked, quiet=True, dry_run=True).notes
    assert notes[0].startswith("margin 26 pixels: ")
    assert "2 halo are more than the range" in notes[0]


@pytest.mark.parametrize("split", [{"by": "blocks", "block": 20}, {"by": "stripes", "width": 10}])
def test_a_margin_below_two_halos_is_warned_of_with_what_it_shares(flow: Flow, split: Flow) -> None:
    narrow = _with(flow, split={**split, "margin": 1}, tiles={"size": 16, "halo": 3})
    told = r"Splits share pixels \(train-validation .*margin is 1 .* takes 6"
    with pytest.warns(BandstreamWarning, match=told):
        run_build(narrow, quiet=True, dry_run=True)
    wide = _with(flow, split={**split, "margin": 6}, tiles={"size": 16, "halo": 3})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Splits share")
        run_build(wide, quiet=True, dry_run=True)


def test_a_range_that_eats_the_blocks_is_refused_with_its_number(flow: Flow) -> None:
    with pytest.raises(ConfigError, match=r"split.margin is \d+ pixels \(.*variogram.*\) and split.block 4"):
        build(_with(flow, split={"by": "blocks", "block": 4, "margin": "range"}))


def test_a_margin_as_wide_as_a_stripe_is_refused(flow: Flow) -> None:
    with pytest.raises(ConfigError, match=r"split\.margin is 4 pixels and split\.width 4"):
        build(_with(flow, split={"by": "stripes", "width": 4}))


def test_the_balance_is_told_by_the_build_and_by_the_store(flow: Flow) -> None:
    from bandstream.pipeline.storeinfo import describe, lines

    result = run_build(flow, quiet=True)
    assert result.store is not None
    row = next(line for line in result.notes if line.startswith("class 1 "))
    split = layer(result.store, "split")
    with rasterio.open(flow["scenes"][0]["labels"]) as raster:
        labels = raster.read(1)
    counts = [int(((split == code) & (labels == 1)).sum()) for code in (1, 2, 3)]
    assert [cell.replace(",", "") for cell in row.split()[3::2]] == [str(count) for count in counts]
    assert f"{counts[0] / sum(counts):.1%}" in row
    found = describe(result.store)
    held = [found["labelled"][name][0] for name in ("train", "validation", "test")]
    assert found["labelled_shares"]["train"][0] == held[0] / sum(held)
    assert any(line.startswith("class 1 ") and "%" in line for line in lines(found))


def test_a_class_that_a_split_lacks_is_warned_of_by_name(flow: Flow, made: MadeScene) -> None:
    with rasterio.open(made.labels_path, "r+") as raster:
        values = raster.read(1)
        values[values == 2] = 1
        values[20:22, 30:32] = 2
        raster.write(values, 1)
    names = ["grass", "pond", "soil", "roof"]
    with pytest.warns(BandstreamWarning, match="holds no labelled pixel of pond"):
        build(_with(flow, class_names=names))


def box(number: int, place: Affine, shape: tuple[int, int] = (100, 100)) -> Any:
    import dask.array as da

    from bandstream.pipeline.scene import make_scene

    scene = make_scene(da.zeros((*shape, 1), dtype="int16"), crs=CRS.from_epsg(32633), transform=place)
    return SimpleNamespace(scene=scene, files=SimpleNamespace(scene_id=f"s{number}"), shape_yx=shape)


def test_overlaps_are_those_of_every_pair_compared() -> None:
    from bandstream.pipeline.survey import _overlaps  # pyright: ignore[reportPrivateUsage]

    rng = np.random.default_rng(0)
    corners = rng.integers(0, 300, (40, 2))
    items = [box(n, from_origin(x, y, 1, 1)) for n, (x, y) in enumerate(corners.tolist())]
    expected = set()
    for a in range(40):
        for b in range(a + 1, 40):
            across, down = 100 - np.abs(corners[a] - corners[b])
            if across > 0 and down > 0:
                expected.add((int(across * down), a, b))
    assert set(_overlaps(items)) == expected
    assert len(expected) > 20


def test_looking_for_overlaps_among_thousands_of_scenes_takes_no_time_and_few_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bandstream.pipeline import survey as module
    from bandstream.pipeline.splits import BlockSplit, WholeScene

    crs = CRS.from_epsg(32633)
    monkeypatch.setattr(module, "scene_crs", lambda _: crs)
    monkeypatch.setattr(module, "scene_transform", lambda scene: scene)
    items = [
        SimpleNamespace(
            scene=from_origin(90 * (n % 60), 90 * (n // 60), 1, 1),
            files=SimpleNamespace(scene_id=f"s{n}"),
            shape_yx=(100, 100),
        )
        for n in range(3000)
    ]
    mixed = [BlockSplit((100, 100), (50, 50), np.array([[1, 3], [3, 1]], np.uint8), 0)] * len(items)
    _warn_of_overlaps = module._warn_of_overlaps
    started = time.perf_counter()
    with pytest.warns(BandstreamWarning) as caught:
        _warn_of_overlaps(items, mixed)
    assert time.perf_counter() - started < 5
    assert len(caught) == 6
    assert "more pairs of scenes overlap" in str(caught[-1].message)
    # within one split an overlap is no leak
    _warn_of_overlaps(items, [WholeScene(1)] * len(items))


def test_labels_are_read_no_more_than_twice(many: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenes may be many and their labels large."""
    from bandstream.pipeline.labels import LabelRaster

    read: list[int] = []
    original = LabelRaster.read

    def counted(self: LabelRaster, rows: slice, cols: slice) -> np.ndarray:
        read.append((rows.stop - rows.start) * (cols.stop - cols.start))
        return original(self, rows, cols)

    monkeypatch.setattr(LabelRaster, "read", counted)
    pixels = 5 * 24 * 30
    for split, times in (({"by": "blocks", "block": 13, "seed": 1}, 2), ({"by": "none"}, 1)):
        read.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandstreamWarning)
            run_build(_with(many, split=split), quiet=True, dry_run=True)
        assert sum(read) == times * pixels


@pytest.mark.real
@pytest.mark.parametrize("split", [{"by": "blocks", "block": 24}, {"by": "stripes", "width": 16}])
def test_patches_of_the_benchmark_scenes_share_no_pixel(
    flow: Flow, tmp_path: Path, data_root: Path, split: Flow
) -> None:
    """Case: random splits of overlapping patches leak. Patches of 9 x 9 pixels, halo included, and the count told."""
    from scipy.io import loadmat
    from scipy.ndimage import maximum_filter

    path = data_root / "ground_truth_only" / "Indian_pines_gt.mat"
    labels = loadmat(path)["indian_pines_gt"]
    np.save(tmp_path / "cube.npy", np.random.default_rng(0).normal(size=(*labels.shape, 3)).astype("f4"))
    asked = _with(
        flow,
        scenes=[{"path": str(tmp_path / "cube.npy"), "labels": str(path)}],
        stages=[],
        tiles={"size": 32, "halo": 4},
        split=split,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)  # rare classes lie in few blocks
        result = run_build(asked, quiet=True)
    assert result.store is not None
    codes = layer(result.store, "split")
    seen = [maximum_filter(codes == code, 9, mode="constant") for code in (1, 2, 3)]
    assert np.sum(seen, axis=0).max() == 1
    assert "shared pixels: train-validation 0, train-test 0, validation-test 0" in result.notes
    # the margin leaves most labels where they are
    assert sum(map(sum, result.store.attrs["labelled"].values())) == (labels > 0).sum()
    assert sum(result.store.attrs["labelled"]["none"]) < 0.6 * (labels > 0).sum()
