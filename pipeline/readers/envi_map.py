"""Place on earth from an ENVI header: `map info`, `coordinate system string` and `projection info`.

Traps: the tie point counts pixel *corners* from 1 (1, 1 is the corner of the first pixel, 1.5, 1.5 its centre) and need
not be the first one; `rotation` turns the grid (AVIRIS); the zone's hemisphere may be a word, or the letter of a
military grid band (`15, T`); the coordinate system string is in Esri's dialect and wins over the projection named in
`map info`, whose parameters `projection info` holds (`envi_projection`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.errors import CRSError

from ..errors import FormatError
from .envi_header import EnviHeader
from .envi_projection import crs_of_projection, datum_of, is_metres
from .options import Notes
from .wavelengths import split_list, to_float

_LARGEST = 1e100
"""Numbers beyond it are no place on earth, and their products overflow."""

_NAMED = re.compile(r"^(units|rotation) ?=? ?(\S.*)$", re.IGNORECASE)
"""A named entry of the list, whose runs of blanks `split_list` has reduced to one."""


@dataclass(frozen=True)
class _MapInfo:
    """Fields of `map info` by meaning."""

    projection: str
    tie_col: float
    tie_row: float
    easting: float
    northing: float
    size_x: float
    size_y: float
    rest: tuple[str, ...]
    units: str
    rotation_deg: float


def georeference(header: EnviHeader, notes: Notes) -> tuple[CRS | None, Affine | None]:
    """Return coordinate system and transform of a header; None for what it does not tell.

    A coordinate system that cannot be told leaves the transform and gives a warning. So does a `map info` whose numbers
    make no grid (NaN, infinity, pixels of size 0), which leaves the scene without a transform.

    Raises
    ------
    FormatError
        If `map info` holds no numbers where they belong.
    """
    text = header.get("map info")
    info = None if text is None else _parse(text, header.path)
    transform = None if info is None else _transform(info, header.path, notes)
    wkt = header.get("coordinate system string")
    if wkt is not None:
        crs = _from_wkt(wkt, header.path, notes)
        if crs is not None:
            return crs, transform
    projection = header.get("projection info") or ""
    return (None if info is None else _from_projection(info, projection, header.path, notes)), transform


def _parse(text: str, where: str) -> _MapInfo:
    """Split `map info` into its fields."""
    units, rotation, plain = "", 0.0, list[str]()
    try:
        for entry in split_list(text):
            match = _NAMED.match(entry)
            if match is None:
                plain.append(entry)
            elif match[1].casefold() == "units":
                units = match[2].casefold()
            else:
                rotation = to_float(match[2])
        numbers = [to_float(value) for value in plain[1:7]]
        tie_col, tie_row, easting, northing, size_x, size_y = numbers
    except ValueError as error:
        msg = (
            f"{where}: map info = {{{' '.join(text[:80].split())}}} cannot be read; it needs a projection, then six numbers: "
            "tie point column and row, easting, northing, pixel width and height"
        )
        raise FormatError(msg) from error
    return _MapInfo(
        plain[0], tie_col, tie_row, easting, northing, size_x, size_y, tuple(plain[7:]), units, rotation
    )


def _transform(info: _MapInfo, where: str, notes: Notes) -> Affine | None:
    """Return the affine map of pixel corners, which takes the tie point to the easting and northing given.

    The sense of `rotation` is GDAL's (proved on AVIRIS grids); GDAL itself forgets the rotation between the first
    pixel and a tie point elsewhere.
    """
    for name, value, zero_allowed in (
        ("tie point column", info.tie_col, True),
        ("tie point row", info.tie_row, True),
        ("easting", info.easting, True),
        ("northing", info.northing, True),
        ("pixel width", info.size_x, False),
        ("pixel height", info.size_y, False),
        ("rotation", info.rotation_deg, True),
    ):
        if abs(value) > _LARGEST or math.isnan(value) or (value == 0 and not zero_allowed):
            allowed = "a finite number" if zero_allowed else "a finite number other than 0"
            notes.warn(
                f"{where}: {name} of map info = {value:g}; allowed: {allowed}; the scene has no transform"
            )
            return None
    angle = math.radians(-info.rotation_deg)
    cos, sin = (math.cos(angle), math.sin(angle)) if info.rotation_deg else (1.0, 0.0)
    a, b = cos * info.size_x, -sin * info.size_x
    d, e = -sin * info.size_y, -cos * info.size_y
    b, d = b + 0.0, d + 0.0  # no negative zeros
    col, row = info.tie_col - 1, info.tie_row - 1
    return Affine(a, b, info.easting - col * a - row * b, d, e, info.northing - col * d - row * e)


def _from_wkt(wkt: str, where: str, notes: Notes) -> CRS | None:
    """Return the coordinate system of an (Esri) WKT string, as its EPSG code where it has one."""
    try:
        return _identified(wkt)
    except CRSError:
        notes.warn(f"{where}: the coordinate system string cannot be read; map info alone is used")
        return None


@lru_cache(maxsize=64)
def _identified(wkt: str) -> CRS | None:
    """Look a coordinate system up in PROJ's database, which takes 0.2 s for one that has no code: hence the cache.

    Raises
    ------
    CRSError
        If the text is no WKT.
    """
    with rasterio.Env():  # what GDAL complains about goes into the exception, not to the terminal
        crs = CRS.from_wkt(wkt, morph_from_esri_dialect=True)
        if not (crs.is_geographic or crs.is_projected):
            return None  # a local system, as ENVI writes it beside `Arbitrary`
        epsg = crs.to_epsg()
        return crs if epsg is None else CRS.from_epsg(epsg)


def _from_projection(info: _MapInfo, projection: str, where: str, notes: Notes) -> CRS | None:
    """Return the coordinate system that `map info` names, or `projection info` tells; a warning where neither does."""
    name = info.projection.casefold()
    if name.startswith("arbitrary"):
        return None
    code: int | None = None
    other: CRS | None = None
    if name.startswith("utm"):
        code = _utm(info)
    elif name.startswith("geographic"):
        if not info.units or info.units.startswith("deg"):
            named = next((d for d in map(datum_of, info.rest) if d is not None), None)
            code = None if named is None else named.geographic
            # a datum that map info names, but nobody knows, is not replaced by another
            unnamed = not any(entry for entry in info.rest)
            other = crs_of_projection(projection, "") if named is None and unnamed else None
    else:
        other = crs_of_projection(projection, info.units)
    if other is not None:
        return other
    if code is None:
        described = ", ".join(
            (info.projection, *info.rest, *([f"units={info.units}"] if info.units else []))
        )[:200]
        notes.warn(f"{where}: the projection of map info ({described}) is not known; the scene has no CRS")
        return None
    return CRS.from_epsg(code)


def _utm(info: _MapInfo) -> int | None:
    """Return the EPSG code of a UTM zone, or None when zone, hemisphere or datum leave a doubt."""
    if len(info.rest) < 3 or not is_metres(info.units):
        return None
    zone_text, hemisphere, name = info.rest[:3]
    try:
        number = abs(to_float(zone_text))
    except ValueError:
        return None
    datum, north = datum_of(name), _is_north(hemisphere)
    if datum is None or north is None or not datum.first <= number <= datum.last or number != int(number):
        return None
    base = datum.north if north else datum.south
    return None if base is None else base + int(number)


def _is_north(text: str) -> bool | None:
    """Return the hemisphere of `North`, `South` or a grid band's letter; None for `S`, which can mean both."""
    word = text.strip().casefold()
    if word in ("north", "south"):
        return word == "north"
    if len(word) == 1 and word in "cdefghjklm":
        return False
    if len(word) == 1 and word in "npqrtuvwx":
        return True
    return None
