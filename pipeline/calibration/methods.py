"""`calibrate`: one name for all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..config import parse
from ..errors import ConfigError
from .config import CalibrateConfig
from .empirical_line import by_empirical_line, parse_targets
from .maps import name_of
from .radiance_scale import REFLECTANCES, by_scale, nothing_left
from .reference_frames import FrameSource, by_frames
from .scene_based import by_dark_object, by_flat_field, by_iarr
from .toa import to_toa

if TYPE_CHECKING:
    import xarray as xr


def calibrate(
    scene: xr.Dataset,
    to: str = "surface_reflectance",
    method: str = "auto",
    *,
    dark: FrameSource | None = None,
    white: FrameSource | None = None,
    targets: Mapping[str, Sequence[int]] | Sequence[str] | str | None = None,
    **options: Any,
) -> xr.Dataset:
    """Return a calibrated scene, lazily.

    Nothing is ever applied twice. A scene that holds `to` already is refused; but where its own scale or offset is still
    to be applied to the stored numbers, `scale` and `toa` return it as it is, since it tells them. The stage `calibrate`
    of a workflow leaves calibrated scenes alone instead, so that it can be used on some that are and some that are not.

    Parameters
    ----------
    scene
        As a reader made it.
    to
        `surface_reflectance`, `toa_reflectance`, `radiance` or `surface_radiance`.
    method
        `auto`, `scale`, `toa`, `dark_white`, `empirical_line`, `dark_object`, `flat_field` or `iarr`. `auto` takes
        reference frames or field spectra where they are given (frames also where the reader found them beside the
        scene and the file tells no scale), `toa` from radiance to top-of-atmosphere reflectance, else `scale`.
    dark, white
        Reference frames, scenes or paths; by default those in `attrs["dark_file"]` and `attrs["white_file"]`.
    targets
        Windows of the empirical line's targets, as for `parse_targets`.
    **options
        The other settings of `CalibrateConfig`.

    Raises
    ------
    ConfigError
        A setting does not belong to the method, the scene is calibrated already, or it cannot be calibrated so.
    """
    given = {"to": to, "method": method, **options}
    if targets is not None:
        given["targets"] = {name: list(window) for name, window in parse_targets(targets).items()}
    settings = parse(CalibrateConfig, given, "calibrate")
    chosen = _chosen(scene, settings, dark, white)
    if chosen != "dark_white" and (dark is not None or white is not None):
        raise ConfigError(
            f"calibrate.method {chosen} has no use for dark and white frames; set it to dark_white."
        )
    if chosen in ("scale", "toa") and nothing_left(scene, settings.to) and not _changes(settings):
        raise ConfigError(
            f"{name_of(scene)} holds {settings.to} already, with no scale or offset left to apply, so that there is nothing "
            "to calibrate; use it as it is. If the file is wrong about itself, say so where it is opened: `quantity`, "
            "`scale` and `offset` of the scene."
        )
    sun: dict[str, Any] = {
        "solar": settings.solar,
        "sun_zenith_deg": settings.sun_zenith_deg,
        "earth_sun_distance_au": settings.earth_sun_distance_au,
        "scale": settings.scale,
        "offset": settings.offset,
    }
    if chosen == "toa":
        return to_toa(scene, **sun)
    if chosen == "dark_white":
        return _by_frames(scene, settings, dark, white)
    if chosen == "empirical_line" and settings.spectra is not None and settings.targets is not None:
        return by_empirical_line(scene, settings.spectra, settings.targets)
    if chosen == "dark_object":
        return by_dark_object(scene, settings.to, percentile=settings.percentile, **sun)
    if chosen == "flat_field" and settings.window is not None:
        return by_flat_field(scene, settings.window)
    if chosen == "iarr":
        return by_iarr(scene)
    return by_scale(scene, settings.to, settings.scale, settings.offset)


def _changes(settings: CalibrateConfig) -> bool:
    """Return whether the scale or offset given does anything."""
    return settings.scale not in (None, 1) or settings.offset not in (None, 0)


def _chosen(scene: xr.Dataset, settings: CalibrateConfig, dark: Any, white: Any) -> str:
    """Return the method, decided where it is `auto`."""
    if settings.method != "auto":
        return settings.method
    quantity = scene.attrs.get("quantity", "other")
    if settings.to == "toa_reflectance" and quantity == "radiance":
        return "toa"
    if settings.to == "surface_reflectance" and quantity not in REFLECTANCES:
        found = "dark_file" in scene.attrs and "white_file" in scene.attrs
        told = settings.scale is not None or any(
            k in scene.attrs or k in scene.coords for k in ("scale", "offset")
        )
        if dark is not None or white is not None or (found and not told):
            return "dark_white"
    if settings.spectra is not None:
        return "empirical_line"
    return "scale"


def _by_frames(scene: xr.Dataset, settings: CalibrateConfig, dark: Any, white: Any) -> xr.Dataset:
    """Call `by_frames` with the frames given, or found beside the scene."""

    def frame(given: FrameSource | None, role: str) -> FrameSource:
        found = scene.attrs.get(f"{role}_file") if given is None else given
        if found is None:
            raise ConfigError(
                f"calibrate.method dark_white needs a {role} reference frame for {name_of(scene)}; give its path as "
                f"`{role}` beside the scene's."
            )
        return found

    return by_frames(
        scene,
        frame(dark, "dark"),
        frame(white, "white"),
        panel=settings.panel,
        exposure_ratio=settings.exposure_ratio,
    )
