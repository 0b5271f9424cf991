"""Gains and offsets: a scene's own, or the user's where the file tells none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..scene import replaced, scale_offset
from .maps import UNITS, name_of, noted

if TYPE_CHECKING:
    import xarray as xr

F8 = NDArray[np.float64]

REFLECTANCES = ("surface_reflectance", "toa_reflectance")
RADIANCES = ("radiance", "surface_radiance")
QUANTITIES = (*REFLECTANCES, *RADIANCES)


def by_scale(
    scene: xr.Dataset, to: str, scale: float | None = None, offset: float | None = None
) -> xr.Dataset:
    """Return the scene with the scale and offset that bring its stored numbers to `to`; no pixel is touched.

    Parameters
    ----------
    scene, to, scale, offset
        As for `calibration`.

    Raises
    ------
    ConfigError
        As `calibration`.
    """
    chosen_scale, chosen_offset = calibration(scene, to, scale, offset)
    out = replaced(scene, scale=chosen_scale, offset=chosen_offset, quantity=to, units=UNITS[to])
    changed = scene.attrs.get("quantity", "other") != to
    return noted(out, f"{to} by scale and offset") if changed else out


def calibration(scene: xr.Dataset, to: str, scale: float | None, offset: float | None) -> tuple[F8, F8]:
    """Return the scale and offset (band,) that bring the stored numbers of `scene` to the quantity `to`.

    Nothing is ever applied twice: a scene whose numbers are already `to` keeps what it has, and a scene of another
    physical quantity is refused, since no scale turns radiance into reflectance.

    Parameters
    ----------
    scene
        The scene; its own scale and offset are used where `scale` and `offset` are None.
    to
        One of `QUANTITIES`. Radiance is in W m-2 sr-1 um-1: the scale must lead there.
    scale, offset
        Stand in for what the file does not tell.

    Raises
    ------
    ConfigError
        The scene holds another quantity, or neither it nor the workflow tells a scale, or it holds `to` already and
        another scale or offset is given.
    """
    quantity = str(scene.attrs.get("quantity", "other"))
    name = name_of(scene)
    if quantity in QUANTITIES and quantity != to:
        raise ConfigError(
            f"calibrate.to is {to}, but {name} holds {quantity}, which no scale turns into it; set calibrate.to to "
            f"{quantity}{_other_ways(quantity, to)}, or do not calibrate."
        )
    bands = scene.sizes["band"]
    own_scale, own_offset = scale_offset(scene)
    told = tells_scale(scene)
    if not (told and quantity != "dn") and scale is None and quantity != to:
        if np.issubdtype(scene["data"].dtype, np.floating):
            hint = "if its floats are calibrated already, set calibrate.scale to 1"
        else:
            hint = "set calibrate.scale, for example 0.0001 for reflectance stored as 0..10000"
        raise ConfigError(f"{name} tells no scale with which its numbers become {to}; {hint}.")
    chosen_scale = own_scale if scale is None else np.full(bands, float(scale))
    chosen_offset = own_offset if offset is None else np.full(bands, float(offset))
    if is_calibrated(scene, to) and not (
        np.allclose(chosen_scale, own_scale, rtol=1e-6, atol=0)
        and np.allclose(chosen_offset, own_offset, rtol=1e-6, atol=1e-12)
    ):
        raise ConfigError(
            f"{name} holds {to} already, so that calibrate.scale and calibrate.offset would be applied to calibrated "
            "numbers; leave them out. If the file is wrong about itself, say so where it is opened: `quantity`, `scale` and "
            "`offset` of the scene."
        )
    return chosen_scale, chosen_offset


def tells_scale(scene: xr.Dataset) -> bool:
    """Return whether a scene tells a scale or an offset."""
    return any(key in scene.attrs or key in scene.coords for key in ("scale", "offset"))


def is_calibrated(scene: xr.Dataset, to: str) -> bool:
    """Return whether a scene's physical values are `to`: integers without a scale are not, whatever the scene says."""
    floats = np.issubdtype(scene["data"].dtype, np.floating)
    return scene.attrs.get("quantity", "other") == to and (floats or tells_scale(scene))


def nothing_left(scene: xr.Dataset, to: str) -> bool:
    """Return whether a scene's stored numbers are `to` themselves, with no scale or offset still to be applied."""
    scale, offset = scale_offset(scene)
    return scene.attrs.get("quantity", "other") == to and bool((scale == 1).all() and (offset == 0).all())


def _other_ways(quantity: str, to: str) -> str:
    """Say which method does what a scale cannot."""
    if quantity == "radiance" and to == "surface_reflectance":
        return (
            " or to toa_reflectance, or choose calibrate.method: empirical_line or dark_object; for the whole atmosphere "
            "correct the scene with ISOFIT or EnPT first and give the reflectance they write"
        )
    if quantity == "radiance" and to == "toa_reflectance":
        return ", or set calibrate.method to toa"
    if quantity == "toa_reflectance" and to == "surface_reflectance":
        return ", or choose calibrate.method: empirical_line or dark_object"
    return ""
