"""A seeded generator of small valid stores, written through the pipeline's own writer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandstream.pipeline.store import SCHEMA, PatchStore
from bandstream.pipeline.writer import StoreLayout, StoreWriter

MakeStore = Callable[..., PatchStore]


def split_raster(kind: str, shape_yx: tuple[int, int], halo: int) -> np.ndarray:
    """Return split codes (y, x): `train` for all, or `stripes` of uneven width with margins of 2 halo between them."""
    rows, cols = shape_yx
    if kind == "train":
        return np.ones(shape_yx, np.uint8)
    assert kind == "stripes", kind
    line = np.zeros(cols, np.uint8)
    start, turn = 0, 0
    while start < cols:
        width = (11, 5, 7)[turn % 3]
        line[start : start + width] = 1 + turn % 3
        start, turn = start + width + 2 * halo, turn + 1
    return np.broadcast_to(line, (rows, cols)).copy()


def scene_arrays(
    rng: np.random.Generator, number: int, shape_yx: tuple[int, int], spec: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return one scene's data (y, x, band), labels, valid and split; band 0 numbers its pixels, over all scenes."""
    rows, cols = shape_yx
    data = rng.normal(size=(rows, cols, spec["bands"])).astype(np.float32)
    data[..., 0] = number * 100_000 + 1 + np.arange(rows * cols).reshape(rows, cols)
    valid = rng.random(shape_yx) >= spec["invalid"]
    data[~valid] = 0
    labels = rng.integers(1, max(spec["classes"], 1) + 1, shape_yx).astype(np.uint16)
    labels[rng.random(shape_yx) >= spec["labelled"]] = 0
    if not spec["classes"]:
        labels[:] = 0
    return {
        "data": data,
        "labels": labels,
        "valid": valid,
        "split": split_raster(spec["split"], shape_yx, spec["halo"]),
    }


def cut_tiles(scene: dict[str, np.ndarray], size: int, halo: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Cut a scene into tiles with their halo, row-major; return them and (tile, 2) rows and cols of the cores."""
    rows, cols = scene["valid"].shape
    corners = np.array([(r, c) for r in range(0, rows, size) for c in range(0, cols, size)], np.int64)
    pad = ((halo, halo + -rows % size), (halo, halo + -cols % size))
    padded = {
        name: np.pad(array, (*pad, (0, 0)), mode="reflect") if name == "data" else np.pad(array, pad)
        for name, array in scene.items()
    }
    side = size + 2 * halo
    tiles = {
        name: np.stack([array[r : r + side, c : c + side] for r, c in corners])
        for name, array in padded.items()
    }
    tiles["data"] = np.ascontiguousarray(tiles["data"].transpose(0, 3, 1, 2))
    return tiles, corners


def write_store(path: Path, **changes: Any) -> PatchStore:
    """Write a store of random scenes to `path`; `changes` are to the defaults below."""
    spec: dict[str, Any] = {
        "shapes": [(40, 52)],
        "bands": 3,
        "size": 8,
        "halo": 2,
        "chunk": 4,
        "shard": 8,
        "classes": 4,
        "labelled": 0.6,
        "invalid": 0.05,
        "split": "stripes",
        "codec": "default",
        "seed": 0,
        "targets": 0,
    } | changes
    rng = np.random.default_rng(spec["seed"])
    parts, corners, scenes = [], [], []
    for number, shape_yx in enumerate(spec["shapes"]):
        tiles, places = cut_tiles(scene_arrays(rng, number, shape_yx, spec), spec["size"], spec["halo"])
        parts.append(tiles)
        corners.append(np.column_stack([np.full(len(places), number, np.int64), places]))
        scenes.append(
            {"scene_id": f"scene{number}", "shape_yx": list(shape_yx), "crs_wkt": None, "transform": None}
        )
    tiles = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    where = np.concatenate(corners)
    count = len(where)
    if spec["targets"]:
        tiles["targets"] = rng.normal(size=(count, spec["targets"], *tiles["valid"].shape[1:])).astype(
            np.float32
        )
        tiles["targets"][rng.random(tiles["targets"].shape) < 0.2] = np.nan
    layout = StoreLayout(
        count,
        spec["bands"],
        spec["size"],
        spec["halo"],
        spec["chunk"],
        spec["shard"],
        spec["codec"],
        spec["targets"],
    )
    writer = StoreWriter(path, layout)
    writer.begin()
    records = []
    for shard in range(layout.shards):
        span = layout.tiles_of(shard)
        own = {name: array[span.start : span.stop] for name, array in tiles.items()}
        records.append(writer.write_shard(shard, [own], spec["classes"]))
    fingerprint = hashlib.sha256(repr(sorted(spec.items())).encode()).hexdigest()
    attrs = {
        "schema": SCHEMA,
        "name": "generated",
        "fingerprint": fingerprint,
        "transform_fingerprint": fingerprint,
        "bands": spec["bands"],
        "tiles": {
            "size": spec["size"],
            "halo": spec["halo"],
            "chunk": spec["chunk"],
            "shard": spec["shard"],
            "count": count,
        },
        "classes": {
            "names": [f"class {k + 1}" for k in range(spec["classes"])],
            "colors": ["#000000"] * spec["classes"],
        },
        "scenes": scenes,
    }
    if spec["targets"]:
        names = [f"target {k}" for k in range(spec["targets"])]
        attrs["targets"] = {"names": names, "units": ["1"] * len(names)}
    pixels = np.array([row for record in records for row in record.pixels], np.int64)
    labelled = np.array([row for record in records for row in record.labelled], np.int64)
    arrays = {
        "tiles/index/scene": (("tile",), where[:, 0]),
        "tiles/index/row": (("tile",), where[:, 1]),
        "tiles/index/col": (("tile",), where[:, 2]),
        "tiles/index/pixels": (("tile", "split_code"), pixels),
        "tiles/index/labelled": (
            ("tile", "split_code", "class"),
            labelled.reshape(count, 4, spec["classes"]),
        ),
    }
    return writer.finish(records, arrays, attrs, {})


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Return a function that gives a store of the wanted make, written once per session; not to be changed."""
    made: dict[str, PatchStore] = {}
    root = tmp_path_factory.mktemp("stores")

    def make(**changes: Any) -> PatchStore:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = write_store(root / f"generated-{len(made)}.zarr", **changes)
        return made[key]

    return make


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Return a function that writes a store of this test's own."""
    return lambda **changes: write_store(tmp_path / "generated.zarr", **changes)
