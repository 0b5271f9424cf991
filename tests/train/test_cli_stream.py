"""The command stream: what it measures, what it says of that, and how errors end."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bandstream.pipeline.errors import (
    BandstreamError,
    ConfigError,
    EmptySplitError,
    MemoryBudgetError,
    StoreCorruptError,
    StoreNotFoundError,
)
from bandstream.pipeline.store import PatchStore
from bandstream.train.cli import register
from bandstream.train.stream.speed import Limit, Speed, advice, limit_of

app = typer.Typer()
register(app)

MakeStore = Callable[..., PatchStore]
SHORT = ["--seconds", "0.2"]


def said(*arguments: object) -> tuple[str, str]:
    """Run the command; return what it printed and what it told beside."""
    done = CliRunner().invoke(app, ["stream", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def measured(*arguments: object) -> dict[str, Any]:
    return json.loads(said(*arguments, "--json", *SHORT)[0])


@pytest.mark.parametrize(("patch", "batch"), [(None, 4), (5, 32)])
def test_it_measures_rate_and_shares(shared_store: MakeStore, patch: int | None, batch: int) -> None:
    store = shared_store()
    found = measured(store.path, *([] if patch is None else ["--patch", patch]), "--batch", batch)
    side = store.tile_size + 2 * store.halo if patch is None else patch
    assert found["store"] == str(store.path)
    assert found["seconds"] >= 0.2
    assert found["samples"] == found["batches"] * batch > 0
    assert found["samples_per_s"] == pytest.approx(found["samples"] / found["seconds"])
    assert found["mb_per_s"] == pytest.approx(
        found["samples_per_s"] * store.bands * side**2 * 4 / 1e6, rel=1e-3
    )
    shares = [found[f"{name}_share"] for name in ("read", "decode", "gather", "augment")]
    assert all(0 <= share <= 1 for share in shares)
    assert math.isclose(sum(shares), 1, rel_tol=1e-6)
    assert 0 <= found["wait_share"] <= 1
    assert found["blocks_read"] == found["bytes_read"] == 0  # the store fits into memory and was read before
    assert "lie decoded in memory" in found["advice"]
    assert found["threads"] >= 1


def test_a_step_of_the_consumer_counts_as_its_own(shared_store: MakeStore) -> None:
    found = measured(shared_store().path, "--batch", 2, "--step", 20)
    assert found["limit"] == "consumer"
    assert found["step_share"] > 0.7
    assert found["batches"] <= 0.2 / 0.02 + 1
    assert found["advice"].startswith("The consumer limits")


def test_it_tells_people_the_same_in_lines_and_a_paragraph(shared_store: MakeStore) -> None:
    out, beside = said(shared_store().path, "--threads", 1, *SHORT)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["rate", "first", "waiting", "work", "read"]
    assert "samples/s" in lines[0]
    assert " limits" in lines[-1]
    assert "measuring" not in out
    assert (
        beside == said(shared_store().path, "--threads", 1, *SHORT, "--quiet")[1] == ""
    )  # too short for a line


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (["--split", "training"], ConfigError, "train, validation, test"),
        (["--patch", "4"], ConfigError, "odd"),
        (["--patch", "99"], ConfigError, "halo"),
        (["--batch", "0"], ConfigError, "batch_size=0"),
        (["--budget", "lots"], MemoryBudgetError, "'lots' is no size"),
        (["--budget", "1KiB"], ConfigError, "budget_bytes=1024 is too little"),
        (["--checksum", "sometimes"], ConfigError, "first"),
        (["--cache", __file__], ConfigError, "cannot hold a cache"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    shared_store: MakeStore, arguments: list[str], error: type[BandstreamError], told: str
) -> None:
    done = CliRunner().invoke(app, ["stream", str(shared_store().path), *arguments, *SHORT])
    assert isinstance(done.exception, error), done.output
    assert told in str(done.exception)


@pytest.mark.parametrize(
    "arguments", [["--seconds", "0"], ["--threads", "0"], ["--step", "-1"], ["--step", "inf"]]
)
def test_numbers_out_of_range_are_wrong_usage(shared_store: MakeStore, arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["stream", str(shared_store().path), *arguments]).exit_code == 2


def test_a_store_that_is_not_there_empty_or_damaged_is_named(
    shared_store: MakeStore, make_store: MakeStore, tmp_path: Path
) -> None:
    for path, options, error, told in (
        (tmp_path / "none.zarr", [], StoreNotFoundError, "none.zarr"),
        (shared_store(split="train").path, ["--split", "test"], EmptySplitError, "'test'"),
    ):
        done = CliRunner().invoke(app, ["stream", str(path), *options, *SHORT])
        assert isinstance(done.exception, error)
        assert told in str(done.exception)
    damaged = make_store()
    shard = next(path for path in (damaged.path / "tiles/data/c").rglob("*") if path.is_file())
    shard.unlink()
    done = CliRunner().invoke(app, ["stream", str(damaged.path), *SHORT])
    assert isinstance(done.exception, StoreCorruptError)
    assert shard.relative_to(damaged.path).as_posix() in str(done.exception)


@pytest.mark.parametrize(
    ("seconds", "wait", "limit"),
    [
        pytest.param((9.0, 1.0, 0.1, 0.0, 0.0), 0.9, "reading", id="waits for bytes"),
        pytest.param((1.0, 9.0, 0.1, 0.0, 0.0), 0.9, "decoding", id="waits for blocks"),
        pytest.param((1.0, 9.0, 4.0, 0.0, 0.0), 0.01, "gathering", id="blocks are there"),
        pytest.param((1.0, 1.0, 2.0, 3.0, 0.0), 0.0, "augmentation", id="augmentation"),
        pytest.param((9.0, 9.0, 1.0, 1.0, 3.0), 0.05, "consumer", id="a long step"),
        pytest.param((9.0, 1.0, 1.0, 1.0, 3.0), 0.5, "reading", id="a step, and still waiting"),
    ],
)
def test_what_limits_is_what_the_batches_wait_for(
    seconds: tuple[float, float, float, float, float], wait: float, limit: Limit
) -> None:
    assert limit_of(*seconds, wait) == limit


def speed(**changes: Any) -> Speed:
    """Return a measurement of a stream that reads each block again in each epoch."""
    usual: dict[str, Any] = {
        "seconds": 5.0, "first_batch_s": 0.2, "batches": 100, "samples": 1600, "samples_per_s": 320.0, "mb_per_s": 40.0,
        "wait_share": 0.5, "step_share": 0.0, "read_share": 0.6, "decode_share": 0.3, "gather_share": 0.1,
        "augment_share": 0.0, "bytes_read": 500_000_000, "blocks_read": 70, "blocks": 90, "slots": 30, "threads": 3,
        "limit": "reading",
    }  # fmt: skip
    return Speed(**usual | changes)


@pytest.mark.parametrize(
    ("changes", "place", "wanted", "unwanted"),
    [
        pytest.param({}, (False, "default", False), ["100 MB/s", "faster disk", "codec: zstd", "30 of the 90", "--budget"], ["cache"], id="disk"),
        pytest.param({}, (True, "zstd", False), ["--cache", "--threads", "more than 3 requests"], ["zstd", "disk,"], id="bucket"),
        pytest.param({}, (True, "default", True), ["--threads"], ["--cache"], id="bucket with a cache"),
        pytest.param({"limit": "decoding", "threads": 10_000}, (False, "default", False), ["more processors", "codec: none", "30 %"], ["--threads"], id="decoding"),
        pytest.param({"limit": "decoding", "threads": 0}, (False, "none", False), ["--threads"], ["codec"], id="few threads"),
        pytest.param({"limit": "gathering", "slots": 90}, (False, "none", False), ["320 samples/s", "40 MB/s", "--batch"], ["--budget", "memory gives"], id="gathering"),
        pytest.param({"limit": "augmentation", "augment_share": 0.4}, (False, "none", False), ["40 %", "device"], [], id="augmentation"),
        pytest.param({"limit": "consumer", "step_share": 0.95, "wait_share": 0.02}, (False, "none", False), ["95 %", "2.0 %"], ["--budget"], id="consumer"),
    ],
)  # fmt: skip
def test_the_advice_fits_what_limits(
    changes: dict[str, Any], place: tuple[bool, str, bool], wanted: list[str], unwanted: list[str]
) -> None:
    remote, codec, cached = place
    told = advice(speed(**changes), remote=remote, codec=codec, cached=cached)
    assert "\n" not in told
    assert all(text in told for text in wanted), told
    assert not any(text in told for text in unwanted), told


@pytest.mark.process
def test_the_installed_command_ends_with_the_exit_code_of_its_error(tmp_path: Path) -> None:
    command = shutil.which("bandstream", path=str(Path(sys.executable).parent))
    assert command
    done = subprocess.run(
        [command, "stream", str(tmp_path / "none.zarr")],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 41
    assert done.stderr.startswith("bandstream: There is no store at")
    assert done.stdout == ""
