"""Large streams: 10^9 samples on 4,096 ranks, and a store of 10^6 tiles."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from bandstream.pipeline.store import MANIFEST, SCHEMA, FileRecord, PatchStore, manifest_checksum
from bandstream.train.stream import PatchStream
from bandstream.train.stream.order import EpochOrder, EqualBlocks, SampleOrder, rank_samples, steps_of

SAMPLES, RANKS, BATCH, PER_BLOCK = 10**9, 4096, 32, 64
MIB = 1 << 20


def huge_order(lanes: int = 8) -> EpochOrder:
    return SampleOrder(EqualBlocks(SAMPLES // PER_BLOCK, PER_BLOCK, PER_BLOCK), 11, lanes, 2).epoch(3)


@pytest.mark.parametrize("lanes", [8, 8 * RANKS])
def test_drawn_indices_of_a_huge_epoch_invert_to_themselves(lanes):
    order = huge_order(lanes)
    numbers = np.random.default_rng(0).integers(0, SAMPLES, 10_000)
    block, item = order.locate(numbers)
    assert np.array_equal(order.number_of(block, item), numbers)
    assert len(np.unique(block * PER_BLOCK + item)) == len(np.unique(numbers))
    assert block.max() < SAMPLES // PER_BLOCK
    assert item.max() < PER_BLOCK


def test_ranks_of_a_huge_epoch_share_each_batch_out():
    steps = steps_of(SAMPLES, RANKS * BATCH)
    step = np.array([0, 4321, steps - 2], np.int64)
    parts = [rank_samples(step, BATCH, rank, RANKS, SAMPLES)[0] for rank in range(RANKS)]
    for at, number in enumerate(step.tolist()):
        together = np.sort(np.concatenate([part[at] for part in parts]))
        assert np.array_equal(together, number * RANKS * BATCH + np.arange(RANKS * BATCH))


def test_a_rank_of_a_huge_epoch_needs_memory_for_no_sample_and_no_block():
    tracemalloc.start()
    order = huge_order()
    step = np.arange(1000, 1008, dtype=np.int64)
    numbers, _ = rank_samples(step, BATCH, 77, RANKS, SAMPLES)
    order.locate(numbers.ravel())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB / 4


def test_blocks_of_different_size_take_a_prefix_sum_of_8_bytes_each():
    blocks = 10**6
    counts = np.random.default_rng(0).integers(1, 100, blocks)
    tracemalloc.start()
    order = SampleOrder(counts, 0, 8, 2).epoch(0)
    numbers = np.arange(5000, dtype=np.int64) * 7919 % order.order.samples
    place = order.locate(numbers)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * blocks + MIB
    assert peak < 8 * blocks + 12 * MIB, "what a part of the blocks takes while they are laid out"
    assert np.array_equal(order.number_of(*place), numbers)


def write_tiles(path: Path, tiles: int, classes: int) -> PatchStore:
    """Write a store of tiles of 4 x 4 pixels, one band, halo 0, by plain Zarr; tile t is all of class t mod classes."""
    size, chunk = 4, 16_384
    root = zarr.create_group(path, zarr_format=3)
    root.attrs["bandstream"] = {
        "schema": SCHEMA,
        "name": "many",
        "fingerprint": "0" * 64,
        "transform_fingerprint": "0" * 64,
        "bands": 1,
        "tiles": {"size": size, "halo": 0, "chunk": chunk, "shard": 8 * chunk, "count": tiles},
        "classes": {"names": [f"class {k}" for k in range(classes)], "colors": ["#000000"] * classes},
        "scenes": [
            {
                "scene_id": "scene",
                "shape_yx": [4000, size * tiles // 1000],
                "crs_wkt": None,
                "transform": None,
            }
        ],
    }
    tile = np.arange(tiles)
    labels = (tile % classes + 1).astype(np.uint16)
    contents = {
        "data": np.broadcast_to(tile.astype(np.float32)[:, None, None, None], (tiles, 1, size, size)),
        "labels": np.broadcast_to(labels[:, None, None], (tiles, size, size)),
        "valid": np.broadcast_to(np.True_, (tiles, size, size)),
        "split": np.broadcast_to(np.uint8(1), (tiles, size, size)),
    }
    for name, values in contents.items():
        array = zarr.create_array(
            path,
            name=f"tiles/{name}",
            shape=values.shape,
            chunks=(chunk, *values.shape[1:]),
            shards=(8 * chunk, *values.shape[1:]),
            dtype=values.dtype,
            serializer=BytesCodec(endian="little") if name in ("data", "labels") else "auto",
            compressors=[BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"), Crc32cCodec()],
            fill_value=0,
            config={"write_empty_chunks": True},
        )
        array[...] = values
    labelled = np.zeros((tiles, 4, classes), np.int64)
    labelled[tile, 1, labels - 1] = size**2
    columns = {"scene": tile * 0, "row": tile // 1000 * size, "col": tile % 1000 * size}
    for name, values in (columns | {"pixels": labelled.sum(axis=2), "labelled": labelled}).items():
        array = zarr.create_array(
            path,
            name=f"tiles/index/{name}",
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1 << 14, *values.shape[1:]),
            compressors=[Crc32cCodec()],
            config={"write_empty_chunks": True},
        )
        array[...] = values
    files = {
        file.relative_to(path).as_posix(): asdict(FileRecord.of(file))
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
    manifest = {"files": files, "checksum": manifest_checksum(files)}
    (path / MANIFEST).write_text(json.dumps(manifest, sort_keys=True, indent=1))
    return PatchStore.open(path)


@pytest.fixture(scope="module")
def many_tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scale") / "many.zarr"
    write_tiles(path, 10**6, classes=4)
    return path


@pytest.mark.parametrize("patch", [None, 1])
@pytest.mark.parametrize("balance", [None, "classes"])
def test_a_store_of_a_million_tiles_opens_within_1_s_and_gives_its_first_batch_within_2_s(
    many_tiles, patch, balance
):
    """In processor time, which others that are at work on the machine do not add to."""
    start = time.process_time()
    stream = PatchStream(many_tiles, patch=patch, batch_size=64, balance=balance)
    opened = time.process_time() - start
    batch = next(iter(stream))
    first = time.process_time() - start - opened
    stream.close()
    assert stream.samples == 10**6 * (1 if patch is None else 16)
    assert opened < 1
    assert first < 2
    tile = batch["tile"]
    assert torch.equal(batch["image"].amax(dim=(1, 2, 3)), tile.float())
    assert torch.equal(batch["label"].reshape(64, -1)[:, 0], tile % 4 + 1)
