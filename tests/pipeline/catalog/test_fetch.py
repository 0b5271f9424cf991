"""Fetching: from a server on this machine, whole and verified or not at all; archives stay in their folder."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
import threading
import zipfile
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bandstream.pipeline.catalog import CatalogEntry, archives
from bandstream.pipeline.catalog.add import write_entry
from bandstream.pipeline.catalog.archives import Limits, unpack
from bandstream.pipeline.catalog.fetch import fetch
from bandstream.pipeline.cli.catalog import catalog_app
from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import ConfigError, FormatError, SceneNotFoundError

CONTENT = bytes(range(256)) * 300
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Answers `/name` with what stands under that name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"cube.bin": CONTENT}
        self.redirects: dict[str, str] = {}
        self.short: set[str] = set()
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/").partition("?")[0]
                outer.asked.append(name)
                if name in outer.redirects:
                    self.send_response(302)
                    self.send_header("Location", outer.redirects[name])
                    self.end_headers()
                elif name in outer.files:
                    body = outer.files[name]
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body[: len(body) // 2] if name in outer.short else body)
                else:
                    self.send_error(404)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("BANDSTREAM_CATALOG", raising=False)
    made = Server()
    yield made
    made.close()


def entry(*files: dict[str, Any], folder: str = "x") -> CatalogEntry:
    data = {
        "version": 1,
        "name": "e",
        "title": "t",
        "description": "d",
        "license": "CC0-1.0",
        "providers": [],
        "folder": folder,
        "scenes": [{"path": "cube.bin"}],
        "files": list(files),
    }
    return parse(CatalogEntry, data, "test")


def cube(server: Server, name: str = "cube.bin", **more: Any) -> CatalogEntry:
    return entry({"path": "cube.bin", "urls": [f"{server.root}/{name}"], "sha256": SHA} | more)


def nothing_in(folder: Path) -> bool:
    return not folder.exists() or not list(folder.rglob("*"))


def test_a_file_is_fetched_once_and_verified(server: Server, tmp_path: Path) -> None:
    (first,) = fetch(cube(server), tmp_path / "to", quiet=True)
    assert (tmp_path / "to" / "cube.bin").read_bytes() == CONTENT
    assert (first.state, first.sha256, first.verified) == ("fetched", SHA, True)
    (again,) = fetch(cube(server), tmp_path / "to", quiet=True)
    assert again.state == "present"
    assert server.asked == ["cube.bin"]
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["cube.bin"]


def test_md5_serves_where_nothing_better_is_published(server: Server, tmp_path: Path) -> None:
    known = hashlib.md5(CONTENT).hexdigest()  # noqa: S324 - what the publisher gives
    assert fetch(cube(server, sha256=None, md5=known), tmp_path, quiet=True)[0].verified
    other = cube(server, sha256=None, md5="0" * 32)
    with pytest.raises(FormatError, match="MD5"):
        fetch(other, tmp_path / "other", quiet=True)


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="SHA-256 is not 0000"):
        fetch(cube(server, sha256="0" * 64), tmp_path / "to", quiet=True)
    assert nothing_in(tmp_path / "to")


def test_a_transfer_that_breaks_off_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.short.add("cube.bin")
    for known in ({}, {"sha256": None}):
        with pytest.raises((FormatError, SceneNotFoundError), match="not fetched"):
            fetch(cube(server, **known), tmp_path / "to", allow_unverified=True, quiet=True)
        assert nothing_in(tmp_path / "to")


def test_without_a_checksum_a_file_is_taken_only_when_asked_for(server: Server, tmp_path: Path) -> None:
    unknown = cube(server, sha256=None)
    with pytest.raises(ConfigError, match="--allow-unverified"):
        fetch(unknown, tmp_path, quiet=True)
    assert not server.asked
    (found,) = fetch(unknown, tmp_path, allow_unverified=True, quiet=True)
    assert (found.verified, found.sha256) == (False, SHA)


def test_the_next_address_is_tried_when_one_fails(server: Server, tmp_path: Path) -> None:
    two = cube(server, urls=[f"{server.root}/gone", f"{server.root}/cube.bin"])
    assert fetch(two, tmp_path, quiet=True)[0].url == f"{server.root}/cube.bin"
    with pytest.raises(SceneNotFoundError, match="404"):
        fetch(cube(server, "gone"), tmp_path / "other", quiet=True)


def test_a_server_that_is_not_there_is_one_sentence(server: Server, tmp_path: Path) -> None:
    server.close()
    with pytest.raises(SceneNotFoundError, match="no connection"):
        fetch(cube(server), tmp_path / "to", quiet=True)
    server.__init__()


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://[::1", "//[::1/x"]
)
def test_a_redirect_to_another_scheme_is_refused(server: Server, tmp_path: Path, target: str) -> None:
    server.redirects["cube.bin"] = target
    with pytest.raises(SceneNotFoundError, match="redirects to an address that is refused"):
        fetch(cube(server, sha256=None), tmp_path / "to", allow_unverified=True, quiet=True)
    assert nothing_in(tmp_path / "to")


def test_a_redirect_within_the_web_is_followed(server: Server, tmp_path: Path) -> None:
    server.redirects["old"] = "/cube.bin"
    assert fetch(cube(server, "old"), tmp_path, quiet=True)[0].sha256 == SHA


def test_a_file_larger_than_promised_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="are allowed"):
        fetch(cube(server, sha256=None, size_bytes=1000), tmp_path / "to", allow_unverified=True, quiet=True)
    assert nothing_in(tmp_path / "to")


def test_another_file_in_the_way_is_kept_unless_forced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cube.bin").write_bytes(b"my own")
    with pytest.raises(ConfigError, match="--force"):
        fetch(cube(server), tmp_path, quiet=True)
    with pytest.raises(FormatError):
        fetch(cube(server, sha256="0" * 64), tmp_path, force=True, quiet=True)
    assert (tmp_path / "cube.bin").read_bytes() == b"my own"
    fetch(cube(server), tmp_path, force=True, quiet=True)
    assert (tmp_path / "cube.bin").read_bytes() == CONTENT


def test_a_folder_that_is_a_link_out_is_not_written_through(server: Server, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "victim", target_is_directory=True)
    with pytest.raises(ConfigError, match="link out of"):
        fetch(cube(server, path="sub/cube.bin"), tmp_path / "to", quiet=True)
    assert nothing_in(tmp_path / "victim")


@pytest.mark.parametrize("folder", ["../elsewhere", "link", "{tmp}/victim"])
def test_an_entry_does_not_choose_a_folder_elsewhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """A catalog from somebody else could write to any place of the user's with `..`, a link or an absolute path."""
    (tmp_path / "data").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "victim", target_is_directory=True)
    monkeypatch.setenv("BANDSTREAM_DATA", str(tmp_path / "data"))
    made = entry(
        {"path": "cube.bin", "urls": [f"{server.root}/cube.bin"], "sha256": SHA},
        folder=folder.format(tmp=tmp_path),
    )
    with pytest.raises(ConfigError, match="--to"):
        fetch(made, quiet=True)
    assert nothing_in(tmp_path / "victim")
    assert nothing_in(tmp_path / "elsewhere")
    assert fetch(made, tmp_path / "victim", quiet=True)[0].state == "fetched"


def test_an_entry_without_addresses_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        fetch(entry(), tmp_path)


def test_the_command_prints_json_and_nothing_else(server: Server, tmp_path: Path) -> None:
    write_entry(cube(server), tmp_path / "e.yaml")
    call = ["fetch", str(tmp_path / "e.yaml"), "--to", str(tmp_path / "to"), "--json"]
    done = CliRunner().invoke(catalog_app, call)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][0]["sha256"] == SHA


# -- archives ---------------------------------------------------------------------------------------------------------


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def tarred(path: Path, *members: tarfile.TarInfo | tuple[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                file.addfile(info, io.BytesIO(member[1]))
            else:
                file.addfile(member)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def link_in_zip(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz", "w:bz2", "w:xz"])
def test_an_archive_is_unpacked_into_its_folder(tmp_path: Path, kind: str) -> None:
    members = (("a.hdr", b"ENVI"), ("sub/b.img", CONTENT))
    path = tmp_path / "archive"
    zipped(path, *members) if kind == "zip" else tarred(path, *members, mode=kind)
    found = unpack(path, tmp_path / "to")
    assert {p.relative_to(tmp_path / "to").as_posix(): p.read_bytes() for p in found} == dict(members)


def test_a_fetched_archive_is_unpacked(server: Server, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("cube.bin", CONTENT))
    server.files["a.zip"] = path.read_bytes()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    made = entry({"path": "a.zip", "urls": [f"{server.root}/a.zip"], "sha256": digest, "unpack": True})
    (found,) = fetch(made, tmp_path / "to", quiet=True)
    assert found.unpacked == (str(tmp_path / "to" / "cube.bin"),)


ZIPS = {
    "dots": ("../evil", b"x"),
    "hidden dots": ("a/../../evil", b"x"),
    "backslashes": ("..\\evil", b"x"),
    "absolute": ("/tmp/bandstream-evil", b"x"),  # noqa: S108 - must not be written
    "drive": ("C:/evil", b"x"),
    "link": (link_in_zip("link"), b"/etc/passwd"),
}
TARS: dict[str, tarfile.TarInfo | tuple[str, bytes]] = {
    "dots": ("../evil", b"x"),
    "absolute": ("/tmp/bandstream-evil", b"x"),  # noqa: S108 - must not be written
    "link out": special("link", tarfile.SYMTYPE, "../../etc"),
    "link in": special("link", tarfile.SYMTYPE, "a"),
    "hard link": special("link", tarfile.LNKTYPE, "/etc/passwd"),
    "device": special("null", tarfile.CHRTYPE),
    "pipe": special("pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("what", ZIPS)
def test_a_zip_that_reaches_out_is_refused_whole(tmp_path: Path, what: str) -> None:
    path = zipped(tmp_path / "a.zip", ("good", b"x"), ZIPS[what])
    with pytest.raises(FormatError, match="not unpacked"):
        unpack(path, tmp_path / "to")
    assert nothing_in(tmp_path / "to")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("what", TARS)
def test_a_tar_that_reaches_out_is_refused_whole(tmp_path: Path, what: str) -> None:
    path = tarred(tmp_path / "a.tar.gz", ("good", b"x"), TARS[what])
    with pytest.raises(FormatError):
        unpack(path, tmp_path / "to")
    assert nothing_in(tmp_path / "to")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_tar_that_writes_through_its_own_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    link = special("door", tarfile.SYMTYPE, str(tmp_path / "victim"))
    path = tarred(tmp_path / "a.tar", link, ("door/evil", b"x"), mode="w")
    with pytest.raises(FormatError):
        unpack(path, tmp_path / "to")
    assert nothing_in(tmp_path / "victim")


def test_a_link_that_lies_in_the_folder_already_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "sub").symlink_to(tmp_path / "victim", target_is_directory=True)
    with pytest.raises(FormatError, match="link out of"):
        unpack(zipped(tmp_path / "a.zip", ("sub/evil", b"x")), tmp_path / "to")
    assert nothing_in(tmp_path / "victim")


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(free_bytes=1000, ratio=50), "unpacks to more than"),
        (Limits(total_bytes=100_000), "unpacks to more than"),
        (Limits(files=1), "more than 1 members"),
    ],
)
def test_a_bomb_is_refused(tmp_path: Path, kind: str, limits: Limits, message: str) -> None:
    members = (("zeros", bytes(2_000_000)), ("more", bytes(2_000_000)))
    make = zipped if kind == "zip" else tarred
    with pytest.raises(FormatError, match=message):
        unpack(make(tmp_path / "a", *members), tmp_path / "to", limits)
    assert nothing_in(tmp_path / "to")


def test_a_zip_that_lies_about_its_size_is_stopped_while_it_is_written(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("zeros", bytes(3_000_000)))
    raw = bytearray(path.read_bytes())
    size = (3_000_000).to_bytes(4, "little")
    while (at := raw.find(size)) >= 0:
        raw[at : at + 4] = (10).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        unpack(path, tmp_path / "to", Limits(free_bytes=1000, ratio=10))
    assert nothing_in(tmp_path / "to")


def test_a_header_that_claims_gigabytes_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MOST_OF_HEADER", 100_000)
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 1_000_000}) as file:
        file.addfile(tarfile.TarInfo("a"))
    with pytest.raises(FormatError, match="header"):
        unpack(path, tmp_path / "to")


@pytest.mark.parametrize(
    "data", [b"", b"no archive", b"\x1f\x8b\x08\0broken", b"PK\x03\x04", b"BZh9x", b"\xfd7zXZ\0x"]
)
def test_what_is_no_archive_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FormatError, match="damaged"):
        unpack(tmp_path / "a", tmp_path / "to")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_damaged_archive_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    members = (("a", CONTENT), ("b", CONTENT))
    path = (zipped if kind == "zip" else tarred)(tmp_path / "a", *members)
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 3
    raw[middle : middle + 40] = bytes(40)
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        unpack(path, tmp_path / "to")
    assert nothing_in(tmp_path / "to")


def test_digits_in_a_header_do_not_take_tarfile_hours(tmp_path: Path) -> None:
    """The standard library looks through extended headers in the square of a run of digits."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 60_000
    archive = tmp_path / "a.tar"
    archive.write_bytes(info.tobuf() + b"9" * 60_000 + bytes(-60_000 % 512))
    with pytest.raises(FormatError, match="64 digits"):
        unpack(archive, tmp_path / "to")
    # digits in the content are none of its business
    with tarfile.open(archive, "w") as file:
        info = tarfile.TarInfo("digits.txt")
        info.size = 3_000_000
        file.addfile(info, io.BytesIO(b"7" * info.size))
    assert [p.stat().st_size for p in unpack(archive, tmp_path / "to")] == [3_000_000]


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("n" * 300,)])
def test_names_that_clash_or_are_too_long_are_refused_by_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in names:
            file.writestr(name, "x")
    with pytest.raises(FormatError, match="too long or clashes"):
        unpack(archive, tmp_path / "to")
    assert nothing_in(tmp_path / "to")


def test_an_entry_of_a_zip_for_the_folder_itself_is_no_way_out(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("./", "")
        file.writestr("a", "x")
    assert unpack(archive, tmp_path / "to") == [tmp_path / "to" / "a"]
