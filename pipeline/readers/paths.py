"""From what a user gives (a file, a folder, a pattern, a list) to the files of scenes, in natural order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches

from ..errors import FormatError, SceneNotFoundError
from ..storage import is_remote, locate, matching
from . import envi, geotiff
from .anywhere import first_bytes

PathLike = str | os.PathLike[str]


def is_virtual(name: str) -> bool:
    """Return whether only GDAL could make something of the name."""
    return name.startswith("/vsi") or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:(//|/vsi|[^\\/])", name) is not None


def expand(pattern: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the files of a path, a pattern or a list, in natural order (a list keeps its own).

    Raises
    ------
    SceneNotFoundError
        If there is none.
    """
    if not isinstance(pattern, (str, os.PathLike)):
        paths = [os.fspath(path) for path in pattern]
        if not paths:
            msg = "the list of scene files is empty; give at least one"
            raise SceneNotFoundError(msg)
        for path in paths:
            must_exist(path)
        return paths
    name = os.fspath(pattern)
    if is_remote(name):
        return _expand_remote(name)
    if os.path.isfile(name):
        return [name]
    if os.path.isdir(name):
        return tiles_of(name)
    if glob.has_magic(name):
        found = sorted((p for p in glob.glob(name, recursive=True) if os.path.isfile(p)), key=_natural)
        if not found:
            msg = f"no file matches {name!r}{_near(name)}"
            raise SceneNotFoundError(msg)
        return found
    must_exist(name)
    return [name]


def _expand_remote(name: str) -> list[str]:
    """Return the objects or Zarr folders of an address or a pattern."""
    found = sorted((str(place) for place in matching(name)), key=_natural)
    if not found:
        msg = f"nothing in the bucket matches {name}"
        raise SceneNotFoundError(msg)
    return found


def one_per_scene(paths: Sequence[str]) -> list[str]:
    """Drop from a header and its data file the data file, and from both what only accompanies a raster."""
    listed = {os.path.abspath(path) for path in paths}
    kept: list[str] = []
    for path in paths:
        if path.lower().endswith(".aux.xml") and os.path.abspath(path)[: -len(".aux.xml")] in listed:
            continue
        if not path.lower().endswith(".hdr"):
            header = envi.find_header(path) if len(paths) > 1 else None
            tiff = header is not None and geotiff.is_tiff(first_bytes(path, 8))
            if header is not None and os.path.abspath(header) in listed and not tiff:
                continue
        elif len(paths) > 1 and _is_sidecar_of_tiff(path, listed):
            continue
        kept.append(path)
    return kept


def _is_sidecar_of_tiff(header: str, listed: set[str]) -> bool:
    """Return whether a `.hdr` belongs to a TIFF that is listed too."""
    base = os.path.abspath(header)[:-4]
    return any(
        base + ending in listed
        for ending in ("", *geotiff.SUFFIXES)
        if (base + ending).lower() != base + ".hdr"
    )


def tiles_of(folder: str) -> list[str]:
    """Return the TIFF files of a folder in natural order.

    Raises
    ------
    FormatError
        If it holds none.
    """
    names = sorted(os.listdir(folder), key=_natural)
    tiles = [os.path.join(folder, name) for name in names if name.lower().endswith(geotiff.SUFFIXES)]
    if tiles:
        return tiles
    headers = [name for name in names if name.lower().endswith(".hdr")]
    hint = f"; it holds ENVI headers ({', '.join(headers[:3])}): give one of them" if headers else ""
    listed = ", ".join(names[:5]) or "nothing"
    msg = f"{folder} is a folder without TIFF files (it holds {listed}); allowed: a file, or a folder of TIFF tiles{hint}"
    raise FormatError(msg)


def must_exist(path: str) -> None:
    """Raise with the names nearby unless the file is there."""
    if is_remote(path):
        if not locate(path).exists():
            msg = f"{path} does not exist"
            raise SceneNotFoundError(msg)
        return
    if not os.path.isfile(path):
        msg = f"{path} does not exist{_near(path)}"
        raise SceneNotFoundError(msg)


def _near(path: str) -> str:
    """Return the names in the folder that are like the missing one, worded for a message."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f"; neither does the folder {folder}"
    names = [entry.name for entry in os.scandir(folder or ".")]
    lower = {n.lower(): n for n in names}
    close = get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    if not close:
        return f"; the folder holds {len(names)} other files" if names else "; the folder is empty"
    return f"; near it: {', '.join(lower[n] for n in close)}"


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Sort key by which `tile2` comes before `tile10`."""
    parts = re.split(r"(\d+)", path)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part.lower()) for part in parts if part]


def common_name(paths: Sequence[str]) -> str:
    """Return what the names of the tiles have in common."""
    stems = [geotiff.stem(path) for path in paths]
    alike = 0
    while all(len(stem) > alike and stem[alike] == stems[0][alike] for stem in stems):
        alike += 1
    return stems[0][:alike].rstrip("_-. ") or stems[0]
