"""Larger pixels: a scene on a coarser grid of the same orientation, lazily.

`resample` averages cells, or interpolates by a bilinear or cubic kernel as wide as the new pixels, and takes place,
quality layers and look-up tables along. It loses detail for good; cutting a scene into tiles is something else, and
loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import ResampleConfig

if TYPE_CHECKING:
    from .coarse import is_resampled, resample

__all__ = ["ResampleConfig", "is_resampled", "resample"]


def __getattr__(name: str) -> Any:
    """Import what works on scenes when it is first asked for: workflow files need the settings only, not xarray."""
    if name not in ("is_resampled", "resample"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import coarse

    return getattr(coarse, name)
