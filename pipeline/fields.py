"""Spatially coherent random fields that can be asked for any rows of an endless scene.

Every number comes from a counter-based generator keyed by (seed, stream, absolute row), so that a row is
the same whichever rows are made together with it, and nothing grows with the length of the scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Lattice rows start above the scene, for the neighbours of its first row; counters are unsigned.
_LEAD: Final = 8


def generator(seed: int, stream: int, row: int) -> np.random.Generator:
    """Return the generator of one row: Philox keyed by seed and stream, its counter starting at the row."""
    counter = np.array([0, 0, 0, row], dtype=np.uint64)
    key = np.array([seed, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def normals(seed: int, stream: int, rows: range, shape: tuple[int, ...]) -> Array:
    """Return float32 standard normals (row, *shape), white and drawn row by row."""
    result = np.empty((len(rows), *shape), dtype=np.float32)
    for place, row in enumerate(rows):
        generator(seed, stream, row).standard_normal(dtype=np.float32, out=result[place])
    return result


def _lattice(seed: int, stream: int, first: int, stop: int, width: int) -> Array:
    """Return uniforms in -1..1 (lattice row, width) for lattice rows first..stop-1; first may be negative."""
    drawn = [
        generator(seed, stream, row + _LEAD).random(width, dtype=np.float32) for row in range(first, stop)
    ]
    return np.stack(drawn) * np.float32(2) - np.float32(1)


def _smooth(share: NDArray[np.float64]) -> Array:
    return (share * share * (3.0 - 2.0 * share)).astype(np.float32)


def smooth_field(seed: int, stream: int, rows: range, cols: int, scale_px: float, octaves: int = 3) -> Array:
    """Return a smooth random field (row, cols), mean 0 and standard deviation about 1.

    Value noise: uniforms on a lattice, blended with smoothstep; each octave halves scale and amplitude.

    Parameters
    ----------
    seed, stream
        Key of the generator; streams are independent of each other. Octaves take `stream`, `stream + 1`, ...
    rows
        Absolute rows.
    cols
        Columns of the scene.
    scale_px
        Lattice spacing of the coarsest octave in pixels.
    octaves
        How many octaves are added.
    """
    total = np.zeros((len(rows), cols), dtype=np.float32)
    power = 0.0
    for octave in range(octaves):
        scale, weight = scale_px / 2**octave, 0.5**octave
        y, x = np.arange(rows.start, rows.stop) / scale, np.arange(cols) / scale
        i, j = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
        values = _lattice(seed, stream + octave, int(i[0]), int(i[-1]) + 2, int(j[-1]) + 2)
        ty, tx = _smooth(y - i)[:, None], _smooth(x - j)[None, :]
        across = values[:, j] * (1 - tx) + values[:, j + 1] * tx
        i -= i[0]
        total += np.float32(weight) * (across[i] * (1 - ty) + across[i + 1] * ty)
        # Uniforms in -1..1 have variance 1/3; smoothstep blending keeps 0.743 of it along each axis.
        power += weight**2 * 0.743**2 / 3.0
    return total / np.float32(power**0.5)


@dataclass(frozen=True)
class Patches:
    """Voronoi-like patches of some rows: which cell each pixel lies in, and what its cells are like."""

    cell: NDArray[np.int64]
    """(row, cols) index of the pixel's own cell, into the arrays below."""
    beside: NDArray[np.int64]
    """(row, cols) index of the nearest other cell."""
    border_px: Array
    """(row, cols) distance to the border between the two, in pixels."""
    kind: NDArray[np.int64]
    """(cells,) class 0..classes-1."""
    companion: NDArray[np.int64]
    """(cells,) another class that is mixed into the cell; the same where there is only one class."""
    traits: Array
    """(cells, 3) standard normals: brightness, slope and vigour of the cell."""
    rank: NDArray[np.float64]
    """(cells,) evenly spread numbers in 0..1, to choose a share of the cells."""


def patches(seed: int, stream: int, rows: range, cols: int, cell_px: float, classes: int) -> Patches:
    """Return patches of about `cell_px` pixels across with winding borders, each of one class.

    Sites lie on a jittered grid and pixel coordinates are warped by a smooth field. Each row of cells goes
    through all classes in a random order before one comes again, so that small scenes hold every class.
    """
    bend = 0.22
    y = (np.arange(rows.start, rows.stop)[:, None] + 0.5) / cell_px
    x = (np.arange(cols)[None, :] + 0.5) / cell_px
    y = y + bend * np.clip(smooth_field(seed, stream + 8, rows, cols, cell_px * 1.2), -2.5, 2.5)
    x = x + bend * np.clip(smooth_field(seed, stream + 16, rows, cols, cell_px * 1.2), -2.5, 2.5)
    i, j = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    # Places within the cell stay exact in float32 however far down the scene they are.
    in_y, in_x = (y - i).astype(np.float32), (x - j).astype(np.float32)
    first, stop = int(i.min()) - 1, int(i.max()) + 2
    # Three cells to either side: the warp reaches 0.55 of a cell beyond the scene, neighbours one more.
    width = int(np.ceil(cols / cell_px)) + 6
    cells = [_cell_row(seed, stream, row, width, classes) for row in range(first, stop)]
    sites = np.concatenate([c[0] for c in cells])
    i -= first
    j += 3
    best = np.full(i.shape, np.inf, dtype=np.float32)
    second = best.copy()
    cell, beside = np.zeros_like(i), np.zeros_like(i)
    for di in (-1, 0, 1):
        for dj in (-1, 0, 1):
            index = (i + di) * width + (j + dj)
            down = in_y - (sites[:, 0][index] + np.float32(di))
            right = in_x - (sites[:, 1][index] + np.float32(dj))
            distance = np.sqrt(down * down + right * right)
            closer, next_closer = distance < best, distance < second
            beside = np.where(closer, cell, np.where(next_closer, index, beside))
            second = np.where(closer, best, np.where(next_closer, distance, second))
            cell, best = np.where(closer, index, cell), np.where(closer, distance, best)
    return Patches(
        cell=cell,
        beside=beside,
        border_px=(second - best) * np.float32(0.5 * cell_px),
        kind=np.concatenate([c[1] for c in cells]),
        companion=np.concatenate([c[2] for c in cells]),
        traits=np.concatenate([c[3] for c in cells]),
        rank=np.concatenate([c[4] for c in cells]),
    )


def _cell_row(
    seed: int, stream: int, row: int, width: int, classes: int
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64], Array, NDArray[np.float64]]:
    """Return sites within their cells (width, 2), classes, companions, traits and ranks of a row of cells."""
    rng = generator(seed, stream, row + _LEAD)
    site = rng.random((width, 2), dtype=np.float32) * np.float32(0.7) + np.float32(0.15)
    turns = [rng.permutation(classes) for _ in range(-(-width // classes))]
    kind = np.concatenate(turns)[:width].astype(np.int64)
    other = rng.integers(1, classes, width) if classes > 1 else np.zeros(width, dtype=np.int64)
    traits = rng.standard_normal((width, 3), dtype=np.float32)
    # The R2 sequence of Roberts (2018): evenly spread in the plane, so that small scenes meet any share too.
    rank = np.arange(width, dtype=np.float64) * 0.5698402909980532 + (row + _LEAD) * 0.7548776662466927 + 0.5
    return site, kind, (kind + other) % classes, traits, np.mod(rank, 1.0)
