"""Writing a patch store: whole shards first, the manifest last.

Every file is written under another name and then renamed, a shard's record is put in a journal once all its files
stand, and the groups' own metadata come at the very end: a store that was cut off anywhere cannot be opened, neither
here nor with plain Zarr, and its next build keeps the shards whose records still match their bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue] - a compiled module
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ZstdCodec

from .files import write_text
from .store import MANIFEST, TILE_ARRAYS, FileRecord, PatchStore, manifest_checksum

MIB = 1 << 20
MIN_CHUNK_BYTES = MIB
SHARD_BYTES = (8 * MIB, 128 * MIB)
SHARDS_PER_STORE = 32
JOURNAL = ".journal"
_DTYPES: dict[str, Any] = {"data": "float32", "labels": "uint16", "valid": "bool", "split": "uint8"}
CODECS = ("default", "none", "zstd")


@dataclass(frozen=True)
class StoreLayout:
    """Shape of a store's tile arrays; follows from the workflow alone, never from memory or workers."""

    tiles: int
    bands: int
    size: int  #: side of the core
    halo: int
    chunk: int  #: tiles per inner chunk
    shard: int  #: tiles per shard, a multiple of `chunk`
    codec: str  #: one of CODECS

    @classmethod
    def plan(cls, tiles: int, bands: int, size: int, halo: int, codec: str = "default") -> StoreLayout:
        """Choose chunk and shard: chunks of at least 1 MiB, shards of store / 32 within 8 to 128 MiB."""
        tile_bytes = bands * (size + 2 * halo) ** 2 * 4
        chunk = min(-(-MIN_CHUNK_BYTES // tile_bytes), tiles)
        target = min(max(tiles * tile_bytes // SHARDS_PER_STORE, SHARD_BYTES[0]), SHARD_BYTES[1])
        per_shard = max(1, round(target / (chunk * tile_bytes)))
        per_shard = min(per_shard, -(-tiles // chunk))
        return cls(tiles, bands, size, halo, chunk, chunk * per_shard, codec)

    @property
    def side(self) -> int:
        """Side of a tile with its halo, in pixels."""
        return self.size + 2 * self.halo

    @property
    def shards(self) -> int:
        """Number of shards of each tile array."""
        return -(-self.tiles // self.shard)

    def tiles_of(self, shard: int) -> range:
        """Return the tiles that a shard holds."""
        return range(shard * self.shard, min((shard + 1) * self.shard, self.tiles))

    def shape(self, name: str, tiles: int | None = None) -> tuple[int, ...]:
        """Return the shape of a tile array, or of `tiles` tiles of it."""
        lead = self.tiles if tiles is None else tiles
        return (lead, self.bands, self.side, self.side) if name == "data" else (lead, self.side, self.side)


@dataclass(frozen=True)
class ShardRecord:
    """What the task of one shard returns and its journal keeps."""

    files: dict[str, FileRecord]
    pixels: list[list[int]]  #: per tile: valid core pixels by split
    labelled: list[list[list[int]]]  #: per tile: labelled core pixels by split and class


@dataclass(frozen=True)
class StoreWriter:
    """Writes one store; small and picklable, so that every task carries it."""

    path: Path
    layout: StoreLayout

    def begin(self) -> None:
        """Create the tile arrays unless an earlier, interrupted build left the same ones."""
        plan = self.path / JOURNAL / "layout.json"
        wanted = json.dumps(asdict(self.layout), sort_keys=True)
        if self.path.exists() and (not plan.is_file() or plan.read_text() != wanted):
            shutil.rmtree(self.path)
        for name in TILE_ARRAYS:
            if not (self.path / "tiles" / name / "zarr.json").is_file():
                self._create(name)
        write_text(plan, wanted)

    def _create(self, name: str) -> None:
        layout = self.layout
        axes = ("tile", "band", "y", "x") if name == "data" else ("tile", "y", "x")
        compressors: list[Any] = {
            "default": [BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")],
            "zstd": [ZstdCodec(level=3)],
            "none": [],
        }[layout.codec]
        zarr.create_array(
            self.path / "tiles" / name,
            shape=layout.shape(name),
            chunks=layout.shape(name, layout.chunk),
            shards=layout.shape(name, layout.shard),
            dtype=_DTYPES[name],
            serializer=BytesCodec(endian="little") if name in ("data", "labels") else "auto",
            compressors=[*compressors, Crc32cCodec()],
            fill_value=0,
            dimension_names=axes,
            attributes=_CF[name],
            config={"write_empty_chunks": True},
        )

    def write_shard(self, shard: int, tiles: Mapping[str, NDArray[Any]], classes: int) -> ShardRecord:
        """Write one shard of every tile array and put it in the journal.

        Parameters
        ----------
        shard
            Number of the shard.
        tiles
            `data`, `labels`, `valid` and `split` of the shard's tiles, shaped as `StoreLayout.shape` says.
        classes
            Number of classes to count.
        """
        blosc.use_threads = False  # several Blosc threads give other bytes on each run
        span = self.layout.tiles_of(shard)
        store = PatchStore(self.path, {})
        files: dict[str, FileRecord] = {}
        for name in TILE_ARRAYS:
            written = store.shard_path(name, shard)
            written.unlink(missing_ok=True)  # one that an interrupted build left is not to be read and merged
            # an array that is opened forgets this setting, and a shard of zeros would not be written
            array = zarr.open_array(self.path / "tiles" / name, mode="r+").with_config(
                {"write_empty_chunks": True}
            )
            array[span.start : span.stop] = tiles[name]
            files[str(written.relative_to(self.path))] = FileRecord.of(written)
        pixels, labelled = count_pixels(
            tiles["labels"], tiles["valid"], tiles["split"], self.layout.halo, classes
        )
        record = ShardRecord(files, pixels.tolist(), labelled.tolist())
        write_text(self._journal(shard), json.dumps(asdict(record)))
        return record

    def finished(self, shard: int) -> ShardRecord | None:
        """Return the record of a shard that an earlier build finished and whose bytes are still the same."""
        try:
            kept = json.loads(self._journal(shard).read_text())
            files = {name: FileRecord(**item) for name, item in kept["files"].items()}
            if all(FileRecord.of(self.path / name) == record for name, record in files.items()):
                return ShardRecord(files, kept["pixels"], kept["labelled"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None

    def _journal(self, shard: int) -> Path:
        return self.path / JOURNAL / f"shard-{shard:06d}.json"

    def finish(
        self,
        records: list[ShardRecord],
        arrays: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]],
        attrs: dict[str, Any],
        group_attrs: Mapping[str, dict[str, Any]],
    ) -> PatchStore:
        """Write the small arrays, the groups' metadata and last the manifest.

        Parameters
        ----------
        records
            Of all shards, in order.
        arrays
            Path inside the store -> (dimension names, values).
        attrs
            The `bandstream` attribute of the root group.
        group_attrs
            Attributes of the other groups by path.
        """
        for stale in self.path.rglob("*.partial"):
            stale.unlink()
        for name, (axes, values) in arrays.items():
            target = self.path / name
            shutil.rmtree(target, ignore_errors=True)
            array = zarr.create_array(
                target,
                shape=values.shape,
                dtype=values.dtype,
                chunks=tuple(max(1, n) for n in values.shape),
                compressors=[Crc32cCodec()],
                dimension_names=axes,
                config={"write_empty_chunks": True},
            )
            if values.size:
                array[...] = values
        shutil.rmtree(self.path / JOURNAL)
        groups = {str(parent) for name in (*arrays, "tiles/data") for parent in Path(name).parents}
        for group in sorted(groups | set(group_attrs), reverse=True):
            content = {"bandstream": attrs} if group == "." else group_attrs.get(group, {})
            document = {"zarr_format": 3, "node_type": "group", "attributes": content}
            write_text(self.path / group / "zarr.json", json.dumps(document, sort_keys=True, indent=1))
        self._write_manifest(records)
        return PatchStore.open(self.path)

    def _write_manifest(self, records: list[ShardRecord]) -> None:
        known = {name: record for shard in records for name, record in shard.files.items()}
        names = sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())
        files = {name: asdict(known.get(name) or FileRecord.of(self.path / name)) for name in names}
        manifest = {"files": files, "checksum": manifest_checksum(files)}
        write_text(self.path / MANIFEST, json.dumps(manifest, sort_keys=True, indent=1))


_CF: dict[str, dict[str, Any]] = {
    "data": {"long_name": "transformed pixels of a tile, 0 where invalid"},
    "labels": {"long_name": "class number", "comment": "0 = unlabelled"},
    "valid": {"long_name": "pixel lies in the scene and every kept band has data"},
    "split": {
        "long_name": "split of the pixel",
        "flag_values": [0, 1, 2, 3],
        "flag_meanings": "none train validation test",
    },
}


def count_pixels(
    labels: NDArray[np.uint16], valid: NDArray[np.bool_], split: NDArray[np.uint8], halo: int, classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the core pixels of tiles by split and by split and class.

    Parameters
    ----------
    labels, valid, split
        (tile, y, x) with halo.

    Returns
    -------
    tuple
        valid pixels (tile, 4) and valid labelled pixels (tile, 4, classes), int64.
    """
    side = labels.shape[1]
    core = (slice(None), slice(halo, side - halo), slice(halo, side - halo))
    tiles = len(labels)
    tile = np.broadcast_to(np.arange(tiles)[:, None, None], labels[core].shape)
    keep = valid[core]
    # one histogram over (tile, split, class) serves both counts; class 0 = unlabelled
    key = (tile[keep] * 4 + split[core][keep]) * (classes + 1) + labels[core][keep]
    counts = np.bincount(key, minlength=tiles * 4 * (classes + 1)).reshape(tiles, 4, classes + 1)
    return counts.sum(axis=2, dtype=np.int64), counts[:, :, 1:].astype(np.int64)
