"""Every YAML file that ships is a test case."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from bandstream.pipeline import PatchStore, simulate
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.catalog import list_catalog, load_catalog
from bandstream.pipeline.config import load_yaml
from bandstream.pipeline.stages.bands import named_windows
from bandstream.pipeline.workflow import load_workflow
from bandstream.train.experiment import load_experiment

WORKFLOWS = Path(str(files("bandstream.workflows")))
CATALOGS = Path(str(files("bandstream.catalogs")))
FILES = sorted(WORKFLOWS.rglob("*.yaml"))


def _is_workflow(path: Path) -> bool:
    return "scenes" in load_yaml(path)


def test_there_are_files() -> None:
    names = {path.name for path in FILES}
    assert names >= {"demo.yaml", "demo_train.yaml", "enmap_potsdam.yaml", "enmap_potsdam_train.yaml"}


@pytest.mark.parametrize("path", [p for p in FILES if _is_workflow(p)], ids=lambda p: p.stem)
def test_a_workflow_resolves_to_itself(path: Path) -> None:
    workflow, _ = load_workflow(path)
    assert load_workflow(workflow.resolved())[0] == workflow
    assert workflow.scenes.catalog in {entry.name for entry in list_catalog()}


@pytest.mark.parametrize("path", [p for p in FILES if not _is_workflow(p)], ids=lambda p: p.stem)
def test_an_experiment_names_a_workflow_that_ships(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.workflow is not None
    assert Path(experiment.workflow).parent == path.parent.resolve()
    _, halo = load_workflow(experiment.workflow)[0], load_workflow(experiment.workflow)[0].tiles.halo
    assert (experiment.patch or 1) <= 2 * halo + 1


@pytest.mark.parametrize("path", sorted((CATALOGS / "scenes").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_catalog_entry_is_called_as_its_file(path: Path) -> None:
    assert load_catalog(path.stem).name == path.stem
    assert load_catalog(str(path)) == load_catalog(path.stem)


def test_the_water_windows_hold_the_water_bands_and_no_diagnostic_feature() -> None:
    windows = named_windows("water")
    assert all(low < high for low, high in windows)
    for water in (1380, 1400, 1900):
        assert any(low <= water <= high for low, high in windows)
    for feature in (680, 970, 1200, 1730, 2165, 2205, 2335):
        assert not any(low <= feature <= high for low, high in windows)


def test_the_demo_workflow_runs_on_a_simulated_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = simulate("demo/scene.hdr", rows=160, cols=160, bands=60, classes=4)
    result = run_build(WORKFLOWS / "demo.yaml", quiet=True)
    assert isinstance(result.store, PatchStore)
    assert result.store.bands == 16
    assert result.store.class_names == list(made.class_names)
    assert result.store.class_colors == list(made.class_colors)
    assert not any(result.store.attrs["shared_pixels"].values())
    assert all(sum(result.store.attrs["labelled"][name]) for name in ("train", "validation", "test"))


@pytest.mark.real
@pytest.mark.parametrize(
    "path", [p for p in FILES if _is_workflow(p) and "enmap" in p.name], ids=lambda p: p.stem
)
def test_the_potsdam_workflows_run_on_the_real_tiles(
    path: Path, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANDSTREAM_DATA", str(data_root))
    store = run_build(path, [f"store.root={tmp_path}"], quiet=True).store
    assert store is not None
    assert len(store) == 18
    summary = (data_root / "enmap_potsdam_tiles" / "Summary_train_val.csv").read_text().splitlines()[1:]
    for number, line in enumerate(summary):
        _, train, _, validation, _, test, *_ = line.split(",")
        found = store.index.labelled.sum(axis=0)[:, number].tolist()
        assert found == [0, int(train), int(validation), int(test)]
