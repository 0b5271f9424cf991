"""What a reader of folders asks of them, answered for a local disc and for a bucket (`s3://`) alike."""

from __future__ import annotations

import os
from typing import cast

from ..storage import RemotePath, is_remote, locate, sizes_below


def is_file(path: str) -> bool:
    """Return whether there is such a file."""
    return locate(path).is_file() if is_remote(path) else os.path.isfile(path)


def first_bytes(path: str, count: int) -> bytes:
    """Return the beginning of a file, nothing of a folder."""
    if is_remote(path):
        place = cast("RemotePath", locate(path))
        try:
            return place.read_range(0, min(place.stat().st_size, count))
        except FileNotFoundError:
            return b""
    if os.path.isdir(path):
        return b""
    with open(path, "rb") as file:
        return file.read(count)


def content(path: str, most: int) -> bytes | None:
    """Return a whole file, None if it is larger than `most` bytes.

    Raises
    ------
    OSError
        As `open` does.
    """
    if is_remote(path):
        return cast("RemotePath", locate(path)).read_at_most(most)
    if os.path.getsize(path) > most:
        return None
    with open(path, "rb") as file:
        return file.read(most)


def folders_in(path: str) -> list[str]:
    """Return the names of the folders in a folder, sorted; links to folders are none."""
    if is_remote(path):
        return sorted(place.name for place in locate(path).iterdir())
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))


def files_below(path: str) -> list[str]:
    """Return the paths of all files below a folder, sorted."""
    if is_remote(path):
        return sorted(f"{path}/{name}" for name in sizes_below(locate(path)))
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
