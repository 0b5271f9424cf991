"""Every generated product by name; see ``truth.py`` for how a test asks for them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .truth import Truth

#: name -> (module of this folder, function, what the name fixes)
_MAKERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "enmap_l1b": ("enmap", "make_enmap", {"level": "L1B"}),
    "enmap_l1c": ("enmap", "make_enmap", {"level": "L1C"}),
    "enmap_l2a": ("enmap", "make_enmap", {"level": "L2A"}),
    "enmap_l2a_cog": ("enmap", "make_enmap", {"level": "L2A", "cog": True}),
    "prisma_l1": ("prisma", "make_prisma", {"level": "L1"}),
    "prisma_l1g": ("prisma", "make_prisma", {"level": "L1G"}),
    "prisma_l2b": ("prisma", "make_prisma", {"level": "L2B"}),
    "prisma_l2c": ("prisma", "make_prisma", {"level": "L2C"}),
    "prisma_l2d": ("prisma", "make_prisma", {"level": "L2D"}),
    "emit_rad": ("emit", "make_emit", {"level": "RAD"}),
    "emit_rfl": ("emit", "make_emit", {"level": "RFL"}),
    "desis_l1c": ("desis", "make_desis", {"level": "L1C"}),
    "desis_l2a": ("desis", "make_desis", {"level": "L2A"}),
    "aviris_classic": ("aviris", "make_aviris_classic", {}),
    "aviris_ng": ("aviris", "make_aviris_ng", {}),
    "aviris3_rdn": ("aviris", "make_aviris3", {"level": "RDN"}),
    "aviris3_rfl": ("aviris", "make_aviris3", {"level": "RFL"}),
    "hyperion_l1t": ("hyperion", "make_hyperion", {}),
    "hyperion_l1r": ("hyperion", "make_hyperion_l1r", {}),
    "neon_directional": ("neon", "make_neon", {"kind": "directional"}),
    "neon_bidirectional": ("neon", "make_neon", {"kind": "bidirectional"}),
    "zy1_ahsi": ("ahsi", "make_ahsi", {"mission": "ZY1E"}),
    "gf5_ahsi": ("ahsi", "make_ahsi", {"mission": "GF5", "suffix": ".geotiff"}),
    "gf5b_ahsi": ("ahsi", "make_ahsi", {"mission": "GF5B"}),
    "mat_v5": ("arrays", "make_mat_v5", {}),
    "mat_flat": ("arrays", "make_mat_flat", {}),
    "mat_v73": ("arrays", "make_mat_v73", {}),
    "npy": ("arrays", "make_npy", {}),
    "npz": ("arrays", "make_npy", {"zipped": True}),
}
NAMES = tuple(_MAKERS)

__all__ = ["NAMES", "Truth", "make"]


def make(name: str, folder: Path, seed: int = 0, **variants: Any) -> Truth:
    """Write the product `name` into `folder` (made if absent) and return what is in it.

    Raises
    ------
    KeyError
        No product has this name.
    TypeError
        The product has no such variant.
    """
    module, function, fixed = _MAKERS[name]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    maker = getattr(importlib.import_module(f".{module}", __package__), function)
    return maker(folder, seed, **{**fixed, **variants})
