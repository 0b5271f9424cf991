"""The patch store: opening, reading and checking (`writer.py` makes one).

A store is a Zarr v3 group, complete when its `manifest.json` exists::

    tiles/data   (tile, band, y, x)  float32   y = x = size + 2 halo; exactly 0 where invalid
    tiles/labels (tile, y, x)        uint16    0 = unlabelled, classes from 1
    tiles/valid  (tile, y, x)        bool      inside the scene and every kept band has data
    tiles/split  (tile, y, x)        uint8     0 none, 1 train, 2 validation, 3 test
    tiles/targets (tile, target, y, x) float32  NaN where not known; only where the workflow has targets
    tiles/index/                     scene, row, col (tile); pixels (tile, split); labelled (tile, split, class)
    bands/ transforms/ scenes/       what the bands are, the fitted transforms, where the scenes lie

Nothing in it depends on time, host or path, so equal inputs give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from .config import canonical_json
from .errors import (
    RemoteError,
    StoreCorruptError,
    StoreIncompleteError,
    StoreNotFoundError,
    StoreSchemaError,
)
from .storage import RemotePath, is_remote, locate, sizes_below, zarr_store

if TYPE_CHECKING:
    import xarray as xr
    import zarr

    from .stages.chain import FittedChain

SCHEMA = 2
MANIFEST = "manifest.json"
JOURNAL = ".journal"  #: folder of an unfinished store
TILE_ARRAYS = ("data", "labels", "valid", "split")
TARGETS = "targets"  #: the tile array that only stores of targets have
SPLITS = ("none", "train", "validation", "test")
SPLIT_CODE = {name: code for code, name in enumerate(SPLITS)}
_READ_BYTES = 8 << 20
_OPENED_AT_ONCE = 16


@dataclass(frozen=True)
class TileIndex:
    """Where each tile lies and what it holds, as columns over the tiles."""

    scene: NDArray[np.int64]  #: (tile,) number of the scene
    row: NDArray[np.int64]  #: (tile,) scene row of the core's first pixel
    col: NDArray[np.int64]  #: (tile,) scene column of the core's first pixel
    pixels: NDArray[np.int64]  #: (tile, split) valid core pixels
    labelled: NDArray[np.int64]  #: (tile, split, class) valid labelled core pixels, column 0 = class 1


@dataclass(frozen=True)
class SceneGrid:
    """Enough of a scene to put a map of it back in its place."""

    scene_id: str
    shape_yx: tuple[int, int]
    crs_wkt: str | None
    transform: tuple[float, ...] | None  #: affine a, b, c, d, e, f


@dataclass(frozen=True)
class PatchStore:
    """A finished store, open for reading. Make one with `PatchStore.open`."""

    path: Path  #: a local folder, or a `storage.RemotePath` for s3://
    attrs: dict[str, Any]  #: the `bandstream` attribute of the root group

    @classmethod
    def open(cls, path: str | Path) -> PatchStore:
        """Open the store at `path`, a folder or an address ``s3://bucket/key``.

        Raises
        ------
        StoreNotFoundError
            There is nothing, or no store, at the path.
        StoreIncompleteError
            Its build has not finished.
        StoreSchemaError
            It was written under another schema version.
        StoreCorruptError
            Its root metadata cannot be read.
        """
        path = locate(path)
        if not path.is_dir():
            raise StoreNotFoundError(f"There is no store at {path}.{_stores_near(path)}")
        if not (path / MANIFEST).is_file():
            if not (path / "tiles").is_dir() and not (path / "zarr.json").is_file():
                raise StoreNotFoundError(f"{path} is a folder but no patch store.{_stores_near(path)}")
            raise StoreIncompleteError(
                f"The store {path} is not finished: it has no {MANIFEST}. Run its workflow again with "
                "`bandstream run`: finished shards are kept and the rest is written."
            )
        try:
            attrs: Any = json.loads((path / "zarr.json").read_text())["attributes"]["bandstream"]
            if not isinstance(attrs, dict) or ("tiles" not in attrs and attrs.get("schema") == SCHEMA):
                raise ValueError("the attribute bandstream is not as it was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(
                f"The root metadata {path / 'zarr.json'} cannot be read ({error}); delete the store and run its "
                "workflow again."
            ) from error
        if attrs.get("schema") != SCHEMA:
            raise StoreSchemaError(
                f"The store {path} has schema {attrs.get('schema')!r}; this version reads {SCHEMA}. Run its workflow "
                "again to make a new one."
            )
        return cls(path, attrs)

    def __len__(self) -> int:
        return int(self.attrs["tiles"]["count"])

    @property
    def name(self) -> str:
        """The workflow's name."""
        return str(self.attrs["name"])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything the store was made from."""
        return str(self.attrs["fingerprint"])

    @property
    def transform_fingerprint(self) -> str:
        """SHA-256 of the fitted transforms; stores that share it can be mixed."""
        return str(self.attrs["transform_fingerprint"])

    @property
    def bands(self) -> int:
        """Number of bands, or components, of a tile."""
        return int(self.attrs["bands"])

    @property
    def tile_size(self) -> int:
        """Side of a tile's core in pixels."""
        return int(self.attrs["tiles"]["size"])

    @property
    def halo(self) -> int:
        """Pixels around the core on every side."""
        return int(self.attrs["tiles"]["halo"])

    @property
    def chunk_tiles(self) -> int:
        """Tiles in an inner chunk."""
        return int(self.attrs["tiles"]["chunk"])

    @property
    def shard_tiles(self) -> int:
        """Tiles in a shard, a multiple of `chunk_tiles`."""
        return int(self.attrs["tiles"]["shard"])

    @property
    def class_names(self) -> list[str]:
        """Names of the classes 1, 2, ...; empty without labels."""
        return list(self.attrs["classes"]["names"])

    @property
    def class_colors(self) -> list[str]:
        """Colours (``#rrggbb``) of the classes 1, 2, ..."""
        return list(self.attrs["classes"]["colors"])

    @property
    def classes(self) -> int:
        """Number of classes, 0 without labels."""
        return len(self.attrs["classes"]["names"])

    @property
    def targets(self) -> list[str]:
        """Names of the targets; empty without any."""
        return list(self.attrs.get(TARGETS, {}).get("names", ()))

    @property
    def target_units(self) -> list[str]:
        """Units of the targets."""
        return list(self.attrs.get(TARGETS, {}).get("units", ()))

    @property
    def tile_arrays(self) -> tuple[str, ...]:
        """Names of the arrays of tiles."""
        return (*TILE_ARRAYS, TARGETS) if self.targets else TILE_ARRAYS

    @property
    def scenes(self) -> list[SceneGrid]:
        """The scenes in the order of `TileIndex.scene`."""
        return [
            SceneGrid(
                str(item["scene_id"]),
                (int(item["shape_yx"][0]), int(item["shape_yx"][1])),
                item["crs_wkt"],
                tuple(item["transform"]) if item["transform"] else None,
            )
            for item in self.attrs["scenes"]
        ]

    @property
    def wavelength_nm(self) -> NDArray[np.float64] | None:
        """Centres of the kept source bands in nm, or None where the scene has none."""
        path = self.path / "bands" / "wavelength"
        return self.band_values("wavelength") if path.is_dir() else None

    def band_values(self, name: str) -> NDArray[np.float64]:
        """Return an array of the `bands` group: `wavelength`, `fwhm`, `mean` or `std`, one value per kept source band."""
        return np.asarray(self._read(f"bands/{name}"), np.float64)

    @cached_property
    def index(self) -> TileIndex:
        """The tile index, read once."""
        return TileIndex(*(self._read(f"tiles/index/{name}") for name in TileIndex.__dataclass_fields__))

    @cached_property
    def chain(self) -> FittedChain:
        """The fitted transforms, ready for a scene's own pixels."""
        from .stages.chain import FittedChain

        try:
            return FittedChain.load(self.path / "transforms")
        except (OSError, ValueError, KeyError) as error:
            raise StoreCorruptError(
                f"The fitted transforms of the store {self.path} cannot be read: {error}. Delete the store and run its "
                "workflow again."
            ) from error

    def find_scene(self, files: Sequence[str | Path], among: Sequence[int]) -> int | None:
        """Return which scene of the store was made from files of this content; None if none was.

        Parameters
        ----------
        files
            All files of a scene, in its own order.
        among
            Numbers of the scenes that come into question.
        """
        if not files:
            return None
        from .digest import digest_files

        found = digest_files(files)
        return next((number for number in among if self.attrs["sources"][number]["scene"] == found), None)

    def array(self, name: str) -> zarr.Array[Any]:
        """Return one of the arrays `data`, `labels`, `valid`, `split` and, where there are any, `targets` of the tiles."""
        if name not in self.tile_arrays:
            raise KeyError(f"{name!r} is no tile array; there are {', '.join(self.tile_arrays)}")
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, zarr.Array[Any]]:
        return {name: self._open(f"tiles/{name}") for name in self.tile_arrays}

    def _open(self, name: str) -> zarr.Array[Any]:
        import zarr  # here, since it takes half a second and a reused store is not opened that far

        try:
            return zarr.open_array(zarr_store(self.path / name), mode="r", zarr_format=3)
        except (OSError, ValueError, KeyError) as error:
            raise StoreCorruptError(
                f"The array {name} of the store {self.path} cannot be opened: {error}"
            ) from error

    def _read(self, name: str) -> NDArray[Any]:
        array = self._open(name)
        try:
            return np.asarray(array[...])
        except RemoteError:
            raise
        except Exception as error:  # zarr raises whatever its codec raised
            raise StoreCorruptError(
                f"The array {name} of the store {self.path} cannot be decoded: {error}. Delete the store and run its "
                "workflow again."
            ) from error

    def shard_path(self, name: str, shard: int) -> Path:
        """Return the file of one shard of a tile array."""
        rank = 4 if name in ("data", TARGETS) else 3
        return self.path / "tiles" / name / "c" / Path(str(shard), *["0"] * (rank - 1))

    def read_tiles(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read the tiles start..stop-1 of a tile array.

        Raises
        ------
        StoreCorruptError
            A shard of the range is missing, or a checksum fails; the file is named.
        """
        for shard in range(start // self.shard_tiles, -(-stop // self.shard_tiles)):
            if not is_remote(
                self.path
            ):  # there reading says itself what is missing, and asking takes a round trip
                self._require(self.shard_path(name, shard))
        try:
            return np.asarray(self.array(name)[start:stop])
        except (RemoteError, StoreCorruptError):
            raise
        except (
            Exception
        ) as error:  # zarr raises whatever its codec raised: ValueError, RuntimeError, KeyError, ...
            first = self.shard_path(name, start // self.shard_tiles)
            raise StoreCorruptError(
                f"Tiles {start}-{stop - 1} of {name} cannot be decoded from {first}: {error}. The file has changed "
                "since it was written; delete the store and run its workflow again."
            ) from error

    def check_present(self) -> None:
        """Look that every file is there with the size it was written with (cheap: only the manifest is read).

        Raises
        ------
        StoreCorruptError
            Names the first file that is not.
        """
        found = sizes_below(self.path)
        for name, record in read_manifest(self.path).items():
            if name not in found:
                raise self._missing(name)
            if found[name] != record.bytes:
                raise StoreCorruptError(
                    f"The file {name} of the store {self.path} has {found[name]} bytes where {record.bytes} were "
                    "written. Delete the store and run its workflow again."
                )

    def _require(self, path: Path) -> None:
        if not path.is_file():
            raise self._missing(path.relative_to(self.path).as_posix())

    def _missing(self, name: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"The file {name} of the store {self.path} is missing. Delete the store and run its workflow again; "
            "`bandstream store verify` lists everything that is wrong."
        )

    def verify(self) -> int:
        """Read every file of the store and compare it with the manifest.

        Returns
        -------
        int
            Number of files compared.

        Raises
        ------
        StoreCorruptError
            Names every file that is missing or changed.
        """
        files = read_manifest(self.path)
        wrong = [f"{name} ({problem})" for name, problem in self._differences(files)]
        if wrong:
            more = f" and {len(wrong) - 20} more" if len(wrong) > 20 else ""
            raise StoreCorruptError(
                f"{len(wrong)} of {len(files)} files of the store {self.path} are not as they were written: "
                f"{', '.join(wrong[:20])}{more}. Delete the store and run its workflow again."
            )
        return len(files)

    def _differences(self, files: dict[str, FileRecord]) -> Iterator[tuple[str, str]]:
        for name, record in files.items():
            try:
                seen = FileRecord.of(self.path / name)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                yield name, "missing"
                continue
            if seen.bytes != record.bytes:
                yield name, f"{seen.bytes} bytes where {record.bytes} were written"
            elif seen.crc32c != record.crc32c:
                yield name, "bytes changed"

    def to_xarray(self) -> xr.Dataset:
        """Return the tiles and their index as one lazy Dataset."""
        import xarray as xr

        tiles = xr.open_zarr(zarr_store(self.path), group="tiles", consolidated=False, zarr_format=3)
        index = xr.open_zarr(zarr_store(self.path), group="tiles/index", consolidated=False, zarr_format=3)
        return tiles.merge(index)


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of a file as it was written."""

    bytes: int
    crc32c: str  #: 8 hex digits

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Read `path` once."""
        checksum, count = google_crc32c.Checksum(), 0
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                checksum.update(block)
                count += len(block)
        return cls(count, checksum.digest().hex())


def read_manifest(path: Path) -> dict[str, FileRecord]:
    """Read the manifest of the store at `path` as relative file name -> record.

    Raises
    ------
    StoreCorruptError
        The manifest is damaged.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = manifest["files"]
        if manifest["checksum"] != manifest_checksum(files):
            raise ValueError("its own checksum differs")
        return {name: FileRecord(int(item["bytes"]), str(item["crc32c"])) for name, item in files.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(f"The manifest {path / MANIFEST} is damaged: {error}.") from error


def manifest_checksum(files: dict[str, Any]) -> str:
    """Return the checksum with which a manifest guards its own list of files."""
    return f"{google_crc32c.value(canonical_json(files)):08x}"


def list_stores(root: Path) -> list[tuple[Path, PatchStore | None]]:
    """Return every store under `root`, with None in place of one that is not finished or cannot be read."""

    def look(path: Path) -> tuple[Path, PatchStore | None] | None:
        try:
            return path, PatchStore.open(path)
        except StoreNotFoundError:
            return None
        except (StoreIncompleteError, StoreCorruptError, StoreSchemaError):
            return path, None

    # a bucket answers each question late, and many at once
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return [item for item in pool.map(look, sorted(locate(root).glob("*.zarr"))) if item is not None]


def _stores_near(path: Path) -> str:
    for folder in (path, path.parent):
        if isinstance(folder, RemotePath) and len(folder.parts) < 2:  # above a bucket
            continue
        names = [entry.parent.name for entry in sorted(folder.glob(f"*.zarr/{MANIFEST}"))][:5]
        if names:
            return f" Stores in {folder}: {', '.join(names)}."
    return ""
