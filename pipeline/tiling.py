"""The patch grid: cores that hold every pixel exactly once, with a halo around each.

A tile is a `size x size` core plus `halo` pixels on every side. The cells of the grid are counted row by row; tiles are
numbered in the order of their cells, over those only that are kept. Pixels beyond the scene's edge are mirrored (without
repeating the edge pixel, as numpy's ``reflect``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TileRun:
    """Neighbouring tiles of one tile row, and the pixels they need.

    The window `rows x cols` (with halo) may reach beyond the scene; `source_rows` and `source_cols` are the scene
    pixels that it mirrors or holds.
    """

    first: int  #: number of the first tile in its scene
    count: int
    row: int  #: scene row of the cores' first pixel
    col: int  #: scene column of the first core's first pixel
    row_index: NDArray[np.intp]  #: (size + 2 halo,) scene row of each window row
    col_index: NDArray[np.intp]  #: (count * size + 2 halo,) scene column of each window column
    inside: NDArray[np.bool_]  #: window pixels that lie in the scene

    @property
    def source_rows(self) -> slice:
        """Scene rows to read."""
        return slice(int(self.row_index.min()), int(self.row_index.max()) + 1)

    @property
    def source_cols(self) -> slice:
        """Scene columns to read."""
        return slice(int(self.col_index.min()), int(self.col_index.max()) + 1)

    def window(self, source: NDArray[np.generic]) -> NDArray[np.generic]:
        """Arrange pixels read from the source slices, (..., y, x), as the window with mirrored edges."""
        rows, cols = self.row_index - self.source_rows.start, self.col_index - self.source_cols.start
        out = source
        # np.take copies; most windows lie inside the scene and need none
        if not np.array_equal(rows, np.arange(len(rows))) or source.shape[-2] != len(rows):
            out = np.take(out, rows, axis=-2)
        if not np.array_equal(cols, np.arange(len(cols))) or source.shape[-1] != len(cols):
            out = np.take(out, cols, axis=-1)
        return out


@dataclass(frozen=True)
class TileGrid:
    """The tiles of one scene."""

    shape_yx: tuple[int, int]
    size: int
    halo: int
    kept: NDArray[np.int64] | None = field(
        default=None, compare=False
    )  #: rising cell numbers; None = all cells

    @property
    def tiles_yx(self) -> tuple[int, int]:
        """Number of cell rows and columns."""
        return -(-self.shape_yx[0] // self.size), -(-self.shape_yx[1] // self.size)

    @property
    def cells(self) -> int:
        """Number of tiles if all were kept."""
        down, across = self.tiles_yx
        return down * across

    def __len__(self) -> int:
        return self.cells if self.kept is None else len(self.kept)

    def origin(self, tile: int) -> tuple[int, int]:
        """Return the scene row and column of a tile's first core pixel."""
        cell = tile if self.kept is None else int(self.kept[tile])
        row, col = divmod(cell, self.tiles_yx[1])
        return row * self.size, col * self.size

    def origins(self) -> NDArray[np.int64]:
        """Return the scene row and column of every tile's first core pixel, (tile, 2)."""
        cells = np.arange(self.cells, dtype=np.int64) if self.kept is None else self.kept
        return np.stack(np.divmod(cells, self.tiles_yx[1]), axis=1) * self.size

    def core_pixels(self) -> NDArray[np.int64]:
        """Return how many pixels of the scene lie in each cell's core, (cell rows, cell columns)."""
        rows, cols = (
            np.minimum(self.size, length - np.arange(0, length, self.size)) for length in self.shape_yx
        )
        return (rows[:, None] * cols[None, :]).astype(np.int64)

    def runs(self, start: int, stop: int) -> Iterator[TileRun]:
        """Split the tiles start..stop-1 into runs of neighbours in one row of cells."""
        across = self.tiles_yx[1]
        cells = np.arange(start, stop) if self.kept is None else self.kept[start:stop]
        if not len(cells):
            return
        ends = np.flatnonzero((np.diff(cells) != 1) | (cells[1:] % across == 0)) + 1
        for first, last in zip([0, *ends.tolist()], [*ends.tolist(), len(cells)], strict=True):
            yield self._run(start + first, last - first)

    def _run(self, first: int, count: int) -> TileRun:
        row, col = self.origin(first)
        rows = np.arange(row - self.halo, row + self.size + self.halo)
        cols = np.arange(col - self.halo, col + count * self.size + self.halo)
        inside_y = (rows >= 0) & (rows < self.shape_yx[0])
        inside_x = (cols >= 0) & (cols < self.shape_yx[1])
        return TileRun(
            first,
            count,
            row,
            col,
            reflect(rows, self.shape_yx[0]),
            reflect(cols, self.shape_yx[1]),
            inside_y[:, None] & inside_x[None, :],
        )

    def cut(self, window: NDArray[np.generic], count: int) -> NDArray[np.generic]:
        """Cut a run's window (..., y, x) into its tiles (tile, ..., y, x); a view."""
        side = self.size + 2 * self.halo
        views = np.lib.stride_tricks.sliding_window_view(window, side, axis=-1)[..., :: self.size, :]
        assert views.shape[-2] == count
        return np.moveaxis(views, -2, 0)


def reflect(index: NDArray[np.intp], length: int) -> NDArray[np.intp]:
    """Mirror pixel numbers outside 0..length-1 back into it, again and again where the scene is small.

    Examples
    --------
    >>> reflect(np.arange(-2, 5), 3).tolist()
    [2, 1, 0, 1, 2, 1, 0]
    """
    if length == 1:
        return np.zeros_like(index)
    period = 2 * (length - 1)
    folded = np.mod(index, period)
    return np.where(folded < length, folded, period - folded)
