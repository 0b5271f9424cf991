"""Settings of the key `split` of a workflow."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from ..config import StrictModel

SplitName = Literal["train", "validation", "test"]
SPLIT_NAMES: tuple[SplitName, ...] = ("train", "validation", "test")
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]
Margin = Annotated[int, pydantic.Field(ge=0)] | Literal["auto", "range"]
_FRACTIONS: dict[SplitName, float] = {"train": 0.6, "validation": 0.2, "test": 0.2}


class _Fractions(StrictModel):
    """Shares of the splits."""

    fractions: dict[SplitName, Fraction] = _FRACTIONS
    seed: Annotated[int, pydantic.Field(ge=0)] = 0

    @pydantic.model_validator(mode="after")
    def _sum(self) -> _Fractions:
        total = sum(self.fractions.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions must add up to 1, got {total:g}")
        if not self.fractions.get("train"):
            raise ValueError("fractions.train must be above 0")
        return self


class DealtSplit(_Fractions):
    """Units (blocks, stripes, groups, scenes) dealt to the splits, by fractions or as folds."""

    folds: Annotated[int, pydantic.Field(ge=2, le=1000)] | None = (
        None  #: k-fold in place of the fractions: equal parts, of which each is the test split of one store
    )
    fold: Annotated[int, pydantic.Field(ge=1)] = 1  #: 1 to `folds`: the part that is the test split
    validation_fold: bool = True  #: the part after it is the validation split; False: there is none

    @pydantic.model_validator(mode="after")
    def _fold(self) -> DealtSplit:
        if self.folds is None:
            if self.fold != 1:
                raise ValueError(f"fold is {self.fold}, and there is no number of folds; set `folds`")
            return self
        if self.fold > self.folds:
            raise ValueError(f"fold is 1 to {self.folds} (folds), got {self.fold}")
        if self.validation_fold and self.folds < 3:
            raise ValueError(
                "with 2 folds nothing is left to train on; set folds to 3 or more, or validation_fold: false"
            )
        if self.fractions != _FRACTIONS:
            raise ValueError("`folds` makes equal parts; leave `fractions` out")
        return self

    def wanted(self) -> list[SplitName]:
        """Return the splits that are to hold something."""
        if self.folds is None:
            return [name for name in SPLIT_NAMES if self.fractions.get(name)]
        return [name for name in SPLIT_NAMES if name != "validation" or self.validation_fold]


class BlocksSplit(DealtSplit):
    """Square blocks dealt to the splits, stratified by class where there are labels."""

    by: Literal["blocks"]
    block: Annotated[int, pydantic.Field(ge=1)] = 64  #: side in pixels
    margin: Margin = (
        "auto"  #: pixels between splits; auto = 2 halo, range = from a variogram (at least 2 halo)
    )


class StripesSplit(DealtSplit):
    """Stripes across the whole scene, dealt like blocks: each split sees all of the swath, or all of the track."""

    by: Literal["stripes"]
    along: Literal["rows", "columns"] = "rows"  #: a stripe is this many whole rows, or whole columns
    width: Annotated[int, pydantic.Field(ge=1)] = 64  #: rows, or columns, of a stripe
    margin: Margin = "auto"


class GroupsSplit(DealtSplit):
    """All pixels of a polygon, or of an id that several share, on one side."""

    by: Literal["groups"]
    margin: Margin = "auto"


class ScenesSplit(DealtSplit):
    """Whole scenes: dealt, or listed by their names."""

    by: Literal["scenes"]
    lists: dict[SplitName, list[str]] | None = (
        None  #: scene names, or patterns such as "2021_*", by split; every scene in exactly one
    )

    @pydantic.model_validator(mode="after")
    def _lists(self) -> ScenesSplit:
        if self.lists is not None and (self.folds is not None or self.fractions != _FRACTIONS):
            raise ValueError("`lists` says where each scene goes; leave `fractions` and `folds` out")
        return self

    def wanted(self) -> list[SplitName]:
        """Return the splits that are to hold something."""
        return (
            super().wanted() if self.lists is None else [name for name in SPLIT_NAMES if self.lists.get(name)]
        )


class RandomSplit(_Fractions):
    """Every pixel drawn on its own: neighbours stand in different splits, and scores come out too good."""

    by: Literal["random"]


class GivenSplit(StrictModel):
    """A split made elsewhere, taken as it is."""

    by: Literal["given"]
    raster: str | None = None  #: 1 train, 2 validation, 3 test; `{stem}` as in labels
    files: dict[SplitName, str] | None = None  #: CSV per split, scenes in column `image`

    @pydantic.model_validator(mode="after")
    def _one(self) -> GivenSplit:
        if (self.raster is None) == (self.files is None):
            raise ValueError("a given split needs exactly one of `raster` and `files`")
        return self


class NoSplit(StrictModel):
    """Everything is training data."""

    by: Literal["none"] = "none"


SplitConfig = Annotated[
    BlocksSplit | StripesSplit | GroupsSplit | ScenesSplit | RandomSplit | GivenSplit | NoSplit,
    pydantic.Field(discriminator="by"),
]
