"""Kill real builds at random moments, resume them, and compare every byte with a build that was never broken.

Run by hand: ``python tests/benchmarks/kills.py [--kills 50] [--seed 0] [--folder DIR]``. Only kills that left an
unfinished store are counted. Every odd kill hits the process alone, every even one its whole process group.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bandstream.pipeline.config import dump_yaml
from bandstream.pipeline.simulation import simulate

COMMAND = [sys.executable, "-c", "from bandstream.pipeline.cli import main; main()", "run", "--quiet"]


@dataclass
class Report:
    """What a series of kills came to."""

    counted: int = 0
    too_early: int = 0  #: before there was a store
    too_late: int = 0  #: the build had finished
    different: list[str] = field(default_factory=list)  #: files that came out otherwise
    shards_kept: int = 0
    shards: int = 0  #: of all counted stores together


class Build:
    """A workflow on a simulated scene, and what it comes to when nobody disturbs it."""

    def __init__(self, folder: Path, rows: int = 320, cols: int = 384, bands: int = 120) -> None:
        self.folder = folder
        self.workflow = folder / "kills.yaml"
        simulate(folder / "scene.hdr", rows=rows, cols=cols, bands=bands, classes=4, seed=1)
        scene = {"path": "scene.hdr", "labels": "scene_labels.tif"}
        stages = [{"drop_bands": {}}, {"normalize": {"method": "zscore"}}]
        flow = {
            "version": 1, "name": "kills", "scenes": [scene], "stages": stages, "tiles": {"size": 16, "halo": 3},
            "split": {"by": "blocks", "block": 64}, "store": {"codec": "zstd"},
        }  # fmt: skip
        self.workflow.write_text(dump_yaml(flow))
        began, ended, self.path = self._run(folder / "whole")
        self.seconds = ended - began  #: from the first file of the store to the end
        self.wanted = _content(self.path)

    def _start(self, root: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, str(self.workflow), "--set", f"store.root={json.dumps(str(root))}"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _run(self, root: Path) -> tuple[float, float, Path]:
        process = self._start(root)
        path = _wait_for_store(root, process)
        began = time.monotonic()
        assert process.wait() == 0
        ended = time.monotonic()
        path = path or next(root.glob("*.zarr"))
        return began, ended, path

    def kill(self, root: Path, delay: float, *, group: bool) -> bool | None:
        """Build and kill `delay` seconds after the store appeared.

        Returns
        -------
        bool or None
            Whether an unfinished store is left; None where there was no store yet.
        """
        process = self._start(root)
        path = _wait_for_store(root, process)
        time.sleep(delay)
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        return None if path is None else not (path / "manifest.json").exists()

    def resume(self, root: Path) -> list[str]:
        """Build to the end, and return the files that differ from those of the unbroken build."""
        process = self._start(root)
        assert process.wait() == 0
        found = _content(next(root.glob("*.zarr")))
        names = {*found, *self.wanted}
        return sorted(name for name in names if found.get(name) != self.wanted.get(name))


def _wait_for_store(root: Path, process: subprocess.Popen[bytes]) -> Path | None:
    before = {path: path.stat().st_mtime_ns for path in root.glob("*.zarr/.journal/layout.json")}
    while process.poll() is None:
        for path in root.glob("*.zarr/.journal/layout.json"):
            # a resumed build writes its plan again
            try:
                if path.stat().st_mtime_ns != before.get(path):
                    return path.parent.parent
            except FileNotFoundError:
                pass
        time.sleep(0.001)
    return None


def _content(store: Path) -> dict[str, bytes]:
    return {p.relative_to(store).as_posix(): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def journalled(root: Path) -> dict[Path, tuple[int, int]]:
    """Return the shard files that the journal of an unfinished store lists: path -> inode and time of writing."""
    store = next(root.glob("*.zarr"))
    found: dict[Path, tuple[int, int]] = {}
    for record in (store / ".journal").glob("shard-*.json"):
        for name in json.loads(record.read_text())["files"]:
            stat = (store / name).stat()
            found[store / name] = (stat.st_ino, stat.st_mtime_ns)
    return found


def run(build: Build, kills: int, seed: int) -> Report:
    """Kill and resume until so many kills have left an unfinished store."""
    report, rng, number = Report(), random.Random(seed), 0
    while report.counted < kills:
        root = build.folder / "broken"
        number += 1
        left = build.kill(root, rng.uniform(0, build.seconds), group=number % 2 == 0)
        if left is None:
            report.too_early += 1
        elif not left:
            report.too_late += 1
        else:
            report.counted += 1
            kept = journalled(root)
            report.different += build.resume(root)
            report.shards += sum("/c/" in name for name in build.wanted if name.startswith("tiles/data/"))
            stat = {path: path.stat() for path in kept}
            report.shards_kept += sum(
                kept[path] == (stat[path].st_ino, stat[path].st_mtime_ns)
                for path in kept
                if "/tiles/data/" in path.as_posix()
            )
            print(
                f"kill {report.counted}: {len(kept) // 4} shards were finished; different: {report.different}"
            )
        shutil.rmtree(root, ignore_errors=True)
    return report


def main() -> None:
    """Run the series and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bandstream-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    report = run(Build(folder), given.kills, given.seed)
    print(report, f"{time.monotonic() - started:.0f} s")
    if not given.folder:
        shutil.rmtree(folder)
    sys.exit(1 if report.different else 0)


if __name__ == "__main__":
    main()
