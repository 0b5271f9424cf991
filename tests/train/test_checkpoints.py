"""Checkpoint files: whole or refused, without pickle, and an older one stands in for a damaged one."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import BandstreamWarning, CheckpointError
from bandstream.train.checkpoints import KEEP, Checkpoint, Checkpoints, read, write


def example() -> Checkpoint:
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "model.weight": torch.randn(3, 4, 5, generator=rng),
        "model.strided": torch.randn(4, 6, generator=rng).T,
        "model.half": torch.randn(7, generator=rng).bfloat16(),
        "model.fp16": torch.randn(3, generator=rng).half(),
        "model.count": torch.tensor(5),
        "model.mask": torch.tensor([True, False, True]),
        "model.empty": torch.empty(0, 3),
        "optimizer.0.step": torch.tensor(12.0),
        "random.torch": torch.get_rng_state(),
        "model.double": torch.tensor([0.1, float("nan"), -float("inf")], dtype=torch.float64),
    }
    return Checkpoint(tensors, {"position": {"step": 3}, "text": 'ä"\n', "loss": 0.1 + 0.2})


def test_tensors_and_state_come_back_bit_by_bit(tmp_path: Path) -> None:
    written, path = example(), tmp_path / "a.safetensors"
    write(path, written)
    found = read(path)
    assert found.state == written.state
    assert found.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        other = found.tensors[name]
        assert other.dtype == value.dtype, name
        assert other.shape == value.shape, name
        assert bytes(other.contiguous().reshape(-1).view(torch.uint8).tolist()) == bytes(
            value.contiguous().reshape(-1).view(torch.uint8).tolist()
        ), name
    assert found.under("model").keys() == {
        n.removeprefix("model.") for n in written.tensors if n[:6] == "model."
    }


def test_the_layout_is_that_of_safetensors(tmp_path: Path) -> None:
    """Parsed by the published description: header length, JSON header, bytes without gaps."""
    path = tmp_path / "a.safetensors"
    write(path, example())
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    header = json.loads(content[8 : 8 + size])
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert spans[0][0] == 0
    assert spans[-1][1] == len(content) - 8 - size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    start, end = header["model.weight"]["data_offsets"]
    assert header["model.weight"]["dtype"] == "F32"
    assert content[8 + size + start : 8 + size + end] == example().tensors["model.weight"].numpy().tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.safetensors"
    write(path, example())
    return path.read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_or_a_cut_is_always_noticed(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    path = tmp_path / "b.safetensors"
    if data.draw(st.booleans()):
        content = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        # blanks behind the header are padding and mean nothing
        place = data.draw(st.integers(0, len(whole) - 1))
        changed = (whole[place] + data.draw(st.integers(1, 255))) % 256
        content = whole[:place] + bytes([changed]) + whole[place + 1 :]
    path.write_bytes(content)
    try:
        found = read(path)
    except CheckpointError:
        return
    # a change that JSON does not see, such as one kind of blank for another, is no damage
    assert found.state == example().state
    assert torch.equal(found.tensors["model.weight"], example().tensors["model.weight"])


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04\x95garbage", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}", b"PK\x03\x04" * 20]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"c\.safetensors cannot be used"):
        read(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"best\.safetensors cannot be read"):
        Checkpoints(tmp_path, "a").best()


def test_a_write_that_is_cut_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    write(path, example())

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, Checkpoint({"model.weight": torch.zeros(3)}, {}))
    assert read(path).state == example().state


def saved(folder: Path, steps: int, identity: str = "a") -> Checkpoints:
    made = Checkpoints(folder, identity)
    for step in range(1, steps + 1):
        made.save(step, Checkpoint({"model.weight": torch.full((2,), float(step))}, {"step": step}))
    return made


def test_the_newest_states_are_kept(tmp_path: Path) -> None:
    made = saved(tmp_path, 12)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000011.safetensors", "step-00000012.safetensors"]
    assert len(names) == KEEP
    latest = made.latest()
    assert latest is not None
    assert latest.state["step"] == 12


def test_nothing_saved_yet_is_no_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "checkpoints", "a").latest() is None


def test_a_damaged_newest_state_gives_way_to_the_one_before(tmp_path: Path) -> None:
    made = saved(tmp_path, 3)
    newest = tmp_path / "step-00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(BandstreamWarning, match=r"step-00000003.*Going on from step-00000002"):
        found = made.latest()
    assert found is not None
    assert found.tensors["model.weight"].tolist() == [2.0, 2.0]


def test_no_usable_state_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    made = saved(tmp_path, 2)
    for path in tmp_path.iterdir():
        path.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="No other checkpoint is left: delete"):
        made.latest()


def test_states_of_another_run_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 2).save_best(example())
    other = Checkpoints(tmp_path, "b")
    with pytest.raises(CheckpointError, match="belongs to another run"):
        other.latest()
    with pytest.raises(CheckpointError, match="belongs to another run"):
        other.best()
