"""Reading the blocks of a store's tile arrays straight from its shards.

A shard ends with its index: offset and length of every inner chunk as little-endian uint64 pairs, then the index's own
CRC-32C. A chunk is the little-endian bytes of whole tiles, optionally packed by Blosc or Zstandard, then its CRC-32C.
Arrays that are laid out in any other way are read by plain Zarr (`reference.py`).
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, Protocol

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd  # pyright: ignore[reportAttributeAccessIssue] - compiled modules
from numpy.typing import NDArray

from ...pipeline.errors import StoreCorruptError
from ...pipeline.store import PatchStore
from .bytes_source import ByteSource
from .reference import PlainReader

Checksum = Literal["first", "always", "never"]
CHECKSUMS = ("first", "always", "never")

_CRC_BYTES = 4
_BLOSC_HEADER = struct.Struct("<4B3I")  # versions, flags, type size; bytes unpacked, of a block, packed
_ZSTD_MAGIC = 0xFD2FB528
_ABSENT = np.uint64(0xFFFFFFFFFFFFFFFF)
#: Most that packing may add to a chunk: Blosc 16 bytes, Zstandard less than one in 128
_SLACK_BYTES = 1024


@dataclass
class ReadTimes:
    """What reading took, summed over the calls it was given to."""

    read_s: float = 0.0
    decode_s: float = 0.0
    bytes_read: int = 0


class BlockReader(Protocol):
    """Reads inner chunks of one store, from several threads at once."""

    def read(
        self, name: str, block: int, out: NDArray[Any], work: NDArray[np.uint8], times: ReadTimes
    ) -> None:
        """Decode one block of a tile array.

        Parameters
        ----------
        name
            Of the tile array.
        block
            Number of the inner chunk in its store.
        out
            Where to: (tile, ...), contiguous, of the array's dtype and `chunk_tiles` tiles, of which those behind the
            store's end hold nothing of meaning.
        work
            Memory for packed bytes, as `packed_bytes` says.
        times
            Added to.

        Raises
        ------
        StoreCorruptError
            The shard is missing or damaged; its file is named.
        """
        ...


def packed_bytes(chunk_bytes: int) -> int:
    """Return how many bytes of memory the packed form of a chunk may need."""
    return chunk_bytes + chunk_bytes // 128 + _SLACK_BYTES


@dataclass(frozen=True)
class ShardFormat:
    """What the metadata of a tile array say of its shards."""

    codec: Literal["blosc", "zstd", "none"]
    chunk_bytes: int  #: unpacked
    chunks: int  #: per shard

    @classmethod
    def of(cls, store: PatchStore, name: str) -> ShardFormat | None:
        """Return the format of a tile array, None where only plain Zarr can read it."""
        try:
            meta: Any = json.loads((store.path / "tiles" / name / "zarr.json").read_text())
            (outer,) = meta["codecs"]
            inner = outer["configuration"]
            chunk, shard = inner["chunk_shape"], meta["chunk_grid"]["configuration"]["chunk_shape"]
            dtype = np.dtype(meta["data_type"])
            known = (
                meta["zarr_format"] == 3
                and meta["chunk_grid"]["name"] == "regular"
                and meta["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
                and not meta.get("storage_transformers")
                and outer["name"] == "sharding_indexed"
                and inner.get("index_location", "end") == "end"
                and [_plain(codec) for codec in inner["index_codecs"]] == ["bytes", "crc32c"]
                and (chunk[0], shard[0]) == (store.chunk_tiles, store.shard_tiles)
                and chunk[1:] == shard[1:] == meta["shape"][1:]
                and meta["shape"][0] == len(store)
            )
            codecs = [_plain(codec) for codec in inner["codecs"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        chains: dict[tuple[str, ...], Literal["blosc", "zstd", "none"]] = {
            ("bytes", "blosc", "crc32c"): "blosc",
            ("bytes", "zstd", "crc32c"): "zstd",
            ("bytes", "crc32c"): "none",
        }
        codec = chains.get(tuple(codecs))
        if not known or codec is None:
            return None
        return cls(codec, int(np.prod(chunk)) * dtype.itemsize, shard[0] // chunk[0])

    @property
    def index_bytes(self) -> int:
        """Bytes of a shard's index with its checksum."""
        return 16 * self.chunks + _CRC_BYTES


def _plain(codec: dict[str, Any]) -> str:
    """Return a codec's name, or one that is in no chain if it is a big-endian `bytes`."""
    if codec["name"] == "bytes" and codec.get("configuration", {}).get("endian", "little") != "little":
        return "bytes(big)"
    return codec["name"]


@dataclass(frozen=True)
class _Array:
    """A tile array and what is known of its shards so far."""

    format: ShardFormat
    indexes: dict[int, NDArray[np.uint64]] = field(
        default_factory=dict
    )  #: shard -> (chunk, 2) offset and length
    checked: set[int] = field(default_factory=set)  #: blocks whose checksum has held


class ShardReader:
    """Reads blocks by the shards' own indexes; a `BlockReader`.

    Parameters
    ----------
    store
        Whose blocks.
    source
        Of its bytes.
    checksum
        Whether a chunk's CRC-32C is compared when it is read for the first time, always, or never.
    """

    def __init__(self, store: PatchStore, source: ByteSource, checksum: Checksum = "first") -> None:
        self._store, self._source, self._checksum = store, source, checksum
        self._lock = Lock()
        self._arrays: dict[str, _Array | None] = {}
        self._plain = PlainReader(store)

    def read(
        self, name: str, block: int, out: NDArray[Any], work: NDArray[np.uint8], times: ReadTimes
    ) -> None:
        """Decode one block of a tile array; see `BlockReader`."""
        array = self._array(name)
        if array is None:
            self._plain.read(name, block, out, work, times)
            return
        form = array.format
        shard, chunk = divmod(block, form.chunks)
        file = shard_file(self._store, name, shard)
        start = time.perf_counter()
        index = array.indexes.get(shard)
        if index is None:
            index = self._read_index(file, form, times)
            array.indexes[shard] = index
        offset, length = index[chunk].tolist()
        raw = out.reshape(-1).view(np.uint8)
        if len(raw) != form.chunk_bytes:
            raise self._corrupt(file, f"its chunks hold {form.chunk_bytes} bytes where {len(raw)} belong")
        if index[chunk, 0] == _ABSENT:
            raise self._corrupt(file, f"chunk {chunk} is absent")
        if not _CRC_BYTES < length <= packed_bytes(form.chunk_bytes):
            raise self._corrupt(file, f"its index gives chunk {chunk} {length} bytes")
        if form.codec == "none":
            if length != form.chunk_bytes + _CRC_BYTES:
                raise self._corrupt(file, f"its index gives chunk {chunk} {length} bytes")
            packed, tail = raw, np.empty(_CRC_BYTES, np.uint8)
            ranges = [(offset, len(raw)), (offset + len(raw), _CRC_BYTES)]
        else:
            packed, tail = work[: length - _CRC_BYTES], work[length - _CRC_BYTES : length]
            ranges = [(offset, length - _CRC_BYTES), (offset + length - _CRC_BYTES, _CRC_BYTES)]
        if form.codec == "none":
            self._source.read(file, ranges, [packed.data, tail.data])
        else:
            self._source.read(file, [(offset, length)], [work[:length].data])
        read = time.perf_counter()
        times.read_s += read - start
        times.bytes_read += length
        due = self._checksum == "always" or (self._checksum == "first" and block not in array.checked)
        if due and not _holds(packed, tail):
            raise self._corrupt(file, f"the checksum of chunk {chunk} differs")
        if form.codec != "none":
            self._unpack(form, packed, raw, file, chunk)
        array.checked.add(block)
        times.decode_s += time.perf_counter() - read

    def _array(self, name: str) -> _Array | None:
        with self._lock:
            if name not in self._arrays:
                form = ShardFormat.of(self._store, name)
                self._arrays[name] = None if form is None else _Array(form)
            return self._arrays[name]

    def _read_index(self, file: str, form: ShardFormat, times: ReadTimes) -> NDArray[np.uint64]:
        size = self._source.size(file)
        raw = np.empty(form.index_bytes, np.uint8)
        if size < len(raw):
            raise self._corrupt(file, f"it has {size} bytes, fewer than its index")
        self._source.read(file, [(size - len(raw), len(raw))], [raw.data])
        times.bytes_read += len(raw)
        pairs, tail = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
        if not _holds(pairs, tail):
            raise self._corrupt(file, "the checksum of its index differs")
        index = pairs.view("<u8").reshape(-1, 2).astype(np.uint64)
        there = index[index[:, 0] != _ABSENT]
        end = np.uint64(size - len(raw))
        if (there[:, 0] > end).any() or (there[:, 1] > end - np.minimum(there[:, 0], end)).any():
            raise self._corrupt(file, "its index points behind its end")
        return index

    def _unpack(
        self, form: ShardFormat, packed: NDArray[np.uint8], raw: NDArray[np.uint8], file: str, chunk: int
    ) -> None:
        size, decompress = _PACKED[form.codec]
        if size(packed) != len(raw):
            raise self._corrupt(file, f"chunk {chunk} does not unpack into {len(raw)} bytes")
        try:
            decompress(packed, raw)
        except (RuntimeError, ValueError) as error:  # what numcodecs makes of damaged bytes
            raise self._corrupt(file, f"chunk {chunk} cannot be unpacked ({error})") from error

    def _corrupt(self, file: str, what: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"The file {file} of the store {self._store.path} is damaged: {what}. The file has changed since it was "
            "written; delete the store and run its workflow again."
        )


def shard_file(store: PatchStore, name: str, shard: int) -> str:
    """Return the path inside the store of a shard of a tile array."""
    return store.shard_path(name, shard).relative_to(store.path).as_posix()


def _holds(content: Any, checksum: NDArray[np.uint8]) -> bool:
    """Return whether the CRC-32C of a byte array is the one that follows it in the file."""
    return google_crc32c.value(content) == int.from_bytes(checksum.tobytes(), "little")


def _blosc_size(packed: NDArray[np.uint8]) -> int:
    """Return how many bytes a Blosc frame unpacks into by its header, -1 if the header contradicts its length."""
    if len(packed) < _BLOSC_HEADER.size:
        return -1
    *_, unpacked, _, length = _BLOSC_HEADER.unpack_from(packed.data)
    return unpacked if length == len(packed) else -1


def _zstd_size(packed: NDArray[np.uint8]) -> int:
    """Return how many bytes a Zstandard frame unpacks into by its header (RFC 8878, 3.1.1.1), -1 if it does not say."""
    head = packed[:18].tobytes()
    if len(head) < 6 or int.from_bytes(head[:4], "little") != _ZSTD_MAGIC:
        return -1
    flags, single = head[4], head[4] >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    length = (1 if single else 0, 2, 4, 8)[flags >> 6]
    if not length or len(head) < at + length:
        return -1
    return int.from_bytes(head[at : at + length], "little") + (256 if length == 2 else 0)


_PACKED: dict[str, tuple[Callable[[NDArray[np.uint8]], int], Callable[..., Any]]] = {
    "blosc": (_blosc_size, blosc.decompress),
    "zstd": (_zstd_size, zstd.decompress),
}
