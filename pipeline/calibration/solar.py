"""The sun: its irradiance as a table, its distance, and its height."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config import load_yaml
from ..errors import ConfigError, SceneError
from .field_spectra import read_spectra
from .gaussian import convolve

F8 = NDArray[np.float64]

DEFAULT_TABLE = "tsis1_hsrs"

VISIBLE_NM = (400.0, 900.0)
VISIBLE_W_M2 = 763.0
"""What the sun sends between 400 and 900 nm, to a few per cent in every published table; tells a table's unit."""

_UNITS = {1.0: "W m-2 um-1", 10.0: "uW cm-2 nm-1", 1000.0: "W m-2 nm-1"}


@dataclass(frozen=True)
class SolarTable:
    """Irradiance outside the atmosphere at 1 astronomical unit."""

    name: str
    wavelength_nm: F8  #: (n,) ascending
    irradiance: F8  #: (n,) W m-2 um-1

    def of_bands(self, centres_nm: F8, fwhm_nm: F8) -> F8:
        """Return the irradiance of bands with Gaussian response, W m-2 um-1 (band,); NaN beyond the table."""
        return convolve(self.wavelength_nm, self.irradiance, centres_nm, fwhm_nm)


def solar_folder() -> Path:
    """Return the folder of the tables that ship with the package."""
    return Path(str(resources.files(f"{__name__.rsplit('.', 3)[0]}.catalogs"))) / "solar"


def load_solar(name: str | None = None) -> SolarTable:
    """Load a table of solar irradiance.

    Parameters
    ----------
    name
        One that ships with the package (`tsis1_hsrs` by default), or a CSV file of two columns, wavelength and
        irradiance. The irradiance may be in W m-2 um-1 (the same as mW m-2 nm-1), W m-2 nm-1 or uW cm-2 nm-1: the sun
        itself tells which, since its output between 400 and 900 nm is known.

    Raises
    ------
    ConfigError
        There is no such table, or its numbers are no solar irradiance in one of these units.
    """
    chosen = DEFAULT_TABLE if name is None else name
    # a file of the user's own may change between two calls
    return _read_table(chosen) if chosen.lower().endswith(".csv") else _shipped_table(chosen)


@functools.lru_cache(maxsize=4)
def _shipped_table(name: str) -> SolarTable:
    return _read_table(name)


def _read_table(chosen: str) -> SolarTable:
    """Read a table as `load_solar` describes it."""
    if chosen.lower().endswith(".csv"):
        path = Path(chosen)
    else:
        known = sorted(entry.stem for entry in solar_folder().glob("*.yaml"))
        if chosen not in known:
            raise ConfigError(
                f"There is no solar table {chosen!r}; there are {', '.join(known)}, or give a CSV file of wavelength "
                "and irradiance."
            )
        path = solar_folder() / str(load_yaml(solar_folder() / f"{chosen}.yaml")["file"])
    try:
        table = read_spectra(str(path))
    except SceneError as error:
        raise ConfigError(f"The solar table cannot be read: {error}") from error
    if len(table.spectra) != 1:
        raise ConfigError(
            f"{path} has {len(table.spectra)} columns beside the wavelength; a solar table has one."
        )
    order = np.argsort(table.wavelength_nm)
    nm, irradiance = table.wavelength_nm[order], next(iter(table.spectra.values()))[order]
    return SolarTable(chosen, nm, irradiance * _factor(nm, irradiance, str(path)))


def earth_sun_distance(when: datetime) -> float:
    """Return the distance between earth and sun in astronomical units, to 1e-4.

    Parameters
    ----------
    when
        UTC where it tells no zone.

    Notes
    -----
    Kepler orbit of Meeus, J. (1998), Astronomical Algorithms, 2nd edition, chapter 25.
    """
    century = _centuries(when)
    _, true_anomaly, eccentricity = _orbit(century)
    return float(1.000001018 * (1 - eccentricity**2) / (1 + eccentricity * np.cos(true_anomaly)))


def sun_zenith(when: datetime, lat_deg: float, lon_deg: float) -> float:
    """Return the angle between sun and zenith in degrees, without refraction, to 0.02.

    Parameters
    ----------
    when
        UTC where it tells no zone.
    lat_deg, lon_deg
        WGS 84, east positive.

    Notes
    -----
    Meeus (1998), chapters 12, 13 and 25 (low accuracy). Without refraction, since irradiance is meant for a plane
    outside the atmosphere.
    """
    century = _centuries(when)
    longitude, _, _ = _orbit(century)
    node = np.radians(125.04 - 1934.136 * century)
    apparent = longitude - np.radians(0.00569 + 0.00478 * np.sin(node))
    tilt = np.radians(23.439291 - 0.0130042 * century + 0.00256 * np.cos(node))
    ascension = np.arctan2(np.cos(tilt) * np.sin(apparent), np.cos(apparent))
    declination = np.arcsin(np.sin(tilt) * np.sin(apparent))
    sidereal = 280.46061837 + 360.98564736629 * 36525.0 * century + 0.000387933 * century**2
    hour = np.radians((sidereal + lon_deg) % 360.0) - ascension
    lat = np.radians(lat_deg)
    cosine = np.sin(lat) * np.sin(declination) + np.cos(lat) * np.cos(declination) * np.cos(hour)
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def parse_time(text: str) -> datetime | None:
    """Return an ISO 8601 date or time as UTC, or None where it is none."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _factor(nm: F8, irradiance: F8, where: str) -> float:
    """Return what brings a table to W m-2 um-1."""
    inside = (nm >= VISIBLE_NM[0]) & (nm <= VISIBLE_NM[1])
    covered = inside.any() and nm[0] <= VISIBLE_NM[0] and nm[-1] >= VISIBLE_NM[1]
    total = float(np.trapezoid(irradiance[inside], nm[inside])) / 1000.0 if covered else np.nan
    for factor in _UNITS:
        if abs(total * factor / VISIBLE_W_M2 - 1) < 0.06:
            return factor
    units: Sequence[str] = tuple(_UNITS.values())
    raise ConfigError(
        f"{where} is no table of solar irradiance: between 400 and 900 nm the sun sends about {VISIBLE_W_M2:g} W m-2, and "
        f"the table adds up to {total:g} (in W m-2 um-1). Allowed units: {', '.join(units)}; it must cover 400 to 900 nm."
    )


def _centuries(when: datetime) -> float:
    """Return Julian centuries since 2000-01-01 12:00 (the minute between UTC and dynamical time does not matter)."""
    aware = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    return (aware - datetime(2000, 1, 1, 12, tzinfo=UTC)).total_seconds() / 86400.0 / 36525.0


def _orbit(century: float) -> tuple[float, float, float]:
    """Return the sun's true longitude and anomaly in radians, and the orbit's eccentricity."""
    mean_longitude = 280.46646 + 36000.76983 * century + 0.0003032 * century**2
    anomaly = np.radians(357.52911 + 35999.05029 * century - 0.0001537 * century**2)
    centre = (
        (1.914602 - 0.004817 * century) * np.sin(anomaly)
        + (0.019993 - 0.000101 * century) * np.sin(2 * anomaly)
        + 0.000289 * np.sin(3 * anomaly)
    )
    eccentricity = 0.016708634 - 0.000042037 * century
    return np.radians(mean_longitude + centre), anomaly + np.radians(centre), eccentricity
