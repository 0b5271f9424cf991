"""Which bands see a feature: the one nearest its centre and those on its shoulders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...statistics import F8
from ..stage import BandTable
from .features import Feature, Interval


@dataclass(frozen=True)
class Seen:
    """What the bands see of a feature."""

    feature: Feature
    bands: dict[str, int]  #: band of each point that a band covers: centre, left shoulder, right shoulder

    @property
    def covered(self) -> bool:
        """Whether a band covers the centre; without one the shoulders tell nothing."""
        return "centre" in self.bands

    @property
    def lacking(self) -> list[str]:
        """Shoulders that no band covers, or only the band of the centre: then the feature is not resolved."""
        own = {
            part: band
            for part, band in self.bands.items()
            if part == "centre" or band != self.bands.get("centre")
        }
        return [part for part, _ in self.feature.points if part not in own]


def reach_nm(table: BandTable) -> F8:
    """Return how far from its centre a band sees, (count,) nm: its FWHM, else the distance to the next centre."""
    assert table.wavelength_nm is not None
    centres = table.wavelength_nm
    apart = np.abs(centres[:, None] - centres[None, :])
    apart[~(apart > 0)] = np.inf  # itself, copies, and bands without a wavelength
    reach = apart.min(axis=1)
    if table.fwhm_nm is not None:
        reach = np.where(table.fwhm_nm > 0, table.fwhm_nm, reach)
    return np.where(np.isfinite(reach), reach, 0.0)


def see(table: BandTable, features: Sequence[Feature], usable: NDArray[np.bool_]) -> list[Seen]:
    """Find the bands of features.

    A band covers a wavelength, or an interval of it, that is no farther from its centre than its FWHM (where that is
    unknown: than the next band). Of those that do, the nearest to the middle of the interval is taken, the lower
    number where two are equally near.

    Parameters
    ----------
    table
        The bands, in any order; those without a wavelength see nothing.
    features
        What to look for.
    usable
        (count,) bands that may be taken.

    Raises
    ------
    ConfigError
        No band has a wavelength.
    """
    if table.wavelength_nm is None or not np.isfinite(table.wavelength_nm).any():
        raise ConfigError(
            "reduce.features needs wavelengths, and the bands have none; write the scene as ENVI with `bandstream scene "
            "convert` and add `wavelength` to the header, or leave reduce.features out and choose a reduce.rank."
        )
    reach = reach_nm(table)
    found: list[Seen] = []
    for feature in features:
        near = ((part, _nearest(table.wavelength_nm, reach, usable, place)) for part, place in feature.points)
        found.append(Seen(feature, {part: band for part, band in near if band is not None}))
    return found


def _nearest(centres: F8, reach: F8, usable: NDArray[np.bool_], interval: Interval) -> int | None:
    low, high = interval
    outside = np.maximum(np.maximum(low - centres, centres - high), 0.0)
    covers = usable & (outside <= reach)  # NaN never does
    if not covers.any():
        return None
    return int(np.argmin(np.where(covers, np.abs(centres - (low + high) / 2), np.inf)))
