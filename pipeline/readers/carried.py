"""What ENVI and GeoTIFF have no words for, as our own writers put it into their headers and tags, read back.

In an ENVI header the keys are `bandstream quantity` and so on, in a TIFF the tags `bandstream_quantity` and so on.
Only names of this list are taken over, and only if the value is of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..scene import QUANTITIES

TEXTS = ("quantity", "units", "sensor", "product", "acquired")
NUMBERS = (
    "sun_zenith_deg",
    "sun_azimuth_deg",
    "view_zenith_deg",
    "earth_sun_distance_au",
    "cloud_cover_percent",
)
FLAGS = ("resampled", "experimental")
CARRIED = (*TEXTS, *NUMBERS, *FLAGS)
PREFIX = "bandstream"


def key_of(name: str, separator: str) -> str:
    """Return the key of an attribute: `bandstream quantity` (ENVI), `bandstream_quantity` (TIFF)."""
    return f"{PREFIX}{separator}{name}"


def read_carried(fields: Mapping[str, str], separator: str) -> dict[str, Any]:
    """Return the attributes that a header or the tags of a file carry.

    Parameters
    ----------
    fields
        Values by key.
    separator
        Between the prefix and the name: a blank in ENVI headers, `_` in tags.
    """
    out: dict[str, Any] = {}
    for name in CARRIED:
        text = fields.get(key_of(name, separator))
        if text is None:
            continue
        text = text.strip()[:500]
        if name in FLAGS:
            out[name] = True if text == "true" else None
        elif name in NUMBERS:
            out[name] = _number(text)
        elif name != "quantity" or text in QUANTITIES:
            out[name] = text
    return {name: value for name, value in out.items() if value is not None and value != ""}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
