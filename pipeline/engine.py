"""Running tasks with Dask, so many at a time as memory allows."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import MemoryBudgetError
from .progress import Progress, progress

MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 1024 * MIB
#: The readers' idle buffers (64 MiB at most), libraries that load late, and what the allocator keeps.
RESERVE_BYTES = 128 * MIB


@dataclass(frozen=True)
class Engine:
    """How many tasks run at once, and what memory that is predicted to take at most.

    The count changes how fast the result comes, never the result.
    """

    tasks_at_once: int
    predicted_peak_bytes: int

    @classmethod
    def plan(cls, task_bytes: int, held_bytes: int, memory_bytes: int, what: str = "") -> Engine:
        """Choose how many tasks may run at once.

        Parameters
        ----------
        task_bytes
            What one task needs at most beside what is held anyway.
        held_bytes
            What the process holds while tasks run.
        memory_bytes
            The budget.
        what
            Named in the message: what else would help, as "tiles.size smaller".

        Raises
        ------
        MemoryBudgetError
            Not even one task fits.
        """
        room = memory_bytes - held_bytes
        if room < task_bytes:
            hint = f", or make {what}" if what else ""
            raise MemoryBudgetError(
                f"One task needs {task_bytes / MIB:.0f} MiB beside the {held_bytes / MIB:.0f} MiB that the process "
                f"holds, and --memory allows {memory_bytes / MIB:.0f} MiB. Raise --memory to "
                f"{-(-(task_bytes + held_bytes) // MIB)}MiB or more{hint}."
            )
        count = max(1, min(os.cpu_count() or 1, room // task_bytes))
        return cls(count, held_bytes + count * task_bytes)

    def run(self, tasks: Sequence[Any], *, description: str, count: int, quiet: bool) -> list[Any]:
        """Compute `tasks` (Dask delayed objects) and return their results in order.

        `count` tasks whose key starts with ``work-`` move the progress bar.
        """
        from concurrent.futures import ThreadPoolExecutor

        import dask
        from threadpoolctl import threadpool_limits

        # one BLAS thread per task: the tasks share the cores already, and results must not depend on the count
        with progress(description, count, quiet=quiet) as bar, _counting(bar), threadpool_limits(1):
            pool = ThreadPoolExecutor(self.tasks_at_once)
            try:
                return list(dask.compute(*tasks, scheduler="threads", pool=pool))
            finally:
                # after an error or Ctrl-C other tasks still run: whoever comes next must not meet their writes
                pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _counting(bar: Progress) -> Generator[None]:
    from dask.callbacks import Callback

    def after(key: Any, *_: Any) -> None:
        if str(key).startswith("work-"):
            bar.advance()

    with Callback(posttask=after):
        yield


def fold(function: Callable[[Any, Any], Any], start: Any, parts: Sequence[Any]) -> Any:
    """Return the delayed left fold of `parts`: merged in their order, each freed once it is in."""
    import dask

    result = dask.delayed(start, pure=False)
    merge = dask.delayed(function, pure=False)
    for part in parts:
        result = merge(result, part)
    return result


def held_bytes() -> int:
    """Return what the process holds now, with a reserve for what comes beside the tasks, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + RESERVE_BYTES


def parse_bytes(text: str) -> int:
    """Read a size such as ``800MB``, ``1.5GiB`` or ``2g``.

    Raises
    ------
    MemoryBudgetError
        It is no size.
    """
    import re

    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if not found:
        raise MemoryBudgetError(f"{text!r} is no size; write it as 800MB, 1GiB or 2G.")
    power = " kmgt".index(found[2].lower() or " ")
    # 1G and 1GiB are binary, 1GB is decimal
    base = 1000 if found[2] and not found[3] and text.strip().lower().endswith("b") else 1024
    return int(float(found[1]) * base**power)
