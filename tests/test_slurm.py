"""The SLURM example, as far as one machine can tell: the script that dask-jobqueue writes, and a build by its workers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bandstream.pipeline import simulate
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.config import dump_yaml
from bandstream.workflows.cluster.slurm import build_on, main, slurm_cluster

pytest.importorskip("dask_jobqueue")
pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # connections of ended processes
]

#: SLURM's three commands as dask-jobqueue calls them: submit, cancel, ask. A job runs at once, on this machine.
SBATCH = '#!/bin/sh\ncp "$1" {folder}/job.sh\nsh "$1" >{folder}/log 2>&1 &\necho "Submitted batch job $!"\n'
SCANCEL = '#!/bin/sh\necho "$@" >>{folder}/cancelled\nkill "$@"\n'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the three commands first on the path."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL), ("squeue", "#!/bin/sh\n")):
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def content(store: Path) -> dict[str, str]:
    files = [path for path in sorted(store.rglob("*")) if path.is_file()]
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_job_script_asks_for_what_the_options_say(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--cores",
        "8",
        "--memory",
        "24GiB",
        "--queue",
        "compute",
        "--account",
        "crops",
        "--walltime",
        "02:00:00",
    ]
    main(["flow.yaml", *options, "--print", "--interface", "lo"])
    script = capsys.readouterr().out
    asked = {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert {"-p compute", "-A crops", "--cpus-per-task=8", "--mem=24G", "-t 02:00:00"} <= asked
    (command,) = [line for line in script.splitlines() if "dask_worker" in line]
    assert command.startswith(f"{sys.executable} -m distributed.cli.dask_worker tcp://127.0.0.1:")
    for option in ("--nthreads 1", "--nworkers 8", "--memory-limit 3.00GiB", "--nanny", "--no-dashboard"):
        assert option in command


def test_a_store_is_built_by_the_workers_of_the_generated_script(slurm: Path, tmp_path: Path) -> None:
    scene = simulate(tmp_path / "scene.hdr", rows=96, cols=80, bands=30)
    flow = {
        "version": 1,
        "name": "flow",
        "scenes": [{"path": str(scene.header), "labels": str(scene.labels)}],
        "stages": ["mask", {"normalize": {"method": "zscore"}}, {"reduce": {"components": 4}}],
        "tiles": {"size": 16, "halo": 2},
        "split": {"by": "blocks", "block": 16, "seed": 0},
        "store": {"root": str(tmp_path / "stores")},
    }
    file = tmp_path / "flow.yaml"
    file.write_text(dump_yaml(flow))
    with slurm_cluster(cores=2, memory="4GiB", interface="lo") as cluster:
        store = build_on(cluster, file, jobs=1)
    script = (slurm / "job.sh").read_text()
    assert "#SBATCH --cpus-per-task=2" in script
    assert (slurm / "cancelled").read_text().split()  # closing the cluster ended the job
    flow["store"] = {"root": str(tmp_path / "threads")}
    assert content(store.path) == content(run_build(flow, quiet=True).path)
    subprocess.run(["sh", "-n", slurm / "job.sh"], check=True)
