"""Where a spectrum is one curve: bands of one detector, ascending, without a gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..statistics import F8
from .stage import BandTable

#: A gap of more than this many times the spacing about it ends a segment; four bands may be missing within one.
GAP_SPACINGS = 5.0
_NEIGHBOURS = 2  #: spacings on either side that make the spacing about a gap


def segments(table: BandTable, key: str) -> list[NDArray[np.intp]]:
    """Return the bands (0-based) of each contiguous piece of the spectrum, in ascending order of wavelength.

    Bands of different detectors are never in one piece, though their wavelengths overlap. Within a detector a piece
    ends where the gap to the next centre is more than `GAP_SPACINGS` times the median of the two spacings before and
    the two after it, as where a water window was dropped. Bands of equal centre stay in the order given.

    Parameters
    ----------
    table
        The bands, in any order.
    key
        The workflow's key that needs wavelengths, for messages.

    Raises
    ------
    ConfigError
        There are no wavelengths, or some band has none.
    """
    centres = _centres(table, key)
    detectors = np.asarray(table.detector if table.detector is not None else [""] * table.count)
    # a dict keeps the detectors in the order in which the bands name them
    groups = [np.flatnonzero(detectors == name) for name in dict.fromkeys(detectors.tolist())]
    pieces: list[NDArray[np.intp]] = []
    for bands in groups:
        ascending = bands[np.argsort(centres[bands], kind="stable")]
        pieces += np.split(ascending, _breaks(centres[ascending]))
    return pieces


def _centres(table: BandTable, key: str) -> F8:
    if table.wavelength_nm is None:
        raise ConfigError(
            f"{key} needs wavelengths, and the scenes have none; leave it out, or write them as ENVI with `bandstream "
            "scene convert` and add `wavelength` to the header."
        )
    unknown = np.flatnonzero(~np.isfinite(table.wavelength_nm))
    if len(unknown):
        raise ConfigError(
            f"{key} needs the wavelength of every band, and band {unknown[0] + 1} of the {table.count} that reach it "
            f"has none ({len(unknown)} have none); list such bands as bad, so that drop_bands leaves them out."
        )
    return table.wavelength_nm


def _breaks(ascending_nm: F8) -> NDArray[np.intp]:
    """Return the positions at which a new segment starts."""
    # equal centres are no spacing
    distinct, first = np.unique(ascending_nm, return_index=True)
    gaps = np.diff(distinct)
    found: list[int] = []
    for number, gap in enumerate(gaps):
        about = np.r_[
            gaps[max(0, number - _NEIGHBOURS) : number], gaps[number + 1 : number + 1 + _NEIGHBOURS]
        ]
        if len(about) and gap > GAP_SPACINGS * np.median(about):
            found.append(int(first[number + 1]))
    return np.asarray(found, np.intp)
