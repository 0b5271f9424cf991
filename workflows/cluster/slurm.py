"""Build a patch store with workers that SLURM starts, through dask-jobqueue.

Run it on a login node, or as a small job of its own, from where the sources and the store's root lie under the same
paths as on the compute nodes::

    python -m bandstream.workflows.cluster.slurm flow.yaml --jobs 8 --queue compute --walltime 02:00:00 --print

prints the job script; without ``--print`` the jobs are submitted, and the build begins as soon as the first one runs.
Jobs that start later join, and what a lost one was working on is done by others. A scheduler that already runs needs
no script: ``bandstream run flow.yaml --scheduler tcp://host:8786``.

The scheduler listens on the network of the cluster, since its workers are on other machines: whoever reaches its port
can run code as you. Where that is more than your own group, set certificates in Dask's configuration
(``distributed.comm.tls``) and ``distributed.comm.require-encryption``; both ends follow it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def slurm_cluster(**options: Any) -> Any:
    """Return a SLURM cluster without jobs yet: one process with one thread per core asked for.

    Parameters
    ----------
    **options
        As `dask_jobqueue.SLURMCluster` takes them; what is given wins over the defaults below.

    Returns
    -------
    dask_jobqueue.SLURMCluster
        `scale(jobs=n)` submits, `scheduler_address` goes to `build`, `close()` ends the jobs.
    """
    from dask_jobqueue.slurm import SLURMCluster

    cores = int(options.get("cores", 4))
    defaults: dict[str, Any] = {
        "cores": cores,
        "processes": cores,  # one task at once per process: BLAS and Blosc take one thread each
        "memory": f"{2 * cores}GiB",  # of the job; each process gets its share as its limit
        "walltime": "01:00:00",
        "interface": None,  # as "ib0": the network that the compute nodes reach the login node by
        "scheduler_options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        "worker_extra_args": ["--no-dashboard"],
    }
    return SLURMCluster(**(defaults | options))


def build_on(cluster: Any, workflow: str | Path, jobs: int) -> Any:
    """Submit `jobs` jobs, and build the store of a workflow with the workers that come.

    Parameters
    ----------
    cluster
        From `slurm_cluster`; any other cluster of Dask works as well.
    workflow
        YAML file.
    jobs
        SLURM jobs; a job that waits in the queue joins when it starts.

    Returns
    -------
    bandstream.pipeline.PatchStore
        The finished store.
    """
    from distributed import Client

    from bandstream.pipeline import build

    cluster.scale(jobs)
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(1)  # however long the queue is
        return build(workflow, scheduler=cluster.scheduler_address, quiet=False)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workflow", help="workflow YAML")
    parser.add_argument("--jobs", type=int, default=2, help="SLURM jobs")
    parser.add_argument("--cores", type=int, default=4, help="cores of each job, and worker processes")
    parser.add_argument("--memory", help="memory of each job; 2 GiB per core by default")
    parser.add_argument("--queue", help="partition")
    parser.add_argument("--account")
    parser.add_argument("--walltime", default="01:00:00")
    parser.add_argument("--interface", help="network interface that the compute nodes reach, as ib0")
    parser.add_argument("--print", action="store_true", help="print the job script and submit nothing")
    given = vars(parser.parse_args(arguments))
    workflow, jobs, only_print = (given.pop(key) for key in ("workflow", "jobs", "print"))
    with slurm_cluster(**{key: value for key, value in given.items() if value is not None}) as cluster:
        if only_print:
            sys.stdout.write(cluster.job_script())
        else:
            build_on(cluster, workflow, jobs)


if __name__ == "__main__":
    main()
