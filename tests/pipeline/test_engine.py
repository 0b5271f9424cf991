"""Running tasks within a budget."""

from __future__ import annotations

import threading
import time

import dask
import pytest

from bandstream.pipeline.engine import Engine, fold, held_bytes, parse_bytes
from bandstream.pipeline.errors import MemoryBudgetError


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
