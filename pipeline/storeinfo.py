"""What a store says about itself, for people and scripts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .finish import provenance_path
from .progress import runs_of
from .splits.balance import balance_lines, class_shares
from .stages.select import Select
from .storage import sizes_below
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
        "bytes": sum(sizes_below(store.path).values()),
        "stages": attrs["workflow"]["stages"],
        "split": attrs["workflow"]["split"],
        "pixels": attrs["pixels"],
        "labelled": attrs["labelled"],
        "labelled_shares": class_shares(attrs["labelled"]),
        "dropped_tiles": attrs["tiles"].get("dropped", {}),
        "shared_pixels": attrs["shared_pixels"],
        "classes": store.class_names,
        "targets": attrs.get("targets"),
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
    for stage in chain.stages:
        for name in ("explained", "snr"):
            if hasattr(stage, name):
                found[name] = _plain(getattr(stage, name))
        if isinstance(stage, Select):
            assert chain.output_bands is not None
            found["selected"] = [
                {"band": int(band) + 1, "reason": reason}
                for band, reason in zip(chain.output_bands, stage.reasons, strict=True)
            ]
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
    for name in ("explained", "snr"):
        if name in found:
            told.append(f"{name:12s} {', '.join(f'{value:.3g}' for value in found[name][:8])}, ...")
    told += [
        f"{'' if n else 'selected':12s} band {item['band']}: {item['reason']}"
        for n, item in enumerate(found.get("selected", ()))
    ]
    told.append(f"{'split':12s} {_settings(found['split'])}")
    told += [f"{'shared':12s} {pair}: {count:,} pixels" for pair, count in found["shared_pixels"].items()]
    told += [
        f"{'left out':12s} {count:,} tiles by tiles.{name}" for name, count in found["dropped_tiles"].items()
    ]
    told += balance_lines(found["classes"], found["labelled"], found["pixels"])
    told += _target_lines(found["targets"] or {"names": []})
    told += [f"{'note':12s} {note}" for note in found["notes"]]
    if found["provenance"]:
        made = found["provenance"]
        told.append(f"{'made':12s} {made['finished']} from {len(made['files'])} files; --json tells all")
    return told


def _target_lines(targets: dict[str, Any]) -> list[str]:
    """Return a line for each target: its training pixels' mean and spread, and in how many pixels it is known."""
    told: list[str] = []
    for number, name in enumerate(targets["names"]):
        mean, std, unit = (targets[key][number] for key in ("mean", "std", "units"))
        spread = "not in the training pixels" if mean is None else f"{mean:.5g} +- {std:.5g} {unit}".rstrip()
        known = ", ".join(
            f"{'margin' if split == 'none' else split} {counts[number]:,}"
            for split, counts in targets["pixels"].items()
            if counts[number]
        )
        told.append(f"{'target':12s} {name}: {spread}; pixels: {known or 'none'}")
    return told


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
