"""Settings of the stage `mask`, and the files that they name. Loads neither xarray nor GDAL."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from ..config import StrictModel, find_data
from ..errors import ConfigError
from ..sidecars import vector_files

Range = tuple[pydantic.FiniteFloat | None, pydantic.FiniteFloat | None]
Codes = Annotated[list[int], pydantic.Field(min_length=1)] | Literal["nonzero"]


class PolygonsConfig(StrictModel):
    """Polygons of a vector file; a plain path, or a list of them, stands for `{path: ...}`."""

    path: str | Annotated[list[str], pydantic.Field(min_length=1)]  #: `{stem}` as in labels
    keep: Literal["outside", "inside"] = "outside"  #: where pixels stay usable

    @property
    def paths(self) -> list[str]:
        """The files as they are written in the workflow."""
        return [self.path] if isinstance(self.path, str) else self.path


class MaskConfig(StrictModel):
    """Which pixels are not to be used; values that are not finite never are data."""

    nodata: pydantic.FiniteFloat | Literal["auto", "none"] = "auto"
    #: stored number from which on a band is saturated; auto: what the product tells, if it does
    saturated: pydantic.FiniteFloat | Literal["auto"] | None = "auto"
    #: quality layers of the product that mask where they are not 0, or by name the codes that mask
    quality: list[str] | dict[str, Codes] = []
    polygons: PolygonsConfig | None = None
    ndvi: Range | None = None  #: [lowest, highest] to keep; null for no limit
    brightness: Range | None = None  #: the same for the mean of the bands, in the unit of the physical value
    brightness_nm: tuple[pydantic.FiniteFloat, pydantic.FiniteFloat] | None = None  #: bands of that mean

    @pydantic.field_validator("polygons", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | list) else value

    @pydantic.field_validator("ndvi", "brightness", "brightness_nm")
    @classmethod
    def _some_range(cls, value: Any) -> Any:
        if value is not None:
            low, high = value
            if low is None and high is None:
                raise ValueError(
                    "[null, null] masks nothing; give a lowest or a highest value, or leave it out"
                )
            if low is not None and high is not None and not low < high:
                raise ValueError(f"a range is [lowest, highest], got [{low:g}, {high:g}]")
        return value

    @pydantic.model_validator(mode="after")
    def _window_of_something(self) -> MaskConfig:
        if self.brightness_nm is not None and self.brightness is None:
            raise ValueError("brightness_nm without brightness masks nothing; give brightness too")
        return self


def polygon_files(config: MaskConfig, places: Sequence[Path], stem: str = "") -> list[Path]:
    """Return the vector files of a mask stage, in the workflow's order.

    Parameters
    ----------
    config
        The stage.
    places
        Folders in which relative paths are looked for.
    stem
        The scene's file name without its ending, for `{stem}`.

    Raises
    ------
    ConfigError
        A file is not there, or a pattern matches none.
    """
    found: list[Path] = []
    for name in config.polygons.paths if config.polygons else ():
        path = find_data(name.replace("{stem}", glob.escape(stem)), places)
        hits = [path] if path.is_file() else sorted(path.parent.glob(path.name))
        if not hits:
            msg = f"mask.polygons: no file matches {name} (looked for {path})."
            raise ConfigError(msg)
        found += hits
    return found


def stage_files(config: MaskConfig, places: Sequence[Path], stem: str = "") -> list[Path]:
    """Return every file whose content decides the mask: `polygon_files`, and what belongs to a shapefile."""
    return [file for path in polygon_files(config, places, stem) for file in vector_files(path)]
