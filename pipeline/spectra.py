"""Endmember spectra for simulated scenes: a smooth continuum times Gaussian absorption features.

Reflectance of a material at wavelength l is `continuum(l) * prod(1 - depth * exp(-4 ln 2 ((l - centre) /
fwhm)**2))`, the modified Gaussian picture of Sunshine, Pieters & Pratt (1990) without its logarithm: each
feature sits at the centre that laboratory work has published for the bond or ion that causes it. Depths,
widths and continua are typical of library spectra, not copied from any; they serve to give simulated data
the structure that algorithms look for.

Sources of the centres (`Feature.source`)
    clark1990    Clark, King, Klejwa, Swayze & Vergo (1990), J. Geophys. Res. 95(B8), 12653-12680: OH-bearing
                 minerals.
    hunt1977     Hunt (1977), Geophysics 42, 501-513: minerals, visible and near infrared.
    gaffey1986   Gaffey (1986), American Mineralogist 71, 151-162: carbonates.
    crowley1991  Crowley (1991), J. Geophys. Res. 96(B10), 16231-16240: evaporites, gypsum.
    morris1985   Morris, Lauer, Lawson, Gibson, Nace & Stewart (1985), J. Geophys. Res. 90(B4), 3126-3144:
                 iron oxides.
    curran1989   Curran (1989), Remote Sensing of Environment 30, 271-278: foliar chemistry.
    gao1990      Gao & Goetz (1990), J. Geophys. Res. 95(D4), 3549-3564: vegetation water and atmospheric
                 vapour.
    nagler2003   Nagler, Inoue, Glenn, Russ & Daughtry (2003), Remote Sens. Environ. 87, 310-325: plant
                 litter.
    cloutis1989  Cloutis (1989), Science 245, 165-168: hydrocarbons, C-H.
    garaba2018   Garaba & Dierssen (2018), Remote Sensing of Environment 205, 224-235: plastics.
    nolin2000    Nolin & Dozier (2000), Remote Sensing of Environment 74, 207-216: snow, ice at 1030 nm.
    warren1982   Warren (1982), Reviews of Geophysics 20, 67-89: snow.
    herold2004   Herold, Roberts, Gardner & Dennison (2004), Remote Sens. Environ. 91, 304-319: urban
                 materials.
    gitelson1992 Gitelson (1992), International Journal of Remote Sensing 13, 3367-3373: phytoplankton near
                 675 nm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

FIRST_NM: Final = 400.0
LAST_NM: Final = 2500.0

# Where water vapour lets next to nothing through between ground and sensor; such bands are listed as bad.
WATER_VAPOUR_NM: Final = ((1350.0, 1450.0), (1800.0, 1960.0))

_FINE_NM: Final = np.arange(350.0, 2600.0 + 0.5)


@dataclass(frozen=True)
class Feature:
    """One absorption feature."""

    centre_nm: float
    """Published centre."""
    fwhm_nm: float
    """Full width at half depth."""
    depth: float
    """Share of the continuum that is absorbed at the centre, 0..1."""
    source: str
    """Key of the reference list in the module's docstring."""


@dataclass(frozen=True)
class Material:
    """A pure ground cover: continuum, features and, for plants, the red edge."""

    name: str
    """Class name, without commas."""
    knots: tuple[tuple[float, float], ...]
    """Continuum as (wavelength in nm, reflectance), joined smoothly and monotonically between knots."""
    features: tuple[Feature, ...]
    """Absorption features."""
    red_edge: float | None = None
    """Continuum left below the red edge at 715 nm, as a share; None without one."""


def _features(source: str, *triples: tuple[float, float, float]) -> tuple[Feature, ...]:
    return tuple(Feature(centre, fwhm, depth, source) for centre, fwhm, depth in triples)


_LEAF_WATER = ((970.0, 50.0, 0.06), (1200.0, 80.0, 0.13), (1450.0, 110.0, 0.58), (1940.0, 140.0, 0.78))

MATERIALS: Final[tuple[Material, ...]] = (
    Material(
        "green vegetation",
        ((400, 0.42), (560, 0.50), (800, 0.50), (1300, 0.46), (1700, 0.36), (2200, 0.24), (2500, 0.16)),
        (
            *_features("curran1989", (430, 60, 0.50), (480, 60, 0.55), (640, 70, 0.30), (680, 45, 0.68)),
            *_features("gao1990", *_LEAF_WATER),
        ),
        red_edge=0.22,
    ),
    Material(
        "clay soil",
        ((400, 0.08), (600, 0.22), (900, 0.33), (1300, 0.40), (1700, 0.42), (2100, 0.40), (2500, 0.33)),
        _features("clark1990", (1410, 50, 0.22), (1910, 90, 0.38), (2205, 38, 0.20)),
    ),
    Material(
        "dry grass",
        ((400, 0.07), (600, 0.20), (800, 0.31), (1200, 0.41), (1700, 0.42), (2000, 0.33), (2500, 0.24)),
        (
            *_features("curran1989", (1200, 60, 0.04), (1450, 90, 0.16), (1780, 60, 0.06), (1940, 100, 0.22)),
            *_features("nagler2003", (2100, 100, 0.16), (2300, 80, 0.12)),
        ),
    ),
    Material(
        "limestone",
        ((400, 0.30), (600, 0.42), (1000, 0.50), (1600, 0.52), (2100, 0.50), (2500, 0.42)),
        _features("gaffey1986", (1875, 60, 0.10), (1995, 50, 0.07), (2155, 40, 0.06), (2335, 70, 0.32)),
    ),
    Material(
        "asphalt",
        ((400, 0.06), (700, 0.09), (1200, 0.12), (1700, 0.14), (2200, 0.15), (2500, 0.14)),
        (
            *_features("cloutis1989", (1730, 40, 0.05), (2310, 60, 0.10)),
            *_features("herold2004", (540, 160, 0.10)),
        ),
    ),
    Material(
        "iron oxide soil",
        ((400, 0.05), (500, 0.08), (650, 0.24), (760, 0.31), (1200, 0.38), (1800, 0.42), (2500, 0.36)),
        (
            *_features("morris1985", (530, 70, 0.40), (900, 160, 0.26)),
            *_features("clark1990", (1910, 80, 0.14), (2205, 40, 0.06)),
        ),
    ),
    Material(
        "kaolinite",
        ((400, 0.42), (600, 0.62), (1000, 0.70), (1600, 0.72), (2000, 0.66), (2500, 0.42)),
        _features(
            "clark1990",
            (1395, 22, 0.28),
            (1414, 20, 0.34),
            (1915, 60, 0.08),
            (2165, 28, 0.26),
            (2207, 28, 0.42),
        ),
    ),
    Material(
        "conifer forest",
        ((400, 0.22), (560, 0.26), (800, 0.29), (1300, 0.25), (1700, 0.16), (2200, 0.09), (2500, 0.06)),
        (
            *_features("curran1989", (430, 60, 0.45), (480, 60, 0.45), (640, 70, 0.26), (680, 45, 0.62)),
            *_features("gao1990", (970, 50, 0.10), (1200, 80, 0.20), (1450, 110, 0.62), (1940, 140, 0.80)),
        ),
        red_edge=0.20,
    ),
    Material(
        "gypsum",
        ((400, 0.60), (700, 0.72), (1000, 0.74), (1300, 0.70), (1700, 0.62), (2100, 0.48), (2500, 0.26)),
        _features(
            "crowley1991",
            *((1449, 36, 0.46), (1490, 30, 0.36), (1535, 30, 0.28), (1750, 40, 0.24)),
            *((1945, 90, 0.58), (2215, 60, 0.20)),
        ),
    ),
    Material(
        "plastic sheet",
        ((400, 0.48), (700, 0.58), (1100, 0.60), (1600, 0.56), (2000, 0.50), (2500, 0.32)),
        (
            *_features("garaba2018", (931, 30, 0.05), (1215, 44, 0.20), (1417, 50, 0.18), (1732, 44, 0.42)),
            *_features("cloutis1989", (2310, 60, 0.46)),
        ),
    ),
    Material(
        "concrete",
        ((400, 0.16), (600, 0.25), (1000, 0.31), (1600, 0.35), (2100, 0.34), (2500, 0.28)),
        (
            *_features("herold2004", (1440, 70, 0.08), (1930, 90, 0.18)),
            *_features("gaffey1986", (2335, 70, 0.10)),
        ),
    ),
    Material(
        "open water",
        ((400, 0.055), (560, 0.07), (700, 0.035), (800, 0.014), (1000, 0.007), (1300, 0.005), (2500, 0.004)),
        _features("gitelson1992", (440, 60, 0.30), (675, 24, 0.18)),
    ),
    Material(
        "muscovite schist",
        ((400, 0.20), (600, 0.31), (1000, 0.38), (1600, 0.42), (2100, 0.44), (2500, 0.36)),
        _features("clark1990", (1408, 30, 0.20), (2200, 32, 0.34), (2345, 40, 0.20), (2440, 40, 0.16)),
    ),
    Material(
        "alunite",
        ((400, 0.34), (600, 0.52), (1000, 0.60), (1600, 0.62), (2000, 0.56), (2500, 0.36)),
        (
            *_features("clark1990", (1430, 32, 0.32), (1478, 34, 0.26), (2165, 60, 0.38), (2320, 50, 0.22)),
            *_features("hunt1977", (1760, 40, 0.22)),
        ),
    ),
    Material(
        "snow",
        (
            (400, 0.93),
            (700, 0.94),
            (900, 0.86),
            (1100, 0.66),
            (1300, 0.42),
            (1800, 0.16),
            (2200, 0.12),
            (2500, 0.06),
        ),
        (
            *_features("nolin2000", (1030, 80, 0.22)),
            *_features("warren1982", (1250, 110, 0.30), (1500, 150, 0.86), (2000, 170, 0.84)),
        ),
    ),
    Material(
        "serpentinite",
        ((400, 0.08), (560, 0.16), (800, 0.19), (1300, 0.26), (1700, 0.30), (2200, 0.30), (2500, 0.22)),
        (
            *_features("hunt1977", (450, 50, 0.12), (900, 140, 0.10), (1100, 200, 0.14)),
            *_features("clark1990", (1390, 30, 0.26), (2115, 50, 0.06), (2325, 50, 0.36)),
        ),
    ),
)


def material(number: int) -> Material:
    """Return the pure material of one class.

    Beyond the list, materials come round again as variants: another brightness and slope of the continuum
    and weaker or stronger features, as grain size and weathering make them. Centres never move.

    Parameters
    ----------
    number
        0-based class; any non-negative number.
    """
    base = MATERIALS[number % len(MATERIALS)]
    turn = number // len(MATERIALS)
    if turn == 0:
        return base
    # Steps of the golden ratio fill the ranges evenly, however many variants are asked for.
    u, v, w = ((turn * g) % 1.0 for g in (0.6180339887, 0.7548776662, 0.5698402910))
    bright, tilt, strength = 0.62 + 0.55 * u, 0.5 * (v - 0.5), 0.45 + 0.8 * w
    # The constant keeps variants of the darkest cover apart: water with sediment.
    knots = tuple(
        (nm, min(0.97, 0.05 * u + rho * bright * (1.0 + tilt * (nm - 1450.0) / 1050.0)))
        for nm, rho in base.knots
    )
    features = tuple(
        Feature(f.centre_nm, f.fwhm_nm, min(0.92, f.depth * strength), f.source) for f in base.features
    )
    return Material(f"{base.name} {turn + 1}", knots, features, base.red_edge)


def reflectance(
    item: Material, wavelength_nm: NDArray[np.float64], *, strength: float = 1.0
) -> NDArray[np.float64]:
    """Return the reflectance of a material, 0..1.

    Parameters
    ----------
    item
        The material.
    wavelength_nm
        (n,) wavelengths in nm.
    strength
        Factor on the depth of every feature: the vigour of a plant, the purity of a mineral.
    """
    from scipy.interpolate import PchipInterpolator

    nm, rho = np.array(item.knots, dtype=np.float64).T
    result = np.asarray(PchipInterpolator(nm, rho)(np.clip(wavelength_nm, nm[0], nm[-1])), dtype=np.float64)
    if item.red_edge is not None:
        rise = 1.0 / (1.0 + np.exp(-(wavelength_nm - 715.0) / 11.0))
        result = result * (item.red_edge + (1.0 - item.red_edge) * rise)
    for feature in item.features:
        distance = (wavelength_nm - feature.centre_nm) / feature.fwhm_nm
        result = result * (
            1.0 - min(0.95, feature.depth * strength) * np.exp(-4.0 * np.log(2.0) * distance**2)
        )
    return result


def band_response(wavelength_nm: NDArray[np.float64], fwhm_nm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (fine wavelength, band) weights of Gaussian band responses; each column sums to 1."""
    distance = (_FINE_NM[:, None] - wavelength_nm[None, :]) / fwhm_nm[None, :]
    weights = np.exp(-4.0 * np.log(2.0) * distance**2)
    return weights / weights.sum(axis=0, keepdims=True)


def endmembers(
    count: int, wavelength_nm: NDArray[np.float64], fwhm_nm: NDArray[np.float64], *, strength: float = 1.0
) -> tuple[NDArray[np.float64], list[str]]:
    """Return (count, band) reflectance as a sensor with Gaussian bands sees it, and the materials' names."""
    items = [material(number) for number in range(count)]
    fine = np.stack([reflectance(item, _FINE_NM, strength=strength) for item in items])
    return fine @ band_response(wavelength_nm, fwhm_nm), [item.name for item in items]


def transmittance(wavelength_nm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two-way transmittance of the atmosphere as far as water vapour and oxygen shape it, 0..1.

    Window bands follow Gao & Goetz (1990): weak vapour bands at 940 and 1140 nm, strong ones at 1380 and 1880
                 nm; oxygen A
    at 760 nm. Rayleigh scattering darkens the blue.
    """
    result = np.exp(-0.10 * (550.0 / wavelength_nm) ** 4)
    for centre, width, depth in ((760, 8, 0.35), (940, 40, 0.40), (1140, 45, 0.45), (2010, 40, 0.30)):
        result = result * (1.0 - depth * np.exp(-4.0 * np.log(2.0) * ((wavelength_nm - centre) / width) ** 2))
    for first, last in WATER_VAPOUR_NM:
        # Flat bottom over the window, soft shoulders of 15 nm.
        inside = 1.0 / (1.0 + np.exp(-(wavelength_nm - first) / 5.0)) - 1.0 / (
            1.0 + np.exp(-(wavelength_nm - last) / 5.0)
        )
        result = result * (1.0 - 0.985 * inside)
    return result
