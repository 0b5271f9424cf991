"""Labels of scenes: class rasters, polygons and points, groups for splits, and targets of regression.

`config` holds the settings (and loads neither xarray nor GDAL). Every kind of labels is read by the same protocol
(`Labels`): `raster` on a scene's grid, `vector` burns polygons, `points` places samples, `numbering` gives classes and
groups the same number in all scenes, `layers` reads numbers to regress on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import LabelFiles, LabelsConfig, TargetsConfig
from .protocol import MAX_CLASS, Labels

if TYPE_CHECKING:
    from .layers import Targets, require_same_targets
    from .numbering import number_together
    from .opening import open_labels
    from .raster import LabelRaster

__all__ = [
    "MAX_CLASS",
    "LabelFiles",
    "LabelRaster",
    "Labels",
    "LabelsConfig",
    "Targets",
    "TargetsConfig",
    "number_together",
    "open_labels",
    "require_same_targets",
]

_HOMES = {
    "LabelRaster": "raster",
    "Targets": "layers",
    "number_together": "numbering",
    "open_labels": "opening",
    "require_same_targets": "layers",
}


def __getattr__(name: str) -> Any:
    """Import what works on pixels when it is first asked for: workflow files need the settings only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
