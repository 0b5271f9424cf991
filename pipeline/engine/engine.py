"""How many tasks run at once, where, and what memory that takes at most."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ClusterError, ConfigError, MemoryBudgetError
from ..progress import Progress, progress
from .budget import MIB
from .tasks import alone, task

if TYPE_CHECKING:
    from .crew import Crew


@dataclass(frozen=True)
class Engine:
    """How many tasks run at once, and what memory that is predicted to take at most.

    The count, and where the tasks run, change how fast the result comes, never the result.
    """

    tasks_at_once: int
    predicted_peak_bytes: int
    crew: Crew | None = None  #: worker processes; None runs the tasks in threads

    @classmethod
    def plan(
        cls, task_bytes: int, held_bytes: int, memory_bytes: int, what: str = "", crew: Crew | None = None
    ) -> Engine:
        """Choose how many tasks may run at once.

        Parameters
        ----------
        task_bytes
            What one task needs at most beside what is held anyway.
        held_bytes
            What the process holds while tasks run.
        memory_bytes
            The budget of the whole machine: of this process and of the worker processes that it starts.
        what
            Named in the message: what else would help, as "tiles.size smaller".
        crew
            Who runs the tasks; None = threads of this process.

        Raises
        ------
        MemoryBudgetError
            Not even one task fits.
        """
        hint = f", or make {what}" if what else ""
        if crew is not None:
            return cls(*crew.plan(task_bytes, held_bytes, memory_bytes, hint), crew)
        room = memory_bytes - held_bytes
        if room < task_bytes:
            raise MemoryBudgetError(
                f"One task needs {task_bytes / MIB:.0f} MiB beside the {held_bytes / MIB:.0f} MiB that the process "
                f"holds, and --memory allows {memory_bytes / MIB:.0f} MiB. Raise --memory to "
                f"{-(-(task_bytes + held_bytes) // MIB)}MiB or more{hint}."
            )
        count = max(1, min(os.cpu_count() or 1, room // task_bytes))
        return cls(count, held_bytes + count * task_bytes)

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a maker of delayed calls of `function`, as `dask.delayed` does; give keys by ``dask_key_name``."""
        return task(function, None if self.crew is None else self.crew.context(self.tasks_at_once))

    def share(self, value: Any) -> Any:
        """Return `value` as an argument of many tasks: it is sent to each worker once, and never looked into."""
        import dask

        return dask.delayed(value, pure=False, traverse=False)

    def run(
        self, tasks: Sequence[Any], *, description: str, count: int, quiet: bool, size_bytes: float = 0
    ) -> list[Any]:
        """Compute `tasks` (Dask delayed objects) and return their results in order.

        Parameters
        ----------
        tasks
            From `task` and `fold`.
        description
            For the progress bar, in one or two words.
        count
            Tasks whose key starts with ``work-``; they move the bar.
        quiet
            No progress bar.
        size_bytes
            What all of them together read or write, for the rate that is shown.
        """
        with progress(description, count, quiet=quiet, size_bytes=size_bytes) as bar:
            if self.crew is not None:
                return self.crew.compute(tasks, bar)
            return self._compute_in_threads(tasks, bar)

    def _compute_in_threads(self, tasks: Sequence[Any], bar: Progress) -> list[Any]:
        from concurrent.futures import ThreadPoolExecutor

        # not dask.compute: it looks for a distributed client, and imports that package for it
        from dask.threaded import get

        graph: dict[Any, Any] = {}
        for one in tasks:
            graph.update(one.__dask_graph__())
        with _counting(bar), alone():
            pool = ThreadPoolExecutor(self.tasks_at_once)
            try:
                return list(get(graph, [one.key for one in tasks], pool=pool))
            finally:
                # after an error or Ctrl-C other tasks still run: whoever comes next must not meet their writes
                pool.shutdown(wait=True, cancel_futures=True)


def recruit(workers: int | None, scheduler: str | None) -> AbstractContextManager[Crew | None]:
    """Return who runs the tasks of a build, to be entered: None = threads of this process.

    Parameters
    ----------
    workers
        Start so many worker processes on this machine.
    scheduler
        Address of a running Dask scheduler, ``tcp://host:port``.

    Raises
    ------
    ConfigError
        Both are given, or no worker.
    ClusterError
        The package distributed is missing.
    """
    if workers is not None and scheduler is not None:
        raise ConfigError("Give --workers or --scheduler, not both: a cluster brings its own workers.")
    if workers is None and scheduler is None:
        return nullcontext()
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers is {workers}; give 1 or more, or leave it out to work in threads.")
    try:
        from .crew import LocalCrew, RemoteCrew
    except ModuleNotFoundError as error:
        if error.name != "distributed":
            raise
        raise ClusterError(
            "Worker processes need the package distributed: pip install 'bandstream[cluster]'. Without --workers and "
            "--scheduler the work is done in threads."
        ) from error
    return RemoteCrew(scheduler) if scheduler is not None else LocalCrew(workers or 1)


@contextmanager
def _counting(bar: Progress) -> Generator[None]:
    from dask.callbacks import Callback

    def after(key: Any, *_: Any) -> None:
        if str(key).startswith("work-"):
            bar.advance()

    with Callback(posttask=after):
        yield
