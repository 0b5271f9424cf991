"""Pass 1 against statistics computed of the whole cube at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bandstream.pipeline import gathering, open_scene
from bandstream.pipeline.engine import Engine
from bandstream.pipeline.gathering import Gather, SceneNumbers, gather_statistics, task_rows
from bandstream.pipeline.scene import nodata_values
from bandstream.pipeline.sources import OpenScene, SceneFiles
from bandstream.pipeline.splits.maps import BlockSplit, WholeScene
from bandstream.pipeline.stages.chain import Prefix
from bandstream.pipeline.stages.normalize import UnitNorm
from bandstream.pipeline.stages.stage import BandTable
from bandstream.pipeline.statistics import Group, Wanted, threshold
from bandstream.pipeline.statistics.differences import difference_moments

from .conftest import MadeScene, make_envi

ENGINE = Engine(2, 0)


def _item(made: MadeScene) -> OpenScene:
    return OpenScene(open_scene(made.path), SceneFiles((made.path,), "scene"), None, None)


def _gathered(made: MadeScene, wanted: Wanted, split: object = None, prefix: Prefix | None = None) -> Group:
    item = _item(made)
    bands = np.flatnonzero(~made.bad)
    numbers = SceneNumbers(nodata_values(item.scene), np.ones(12), np.zeros(12)).select(bands)
    split = split or WholeScene(1)
    settings = Gather(bands, wanted, judge=True, prefix=prefix)
    found = gather_statistics([item], [split], [numbers], settings, ENGINE, quiet=True).group()
    assert found is not None
    return found


@pytest.fixture(params=[1, 700, 10**9], ids=["a row", "some rows", "all"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Numbers of a slab, and four and two times as many of a task and of a read."""
    monkeypatch.setattr(gathering, "SLAB_VALUES", request.param)
    monkeypatch.setattr(gathering, "READ_VALUES", 2 * request.param)
    monkeypatch.setattr(gathering, "TASK_VALUES", 4 * request.param)
    return request.param


@pytest.mark.parametrize("direction", ["x", "y", "diagonal"])
def test_differences_are_of_all_pairs_of_training_neighbours_whatever_the_blocks(
    made: MadeScene, block: int, direction: str
) -> None:
    """No pair crosses the edge of a split or of a region without data, and none is lost between blocks."""
    table = np.random.default_rng(0).integers(0, 3, (6, 7)).astype(np.uint8)
    split = BlockSplit(made.labels.shape, (8, 8), table, 0)
    group = _gathered(made, Wanted(covariance=True, directions=(direction,)), split)
    kept = made.raw_yxb[:, :, ~made.bad].astype(float)
    train = made.valid & (split.codes(slice(0, 40), slice(0, 52)) == 1)
    down, right = {"x": (0, 1), "y": (1, 0), "diagonal": (1, 1)}[direction]
    rows, cols = train.shape
    first = (slice(0, rows - down), slice(0, cols - right))
    second = (slice(down, rows), slice(right, cols))
    pairs = train[first] & train[second]
    apart = (kept[first] - kept[second])[pairs]
    found = group.differences[direction]
    assert found.count == len(apart) > 100
    np.testing.assert_allclose(found.mean, apart.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.covariance, np.cov(apart.T, bias=True), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(group.moments.covariance, np.cov(kept[train].T, bias=True), rtol=1e-11)


def test_the_sample_and_the_histogram_do_not_depend_on_the_blocks(made: MadeScene, block: int) -> None:
    below = threshold(1) // 3
    group = _gathered(made, Wanted(sample_below=below, histogram=True))
    kept = made.raw_yxb[:, :, ~made.bad]
    keys = gathering.pixel_keys(0, slice(0, 40), 52)
    chosen = made.valid & (keys < np.uint64(below))
    order = np.argsort(keys[chosen])
    assert group.sample is not None
    np.testing.assert_array_equal(group.sample.drawn()[0].T, kept[chosen][order])
    assert 0.25 < chosen.sum() / made.valid.sum() < 0.42
    shares = np.array([0.0, 0.02, 0.5, 0.977, 1.0])
    assert group.histogram is not None
    np.testing.assert_allclose(
        group.histogram.quantiles(shares),
        np.quantile(kept[made.valid].astype(float), shares, axis=0),
        rtol=1e-12,
    )


def _unit(table: BandTable) -> tuple[UnitNorm, ...]:
    return (UnitNorm(table.count),)


def test_stages_in_front_are_applied_before_anything_is_summed(made: MadeScene, block: int) -> None:
    prefix = Prefix(_unit, BandTable(11))
    wanted = Wanted(covariance=True, directions=("x", "y"))
    group = _gathered(made, wanted, prefix=prefix)
    kept = made.raw_yxb[:, :, ~made.bad].astype(float)
    unit = kept / np.linalg.norm(kept, axis=2, keepdims=True)
    np.testing.assert_allclose(group.moments.mean, unit[made.valid].mean(0), rtol=1e-6)
    np.testing.assert_allclose(group.moments.covariance, np.cov(unit[made.valid].T, bias=True), rtol=1e-4)
    pairs = made.valid[1:] & made.valid[:-1]
    apart = (unit[:-1] - unit[1:])[pairs]
    assert group.differences["y"].count == len(apart)
    np.testing.assert_allclose(group.differences["y"].covariance, np.cov(apart.T, bias=True), rtol=1e-4)
    assert group.raw is not None
    np.testing.assert_allclose(group.raw.mean, kept[made.valid].mean(0), rtol=1e-12)


def test_a_large_scene_is_a_few_thousand_tasks() -> None:
    """A 100 GB scene of int16: 224 bands, 15,000 x 15,000 pixels."""
    assert 2000 < len(list(task_rows((15_000, 15_000), 224))) < 8000


def test_two_scenes_make_one_set_of_statistics(tmp_path: Path) -> None:
    first, second = make_envi(tmp_path, seed=1, stem="a"), make_envi(tmp_path, (30, 44), seed=2, stem="b")
    items = [_item(made) for made in (first, second)]
    bands = np.flatnonzero(~first.bad)
    numbers = [SceneNumbers(nodata_values(i.scene), np.ones(12), np.zeros(12)).select(bands) for i in items]
    settings = Gather(bands, Wanted(covariance=True), judge=True, prefix=None)
    splits = [WholeScene(1), WholeScene(1)]
    found = gather_statistics(items, splits, numbers, settings, ENGINE, quiet=True).moments()
    pixels = np.concatenate([m.raw_yxb[m.valid][:, bands] for m in (first, second)]).astype(float)
    assert found.count == len(pixels)
    np.testing.assert_allclose(found.covariance, np.cov(pixels.T, bias=True), rtol=1e-11)


def test_a_band_that_rises_evenly_has_no_noise() -> None:
    """Rounding of its equal differences must not pass for noise, by which everything would be divided."""
    ramp = 0.1 * np.arange(900.0).reshape(1, 30, 30)
    noisy = np.random.default_rng(0).normal(0, 1, (1, 30, 30))
    found = difference_moments(np.concatenate([ramp, noisy]), np.ones((30, 30), bool), "x", None)
    assert found.covariance[0].tolist() == [0, 0]
    assert found.covariance[1, 1] == pytest.approx(np.diff(noisy[0], axis=1).var())
