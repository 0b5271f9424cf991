"""Who may build a store: waiting, refusing, taking over from the dead, and what happens when locks fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandstream.pipeline import locks
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import BandstreamWarning, StoreBusyError, StoreWriteError
from bandstream.pipeline.locks import Holder, hold, lock_path
from bandstream.pipeline.store import PatchStore, read_manifest
from bandstream.pipeline.writer import StoreLayout, StoreWriter

Flow = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "flow-0123456789ab.zarr"


def _leave(store: Path, holder: Holder) -> None:
    lock_path(store).parent.mkdir(parents=True, exist_ok=True)
    lock_path(store).write_text(holder.text())


def _hold_once(store: Path) -> None:
    with hold(store) as lock:
        assert lock.notes == []


def _dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def elsewhere() -> Holder:
    """Return the record of a living build on another machine."""
    return replace(Holder.me(), host="node7", machine="node7/x/y", pid=1)


def test_a_lock_tells_host_process_and_time_and_goes_with_its_block(store: Path) -> None:
    with hold(store):
        told = json.loads(lock_path(store).read_text())
        assert (told["host"], told["pid"]) == (os.uname().nodename, os.getpid())
        assert abs(told["heartbeat"] - time.time()) < 5
    assert list(lock_path(store).parent.iterdir()) == []


def test_the_sign_of_life_is_renewed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.02)
    with hold(store):
        first = json.loads(lock_path(store).read_text())["heartbeat"]
        deadline = time.monotonic() + 10
        while json.loads(lock_path(store).read_text())["heartbeat"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_living_holder_is_named_to_those_who_do_not_wait(store: Path, elsewhere: Holder) -> None:
    _leave(store, elsewhere)
    with (
        pytest.raises(StoreBusyError, match=r"pid 1 on node7, since 20\d\d-.*flow-0123456789ab"),
        hold(store, 0),
    ):
        pass
    assert json.loads(lock_path(store).read_text())["token"] == elsewhere.token
    started = time.monotonic()
    with pytest.warns(BandstreamWarning, match="Waiting"), pytest.raises(StoreBusyError), hold(store, 0.3):
        pass
    assert 0.3 <= time.monotonic() - started < 5


def test_who_waits_is_told_and_goes_on_when_the_other_is_done(store: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with hold(store):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(30)
    threading.Timer(0.3, leave.set).start()
    with pytest.warns(BandstreamWarning, match=f"Waiting for another build.*pid {os.getpid()}"):
        _hold_once(store)
    assert leave.is_set()
    thread.join()


def test_waiting_for_oneself_would_never_end_and_is_refused(store: Path) -> None:
    with hold(store), pytest.raises(StoreBusyError), hold(store):
        pass


@pytest.mark.process
def test_a_lock_of_a_process_that_is_gone_is_taken_over_at_once(store: Path) -> None:
    dead = replace(Holder.me(), pid=_dead_pid())
    _leave(store, dead)
    with hold(store, 0) as lock:
        assert f"pid {dead.pid} on" in lock.notes[0]
        assert json.loads(lock_path(store).read_text())["pid"] == os.getpid()


def test_a_process_number_that_came_round_is_not_the_holder(store: Path) -> None:
    _leave(store, replace(Holder.me(), pid=os.getppid(), started="1"))
    with hold(store, 0) as lock:
        assert lock.notes


@pytest.mark.process
def test_a_killed_process_that_nobody_asked_after_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    holder = replace(Holder.me(), pid=child.pid, started=locks._process(child.pid) or "")
    assert not holder.is_dead()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert holder.is_dead()
    child.wait()
    assert holder.is_dead()


def test_another_machine_is_dead_after_a_long_silence_only(store: Path, elsewhere: Holder) -> None:
    """Clocks of machines differ, and its process numbers say nothing here."""
    assert not replace(elsewhere, heartbeat=time.time() - 300, pid=_dead_pid()).is_dead()
    silent = replace(elsewhere, heartbeat=time.time() - locks.SILENT_SECONDS - 1)
    _leave(store, silent)
    with hold(store, 0) as lock:
        assert "node7" in lock.notes[0]


def test_another_machine_whose_clock_is_wrong_is_watched(
    store: Path, elsewhere: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WATCH_SECONDS", 0.2)
    _leave(store, replace(elsewhere, heartbeat=time.time() + 9999))
    with pytest.warns(BandstreamWarning, match="Waiting"), hold(store) as lock:
        assert lock.notes


def _spoilt(**fields: Any) -> str:
    return json.dumps(json.loads(Holder.me().text()) | fields)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "pid 12 on node7",
        "[]",
        '{"pid": 1}',
        "\0" * 50,
        "[" * 100_000,
        _spoilt(pid=None, started=""),
        _spoilt(pid=10**30, started=""),
        _spoilt(pid="../self"),
        _spoilt(heartbeat="soon", machine="node7"),
        _spoilt(heartbeat=float("nan"), machine="node7"),
        _spoilt(machine=[1]),
    ],
)
def test_a_lock_file_that_says_nothing_holds_for_a_while(
    store: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock_path(store)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(StoreBusyError, match="unknown"), hold(store, 0):
        pass
    os.utime(path, (0, 0))
    with hold(store, 0):
        pass


def test_a_lock_that_is_a_link_to_nowhere_is_named(store: Path) -> None:
    path = lock_path(store)
    path.parent.mkdir(parents=True)
    path.symlink_to(store / "nowhere")
    with pytest.raises(StoreWriteError, match="a link that leads nowhere"), hold(store):
        pass
    assert path.is_symlink()


def test_of_many_who_take_over_one_does(store: Path, elsewhere: Holder) -> None:
    _leave(store, replace(elsewhere, heartbeat=0))
    inside, most, lock = 0, 0, threading.Lock()
    done: list[int] = []

    def builder() -> None:
        nonlocal inside, most
        with hold(store):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.02)
            with lock:
                inside -= 1
                done.append(1)

    threads = [threading.Thread(target=builder) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert (len(done), most) == (6, 1)
    assert list(lock_path(store).parent.iterdir()) == []


def test_who_was_taken_over_leaves_the_lock_to_the_new_holder(store: Path, elsewhere: Holder) -> None:
    with hold(store):
        _leave(store, elsewhere)
    assert json.loads(lock_path(store).read_text())["token"] == elsewhere.token


def test_a_file_system_without_links_is_served_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuses)
    with hold(store):
        assert Holder.parse(lock_path(store).read_text()) is not None
        with pytest.raises(StoreBusyError), hold(store, 0):
            pass
    assert list(lock_path(store).parent.iterdir()) == []


# Builds


def test_a_second_build_waits_and_reuses_the_first_ones_store(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandstream.pipeline import fitting

    original, began, waits = fitting.fit, threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        began.set()
        assert waits.wait(60)
        return original(*args)

    monkeypatch.setattr(fitting, "fit", slow)
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(run_build(flow, quiet=True)))
    first.start()
    assert began.wait(60)
    with pytest.raises(StoreBusyError, match="is building"):
        run_build(flow, quiet=True, wait_seconds=0)
    sleep = time.sleep
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: (waits.set(), sleep(seconds)))
    with pytest.warns(BandstreamWarning, match="Waiting for another build"):
        second = run_build(flow, quiet=True)
    first.join()
    assert second.reused
    assert not results[0].reused
    assert second.path == results[0].path


_RACE = """
import json, sys, time
from contextlib import contextmanager
from pathlib import Path
from bandstream.pipeline import builder, job, locks, survey, writer

@contextmanager
def open_to_all(*_):
    yield locks.Lock(locks.Holder.me())

def together(*args):
    found = original(*args)
    Path(sys.argv[2], f"ready-{sys.argv[3]}").touch()
    while len(list(Path(sys.argv[2]).glob("ready-*"))) < 2:
        time.sleep(0.001)
    return found

original, survey.survey, job.hold = survey.survey, together, open_to_all
writer.SHARD_BYTES, writer.MIN_CHUNK_BYTES = (1, 1), 1
print(builder.run_build(json.loads(sys.argv[1]), quiet=True).store.verify())
"""


@pytest.mark.process
def test_builders_past_a_broken_lock_waste_work_and_do_no_harm(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandstream.pipeline import writer

    monkeypatch.setattr(writer, "SHARD_BYTES", (1, 1))
    monkeypatch.setattr(writer, "MIN_CHUNK_BYTES", 1)
    alone = run_build({**flow, "store": {"root": str(tmp_path / "alone")}}, quiet=True).path
    command = [sys.executable, "-c", _RACE, json.dumps(flow), str(tmp_path)]
    builders = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    told = [process.communicate(timeout=100) for process in builders]
    assert [process.returncode for process in builders] == [0, 0], told
    path = tmp_path / "stores" / alone.name
    assert {out.strip() for out, _ in told} == {str(PatchStore.open(path).verify())}
    on_disk = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert on_disk == {*read_manifest(alone), "manifest.json"}
    for name in on_disk:
        assert (path / name).read_bytes() == (alone / name).read_bytes(), name


@pytest.mark.parametrize("told", [False, True])
def test_a_journal_that_goes_while_a_shard_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Another build that finishes removes it, maybe between the making of the folder and that of the file."""
    layout = StoreLayout.plan(3, 2, 8, 1)
    writer = StoreWriter(tmp_path / "a.zarr", layout)
    writer.begin()
    original, gone = Path.mkdir, list[Path]()

    def removing(self: Path, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if "c" in self.parts and not gone:
            gone.append(self)
            shutil.rmtree(writer.path / ".journal")
            if told:  # as mkdir does of a folder that was there and is not
                raise FileExistsError(errno.EEXIST, "File exists", str(self))

    monkeypatch.setattr(Path, "mkdir", removing)
    tiles = {
        "data": np.zeros(layout.shape("data"), "float32"),
        "labels": np.zeros(layout.shape("labels"), "uint16"),
        "valid": np.ones(layout.shape("valid"), bool),
        "split": np.ones(layout.shape("split"), "uint8"),
    }
    record = writer.write_shard(0, [tiles], 1)
    assert gone
    assert writer.finished(0) == record
