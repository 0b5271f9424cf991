"""XML beside products: hostile files end in one error, and namespaces make no difference."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from bandstream.pipeline.errors import FormatError, SceneNotFoundError
from bandstream.pipeline.readers import xml_metadata as xml


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_names_are_found_with_and_without_namespaces(tmp_path):
    plain = "<a><b n='1'> 2.5 </b><b n='2'>x</b></a>"
    spaced = "<p:a xmlns:p='urn:p'><b xmlns='urn:q' n='1'> 2.5 </b><p:b n='2'>x</p:b></p:a>"
    for text in (plain, spaced):
        root = xml.read_xml(write(tmp_path / "a.xml", text))
        assert root.tag == "a"
        assert [node.get("n") for node in root.findall("b")] == ["1", "2"]
        assert xml.number_of(root, "b", "a.xml") == 2.5


def test_texts_numbers_and_lists(tmp_path):
    root = xml.read_xml(
        write(
            tmp_path / "a.xml", "<a><n>NA</n><e/><l>1, 2,3,</l><bad>1,x</bad><inf>inf</inf><t>\n t\n</t></a>"
        )
    )
    assert xml.text_of(root, "t") == "t"
    assert xml.text_of(root, "e") is None
    assert xml.number_of(root, "n", "a") is None
    assert xml.number_of(root, "none/at/all", "a") is None
    assert xml.integers_of(root, "l", "a") == [1, 2, 3]
    assert xml.integers_of(root, "none", "a") == []
    with pytest.raises(FormatError, match="entry 2 of <bad> is 'x'"):
        xml.integers_of(root, "bad", "a")
    with pytest.raises(FormatError, match="a: inf is 'inf'"):
        xml.number_of(root, "inf", "a")
    with pytest.raises(FormatError, match="band 1 of 1 has no <none>"):
        xml.required_numbers([root], "none", "a")


LAUGHS = (
    "<!DOCTYPE a [<!ENTITY l0 'lol'>"
    + "".join(f"<!ENTITY l{i + 1} '{f'&l{i};' * 10}'>" for i in range(12))
    + "]><a>&l12;</a>"
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "<!DOCTYPE a SYSTEM 'http://127.0.0.1:9/a.dtd'><a/>",
        "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
        "<!DOCTYPE a [<!ENTITY % x SYSTEM 'file:///etc/passwd'> %x;]><a/>",
    ],
)
def test_document_types_and_entities_are_refused_at_once(tmp_path, text):
    start = time.monotonic()
    with pytest.raises(FormatError, match=r"a\.xml brings a document type, entities or references"):
        xml.read_xml(write(tmp_path / "a.xml", text))
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a>" * 10**6, "more than 64 deep"),
        ("<a>" + "<b/>" * 2000 + "</a>", "more than 1000 elements"),
        ("<a>&undefined;</a>", "no well-formed XML"),
        ("<a><b></a>", "no well-formed XML"),
        ("", "no well-formed XML"),
        (b"\xff\xfe\x00", "no well-formed XML"),
        ("<?xml version='1.0' encoding='no-such'?><a/>", "no well-formed XML"),
        ("<?xml version='1.0' encoding='utf-7'?><a/>", "no well-formed XML"),
        ("<a>\0</a>", "no well-formed XML"),
    ],
)
def test_hostile_and_damaged_files_are_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(xml, "MAX_ELEMENTS", 1000)
    with pytest.raises(FormatError, match=message):
        xml.read_xml(write(tmp_path / "a.xml", text))


def test_depth_is_refused_before_it_costs_memory(tmp_path):
    path = write(tmp_path / "a.xml", "<a>" * 10**6)
    tracemalloc.start()
    with pytest.raises(FormatError):
        xml.read_xml(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 3 * 10**6  # the file itself, and little besides


def test_too_large_a_file_is_refused_unread(tmp_path):
    path = tmp_path / "a.xml"
    with path.open("wb") as file:
        file.truncate(xml.MAX_BYTES + 1)
    with pytest.raises(FormatError, match=f"{xml.MAX_BYTES + 1} bytes"):
        xml.read_xml(str(path))
    with pytest.raises(SceneNotFoundError, match="No such file"):
        xml.read_xml(str(tmp_path / "none.xml"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<level_X a='1'>", "level_X"),
        ("\n<?xml version='1.0'?>\n<!-- a <b> --><!-- - -->\n<x:level_X/>", "level_X"),
        ("<?xml version='1.0'?><!DOCTYPE a><a/>", None),
        ("<!-- never ended", None),
        ("no xml", None),
        ("<!---->" * 9000, None),
        ("<!--" + "--><!--" * 8000, None),
    ],
)
def test_the_root_is_known_from_the_first_bytes(tmp_path, text, name):
    assert xml.root_name(write(tmp_path / "a.xml", text)) == name
    assert xml.root_name(str(tmp_path)) is None
