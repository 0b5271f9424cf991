"""Which class a stored stage is made again by."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .config import DerivativeConfig, SmoothConfig
from .continuum import ContinuumRemoval
from .mnf import Mnf
from .normalize import Normalize, UnitNorm
from .reduce import Pca
from .select import Select
from .smoothing import Derivative, Smooth
from .stage import BandTable, Stage


class _Kind(Protocol):
    def restore(self, settings: dict[str, Any], arrays: dict[str, NDArray[np.float64]]) -> Stage: ...


_KINDS: dict[tuple[str, str], _Kind] = {
    ("smooth", "savitzky_golay"): Smooth,
    ("derivative", "savitzky_golay"): Derivative,
    ("normalize", "zscore"): Normalize,
    ("normalize", "minmax"): Normalize,
    ("normalize", "percentile"): Normalize,
    ("normalize", "unit_norm"): UnitNorm,
    ("normalize", "continuum_removal"): ContinuumRemoval,
    ("reduce", "pca"): Pca,
    ("reduce", "mnf"): Mnf,
    ("reduce", "select"): Select,
}


def restore(kind: str, settings: dict[str, Any], arrays: dict[str, NDArray[np.float64]]) -> Stage:
    """Make a stage from its stored state.

    Raises
    ------
    ValueError
        No stage of this version stores itself so.
    """
    found = _KINDS.get((kind, str(settings.get("method"))))
    if found is None:
        raise ValueError(f"there is no stage {kind} with method {settings.get('method')!r}")
    return found.restore(settings, arrays)


def unfitted(config: Any, table: BandTable) -> Stage:
    """Make a stage that is not fitted from its settings, for these bands."""
    if isinstance(config, SmoothConfig):
        return Smooth.of(table, window=config.window, polynomial=config.polynomial)
    if isinstance(config, DerivativeConfig):
        return Derivative.of(table, order=config.order, window=config.window, polynomial=config.polynomial)
    return UnitNorm(table.count) if config.method == "unit_norm" else ContinuumRemoval.of(table)
