"""The stage `resample`: tiles, labels by majority, statistics and new scenes on larger pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine

from bandstream.pipeline import build, open_scene, transform
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.resampling import ResampleConfig
from bandstream.pipeline.scene import scene_transform
from bandstream.pipeline.stages.prepare import Preparation, prepare_scene

ROWS, COLS, BANDS = 24, 32, 4
PLACE = {"crs": "EPSG:32633", "transform": Affine(10, 0, 5000, 0, -10, 9000)}
NONE = -9999


def write(path: Path, array_yxb: np.ndarray, **profile: Any) -> Path:
    rows, cols, bands = array_yxb.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=rows, width=cols, count=bands, dtype=array_yxb.dtype, **profile
    ) as out:
        out.write(array_yxb.transpose(2, 0, 1))
    return path


def means(raw: np.ndarray, factor: int) -> np.ndarray:
    values = np.where(raw == NONE, np.nan, raw.astype("f8"))
    cells = values.reshape(ROWS // factor, factor, COLS // factor, factor, BANDS).swapaxes(1, 2)
    cells = cells.reshape(ROWS // factor, COLS // factor, factor**2, BANDS)
    known = np.isfinite(cells).sum(axis=2)
    mean = np.nansum(cells, axis=2) / np.maximum(known, 1)
    mean[known < factor**2 / 2] = np.nan
    return mean


def commonest(codes: np.ndarray, factor: int) -> np.ndarray:
    cells = codes.reshape(ROWS // factor, factor, COLS // factor, factor).swapaxes(1, 2)
    return np.apply_along_axis(
        lambda cell: np.bincount(cell).argmax(), 2, cells.reshape(*cells.shape[:2], factor**2)
    )


@pytest.fixture
def made(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    raw = rng.integers(100, 3000, (ROWS, COLS, BANDS)).astype("i2")
    raw[0, 0:2] = raw[4:6, 4:6] = NONE
    return raw, rng.integers(0, 4, (ROWS, COLS)).astype("u1")


def flow(tmp_path: Path, scene: Path, labels: Path, *stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 1, "name": "flow", "scenes": [{"path": str(scene), "labels": str(labels)}],
        "stages": list(stages), "tiles": {"size": 32}, "store": {"root": str(tmp_path / "stores")},
    }  # fmt: skip


@pytest.mark.parametrize("placed", [True, False])
def test_tiles_hold_means_and_the_majority_of_labels_on_the_old_grid(tmp_path, made, placed) -> None:
    raw, codes = made
    profile = PLACE if placed else {"transform": PLACE["transform"]}
    scene = write(tmp_path / "scene.tif", raw, nodata=NONE, **profile)
    labels = write(tmp_path / "labels.tif", codes[..., None], **profile)
    store = build(flow(tmp_path, scene, labels, {"resample": {"factor": 2}}))
    expected = means(raw, 2)
    rows, cols = expected.shape[:2]
    valid = np.isfinite(expected).all(axis=2)
    tile = np.asarray(store.array("data")[0])[:, :rows, :cols].transpose(1, 2, 0)
    np.testing.assert_allclose(tile[valid], expected[valid], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(store.array("valid")[0])[:rows, :cols], valid)
    found = np.asarray(store.array("labels")[0])[:rows, :cols]
    np.testing.assert_array_equal(found, commonest(codes, 2))


def test_statistics_and_new_scenes_are_of_the_new_pixels(tmp_path, made) -> None:
    raw, codes = made
    scene = write(tmp_path / "scene.tif", raw, nodata=NONE, **PLACE)
    labels = write(tmp_path / "labels.tif", codes[..., None], **PLACE)
    stages: list[dict[str, Any]] = [
        {"normalize": {"method": "zscore"}},
        {"resample": {"method": "average", "pixel": 40}},
    ]
    store = build(flow(tmp_path, scene, labels, *reversed(stages)))
    expected = means(raw, 4)
    valid = np.isfinite(expected).all(axis=2)
    spectra = expected[valid]
    scaled = (expected - spectra.mean(axis=0)) / spectra.std(axis=0)
    result = transform(open_scene(scene), store)
    np.testing.assert_allclose(result["data"].values[valid], scaled[valid], atol=2e-5)
    np.testing.assert_array_equal(result["valid"].values, valid)
    assert scene_transform(result) == Affine(40, 0, 5000, 0, -40, 9000), "maps lie on the new grid"
    # a scene that was delivered with such pixels is one of the same kind
    coarse = write(
        tmp_path / "coarse.tif", np.where(valid[..., None], expected, np.nan).astype("f4"), nodata=np.nan,
        crs="EPSG:32633", transform=Affine(40, 0, 5000, 0, -40, 9000),
    )  # fmt: skip
    np.testing.assert_allclose(
        transform(open_scene(coarse), store)["data"].values, result["data"].values, atol=2e-5
    )
    with pytest.raises(ConfigError, match=r"resample\.pixel"):
        transform(open_scene(write(tmp_path / "c.tif", raw, transform=Affine(80, 0, 0, 0, -80, 0))), store)


def test_masks_rule_out_old_pixels_before_they_are_averaged(tmp_path, made) -> None:
    from bandstream.pipeline.masks import MaskConfig

    raw, _ = made
    scene = open_scene(write(tmp_path / "scene.tif", raw, nodata=NONE, **PLACE))
    mask = MaskConfig.model_validate({"brightness": [0, 1500]})
    done = prepare_scene(scene, Preparation(mask=mask, resample=ResampleConfig(factor=2)))
    dark = (raw != NONE).all(axis=2) & (raw.mean(axis=2) <= 1500)
    expected = means(np.where(dark[..., None], raw, NONE), 2)
    assert 0 < np.isnan(expected).sum() < expected.size
    np.testing.assert_allclose(done["data"].values, expected, rtol=1e-6, equal_nan=True)


def test_a_store_keeps_the_stage_and_takes_its_own_scenes_as_they_are(tmp_path, made) -> None:
    settings = Preparation(resample=ResampleConfig(factor=2, method="cubic"))
    again = Preparation.restored(settings.stored())
    assert again.resample == settings.resample
    older = {k: v for k, v in settings.stored().items() if k != "resample"}
    assert Preparation.restored(older).resample is None
    raw, _ = made
    scene = open_scene(write(tmp_path / "scene.tif", raw, nodata=NONE, **PLACE))
    done = prepare_scene(scene, settings)
    assert done.sizes["y"] == ROWS // 2
    assert prepare_scene(done, again) is done, "a scene is not made coarser twice by a store"
    assert prepare_scene(done, settings).sizes["y"] == ROWS // 4
