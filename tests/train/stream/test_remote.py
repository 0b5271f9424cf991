"""Stores in a bucket as a source of bytes, against moto's S3 server behind a proxy that fails, or answers late."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import requests
import torch
from hypothesis import given
from hypothesis import strategies as st

from bandstream.pipeline import PatchStore, s3
from bandstream.pipeline.errors import ConfigError, RemoteError, StoreCorruptError
from bandstream.pipeline.storage import RemotePath, locate, sizes_below
from bandstream.train.stream import PatchStream
from bandstream.train.stream.blocks import Slots
from bandstream.train.stream.bytes_source import ByteSource
from bandstream.train.stream.remote import RemoteBytes, Request, _scatter, plan_requests
from bandstream.train.stream.samples import Samples, SampleSet
from bandstream.train.stream.shards import ReadTimes, ShardReader
from bandstream.train.stream.sources import identity, open_source

from ...pipeline.flaky_server import FAULTS, FlakyServer

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")

RNG = np.random.default_rng(0)
CONTENT = RNG.integers(0, 256, 200_000, dtype=np.uint8).tobytes()
OBJECT = "tiles/data/c/0/0/0/0"

MakeStore = Callable[..., PatchStore]
Twin = Callable[..., tuple[PatchStore, PatchStore]]


class LateServer(FlakyServer):
    """One that counts the requests under way, and can answer each of them late."""

    seconds = 0.0

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._counting = threading.Lock()
        self.under_way = self.most_under_way = 0

    def answer(self, request: Any) -> None:
        """Answer one request."""
        with self._counting:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(self.seconds)
        try:
            super().answer(request)
        finally:
            with self._counting:
                self.under_way -= 1

    def calm(self) -> None:
        """Pass everything on at once from now, and forget what was seen."""
        super().calm()
        self.seconds, self.most_under_way = 0.0, 0


@pytest.fixture(scope="module")
def server() -> Generator[LateServer]:
    """A proxy before one S3 server for all tests here."""
    logging.getLogger("werkzeug").disabled = True
    behind = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    behind.start()
    proxy = LateServer(behind.get_host_and_port()[1])
    yield proxy
    proxy.stop()
    behind.stop()


@pytest.fixture(scope="module")
def environment(server: LateServer) -> Generator[None]:
    """The variables that lead to the server, and a bucket with one object of known content."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in (
            *s3._SETTINGS,
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        ):
            patch.delenv(variable, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTKEYOFNOBODY")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-must-not-be-seen")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setattr(s3, "_WAITS", (0.01, 0.05, 0.1, 0.2))
        assert requests.put(f"{server.url}/bucket", timeout=10).status_code == 200
        cast("RemotePath", locate(f"s3://bucket/one.zarr/{OBJECT}")).write_bytes(CONTENT)
        yield


@pytest.fixture
def source(environment: None, server: LateServer) -> Iterator[RemoteBytes]:
    """The bytes of a store of one object; ranges share a request up to 1 KB apart, a request asks for at most 20 KB."""
    server.calm()
    made = RemoteBytes(_store("one"), gap_bytes=1000, request_bytes=20_000)
    yield made
    made.close()
    server.calm()


def _store(name: str) -> RemotePath:
    return cast("RemotePath", locate(f"s3://bucket/{name}.zarr"))


def _upload(store: PatchStore, name: str) -> PatchStore:
    """Copy a store into the bucket."""
    target = _store(name)
    with ThreadPoolExecutor(8) as pool:
        files = sizes_below(store.path)
        list(pool.map(lambda file: (target / file).write_bytes((store.path / file).read_bytes()), files))
    return PatchStore.open(target)


@pytest.fixture(scope="module")
def twin(environment: None, shared_store: MakeStore) -> Callable[..., tuple[PatchStore, PatchStore]]:
    """Return a function that gives a generated store and its copy in the bucket, which are not to be changed."""
    made: dict[str, tuple[PatchStore, PatchStore]] = {}

    def make(**changes: Any) -> tuple[PatchStore, PatchStore]:
        key = repr(sorted(changes.items()))
        if key not in made:
            local = shared_store(**changes)
            made[key] = local, _upload(local, f"twin-{len(made)}")
        return made[key]

    return make


def _read(source: RemoteBytes, ranges: list[tuple[int, int]], name: str = OBJECT) -> list[bytes]:
    buffers = [bytearray(length) for _, length in ranges]
    source.read(name, ranges, [memoryview(buffer) for buffer in buffers])
    return [bytes(buffer) for buffer in buffers]


def _wanted(ranges: list[tuple[int, int]]) -> list[bytes]:
    return [CONTENT[offset : offset + length] for offset, length in ranges]


RANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 700)), max_size=20)


@given(RANGES, st.integers(0, 300), st.integers(1, 900), st.integers(1, 400))
def test_requests_fetch_what_was_asked_for_and_no_more_than_the_gaps(
    ranges: list[tuple[int, int]], gap: int, most: int, piece: int
) -> None:
    buffers = [bytearray(length) for _, length in ranges]
    planned = plan_requests(ranges, [memoryview(buffer) for buffer in buffers], gap, most)
    wanted = {at for offset, length in ranges for at in range(offset, offset + length)}
    fetched = {at for one in planned for at in range(one.start, one.stop)}
    for one in planned:
        assert one.stop - one.start <= most
        assert {one.start, one.stop - 1} <= wanted
        body = CONTENT[one.start : one.stop]
        _scatter([body[at : at + piece] for at in range(0, len(body), piece)], one)
    assert wanted <= fetched
    extra = sorted(fetched - wanted)
    runs = np.split(extra, np.flatnonzero(np.diff(extra) > 1) + 1)
    assert all(len(run) <= gap for run in runs)
    assert [bytes(buffer) for buffer in buffers] == _wanted(ranges)


def test_a_body_that_ends_early_is_not_taken() -> None:
    with pytest.raises(s3.ShortBodyError, match="7 of 10 bytes"):
        _scatter([CONTENT[:7]], Request(0, 10, ((0, memoryview(bytearray(10))),)))


@pytest.mark.parametrize(
    ("ranges", "count"),
    [
        pytest.param([(0, 500), (500, 500)], 1, id="neighbours"),
        pytest.param([(1500, 500), (0, 500)], 1, id="within the gap, in any order"),
        pytest.param([(0, 500), (1501, 500)], 2, id="farther apart"),
        pytest.param([(10, 60_000)], 3, id="long"),
        pytest.param([(0, 15_000), (15_000, 15_000)], 2, id="too long together"),
        pytest.param([(100, 50), (120, 5), (100, 50)], 1, id="overlapping"),
        pytest.param([(100, 0)], 0, id="nothing"),
        pytest.param([], 0, id="no range"),
    ],
)
def test_neighbouring_ranges_share_a_request_and_long_ones_are_cut(
    source: RemoteBytes, server: LateServer, ranges: list[tuple[int, int]], count: int
) -> None:
    assert _read(source, ranges) == _wanted(ranges)
    assert len(server.seen) == count


def test_what_the_network_does_is_not_seen_in_the_bytes(source: RemoteBytes, server: LateServer) -> None:
    rng = np.random.default_rng(5)
    server.storm(seed=3, share=0.25)
    for _ in range(8):
        ranges = [(int(at), int(rng.integers(1, 9000))) for at in rng.integers(0, 190_000, 8)]
        assert _read(source, ranges) == _wanted(ranges)
        assert source.size(OBJECT) == len(CONTENT)
    assert set(server.faults) == set(FAULTS)


def test_requests_of_one_call_and_of_several_threads_travel_side_by_side(
    source: RemoteBytes, server: LateServer
) -> None:
    server.seconds = 0.2
    ranges = [(at, 100) for at in range(0, 200_000, 20_000)]
    start = time.perf_counter()
    assert _read(source, ranges) == _wanted(ranges)
    assert time.perf_counter() - start < 5 * 0.2  # ten requests
    assert server.most_under_way == 10
    server.most_under_way = 0
    with ThreadPoolExecutor(8) as pool:
        for found, one in zip(pool.map(lambda one: _read(source, [one]), ranges), ranges, strict=True):
            assert found == _wanted([one])
    assert server.most_under_way == 8


@pytest.mark.parametrize(
    ("name", "ranges", "told"),
    [
        pytest.param("tiles/labels/c/7/0/0", [(0, 10)], r"tiles/labels/c/7/0/0 .*s3://bucket/one.zarr is missing", id="no object"),
        pytest.param(OBJECT, [(199_990, 11)], r"data/c/0/0/0/0 .* after 200000 bytes.* 200001", id="cut"),
        pytest.param(OBJECT, [(0, 5), (300_000, 10)], r"data/c/0/0/0/0 .* after 200000 bytes.* 300010", id="behind"),
    ],
)  # fmt: skip
def test_an_object_that_is_missing_or_cut_is_named(
    source: RemoteBytes, name: str, ranges: list[tuple[int, int]], told: str
) -> None:
    with pytest.raises(StoreCorruptError, match=told):
        _read(source, ranges, name)


def test_the_size_of_an_object_that_is_missing_names_it(source: RemoteBytes) -> None:
    with pytest.raises(StoreCorruptError, match=r"tiles/valid/c/0/0/0 .* missing"):
        source.size("tiles/valid/c/0/0/0")


@pytest.mark.parametrize(
    ("fault", "told"), [("busy", "status 503"), ("403", "refuses access"), ("reset", "could not be used")]
)
def test_a_server_that_goes_on_failing_is_an_error_that_tells_no_secret(
    source: RemoteBytes, server: LateServer, monkeypatch: pytest.MonkeyPatch, fault: str, told: str
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    server.choose = lambda method, path: fault
    with pytest.raises(RemoteError, match=told) as caught:
        _read(source, [(0, 10), (100_000, 10)])
    assert f"s3://bucket/one.zarr/{OBJECT}" in str(caught.value)
    assert "must-not-be-seen" not in str(caught.value)


def test_no_thread_writes_into_the_buffers_after_an_error(source: RemoteBytes, server: LateServer) -> None:
    server.seconds = 0.1
    server.choose = lambda method, path: "403" if len(server.seen) == 0 and server.faults["403"] == 0 else ""
    buffers = [bytearray(10) for _ in range(10)]
    with pytest.raises(RemoteError):
        source.read(OBJECT, [(at * 20_000, 10) for at in range(10)], [memoryview(one) for one in buffers])
    for buffer in buffers:
        buffer[:] = bytes(10)
    time.sleep(0.3)
    assert not any(map(any, buffers))


def test_a_closed_or_pickled_source_reads_on(source: RemoteBytes) -> None:
    far = [(0, 10), (100_000, 10)]
    assert _read(source, far) == _wanted(far)
    source.close()
    source.close()
    assert _read(source, far) == _wanted(far)
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - made here
    assert _read(again, far) == _wanted(far)
    again.close()


def _read_in_child(source: RemoteBytes, told: Any) -> None:
    try:
        told.send(_read(source, [(0, 10), (100_000, 10)]))
    except ConfigError as error:
        told.send(str(error))


@pytest.mark.process
def test_a_forked_process_is_refused_at_once_rather_than_left_waiting(source: RemoteBytes) -> None:
    _read(source, [(0, 10), (100_000, 10)])
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(source, there))
    child.start()
    assert here.poll(30)
    assert "spawn or forkserver" in here.recv()
    child.join(30)
    assert child.exitcode == 0


# -- streams -----------------------------------------------------------------------------------------------------

LARGE: dict[str, Any] = {"shapes": [(96, 96)], "chunk": 1, "shard": 144}
"""A store of 144 blocks in one shard of each array."""

SMALL_BUDGET = {"budget_bytes": 200_000, "lanes": 4, "window": 1}


@pytest.fixture
def free_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no memory of threads, beside which the budget of such small blocks would be nothing."""
    monkeypatch.setattr("bandstream.train.stream.blocks._THREAD_BYTES", 0)


"""Not enough for all of its blocks, so that some are read again in each epoch."""


def _require_equal(found: Iterator[dict[str, Any]], wanted: Iterator[dict[str, Any]]) -> int:
    count = 0
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), key
        count += 1
    return count


def _chunk_requests(server: LateServer) -> list[str]:
    """Return the requests for tiles; their index is read by whoever opens a store."""
    return [item.path for item in server.seen if "/c/" in item.path and "/index/" not in item.path]


@pytest.mark.parametrize("patch", [None, 5])
@pytest.mark.parametrize(("codec", "share"), [("default", 0.0), ("zstd", 0.15), ("none", 0.15)])
def test_a_stream_from_a_bucket_is_the_local_one_bit_for_bit(
    server: LateServer,
    twin: Twin,
    patch: int | None,
    codec: str,
    share: float,
) -> None:
    local, far = twin(codec=codec)
    server.storm(seed=11, share=share)
    options: dict[str, Any] = {"split": "train", "patch": patch, "batch_size": 3, "seed": 4}
    near_stream, far_stream = PatchStream(local, **options), PatchStream(str(far.path), **options)
    for epoch in range(2):
        near_stream.set_epoch(epoch)
        far_stream.set_epoch(epoch)
        assert _require_equal(iter(far_stream), iter(near_stream)) == len(near_stream) > 2
    assert not share or server.faults
    server.calm()


def test_a_shard_that_is_missing_is_named_when_it_is_reached(
    environment: None, server: LateServer, shared_store: MakeStore
) -> None:
    far = _upload(shared_store(), "holed")
    server.calm()
    stream = PatchStream(far, split="all", batch_size=4)
    cast("RemotePath", far.path / "tiles/data/c/2/0/0/0").unlink()
    with pytest.raises(StoreCorruptError, match=r"tiles/data/c/2/0/0/0 .*s3://bucket/holed.zarr is missing"):
        list(stream)


@pytest.mark.usefixtures("free_threads")
def test_what_the_cache_holds_is_not_asked_for_again(server: LateServer, twin: Twin, tmp_path: Path) -> None:
    local, far = twin(**LARGE)
    options: dict[str, Any] = {"split": "train", "patch": 5, "batch_size": 16, **SMALL_BUDGET}
    near, stream = PatchStream(local, **options), PatchStream(far, cache=tmp_path, **options)
    server.calm()
    _require_equal(iter(stream), iter(near))
    assert _chunk_requests(server)
    for epoch in (1, 2):
        server.calm()
        near.set_epoch(epoch)
        stream.set_epoch(epoch)
        read = stream.stats().blocks_read
        _require_equal(iter(stream), iter(near))
        assert stream.stats().blocks_read > read  # read again, and from the disk
        assert server.seen == []
    another = PatchStream(far, cache=tmp_path, **options)
    near.set_epoch(0)
    server.calm()
    _require_equal(iter(another), iter(near))
    assert _chunk_requests(server) == []


def test_a_byte_that_flips_in_the_cache_does_not_reach_a_batch(
    server: LateServer, twin: Twin, tmp_path: Path
) -> None:
    local, far = twin(codec="default")
    options: dict[str, Any] = {"split": "all", "batch_size": 3, "checksum": "never"}
    list(PatchStream(far, cache=tmp_path, **options))
    for path in tmp_path.rglob("*.chunk"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    server.calm()
    _require_equal(iter(PatchStream(far, cache=tmp_path, **options)), iter(PatchStream(local, **options)))
    assert _chunk_requests(server)


def test_a_rebuilt_store_does_not_get_what_is_cached_of_the_old_one(
    environment: None, shared_store: MakeStore, tmp_path: Path
) -> None:
    old, new = shared_store(), shared_store(codec="zstd")  # equal tiles in other bytes
    assert identity(old) != identity(new)
    options: dict[str, Any] = {"split": "all", "batch_size": 3}
    for local in (old, new):
        far = _upload(local, "rebuilt")
        _require_equal(iter(PatchStream(far, cache=tmp_path, **options)), iter(PatchStream(local, **options)))


class Counting:
    """A source that counts the bytes that it gives."""

    def __init__(self, behind: ByteSource) -> None:
        self.behind, self.given = behind, 0

    def size(self, name: str) -> int:
        return self.behind.size(name)

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        self.behind.read(name, ranges, out)
        self.given += sum(length for _, length in ranges)

    def close(self) -> None:
        self.behind.close()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("patch", [None, 5])
def test_one_patch_read_cold_takes_at_most_four_times_its_chunk(
    server: LateServer, twin: Twin, patch: int | None, remote: bool
) -> None:
    local, far = twin(bands=16, size=16, chunk=2, shard=8)
    store = far if remote else local
    samples = Samples((SampleSet(store, "train", patch),))
    source = Counting(open_source(store))
    slots = Slots(samples, [ShardReader(store, source)], 1, 0)
    block = int(np.flatnonzero(samples.block_samples)[0])
    server.calm()
    slots.decode(block, 0, np.empty(slots.size.work_bytes(patch), np.uint8), ReadTimes())
    shard = local.shard_path("data", block // 4).read_bytes()
    index = np.frombuffer(shard[-(16 * 4 + 4) : -4], "<u8").reshape(4, 2)
    chunk_bytes = int(index[block % 4, 1])
    assert chunk_bytes < source.given <= 4 * chunk_bytes
    if remote:
        sent = sum(item.sent for item in server.seen if "/c/" in item.path)
        assert source.given <= sent <= 4 * chunk_bytes


@pytest.mark.usefixtures("free_threads")
def test_many_requests_wait_at_a_time_where_answers_are_late(server: LateServer, twin: Twin) -> None:
    far = twin(**LARGE)[1]
    stream = PatchStream(far, split="all", batch_size=4, **SMALL_BUDGET)
    list(stream)
    assert stream.stats().slots < stream.stats().blocks
    server.calm()
    server.seconds = 0.05
    stream.set_epoch(1)
    list(stream)
    stream.close()
    assert len(_chunk_requests(server)) >= 40
    assert server.most_under_way >= 8


@pytest.mark.process
def test_worker_processes_share_a_cache(server: LateServer, twin: Twin, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    local, far = twin(codec="default")
    options: dict[str, Any] = {"split": "all", "batch_size": 3}
    stream = PatchStream(str(far.path), cache=tmp_path, **options)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    near = PatchStream(local, **options)
    server.calm()
    _require_equal(iter(loader), iter(near))
    assert _chunk_requests(server)
    near.set_epoch(1)
    stream.set_epoch(1)
    server.calm()
    _require_equal(iter(stream), iter(near))  # in this process, with what the workers have kept
    assert _chunk_requests(server) == []
    assert not list(tmp_path.rglob("*.partial"))
