"""Shards have the bytes that zarr-python gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from bandstream.pipeline.shardfile import CODECS, ShardEncoder

DTYPES = {"data": "float32", "labels": "uint16", "valid": "bool", "split": "uint8"}


def _by_zarr(values: np.ndarray[Any, Any], codec: str, chunk: int, shard: int, fill: float) -> list[bytes]:
    files: dict[str, Any] = {}
    rest = values.shape[1:]
    array = zarr.create_array(
        MemoryStore(files),
        shape=values.shape,
        chunks=(chunk, *rest),
        shards=(shard, *rest),
        dtype=values.dtype,
        serializer=BytesCodec(endian="little") if values.dtype.itemsize > 1 else "auto",
        compressors=[*CODECS[codec][0], Crc32cCodec()],
        fill_value=fill,
        config={"write_empty_chunks": True},
    )
    array[...] = values
    names = [f"c/{number}" + "/0" * len(rest) for number in range(-(-len(values) // shard))]
    return [files[name].to_bytes() for name in names]


@pytest.mark.parametrize("codec", sorted(CODECS))
@settings(max_examples=25, deadline=None)
@given(
    tiles=st.integers(1, 20),
    chunk=st.integers(1, 4),
    per_shard=st.integers(1, 3),
    name=st.sampled_from(sorted(DTYPES)),
    cut=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_a_shard_equals_the_one_of_zarr_however_its_tiles_come(
    codec: str, tiles: int, chunk: int, per_shard: int, name: str, cut: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (tiles, 3, 4, 4) if name == "data" else (tiles, 4, 4)
    values = rng.integers(0, 9, shape).astype(DTYPES[name])
    shard = chunk * per_shard
    for number, expected in enumerate(_by_zarr(values, codec, chunk, shard, 0)):
        encoder = ShardEncoder(codec, chunk, per_shard, 0)
        own = values[number * shard : (number + 1) * shard]
        pieces = [bytes(piece) for at in range(0, len(own), cut) for piece in encoder.add(own[at : at + cut])]
        pieces += [bytes(piece) for piece in encoder.end()]
        assert b"".join(pieces) == expected


def test_tiles_that_a_last_chunk_lacks_are_not_a_number_where_targets_are() -> None:
    values = np.ones((3, 2, 4, 4), "float32")
    encoder = ShardEncoder("zstd", 2, 2, np.nan)
    pieces = b"".join([*map(bytes, encoder.add(values)), *map(bytes, encoder.end())])
    assert [pieces] == _by_zarr(values, "zstd", 2, 4, np.nan)
