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
from .config import StrictModel, apply_overrides, data_roots, load_yaml, parse
from .errors import ConfigError
from .labels import LabelsConfig, TargetsConfig
from .masks import MaskConfig
from .reader_options import ReaderOptions
from .resampling import ResampleConfig
from .splits.config import NoSplit, SplitConfig
from .stages.config import (
    SPECTRAL,
    DerivativeConfig,
    NormalizeConfig,
    ReduceConfig,
    SmoothConfig,
    is_per_scene,
    require_fittable,
    require_order,
)
from .stages.select.config import SelectConfig
from .storage import locate

if TYPE_CHECKING:
    from .catalog import CatalogEntry
    from .stages.prepare import Preparation

#: keys of a scene for which a plain path may stand
_PATHS = ("labels", "targets")


class SceneConfig(ReaderOptions):
    """One entry of `scenes`: a file, or a glob pattern of which each file is a scene of its own."""

    path: Annotated[str, pydantic.Field(min_length=1)]
    labels: LabelsConfig | None = None
    targets: TargetsConfig | None = None
    mosaic: bool = False  #: one scene of all files of the pattern, on their common grid
    dark: str | None = None  #: dark reference frame, for `calibrate: {method: dark_white}`
    white: str | None = None  #: white reference frame

    def options(self) -> dict[str, Any]:
        """Return what is set of `open_scene`'s options, without paths."""
        own = {"path", "labels", "targets", "mosaic", "dark", "white", "data_file"}
        return self.model_dump(mode="json", exclude=own, exclude_none=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, dict):
            short = {key: {"path": value[key]} for key in _PATHS if isinstance(value.get(key), str)}
            return {**value, **short}
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


def _select_or_not(value: Any) -> str:
    method = value.get("method") if isinstance(value, dict) else getattr(value, "method", None)
    return "SelectConfig" if method == "select" else "ReduceConfig"


class StageConfig(StrictModel):
    """One stage: exactly one of these keys."""

    calibrate: CalibrateConfig | None = None
    resample_bands: ResampleBandsConfig | None = None
    mask: MaskConfig | None = None
    resample: ResampleConfig | None = None
    drop_bands: DropBandsConfig | None = None
    smooth: SmoothConfig | None = None
    derivative: DerivativeConfig | None = None
    normalize: NormalizeConfig | None = None
    reduce: (
        Annotated[
            Annotated[ReduceConfig, pydantic.Tag("ReduceConfig")]
            | Annotated[SelectConfig, pydantic.Tag("SelectConfig")],
            pydantic.Discriminator(_select_or_not),
        ]
        | None
    ) = None

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
    #: tiles with a smaller share of valid pixels in their core are left out (this reads the scenes once more)
    min_valid: Annotated[float, pydantic.Field(ge=0, le=1)] = 0
    #: tiles with fewer labelled pixels in their core are left out: 0.1 is a share, 5 a number of pixels
    min_labelled: Annotated[float, pydantic.Field(ge=0, le=1)] | Annotated[int, pydantic.Field(ge=0)] = 0


class StatisticsConfig(StrictModel):
    """How the training pixels count when stages are fitted."""

    balance: Literal["none", "classes"] = (
        "none"  #: classes: labelled pixels only, every class with the same weight
    )


class StoreConfig(StrictModel):
    """Where the store goes and how it is written."""

    root: str = "stores"
    dtype: Literal["float32"] = "float32"
    codec: Literal["default", "none", "zstd"] = "default"


class CatalogScenes(StrictModel):
    """Scenes by the name of their catalog entry."""

    catalog: str


class Workflow(StrictModel):
    """A whole workflow file."""

    version: Literal[1]
    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    scenes: CatalogScenes | Annotated[list[SceneConfig], pydantic.Field(min_length=1)]
    stages: list[StageConfig] = []
    tiles: TilesConfig = TilesConfig()
    split: SplitConfig = NoSplit()
    statistics: StatisticsConfig = StatisticsConfig()
    class_names: list[str] | None = None  #: names of the classes 1, 2, ...
    #: with `skip` a scene that cannot be opened, prepared or read is named and left out
    on_error: Literal["stop", "skip"] = "stop"
    store: StoreConfig = StoreConfig()

    @pydantic.model_validator(mode="after")
    def _order(self) -> Workflow:
        require_order([stage.kind for stage in self.stages])
        require_fittable(self._mapping())
        methods = [getattr(config, "method", None) for _, config in self._mapping()]
        if self.statistics.balance == "classes" and "percentile" in methods:
            raise ValueError(
                "statistics.balance: classes weighs means and covariances, and no quantiles; take normalize zscore in the "
                "place of percentile, or leave it out"
            )
        return self

    def spectral(self) -> list[tuple[str, Any]]:
        """Return kind and settings of the stages that map spectra alike in all scenes; those that do nothing left out."""
        return [(kind, config) for kind, config in self._mapping() if not is_per_scene(config)]

    @property
    def per_scene(self) -> bool:
        """Whether each scene is scaled by its own pixels before anything else."""
        return any(is_per_scene(config) for _, config in self._mapping())

    def _mapping(self) -> list[tuple[str, Any]]:
        found = [(stage.kind, getattr(stage, stage.kind)) for stage in self.stages]
        return [
            (kind, config)
            for kind, config in found
            if kind in SPECTRAL and getattr(config, "method", None) != "none"
        ]

    def preparation(self, places: Sequence[Path]) -> Preparation:
        """Return the stages that work on whole scenes, their files found in `places`."""
        from .stages.prepare import Preparation

        return Preparation.found(
            self.stage("calibrate"),
            self.stage("resample_bands"),
            self.stage("mask"),
            places,
            self.stage("resample"),
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
            "statistics": self.statistics.model_dump(mode="json"),
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


def store_root(workflow: Workflow) -> Path:
    """Return the folder, or the address, below which a workflow's store goes."""
    root = locate(workflow.store.root).expanduser()
    return root if root.is_absolute() else Path.cwd() / root


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
        long = [
            s | {key: {"path": s[key]} for key in _PATHS if isinstance(s.get(key), str)}
            if isinstance(s, dict)
            else s
            for s in scenes
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
        from .catalog import load_catalog  # slow to import, and few workflows name one

        entry = load_catalog(workflow.scenes.catalog, bases)
        scenes = [parse(SceneConfig, item, f"catalog {entry.name}") for item in entry.scenes]
        return SceneList(scenes, entry.bases(bases), entry)
    return SceneList(list(workflow.scenes), [*bases, *data_roots()])
