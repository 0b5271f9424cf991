"""Reading ahead: latency is hidden, memory stays bounded, threads end, and errors come where they belong."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bandstream.pipeline.errors import ConfigError
from bandstream.train.stream import PatchStream
from bandstream.train.stream.blocks import Slots
from bandstream.train.stream.bytes_source import LocalSource
from bandstream.train.stream.engine import MemoryPlan


def threads() -> int:
    return sum(thread.name == "bandstream-read" for thread in threading.enumerate())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Slow(LocalSource):
    """Every request takes its time."""

    latency_s = 0.05
    at_once = most = 0

    def read(self, name, ranges, out):
        Slow.at_once += 1
        Slow.most = max(Slow.most, Slow.at_once)
        time.sleep(self.latency_s)
        super().read(name, ranges, out)
        Slow.at_once -= 1


def slow_sources(monkeypatch) -> None:
    monkeypatch.setattr(Slow, "most", 0)
    monkeypatch.setattr(
        "bandstream.train.stream.patch_stream.open_source", lambda store, cache: Slow(store.path)
    )


def test_requests_overlap_until_latency_is_hidden(shared_store, monkeypatch):
    store = shared_store(
        chunk=1, shard=256, shapes=[(128, 128)], halo=1, split="train", classes=0, invalid=0.0
    )
    monkeypatch.setattr(MemoryPlan, "of", lambda *_: MemoryPlan(128, 64, 0))
    slow_sources(monkeypatch)
    stream = PatchStream(store, split="all", batch_size=4)
    list(stream)
    before = stream.stats().blocks_read
    start = time.perf_counter()
    for epoch in (1, 2):
        stream.set_epoch(epoch)
        list(stream)
    passed, blocks = time.perf_counter() - start, stream.stats().blocks_read - before
    assert Slow.most >= 16
    assert passed < 0.2 * blocks * Slow.latency_s, "one after the other it would take five times as long"


def test_reading_goes_on_over_the_end_of_an_epoch(shared_store, monkeypatch):
    store = shared_store(chunk=1, shard=8)
    monkeypatch.setattr(MemoryPlan, "of", lambda *_: MemoryPlan(24, 8, 0))
    stream, other = (PatchStream(store, split="all", batch_size=4, threads=2) for _ in range(2))
    list(stream)
    while stream._engine.prefetcher._loading:
        time.sleep(0.01)
    planned = stream._engine.prefetcher._queue
    assert planned
    assert planned[0][0] == (1, 0)
    # and is dropped where another epoch comes
    for epoch in (1, 5, 5, 2):
        for one in (stream, other):
            one.set_epoch(epoch)
        for a, b in zip(list(stream), list(other), strict=True):
            assert np.array_equal(a["tile"], b["tile"])
            assert np.array_equal(a["image"], b["image"])


def test_the_threads_end_by_themselves(shared_store):
    stream = PatchStream(shared_store(), batch_size=4)
    list(stream)
    until = time.monotonic() + 10
    while threads() and time.monotonic() < until:
        time.sleep(0.05)
    assert not threads()
    assert len(list(stream)) == len(stream)


@pytest.mark.parametrize("end", ["close", "drop", "iterator"])
def test_threads_and_files_go_with_the_stream(shared_store, end):
    gc.collect()
    files = open_files()
    stream = PatchStream(shared_store(), batch_size=4)
    batches = iter(stream)
    next(batches)
    if end == "close":
        stream.close()
    elif end == "iterator":
        batches.close()
    del stream, batches
    until = time.monotonic() + 10
    while (threads() or open_files() > files) and time.monotonic() < until:
        time.sleep(0.02)
    assert not threads()
    assert open_files() <= files


def test_a_closed_stream_begins_afresh(shared_store):
    stream = PatchStream(shared_store(), batch_size=4)
    first = [batch["tile"].tolist() for batch in stream]
    stream.close()
    stream.close()
    assert [batch["tile"].tolist() for batch in stream] == first


def test_a_second_iteration_takes_the_stream_over(shared_store):
    stream = PatchStream(shared_store(), batch_size=4)
    old = iter(stream)
    next(old)
    next(old)
    assert [batch["step"] for batch in stream] == list(range(len(stream))), "it begins at its start"
    with pytest.raises(ConfigError, match="Another iteration"):
        list(old)


@pytest.mark.parametrize("how", ["close", "lanes"])
def test_an_iteration_whose_stream_was_closed_says_so(shared_store, how):
    stream = PatchStream(shared_store(), batch_size=4)
    old = iter(stream)
    next(old)
    if how == "close":
        stream.close()
    else:  # another order makes everything anew
        stream.load_state_dict(PatchStream(shared_store(), batch_size=4, lanes=3).state_dict(step=0))
        next(iter(stream))
    with pytest.raises(ConfigError, match="it was closed"):
        next(old)


def test_closing_ends_the_wait_of_another_thread(shared_store, monkeypatch):
    monkeypatch.setattr(Slots, "decode", lambda *_: time.sleep(0.3))
    stream = PatchStream(shared_store(chunk=1), batch_size=16, threads=1)
    caught = []

    def consume() -> None:
        try:
            next(iter(stream))
        except ConfigError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    time.sleep(0.1)
    stream.close()
    consumer.join(10)
    assert caught


def test_what_was_done_is_counted(shared_store):
    store = shared_store(codec="none")
    stream = PatchStream(store, split="all", batch_size=4)
    assert stream.stats().batches == 0
    list(stream)
    stats = stream.stats()
    assert (stats.batches, stats.samples) == (len(stream), 4 * len(stream))
    assert stats.blocks_read == stats.blocks == -(-len(store) // 4)
    assert stats.bytes_read > store.array("data").nbytes
    assert min(stats.read_s, stats.decode_s, stats.gather_s) > 0


@pytest.mark.parametrize("argument", [{"threads": 0}, {"budget_bytes": 0}, {"checksum": "sometimes"}])
def test_arguments_are_checked(shared_store, argument):
    with pytest.raises(ConfigError, match=next(iter(argument))):
        PatchStream(shared_store(), batch_size=4, **argument)


def test_threads_are_as_many_as_were_asked_for(shared_store, monkeypatch):
    store = shared_store(chunk=1, shard=8)
    slow_sources(monkeypatch)
    monkeypatch.setattr(Slow, "latency_s", 0.005)
    list(PatchStream(store, split="all", batch_size=4, threads=3))
    assert Slow.most <= 3
