"""Building the patch store of a workflow, or reusing the one that is there (`job.py` does the work)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import fingerprint
from .digest import ReuseIndex
from .engine import DEFAULT_MEMORY_BYTES, held_bytes, recruit
from .errors import (
    BandstreamError,
)
from .job import ALGORITHM, BuildResult, Job, is_finished, reused
from .locks import CACHE
from .progress import tell
from .sources import find_sources
from .store import SCHEMA, PatchStore
from .workflow import load_workflow, scene_entries, store_root

if TYPE_CHECKING:
    pass


def build(
    workflow: str | Path | dict[str, Any],
    *,
    quiet: bool = True,
    workers: int | None = None,
    scheduler: str | None = None,
    **overrides: Any,
) -> PatchStore:
    """Build the patch store of a workflow, or reuse the one that is there.

    Parameters
    ----------
    workflow
        A YAML file, or its content.
    quiet
        No progress, and nothing told about bands and splits.
    workers
        Work in so many processes of this machine instead of in threads; the store is the same, byte by byte. A script
        that says so needs ``if __name__ == "__main__":`` around it, since each process imports it.
    scheduler
        Work on the running Dask cluster at this address, ``tcp://host:port``.
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
    result = run_build(workflow, pairs, quiet=quiet, workers=workers, scheduler=scheduler)
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
    wait_seconds: float | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> BuildResult:
    """Build, or reuse, the store of a workflow and report.

    Parameters
    ----------
    source
        A YAML file, or its content.
    overrides
        Dotted overrides, ``tiles.size=32``.
    memory_bytes
        What the process, with the workers that it starts, may take at most. By default 1 GiB; where other parts of the
        process hold that already, 512 MiB more than they do.
    quiet
        No progress bars.
    dry_run
        Stop before any pixel is read; the result has no store.
    wait_seconds
        How long to wait at most while another process builds the same store: 0 refuses at once, None waits as long as
        it takes. The store that it finishes is reused.
    workers
        Work in so many processes of this machine instead of in threads.
    scheduler
        Work on the running Dask cluster at this address, ``tcp://host:port``; a worker's own memory limit holds for it.
    """
    started = time.perf_counter()
    workflow, bases = load_workflow(source, overrides)
    root = store_root(workflow)
    sources = find_sources(workflow, scene_entries(workflow, bases))
    reuse = ReuseIndex(root / CACHE / "reuse.json")
    key = fingerprint([version("bandstream"), ALGORITHM, SCHEMA, workflow.resolved(), sources.key()])
    known = reuse.find(key)
    if known and is_finished(root / known["store"]):
        result = reused(root / known["store"], known["fingerprint"])
    else:
        with recruit(workers, scheduler) as crew:
            job = Job.open(workflow, sources, root)
            budget = memory_bytes or max(DEFAULT_MEMORY_BYTES, held_bytes() + DEFAULT_MEMORY_BYTES // 2)
            result = None
            while result is None:
                try:
                    result = job.run(
                        budget, quiet=quiet, dry_run=dry_run, wait_seconds=wait_seconds, crew=crew
                    )
                except (BandstreamError, OSError) as error:
                    job = job.after(error)
        result.skipped = job.skipped
        if job.skipped:
            names = ", ".join(scene.scene_id for scene in job.skipped)
            result.notes.append(f"{len(job.skipped)} of {len(sources.scenes)} scenes skipped: {names}")
        # a scene that failed may be mended without a change to the others; what cannot be remembered is looked up again
        if result.store is not None and not job.skipped:
            with suppress(OSError):
                reuse.remember(key, job.path.name, job.fingerprint, job.stamps)
    result.seconds = time.perf_counter() - started
    return result
