"""How fast a stream is on this machine, and what holds it back."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .patch_stream import PatchStream
from .prefetch import StreamStats

Limit = Literal["reading", "decoding", "gathering", "augmentation", "consumer"]

#: Share of the time that a consumer may wait before the stream, and not the consumer's own thread, is what limits
_WAITS = 0.1


@dataclass(frozen=True)
class Speed:
    """A stream's rate over some seconds, and where the time went."""

    seconds: float  #: measured
    first_batch_s: float  #: from asking to having the first batch, nothing read before
    batches: int
    samples: int
    samples_per_s: float
    mb_per_s: float  #: of images, as they come in batches, 10^6 bytes
    wait_share: float  #: of the time measured, in which the consumer waited for blocks
    step_share: float  #: of the time measured, in which the consumer did its own work
    read_share: float  #: of the stream's work in all threads: waiting for bytes
    decode_share: float  #: ... comparing checksums and decoding
    gather_share: float  #: ... copying samples into batches
    augment_share: float
    bytes_read: int  #: in the time measured, as they lie in the store
    blocks_read: int
    blocks: int  #: that hold samples
    slots: int  #: blocks that may lie decoded in memory
    threads: int
    limit: Limit


def measure(
    stream: PatchStream,
    seconds: float,
    step_s: float = 0.0,
    advance: Callable[[float], None] = lambda _: None,
) -> Speed:
    """Run a stream and measure it, once it has warmed up.

    Parameters
    ----------
    stream
        Not iterated yet.
    seconds
        To measure, whole batches; as long, or one epoch if that is shorter, goes before it.
    step_s
        Seconds that the consumer takes for each batch; a stand-in for training.
    advance
        Told now and then how many seconds have passed.
    """
    clock = _Clock(advance)
    stream.set_epoch(0)
    batches = iter(stream)
    next(batches)
    first_batch_s = clock.passed()
    while clock.passed() < seconds and next(batches, None) is not None:
        _work(step_s)
    before, start = dataclasses.replace(stream.stats()), clock.passed()
    count = samples = image_bytes = 0
    working_s, epoch = 0.0, 0
    while (passed := clock.passed() - start) < seconds:
        batch = next(batches, None)
        if batch is None:
            epoch += 1
            stream.set_epoch(epoch)
            batches = iter(stream)
            continue
        count, samples = count + 1, samples + len(batch["image"])
        image_bytes += batch["image"].nbytes
        working_s += _work(step_s)
    passed = clock.passed() - start
    return _speed(before, stream.stats(), passed, first_batch_s, working_s, (count, samples, image_bytes))


class _Clock:
    """Seconds since it was made, told on as they pass."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance, self._start, self._told = advance, time.perf_counter(), 0.0

    def passed(self) -> float:
        passed = time.perf_counter() - self._start
        if passed - self._told > 0.2:
            self._advance(passed - self._told)
            self._told = passed
        return passed


def _work(step_s: float) -> float:
    if step_s <= 0:
        return 0.0
    start = time.perf_counter()
    time.sleep(step_s)
    return time.perf_counter() - start


def _speed(
    before: StreamStats,
    after: StreamStats,
    seconds: float,
    first_batch_s: float,
    working_s: float,
    counts: tuple[int, int, int],
) -> Speed:
    batches, samples, image_bytes = counts
    spent = {
        "reading": after.read_s - before.read_s,
        "decoding": after.decode_s - before.decode_s,
        "gathering": after.gather_s - before.gather_s,
        "augmentation": after.augment_s - before.augment_s,
    }
    work = sum(spent.values()) or 1.0
    wait_share = (after.wait_s - before.wait_s) / seconds
    return Speed(
        seconds=seconds,
        first_batch_s=first_batch_s,
        batches=batches,
        samples=samples,
        samples_per_s=samples / seconds,
        mb_per_s=image_bytes / seconds / 1e6,
        wait_share=wait_share,
        step_share=working_s / seconds,
        read_share=spent["reading"] / work,
        decode_share=spent["decoding"] / work,
        gather_share=spent["gathering"] / work,
        augment_share=spent["augmentation"] / work,
        bytes_read=after.bytes_read - before.bytes_read,
        blocks_read=after.blocks_read - before.blocks_read,
        blocks=after.blocks,
        slots=after.slots,
        threads=after.threads,
        limit=limit_of(
            spent["reading"],
            spent["decoding"],
            spent["gathering"],
            spent["augmentation"],
            working_s,
            wait_share,
        ),
    )


def limit_of(
    read_s: float, decode_s: float, gather_s: float, augment_s: float, working_s: float, wait_share: float
) -> Limit:
    """Return what a stream would have to do faster to be faster.

    Parameters
    ----------
    read_s, decode_s, gather_s, augment_s
        Seconds that all threads spent on each.
    working_s
        Seconds of the consumer's own work.
    wait_share
        Of the time that the consumer waited for blocks.
    """
    if wait_share > _WAITS:
        return "reading" if read_s > decode_s else "decoding"
    own: dict[Limit, float] = {"gathering": gather_s, "augmentation": augment_s, "consumer": working_s}
    return max(own, key=lambda name: own[name])


def advice(speed: Speed, *, remote: bool, codec: str, cached: bool) -> str:
    """Return in one paragraph what limits a stream and what to change.

    Parameters
    ----------
    speed
        As measured.
    remote
        Whether the store lies in a bucket.
    codec
        Of the store: `default`, `zstd` or `none`.
    cached
        Whether a folder keeps what was fetched.
    """
    match speed.limit:
        case "reading":
            told = _slow_reading(speed, remote=remote, codec=codec, cached=cached)
        case "decoding":
            told = _slow_decoding(speed, codec=codec)
        case "gathering":
            told = (
                f"Gathering limits: blocks are there in time, and one thread copies {speed.samples_per_s:.0f} samples/s "
                f"into batches, {speed.mb_per_s:.0f} MB/s. Larger batches (--batch) save some overhead; DataLoader workers "
                "or more ranks bring further threads."
            )
        case "augmentation":
            told = (
                f"Augmentation limits: it takes {100 * speed.augment_share:.0f} % of the stream's work. Do it on the "
                "device, leave kinds of it out, or use DataLoader workers."
            )
        case "consumer":
            told = (
                f"The consumer limits: its own steps take {100 * speed.step_share:.0f} % of the time, and it waits for "
                f"data in {100 * speed.wait_share:.1f} %. A faster stream would gain nothing."
            )
    if not speed.blocks_read:
        return f"{told} All {speed.blocks} blocks lie decoded in memory, and nothing is read any more."
    if speed.slots < speed.blocks and speed.limit in ("reading", "decoding"):
        return (
            f"{told} There is room for {speed.slots} of the {speed.blocks} blocks in memory, and the others are read again "
            "in each epoch; a larger --budget keeps more."
        )
    return told


def _slow_reading(speed: Speed, *, remote: bool, codec: str, cached: bool) -> str:
    changes = ["put the store on a faster disk"]
    if remote:
        changes = [] if cached else ["keep what was fetched on a local disk (--cache FOLDER)"]
        changes.append(
            f"let more than {speed.threads} requests wait at a time (--threads, and --budget to hold them)"
        )
    if codec != "zstd":
        changes.append("build the store with `codec: zstd`, which is smaller")
    rate = speed.bytes_read / speed.seconds / 1e6
    return f"Reading limits: {rate:.0f} MB/s came from the store. To go faster, {', or '.join(changes)}."


def _slow_decoding(speed: Speed, *, codec: str) -> str:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = speed.threads < processors
    changes = [f"use more threads (--threads {processors})" if few else "use more processors"]
    if codec != "none":
        changes.append("build the store with `codec: none`, which is larger and needs no decoding")
    return (
        f"Decoding limits: it is {100 * speed.decode_share:.0f} % of what {speed.threads} threads on {processors} "
        f"processors do. To go faster, {', or '.join(changes)}."
    )
