"""Settings of a scene's labels and targets. Loads neither xarray nor GDAL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic

from ..config import StrictModel

Member = int | str


class LabelsConfig(StrictModel):
    """Class labels of a scene: a raster, polygons or points of a vector file, or a CSV of points."""

    #: `{stem}` stands for the scene's file name without its ending, a folder for the same name in it
    path: Annotated[str, pydantic.Field(min_length=1)]
    unlabelled: int = 0  #: number that means "no label"
    variable: str | None = None  #: which variable of a MATLAB or NumPy file holds the labels
    layer: str | None = None  #: of a GeoPackage that holds several
    attribute: str | None = (
        None  #: column of a vector file or CSV with class names or numbers; `class` by default
    )
    #: column of a vector file or CSV whose equal values make a group; by default every polygon is one
    group: str | None = None
    groups: str | None = None  #: raster of group ids, for any kind of labels; `{stem}` as in path
    crs: str | None = None  #: of the columns x and y of a CSV, such as EPSG:32633
    #: new class names, each with the numbers or names that it takes together; the others become unlabelled
    classes: dict[str, Annotated[list[Member], pydantic.Field(min_length=1)]] | None = None

    @property
    def column(self) -> str:
        """The column of classes."""
        return self.attribute or "class"

    @pydantic.model_validator(mode="after")
    def _once(self) -> LabelsConfig:
        members = [str(member) for taken in (self.classes or {}).values() for member in taken]
        twice = sorted({member for member in members if members.count(member) > 1})
        if twice:
            raise ValueError(f"each class can be taken once only, and `classes` takes {twice[0]} twice")
        if self.group is not None and self.groups is not None:
            raise ValueError("give `group` (a column) or `groups` (a raster), not both")
        return self

    def settings(self) -> dict[str, Any]:
        """Return what decides the labels beside the content of their files."""
        return self.model_dump(mode="json", exclude={"path", "groups"})


@dataclass(frozen=True)
class LabelFiles:
    """Where the labels of one scene lie, and how they are read."""

    path: Path
    config: LabelsConfig
    groups: Path | None = None  #: raster of group ids

    def settings(self) -> dict[str, Any]:
        """Return what decides the labels beside the content of their files.

        The name of the file is in it, since by it polygons that are groups by themselves are told from those of others.
        """
        return {"file": self.path.name, **self.config.settings()}


class TargetsConfig(StrictModel):
    """Numbers to learn per pixel: regression layers, or abundances."""

    #: rasters, or a MATLAB or NumPy file; the layers of all in this order; `{stem}` as in labels
    path: str | Annotated[list[str], pydantic.Field(min_length=1)]
    names: list[str] | None = None  #: of the layers; by default as the files tell them
    units: str | list[str] = ""  #: of all layers, or of each
    nodata: pydantic.FiniteFloat | None = None  #: number that means "unknown", beside what the files say
    variable: str | None = None  #: which variable of a MATLAB or NumPy file

    @pydantic.model_validator(mode="after")
    def _matched(self) -> TargetsConfig:
        if self.names is not None:
            if len(set(self.names)) != len(self.names) or not all(self.names):
                raise ValueError("the names of targets must be different, and not empty")
            if isinstance(self.units, list) and len(self.units) != len(self.names):
                raise ValueError(f"{len(self.units)} units for {len(self.names)} names; give one for each")
        return self

    @property
    def paths(self) -> list[str]:
        """The files as they are written in the workflow."""
        return [self.path] if isinstance(self.path, str) else self.path

    def settings(self) -> dict[str, Any]:
        """Return what decides the targets beside the content of their files."""
        return self.model_dump(mode="json", exclude={"path"})
