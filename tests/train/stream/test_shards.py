"""Blocks read by the shards' own indexes against plain Zarr, and what damage is found."""

from __future__ import annotations

import json

import google_crc32c
import numpy as np
import pytest

from bandstream.pipeline.errors import StoreCorruptError
from bandstream.train.stream import PatchStream
from bandstream.train.stream.bytes_source import LocalSource
from bandstream.train.stream.reference import PlainReader
from bandstream.train.stream.shards import ReadTimes, ShardFormat, ShardReader, packed_bytes

NAMES = ("data", "labels", "valid", "split")
DTYPES = {"data": np.float32, "labels": np.uint16, "valid": np.bool_, "split": np.uint8}


def read(reader, store, name, block):
    side = store.tile_size + 2 * store.halo
    shape = (store.bands, side, side) if name == "data" else (side, side)
    out = np.zeros((store.chunk_tiles, *shape), DTYPES[name])
    times = ReadTimes()
    reader.read(name, block, out, np.empty(packed_bytes(out.nbytes), np.uint8), times)
    return out, times


def rewrite(store, change, name="data"):
    """Change the bytes of the first shard of an array."""
    path = store.shard_path(name, 0)
    content = bytearray(path.read_bytes())
    changed = change(content)
    path.write_bytes(content if changed is None else changed)


@pytest.mark.parametrize("codec", ["default", "zstd", "none"])
def test_every_block_equals_plain_zarr_bit_for_bit(shared_store, codec):
    store = shared_store(codec=codec, chunk=3, shard=6)
    assert len(store) % 3, "the last block is not whole"
    source = LocalSource(store.path)
    direct, plain = ShardReader(store, source), PlainReader(store)
    for name in NAMES:
        assert ShardFormat.of(store, name) is not None
        for block in range(-(-len(store) // 3)):
            one, times = read(direct, store, name, block)
            tiles = min(3, len(store) - 3 * block)
            assert one[:tiles].tobytes() == read(plain, store, name, block)[0][:tiles].tobytes()
            assert times.bytes_read > 0
    source.close()


def test_a_patch_read_cold_takes_little_more_than_its_chunk(make_store):
    store = make_store(codec="none", chunk=1, shard=64, bands=64)
    _, times = read(ShardReader(store, LocalSource(store.path)), store, "data", 5)
    assert times.bytes_read <= 4 * 64 * 12 * 12 * 4


@pytest.mark.parametrize(
    "change",
    [
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "transpose", "configuration": {"order": [0, 1, 2, 3]}},
    ],
)
def test_another_chain_of_codecs_is_left_to_plain_zarr(make_store, change):
    store = make_store(codec="none")
    path = store.path / "tiles/data/zarr.json"
    meta = json.loads(path.read_text())
    codecs = meta["codecs"][0]["configuration"]["codecs"]
    codecs[:] = [change, *codecs[1:]] if change["name"] == "bytes" else [change, *codecs]
    path.write_text(json.dumps(meta))
    assert ShardFormat.of(store, "data") is None
    out, _ = read(ShardReader(store, LocalSource(store.path)), store, "data", 1)
    assert out.tobytes() == np.asarray(store.array("data")[4:8]).astype(np.float32).tobytes()


@pytest.mark.parametrize("checksum", ["first", "always", "never"])
def test_checksums_are_compared_as_asked(make_store, checksum):
    store = make_store(codec="none")
    source = LocalSource(store.path)
    reader = ShardReader(store, source, checksum)
    good, _ = read(reader, store, "data", 0)

    def flip(content):
        content[100] ^= 4

    rewrite(store, flip)
    source.close()
    if checksum == "always":
        with pytest.raises(StoreCorruptError, match=r"tiles/data/c/0/0/0/0.*checksum of chunk 0"):
            read(reader, store, "data", 0)
    else:  # seen before, or not to be looked at
        assert not np.array_equal(read(reader, store, "data", 0)[0], good)
    if checksum != "never":
        with pytest.raises(StoreCorruptError, match="checksum of chunk 0"):
            read(ShardReader(store, source, checksum), store, "data", 0)


def sealed(content, chunks=2):
    """Give an index that was changed its checksum."""
    content[-4:] = google_crc32c.value(bytes(content[-4 - 16 * chunks : -4])).to_bytes(4, "little")


@pytest.mark.parametrize("codec", ["default", "zstd", "none"])
@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [
        (None, 1 << 40, "behind its end"),
        (1 << 40, None, "behind its end"),
        ((1 << 64) - 1, (1 << 64) - 1, "absent"),
        (None, 0, "0 bytes"),
        (None, 40, "bytes|unpack|checksum"),
    ],
)
def test_an_index_that_lies_is_found_out(make_store, codec, offset, length, message):
    store = make_store(codec=codec)

    def lie(content):
        for at, value in ((-36, offset), (-28, length)):
            if value is not None:
                content[at : at + 8 or None] = value.to_bytes(8, "little")
        sealed(content)

    rewrite(store, lie)
    with pytest.raises(StoreCorruptError, match=rf"tiles/data/c/0/0/0/0.*({message})"):
        read(ShardReader(store, LocalSource(store.path), "never"), store, "data", 0)


@pytest.mark.parametrize("codec", ["default", "zstd"])
def test_a_frame_of_another_size_is_refused_before_it_is_unpacked(make_store, codec):
    store = make_store(codec=codec)

    def grow(content):
        at = 4 if codec == "default" else 5
        content[at : at + 2] = b"\xff\xff"

    rewrite(store, grow)
    with pytest.raises(StoreCorruptError, match="does not unpack into"):
        read(ShardReader(store, LocalSource(store.path), "never"), store, "data", 0)


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_truncated_shard_is_named(make_store, keep):
    store = make_store()
    rewrite(store, lambda content: content[:keep])
    with pytest.raises(StoreCorruptError, match="tiles/data/c/0/0/0/0"):
        read(ShardReader(store, LocalSource(store.path)), store, "data", 0)


def test_nan_in_the_data_is_told_with_tile_and_file(make_store):
    """The chunk is whole and its checksum holds: it was written that way."""
    store = make_store(codec="none")
    pixels = store.bands * 12 * 12

    def poison(content):
        chunk = 4 * pixels * 4
        content[4 * (2 * pixels + 7) : 4 * (2 * pixels + 8)] = np.float32(np.nan).tobytes()
        content[chunk : chunk + 4] = google_crc32c.value(bytes(content[:chunk])).to_bytes(4, "little")

    rewrite(store, poison)
    for patch in (None, 3):
        stream = PatchStream(store, split="all", patch=patch, batch_size=4)
        for _ in range(2):
            with pytest.raises(StoreCorruptError, match=r"Tile 2 .*NaN.*tiles/data/c/0/0/0/0"):
                list(stream)
