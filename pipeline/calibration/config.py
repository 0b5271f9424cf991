"""Settings of the stages `calibrate` and `resample_bands`.

Nothing heavy is imported here, since every workflow file is checked against these models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic

from ..config import StrictModel

Method = Literal["auto", "scale", "toa", "dark_white", "empirical_line", "dark_object", "flat_field", "iarr"]
Quantity = Literal["surface_reflectance", "toa_reflectance", "radiance", "surface_radiance"]
Index = Annotated[int, pydantic.Field(ge=0)]
Window = tuple[Index, Index, Index, Index]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]

_SUN = frozenset({"solar", "sun_zenith_deg", "earth_sun_distance_au"})
_SCALE = frozenset({"scale", "offset"})
_PANEL = frozenset({"panel", "exposure_ratio"})
_FIELD = frozenset({"spectra", "targets"})
USES: dict[str, frozenset[str]] = {
    "auto": _SCALE | _SUN | _PANEL | _FIELD,
    "scale": _SCALE,
    "toa": _SCALE | _SUN,
    "dark_white": _PANEL,
    "empirical_line": _FIELD,
    "dark_object": _SCALE | _SUN | {"percentile"},
    "flat_field": frozenset({"window"}),
    "iarr": frozenset(),
}
"""Settings that each method takes beside `to`."""

LEADS_TO: dict[str, tuple[str, ...]] = {
    "toa": ("toa_reflectance",),
    "dark_white": ("surface_reflectance",),
    "empirical_line": ("surface_reflectance",),
    "dark_object": ("surface_reflectance", "surface_radiance"),
    "flat_field": ("surface_reflectance",),
    "iarr": ("surface_reflectance",),
}
"""Quantities that a method can lead to; `auto` and `scale` lead to any."""


class CalibrateConfig(StrictModel):
    """Bring the stored numbers to a physical quantity; scenes that hold it already are left alone."""

    to: Quantity = "surface_reflectance"
    method: Method = "auto"  #: auto: frames or field spectra if given, `toa` for radiance, else `scale`
    scale: pydantic.FiniteFloat | None = None  #: stands in for what the file does not tell
    offset: pydantic.FiniteFloat | None = None
    solar: str | None = None  #: table of solar irradiance: one that ships with the package, or a CSV file
    sun_zenith_deg: Annotated[float, pydantic.Field(ge=0, lt=90)] | None = None
    earth_sun_distance_au: Annotated[float, pydantic.Field(ge=0.98, le=1.02)] | None = None
    panel: Positive | str | None = (
        None  #: reflectance of the white panel: one number, or a spectrum (CSV, .sli)
    )
    exposure_ratio: Positive | None = None  #: integration time of the scene over that of the white frame
    spectra: str | None = None  #: field spectra of the targets (CSV, .sli)
    targets: dict[str, Window] | str | None = (
        None  #: [row, row end, column, column end] by name, or a CSV file
    )
    percentile: Annotated[float, pydantic.Field(ge=0, le=5)] | None = (
        None  #: the dark object's; 0.1 by default
    )
    window: Window | None = None  #: the flat field: [row, row end, column, column end]

    @pydantic.field_validator("scale")
    @classmethod
    def _some_scale(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("a scale of 0 leaves nothing of the data")
        return value

    @pydantic.model_validator(mode="after")
    def _fitting(self) -> CalibrateConfig:
        allowed = USES[self.method]
        given = {name for name in type(self).model_fields if getattr(self, name) is not None} - {
            "to",
            "method",
        }
        if stray := sorted(given - allowed):
            takes = ", ".join(sorted(allowed)) or "no further setting"
            raise ValueError(f"method {self.method} has no use for {', '.join(stray)}; it takes {takes}")
        if self.to not in LEADS_TO.get(self.method, (self.to,)):
            ends = " or ".join(LEADS_TO[self.method])
            raise ValueError(f"method {self.method} leads to {ends}, not to {self.to}")
        needed = {"flat_field": ("window",), "empirical_line": ("spectra", "targets")}.get(self.method, ())
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"method {self.method} needs {' and '.join(missing)}")
        if (self.spectra is None) != (self.targets is None):
            raise ValueError(
                "spectra and targets belong together: what was measured, and where it lies in the scene"
            )
        return self


class ResampleBandsConfig(StrictModel):
    """Bring a scene to the bands of another sensor by Gaussian weights."""

    sensor: str | None = None  #: name of a sensor table
    wavelength_nm: list[Positive] | None = None  #: or centres of one's own
    fwhm_nm: list[Positive] | Positive | None = None  #: their widths; the spacing of the centres by default
    missing: Literal["refuse", "drop"] = "refuse"  #: what happens with bands that the scene does not cover

    @pydantic.model_validator(mode="after")
    def _one(self) -> ResampleBandsConfig:
        if (self.sensor is None) == (self.wavelength_nm is None):
            raise ValueError("resample_bands needs exactly one of sensor and wavelength_nm")
        if self.sensor is not None and self.fwhm_nm is not None:
            raise ValueError("the sensor's table tells the widths; leave fwhm_nm out")
        return self


def stage_files(config: CalibrateConfig | ResampleBandsConfig) -> list[str]:
    """Return the files beside the scenes that decide a stage's result, as the workflow names them.

    A table of solar irradiance that ships with the package is not among them; its name is in the settings.
    """
    if isinstance(config, ResampleBandsConfig):
        return []
    named = (config.spectra, config.targets, config.panel, _solar_file(config.solar))
    return [value for value in named if isinstance(value, str)]


def with_files(config: CalibrateConfig, find: Callable[[str], str]) -> CalibrateConfig:
    """Return the settings with `find` applied to each path that `stage_files` names.

    Parameters
    ----------
    config
        As read.
    find
        Maps a path of the workflow to where it lies.
    """
    found: dict[str, Any] = {}
    for name in ("spectra", "targets", "panel", "solar"):
        value = getattr(config, name)
        if isinstance(value, str) and value in stage_files(config):
            found[name] = find(value)
    return config.model_copy(update=found)


def _solar_file(solar: str | None) -> str | None:
    return solar if solar is not None and solar.lower().endswith(".csv") else None
