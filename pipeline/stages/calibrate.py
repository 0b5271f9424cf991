"""Calibrating: a scene's own scale and offset, from stored numbers to reflectance or radiance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError
from ..scene import scale_offset
from ..statistics import F8

if TYPE_CHECKING:
    import xarray as xr

REFLECTANCES = ("surface_reflectance", "toa_reflectance")
RADIANCES = ("radiance", "surface_radiance")
QUANTITIES = (*REFLECTANCES, *RADIANCES)


def calibration(scene: xr.Dataset, to: str, scale: float | None, offset: float | None) -> tuple[F8, F8]:
    """Return the scale and offset (band,) that bring the stored numbers of `scene` to the quantity `to`.

    Nothing is ever applied twice: a scene whose numbers are already `to` keeps them (scale 1, offset 0), and a scene
    of another physical quantity is refused, since no scale turns radiance into reflectance.

    Parameters
    ----------
    scene
        The scene; its own scale and offset are used where `scale` and `offset` are None.
    to
        One of `QUANTITIES`.
    scale, offset
        Stand in for what the file does not tell.

    Raises
    ------
    ConfigError
        The scene holds another quantity, or neither it nor the workflow tells a scale.
    """
    quantity = str(scene.attrs.get("quantity", "other"))
    name = scene.attrs.get("source", scene.attrs.get("scene_id", "the scene"))
    if quantity in QUANTITIES and quantity != to:
        raise ConfigError(
            f"calibrate.to is {to}, but {name} holds {quantity}, which no scale turns into it; set calibrate.to to "
            f"{quantity} or leave the stage out."
        )
    bands = scene.sizes["band"]
    own_scale, own_offset = scale_offset(scene)
    told = any(key in scene.attrs or key in scene.coords for key in ("scale", "offset"))
    if not told and scale is None and quantity != to:
        if np.issubdtype(scene["data"].dtype, np.floating):
            hint = "if its floats are calibrated already, set calibrate.scale to 1"
        else:
            hint = "set calibrate.scale, for example 0.0001 for reflectance stored as 0..10000"
        raise ConfigError(f"{name} tells no scale with which its numbers become {to}; {hint}.")
    chosen_scale = own_scale if scale is None else np.full(bands, float(scale))
    chosen_offset = own_offset if offset is None else np.full(bands, float(offset))
    return chosen_scale, chosen_offset
