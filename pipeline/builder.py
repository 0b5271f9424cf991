"""Building a patch store: find, survey, fit (pass 1), tile (pass 2), finish."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import fingerprint
from .digest import DigestCache, ReuseIndex, file_stamp
from .engine import DEFAULT_MEMORY_BYTES, Engine, held_bytes
from .errors import ConfigError, SceneError, StoreBusyError, StoreError
from .progress import tell
from .sources import Sources, find_sources
from .store import MANIFEST, SCHEMA, PatchStore
from .workflow import Workflow, load_workflow, scene_entries

if TYPE_CHECKING:
    from .fitting import Fit, Prepared
    from .sources import OpenScene
    from .stages.chain import FittedChain
    from .survey import Survey
    from .tiles import TileSource
    from .writer import ShardRecord, StoreLayout

#: Raised whenever the same workflow and sources would give other bytes than before.
ALGORITHM = 1
CACHE = ".bandstream"


@dataclass
class BuildResult:
    """What a build did, and what it has to tell."""

    path: Path
    fingerprint: str
    reused: bool
    predicted_peak_bytes: int
    tiles: int
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list[str])
    store: PatchStore | None = None  #: None after a dry run


def build(workflow: str | Path | dict[str, Any], *, quiet: bool = True, **overrides: Any) -> PatchStore:
    """Build the patch store of a workflow, or reuse the one that is there.

    Parameters
    ----------
    workflow
        A YAML file, or its content.
    quiet
        No progress, and nothing told about bands and splits.
    **overrides
        Settings by dotted name with ``__`` for the dot, as in ``tiles__size=32``.

    Returns
    -------
    PatchStore
        The finished store.

    Raises
    ------
    BandstreamError
        See `bandstream.pipeline.errors`; nothing that looks like a result is left behind.
    """
    pairs = [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in overrides.items()]
    result = run_build(workflow, pairs, quiet=quiet)
    state = "reused" if result.reused else "built"
    tell(() if quiet else [*result.notes, f"store {result.path}: {state}, {result.tiles} tiles"])
    assert result.store is not None
    return result.store


def run_build(
    source: str | Path | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    memory_bytes: int | None = None,
    quiet: bool = False,
    dry_run: bool = False,
) -> BuildResult:
    """Build, or reuse, the store of a workflow and report.

    Parameters
    ----------
    source
        A YAML file, or its content.
    overrides
        Dotted overrides, ``tiles.size=32``.
    memory_bytes
        What the process may take at most. By default 1 GiB; where other parts of the process hold that already, 512 MiB
        more than they do.
    quiet
        No progress bars.
    dry_run
        Stop before any pixel is read; the result has no store.
    """
    started = time.perf_counter()
    workflow, bases = load_workflow(source, overrides)
    root = Path(workflow.store.root).expanduser()
    root = root if root.is_absolute() else Path.cwd() / root
    sources = find_sources(workflow, scene_entries(workflow, bases))
    reuse = ReuseIndex(root / CACHE / "reuse.json")
    key = fingerprint([version("bandstream"), ALGORITHM, SCHEMA, workflow.resolved(), sources.key()])
    known = reuse.find(key)
    if known and _is_finished(root / known["store"]):
        result = _reused(root / known["store"], known["fingerprint"])
    else:
        job = Job.open(workflow, sources, root)
        budget = memory_bytes or max(DEFAULT_MEMORY_BYTES, held_bytes() + DEFAULT_MEMORY_BYTES // 2)
        result = job.run(budget, quiet=quiet, dry_run=dry_run)
        if result.store is not None:
            reuse.remember(key, job.path.name, job.fingerprint, job.stamps)
    result.seconds = time.perf_counter() - started
    return result


def _is_finished(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _reused(path: Path, print_: str) -> BuildResult:
    store = PatchStore.open(path)
    store.check_present()
    return BuildResult(path, print_, True, 0, len(store), store=store)


@dataclass
class Job:
    """One build, from opened sources on."""

    workflow: Workflow
    sources: Sources
    scenes: list[OpenScene]
    prepared: Prepared
    digests: list[dict[str, Any]]
    fingerprint: str
    path: Path
    stamps: dict[str, list[int]]  #: of every source file, taken before it was hashed

    @classmethod
    def open(cls, workflow: Workflow, sources: Sources, root: Path) -> Job:
        """Open the scenes, hash the sources, and work out where the store goes."""
        from .fitting import Prepared
        from .sources import open_sources

        preparation = workflow.preparation(sources.places)
        scenes = open_sources(sources, preparation)
        prepared = Prepared.of(workflow, scenes, preparation)
        try:
            (root / CACHE).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The store root {root} cannot be made: {error}. Set store.root to another."
            ) from error
        names = [
            [*item.source_files, *item.label_files, *item.split_files, *item.prepared_from] for item in scenes
        ]
        stamps = {name: file_stamp(Path(name)) for part in [*names, map(str, sources.files)] for name in part}
        cache = DigestCache(root / CACHE / "digests.json")
        digests = [_digest(item, cache) for item in scenes]
        cache.save()
        _require_different(scenes, digests)
        recipe = workflow.recipe() | {
            "algorithm": ALGORITHM,
            "schema": SCHEMA,
            "windows_nm": prepared.windows_nm,
            "class_names": sources.class_names,
        }
        if sources.catalog is not None and sources.catalog.wavelength_nm is not None:
            # what the entry adds to the files
            recipe["catalog"] = [sources.catalog.wavelength_nm, sources.catalog.fwhm_nm]
        print_ = fingerprint({"recipe": recipe, "sources": digests})
        path = root / f"{workflow.name}-{print_[:12]}.zarr"
        return cls(workflow, sources, scenes, prepared, digests, print_, path, stamps)

    def run(self, memory_bytes: int, *, quiet: bool, dry_run: bool) -> BuildResult:
        """Survey, plan, fit, tile and finish; or reuse what is there."""
        from .survey import survey

        if _is_finished(self.path):
            return _reused(self.path, self.fingerprint)
        found = survey(self.workflow, self.scenes, self.sources.class_names)
        first, second, count = self._plan(found, memory_bytes)
        peak = max(first.predicted_peak_bytes, second.predicted_peak_bytes)
        if dry_run:
            return BuildResult(self.path, self.fingerprint, False, peak, count, notes=found.lines())
        with _locked(self.path):
            if _is_finished(self.path):  # by another process, since the look above
                return _reused(self.path, self.fingerprint)
            try:
                store, notes = self._make(found, first, second, quiet=quiet)
            except Exception:
                # wrong input would end the same way next time; only a build that was killed is worth keeping
                shutil.rmtree(self.path, ignore_errors=True)
                raise
        return BuildResult(self.path, self.fingerprint, False, peak, len(store), notes=notes, store=store)

    def _make(
        self, found: Survey, first: Engine, second: Engine, *, quiet: bool
    ) -> tuple[PatchStore, list[str]]:
        from .fitting import fit, gather_statistics, needs_statistics

        statistics = None
        if needs_statistics(self.workflow):
            statistics = gather_statistics(
                self.workflow, self.scenes, found.splits, self.prepared, first, quiet=quiet
            )
        fitted = fit(self.workflow, self.prepared, statistics, self.scenes[0].scene.sizes["band"])
        store = self._tile(found, fitted, second, quiet=quiet)
        return store, [*fitted.notes, *found.lines()]

    def require_unchanged(self) -> None:
        """Refuse to finish when a source file has changed since it was hashed.

        Raises
        ------
        SceneError
            Names the file.
        """
        for name, stamp in self.stamps.items():
            if not Path(name).is_file() or file_stamp(Path(name)) != stamp:
                raise SceneError(f"{name} has changed while the store was built; run the workflow again.")

    def _plan(self, found: Survey, memory_bytes: int) -> tuple[Engine, Engine, int]:
        """Plan both passes before any pixel is read, and count the tiles.

        Bands without data are not known yet, so that the bound is taken with all of them.
        """
        from .fitting import statistics_bytes
        from .stages.chain import FittedChain
        from .tiles import task_bytes

        bands = self.prepared.candidates.astype("int64")
        sources = self._sources(
            found,
            FittedChain(self.scenes[0].scene.sizes["band"], bands, bands, self.prepared.preparation, None),
        )
        reduce = self.workflow.stage("reduce")
        layout = self._layout(
            sources, reduce.components if reduce and reduce.method != "none" else len(bands)
        )
        held = held_bytes()
        first = max(
            statistics_bytes(item.shape_yx, len(bands), item.scene["data"].dtype) for item in self.scenes
        )
        # what a file's own blocks, or a calibration, take while a window is read, however small it is
        block = max(int(item.scene.attrs.get("block_bytes", 0)) for item in self.scenes)
        second = task_bytes(layout, sources)
        hint = (
            "the scene's own blocks smaller (`bandstream scene convert` or `scene calibrate` to ENVI; gdal_translate -co "
            "TILED=YES for a GeoTIFF)"
            if block > second
            else ""
        )
        return (
            Engine.plan(first + block, held, memory_bytes, hint),
            Engine.plan(second + block, held, memory_bytes, hint or "tiles.size or tiles.halo smaller"),
            layout.tiles,
        )

    def _layout(self, sources: list[TileSource], bands: int) -> StoreLayout:
        from .writer import StoreLayout

        tiles = self.workflow.tiles
        count = sum(len(source.grid) for source in sources)
        return StoreLayout.plan(count, bands, tiles.size, tiles.halo, self.workflow.store.codec)

    def _sources(self, found: Survey, chain: FittedChain) -> list[TileSource]:
        from .tiles import TileSource
        from .tiling import TileGrid

        tiles = self.workflow.tiles
        return [
            TileSource(
                item.scene,
                TileGrid(item.shape_yx, tiles.size, tiles.halo),
                chain.bind(item.scene),
                split,
                item.labels,
            )
            for item, split in zip(self.scenes, found.splits, strict=True)
        ]

    def _tile(self, found: Survey, fitted: Fit, engine: Engine, *, quiet: bool) -> PatchStore:
        """Pass 2."""
        import dask

        from .finish import finish_store, require_training
        from .tiles import write_shard
        from .writer import StoreWriter

        sources = self._sources(found, fitted.chain)
        layout = self._layout(sources, fitted.chain.outputs)
        writer = StoreWriter(self.path, layout)
        writer.begin()
        firsts = [sum(len(s.grid) for s in sources[:number]) for number in range(len(sources))]
        classes = len(found.class_names)
        records: list[ShardRecord | None] = [writer.finished(shard) for shard in range(layout.shards)]
        left = [shard for shard, record in enumerate(records) if record is None]
        shared = dask.delayed(sources, pure=False, traverse=False)
        task = dask.delayed(write_shard, pure=False)
        tasks = [task(writer, s, shared, firsts, classes, dask_key_name=f"work-shard-{s:06d}") for s in left]
        done = engine.run(tasks, description="tiles", count=len(tasks), quiet=quiet)
        for shard, record in zip(left, done, strict=True):
            records[shard] = record
        complete = [record for record in records if record is not None]
        require_training(complete, labels=any(item.labels for item in self.scenes))
        self.require_unchanged()
        return finish_store(self, writer, sources, found, fitted, complete)


def _digest(item: OpenScene, cache: DigestCache) -> dict[str, Any]:
    """Return what identifies a scene, its labels and its split, wherever they lie."""
    return {
        "scene_id": item.files.scene_id,
        "scene": cache.digest(item.source_files),
        "labels": cache.digest(item.label_files) if item.labels else None,
        "split_raster": cache.digest(item.split_files) if item.split else None,
        "split": item.files.split_code,
        "unlabelled": item.files.unlabelled,
        "options": item.files.options,
        "prepared_from": cache.digest(item.prepared_from) if item.prepared_from else None,
    }


def _require_different(scenes: Sequence[OpenScene], digests: Sequence[dict[str, Any]]) -> None:
    """Refuse the same scene twice: its pixels could be training in one copy and test in the other.

    Raises
    ------
    ConfigError
        Names both.
    """
    seen: dict[str, OpenScene] = {}
    for item, digest in zip(scenes, digests, strict=True):
        first = seen.setdefault(digest["scene"], item)
        if first is not item:
            raise ConfigError(
                f"The scenes {first.files.paths[0]} and {item.files.paths[0]} hold the same data; list it once, since "
                "copies in different splits would share every pixel."
            )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the store's lock; it falls with the process, however that ends."""
    lock = path.parent / CACHE / f"{path.stem}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise StoreBusyError(
                f"Another process ({file.read().strip() or 'unknown'}) is building {path}; wait until it is done, "
                "then run again: the finished store is reused."
            ) from error
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {platform.node()}")
        file.flush()
        yield
