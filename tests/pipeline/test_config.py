"""Strict configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.config import (
    apply_overrides,
    canonical_json,
    dump_yaml,
    find_data,
    fingerprint,
    load_yaml,
    parse_yaml,
)
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.workflow import load_workflow, scene_entries

WORKFLOW = {"version": 1, "name": "w", "scenes": [{"path": "a.hdr"}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5),
        ("12:30:00", "12:30:00"),
        ("010", 10),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        (".5", 0.5),
        ("-3", -3),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}", "here")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: 1\na: 2", "stands twice"),
        ("a: &x 1\nb: *x", "aliases"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("a: [1", "expected"),
    ],
)
def test_what_yaml_could_hide_is_refused(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_yaml(text, "here")


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("a: " + "x" * 1_000_001)
    with pytest.raises(ConfigError, match="1000000 at most"):
        load_yaml(path)


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match=r"workflow\.yaml"):
        load_yaml(tmp_path / "workflo.yaml")


@pytest.mark.parametrize(
    ("change", "place", "nearest"),
    [
        ({"tiles": {"sise": 64}}, "tiles.sise", "size"),
        ({"tile": {}}, "tile", "tiles"),
        ({"split": {"by": "blocks", "blok": 3}}, "blok", "block"),
        ({"stages": [{"reduce": {"method": "pca", "componets": 3}}]}, "componets", "components"),
        ({"stages": [{"reduse": {}}]}, "reduse", "reduce"),
        ({"scenes": [{"path": "a", "label": "b"}]}, "label", "labels"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_allowed_one(
    change: dict[str, object], place: str, nearest: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workflow(WORKFLOW | change)
    assert place in str(caught.value)
    assert f"Did you mean {nearest!r}?" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"stages": [{"reduce": {}}, {"mask": {}}]}, "out of order"),
        ({"stages": [{"mask": {}}, {"mask": {}}]}, "2 times"),
        ({"stages": [{"reduce": {}}, {"normalize": {"method": "minmax"}}]}, "zscore"),
        ({"stages": [{"mask": {}, "reduce": {}}]}, "one key"),
        ({"split": {"by": "blocks", "fractions": {"train": 0.5, "test": 0.4}}}, "add up to 1"),
        ({"split": {"by": "given"}}, "exactly one of"),
        ({"tiles": {"size": 0}}, "greater than or equal to 1"),
        ({"version": 2}, "version"),
        ({"scenes": []}, "at least 1"),
        ({"name": "../x"}, "name"),
    ],
)
def test_a_workflow_that_makes_no_sense_is_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_workflow(WORKFLOW | change)


def test_overrides_reach_stages_by_name_and_lists_by_number() -> None:
    data = {"stages": [{"mask": {}}, {"reduce": {"components": 3}}], "tiles": {"size": 64}}
    changed = apply_overrides(
        data, ["stages.reduce.components=15", "tiles.size=32", "stages.0.mask.nodata=-9", "a.b=x"]
    )
    assert changed == {
        "stages": [{"mask": {"nodata": -9}}, {"reduce": {"components": 15}}],
        "tiles": {"size": 32},
        "a": {"b": "x"},
    }
    assert data["tiles"] == {"size": 64}


@pytest.mark.parametrize("override", ["tiles.size", "=3", "stages.reduce.components=3", "name.x=1"])
def test_an_override_that_does_not_fit_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        apply_overrides({"stages": [], "name": "x"}, [override])


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=6))
def test_the_fingerprint_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    turned = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(turned)
    assert fingerprint(value) == fingerprint(turned)


def test_relative_data_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    (far / "a.hdr").touch()
    assert find_data("a.hdr", [near, far]) == far / "a.hdr"
    assert find_data("*.hdr", [near, far]) == far / "*.hdr"
    (near / "a.hdr").touch()
    assert find_data("a.hdr", [near, far]) == near / "a.hdr"
    assert find_data("b.hdr", [near, far]) == near / "b.hdr"


def test_a_workflow_looks_beside_itself_then_in_the_data_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANDSTREAM_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("BANDSTREAM_TEST_DATA", raising=False)
    workflow, bases = load_workflow(WORKFLOW)
    assert scene_entries(workflow, bases).places == [Path.cwd(), tmp_path / "data"]


_KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
_TRICKY = st.sampled_from(
    ["1e5", "12:30:00", "0x1f", "no", "1_000", "", "~", ".inf", "- a", "a: b", "a\nb", "Yes"]
)
_VALUES = st.one_of(
    st.text(max_size=12), st.integers(), st.booleans(), st.lists(st.floats(-1e6, 1e6), max_size=4), _TRICKY
)


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES))
def test_what_is_dumped_reads_back_as_it_was(data: dict[str, object]) -> None:
    assert (parse_yaml(dump_yaml(data), "text") or {}) == data


@pytest.mark.parametrize(
    ("scenes", "said"),
    [
        ([{"path": "a.hdr", "bandz": 3}], "unknown key 'bandz' at scenes.0.bandz"),
        ({"catlog": "x"}, "unknown key 'catlog' at scenes.catlog. Did you mean 'catalog'?"),
        ([{"path": "a.hdr", "nodata": "abc"}], "scenes.0.nodata: input should be a valid number"),
    ],
)
def test_a_mistake_in_a_union_is_told_of_the_branch_that_was_meant(tmp_path, scenes, said) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(dump_yaml(WORKFLOW | {"scenes": scenes}))
    with pytest.raises(ConfigError) as caught:
        load_workflow(path)
    assert said in str(caught.value)
    assert "valid dictionary" not in str(caught.value)
    assert "valid list" not in str(caught.value)
