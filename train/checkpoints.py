"""Checkpoints: one file each, atomic, checksummed, and without pickle.

A file is laid out as safetensors lays it out (so that other tools read the weights): 8 bytes little-endian header
length, a JSON header of name -> dtype, shape, byte range, then the raw tensors. Its `__metadata__` carries the scalar
state as JSON text, and a SHA-256 over state, tensor table and bytes. Loading builds tensors from bytes and parses JSON;
nothing in a file can name code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ..pipeline.config import canonical_json
from ..pipeline.errors import BandstreamWarning, CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 2  #: step checkpoints kept, so that one damaged file does not end a run
_SUFFIX = ".safetensors"
_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    tensors: dict[str, Tensor]  #: on the CPU
    state: dict[str, Any]  #: JSON values

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with ``prefix.``, without it."""
        start = prefix + "."
        return {
            name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)
        }


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` so that `path` is either the old file or the whole new one, whatever happens."""
    table: dict[str, Any] = {}
    blocks: list[memoryview] = []
    end = 0
    for name, tensor in checkpoint.tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        start, end = end, end + flat.numel() * flat.element_size()
        table[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        blocks.append(flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b""))
    state = canonical_json(checkpoint.state).decode()
    metadata = {"format": "pt", "state": state, "sha256": _digest(state, table, blocks)}
    header = canonical_json({"__metadata__": metadata, **table})
    header += b" " * (-len(header) % 8)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it.

    Raises
    ------
    CheckpointError
        The file is missing, cut short, changed, or no checkpoint.
    """
    try:
        content = memoryview(bytearray(path.read_bytes()))
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror}.") from error
    try:
        size = int.from_bytes(content[:8], "little")
        if len(content) < 8 or size > min(len(content) - 8, _MOST_HEADER_BYTES):
            raise ValueError("it is cut short or no checkpoint")
        table = cast("dict[str, Any]", json.loads(bytes(content[8 : 8 + size])))
        metadata = table.pop("__metadata__")
        data = content[8 + size :]
        if metadata["sha256"] != _digest(metadata["state"], table, [data]):
            raise ValueError("its checksum differs: the bytes have changed or are cut short")
        tensors = {name: _tensor(entry, data) for name, entry in table.items()}
        return Checkpoint(tensors, cast("dict[str, Any]", json.loads(metadata["state"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The checkpoint {path} cannot be used: {error}.") from error


def _tensor(entry: Mapping[str, Any], data: memoryview) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
    start, end = (int(n) for n in entry["data_offsets"])
    count = math.prod(shape)
    if (
        not 0 <= start <= end <= len(data)
        or end - start != count * dtype.itemsize
        or min(shape, default=0) < 0
    ):
        raise ValueError("a tensor's shape does not fit its bytes")
    if not count:
        return torch.empty(shape, dtype=dtype)
    # copied, so that the tensor is aligned and owns its memory
    return (
        torch.frombuffer(data, dtype=torch.uint8, count=end - start, offset=start)
        .clone()
        .view(dtype)
        .reshape(shape)
    )


def _digest(state: str, table: Mapping[str, Any], blocks: list[memoryview]) -> str:
    digest = hashlib.sha256(canonical_json([state, dict(table)]))
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoint folder of one run."""

    folder: Path
    identity: str  #: fingerprint of configuration and store; files of another run are refused

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Save the whole state after optimiser step `step`, and drop all but the newest `KEEP`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / f"step-{step:08d}{_SUFFIX}", self._signed(checkpoint))
        for path in list(self._newest_first())[KEEP:]:
            path.unlink()

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Save the weights with the best validation value so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / f"best{_SUFFIX}", self._signed(checkpoint))

    def best(self) -> Checkpoint:
        """Read the best weights.

        Raises
        ------
        CheckpointError
            There are none, or they are damaged or another run's.
        """
        try:
            return self._checked(self.folder / f"best{_SUFFIX}")
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} These are the weights of the finished training: delete the run folder {self.folder.parent} "
                "to train again, or choose another one with --out."
            ) from error

    def latest(self) -> Checkpoint | None:
        """Read the newest state that is whole; None before the first one was saved.

        A damaged file is skipped with a warning as long as an older one is whole.

        Raises
        ------
        CheckpointError
            There are files but none can be used.
        """
        errors: list[CheckpointError] = []
        for path in self._newest_first():
            try:
                found = self._checked(path)
            except CheckpointError as error:
                errors.append(error)
                continue
            if errors:
                problems = " ".join(str(error) for error in errors)
                warnings.warn(f"{problems} Going on from {path.name}.", BandstreamWarning, stacklevel=2)
            return found
        if errors:
            raise CheckpointError(
                f"{' '.join(str(error) for error in errors)} No other checkpoint is left: delete {self.folder} to "
                "train from the start, or choose another run folder with --out."
            )
        return None

    def _newest_first(self) -> Iterator[Path]:
        names = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [path for path in names if re.fullmatch(rf"step-\d{{8,}}\{_SUFFIX}", path.name)]
        return iter(sorted(found, key=lambda path: int(path.stem.removeprefix("step-")), reverse=True))

    def _signed(self, checkpoint: Checkpoint) -> Checkpoint:
        return Checkpoint(checkpoint.tensors, {**checkpoint.state, "identity": self.identity})

    def _checked(self, path: Path) -> Checkpoint:
        checkpoint = read(path)
        if checkpoint.state.get("identity") != self.identity:
            raise CheckpointError(
                f"The checkpoint {path} belongs to another run: its configuration or store differs."
            )
        return checkpoint
