"""Writing a patch store: whole shards first, the manifest last.

Every file is encoded in memory, written under another name and then renamed, a shard's record is put in a journal once
all its files stand, and the groups' own metadata come at the very end: a store that was cut off anywhere cannot be
opened, neither here nor with plain Zarr, and its next build keeps the shards whose records still match their bytes.

Equal builds write equal bytes, and nothing is removed that another build of the same store may have written: two that
get past the lock at once waste work and do no harm.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue] - a compiled module
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from .errors import StoreWriteError
from .locks import SILENT_SECONDS
from .shardfile import CODECS, ShardEncoder
from .storage import RemotePath, delete_tree
from .store import JOURNAL, MANIFEST, TARGETS, TILE_ARRAYS, FileRecord, PatchStore, manifest_checksum
from .target_counts import TargetCounts, read_counts

MIB = 1 << 20
MIN_CHUNK_BYTES = MIB
SHARD_BYTES = (8 * MIB, 128 * MIB)
SHARDS_PER_STORE = 32
_ATTEMPTS = 5
#: Rows of a chunk of the small arrays: one chunk of a million tiles takes a second to read.
INDEX_ROWS = 1 << 14
_DTYPES: dict[str, Any] = {"data": "float32", "labels": "uint16", "valid": "bool", "split": "uint8"}
_DTYPES[TARGETS] = "float32"


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
    targets: int = 0

    @classmethod
    def plan(
        cls,
        tiles: int,
        bands: int,
        size: int,
        halo: int,
        codec: str = "default",
        targets: int = 0,
        across: int = 1,
    ) -> StoreLayout:
        """Choose chunk and shard: chunks of at least 1 MiB, shards of store / 32 within 8 to 128 MiB.

        Where it costs little, shards hold whole rows of tiles, or equal parts of one, since a scene's rows are read
        for every shard that begins or ends inside them.

        Parameters
        ----------
        tiles
            In the store.
        bands, size, halo
            Of a tile.
        codec
            One of `CODECS`.
        targets
            Regression targets per pixel.
        across
            Tiles in a row of the scenes.
        """
        tile_bytes = bands * (size + 2 * halo) ** 2 * 4
        least = min(-(-MIN_CHUNK_BYTES // tile_bytes), tiles)
        chunk = next((n for n in range(least, 2 * least) if across % n == 0), least)
        target = min(max(tiles * tile_bytes // SHARDS_PER_STORE, SHARD_BYTES[0]), SHARD_BYTES[1]) / tile_bytes
        shard = chunk * max(1, round(target / chunk))
        if across % chunk == 0:
            if across > target:
                parts = across // chunk
                # equal parts of a row, the number of them near what the target asks for
                shard = min(
                    (chunk * n for n in range(1, parts + 1) if parts % n == 0), key=lambda n: abs(n - target)
                )
            else:
                shard = across * round(target / across)
        if not target / 2 <= shard <= 2 * target:
            shard = chunk * max(1, round(target / chunk))
        return cls(tiles, bands, size, halo, chunk, min(shard, chunk * -(-tiles // chunk)), codec, targets)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the tile arrays."""
        return (*TILE_ARRAYS, TARGETS) if self.targets else TILE_ARRAYS

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
        layers = {"data": (self.bands,), TARGETS: (self.targets,)}.get(name, ())
        return (lead, *layers, self.side, self.side)


@dataclass(frozen=True)
class ShardRecord:
    """What the task of one shard returns and its journal keeps."""

    files: dict[str, FileRecord]
    pixels: list[list[int]]  #: per tile: valid core pixels by split
    labelled: list[list[list[int]]]  #: per tile: labelled core pixels by split and class
    targets: TargetCounts | None = None


@dataclass(frozen=True)
class StoreWriter:
    """Writes one store; small and picklable, so that every task carries it."""

    path: Path
    layout: StoreLayout

    def begin(self) -> None:
        """Create the tile arrays unless an earlier, interrupted build left the same ones.

        A finished store is left alone: another build may have finished it since the caller looked.
        """
        plan = self.path / JOURNAL / "layout.json"
        wanted = json.dumps(asdict(self.layout), sort_keys=True)
        try:
            same = plan.read_text(encoding="utf-8") == wanted
        except OSError:
            same = False
        if not same and not (self.path / MANIFEST).is_file():
            delete_tree(self.path, ignore_errors=True)
        self._put(f"{JOURNAL}/layout.json", wanted.encode())
        if not isinstance(self.path, RemotePath):
            _remove_forgotten(plan)
        for name in self.layout.arrays:
            # not the groups above it, which would open as a store
            file = f"tiles/{name}/zarr.json"
            self._put(file, self._tile_array(name)[file].as_numpy_array())

    def _tile_array(self, name: str) -> dict[str, Any]:
        """Return the metadata of a tile array and of the groups above it: path in the store -> zarr's buffer."""
        layout = self.layout
        axes = ("tile", *{"data": ("band",), TARGETS: ("target",)}.get(name, ()), "y", "x")
        files: dict[str, Any] = {}
        zarr.create_array(
            MemoryStore(files),
            name=f"tiles/{name}",
            shape=layout.shape(name),
            chunks=layout.shape(name, layout.chunk),
            shards=layout.shape(name, layout.shard),
            dtype=_DTYPES[name],
            serializer=BytesCodec(endian="little") if name in ("data", "labels", TARGETS) else "auto",
            compressors=[*CODECS[layout.codec][0], Crc32cCodec()],
            fill_value=_fill(name),
            dimension_names=axes,
            attributes=_CF[name],
            config={"write_empty_chunks": True},
        )
        return files

    def _put(self, name: str, content: Any) -> FileRecord:
        """Write bytes, or an array of them, as a file of the store: whole or not at all, and as often as one likes."""
        target = self.path / name
        checksum = google_crc32c.Checksum(content)
        record = FileRecord(len(content), checksum.digest().hex())
        if isinstance(target, RemotePath):  # an object appears whole
            target.write_bytes(content)
            return record
        temporary = self.path / JOURNAL / f"{uuid.uuid4().hex}.partial"
        try:
            with _blaming(target):
                self._replace(temporary, target, content)
        finally:
            with suppress(OSError):
                temporary.unlink()
        return record

    def _replace(self, temporary: Path, target: Path, content: Any) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                with _opened(temporary, target) as file:
                    _write_all(file, content)
                temporary.replace(target)
                break
            except FileNotFoundError:  # another build has finished and removed the journal
                if attempt == _ATTEMPTS - 1:
                    raise

    @contextmanager
    def _streamed(self, name: str) -> Generator[_Output]:
        """Open a file of the store that gets its bytes bit by bit, and is there, whole, at the end.

        An object of a bucket is kept in memory until then. Where the journal is gone, another build has finished this
        store: its bytes are ours.
        """
        target = self.path / name
        if isinstance(target, RemotePath):
            output = _Output(target, [])
            yield output
            target.write_bytes(b"".join(output.sink))
            return
        temporary = self.path / JOURNAL / f"{uuid.uuid4().hex}.partial"
        try:
            with _blaming(target):
                file = _opened(temporary, target)
            with file:
                output = _Output(target, file)
                yield output
                with _blaming(target):  # some file systems tell only now that there is no room
                    file.close()
            with _blaming(target):
                try:
                    temporary.replace(target)
                except FileNotFoundError:
                    if FileRecord.of(target) != output.record:
                        raise
        finally:
            with suppress(OSError):
                temporary.unlink()

    def write_shard(
        self, shard: int, parts: Iterable[Mapping[str, NDArray[Any]]], classes: int
    ) -> ShardRecord:
        """Write one shard of every tile array and put it in the journal.

        Parameters
        ----------
        shard
            Number of the shard.
        parts
            `data`, `labels`, `valid`, `split` and, where there are any, `targets` of the shard's tiles in their order,
            some tiles at a time, shaped as `StoreLayout.shape` says.
        classes
            Number of classes to count.
        """
        blosc.use_threads = False  # several Blosc threads give other bytes on each run
        small: dict[str, list[NDArray[Any]]] = {name: [] for name in self.layout.arrays if name != "data"}
        encoder = self._encoder("data")
        with self._streamed(_shard_file("data", shard)) as data:
            for part in parts:
                data.write(encoder.add(part["data"]))
                for name, kept in small.items():
                    kept.append(part[name])
            data.write(encoder.end())
        tiles = {name: np.concatenate(kept) for name, kept in small.items()}
        assert len(tiles["labels"]) == len(self.layout.tiles_of(shard))
        files = {_shard_file("data", shard): data.record}
        for name, values in tiles.items():
            encoder = self._encoder(name)
            with self._streamed(_shard_file(name, shard)) as output:
                output.write(encoder.add(values))
                output.write(encoder.end())
            files[_shard_file(name, shard)] = output.record
        pixels, labelled = count_pixels(
            tiles["labels"], tiles["valid"], tiles["split"], self.layout.halo, classes
        )
        counts = None
        if self.layout.targets:
            counts = TargetCounts.of(tiles[TARGETS], tiles["valid"], tiles["split"], self.layout.halo)
        record = ShardRecord(files, pixels.tolist(), labelled.tolist(), counts)
        kept = asdict(record)
        kept["checksum"] = _journal_checksum(shard, kept)
        self._put(f"{JOURNAL}/{_journal_name(shard)}", json.dumps(kept).encode())
        return record

    def _encoder(self, name: str) -> ShardEncoder:
        layout = self.layout
        return ShardEncoder(layout.codec, layout.chunk, layout.shard // layout.chunk, _fill(name))

    def finished(self, shard: int) -> ShardRecord | None:
        """Return the record of a shard that an earlier build finished and whose bytes are still the same."""
        try:
            kept = json.loads((self.path / JOURNAL / _journal_name(shard)).read_text())
            if kept.pop("checksum") != _journal_checksum(shard, kept):
                return None
            files = {name: FileRecord(**item) for name, item in kept["files"].items()}
            if all(FileRecord.of(self.path / name) == record for name, record in files.items()):
                return ShardRecord(files, kept["pixels"], kept["labelled"], read_counts(kept["targets"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return None

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
        files = {name: record for shard in records for name, record in shard.files.items()}
        made: dict[str, Any] = {}
        for name in self.layout.arrays:
            made |= self._tile_array(name)
        for name, (axes, values) in arrays.items():
            array = zarr.create_array(
                MemoryStore(made),
                name=name,
                shape=values.shape,
                dtype=values.dtype,
                chunks=tuple(
                    max(1, min(n, INDEX_ROWS) if axis == 0 else n) for axis, n in enumerate(values.shape)
                ),
                compressors=[Crc32cCodec()],
                dimension_names=axes,
                config={"write_empty_chunks": True},
            )
            if values.size:
                array[...] = values
        groups = {str(parent) for name in (*arrays, "tiles/data") for parent in Path(name).parents}
        for name, content in made.items():
            # zarr puts a group of its own above each array
            if str(Path(name).parent) not in groups:
                files[name] = self._put(name, content.as_numpy_array())
        for group in sorted(groups | set(group_attrs), reverse=True):
            content = {"bandstream": attrs} if group == "." else group_attrs.get(group, {})
            document = {"zarr_format": 3, "node_type": "group", "attributes": content}
            name = str(Path(group) / "zarr.json")
            files[name] = self._put(name, json.dumps(document, sort_keys=True, indent=1).encode())
        self._finish(files)
        return PatchStore.open(self.path)

    def _finish(self, records: Mapping[str, FileRecord]) -> None:
        """Write the manifest; the journal goes after it, so that a folder without either is none that is being built."""
        files = {name: asdict(records[name]) for name in sorted(records)}
        manifest = {"files": files, "checksum": manifest_checksum(files)}
        self._put(MANIFEST, json.dumps(manifest, sort_keys=True, indent=1).encode())
        remove_journal(self.path)


class _Output:
    """Writes the bytes of a file, and keeps its record."""

    def __init__(self, target: Path, sink: Any) -> None:
        self.target = target
        self.sink = sink  #: an open file, or a list
        self._length = 0
        self._checksum = google_crc32c.Checksum()

    def write(self, pieces: Iterable[Any]) -> None:
        for piece in pieces:
            content = piece
            if isinstance(self.sink, list):
                content = bytes(piece)  # the encoder may use its memory again
                self.sink.append(content)
            else:
                with _blaming(self.target):
                    _write_all(self.sink, content)
            self._length += len(content)
            self._checksum.update(content)

    @property
    def record(self) -> FileRecord:
        """Of what was written so far."""
        return FileRecord(self._length, self._checksum.digest().hex())


def _opened(temporary: Path, target: Path) -> FileIO:
    """Open a file in the journal, which another build may remove at any time, for one that gets the name of `target`."""
    for attempt in range(_ATTEMPTS):
        try:
            for folder in (temporary.parent, target.parent):
                folder.mkdir(parents=True, exist_ok=True)
            return temporary.open("wb", buffering=0)
        except (FileNotFoundError, FileExistsError):  # the folder went between two looks at it
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def _write_all(file: Any, content: Any) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


@contextmanager
def _blaming(target: Path) -> Generator[None]:
    """Say which file of the store could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreWriteError(
            f"{target} cannot be written: {error.strerror or error}. Make room, or see to it that the folder can be "
            "written, and run the same workflow again: finished shards are kept."
        ) from error


def _shard_file(name: str, shard: int) -> str:
    """Return the path of a shard in the store."""
    trailing = "/0/0/0" if name in ("data", TARGETS) else "/0/0"
    return f"tiles/{name}/c/{shard}{trailing}"


def _fill(name: str) -> float:
    """Return what a tile array holds where there is no tile."""
    return np.nan if name == TARGETS else 0


def remove_journal(store: Path) -> None:
    """Remove what only an unfinished store needs."""
    delete_tree(store / JOURNAL, ignore_errors=True)


def _remove_forgotten(layout: Path) -> None:
    """Remove what killed builds left half written: they would fill the disk, one after the other.

    `layout` was written just now, by the same clock. A living build adds to its files all the time.
    """
    for path in layout.parent.glob("*.partial"):
        with suppress(OSError):
            if layout.stat().st_mtime - path.stat().st_mtime > SILENT_SECONDS:
                path.unlink()


def _journal_name(shard: int) -> str:
    return f"shard-{shard:06d}.json"


def _journal_checksum(shard: int, kept: dict[str, Any]) -> str:
    """Return what tells that a shard's record is whole, and is that shard's."""
    return f"{google_crc32c.value(json.dumps([shard, kept], sort_keys=True).encode()):08x}"


_CF: dict[str, dict[str, Any]] = {
    "data": {"long_name": "transformed pixels of a tile, 0 where invalid"},
    "labels": {"long_name": "class number", "comment": "0 = unlabelled"},
    "valid": {"long_name": "pixel lies in the scene and every kept band has data"},
    "split": {
        "long_name": "split of the pixel",
        "flag_values": [0, 1, 2, 3],
        "flag_meanings": "none train validation test",
    },
    TARGETS: {
        "long_name": "numbers to learn, NaN where not known",
        "comment": "named in the root's attributes",
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
