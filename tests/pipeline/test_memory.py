"""What a build takes is never more than what it predicted, over eleven workflows, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from bandstream.pipeline import simulate

# everything is imported once and each build runs in a fork, whose peak the system counts from its start
SCRIPT = """
import json, os, sys
import bandstream.pipeline.apply, bandstream.pipeline.fitted, bandstream.pipeline.tiles, bandstream.pipeline.finish
import sklearn, scipy.linalg
from bandstream.pipeline.builder import run_build
for flow, memory in json.loads(sys.stdin.read()):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            result = run_build(flow, memory_bytes=memory, quiet=True)
            status = open("/proc/self/status").read()
            peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
            os.write(write, json.dumps([result.predicted_peak_bytes, peak]).encode())
        except BaseException as error:
            os.write(write, json.dumps(repr(error)).encode())
        os._exit(0)
    os.close(write)
    print(open(read).read())
    os.waitpid(child, 0)
"""
MIB = 1 << 20
REFLECTANCE = [{"calibrate": {"to": "surface_reflectance"}}, "drop_bands"]
PCA = [{"normalize": {"method": "zscore"}}, {"reduce": {"method": "pca", "components": 20}}]
VARIANTS: dict[str, dict[str, Any]] = {
    "pca": {"stages": [*REFLECTANCE, *PCA]},
    "mnf": {"stages": [*REFLECTANCE, {"reduce": {"method": "mnf", "noise": "both", "components": 20}}]},
    "no reduction": {"stages": [*REFLECTANCE, {"normalize": {"method": "zscore"}}]},
    "nothing fitted": {"stages": []},
    "percentile": {"stages": [*REFLECTANCE, {"normalize": {"method": "percentile"}}]},
    "continuum": {"stages": [*REFLECTANCE, {"normalize": {"method": "continuum_removal"}}, *PCA]},
    "selection": {
        "stages": [
            *REFLECTANCE,
            {"normalize": {"method": "zscore"}},
            {"reduce": {"method": "select", "rank": "mutual_information", "components": 20}},
        ]
    },
    "halo": {"stages": [*REFLECTANCE, *PCA], "tiles": {"size": 32, "halo": 12}},
    "large tiles": {"stages": [*REFLECTANCE, *PCA], "tiles": {"size": 256, "halo": 0}},
    "little memory": {"stages": [*REFLECTANCE, *PCA]},
    "balanced": {"stages": [*REFLECTANCE, *PCA], "statistics": {"balance": "classes"}},
}


BUDGETS = {"little memory": 512_000_000}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    folder = tmp_path_factory.mktemp("memory")
    made = simulate(folder / "scene.hdr", rows=420, cols=500, bands=160, classes=5, seed=1)
    flows: list[Any] = []
    for number, (name, variant) in enumerate(VARIANTS.items()):
        flow = {
            "version": 1,
            "name": name.replace(" ", "-"),
            "scenes": [{"path": str(made.header), "labels": str(made.labels)}],
            "split": {"by": "blocks", "block": 60},
            "store": {"root": str(folder / f"stores{number}")},
        }
        path = folder / f"{number}.yaml"
        path.write_text(yaml.safe_dump(flow | variant))
        flows.append([str(path), BUDGETS.get(name, 900 * MIB)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        input=json.dumps(flows),
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    return dict(zip(VARIANTS, answers, strict=True))


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", VARIANTS)
def test_measured_memory_is_at_most_what_was_predicted(measured: dict[str, list[int]], name: str) -> None:
    predicted, peak = measured[name]
    assert peak <= predicted <= BUDGETS.get(name, 900 * MIB)
    # and the prediction is of some use
    assert predicted < 4 * peak
