"""Where files lie: in a local folder, or in a bucket of an S3-compatible object store (``s3://bucket/key``).

A place is a `pathlib.Path`. One in a bucket is a `RemotePath`: the same class to its users, with the methods that
Bandstream needs going to the object store. What a local folder and a bucket do in different ways (a whole folder's
sizes, removing it, handing it to Zarr) are functions here that take either. Objects appear whole or not at all, so that
nothing is renamed there; folders exist as long as they hold something.
"""

from __future__ import annotations

import fnmatch
import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, cast

from . import s3
from .errors import ConfigError

SCHEME = "s3://"
BUFFER_BYTES = 64 << 10
"""Least that is fetched of an object that is opened as a file; larger reads are fetched as they are asked for."""


@dataclass(frozen=True)
class RemoteStat:
    """What the server says of an object without sending it."""

    st_size: int  #: bytes
    etag: str  #: changes with the content
    st_mtime: float = 0.0  #: seconds since 1970, by the server's clock


class RemotePath(PosixPath):
    """An object, or the folder that a common beginning of keys makes, as a path.

    Text is the whole address (``s3://bucket/key``). Methods that are not defined here concern names only, or would look
    for a local file of that strange name, and find none.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return SCHEME + "/".join(self.parts[1:])

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return locate, (str(self),)

    def as_posix(self) -> str:
        """Return the address."""
        return str(self)

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.parts[1]

    @property
    def root_of_bucket(self) -> RemotePath:
        """The bucket as a folder."""
        return RemotePath(f"s3:/{self.bucket}")

    @property
    def key(self) -> str:
        """Everything behind the bucket."""
        return "/".join(self.parts[2:])

    def is_absolute(self) -> bool:
        """Return True."""
        return True

    def absolute(self) -> RemotePath:
        """Return the path itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return the path itself: there are no links."""
        del strict
        return self

    def expanduser(self) -> RemotePath:
        """Return the path itself."""
        return self

    def relative_to(self, *other: Any, **_: Any) -> PurePosixPath:  # pyright: ignore[reportIncompatibleMethodOverride] - no address any more
        """Return the rest of the key behind a folder above."""
        return PurePosixPath(str(self)).relative_to(str(other[0]))

    def stat(self, *, follow_symlinks: bool = True) -> RemoteStat:  # pyright: ignore[reportIncompatibleMethodOverride] - what there is of it
        """Ask the server for size and ETag.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        """
        del follow_symlinks
        return _stat(self._call(lambda store: s3.obstore().head(store, self.key)))

    def is_file(self) -> bool:
        """Return whether there is an object of that key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below."""
        return next(self._objects(most=1), None) is not None

    def exists(self) -> bool:
        """Return whether there is an object of that key, or objects below."""
        return (bool(self.key) and self.is_file()) or self.is_dir()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: folders come with their objects."""
        del mode, parents, exist_ok

    def read_bytes(self) -> bytes:
        """Read the whole object."""
        return self._call(lambda store: _body(s3.obstore().get(store, self.key)))

    def read_at_most(self, most: int) -> bytes | None:
        """Read the whole object, None if it holds more than `most` bytes."""

        def read(store: Any) -> bytes | None:
            answer = s3.obstore().get(store, self.key)
            return None if answer.meta["size"] > most else _body(answer)

        return self._call(read)

    def read_text(self, encoding: str | None = None, errors: str | None = None, *_: Any) -> str:
        """Read the whole object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def read_range(self, start: int, stop: int, etag: str | None = None) -> bytes:
        """Read the bytes start..stop-1 of the object, all of them.

        Parameters
        ----------
        start, stop
            Within the object.
        etag
            Of the version that must be read.

        Raises
        ------
        RemoteError
            Also when the object has changed since it had this ETag.
        """
        if stop <= start:
            return b""
        options: dict[str, Any] = {"range": (start, stop)} | ({"if_match": etag} if etag else {})

        def read(store: Any) -> bytes:
            found = _body(s3.obstore().get(store, self.key, options=options))
            if len(found) != stop - start:
                raise s3.ShortBodyError(f"{len(found)} of {stop - start} bytes came")
            return found

        return self._call(read)

    def open(self, mode: str = "r", *_: Any, **options: Any) -> Any:
        """Open for reading, by ranges.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        """
        if mode.strip("t") not in ("r", "rb"):
            raise ConfigError(
                f"{self} can only be read piece by piece; it is written as a whole (mode {mode!r})."
            )
        file = io.BufferedReader(RemoteFile(self, self.stat()), BUFFER_BYTES)
        if "b" in mode:
            return file
        return io.TextIOWrapper(file, options.get("encoding") or "utf-8", newline=options.get("newline"))

    def write_bytes(self, data: Any) -> int:
        """Write the whole object: others see the old one, or none, until all of it is there."""
        view = memoryview(data)
        self._call(
            lambda store: s3.obstore().put(
                store,
                self.key,
                view,
                use_multipart=view.nbytes > s3.PART_BYTES,
                chunk_size=s3.PART_BYTES,
                max_concurrency=s3.PARTS_AT_ONCE,
            )
        )
        return view.nbytes

    def write_text(self, data: str, encoding: str | None = None, *_: Any, **__: Any) -> int:
        """Write the whole object as text."""
        return self.write_bytes(data.encode(encoding or "utf-8"))

    def create(self, data: bytes) -> bool:
        """Write the object unless there is one; return whether it holds `data` now.

        An answer that was lost is asked for again, so that equal data of somebody else count as ours: put something of
        your own into them.
        """
        return self._write_if("create", data)

    def exchange(self, old: bytes, new: bytes) -> bool:
        """Write the object if it holds `old`; of several who try, one gets it. Return whether it holds `new` now."""
        try:
            etag = self.stat().etag
            if self.read_bytes() != old:
                return False
        except FileNotFoundError:
            return False
        return self._write_if({"e_tag": etag}, new)

    def _write_if(self, mode: Any, data: bytes) -> bool:
        def put(store: Any) -> bool:
            try:
                s3.obstore().put(store, self.key, data, mode=mode, use_multipart=False)
            except Exception as error:
                if type(error).__name__ not in ("AlreadyExistsError", "PreconditionError"):
                    raise
                return False
            return True

        if self._call(put):
            return True
        try:
            return self.read_bytes() == data
        except FileNotFoundError:
            return False

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        if not missing_ok:
            self.stat()
        self._call(lambda store: s3.obstore().delete(store, self.key))

    def iterdir(self) -> Iterator[RemotePath]:  # pyright: ignore[reportIncompatibleMethodOverride] - of its own kind
        """Yield what lies in the folder, folders first, each by name."""
        found = self._call(lambda store: s3.obstore().list_with_delimiter(store, self.key or None))
        names = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        for name in names:
            yield self._at(name)

    def glob(self, pattern: str, **options: Any) -> Iterator[RemotePath]:  # pyright: ignore[reportIncompatibleMethodOverride] - of its own kind
        """Yield what matches a pattern of names, one per level; `**` is not known here.

        Raises
        ------
        ConfigError
            The pattern holds `**`.
        """
        del options
        first, _, rest = pattern.strip("/").partition("/")
        if "**" in first:
            raise ConfigError(
                f"{self}/{pattern}: ** is not allowed in patterns of s3://; write one * per level."
            )
        if not re.search(r"[*?\[]", first):
            below = cast("RemotePath", self / first)
            if rest:
                yield from below.glob(rest)
            elif below.exists():
                yield below
            return
        for item in sorted(self.iterdir()):
            if fnmatch.fnmatchcase(item.name, first):
                yield from item.glob(rest) if rest else (item,)

    def sizes_below(self) -> dict[str, int]:
        """Return the size of every object below by the rest of its key, from one listing."""
        prefix = self.key + "/" if self.key else ""
        return {item["path"].removeprefix(prefix): int(item["size"]) for item in self._objects()}

    def stats_below(self) -> dict[RemotePath, RemoteStat]:
        """Return size and ETag of every object below, from one listing."""
        return {self._at(item["path"]): _stat(item) for item in self._objects()}

    def delete_below(self) -> None:
        """Delete every object below.

        Raises
        ------
        ConfigError
            It is the bucket itself.
        """
        if not self.key:
            raise ConfigError(f"{self} is a whole bucket; nothing here deletes one.")
        keys = [item["path"] for item in self._objects()]
        for start in range(0, len(keys), 1000):
            part = keys[start : start + 1000]
            self._call(lambda store, part=part: s3.obstore().delete(store, part))

    def _at(self, key: str) -> RemotePath:
        return RemotePath(f"s3:/{self.bucket}/{key}")

    def _objects(self, most: int | None = None) -> Iterator[Any]:
        def read(store: Any) -> list[Any]:
            # a key that only begins with our last name is not below us
            stream = s3.obstore().list(
                store, prefix=self.key + "/" if self.key else None, chunk_size=most or 1000
            )
            if most:
                return list(next(iter(stream), ()))[:most]
            return [item for batch in stream for item in batch]

        yield from self._call(read)

    def _call(self, function: Any) -> Any:
        return s3.attempt(str(self), lambda: function(s3.client(self.bucket)))


def _stat(found: Any) -> RemoteStat:
    etag = str(found.get("e_tag") or found.get("version") or "")
    return RemoteStat(int(found["size"]), etag, found["last_modified"].timestamp())


def _body(answer: Any) -> bytes:
    return bytes(answer.bytes())


class RemoteFile(io.RawIOBase):
    """One version of an object as a file: each read is a range of it.

    Parameters
    ----------
    path
        Of the object.
    stat
        The version that is read; another one is an error.
    """

    def __init__(self, path: RemotePath, stat: RemoteStat) -> None:
        super().__init__()
        self.path = path
        self.size = stat.st_size
        self.etag = stat.etag or None
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from here on, as far as the object goes."""
        stop = min(self._at + len(buffer), self.size)
        found = self.path.read_range(self._at, stop, self.etag)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path, or its text, is one of an object store."""
    return isinstance(path, RemotePath) or os.fspath(path).startswith(SCHEME)


def locate(text: str | os.PathLike[str]) -> Path:
    """Return the path of a text: local, or a `RemotePath` for ``s3://bucket/key``.

    A `Path` that was made of such an address, and has lost one slash so, is taken for what it was.

    Raises
    ------
    ConfigError
        The address has another scheme, holds credentials or a query, or names no bucket.
    """
    if isinstance(text, RemotePath):
        return text
    given = os.fspath(text)
    lost = isinstance(text, Path) and given.startswith("s3:/")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", given)
    if isinstance(text, Path) and not scheme:
        scheme = re.match(r"(https?|ftp|gs|abfss?):/", given)
    if not scheme and not lost:
        return Path(given)
    if scheme and scheme[1].lower() != "s3":
        raise ConfigError(
            f"Addresses of the kind {scheme[1]}:// are not supported; allowed: s3://bucket/key, or a path."
        )
    parts = [part for part in given.partition("/")[2].split("/") if part]
    if not parts or "@" in parts[0] or (scheme and given[len(scheme[0]) :].startswith("/")):
        raise ConfigError(
            "An address s3:// needs a bucket and no credentials in it: s3://bucket/key. Credentials belong into the "
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE)."
        )
    if re.search(r"[?&](x-amz-|awsaccesskeyid=|signature=)", given, re.IGNORECASE):
        raise ConfigError(
            f"The address s3://{parts[0]}/... holds a signed query; leave out what follows the question mark."
        )
    if {".", ".."} & set(parts):
        raise ConfigError(
            f"The address {given} holds . or .., which an object store does not know; write it out."
        )
    return RemotePath("s3:/" + "/".join(parts))


def matching(pattern: str) -> list[RemotePath]:
    """Return what lies at an address in a bucket, or matches it as a pattern, by name."""
    place = cast("RemotePath", locate(pattern))
    return [place] if place.exists() else sorted(place.root_of_bucket.glob(place.key))


def sizes_below(path: Path) -> dict[str, int]:
    """Return the size of every file below a folder by its relative name; nothing where there is no folder."""
    if isinstance(path, RemotePath):
        return path.sizes_below()
    return {
        (Path(folder) / name).relative_to(path).as_posix(): (Path(folder) / name).stat().st_size
        for folder, _, names in os.walk(path)
        for name in names
    }


def delete_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder and all that is in it."""
    if isinstance(path, RemotePath):
        path.delete_below()
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


def zarr_store(path: Path) -> Any:
    """Return what Zarr and xarray read a folder by: a local path, or a store of its own for one in a bucket."""
    if not isinstance(path, RemotePath):
        return path
    from .remote_zarr import RemoteStore

    return RemoteStore.of(path)
