"""The training loop: one optimiser step per global batch, evaluation per epoch, state saved so that it goes on exactly.

Everything that a step depends on is either in the checkpoint (weights, optimiser, scaler, random generators, position
in the stream) or a pure function of the experiment (learning rate, order of the samples, augmentation).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ..pipeline.errors import CheckpointError, DivergedError
from ..pipeline.progress import progress
from .checkpoints import Checkpoint, Checkpoints
from .losses import goals, summed_cross_entropy, weight_total
from .metrics import ConfusionCounter, Scores, number
from .precision import autocast
from .stream.device import DeviceFeed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.tensorboard.writer import SummaryWriter

    from ..pipeline.progress import Progress
    from .experiment import Experiment
    from .runs import RunFolder
    from .stream import PatchStream

#: what a batch is to be taken for, with the share of the loss that it has: see `losses.goals`
Goals = list[tuple["Tensor", "Tensor | None"]]
_BOARD_EVERY = (
    10  #: optimiser steps between two points of TensorBoard's curves; metrics.jsonl has all of them
)
_MOST_SKIPPED = 25  #: fp16 steps skipped in a row before the run counts as diverged


@dataclass
class Position:
    """How far a run has come."""

    epoch: int = 0  #: the epoch that is running, from 0
    batch: int = 0  #: batches of it that were trained
    step: int = 0  #: optimiser steps in all
    best: dict[str, Any] | None = None  #: evaluation line of the best weights, with its epoch
    stale: int = 0  #: epochs since the best
    skipped: int = 0  #: fp16 steps skipped in a row
    stopped: bool = False  #: early stopping has ended the training
    seconds: float = 0.0  #: time spent, over all starts


@dataclass
class Loop:
    """One training run, from its state to its end."""

    experiment: Experiment
    run: RunFolder
    model: nn.Module
    precision: str
    device: torch.device
    train: PatchStream
    validation: PatchStream | None
    class_weight: Tensor | None
    classes: int
    metric: str = "kappa"  #: validation figure that chooses the best weights
    board: SummaryWriter | None = None
    quiet: bool = False
    at: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        settings = self.experiment.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.checkpoints = Checkpoints(self.run.checkpoint_folder, self.run.identity)
        self._since = time.perf_counter()

    def fit(self) -> None:
        """Train from where `restore` has left it to the end."""
        self._since = time.perf_counter()
        self.model.train()
        steps, epochs = len(self.train), self.experiment.epochs
        with progress("training", steps * epochs, quiet=self.quiet) as bar:
            bar.advance(self.at.step)
            while self.at.epoch < epochs and not self.at.stopped:
                self._train_epoch(bar)
                self._end_epoch(bar)
        if self.at.best is None:
            if not all(bool(torch.isfinite(value).all()) for value in self.model.parameters()):
                raise self._diverged("the weights are no longer finite")
            self.checkpoints.save_best(self._weights())

    def _train_epoch(self, bar: Progress) -> None:
        if self.at.batch == 0:
            self.train.set_epoch(self.at.epoch)
        if self.at.batch and self.at.batch >= len(self.train):
            return  # the checkpoint was written after the last batch, before the evaluation
        every = self.experiment.checkpoint.every_steps
        for batch in DeviceFeed(self.train, self.device):
            loss, lr = self.step(batch)
            self.run.append({"step": self.at.step, "epoch": self.at.epoch, "loss": number(loss), "lr": lr})
            if self.at.step % _BOARD_EVERY == 0:
                self._show({"train/loss": loss, "train/lr": lr})
            self.at.step += 1
            self.at.batch = int(batch["step"]) + 1
            bar.advance()
            if every and self.at.step % every == 0:
                self.save()

    def step(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Do one optimiser step on a global batch, in micro-batches.

        Returns
        -------
        tuple
            Mean loss over the labelled pixels of the batch, and the learning rate.

        Raises
        ------
        DivergedError
            The loss is not finite.
        """
        settings = self.experiment
        lr = settings.optimizer.lr * settings.scheduler.lr_factor(
            self.at.step, settings.epochs * len(self.train), len(self.train)
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        image, aims = self._on_device(batch)
        total = self._weight(aims)
        loss = torch.zeros((), device=self.device)
        for first in range(0, len(image), settings.micro):
            some = slice(first, first + settings.micro)
            with autocast(self.precision, self.device):
                logits = cast("Tensor", self.model(image[some]))
            portion = self._summed_loss(logits, aims, some) / total
            self.scaler.scale(portion).backward()
            loss = loss + portion.detach()
        value = float(loss.item())
        self._update(value)
        return value, lr

    def _update(self, loss: float) -> None:
        """Apply the gradients; with fp16's scaler a step with infinite ones is left out and the scale falls."""
        if not math.isfinite(loss) and not self.scaler.is_enabled():
            raise self._diverged(f"the loss is {loss}")
        if self.experiment.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.experiment.clip_norm)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.at.skipped = self.at.skipped + 1 if self.scaler.get_scale() < before else 0
        if self.at.skipped >= _MOST_SKIPPED:
            raise self._diverged(f"the gradients overflowed fp16 in {_MOST_SKIPPED} steps in a row")

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"{self.run.path}: at step {self.at.step} (epoch {self.at.epoch}, batch {self.at.batch}) {what}. Lower "
            f"optimizer.lr (now {self.experiment.optimizer.lr:g}), set clip_norm, or add normalize to the workflow, "
            "and train into another folder with --out."
        )

    def _on_device(self, batch: dict[str, Any]) -> tuple[Tensor, Goals]:
        there = {
            name: value.to(self.device, non_blocking=True)
            for name, value in batch.items()
            if name in ("image", "label", "mask", "label_b", "mix")
        }
        return there["image"], goals(there)

    def _weight(self, aims: Goals) -> Tensor:
        weights = [weight_total(target, self.class_weight, share) for target, share in aims]
        return torch.stack(weights).sum()

    def _summed_loss(self, logits: Tensor, aims: Goals, some: slice) -> Tensor:
        smoothing = self.experiment.loss.label_smoothing
        losses = [
            summed_cross_entropy(
                logits, target[some], self.class_weight, smoothing, None if share is None else share[some]
            )
            for target, share in aims
        ]
        return torch.stack(losses).sum()

    def _end_epoch(self, bar: Progress) -> None:
        settings, at = self.experiment, self.at
        if self.validation is not None:
            line = self.evaluate(self.validation, "validation")[1]
            value = line[self.metric]
            bar.update(f"{self.metric} {value:.3f}" if value is not None else "")
            if value is not None and (at.best is None or self._better(value, at.best[self.metric])):
                at.best, at.stale = {"epoch": at.epoch, **line}, 0
                self.checkpoints.save_best(self._weights())
            else:
                at.stale += 1
            stopping = settings.early_stopping
            if stopping and at.epoch + 1 >= stopping.min_epochs and at.stale >= stopping.patience:
                at.stopped = True
        at.epoch, at.batch = at.epoch + 1, 0
        every = settings.checkpoint.every_epochs or 1
        if at.stopped or at.epoch == settings.epochs or at.epoch % every == 0:
            self.save()

    def _better(self, value: float, best: float) -> bool:
        return value < best if self.metric == "loss" else value > best

    def evaluate(self, stream: PatchStream, split: str) -> tuple[Scores, dict[str, Any]]:
        """Compare the model with the labels of a split; each pixel once, in fp32 as maps are made.

        Returns
        -------
        tuple
            The scores, and the line that was added to `metrics.jsonl`.

        Raises
        ------
        DivergedError
            The loss is not finite.
        """
        counter = ConfusionCounter(self.classes, self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        weight = torch.zeros_like(loss)
        self.model.eval()
        with torch.no_grad():
            for batch in DeviceFeed(stream, self.device):
                image, [(target, _)] = self._on_device(batch)
                logits = cast("Tensor", self.model(image))
                loss += summed_cross_entropy(
                    logits, target, self.class_weight, self.experiment.loss.label_smoothing
                )
                if bool((target >= 0).any()):
                    weight += weight_total(target, self.class_weight)
                counter.update(logits, target)
        self.model.train()
        found = counter.compute()
        if not math.isfinite(float(loss)):
            raise self._diverged(f"the loss on the {split} split is {float(loss)}")
        line = {"step": self.at.step, "split": split, "loss": number(float(loss / weight)), **found.line()}
        self.run.append(line)
        self._show({f"{split}/{name}": value for name, value in line.items() if isinstance(value, float)})
        return found, line

    def _show(self, values: dict[str, float]) -> None:
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, self.at.step)

    def save(self) -> None:
        """Save everything that the next step depends on."""
        now = time.perf_counter()
        self.at.seconds, self._since = self.at.seconds + now - self._since, now
        tensors = self._weights().tensors
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        state = {
            "position": asdict(self.at),
            "stream": self.train.state_dict(self.at.batch - 1) if self.at.batch else None,
            "scaler": self.scaler.state_dict(),
            "metrics_bytes": self.run.metrics_offset(),
            "random": _random_state(),
        }
        tensors["random.torch"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        self.checkpoints.save(self.at.step, Checkpoint(tensors, state))

    def _weights(self) -> Checkpoint:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return Checkpoint(tensors, {"step": self.at.step})

    def restore(self) -> None:
        """Take up the newest checkpoint; without one, start from nothing."""
        found = self.checkpoints.latest()
        if found is None:
            self.run.truncate_metrics(0)
            return
        try:
            self._load(found)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"The checkpoint of {self.run.path} does not fit this version of the model: {error}. Train into "
                "another folder with --out."
            ) from error
        self.run.truncate_metrics(int(found.state["metrics_bytes"]))

    def _load(self, found: Checkpoint) -> None:
        self.model.load_state_dict(found.under("model"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in found.under("optimizer").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(
            {"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        self.at = Position(**found.state["position"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(found.state["scaler"])
        if found.state["stream"] is not None:
            self.train.load_state_dict(found.state["stream"])
        _restore_random(found.state["random"])
        torch.set_rng_state(found.tensors["random.torch"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(found.tensors["random.cuda"], self.device)


def _random_state() -> dict[str, Any]:
    """State of Python's and NumPy's global generators, which models and augmentations of a user's own may draw from."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(key).tolist(), int(position), int(has_gauss), float(cached)],
    }


def _restore_random(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, key, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(key, np.uint32), position, has_gauss, cached))  # noqa: NPY002


@contextmanager
def exact(seed: int, *, deterministic: bool) -> Generator[None]:
    """Fix what results depend on beside the data: seeds and kernels. All but the seeds, threads too, is put back."""
    # a module that replaces itself by an object at import, which type checkers do not see
    filling = cast("Any", torch.utils.deterministic)
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        filling.fill_uninitialized_memory,
    )
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        # filling fresh memory finds bugs in kernels, costs time, and changes no result
        filling.fill_uninitialized_memory = False
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1], warn_only=before[2])
        torch.backends.cudnn.benchmark = before[3]
        filling.fill_uninitialized_memory = before[4]
