"""What a store says about itself, for people and scripts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .finish import provenance_path
from .store import PatchStore


def describe(store: PatchStore) -> dict[str, Any]:
    """Return a store's description as plain values.

    The lists `kept_bands` (1-based), `wavelength_nm`, `mean` and `std` have one entry per kept source band; mean and
    population standard deviation are those of the training pixels, calibrated as `calibrated_to` says.
    """
    attrs = store.attrs
    chain = store.chain
    kept = chain.kept + 1
    dropped = np.setdiff1d(np.arange(1, chain.source_bands + 1), kept)
    found: dict[str, Any] = {
        "store": str(store.path),
        "name": store.name,
        "fingerprint": store.fingerprint,
        "transform_fingerprint": store.transform_fingerprint,
        "tiles": len(store),
        "tile_size": store.tile_size,
        "halo": store.halo,
        "bands": store.bands,
        "dtype": attrs["dtype"],
        "codec": attrs["codec"],
        "tiles_per_chunk": store.chunk_tiles,
        "tiles_per_shard": store.shard_tiles,
        "bytes": sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file()),
        "stages": attrs["workflow"]["stages"],
        "split": attrs["workflow"]["split"],
        "pixels": attrs["pixels"],
        "labelled": attrs["labelled"],
        "shared_pixels": attrs["shared_pixels"],
        "classes": store.class_names,
        "scenes": [scene.scene_id for scene in store.scenes],
        "dropped_bands": dropped.tolist(),
        "kept_bands": kept.tolist(),
        "calibrated_to": chain.calibrate["to"] if chain.calibrate else None,
        "notes": attrs["notes"],
        "versions": attrs["versions"],
    }
    wavelength = store.wavelength_nm
    found["wavelength_nm"] = None if wavelength is None else _plain(wavelength)
    for name in ("mean", "std"):
        found[name] = _plain(store.band_values(name)) if (store.path / "bands" / name).is_dir() else None
    sidecar = provenance_path(store.path)
    found["provenance"] = json.loads(sidecar.read_text()) if sidecar.is_file() else None
    return found


def _plain(values: np.ndarray[Any, Any]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
