"""Files that belong to a vector file. Loads nothing."""

from __future__ import annotations

from pathlib import Path

#: What follows a shapefile's main file; without .shx and .prj it cannot be read or placed.
_SHAPEFILE = (".shx", ".dbf", ".prj", ".cpg")


def vector_files(path: Path) -> list[Path]:
    """Return the files that a vector file consists of: itself, and those beside a shapefile."""
    if path.suffix.lower() != ".shp" or not path.is_file():
        return [path]
    beside = {p.suffix.lower(): p for p in path.parent.iterdir() if p.stem == path.stem}
    return [path, *(beside[suffix] for suffix in _SHAPEFILE if suffix in beside)]
