"""Content digests, and the index of finished stores."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bandstream.pipeline.digest import BLOCK_BYTES, DigestCache, ReuseIndex, file_stamp, hash_file


def test_the_digest_follows_the_content_not_the_name(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"x" * (BLOCK_BYTES + 5))
    b.write_bytes(a.read_bytes())
    assert hash_file(a) == hash_file(b)
    with b.open("r+b") as file:
        file.seek(BLOCK_BYTES + 1)
        file.write(b"y")
    assert hash_file(a) != hash_file(b)
    (tmp_path / "empty").touch()
    assert len(hash_file(tmp_path / "empty")) == 64


def test_an_unchanged_file_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    path, kept = tmp_path / "a", tmp_path / "cache.json"
    path.write_bytes(b"one")
    cache = DigestCache(kept)
    first = cache.digest([path])
    cache.save()
    stat = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert DigestCache(kept).digest([path]) == first  # same size, time and inode: believed
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert DigestCache(kept).digest([path]) != first


def test_order_matters_to_the_digest_of_several_files(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    cache = DigestCache(tmp_path / "cache.json")
    assert cache.digest([a, b]) != cache.digest([b, a])


def test_an_entry_is_found_until_a_file_changes_or_goes(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.tif" for n in range(2)]
    for file in files:
        file.write_bytes(b"x")
    index = ReuseIndex(tmp_path / "reuse.json")

    def remember() -> None:
        index.remember("key", "s.zarr", "f" * 64, {str(file): file_stamp(file) for file in files})

    remember()
    assert index.find("other") is None
    assert (index.find("key") or {})["store"] == "s.zarr"
    files[0].write_bytes(b"xy")
    assert index.find("key") is None
    remember()
    files[1].unlink()
    assert index.find("key") is None


def test_damaged_caches_count_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text("[1, 2")
    (tmp_path / "a").write_bytes(b"1")
    assert DigestCache(path).digest([tmp_path / "a"])
    assert ReuseIndex(path).find("key") is None


def test_a_foreign_entry_of_the_index_is_none(tmp_path: Path) -> None:
    file, kept = tmp_path / "a", tmp_path / "reuse.json"
    file.write_bytes(b"1")
    stamps = {str(file): file_stamp(file)}
    for entry in (
        {"stamps": stamps},
        {"stamps": stamps, "store": 3, "fingerprint": "f"},
        {"stamps": stamps, "store": "s"},
    ):
        kept.write_text(json.dumps({"key": entry}))
        assert ReuseIndex(kept).find("key") is None
    kept.write_text("[" * 100_000)
    assert ReuseIndex(kept).find("key") is None


def test_a_digest_that_changed_by_itself_is_not_believed(tmp_path: Path) -> None:
    path, kept = tmp_path / "a", tmp_path / "cache.json"
    path.write_bytes(b"one")
    cache = DigestCache(kept)
    first = cache.digest([path])
    cache.save()
    entries = json.loads(kept.read_text())
    entries[str(path)][-1] = "f" * 64
    kept.write_text(json.dumps(entries))
    assert DigestCache(kept).digest([path]) == first
