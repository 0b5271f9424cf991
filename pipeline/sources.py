"""From a workflow's scene entries to opened scenes with their labels and splits."""

from __future__ import annotations

import csv
import glob
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import find_data
from .errors import BandstreamError, BandstreamWarning, ConfigError, SceneError, SceneNotFoundError
from .faults import SkippedScene
from .labels import LabelFiles
from .splits.config import GivenSplit
from .storage import RemotePath, is_remote, locate
from .workflow import SceneConfig, SceneList, Workflow

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from .catalog import CatalogEntry
    from .labels import LabelRaster, Labels, Targets, TargetsConfig
    from .stages.prepare import Preparation

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class SceneFiles:
    """One scene before it is opened."""

    paths: tuple[Path, ...]  #: several only for a mosaic
    scene_id: str
    labels: LabelFiles | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])  #: for `open_scene`, without paths
    targets: tuple[tuple[Path, ...], TargetsConfig] | None = None
    data_file: Path | None = None
    dark: Path | None = None  #: reference frames
    white: Path | None = None
    split_code: str | None = None  #: name of the split that a CSV gives the whole scene
    split_raster: Path | None = None

    @property
    def label_paths(self) -> list[Path]:
        """Files of labels, groups and targets, as they are named."""
        found = [] if self.labels is None else [self.labels.path]
        if self.labels is not None and self.labels.groups is not None:
            found.append(self.labels.groups)
        return [*found, *(self.targets[0] if self.targets else ())]

    @property
    def label_settings(self) -> dict[str, Any]:
        """What decides labels and targets beside the content of their files."""
        found: dict[str, Any] = {}
        if self.labels is not None:
            found["labels"] = self.labels.settings()
        if self.targets is not None:
            found["targets"] = self.targets[1].settings()
        return found


@dataclass(frozen=True)
class Sources:
    """All scenes of a workflow before they are opened."""

    scenes: list[SceneFiles]
    files: list[Path] = field(default_factory=list[Path])  #: other files that were read, such as CSVs
    class_names: list[str] | None = None
    catalog: CatalogEntry | None = None
    places: tuple[Path, ...] = ()  #: folders in which relative paths are looked for

    def key(self) -> list[Any]:
        """Return what tells these sources from others without opening one: paths, and the names beside each.

        A header or world file that comes along beside a raster changes what the raster means.
        """
        entry = self.catalog.model_dump(mode="json") if self.catalog else None
        found: list[Any] = [[str(path) for path in self.files], self.class_names, entry]
        for scene in self.scenes:
            others = (scene.split_raster, scene.data_file, scene.dark, scene.white)
            paths = [*scene.paths, *(path for path in others if path), *scene.label_paths]
            beside = sorted(
                # beside an object nothing is looked for
                {
                    str(p)
                    for path in paths
                    if not is_remote(path)
                    for p in path.parent.glob(glob.escape(path.stem) + "*")
                }
            )
            found.append([str(path) for path in paths] + beside)
            found.append([scene.scene_id, scene.split_code, scene.options, scene.label_settings])
        return found


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
    scenes: list[SceneFiles] = []
    for entry in listed.entries:
        made = [_scene_files(entry, paths, places) for paths in _expand(entry, places)]
        for scene in made if listed.catalog else ():
            _require_inside(entry, scene, listed.catalog, places)
        scenes.extend(made)
    scenes = _unique_ids(scenes)
    read: list[Path] = []
    if isinstance(workflow.split, GivenSplit):
        scenes, read = _given(workflow.split, scenes, places)
    told = listed.catalog.class_names if listed.catalog else None
    return Sources(scenes, read, workflow.class_names or told, listed.catalog, tuple(places))


def _expand(entry: SceneConfig, places: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Return the files of each scene of an entry; of a header and its data file the header stands for both."""
    literal = find_data(entry.path, places)
    if literal.exists() or not _WILDCARDS & set(entry.path):
        return [(literal,)]
    path = locate(entry.path).expanduser()
    if isinstance(path, RemotePath):
        folders, parts = [path.root_of_bucket], tuple(path.key.split("/"))
    else:
        folders = [Path(path.anchor)] if path.is_absolute() else list(places)
        parts = path.relative_to(path.anchor).parts
    found = next((hits for folder in folders if (hits := _matches(folder, parts))), [])
    headers = {hit.with_suffix("") for hit in found if hit.suffix.lower() == ".hdr"}
    scenes = [
        hit for hit in found if hit.suffix.lower() == ".hdr" or not {hit, hit.with_suffix("")} & headers
    ]
    if not scenes:
        looked = ", ".join(str(folder) for folder in folders)
        raise SceneNotFoundError(f"No file matches the scene pattern {entry.path} (looked in {looked}).")
    return [tuple(scenes)] if entry.mosaic else [(scene,) for scene in scenes]


def _matches(folder: Path, parts: tuple[str, ...]) -> list[Path]:
    """Return the files of a pattern; a folder of that very name is taken as it is, brackets and all."""
    while len(parts) > 1 and (folder / parts[0]).is_dir():
        folder, parts = folder / parts[0], parts[1:]
    return sorted(folder.glob(str(Path(*parts))))


def _scene_files(entry: SceneConfig, paths: tuple[Path, ...], places: Sequence[Path]) -> SceneFiles:
    stem = paths[0].stem

    def placed(name: str) -> Path:
        found = find_data(name.replace("{stem}", stem), places)
        return found / paths[0].name if found.is_dir() else found

    labels, targets = None, None
    if entry.labels:
        groups = placed(entry.labels.groups) if entry.labels.groups else None
        labels = LabelFiles(placed(entry.labels.path), entry.labels, groups)
    if entry.targets:
        targets = (tuple(placed(name) for name in entry.targets.paths), entry.targets)
    data_file, dark, white = (
        find_data(name, places) if name else None for name in (entry.data_file, entry.dark, entry.white)
    )
    return SceneFiles(
        paths,
        stem,
        labels,
        entry.options(),
        targets,
        data_file,
        dark,
        white,
    )


def _require_inside(
    given: SceneConfig, scene: SceneFiles, entry: CatalogEntry | None, places: Sequence[Path]
) -> None:
    from .catalog import require_inside  # slow to import, and few workflows name an entry

    assert entry is not None
    for text, path in (
        *((given.path, path) for path in scene.paths),
        *zip(_label_texts(given), scene.label_paths, strict=True),
        (given.data_file, scene.data_file),
        (given.dark, scene.dark),
        (given.white, scene.white),
    ):
        if text and path is not None:
            require_inside(text, path, entry, places)


def _label_texts(given: SceneConfig) -> list[str]:
    """Return the paths of labels, groups and targets as an entry writes them, in the order of `label_paths`."""
    found = [given.labels.path] if given.labels else []
    if given.labels and given.labels.groups:
        found.append(given.labels.groups)
    return [*found, *(given.targets.paths if given.targets else ())]


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
    """Return the column `image` of a CSV file, else its first column; a file without a header line is taken too."""
    if not path.is_file():
        raise SceneNotFoundError(f"There is no split file {path}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"The split file {path} is no CSV file in UTF-8: {error}.") from error
    if not rows:
        return []
    header = [cell.strip() for cell in rows[0]]
    column = header.index("image") if "image" in header else 0
    # a first line that names a file is no header
    start = 0 if "image" not in header and Path(header[0]).suffix else 1
    return [row[column].strip() for row in rows[start:] if len(row) > column and row[column].strip()]


@dataclass(frozen=True)
class OpenScene:
    """One scene, opened, with its labels."""

    scene: xr.Dataset
    files: SceneFiles
    labels: Labels | None
    split: LabelRaster | None  #: a given split raster
    stage_files: list[str] = field(default_factory=list[str])  #: polygons, field spectra
    targets: Targets | None = None

    def labelled(self, rows: slice, cols: slice) -> NDArray[np.bool_]:
        """Return which pixels (rows, cols) of a window can be learned from: with a class, or any target known."""
        found = np.zeros((rows.stop - rows.start, cols.stop - cols.start), bool)
        if self.labels is not None:
            found |= self.labels.read(rows, cols) > 0
        if self.targets is not None:
            found |= np.isfinite(self.targets.read(rows, cols)).any(axis=0)
        return found

    @property
    def scene_id(self) -> str:
        """Name of the scene within its workflow."""
        return self.files.scene_id

    @property
    def shape_yx(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.scene.sizes["y"]), int(self.scene.sizes["x"])

    @property
    def source_files(self) -> list[str]:
        """Every file that determines the scene's content."""
        return [str(name) for name in self.scene.attrs["files"]]

    @property
    def prepared_from(self) -> list[str]:
        """What else decides the prepared scene: files of stages, dark and white frames with their headers."""
        found = list(self.stage_files)
        for key in ("dark_file", "white_file"):
            if path := self.scene.attrs.get(key):
                stem = Path(path).with_suffix("")
                beside = {stem, Path(path), *stem.parent.glob(glob.escape(stem.name) + ".*")}
                found += [str(p) for p in sorted(beside) if p.is_file()]  # data files may have no ending
        return found

    @property
    def own_files(self) -> list[str]:
        """All files that determine the scene, its labels and its split."""
        return [
            *self.source_files, *self.label_files, *self.target_files, *self.split_files, *self.prepared_from
        ]  # fmt: skip

    @property
    def label_files(self) -> list[str]:
        """Every file that determines the labels."""
        return self.labels.files() if self.labels else []

    @property
    def target_files(self) -> list[str]:
        """Every file that determines the targets."""
        return self.targets.files() if self.targets else []

    @property
    def split_files(self) -> list[str]:
        """Every file that determines a given split raster."""
        return self.split.files() if self.split else []


def open_sources(
    sources: Sources, preparation: Preparation, skipped: list[SkippedScene] | None = None
) -> list[OpenScene]:
    """Open all scenes and labels, prepare the scenes, and check that they have the same bands.

    Parameters
    ----------
    sources
        The scenes.
    preparation
        Stages that work on whole scenes.
    skipped
        Takes the scenes that fail; without it the first failure is raised.

    Raises
    ------
    ConfigError
        The scenes differ in their bands.
    SceneError
        Every scene failed.
    """
    opened: list[OpenScene] = []
    for item in sources.scenes:
        try:
            found = _open(item, sources, preparation)
            if opened:
                require_same_bands(opened[0].scene, found.scene)
        except (BandstreamError, OSError) as error:
            if skipped is None:
                if isinstance(error, BandstreamError):
                    raise
                raise SceneError(
                    f"The scene {item.scene_id} cannot be read: {error.strerror or error}"
                    + (f": {error.filename}. See to its permissions." if error.filename else ".")
                ) from error
            skipped.append(SkippedScene.of(item.scene_id, error))
            warnings.warn(skipped[-1].note(), BandstreamWarning, stacklevel=2)
        else:
            opened.append(found)
    require_any(opened, skipped or [])
    return renumbered(opened, sources.class_names)


def renumbered(scenes: Sequence[OpenScene], class_names: Sequence[str] | None) -> list[OpenScene]:
    """Give classes and groups the same numbers in all scenes, and see that all have the same targets.

    Raises
    ------
    LabelError
        They cannot be numbered together, or the targets differ.
    """
    from .labels import number_together, require_same_targets

    require_same_targets([item.targets for item in scenes])
    labels = number_together([item.labels for item in scenes], class_names)
    return [replace(item, labels=numbered) for item, numbered in zip(scenes, labels, strict=True)]


def require_any(scenes: Sequence[OpenScene], skipped: Sequence[SkippedScene]) -> None:
    """Refuse a workflow whose scenes have all failed.

    Raises
    ------
    SceneError
        Tells what was wrong with the first.
    """
    if not scenes:
        raise SceneError(
            f"No scene is left: all {len(skipped)} failed. The first, {skipped[0].scene_id}: {skipped[0].reason}"
        )


def _open(item: SceneFiles, sources: Sources, preparation: Preparation) -> OpenScene:
    from .labels import LabelRaster, Targets, open_labels
    from .readers import open_scene
    from .stages.prepare import prepare_scene

    scene = open_scene(
        item.paths[0] if len(item.paths) == 1 else list(item.paths),
        data_file=item.data_file,
        **item.options,
    )
    if sources.catalog is not None:
        from .catalog import completed

        scene = completed(sources.catalog, scene)
    for name, path in (("dark_file", item.dark), ("white_file", item.white)):
        if path is not None:
            scene.attrs[name] = str(path)
    stem = item.paths[0].stem
    stage_files = [str(path) for path in preparation.files(stem)]
    scene = prepare_scene(scene, preparation, stem)
    labels = open_labels(scene, item.labels) if item.labels else None
    targets = Targets.on_grid(item.targets[0], scene, item.targets[1]) if item.targets else None
    split = LabelRaster.on_grid(item.split_raster, scene) if item.split_raster else None
    opened = OpenScene(scene, item, labels, split, stage_files, targets)
    if sources.catalog is not None:
        from .catalog import require_files_inside

        read = [*opened.source_files, *opened.prepared_from, *opened.label_files, *opened.target_files]
        require_files_inside(read, sources.catalog, sources.places)
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
