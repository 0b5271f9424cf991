"""Builds that are killed: what is left, what is kept, and that the end is the same to the byte."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import StoreIncompleteError
from bandstream.pipeline.locks import SILENT_SECONDS
from bandstream.pipeline.store import list_stores, read_manifest
from bandstream.pipeline.writer import StoreWriter

Flow = dict[str, Any]


@pytest.fixture
def kills() -> ModuleType:
    """Return the script of fifty kills, of which three are done here."""
    path = Path(__file__).parents[1] / "benchmarks" / "kills.py"
    spec = importlib.util.spec_from_file_location("bandstream_kills", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
def test_a_build_killed_three_times_ends_with_the_bytes_of_an_unbroken_one(
    kills: ModuleType, tmp_path: Path
) -> None:
    made = kills.Build(tmp_path, rows=144, cols=192, bands=80)
    root, rng, counted, kept = tmp_path / "broken", random.Random(0), 0, {}
    while counted < 3:
        left = made.kill(root, rng.uniform(0, made.seconds * 0.5), group=counted == 1)
        if left is False:  # it was faster
            kills.shutil.rmtree(root)
            counted, kept = 0, {}
        elif left:
            counted += 1
            with pytest.raises(StoreIncompleteError):
                PatchStore.open(next(root.glob("*.zarr")))
            now = kills.journalled(root)
            assert kept.items() <= now.items()  # what was finished before this kill stays as it is
            kept = now
    assert made.resume(root) == []


def _interrupted(flow: Flow, monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """Build in shards of one tile and stop behind some of them."""
    from bandstream.pipeline import writer

    monkeypatch.setattr(writer, "SHARD_BYTES", (1, 1))
    monkeypatch.setattr(writer, "MIN_CHUNK_BYTES", 1)
    written: list[int] = []
    original = StoreWriter.write_shard

    def stops(self: StoreWriter, shard: int, tiles: Any, classes: int) -> Any:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(shard)
        return original(self, shard, tiles, classes)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write_shard", stops)
        with pytest.raises(KeyboardInterrupt):
            run_build(flow, quiet=True)
    return next(Path(flow["store"]["root"]).glob("*.zarr"))


def _shards(store: Path) -> dict[str, tuple[int, int]]:
    return {
        path.relative_to(store).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in store.glob("tiles/*/c/**/*")
        if path.is_file() and "index" not in path.parts
    }


def test_what_killed_builds_left_half_written_does_not_pile_up(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is younger may be of a build on another machine, which the lock did not keep out."""
    journal = _interrupted(flow, monkeypatch, after=2) / ".journal"
    old, young = journal / "old.partial", journal / "young.partial"
    for path in (old, young):
        path.write_bytes(b"half a shard")
    then = time.time() - SILENT_SECONDS - 60
    os.utime(old, (then, then))
    _interrupted(flow, monkeypatch, after=1)
    assert [path.name for path in journal.glob("*.partial")] == ["young.partial"]
    assert build(flow).verify() > 0
    assert not journal.exists()


def test_finished_shards_are_kept_and_torn_ones_written_again(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = _interrupted(flow, monkeypatch, after=5)
    assert [store for _, store in list_stores(partial.parent)] == [None]
    before = _shards(partial)
    names = sorted(name for name in before if name.startswith("tiles/data/"))
    torn, flipped = (partial / name for name in names[:2])
    torn.write_bytes(torn.read_bytes()[:-3])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    store = build(flow)
    after = _shards(store.path)
    changed = {name.split("/")[3] for name in before if before[name] != after[name]}
    assert changed == {names[0].split("/")[3], names[1].split("/")[3]}
    assert store.verify() > 0
    whole = build({**flow, "store": {"root": str(tmp_path / "whole")}})
    for path in whole.path.rglob("*"):
        if path.is_file():
            assert (store.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes(), path
    assert not (store.path / ".journal").exists()


def test_what_is_left_of_the_last_step_goes_when_the_store_is_used_again(flow: Flow) -> None:
    """A build may be killed between its manifest and the removal of its journal."""
    store = build(flow)
    (store.path / ".journal").mkdir()
    (store.path / ".journal" / "layout.json").write_text("{}")
    assert run_build(flow, quiet=True).reused
    assert not (store.path / ".journal").exists()


def test_a_lock_left_by_a_killed_build_is_no_obstacle(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from bandstream.pipeline.locks import Holder, lock_path

    partial = _interrupted(flow, monkeypatch, after=1)
    lock_path(partial).write_text(replace(Holder.me(), started="1", pid=1).text())
    result = run_build(flow, quiet=True, wait_seconds=0)
    assert any(
        "took over from a build that ended without finishing (pid 1 on" in note for note in result.notes
    )


def test_a_damaged_journal_is_not_believed(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says of a shard goes into the store's index, where nothing else would show that it is wrong."""
    partial = _interrupted(flow, monkeypatch, after=6)
    records = sorted((partial / ".journal").glob("shard-*.json"))
    texts = [path.read_text() for path in records]
    empty = {"files": {}, "pixels": [], "labelled": [], "targets": None}
    told = json.loads(texts[1])
    told["pixels"][0][1] += 1
    for path, text in zip(
        records, [json.dumps(empty), json.dumps(told), texts[3], "[]", "[" * 99_999], strict=False
    ):
        path.write_text(text)
    store = build(flow)
    whole = build({**flow, "store": {"root": str(tmp_path / "whole")}})
    assert read_manifest(store.path) == read_manifest(whole.path)
    assert store.verify() == whole.verify()
