"""The last step of a build: what the bands are, where the scenes lie, the fitted state, and the provenance."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import EmptySplitError, NoValidPixelsError
from .files import write_text
from .scene import scene_crs, scene_transform
from .store import SCHEMA, SPLITS, TARGETS, PatchStore
from .target_counts import describe_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fitting import Fit
    from .job import Job
    from .sources import OpenScene
    from .stages.chain import NamedArrays
    from .survey import Survey
    from .tiles import TileSource
    from .writer import ShardRecord, StoreWriter

_LIBRARIES = ("bandstream", "numpy", "scipy", "zarr", "numcodecs", "dask", "xarray", "rasterio")


def finish_store(
    job: Job,
    writer: StoreWriter,
    sources: Sequence[TileSource],
    found: Survey,
    fitted: Fit,
    records: list[ShardRecord],
) -> PatchStore:
    """Write everything but the tiles, then the manifest, then the provenance beside the store."""
    layout = writer.layout
    arrays = _index(sources, records, len(found.class_names)) | _bands(job, fitted) | fitted.chain.arrays()
    attrs: dict[str, Any] = {
        "schema": SCHEMA,
        "name": job.workflow.name,
        "fingerprint": job.fingerprint,
        "transform_fingerprint": fitted.chain.fingerprint,
        "workflow": job.workflow.recipe(),
        "sources": job.digests,
        "versions": versions(),
        "bands": fitted.chain.outputs,
        "dtype": "float32",
        "codec": layout.codec,
        "tiles": {
            "count": layout.tiles,
            "size": layout.size,
            "halo": layout.halo,
            "chunk": layout.chunk,
            "shard": layout.shard,
            "dropped": found.dropped,
        },
        "splits": list(SPLITS),
        "classes": {"names": found.class_names, "colors": found.class_colors},
        "pixels": _by_split(arrays["tiles/index/pixels"][1]),
        "labelled": _by_split(arrays["tiles/index/labelled"][1]),
        "shared_pixels": found.shared,
        "scenes": [_scene(item) for item in job.scenes],
        "notes": [*fitted.notes, *found.notes],
    }
    if job.skipped:
        # what went wrong names files, and stands beside the store
        attrs["skipped"] = sorted(scene.scene_id for scene in job.skipped)
    told = next((item.targets for item in job.scenes if item.targets), None)
    if told is not None:
        counts = [record.targets for record in records if record.targets is not None]
        known, attrs[TARGETS], notes = describe_targets(counts, told.names, told.units, SPLITS)
        arrays["tiles/index/target_pixels"] = (("tile", "split_code", "target"), known)
        attrs["notes"] += notes
    groups = {
        "transforms": fitted.chain.attrs(),
        "bands": {
            "comment": "the scenes' own bands that were kept, in their order; mean and std of the training pixels"
        },
    }
    store = writer.finish(records, arrays, attrs, groups)
    write_provenance(store, job)
    return store


def require_training(records: Sequence[ShardRecord], *, labels: bool, targets: bool = False) -> None:
    """Refuse a store whose training split holds nothing to learn from once masked pixels are left out.

    Raises
    ------
    NoValidPixelsError
        No training pixel is valid.
    EmptySplitError
        There are labels, or targets, and no valid training pixel has one.
    """
    train = SPLITS.index("train")
    if not sum(row[train] for record in records for row in record.pixels):
        raise NoValidPixelsError(
            "All training pixels are masked: none has data in every kept band and passes the mask stage. Check its "
            "settings (nodata, quality, polygons, ndvi), or drop the bands without data with drop_bands."
        )
    if labels and not sum(sum(row[train]) for record in records for row in record.labelled):
        raise EmptySplitError(
            "The training split holds no labelled pixel that is valid: all of its labels lie where the scene has no data."
        )
    known = (tile[train] for record in records if record.targets for tile in record.targets.known)
    if targets and not any(sum(tile) for tile in known):
        raise EmptySplitError(
            "The training split holds no valid pixel where a target is known. Check that the targets lie on the scene and "
            "that targets.nodata is right, or choose another split.seed or split.block."
        )


def _by_split(counts: NDArray[Any]) -> dict[str, Any]:
    """Sum counts (tile, split, ...) over the tiles: what each split holds, valid pixels only."""
    return {name: counts[:, code].sum(axis=0).tolist() for code, name in enumerate(SPLITS)}


def _index(sources: Sequence[TileSource], records: list[ShardRecord], classes: int) -> NamedArrays:
    scene = np.repeat(np.arange(len(sources), dtype=np.int64), [len(s.grid) for s in sources])
    columns = np.column_stack([scene, np.concatenate([s.grid.origins() for s in sources])])
    # array by array: the lists of a million tiles joined would take gigabytes
    pixels = np.concatenate([np.asarray(record.pixels, np.int64) for record in records])
    labelled = np.concatenate([np.asarray(record.labelled, np.int64).reshape(-1) for record in records])
    arrays: NamedArrays = {
        f"tiles/index/{name}": (("tile",), columns[:, n]) for n, name in enumerate(("scene", "row", "col"))
    }
    arrays["tiles/index/pixels"] = (("tile", "split_code"), pixels)
    arrays["tiles/index/labelled"] = (
        ("tile", "split_code", "class"),
        labelled.reshape(len(columns), len(SPLITS), classes),
    )
    return arrays


def _bands(job: Job, fitted: Fit) -> NamedArrays:
    scene, kept = job.scenes[0].scene, fitted.chain.kept
    arrays: NamedArrays = {"bands/index": (("source_band",), kept)}
    for name in ("wavelength", "fwhm"):
        if name in scene.coords:
            arrays[f"bands/{name}"] = (("source_band",), np.asarray(scene[name].values, np.float64)[kept])
    if fitted.moments is not None:
        arrays["bands/mean"] = (("source_band",), fitted.moments.mean)
        arrays["bands/std"] = (("source_band",), fitted.moments.std)
    if fitted.chain.output_bands is not None:
        arrays["bands/output"] = (("output",), fitted.chain.output_bands)
    if fitted.classes:
        arrays["classes/count"] = (("class",), np.array([part.count for part in fitted.classes], np.int64))
        for name in ("mean", "std"):
            values = [
                getattr(part, name) if part.count else np.full(len(kept), np.nan) for part in fitted.classes
            ]
            arrays[f"classes/{name}"] = (("class", "source_band"), np.array(values))
    return arrays


def _scene(item: OpenScene) -> dict[str, Any]:
    crs, transform = scene_crs(item.scene), scene_transform(item.scene)
    return {
        "scene_id": item.files.scene_id,
        "shape_yx": list(item.shape_yx),
        "crs_wkt": crs.to_wkt() if crs else None,
        "transform": list(transform)[:6] if transform else None,
        "sensor": item.scene.attrs.get("sensor", ""),
        "acquired": item.scene.attrs.get("acquired", ""),
    }


def versions() -> dict[str, str]:
    """Return the versions of what decides a store's bytes."""
    found: dict[str, str] = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def provenance_path(store: Path) -> Path:
    """Return the file beside a store that holds what must not be inside: when, where and from which paths."""
    return store.with_name(f"{store.stem}.provenance.json")


def write_provenance(store: PatchStore, job: Job) -> None:
    """Write when, where and from which files a store was made."""
    record = {
        "store": store.path.name,
        "fingerprint": store.fingerprint,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
        # what another program was started with may hold a key
        "command": sys.argv if Path(*sys.argv[:1]).name == "bandstream" else sys.argv[:1],
        "workflow": job.workflow.resolved(),
        "files": sorted(job.stamps),
        "skipped": [asdict(scene) for scene in job.skipped],
    }
    write_text(provenance_path(store.path), json.dumps(record, indent=1, sort_keys=True))
