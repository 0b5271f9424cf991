"""What a store was made from: content digests of source files, remembered as long as a file's stat stays the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .config import canonical_json
from .files import write_text

BLOCK_BYTES = 8 << 20
_REMEMBERED = 5000


class DigestCache:
    """SHA-256 digests of files, kept in a JSON file under the store root.

    A file is hashed again when its size, modification time or inode has changed.

    Parameters
    ----------
    path
        The JSON file; a missing or damaged one counts as empty. None remembers nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known = _read_json(path) if path else {}
        self._changed = False

    def digest(self, files: Iterable[str | Path]) -> str:
        """Return one digest (64 hex) of the content of `files` in their order; names do not matter."""
        return hashlib.sha256(canonical_json([self._file(Path(file)) for file in files])).hexdigest()

    def _file(self, path: Path) -> str:
        stamp = file_stamp(path)
        key = str(path.resolve())
        known = self._known.get(key)
        if isinstance(known, list) and known[:-1] == stamp:
            return str(known[-1])
        found = hash_file(path)
        self._known[key] = [*stamp, found]
        self._changed = True
        return found

    def save(self) -> None:
        """Write what was learnt."""
        if self._changed and self.path:
            newest = dict(list(self._known.items())[-_REMEMBERED:])
            write_text(self.path, json.dumps(newest))


def digest_files(files: Iterable[str | Path]) -> str:
    """Return the digest of files as `DigestCache.digest` does, without remembering anything."""
    return DigestCache(None).digest(files)


def file_stamp(path: Path) -> list[int]:
    """Return size, modification time (ns) and inode, by which an unchanged file is known."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def hash_file(path: Path) -> str:
    """Return the SHA-256 over the SHA-256 of each 8 MiB block, hashed in parallel."""
    size = path.stat().st_size
    offsets = range(0, max(size, 1), BLOCK_BYTES)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            blocks = pool.map(
                lambda at: hashlib.sha256(os.pread(descriptor, BLOCK_BYTES, at)).digest(), offsets
            )
            return hashlib.sha256(b"".join(blocks)).hexdigest()
    finally:
        os.close(descriptor)


class ReuseIndex:
    """Which finished store a workflow led to, so that running it again need not even open the scenes.

    An entry holds the stamp of each source file as it was when its content was hashed.

    Parameters
    ----------
    path
        A JSON file under the store root.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the entry of a workflow if every file it was made from is unchanged."""
        entry = _read_json(self.path).get(key)
        if not isinstance(entry, dict):
            return None
        try:
            same = all(file_stamp(Path(name)) == stamp for name, stamp in entry["stamps"].items())
        except (OSError, KeyError, TypeError, AttributeError):
            return None
        return entry if same else None

    def remember(self, key: str, store: str, fingerprint: str, stamps: dict[str, list[int]]) -> None:
        """Keep an entry; the oldest make room."""
        entries = _read_json(self.path)
        entries.pop(key, None)
        entries[key] = {"store": store, "fingerprint": fingerprint, "stamps": stamps}
        write_text(self.path, json.dumps(dict(list(entries.items())[-200:])))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
