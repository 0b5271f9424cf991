"""Worker processes that run the tasks of a build: started here, or those of a running Dask cluster.

Only this module knows `dask.distributed`. The driver holds the store's lock and writes the manifest; a worker writes
whole shards. A worker that dies costs the tasks that it worked on, which others do again to the same bytes.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast

import dask
from distributed import Client, LocalCluster, WorkerPlugin, wait
from distributed.scheduler import KilledWorker

from ..errors import BandstreamWarning, ClusterError, MemoryBudgetError
from ..progress import Progress
from .budget import MIB, WORKER_BYTES
from .surroundings import Expected
from .tasks import Carried, Context, describe, until_idle

CONNECT_SECONDS = 10
#: How long a scheduler may be without any worker, at the start and later, before the build gives up.
WORKERS_SECONDS = 60
#: Dask pauses a worker that holds more than this share of its memory limit.
USABLE_SHARE = 0.8
_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://(\[[0-9a-fA-F:]+\]|[^\s:/]+):\d{1,5}")
_NOISY = ("distributed", "tornado", "asyncio")


class Crew:
    """Workers of one build; a context manager, within which `start` is called once the build is planned."""

    def __init__(self) -> None:
        self.name = f"bandstream-{uuid.uuid4().hex}"
        self.notes: list[str] = []  #: what the user should know about the workers
        self._client: Client | None = None
        self._expected: Expected | None = None
        self._futures: list[Any] = []  #: what is being computed
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        # Dask logs each lost worker and each closed connection; what matters of that is raised here
        for logger in map(logging.getLogger, _NOISY):
            self._exit.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        # the graph holds the opened scenes, of which Dask warns from 10 MB on
        limit = {"distributed.admin.large-graph-warning-threshold": "1GB"}
        self._exit.enter_context(dask.config.set(limit))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._forget()
            self._exit.close()

    def _forget(self) -> None:
        if self._expected is not None:
            self._expected.forget()

    def plan(self, task_bytes: int, held_bytes: int, memory_bytes: int, hint: str) -> tuple[int, int]:
        """Return how many tasks may run at once, and the predicted peak; parameters as of `Engine.plan`."""
        raise NotImplementedError

    def start(self, tasks_at_once: int, files: Iterable[str], root: Path | None) -> None:
        """Begin the build, or begin again after an error: compare every worker with this process.

        Parameters
        ----------
        tasks_at_once
            The least of the planned engines.
        files
            Source files that every worker must see.
        root
            Folder under the store's root that every worker must be able to write to; None where it is in a bucket.

        Raises
        ------
        ClusterError
            Names the worker, what it lacks, and the path.
        """
        del tasks_at_once
        self._forget()
        self._expected = Expected.here(files, root)
        self._check(self._expected)

    def _check(self, expected: Expected) -> None:
        client = self.client
        found = cast("dict[str, Any]", client.run(Expected.problem, expected, on_error="return"))
        for address in sorted(found):
            problem = found[address]
            if isinstance(problem, ModuleNotFoundError):
                problem = f"it has no package {problem.name}; workers need the driver's environment."
            elif isinstance(problem, Exception):
                problem = f"the check of it failed: {problem!r}"
            if problem:
                raise ClusterError(f"The worker {address} cannot take part: {problem}")

    @property
    def client(self) -> Client:
        """The connection to the scheduler."""
        assert self._client is not None
        return self._client

    def context(self, tasks_at_once: int) -> Any:
        """Return the delayed context of the build's tasks."""
        assert self._expected is not None
        value = Context(self.name, self._at_once(tasks_at_once), self._expected)
        return dask.delayed(value, pure=False, traverse=False)

    def _at_once(self, tasks_at_once: int) -> int:
        """Return how many tasks one worker process may run at once."""
        raise NotImplementedError

    def compute(self, tasks: Sequence[Any], bar: Progress) -> list[Any]:
        """Compute delayed tasks and return their results in order.

        Raises
        ------
        BandstreamError
            As raised by a task.
        ClusterError
            A task ends every worker that takes it, no worker is left, or the scheduler is gone.
        """
        done: set[str] = set()
        told: set[str] = set()

        def heard(event: tuple[float, dict[str, Any]]) -> None:
            key = str(event[1]["done"])
            told.update(event[1]["warnings"])
            # a task that was lost with its worker is done twice
            if key.startswith("work-") and key not in done:
                done.add(key)
                bar.advance()

        client = self.client
        client.subscribe_topic(self.name, heard)
        try:
            self._futures = cast("list[Any]", client.compute(list(tasks)))
            self._wait(self._futures)
            return cast("list[Any]", client.gather(self._futures))
        except BaseException:
            self.halt()  # whoever comes next must not meet the writes of tasks that still run
            raise
        finally:
            self._futures = []
            for text in sorted(told):
                warnings.warn(text, BandstreamWarning, stacklevel=4)

    def _wait(self, futures: list[Any]) -> None:
        alone_since: float | None = None
        while True:
            try:
                with self.client.as_current():
                    wait(futures, timeout=1)
            except TimeoutError:
                pass
            except (CancelledError, OSError) as error:
                self._raise_lost(error)
            states = {future.status for future in futures}
            if "error" in states:
                self._raise_failed(next(future for future in futures if future.status == "error"))
            # "lost" is no end: the result went with its worker, and the scheduler has it made again
            if "cancelled" in states or self.client.status != "running":
                self._raise_lost(None)
            if states <= {"finished"}:
                return
            if self._workers():
                alone_since = None
            else:
                alone_since = alone_since or time.monotonic()
                if time.monotonic() - alone_since > WORKERS_SECONDS:
                    raise ClusterError(
                        f"The scheduler has had no worker for {WORKERS_SECONDS} s. Start workers and run the same "
                        "command again: finished shards are kept."
                    )

    def _raise_lost(self, error: Exception | None) -> None:
        raise ClusterError(
            "The connection to the Dask scheduler was lost while the build ran. Run the same command again once it is "
            "back: finished shards are kept."
        ) from error

    def _raise_failed(self, future: Any) -> None:
        error = cast("Exception", future.exception(timeout=CONNECT_SECONDS))
        if isinstance(error, Carried):
            raise error.error() from None
        if isinstance(error, KilledWorker):
            raise ClusterError(
                f"{describe(str(error.task)).capitalize()} ended {error.allowed_failures + 1} worker processes that "
                f"worked on it, the last one {error.last_worker.address}; most likely the system killed them for lack "
                "of memory. Use fewer workers, workers with more memory, or smaller tiles (tiles.size)."
            ) from None
        if isinstance(error, ModuleNotFoundError):
            raise ClusterError(
                f"A worker has no package {error.name}; workers need the driver's environment."
            ) from error
        raise error

    def _workers(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.client.scheduler_info(n_workers=-1)["workers"])

    def halt(self) -> None:
        """End what still runs of the build."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let go of the workers."""
        self.halt()


class _IgnoreInterrupts(WorkerPlugin):
    """Ctrl-C reaches every process of a terminal; the driver alone decides what follows from it."""

    name = "bandstream-ignore-interrupts"

    def setup(self, worker: Any) -> None:
        del worker
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class LocalCrew(Crew):
    """Worker processes of this machine with one task each, listening on 127.0.0.1 only."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        self._all_bytes = 0
        self._cluster: LocalCluster | None = None

    def plan(self, task_bytes: int, held_bytes: int, memory_bytes: int, hint: str) -> tuple[int, int]:
        """See `Crew.plan`; no more processes are started than the budget allows."""
        each = WORKER_BYTES + task_bytes
        count = min(self.workers, (memory_bytes - held_bytes) // each)
        if count < 1:
            raise MemoryBudgetError(
                f"A worker process needs {each / MIB:.0f} MiB, {task_bytes / MIB:.0f} of them for one task, beside the "
                f"{held_bytes / MIB:.0f} MiB that this process holds, and --memory allows {memory_bytes / MIB:.0f} MiB. "
                f"Raise --memory to {-(-(held_bytes + each) // MIB)}MiB or more, leave --workers out{hint}."
            )
        self._all_bytes = held_bytes + self.workers * each
        return count, held_bytes + count * each

    def start(self, tasks_at_once: int, files: Iterable[str], root: Path | None) -> None:
        """See `Crew.start`; starts the processes."""
        self.halt()
        enough = f"{-(-self._all_bytes // MIB)}MiB"
        fewer = f"--memory allows {tasks_at_once} of {self.workers} workers; {enough} would do for all"
        self.notes = [fewer] if tasks_at_once < self.workers else []
        # spawn, since a fork of a process with threads may never wake up; no memory limit, since the plan keeps it and
        # Dask would pause, spill or restart a worker by its own estimate
        with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
            self._cluster = LocalCluster(
                n_workers=tasks_at_once,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # None would take Dask's own port, or warn that another has it
                worker_dashboard_address=None,
                memory_limit=0,
                silence_logs=logging.CRITICAL,
            )
        self._client = Client(self._cluster, timeout=CONNECT_SECONDS, set_as_default=False)
        self._client.register_plugin(_IgnoreInterrupts())
        super().start(tasks_at_once, files, root)

    def _at_once(self, tasks_at_once: int) -> int:
        del tasks_at_once  # of all processes together; each has one thread
        return 1

    def halt(self) -> None:
        """End the processes, whatever they do."""
        client, cluster = self._client, self._cluster
        self._client = self._cluster = None
        if client is not None:
            client.close(timeout=CONNECT_SECONDS)
        if cluster is not None:
            cluster.close(timeout=CONNECT_SECONDS)


class RemoteCrew(Crew):
    """The workers of a running scheduler, with the memory limits that they were started with."""

    def __init__(self, address: str) -> None:
        super().__init__()
        if not _ADDRESS.fullmatch(address):
            raise ClusterError(f"--scheduler is {address!r}; write it as tcp://host:port or tls://host:port.")
        self.address = address

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self) -> None:
        host, port = self.address.split("://")[1].rsplit(":", 1)
        try:
            # Dask tries a refused connection again and again, and waits for ever for a server that says nothing
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as probe:
                # one of Dask speaks first, unless TLS comes before
                if self.address.startswith("tcp:") and not probe.recv(1):
                    raise ConnectionError("what listens there hung up")
            with warnings.catch_warnings():
                # of other versions, which `start` refuses by name
                warnings.simplefilter("ignore")
                self._client = Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, OverflowError, ValueError) as error:
            raise ClusterError(
                f"No Dask scheduler answers at {self.address} ({error}). Check that it runs (`dask scheduler`), the "
                "address, and for tls:// the certificates in Dask's configuration (distributed.comm.tls)."
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"The scheduler {self.address} has no worker after {WORKERS_SECONDS} s; start some with `dask worker "
                f"{self.address}`."
            ) from error

    def plan(self, task_bytes: int, held_bytes: int, memory_bytes: int, hint: str) -> tuple[int, int]:
        """See `Crew.plan`; a worker's own limit holds for it, and --memory for one that has none."""
        del held_bytes
        at_once, peak = 0, 0
        for address, worker in sorted(self._workers().items()):
            limit = int(worker["memory_limit"] or 0)
            room = int(limit * USABLE_SHARE) if limit else memory_bytes
            held = max(WORKER_BYTES, int(worker.get("metrics", {}).get("memory") or 0))
            count = min(int(worker["nthreads"]), (room - held) // task_bytes)
            if count < 1:
                share = f"{USABLE_SHARE:.0%} of its limit of {limit / MIB:.0f} MiB" if limit else "--memory"
                need = held + task_bytes
                more = int(need / USABLE_SHARE) if limit else need
                option = "--memory-limit" if limit else "--memory"
                raise MemoryBudgetError(
                    f"The worker {address} has no room for one task: the task needs {task_bytes / MIB:.0f} MiB beside "
                    f"the {held / MIB:.0f} MiB that the worker holds, and {share} is {room / MIB:.0f} MiB. Set "
                    f"{option} to {-(-more // MIB)}MiB or more{hint}."
                )
            at_once = min(at_once or count, count)
            peak = max(peak, held + count * task_bytes)
        return at_once, peak

    def start(self, tasks_at_once: int, files: Iterable[str], root: Path | None) -> None:
        """See `Crew.start`; asks the scheduler too, which unpacks the graph."""
        try:
            self.client.run_on_scheduler(_nothing)
        except ModuleNotFoundError as error:
            raise ClusterError(
                f"The scheduler {self.address} has no package {error.name}; it needs the driver's environment."
            ) from error
        super().start(tasks_at_once, files, root)

    def _at_once(self, tasks_at_once: int) -> int:
        return tasks_at_once

    def halt(self) -> None:
        """Take the build's tasks back, and wait for those that run."""
        client = self._client
        # what the workers of a scheduler that is gone still run nobody can stop
        with suppress(OSError, TimeoutError, CancelledError):
            if client is not None and client.status == "running" and self._futures:
                client.cancel(self._futures, force=True)
                self._wait_until_idle(client)

    def stop(self) -> None:
        """Disconnect."""
        try:
            self.halt()
        finally:
            client, self._client = self._client, None
            if client is not None:
                client.close(timeout=CONNECT_SECONDS)

    def _wait_until_idle(self, client: Client) -> None:
        # `run` has no timeout, and a worker may never answer
        asked = threading.Thread(
            target=client.run, args=(until_idle, self.name), kwargs={"on_error": "ignore"}, daemon=True
        )
        asked.start()
        asked.join(WORKERS_SECONDS)


def _nothing() -> None:
    """Show that a process can import this package."""
