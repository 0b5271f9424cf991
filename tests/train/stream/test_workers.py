"""Threads and processes: every way to start workers ends, nothing is left behind, and memory stays within its budget."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from bandstream.pipeline.store import PatchStore
from bandstream.train.stream import PatchStream

quiet_forks = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)


def tiles_of(batches) -> list[int]:
    """Return the tiles in the order in which they come, without those that fill up the last batch."""
    found = []
    for batch in batches:
        real = batch["mask"].reshape(len(batch["tile"]), -1).any(1)
        found += batch["tile"][real].tolist()
    return found


def counts() -> tuple[int, int, int]:
    """Return the Python threads, the system's threads, and the open files of this process; all but zarr's threads."""
    system, files = (len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("task", "fd"))
    # zarr opens metadata in a pool of its own, which grows to a few threads and stays
    zarrs = sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())
    return threading.active_count() - zarrs, system - zarrs, files


def require_no_more_than(before: tuple[int, int, int], seconds: float = 5.0) -> None:
    """Wait until no count is above what it was."""
    end = time.monotonic() + seconds
    while True:
        gc.collect()
        found = counts()
        if all(a <= b for a, b in zip(found, before, strict=True)):
            return
        assert time.monotonic() < end, f"threads, system threads, files: {before} before, {found} after"
        time.sleep(0.02)


# -- processes ---------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.timeout(60)
@quiet_forks
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_finish_while_the_parent_is_in_the_middle_of_reading(shared_store, method):
    """The parent's threads hold locks that a forked child would find taken for ever."""
    stream = PatchStream(shared_store(), batch_size=4, seed=1)
    whole = tiles_of(stream)
    reading = iter(PatchStream(shared_store(), batch_size=4, seed=1))
    first = next(reading)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=50)
    assert tiles_of(loader) == whole
    assert tiles_of([first, *reading]) == whole, "the parent goes on where it was"


@pytest.mark.process
@pytest.mark.timeout(60)
@quiet_forks
def test_the_parent_reads_on_after_its_workers(shared_store):
    """The same stream object in parent and workers, in turns; workers that are stopped early end too."""
    stream = PatchStream(shared_store(), batch_size=4, seed=1)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=50)
    whole = tiles_of(stream)
    for _ in range(2):
        assert tiles_of(loader) == whole
        some = iter(loader)
        next(some)
        del some
        assert tiles_of(stream) == whole


RANK = """
import json, sys
import torch
from bandstream.train.stream import PatchStream

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
steps, tiles = 0, []
for batch in PatchStream(sys.argv[2], split="all", batch_size=2):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)  # waits for ever where the other rank has no such step
    real = batch["mask"].reshape(len(batch["tile"]), -1).any(1)
    steps, tiles = steps + 1, tiles + batch["tile"][real].tolist()
print(json.dumps([steps, tiles]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.timeout(60)
def test_two_gloo_ranks_of_nine_tiles_take_equally_many_steps(make_store, tmp_path):
    store = make_store(shapes=[(24, 24)], split="train", invalid=0.0, labelled=1.0)
    assert len(store) == 9
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), store.path, tmp_path / "rendezvous"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        found = [json.loads(process.communicate(timeout=50)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [steps for steps, _ in found] == [3, 3]
    assert sorted(tile for _, tiles in found for tile in tiles) == list(range(9))


# -- what is left behind -----------------------------------------------------------------------------------------


def _exhausted(stream: PatchStream) -> None:
    list(stream)


def _dropped(stream: PatchStream) -> None:
    next(iter(stream))


def _closed(stream: PatchStream) -> None:
    batches = iter(stream)
    next(batches)
    batches.close()


def _never_asked(stream: PatchStream) -> None:
    iter(stream)


def _broken(stream: PatchStream) -> None:
    with pytest.raises(ZeroDivisionError):
        for batch in stream:
            batch["step"] / 0


@pytest.mark.parametrize("use", [_exhausted, _dropped, _closed, _never_asked, _broken])
def test_an_iteration_leaves_no_thread_and_no_file_however_it_ends(shared_store, use):
    stream = PatchStream(shared_store(), batch_size=4)
    _exhausted(stream)  # files that it has read stay open for its next epochs
    use(stream)
    before = counts()
    for _ in range(10):
        use(stream)
    require_no_more_than(before)


def test_a_thousand_streams_leave_no_thread_and_no_file(shared_store):
    """Opened, read from, closed: what a stream keeps for its own later epochs goes with it."""
    store = shared_store(shapes=[(16, 16)], split="train")
    _closed(PatchStream(store.path, batch_size=4))
    before = counts()
    for cycle in range(1000):
        _closed(PatchStream(store if cycle % 10 else store.path, batch_size=4))
    require_no_more_than(before)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------

ENDLESS = """
import sys, warnings
from torch.utils.data import DataLoader
from bandstream.train.stream import PatchStream

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stream = PatchStream(sys.argv[1], batch_size=4)
    batches = stream
    if sys.argv[2] != "threads":
        batches = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
    for epoch in range(10**9):
        stream.set_epoch(epoch)
        for batch in batches:
            if epoch == 0 and batch["step"] == 1:
                print("streaming", flush=True)
"""


@pytest.mark.process
@pytest.mark.timeout(90)
@pytest.mark.parametrize("way", ["threads", "fork", "spawn"])
def test_ctrl_c_ends_everything_within_seconds(shared_store, tmp_path, way):
    """As a terminal sends it: to the program and to its workers."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, script, shared_store().path, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "streaming\n"
        time.sleep(0.3)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert time.monotonic() - began < 10
        assert process.returncode != 0
        assert "KeyboardInterrupt" in errors
        require_gone(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def require_gone(group: int, seconds: float = 5.0) -> None:
    """Wait until no process of a group is left: multiprocessing's own helper outlives the program by a moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"processes of the group {group} are left")


# -- memory ------------------------------------------------------------------------------------------------------

MEASURE = """
import ctypes, gc, json, sys
from bandstream.train.stream import PatchStream

small, large, patch, budget = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None, int(sys.argv[4])
batch_size = 256 if patch else 8

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

def epoch(stream, number):
    stream.set_epoch(number)
    most = 0
    for batch in stream:
        assert float(batch["image"][0, 0].abs().sum()) >= 0
        most = max(most, resident())
    return most

# code, thread stacks and the like are there before anything is counted
epoch(PatchStream(small, patch=patch, batch_size=8, budget_bytes=16 << 20), 0)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
base = resident()
stream = PatchStream(large, patch=patch, batch_size=batch_size, budget_bytes=budget)
peaks = [epoch(stream, number) - base for number in range(10)]
print(json.dumps(peaks))
"""


@pytest.mark.process
@pytest.mark.parametrize("patch", [0, 5])
def test_memory_is_flat_over_ten_epochs_and_within_the_budget(shared_store, tmp_path, patch):
    """Resident memory beyond that of the program; the store is larger than the budget."""
    small = shared_store(halo=2)
    large = shared_store(
        shapes=[(608, 608)], bands=64, size=32, halo=2, chunk=2, shard=8, split="train", labelled=0.05
    )
    budget = 64 << 20
    assert stored_bytes(large) > 1.5 * budget
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    done = subprocess.run(
        [sys.executable, script, small.path, large.path, str(patch), str(budget)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert max(peaks) <= 1.05 * budget, [peak >> 10 for peak in peaks]
    assert max(peaks[5:]) <= max(peaks[1:5]) + (budget // 20), [peak >> 10 for peak in peaks]


def stored_bytes(store: PatchStore) -> int:
    side = store.tile_size + 2 * store.halo
    return len(store) * store.bands * side**2 * 4
