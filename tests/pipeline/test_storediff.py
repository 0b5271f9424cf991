"""`store diff`: what it names, and that it is silent about what is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.cli import app
from bandstream.pipeline.errors import StoreCorruptError
from bandstream.pipeline.storediff import compare, diff, lines

from .conftest import MadeScene

Flow = dict[str, Any]


@pytest.fixture
def plain(flow: Flow) -> Flow:
    return {**flow, "stages": [{"drop_bands": {}}, {"normalize": {"method": "zscore"}}]}


def test_the_same_build_elsewhere_is_equal(plain: Flow, tmp_path: Path) -> None:
    a = build(plain)
    b = build({**plain, "store": {"root": str(tmp_path / "other")}})
    found = diff(a, b, pixels=True)
    assert found.pop("equal")
    assert all(part["different"] == 0 for part in found.pop("pixels").values())
    assert set(found) == {"a", "b"}
    assert "the same bytes" in lines(diff(a, b))[0]


def test_settings_bands_transforms_and_tiles_are_told_by_name(plain: Flow) -> None:
    a = build(plain)
    other = [{"drop_bands": {"windows_nm": [[400, 700]]}}, {"normalize": {"method": "minmax"}}]
    b = build({**plain, "stages": other, "tiles": {"size": 16, "halo": 0}})
    found = diff(a, b, pixels=True)
    assert not found["equal"]
    assert found["settings"]["stages.normalize.method"] == ["zscore", "minmax"]
    assert found["settings"]["tiles.halo"] == [2, 0]
    assert found["tiles"]["halo"] == [2, 0]
    assert found["bands"] == {"kept_in_a_only": [1, 2]}
    assert "sources" not in found
    assert "versions" not in found
    assert found["arrays"]["bands/wavelength"]["shapes"] == [[11], [9]]
    assert found["pixels"]["data"]["shapes"] == [list(a.array("data").shape), list(b.array("data").shape)]
    assert any(
        line.startswith("settings: stages.normalize.method: zscore -> minmax") for line in lines(found)
    )


def test_a_changed_source_shows_in_sources_arrays_and_pixels(plain: Flow, made: MadeScene) -> None:
    a = build(plain)
    raw = made.raw_yxb.copy()
    row, col = next((r, c) for r, c in np.argwhere(made.valid) if r > 10)
    raw[row, col, 0] += 700
    raw.transpose(0, 2, 1).astype("<i2").tofile(made.path.with_suffix(".img"))
    b = build(plain)
    found = diff(a, b, pixels=True)
    assert found["sources"] == ["only in a: scene", "only in b: scene"]
    assert "settings" not in found
    pixels = found["pixels"]
    one, two = (store.read_tiles("data", 0, len(store)) for store in (a, b))
    assert pixels["data"]["different"] == int((one != two).sum()) > 0
    assert pixels["data"]["largest"] == float(np.abs(one.astype(float) - two.astype(float)).max())
    first = int(np.flatnonzero((one != two).any(axis=(1, 2, 3)))[0])
    assert pixels["data"]["first_tile"] == first
    assert pixels["labels"]["different"] == pixels["valid"]["different"] == 0


def test_another_codec_holds_the_same_pixels_in_other_files(plain: Flow) -> None:
    a = build(plain)
    b = build({**plain, "store": {**plain["store"], "codec": "none"}})
    found = diff(a, b, pixels=True)
    assert not found["equal"]
    assert found["settings"] == {"store.codec": ["default", "none"]}
    assert all(part["different"] == 0 for part in found["pixels"].values())
    assert "tiles/data/c/0/0/0/0" in found["files"]["changed"]
    assert "arrays" not in found


@pytest.mark.parametrize(
    ("a", "b", "different", "largest"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0, 0.0),
        ([1.0, np.nan], [1.0, 2.0], 1, np.inf),
        ([True, False], [False, False], 1, 1.0),
        ([2**63, 5], [2**63, 1], 1, 4.0),
    ],
)
def test_values_are_compared_as_numbers(a: Any, b: Any, different: int, largest: float) -> None:
    found = compare(np.array(a), np.array(b))
    assert (found["different"], found["largest"]) == (different, largest)


def test_the_exit_code_tells_whether_they_are_equal(plain: Flow, tmp_path: Path) -> None:
    a = build(plain)
    copy = tmp_path / "copy.zarr"
    shutil.copytree(a.path, copy)
    same = CliRunner().invoke(app, ["store", "diff", str(a.path), str(copy)])
    assert (same.exit_code, "same bytes" in same.stdout) == (0, True)
    b = build({**plain, "tiles": {"size": 8, "halo": 2}})
    other = CliRunner().invoke(app, ["store", "diff", str(a.path), str(b.path), "--json", "--pixels"])
    assert other.exit_code == 1
    told = json.loads(other.stdout)
    assert told["settings"]["tiles.size"] == [16, 8]
    assert PatchStore.open(copy).verify() > 0


@pytest.mark.parametrize("edit", ['{"attributes": {"bandstream": {"schema": 2, "tiles": 1}}}', None])
def test_a_store_that_says_other_things_than_it_was_written_with_is_refused(
    plain: Flow, tmp_path: Path, edit: str | None
) -> None:
    a = build(plain)
    path = Path(shutil.copytree(a.path, tmp_path / "b.zarr"))
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(edit or text.replace('"name": "flow"', '"name": "fluw"'))
    for pair in ((a, PatchStore.open(path)), (PatchStore.open(path), a)):
        with pytest.raises(StoreCorruptError, match="have changed since they were written"):
            diff(*pair)
