"""What a store says about itself, for people and scripts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .finish import provenance_path
from .progress import runs_of
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
        "calibrated_to": chain.preparation.calibrate.to if chain.preparation.calibrate else None,
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


def lines(found: dict[str, Any]) -> list[str]:
    """Return what `describe` found as lines for people."""
    told = [f"{key:12s} {found[key]}" for key in ("store", "name", "fingerprint")]
    told.append(
        f"{'tiles':12s} {found['tiles']} of {found['tile_size']} + 2 x {found['halo']} pixels, {found['bands']} bands, "
        f"{found['bytes'] / 2**20:.1f} MiB"
    )
    stages = [
        f"{kind} {_settings(settings)}".strip()
        for stage in found["stages"]
        for kind, settings in stage.items()
    ]
    told += [f"{'stages' if not n else '':12s} {stage}" for n, stage in enumerate(stages)]
    if found["dropped_bands"]:
        told.append(f"{'dropped':12s} bands {runs_of(found['dropped_bands'])} (1-based)")
    for name in ("wavelength_nm", "mean", "std"):
        values = [value for value in found[name] or () if value is not None]
        if values:
            of = (
                ""
                if name == "wavelength_nm"
                else f" over the bands ({found['calibrated_to'] or 'as stored'})"
            )
            told.append(f"{name:12s} {min(values):.5g} to {max(values):.5g}{of}")
    told.append(f"{'split':12s} {_settings(found['split'])}")
    told += [f"{'shared':12s} {pair}: {count:,} pixels" for pair, count in found["shared_pixels"].items()]
    splits = [name for name, count in found["pixels"].items() if count]
    width = min(max(12, *map(len, found["classes"]), 0), 30)
    told.append(
        " " * (width + 1) + "".join(f"{'margin' if name == 'none' else name:>12s}" for name in splits)
    )
    told.append(f"{'pixels':{width + 1}s}" + "".join(f"{found['pixels'][name]:>12,}" for name in splits))
    for number, name in enumerate(found["classes"]):
        told.append(
            f"{name[:30]:{width + 1}s}"
            + "".join(f"{found['labelled'][split][number]:>12,}" for split in splits)
        )
    told += [f"{'note':12s} {note}" for note in found["notes"]]
    if found["provenance"]:
        made = found["provenance"]
        told.append(f"{'made':12s} {made['finished']} from {len(made['files'])} files; --json tells all")
    return told


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
