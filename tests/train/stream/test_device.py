"""The device feed: one batch ahead, nothing reused too early, and on the CPU nothing at all."""

from __future__ import annotations

import gc
import time
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from bandstream.train.stream import PatchStream, device
from bandstream.train.stream.augment import Augmentation, AugmentConfig, mixup_roll
from bandstream.train.stream.device import CudaCopier, DeviceFeed, FeedStats
from bandstream.train.stream.order import sample_keys

CPU = torch.device("cpu")


class Host:
    """Yields batches and notes how many were taken, and that it was closed."""

    def __init__(self, number: int, fail_at: int | None = None) -> None:
        self.number, self.fail_at, self.taken, self.closed = number, fail_at, 0, 0

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Any:
        try:
            for step in range(self.number):
                if step == self.fail_at:
                    raise ValueError(f"batch {step} is broken")
                self.taken += 1
                yield {"step": step, "image": torch.full((4, 3), float(step))}
        finally:
            self.closed += 1


class FakeCopier:
    """Notes in which order the feed calls; copies one ahead, as the one for CUDA does."""

    ahead = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def start(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("start", batch["step"]))
        return batch

    def hand_over(self, ticket: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("hand over", ticket["step"]))
        return ticket

    def finish(self) -> None:
        self.calls.append(("finish", -1))


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> FakeCopier:
    fake = FakeCopier()
    monkeypatch.setattr(DeviceFeed, "_copier", lambda _: fake)
    return fake


# -- on the CPU --------------------------------------------------------------------------------------------------


def test_on_the_cpu_batches_pass_through_as_they_are(shared_store):
    stream = PatchStream(shared_store(), batch_size=4)
    plain = [{name: torch.as_tensor(value).clone() for name, value in batch.items()} for batch in stream]
    feed = DeviceFeed(stream, "cpu")
    assert len(feed) == len(stream) == len(plain)
    for batch, expected in zip(feed, plain, strict=True):
        assert batch.keys() == expected.keys()
        assert all(torch.equal(torch.as_tensor(batch[name]), expected[name]) for name in batch)
    stats = feed.stats()
    assert stats.batches == len(plain)
    assert stats.wait_seconds > 0
    assert (stats.copied_bytes, stats.copy_seconds, stats.stall_seconds, stats.overlap) == (0, 0, 0, None)


def test_on_the_cpu_nothing_is_taken_ahead_nor_kept():
    host = Host(3)
    feed = iter(DeviceFeed(host, CPU))
    for step in range(3):
        batch = next(feed)
        assert host.taken == step + 1
        image = weakref.ref(batch["image"])
        del batch
        gc.collect()
        assert image() is None, "a stream's buffer returns to its pool when nobody holds the batch"
    assert next(feed, None) is None


def test_waiting_for_batches_is_measured():
    def slow() -> Any:
        for step in range(3):
            time.sleep(0.02)
            yield {"step": step}

    feed = DeviceFeed(slow(), CPU)
    for _ in feed:
        time.sleep(0.05)
    assert 0.06 <= feed.stats().wait_seconds < 0.14


def test_the_feed_augments_where_the_stream_does_not():
    change = Augmentation(AugmentConfig(noise_std=0.1), np.float32([0.1]))
    key = sample_keys(1, 0, np.arange(4))
    image = torch.ones(4, 3, 5, 5)
    batch = {
        "image": image.clone(),
        "label": torch.ones(4, dtype=torch.int64),
        "mask": torch.ones(4, dtype=torch.bool),
        "key": torch.from_numpy(key.view(np.int64)),
    }
    expected = {name: value.numpy().copy() for name, value in batch.items()}
    change(expected, key)
    (given,) = DeviceFeed([batch], CPU, augment=change.on_device)
    assert not torch.equal(given["image"], image)
    np.testing.assert_allclose(given["image"].numpy(), expected["image"], rtol=1e-6)


@pytest.mark.parametrize("patch", [None, 3])
def test_what_the_feed_augments_is_what_the_stream_would(shared_store, patch):
    config = AugmentConfig(flips=True, mixup_alpha=0.4, noise_std=0.1, band_dropout_probability=0.2)
    store = shared_store()
    given = {"patch": patch, "batch_size": 6, "lanes": 4}
    change = partial(Augmentation.of(config, store).on_device, roll=mixup_roll(6, 1, 4))
    fed = DeviceFeed(PatchStream(store, **given, keys=True), CPU, augment=change)
    for one, other in zip(PatchStream(store, **given, augment=config), fed, strict=True):
        assert other.keys() - one.keys() == {"key"}
        for name in one.keys() - {"step"}:
            torch.testing.assert_close(other[name], one[name], rtol=1e-5, atol=1e-6)


# -- order of copies ---------------------------------------------------------------------------------------------


def test_the_next_copy_is_begun_before_a_batch_is_handed_over(copier):
    host, seen = Host(3), []
    for batch in DeviceFeed(host, CPU):
        seen.append(batch["step"])
        assert host.taken == min(3, batch["step"] + 2), "one ahead, and no more"
    assert seen == [0, 1, 2]
    assert copier.calls == [
        ("start", 0),
        ("start", 1),
        ("hand over", 0),
        ("start", 2),
        ("hand over", 1),
        ("hand over", 2),
        ("finish", -1),
    ]
    assert host.closed == 1


@pytest.mark.parametrize("number", [0, 1])
def test_few_batches_come_out_too(copier, number):
    assert [batch["step"] for batch in DeviceFeed(Host(number), CPU)] == list(range(number))
    assert copier.calls[-1] == ("finish", -1)


def test_left_early_the_feed_waits_for_its_copies_and_closes_the_stream(copier):
    host = Host(9)
    feed = iter(DeviceFeed(host, CPU))
    next(feed)
    feed.close()
    assert copier.calls[-1] == ("finish", -1)
    assert host.closed == 1


def test_an_error_of_the_stream_comes_through_and_leaves_nothing_under_way(copier):
    host = Host(9, fail_at=2)
    feed = iter(DeviceFeed(host, CPU))
    assert next(feed)["step"] == 0
    with pytest.raises(ValueError, match="batch 2 is broken"):
        next(feed)
    assert copier.calls[-1] == ("finish", -1)
    assert host.closed == 1


# -- the copier for CUDA, on a device that only counts -----------------------------------------------------------


class FakeGpu:
    """CUDA events and streams that end when the test says so; nothing is computed.

    This shows the bookkeeping (what is kept for how long, what waits for what), not that CUDA does as it is told.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.copies_end = self.computing_ends = True
        gpu = self

        class Stream:
            def __init__(self, name: object) -> None:
                self.name = name if isinstance(name, str) else "side"

            def wait_event(self, event: Event) -> None:
                gpu.log.append(f"{self.name} waits for {event.stream}")

            def synchronize(self) -> None:
                gpu.log.append(f"synchronize {self.name}")
                gpu.copies_end = True

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.stream = "none"

            def record(self, stream: Stream | None = None) -> None:
                self.stream = (stream or gpu.current).name

            def query(self) -> bool:
                return gpu.copies_end if self.stream == "side" else gpu.computing_ends

            def synchronize(self) -> None:
                gpu.log.append(f"synchronize with {self.stream}")
                gpu.computing_ends = True

            def elapsed_time(self, _: Event) -> float:
                return 4.0 if self.stream == "side" else 1.0

        class Using:
            def __init__(self, stream: Stream) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                self.before, gpu.current = gpu.current, self.stream

            def __exit__(self, *_: object) -> None:
                gpu.current = self.before

        self.current = Stream("main")
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", Using)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current)
        monkeypatch.setattr(device, "_pinned", lambda value: value)
        monkeypatch.setattr(device, "_moved", self.moved)

    def moved(self, batch: dict[str, Any], _: torch.device) -> dict[str, Any]:
        assert self.current.name == "side"
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batch.items()
        }


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_host_memory_is_kept_until_its_copy_has_ended(gpu):
    stats = FeedStats()
    copier = CudaCopier(CPU, stats, None)
    gpu.copies_end = gpu.computing_ends = False
    batch = {"step": 0, "image": torch.ones(3)}
    image = weakref.ref(batch["image"])
    ticket = copier.start(batch)
    there = copier.hand_over(ticket)
    assert gpu.log == ["main waits for side"]
    del batch, ticket
    copier.start({"step": 1, "image": torch.ones(3)})
    gc.collect()
    assert image() is not None
    gpu.copies_end = True
    copier.start({"step": 2, "image": torch.ones(3)})
    gc.collect()
    assert image() is None
    assert torch.equal(there["image"], torch.ones(3))
    assert stats.copied_bytes == 36
    assert stats.batches == 0
    gpu.computing_ends = True
    copier.start({"step": 3, "image": torch.ones(3)})
    assert stats.copy_seconds == pytest.approx(4e-3)
    assert stats.stall_seconds == pytest.approx(1e-3)
    assert stats.overlap == pytest.approx(0.75)


def test_a_host_that_runs_ahead_is_held_up(gpu):
    copier = CudaCopier(CPU, FeedStats(), None)
    gpu.computing_ends = False
    for step in range(3):
        copier.hand_over(copier.start({"step": step, "image": torch.ones(3)}))
    assert "synchronize with main" not in gpu.log
    copier.hand_over(copier.start({"step": 3, "image": torch.ones(3)}))
    assert gpu.log.count("synchronize with main") == 1


def test_leaving_waits_for_the_copies_and_lets_go_of_everything(gpu):
    gpu.copies_end = gpu.computing_ends = False
    copier = CudaCopier(CPU, FeedStats(), None)
    batches = [{"step": step, "image": torch.ones(3)} for step in range(2)]
    images = [weakref.ref(batch["image"]) for batch in batches]
    copier.hand_over(copier.start(batches[0]))
    copier.start(batches[1])
    batches.clear()
    copier.finish()
    gc.collect()
    assert "synchronize side" in gpu.log
    assert all(image() is None for image in images)


# -- on a real device --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_arrive_whole_on_the_device_while_it_computes(pinned):
    """Host buffers are overwritten as soon as nobody holds them, and the device is kept busy between batches."""
    there = torch.device("cuda")
    busy = torch.randn(2048, 2048, device=there)
    pool = [torch.empty(16, 32, 64, 64, pin_memory=pinned) for _ in range(6)]

    def host() -> Any:
        for step in range(40):
            buffer = next(one for one in pool if one.untyped_storage().nbytes() and not held(one))
            image = buffer.view(16, 32, 64, 64)
            image.fill_(step)
            holders.append((id(buffer), weakref.ref(image)))
            yield {"step": step, "image": image}
            del image

    holders: list[tuple[int, weakref.ref[torch.Tensor]]] = []

    def held(buffer: torch.Tensor) -> bool:
        return any(key == id(buffer) and ref() is not None for key, ref in holders)

    feed, sums = DeviceFeed(host(), there), []
    for batch in feed:
        assert batch["image"].device.type == "cuda"
        for _ in range(5):
            busy = busy @ busy
            busy = busy / busy.norm()
        sums.append(batch["image"].double().mean())
        del batch
    assert torch.stack(sums).tolist() == list(range(40))
    stats = feed.stats()
    assert stats.batches == 40
    assert stats.copied_bytes == 40 * 16 * 32 * 64 * 64 * 4
    assert stats.copy_seconds > 0
    assert stats.overlap is not None
    assert 0 <= stats.overlap <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_augmentation_on_the_device_gives_the_numbers_of_the_cpu():
    rng = np.random.default_rng(0)
    config = AugmentConfig(
        flips=True, spectral_shift_bands=0.5, mixup_alpha=0.4, noise_std=0.1, band_dropout_probability=0.2
    )
    change = Augmentation(config, np.float32([0.1]), np.ones(7, np.float32))
    key = sample_keys(1, 0, np.arange(16))
    batch = {
        "image": rng.normal(size=(16, 8, 12, 12)).astype(np.float32),
        "label": rng.integers(0, 5, (16, 12, 12)),
        "mask": rng.random((16, 12, 12)) < 0.5,
    }
    there = {name: torch.from_numpy(value.copy()).cuda() for name, value in batch.items()}
    change(batch, key, 4)
    change.on_device(there, key, 4)
    for name, value in batch.items():
        np.testing.assert_allclose(there[name].cpu().numpy(), value, rtol=1e-5, atol=1e-6)
