"""Masking: which stored number means that there is no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ..scene import nodata_values
from ..statistics import F8

if TYPE_CHECKING:
    import xarray as xr


def nodata_per_band(scene: xr.Dataset, nodata: float | Literal["auto", "none"]) -> F8:
    """Return the number that means "no data" in each band (band,), NaN where there is none.

    It is compared with the numbers as stored, before any scale. Values that are not finite never count as data,
    whatever is chosen here.

    Parameters
    ----------
    scene
        The scene; `auto` takes what its file declares.
    nodata
        ``auto``, ``none``, or the number.
    """
    if nodata == "auto":
        return nodata_values(scene)
    return np.full(scene.sizes["band"], np.nan if nodata == "none" else float(nodata))
