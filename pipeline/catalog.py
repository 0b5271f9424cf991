"""Scene catalogs: YAML files that name scenes, their labels and where they come from.

The fields that STAC has too carry its names (`title`, `description`, `license`, `providers`, `datetime`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from .config import StrictModel, data_roots, load_yaml, parse
from .errors import ConfigError, SceneNotFoundError


class CatalogEntry(StrictModel):
    """One catalog file: a named set of scenes with its origin."""

    version: Literal[1]
    name: str
    title: str
    description: str
    license: str
    providers: list[str]
    datetime: str | None = None
    sensor: str | None = None
    folder: str = "."  #: folder of the files, under the working folder or $BANDSTREAM_DATA
    scenes: list[dict[str, Any]]  #: entries as in a workflow's `scenes`
    class_names: list[str] | None = None

    def bases(self, bases: Sequence[Path]) -> list[Path]:
        """Return the folders in which the entry's relative paths are looked for.

        Raises
        ------
        SceneNotFoundError
            The entry's folder is nowhere.
        """
        folder = Path(self.folder).expanduser()
        places = [folder] if folder.is_absolute() else [base / folder for base in (*bases, *data_roots())]
        found = [place for place in dict.fromkeys(places) if place.is_dir()]
        if not found:
            raise SceneNotFoundError(
                f"The folder {self.folder} of the catalog entry {self.name} was found neither beside the workflow nor "
                "in the working folder; set BANDSTREAM_DATA to the folder that holds it."
            )
        return found


def catalog_folder() -> Path:
    """Return the folder of the catalogs that ship with the package."""
    return Path(str(resources.files(f"{__name__.rsplit('.', 2)[0]}.catalogs"))) / "scenes"


def list_catalog() -> list[CatalogEntry]:
    """Return all entries that ship with the package, by name."""
    return [
        parse(CatalogEntry, load_yaml(path), path.name) for path in sorted(catalog_folder().glob("*.yaml"))
    ]


def load_catalog(name: str, bases: Sequence[Path] = ()) -> CatalogEntry:
    """Load an entry by its name, or by the path of a YAML file of one's own.

    Raises
    ------
    ConfigError
        There is no such entry; the nearest name is given.
    """
    if name.endswith((".yaml", ".yml")):
        path = next((base / name for base in bases if (base / name).is_file()), Path(name))
        return parse(CatalogEntry, load_yaml(path), str(path))
    path = catalog_folder() / f"{name}.yaml"
    if not path.is_file():
        names = sorted(p.stem for p in catalog_folder().glob("*.yaml"))
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"There is no catalog entry {name!r}.{hint} There are {', '.join(names)}.")
    return parse(CatalogEntry, load_yaml(path), path.name)
