"""What an ENVI header tells about the whole scene: sensor, time, sun, clouds, what to show.

Only what is unambiguous is taken over: a time in ISO 8601 (as ENVI writes it) or in the spelled-out form of Specim's
software, angles that can be angles. Anything else stays in the header.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..errors import FormatError
from .carried import read_carried
from .envi_header import EnviHeader
from .wavelengths import numbers, to_float

_SPECIM_DATE = re.compile(r"^date\s*\(([ymd-]+)\)\s*:\s*([\d-]+)$", re.IGNORECASE)
"""`DATE(yyyy-mm-dd): 2019-01-29`; the order of the parts is told in the brackets."""

_SPECIM_TIME = re.compile(r"^utc time\s*:\s*(\d\d:\d\d:\d\d)$", re.IGNORECASE)

_TEXT_LENGTH = 500


def scene_facts(header: EnviHeader) -> dict[str, Any]:
    """Return what a header tells about the scene, as attributes of `make_scene`; None for what is unknown.

    `default_bands` are numbers of bands counted from 0, one (grey) or three (red, green, blue).
    """
    elevation = _number(header, "sun elevation", -90, 90)
    own = read_carried(header.fields, " ")
    facts = {
        "sensor": _sensor(header),
        "acquired": acquired(header),
        "sun_zenith_deg": None if elevation is None else 90.0 - elevation,
        "sun_azimuth_deg": _number(header, "sun azimuth", -360, 360),
        "cloud_cover_percent": _number(header, "cloud cover", 0, 100),
        "default_bands": _default_bands(header),
        "description": _text(header, "description"),
    }
    # what a scene is and holds in which unit is told with its bands
    return facts | {name: value for name, value in own.items() if name not in ("quantity", "units")}


def acquired(header: EnviHeader) -> str | None:
    """Return time (or date) of acquisition in ISO 8601, in UTC where the header tells the zone; None if it is unclear.

    A time without a zone is passed on as it is.
    """
    for key in ("acquisition time", "acquisition date"):
        text = header.get(key)
        if text is None:
            continue
        specim = _SPECIM_DATE.match(text)
        told = _specim_date(specim[1], specim[2]) if specim else text
        time = _SPECIM_TIME.match(header.get("start time") or "")
        if specim and told and time:
            told = f"{told}T{time[1]}Z"
        if told is not None and (iso := _iso(told)) is not None:
            return iso
    return None


def _iso(text: str) -> str | None:
    """Return an ISO 8601 time in UTC, unchanged where it has no zone; None if it is none."""
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        return None  # 20200102 and week dates are numbers of many meanings
    try:
        time = datetime.fromisoformat(text)
        return text if time.tzinfo is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return None


def _specim_date(order: str, text: str) -> str | None:
    """Return `yyyy-mm-dd` of a date whose order is told."""
    names, parts = order.lower().split("-"), text.split("-")
    if len(parts) != len(names) or set(names) != {"yyyy", "mm", "dd"}:
        return None
    part = dict(zip(names, parts, strict=True))
    return f"{part['yyyy']}-{part['mm']}-{part['dd']}"


def _number(header: EnviHeader, key: str, low: float, high: float) -> float | None:
    """Return a number that lies in its range, else None."""
    try:
        value = to_float(header.get(key) or "")
    except ValueError:
        return None
    return value if low <= value <= high else None


def _default_bands(header: EnviHeader) -> list[int] | None:
    """Return the bands to show, counted from 0; ENVI counts from 1."""
    text = header.get("default bands")
    if text is None:
        return None
    try:
        values = numbers(text, "default bands", header.path)
        bands = numbers(header.get("bands") or "", "bands", header.path)
    except FormatError:
        return None
    if len(values) not in (1, 3) or len(bands) != 1:
        return None
    if not ((values >= 1) & (values <= bands[0]) & (values == np.round(values))).all():
        return None
    return [int(value) - 1 for value in values]


def _sensor(header: EnviHeader) -> str | None:
    text = _text(header, "sensor type")
    return None if text is None or text.casefold() == "unknown" else text


def _text(header: EnviHeader, key: str) -> str | None:
    """Return a text on one line, cut to a length that an attribute can have."""
    return " ".join((header.get(key) or "").split())[:_TEXT_LENGTH] or None
