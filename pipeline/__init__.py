"""Bandstream's first half: raw hyperspectral scenes to patch stores.

Read in this order: `scene` (what a scene is), `readers`, `workflow`, `fitting` (pass 1), `tiles` (pass 2), `builder`,
`store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apply import transform
    from .builder import build
    from .calibration import calibrate, resample_bands
    from .labels import LabelRaster
    from .masks import apply_mask
    from .readers import open_scene, open_scenes
    from .resampling import resample
    from .simulation import simulate
    from .store import PatchStore
    from .writers import write_class_map, write_scene

__all__ = [
    "LabelRaster",
    "PatchStore",
    "apply_mask",
    "build",
    "calibrate",
    "open_scene",
    "open_scenes",
    "resample",
    "resample_bands",
    "simulate",
    "transform",
    "write_class_map",
    "write_scene",
]

_HOMES = {
    "LabelRaster": "labels",
    "PatchStore": "store",
    "apply_mask": "masks",
    "build": "builder",
    "calibrate": "calibration",
    "open_scene": "readers",
    "open_scenes": "readers",
    "resample": "resampling",
    "resample_bands": "calibration",
    "simulate": "simulation",
    "transform": "apply",
    "write_class_map": "writers",
    "write_scene": "writers",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line starts without xarray and Dask."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    """Name the public names too, imported yet or not: notebooks complete by this list."""
    return sorted({*globals(), *__all__})
