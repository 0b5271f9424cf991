"""Settings of `reduce: {method: select}`. Loads neither xarray nor SciPy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from ...config import StrictModel
from ...errors import ConfigError
from .features import Feature, features_named

Rank = Literal["mutual_information", "mnf", "osp", "equal_interval"]


class SelectConfig(StrictModel):
    """Which bands to keep: those of named features first, then as many as the budget allows by rank."""

    method: Literal["select"]
    #: how many bands to keep; needs `rank`, which fills what the features leave
    components: Annotated[int, pydantic.Field(ge=1)] | None = None
    #: features, or sets of them, of `catalogs/features.yaml`: `minerals`, `[vegetation, hematite]`, `all`
    features: Annotated[list[str], pydantic.Field(min_length=1)] | None = None
    rank: Rank | None = None  #: what orders the other bands
    noise: Literal["x", "y", "both", "diagonal"] = (
        "x"  #: neighbours whose differences measure noise, for rank mnf
    )
    #: a band close to those already kept counts less (`mutual_information`, `mnf`); `osp` always does so
    redundancy: bool = True

    @pydantic.field_validator("features", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @pydantic.field_validator("features")
    @classmethod
    def _known(cls, value: list[str] | None) -> list[str] | None:
        try:
            features_named(value or [])
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @pydantic.model_validator(mode="after")
    def _something_to_go_by(self) -> SelectConfig:
        if self.features is None and self.rank is None:
            raise ValueError(
                "select needs `features` (such as minerals, vegetation or all), a `rank` (mutual_information, mnf, osp "
                "or equal_interval), or both"
            )
        if self.noise != "x" and self.rank != "mnf":
            raise ValueError(f"noise goes with rank mnf, got {self.rank}")
        if self.rank is not None and self.components is None:
            raise ValueError(f"rank {self.rank} needs `components`: how many bands to keep")
        if self.rank is None and self.components is not None:
            raise ValueError(
                "without a `rank` the bands of the features are kept and no others; leave `components` out, or give a "
                "rank (mutual_information, mnf, osp or equal_interval) that fills the rest"
            )
        return self

    @property
    def wanted(self) -> tuple[Feature, ...]:
        """The features that are asked for, each once, in the order of the catalog."""
        return features_named(self.features or [])

    @property
    def needs_sample(self) -> bool:
        """Whether fitting needs the sample of training spectra with their labels."""
        return self.rank == "mutual_information"

    @property
    def needs_differences(self) -> bool:
        """Whether fitting needs the moments of the differences between neighbours."""
        return self.rank == "mnf"

    @property
    def needs_covariance(self) -> bool:
        """Whether fitting needs covariances; without, variances do."""
        return self.rank == "osp" or (self.rank == "mnf" and self.redundancy)
