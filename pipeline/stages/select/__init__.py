"""`reduce: {method: select}`: keeping bands as they are, those of named features first and the rest by rank.

`config` holds the settings, `features` the table of features, `diagnostics` finds the bands that see them, `ranking` and
`information` order the others, `select` is the fitted stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Rank, SelectConfig
    from .features import Feature, feature_sets, features_named, load_features
    from .select import Select, band_scores

__all__ = [
    "Feature",
    "Rank",
    "Select",
    "SelectConfig",
    "band_scores",
    "feature_sets",
    "features_named",
    "load_features",
]

_HOMES = {"Rank": "config", "SelectConfig": "config", "Select": "select", "band_scores": "select"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: workflows need the settings, and not what fitting needs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES.get(name, 'features')}", __name__), name)
