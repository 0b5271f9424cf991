"""Which pixels of a scene are not used: nodata, saturation, quality layers, polygons, thresholds.

`config` holds the settings (and loads neither xarray nor GDAL), `masking` applies them, `polygons` burns shapes block
by block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import MaskConfig, polygon_files, stage_files

if TYPE_CHECKING:
    from .masking import apply_mask, mask_scene

__all__ = ["MaskConfig", "apply_mask", "mask_scene", "polygon_files", "stage_files"]


def __getattr__(name: str) -> Any:
    """Import what works on pixels when it is first asked for: workflow files need the settings only."""
    if name not in ("apply_mask", "mask_scene"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import masking

    return getattr(masking, name)
