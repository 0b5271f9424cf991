"""Bandstream's first half: raw hyperspectral scenes to patch stores.

Read in this order: `scene` (what a scene is), `readers`, `workflow`, `fitting` (pass 1), `tiles` (pass 2), `builder`,
`store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apply import transform
    from .builder import build
    from .labels import LabelRaster
    from .readers import open_scene, open_scenes
    from .simulation import simulate
    from .store import PatchStore

__all__ = ["LabelRaster", "PatchStore", "build", "open_scene", "open_scenes", "simulate", "transform"]

_HOMES = {
    "LabelRaster": "labels",
    "PatchStore": "store",
    "build": "builder",
    "open_scene": "readers",
    "open_scenes": "readers",
    "simulate": "simulation",
    "transform": "apply",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line starts without xarray and Dask."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # asked for once only
    return value
