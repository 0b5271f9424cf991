"""The exceptions of Bandstream: one root, grouped by what a caller would do about them.

Every leaf also inherits the builtin that a caller would expect, and carries the exit code with which the command
line ends (`bandstream --help` prints the table). Messages say what was got, where, what is allowed and what to change.
"""

from __future__ import annotations


class BandstreamError(Exception):
    """Root of everything raised on purpose; `exit_code` is what the command line returns."""

    exit_code: int = 1


class BandstreamWarning(UserWarning):
    """Something a user should know, though the work goes on."""


class ConfigError(BandstreamError, ValueError):
    """A workflow, catalog or experiment file, or an override, is not valid."""

    exit_code = 10


class SceneError(BandstreamError, ValueError):
    """A scene breaks the Scene contract or cannot be used as asked."""

    exit_code = 20


class SceneNotFoundError(SceneError, FileNotFoundError):
    """A scene, label or data file does not exist."""

    exit_code = 21


class FormatError(SceneError):
    """A file is not what its format demands: a key is missing, contradicts the data or is not supported."""

    exit_code = 22


class TruncatedFileError(FormatError):
    """A raw file holds fewer bytes than its header promises."""

    exit_code = 23


class LabelError(SceneError):
    """Labels do not fit their scene, or hold values that are no class numbers."""

    exit_code = 24


class EmptySplitError(BandstreamError, ValueError):
    """A split that is needed holds no pixels."""

    exit_code = 30


class NoValidPixelsError(BandstreamError, ValueError):
    """Every pixel is masked, so that there is nothing to compute statistics from."""

    exit_code = 31


class StoreError(BandstreamError):
    """A patch store cannot be used."""

    exit_code = 40


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at the path."""

    exit_code = 41


class StoreIncompleteError(StoreError):
    """The build of a store has not finished."""

    exit_code = 42


class StoreCorruptError(StoreError):
    """A file of a store is missing or its bytes have changed."""

    exit_code = 43


class StoreBusyError(StoreError):
    """Another process is building the store."""

    exit_code = 44


class StoreSchemaError(StoreError):
    """The store was written under another schema version, or does not fit what is asked of it."""

    exit_code = 45


class StoreWriteError(StoreError, OSError):
    """A file of a store cannot be written: the disk is full, or the folder is read-only."""

    exit_code = 46


class RemoteError(BandstreamError, RuntimeError):
    """An object store refuses, cannot be reached, or went on failing (no OSError: nothing is known to be missing)."""

    exit_code = 47


class MemoryBudgetError(BandstreamError, MemoryError):
    """The work cannot be done within the memory budget."""

    exit_code = 50


class ClusterError(BandstreamError, RuntimeError):
    """Worker processes cannot be used: no scheduler, other versions, a missing file, or a task that ends each of them."""

    exit_code = 51


class TrainingError(BandstreamError, RuntimeError):
    """A training run cannot start or go on."""

    exit_code = 60


class RunConflictError(TrainingError):
    """The run folder holds a run of another configuration."""

    exit_code = 61


class CheckpointError(TrainingError):
    """A checkpoint is damaged or belongs to another run."""

    exit_code = 62


class DivergedError(TrainingError):
    """The loss is no longer finite."""

    exit_code = 63
