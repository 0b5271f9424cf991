"""Sensors by name: band centres and widths, bands commonly left out, and how stored numbers become physical ones.

The tables are YAML files in `catalogs/sensors`. Their figures come from the document or product that `source` names;
where an instrument has no published table, or has one of its own for every single device, `bands` is null and the
header of a file decides. What a file says of its own bands always goes before these tables.
"""

from __future__ import annotations

import difflib
import functools
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from .config import StrictModel, load_yaml, parse
from .errors import ConfigError

Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
BandRun = Annotated[tuple[int, int], pydantic.Field(description="first and last band, 1-based")]
Window = tuple[Positive, Positive]


class BandTable(StrictModel):
    """Centres and full widths at half maximum, one number for each band, in the order of the bands."""

    wavelength_nm: Annotated[list[Positive], pydantic.Field(min_length=1)]
    fwhm_nm: list[Positive] | None = None  #: None where no widths are published

    @pydantic.model_validator(mode="after")
    def _alike(self) -> BandTable:
        if self.fwhm_nm is not None and len(self.fwhm_nm) != len(self.wavelength_nm):
            raise ValueError(
                f"wavelength_nm has {len(self.wavelength_nm)} numbers and fwhm_nm {len(self.fwhm_nm)}; "
                "there must be one of each for every band"
            )
        return self


class DetectorBands(StrictModel):
    """The bands that one detector records."""

    name: str
    bands: BandRun


class Sensor(StrictModel):
    """One sensor, as its file in `catalogs/sensors` describes it."""

    version: Literal[1]
    name: str
    aliases: list[str] = []
    title: str
    kind: Literal["spaceborne", "airborne", "laboratory"]
    count: Annotated[int, pydantic.Field(ge=1)]  #: bands of a full product
    range_nm: Window
    typical_fwhm_nm: Window | None = None
    approximate: bool = False  #: the table is no publication for this very instrument; `source` says why
    scale: str  #: how stored numbers become radiance or reflectance, in words
    radiance_unit: str | None = None  #: in which the products deliver radiance
    radiance_factor: Positive | None = None  #: from that unit to W m-2 sr-1 um-1
    reflectance_factor: Positive | None = None  #: from stored numbers to reflectance 0 to 1
    nodata: list[float] = []  #: stored numbers that mean "no data"
    bad_bands: list[BandRun] = []  #: commonly left out, 1-based
    bad_windows_nm: list[Window] = []  #: commonly left out
    source: str  #: where the figures come from, and what could not be established
    detectors: list[DetectorBands] = []
    bands: BandTable | None = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Sensor:
        if (self.radiance_unit is None) != (self.radiance_factor is None):
            raise ValueError("radiance_unit and radiance_factor belong together")
        if self.bands is not None and len(self.bands.wavelength_nm) != self.count:
            raise ValueError(f"count is {self.count} and the table has {len(self.bands.wavelength_nm)} bands")
        for first, last in [*self.bad_bands, *(part.bands for part in self.detectors)]:
            if not 1 <= first <= last <= self.count:
                raise ValueError(f"the bands [{first}, {last}] are not within 1 to {self.count}")
        for low, high in [self.range_nm, *self.bad_windows_nm]:
            if not low < high:
                raise ValueError(f"a window is [low, high] in nm, got [{low:g}, {high:g}]")
        return self

    @property
    def wavelength_nm(self) -> NDArray[np.float64]:
        """Band centres in nm, float64 (band,), in the order of the bands (detectors overlap, so not ascending).

        Raises
        ------
        ConfigError
            The sensor has no table.
        """
        return np.array(self._table().wavelength_nm, np.float64)

    @property
    def fwhm_nm(self) -> NDArray[np.float64]:
        """Full widths at half maximum in nm, float64 (band,).

        Raises
        ------
        ConfigError
            The sensor has no table, or none of widths.
        """
        widths = self._table().fwhm_nm
        if widths is None:
            raise ConfigError(
                f"The band widths of {self.name} are not published with its centres ({self.source}) Give centres and "
                "widths of your own, from the header of a file."
            )
        return np.array(widths, np.float64)

    @property
    def good_band(self) -> NDArray[np.bool_]:
        """True for the bands that are not commonly left out by number, bool (band,)."""
        good = np.ones(self.count, bool)
        for first, last in self.bad_bands:
            good[first - 1 : last] = False
        return good

    @property
    def detector(self) -> NDArray[np.str_] | None:
        """Name of the detector of each band, (band,); None where it is not published."""
        if not self.detectors:
            return None
        names = np.full(self.count, "", dtype="U16")
        for part in self.detectors:
            names[part.bands[0] - 1 : part.bands[1]] = part.name
        return names

    def _table(self) -> BandTable:
        if self.bands is None:
            raise ConfigError(
                f"There is no table of bands for {self.name}: {self.source} Known are {self.count} bands between "
                f"{self.range_nm[0]:g} and {self.range_nm[1]:g} nm. Give centres and widths of your own, from the "
                "header of a file."
            )
        return self.bands


def sensor_folder() -> Path:
    """Return the folder of the sensor tables that ship with the package."""
    return Path(str(resources.files(f"{__name__.rsplit('.', 2)[0]}.catalogs"))) / "sensors"


def list_sensors() -> list[str]:
    """Return the names of all sensors, sorted without regard to case; no table is read."""
    return sorted({name for name, _ in _index().values()}, key=str.lower)


def load_sensor(name: str) -> Sensor:
    """Load a sensor by its name or one of its other names; case, blanks and underscores do not matter.

    Raises
    ------
    ConfigError
        There is no such sensor; the nearest name is given.
    """
    found = _index().get(_plain(name))
    if found is None:
        near = difflib.get_close_matches(_plain(name), list(_index()), n=1)
        hint = f" Did you mean {_index()[near[0]][0]}?" if near else ""
        raise ConfigError(f"There is no sensor {name!r}.{hint} There are {', '.join(list_sensors())}.")
    return _load(found[1])


@functools.lru_cache(maxsize=64)
def _load(path: Path) -> Sensor:
    return parse(Sensor, load_yaml(path), path.name)


@functools.lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, Path]]:
    """Map every name to the sensor's own name and its file.

    Only the heads of the files are looked at: to parse all tables takes a second.
    """
    index: dict[str, tuple[str, Path]] = {}
    for path in sorted(sensor_folder().glob("*.yaml")):
        with path.open(encoding="utf-8") as file:
            head = file.read(2000)
        name = re.search(r"^name: (.+)$", head, re.MULTILINE)
        aliases = re.search(r"^aliases: \[([^\]]*)\]", head, re.MULTILINE)
        if name is None:
            raise ConfigError(f"{path} has no line `name: ...` among its first.")
        own = name[1].strip()
        others = [part.strip() for part in aliases[1].split(",")] if aliases else []
        for word in filter(None, (own, *others)):
            index[_plain(word)] = (own, path)
    return index


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())
