"""Builds whose labels are polygons or points, and stores of targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.features
import shapely
from rasterio.transform import from_origin

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.errors import BandstreamWarning, EmptySplitError
from bandstream.pipeline.storeinfo import describe, lines

Flow = dict[str, Any]
GRID = from_origin(366000, 5810000, 30, 30)


def whole(store: PatchStore, name: str) -> np.ndarray:
    """Put the cores of a one-scene store back together, (..., y, x)."""
    tiles = store.read_tiles(name, 0, len(store))
    halo, size = store.halo, store.tile_size
    cores = tiles[..., halo : halo + size, halo : halo + size]
    rows, cols = store.scenes[0].shape_yx
    out = np.zeros((*cores.shape[1:-2], rows + size, cols + size), cores.dtype)
    for core, row, col in zip(cores, store.index.row, store.index.col, strict=True):
        out[..., row : row + size, col : col + size] = core
    return out[..., :rows, :cols]


def files_of(store: PatchStore) -> dict[str, bytes]:
    return {str(p.relative_to(store.path)): p.read_bytes() for p in store.path.rglob("*") if p.is_file()}


@pytest.fixture
def target_flow(flow: Flow, tmp_path: Path) -> tuple[Flow, np.ndarray]:
    """A workflow with three targets, known in half of the pixels, and without classes."""
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.ones(3), (40, 52)).transpose(2, 0, 1).astype("float32")
    share[:, rng.random((40, 52)) < 0.5] = -1
    share[1, 20:22, 30:40] = -1
    share[2, 12:15] += 0.5
    path = tmp_path / "share.tif"
    with rasterio.open(
        path, "w", driver="GTiff", height=40, width=52, count=3, dtype="float32", crs="EPSG:32633",
        transform=GRID, nodata=-1,
    ) as out:  # fmt: skip
        out.write(share)
    targets = {"path": str(path), "names": ["tree", "soil", "water"], "units": "1"}
    scenes = [{"path": flow["scenes"][0]["path"], "targets": targets}]
    return {**flow, "scenes": scenes, "stages": ["mask", "drop_bands"]}, np.where(share == -1, np.nan, share)


def test_a_store_of_targets_holds_them_as_they_are_nan_where_not_known(
    target_flow: tuple[Flow, np.ndarray], tmp_path: Path
) -> None:
    flow, share = target_flow
    store = build(flow)
    assert (store.targets, store.target_units, store.classes) == (["tree", "soil", "water"], ["1"] * 3, 0)
    tiles = store.read_tiles("targets", 0, len(store))
    assert tiles.shape == (len(store), 3, 20, 20)
    assert tiles.dtype == np.float32
    np.testing.assert_array_equal(whole(store, "targets"), share)
    inside = whole(store, "split") >= 0
    assert inside.all()
    # mirrored pixels beyond the scene's edge are no pixels of their own
    assert np.isnan(tiles[0][:, :2]).all()
    valid, split = whole(store, "valid"), whole(store, "split")
    train = valid & (split == 1)
    told = store.attrs["targets"]
    for number in range(3):
        values = share[number][train & np.isfinite(share[number])].astype(float)
        assert told["mean"][number] == pytest.approx(values.mean(), rel=1e-12)
        assert told["std"][number] == pytest.approx(values.std(), rel=1e-12)
        for code, name in enumerate(("none", "train", "validation", "test")):
            count = int((np.isfinite(share[number]) & valid & (split == code)).sum())
            assert told["pixels"][name][number] == count
    complete = np.isfinite(share).all(axis=0) & valid
    ones = complete & (abs(share.sum(axis=0) - 1) < 1e-3)
    assert any(
        f"1 within 0.001 in {ones.sum():,} of {complete.sum():,} pixels" in n for n in store.attrs["notes"]
    )
    text = "\n".join(lines(describe(store)))
    assert f"target       tree: {told['mean'][0]:.5g} +- {told['std'][0]:.5g} 1; pixels: " in text
    data = store.to_xarray()
    assert data["targets"].dims == ("tile", "target", "y", "x")
    assert int(data["target_pixels"].sum()) == sum(map(sum, told["pixels"].values()))
    assert store.verify() == len(json.loads((store.path / "manifest.json").read_text())["files"])
    again = build({**flow, "store": {"root": str(tmp_path / "again")}})
    assert files_of(again) == files_of(store)


def test_what_changes_the_targets_changes_the_store(target_flow: tuple[Flow, np.ndarray]) -> None:
    flow, share = target_flow
    first = build(flow)
    entry = flow["scenes"][0]
    other = {**flow, "scenes": [{**entry, "targets": {**entry["targets"], "nodata": -2}}]}
    second = build(other)
    assert second.fingerprint != first.fingerprint
    assert (whole(second, "targets")[0][np.isnan(share[0])] == -1).all()
    plain = build({**flow, "scenes": [{"path": entry["path"]}]})
    assert plain.targets == []
    with pytest.raises(KeyError, match="no tile array"):
        plain.array("targets")


def test_targets_count_as_labels_where_tiles_are_chosen(target_flow: tuple[Flow, np.ndarray]) -> None:
    flow, share = target_flow
    store = build({**flow, "tiles": {"size": 4, "halo": 0, "min_labelled": 9}})
    known = np.isfinite(share).any(axis=0)
    expected = [
        (row, col)
        for row in range(0, 40, 4)
        for col in range(0, 52, 4)
        if known[row : row + 4, col : col + 4].sum() >= 9
    ]
    assert 0 < len(expected) < 130
    assert list(zip(store.index.row.tolist(), store.index.col.tolist(), strict=True)) == expected


def test_a_build_without_any_known_target_in_training_is_refused(
    target_flow: tuple[Flow, np.ndarray],
) -> None:
    flow, share = target_flow
    path = flow["scenes"][0]["targets"]["path"]
    with rasterio.open(path, "r+") as out:
        out.write(np.full_like(share, -1))
    with pytest.raises(EmptySplitError, match="no valid pixel where a target is known"):
        build(flow)


def test_polygons_and_their_groups_go_into_a_store(flow: Flow, tmp_path: Path, write_vector) -> None:
    """The splits leave every field whole."""
    rng = np.random.default_rng(1)
    boxes = [
        shapely.box(366000 + 30 * col, 5810000 - 30 * (row + 5), 366000 + 30 * (col + 6), 5810000 - 30 * row)
        for row in range(0, 40, 7)
        for col in range(0, 52, 8)
    ]
    names = np.array(["wheat", "maize", "beet"], object)[rng.integers(0, 3, len(boxes))]
    field = rng.permutation(np.arange(len(boxes)) // 2).astype("int32")
    path = write_vector(tmp_path / "fields.gpkg", boxes, **{"class": names}, field=field)
    flow = {
        **flow,
        "scenes": [{"path": flow["scenes"][0]["path"], "labels": {"path": str(path), "group": "field"}}],
        "split": {"by": "groups", "seed": 1},
        "tiles": {"size": 16, "halo": 0},
        "stages": ["mask", "drop_bands"],
    }
    store = build(flow)
    assert store.class_names == ["beet", "maize", "wheat"]
    code = {"beet": 1, "maize": 2, "wheat": 3}
    expected = rasterio.features.rasterize(
        [(box, code[name]) for box, name in zip(boxes, names, strict=True)], (40, 52), transform=GRID
    )
    np.testing.assert_array_equal(whole(store, "labels"), expected)
    split = whole(store, "split")
    ids = rasterio.features.rasterize(
        [(box, int(number) + 1) for box, number in zip(boxes, field, strict=True)], (40, 52), transform=GRID
    )
    sides = [set(np.unique(split[ids == number])) - {0} for number in np.unique(ids[ids > 0])]
    assert all(len(side) == 1 for side in sides)
    assert len(set.union(*sides)) == 3


def test_the_array_that_is_read_is_part_of_what_a_store_is_made_from(
    flow: Flow, tmp_path: Path, made
) -> None:
    np.savez(tmp_path / "gt.npz", first=made.labels, second=np.where(made.labels == 1, 2, made.labels))
    stores = [
        build(
            {
                **flow,
                "scenes": [
                    {"path": str(made.path), "labels": {"path": str(tmp_path / "gt.npz"), "variable": name}}
                ],
                "stages": ["mask", "drop_bands"],
            }
        )
        for name in ("first", "second")
    ]
    assert stores[0].fingerprint != stores[1].fingerprint
    assert not (whole(stores[1], "labels") == 1).any()


def test_points_become_the_labels_of_a_store(flow: Flow, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    pixel = rng.permutation(40 * 52)[:200]
    names = np.array(["clay", "sand"])[pixel % 2]
    rows = "\n".join(f"{p // 52};{p % 52};{name}" for p, name in zip(pixel, names, strict=True))
    (tmp_path / "p.csv").write_text(f"row;col;soil\n{rows}\n51;3;clay\n")
    entry = {
        "path": flow["scenes"][0]["path"],
        "labels": {"path": str(tmp_path / "p.csv"), "attribute": "soil"},
    }
    with pytest.warns(BandstreamWarning, match="1 of 201 points"):
        store = build({**flow, "scenes": [entry], "stages": ["mask", "drop_bands"], "split": {"by": "none"}})
    expected = np.zeros(40 * 52, int)
    expected[pixel] = pixel % 2 + 1
    np.testing.assert_array_equal(whole(store, "labels"), expected.reshape(40, 52))
    assert store.class_names == ["clay", "sand"]


def test_a_raster_of_groups_beside_the_labels_decides_the_split(flow: Flow, tmp_path: Path) -> None:
    ids = (1000 * (1 + np.arange(40)[:, None] // 10) + np.arange(52)[None, :] // 13).astype("int32")
    stores: list[PatchStore] = []
    for number, values in enumerate((ids, ids + 4 * (ids > 2000))):
        path = tmp_path / f"scene_{number}.tif"
        with rasterio.open(
            path, "w", driver="GTiff", height=40, width=52, count=1, dtype="int32", crs="EPSG:32633",
            transform=GRID,
        ) as out:  # fmt: skip
            out.write(values, 1)
        entry = flow["scenes"][0]
        labels = {"path": entry["labels"], "groups": str(tmp_path / f"{{stem}}_{number}.tif")}
        changes = {"scenes": [{"path": entry["path"], "labels": labels}], "split": {"by": "groups"}}
        stores.append(
            build({**flow, **changes, "stages": ["mask", "drop_bands"], "tiles": {"size": 16, "halo": 0}})
        )
    split = whole(stores[0], "split")
    assert all(len(set(np.unique(split[ids == number])) - {0}) == 1 for number in np.unique(ids))
    assert stores[0].fingerprint != stores[1].fingerprint


def test_the_counts_of_a_shard_survive_in_the_journal(tmp_path: Path) -> None:
    from bandstream.pipeline.writer import StoreLayout, StoreWriter

    rng = np.random.default_rng(4)
    layout = StoreLayout.plan(3, 2, 8, 1, targets=2)
    writer = StoreWriter(tmp_path / "a.zarr", layout)
    writer.begin()
    tiles = {
        "data": rng.normal(size=layout.shape("data", 3)).astype("float32"),
        "labels": np.zeros(layout.shape("labels", 3), "uint16"),
        "valid": rng.random(layout.shape("valid", 3)) < 0.9,
        "split": rng.integers(0, 4, layout.shape("split", 3)).astype("uint8"),
        "targets": rng.normal(size=layout.shape("targets", 3)).astype("float32"),
    }
    tiles["targets"][rng.random(tiles["targets"].shape) < 0.3] = np.nan
    record = writer.write_shard(0, [tiles], 0)
    assert record.targets is not None
    assert writer.finished(0) == record
