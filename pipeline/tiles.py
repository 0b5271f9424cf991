"""Pass 2: the tiles of one shard, from reading the scene's pixels to the written shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .faults import blames_scene
from .reading import read_block, read_usable, row_pieces
from .splits import SplitMap
from .stages.chain import SLAB_VALUES, BoundChain
from .store import TARGETS
from .tiling import TileGrid, TileRun
from .writer import ShardRecord, StoreLayout, StoreWriter

if TYPE_CHECKING:
    from .labels import Labels, Targets


#: Numbers of one read.
READ_VALUES = 8 << 20


@dataclass(frozen=True)
class TileSource:
    """Everything about one scene that its tiles need; picklable."""

    scene: Any  #: the opened Dataset
    grid: TileGrid
    chain: BoundChain
    split: SplitMap
    labels: Labels | None
    scene_id: str = ""
    targets: Targets | None = None


def write_shard(
    writer: StoreWriter, shard: int, sources: Sequence[TileSource], firsts: Sequence[int], classes: int
) -> ShardRecord:
    """Make and write the tiles of one shard.

    Parameters
    ----------
    writer
        Of the store.
    shard
        Number of the shard.
    sources
        All scenes, in the store's order.
    firsts
        Number of each scene's first tile in the store.
    classes
        Number of classes to count.
    """
    span = writer.layout.tiles_of(shard)

    def parts() -> Iterator[dict[str, NDArray[Any]]]:
        for first, source in zip(firsts, sources, strict=True):
            start, stop = max(span.start, first), min(span.stop, first + len(source.grid))
            for run in source.grid.runs(start - first, stop - first) if start < stop else ():
                tiles = tile_run(source, run)
                if writer.layout.targets and TARGETS not in tiles:
                    tiles[TARGETS] = np.full(writer.layout.shape(TARGETS, run.count), np.nan, np.float32)
                yield tiles

    return writer.write_shard(shard, parts(), classes)


@blames_scene
def tile_run(source: TileSource, run: TileRun) -> dict[str, NDArray[Any]]:
    """Return data (tile, band, y, x), labels, valid and split (tile, y, x) of neighbouring tiles.

    With `targets` (tile, target, y, x) where the scene has any.
    """
    rows, cols = run.source_rows, run.source_cols
    data = np.empty((source.chain.outputs, rows.stop - rows.start, cols.stop - cols.start), np.float32)
    valid = np.empty(data.shape[1:], bool)
    for piece in row_pieces(source.scene, rows, READ_VALUES):
        part = slice(piece.start - rows.start, piece.stop - rows.start)
        data[:, part], valid[part] = source.chain.apply(
            read_block(source.scene, piece, cols), read_usable(source.scene, piece, cols)
        )
    split = source.split.codes(rows, cols)
    labels = source.labels.read(rows, cols) if source.labels else np.zeros(valid.shape, np.uint16)
    cut = source.grid.cut
    found: dict[str, NDArray[Any]] = {
        "data": cut(run.window(data), run.count),
        # a mirrored pixel is context for the network, never a pixel of its own
        "labels": cut(np.where(run.inside, run.window(labels), 0), run.count),
        "valid": cut(np.where(run.inside, run.window(valid), False), run.count),
        "split": cut(np.where(run.inside, run.window(split), 0), run.count),
    }
    if source.targets is not None:
        layers = run.window(source.targets.read(rows, cols))
        found[TARGETS] = cut(np.where(run.inside, layers, np.float32(np.nan)), run.count)
    return found


def task_bytes(layout: StoreLayout, sources: Sequence[TileSource], *, remote: bool = False) -> int:
    """Return an upper bound of the memory that one shard's task takes, in bytes."""
    tile = layout.side**2
    # of the shard labels, validity, split and targets, as they come and put together, and one of them encoded; of the
    # data a chunk and its encoded bytes, or, where the store is not a folder, all of them and the copy that is sent
    small = layout.shard * tile * (2 + 1 + 1 + layout.targets * 4)
    shard = 3 * small + 2 * layout.chunk * tile * layout.bands * 4
    if remote:
        shard += 2 * layout.shard * tile * layout.bands * 4
    most = 0
    for source in sources:
        across = min(layout.shard, source.grid.tiles_yx[1])
        height = min(layout.side, source.grid.shape_yx[0])
        width = min(across * layout.size + 2 * layout.halo, source.grid.shape_yx[1])
        item = source.scene["data"].dtype.itemsize
        bands = source.chain.source_bands
        piece = max(1, min(height, READ_VALUES // (width * bands))) * width * bands
        # a piece as read, its bands in front and what is invalid; a slab on its way through the stages (some of which
        # keep several copies); what comes out, and the mirrored window
        reading = piece * (2 * item + 2) + min(SLAB_VALUES, height * width * bands) * (item + 8 * 8)
        window = layout.side * (across * layout.size + 2 * layout.halo) * layout.bands * 4
        if source.targets is not None:
            window += source.targets.window_bytes(height * width)
        most = max(most, reading + height * width * layout.bands * 4 + window)
    return most + shard
