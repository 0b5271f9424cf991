"""Batches on the device: copied one ahead of their use, beside the computing.

On CUDA the next batch is copied on a stream of its own while the model works on the current one, which then waits for
nothing but a copy that has usually ended. On the CPU batches pass through as they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .permutation import UInt64s

Batch = dict[str, Any]
Augment = Callable[[Batch, UInt64s], None]
_MOST_OPEN = 3  # batches under way that the device has not come to need yet


@dataclass
class FeedStats:
    """What the feeding of a device has taken so far."""

    batches: int = 0  #: given out
    copied_bytes: int = 0  #: from host to device
    wait_seconds: float = 0.0  #: the host waited for the batches themselves
    copy_seconds: float = 0.0  #: the device copied (and augmented), of what has ended
    stall_seconds: float = 0.0  #: of these, the computing had come to an end and waited

    @property
    def overlap(self) -> float | None:
        """Share of the copying that was hidden behind computing, 0 to 1; None where nothing was copied."""
        return max(0.0, 1.0 - self.stall_seconds / self.copy_seconds) if self.copy_seconds else None


class DeviceFeed:
    """The batches of a stream with their tensors on a device.

    Parameters
    ----------
    batches
        A `PatchStream`, a DataLoader around one, or any iterable of dicts with tensors among their values. Tensors in
        pinned memory are copied without the host waiting; others are pinned first, which costs a copy on the host.
    device
        Where to.
    augment
        Called with each batch on the device and the keys of its samples, from the batch's `key`, before it is handed
        out: `Augmentation.on_device`, where the stream itself does not augment and has `keys=True`; for mixup with a
        `roll` of `mixup_roll`.

    Notes
    -----
    The feed takes one batch more from `batches` than it has given out. For a checkpoint take the state after the batch
    trained last, ``stream.state_dict(step=batch["step"])``, as the step is known only where it is trained.

    A batch belongs to the CUDA stream that was current when it was asked for. Where the host runs ahead of the device it
    is held up, so that at most four batches lie there.
    """

    def __init__(
        self, batches: Iterable[Batch], device: torch.device | str, augment: Augment | None = None
    ) -> None:
        self._batches, self._augment = batches, augment
        self.device = torch.device(device)
        self._stats = FeedStats()

    def stats(self) -> FeedStats:
        """What all iterations of this feed have taken together."""
        return self._stats

    def __len__(self) -> int:
        return len(self._batches)  # pyright: ignore[reportArgumentType] - as long as what it feeds, if that has a length

    def __iter__(self) -> Iterator[Batch]:
        # begun now and not when the first batch is asked for, as the stream itself does it
        return self._feed(iter(self._batches), self._copier())

    def _copier(self) -> Copier:
        if self.device.type == "cuda":
            return CudaCopier(self.device, self._stats, self._augment)
        return NoCopies(self.device, self._augment)

    def _feed(self, source: Iterator[Batch], copier: Copier) -> Generator[Batch]:
        waiting: deque[Any] = deque()
        try:
            while True:
                # the next copy is on its way before this batch is handed out: it runs while the caller computes
                self._fill(waiting, source, copier)
                if not waiting:
                    return
                self._stats.batches += 1
                yield copier.hand_over(waiting.popleft())
        finally:
            copier.finish()
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _fill(self, waiting: deque[Any], source: Iterator[Batch], copier: Copier) -> None:
        # a function of its own: no name here may hold a batch, and thus its buffers, while the caller computes
        while len(waiting) <= copier.ahead and (batch := self._next(source)) is not None:
            waiting.append(copier.start(batch))

    def _next(self, source: Iterator[Batch]) -> Batch | None:
        began = time.perf_counter()
        batch = next(source, None)
        self._stats.wait_seconds += time.perf_counter() - began
        return batch


class Copier(Protocol):
    """Brings batches to a device."""

    ahead: int  #: copies begun before they are needed

    def start(self, batch: Batch) -> Any:
        """Begin to copy a batch and return a ticket for it."""
        ...

    def hand_over(self, ticket: Any) -> Batch:
        """Return the batch on the device, ready for what is launched from now on."""
        ...

    def finish(self) -> None:
        """Wait for what is under way, so that its host memory may be reused."""
        ...


class NoCopies:
    """Passes batches through where host and device are one, or moves them there and then."""

    ahead = 0

    def __init__(self, device: torch.device, augment: Augment | None) -> None:
        self._device, self._augment = device, augment

    def start(self, batch: Batch) -> Batch:
        """Return the batch; on the CPU it is the same one."""
        there = batch if self._device.type == "cpu" else _moved(batch, self._device)
        _augmented(there, batch, self._augment)
        return there

    def hand_over(self, ticket: Batch) -> Batch:
        """Return what `start` has made."""
        return ticket

    def finish(self) -> None:
        """Do nothing: nothing is under way."""


@dataclass(eq=False)
class _Copy:
    host: (
        Batch  #: kept until the copy has ended: a stream's buffers return to its pool when nobody holds them
    )
    batch: Batch
    began: torch.cuda.Event
    ended: torch.cuda.Event
    needed: torch.cuda.Event | None = None  #: when the computing came to where it needs the batch

    def settled(self) -> bool:
        """Whether the device is past the copy, and past all that came before its use."""
        if self.ended.query():
            self.host = {}
        return self.needed is not None and self.needed.query() and self.ended.query()


class CudaCopier:
    """Copies on a CUDA stream of its own."""

    ahead = 1

    def __init__(self, device: torch.device, stats: FeedStats, augment: Augment | None) -> None:
        self._device, self._stats, self._augment = device, stats, augment
        self._stream = torch.cuda.Stream(device)
        self._open: deque[_Copy] = deque()

    def start(self, batch: Batch) -> _Copy:
        """Begin to copy the tensors of a batch; other values stay as they are."""
        if len(self._open) >= _MOST_OPEN and (needed := self._open[0].needed) is not None:
            needed.synchronize()
        self._settle()
        host = {name: _pinned(value) for name, value in batch.items()}
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            began.record()
            there = _moved(host, self._device)
            _augmented(there, host, self._augment)
            ended.record()
        self._stats.copied_bytes += sum(
            value.nbytes for value in host.values() if isinstance(value, Tensor) and not value.is_cuda
        )
        self._open.append(_Copy(host, there, began, ended))
        return self._open[-1]

    def hand_over(self, ticket: _Copy) -> Batch:
        """Let the current stream wait for the copy, and return the batch."""
        current = torch.cuda.current_stream(self._device)
        ticket.needed = torch.cuda.Event(enable_timing=True)
        ticket.needed.record(current)
        current.wait_event(ticket.ended)
        batch, ticket.batch = ticket.batch, {}
        for value in batch.values():
            if isinstance(value, Tensor) and value.is_cuda:
                # its memory was taken on the side stream, and must not be given away before this stream is done
                value.record_stream(current)
        return batch

    def finish(self) -> None:
        """Wait for the copies under way and let go of their host memory."""
        self._stream.synchronize()
        for copy in self._open:
            if copy.needed is not None:
                copy.needed.synchronize()
        self._settle()
        self._open.clear()

    def _settle(self) -> None:
        """Let go of the host memory of copies that have ended, and count those that the device is past."""
        past = [copy for copy in self._open if copy.settled()]
        for copy in past:
            assert copy.needed is not None
            self._open.remove(copy)
            self._stats.copy_seconds += copy.began.elapsed_time(copy.ended) / 1e3
            # negative where the copy had ended before it was needed
            self._stats.stall_seconds += max(0.0, copy.needed.elapsed_time(copy.ended) / 1e3)


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def _augmented(there: Batch, host: Batch, augment: Augment | None) -> None:
    if augment is not None:
        augment(there, np.asarray(host["key"]).view(np.uint64))


def _pinned(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.is_cuda or value.is_pinned():
        return value
    return value.pin_memory()
