"""The bytes of one shard of a tile array: its chunks one after the other, and behind them the index.

They are the bytes that zarr-python writes for a whole shard of these codecs (a test compares them), made chunk by chunk
as tiles come, so that nobody holds a shard's tiles and its encoded bytes at the same time, nor pays zarr's overhead for
each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
from numcodecs import Blosc, Zstd
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, ZstdCodec

from .readers.buffers import lend

#: Compression by the name that a workflow gives it: zarr's codec, for the metadata, and the same one at work.
_LZ4, _ZSTD = Blosc(cname="lz4", clevel=3, shuffle=Blosc.SHUFFLE), Zstd(level=3)
CODECS: dict[str, tuple[list[Any], Callable[[NDArray[Any]], Any]]] = {
    "default": ([BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")], _LZ4.encode),
    "none": ([], lambda chunk: chunk.reshape(-1).view(np.uint8)),
    "zstd": ([ZstdCodec(level=3)], _ZSTD.encode),
}
_ABSENT = np.iinfo(np.uint64).max  #: offset and length of a chunk behind the array's end


@dataclass
class ShardEncoder:
    """Turns the tiles of a shard, in their order, into the bytes of its file."""

    codec: str  #: one of CODECS
    chunk: int  #: tiles per chunk
    chunks: int  #: chunks in a whole shard
    fill: float  #: of the tiles that the array's last chunk lacks
    _offset: int = 0
    _index: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _held: NDArray[Any] | None = None  #: the chunk that is being filled, (chunk, ...)
    _filled: int = 0

    def add(self, tiles: NDArray[Any]) -> Iterator[Any]:
        """Take some tiles (tile, ...), any strides, and give the bytes of the chunks that they fill."""
        start = 0
        while start < len(tiles):
            if self._held is None:
                self._held = lend((self.chunk, *tiles.shape[1:]), tiles.dtype.newbyteorder("<"))
            count = min(self.chunk - self._filled, len(tiles) - start)
            self._held[self._filled : self._filled + count] = tiles[start : start + count]
            self._filled += count
            start += count
            if self._filled == self.chunk:
                yield from self._encoded(self._held)

    def end(self) -> Iterator[Any]:
        """Give the bytes of what is left, and the index."""
        if self._filled and self._held is not None:
            self._held[self._filled :] = self.fill
            yield from self._encoded(self._held)
        index = np.full((self.chunks, 2), _ABSENT, "<u8")
        index[: len(self._index)] = self._index
        yield index.tobytes()
        yield _checksum(index.tobytes())

    def _encoded(self, chunk: NDArray[Any]) -> Iterator[Any]:
        content = CODECS[self.codec][1](chunk)
        self._filled = 0
        self._index.append((self._offset, len(content) + 4))
        self._offset += len(content) + 4
        yield content
        yield _checksum(content)


def _checksum(content: Any) -> bytes:
    return google_crc32c.value(content).to_bytes(4, "little")
