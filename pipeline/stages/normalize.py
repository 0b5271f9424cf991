"""Normalising: per-band scaling fitted on the training pixels (`zscore`, `minmax`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..statistics import F8, Moments
from .affine import Affine


@dataclass(frozen=True)
class Normalize:
    """y = (x - centre) / spread; a band without spread becomes 0 and is reported.

    `zscore` centres on the mean and divides by the population standard deviation, `minmax` maps the range of the
    training pixels to 0..1 (pixels outside it stay outside).
    """

    kind = "normalize"

    method: str
    centre: F8  #: (n,)
    spread: F8  #: (n,)

    @classmethod
    def fit(cls, moments: Moments, method: str) -> Normalize:
        """Fit on the moments of what enters the stage.

        Parameters
        ----------
        moments
            Of the training pixels.
        method
            ``zscore`` or ``minmax``.
        """
        if method == "zscore":
            return cls(method, moments.mean, moments.std)
        return cls(method, moments.minimum, moments.maximum - moments.minimum)

    @property
    def constant(self) -> NDArray[np.intp]:
        """Numbers of the bands that never change."""
        return np.flatnonzero(self.spread == 0)

    def affine(self) -> Affine:
        """Return the map of this stage."""
        gain = np.divide(1.0, self.spread, out=np.zeros_like(self.spread), where=self.spread != 0)
        return Affine.scaling(self.centre, gain, len(self.centre))

    def outputs(self, moments: Moments) -> Moments:
        """Return the moments behind the stage, given those in front of it."""
        affine = self.affine()
        return moments.affine(affine.gain, -affine.centre * affine.gain)

    def state(self) -> tuple[dict[str, object], dict[str, NDArray[np.float64]]]:
        """Return settings and arrays, from which `restore` makes the same stage."""
        return {"method": self.method}, {"centre": self.centre, "spread": self.spread}

    @classmethod
    def restore(cls, settings: dict[str, object], arrays: dict[str, NDArray[np.float64]]) -> Normalize:
        """Make the stage from its stored state."""
        return cls(str(settings["method"]), arrays["centre"], arrays["spread"])
