"""Leaving out tiles that hold too little: `tiles.min_labelled` by the labels alone, `tiles.min_valid` by the pixels.

Shares are of the core's pixels that lie in the scene, so that a tile at the edge is judged by what it can hold. Only
tiles are left out: what is fitted on the training pixels is fitted on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import EmptySplitError
from .faults import blames_scene
from .reading import read_block, read_usable

if TYPE_CHECKING:
    from .engine import Engine
    from .tiles import TileSource
    from .tiling import TileGrid

Counts = NDArray[np.int64]
_BLOCK_BYTES = 24 << 20


def count_by_cell(pixels_yx: NDArray[np.bool_], first_row: int, size: int, across: int) -> Counts:
    """Count the true pixels of some whole rows by the cell whose core holds them.

    Parameters
    ----------
    pixels_yx
        (rows, scene columns).
    first_row
        Scene row of the first of them.
    size
        Side of a core.
    across
        Number of cell columns.

    Returns
    -------
    numpy.ndarray
        (cell rows touched, `across`), the first for the cell row in which `first_row` lies.
    """
    rows, cols = pixels_yx.shape
    along = np.add.reduceat(pixels_yx, np.arange(0, cols, size), axis=1, dtype=np.int64)
    top = first_row // size
    edges = np.maximum(np.arange(top, (first_row + rows - 1) // size + 1) * size - first_row, 0)
    counts = np.add.reduceat(along, edges, axis=0)
    assert counts.shape[1] == across
    return counts


def enough(counts: Counts, least: float, grid: TileGrid) -> NDArray[np.bool_]:
    """Return which cells hold enough, (cell rows, cell columns).

    Parameters
    ----------
    counts
        (cell rows, cell columns) pixels.
    least
        A float is a share of the core's pixels in the scene, an int a number of pixels.
    grid
        The scene's cells.
    """
    if isinstance(least, int):
        return counts >= least
    # counted, not divided: 0.1 of 10 pixels is one pixel, whatever the last bits say
    return counts >= least * grid.core_pixels() * (1 - 1e-12)


@blames_scene
def valid_counts(source: TileSource, rows: slice) -> Counts:
    """Count the valid pixels of some whole rows by cell, see `count_by_cell`."""
    cols = slice(0, source.grid.shape_yx[1])
    valid = source.chain.validity(read_block(source.scene, rows, cols), read_usable(source.scene, rows, cols))
    return count_by_cell(valid, rows.start, source.grid.size, source.grid.tiles_yx[1])


def validity_bytes(source: TileSource) -> int:
    """Return an upper bound of the memory that one task of `keep_valid` takes, in bytes."""
    rows = next(iter(_row_blocks(source)))
    pixels = (rows.stop - rows.start) * source.grid.shape_yx[1]
    item, bands = source.scene["data"].dtype.itemsize, source.chain.source_bands
    # the chunk and the block as read, two masks of all bands, and the counts
    return pixels * bands * (2 * item + 2) + 2 * pixels * 9


def _row_blocks(source: TileSource) -> list[slice]:
    height, width = source.grid.shape_yx
    row = width * source.chain.source_bands * source.scene["data"].dtype.itemsize
    step = max(1, _BLOCK_BYTES // row)
    return [slice(start, min(height, start + step)) for start in range(0, height, step)]


def keep_valid(
    sources: Sequence[TileSource], least: float, engine: Engine, *, quiet: bool
) -> list[NDArray[np.int64]]:
    """Read the scenes once more and return the cells of each whose cores hold enough valid pixels, and were kept so far.

    Parameters
    ----------
    sources
        The scenes with their fitted chains; `grid.kept` are the cells kept so far.
    least
        Share of valid pixels.
    engine
        Runs one task per block of whole rows.
    quiet
        No progress.

    Raises
    ------
    EmptySplitError
        No tile is left.
    """
    count = engine.task(valid_counts)
    tasks: list[Any] = []
    places: list[tuple[int, int]] = []
    for number, source in enumerate(sources):
        shared = engine.share(source)
        for rows in _row_blocks(source):
            tasks.append(count(shared, rows, dask_key_name=f"work-validity-{number:04d}-{rows.start:08d}"))
            places.append((number, rows.start // source.grid.size))
    found = engine.run(tasks, description="validity", count=len(tasks), quiet=quiet)
    totals = [np.zeros(source.grid.tiles_yx, np.int64) for source in sources]
    for (number, top), counts in zip(places, found, strict=True):
        totals[number][top : top + len(counts)] += counts
    kept = [
        _narrowed(source.grid, enough(total, float(least), source.grid))
        for source, total in zip(sources, totals, strict=True)
    ]
    require_tiles(kept, f"tiles.min_valid: {least:g}")
    return kept


def _narrowed(grid: TileGrid, good: NDArray[np.bool_]) -> NDArray[np.int64]:
    cells = np.flatnonzero(good)
    return cells if grid.kept is None else np.intersect1d(cells, grid.kept)


def require_tiles(kept: Sequence[NDArray[np.int64]], setting: str) -> None:
    """Refuse a store without tiles.

    Raises
    ------
    EmptySplitError
        Names the setting that leaves none.
    """
    if not sum(map(len, kept)):
        raise EmptySplitError(f"No tile is left with {setting}; make it smaller, or tiles.size smaller.")
