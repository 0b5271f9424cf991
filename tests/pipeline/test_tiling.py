"""The patch grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.tiling import TileGrid, reflect

shapes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(shapes, st.integers(1, 20), st.integers(0, 6))
def test_every_pixel_lies_in_exactly_one_core(shape: tuple[int, int], size: int, halo: int) -> None:
    """Case: grids that miss the right and bottom edge, count pixels twice, or fail on areas smaller than a patch."""
    grid = TileGrid(shape, size, halo)
    seen = np.zeros(shape, int)
    for tile in range(len(grid)):
        row, col = grid.origin(tile)
        seen[row : row + size, col : col + size] += 1
    assert (seen == 1).all()


@settings(max_examples=150, deadline=None)
@given(shapes, st.integers(1, 20), st.integers(0, 6), st.data())
def test_tiles_cut_from_runs_equal_numpy_padding(
    shape: tuple[int, int], size: int, halo: int, data: st.DataObject
) -> None:
    grid = TileGrid(shape, size, halo)
    scene = np.arange(shape[0] * shape[1]).reshape(shape)
    down, across = grid.tiles_yx
    pad = [(halo, halo + down * size - shape[0]), (halo, halo + across * size - shape[1])]
    padded = (
        np.pad(scene, pad, mode="reflect")
        if min(shape) > 1
        else scene[np.ix_(*(reflect(np.arange(-a, n + b), n) for (a, b), n in zip(pad, shape, strict=True)))]
    )
    start = data.draw(st.integers(0, len(grid) - 1))
    stop = data.draw(st.integers(start + 1, len(grid)))
    seen = []
    for run in grid.runs(start, stop):
        window = run.window(scene[run.source_rows, run.source_cols])
        inside = run.window(np.ones_like(scene, bool)[run.source_rows, run.source_cols]) & run.inside
        tiles = grid.cut(window, run.count)
        for number in range(run.count):
            seen.append(run.first + number)
            row, col = grid.origin(run.first + number)
            side = size + 2 * halo
            np.testing.assert_array_equal(tiles[number], padded[row : row + side, col : col + side])
        assert inside.sum() <= scene.size * run.count
    assert seen == list(range(start, stop))


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_mirroring_agrees_with_numpy(length: int) -> None:
    index = np.arange(-9, length + 9)
    expected = np.pad(np.arange(length), 9, mode="reflect") if length > 1 else np.zeros(len(index), int)
    np.testing.assert_array_equal(reflect(index, length), expected)
