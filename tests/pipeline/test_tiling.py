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


@settings(max_examples=100, deadline=None)
@given(shapes, st.integers(1, 9), st.integers(0, 4), st.data())
def test_kept_tiles_are_those_of_the_whole_grid_under_new_numbers(
    shape: tuple[int, int], size: int, halo: int, data: st.DataObject
) -> None:
    everything = TileGrid(shape, size, halo)
    kept = sorted(data.draw(st.sets(st.integers(0, len(everything) - 1), min_size=1)))
    grid = TileGrid(shape, size, halo, np.array(kept, np.int64))
    scene = np.arange(shape[0] * shape[1]).reshape(shape)

    def tiles(of: TileGrid, start: int, stop: int) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for run in of.runs(start, stop):
            cut = of.cut(run.window(scene[run.source_rows, run.source_cols]), run.count)
            assert of.origin(run.first) == (run.row, run.col)
            found |= {run.first + n: tile for n, tile in enumerate(cut)}
        return found

    whole = tiles(everything, 0, len(everything))
    start = data.draw(st.integers(0, len(grid)))
    stop = data.draw(st.integers(start, len(grid)))
    part = tiles(grid, start, stop)
    assert list(part) == list(range(start, stop))
    for number, tile in part.items():
        np.testing.assert_array_equal(tile, whole[kept[number]])
        assert grid.origin(number) == everything.origin(kept[number])
    np.testing.assert_array_equal(grid.origins(), [everything.origin(cell) for cell in kept])
    assert len(grid) == len(kept)


def test_runs_join_neighbours_only() -> None:
    grid = TileGrid((30, 40), 10, 0, np.array([0, 1, 3, 4, 5, 7, 8, 11]))
    assert [(run.first, run.count, run.row, run.col) for run in grid.runs(0, len(grid))] == [
        (0, 2, 0, 0),
        (2, 1, 0, 30),
        (3, 2, 10, 0),
        (5, 1, 10, 30),
        (6, 1, 20, 0),
        (7, 1, 20, 30),
    ]
    assert list(grid.runs(3, 3)) == []


def test_the_cores_hold_the_pixels_of_the_scene_that_are_counted() -> None:
    assert TileGrid((25, 12), 10, 3).core_pixels().tolist() == [[100, 20], [100, 20], [50, 10]]


def test_a_million_tiles_are_indexed_in_seconds_with_flat_memory() -> None:
    """Case: batch lists that load everything or test patches one by one."""
    import time
    import tracemalloc

    kept = np.delete(np.arange(1_050_625), np.arange(0, 1_050_625, 21))
    grid = TileGrid((4100, 4100), 4, 2, kept)
    tracemalloc.start()
    started = time.perf_counter()
    origins = grid.origins()
    counted = sum(run.count for start in range(0, len(grid), 4096) for run in grid.runs(start, start + 64))
    seconds, peak = time.perf_counter() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(origins) == len(grid) > 1_000_000
    np.testing.assert_array_equal(origins, np.stack(np.divmod(kept, 1025), axis=1) * 4)
    assert counted == 64 * len(range(0, len(grid), 4096))
    assert seconds < 5
    assert peak < 6 * origins.nbytes
