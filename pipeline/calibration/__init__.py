"""From stored numbers to radiance and reflectance: each method takes a scene and returns one, lazily.

`calibrate` chooses among

- `scale`: the file's own gains and offsets, or those given (`radiance_scale`);
- `toa`: radiance to top-of-atmosphere reflectance, by the sun's irradiance and height (`toa`, `solar`);
- `dark_white`: dark and white reference frames of laboratory and push-broom instruments (`reference_frames`);
- `empirical_line`: field spectra of targets in the scene (`empirical_line`, `field_spectra`);
- `dark_object`, `flat_field`, `iarr`: from the scene's own pixels (`scene_based`).

`resample_bands` brings a scene to the bands of another sensor.

What is one factor and one addend per band changes only the scene's `scale` and `offset`: no pixel is touched. What
differs from pixel to pixel (a sun zenith per pixel, a reference per column) becomes a lazily mapped float32 cube in
which NaN stands for no data. `empirical_line`, `dark_object`, `flat_field` and `iarr` are fitted when they are called:
they read the target windows, or the scene once from end to end, a chunk at a time.

Radiative transfer through the atmosphere is not offered: programs made for it, such as ISOFIT and EnPT, write surface
reflectance that the readers open as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import CalibrateConfig, ResampleBandsConfig, stage_files, with_files

if TYPE_CHECKING:
    from .methods import calibrate
    from .resample import resample_bands

__all__ = [
    "CalibrateConfig",
    "ResampleBandsConfig",
    "calibrate",
    "resample_bands",
    "stage_files",
    "with_files",
]


def __getattr__(name: str) -> Any:
    """Import the methods when they are first asked for: workflow files need the settings only, not xarray."""
    if name == "calibrate":
        from .methods import calibrate as value
    elif name == "resample_bands":
        from .resample import resample_bands as value
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return value
