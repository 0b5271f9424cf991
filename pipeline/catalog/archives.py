"""Zip and tar archives from elsewhere, unpacked into one folder and nowhere else.

Refused are names that lead out of the folder, links, devices and pipes, encrypted members, and archives whose content
is far larger than they are. The bytes are counted while they are written, since sizes in headers may be wrong.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ..errors import FormatError

CHUNK_BYTES = 1 << 20
# tarfile reads a whole extended header at once, however large it claims to be, and looks through it with a pattern
# whose time grows with the square of a run of digits
_MOST_OF_HEADER = 64 << 10
_DIGITS = re.compile(rb"[0-9]{64}")
_NAMES_CLASH = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ)
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold."""

    total_bytes: int = 200 * 2**30
    files: int = 100_000
    ratio: float = 200.0  #: bytes unpacked per byte of the archive ...
    free_bytes: int = 100 * 2**20  #: ... from this many bytes on


def unpack(archive: Path, folder: Path, limits: Limits = Limits()) -> list[Path]:
    """Unpack a zip or tar archive (plain, gzip, bzip2, xz) into `folder`, all of it or nothing.

    Parameters
    ----------
    archive
        The file; its content decides the kind.
    folder
        Where the members go; made if need be. Files of the same name are replaced.
    limits
        How much the archive may hold.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    FormatError
        It is no archive, is damaged, or holds what is refused; nothing is left behind then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{archive.name}.", suffix=".partial", dir=folder) as name:
        partial = Path(name)
        sink = _Sink(archive, partial, limits)
        try:
            if zipfile.is_zipfile(archive):
                _unzip(archive, sink)
            else:
                _untar(archive, sink)
        except (*_DAMAGED, NotImplementedError, RuntimeError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _NAMES_CLASH:
                raise sink.refuse(
                    f"a member's name is too long or clashes with another's ({error.strerror})"
                ) from error
            if isinstance(error, FormatError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise FormatError(
                f"{archive} is damaged, or no zip or tar archive ({error}). Fetch it again."
            ) from error
        return [_move(partial / member, folder / member, folder, archive) for member in sink.written]


class _Sink:
    """Writes members below one folder and keeps the limits."""

    def __init__(self, archive: Path, folder: Path, limits: Limits) -> None:
        self.archive, self.folder, self.limits = archive, folder, limits
        most = max(limits.free_bytes, int(archive.stat().st_size * limits.ratio))
        self.most_bytes = min(limits.total_bytes, most)
        self.bytes = 0
        self.members = 0
        self.written: list[str] = []

    def count(self) -> None:
        self.members += 1
        if self.members > self.limits.files:
            raise self.refuse(f"it holds more than {self.limits.files} members")

    def announce(self, size: int) -> None:
        if self.bytes + size > self.most_bytes:
            raise self.refuse(
                f"it unpacks to more than {self.most_bytes} bytes, {self.archive.stat().st_size} bytes packed"
            )

    def write(self, member: str, source: IO[bytes]) -> None:
        target = self.folder / member
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while block := source.read(CHUNK_BYTES):
                self.announce(len(block))
                self.bytes += len(block)
                file.write(block)
        self.written.append(member)

    def name(self, text: str) -> str:
        """Return the member's path, if it leads into the folder."""
        path = PurePosixPath(text.replace("\\", "/"))
        if not path.parts or path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or "\0" in text:
            raise self.refuse(f"its member {text!r} leads out of the folder")
        if str(path) in self.written:
            raise self.refuse(f"its member {text!r} stands twice")
        return str(path)

    def refuse(self, why: str) -> FormatError:
        return FormatError(
            f"{self.archive} is not unpacked: {why}. Look at it with care; if you trust it, unpack it by hand."
        )


def _unzip(archive: Path, sink: _Sink) -> None:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            sink.count()
            if info.is_dir() and not info.filename.strip("./"):
                continue
            name = sink.name(info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise sink.refuse(f"its member {info.filename!r} is a link or device")
            if info.flag_bits & 1:
                raise sink.refuse(f"its member {info.filename!r} is encrypted")
            if info.is_dir():
                continue
            sink.announce(info.file_size)
            with file.open(info) as source:
                sink.write(name, source)


def _untar(archive: Path, sink: _Sink) -> None:
    with _decompressed(archive) as stream, tarfile.open(fileobj=cast("Any", stream), mode="r:") as file:
        for info in file:
            sink.count()
            name = sink.name(info.name) if info.name.strip("./") else ""
            tarfile.data_filter(info, str(sink.folder))
            if info.isdir():
                continue
            if not info.isreg():
                raise sink.refuse(f"its member {info.name!r} is a link or device")
            sink.announce(info.size)
            source = file.extractfile(info)
            assert source is not None  # a regular file
            stream.in_header = False
            with source:
                sink.write(name, source)
            stream.in_header = True
        stream.in_header = False
        # the checksum of the compressed stream stands at its end, behind the last member
        while block := stream.read(CHUNK_BYTES):
            sink.announce(len(block))
            sink.bytes += len(block)


class _Sips:
    """A stream that hands out so much at once and no more, and of a header nothing that takes tarfile hours."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.in_header = True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= (_MOST_OF_HEADER if self.in_header else CHUNK_BYTES):
            raise tarfile.ReadError("a header is larger than 64 KiB")
        found = self.file.read(size)
        if self.in_header and _DIGITS.search(found):
            raise tarfile.ReadError("a header holds a number of more than 64 digits")
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()


@contextmanager
def _decompressed(archive: Path) -> Generator[_Sips]:
    openers: dict[bytes, Callable[[Path], Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ": lzma.open,
    }
    with archive.open("rb") as file:
        head = file.read(6)
    opener = next((found for magic, found in openers.items() if head.startswith(magic)), None)
    with opener(archive) if opener else archive.open("rb") as stream:
        yield _Sips(stream)


def _move(source: Path, target: Path, folder: Path, archive: Path) -> Path:
    """Move an unpacked file to its place, through no link that lies there already."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise FormatError(f"{archive} is not unpacked: {target.parent} is a link out of {folder}.")
    if target.is_dir():
        shutil.rmtree(source, ignore_errors=True)
        raise FormatError(
            f"{archive} is not unpacked: it holds the file {target.name} and {target} is a folder."
        )
    return source.replace(target)
