"""From a workflow's scene entries to opened scenes with their labels and splits."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .config import find_data
from .errors import ConfigError, SceneNotFoundError
from .workflow import GivenSplit, SceneConfig, SceneList, Workflow

if TYPE_CHECKING:
    import xarray as xr

    from .labels import LabelRaster

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class SceneFiles:
    """One scene before it is opened."""

    paths: tuple[Path, ...]  #: several only for a mosaic
    scene_id: str
    labels: Path | None
    unlabelled: int
    data_file: Path | None
    header_offset: int | None
    wavelength_unit: str | None
    split_code: str | None = None  #: name of the split that a CSV gives the whole scene
    split_raster: Path | None = None


@dataclass(frozen=True)
class Sources:
    """All scenes of a workflow before they are opened."""

    scenes: list[SceneFiles]
    patterns: dict[str, list[str]] = field(
        default_factory=dict[str, list[str]]
    )  #: glob pattern -> files found
    files: list[Path] = field(default_factory=list[Path])  #: other files that were read, such as CSVs
    class_names: list[str] | None = None


def find_sources(workflow: Workflow, listed: SceneList) -> Sources:
    """Find the files of a workflow's scenes, labels and splits; nothing is opened but CSV files.

    Parameters
    ----------
    workflow
        The workflow.
    listed
        Its scene entries, from `scene_entries`.

    Raises
    ------
    SceneNotFoundError
        A file is missing, or a pattern matches none.
    ConfigError
        The CSV files of a given split and the scenes do not match.
    """
    places = listed.places
    patterns: dict[str, list[str]] = {}
    scenes: list[SceneFiles] = []
    for entry in listed.entries:
        scenes.extend(_scene_files(entry, paths, places) for paths in _expand(entry, places, patterns))
    scenes = _unique_ids(scenes)
    read: list[Path] = []
    if isinstance(workflow.split, GivenSplit):
        scenes, read = _given(workflow.split, scenes, places)
    return Sources(scenes, patterns, read, workflow.class_names or listed.class_names)


def _expand(
    entry: SceneConfig, places: Sequence[Path], patterns: dict[str, list[str]]
) -> list[tuple[Path, ...]]:
    pattern = find_data(entry.path, places)
    if not _WILDCARDS & set(str(entry.path)):
        return [(pattern,)]
    found = sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    if not found:
        looked = ", ".join(str(place) for place in places)
        raise SceneNotFoundError(f"No file matches the scene pattern {entry.path} (looked in {looked}).")
    patterns[str(pattern)] = [str(path) for path in found]
    return [tuple(found)] if entry.mosaic else [(path,) for path in found]


def _scene_files(entry: SceneConfig, paths: tuple[Path, ...], places: Sequence[Path]) -> SceneFiles:
    stem = paths[0].stem
    labels = None
    if entry.labels:
        labels = find_data(entry.labels.path.replace("{stem}", stem), places)
        if labels.is_dir():
            labels = labels / paths[0].name
    data_file = find_data(entry.data_file, places) if entry.data_file else None
    unlabelled = entry.labels.unlabelled if entry.labels else 0
    return SceneFiles(paths, stem, labels, unlabelled, data_file, entry.header_offset, entry.wavelength_unit)


def _unique_ids(scenes: list[SceneFiles]) -> list[SceneFiles]:
    seen: dict[str, int] = {}
    unique: list[SceneFiles] = []
    for scene in scenes:
        seen[scene.scene_id] = seen.get(scene.scene_id, 0) + 1
        number = seen[scene.scene_id]
        unique.append(scene if number == 1 else replace(scene, scene_id=f"{scene.scene_id}-{number}"))
    return unique


def _given(
    split: GivenSplit, scenes: list[SceneFiles], places: Sequence[Path]
) -> tuple[list[SceneFiles], list[Path]]:
    if split.raster is not None:
        raster = split.raster
        found = [
            replace(s, split_raster=find_data(raster.replace("{stem}", s.paths[0].stem), places))
            for s in scenes
        ]
        return found, []
    assert split.files is not None
    by_path = {path.resolve(): number for number, scene in enumerate(scenes) for path in scene.paths}
    by_name: dict[str, list[int]] = {}
    for path, number in by_path.items():
        by_name.setdefault(path.name, []).append(number)
    given: dict[int, str] = {}
    read: list[Path] = []
    for name, file in split.files.items():
        path = find_data(file, places)
        read.append(path)
        for row in _images(path):
            exact = by_path.get((path.parent / row).resolve())
            numbers = [exact] if exact is not None else by_name.get(Path(row).name, [])
            if len(numbers) != 1:
                problem = "is no scene of this workflow" if not numbers else "is the name of several scenes"
                raise ConfigError(
                    f"{path} lists {row}, which {problem}; write its path relative to the CSV file."
                )
            other = given.setdefault(numbers[0], name)
            if other != name:
                raise ConfigError(
                    f"{row} stands in the {other} and in the {name} file of split.files; keep one."
                )
    left = [scene.scene_id for number, scene in enumerate(scenes) if number not in given]
    if left:
        raise ConfigError(
            f"{len(left)} of {len(scenes)} scenes stand in no file of split.files: {', '.join(left[:5])}"
            f"{', ...' if len(left) > 5 else ''}. Add them, or narrow the scene pattern."
        )
    return [replace(scene, split_code=given[number]) for number, scene in enumerate(scenes)], read


def _images(path: Path) -> list[str]:
    """Return the column `image` of a CSV file, or its first column."""
    if not path.is_file():
        raise SceneNotFoundError(f"There is no split file {path}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    column = "image"
    if rows and column not in rows[0]:
        column = next(iter(rows[0]))
    return [row[column].strip() for row in rows if row[column]]


@dataclass(frozen=True)
class OpenScene:
    """One scene, opened, with its labels."""

    scene: xr.Dataset
    files: SceneFiles
    labels: LabelRaster | None

    @property
    def shape_yx(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.scene.sizes["y"]), int(self.scene.sizes["x"])

    @property
    def source_files(self) -> list[str]:
        """Every file that determines the scene's content."""
        return [str(name) for name in self.scene.attrs["files"]]


def open_sources(sources: Sources) -> list[OpenScene]:
    """Open all scenes and labels, and check that the scenes have the same bands.

    Raises
    ------
    ConfigError
        The scenes differ in their bands.
    """
    from .labels import LabelRaster
    from .readers import open_scene

    opened: list[OpenScene] = []
    for item in sources.scenes:
        scene = open_scene(
            item.paths[0] if len(item.paths) == 1 else list(item.paths),
            data_file=item.data_file,
            header_offset=item.header_offset,
            wavelength_unit=item.wavelength_unit,
        )
        labels = LabelRaster.on_grid(item.labels, scene, item.unlabelled) if item.labels else None
        opened.append(OpenScene(scene, item, labels))
        require_same_bands(opened[0].scene, scene)
    return opened


def require_same_bands(first: xr.Dataset, other: xr.Dataset) -> None:
    """Refuse a scene whose bands are not those of the first: their number, or a centre by over 10 % of the FWHM.

    Raises
    ------
    ConfigError
        Names both scenes and the band.
    """
    names = [str(scene.attrs.get("source", scene.attrs.get("scene_id"))) for scene in (first, other)]
    if first.sizes["band"] != other.sizes["band"]:
        raise ConfigError(
            f"{names[1]} has {other.sizes['band']} bands and {names[0]} {first.sizes['band']}; scenes of one workflow "
            "need the same bands. Make a workflow for each sensor."
        )
    if "wavelength" not in first.coords or "wavelength" not in other.coords:
        return
    a, b = first["wavelength"].values, other["wavelength"].values
    width = first["fwhm"].values if "fwhm" in first.coords else np.full(len(a), 10.0)
    apart = np.abs(a - b)
    # a band without a centre (NaN in both) is the same band
    wrong = (apart > 0.1 * width) | (np.isnan(a) != np.isnan(b))
    if wrong.any():
        band = int(np.argmax(wrong))
        raise ConfigError(
            f"Band {band + 1} lies at {b[band]:.2f} nm in {names[1]} and at {a[band]:.2f} nm in {names[0]}, further "
            "apart than 10 % of its width; scenes of one workflow need the same bands."
        )
