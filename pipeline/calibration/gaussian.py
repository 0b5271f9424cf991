"""Band responses as Gaussians of the band's full width at half maximum.

Neither headers nor products tell more of a band than its centre and width; a Gaussian is what the makers of imaging
spectrometers fit to their measured responses.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BandstreamWarning, ConfigError
from .maps import name_of

if TYPE_CHECKING:
    import xarray as xr

F8 = NDArray[np.float64]

SIGMA_PER_FWHM = 1.0 / (2.0 * np.sqrt(2.0 * np.log(2.0)))
"""Standard deviation of a Gaussian of full width at half maximum 1."""

REACH_FWHM = 3.0
"""How far from its centre a band is followed, in widths: beyond lie 2e-12 of its response."""

COVERED = 0.85
"""Share of a band's response that a table must cover; a band whose half maximum is just covered has 0.88."""

LONGEST_GAP_NM = 20.0
"""Samples further apart than this, and than four times what is usual in their table, leave a gap."""


def convolve(table_nm: ArrayLike, values: ArrayLike, centres_nm: ArrayLike, fwhm_nm: ArrayLike) -> F8:
    """Return the mean of a tabulated spectrum over each band.

    The mean is `sum(value * w * dx) / sum(w * dx)` over the table's samples, with `w` the band's Gaussian and `dx` the
    spacing of the samples (so that `dx` cancels in a regular table). Where samples are further apart than half the
    band's width the spectrum is interpolated linearly first.

    Parameters
    ----------
    table_nm, values
        Wavelengths in nm, in any order, and the spectrum there, (n,); NaN marks what is missing.
    centres_nm, fwhm_nm
        Bands, (band,) in nm; NaN where unknown.

    Returns
    -------
    numpy.ndarray
        float64 (band,); NaN for unknown bands, and where the table covers less than `COVERED` of the response.
    """
    order = np.argsort(np.asarray(table_nm, np.float64), kind="stable")
    nm, spectrum = np.asarray(table_nm, np.float64)[order], np.asarray(values, np.float64)[order]
    longest = max(LONGEST_GAP_NM, 4 * float(np.median(np.diff(nm)))) if len(nm) > 1 else 0.0
    centres, widths = np.asarray(centres_nm, np.float64), np.asarray(fwhm_nm, np.float64)
    out = np.full(centres.shape, np.nan)
    for band, (centre, fwhm) in enumerate(zip(centres, widths, strict=True)):
        if np.isfinite(centre) and fwhm > 0:
            out[band] = _mean(nm, spectrum, float(centre), float(fwhm), longest)
    return out


def band_shapes(scene: xr.Dataset, what: str) -> tuple[F8, F8]:
    """Return centre and width of each band in nm, float64 (band,); NaN where a centre is unknown.

    Widths that the scene does not tell are the distance to the nearer of the two bands beside it, with a warning.

    Parameters
    ----------
    scene
        The scene.
    what
        Who asks, for the message.

    Raises
    ------
    ConfigError
        The scene has no wavelengths.
    """
    if "wavelength" not in scene.coords:
        raise ConfigError(
            f"{what} needs wavelengths, and {name_of(scene)} tells none; add them to its header."
        )
    centres = np.asarray(scene["wavelength"].values, np.float64).copy()
    centres[~(centres > 0)] = np.nan  # PRISMA lists bands that are not there at 0 nm
    widths = (
        np.asarray(scene["fwhm"].values, np.float64)
        if "fwhm" in scene.coords
        else np.full_like(centres, np.nan)
    )
    unknown = np.isfinite(centres) & ~(widths > 0)
    if unknown.any():
        warnings.warn(
            f"{name_of(scene)} tells no width for {int(unknown.sum())} of {len(centres)} bands; the distance to the "
            "next band was taken.",
            BandstreamWarning,
            stacklevel=2,
        )
        widths = np.where(unknown, spacing(centres), widths)
    return centres, widths


def spacing(centres_nm: F8) -> F8:
    """Return the distance to the nearer neighbour in the order of the list, (band,); NaN for a lone band.

    In the order of the list, since detectors overlap: there the nearest wavelength belongs to the other one.
    """
    step = np.abs(np.diff(centres_nm))
    step[step == 0] = np.nan
    both: NDArray[Any] = np.stack([np.append(step, np.nan), np.insert(step, 0, np.nan)])
    return np.fmin(both[0], both[1])


def _mean(nm: F8, spectrum: F8, centre: float, fwhm: float, longest: float) -> float:
    """Return the mean of a spectrum (ascending) over one band, or NaN where it is not covered."""
    reach = REACH_FWHM * fwhm
    first, last = np.searchsorted(nm, [centre - reach, centre + reach])
    x, y = nm[max(first - 1, 0) : last + 1], spectrum[max(first - 1, 0) : last + 1]
    if len(x) < 2:
        return np.nan
    if np.diff(x).max() > fwhm / 2:
        fine = np.linspace(centre - reach, centre + reach, 97)
        x, y = fine, _between(fine, x, y, longest)
    edges = np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
    sigma = fwhm * SIGMA_PER_FWHM
    weight = np.exp(-0.5 * ((x - centre) / sigma) ** 2) * np.diff(edges)
    weight[~np.isfinite(y)] = 0.0
    total = float(weight.sum())
    if total < COVERED * sigma * np.sqrt(2 * np.pi):
        return np.nan
    return float(weight @ np.where(weight > 0, y, 0.0)) / total


def _between(at: F8, nm: F8, spectrum: F8, longest: float) -> F8:
    """Interpolate linearly; NaN outside, beside a missing sample, and inside a gap."""
    found = np.interp(at, nm, spectrum, left=np.nan, right=np.nan)
    segment = np.clip(np.searchsorted(nm, at) - 1, 0, len(nm) - 2)
    found[np.diff(nm)[segment] > longest] = np.nan
    return found
