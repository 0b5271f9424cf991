"""What goes wrong around a build: full disks, read-only folders, sources that vanish; and scenes that fail among many."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.config import dump_yaml
from bandstream.pipeline.errors import (
    BandstreamWarning,
    SceneError,
    StoreIncompleteError,
    StoreWriteError,
)
from bandstream.pipeline.files import write_text
from bandstream.pipeline.store import list_stores
from bandstream.pipeline.writer import StoreWriter

from .conftest import MadeScene, make_envi

Flow = dict[str, Any]


def _no_store_is_visible(root: Path) -> None:
    """Neither here nor with plain Zarr."""
    import zarr

    for path, store in list_stores(root):
        assert store is None
        with pytest.raises(StoreIncompleteError):
            PatchStore.open(path)
        with pytest.raises(FileNotFoundError):
            zarr.open_group(path, mode="r")


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """Mount a disk of 2 MiB, which takes a system administrator."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandstream.pipeline import writer

    monkeypatch.setattr(writer, "SHARD_BYTES", (1, 1))
    monkeypatch.setattr(writer, "MIN_CHUNK_BYTES", 1)


@pytest.mark.process
def test_on_a_full_disk_finished_shards_wait_for_room(
    flow: Flow, small_disk: Path, small_shards: None, tmp_path: Path
) -> None:
    ballast = small_disk / "ballast"
    # some pages are left: for the caches, the lock and a few shards
    ballast.write_bytes(bytes((2 << 20) - 40 * 4096))
    root = small_disk / "stores"
    full = {**flow, "store": {"root": str(root)}}
    with pytest.raises(
        StoreWriteError, match=r"No space left on device.*run the same workflow again"
    ) as caught:
        build(full)
    assert caught.value.exit_code == 46
    _no_store_is_visible(root)
    assert list(root.glob("**/*.partial")) == []
    kept = {path: path.stat().st_ino for path in root.glob("*.zarr/tiles/data/c/**/*") if path.is_file()}
    ballast.unlink()
    store = build(full)
    assert store.verify() > 0
    assert len(kept) < len(store)
    journalled = [path for path in kept if kept[path] == path.stat().st_ino]
    assert len(journalled) >= len(kept) - 2  # all but what was being written
    whole = build({**flow, "store": {"root": str(tmp_path / "whole")}})
    for path in whole.path.rglob("*"):
        if path.is_file():
            assert (store.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("at", ["tiles/data", "tiles/split", "transforms", "zarr.json", "manifest.json"])
def test_room_that_ends_at_any_file_leaves_no_store_and_no_litter(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    original = Path.replace

    def full(self: Path, target: Path) -> Path:
        name = str(target).partition(".zarr/")[2]
        if name.startswith(at) and "/c/" in f"{name}/c/" and self.suffix == ".partial":
            raise OSError(28, "No space left on device")
        return original(self, target)

    root = tmp_path / "stores"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StoreWriteError, match="No space left"):
            build(flow)
    _no_finished_store(root)
    assert list(root.glob("**/*.partial")) == []
    assert build(flow).verify() > 0


def test_a_file_system_that_tells_of_no_room_when_a_shard_is_closed_is_blamed(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's file system keeps what is written, and a quota shows at the end."""

    class Late(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                super().close()
                raise OSError(errno.ENOSPC, "No space left on device")

    original = Path.open

    def opened(self: Path, *args: Any, **kwargs: Any) -> Any:
        streamed = self.suffix == ".partial" and (self.parent / "layout.json").is_file()
        return Late(self, "wb") if streamed else original(self, *args, **kwargs)

    original_begin = StoreWriter.begin

    def begin(self: StoreWriter) -> None:
        original_begin(self)
        monkeypatch.setattr(Path, "open", opened)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "begin", begin)
        with pytest.raises(StoreWriteError, match=r"tiles/data/.* cannot be written: No space left"):
            build(flow)
    monkeypatch.setattr(Path, "open", original)
    assert list(tmp_path.glob("stores/**/*.partial")) == []
    assert build(flow).verify() > 0


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error"), MemoryError()]
)
def test_what_ends_a_shard_half_way_keeps_its_name_and_leaves_no_litter(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A source that cannot be read is not a store that cannot be written."""
    from bandstream.pipeline import tiles

    original, halfway = tiles.tile_run, list[int]()

    def fails(*args: Any) -> Any:
        halfway.append(len(list(tmp_path.glob("stores/**/*.partial"))))
        if len(halfway) > 1:
            raise error
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(tiles, "tile_run", fails)
        with pytest.raises(type(error)) as caught:
            build(flow)
    assert min(halfway) > 0
    assert not isinstance(caught.value, StoreWriteError)
    _no_store_is_visible(tmp_path / "stores")
    assert list(tmp_path.glob("stores/**/*.partial")) == []
    assert build(flow).verify() > 0


@pytest.mark.parametrize("method", ["write_bytes", "replace"])
def test_a_small_file_without_room_leaves_the_old_one_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    path = tmp_path / "reuse.json"
    write_text(path, "old")
    original = Path.write_bytes

    def full(self: Path, content: Any) -> None:
        if method == "write_bytes":
            original(self, content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, method, full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("reuse.json", "old")]


def _no_finished_store(root: Path) -> None:
    assert [store for _, store in list_stores(root)] == [None]


def _without_privileges(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command so that permissions hold even where the tests are run by root."""
    libc = ctypes.CDLL(None)
    drop_capability, override, search = (
        24,
        1,
        2,
    )  # PR_CAPBSET_DROP; reading and writing whatever the mode says

    def drop() -> None:
        for capability in (override, search):
            libc.prctl(drop_capability, capability, 0, 0, 0)

    command = [sys.executable, "-c", "from bandstream.pipeline.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=drop)


def _written(flow: Flow, folder: Path) -> str:
    path = folder / "flow.yaml"
    path.write_text(dump_yaml(flow))
    return str(path)


@pytest.mark.process
def test_a_root_that_cannot_be_written_is_named_and_its_finished_stores_are_used(
    flow: Flow, tmp_path: Path
) -> None:
    root = tmp_path / "stores"
    root.mkdir()
    root.chmod(0o555)
    done = _without_privileges(["run", _written(flow, tmp_path)])
    assert done.returncode == 46, done.stderr
    assert f"The store root {root} cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(root.iterdir()) == []
    root.chmod(0o755)
    build(flow)
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    done = _without_privileges(["run", _written(flow, tmp_path)])
    assert done.returncode == 0, done.stderr
    assert "reused" in done.stdout
    done = _without_privileges(["run", _written(flow, tmp_path), "--set", "stages.reduce.components=3"])
    assert done.returncode == 46, done.stderr
    assert "cannot be written" in done.stderr
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o755)


@pytest.mark.process
def test_a_label_file_without_permission_is_named(flow: Flow, made: MadeScene, tmp_path: Path) -> None:
    root = tmp_path / "stores"
    root.mkdir()
    root.chmod(0o777)
    made.labels_path.chmod(0o000)
    done = _without_privileges(["run", _written(flow, tmp_path)])
    assert 20 <= done.returncode < 30, done.stderr
    assert str(made.labels_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert list(root.glob("*.zarr")) == []


def _spoil_between(flow: Flow, monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    from bandstream.pipeline import fitting

    original = fitting.fit

    def spoiled(*args: Any) -> Any:
        spoil()
        return original(*args)

    monkeypatch.setattr(fitting, "fit", spoiled)


@pytest.mark.parametrize("how", ["unlink", "truncate", "replace"])
@pytest.mark.parametrize("what", ["img", "labels"])
def test_a_source_that_vanishes_or_changes_between_the_passes_is_named(
    flow: Flow, made: MadeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    path = made.path.with_suffix(".img") if what == "img" else made.labels_path
    whole = path.read_bytes()

    def spoil() -> None:
        if how == "unlink":
            path.unlink()
        elif how == "truncate":
            os.truncate(path, len(whole) // 2)
        else:
            path.write_bytes(whole[::-1] if what == "img" else whole + b"\0")

    with monkeypatch.context() as patch:
        _spoil_between(flow, patch, spoil)
        with pytest.raises(SceneError, match="while the store was built") as caught:
            build(flow)
    assert str(path) in str(caught.value)
    # its shards may hold what was read of another file
    assert list((tmp_path / "stores").glob("*.zarr")) == []
    path.write_bytes(whole)
    assert build(flow).verify() > 0


# Many scenes


def _many(folder: Path, count: int, *, first: int = 0) -> list[MadeScene]:
    rng = np.random.default_rng(1)
    shapes = [tuple(int(n) for n in rng.integers(12, 29, 2)) for _ in range(count)]
    return [
        make_envi(folder, shape, bands=8, seed=n, stem=f"part{n:03d}", east=366000 + 2000 * n)
        for n, shape in enumerate(shapes, first)
    ]


def _flow_of(folder: Path, root: Path, **changes: Any) -> Flow:
    entry = {"path": str(folder / "part*.hdr"), "labels": str(folder / "{stem}_labels.tif")}
    return {
        "version": 1, "name": "many", "scenes": [entry], "stages": [{"drop_bands": {}}, {"normalize": {}}],
        "tiles": {"size": 16}, "split": {"by": "none"}, "store": {"root": str(root)}, **changes,
    }  # fmt: skip


def _break(scenes: list[MadeScene]) -> list[str]:
    """Break scenes each in its own way, and return their names."""
    truncated, no_data, other_bands, bad_labels, no_labels = scenes[:5]
    data = truncated.path.with_suffix(".img")
    data.write_bytes(data.read_bytes()[:-10])
    no_data.path.with_suffix(".img").unlink()
    make_envi(other_bands.path.parent, (16, 16), bands=9, seed=99, stem=other_bands.path.stem)
    bad_labels.labels_path.write_bytes(b"no raster")
    no_labels.labels_path.unlink()
    return [scene.path.stem for scene in scenes[:5]]


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_many_scenes_go_on_without_the_broken_ones(tmp_path: Path, count: int) -> None:
    folder, root = tmp_path / "raw", tmp_path / "stores"
    folder.mkdir()
    scenes = _many(folder, count)
    broken = _break([scenes[n] for n in (3, 10, 11, 24, count - 1)])
    with pytest.raises(SceneError):
        run_build(_flow_of(folder, root), quiet=True)
    started = time.perf_counter()
    with pytest.warns(BandstreamWarning, match="skipped scene part"):
        result = run_build(_flow_of(folder, root, on_error="skip"), quiet=True)
    seconds = time.perf_counter() - started
    assert [scene.scene_id for scene in result.skipped] == sorted(broken)
    assert all(scene.reason for scene in result.skipped)
    assert f"5 of {count} scenes skipped: {', '.join(sorted(broken))}" in result.notes
    store = result.store
    assert store is not None
    assert store.attrs["skipped"] == sorted(broken)
    assert [grid.scene_id for grid in store.scenes] == sorted({s.path.stem for s in scenes} - {*broken})
    sidecar = json.loads(store.path.with_name(f"{store.path.stem}.provenance.json").read_text())
    assert [item["scene_id"] for item in sidecar["skipped"]] == sorted(broken)
    print(f"{seconds / count * 1000:.1f} ms per scene")


def test_a_mended_scene_is_taken_in_and_gives_the_store_of_a_workflow_without_faults(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    scenes = _many(folder, 4)
    data = scenes[1].path.with_suffix(".img")
    whole = data.read_bytes()
    data.write_bytes(whole[:-10])
    flow = _flow_of(folder, tmp_path / "stores", on_error="skip")
    with pytest.warns(BandstreamWarning, match="skipped scene part001"):
        first = run_build(flow, quiet=True)
    with pytest.warns(BandstreamWarning, match="skipped scene part001"):
        again = run_build(flow, quiet=True)
    assert again.reused
    assert [scene.scene_id for scene in again.skipped] == ["part001"]
    data.write_bytes(whole)
    mended = run_build(flow, quiet=True)
    assert not mended.skipped
    assert mended.fingerprint == run_build({**flow, "on_error": "stop"}, quiet=True).fingerprint
    only = [{"path": str(s.path), "labels": str(s.labels_path)} for n, s in enumerate(scenes) if n != 1]
    without = run_build({**flow, "scenes": only}, quiet=True)
    # the same pixels, but a store that says nothing of a skipped scene
    assert len({first.fingerprint, mended.fingerprint, without.fingerprint}) == 3


@pytest.mark.parametrize("when", ["statistics", "tiles"])
def test_a_scene_that_fails_while_it_is_read_is_skipped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A file that is cut after it was opened; a scene of the test split is read in the second pass only."""
    folder = tmp_path / "raw"
    folder.mkdir()
    scenes = _many(folder, 3)
    names = {"train": "part000.hdr\n", "test": "part001.hdr\n"}
    names["test" if when == "tiles" else "train"] += "part002.hdr\n"
    for split, text in names.items():
        (folder / f"{split}.csv").write_text("image\n" + text)
    files = {split: str(folder / f"{split}.csv") for split in names}
    flow = _flow_of(folder, tmp_path / "stores", on_error="skip", split={"by": "given", "files": files})
    from bandstream.pipeline import survey

    original = survey.survey

    def cutting(*args: Any) -> Any:
        found = original(*args)
        os.truncate(scenes[2].path.with_suffix(".img"), 20)
        return found

    monkeypatch.setattr(survey, "survey", cutting)
    with pytest.warns(BandstreamWarning, match="skipped scene part002"):
        result = run_build(flow, quiet=True)
    assert [scene.scene_id for scene in result.skipped] == ["part002"]
    assert result.store is not None
    assert [grid.scene_id for grid in result.store.scenes] == ["part000", "part001"]
    assert len(list_stores(tmp_path / "stores")) == 1


def test_a_scene_that_is_skipped_late_leaves_none_of_its_classes_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it fails when it is opened or when it is read, the store is the same."""
    folder = tmp_path / "raw"
    folder.mkdir()
    scenes = _many(folder, 3)
    for name, scene in zip(("oak", "pine", "ash"), scenes, strict=True):
        (folder / f"{scene.path.stem}.csv").write_text(f"row,col,class\n5,6,{name}\n7,8,{name}\n")
    entry = {"path": str(folder / "part*.hdr"), "labels": str(folder / "{stem}.csv")}
    flow = _flow_of(folder, tmp_path / "late", on_error="skip", scenes=[entry])
    from bandstream.pipeline import survey

    original = survey.survey

    def cutting(*args: Any) -> Any:
        found = original(*args)
        os.truncate(scenes[2].path.with_suffix(".img"), 20)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(survey, "survey", cutting)
        with pytest.warns(BandstreamWarning, match="skipped scene part002"):
            late = run_build(flow, quiet=True)
    with pytest.warns(BandstreamWarning, match="skipped scene part002"):
        early = run_build({**flow, "store": {"root": str(tmp_path / "early")}}, quiet=True)
    assert late.store is not None
    assert early.store is not None
    assert late.fingerprint == early.fingerprint
    assert late.store.class_names == early.store.class_names == ["oak", "pine"]
    every = slice(0, len(late.store))
    found = [store.read_tiles("labels", every.start, every.stop) for store in (late.store, early.store)]
    np.testing.assert_array_equal(*found)


def test_when_every_scene_fails_the_first_reason_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for scene in _many(folder, 2):
        scene.path.with_suffix(".img").unlink()
    flow = _flow_of(folder, tmp_path / "stores", on_error="skip")
    with (
        pytest.warns(BandstreamWarning),
        pytest.raises(SceneError, match=r"all 2 failed\. The first, part000: "),
    ):
        run_build(flow, quiet=True)


def test_the_command_line_lists_skipped_scenes_for_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from bandstream.pipeline.cli import app

    folder = tmp_path / "raw"
    folder.mkdir()
    scenes = _many(folder, 2)
    scenes[0].path.with_suffix(".img").unlink()
    workflow = _written(_flow_of(folder, tmp_path / "stores", on_error="skip"), tmp_path)
    with pytest.warns(BandstreamWarning, match="skipped scene part000"):
        done = CliRunner().invoke(app, ["run", workflow, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["skipped"]
    assert [item["scene_id"] for item in told] == ["part000"]
    assert told[0]["reason"]
