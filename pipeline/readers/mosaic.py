"""Several GeoTIFF tiles as one lazy scene on their common grid.

The tiles must share coordinate system, pixel size, alignment, bands and number type. Gaps between them become nodata,
so with gaps a nodata value is required (or tiles with masks). Where tiles overlap, the first one in natural order of the names (or in the
order of the list given) is taken, and the scene says so; tiles that lie wholly on an earlier one are refused, since
they are more likely bands or dates of one place than tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError
from ..nodata import invalid_mask
from ..place import shifted
from .cube import CHUNK_BYTES, lazy_cube
from .geotiff import RasterFacts, cube_of, lazy_plane, mask_of, read_facts, scene_of
from .indexing import split_key, squeeze
from .options import Notes, Options
from .raster import RasterCube

_TOLERANCE = 1e-3
"""Pixels by which a tile may lie beside the common grid (rounding of written coordinates)."""

_LARGEST_CHUNK = 64 * 2**20


@dataclass(frozen=True)
class Tile:
    """A raster and where its first pixel lies on the common grid."""

    cube: RasterCube
    row: int
    col: int

    @property
    def bottom(self) -> int:
        """Row after the last."""
        return self.row + self.cube.shape[0]

    @property
    def right(self) -> int:
        """Column after the last."""
        return self.col + self.cube.shape[1]


class MosaicCube:
    """Array-like (y, x, band) over tiles; what no tile covers is `fill`."""

    ndim = 3

    def __init__(self, tiles: Sequence[Tile], shape: tuple[int, int, int], fill: float) -> None:
        self.tiles = tuple(tiles)
        self.shape = shape
        self.dtype = tiles[0].cube.dtype
        self.fill = fill

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window from the tiles that it touches."""
        (y, x, band), drop = split_key(key, self.shape)
        rows, cols, bands = (np.arange(n)[axis] for n, axis in zip(self.shape, (y, x, band), strict=True))
        block = np.full((len(bands), len(rows), len(cols)), self.fill, self.dtype)
        for tile in reversed(self.tiles):  # the first tile is written last and stays
            in_y = np.flatnonzero((rows >= tile.row) & (rows < tile.bottom))
            in_x = np.flatnonzero((cols >= tile.col) & (cols < tile.right))
            if not (in_y.size and in_x.size and bands.size):
                continue
            piece = tile.cube[_key(rows[in_y] - tile.row), _key(cols[in_x] - tile.col), _key(bands)]
            ky, kx = _key(in_y), _key(in_x)
            if isinstance(ky, slice) and isinstance(kx, slice):
                block[:, ky, kx] = piece.transpose(2, 0, 1)
            else:
                block[np.ix_(np.arange(len(bands)), in_y, in_x)] = piece.transpose(2, 0, 1)
        out = block.transpose(1, 2, 0)
        return squeeze(out, drop)


def open_mosaic(
    paths: Sequence[str], options: Options, notes: Notes, why: str, *, source: str, scene_id: str
) -> xr.Dataset:
    """Open tiles as one lazy scene.

    Parameters
    ----------
    paths
        GeoTIFF files; of overlapping ones the first is taken.
    source, scene_id
        What the user gave, and the name of the scene.

    Raises
    ------
    FormatError
        If the tiles do not fit together, or there are gaps and no nodata value.
    """
    facts = [read_facts(path, options, notes) for path in paths]
    for other in facts[1:]:
        _same(facts[0], other)
    origins = _origins(facts)
    top, left = min(row for row, _ in origins), min(col for _, col in origins)
    tiles = [Tile(cube_of(f), row - top, col - left) for f, (row, col) in zip(facts, origins, strict=True)]
    rows, cols = max(t.bottom for t in tiles), max(t.right for t in tiles)
    _check_overlap(tiles, notes)
    covered = _covered(tiles, rows, cols)
    masked = any(f.masked for f in facts)
    fill = _fill_value(facts[0], options, rows * cols if masked else covered, rows * cols)
    shape = (rows, cols, facts[0].shape[2])
    cube = MosaicCube(tiles, shape, fill)
    row_chunks, col_chunks = _chunks(tiles, facts, shape)
    data = lazy_cube(cube, row_chunks, col_chunks, paths=list(paths))
    valid = None
    if masked:
        masks = [Tile(mask_of(f), t.row, t.col) for f, t in zip(facts, tiles, strict=True)]
        valid = lazy_plane(MosaicCube(masks, (rows, cols, 1), fill=False), data, paths=list(paths))
    first = facts[0].transform
    transform = None
    if first is not None:
        transform = shifted(first, -tiles[0].col, -tiles[0].row)
    return scene_of(
        facts[0],
        data,
        options,
        source=source,
        scene_id=scene_id,
        files=list(dict.fromkeys(name for f in facts for name in f.files)),
        block_bytes=max(f.block_bytes for f in facts),
        why=why,
        transform=transform,
        valid_yx=valid,
    )


def _key(index: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return a slice for a run of neighbours, so that a window stays a window."""
    if index.size and index[-1] - index[0] + 1 == index.size and (np.diff(index) == 1).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _same(first: RasterFacts, other: RasterFacts) -> None:
    """Raise unless two tiles can belong to one scene."""

    def differ(what: str, a: object, b: object, change: str) -> FormatError:
        return FormatError(f"{other.path} has {what} {b}, but {first.path} has {a}; {change}")

    same_grid = "tiles of one scene must share it: reproject them, or open them one by one (open_scenes)"
    if first.transform is None or other.transform is None:
        without = first.path if first.transform is None else other.path
        msg = f"{without} has no georeference, so its place among the tiles is not known; open the files one by one"
        raise FormatError(msg)
    if first.shape[2] != other.shape[2]:
        raise differ("bands:", first.shape[2], other.shape[2], "tiles of one scene must have the same bands")
    if first.dtype != other.dtype:
        raise differ("the number type", first.dtype, other.dtype, "tiles of one scene must have the same")
    if first.crs != other.crs:
        raise differ("the CRS", first.crs, other.crs, same_grid)
    a, b = first.transform, other.transform
    steps = np.array([(a.a, b.a), (a.b, b.b), (a.d, b.d), (a.e, b.e)])
    extent = max(*first.shape[:2], *other.shape[:2])
    if np.abs(steps[:, 0] - steps[:, 1]).max() * extent > _TOLERANCE * np.abs(steps).max():
        raise differ("the pixel size", (a.a, a.b, a.d, a.e), (b.a, b.b, b.d, b.e), same_grid)
    for name, left, right in (
        ("nodata", first.nodata, other.nodata),
        ("scales", first.scale, other.scale),
        ("offsets", first.offset, other.offset),
        ("wavelengths", first.bands["wavelength_nm"], other.bands["wavelength_nm"]),
        ("good bands", first.bands["good_band"], other.bands["good_band"]),
    ):
        if not _equal(left, right):
            raise differ(
                f"other {name}:", _short(left), _short(right), "tiles of one scene must have the same"
            )


def _equal(left: NDArray[Any] | None, right: NDArray[Any] | None) -> bool:
    if left is None or right is None:
        return left is right
    return bool(np.allclose(left, right, rtol=1e-6, atol=0, equal_nan=True))


def _short(values: NDArray[Any] | None) -> str:
    return "none" if values is None else f"{np.unique(values)[:4].tolist()}..."


def _origins(facts: Sequence[RasterFacts]) -> list[tuple[int, int]]:
    """Return (row, column) of each tile's first pixel relative to the first tile."""
    first = facts[0].transform
    assert first is not None
    out: list[tuple[int, int]] = []
    for f in facts:
        assert f.transform is not None
        inverse, x, y = ~first, f.transform.c, f.transform.f
        col = inverse.a * x + inverse.b * y + inverse.c
        row = inverse.d * x + inverse.e * y + inverse.f
        if max(abs(col - round(col)), abs(row - round(row))) > _TOLERANCE:
            msg = (
                f"{f.path} lies {col - round(col):+.3f} columns and {row - round(row):+.3f} rows beside the pixel grid "
                f"of {facts[0].path}; tiles of one scene must be aligned: resample them, or open them one by one"
            )
            raise FormatError(msg)
        out.append((round(row), round(col)))
    return out


def _check_overlap(tiles: Sequence[Tile], notes: Notes) -> None:
    """Refuse a tile that lies on an earlier one, and warn of partial overlaps."""
    shared = 0
    by_row = sorted(range(len(tiles)), key=lambda i: tiles[i].row)
    for position, i in enumerate(by_row):
        for j in by_row[position + 1 :]:
            a, b = tiles[i], tiles[j]
            if b.row >= a.bottom:
                break
            height = min(a.bottom, b.bottom) - max(a.row, b.row)
            width = min(a.right, b.right) - max(a.col, b.col)
            if height <= 0 or width <= 0:
                continue
            shared += height * width
            smaller = min(a.cube.shape[0] * a.cube.shape[1], b.cube.shape[0] * b.cube.shape[1])
            if height * width == smaller:
                msg = (
                    f"{a.cube.path} and {b.cube.path} cover the same ground; tiles lie side by side. Bands in files of "
                    "their own must be stacked first; scenes of several dates are opened one by one (open_scenes)"
                )
                raise FormatError(msg)
    if shared:
        notes.warn(
            f"{len(tiles)} tiles overlap in {shared} pixels; there the first tile in the order given is taken"
        )


def _covered(tiles: Sequence[Tile], rows: int, cols: int) -> int:
    """Return the number of pixels that some tile covers, by sweeping over rows and columns between edges."""
    ys = np.unique([0, rows, *(e for t in tiles for e in (t.row, t.bottom))])
    xs = np.unique([0, cols, *(e for t in tiles for e in (t.col, t.right))])
    grid = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for t in tiles:
        y0, y1 = np.searchsorted(ys, [t.row, t.bottom])
        x0, x1 = np.searchsorted(xs, [t.col, t.right])
        grid[y0:y1, x0:x1] = True
    return int((grid * np.diff(ys)[:, None] * np.diff(xs)[None]).sum())


def _fill_value(first: RasterFacts, options: Options, covered: int, pixels: int) -> float:
    """Return what gaps are filled with.

    Raises
    ------
    FormatError
        If there are gaps, and no nodata value that the number type can hold.
    """
    nodata = np.asarray(options.nodata, np.float64) if options.nodata is not None else first.nodata
    value = None if nodata is None else float(np.reshape(nodata, -1)[0])
    if value is None or (nodata is not None and np.unique(nodata).size > 1):
        if covered == pixels:
            return 0.0
        msg = (
            f"the tiles leave {pixels - covered} of {pixels} pixels uncovered, and {first.path} has no nodata value "
            "common to all bands to fill them with; give nodata="
        )
        raise FormatError(msg)
    filled = np.full((1, 1, 1), value if np.isnan(value) and first.dtype.kind == "f" else 0, first.dtype)
    if not np.isnan(value):
        with np.errstate(all="ignore"):
            filled = np.full((1, 1, 1), value).astype(first.dtype)
    bad = invalid_mask(filled, np.array([value]))
    if covered != pixels and (bad is None or not bad.all()):
        msg = (
            f"nodata = {value:g} does not exist in {first.dtype}, so gaps between the tiles cannot be marked"
        )
        raise FormatError(msg)
    return value if bad is not None else 0.0


def _chunks(
    tiles: Sequence[Tile], facts: Sequence[RasterFacts], shape: tuple[int, int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return chunks that cut no block of any tile where that is possible within bounds."""
    rows, cols, bands = shape
    pixel_bytes = bands * tiles[0].cube.dtype.itemsize
    cuts = np.ones(rows + 1, bool)  # rows at which no block of any tile is cut
    for tile, f in zip(tiles, facts, strict=True):
        inside = np.ones(tile.cube.shape[0] + 1, bool)
        inside[1:-1] = np.arange(1, tile.cube.shape[0]) % f.block[0] == 0
        cuts[tile.row : tile.bottom + 1] &= inside
    cuts[[0, rows]] = True
    row_chunks = _greedy(np.flatnonzero(cuts), max(1, CHUNK_BYTES // (cols * pixel_bytes)))
    if max(row_chunks) * cols * pixel_bytes <= _LARGEST_CHUNK:
        return row_chunks, (cols,)
    edges = np.unique([0, cols, *(e for t in tiles for e in (t.col, t.right))])
    return row_chunks, _greedy(edges, max(1, CHUNK_BYTES // (max(row_chunks) * pixel_bytes)))


def _greedy(cuts: NDArray[np.intp], size: int) -> tuple[int, ...]:
    """Join neighbouring intervals as long as they stay within `size`."""
    chunks: list[int] = []
    start = int(cuts[0])
    for here, following in zip(cuts[1:], [*cuts[2:], None], strict=True):
        if following is None or following - start > size:
            chunks.append(int(here) - start)
            start = int(here)
    return tuple(chunks)
