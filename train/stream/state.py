"""What a checkpoint keeps of a stream, and whether a stream may go on from it.

A state says what the stream is (`identity`: stores, split, seed, global batch, ...), its epoch, and how many samples of
the epoch have been used. It says nothing about ranks or workers, so that any number of them may go on from it. The
exception is a state taken inside a DataLoader worker, as torchdata's StatefulDataLoader does: it tells where that one
worker stands, and only the same worker of as many takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ...pipeline.errors import CheckpointError
from .arguments import is_integer

STATE_VERSION = 2


@dataclass(frozen=True)
class StreamState:
    """A state that was read and fits the stream."""

    lanes: int
    window: int
    epoch: int
    step: int  #: the batch to go on with; in a worker, its own next one


def write_state(
    identity: Mapping[str, Any],
    order: Mapping[str, int],
    epoch: int,
    step: int,
    worker: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return a state of JSON-serialisable values.

    Parameters
    ----------
    identity
        What a stream that goes on from it must share, `global_batch` among it.
    order
        `lanes` and `window`.
    epoch
        Of the batches.
    step
        The batch to go on with: of all, or of the worker.
    worker
        Number of this DataLoader worker, and of all of them; None: the state holds for all.
    """
    state = {
        "version": STATE_VERSION,
        **identity,
        **order,
        "epoch": epoch,
        "samples": step * identity["global_batch"],
    }
    return state if worker is None else state | {"worker": list(worker)}


def read_state(
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    steps: int,
    world_size: int,
    worker: tuple[int, int] | None = None,
) -> StreamState:
    """Check a state against a stream.

    Parameters
    ----------
    state
        Of `write_state`.
    identity
        Of the stream that is to go on.
    steps
        Batches of its epochs.
    world_size
        Its ranks.
    worker
        Number of this DataLoader worker, and of all of them; None outside of one.

    Raises
    ------
    CheckpointError
        The state belongs to another stream, names both values of what differs, or is damaged.
    """
    for name, own in {"version": STATE_VERSION, **identity}.items():
        if name not in state:
            raise CheckpointError(f"The stream state of the checkpoint lacks {name!r}; it is damaged.")
        if state[name] != own or isinstance(state[name], bool) != isinstance(own, bool):
            raise CheckpointError(
                f"The checkpoint was made with {name} {state[name]!r}, while this stream has {name} {own!r}. "
                + _advice(name, state[name], world_size)
            )
    if state.get("worker") != (None if worker is None else list(worker)):
        raise CheckpointError(
            f"The stream state of the checkpoint is {_whose(state.get('worker'))}, which {_whose(worker)} cannot go on "
            "from. Give state_dict(step) of the main process to the stream, and a StatefulDataLoader's own state to one "
            "of as many workers."
        )
    epoch, samples = _integer(state, "epoch", 0), _integer(state, "samples", 0)
    step, rest = divmod(samples, identity["global_batch"])
    # a worker's next batch lies beyond the end by the others' at most
    if rest or step > steps + (0 if worker is None else worker[1] - 1):
        raise CheckpointError(
            f"The stream state of the checkpoint has {samples} samples, which is no whole number of batches of "
            f"{identity['global_batch']} within an epoch of {steps} batches; it is damaged."
        )
    return StreamState(_integer(state, "lanes", 1), _integer(state, "window", 1), epoch, step)


def _advice(name: str, theirs: Any, world_size: int) -> str:
    if name != "global_batch" or not is_integer(theirs) or theirs < 1:
        return f"Resume with the same {name}, or start a new run."
    if theirs % world_size:
        allowed = ", ".join(str(n) for n in range(1, min(theirs, 4096) + 1) if theirs % n == 0)
        return (
            f"{world_size} ranks cannot share a global batch of {theirs} equally; resume on a number of ranks that "
            f"divides it ({allowed})."
        )
    return f"On {world_size} ranks give batch_size={theirs // world_size}, or start a new run."


def _whose(worker: Any) -> str:
    if not isinstance(worker, list | tuple) or len(cast("list[Any]", worker)) != 2:
        return "that of a whole stream"
    number, of = cast("list[Any]", worker)
    return f"that of DataLoader worker {number} of {of}"


def _integer(state: Mapping[str, Any], name: str, least: int) -> int:
    value = state.get(name)
    if not is_integer(value) or cast("int", value) < least:
        raise CheckpointError(
            f"The stream state of the checkpoint has {name} {value!r} where an integer of at least {least} belongs; it "
            "is damaged."
        )
    return cast("int", value)
