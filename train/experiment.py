"""The experiment file: strict YAML, everything that decides a run, sensible defaults for the rest.

The shortest file that works::

    version: 1
    name: first
    store: stores/scene-pca30-0123456789ab.zarr
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pydantic
from pydantic import Field

from ..pipeline.config import StrictModel, apply_overrides, load_yaml, parse
from ..pipeline.errors import ConfigError
from .models import MODELS, known_model
from .stream.augment_config import AugmentConfig

MetricName = Literal["oa", "aa", "kappa", "macro_f1", "loss"]
#: keys that say where things lie and nothing about what is computed
PATH_KEYS = ("workflow", "store", "out")

_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TaskSection(StrictModel):
    """What is predicted."""

    kind: Literal["classify", "segment"] = "classify"
    """`classify`: the centre pixel of a patch; `segment`: every pixel of a tile."""


class ModelSection(StrictModel):
    """The network: its name and its own options, which `models.create` checks."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, validate_default=True)

    name: str
    """A key of `models.MODELS`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class OptimizerSection(StrictModel):
    """AdamW (Loshchilov & Hutter 2019)."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Highest learning rate of the schedule."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)


class SchedulerSection(StrictModel):
    """Learning rate as a function of the optimiser step."""

    name: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear rise from lr / steps to lr."""
    warmup_epochs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The same counted in epochs; give one of the two."""

    @pydantic.model_validator(mode="after")
    def _one_warmup(self) -> SchedulerSection:
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("give warmup_steps or warmup_epochs, not both")
        return self

    def lr_factor(self, step: int, total_steps: int, steps_per_epoch: int) -> float:
        """Share of the highest rate at optimiser step `step` (0-based): a pure function, so that resume is exact.

        Cosine decay to zero after Loshchilov & Hutter, "SGDR", 2017, without restarts.
        """
        warmup = self.warmup_steps or math.ceil(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return (step + 1) / warmup
        if self.name == "constant":
            return 1.0
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, total_steps - warmup)))


class LossSection(StrictModel):
    """Cross-entropy over the labelled pixels."""

    class_weights: Literal["none", "balanced"] = "none"
    """`balanced`: inverse to the class counts of the training split."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class EarlyStoppingSection(StrictModel):
    """When to stop, and which validation metric chooses the best weights."""

    patience: int = Field(default=10, ge=1)
    """Stop after so many epochs without a better value."""
    metric: MetricName = "kappa"
    """`loss` changes less from epoch to epoch than the scores where the validation split is small."""
    min_epochs: int = Field(default=0, ge=0)


class CheckpointSection(StrictModel):
    """How often the whole state is saved (always at the end); a killed run goes on from there."""

    every_steps: int | None = Field(default=None, ge=1)
    every_epochs: int | None = Field(default=None, ge=1)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_interval(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        given = {key: value for key, value in cast("Mapping[str, Any]", data).items() if value is not None}
        if {"every_steps", "every_epochs"} <= given.keys():
            raise ValueError("give every_steps or every_epochs, not both")
        return given or {"every_epochs": 1}


class Experiment(StrictModel):
    """Everything that decides a training run."""

    version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    workflow: str | None = None
    """Workflow file whose store is used, and built first where it is missing."""
    store: str | None = None
    """Folder of a finished store."""
    task: TaskSection = TaskSection()
    patch: int | None = None
    """Side of the pixel-centred patches, odd (classify only; 9 unless told)."""
    model: ModelSection
    batch: int = Field(ge=1)
    """Samples per optimiser step: patches (64 unless told) or tiles (8 unless told)."""
    micro_batch: Literal["auto"] | int = "auto"
    """Samples per forward pass, a divisor of `batch`; auto takes the whole batch at once."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where it is measured to be faster and agrees with fp32."""
    optimizer: OptimizerSection = OptimizerSection()
    scheduler: SchedulerSection = SchedulerSection()
    loss: LossSection = LossSection()
    augment: AugmentConfig = AugmentConfig()
    """Changes of the training samples, drawn by seed, epoch and sample."""
    balance: Literal["classes"] | dict[str, _Share] | None = None
    """`classes`: draw every class equally often in training; class name -> share: in these shares; null: every sample
    once per epoch. The class of a tile is the rarest one that it holds."""
    last: Literal["pad", "drop"] = "pad"
    """What becomes of training samples that fill no batch: `pad` fills it up with masked ones, `drop` leaves them out."""
    epochs: int = Field(default=50, ge=1)
    early_stopping: EarlyStoppingSection | None = EarlyStoppingSection()
    """null: train all epochs; the best weights are then chosen by kappa."""
    checkpoint: CheckpointSection = CheckpointSection(every_epochs=1)
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Largest norm of the gradient; null leaves it."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch on the CPU; null takes one for small steps, else all that torch offers. Kept on resume."""
    deterministic: bool = True
    """Only kernels that repeat bit for bit."""
    map: bool = False
    """Write a map of every scene with test pixels when the training has ended."""
    out: str = ""
    """Run folder, `runs/<name>` unless told."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_by_task(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = dict(cast("Mapping[str, Any]", data))
        task: Any = data.get("task")
        kind = task.get("kind") if isinstance(task, Mapping) else getattr(task, "kind", None)
        segment = kind == "segment"
        if isinstance(data.get("model", {}), Mapping):
            data["model"] = {"name": "segmenter" if segment else "cnn3d", **data.get("model", {})}
        data.setdefault("batch", 8 if segment else 64)
        if not segment and data.get("patch") is None:
            data["patch"] = 9
        data["out"] = data.get("out") or f"runs/{data.get('name')}"
        return data

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Experiment:
        if (self.workflow is None) == (self.store is None):
            raise ValueError("give exactly one of workflow (a file) and store (a folder)")
        if self.task.kind == "segment" and self.patch is not None:
            raise ValueError(
                "patch belongs to the task classify; segment trains on whole tiles: leave it out"
            )
        if self.patch is not None and (self.patch < 1 or self.patch % 2 == 0):
            raise ValueError(f"patch must be odd, so that it has a centre pixel, got {self.patch}")
        if self.micro_batch != "auto" and (self.micro_batch < 1 or self.batch % self.micro_batch):
            raise ValueError(f"micro_batch must divide batch, got {self.micro_batch} and {self.batch}")
        info = known_model(self.model.name, self.model.options)
        if self.task.kind not in info.tasks:
            fitting = [name for name, other in MODELS.items() if self.task.kind in other.tasks]
            raise ValueError(
                f"the model {self.model.name} does not {self.task.kind}; models that do: {', '.join(fitting)}"
            )
        return self

    @property
    def micro(self) -> int:
        """Samples per forward pass."""
        return self.batch if self.micro_batch == "auto" else self.micro_batch

    @property
    def metric(self) -> MetricName:
        """The validation metric that chooses the best weights."""
        return self.early_stopping.metric if self.early_stopping else "kappa"

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data for `config.yaml`."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """What two runs must share to be the same run: all but the paths."""
        return {key: value for key, value in self.resolved().items() if key not in PATH_KEYS}


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file.

    Parameters
    ----------
    path
        The YAML file. Relative paths in it: `workflow` is looked for in the file's folder and then in the current one,
        `store` the other way round, `out` is relative to the current folder.
    overrides
        Dotted settings such as ``optimizer.lr=0.01``.

    Raises
    ------
    ConfigError
        The file is not valid, or what it names does not exist.
    """
    path = Path(path)
    data = load_yaml(path)
    if "scenes" in data:
        raise ConfigError(
            f"{path} is a workflow, no experiment; use `bandstream run {path}`, or name it under `workflow:` in an "
            "experiment."
        )
    experiment = parse(Experiment, apply_overrides(data, overrides), str(path))
    here, there = Path.cwd(), path.resolve().parent
    found: dict[str, str] = {}
    if experiment.workflow is not None:
        found["workflow"] = _locate("workflow", experiment.workflow, (there, here))
    if experiment.store is not None:
        found["store"] = _locate("store", experiment.store, (here, there))
    return experiment.model_copy(update=found)


def _locate(key: str, value: str, bases: Sequence[Path]) -> str:
    if value.startswith("s3://"):
        return value
    for base in bases:
        candidate = base / Path(value).expanduser()
        if candidate.exists():
            return str(candidate.resolve())
    places = " nor in ".join(str(base) for base in dict.fromkeys(bases))
    raise ConfigError(f"{key}: {value} does not exist, neither in {places}.")
