"""Dropping bands: those listed as bad, those inside windows of wavelength, and those without data or variation."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..config import parse_yaml
from ..errors import ConfigError

if TYPE_CHECKING:
    import xarray as xr

Windows = Sequence[tuple[float, float]]


def named_windows(name: str) -> list[tuple[float, float]]:
    """Return the wavelength windows (nm, both ends included) that `catalogs/windows.yaml` holds under `name`.

    Raises
    ------
    ConfigError
        There are no windows of that name.
    """
    file = resources.files(f"{__name__.rsplit('.', 3)[0]}.catalogs") / "windows.yaml"
    table = parse_yaml(file.read_text(encoding="utf-8"), "windows.yaml")["windows"]
    if name not in table:
        raise ConfigError(
            f"There are no windows named {name!r}; there are {', '.join(sorted(table))}. Windows of your own are "
            "written as [[1340, 1450], [1790, 1960]]."
        )
    return [(float(low), float(high)) for low, high in table[name]["nm"]]


def candidate_bands(scenes: Sequence[xr.Dataset], *, listed: bool, windows_nm: Windows) -> NDArray[np.intp]:
    """Return the bands (0-based) that the scenes' own metadata do not rule out.

    Parameters
    ----------
    scenes
        Scenes of the same bands; a band that one of them lists as bad is bad for all.
    listed
        Drop the bands listed as bad (`good_band` false).
    windows_nm
        Drop the bands whose centre lies in one of these windows.

    Raises
    ------
    ConfigError
        Windows are asked for and a scene has no wavelengths, or no band is left.
    """
    keep = np.ones(scenes[0].sizes["band"], bool)
    if listed:
        for scene in scenes:
            keep &= np.asarray(scene["good_band"].values, bool)
    if windows_nm:
        if "wavelength" not in scenes[0].coords:
            raise ConfigError(
                f"drop_bands.windows_nm needs wavelengths, and {scenes[0].attrs.get('source')} has none; leave it out, or "
                "write the scene as ENVI with `bandstream scene convert` and add `wavelength` to the header."
            )
        centres = scenes[0]["wavelength"].values
        for low, high in windows_nm:
            keep &= ~((centres >= low) & (centres <= high))
    if not keep.any():
        raise ConfigError("drop_bands leaves no band: all are listed as bad or lie in the windows.")
    return np.flatnonzero(keep)
