"""Continuum removal: each spectrum divided by its upper convex hull, so that absorptions stand out as depths below 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..calibration.radiance_scale import REFLECTANCES
from ..errors import ConfigError
from ..statistics import F8
from .segments import segments
from .stage import BandTable

#: Pixels worked on together: few enough that a hull's arrays stay in the processor's cache.
_PIXELS = 4096


@dataclass(frozen=True)
class ContinuumRemoval:
    """Reflectance divided by its continuum, the upper convex hull over wavelength (Clark and Roush 1984).

    The hull is taken on ascending wavelengths, per detector and contiguous segment (`segments`), so that it never spans
    a dropped window; bands of equal centre share one point of it, the highest. Results lie in 0..1 and are 1 at the ends
    of a segment, so that a segment of one or two bands says nothing. Reflectance below 0 counts as 0, and where the
    continuum is 0 the result is 1: no absorption is seen where there is no light.
    """

    kind: ClassVar[str] = "normalize"

    wavelength_nm: F8  #: (bands,) in any order
    pieces: tuple[NDArray[np.intp], ...]  #: bands of each segment, ascending in wavelength

    @classmethod
    def of(cls, table: BandTable) -> ContinuumRemoval:
        """Make the stage for these bands.

        Raises
        ------
        ConfigError
            There are no wavelengths, or some band has none.
        """
        pieces = segments(table, "normalize: method continuum_removal")
        assert table.wavelength_nm is not None
        return cls(np.asarray(table.wavelength_nm, np.float64), tuple(pieces))

    @property
    def outputs(self) -> int:
        """Number of bands."""
        return len(self.wavelength_nm)

    def apply(self, values_bp: NDArray[np.floating]) -> NDArray[np.floating]:
        """Map (bands, pixels), float32 or float64 and finite, to the same shape and dtype."""
        out = np.empty_like(values_bp)
        for start in range(0, values_bp.shape[1], _PIXELS):
            part = slice(start, start + _PIXELS)
            for bands in self.pieces:
                # the segment's bands in ascending order, a copy in any case
                values = np.maximum(values_bp[bands, part], 0, dtype=np.float64)
                hull = continuum(values, self.wavelength_nm[bands])
                out[bands, part] = np.divide(values, hull, out=np.ones_like(values), where=hull > 0)
        return out

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        segment = np.empty(self.outputs)
        for number, bands in enumerate(self.pieces):
            segment[bands] = number
        return {"method": "continuum_removal"}, {"wavelength_nm": self.wavelength_nm, "segment": segment}

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> ContinuumRemoval:
        """Make the stage from its stored state."""
        del settings
        centres, segment = arrays["wavelength_nm"], arrays["segment"]
        order = np.argsort(centres, kind="stable")
        pieces = [order[segment[order] == number] for number in range(int(segment.max()) + 1)]
        return cls(centres, tuple(pieces))


def require_reflectance(attrs: Mapping[str, Any]) -> None:
    """Refuse continuum removal of anything but reflectance: the continuum of radiance is the sun's and the air's.

    Parameters
    ----------
    attrs
        Attributes of a scene as it reaches the stage, calibrated.

    Raises
    ------
    ConfigError
        The scene is no reflectance, or does not say so.
    """
    if attrs.get("quantity") not in REFLECTANCES:
        raise ConfigError(
            f"normalize: method continuum_removal takes reflectance, and {attrs.get('source')} is "
            f"{attrs.get('quantity', 'of unknown quantity')}; put calibrate in front, to: surface_reflectance, or "
            "to: toa_reflectance where the scene holds radiance."
        )


def continuum(values_bp: F8, ascending_nm: F8) -> F8:
    """Return the upper convex hull of spectra at every band.

    A monotone chain (Andrew 1979) over all pixels at once: the hull of the bands so far is kept as a link from each band
    to its predecessor on the hull, which stays true while the band does.

    Parameters
    ----------
    values_bp
        Spectra (bands, pixels).
    ascending_nm
        Centres (bands,), ascending; equal ones share their highest value.

    Returns
    -------
    numpy.ndarray
        (bands, pixels), nowhere below the spectra.
    """
    centres, first, inverse = np.unique(ascending_nm, return_index=True, return_inverse=True)
    if len(centres) < len(ascending_nm):
        highest = np.maximum.reduceat(values_bp, first, axis=0)
        return continuum(highest, centres)[inverse]
    before, slope = _chain(values_bp, ascending_nm)
    return _lines(values_bp, ascending_nm, before, slope)


def _chain(values_bp: F8, ascending_nm: F8) -> tuple[NDArray[np.int32], F8]:
    """Return, per band and pixel, its predecessor on the hull of the bands up to it, and the slope from there."""
    bands, pixels = values_bp.shape
    before = np.zeros((bands, pixels), np.int32)
    slope = np.full((bands, pixels), np.inf)
    for band in range(1, bands):
        value, centre = values_bp[band], ascending_nm[band]
        before[band] = band - 1
        slope[band] = (value - values_bp[band - 1]) / (centre - ascending_nm[band - 1])
        # pixels whose last vertex lies on or under the line to this band, for which it is no vertex any more
        bent = np.flatnonzero(slope[band] >= slope[band - 1])
        vertex = np.full(len(bent), band - 1)
        while len(bent):
            vertex = before[vertex, bent]
            rise = (value[bent] - values_bp[vertex, bent]) / (centre - ascending_nm[vertex])
            before[band, bent], slope[band, bent] = vertex, rise
            still = rise >= slope[vertex, bent]
            bent, vertex = bent[still], vertex[still]
    return before, slope


def _lines(values_bp: F8, ascending_nm: F8, before: NDArray[np.int32], slope: F8) -> F8:
    """Return the hull at every band, following the links back from the last one."""
    hull = values_bp.copy()
    # the piece of the hull that is walked along: its right end, its slope, and the vertex at its left end
    height, right_nm = values_bp[-1], np.full(values_bp.shape[1], ascending_nm[-1])
    rise, left = slope[-1], before[-1]
    for band in range(len(values_bp) - 2, 0, -1):
        vertex = left == band
        line = height + rise * (ascending_nm[band] - right_nm)
        np.maximum(hull[band], line, out=hull[band], where=~vertex)
        height = np.where(vertex, values_bp[band], height)
        right_nm = np.where(vertex, ascending_nm[band], right_nm)
        rise = np.where(vertex, slope[band], rise)
        left = np.where(vertex, before[band], left)
    return hull
