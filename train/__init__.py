"""Bandstream's second half: patch stores to trained networks and maps.

Read in this order: `stream` (how a store becomes batches), `experiment` (what can be set), `trainer` and `loop`,
`predict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .prediction import predict
    from .stream import AugmentConfig, DeviceFeed, PatchStream
    from .trainer import run_experiment as train

__all__ = ["AugmentConfig", "DeviceFeed", "PatchStream", "predict", "train"]

_HOMES = {
    "AugmentConfig": ("stream", "AugmentConfig"),
    "DeviceFeed": ("stream", "DeviceFeed"),
    "PatchStream": ("stream", "PatchStream"),
    "predict": ("prediction", "predict"),
    "train": ("trainer", "run_experiment"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    value = getattr(import_module(f".{module}", __name__), attribute)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    """Name the public names too, imported yet or not: notebooks complete by this list."""
    return sorted({*globals(), *__all__})
