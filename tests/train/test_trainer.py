"""A training run: what it writes, when it stops, and that it goes on bit for bit wherever it was cut off."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import (
    BandstreamWarning,
    CheckpointError,
    ConfigError,
    DivergedError,
    EmptySplitError,
    RunConflictError,
    TrainingError,
)
from bandstream.pipeline.store import PatchStore
from bandstream.train.checkpoints import Checkpoints
from bandstream.train.experiment import Experiment
from bandstream.train.loop import Loop
from bandstream.train.metrics import scores
from bandstream.train.parts import labelled_pixels, make_model, make_stream
from bandstream.train.runs import RunFolder
from bandstream.train.trainer import run_experiment

MakeStore = Callable[..., PatchStore]
#: band norm and dropout on purpose: buffers and random numbers must come back too
NETWORK = {"name": "cnn3d", "channels": 2, "batch_norm": True, "dropout": 0.3}


@pytest.fixture(autouse=True)
def _one_thread() -> Generator[None]:
    """Threads that wait for each other by spinning take minutes on a machine that others use too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def store(shared_store: MakeStore) -> PatchStore:
    return shared_store(shapes=[(24, 60)])


def experiment(store: PatchStore, out: Path, **changes: Any) -> Experiment:
    base: dict[str, Any] = {
        "version": 1,
        "name": "test",
        "store": str(store.path),
        "out": str(out),
        "patch": 3,
        "model": NETWORK,
        "batch": 32,
        "micro_batch": 16,
        "precision": "fp32",
        "epochs": 2,
        "threads": 1,
        "augment": {"flips": True},
    }
    return parse(Experiment, base | changes, "the test")


def segmentation(store: PatchStore, out: Path, **changes: Any) -> Experiment:
    base = {
        "task": {"kind": "segment"},
        "patch": None,
        "model": {"width": 4, "dilations": [1, 1]},
        "batch": 4,
    }
    return experiment(store, out, **(base | {"micro_batch": 2} | changes))


def steps(out: Path) -> list[dict[str, Any]]:
    return [line for line in RunFolder.read(out).metrics() if "split" not in line]


def evaluations(out: Path) -> list[dict[str, Any]]:
    return [line for line in RunFolder.read(out).metrics() if "split" in line]


def loop_of(settings: Experiment, store: PatchStore, model: torch.nn.Module | None = None) -> Loop:
    Path(settings.out).mkdir(parents=True, exist_ok=True)
    run = RunFolder(Path(settings.out), settings, store.fingerprint)
    torch.manual_seed(0)
    model = make_model(settings, store) if model is None else model
    train = make_stream(settings, store, "train")
    return Loop(
        settings, run, model, "fp32", torch.device("cpu"), train, None, None, store.classes, quiet=True
    )


# -- what is streamed


@pytest.mark.parametrize(
    "balance", [None, "classes", {"class 1": 0, "class 2": 1, "class 3": 2, "class 4": 1}]
)
@pytest.mark.parametrize("last", ["pad", "drop"])
def test_training_draws_classes_as_the_experiment_says_and_evaluation_every_pixel_once(
    store: PatchStore, tmp_path: Path, balance: Any, last: str
) -> None:
    settings = experiment(store, tmp_path, patch=1, batch=8, micro_batch=8, balance=balance, last=last)
    counts = labelled_pixels(store)
    drawn = [batch["label"][batch["mask"]] for batch in make_stream(settings, store, "train")]
    assert sum(map(len, drawn)) == counts["train"] - (counts["train"] % 8 if last == "drop" else 0)
    shares = np.bincount(torch.cat(drawn), minlength=5)[1:] / counts["train"]
    if balance == "classes":
        assert shares == pytest.approx([0.25] * 4, abs=8 / counts["train"])
    elif balance is not None:
        assert shares == pytest.approx([0, 0.25, 0.5, 0.25], abs=8 / counts["train"])
    places = [
        torch.stack([batch["row"], batch["col"]], 1)[batch["mask"]]
        for batch in make_stream(settings, store, "validation")
    ]
    assert len(torch.cat(places).unique(dim=0)) == sum(map(len, places)) == counts["validation"]


def test_a_training_without_a_single_whole_batch_is_refused(store: PatchStore, tmp_path: Path) -> None:
    settings = experiment(store, tmp_path, batch=1 << 12, micro_batch="auto", last="drop")
    with pytest.raises(EmptySplitError, match=r"fewer than one global batch of 4096.*last='pad'"):
        loop_of(settings, store).fit()


# -- one step


class Double(torch.nn.Module):
    """A network without batch statistics, in float64."""

    def __init__(self, bands: int, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(bands, 6, 1), torch.nn.Tanh(), torch.nn.Conv2d(6, classes, 3, padding=1)
        ).double()

    def forward(self, x_nbhw: torch.Tensor) -> torch.Tensor:
        return self.layers(x_nbhw.double() * 1e-3)


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_a_step_in_micro_batches_has_the_gradient_of_the_whole_batch(
    store: PatchStore, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64, a model without batch statistics, tiles with unequal numbers of labelled pixels: 1e-10."""
    found: list[list[torch.Tensor]] = []
    for micro in (8, 1, 2, 4):
        settings = segmentation(
            store, tmp_path / str(micro), batch=8, micro_batch=micro, loss={"class_weights": weights}
        )
        torch.manual_seed(1)
        loop = loop_of(settings, store, Double(store.bands, store.classes))
        if weights == "balanced":
            loop.class_weight = torch.tensor([0.5, 1.0, 2.0, 4.0])
        batch = next(iter(loop.train))
        counts = batch["mask"].sum((1, 2))
        assert counts.max() > counts.min()
        monkeypatch.setattr(
            loop,
            "_update",
            lambda loss, loop=loop: found.append(
                [torch.tensor(loss), *(p.grad.clone() for p in loop.model.parameters())]
            ),
        )
        loop.step(batch)
    for other in found[1:]:
        for a, b in zip(found[0][1:], other[1:], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-13)
        assert float(other[0]) == pytest.approx(
            float(found[0][0]), rel=1e-6
        )  # the loss shown is summed in float32


def test_every_weight_of_a_new_network_learns_from_the_first_step(store: PatchStore, tmp_path: Path) -> None:
    loop = loop_of(experiment(store, tmp_path), store)
    before = {name: p.detach().clone() for name, p in loop.model.named_parameters()}
    loop.step(next(iter(loop.train)))
    for name, p in loop.model.named_parameters():
        assert not torch.equal(p, before[name]), name


def test_clipping_bounds_the_norm_of_the_whole_gradient(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(experiment(store, tmp_path, clip_norm=1e-3), store)
    norms: list[float] = []

    def look(*_: Any) -> None:
        norms.append(
            float(torch.cat([p.grad.flatten() for p in loop.model.parameters() if p.grad is not None]).norm())
        )

    monkeypatch.setattr(loop.scaler, "step", look)
    loop.step(next(iter(loop.train)))
    assert norms == [pytest.approx(1e-3, rel=1e-3)]


def test_a_step_with_an_infinite_gradient_is_skipped_once_and_the_scale_falls(
    store: PatchStore, tmp_path: Path
) -> None:
    loop = loop_of(experiment(store, tmp_path, clip_norm=1.0), store)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = list(loop.train)
    first = next(loop.model.parameters())
    handle = first.register_hook(lambda grad: grad * float("inf"))
    before = first.detach().clone()
    loop.step(batches[0])
    handle.remove()
    assert torch.equal(first, before)
    assert loop.scaler.get_scale() == 512.0
    assert loop.at.skipped == 1
    loop.step(batches[1])
    assert not torch.equal(first, before)
    assert loop.scaler.get_scale() == 512.0
    assert loop.at.skipped == 0


def test_overflow_without_end_is_called_divergence(store: PatchStore, tmp_path: Path) -> None:
    loop = loop_of(experiment(store, tmp_path), store)
    loop.scaler = torch.amp.GradScaler("cpu")
    next(loop.model.parameters()).register_hook(lambda grad: grad * float("nan"))
    batch = next(iter(loop.train))
    for _ in range(24):
        loop.step(batch)
    with pytest.raises(DivergedError, match="overflowed fp16 in 25 steps"):
        loop.step(batch)


# -- one run


def test_a_run_leaves_all_its_files_and_one_line_per_step(store: PatchStore, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run_experiment(experiment(store, out), quiet=True)
    assert result.trained
    found, per_epoch = steps(out), result.summary["steps"] // 2
    assert [line["step"] for line in found] == list(range(2 * per_epoch))
    assert [line["epoch"] for line in found] == [0] * per_epoch + [1] * per_epoch
    assert all(set(line) == {"step", "epoch", "loss", "lr"} for line in found)
    assert [line["split"] for line in evaluations(out)] == ["validation", "validation", "test"]
    names = {path.name for path in out.iterdir()} - {".lock"}
    assert names == {
        "config.yaml",
        "plan.json",
        "metrics.jsonl",
        "summary.json",
        "checkpoints",
        "tensorboard",
    }
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))
    plan = json.loads((out / "plan.json").read_text())
    assert plan["steps"] == 2 * per_epoch
    assert plan["threads"] == 1
    assert plan["accumulation"] == 2
    assert plan["precision"]["name"] == "fp32"
    assert plan["store"]["fingerprint"] == store.fingerprint


@pytest.mark.parametrize("kind", [experiment, segmentation])
def test_evaluation_counts_every_labelled_pixel_of_its_split_once(
    store: PatchStore, tmp_path: Path, kind: Callable[..., Experiment]
) -> None:
    """Though the last batch is filled up with repeats."""
    summary = run_experiment(kind(store, tmp_path / "run", epochs=1), quiet=True).summary
    counts = labelled_pixels(store)
    assert summary["validation"]["pixels"] == counts["validation"]
    assert summary["metrics"]["pixels"] == counts["test"]
    assert np.sum(summary["confusion"]) == counts["test"]
    again = scores(np.array(summary["confusion"])).line()
    assert {name: summary["metrics"][name] for name in again} == again


def test_evaluating_draws_no_random_numbers_and_moves_no_buffer(store: PatchStore, tmp_path: Path) -> None:
    loop = loop_of(experiment(store, tmp_path), store)
    before, state = {k: v.clone() for k, v in loop.model.state_dict().items()}, torch.get_rng_state()
    loop.evaluate(make_stream(loop.experiment, store, "validation"), "validation")
    loop.run.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in loop.model.state_dict().items())
    assert loop.model.training


def test_settings_of_torch_are_put_back(store: PatchStore, tmp_path: Path) -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    run_experiment(experiment(store, tmp_path / "run", epochs=1), quiet=True)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_a_network_learns_what_the_bands_tell(store: PatchStore, tmp_path: Path) -> None:
    """Labels that are a function of one band are found again within a hundred steps on one batch."""
    settings = experiment(
        store,
        tmp_path,
        batch=64,
        micro_batch=32,
        optimizer={"lr": 0.03},
        model={"name": "cnn3d", "channels": 4},
        scheduler={"name": "constant"},
    )
    loop = loop_of(settings, store)
    batch = next(iter(loop.train))
    batch["image"][:, 0] = 0  # the pixel's number
    batch["label"] = (batch["image"][:, 1, 1, 1] > 0).long() + 1
    losses = [loop.step(batch)[0] for _ in range(100)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("metric", "series"), [("aa", [0.1, 0.5, 0.5, 0.4, 0.5, 0.9]), ("loss", [0.9, 0.5, 0.5, 0.6, 0.5, 0.1])]
)
def test_best_weights_are_those_of_the_first_of_equal_epochs_and_training_stops_in_time(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, series: list[float]
) -> None:
    values = iter(series)
    original = Loop.evaluate

    def rigged(self: Loop, stream: Any, split: str) -> Any:
        found, line = original(self, stream, split)
        return found, line | ({metric: next(values)} if split == "validation" else {})

    monkeypatch.setattr(Loop, "evaluate", rigged)
    settings = experiment(
        store, tmp_path / "run", epochs=6, early_stopping={"patience": 3, "metric": metric, "min_epochs": 2}
    )
    summary = run_experiment(settings, quiet=True).summary
    assert summary["best_epoch"] == 1
    assert summary["epochs"] == 5
    assert summary["stopped_early"]
    run = RunFolder.read(tmp_path / "run")
    best = Checkpoints(run.checkpoint_folder, run.identity).best()
    assert best.state["step"] == summary["validation"]["step"] == 2 * summary["steps"] // 5


def test_a_store_without_validation_trains_all_epochs_and_says_so(
    shared_store: MakeStore, tmp_path: Path
) -> None:
    store = shared_store(split="train", shapes=[(16, 16)])
    with pytest.warns(
        BandstreamWarning, match="no labelled validation pixels: 2 epochs are trained without early"
    ):
        summary = run_experiment(experiment(store, tmp_path / "run"), quiet=True).summary
    assert summary["epochs"] == 2
    assert summary["best_epoch"] is None
    assert summary["metrics"] is None
    run = RunFolder.read(tmp_path / "run")
    assert Checkpoints(run.checkpoint_folder, run.identity).best().state["step"] == summary["steps"]


def test_a_store_without_labels_is_refused(shared_store: MakeStore, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="has no labels"):
        run_experiment(experiment(shared_store(classes=0), tmp_path / "run"), quiet=True)


def test_an_empty_training_split_is_refused_with_the_counts(shared_store: MakeStore, tmp_path: Path) -> None:
    with pytest.raises(EmptySplitError, match=r"labelled: train 0, validation \d+, test \d+"):
        run_experiment(experiment(shared_store(labelled=0.0), tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(store: PatchStore, tmp_path: Path) -> None:
    settings = experiment(store, tmp_path / "run", optimizer={"lr": 1e30})
    with pytest.raises(
        DivergedError, match=r"at step [1-9]\d* \(epoch \d+, batch \d+\) the loss is (nan|inf)"
    ):
        run_experiment(settings, quiet=True)


def test_a_halo_smaller_than_the_models_view_is_said(store: PatchStore, tmp_path: Path) -> None:
    settings = segmentation(store, tmp_path / "run", model={"width": 4, "dilations": [1, 2]})
    with pytest.warns(BandstreamWarning, match=r"sees 3 pixels .* halo of 2.*Set tiles\.halo to 3"):
        make_model(settings, store)


# -- going on


class Killed(BaseException):
    """Stands for the end of the process."""


def train_in_pieces(settings: Experiment, monkeypatch: pytest.MonkeyPatch, cuts: list[int]) -> None:
    """Train, cutting the process off before the steps `cuts` (counted over all attempts)."""
    original, done = Loop.step, 0

    def step(self: Loop, batch: dict[str, Any]) -> tuple[float, float]:
        nonlocal done
        if done in cuts:
            cuts.remove(done)
            raise Killed
        done += 1
        return original(self, batch)

    monkeypatch.setattr(Loop, "step", step)
    while cuts:
        torch.manual_seed(random.getrandbits(32))
        with pytest.raises(Killed):
            run_experiment(settings, quiet=True)
    run_experiment(settings, quiet=True)
    monkeypatch.setattr(Loop, "step", original)


def same_run(a: Path, b: Path) -> None:
    assert (a / "metrics.jsonl").read_bytes() == (b / "metrics.jsonl").read_bytes()
    runs = [RunFolder.read(path) for path in (a, b)]
    weights = [Checkpoints(run.checkpoint_folder, run.identity).best().tensors for run in runs]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    kept = [{k: v for k, v in (run.summary or {}).items() if k not in {"seconds", "maps"}} for run in runs]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("kind", [experiment, segmentation])
@pytest.mark.parametrize("every", [{"every_epochs": 1}, {"every_steps": 2}, {"every_steps": 1}])
def test_a_run_cut_off_anywhere_goes_on_to_the_same_lines(
    store: PatchStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[..., Experiment],
    every: dict[str, int],
) -> None:
    """Losses equal to the last bit, evaluations, best weights: before any checkpoint, within an epoch, at its end."""
    settings = kind(store, tmp_path / "cut", checkpoint=every, epochs=3)
    run_experiment(kind(store, tmp_path / "whole", checkpoint=every, epochs=3), quiet=True)
    count = len(make_stream(settings, store, "train"))
    train_in_pieces(settings, monkeypatch, [1, count, count + 3, 2 * count + 1])
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_cut_off_between_its_last_batch_and_the_evaluation_goes_on(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiment(experiment(store, tmp_path / "whole", checkpoint={"every_steps": 1}), quiet=True)
    settings = experiment(store, tmp_path / "cut", checkpoint={"every_steps": 1})
    original = Loop.evaluate
    for split in ("validation", "test"):

        def cut(self: Loop, stream: Any, name: str, split: str = split) -> Any:
            if name == split:
                raise Killed
            return original(self, stream, name)

        monkeypatch.setattr(Loop, "evaluate", cut)
        with pytest.raises(Killed):
            run_experiment(settings, quiet=True)
    monkeypatch.setattr(Loop, "evaluate", original)
    run_experiment(settings, quiet=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_checkpoint_costs_its_steps_only(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {"every_steps": 2}
    run_experiment(experiment(store, tmp_path / "whole", checkpoint=every), quiet=True)
    settings = experiment(store, tmp_path / "cut", checkpoint=every)
    monkeypatch.setattr(Loop, "_end_epoch", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run_experiment(settings, quiet=True)
    monkeypatch.undo()
    newest = max((tmp_path / "cut" / "checkpoints").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.warns(BandstreamWarning, match="Going on from step-"):
        run_experiment(settings, quiet=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_metrics_cut_shorter_than_the_checkpoint_counts_are_refused(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(store, tmp_path / "run", checkpoint={"every_steps": 2})
    monkeypatch.setattr(Loop, "_end_epoch", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run_experiment(settings, quiet=True)
    monkeypatch.undo()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has 0 bytes where its checkpoint counts"):
        run_experiment(settings, quiet=True)


def test_a_finished_run_is_reported_and_not_repeated(store: PatchStore, tmp_path: Path) -> None:
    settings = experiment(store, tmp_path / "run", epochs=1)
    first = run_experiment(settings, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    again = run_experiment(settings, quiet=True)
    assert not again.trained
    assert again.summary == json.loads(json.dumps(first.summary))
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_configuration_in_the_folder_is_refused_by_its_keys(
    store: PatchStore, tmp_path: Path
) -> None:
    run_experiment(experiment(store, tmp_path / "run", epochs=1), quiet=True)
    other = experiment(
        store, tmp_path / "run", epochs=2, optimizer={"lr": 0.5}, model=NETWORK | {"hidden": 8}
    )
    with pytest.raises(RunConflictError) as error:
        run_experiment(other, quiet=True)
    for said in (
        "epochs (1 there, 2 here)",
        "optimizer.lr (0.001 there, 0.5 here)",
        "model.hidden (null there, 8 here)",
    ):
        assert said in str(error.value)
    assert "seed" not in str(error.value)


def test_another_store_in_the_folder_is_refused(
    store: PatchStore, shared_store: MakeStore, tmp_path: Path
) -> None:
    run_experiment(experiment(store, tmp_path / "run", epochs=1), quiet=True)
    other = shared_store(shapes=[(24, 60)], seed=1)
    with pytest.raises(RunConflictError, match=rf"store fingerprint \({store.fingerprint[:12]} there"):
        run_experiment(experiment(other, tmp_path / "run", epochs=1), quiet=True)


def test_a_folder_with_other_files_is_refused_and_left_alone(store: PatchStore, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunConflictError, match="holds files but no training run"):
        run_experiment(experiment(store, tmp_path), quiet=True)
    assert {path.name for path in tmp_path.iterdir()} <= {"thesis.tex", ".lock"}


def test_a_run_begun_on_another_device_is_not_mixed(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(store, tmp_path / "run", epochs=1)
    monkeypatch.setattr(Loop, "fit", lambda _: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run_experiment(settings, quiet=True)
    monkeypatch.undo()
    run = RunFolder.read(tmp_path / "run")
    run.write_plan((run.plan or {}) | {"device": "cuda"})
    with pytest.raises(RunConflictError, match="was begun on cuda and would go on with cpu"):
        run_experiment(settings, quiet=True)


def test_the_plan_is_reused_and_never_measured_again(
    store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(store, tmp_path / "run", precision="auto", epochs=1)
    monkeypatch.setattr(Loop, "fit", lambda _: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run_experiment(settings, quiet=True)
    monkeypatch.undo()
    run = RunFolder.read(tmp_path / "run")
    plan = run.plan or {}
    run.write_plan(
        plan
        | {"precision": plan["precision"] | {"name": "bf16"}, "versions": plan["versions"] | {"torch": "1.0"}}
    )
    monkeypatch.setattr("bandstream.train.trainer.choose_precision", lambda *_: pytest.fail("measured again"))
    with pytest.warns(BandstreamWarning, match=r"other versions \(torch 1\.0 ->"):
        assert run_experiment(settings, quiet=True).summary["precision"] == "bf16"


# -- real processes


def start(file: Path, log: Path) -> subprocess.Popen[bytes]:
    code = f"from bandstream.train import train; train({str(file)!r}, quiet=True)"
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


@pytest.mark.process
def test_a_killed_process_is_taken_up_by_the_next_bit_for_bit(store: PatchStore, tmp_path: Path) -> None:
    """SIGKILL within an epoch; a second process in the same folder is refused meanwhile."""
    files = {}
    for name in ("whole", "killed"):
        settings = experiment(
            store, tmp_path / name, epochs=12, checkpoint={"every_steps": 3}, early_stopping=None
        )
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(settings.resolved()))
    out, log = tmp_path / "killed", tmp_path / "log"
    victim = start(files["killed"], log)
    deadline = time.monotonic() + 60
    while len(list((out / "checkpoints").glob("step-*"))) < 2:
        assert victim.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "no checkpoint within 60 s"
        time.sleep(0.01)
    with pytest.raises(RunConflictError, match="Another process is training in"):
        run_experiment(files["killed"], quiet=True)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not (out / "summary.json").exists(), "the run ended before it was killed"
    assert run_experiment(files["killed"], quiet=True).trained
    run_experiment(files["whole"], quiet=True)
    same_run(tmp_path / "whole", out)


# -- what was refused, cut off or meaningless


def test_a_folder_that_holds_only_what_a_cut_off_start_leaves_is_taken(
    store: PatchStore, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / "config.yaml.tmp").write_text("version: 1\nna")
    assert run_experiment(experiment(store, out, epochs=1), quiet=True).trained


def test_an_experiment_that_was_refused_does_not_bind_its_folder(store: PatchStore, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="halo"):
        run_experiment(experiment(store, out, patch=99), quiet=True)
    assert run_experiment(experiment(store, out, epochs=1), quiet=True).trained


def test_a_folder_of_other_files_is_refused_and_left_as_it_is(store: PatchStore, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunConflictError, match="no training run"):
        run_experiment(experiment(store, tmp_path), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunConflictError, match="cannot be made"):
        run_experiment(experiment(store, tmp_path / "thesis.tex"), quiet=True)


def test_a_plan_that_is_no_plan_is_named(store: PatchStore, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_experiment(experiment(store, out, epochs=1), quiet=True)
    for text in ("{}", "[]", '{"store": 3}', "{"):
        (out / "plan.json").write_text(text)
        with pytest.raises(TrainingError, match=r"plan\.json is damaged"):
            run_experiment(experiment(store, out, epochs=1), quiet=True)


def test_weights_that_are_no_longer_finite_are_never_the_best(store: PatchStore, tmp_path: Path) -> None:
    settings = experiment(
        store, tmp_path / "run", epochs=1, batch=100_000, micro_batch="auto", optimizer={"lr": 1e30}
    )
    with pytest.raises(DivergedError):
        run_experiment(settings, quiet=True)
    assert not list((tmp_path / "run").rglob("best*"))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_where_validation_holds_one_class_accuracy_chooses_instead_of_kappa(
    store: PatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandstream.train.trainer import _metric

    settings = experiment(store, Path("unused"))
    assert _metric(settings, store) == "kappa"
    labelled = store.index.labelled.copy()
    labelled[:, 2, 1:] = 0
    labelled[0, 2, 0] = 5
    monkeypatch.setitem(store.__dict__, "index", replace(store.index, labelled=labelled))
    with pytest.warns(BandstreamWarning, match="one class"):
        assert _metric(settings, store) == "oa"


def test_batch_normalisation_of_single_values_is_refused_before_training(
    store: PatchStore, tmp_path: Path
) -> None:
    model = {"name": "cnn3d", "batch_norm": True}
    settings = experiment(store, tmp_path / "run", patch=1, model=model, batch=1, micro_batch="auto")
    if store.bands > 1:
        settings = experiment(store, tmp_path / "run", patch=3, model=model, batch=1, micro_batch="auto")
    with pytest.raises(ConfigError, match="batch_norm off"):
        run_experiment(settings, quiet=True)
