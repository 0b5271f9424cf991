"""Settings of the stage `resample`. Nothing heavy is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from ..config import StrictModel

LARGEST_FACTOR = 256


class ResampleConfig(StrictModel):
    """Bring scenes to larger pixels; detail is lost for good, labels follow by majority."""

    method: Literal["average", "bilinear", "cubic"] = "average"
    #: side of the new pixels in old ones, the same in all scenes
    factor: Annotated[float, pydantic.Field(gt=1, le=LARGEST_FACTOR)] | None = None
    #: or in the unit of the scene's CRS; a scene that has such pixels is left alone
    pixel: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] | None = None
    #: least share of a new pixel's weights that must lie on valid pixels, band by band
    min_valid: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.5

    @pydantic.model_validator(mode="after")
    def _one(self) -> ResampleConfig:
        if (self.factor is None) == (self.pixel is None):
            raise ValueError(
                "resample needs exactly one of factor (in pixels) and pixel (in the unit of the CRS)"
            )
        return self
