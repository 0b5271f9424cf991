"""One build, from opened scenes on: survey, plan, fit (pass 1), tile (pass 2), finish."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import fingerprint
from .digest import DigestCache, Stamp, file_stamp, file_stamps
from .engine import Engine, held_bytes
from .errors import (
    BandstreamError,
    BandstreamWarning,
    ClusterError,
    ConfigError,
    RemoteError,
    SceneError,
    StoreWriteError,
)
from .faults import SkippedScene, blame, blamed_scene
from .locks import CACHE, hold
from .sources import Sources
from .storage import delete_tree, is_remote, locate
from .store import JOURNAL, MANIFEST, SCHEMA, PatchStore
from .workflow import Workflow

if TYPE_CHECKING:
    from .engine.crew import Crew
    from .fitting import Fit, Prepared
    from .sources import OpenScene
    from .stages.chain import FittedChain
    from .survey import Survey
    from .tiles import TileSource
    from .writer import ShardRecord, StoreLayout

#: Raised whenever the same workflow and sources would give other bytes than before.
ALGORITHM = 1
#: Errors that may be gone when the same workflow runs again: what is done so far is kept.
_PASSING = (StoreWriteError, RemoteError, ClusterError)


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
    skipped: list[SkippedScene] = field(default_factory=list[SkippedScene])  #: under `on_error: skip`


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
    stamps: dict[str, Stamp]  #: of every source file, taken before it was hashed
    own_files: list[list[str]]  #: of each scene, while they were all there
    skipped: list[SkippedScene] = field(default_factory=list[SkippedScene])

    @classmethod
    def open(cls, workflow: Workflow, sources: Sources, root: Path) -> Job:
        """Open the scenes, hash the sources, and work out where the store goes."""
        from .sources import open_sources

        skipped: list[SkippedScene] | None = [] if workflow.on_error == "skip" else None
        scenes = open_sources(sources, workflow.preparation(sources.places), skipped)
        try:
            (root / CACHE).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreWriteError(
                f"The store root {root} cannot be made: {error}. Set store.root to another."
            ) from error
        return cls.of(workflow, sources, scenes, root, skipped or [])

    @classmethod
    def of(
        cls,
        workflow: Workflow,
        sources: Sources,
        scenes: list[OpenScene],
        root: Path,
        skipped: list[SkippedScene],
    ) -> Job:
        """Work out what identifies a build of opened scenes, and where its store goes."""
        from .fitting import Prepared

        prepared = Prepared.of(workflow, scenes, workflow.preparation(sources.places))
        names = [item.own_files for item in scenes]
        stamps = file_stamps(name for part in [*names, sources.files] for name in part)
        cache = DigestCache(root / CACHE / "digests.json")
        with ThreadPoolExecutor(1) as pool:
            hashing = pool.submit(lambda: [_digest(item, cache) for item in scenes])
            # what comes next is imported while files are hashed, which needs no interpreter
            from . import finish, measuring, survey, tiles, writer  # noqa: F401  # pyright: ignore[reportUnusedImport]

            digests = hashing.result()
        with suppress(OSError):  # on a full or read-only root they are hashed again next time
            cache.save()
        _require_different(scenes, digests)
        recipe = workflow.recipe() | {
            "algorithm": ALGORITHM,
            "schema": SCHEMA,
            "windows_nm": prepared.windows_nm,
            "class_names": sources.class_names,
        }
        if (told := _told_by(sources)) is not None:
            recipe["catalog"] = told
        if skipped:
            # the store tells of them, and is another than one of a workflow that never had them
            recipe["skipped"] = sorted(scene.scene_id for scene in skipped)
        print_ = fingerprint({"recipe": recipe, "sources": digests})
        path = root / f"{workflow.name}-{print_[:12]}.zarr"
        return cls(workflow, sources, scenes, prepared, digests, print_, path, stamps, names, skipped)

    def after(self, error: BandstreamError | OSError) -> Job:
        """Return the job without the scene that an error is about, or raise the error.

        Raises
        ------
        SceneError
            No scene is left.
        """
        from .sources import renumbered, require_any

        blamed = blamed_scene(error)
        if not self._may_skip(error) or blamed is None:
            raise error
        skipped = [*self.skipped, SkippedScene.of(blamed, error)]
        left = [item for item in self.scenes if item.scene_id != blamed]
        require_any(left, skipped)
        warnings.warn(skipped[-1].note(), BandstreamWarning, stacklevel=3)
        # as if the scene had failed when it was opened: the same store, whenever a file was found to be bad
        left = renumbered(left, self.sources.class_names)
        return Job.of(self.workflow, self.sources, left, self.path.parent, skipped)

    def run(
        self,
        memory_bytes: int,
        *,
        quiet: bool,
        dry_run: bool,
        wait_seconds: float | None = None,
        crew: Crew | None = None,
    ) -> BuildResult:
        """Survey, plan, fit, tile and finish; or reuse what is there."""
        from .survey import survey

        if is_finished(self.path):
            return reused(self.path, self.fingerprint)
        found = survey(self.workflow, self.scenes, self.sources.class_names)
        first, second, count = self.plan(found, memory_bytes, crew)
        peak = max(first.predicted_peak_bytes, second.predicted_peak_bytes)
        if dry_run:
            judged = [
                "tiles.min_valid leaves tiles out when the pixels are read; their number is at most this"
            ]
            notes = [*found.lines(), *(judged if self.workflow.tiles.min_valid else ())]
            return BuildResult(self.path, self.fingerprint, False, peak, count, notes=notes)
        with hold(self.path, wait_seconds) as lock:
            if is_finished(self.path):  # by another process, since the look above
                return reused(self.path, self.fingerprint)
            try:
                if crew is not None:
                    least = min(first.tasks_at_once, second.tasks_at_once)
                    crew.start(least, self.stamps, None if is_remote(self.path) else self.path.parent / CACHE)
                store, notes = self._make(found, first, second, quiet=quiet)
            except Exception as error:
                if is_finished(self.path):  # by another process, which this one's lock did not keep out
                    return reused(self.path, self.fingerprint)
                changed = self._changed_source()
                lasting = isinstance(error, BandstreamError) and not isinstance(error, _PASSING)
                # wrong input would end the same way next time; what lacked room, network or a worker goes on then
                if changed or lasting:
                    delete_tree(self.path, ignore_errors=True)
                if changed is None or str(changed) == str(error) or self._may_skip(error):
                    raise
                raise changed from error
        notes = [*lock.notes, *notes, *(crew.notes if crew is not None else ())]
        return BuildResult(self.path, self.fingerprint, False, peak, len(store), notes=notes, store=store)

    def _make(
        self, found: Survey, first: Engine, second: Engine, *, quiet: bool
    ) -> tuple[PatchStore, list[str]]:
        fitted = self.fit(found, first, quiet=quiet)
        if self.workflow.tiles.min_valid:
            found = self._keep_valid(found, fitted, first, quiet=quiet)
        store = self._tile(found, fitted, second, quiet=quiet)
        return store, [*fitted.notes, *found.lines()]

    def fit(self, found: Survey, engine: Engine, *, quiet: bool) -> Fit:
        """Pass 1, and the stages fitted on it."""
        from .fitting import fit
        from .measuring import KeptStatistics, measure

        decisive = {"sources": self.digests, "catalog": _told_by(self.sources)}
        kept = KeptStatistics(self.path.parent / CACHE / "statistics", decisive, self.require_unchanged)
        self.prepared, gather, statistics = measure(
            self.workflow, self.scenes, self.prepared, found, engine, kept, quiet=quiet
        )
        return fit(self.workflow, self.prepared, gather, statistics)

    def _keep_valid(self, found: Survey, fitted: Fit, engine: Engine, *, quiet: bool) -> Survey:
        """Read the scenes for `tiles.min_valid`: which pixels are valid is known once the bands are judged."""
        from .kept_tiles import keep_valid

        sources = self._sources(found, fitted.chain)
        kept = keep_valid(sources, self.workflow.tiles.min_valid, engine, quiet=quiet)
        left_out = sum(len(source.grid) for source in sources) - sum(map(len, kept))
        return replace(found, kept=kept, dropped=found.dropped | {"min_valid": left_out})

    def require_unchanged(self) -> None:
        """Refuse to finish when a source file has changed since it was hashed.

        Raises
        ------
        SceneError
            Names the file.
        """
        if changed := self._changed_source():
            raise changed

    def _changed_source(self) -> SceneError | None:
        """Return an error for a source file that is no longer as it was when it was hashed; None if all are."""
        for name, stamp in self.stamps.items():
            try:
                if file_stamp(locate(name)) == stamp:
                    continue
                what = "has changed"
            except OSError as error:
                what = f"has vanished or cannot be read any more ({error.strerror or error})"
            except RemoteError:
                continue  # the network says nothing about the file
            error = SceneError(
                f"{name} {what} while the store was built; run the workflow again when it is in place."
            )
            owners = [
                s.scene_id for s, names in zip(self.scenes, self.own_files, strict=True) if name in names
            ]
            if len(owners) == 1:
                blame(error, owners[0])
            return error
        return None

    def _may_skip(self, error: Exception) -> bool:
        return self.workflow.on_error == "skip" and blamed_scene(error) is not None

    def plan(self, found: Survey, memory_bytes: int, crew: Crew | None = None) -> tuple[Engine, Engine, int]:
        """Plan both passes before any pixel is read, and count the tiles.

        Bands without data are not known yet, so that the bound is taken with all of them.
        """
        from .gathering import statistics_bytes
        from .kept_tiles import validity_bytes
        from .stages.chain import FittedChain
        from .tiles import task_bytes

        bands = self.prepared.candidates.astype("int64")
        sources = self._sources(
            found,
            FittedChain(self.scenes[0].scene.sizes["band"], bands, bands, self.prepared.preparation, None),
        )
        reduce = self.workflow.stage("reduce")
        # where fitting decides on the number of components, all bands are the bound
        components = reduce.components if reduce and reduce.method != "none" else None
        layout = self._layout(sources, components or len(bands))
        held = held_bytes()
        dtypes = [item.scene["data"].dtype for item in self.scenes]
        gather = self.prepared.gather(self.workflow, found, dtypes)
        first = max(
            statistics_bytes(item.shape_yx, len(bands), dtype, gather)
            for item, dtype in zip(self.scenes, dtypes, strict=True)
        )
        if self.workflow.tiles.min_valid:
            first = max(first, *map(validity_bytes, sources))
        # what a file's own blocks, or a calibration, take while a window is read, however small it is
        block = max(int(item.scene.attrs.get("block_bytes", 0)) for item in self.scenes)
        second = task_bytes(layout, sources, remote=is_remote(self.path))
        hint = (
            "the scene's own blocks smaller (`bandstream scene convert` or `scene calibrate` to ENVI; gdal_translate -co "
            "TILED=YES for a GeoTIFF)"
            if block > second
            else ""
        )
        return (
            Engine.plan(first + block, held, memory_bytes, hint, crew),
            Engine.plan(second + block, held, memory_bytes, hint or "tiles.size or tiles.halo smaller", crew),
            layout.tiles,
        )

    def _layout(self, sources: list[TileSource], bands: int) -> StoreLayout:
        from .writer import StoreLayout

        tiles = self.workflow.tiles
        count = sum(len(source.grid) for source in sources)
        across = sources[0].grid.tiles_yx[1] if sources[0].grid.kept is None else 1
        codec = self.workflow.store.codec
        return StoreLayout.plan(count, bands, tiles.size, tiles.halo, codec, self._targets, across)

    @property
    def _targets(self) -> int:
        """Number of targets."""
        return max((len(item.targets.names) for item in self.scenes if item.targets), default=0)

    def _sources(self, found: Survey, chain: FittedChain) -> list[TileSource]:
        from .tiles import TileSource
        from .tiling import TileGrid

        tiles = self.workflow.tiles
        return [
            TileSource(
                item.scene,
                TileGrid(item.shape_yx, tiles.size, tiles.halo, kept),
                chain.bind(item.scene, (numbers.scale, numbers.offset)),
                split,
                item.labels,
                scene_id=item.scene_id,
                targets=item.targets,
            )
            for item, split, kept, numbers in zip(
                self.scenes, found.splits, found.kept, self.prepared.numbers, strict=True
            )
        ]

    def _tile(self, found: Survey, fitted: Fit, engine: Engine, *, quiet: bool) -> PatchStore:
        """Pass 2."""
        from .finish import finish_store, require_training
        from .tiles import write_shard
        from .writer import StoreWriter

        sources = self._sources(found, fitted.chain)
        layout = self._layout(sources, fitted.chain.outputs)
        writer = StoreWriter(self.path, layout)
        writer.begin()
        firsts = list(accumulate((len(source.grid) for source in sources[:-1]), initial=0))
        classes = len(found.class_names)
        records: list[ShardRecord | None] = [writer.finished(shard) for shard in range(layout.shards)]
        left = [shard for shard, record in enumerate(records) if record is None]
        shared, starts, task = engine.share(sources), engine.share(firsts), engine.task(write_shard)
        tasks = [task(writer, s, shared, starts, classes, dask_key_name=f"work-shard-{s:06d}") for s in left]
        size = 4.0 * math.prod(layout.shape("data")) * len(left) / layout.shards
        done = engine.run(tasks, description="tiles", count=len(tasks), quiet=quiet, size_bytes=size)
        for shard, record in zip(left, done, strict=True):
            records[shard] = record
        complete = [record for record in records if record is not None]
        require_training(complete, labels=any(item.labels for item in self.scenes), targets=self._targets > 0)
        self.require_unchanged()
        return finish_store(self, writer, sources, found, fitted, complete)


def _told_by(sources: Sources) -> list[Any] | None:
    """Return what the catalog entry adds to the files, if anything."""
    entry = sources.catalog
    return None if entry is None or entry.wavelength_nm is None else [entry.wavelength_nm, entry.fwhm_nm]


def _digest(item: OpenScene, cache: DigestCache) -> dict[str, Any]:
    """Return what identifies a scene, its labels and its split, wherever they lie."""
    return {
        "scene_id": item.files.scene_id,
        "scene": cache.digest(item.source_files),
        "labels": cache.digest(item.label_files) if item.labels else None,
        "split_raster": cache.digest(item.split_files) if item.split else None,
        "split": item.files.split_code,
        "targets": cache.digest(item.target_files) if item.targets else None,
        "label_settings": item.files.label_settings,
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


def is_finished(path: Path) -> bool:
    """Whether the store at `path` is complete."""
    return (path / MANIFEST).is_file()


def reused(path: Path, print_: str) -> BuildResult:
    """Return the result of a build that found its store finished."""
    store = PatchStore.open(path)
    store.check_present()
    if not is_remote(path) and (path / JOURNAL).is_dir():  # its builder was killed behind its last step
        delete_tree(path / JOURNAL, ignore_errors=True)
    return BuildResult(path, print_, True, 0, len(store), store=store)
