"""The experiment file: defaults, refusals, paths, and the learning rate as a function of the step."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import ConfigError
from bandstream.train.experiment import Experiment, SchedulerSection, load_experiment

SHORT: dict[str, Any] = {"version": 1, "name": "first", "store": "a.zarr"}


def make(**changes: Any) -> Experiment:
    return parse(Experiment, SHORT | changes, "the experiment")


def test_the_shortest_file_classifies_patches_with_the_3d_network() -> None:
    found = make()
    assert (found.task.kind, found.model.name, found.patch, found.batch, found.micro) == (
        "classify",
        "cnn3d",
        9,
        64,
        64,
    )
    assert found.out == "runs/first"
    assert found.metric == "kappa"
    assert found.checkpoint.every_epochs == 1


def test_the_task_segment_changes_model_batch_and_patch_together() -> None:
    found = make(task={"kind": "segment"})
    assert (found.model.name, found.patch, found.batch) == ("segmenter", None, 8)


def test_model_options_are_kept_apart_from_the_name() -> None:
    found = make(model={"hidden": 32})
    assert found.model.name == "cnn3d"
    assert found.model.options == {"hidden": 32}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workflow": "w.yaml"}, "exactly one of workflow"),
        ({"store": None}, "exactly one of workflow"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
        ({"optimizer": {"learning_rate": 1}}, "unknown key 'learning_rate'"),
        ({"balance": "equal"}, "balance.*'classes'"),
        ({"balance": {"water": -1}}, "balance.*greater than or equal to 0"),
        ({"last": "keep"}, "'pad' or 'drop'"),
        ({"patch": 8}, "must be odd"),
        ({"task": {"kind": "segment"}, "patch": 9}, "patch belongs to the task classify"),
        ({"batch": 10, "micro_batch": 4}, "must divide batch"),
        ({"batch": 10, "micro_batch": 0}, "must divide batch"),
        ({"model": {"name": "segmenter"}}, "does not classify; models that do: cnn3d"),
        ({"scheduler": {"warmup_steps": 1, "warmup_epochs": 1}}, "not both"),
        ({"checkpoint": {"every_steps": 1, "every_epochs": 1}}, "not both"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr"),
        ({"optimizer": {"lr": math.nan}}, "optimizer.lr"),
        ({"task": {"kind": "regress"}}, "task.kind"),
        ({"name": "../evil"}, "name"),
        ({"version": 2}, "version"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        make(**changes)


def test_the_resolved_form_is_an_experiment_again() -> None:
    found = make(model={"channels": 4}, checkpoint={"every_steps": 7}, early_stopping=None, micro_batch=16)
    assert parse(Experiment, found.resolved(), "again") == found


def test_identity_leaves_out_paths_only() -> None:
    found = make()
    assert set(found.resolved()) - set(found.identity()) == {"workflow", "store", "out"}
    assert make(store="elsewhere.zarr", out="other").identity() == found.identity()
    assert make(seed=1).identity() != found.identity()


def test_workflow_is_found_beside_the_file_and_store_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        (folder / "w.yaml").write_text("{}")
        (folder / "a.zarr").mkdir()
    monkeypatch.chdir(here)
    file = there / "e.yaml"
    file.write_text("version: 1\nname: first\nworkflow: w.yaml\n")
    assert load_experiment(file).workflow == str(there / "w.yaml")
    found = load_experiment(file, ["workflow=null", "store=a.zarr", "optimizer.lr=1e-2"])
    assert found.store == str(here / "a.zarr")
    assert found.optimizer.lr == 0.01
    assert found.out == "runs/first"


def test_a_store_in_a_bucket_is_not_looked_for_in_folders(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("version: 1\nname: first\nstore: s3://bucket/stores/a.zarr\n")
    assert load_experiment(file).store == "s3://bucket/stores/a.zarr"


def test_a_store_that_does_not_exist_is_named(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("version: 1\nname: first\nstore: nowhere.zarr\n")
    with pytest.raises(ConfigError, match=r"store: nowhere\.zarr does not exist"):
        load_experiment(file)


@pytest.mark.parametrize(("warmup", "total"), [(0, 40), (5, 40), (1, 2), (3, 3)])
def test_the_learning_rate_is_that_of_torchs_warmup_and_cosine(warmup: int, total: int) -> None:
    section = SchedulerSection(warmup_steps=warmup)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / max(warmup, 1))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, total - warmup))
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup]) if warmup else fall
    for step in range(total):
        expected = optimizer.param_groups[0]["lr"] if warmup or step else 0.5
        assert 0.5 * section.lr_factor(step, total, 10) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls its parts in a deprecated way
            schedule.step()


def test_warmup_in_epochs_is_warmup_in_steps() -> None:
    by_epochs, by_steps = SchedulerSection(warmup_epochs=1.5), SchedulerSection(warmup_steps=15)
    assert [by_epochs.lr_factor(s, 50, 10) for s in range(50)] == [
        by_steps.lr_factor(s, 50, 10) for s in range(50)
    ]
