"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..conftest import MadeScene

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'bandstream'; from bandstream.pipeline.cli import main; main()",
]


def call(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=100)


@pytest.fixture
def flow_file(flow: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "flow.yaml"
    path.write_text(yaml.safe_dump(flow))
    return path


@pytest.mark.process
def test_a_scene_becomes_a_store_that_verifies_and_is_reused(flow_file: Path, made: MadeScene) -> None:
    info = json.loads(call("scene", "info", made.path, "--json").stdout)
    assert info["shape_yxb"] == [40, 52, 12]
    assert info["nodata"] == -9999
    assert len(info["wavelength_nm"]) == len(info["fwhm_nm"]) == len(info["good_band"]) == 12
    assert "32633" in info["crs"]
    dry = json.loads(call("run", flow_file, "--dry-run", "--json").stdout)
    assert not Path(dry["store"]).exists()
    first = json.loads(call("run", flow_file, "--json").stdout)
    assert set(first) >= {"store", "fingerprint", "reused", "tiles", "predicted_peak_bytes", "seconds"}
    assert (first["tiles"], first["reused"], first["store"]) == (12, False, dry["store"])
    again = json.loads(call("run", flow_file, "--json").stdout)
    assert again["reused"]
    assert again["fingerprint"] == first["fingerprint"]
    store = Path(first["store"])
    assert call("store", "verify", store).returncode == 0
    assert store.name in call("store", "list", store.parent).stdout
    told = json.loads(call("store", "info", store, "--json").stdout)
    assert told["dropped_bands"] == [6]
    assert len(told["mean"]) == len(told["wavelength_nm"]) == 11
    shard = next((store / "tiles" / "data").rglob("c/*/0/0/0"))
    shard.unlink()
    verify = call("store", "verify", store)
    assert verify.returncode == 43
    assert str(shard.relative_to(store)) in verify.stderr


def _mistakes(made: MadeScene, flow_file: Path, tmp_path: Path) -> list[tuple[int, str, list[str | Path]]]:
    half = tmp_path / "half.zarr" / "tiles"
    half.mkdir(parents=True)
    header = made.path.read_text()
    (tmp_path / "keyless.hdr").write_text(header.replace("lines = 40\n", ""))
    (tmp_path / "keyless.img").write_bytes(made.path.with_suffix(".img").read_bytes())
    (tmp_path / "short.hdr").write_text(header)
    (tmp_path / "short.img").write_bytes(made.path.with_suffix(".img").read_bytes()[:-1])
    return [
        (10, "Did you mean 'size'", ["run", flow_file, "--set", "tiles.sise=3"]),
        (10, "no.yaml", ["run", tmp_path / "no.yaml"]),
        (21, "none.hdr", ["scene", "info", tmp_path / "none.hdr"]),
        (22, "lines", ["scene", "info", tmp_path / "keyless.hdr"]),
        (23, "bytes", ["scene", "info", tmp_path / "short.hdr"]),
        (41, "There is no store", ["store", "verify", tmp_path / "none.zarr"]),
        (42, "not finished", ["store", "verify", half.parent]),
        (50, "--memory", ["run", flow_file, "--memory", "1MiB"]),
        (2, "No such command", ["rum"]),
    ]


@pytest.mark.process
def test_each_mistake_ends_in_one_paragraph_and_its_own_exit_code(
    made: MadeScene, flow_file: Path, tmp_path: Path
) -> None:
    for code, word, arguments in _mistakes(made, flow_file, tmp_path):
        ended = call(*arguments)
        assert ended.returncode == code, (arguments, ended.stderr)
        assert word in ended.stderr
        assert "Traceback" not in ended.stderr
        if code != 2:
            assert ended.stderr.rstrip().count("\n") == 0, ended.stderr
        assert ended.stdout == ""


@pytest.mark.process
def test_a_build_that_is_killed_goes_on_and_ends_in_the_same_bytes(
    flow: dict[str, Any], tmp_path: Path
) -> None:
    """SIGKILL at several moments; then run again."""
    flow = {
        **flow,
        "tiles": {"size": 4, "halo": 1},
        "split": {"by": "none"},
        "store": {"root": str(tmp_path / "killed")},
    }
    path = tmp_path / "flow.yaml"
    path.write_text(yaml.safe_dump(flow))
    for delay in (0.3, 1.2):
        started = subprocess.Popen(
            [*COMMAND, "run", str(path), "-q"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 60
        while not list((tmp_path / "killed").glob("*.zarr/tiles")) and started.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(delay / 10)
        os.kill(started.pid, signal.SIGKILL)
        started.communicate()
    killed = json.loads(call("run", path, "--json").stdout)
    whole = json.loads(call("run", path, "--set", f"store.root={tmp_path / 'whole'}", "--json").stdout)
    for file in Path(whole["store"]).rglob("*"):
        if file.is_file():
            other = Path(killed["store"]) / file.relative_to(whole["store"])
            assert other.read_bytes() == file.read_bytes(), file


@pytest.mark.process
def test_resolve_prints_a_file_that_resolves_to_itself(flow_file: Path, tmp_path: Path) -> None:
    text = call("resolve", flow_file).stdout
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert call("resolve", again).stdout == text
    assert yaml.safe_load(text)["store"]["codec"] == "default"
    assert json.loads(call("schema").stdout)["additionalProperties"] is False


@pytest.mark.process
def test_the_catalog_lists_and_shows_its_entries() -> None:
    assert "enmap-potsdam" in call("catalog", "list").stdout
    assert json.loads(call("catalog", "show", "enmap-potsdam", "--json").stdout)["sensor"] == "EnMAP"
    wrong = call("catalog", "show", "enmap-potsdm")
    assert wrong.returncode == 10
    assert "Did you mean enmap-potsdam" in wrong.stderr
