"""Worker processes: the same bytes as in threads, what is refused before work starts, and what a lost worker costs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import dask
import psutil
import pytest

from bandstream.pipeline.builder import run_build
from bandstream.pipeline.config import dump_yaml
from bandstream.pipeline.engine import Engine, fold, parse_bytes, recruit
from bandstream.pipeline.errors import BandstreamWarning, ClusterError, ConfigError, MemoryBudgetError

from .conftest import make_envi

crew_module = pytest.importorskip("bandstream.pipeline.engine.crew")
MIB = 1 << 20
Flow = dict[str, Any]
pytestmark = [
    pytest.mark.process,
    # the connections of a process that is killed, or of a scheduler that goes, are closed by the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def content(store: Path) -> dict[str, str]:
    files = [path for path in sorted(store.rglob("*")) if path.is_file()]
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def until(true: Callable[[], Any], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@contextmanager
def dask_process(role: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "dask", role, *arguments, "--no-dashboard"]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def scheduler() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with dask_process("scheduler", "--host", "127.0.0.1", "--port", str(port)):
        until(lambda: _answers(port), "the scheduler answers")
        yield f"tcp://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def worker(address: str, name: str, *arguments: str, **environment: str) -> Any:
    options = ("--host", "127.0.0.1", "--nthreads", "1", "--name", name, *arguments)
    return dask_process("worker", address, *options, **environment)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler with two workers that were started by hand, one of them without a nanny."""
    with scheduler() as at, worker(at, "one", "--memory-limit", "600MiB"), worker(at, "two", "--no-nanny"):
        yield at


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Flow:
    """A workflow of two scenes that fits every stage, with about five shards."""
    folder = tmp_path_factory.mktemp("raw")
    scenes = [
        make_envi(folder, (320, 250), 40, seed, f"scene{seed}", 366000 + 40000 * seed) for seed in range(2)
    ]
    return {
        "version": 1,
        "name": "flow",
        "scenes": [{"path": str(scene.path), "labels": str(scene.labels_path)} for scene in scenes],
        "stages": [
            {"calibrate": {"to": "surface_reflectance"}},
            "mask",
            {"drop_bands": {}},
            {"normalize": {"method": "zscore"}},
        ],
        "tiles": {"size": 16, "halo": 2},
        "split": {"by": "blocks", "block": 32, "seed": 1},
    }


@pytest.fixture(scope="module")
def by_threads(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The store's bytes as threads make them."""
    return content(run_build(rooted(flow, tmp_path_factory.mktemp("threads")), quiet=True).path)


def rooted(flow: Flow, root: Path) -> Flow:
    return {**flow, "store": {"root": str(root)}}


class Watch(threading.Thread):
    """Looks at this process and its children until told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes, self.children, self.hosts = 0, set[int](), set[str]()
        self.ended = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.ended.wait(0.05):
            family = [me, *me.children(recursive=True)]
            total = 0
            for process in family:
                try:
                    total += process.memory_info().rss
                    if process != me:
                        self.children.add(process.pid)
                    listening = [c for c in process.net_connections("inet") if c.status == "LISTEN"]
                    self.hosts |= {connection.laddr.ip for connection in listening}
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def test_two_processes_write_the_bytes_of_threads_within_the_prediction(
    flow: Flow, by_threads: dict[str, str], tmp_path: Path
) -> None:
    """And they listen on this machine only, and none of them is left behind."""
    with Watch() as watch:
        result = run_build(rooted(flow, tmp_path), quiet=True, workers=2, memory_bytes=3 << 30)
    assert content(result.path) == by_threads
    assert watch.hosts == {"127.0.0.1"}
    assert 0 < watch.peak_bytes <= result.predicted_peak_bytes
    assert len(watch.children) >= 2
    # Python's own tracker of shared memory ends with this process
    left = [psutil.Process(pid).cmdline() for pid in watch.children if psutil.pid_exists(pid)]
    assert not [command for command in left if "resource_tracker" not in " ".join(command)]
    assert not list((tmp_path / ".bandstream").glob("cluster-*"))


def test_the_workers_of_a_running_scheduler_write_the_bytes_of_threads(
    flow: Flow, by_threads: dict[str, str], tmp_path: Path, address: str
) -> None:
    result = run_build(rooted(flow, tmp_path), quiet=True, scheduler=address)
    assert content(result.path) == by_threads


def test_a_killed_worker_costs_its_tasks_only(flow: Flow, by_threads: dict[str, str], tmp_path: Path) -> None:
    """Of three workers without a nanny one is killed in pass 2; the finished shards are not written again."""
    with scheduler() as at, worker(at, "a", "--no-nanny") as first, worker(at, "b", "--no-nanny"):
        done = {}

        def kill() -> None:
            until(lambda: list(tmp_path.glob("*.zarr/.journal/shard-*.json")), "a first shard")
            first.kill()
            done.update(
                {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.zarr/.journal/shard*.json")}
            )

        killer = threading.Thread(target=kill)
        killer.start()
        result = run_build(rooted(flow, tmp_path), quiet=True, scheduler=at)
        killer.join()
        assert done
        assert first.wait() == -signal.SIGKILL
    assert content(result.path) == by_threads


@contextmanager
def crew(address: str, tmp_path: Path, *files: str) -> Iterator[Any]:
    with recruit(None, address) as found:
        assert found is not None
        found.start(1, files, tmp_path)
        yield found


def test_our_errors_arrive_as_themselves(address: str, tmp_path: Path) -> None:
    with crew(address, tmp_path) as found:
        engine = Engine(1, 0, found)
        with pytest.raises(MemoryBudgetError, match="'much' is no size"):
            engine.run([engine.task(parse_bytes)("much")], description="", count=1, quiet=True)


def test_a_warning_of_many_tasks_is_given_once(address: str, tmp_path: Path) -> None:
    with crew(address, tmp_path) as found:
        engine = Engine(1, 0, found)
        warn = engine.task(warnings.warn)
        tasks = [warn("a band is odd", BandstreamWarning, dask_key_name=f"work-{n}") for n in range(4)]
        with pytest.warns(BandstreamWarning, match="a band is odd") as seen:
            engine.run(tasks, description="", count=4, quiet=True)
    assert len(seen) == 1


def test_a_fold_merges_in_order_and_holds_few_parts(address: str, tmp_path: Path) -> None:
    def part(number: int) -> list[int]:
        time.sleep(0.05)
        return [number]

    def merge(total: tuple[list[int], int], part: list[int]) -> tuple[list[int], int]:
        from distributed import get_worker

        return total[0] + part, max(total[1], len(get_worker().data))

    with crew(address, tmp_path) as found:
        engine = Engine(1, 0, found)
        make = engine.task(part)
        parts = [make(n, dask_key_name=f"work-{n:03d}") for n in range(60)]
        total, most = engine.run([fold(merge, ([], 0), parts)], description="", count=60, quiet=True)[0]
    assert total == list(range(60))
    assert most < 20


def test_tasks_in_a_worker_have_one_blas_thread_and_no_scheduler(address: str, tmp_path: Path) -> None:
    def look() -> tuple[set[int], str]:
        import dask
        import numpy as np  # noqa: F401 - brings BLAS
        from threadpoolctl import threadpool_info

        return {item["num_threads"] for item in threadpool_info()}, dask.config.get("scheduler")

    with crew(address, tmp_path) as found:
        engine = Engine(1, 0, found)
        assert engine.run([engine.task(look)()], description="", count=1, quiet=True) == [
            ({1}, "synchronous")
        ]


def test_a_task_that_ends_every_worker_is_named(tmp_path: Path) -> None:
    fewer = dask.config.set({"distributed.scheduler.allowed-failures": 1})  # each takes a new process
    with fewer, recruit(1, None) as found:
        assert found is not None
        found.start(1, (), tmp_path)
        engine = Engine(1, 0, found)
        fatal = engine.task(os._exit)(9, dask_key_name="work-shard-000003")
        with pytest.raises(ClusterError, match=r"Shard 3 ended 2 worker processes .* tcp://127\.0\.0\.1:\d+"):
            engine.run([fatal], description="", count=1, quiet=True)


def test_a_worker_that_does_not_see_a_source_is_named(address: str, tmp_path: Path) -> None:
    source = tmp_path / "scene.img"
    source.write_bytes(b"pixels")
    with source.open("rb") as file:
        mine = f"/proc/self/fd/{file.fileno() + 500}"
        os.dup2(file.fileno(), file.fileno() + 500)
        try:
            with pytest.raises(
                ClusterError, match=rf"tcp://127\.0\.0\.1:\d+ .* cannot read .* {mine} \(No such"
            ):
                crew(address, tmp_path, mine).__enter__()
        finally:
            os.close(file.fileno() + 500)
    with pytest.raises(ClusterError, match="/proc/self/cmdline is not the driver's"):
        crew(address, tmp_path, "/proc/self/cmdline").__enter__()
    assert not list(tmp_path.glob("cluster-*"))


def test_a_root_that_is_not_shared_or_not_writable_is_named(address: str, tmp_path: Path) -> None:
    with crew(address, tmp_path) as found:
        assert found._expected is not None
        nowhere, proc = "/nowhere/root/.bandstream/cluster-0.token", "/proc/self/net/dev"
        away = dataclasses.replace(found._expected, token=nowhere)
        with pytest.raises(ClusterError, match=r"its folder /nowhere/root is not the driver's.*store\.root"):
            found._check(away)
        with pytest.raises(ClusterError, match="cannot write to the store's root /proc/self"):
            found._check(dataclasses.replace(away, token=proc))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PYTHONPATH": "{fake}"}, r"its zarr is 9\.9 and the driver's is 3"),
        pytest.param(
            {"OPENBLAS_CORETYPE": "Prescott"},
            r"its openblas \S+ is \w+ and the driver's is \w+",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["version", "kernels"],
)
def test_a_worker_that_could_write_other_bytes_is_refused(
    environment: dict[str, str], said: str, flow: Flow, tmp_path: Path
) -> None:
    info = tmp_path / "fake" / "zarr-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zarr\nVersion: 9.9\n")
    before = os.environ.get("PYTHONPATH", "")
    filled = {key: value.format(fake=f"{info.parent}:{before}") for key, value in environment.items()}
    refused = pytest.raises(ClusterError, match=rf"tcp://127\.0\.0\.1:\d+ cannot take part: {said}")
    with scheduler() as at, worker(at, "odd", "--no-nanny", **filled), refused:
        run_build(rooted(flow, tmp_path / "stores"), quiet=True, scheduler=at)
    assert not list((tmp_path / "stores").glob("*.zarr"))


def test_a_scheduler_that_is_not_there_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One port where nobody listens, one where somebody else does and never answers."""
    monkeypatch.setattr(crew_module, "CONNECT_SECONDS", 1)
    started = time.monotonic()
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        closed.bind(("127.0.0.1", 0))
        silent.listen()
        for listener in (closed, silent):
            at = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(ClusterError, match=f"No Dask scheduler answers at {at}"):
                recruit(None, at).__enter__()
    assert time.monotonic() - started < 20


def test_a_scheduler_without_workers_and_one_that_goes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "CONNECT_SECONDS", 3)
    with scheduler() as at:
        with monkeypatch.context() as patch, pytest.raises(ClusterError, match="no worker after 1 s"):
            patch.setattr(crew_module, "WORKERS_SECONDS", 1)
            recruit(None, at).__enter__()
        with worker(at, "last", "--no-nanny") as last, crew(at, tmp_path) as found:
            engine = Engine(1, 0, found)
            monkeypatch.setattr(crew_module, "WORKERS_SECONDS", 1)
            threading.Timer(1, last.kill).start()
            with pytest.raises(ClusterError, match="no worker for 1 s"):
                engine.run([engine.task(time.sleep)(600)], description="", count=1, quiet=True)


def test_who_does_the_work_is_said_in_one_way() -> None:
    with pytest.raises(ConfigError, match="not both"):
        recruit(2, "tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="1 or more"):
        recruit(0, None)
    with pytest.raises(ClusterError, match="tcp://host:port"):
        recruit(None, "127.0.0.1:8786")
    with recruit(None, None) as nobody:
        assert nobody is None


def test_the_budget_bounds_all_processes_together() -> None:
    crew = crew_module.LocalCrew(4)
    each = crew_module.WORKER_BYTES + 100 * MIB
    engine = Engine.plan(100 * MIB, 200 * MIB, 200 * MIB + 3 * each, crew=crew)
    assert (engine.tasks_at_once, engine.predicted_peak_bytes) == (3, 200 * MIB + 3 * each)
    with pytest.raises(
        MemoryBudgetError, match="Raise --memory to 588MiB or more, leave --workers out, or make x"
    ):
        Engine.plan(100 * MIB, 200 * MIB, 587 * MIB, "x smaller", crew)


def test_a_task_must_fit_each_workers_own_limit(address: str) -> None:
    with recruit(None, address) as crew:
        assert Engine.plan(50 * MIB, 0, 1 << 30, crew=crew).tasks_at_once == 1
        with pytest.raises(MemoryBudgetError, match=r"The worker tcp://127\.0\.0\.1:\d+ .* limit of 600 MiB"):
            Engine.plan(300 * MIB, 0, 1 << 30, crew=crew)


def test_ctrl_c_ends_every_process_and_the_next_run_goes_on(
    flow: Flow, by_threads: dict[str, str], tmp_path: Path
) -> None:
    """The interrupt goes to the whole group of processes, as a terminal sends it."""
    file = tmp_path / "flow.yaml"
    file.write_text(dump_yaml(rooted(flow, tmp_path)))
    main = "import sys; sys.argv[0] = 'bandstream'; from bandstream.pipeline.cli import main; main()"
    command = [sys.executable, "-c", main, "run", str(file), "--workers", "2", "--memory", "3GiB", "--quiet"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    until(lambda: list(tmp_path.glob("*.zarr/.journal/shard-*.json")), "a first shard")
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, said
    assert said == "bandstream: interrupted; run the same command again to go on.\n"
    assert len(family) >= 2
    until(lambda: not any(member.is_running() for member in family), "no process is left", 10)
    kept = {path.stat().st_mtime_ns for path in tmp_path.glob("*.zarr/tiles/data/c/**/*") if path.is_file()}
    result = run_build(rooted(flow, tmp_path), quiet=True)
    after = {path.stat().st_mtime_ns for path in (result.path / "tiles/data/c").rglob("*") if path.is_file()}
    assert content(result.path) == by_threads
    assert kept & after
