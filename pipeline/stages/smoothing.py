"""Smoothing spectra and taking their derivatives by local polynomials."""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..statistics import F8, Moments
from .affine import Affine
from .projection import moments_behind
from .segments import segments
from .stage import BandTable


@dataclass(frozen=True)
class _LocalPolynomial:
    """A linear map of spectra, whose state is its matrix."""

    method: ClassVar[str] = "savitzky_golay"

    gain: F8  #: (bands, bands), a column per band that comes out

    @property
    def outputs(self) -> int:
        """Number of bands."""
        return self.gain.shape[1]

    def affine(self) -> Affine:
        """Return the map of this stage."""
        return Affine(np.zeros(len(self.gain)), self.gain, np.zeros(self.outputs))

    def propagate(self, moments: Moments) -> Moments:
        """Return the moments behind the stage, given those, with covariances, in front of it; ranges are unknown."""
        return moments_behind(self.affine(), moments)

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        return {"method": self.method}, {"gain": self.gain}

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Self:
        """Make the stage from its stored state."""
        del settings
        return cls(arrays["gain"])


@dataclass(frozen=True)
class Smooth(_LocalPolynomial):
    """Each value replaced by that of a polynomial fitted to the bands around it (Savitzky and Golay 1964).

    Fitted by least squares on the actual wavelengths, within contiguous segments; see `local_polynomials`.
    """

    kind: ClassVar[str] = "smooth"

    @classmethod
    def of(cls, table: BandTable, *, window: int, polynomial: int) -> Smooth:
        """Make the stage for these bands; `window` is a number of bands, odd and above the degree `polynomial`.

        Raises
        ------
        ConfigError
            There are no wavelengths, or some band has none.
        """
        return cls(local_polynomials(table, cls.kind, window=window, polynomial=polynomial, order=0))


@dataclass(frozen=True)
class Derivative(_LocalPolynomial):
    """The derivative of spectra by wavelength, per nm (of `order`), of a polynomial fitted to the bands around.

    Source and fit are those of `Smooth`; with a window of 3 and a polynomial of 2 on evenly spaced bands it is the
    central difference.
    """

    kind: ClassVar[str] = "derivative"

    @classmethod
    def of(cls, table: BandTable, *, order: int, window: int, polynomial: int) -> Derivative:
        """Make the stage for these bands; `order` is at most the degree `polynomial`, and that below `window`.

        Raises
        ------
        ConfigError
            There are no wavelengths, some band has none, or a segment has too few bands for a derivative.
        """
        return cls(local_polynomials(table, cls.kind, window=window, polynomial=polynomial, order=order))


def local_polynomials(table: BandTable, key: str, *, window: int, polynomial: int, order: int) -> F8:
    """Return the matrix (bands, bands) that gives a derivative of local polynomials, spectra multiplied from the left.

    Every band takes the `window` bands about it; at the ends of a segment, where these are not there on both sides, the
    `window` bands nearest to the end, as `scipy.signal.savgol_filter` does with ``mode="interp"``, which this equals on
    evenly spaced bands. A segment of fewer bands is one window. A polynomial never has more coefficients than its
    window has different wavelengths: a segment of no more than `polynomial` + 1 bands is not smoothed at all.

    Parameters
    ----------
    table
        The bands, in any order.
    key
        The workflow's key, for messages.
    window
        Number of bands, odd.
    polynomial
        Degree.
    order
        Of the derivative, 0 for smoothing.

    Raises
    ------
    ConfigError
        There are no wavelengths, some band has none, or a segment has too few bands for the derivative.
    """
    gain = np.zeros((table.count, table.count))
    for bands in segments(table, key):
        assert table.wavelength_nm is not None
        centres = table.wavelength_nm[bands]
        width = min(window, len(bands))
        for place, band in enumerate(bands):
            start = min(max(place - window // 2, 0), len(bands) - width)
            local = slice(start, start + width)
            offsets_nm = centres[local] - centres[place]
            degree = min(polynomial, len(np.unique(offsets_nm)) - 1)
            if degree < order:
                raise ConfigError(
                    f"{key}.order is {order}, which needs {order + 1} different wavelengths in every contiguous run of "
                    f"bands, and {_named(bands, centres)} has {degree + 1}; drop such bands with "
                    "drop_bands.windows_nm."
                )
            gain[bands[local], band] = _coefficients(offsets_nm, degree, order)
    return gain


def _coefficients(offsets_nm: F8, degree: int, order: int) -> F8:
    """Return what each value contributes to the derivative at 0 of the polynomial fitted to them by least squares."""
    reach = float(np.abs(offsets_nm).max()) or 1.0  # on -1..1 the powers keep their digits
    powers = np.vander(offsets_nm / reach, degree + 1, increasing=True)
    return np.linalg.pinv(powers)[order] * (factorial(order) / reach**order)


def _named(bands: NDArray[np.intp], centres: F8) -> str:
    if len(bands) == 1:
        return f"band {bands[0] + 1} ({centres[0]:g} nm)"
    return f"the run of {len(bands)} bands at {centres[0]:g} to {centres[-1]:g} nm"
