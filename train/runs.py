"""The run folder: what a run was, what it measured, and where it goes on.

::

    config.yaml      the resolved experiment
    plan.json        what was decided at the start: store, device, threads, precision, micro-batch; kept on resume
    metrics.jsonl    one line per optimiser step, one per evaluation
    checkpoints/     the newest states and the best weights
    tensorboard/     the same figures for TensorBoard
    maps/            maps of the scenes with test pixels, where asked for
    summary.json     written last: a run with it is finished
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import yaml

from ..pipeline.config import fingerprint, load_yaml, parse, parse_yaml
from ..pipeline.errors import CheckpointError, ConfigError, RunConflictError, TrainingError
from .experiment import Experiment

_MOST_DIFFERENCES = 8


@dataclass
class RunFolder:
    """One run on disk. Make one with `open_run` to train, or `RunFolder.read` to look at it."""

    path: Path
    experiment: Experiment
    store_fingerprint: str
    _metrics: BinaryIO | None = field(default=None, repr=False)

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Open the folder of an existing run for reading.

        Raises
        ------
        TrainingError
            There is no run at the path, or it has not begun.
        """
        path = Path(path)
        if not (path / "config.yaml").is_file() or not (path / "plan.json").is_file():
            near = sorted(entry.parent.name for entry in path.parent.glob("*/config.yaml"))[:5]
            hint = f" Runs in {path.parent}: {', '.join(near)}." if near else ""
            raise TrainingError(f"There is no training run at {path} (no config.yaml and plan.json).{hint}")
        experiment = parse(Experiment, load_yaml(path / "config.yaml"), str(path / "config.yaml"))
        plan = cast("dict[str, Any]", cls(path, experiment, "").plan)
        return cls(path, experiment, str(plan["store"]["fingerprint"]))

    @property
    def checkpoint_folder(self) -> Path:
        """Where the checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def identity(self) -> str:
        """Fingerprint of configuration and store: checkpoints of another run are told by it."""
        return fingerprint({"experiment": self.experiment.identity(), "store": self.store_fingerprint})

    @property
    def plan(self) -> dict[str, Any] | None:
        """`plan.json`, None before the run has begun."""
        path = self.path / "plan.json"
        if not path.is_file():
            return None
        plan = _read_json(path)
        if not isinstance(plan.get("store"), dict) or "fingerprint" not in plan["store"]:
            raise TrainingError(
                f"{path} is damaged (no store); delete the run folder to train from the start."
            )
        return plan

    @property
    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, None before the run has finished."""
        path = self.path / "summary.json"
        return _read_json(path) if path.is_file() else None

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Write `plan.json`."""
        _write_text(self.path / "plan.json", json.dumps(plan, indent=2) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`, which finishes the run."""
        _write_text(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`. Floats keep every bit (their shortest exact decimal form)."""
        if self._metrics is None:
            self._metrics = (self.path / "metrics.jsonl").open("ab")
        self._metrics.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._metrics.flush()  # people watch it

    def metrics_offset(self) -> int:
        """Bring every line to disk and return the length of `metrics.jsonl`, to be kept in a checkpoint."""
        if self._metrics is None:
            path = self.path / "metrics.jsonl"
            return path.stat().st_size if path.is_file() else 0
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def truncate_metrics(self, offset: int) -> None:
        """Drop every line behind `offset`: steps after the checkpoint are done again and would stand twice.

        Raises
        ------
        CheckpointError
            The file is shorter than when the checkpoint was written.
        """
        self.close()
        path = self.path / "metrics.jsonl"
        size = path.stat().st_size if path.is_file() else 0
        if size < offset:
            raise CheckpointError(
                f"{path} has {size} bytes where its checkpoint counts {offset}: it was cut or replaced. Delete the run "
                f"folder {self.path} to train from the start, or choose another one with --out."
            )
        with path.open("ab") as file:
            file.truncate(offset)

    def metrics(self) -> list[dict[str, Any]]:
        """Read every line of `metrics.jsonl`."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def close(self) -> None:
        """Close `metrics.jsonl`."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def open_run(experiment: Experiment, store_fingerprint: str) -> RunFolder:
    """Create the run folder of `experiment`, or find the same run in it.

    Raises
    ------
    RunConflictError
        The folder holds a run of another configuration or store (the differing keys are named).
    """
    path = Path(experiment.out)
    run = RunFolder(path, experiment, store_fingerprint)
    config = path / "config.yaml"
    if config.is_file() and not _unbegun(path):
        _require_same(run, config)
        return run
    _write_text(config, yaml.dump(experiment.resolved(), Dumper=_Dumper, sort_keys=False))
    return run


def _unbegun(path: Path) -> bool:
    """Whether a folder holds no more than an attempt leaves that was refused or cut off before its first step."""
    leftovers = {".lock", "config.yaml", "config.yaml.tmp", "plan.json.tmp"}
    return all(entry.name in leftovers for entry in path.iterdir())


def _require_same(run: RunFolder, config: Path) -> None:
    try:
        before = parse(Experiment, load_yaml(config), str(config)).identity()
    except ConfigError as error:
        raise RunConflictError(
            f"{config} cannot be compared with this experiment: {error} Choose another folder with --out."
        ) from error
    differences = _differences(before, run.experiment.identity())
    plan = run.plan
    if plan is not None and plan["store"]["fingerprint"] != run.store_fingerprint:
        there, here = plan["store"]["fingerprint"][:12], run.store_fingerprint[:12]
        differences.append(f"store fingerprint ({there} there, {here} here)")
    if differences:
        more = len(differences) - _MOST_DIFFERENCES
        shown = ", ".join(differences[:_MOST_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")
        raise RunConflictError(
            f"{run.path} holds a run of another configuration: {shown}. Choose another folder with --out, delete this "
            "one, or give the same settings to go on."
        )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted({*there, *here}):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(
                cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new), f"{prefix}{key}."
            )
        elif old != new:
            found.append(f"{prefix}{key} ({json.dumps(old)} there, {json.dumps(new)} here)")
    return found


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the run folder for one process.

    Raises
    ------
    RunConflictError
        Another process trains in it, or it is not a run folder. The lock ends with its process, however that ends.
    """
    import fcntl

    if path.is_dir() and not (path / "config.yaml").is_file() and not _unbegun(path):
        raise RunConflictError(
            f"{path} holds files but no training run. Choose an empty or new folder with --out, or empty this one."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunConflictError(
            f"The run folder {path} cannot be made: {error}. Choose another with --out."
        ) from error
    with (path / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunConflictError(
                f"Another process is training in {path}. Wait for it, or choose another folder with --out."
            ) from error
        yield


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the strict loader would not read back as the same text."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        plain = parse_yaml(value, "text") == value
    except ConfigError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def _read_json(path: Path) -> dict[str, Any]:
    problem = "it holds no object"
    try:
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    except ValueError as error:
        problem = str(error)
    raise TrainingError(f"{path} is damaged ({problem}); delete the run folder to train from the start.")


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
