"""Workflows: strict YAML -> frozen configuration -> fingerprint.

A workflow says which scenes become which patch store. `Workflow.recipe` is the part of it that, together with the
content of the source files, decides every byte of the store; names, folders and paths are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from .calibration import CalibrateConfig, ResampleBandsConfig, stage_files
from .catalog import CatalogEntry, load_catalog
from .config import StrictModel, apply_overrides, data_roots, load_yaml, parse
from .errors import ConfigError
from .masks import MaskConfig
from .reader_options import ReaderOptions

if TYPE_CHECKING:
    from .stages.prepare import Preparation

Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]


class LabelsConfig(StrictModel):
    """Class labels of a scene."""

    path: str  #: raster; `{stem}` stands for the scene's file name without its ending, a folder for the same name in it
    unlabelled: int = 0  #: number that means "no label"
    variable: str | None = None  #: which variable of a MATLAB or NumPy file holds the labels


class SceneConfig(ReaderOptions):
    """One entry of `scenes`: a file, or a glob pattern of which each file is a scene of its own."""

    path: Annotated[str, pydantic.Field(min_length=1)]
    labels: LabelsConfig | None = None
    mosaic: bool = False  #: one scene of all files of the pattern, on their common grid
    dark: str | None = None  #: dark reference frame, for `calibrate: {method: dark_white}`
    white: str | None = None  #: white reference frame

    def options(self) -> dict[str, Any]:
        """Return what is set of `open_scene`'s options, without paths."""
        own = {"path", "labels", "mosaic", "dark", "white", "data_file"}
        return self.model_dump(mode="json", exclude=own, exclude_none=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("labels"), str):
            return {**value, "labels": {"path": value["labels"]}}
        return value


class DropBandsConfig(StrictModel):
    """Bands to leave out."""

    listed: bool = True  #: those the scene lists as bad
    windows_nm: str | list[tuple[float, float]] | None = (
        None  #: a named set such as `water`, or [[low, high], ...]
    )
    all_nodata: bool = True  #: those without data, or without variation, in the training pixels

    @pydantic.field_validator("windows_nm")
    @classmethod
    def _real_windows(cls, value: Any) -> Any:
        for low, high in value if isinstance(value, list) else ():
            if not 100 <= low < high:
                raise ValueError(f"a window is [low, high] in nm, got [{low:g}, {high:g}]")
        return value


class NormalizeConfig(StrictModel):
    """Per-band scaling fitted on the training pixels."""

    method: Literal["zscore", "minmax", "none"] = "zscore"


class ReduceConfig(StrictModel):
    """Fewer bands."""

    method: Literal["pca", "none"] = "pca"
    components: Annotated[int, pydantic.Field(ge=1)] = 30


class StageConfig(StrictModel):
    """One stage: exactly one of these keys."""

    calibrate: CalibrateConfig | None = None
    resample_bands: ResampleBandsConfig | None = None
    mask: MaskConfig | None = None
    drop_bands: DropBandsConfig | None = None
    normalize: NormalizeConfig | None = None
    reduce: ReduceConfig | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {value: {}}
        if isinstance(value, dict):
            if len(value) != 1:
                raise ValueError(
                    f"a stage is one key with its settings, got {', '.join(map(str, value)) or 'none'}"
                )
            return {key: {} if inner is None else inner for key, inner in value.items()}
        return value

    @property
    def kind(self) -> str:
        """Name of the stage."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)


class TilesConfig(StrictModel):
    """The patch grid."""

    size: Annotated[int, pydantic.Field(ge=1, le=4096)] = 64  #: side of a core in pixels
    halo: Annotated[int, pydantic.Field(ge=0, le=1024)] = (
        0  #: pixels around the core; patches up to 2 halo + 1
    )


class BlocksSplit(StrictModel):
    """Square blocks dealt to the splits, stratified by class where there are labels."""

    by: Literal["blocks"]
    block: Annotated[int, pydantic.Field(ge=1)] = 64  #: side in pixels
    fractions: dict[Literal["train", "validation", "test"], Fraction] = {
        "train": 0.6,
        "validation": 0.2,
        "test": 0.2,
    }
    margin: Annotated[int, pydantic.Field(ge=0)] | Literal["auto"] = "auto"  #: auto = 2 halo
    seed: Annotated[int, pydantic.Field(ge=0)] = 0

    @pydantic.model_validator(mode="after")
    def _sum(self) -> BlocksSplit:
        total = sum(self.fractions.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions must add up to 1, got {total:g}")
        if not self.fractions.get("train"):
            raise ValueError("fractions.train must be above 0")
        return self


class GivenSplit(StrictModel):
    """A split made elsewhere, taken as it is."""

    by: Literal["given"]
    raster: str | None = None  #: 1 train, 2 validation, 3 test; `{stem}` as in labels
    files: dict[Literal["train", "validation", "test"], str] | None = (
        None  #: CSV per split, scenes in column `image`
    )

    @pydantic.model_validator(mode="after")
    def _one(self) -> GivenSplit:
        if (self.raster is None) == (self.files is None):
            raise ValueError("a given split needs exactly one of `raster` and `files`")
        return self


class NoSplit(StrictModel):
    """Everything is training data."""

    by: Literal["none"] = "none"


class StoreConfig(StrictModel):
    """Where the store goes and how it is written."""

    root: str = "stores"
    dtype: Literal["float32"] = "float32"
    codec: Literal["default", "none", "zstd"] = "default"


class CatalogScenes(StrictModel):
    """Scenes by the name of their catalog entry."""

    catalog: str


SplitConfig = Annotated[BlocksSplit | GivenSplit | NoSplit, pydantic.Field(discriminator="by")]


class Workflow(StrictModel):
    """A whole workflow file."""

    version: Literal[1]
    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    scenes: CatalogScenes | Annotated[list[SceneConfig], pydantic.Field(min_length=1)]
    stages: list[StageConfig] = []
    tiles: TilesConfig = TilesConfig()
    split: SplitConfig = NoSplit()
    class_names: list[str] | None = None  #: names of the classes 1, 2, ...
    store: StoreConfig = StoreConfig()

    @pydantic.model_validator(mode="after")
    def _order(self) -> Workflow:
        kinds = [stage.kind for stage in self.stages]
        ranks = {"calibrate": 0, "resample_bands": 0, "mask": 0, "drop_bands": 0, "normalize": 1, "reduce": 2}
        for kind in ranks:
            most = 2 if kind == "normalize" and "reduce" in kinds else 1
            if kinds.count(kind) > most:
                raise ValueError(f"the stage {kind} stands {kinds.count(kind)} times; {most} allowed")
        numbers = [3 if k == "normalize" and "reduce" in kinds[:i] else ranks[k] for i, k in enumerate(kinds)]
        if numbers != sorted(numbers):
            raise ValueError(
                f"the stages {', '.join(kinds)} are out of order; calibrate, resample_bands, mask and drop_bands come first "
                "(whatever their order, calibrate acts first), then normalize, reduce, normalize"
            )
        late = [s.normalize for i, s in enumerate(self.stages) if s.normalize and numbers[i] == 3]
        if late and late[0].method == "minmax":
            raise ValueError("normalize after reduce takes zscore: the range of the components is not known")
        return self

    def preparation(self, places: Sequence[Path]) -> Preparation:
        """Return the stages that work on whole scenes, their files found in `places`."""
        from .stages.prepare import Preparation

        return Preparation.found(
            self.stage("calibrate"), self.stage("resample_bands"), self.stage("mask"), places
        )

    def stage(self, kind: str) -> Any:
        """Return the settings of the first stage of a kind, or None."""
        return next((getattr(stage, kind) for stage in self.stages if stage.kind == kind), None)

    def recipe(self) -> dict[str, Any]:
        """Return what decides the store's content beside the sources, for the fingerprint and the store's own record.

        Paths, the name and the root are left out; the sources' digests stand in for the files.
        """
        split = self.split.model_dump(mode="json")
        for path_key in ("raster", "files"):
            split.pop(path_key, None)
        return {
            "stages": [{s.kind: _without_files(getattr(s, s.kind))} for s in self.stages],
            "tiles": self.tiles.model_dump(mode="json"),
            "split": split,
            "class_names": self.class_names,
            "store": {"dtype": self.store.dtype, "codec": self.store.codec},
        }

    def resolved(self) -> dict[str, Any]:
        """Return the whole file with every default filled in, as `bandstream resolve` prints it."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["stages"] = [
            {s.kind: getattr(s, s.kind).model_dump(mode="json", exclude_none=True)} for s in self.stages
        ]
        return document


def _without_files(stage: StrictModel) -> dict[str, Any]:
    """Return a stage's settings; the files that it names are told by their content elsewhere."""
    settings = stage.model_dump(mode="json")
    if isinstance(stage, CalibrateConfig):
        return {
            k: "file" if isinstance(v, str) and v in stage_files(stage) else v for k, v in settings.items()
        }
    if isinstance(stage, MaskConfig) and stage.polygons is not None:
        settings["polygons"].pop("path")
    return settings


def load_workflow(
    source: str | Path | dict[str, Any], overrides: Sequence[str] = ()
) -> tuple[Workflow, list[Path]]:
    """Load a workflow from a YAML file, or from the same content as a dict.

    Parameters
    ----------
    source
        File, or content.
    overrides
        Dotted overrides, ``tiles.size=32``.

    Returns
    -------
    tuple
        The workflow, and the folders in which its relative paths are looked for.

    Raises
    ------
    ConfigError
        See `bandstream.pipeline.config`.
    """
    if isinstance(source, dict):
        data, where, base = source, "the workflow", Path.cwd()
    else:
        data, where, base = load_yaml(source), str(source), Path(source).resolve().parent
        if "scenes" not in data and (
            "workflow" in data or ("store" in data and isinstance(data["store"], str))
        ):
            raise ConfigError(f"{source} is an experiment, no workflow; use `bandstream train {source}`.")
    workflow = parse(Workflow, apply_overrides(_long_form(data), overrides), where)
    bases = [base] if base == Path.cwd() else [base, Path.cwd()]
    return workflow, bases


def _long_form(data: dict[str, Any]) -> dict[str, Any]:
    """Write short forms out, so that an override finds the sections they stand for."""
    stages, scenes = data.get("stages"), data.get("scenes")
    if isinstance(stages, list):
        stages = [{s: {}} if isinstance(s, str) else s for s in stages]
        stages = [
            {k: {} if v is None else v for k, v in s.items()} if isinstance(s, dict) else s for s in stages
        ]
        data = data | {"stages": stages}
    if isinstance(scenes, list):
        short = [isinstance(s, dict) and isinstance(s.get("labels"), str) for s in scenes]
        long = [
            s | {"labels": {"path": s["labels"]}} if yes else s for s, yes in zip(scenes, short, strict=True)
        ]
        data = data | {"scenes": long}
    return data


@dataclass(frozen=True)
class SceneList:
    """The scene entries of a workflow, its catalog entry looked up."""

    entries: list[SceneConfig]
    places: list[Path]  #: folders in which their relative paths are looked for
    catalog: CatalogEntry | None = None  #: the entry they come from


def scene_entries(workflow: Workflow, bases: Sequence[Path]) -> SceneList:
    """Return the scene entries of a workflow.

    Raises
    ------
    ConfigError, SceneNotFoundError
        The catalog entry, or its folder, does not exist.
    """
    if isinstance(workflow.scenes, CatalogScenes):
        entry = load_catalog(workflow.scenes.catalog, bases)
        scenes = [parse(SceneConfig, item, f"catalog {entry.name}") for item in entry.scenes]
        return SceneList(scenes, entry.bases(bases), entry)
    return SceneList(list(workflow.scenes), [*bases, *data_roots()])


def require_fractions(workflow: Workflow) -> None:
    """Refuse a block split whose margin would eat whole blocks.

    Raises
    ------
    ConfigError
        The margin is as wide as a block.
    """
    split = workflow.split
    if isinstance(split, BlocksSplit):
        margin = 2 * workflow.tiles.halo if split.margin == "auto" else split.margin
        if margin >= split.block:
            raise ConfigError(
                f"split.margin is {margin} pixels and split.block {split.block}: nothing would be left of a block "
                f"between two others. Set split.block to more than {margin}, or tiles.halo to less."
            )
