"""From an experiment to a finished run: open the store, plan, train, test, summarise.

`run_experiment` is the whole of it, `loop.Loop` the part that repeats.
"""

from __future__ import annotations

import copy
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ..pipeline.errors import BandstreamWarning, ConfigError, EmptySplitError, RunConflictError, TrainingError
from ..pipeline.store import SPLIT_CODE, PatchStore
from .experiment import Experiment, load_experiment
from .loop import Loop, exact
from .losses import summed_cross_entropy, targets, weight_total
from .parts import class_weights, labelled_pixels, make_model, make_stream
from .precision import choose_precision, default_threads
from .runs import RunFolder, locked, open_run

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    path: Path  #: the run folder
    summary: dict[str, Any]  #: content of `summary.json`
    trained: bool  #: False: the run had been finished before, and nothing was done


def run_experiment(
    experiment: Experiment | str | Path, overrides: Sequence[str] = (), *, quiet: bool = False
) -> RunResult:
    """Train one experiment to its end, going on from where an earlier attempt was cut off.

    Parameters
    ----------
    experiment
        The experiment or its file.
    overrides
        Dotted settings for a file, ``optimizer.lr=0.01``.
    quiet
        No progress.

    Raises
    ------
    RunConflictError
        The run folder holds a run of another configuration, or another process trains in it.
    EmptySplitError
        The store has no labelled training pixels.
    CheckpointError
        No checkpoint of the unfinished run can be used.
    DivergedError
        The loss is no longer finite.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment, overrides)
    store = _open_store(experiment, quiet=quiet)
    _require_labels(store)
    with locked(Path(experiment.out)):
        run = open_run(experiment, store.fingerprint)
        finished = run.summary
        if finished is not None:
            return RunResult(run.path, finished, trained=False)
        store.check_present()
        try:
            return RunResult(run.path, _train(experiment, store, run, quiet), trained=True)
        finally:
            run.close()


def _open_store(experiment: Experiment, *, quiet: bool) -> PatchStore:
    if experiment.store is not None:
        return PatchStore.open(experiment.store)
    from ..pipeline import build

    return build(cast("str", experiment.workflow), quiet=quiet)


def _require_labels(store: PatchStore) -> None:
    if not store.classes:
        raise TrainingError(
            f"The store {store.path} has no labels, so there is nothing to learn. Add `labels` to its workflow's scenes."
        )
    counts = labelled_pixels(store)
    if not counts["train"]:
        there = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise EmptySplitError(
            f"The training split of the store {store.path} has no labelled pixels (labelled: {there}). Change the "
            "workflow's split: another seed, smaller blocks or a smaller margin."
        )


def _train(experiment: Experiment, store: PatchStore, run: RunFolder, quiet: bool) -> dict[str, Any]:
    plan = run.plan
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _require_same_machine(run, plan, device)
    if device.type == "cuda":
        # cuBLAS repeats only with a fixed workspace
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with exact(experiment.seed, deterministic=experiment.deterministic):
        model = make_model(experiment, store).to(device)
        class_weight = class_weights(experiment, store, device)
        if plan is None:
            plan = _make_plan(experiment, store, model, class_weight)
            run.write_plan(plan)
        torch.set_num_threads(plan["threads"])  # `exact` puts it back
        counts = labelled_pixels(store)
        if not counts["validation"]:
            warnings.warn(
                f"The store {store.name} has no labelled validation pixels: {experiment.epochs} epochs are trained "
                "without early stopping, and the last weights are kept.",
                BandstreamWarning,
                stacklevel=3,
            )
        loop = Loop(
            experiment,
            run,
            model,
            plan["precision"]["name"],
            device,
            train=make_stream(experiment, store, "train"),
            validation=make_stream(experiment, store, "validation") if counts["validation"] else None,
            class_weight=class_weight,
            classes=store.classes,
            metric=_metric(experiment, store),
            quiet=quiet,
        )
        loop.restore()
        from torch.utils.tensorboard.writer import SummaryWriter

        # TensorBoard drops the points of a killed attempt behind the checkpoint, as metrics.jsonl does
        with SummaryWriter(str(run.path / "tensorboard"), purge_step=loop.at.step or None) as loop.board:
            loop.fit()
            return _finish(loop, store, plan, test=bool(counts["test"]))


def _metric(experiment: Experiment, store: PatchStore) -> str:
    """Return the validation figure that chooses the best weights; kappa has no meaning where only one class occurs."""
    occurring = (store.index.labelled[:, SPLIT_CODE["validation"]].sum(axis=0) > 0).sum()
    if experiment.metric == "kappa" and occurring == 1:
        warnings.warn(
            "The validation split holds one class, where kappa says nothing: the best weights are chosen by overall "
            "accuracy. Set early_stopping.metric to loss, or change the workflow's split.",
            BandstreamWarning,
            stacklevel=4,
        )
        return "oa"
    return experiment.metric


def _require_same_machine(run: RunFolder, plan: dict[str, Any] | None, device: torch.device) -> None:
    if plan is None:
        return
    if plan["device"] != device.type:
        raise RunConflictError(
            f"{run.path} was begun on {plan['device']} and would go on with {device.type}, which gives other numbers. "
            f"Go on where there is a {plan['device']} device, or train into another folder with --out."
        )
    here = _versions()
    changed = [
        f"{name} {old} -> {here.get(name)}" for name, old in plan["versions"].items() if here.get(name) != old
    ]
    if changed:
        warnings.warn(
            f"{run.path} goes on with other versions ({', '.join(changed)}): its losses may differ in the last bits "
            "from those of an unbroken run.",
            BandstreamWarning,
            stacklevel=4,
        )


def _make_plan(
    experiment: Experiment, store: PatchStore, model: nn.Module, class_weight: Tensor | None
) -> dict[str, Any]:
    """Decide, by measurement where the experiment leaves it open, what a resumed run must not decide again."""
    device = next(model.parameters()).device
    stream = make_stream(experiment, store, "train")
    batch = next(iter(stream))
    image = batch["image"][: experiment.micro].to(device)
    target = targets(batch["label"], batch["mask"])[: experiment.micro].to(device)

    def loss_of(copy: nn.Module, x_nbhw: Tensor) -> tuple[Tensor, Tensor]:
        goal = target[: len(x_nbhw)]
        logits = cast("Tensor", copy(x_nbhw))
        return summed_cross_entropy(logits, goal, class_weight) / weight_total(goal, class_weight), logits

    _try_step(model, image, experiment.micro)
    threads = experiment.threads or default_threads(image, torch.get_num_threads())
    torch.set_num_threads(threads)
    precision = choose_precision(experiment.precision, model, image, loss_of)
    steps = len(stream)
    return {
        "store": {"path": str(store.path.resolve()), "name": store.name, "fingerprint": store.fingerprint},
        "device": device.type,
        "threads": threads,
        "deterministic": experiment.deterministic,
        "precision": precision.to_json(),
        "batch": experiment.batch,
        "micro_batch": experiment.micro,
        "accumulation": experiment.batch // experiment.micro,
        "steps_per_epoch": steps,
        "steps": steps * experiment.epochs,
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": _versions(),
    }


def _try_step(model: nn.Module, image: Tensor, micro: int) -> None:
    """Refuse a micro-batch that batch normalisation cannot take, before anything is trained.

    Raises
    ------
    ConfigError
        One value per channel is left, of which there is no variance.
    """
    with torch.random.fork_rng(), torch.no_grad():
        try:
            copy.deepcopy(model).train()(image)
        except ValueError as error:
            raise ConfigError(
                f"The model cannot be trained on micro-batches of {micro}: {error}. Raise batch or micro_batch, or "
                "switch the model's batch_norm off."
            ) from error


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("bandstream", "torch", "numpy")}
    return found | {"python": platform.python_version()}


def _finish(loop: Loop, store: PatchStore, plan: dict[str, Any], *, test: bool) -> dict[str, Any]:
    """Evaluate the best weights on the test split, make maps, and write the summary."""
    loop.model.load_state_dict(loop.checkpoints.best().under("model"))
    metrics, table, confusion = loop.at.best, None, None
    if test:
        scores, line = loop.evaluate(make_stream(loop.experiment, store, "test"), "test")
        metrics, table, confusion = line, scores.table(store.class_names), scores.confusion.tolist()
    loop.run.metrics_offset()
    summary: dict[str, Any] = {
        "name": loop.experiment.name,
        "metrics": metrics,
        "validation": loop.at.best,
        "classes": table,
        "confusion": confusion,
        "steps": loop.at.step,
        "epochs": loop.at.epoch,
        "best_epoch": loop.at.best["epoch"] if loop.at.best else None,
        "stopped_early": loop.at.stopped,
        "seconds": round(loop.at.seconds, 3),
        "precision": plan["precision"]["name"],
        "parameters": plan["parameters"],
        "store": plan["store"],
        "maps": _maps(loop, store) if loop.experiment.map else [],
    }
    loop.run.write_summary(summary)
    return summary


def _maps(loop: Loop, store: PatchStore) -> list[dict[str, Any]]:
    """Map every scene that has test pixels, from its transformed pixels in the store, and score the map."""
    from .maps import read_map, score_map, store_layer, stored_scene
    from .prediction import Predictor, map_scene

    predictor = Predictor(loop.model, store, patch=loop.experiment.patch, batch=loop.experiment.micro)
    index, found = store.index, list[dict[str, Any]]()
    for number, grid in enumerate(store.scenes):
        if not index.pixels[index.scene == number, SPLIT_CODE["test"]].sum():
            continue
        target = loop.run.path / "maps" / f"{grid.scene_id}.tif"
        made = map_scene(predictor, stored_scene(store, number), target, quiet=loop.quiet)
        truth, split = store_layer(store, "labels", number), store_layer(store, "split", number)
        score = score_map(read_map(target), truth, store.classes, split)
        found.append({"scene": grid.scene_id, "map": made["map"], "pixels": made["pixels"], "scores": score})
    return found
