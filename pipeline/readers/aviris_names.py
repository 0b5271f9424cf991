"""Names of AVIRIS files (flight line, product, cut-out) and the `.gain` file of AVIRIS-Classic radiance."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .wavelengths import numbers

FLIGHT = re.compile(
    r"(?P<classic>f\d{6}t\d\dp\d\dr\d\d)|(?P<ng>ang\d{8}t\d{6})|(?P<three>av3\d{8}t\d{6})", re.IGNORECASE
)

_SENSORS = {"classic": "AVIRIS-Classic", "ng": "AVIRIS-NG", "three": "AVIRIS-3"}

_KINDS = {
    **{kind: kind for kind in ("obs", "loc", "igm", "glt")},
    **dict.fromkeys(("rfl", "refl", "reflectance", "corr"), "rfl"),
    **dict.fromkeys(("rdn", "2rdn"), "rdn"),
}
"""Words in a name and the kind of file they make it, the decisive ones first: `rdn_obs` is an obs."""

_OTHERS = frozenset(
    ["h2o", "raw", "dark", "unc", "uncert", "mask", "class", "rgb", "eph", "lonlat", "noise", "subs", "lbl"]
)
"""Words of files that are none of these kinds though they may hold as many bands."""

_NO_PLACE = re.compile(
    r"\d?rdn|re?fl|reflectance|corr|obs|loc|igm|glt|img|ort|geo|l1b|l2a|oe|main|data|v\d.*|[a-h]|sc\d\d"
)
"""Words of a name that do not say which part of the flight line it is."""

_HASH = re.compile(r"[0-9a-f]{8}")

_GAIN_BYTES = 2**20


@dataclass(frozen=True)
class AvirisName:
    """What the name of a file says.

    Attributes
    ----------
    sensor
        As in the catalog of sensors.
    flight
        Flight line, lower case.
    kind
        `rdn`, `rfl`, `obs`, `loc`, `igm` or `glt`.
    part
        What else the name says, such as the lines of a cut-out.
    """

    sensor: str
    flight: str
    kind: str
    part: tuple[str, ...]

    @property
    def acquired(self) -> str:
        """Start of the flight line in UTC (ISO 8601); Classic names tell the day only."""
        if self.sensor == "AVIRIS-Classic":
            year = int(self.flight[1:3])
            return f"{2000 + year if year < 80 else 1900 + year}-{self.flight[3:5]}-{self.flight[5:7]}"
        digits = self.flight[3:]
        day, time = digits[:8], digits[9:]
        return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}Z"


def parse_name(name: str) -> AvirisName | None:
    """Return what a file's name (without ending) says, or None for other files."""
    match = FLIGHT.match(name)
    if match is None:
        return None
    sensor = _SENSORS[str(match.lastgroup)]
    words = [word for word in re.split(r"[_\-.\s]+", name[match.end() :].lower()) if word]
    kind = next((kind for word, kind in _KINDS.items() if word in words), None)
    if kind is None or (kind in ("rdn", "rfl") and not _OTHERS.isdisjoint(words)):
        return None
    part = [word for word in words if not _NO_PLACE.fullmatch(word)]
    if sensor == "AVIRIS-3":
        part = [word for word in part if not _HASH.fullmatch(word)]
    return AvirisName(sensor, match[0].lower(), kind, tuple(sorted(part)))


def read_gains(path: str, bands: int) -> NDArray[np.float64]:
    """Read a `.gain` file: one gain per line, alone or with the channel's number (in either order).

    Returns
    -------
    numpy.ndarray
        (band,) float64; radiance in uW cm-2 nm-1 sr-1 is the stored number divided by it.

    Raises
    ------
    FormatError
        If it does not hold one positive gain per band.
    """
    with open(path, "rb") as file:
        text = file.read(_GAIN_BYTES).decode("latin-1")
    rows = [
        numbers(line.replace(",", " ").split(), "gain", path) for line in text.splitlines() if line.strip()
    ]
    widths = {len(row) for row in rows}
    gains = None
    if len(rows) == bands and widths == {1}:
        gains = np.concatenate(rows)
    elif len(rows) == bands and widths == {2}:
        table = np.stack(rows)
        channels = np.arange(1, bands + 1)
        gains = next((table[:, 1 - c] for c in (1, 0) if np.array_equal(table[:, c], channels)), None)
    if gains is None or not (np.isfinite(gains) & (gains > 0)).all():
        msg = (
            f"{path} holds no gains: it needs {bands} lines, each with a positive gain and the channel's number; "
            "correct it, or give scale= (10 divided by the gain of each band)"
        )
        raise FormatError(msg)
    return gains
