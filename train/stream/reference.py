"""Reading blocks by plain Zarr: for arrays laid out in another way than our writer's, and what tests compare with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.store import PatchStore

if TYPE_CHECKING:
    from .shards import ReadTimes


class PlainReader:
    """Reads blocks through Zarr, which compares checksums wherever the array has them; a `shards.BlockReader`.

    Parameters
    ----------
    store
        Whose blocks.
    """

    def __init__(self, store: PatchStore) -> None:
        self._store = store

    def read(
        self, name: str, block: int, out: NDArray[Any], work: NDArray[np.uint8], times: ReadTimes
    ) -> None:
        """Decode one block of a tile array; see `shards.BlockReader`."""
        del work
        store, start = self._store, time.perf_counter()
        first = block * store.chunk_tiles
        stop = min(first + store.chunk_tiles, len(store))
        out[: stop - first] = store.read_tiles(name, first, stop)
        # Zarr does both at once and does not say how many bytes it took
        times.decode_s += time.perf_counter() - start
