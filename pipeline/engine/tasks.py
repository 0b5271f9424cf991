"""What surrounds every task, wherever it runs: one BLAS thread, no scheduler inside a task, warnings brought home.

Threads and worker processes run the same wrapper, so that a task gives the same bytes in both.
"""

from __future__ import annotations

import re
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from ..errors import BandstreamError, BandstreamWarning, ClusterError
from .surroundings import Expected


@dataclass(frozen=True)
class Context:
    """What a task in a worker process knows of its build; sent to each worker once."""

    build: str  #: topic under which the worker reports to the driver
    at_once: int  #: tasks that one process may run at once
    expected: Expected


class Carried(Exception):  # noqa: N818 - no error of its own
    """An error of a task on its way to the driver: as Dask sends them, those that are OSError or MemoryError get lost."""

    @classmethod
    def of(cls, error: BandstreamError | OSError) -> Carried:
        """Take an error apart."""
        name = getattr(error, "filename", None)
        args = error.args if name is None else (*error.args, name)
        return cls(type(error), args, vars(error))

    def error(self) -> Exception:
        """Put the error together again."""
        kind, args, attributes = self.args
        error = kind(*args)
        vars(error).update(attributes)
        return error


def task(function: Callable[..., Any], context: Any = None) -> Callable[..., Any]:
    """Return a maker of delayed calls of `function`, as `dask.delayed` does.

    Parameters
    ----------
    function
        Importable by name, so that it need not travel.
    context
        A delayed `Context` for worker processes; None for threads.
    """
    import dask

    run = dask.delayed(run_here if context is None else _run_in_worker, pure=False)
    # a scheduler that still knows a key would give the result of an earlier pass
    this = uuid.uuid4().hex[:8]

    def make(*args: Any, dask_key_name: str = "task", **kwargs: Any) -> Any:
        name = f"{dask_key_name}-{this}" if dask_key_name != "task" else f"task-{uuid.uuid4().hex}"
        return run(function, context, *args, dask_key_name=name, **kwargs)

    return make


def fold(function: Callable[[Any, Any], Any], start: Any, parts: Sequence[Any]) -> Any:
    """Return the delayed left fold of `parts`: merged in their order, each freed once it is in."""
    from dask.delayed import Delayed

    # one graph made at once: merging delayed objects one by one copies the graph so far for each of thousands
    name = f"fold-{uuid.uuid4().hex}"
    graph: dict[Any, Any] = {f"{name}-00000000": (_Constant(start),)}
    for number, part in enumerate(parts, 1):
        graph.update(part.__dask_graph__())
        graph[f"{name}-{number:08d}"] = (run_here, function, None, f"{name}-{number - 1:08d}", part.key)
    return Delayed(f"{name}-{len(parts):08d}", graph)


@dataclass(frozen=True)
class _Constant:
    """Gives a value that Dask must not take for a key or a task."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def describe(key: str) -> str:
    """Return a task's key in words."""
    if found := re.fullmatch(r"work-shard-(\d+)\b.*", key):
        return f"shard {int(found[1])}"
    if found := re.fullmatch(r"work-statistics-(\d+)-(\d+)\b.*", key):
        return f"the statistics of scene {int(found[1]) + 1} from row {int(found[2])} on"
    return f"the task {key}"


def run_here(function: Callable[..., Any], _: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run a task in this thread."""
    _one_blas_thread()
    return function(*args, **kwargs)


def _run_in_worker(function: Callable[..., Any], context: Context, /, *args: Any, **kwargs: Any) -> Any:
    import dask
    from distributed import get_worker

    # Dask inside a task would send its work to the cluster and wait for it, in the place of a worker's only thread
    dask.config.set(scheduler="synchronous")
    worker = get_worker()
    key = str(worker.get_current_task())
    failed, result = None, None
    with _counted(context.build), _warnings_told() as told:
        try:
            _require_same(context, worker.address)
            with _gate(context):
                result = run_here(function, None, *args, **kwargs)
        except (BandstreamError, OSError) as error:
            failed = Carried.of(error)
    if failed is not None:
        raise failed  # here, since inside the handler the error would travel along as its context
    worker.log_event(context.build, {"done": key, "warnings": told})
    return result


_lock = threading.Lock()
_running: dict[str, int] = {}
_gates: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_checked: set[str] = set()
_inside = threading.local()


@contextmanager
def alone() -> Generator[None]:
    """Give BLAS one thread and Dask none of its own while threads of this process run tasks."""
    import dask
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), dask.config.set(scheduler="synchronous"):
        yield


def _one_blas_thread() -> None:
    """Let this thread's products take one thread: the tasks share the cores already, and the last bits depend on it.

    Some BLAS libraries keep the number by thread and others by process, where it belongs to the thread that set it
    first. It is not given back: pools of threads end with their build, and a worker process computes nothing else.
    """
    from threadpoolctl import threadpool_limits

    loaded = len(sys.modules)  # a library that came since has threads of its own
    if getattr(_inside, "loaded", 0) != loaded:
        threadpool_limits(1)
        _inside.loaded = loaded


@contextmanager
def _counted(build: str) -> Generator[None]:
    with _lock:
        _running[build] = _running.get(build, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _running[build] -= 1


async def until_idle(build: str) -> None:
    """Return once this process runs no task of a build any more."""
    import asyncio

    while _running.get(build):  # noqa: ASYNC110 - tasks run in other threads, which an asyncio.Event does not serve
        await asyncio.sleep(0.02)


def _gate(context: Context) -> AbstractContextManager[Any]:
    with _lock:
        return _gates.setdefault(
            (context.build, context.at_once), threading.BoundedSemaphore(context.at_once)
        )


def _require_same(context: Context, address: str) -> None:
    """Check this process once per build: workers may join while a build runs."""
    if context.build in _checked:
        return
    if problem := context.expected.problem():
        raise ClusterError(f"The worker {address} joined the build, but {problem}")
    _checked.add(context.build)


@contextmanager
def _warnings_told() -> Generator[list[str]]:
    """Collect this thread's warnings for the user, for the driver to give.

    `warnings.catch_warnings` would change the whole process, in which other tasks may run.
    """
    with _lock:
        if not getattr(warnings.showwarning, "told_to_driver", False):
            warnings.showwarning = _tell_driver(warnings.showwarning)
            warnings.simplefilter("always", BandstreamWarning)
    _inside.told = []
    try:
        yield _inside.told
    finally:
        _inside.told = None


def _tell_driver(show: Callable[..., None]) -> Callable[..., None]:
    def shown(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        told = cast("list[str] | None", getattr(_inside, "told", None))
        if told is None or not issubclass(category, BandstreamWarning):
            show(message, category, *args, **kwargs)
        elif str(message) not in told:
            told.append(str(message))

    cast("Any", shown).told_to_driver = True
    return shown
