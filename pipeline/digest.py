"""What a store was made from: content digests of source files, remembered as long as a file's stat stays the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .config import canonical_json, fingerprint
from .files import write_text
from .storage import RemotePath, is_remote, locate

BLOCK_BYTES = 8 << 20
_REMEMBERED = 5000
_ASKED_AT_ONCE = 16
Stamp = list[int | str]
"""What tells whether a file is the one that was seen before."""


class DigestCache:
    """SHA-256 digests of files, kept in a JSON file under the store root.

    A file is hashed again when its size, modification time or inode has changed; an object of a bucket is never fetched
    for it: size and ETag stand for its content.

    Parameters
    ----------
    path
        The JSON file; a missing or damaged one counts as empty. None remembers nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known = _read_json(path) if path else {}
        guard = self._known.pop("", None)
        # a digest that has changed by itself would be believed
        if guard is None or guard != fingerprint(self._known):
            self._known = {}
        self._changed = False

    def digest(self, files: Iterable[str | Path]) -> str:
        """Return one digest (64 hex) of the content of `files` in their order; names do not matter."""
        return hashlib.sha256(canonical_json([self._file(locate(file)) for file in files])).hexdigest()

    def _file(self, path: Path) -> str:
        stamp = file_stamp(path)
        if isinstance(path, RemotePath):
            # it is not fetched only to be hashed: the server's own ETag changes with the content
            return fingerprint(stamp)
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
            write_text(self.path, json.dumps(newest | {"": fingerprint(newest)}))


def digest_files(files: Iterable[str | Path]) -> str:
    """Return the digest of files as `DigestCache.digest` does, without remembering anything."""
    return DigestCache(None).digest(files)


def file_stamp(path: Path) -> Stamp:
    """Return that by which an unchanged file is known: size, modification time (ns) and inode; of an object size and ETag."""
    if isinstance(path, RemotePath):
        known = path.stat()
        return [known.st_size, known.etag]
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def file_stamps(files: Iterable[str | Path]) -> dict[str, Stamp]:
    """Return the stamp of each file; the server is asked for many at a time.

    Raises
    ------
    FileNotFoundError
        One is not there.
    """
    names = list(dict.fromkeys(str(file) for file in files))
    far = [name for name in names if is_remote(name)]
    found = {name: file_stamp(Path(name)) for name in names if not is_remote(name)}
    if far:
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            found |= zip(far, pool.map(lambda name: file_stamp(locate(name)), far), strict=True)
    return {name: found[name] for name in names}


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
            same = file_stamps(entry["stamps"]) == entry["stamps"]
            told = all(isinstance(entry[name], str) for name in ("store", "fingerprint"))
        except (OSError, KeyError, TypeError, AttributeError):
            return None
        return entry if same and told else None

    def remember(self, key: str, store: str, fingerprint: str, stamps: dict[str, Stamp]) -> None:
        """Keep an entry; the oldest make room."""
        entries = _read_json(self.path)
        entries.pop(key, None)
        entries[key] = {"store": store, "fingerprint": fingerprint, "stamps": stamps}
        write_text(self.path, json.dumps(dict(list(entries.items())[-200:])))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
