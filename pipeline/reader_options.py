"""What a user can tell a reader: the same keys in workflows, catalogs and after `--read` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic

from .config import StrictModel, apply_overrides, parse
from .errors import ConfigError

Number = pydantic.FiniteFloat | list[pydantic.FiniteFloat]  #: one, or one per band
#: `scene.QUANTITIES`, spelled out so that reading a workflow does not load xarray
Quantity = Literal["dn", "radiance", "toa_reflectance", "surface_radiance", "surface_reflectance", "other"]
Size = Annotated[int, pydantic.Field(ge=1)]


class ReaderOptions(StrictModel):
    """Options of `open_scene`, which explains them; what is left out is the file's own word."""

    reader: str | None = None
    data_file: str | None = None
    header_offset: Annotated[int, pydantic.Field(ge=0)] | None = None
    wavelength_unit: str | None = None
    nodata: Number | None = None
    scale: Number | None = None
    offset: Number | None = None
    quantity: Quantity | None = None
    units: str | None = None
    variable: str | None = None
    detector: Literal["vnir", "swir"] | None = None
    axes: str | None = None
    shape_yx: tuple[Size, Size] | None = None
    height_m: Annotated[float, pydantic.Field(ge=-1000, le=10000)] | None = None


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """Return the options of `open_scene` that ``KEY=VALUE`` texts give.

    Raises
    ------
    ConfigError
        A key is unknown, or a value is not allowed.
    """
    for text in given:
        if not all(text.partition("=")):
            raise ConfigError(f"--read {text!r} must look like KEY=VALUE, such as variable=cube.")
    options = parse(ReaderOptions, apply_overrides({}, given), "--read")
    return options.model_dump(exclude_none=True)
