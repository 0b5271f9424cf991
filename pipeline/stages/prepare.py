"""What is done to a scene as a whole before its pixels are counted and cut: masking, calibrating, resampling.

Both passes of a build, `transform` and so `predict` see a scene only after this, so that a new scene goes the way of
those that a store was made from. Everything stays lazy, but for calibrations that are fitted on the scene itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calibration import (
    CalibrateConfig,
    ResampleBandsConfig,
    calibrate,
    resample_bands,
    stage_files,
    with_files,
)
from ..calibration.radiance_scale import is_calibrated, nothing_left
from ..config import find_data
from ..errors import ConfigError
from ..masks import MaskConfig, mask_scene
from ..masks import stage_files as mask_files
from ..resampling import ResampleConfig, is_resampled, resample
from ..scene import scale_offset
from ..statistics import F8

if TYPE_CHECKING:
    import xarray as xr

_APPLIED_ONCE = ("dark_white", "empirical_line", "dark_object", "flat_field", "iarr")
"""Calibrations that change whatever they are given, so that a scene calibrated elsewhere must not meet them."""


@dataclass(frozen=True)
class Preparation:
    """Settings of the stages that work on whole scenes; None where a workflow has no such stage."""

    calibrate: CalibrateConfig | None = None
    resample_bands: ResampleBandsConfig | None = None
    mask: MaskConfig | None = None
    places: tuple[Path, ...] = ()  #: folders in which relative paths of the mask are looked for
    of_store: bool = False  #: read from a store
    left_out: tuple[
        str, ...
    ] = ()  #: settings of `calibrate` that a store does not keep, since they name files
    resample: ResampleConfig | None = None

    @classmethod
    def found(
        cls,
        calibrate: CalibrateConfig | None,
        resample_bands: ResampleBandsConfig | None,
        mask: MaskConfig | None,
        places: Sequence[Path],
        resample: ResampleConfig | None = None,
    ) -> Preparation:
        """Return the settings with the files that they name found in `places`."""
        if calibrate is not None:
            calibrate = with_files(calibrate, lambda name: str(find_data(name, places)))
        return cls(calibrate, resample_bands, mask, tuple(places), resample=resample)

    def files(self, stem: str) -> list[Path]:
        """Return the files beside the scene of that name that decide the result."""
        found = [Path(name) for name in stage_files(self.calibrate)] if self.calibrate else []
        return found + (mask_files(self.mask, self.places, stem) if self.mask else [])

    def numbers(self, scene: xr.Dataset) -> tuple[F8, F8]:
        """Return scale and offset (band,) for the arithmetic that follows: those of a calibrated scene, else 1 and 0."""
        bands = scene.sizes["band"]
        return scale_offset(scene) if self.calibrate else (np.ones(bands), np.zeros(bands))

    def on_pixels(self, scene: xr.Dataset) -> xr.Dataset:
        """Return the scene on the pixels that it has when it is prepared, its numbers otherwise as they are."""
        # a store's scenes may come as its build left them
        if self.resample is None or (self.of_store and is_resampled(scene, self.resample)):
            return scene
        return resample(scene, **self.resample.model_dump(exclude_none=True))

    def stored(self) -> dict[str, Any]:
        """Return what a store keeps of it: no paths, and no polygons, which lie in one scene only."""
        calibrate = self.calibrate.model_dump(mode="json") if self.calibrate else None
        left_out = list(self.left_out)
        if self.calibrate and calibrate:
            files = stage_files(self.calibrate)
            left_out += [
                name for name, value in calibrate.items() if isinstance(value, str) and value in files
            ]
            calibrate |= dict.fromkeys(left_out)
        return {
            "calibrate": calibrate,
            "left_out": left_out,
            "resample_bands": self.resample_bands.model_dump(mode="json") if self.resample_bands else None,
            "mask": self.mask.model_dump(mode="json", exclude={"polygons"}) if self.mask else None,
            "resample": self.resample.model_dump(mode="json") if self.resample else None,
        }

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Preparation:
        """Return what `stored` gave."""
        calibrate, bands, mask = (stored[name] for name in ("calibrate", "resample_bands", "mask"))
        return cls(
            # not validated: settings without their files are incomplete, which `prepare_scene` minds
            CalibrateConfig.model_construct(**calibrate) if calibrate else None,
            ResampleBandsConfig.model_validate(bands) if bands else None,
            MaskConfig.model_validate(mask) if mask else None,
            of_store=True,
            left_out=tuple(stored["left_out"]),
            # stores of before the stage have no such key
            resample=ResampleConfig.model_validate(stored["resample"]) if stored.get("resample") else None,
        )


def prepare_scene(scene: xr.Dataset, settings: Preparation, stem: str = "") -> xr.Dataset:
    """Return the scene masked, calibrated, and in the bands and pixels asked for.

    Pixels are made larger last, so that masks rule out old pixels, which then take no part in any mean.

    Parameters
    ----------
    scene
        As a reader, or a user, made it.
    settings
        What to do.
    stem
        The scene's file name without its ending, for `{stem}` in the names of polygon files.

    Raises
    ------
    ConfigError
        The scene cannot be calibrated or masked as asked.
    """
    mask, config = settings.mask, settings.calibrate
    if mask:
        # before anything is computed: nodata and saturation are stored numbers
        scene = mask_scene(scene, mask, settings.places, stem=stem, part="stored")
    if config and not _left_alone(scene, config, of_store=settings.of_store):
        if settings.of_store:
            _require_repeatable(scene, config, settings.left_out)
        options = config.model_dump(exclude={"to", "method"}, exclude_none=True)
        scene = calibrate(scene, config.to, config.method, **options)
    if settings.resample_bands:
        bands = settings.resample_bands.model_dump(exclude_none=True)
        scene = resample_bands(scene, **bands)
    if mask:
        scene = mask_scene(scene, mask, settings.places, stem=stem, part="physical")
    return settings.on_pixels(scene)


def _left_alone(scene: xr.Dataset, config: CalibrateConfig, *, of_store: bool) -> bool:
    """Return whether a scene is calibrated already, so that the stage has nothing to do, or would act twice.

    A workflow may list scenes that are calibrated beside others that are not, and a store may be used on either; in
    Python, and on the command line, calibrating what is calibrated is refused. A scale or offset that a workflow gives
    beside what a calibrated scene tells itself is refused there too, and ignored for a store's scenes, where nobody
    who uses the store has asked for it.
    """
    if config.method in _APPLIED_ONCE:
        return scene.attrs.get("quantity") == config.to
    if config.scale is not None or config.offset is not None:
        return of_store and is_calibrated(scene, config.to)
    return nothing_left(scene, config.to)


def _require_repeatable(scene: xr.Dataset, config: CalibrateConfig, left_out: Sequence[str]) -> None:
    """Refuse a calibration that needs what a store does not keep.

    Raises
    ------
    ConfigError
        Says how the scene can be calibrated.
    """
    place = [name for name in ("targets", "window") if getattr(config, name) is not None]
    if left_out or place:
        raise ConfigError(
            f"The store's scenes were calibrated with settings that belong to those scenes or lie in files "
            f"({', '.join([*left_out, *place])}), so that {scene.attrs.get('source', 'this scene')} cannot be calibrated "
            f"alike. Calibrate it first (`bandstream scene calibrate SCENE OUT --to {config.to} ...`) and give the "
            "result."
        )
