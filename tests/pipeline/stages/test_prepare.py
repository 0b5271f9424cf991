"""Scenes on their way into a store: calibrated, masked and resampled as the workflow says, and so again for prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandstream.pipeline import PatchStore, build, open_scene, transform, write_scene
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.calibration import CalibrateConfig
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.masks.config import MaskConfig
from bandstream.pipeline.scene import replaced
from bandstream.pipeline.stages.prepare import Preparation, prepare_scene

Flow = dict[str, Any]
ROWS, COLS, BANDS = 24, 30, 5


def _write(path: Path, raw_yxb: np.ndarray, **keys: Any) -> Path:
    rows, cols, bands = raw_yxb.shape
    header = {
        "samples": cols, "lines": rows, "bands": bands, "data type": 12, "interleave": "bil", "byte order": 0,
        "wavelength units": "Nanometers", "wavelength": "{" + ", ".join(map(str, np.linspace(500, 900, bands))) + "}",
        "fwhm": "{" + ", ".join(["12"] * bands) + "}",
    } | keys  # fmt: skip
    raw_yxb.transpose(0, 2, 1).astype("<u2").tofile(path.with_suffix(".img"))
    path.write_text("ENVI\n" + "".join(f"{key} = {value}\n" for key, value in header.items()))
    return path


@pytest.fixture
def raw(tmp_path: Path) -> np.ndarray:
    return np.random.default_rng(3).integers(300, 3000, (ROWS, COLS, BANDS))


def _flow(tmp_path: Path, scene: dict[str, Any], *stages: dict[str, Any], name: str = "flow") -> Flow:
    return {
        "version": 1,
        "name": name,
        "scenes": [scene],
        "stages": list(stages),
        "tiles": {"size": 30},
        "store": {"root": str(tmp_path / "stores")},
    }


def _tile(store: PatchStore, name: str = "data") -> np.ndarray:
    """Return the only tile without its padding."""
    return np.asarray(store.array(name)[0])[..., :ROWS, :COLS]


def test_reference_frames_of_a_scene_calibrate_it_and_decide_its_store(
    tmp_path: Path, raw: np.ndarray
) -> None:
    rng = np.random.default_rng(0)
    dark = rng.integers(90, 110, (7, COLS, BANDS))
    white = rng.integers(3800, 4000, (9, COLS, BANDS))
    scene = {
        "path": str(_write(tmp_path / "raw.hdr", raw)),
        "dark": str(_write(tmp_path / "d.hdr", dark)),
        "white": str(_write(tmp_path / "w.hdr", white)),
    }
    flow = _flow(tmp_path, scene, {"calibrate": {"method": "dark_white", "panel": 0.99}})
    store = build(flow)
    expected = 0.99 * (raw - dark.mean(0)) / (white.mean(0) - dark.mean(0))
    np.testing.assert_allclose(_tile(store), expected.transpose(2, 0, 1), rtol=1e-5)
    _write(tmp_path / "w.hdr", white + 1)
    other = run_build(flow, quiet=True)
    assert not other.reused
    assert other.fingerprint != store.fingerprint
    assert str(tmp_path) not in json.dumps(store.attrs)


def test_polygons_mask_by_their_content_wherever_the_file_lies(tmp_path: Path, raw: np.ndarray) -> None:
    place = "{UTM, 1, 1, 366000, 5810000, 30, 30, 33, North, WGS-84, units=Meters}"
    scene = {"path": str(_write(tmp_path / "raw.hdr", raw, **{"map info": place}))}
    inside = [[366000, 5810000], [366300, 5810000], [366300, 5809850], [366000, 5809850], [366000, 5810000]]
    shape = {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": "EPSG:32633"}},
        "features": [
            {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [inside]}}
        ],
    }
    fingerprints: list[str] = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "clouds.geojson").write_text(json.dumps(shape))
        mask = {"polygons": str(tmp_path / folder / "clouds.geojson")}
        store = build(_flow(tmp_path, scene, {"mask": mask}))
        fingerprints.append(store.fingerprint)
    assert fingerprints[0] == fingerprints[1]
    expected = np.ones((ROWS, COLS), bool)
    expected[:5, :10] = False
    np.testing.assert_array_equal(_tile(store, "valid"), expected)
    # they belong to that scene: another one is mapped whole
    assert transform(open_scene(scene["path"]), store)["valid"].values.all()
    inside[1][0] = inside[2][0] = 366330
    (tmp_path / "b" / "clouds.geojson").write_text(json.dumps(shape))
    changed = _flow(tmp_path, scene, {"mask": {"polygons": str(tmp_path / "b" / "clouds.geojson")}})
    assert run_build(changed, quiet=True).fingerprint != fingerprints[0]


def test_thresholds_judge_calibrated_values_in_store_and_prediction_alike(
    tmp_path: Path, raw: np.ndarray
) -> None:
    path = _write(tmp_path / "raw.hdr", raw, **{"reflectance scale factor": 10000})
    flow = _flow(
        tmp_path, {"path": str(path)}, {"calibrate": {}}, {"mask": {"brightness": [0.15, None], "ndvi": [-0.2, 0.5]}}
    )  # fmt: skip
    store = build(flow)
    value = raw * 1e-4
    red, infrared = value[..., 2], value[..., 3]  # 700 and 800 nm
    ndvi = (infrared - red) / (infrared + red)
    expected = (value.mean(axis=2) >= 0.15) & (ndvi >= -0.2) & (ndvi <= 0.5)
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(_tile(store, "valid"), expected)
    np.testing.assert_array_equal(transform(open_scene(path), store)["valid"].values, expected)


def test_a_scene_in_the_bands_of_another_sensor_is_stored_in_them(tmp_path: Path, raw: np.ndarray) -> None:
    path = _write(tmp_path / "raw.hdr", raw, **{"reflectance scale factor": 10000})
    bands = {"wavelength_nm": [600, 700, 800], "fwhm_nm": 12}
    store = build(_flow(tmp_path, {"path": str(path)}, {"calibrate": {}}, {"resample_bands": bands}))
    assert store.bands == 3
    # Gaussians of equal width on equal centres leave the bands as they are, but for the neighbours' tails
    np.testing.assert_allclose(_tile(store), raw[..., 1:4].transpose(2, 0, 1) * 1e-4, atol=1e-4)
    np.testing.assert_allclose(
        transform(open_scene(path), store)["data"].values.transpose(2, 0, 1), _tile(store), atol=1e-6
    )


def test_a_calibration_that_belongs_to_one_scene_is_refused_for_another(
    tmp_path: Path, raw: np.ndarray
) -> None:
    path = _write(tmp_path / "raw.hdr", raw)
    store = build(
        _flow(tmp_path, {"path": str(path)}, {"calibrate": {"method": "flat_field", "window": [0, 4, 0, 6]}})
    )
    expected = raw / raw[:4, :6].mean(axis=(0, 1))
    np.testing.assert_allclose(_tile(store), expected.transpose(2, 0, 1), rtol=1e-5)
    scene = open_scene(path)
    with pytest.raises(ConfigError, match=r"window.*scene calibrate"):
        transform(scene, store)
    done = prepare_scene(
        scene, Preparation(CalibrateConfig.model_validate({"method": "flat_field", "window": [0, 4, 0, 6]}))
    )
    np.testing.assert_allclose(
        transform(done, store)["data"].values.transpose(2, 0, 1), _tile(store), rtol=1e-5
    )


def test_the_mean_of_a_scene_is_its_own_when_the_store_is_used_on_another(
    tmp_path: Path, raw: np.ndarray
) -> None:
    path = _write(tmp_path / "raw.hdr", raw)
    store = build(_flow(tmp_path, {"path": str(path)}, {"calibrate": {"method": "iarr"}}))
    brighter = _write(tmp_path / "bright.hdr", raw * 2)
    found = transform(open_scene(brighter), store)["data"].values
    np.testing.assert_allclose(found, raw / raw.mean(axis=(0, 1)), rtol=1e-5)


def test_what_a_store_keeps_of_a_preparation_comes_back_without_paths() -> None:
    settings = Preparation(
        CalibrateConfig.model_validate(
            {"to": "surface_reflectance", "method": "dark_white", "panel": "p.csv"}
        ),
        None,
        MaskConfig.model_validate({"polygons": "a.geojson", "quality": ["cloud"]}),
    )
    stored = settings.stored()
    assert "csv" not in json.dumps(stored)
    assert "geojson" not in json.dumps(stored)
    again = Preparation.restored(stored)
    assert again.left_out == ("panel",)
    assert again.stored() == stored


def test_the_stores_scale_is_not_applied_to_a_scene_that_was_calibrated(
    tmp_path: Path, raw: np.ndarray
) -> None:
    path = _write(tmp_path / "raw.hdr", raw)
    store = build(_flow(tmp_path, {"path": str(path)}, {"calibrate": {"scale": 1e-4}}))
    done = prepare_scene(open_scene(path), Preparation(CalibrateConfig.model_validate({"scale": 1e-4})))
    done = done.assign(data=(done["data"].dims, (done["data"].data * np.float32(1e-4)).astype("f4")))
    done = replaced(done, scale=1.0)
    found = transform(done, store)["data"].values
    np.testing.assert_allclose(found.transpose(2, 0, 1), _tile(store), rtol=1e-5)
    np.testing.assert_allclose(found, raw * 1e-4, rtol=1e-5)


def test_the_data_of_a_reference_frame_count_where_they_have_no_ending(
    tmp_path: Path, raw: np.ndarray
) -> None:
    frames = {"dark": raw[:3] // 10, "white": raw[:3] * 3 + 9000}
    for name, values in frames.items():
        _write(tmp_path / f"{name}.hdr", values)
        (tmp_path / f"{name}.img").rename(tmp_path / name)
    scene = {"path": str(_write(tmp_path / "raw.hdr", raw))} | {n: str(tmp_path / f"{n}.hdr") for n in frames}
    flow = _flow(tmp_path, scene, {"calibrate": {"method": "dark_white", "panel": 0.99}})
    before = run_build(flow, quiet=True).fingerprint
    (frames["white"] + 1).transpose(0, 2, 1).astype("<u2").tofile(tmp_path / "white")
    assert run_build(flow, quiet=True).fingerprint != before


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "scale"},
        {"to": "toa_reflectance", "method": "toa"},
        {"to": "toa_reflectance"},
        {"method": "iarr"},
        {"method": "flat_field", "window": [0, 4, 0, 6]},
        {"method": "dark_white"},
        {"method": "dark_object"},
    ],
)
def test_the_stage_leaves_a_scene_alone_that_is_calibrated(
    tmp_path: Path, raw: np.ndarray, settings: dict[str, Any]
) -> None:
    config = CalibrateConfig.model_validate(settings)
    scene = replaced(open_scene(_write(tmp_path / "raw.hdr", raw)), quantity=config.to, units="1")
    scene["data"] = scene["data"].astype("f4")
    for of_store in (False, True):
        found = prepare_scene(scene, Preparation(config, of_store=of_store))
        assert found["data"].data is scene["data"].data
        assert (found.attrs["quantity"], "scale" in found.attrs) == (config.to, False)


def test_scenes_that_are_calibrated_and_others_make_one_store(tmp_path: Path, raw: np.ndarray) -> None:
    """A list of raw files and of files that were calibrated before is one workflow, and predicts on either."""
    stored = _write(tmp_path / "stored.hdr", raw, **{"reflectance scale factor": 10000})
    done = tmp_path / "done.tif"
    write_scene(open_scene(stored), done)
    flow = _flow(tmp_path, {"path": str(stored)}, {"calibrate": {}})
    flow["scenes"].append({"path": str(done)})
    store = build(flow)
    tiles = np.asarray(store.array("data")[:])[..., :ROWS, :COLS]
    np.testing.assert_allclose(tiles[0], raw.transpose(2, 0, 1) * 1e-4, rtol=1e-5)
    np.testing.assert_allclose(tiles[1], tiles[0], rtol=1e-5)
    for path in (stored, done):
        np.testing.assert_allclose(
            transform(open_scene(path), store)["data"].values.transpose(2, 0, 1), tiles[0], rtol=1e-5
        )


def test_a_scale_of_the_workflow_beside_calibrated_numbers_is_refused(
    tmp_path: Path, raw: np.ndarray
) -> None:
    scene = replaced(
        open_scene(_write(tmp_path / "raw.hdr", raw)), quantity="surface_reflectance", scale=2e-4
    )
    with pytest.raises(ConfigError, match="already"):
        prepare_scene(scene, Preparation(CalibrateConfig.model_validate({"scale": 1e-4})))
