"""Running tasks within a budget."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bandstream.pipeline import open_scene
from bandstream.pipeline.engine import Engine, fold, held_bytes, parse_bytes
from bandstream.pipeline.errors import MemoryBudgetError
from bandstream.pipeline.gathering import Gather, SceneNumbers, gather_statistics
from bandstream.pipeline.progress import progress
from bandstream.pipeline.scene import nodata_values
from bandstream.pipeline.sources import OpenScene, SceneFiles
from bandstream.pipeline.splits.maps import WholeScene
from bandstream.pipeline.statistics import Wanted
from bandstream.pipeline.writer import StoreLayout


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("800MB", 800_000_000),
        ("1GiB", 2**30),
        ("2g", 2**31),
        ("1.5G", 3 * 2**29),
        ("4096", 4096),
        ("1 KB", 1000),
        ("3b", 3),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "1XB", "-3GB", "1GiBi"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(MemoryBudgetError, match="no size"):
        parse_bytes(text)


def test_no_more_tasks_run_at_once_than_planned_and_results_keep_their_order() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return number

    tasks = [dask.delayed(work, pure=False)(n, dask_key_name=f"work-{n}") for n in range(12)]
    assert Engine(2, 0).run(tasks, description="test", count=12, quiet=True) == list(range(12))
    assert most <= 2


def test_a_fold_merges_in_order() -> None:
    parts = [dask.delayed(f"{n}") for n in range(20)]
    total = fold(lambda a, b: a + b, ">", parts)
    assert Engine(3, 0).run([total], description="test", count=0, quiet=True) == [
        ">" + "".join(map(str, range(20)))
    ]


def test_a_budget_gives_as_many_tasks_as_fit_or_says_what_it_would_take() -> None:
    assert Engine.plan(100, 50, 10_000_000).tasks_at_once >= 1
    assert Engine.plan(100 << 20, 50 << 20, 160 << 20) == Engine(1, 150 << 20)
    with pytest.raises(
        MemoryBudgetError, match=r"Raise --memory to 150MiB or more, or make tiles.size smaller\."
    ):
        Engine.plan(100 << 20, 50 << 20, 149 << 20, "tiles.size smaller")


def test_what_the_process_holds_is_at_least_what_python_takes() -> None:
    assert held_bytes() > 20 << 20


def test_tasks_have_one_blas_thread_and_the_process_gets_its_own_back() -> None:
    """And what Dask computes inside a task stays in its thread."""

    def blas(_: int = 0) -> tuple[set[int], str | None]:
        found = {item["num_threads"] for item in threadpool_info() if item["user_api"] == "blas"}
        return found, dask.config.get("scheduler", None)

    engine = Engine(2, 0)
    with threadpool_limits(2):
        tasks = [engine.task(blas)(n) for n in range(6)]
        assert engine.run(tasks, description="", count=6, quiet=True) == [({1}, "synchronous")] * 6
        assert blas() == ({2}, None)


def test_an_error_waits_for_the_tasks_that_still_run() -> None:
    """Whoever cleans up after it must not meet their writes."""
    ended: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            raise ValueError("first")
        time.sleep(0.2)
        ended.append(number)

    engine = Engine(2, 0)
    with pytest.raises(ValueError, match="first"):
        engine.run([engine.task(work)(n) for n in (1, 0)], description="", count=2, quiet=True)
    before = len(ended)
    time.sleep(0.3)
    assert len(ended) == before


def test_a_scene_of_100_gb_is_a_few_thousand_small_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opened scene is in the graph once, and no task holds more than its own numbers."""
    shape = (100_000, 2500, 200)
    with (tmp_path / "big.img").open("wb") as file:
        file.truncate(2 * math.prod(shape))  # sparse: takes no room
    (tmp_path / "big.hdr").write_text(
        f"ENVI\nsamples = {shape[1]}\nlines = {shape[0]}\nbands = {shape[2]}\nheader offset = 0\n"
        "file type = ENVI Standard\ndata type = 2\ninterleave = bil\nbyte order = 0\n"
    )
    path = tmp_path / "big.hdr"
    item = OpenScene(open_scene(path), SceneFiles((path,), "big"), None, None)
    bands = np.arange(shape[2])
    numbers = SceneNumbers(nodata_values(item.scene), np.ones(shape[2]), np.zeros(shape[2]))
    settings = Gather(bands, Wanted(covariance=True), judge=True, prefix=None)
    taken: list[Any] = []

    def take(_: Engine, tasks: list[Any], **__: Any) -> list[Any]:
        taken.extend(tasks)
        return tasks

    monkeypatch.setattr(Engine, "run", take)
    gather_statistics([item], [WholeScene(1)], [numbers], settings, Engine(1, 0), quiet=True)
    graph = dict(taken[0].__dask_graph__())
    works = [graph[key] for key in graph if str(key).startswith("work-")]
    assert 500 < len(works) < 10_000
    assert len(graph) < 2 * len(works) + 10
    assert max(len(cloudpickle.dumps(node)) for node in works[:50]) < 2000
    others = [graph[key] for key in graph if not str(key).startswith(("work-", "fold-"))]
    assert len(others) < 10
    assert sum(len(cloudpickle.dumps(node)) for node in others) < 2_000_000
    layout = StoreLayout.plan(-(-shape[0] // 32) * -(-shape[1] // 32), shape[2], 32, 4)
    assert layout.shards < 3000


def test_a_log_line_tells_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("bandstream.pipeline.progress.time.monotonic", lambda: now)
    for size, rate in ((8e9, "40 MB/s"), (0, "0.1/s")):
        with progress("tiles", 20, size_bytes=size) as bar:
            bar.advance()
            assert not capsys.readouterr().err  # one line in ten seconds at most
            now += 20
            bar.advance()
        assert capsys.readouterr().err == f"tiles: 2/20, {rate}, about 180 s left\n"


def test_a_quiet_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(1, 0)
    engine.run([engine.task(int)("1", dask_key_name="work-1")], description="x", count=1, quiet=True)
    said = capsys.readouterr()
    assert said.err == said.out == ""
