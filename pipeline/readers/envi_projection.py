"""Coordinate systems from the `projection info` of an ENVI header: type, ellipsoid axes, parameters, datum, name.

The meaning of the numbers follows GDAL's ENVI driver. In contrast to it nothing is guessed: a datum that is not known by
its name is none. Oblique Mercator (types 5 and 6) and State Plane zones are not read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

import rasterio
from rasterio.crs import CRS
from rasterio.errors import CRSError

from .wavelengths import split_list, to_float


@dataclass(frozen=True)
class Datum:
    """EPSG codes of a datum: geographic, and of UTM zone 0 north and south with the zones for which they exist."""

    geographic: int
    north: int | None = None
    south: int | None = None
    first: int = 1
    last: int = 60


_WGS84 = Datum(4326, 32600, 32700)
_WGS72 = Datum(4322, 32200, 32300)
_NAD83 = Datum(4269, 26900, None, 1, 23)
_NAD27 = Datum(4267, 26700, None, 1, 22)
_ETRS89 = Datum(4258, 25800, None, 28, 38)
_ED50 = Datum(4230, 23000, None, 28, 38)
_GDA94 = Datum(4283, None, 28300, 48, 58)

_DATUMS = {
    **dict.fromkeys(("wgs84", "wgs1984", "dwgs1984", "gcswgs1984"), _WGS84),
    **dict.fromkeys(("wgs72", "wgs1972"), _WGS72),
    **dict.fromkeys(("northamerica1983", "nad83", "northamerican1983"), _NAD83),
    **dict.fromkeys(("northamerica1927", "nad27", "northamerican1927"), _NAD27),
    **dict.fromkeys(("etrs89", "etrs1989", "detrs1989"), _ETRS89),
    **dict.fromkeys(("european1950", "european1950mean", "ed50"), _ED50),
    **dict.fromkeys(("gda94", "geocentricdatumofaustralia1994"), _GDA94),
    "ordnancesurveyofgreatbritain36": Datum(4277),
    "sad69brazil": Datum(4291),
    "australiangeodetic1984": Datum(4203),
    "nouvelletriangulationfrancaiseign": Datum(4275),
}
"""Datums by their name without blanks and signs. Outside its zones a sum would be the code of something else."""

_FIRST = ("latitude_of_origin", "central_meridian", "false_easting", "false_northing")
_CENTRE = ("latitude_of_center", "longitude_of_center", "false_easting", "false_northing")
_PARALLELS = ("standard_parallel_1", "standard_parallel_2")

_TYPES: dict[int, tuple[str, tuple[str, ...]]] = {
    3: ("Transverse_Mercator", (*_FIRST, "scale_factor")),
    4: ("Lambert_Conformal_Conic_2SP", (*_FIRST, *_PARALLELS)),
    7: ("Stereographic", (*_FIRST, "scale_factor")),
    9: ("Albers_Conic_Equal_Area", (*_CENTRE, *_PARALLELS)),
    10: ("Polyconic", _FIRST),
    11: ("Lambert_Azimuthal_Equal_Area", _CENTRE),
    12: ("Azimuthal_Equidistant", _CENTRE),
    31: ("Polar_Stereographic", _FIRST),
}
"""Projection and its parameters (names of WKT 1) in the order in which they follow type and axes."""

_UNITS = {
    **dict.fromkeys(("", "meters", "metres", "meter", "metre", "m"), ("metre", 1.0)),
    "feet": ("Foot (International)", 0.3048),
    "km": ("Kilometer", 1000.0),
    "yards": ("Yard", 0.9144),
    "miles": ("Mile", 1609.344),
}
"""Units of a map by their names in `map info`: name in WKT and metres."""


def datum_of(name: str) -> Datum | None:
    """Return the datum of a name, None for one that is not known."""
    return _DATUMS.get(re.sub(r"[^a-z0-9]", "", name.casefold()))


def is_metres(units: str) -> bool:
    """Return whether the units of `map info`, lower case, are metres, as they are where none are told."""
    return _UNITS.get(units, ("", 0.0))[1] == 1.0


def crs_of_projection(text: str, units: str) -> CRS | None:
    """Return the coordinate system of a `projection info`, as its EPSG code where it has one; None where it is not known.

    Parameters
    ----------
    text
        Such as `4, 6378137.0, 6356752.3, 44, -100, 1e6, 0, 45, 49, North America 1983, Lambert, units=Meters`.
    units
        Of `map info`, lower case; empty for none. Parameters are metres whatever it says.
    """
    plain = [entry for entry in split_list(text) if "=" not in entry]
    try:
        kind = int(to_float(plain[0])) if plain else 0
        if kind == 1:
            return _geographic(plain)
        projection, names = _TYPES[kind]
        major, minor, *values = (to_float(value) for value in plain[1 : 3 + len(names)])
    except (KeyError, ValueError, OverflowError):
        return None
    unit = _UNITS.get(units)
    if unit is None or len(values) != len(names) or not all(map(math.isfinite, (major, minor, *values))):
        return None
    rest = [entry for entry in plain[3 + len(names) :] if re.search("[A-Za-z]", entry)]
    base = _base(rest, major, minor)
    if base is None:
        return None
    parameters = "".join(
        f',PARAMETER["{name}",{value / unit[1] if name.startswith("false") else value!r}]'
        for name, value in zip(names, values, strict=True)
    )
    name = rest[-1].replace('"', "") if rest else projection
    return _identified(
        f'PROJCS["{name}",{base},PROJECTION["{projection}"]{parameters},UNIT["{unit[0]}",{unit[1]!r}]]'
    )


def _geographic(plain: list[str]) -> CRS | None:
    found = next((datum for entry in plain[1:] if (datum := datum_of(entry)) is not None), None)
    return None if found is None else CRS.from_epsg(found.geographic)


def _base(rest: list[str], major: float, minor: float) -> str | None:
    """Return the geographic part (WKT 1): of the datum that stands before the name, or without one of the ellipsoid."""
    if len(rest) > 1:
        datum = datum_of(rest[-2])
        return None if datum is None else str(CRS.from_epsg(datum.geographic).to_wkt(version="WKT1_GDAL"))
    if not 6.2e6 < minor <= major < 6.5e6:
        return None
    flattening = major / (major - minor) if major - minor >= 0.1 else 0.0
    return (
        f'GEOGCS["Ellipse Based",DATUM["Ellipse_Based",SPHEROID["Unnamed",{major!r},{flattening!r}]],'
        'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]'
    )


@lru_cache(maxsize=64)
def _identified(wkt: str) -> CRS | None:
    """Look a coordinate system up in PROJ's database, which takes 0.2 s for one that has no code: hence the cache."""
    try:
        with rasterio.Env():  # what GDAL complains about goes into the exception, not to the terminal
            crs = CRS.from_wkt(wkt)
            epsg = crs.to_epsg(confidence_threshold=90)
            return crs if epsg is None else CRS.from_epsg(epsg)
    except CRSError:
        return None
