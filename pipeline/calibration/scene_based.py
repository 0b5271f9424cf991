"""Calibration from the scene's own pixels: dark object, flat field, internal average relative reflectance.

Approximations for scenes of which nothing else is known. Each is fitted when it is called: the scene (or the window)
is read once, a chunk at a time, in float64.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError
from ..scene import scale_offset
from .empirical_line import Window, target_mean
from .maps import bands_text, blocks, mean_spectrum, name_of, per_band
from .radiance_scale import by_scale
from .toa import to_toa

if TYPE_CHECKING:
    import xarray as xr

F8 = NDArray[np.float64]

DEFAULT_PERCENTILE = 0.1
KEPT_BYTES = 64 * 2**20
"""Most memory for the darkest numbers of all bands; larger scenes give every second, third... row."""


def by_dark_object(
    scene: xr.Dataset, to: str = "surface_reflectance", *, percentile: float | None = None, **sun: Any
) -> xr.Dataset:
    """Subtract each band's darkest values, which are taken for light that never touched the ground.

    Chavez, P. S. (1988), Remote Sensing of Environment 24, 459-479. From radiance to surface reflectance this is his
    DOS1: top-of-atmosphere reflectance less that of the dark object, with a transmission of 1.

    Parameters
    ----------
    scene
        Radiance, or top-of-atmosphere reflectance.
    to
        `surface_reflectance`, or (from radiance) `surface_radiance`.
    percentile
        Which share of each band's valid pixels counts as dark, in per cent, 0 (the minimum) to 5; 0.1 by default.
    **sun
        As for `to_toa`.

    Raises
    ------
    ConfigError
        The scene holds neither, or the sun's place is not known.
    """
    quantity = scene.attrs.get("quantity", "other")
    if quantity in ("other", "dn") and sun.get("scale") is not None:
        scene = by_scale(scene, "radiance", sun["scale"], sun.get("offset"))
    elif quantity not in ("radiance", "toa_reflectance"):
        raise ConfigError(
            f"The dark object method takes radiance or top-of-atmosphere reflectance, and {name_of(scene)} holds "
            f"{quantity}; give calibrate.scale if its numbers times that are radiance, or use flat_field or iarr."
        )
    if to == "surface_reflectance":
        scene = to_toa(scene, **sun)
    elif scene.attrs["quantity"] != "radiance":
        raise ConfigError(f"{name_of(scene)} holds {quantity}; only radiance leads to surface_radiance.")
    share = DEFAULT_PERCENTILE if percentile is None else percentile
    dark = darkest(scene, share)
    unusable = ~np.isfinite(dark)
    how = f"dark object subtracted (percentile {share:g} of each band)"
    ones = np.ones(len(dark))
    return per_band(
        scene, ones, np.where(unusable, 0.0, -dark), to, how, _told(scene, unusable, "no valid pixel")
    )


def by_flat_field(scene: xr.Dataset, window: Window) -> xr.Dataset:
    """Divide by the mean spectrum of a bright, spectrally flat area: reflectance relative to it.

    Roberts, D. A., Yamaguchi, Y. and Lyon, R. J. P. (1986), Proc. 2nd AIS Data Analysis Workshop, JPL 86-35.

    Parameters
    ----------
    scene
        Any quantity but surface reflectance.
    window
        First row, row after the last, first column, column after the last.

    Raises
    ------
    ConfigError
        The scene is reflectance already, or the window holds nothing.
    """
    _require_uncalibrated(scene)
    mean = target_mean(scene, "the flat field", window)
    return _divided(
        scene,
        mean,
        f"relative to the flat field of rows {window[0]}-{window[1] - 1}, columns "
        f"{window[2]}-{window[3] - 1}",
    )


def by_iarr(scene: xr.Dataset) -> xr.Dataset:
    """Divide by the scene's mean spectrum over its valid pixels: internal average relative reflectance.

    Kruse, F. A. (1988), Remote Sensing of Environment 24, 31-51.

    Parameters
    ----------
    scene
        Any quantity but surface reflectance.

    Raises
    ------
    ConfigError
        The scene is reflectance already, or holds no data.
    """
    _require_uncalibrated(scene)
    mean = mean_spectrum(scene)
    if not np.isfinite(mean).any():
        raise ConfigError(f"{name_of(scene)} holds no valid pixel, so that there is no mean to divide by.")
    return _divided(scene, mean, "relative to the scene's mean spectrum (IARR)")


def darkest(scene: xr.Dataset, percentile: float) -> F8:
    """Return a low percentile of each band's valid physical values, float64 (band,); NaN without any.

    Of n valid values, that of rank `floor(percentile / 100 * (n - 1))` (from 0) is returned: one that occurs, never
    one in between. Only the darkest numbers are kept while the scene is read; where they would take more than
    `KEPT_BYTES`, every second, third... row is looked at.
    """
    rows, cols, bands = (scene.sizes[axis] for axis in ("y", "x", "band"))
    itemsize = scene["data"].dtype.itemsize
    scale, offset = scale_offset(scene)
    thin = 1
    while _rank(percentile, -(-rows // thin) * cols) * bands * itemsize > KEPT_BYTES and thin < rows:
        thin += 1
    chosen = scene.isel(y=slice(None, None, thin)) if thin > 1 else scene
    most = _rank(percentile, chosen.sizes["y"] * cols)
    # a falling scale turns the order of the stored numbers round
    sign = np.where(scale < 0, -1.0, 1.0) if (scale < 0).any() else None
    kept: NDArray[Any] = np.empty((bands, 0))
    count = np.zeros(bands, np.int64)
    for block in blocks(chosen):
        numbers = np.ascontiguousarray(block.raw_yxb.reshape(-1, bands).T)
        if sign is not None:
            numbers = numbers * sign[:, None]
        if block.invalid_yxb is not None:
            bad = block.invalid_yxb.reshape(-1, bands).T
            count += (~bad).sum(axis=1)
            numbers[bad] = np.inf if numbers.dtype.kind == "f" else np.iinfo(numbers.dtype).max
        else:
            count += numbers.shape[1]
        kept = numbers if kept.shape[1] == 0 else np.concatenate([kept, numbers], axis=1)
        if kept.shape[1] > most:
            kept = np.partition(kept, most - 1, axis=1)[:, :most].copy()
    kept.sort(axis=1)
    rank = np.array([_rank(percentile, int(n)) - 1 if n else 0 for n in count])
    values = kept[np.arange(bands), rank].astype(np.float64) * (1.0 if sign is None else sign)
    return np.where(count > 0, values * scale + offset, np.nan)


def _rank(percentile: float, count: int) -> int:
    """Return how many of the smallest of `count` numbers reach up to the percentile."""
    return int(percentile / 100 * max(count - 1, 0)) + 1


def _divided(scene: xr.Dataset, mean_b: F8, how: str) -> xr.Dataset:
    unusable = ~(mean_b > 0)
    gain = 1.0 / np.where(unusable, np.nan, mean_b)
    told = _told(scene, unusable, "a mean that is not above 0")
    return per_band(scene, gain, np.zeros(len(gain)), "surface_reflectance", how, told)


def _told(scene: xr.Dataset, unusable_b: NDArray[np.bool_], why: str) -> NDArray[np.bool_]:
    """Warn of unusable bands, refuse when all are."""
    if unusable_b.all():
        raise ConfigError(
            f"{name_of(scene)}: every band has {why}; nothing can be calibrated by its own pixels."
        )
    if unusable_b.any():
        warnings.warn(
            f"{name_of(scene)}: {why} in band {bands_text(scene, unusable_b)}; these bands hold no data and are listed as bad.",
            BandstreamWarning,
            stacklevel=4,
        )
    return unusable_b


def _require_uncalibrated(scene: xr.Dataset) -> None:
    if scene.attrs.get("quantity", "other") == "surface_reflectance":
        raise ConfigError(f"{name_of(scene)} holds surface_reflectance already; leave the stage out.")
