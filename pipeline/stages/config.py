"""Settings of the stages that change spectra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic

from ..config import StrictModel

Percent = Annotated[float, pydantic.Field(ge=0, le=100)]

_COMPONENTS = 30
_RULES = ("components", "explained", "min_snr")  # each gives the number of components


class NormalizeConfig(StrictModel):
    """Scaling of bands fitted on the training pixels, or of each spectrum by itself (unit_norm, continuum_removal)."""

    method: Literal["zscore", "minmax", "percentile", "unit_norm", "continuum_removal", "none"] = "zscore"
    #: zscore with the numbers of the training pixels of all scenes, or of each scene with those of all its valid pixels
    per: Literal["all", "scene"] = "all"
    low_percent: Percent = 2.0  #: percentile: the share of the training pixels below the value that becomes 0
    high_percent: Percent = 98.0  #: percentile: below the value that becomes 1

    @pydantic.model_validator(mode="after")
    def _fits(self) -> NormalizeConfig:
        if self.per == "scene" and self.method != "zscore":
            raise ValueError(f"per: scene goes with method zscore, got {self.method}")
        if self.method != "percentile" and (self.low_percent, self.high_percent) != (2.0, 98.0):
            raise ValueError(f"low_percent and high_percent go with method percentile, got {self.method}")
        if self.low_percent >= self.high_percent:
            raise ValueError(
                f"low_percent must be below high_percent, got {self.low_percent:g} and {self.high_percent:g}"
            )
        return self


class ReduceConfig(StrictModel):
    """Fewer bands: components made of all of them, 30 of them where nothing else is said."""

    method: Literal["pca", "mnf", "none"] = "pca"
    components: Annotated[int, pydantic.Field(ge=1)] | None = None  #: how many
    explained: Annotated[float, pydantic.Field(gt=0, le=1)] | None = (
        None  #: instead: as many as explain this share of the variance (pca), of the signal-to-noise ratios (mnf)
    )
    min_snr: Annotated[float, pydantic.Field(gt=0)] | None = (
        None  #: instead, mnf: those of at least this signal-to-noise ratio
    )
    whiten: bool = False  #: pca: scores divided by their standard deviation
    noise: Literal["x", "y", "both", "diagonal"] = "x"  #: neighbours whose differences measure noise

    @pydantic.model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if (method := value.get("method", "pca")) not in ("pca", "mnf", "none"):
            # select has settings of its own
            raise ValueError(f"method is pca, mnf, select or none, got {method!r}")
        free = all(value.get(rule) is None for rule in _RULES)
        return {**value, "components": _COMPONENTS} if free else value

    @pydantic.model_validator(mode="after")
    def _fits(self) -> ReduceConfig:
        given = [rule for rule in _RULES if getattr(self, rule) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both set the number of components; leave one of them")
        for key, methods in (
            ("explained", ("pca", "mnf")),
            ("min_snr", ("mnf",)),
            ("whiten", ("pca",)),
            ("noise", ("mnf",)),
        ):
            changed = getattr(self, key) != type(self).model_fields[key].default
            if changed and self.method not in methods:
                raise ValueError(f"{key} goes with method {' or '.join(methods)}, got {self.method}")
        return self


class SmoothConfig(StrictModel):
    """Smoothing along the wavelengths."""

    method: Literal["savitzky_golay"] = "savitzky_golay"
    window: Annotated[int, pydantic.Field(ge=3)] = 7  #: bands, an odd number
    polynomial: Annotated[int, pydantic.Field(ge=0)] = 2  #: degree, below the window

    @pydantic.model_validator(mode="after")
    def _fits(self) -> SmoothConfig:
        _check_window(self.window, self.polynomial)
        return self


class DerivativeConfig(StrictModel):
    """Derivative by wavelength, per nm."""

    order: Annotated[int, pydantic.Field(ge=1)] = 1
    window: Annotated[int, pydantic.Field(ge=3)] = 7  #: bands, an odd number
    polynomial: Annotated[int, pydantic.Field(ge=1)] = 2  #: degree, from order to below the window

    @pydantic.model_validator(mode="after")
    def _fits(self) -> DerivativeConfig:
        _check_window(self.window, self.polynomial)
        if self.order > self.polynomial:
            raise ValueError(f"order must be at most polynomial, got {self.order} and {self.polynomial}")
        return self


def _check_window(window: int, polynomial: int) -> None:
    """Raise ValueError for a window that has no middle, or too few bands for the polynomial."""
    if window % 2 == 0:
        raise ValueError(f"window must be odd, so that it has a middle band, got {window}")
    if polynomial >= window:
        raise ValueError(f"polynomial must be below window, got {polynomial} and {window}")


#: Stages that map spectra pixel by pixel, the others work on scenes as a whole.
SPECTRAL = ("smooth", "derivative", "normalize", "reduce")
_PIXELWISE = ("unit_norm", "continuum_removal")
_SCENE = ("calibrate", "resample_bands", "resample", "mask", "drop_bands")


def is_fitted(config: Any) -> bool:
    """Whether a stage of `SPECTRAL` with these settings is fitted on training pixels."""
    if is_per_scene(config):
        return False
    return not isinstance(config, SmoothConfig | DerivativeConfig) and config.method not in (
        *_PIXELWISE,
        "none",
    )


def is_per_scene(config: Any) -> bool:
    """Whether a stage scales each scene by its own pixels."""
    return getattr(config, "per", "all") == "scene"


def require_order(kinds: Sequence[str]) -> None:
    """Refuse stages that stand twice, or in an order that means nothing; raises ValueError."""
    for kind in (*_SCENE, *SPECTRAL):
        most = 3 if kind == "normalize" else 1
        if kinds.count(kind) > most:
            raise ValueError(f"the stage {kind} stands {kinds.count(kind)} times; {most} allowed")
    ranks = [0 if k in _SCENE else 1 if "reduce" not in kinds[: i + 1] else 2 for i, k in enumerate(kinds)]
    behind = [k for i, k in enumerate(kinds) if "reduce" in kinds[:i]]
    if ranks != sorted(ranks) or set(behind) & {*_SCENE, "smooth", "derivative"}:
        raise ValueError(
            f"the stages {', '.join(kinds)} are out of order; {', '.join(_SCENE)} come first (whatever their order, "
            "calibrate acts first), then smooth, derivative and normalize as you like, then reduce, then normalize"
        )


def require_fittable(stages: Sequence[tuple[str, Any]]) -> None:
    """Refuse stages that cannot be fitted in one reading of the scenes; raises ValueError."""
    fitted = pixelwise = mixed = False
    changed = ""
    for number, (kind, config) in enumerate(stages):
        if is_per_scene(config) and number:
            raise ValueError(
                "normalize with per: scene stands before all other stages but those of whole scenes"
            )
        method = getattr(config, "method", "savitzky_golay")
        if is_fitted(config) and pixelwise:
            raise ValueError(
                f"{kind} {method} stands behind a {'/'.join(_PIXELWISE)} that stands behind a fitted stage, which would "
                "take another reading of all scenes; move the unfitted stage to the front"
            )
        if method == "minmax" and mixed:
            raise ValueError(
                "normalize minmax behind a stage that mixes bands: their range is not known there; take zscore or "
                "percentile"
            )
        if method == "continuum_removal" and changed:
            raise ValueError(
                f"normalize continuum_removal stands behind {changed}, and what comes out of that is no reflectance; move "
                "it to the front"
            )
        # smoothing and the length of a spectrum leave its shape, and a selection its bands
        if kind == "derivative" or is_per_scene(config) or (is_fitted(config) and method != "select"):
            changed = changed or (kind if kind == "derivative" else f"{kind} {method}")
        pixelwise = pixelwise or (fitted and method in _PIXELWISE)
        fitted = fitted or is_fitted(config)
        mixed = mixed or (fitted and (kind in ("smooth", "derivative") or method in ("pca", "mnf")))


def shift_directions(config: Any) -> tuple[str, ...]:
    """Return the directions in which neighbours' differences are needed by `reduce` with these settings."""
    if config is None or (config.method != "mnf" and not getattr(config, "needs_differences", False)):
        return ()
    return ("x", "y") if config.noise == "both" else (config.noise,)
