"""Pass 1 of a build as a whole: from the cache where the scenes were read before, else by reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import fingerprint
from .files import write_bytes
from .finish import versions
from .fitting import Prepared, constant_bands, needs_statistics
from .gathering import Gather, gather_statistics, standardised
from .stages.config import SPECTRAL, is_fitted
from .statistics import BandStatistics, Wanted, from_bytes, to_bytes

if TYPE_CHECKING:
    from .engine import Engine
    from .sources import OpenScene
    from .survey import Survey
    from .workflow import Workflow

#: Raised whenever the same scenes and settings would give other statistics than before.
ALGORITHM = 1


@dataclass(frozen=True)
class KeptStatistics:
    """Statistics gathered before, and what tells whether they are still those of the scenes."""

    folder: Path
    sources: Any  #: digests of all that the scenes were read from
    require_unchanged: Callable[[], None]  #: refuses to keep anything once a source has changed

    def find(self, key: str, wanted: Wanted) -> BandStatistics | None:
        """Return what is kept under a key, if all that is wanted was gathered."""
        for path in sorted(self.folder.glob(f"{key}-*.npz")):
            try:
                statistics, gathered = from_bytes(path.read_bytes())
            except (OSError, ValueError):
                continue
            if gathered.covers(wanted):
                return statistics
        return None

    def keep(self, key: str, statistics: BandStatistics, wanted: Wanted) -> None:
        """Keep statistics."""
        self.require_unchanged()
        name = f"{key}-{fingerprint(vars(wanted))[:8]}.npz"
        with suppress(OSError):  # on a full root they are gathered again next time
            write_bytes(self.folder / name, to_bytes(statistics, wanted))


def measure(
    workflow: Workflow,
    scenes: Sequence[OpenScene],
    prepared: Prepared,
    found: Survey,
    engine: Engine,
    kept: KeptStatistics | None,
    *,
    quiet: bool,
) -> tuple[Prepared, Gather, BandStatistics | None]:
    """Gather what the stages are fitted on.

    Parameters
    ----------
    workflow, scenes, prepared, found
        What is built, of what, in which bands, and its splits.
    engine
        Runs the tasks.
    kept
        Statistics gathered before are used where scenes, splits and the stages in front of the first fitted one are
        the same; None reads the scenes whatever was read before.
    quiet
        No progress.

    Returns
    -------
    tuple
        The bands and stages that the statistics are over, what was gathered, and the statistics, None where nothing is
        fitted.
    """
    dtypes = [item.scene["data"].dtype for item in scenes]
    if workflow.per_scene:
        scaled = [
            standardised(item, numbers, prepared.candidates, engine, quiet=quiet)
            for item, numbers in zip(scenes, prepared.numbers, strict=True)
        ]
        prepared = replace(prepared, numbers=scaled)
    gather = prepared.gather(workflow, found, dtypes)
    if not needs_statistics(workflow):
        return prepared, gather, None

    def gathered() -> BandStatistics:
        key = fingerprint(_recipe(workflow, prepared, gather, found, kept.sources if kept else None))[:32]
        statistics = kept.find(key, gather.wanted) if kept else None
        if statistics is None:
            statistics = gather_statistics(
                scenes, found.splits, prepared.scene_numbers(), gather, engine, quiet=quiet
            )
            if kept:
                kept.keep(key, statistics, gather.wanted)
        return statistics

    statistics = gathered()
    drop = workflow.stage("drop_bands")
    if gather.prefix is not None and drop and drop.all_nodata:
        constant = constant_bands(prepared, statistics)
        if 0 < len(constant) < int(statistics.present.sum()):
            # what a band without variation did to its neighbours can only be undone by reading again
            prepared = prepared.without(constant)
            gather = prepared.gather(workflow, found, dtypes)
            statistics = gathered()
    return prepared, gather, statistics


def _recipe(
    workflow: Workflow, prepared: Prepared, gather: Gather, found: Survey, sources: Any
) -> dict[str, Any]:
    """Return what decides the statistics, beside which of them are asked for."""
    recipe = workflow.recipe()
    front: list[Any] = []
    for stage, told in zip(workflow.stages, recipe["stages"], strict=True):
        if stage.kind in SPECTRAL and is_fitted(getattr(stage, stage.kind)):
            break
        front.append(told)
    return {
        "algorithm": ALGORITHM,
        "versions": versions(),
        "sources": sources,
        "stages": front,
        "judge": gather.judge,
        "bands": prepared.candidates.tolist(),
        # the numbers of classes told by name, and how many there are
        "classes": found.class_names,
        "split": recipe["split"],
        # the margin follows from the halo unless it is a number
        "halo": recipe["tiles"]["halo"] if isinstance(recipe["split"].get("margin"), str) else None,
    }
