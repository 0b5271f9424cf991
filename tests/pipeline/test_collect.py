"""`store gc`: what goes, and above all what stays."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.cli import app
from bandstream.pipeline.collect import Collection, collect
from bandstream.pipeline.errors import ConfigError, StoreNotFoundError
from bandstream.pipeline.locks import CACHE, Holder, lock_path

Flow = dict[str, Any]


@pytest.fixture
def store(flow: Flow) -> PatchStore:
    return build({**flow, "stages": [{"drop_bands": {}}]})


@pytest.fixture
def root(store: PatchStore) -> Path:
    return store.path.parent


@pytest.fixture
def unfinished(root: Path, store: PatchStore) -> Path:
    """Return a store as a killed build leaves it."""
    path = root / "flow-0123456789ab.zarr"
    shutil.copytree(store.path, path)
    (path / "manifest.json").unlink()
    (path / "zarr.json").unlink()
    (path / ".journal").mkdir()
    (path / ".journal" / "layout.json").write_text("{}")
    (path / ".journal" / "0.partial").write_bytes(b"123")
    return path


def _kinds(found: Collection) -> list[tuple[str, str]]:
    return [(item.kind, item.path.name) for item in found.items]


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def _run(folder: Path, store: str | Path, fingerprint: str = "f" * 64, **plan: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("version: 1\nname: x\n")
    (folder / "plan.json").write_text(
        json.dumps({"store": {"path": str(store), "fingerprint": fingerprint}, **plan})
    )
    return folder


def test_nothing_is_removed_unless_asked_and_then_what_was_told(root: Path, unfinished: Path) -> None:
    before = _tree(root)
    told = collect(root)
    assert _tree(root) == before
    assert _kinds(told) == [("unfinished store", unfinished.name)]
    size = sum(p.stat().st_size for p in unfinished.rglob("*") if p.is_file())
    assert told.bytes == size
    done = collect(root, remove=True)
    assert _kinds(done) == _kinds(told)
    assert done.bytes == size
    gone = {name for name in before if name.startswith(unfinished.name)}
    assert _tree(root) == {name: content for name, content in before.items() if name not in gone}
    assert collect(root, remove=True).items == []


def test_a_store_that_is_being_built_stays(root: Path, unfinished: Path) -> None:
    lock_path(unfinished).write_text(Holder.me().text().replace(str(os.getpid()), "1"))
    other = replace(Holder.me(), machine="node7/x", host="node7")
    lock_path(unfinished).write_text(other.text())
    found = collect(root, remove=True)
    assert found.items == []
    assert found.kept == [(unfinished, "is being built")]
    lock_path(unfinished).write_text(replace(other, heartbeat=0).text())
    assert ("unfinished store", unfinished.name) in _kinds(collect(root, remove=True))
    assert not unfinished.exists()
    assert not lock_path(unfinished).exists()


@pytest.mark.parametrize("spoil", ["foreign file", "foreign name", "no journal", "link inside", "link"])
def test_what_does_not_bear_our_marks_stays(root: Path, unfinished: Path, tmp_path: Path, spoil: str) -> None:
    kept = unfinished
    if spoil == "foreign file":
        (unfinished / "notes.txt").write_text("mine")
    elif spoil == "foreign name":
        kept = unfinished.rename(root / "precious.zarr")
    elif spoil == "no journal":
        shutil.rmtree(unfinished / ".journal")
    elif spoil == "link inside":
        shutil.move(unfinished / "tiles", tmp_path / "tiles")
        (unfinished / "tiles").symlink_to(tmp_path / "tiles")
    else:
        kept = unfinished.rename(tmp_path / unfinished.name)
        unfinished.symlink_to(kept)
    before = _tree(kept)
    found = collect(root, remove=True)
    assert found.items == []
    assert len(found.kept) == 1
    assert _tree(kept) == before


def test_links_deep_inside_are_removed_but_never_followed(
    root: Path, unfinished: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    (unfinished / "tiles" / "data" / "c" / "link").symlink_to(precious)
    collect(root, remove=True)
    assert not unfinished.exists()
    assert (precious / "data").read_text() == "mine"


def test_finished_stores_go_only_when_no_run_refers_to_them(
    root: Path, store: PatchStore, tmp_path: Path
) -> None:
    assert collect(root, remove=True).items == []
    with pytest.raises(ConfigError, match="--runs"):
        collect(root, unused=True)
    runs = tmp_path / "runs"  # beside the root
    run = _run(runs / "deep" / "one", store.path)
    found = collect(root, unused=True, remove=True)
    assert found.items == []
    assert found.kept == [(store.path, f"is used by the run {run}")]
    shutil.rmtree(run)
    sidecar = store.path.with_name(f"{store.path.stem}.provenance.json")
    assert sidecar.exists()
    told = collect(root, unused=True)
    done = collect(root, unused=True, remove=True)
    assert ("unused store", store.path.name) in _kinds(done)
    assert told.bytes == done.bytes
    assert not store.path.exists()
    assert not sidecar.exists()
    assert json.loads((root / CACHE / "reuse.json").read_text()) == {}


@pytest.mark.parametrize(
    "how", ["linked root", "relative", "moved", "linked run", "not begun", "other folder"]
)
def test_a_reference_counts_however_it_is_written(
    root: Path, store: PatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    runs, given = tmp_path / "runs", None
    runs.mkdir()
    if how == "linked root":
        (tmp_path / "link").symlink_to(root)
        _run(runs / "one", tmp_path / "link" / store.path.name)
    elif how == "relative":
        monkeypatch.chdir(tmp_path)
        _run(runs / "one", Path("stores") / store.path.name)
    elif how == "moved":  # the store lay elsewhere when the run began
        _run(runs / "one", "/nowhere/flow.zarr", store.fingerprint)
    elif how == "linked run":
        (runs / "one").symlink_to(_run(tmp_path / "elsewhere", store.path))
    elif how == "not begun":
        (runs / "one").mkdir()
        (runs / "one" / "config.yaml").write_text(f"version: 1\nname: x\nstore: {store.path}\n")
    else:
        given = [tmp_path / "a", runs]
        _run(tmp_path / "a" / "one", store.path)
    found = collect(root, unused=True, remove=True, runs=given)
    assert [path for path, why in found.kept if why.startswith("is used by the run")] == [store.path]
    assert store.verify() > 0


def test_a_run_that_cannot_be_read_stops_everything(root: Path, store: PatchStore, tmp_path: Path) -> None:
    run = _run(tmp_path / "runs" / "one", store.path)
    (run / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match="does not tell which store"):
        collect(root, unused=True, remove=True)
    with pytest.raises(ConfigError, match="There is no folder"):
        collect(root, unused=True, remove=True, runs=[tmp_path / "rnus"])
    with pytest.raises(StoreNotFoundError):
        collect(tmp_path / "nowhere")
    assert store.verify() > 0


def test_a_changed_or_added_file_in_a_finished_store_keeps_it(
    root: Path, store: PatchStore, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    (store.path / "tiles" / "notes.txt").write_text("mine")
    found = collect(root, unused=True, remove=True)
    assert [why for _, why in found.kept] == ["holds other files, such as tiles/notes.txt"]
    assert store.path.exists()


def test_leftovers_go_and_what_is_new_stays(root: Path, unfinished: Path) -> None:
    cache, old, month = root / CACHE, time.time() - 3600, time.time() - 31 * 86400
    statistics = cache / "statistics"
    statistics.mkdir(exist_ok=True)
    for path in statistics.iterdir():
        path.unlink()
    for path, when in (
        (cache / "digests.json.77.partial", old),
        (cache / "reuse.json.78.partial", time.time()),
        (root / "flow-0123456789ab.provenance.json.77.partial", old),
        (cache / "flow-ffffffffffff.lock", old),
        (statistics / "used.npz", time.time()),
        (statistics / "unused.npz", month),
    ):
        path.write_bytes(b"12345")
        os.utime(path, (when, when))
    found = collect(root, remove=True)
    assert sorted(_kinds(found)) == [
        ("dead lock", "flow-ffffffffffff.lock"),
        ("partial file", "digests.json.77.partial"),
        ("partial file", "flow-0123456789ab.provenance.json.77.partial"),
        ("statistics", "unused.npz"),
        ("unfinished store", unfinished.name),
    ]
    assert (statistics / "used.npz").exists()
    assert (cache / "reuse.json.78.partial").exists()


def test_older_than_leaves_what_was_written_lately(root: Path, unfinished: Path) -> None:
    found = collect(root, remove=True, older_than_days=1)
    assert found.kept == [(unfinished, "was written lately")]
    then = time.time() - 2 * 86400
    for path in (unfinished, *unfinished.rglob("*")):
        os.utime(path, (then, then))
    assert _kinds(collect(root, remove=True, older_than_days=1)) == [("unfinished store", unfinished.name)]


def test_the_command_lists_first_and_removes_with_yes(root: Path, unfinished: Path, flow: Flow) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["store", "gc", str(root), *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "nothing was removed: add --yes" in run()
    told = json.loads(run("--json"))
    assert (told["removed"], told["items"][0]["kind"]) == (False, "unfinished store")
    assert unfinished.exists()
    assert "removed" in run("--yes")
    assert not unfinished.exists()
    assert "nothing to remove" in run("--yes")
    assert run_build({**flow, "stages": [{"drop_bands": {}}]}, quiet=True).reused


def test_runs_below_a_folder_with_a_config_of_its_own_count(
    store: PatchStore, root: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    _run(runs / "sweep" / "one", store.path, store.fingerprint)
    for folder in (runs, runs / "sweep"):
        (folder / "config.yaml").write_text("version: 1\nname: sweep\n")
    found = collect(root, remove=True, unused=True, runs=[runs])
    assert found.items == []
    assert "is used by the run" in dict(found.kept)[store.path]


def test_a_folder_that_cannot_be_read_stops_everything(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run may hide, no store is known to be unused."""
    closed = tmp_path / "runs" / "closed"
    closed.mkdir(parents=True)
    scandir = os.scandir

    def refuses(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(ConfigError, match=r"closed cannot be read \(Permission denied\)"):
        collect(root, remove=True, unused=True, runs=[tmp_path / "runs"])


def test_a_lock_that_says_nothing_yet_keeps_its_store(root: Path, unfinished: Path) -> None:
    lock_path(unfinished).write_text("")
    found = collect(root, remove=True)
    assert found.items == []
    assert dict(found.kept)[unfinished] == "is being built"
    assert lock_path(unfinished).exists()


def test_files_that_a_build_renames_meanwhile_are_no_obstacle(
    root: Path, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rglob = Path.rglob

    def stale(self: Path, pattern: str) -> Any:
        yield from rglob(self, pattern)
        yield self / ".journal" / "gone.partial"

    monkeypatch.setattr(Path, "rglob", stale)
    assert _kinds(collect(root)) == [("unfinished store", unfinished.name)]
