"""The commands train, predict and demo: what they print, and how errors end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
import typer
import yaml
from typer.testing import CliRunner

from bandstream.pipeline import PatchStore, build, simulate
from bandstream.pipeline.errors import ConfigError
from bandstream.train.cli import register

app = typer.Typer()
register(app)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene, its store, and an experiment file."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("cli")
    scene = simulate(root / "s.hdr", rows=48, cols=64, bands=20, classes=3, seed=1)
    split = {"by": "blocks", "block": 16, "fractions": {"train": 0.6, "validation": 0.2, "test": 0.2}}
    store = build(
        {
            "version": 1,
            "name": "small",
            "scenes": [{"path": str(scene.header), "labels": str(scene.labels)}],
            "stages": [{"normalize": {"method": "zscore"}}],
            "tiles": {"size": 16, "halo": 1},
            "split": split,
            "store": {"root": str(root / "stores")},
        }
    )
    settings = {
        "version": 1,
        "name": "small",
        "store": str(store.path),
        "patch": 3,
        "epochs": 1,
        "threads": 1,
    }
    (root / "e.yaml").write_text(yaml.safe_dump(settings | {"precision": "fp32", "out": str(root / "run")}))
    return root


def said(arguments: list[Any]) -> str:
    result = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    found = json.loads(said(["train", folder / "e.yaml", "--json"]))
    assert found.keys() == {"run", "metrics"}
    return Path(found["run"])


def test_train_prints_run_and_metrics_as_json(folder: Path, run: Path) -> None:
    found = json.loads(said(["train", folder / "e.yaml", "--json"]))
    assert found == {
        "run": str(folder / "run"),
        "metrics": json.loads((run / "summary.json").read_text())["metrics"],
    }
    assert {"oa", "aa", "kappa", "macro_f1"} <= found["metrics"].keys()


def test_train_prints_a_table_and_says_that_a_finished_run_was_left_alone(folder: Path, run: Path) -> None:
    text = said(["train", folder / "e.yaml"])
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    assert f"{metrics['oa']:.4f}" in text
    assert "was finished before; nothing done" in text


def test_train_takes_settings_and_another_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / 'with "quotes" and: colon'
    said(
        ["train", folder / "e.yaml", "--set", "optimizer.lr=0.5", "--set", "seed=7", "--out", out, "--quiet"]
    )
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["optimizer"]["lr"], config["seed"], config["out"]) == (0.5, 7, str(out))


def test_predict_scores_per_split_and_draws(folder: Path, run: Path, tmp_path: Path) -> None:
    target, png = tmp_path / "map.tif", tmp_path / "map.png"
    found = json.loads(said(["predict", run, folder / "s.hdr", "-o", target, "--png", png, "--json"]))
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    assert found["scores"]["test"]["oa"] == metrics["oa"]
    assert found["shape_yx"] == [48, 64]
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert found["png"] == str(png)
    with rasterio.open(target) as raster:
        assert raster.shape == (48, 64)
    text = said(["predict", run, folder / "s.hdr", "-o", target])
    assert f"test       OA {metrics['oa']:.4f}" in text


def test_predict_scores_a_scene_of_another_name_by_the_labels_given(
    folder: Path, run: Path, tmp_path: Path
) -> None:
    other = simulate(tmp_path / "other.hdr", rows=40, cols=40, bands=20, classes=3, seed=9)
    target = tmp_path / "map.tif"
    found = json.loads(
        said(
            [
                "predict",
                run,
                other.header,
                "-o",
                target,
                "--labels",
                other.labels,
                "--json",
                "--probabilities",
            ]
        )
    )
    with rasterio.open(target) as mapped, rasterio.open(other.labels) as labels:
        codes, truth = mapped.read(1), labels.read(1)
    both = (codes > 0) & (truth > 0)
    assert list(found["scores"]) == ["all"]
    assert found["scores"]["all"]["oa"] == pytest.approx(np.mean(codes[both] == truth[both]))
    assert Path(found["probabilities"]).is_file()
    assert found["png"] is None
    without = json.loads(said(["predict", run, other.header, "-o", target, "--json"]))
    assert without["scores"] == {}


@pytest.mark.process
def test_errors_end_as_one_paragraph_with_their_own_exit_code(folder: Path, run: Path) -> None:
    command = [sys.executable, "-c", "from bandstream.pipeline.cli import main; main()"]
    done = subprocess.run(
        [*command, "train", folder / "e.yaml", "--set", "epochs=2", "--out", run],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 61
    assert "epochs (1 there, 2 here)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_the_commands_are_listed_without_importing_torch() -> None:
    code = (
        "import sys, typer; from bandstream.train.cli import register; app = typer.Typer(); register(app); "
        "assert len(app.registered_commands) == 4; "
        "assert not {'torch', 'xarray', 'dask', 'rasterio', 'zarr'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_demo_makes_a_store_a_run_a_map_and_a_picture(tmp_path: Path) -> None:
    found = json.loads(said(["demo", "--out", tmp_path / "demo", "--rows", 128, "--cols", 128, "--json"]))
    store = PatchStore.open(found["store"])
    assert Path(found["store"]).parent == tmp_path / "demo" / "stores"
    with rasterio.open(found["map"]) as raster:
        codes = raster.read(1)
    assert codes.shape == (128, 128)
    assert set(np.unique(codes)) <= set(range(store.classes + 1))
    assert Path(found["png"]).read_bytes()[:4] == b"\x89PNG"
    assert found["metrics"]["split"] == "test"
    assert found["scores"]["test"]["oa"] == pytest.approx(found["metrics"]["oa"], abs=0.01)
    assert (Path(found["run"]) / "summary.json").is_file()


def test_a_map_is_never_written_under_the_name_of_a_picture(folder: Path, run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "map.png"
    picture.write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"must end in \.tif"):
        said(["predict", run, folder / "s.hdr", "-o", picture])
    assert picture.read_bytes() == b"mine"
