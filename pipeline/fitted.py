"""Fitting a workflow's stages without building a store, for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .config import load_yaml
from .engine import DEFAULT_MEMORY_BYTES, Engine, held_bytes
from .fitting import Prepared, fit
from .gathering import Gather, SceneNumbers, standardised, statistics_bytes
from .measuring import measure
from .scene import nodata_values
from .sources import OpenScene, SceneFiles
from .stages.prepare import prepare_scene
from .statistics import Wanted
from .survey import survey
from .workflow import load_workflow, scene_entries, store_root

if TYPE_CHECKING:
    import xarray as xr

    from .stages.chain import FittedChain
    from .statistics import F8


def fit_workflow(
    source: str | Path | dict[str, Any], scene: xr.Dataset
) -> tuple[FittedChain, NDArray[np.float64] | None]:
    """Fit a workflow's stages as a build would.

    Parameters
    ----------
    source
        A YAML file, or its content. Without `scenes`, what is fitted is fitted on `scene`.
    scene
        As a reader, or a user, made it.

    Returns
    -------
    tuple
        The fitted stages, and the centres of the bands that enter them in nm, None where they have none.
    """
    content = source if isinstance(source, dict) else load_yaml(source)
    if "scenes" in content:
        return _of_its_own(source)
    shell = {"version": 1, "name": "notebook", "scenes": [{"path": "-"}]}
    workflow, bases = load_workflow(shell | content)
    preparation = workflow.preparation(bases)
    ready = prepare_scene(scene, preparation)
    item = OpenScene(ready, SceneFiles((), str(ready.attrs.get("scene_id", "scene"))), None, None)
    found = survey(workflow, [item], None)
    prepared = Prepared.of(workflow, [item], preparation)
    gather = prepared.gather(workflow, found, [ready["data"].dtype])
    prepared, gather, statistics = measure(
        workflow, [item], prepared, found, _engine(item, gather), None, quiet=True
    )
    chain = fit(workflow, prepared, gather, statistics).chain
    return chain, _centres(prepared, chain)


def _of_its_own(source: str | Path | dict[str, Any]) -> tuple[FittedChain, NDArray[np.float64] | None]:
    from .job import Job
    from .sources import find_sources

    workflow, bases = load_workflow(source)
    root = store_root(workflow)
    job = Job.open(workflow, find_sources(workflow, scene_entries(workflow, bases)), root)
    found = survey(workflow, job.scenes, job.sources.class_names)
    first, _, _ = job.plan(found, _budget_bytes())
    chain = job.fit(found, first, quiet=True).chain
    return chain, _centres(job.prepared, chain)


def own_numbers(scene: xr.Dataset, chain: FittedChain) -> tuple[F8, F8]:
    """Return scale and offset of a scene's bands that take its own mean off and divide by its own deviation.

    All of its valid pixels are read for it.
    """
    numbers = SceneNumbers(nodata_values(scene), *chain.preparation.numbers(scene))
    item = OpenScene(scene, SceneFiles((), str(scene.attrs.get("scene_id", "scene"))), None, None)
    bands = (chain.judged if chain.measured is None else chain.measured).astype(np.intp)
    engine = _engine(item, Gather(bands, Wanted(), judge=True, prefix=None))
    scaled = standardised(item, numbers, bands, engine, quiet=True)
    return scaled.scale, scaled.offset


def _engine(item: OpenScene, gather: Gather) -> Engine:
    needed = statistics_bytes(item.shape_yx, len(gather.bands), item.scene["data"].dtype, gather)
    needed += int(item.scene.attrs.get("block_bytes", 0))
    return Engine.plan(needed, held_bytes(), _budget_bytes())


def _centres(prepared: Prepared, chain: FittedChain) -> NDArray[np.float64] | None:
    centres = prepared.table.wavelength_nm
    return None if centres is None else centres[chain.kept]


def _budget_bytes() -> int:
    # a notebook may hold more than the default already
    return max(DEFAULT_MEMORY_BYTES, held_bytes() + DEFAULT_MEMORY_BYTES // 2)
