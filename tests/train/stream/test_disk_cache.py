"""The cache on disk: what it serves, what it keeps within its limit, and what disks, kills and other processes do to it."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.train.stream import disk_cache
from bandstream.train.stream.disk_cache import CachedBytes, DiskCache, is_whole

KIB = 1024
ENTRY = 16 * KIB


def chunk(number: int, size_bytes: int = ENTRY) -> bytes:
    """Return bytes that no other number gives, with their checksum behind them."""
    body = np.random.default_rng(number).bytes(size_bytes - 4)
    return body + google_crc32c.value(body).to_bytes(4, "little")


def held(cache: DiskCache, number: int, size_bytes: int = ENTRY) -> bytes | None:
    """Return what the cache gives for a number's key, None if nothing."""
    out = bytearray(size_bytes)
    return bytes(out) if cache.load(f"key {number}", [memoryview(out)]) else None


def keep(cache: DiskCache, number: int, size_bytes: int = ENTRY) -> None:
    cache.save(f"key {number}", [memoryview(chunk(number, size_bytes))])


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.chunk"))


def age(folder: Path, seconds: float) -> None:
    """Let all entries be used last so many seconds earlier than they say."""
    for path in entries(folder):
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


class Counted:
    """Chunks as a source of bytes: ``file n`` holds chunk n; every read is counted."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int, int]] = []
        self.sizes: list[str] = []

    def size(self, name: str) -> int:
        self.sizes.append(name)
        return 3 * ENTRY

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        for (offset, length), buffer in zip(ranges, out, strict=True):
            self.reads.append((name, offset, length))
            buffer[:] = self.bytes_of(name, offset, length)

    @staticmethod
    def bytes_of(name: str, offset: int, length: int) -> bytes:
        assert offset % ENTRY == 0
        return chunk(int(name.split()[1]) + offset // ENTRY, length)

    def close(self) -> None:
        pass


def read(source: CachedBytes, name: str, ranges: list[tuple[int, int]]) -> list[bytes]:
    buffers = [bytearray(length) for _, length in ranges]
    source.read(name, ranges, [memoryview(buffer) for buffer in buffers])
    return [bytes(buffer) for buffer in buffers]


RANGES = [(0, ENTRY), (2 * ENTRY, ENTRY), (5 * ENTRY, 700)]


def test_what_was_fetched_is_not_fetched_again_here_or_by_the_next_process(tmp_path: Path) -> None:
    behind = Counted()
    source = CachedBytes(behind, DiskCache(tmp_path), "a store")
    wanted = [Counted.bytes_of("file 7", *one) for one in RANGES]
    assert read(source, "file 7", RANGES[:1]) == wanted[:1]
    assert read(source, "file 7", RANGES) == wanted
    assert behind.reads == [("file 7", *one) for one in RANGES]  # the second time only what was missing
    assert source.size("file 7") == source.size("file 7") == 3 * ENTRY
    later = Counted()
    source = CachedBytes(later, DiskCache(tmp_path), "a store")
    assert read(source, "file 7", RANGES[::-1]) == wanted[::-1]
    assert source.size("file 7") == 3 * ENTRY
    assert (later.reads, later.sizes, behind.sizes) == ([], [], ["file 7"])


@pytest.mark.parametrize(
    ("identity", "name", "one"),
    [("another", "file 7", (0, ENTRY)), ("a store", "file 8", (0, ENTRY)), ("a store", "file 7", (0, 700))],
)
def test_another_store_file_or_range_is_another_entry(
    tmp_path: Path, identity: str, name: str, one: tuple[int, int]
) -> None:
    cache, behind = DiskCache(tmp_path), Counted()
    read(CachedBytes(behind, cache, "a store"), "file 7", [(0, ENTRY)])
    assert read(CachedBytes(behind, cache, identity), name, [one]) == [Counted.bytes_of(name, *one)]
    assert behind.reads[1:] == [(name, *one)]


@pytest.mark.parametrize("damage", ["flip", "flip the checksum", "cut", "longer", "empty"])
def test_a_damaged_entry_is_fetched_again_and_never_served(tmp_path: Path, damage: str) -> None:
    behind = Counted()
    cache = DiskCache(tmp_path)
    source = CachedBytes(behind, cache, "a store")
    read(source, "file 7", RANGES[:1])
    (path,) = entries(tmp_path)
    content = bytearray(path.read_bytes())
    if damage.startswith("flip"):
        content[-2 if "checksum" in damage else 100] ^= 1
    path.write_bytes({"cut": content[:-1], "longer": content + b"\0", "empty": b""}.get(damage, content))
    assert read(source, "file 7", RANGES[:1]) == [Counted.bytes_of("file 7", 0, ENTRY)]
    assert (len(behind.reads), cache.damaged) == (2, 1)
    assert read(source, "file 7", RANGES[:1]) == [Counted.bytes_of("file 7", 0, ENTRY)]
    assert len(behind.reads) == 2  # whole again


@pytest.mark.parametrize("cuts", [[1020], [0, 3], [1018, 1022], [4, 4, 4], list(range(100, 1024, 100))])
def test_a_whole_is_whole_in_any_parts(cuts: list[int]) -> None:
    good = chunk(5, 1024)
    parts = [memoryview(good[a:b]) for a, b in zip([0, *cuts], [*cuts, 1024], strict=True)]
    assert is_whole(parts)
    assert not is_whole(parts[:-1])
    bad = bytearray(parts[0])
    if bad:
        bad[0] ^= 1
        assert not is_whole([memoryview(bad), *parts[1:]])


@pytest.mark.parametrize("parts", [[], [b""], [b"abc"], [b"ab", b"c"]])
def test_what_is_too_short_for_a_checksum_is_not_whole(parts: list[bytes]) -> None:
    assert not is_whole([memoryview(part) for part in parts])


def test_ranges_that_touch_make_one_entry(tmp_path: Path) -> None:
    behind = Counted()
    whole = CachedBytes(behind, DiskCache(tmp_path), "a store")

    class Parts(Counted):
        @staticmethod
        def bytes_of(name: str, offset: int, length: int) -> bytes:
            at = offset % ENTRY
            return Counted.bytes_of(name, offset - at, ENTRY)[at : at + length]

    parts = [(0, ENTRY - 4), (ENTRY - 4, 4), (2 * ENTRY, 1000), (2 * ENTRY + 1000, ENTRY - 1000)]
    split = CachedBytes(Parts(), DiskCache(tmp_path), "a store")
    found = read(split, "file 7", parts)
    assert [found[0] + found[1], found[2] + found[3]] == [chunk(7), chunk(9)]
    assert read(whole, "file 7", [(0, ENTRY), (2 * ENTRY, ENTRY)]) == [chunk(7), chunk(9)]
    assert behind.reads == []


def test_bytes_that_came_damaged_are_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    content = bytearray(chunk(1))
    content[5] ^= 128
    cache.save("key 1", [memoryview(content)])
    cache.save("key 2", [memoryview(b"abc")])
    assert entries(tmp_path) == []


def test_the_limit_holds_and_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * ENTRY)
    for number in range(9):
        keep(cache, number)
        age(tmp_path, 10)
    assert held(cache, 0) == chunk(0)  # the oldest is now the one used last
    keep(cache, 9)
    keep(cache, 10)
    there = [number for number in range(11) if held(cache, number)]
    assert {0, 9, 10} <= set(there)
    assert there[1:] == list(range(there[1], 11))  # of the others the oldest went, none in between
    for number in range(20, 40):
        keep(cache, number)
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= 10 * ENTRY
    assert len(entries(tmp_path)) >= 7  # an eviction leaves most of it


def test_small_entries_count_as_the_disk_blocks_that_they_take(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * 4096)
    for number in range(50):
        keep(cache, number, 100)
    assert 5 <= len(entries(tmp_path)) <= 10


def test_an_entry_larger_than_the_limit_is_passed_by(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, ENTRY)
    keep(cache, 1)
    keep(cache, 2, 2 * ENTRY)
    assert held(cache, 1) == chunk(1)
    assert held(cache, 2, 2 * ENTRY) is None


def test_nothing_but_its_own_files_is_counted_or_removed(tmp_path: Path) -> None:
    own = DiskCache(tmp_path, 4 * ENTRY)
    (root,) = tmp_path.iterdir()
    (tmp_path / "thesis.tex").write_bytes(bytes(100 * ENTRY))
    others = [root / "notes.txt", root / "ab" / "notes.txt"]
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{'0' * 40}.chunk").write_bytes(b"precious")
    (root / "zz").symlink_to(outside)
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    for number in range(20):
        keep(own, number)
    assert all(path.read_bytes() == b"mine" for path in others)
    assert (outside / f"{'0' * 40}.chunk").read_bytes() == b"precious"
    assert (tmp_path / "thesis.tex").stat().st_size == 100 * ENTRY


def test_a_count_that_was_lost_or_torn_is_made_anew(tmp_path: Path) -> None:
    for text in (b"", b"12x", None):
        cache = DiskCache(tmp_path, 10 * ENTRY)
        for number in range(8):
            keep(cache, number)
        counter = next(tmp_path.iterdir()) / "bytes"
        counter.unlink() if text is None else counter.write_bytes(text)
        for number in range(8, 16):
            keep(cache, number)
            assert len(entries(tmp_path)) <= 10


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_ends_the_keeping_with_one_warning_and_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    behind = Counted()
    source = CachedBytes(behind, DiskCache(tmp_path), "a store")
    read(source, "file 7", RANGES[:1])

    def full(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk_cache.os, "pwrite", full)
    with pytest.warns(BandstreamWarning, match=f"takes no more .{os.strerror(code)}") as told:
        read(source, "file 7", RANGES)  # two more to keep
    assert len(told) == 1
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(source, "file 9", RANGES) == [Counted.bytes_of("file 9", *one) for one in RANGES]
        before = len(behind.reads)
        read(source, "file 7", RANGES[:1])
    assert len(behind.reads) == before  # what was kept is still served
    assert not list(tmp_path.rglob("*.partial"))


def test_a_folder_that_was_deleted_meanwhile_does_not_end_the_work(tmp_path: Path) -> None:
    import shutil

    source = CachedBytes(Counted(), DiskCache(tmp_path / "c"), "a store")
    read(source, "file 7", RANGES)
    shutil.rmtree(tmp_path / "c")
    with pytest.warns(BandstreamWarning, match="takes no more"):
        assert read(source, "file 7", RANGES[:1]) == [Counted.bytes_of("file 7", 0, ENTRY)]


def test_a_place_or_limit_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file cannot hold a cache"):
        DiskCache(tmp_path / "file")
    for limit in (0, True, float("nan"), "5"):
        with pytest.raises(ConfigError, match=f"cache_bytes={limit!r} is not allowed"):
            DiskCache(tmp_path, limit)  # pyright: ignore[reportArgumentType]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    DiskCache(tmp_path)
    (root,) = tmp_path.iterdir()
    dead, living = root / f"{'a' * 32}.partial", root / f"{'b' * 32}.partial"
    dead.write_bytes(bytes(100))
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        DiskCache(tmp_path)
        assert (dead.exists(), living.exists()) == (False, True)
    DiskCache(tmp_path)
    assert not living.exists()


def test_no_lock_is_held_while_bytes_are_fetched(tmp_path: Path) -> None:
    other = DiskCache(tmp_path)

    class Slow(Counted):
        def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
            start = time.perf_counter()
            keep(other, 100)
            assert held(other, 100) == chunk(100)
            assert time.perf_counter() - start < 5
            super().read(name, ranges, out)

    assert read(CachedBytes(Slow(), DiskCache(tmp_path), "a store"), "file 7", RANGES)


def test_threads_may_share_one(tmp_path: Path) -> None:
    source = CachedBytes(Counted(), DiskCache(tmp_path, 12 * ENTRY), "a store")

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 20, 60).tolist():
            assert read(source, f"file {number}", RANGES[:1]) == [
                Counted.bytes_of(f"file {number}", 0, ENTRY)
            ]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(entries(tmp_path)) <= 12
    assert not list(tmp_path.rglob("*.partial"))


def test_it_is_pickled_as_its_address(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5 * ENTRY)
    keep(cache, 3)
    again = pickle.loads(pickle.dumps(cache))  # noqa: S301 - made here
    assert held(again, 3) == chunk(3)
    assert again.limit_bytes == 5 * ENTRY


def _share(folder: Path, seed: int, told: Any) -> None:
    cache = DiskCache(folder, 12 * ENTRY)
    source = CachedBytes(Counted(), cache, "a store")
    most = 0
    for number in np.random.default_rng(seed).integers(0, 20, 150).tolist():
        if read(source, f"file {number}", RANGES[:1]) != [Counted.bytes_of(f"file {number}", 0, ENTRY)]:
            told.put("wrong bytes")
            return
        with cache._locked():  # nothing comes or goes now, though what is there may get its final name
            sizes = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*.chunk")}
        most = max(most, sum(sizes.values()))
    told.put((most, cache.hits, cache.damaged))


@pytest.mark.process
def test_processes_share_one_within_its_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    children = [context.Process(target=_share, args=(tmp_path, seed, told)) for seed in range(4)]
    for child in children:
        child.start()
    found = [told.get(timeout=60) for _ in children]
    for child in children:
        child.join(30)
    assert all(most <= 12 * ENTRY and hits > 0 and damaged == 0 for most, hits, damaged in found), found
    assert not list(tmp_path.rglob("*.partial"))


KILLED = """
import os, signal, sys
from bandstream.train.stream import disk_cache
import google_crc32c
def stop(descriptor, content):
    os.pwrite(descriptor, content[0][:100], 0)
    os.kill(os.getpid(), signal.SIGKILL)
cache = disk_cache.DiskCache(sys.argv[1])
disk_cache._write = stop
body = bytes(1000)
cache.save("key 1", [memoryview(body + google_crc32c.value(body).to_bytes(4, "little"))])
"""


@pytest.mark.process
def test_a_process_killed_while_writing_leaves_nothing_that_is_served(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.rglob("*.partial"))) == 1
    cache = DiskCache(tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    assert held(cache, 1, 1004) is None
