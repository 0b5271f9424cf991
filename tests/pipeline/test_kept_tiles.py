"""Tiles that hold too little are left out and counted; those that stay are the same tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline import build
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import BandstreamError, ConfigError, EmptySplitError
from bandstream.pipeline.kept_tiles import count_by_cell, enough
from bandstream.pipeline.tiling import TileGrid

from .conftest import MadeScene

Flow = dict[str, Any]


def _with(flow: Flow, **tiles: Any) -> Flow:
    return {**flow, "tiles": {**flow["tiles"], **tiles}, "split": {"by": "none"}}


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.integers(1, 11),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_counts_by_cell_do_not_depend_on_how_the_rows_are_read(
    shape: tuple[int, int], size: int, step: int, seed: int
) -> None:
    pixels = np.random.default_rng(seed).random(shape) < 0.4
    grid = TileGrid(shape, size, 0)
    total = np.zeros(grid.tiles_yx, int)
    for start in range(0, shape[0], step):
        part = count_by_cell(pixels[start : start + step], start, size, grid.tiles_yx[1])
        total[start // size : start // size + len(part)] += part
    expected = [
        [pixels[y : y + size, x : x + size].sum() for x in range(0, shape[1], size)]
        for y in range(0, shape[0], size)
    ]
    np.testing.assert_array_equal(total, expected)


def test_a_share_is_of_the_pixels_that_lie_in_the_scene_and_a_whole_number_is_a_count() -> None:
    grid = TileGrid((15, 10), 10, 2)  # the lower cell holds 50 pixels
    counts = np.array([[50], [25]])
    assert enough(counts, 0.5, grid).tolist() == [[True], [True]]
    assert enough(counts, 0.51, grid).tolist() == [[False], [False]]
    assert enough(counts, 26, grid).tolist() == [[True], [False]]
    assert enough(np.array([[10], [5]]), 0.1, grid).all()


@pytest.fixture
def part_flow(flow: Flow, made: MadeScene) -> Flow:
    """The workflow over a scene half of which is without data, on another side than half of its labels."""
    import rasterio

    raw = np.fromfile(made.path.with_suffix(".img"), "<i2").reshape(40, 12, 52)
    raw[:, :, 30:] = -9999
    raw.tofile(made.path.with_suffix(".img"))
    with rasterio.open(made.labels_path, "r+") as labels:
        values = labels.read(1)
        values[20:] = 0
        labels.write(values, 1)
    return flow


@pytest.mark.parametrize(
    "asked",
    [
        {"min_valid": 0.5},
        {"min_labelled": 0.3},
        {"min_labelled": 70},
        {"min_valid": 0.5, "min_labelled": 0.01},
    ],
)
def test_the_tiles_that_stay_are_those_that_hold_enough_and_equal_those_of_the_whole_store(
    part_flow: Flow, asked: dict[str, float]
) -> None:
    whole, part = build(_with(part_flow)), build(_with(part_flow, **asked))
    assert whole.fingerprint != part.fingerprint
    core = (slice(None), slice(2, 18), slice(2, 18))
    index = whole.index
    inside = np.array(
        [min(16, 40 - row) * min(16, 52 - col) for row, col in zip(index.row, index.col, strict=True)]
    )
    valid = whole.read_tiles("valid", 0, len(whole))[core].sum(axis=(1, 2))
    labels = whole.read_tiles("labels", 0, len(whole))[core]
    labelled = (labels > 0).sum(axis=(1, 2))
    keep = np.ones(len(whole), bool)
    if "min_valid" in asked:
        keep &= valid >= asked["min_valid"] * inside
    if least := asked.get("min_labelled"):
        keep &= labelled >= (least if isinstance(least, int) else least * inside)
    assert 0 < keep.sum() < len(whole)
    assert len(part) == keep.sum()
    for name in ("scene", "row", "col", "pixels", "labelled"):
        np.testing.assert_array_equal(getattr(part.index, name), getattr(index, name)[keep])
    for name in ("labels", "valid", "split"):
        np.testing.assert_array_equal(
            part.read_tiles(name, 0, len(part)), whole.read_tiles(name, 0, len(whole))[keep]
        )
    # other neighbours are multiplied together, which may move the last bit
    data, wanted = part.read_tiles("data", 0, len(part)), whole.read_tiles("data", 0, len(whole))[keep]
    np.testing.assert_allclose(data, wanted, rtol=1e-5, atol=1e-5)
    dropped = part.attrs["tiles"]["dropped"]
    assert sum(dropped.values()) == (~keep).sum()
    assert set(dropped) == set(asked)


def test_what_is_left_out_is_told_and_a_dry_run_says_that_it_is_a_bound(part_flow: Flow) -> None:
    asked = _with(part_flow, min_valid=0.5, min_labelled=0.01)
    dry = run_build(asked, dry_run=True, quiet=True)
    made = run_build(asked, quiet=True)
    assert made.tiles < dry.tiles < 12
    assert any("at most" in line for line in dry.notes)
    assert "tiles left out by tiles.min_labelled: 4" in made.notes
    assert f"tiles left out by tiles.min_valid: {dry.tiles - made.tiles}" in made.notes


def test_tiles_that_stay_do_not_depend_on_how_the_scene_is_read(
    part_flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandstream.pipeline import kept_tiles

    asked = _with(part_flow, min_valid=0.5)
    first = build(asked)
    monkeypatch.setattr(kept_tiles, "_BLOCK_BYTES", 52 * 12 * 2 * 7)
    second = build({**asked, "store": {"root": part_flow["store"]["root"] + "-again"}})
    np.testing.assert_array_equal(first.index.row, second.index.row)
    np.testing.assert_array_equal(first.index.col, second.index.col)


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"min_valid": 1.0}, EmptySplitError, "No tile is left with tiles.min_valid: 1"),
        ({"min_labelled": 300}, EmptySplitError, "No tile is left with tiles.min_labelled: 300"),
        ({"min_valid": 1.5}, ConfigError, "min_valid"),
        ({"min_labelled": -0.5}, ConfigError, "min_labelled"),
    ],
)
def test_bounds_that_leave_nothing_or_mean_nothing_are_refused(
    part_flow: Flow, asked: dict[str, float], error: type[BandstreamError], match: str
) -> None:
    with pytest.raises(error, match=match):
        build(_with(part_flow, **asked))


def test_labelled_shares_without_labels_are_refused(flow: Flow, made: MadeScene) -> None:
    with pytest.raises(ConfigError, match="needs labels"):
        build({**_with(flow, min_labelled=0.1), "scenes": [{"path": str(made.path)}]})
