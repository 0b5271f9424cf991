"""What may go from a store root: unfinished stores, left-over files, and stores that no run refers to.

Nothing is removed that does not bear Bandstream's marks, that a living build holds, or that a run folder refers to; no
symbolic link is followed, and one that lies in the root is left alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from .config import load_yaml
from .errors import BandstreamError, ConfigError, StoreBusyError, StoreNotFoundError
from .files import write_text
from .finish import provenance_path
from .locks import CACHE, SILENT_SECONDS, Holder, hold, lock_path
from .storage import delete_tree, is_remote, locate
from .store import JOURNAL, MANIFEST, PatchStore, read_manifest

#: Days that statistics are kept after their last use.
STATISTICS_DAYS = 30.0
_DAY = 86400.0
_STORE_NAME = re.compile(r".+-[0-9a-f]{12}\.zarr")
_STORE_FOLDERS = {"tiles", "bands", "transforms", "scenes", "classes", JOURNAL}
_STORE_FILES = {"zarr.json", MANIFEST}


@dataclass(frozen=True)
class Item:
    """One thing that may go."""

    path: Path
    kind: str  #: unfinished store, unused store, partial file, dead lock, statistics, reuse entry
    bytes: int


@dataclass
class Collection:
    """What may go from a root, and what was looked at and stays."""

    root: Path
    items: list[Item] = field(default_factory=list[Item])
    kept: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])  #: with the reason
    removed: bool = False

    @property
    def bytes(self) -> int:
        """What going would free, or freed."""
        return sum(item.bytes for item in self.items)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "root": str(self.root),
            "removed": self.removed,
            "bytes": self.bytes,
            "items": [
                {"path": str(item.path), "kind": item.kind, "bytes": item.bytes} for item in self.items
            ],
            "kept": [{"path": str(path), "why": why} for path, why in self.kept],
        }


@dataclass(frozen=True)
class References:
    """The stores that run folders refer to."""

    by_path: dict[Path, Path]  #: real path of a store -> run
    by_fingerprint: dict[str, Path]

    def of(self, store: Path) -> Path | None:
        """Return a run that refers to a finished store, wherever the store has been moved to since."""
        found = self.by_path.get(store.resolve())
        if found is None:
            with suppress(BandstreamError):
                found = self.by_fingerprint.get(PatchStore.open(store).fingerprint)
        return found


def collect(
    root: Path,
    *,
    remove: bool = False,
    unused: bool = False,
    runs: Sequence[Path] | None = None,
    older_than_days: float | None = None,
) -> Collection:
    """Find what may go from a store root, and remove it if asked to.

    Parameters
    ----------
    root
        Folder of the stores.
    remove
        Remove what is found; otherwise it is only told.
    unused
        Also finished stores that no run folder refers to.
    runs
        Folders in which run folders are looked for, at any depth; by default ``runs`` beside the root and in the
        current folder.
    older_than_days
        Leave what was used within so many days; by default statistics of the last 30 days stay, and nothing else.

    Raises
    ------
    StoreNotFoundError
        There is no such root.
    ConfigError
        The root is in an object store, or `unused` is asked for and there is no folder with runs.
    """
    if is_remote(locate(root)):
        raise ConfigError(f"{locate(root)} is in an object store; gc works on local folders only.")
    if not root.is_dir():
        raise StoreNotFoundError(f"There is no store root {root}.")
    found = Collection(root)
    references = find_references(run_places(root, runs)) if unused else None
    oldest = time.time() - (older_than_days or 0) * _DAY
    for path in sorted(root.glob("*.zarr")):
        _judge(path, found, references, oldest)
    found.items += _leftovers(root, oldest, (older_than_days or STATISTICS_DAYS) * _DAY)
    if remove:
        found.items = [item for item in found.items if _remove(item, found)]
        found.items += _forget(root, remove=True)
        found.removed = True
    else:
        gone = {item.path.name for item in found.items if item.kind == "unused store"}
        found.items += _forget(root, remove=False, gone=gone)
    return found


def run_places(root: Path, runs: Sequence[Path] | None) -> list[Path]:
    """Return the folders in which run folders are looked for.

    Raises
    ------
    ConfigError
        There is none, so that nothing tells which stores are used.
    """
    if runs:
        missing = [str(path) for path in runs if not path.is_dir()]
        if missing:
            raise ConfigError(
                f"There is no folder {', '.join(missing)}; --runs names folders with training runs."
            )
        return list(runs)
    usual = [root.resolve().parent / "runs", Path.cwd() / "runs"]
    places = [path for path in dict.fromkeys(usual) if path.is_dir()]
    if not places:
        raise ConfigError(
            f"No run folder is found ({' and '.join(str(path) for path in dict.fromkeys(usual))} do not exist), and without "
            "one every store would count as unused. Name the folders of your runs with --runs; an empty folder is taken "
            "as no runs."
        )
    return places


def find_references(places: Sequence[Path]) -> References:
    """Read from every run folder under some places which store it refers to.

    Raises
    ------
    ConfigError
        A run folder does not tell its store: nothing can be said to be unused then.
    """
    references = References({}, {})
    for run in _run_folders(places):
        try:
            _read_run(run, references)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"The run folder {run} does not tell which store it uses ({error}); delete it if it is not needed, so that "
                "unused stores can be told."
            ) from error
    return references


def _run_folders(places: Sequence[Path]) -> Iterator[Path]:
    """Yield every run folder once; links are followed here, since what they lead to may be a run all the same."""
    seen: set[Path] = set()

    def unreadable(error: OSError) -> None:
        raise ConfigError(
            f"The folder {error.filename} cannot be read ({error.strerror}), and a run in it may use a store; see to it "
            "that it can be read, so that unused stores can be told."
        ) from error

    for place in places:
        for text, folders, files in os.walk(place, followlinks=True, onerror=unreadable):
            real = Path(text).resolve()
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            # and go on below it: a config.yaml may lie above many runs
            if {"plan.json", "config.yaml"} & set(files):
                yield Path(text)
            folders[:] = [name for name in folders if not name.endswith(".zarr")]


def _read_run(run: Path, references: References) -> None:
    plan = run / "plan.json"
    for file in (plan, run / "summary.json"):
        if file.is_file():
            told = json.loads(file.read_text(encoding="utf-8"))["store"]
            references.by_fingerprint.setdefault(str(told["fingerprint"]), run)
            if path := told.get("path"):
                # resolved as seen from the run and from here, for those written with a relative path
                for base in (run, Path.cwd()):
                    references.by_path.setdefault((base / path).resolve(), run)
    config = run / "config.yaml"
    # a run that has not begun
    if not plan.is_file() and config.is_file() and (store := load_yaml(config).get("store")):
        for base in (run, Path.cwd()):
            references.by_path.setdefault((base / str(store)).resolve(), run)


def _judge(path: Path, found: Collection, references: References | None, oldest: float) -> None:
    """Put a folder among what goes or, with a reason, among what stays."""
    if path.is_symlink():
        found.kept.append((path, "is a link"))
        return
    finished = (path / MANIFEST).is_file()
    if finished and references is None:
        return
    if why := _foreign(path, finished=finished):
        found.kept.append((path, why))
        return
    if _is_held(path):
        found.kept.append((path, "is being built"))
        return
    size, newest = _weigh(path)
    if newest > oldest:
        found.kept.append((path, "was written lately"))
    elif not finished:
        found.items.append(Item(path, "unfinished store", size))
    elif references is not None and (run := references.of(path)) is not None:
        found.kept.append((path, f"is used by the run {run}"))
    else:
        sidecar = provenance_path(path)
        size += sidecar.stat().st_size if sidecar.is_file() else 0
        found.items.append(Item(path, "unused store", size))


def _foreign(path: Path, *, finished: bool) -> str | None:
    """Say why a folder does not look like a store of ours, or not like that alone."""
    if not path.is_dir() or not _STORE_NAME.fullmatch(path.name):
        return "is not named as Bandstream names stores"
    if finished:
        try:
            PatchStore.open(path)
            listed = {*read_manifest(path), MANIFEST}
        except BandstreamError as error:
            return f"cannot be read as a store ({error})"
        others = [name for name in _names(path) if name not in listed and not name.startswith(f"{JOURNAL}/")]
        return f"holds other files, such as {others[0]}" if others else None
    if not (path / JOURNAL).is_dir():
        return "has no journal of an unfinished build"
    for entry in path.iterdir():
        fits = entry.is_dir() if entry.name in _STORE_FOLDERS else entry.name in _STORE_FILES
        if entry.is_symlink() or not fits:
            return f"holds other files, such as {entry.name}"
    return None


def _names(path: Path) -> list[str]:
    return [
        (Path(folder) / name).relative_to(path).as_posix()
        for folder, folders, files in os.walk(path)
        for name in [*files, *(name for name in folders if (Path(folder) / name).is_symlink())]
    ]


def _weigh(path: Path) -> tuple[int, float]:
    """Return the bytes of a folder and when it was last written to."""
    stats: list[os.stat_result] = [path.lstat()]
    for entry in path.rglob("*"):
        with suppress(FileNotFoundError):  # a build that has just begun renames its files
            stats.append(entry.lstat())
    return sum(s.st_size for s in stats[1:] if not _is_folder(s)), max(s.st_mtime for s in stats)


def _is_folder(stat: os.stat_result) -> bool:
    return (stat.st_mode & 0o170000) == 0o040000


def _is_held(store: Path) -> bool:
    path = lock_path(store)
    try:
        holder = Holder.parse(path.read_text(encoding="utf-8", errors="replace"))
        # one without a name may be half written
        return time.time() - path.stat().st_mtime < SILENT_SECONDS if holder is None else not holder.is_dead()
    except FileNotFoundError:
        return False
    except OSError:  # somebody else's
        return True


def _leftovers(root: Path, oldest: float, statistics_seconds: float) -> Iterator[Item]:
    """Yield what lies beside the stores: partial files, locks of the dead, and statistics that nobody has used for long."""
    cache = root / CACHE
    if cache.is_symlink():
        return
    for path in sorted([*root.glob("*.provenance.json.*.partial"), *cache.glob("*.partial")]):
        # a living process renames its own within moments
        if _is_plain(path) and path.lstat().st_mtime < min(oldest, time.time() - 60):
            yield Item(path, "partial file", path.lstat().st_size)
    for path in sorted(cache.glob("*.lock")):
        if _is_plain(path) and path.lstat().st_mtime <= oldest and not _is_held(root / f"{path.stem}.zarr"):
            yield Item(path, "dead lock", path.lstat().st_size)
    statistics = cache / "statistics"
    for path in sorted(statistics.iterdir()) if statistics.is_dir() and not statistics.is_symlink() else ():
        stat = path.lstat()
        if _is_plain(path) and time.time() - max(stat.st_mtime, stat.st_atime) > statistics_seconds:
            yield Item(path, "statistics", stat.st_size)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _remove(item: Item, found: Collection) -> bool:
    """Remove one thing; False if it has to stay after all."""
    if not item.kind.endswith("store"):
        item.path.unlink(missing_ok=True)
        return True
    try:
        with hold(item.path, 0):
            finished = (item.path / MANIFEST).is_file()
            if finished == (item.kind == "unfinished store"):
                found.kept.append((item.path, "was finished meanwhile"))
                return False
            # without its manifest it is no store any more, should the rest be cut off
            (item.path / MANIFEST).unlink(missing_ok=True)
            delete_tree(item.path)
            provenance_path(item.path).unlink(missing_ok=True)
    except StoreBusyError:
        found.kept.append((item.path, "is being built"))
        return False
    return True


def _forget(root: Path, *, remove: bool, gone: set[str] | None = None) -> list[Item]:
    """Take the entries of vanished stores out of the index of reuse."""
    index = root / CACHE / "reuse.json"
    try:
        entries = cast("dict[str, Any]", json.loads(index.read_text(encoding="utf-8")))
        left = {
            key: entry
            for key, entry in entries.items()
            if (root / str(entry["store"])).is_dir() and entry["store"] not in (gone or ())
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    if len(left) == len(entries):
        return []
    size = len(json.dumps(entries)) - len(json.dumps(left))
    if remove:
        write_text(index, json.dumps(left))
    return [Item(index, "reuse entry", size)] * (1 if size else 0)
