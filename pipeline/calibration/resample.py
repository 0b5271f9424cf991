"""Spectral resampling: a scene in the bands of another sensor.

A target band is the weighted mean of the source bands, weighted by the target's Gaussian over the width of each source
band (the definition of SPy's `BandResampler`, which moreover cuts the Gaussian off at half its maximum). The source's
own width is not taken out, so that targets much narrower than the source bands are smoothed.

Bands of all detectors take part side by side where they overlap; where the source tells detectors, the result says
which ones went into a band. Bands listed as bad take no part.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BandstreamWarning, ConfigError
from ..scene import PER_BAND, WAVELENGTH_NAME, make_scene, nodata_values, scale_offset
from .gaussian import SIGMA_PER_FWHM, band_shapes, spacing
from .mapped import WeightedCube, lazy
from .maps import chunk_bytes, name_of

if TYPE_CHECKING:
    import xarray as xr

F8 = NDArray[np.float64]

LEAST_WEIGHT = 1e-3
"""Source bands that would make up less than this of a target are left out of it."""


def resample_bands(
    scene: xr.Dataset,
    wavelength_nm: ArrayLike | str | None = None,
    fwhm_nm: ArrayLike | None = None,
    *,
    sensor: str | None = None,
    missing: str = "refuse",
) -> xr.Dataset:
    """Return the scene in other bands, lazily, float32 in physical values.

    Parameters
    ----------
    scene
        With wavelengths, in any order.
    wavelength_nm, fwhm_nm
        Target bands in nm, (band,); or the name of a sensor in place of the wavelengths. Widths default to the spacing.
    sensor
        The sensor's name by keyword.
    missing
        What happens with targets that no good source band covers: `refuse`, or `drop` (with a warning).

    Returns
    -------
    xarray.Dataset
        A pixel of a target band is NaN where any source band that contributes is no data. `detector` names all
        detectors that contribute, joined by `+`.

    Raises
    ------
    ConfigError
        The scene has no wavelengths, targets are not covered, or none is left.
    """
    from scipy.sparse import csr_array

    centres, widths, name = _targets(wavelength_nm, fwhm_nm, sensor)
    weights = resampling_weights(*_sources(scene), centres, widths)
    covered = weights.any(axis=1)
    if not covered.all():
        listed = ", ".join(f"{centre:.1f}" for centre in centres[~covered][:8]) + (
            " ..." if (~covered).sum() > 8 else ""
        )
        what = f"{name_of(scene)} has no good band for {int((~covered).sum())} of {len(centres)} bands of {name} ({listed} nm)"
        if missing != "drop" or not covered.any():
            raise ConfigError(
                f"{what}; choose other bands, or set resample_bands.missing to drop (--drop-missing)."
            )
        warnings.warn(f"{what}; they are left out.", BandstreamWarning, stacklevel=2)
        centres, widths, weights = centres[covered], widths[covered], weights[covered]
    source = scene["data"].data.rechunk({2: -1})
    scale, offset = scale_offset(scene)
    nodata = nodata_values(scene)
    cube = WeightedCube(source, csr_array(weights), scale, offset, nodata)
    data = lazy(cube, weights, scale, offset, nodata)
    return _with_bands(scene, data, centres, widths, weights, name)


def resampling_weights(
    centres_nm: F8, fwhm_nm: F8, target_centres_nm: F8, target_fwhm_nm: F8
) -> NDArray[np.float64]:
    """Return the weight of each source band in each target, float64 (target, source).

    The weight is the integral of the target's Gaussian over the source band's width, scaled so that a target's weights
    add up to 1; those below `LEAST_WEIGHT` are 0. All weights of a target are 0 where it is not covered: where no
    source band overlaps its width, or those that do lie on one side of its centre only.

    Parameters
    ----------
    centres_nm, fwhm_nm
        Source bands, (source,), in any order; NaN for bands that may not be used.
    target_centres_nm, target_fwhm_nm
        Target bands, (target,).
    """
    from scipy.special import ndtr

    low, high = centres_nm - fwhm_nm / 2, centres_nm + fwhm_nm / 2
    out = np.zeros((len(target_centres_nm), len(centres_nm)))
    for target, (centre, fwhm) in enumerate(zip(target_centres_nm, target_fwhm_nm, strict=True)):
        overlapping = (high > centre - fwhm / 2) & (low < centre + fwhm / 2)  # false for NaN
        if not (overlapping & (low <= centre)).any() or not (overlapping & (high >= centre)).any():
            continue
        sigma = fwhm * SIGMA_PER_FWHM
        weight = np.nan_to_num(
            np.asarray(ndtr((high - centre) / sigma) - ndtr((low - centre) / sigma), np.float64)
        )
        weight /= weight.sum()
        weight[weight < LEAST_WEIGHT] = 0.0
        out[target] = weight / weight.sum()
    return out


def _targets(wavelength_nm: Any, fwhm_nm: ArrayLike | None, sensor: str | None) -> tuple[F8, F8, str]:
    """Return centres and widths of the target bands, and what to call them."""
    from ..sensors import load_sensor

    named = wavelength_nm if isinstance(wavelength_nm, str) else sensor
    if named is not None:
        table = load_sensor(named)
        return table.wavelength_nm, table.fwhm_nm, table.name
    if wavelength_nm is None:
        raise ConfigError(
            "resample_bands needs the wavelengths of the target bands, or the name of a sensor."
        )
    centres = np.atleast_1d(np.asarray(wavelength_nm, np.float64))
    given = None if fwhm_nm is None else np.atleast_1d(np.asarray(fwhm_nm, np.float64))
    if given is not None and given.shape not in ((1,), centres.shape):
        raise ConfigError(
            f"resample_bands.fwhm_nm has {given.size} numbers for {centres.size} of wavelength_nm; give one for all, or "
            "one for each."
        )
    widths = spacing(centres) if given is None else np.broadcast_to(given, centres.shape)
    if not ((centres > 0).all() and (widths > 0).all() and np.isfinite(centres).all()):
        raise ConfigError(
            "resample_bands needs a positive centre and width in nm for every target band; a lone band has no spacing: "
            "give fwhm_nm."
        )
    return centres, np.asarray(widths, np.float64), "the bands asked for"


def _sources(scene: xr.Dataset) -> tuple[F8, F8]:
    """Return centre and width of the scene's bands, NaN for those that may not be used."""
    centres, widths = band_shapes(scene, "resample_bands")
    usable = np.asarray(scene["good_band"].values, bool)
    if not (usable & np.isfinite(centres)).any():
        raise ConfigError(f"{name_of(scene)} has no good band with a wavelength to resample from.")
    return np.where(usable, centres, np.nan), widths


def _with_bands(
    scene: xr.Dataset, data_yxb: Any, centres: F8, widths: F8, weights: NDArray[np.float64], name: str
) -> xr.Dataset:
    """Return the scene with another cube of other bands; place, layers and attributes stay."""
    bands: dict[str, Any] = {
        "good_band": ("band", np.ones(len(centres), bool)),
        "band_name": ("band", np.array([f"{centre:.2f} nm" for centre in centres])),
        "wavelength": ("band", centres, {"units": "nm", "standard_name": WAVELENGTH_NAME}),
        "fwhm": ("band", widths, {"units": "nm", "long_name": "full width at half maximum"}),
    }
    if "detector" in scene.coords:
        own = [str(part) for part in scene["detector"].values]
        joined = ["+".join(dict.fromkeys(own[b] for b in np.flatnonzero(row))) for row in weights]
        bands["detector"] = ("band", np.array(joined))
    out = scene.drop_dims("band").assign(data=(("y", "x", "band"), data_yxb, scene["data"].attrs))
    out = out.assign_coords(bands)
    for key in (*PER_BAND, "default_bands"):
        out.attrs.pop(key, None)
    out.attrs["block_bytes"] = (
        int(scene.attrs.get("block_bytes", 0)) + chunk_bytes(scene["data"].data) + chunk_bytes(data_yxb)
    )
    out.attrs["resampled_bands"] = name
    if "sensor" in scene.attrs:
        out.attrs["sensor"] = f"{scene.attrs['sensor']} in the bands of {name}"
    if "valid_rule" not in out.attrs:
        out["valid"] = (("y", "x"), make_scene(data_yxb)["valid"].data, scene["valid"].attrs)
    return out
