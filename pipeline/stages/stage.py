"""What a stage is: a map of spectra, pixel by pixel, that a store keeps and `transform` repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..statistics import F8
from .affine import Affine

Arrays = dict[str, NDArray[np.float64]]
Settings = dict[str, Any]


@dataclass(frozen=True)
class BandTable:
    """What is known of the bands that enter a stage, in their order (descending and overlapping centres too)."""

    count: int
    wavelength_nm: F8 | None = None  #: (count,) centres, NaN where a band has none
    fwhm_nm: F8 | None = None  #: (count,)
    detector: tuple[str, ...] | None = None  #: (count,) only where the product tells it

    def select(self, bands: NDArray[np.intp]) -> BandTable:
        """Return the table of some bands, in the given order."""
        return BandTable(
            len(bands),
            None if self.wavelength_nm is None else self.wavelength_nm[bands],
            None if self.fwhm_nm is None else self.fwhm_nm[bands],
            None if self.detector is None else tuple(self.detector[int(band)] for band in bands),
        )


class Stage(Protocol):
    """Common to all stages; the settings and arrays of `state` are all that it needs to be made again."""

    kind: ClassVar[str]  #: the workflow's key: normalize, reduce, smooth, ...

    @property
    def outputs(self) -> int:
        """Number of values per pixel that come out."""
        ...

    def state(self) -> tuple[Settings, Arrays]:
        """Return settings (plain JSON values, `method` among them) and float64 arrays."""
        ...


@runtime_checkable
class AffineStage(Stage, Protocol):
    """A stage that is an affine map, and so composes with its neighbours to one matrix."""

    def affine(self) -> Affine:
        """Return the map."""
        ...


@runtime_checkable
class PixelStage(Stage, Protocol):
    """A stage that is no affine map; it is not fitted, and looks at one pixel's spectrum alone."""

    def apply(self, values_bp: NDArray[np.floating]) -> NDArray[np.floating]:
        """Map (bands, pixels), float32 or float64 and finite, to (outputs, pixels) of the same dtype, finite too."""
        ...
