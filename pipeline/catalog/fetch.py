"""Fetch the files of a catalog entry: over http and https, with a known checksum, whole or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from ..config import data_roots
from ..errors import ConfigError, FormatError, SceneNotFoundError
from ..progress import progress
from .archives import unpack
from .entries import CatalogEntry, CatalogFile, require_web

TIMEOUT_SECONDS = (20.0, 60.0)  #: to connect, and between two pieces
MAX_BYTES = 50 * 2**30
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Fetched:
    """What became of one file."""

    path: str
    state: str  #: "fetched" or "present"
    sha256: str
    verified: bool
    url: str | None = None
    unpacked: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self) | {"unpacked": list(self.unpacked)}


def fetch_folder(entry: CatalogEntry) -> Path:
    """Return where the files of an entry go by default: its folder, under the first data folder or the working folder.

    Raises
    ------
    ConfigError
        The folder lies elsewhere, by an absolute path, by `..` or through a link. An entry may come from anywhere, and
        must not choose where files are written.
    """
    root = next(iter(data_roots()), Path.cwd())
    folder = root / Path(entry.folder).expanduser()
    real = folder.resolve()
    if not real.is_relative_to(root.resolve()):
        raise ConfigError(
            f"The folder {entry.folder} of the catalog entry {entry.name} is {real}, outside {root}, and a catalog may not "
            f"choose that. If its files shall go there, say so with --to {real}."
        )
    return folder


def fetch(
    entry: CatalogEntry,
    folder: Path | None = None,
    *,
    allow_unverified: bool = False,
    force: bool = False,
    quiet: bool = False,
) -> list[Fetched]:
    """Fetch every file of an entry that is not there yet.

    Parameters
    ----------
    entry
        The entry.
    folder
        Where the files go; `fetch_folder` by default.
    allow_unverified
        Take files without a known checksum too; the SHA-256 that was found is returned.
    force
        Replace a file that is there and differs.
    quiet
        No progress.

    Raises
    ------
    ConfigError
        Nothing can be fetched for the entry, a checksum is not known, or another file lies in the way.
    SceneNotFoundError
        No address gave the file.
    FormatError
        The file is not the one that the checksum names, or an archive is not fit to be unpacked.
    """
    if not any(file.urls for file in entry.files):
        place = entry.folder if folder is None else folder
        names = ", ".join(file.path for file in entry.files)
        raise ConfigError(
            f"No address is known for the files of {entry.name}; get them by hand and put them into {place}"
            f"{f' ({names})' if names else ''}. "
            f"What is known: {entry.description}"
        )
    folder = fetch_folder(entry) if folder is None else folder
    unknown = [file.path for file in entry.files if file.urls and not (file.sha256 or file.md5)]
    if unknown and not allow_unverified:
        raise ConfigError(
            f"No checksum is known for {', '.join(unknown)} of {entry.name}, so that a changed or broken file would not "
            "be noticed. Add --allow-unverified to take what the address gives; the SHA-256 found is printed for your own "
            "entry."
        )
    return [_one(entry, file, folder, force=force, quiet=quiet) for file in entry.files if file.urls]


def _one(entry: CatalogEntry, file: CatalogFile, folder: Path, *, force: bool, quiet: bool) -> Fetched:
    target = folder / file.path
    url = None
    if target.is_file():
        if not _matches(target, file):
            if not force:
                raise ConfigError(
                    f"{target} is there and is not the file that {entry.name} names (its checksum differs). Move it "
                    "away, or fetch with --force to replace it."
                )
            url = _download(entry, file, folder, quiet=quiet)
    elif target.exists():
        raise ConfigError(f"{target} is there and is no file; give another folder with --to.")
    else:
        url = _download(entry, file, folder, quiet=quiet)
    members = tuple(str(path) for path in unpack(target, folder)) if file.unpack else ()
    verified = bool(file.sha256 or file.md5)
    state = "fetched" if url else "present"
    return Fetched(str(target), state, digest(target), verified, url, members)


def digest(path: Path, name: str = "sha256") -> str:
    """Return the checksum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, name).hexdigest()


def _matches(path: Path, file: CatalogFile) -> bool:
    if file.sha256:
        return digest(path) == file.sha256
    return file.md5 is None or digest(path, "md5") == file.md5


def _download(entry: CatalogEntry, file: CatalogFile, folder: Path, *, quiet: bool) -> str:
    """Fetch a file from the first address that gives it; return the address."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)
    target = folder / file.path
    known = f"sha256:{file.sha256}" if file.sha256 else f"md5:{file.md5}" if file.md5 else None
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{target.parent} is a link out of {folder}, so that {target.name} is not fetched to it; give another "
            "folder with --to."
        )
    problems: list[str] = []
    broken = False
    # pooch writes to a temporary file, compares the checksum and renames: to a name of its own, so that a file that is
    # to be replaced stays until the new one is whole
    arrived = target.with_name(f".{target.name}.{os.getpid()}.fetched")
    for url in file.urls:
        loader = cast("Any", _Loader(file, quiet=quiet))
        try:
            pooch.retrieve(url, known, fname=arrived.name, path=str(target.parent), downloader=loader)
        except requests.RequestException as error:
            problems.append(f"{_shown(url)}: {_reason(error)}")
        except FormatError as error:
            broken = True
            problems.append(f"{_shown(url)}: {error}")
        except ValueError as error:
            if "hash" not in str(error):
                raise
            broken = True
            found = f"its {'SHA-256' if file.sha256 else 'MD5'} is not {file.sha256 or file.md5}"
            problems.append(f"{_shown(url)}: {found}")
        else:
            arrived.replace(target)
            return url
    text = f"{target.name} of {entry.name} was not fetched. {'; '.join(problems)}."
    if broken:
        raise FormatError(
            f"{text} The file was changed, or the transfer broke; nothing was kept. Try again later; if the publisher "
            "replaced the file, write its new checksum into a copy of the entry."
        )
    raise SceneNotFoundError(f"{text} Try again later, or get the file by hand and put it at {target}.")


class _Loader:
    """Downloads for pooch: streams with a progress bar, within a size, by http and https only even when redirected."""

    def __init__(self, file: CatalogFile, *, quiet: bool) -> None:
        self.file, self.quiet = file, quiet
        self.most = file.size_bytes if file.size_bytes is not None else MAX_BYTES

    def __call__(self, url: str, output_file: str | IO[bytes], _pooch: object, **_: Any) -> None:
        import requests

        with requests.Session() as session:
            session.hooks["response"].append(_refuse_other_schemes)
            # the bytes as they lie there: an archive that is unpacked on the way has another checksum
            session.headers["Accept-Encoding"] = "identity"
            with session.get(url, stream=True, timeout=TIMEOUT_SECONDS) as answer:
                answer.raise_for_status()
                length = answer.headers.get("content-length", "")
                total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else (self.file.size_bytes or 0)
                if total > self.most:
                    raise FormatError(f"it has {total} bytes, and {self.most} are allowed")
                if isinstance(output_file, str):
                    with Path(output_file).open("wb") as file:
                        self._copy(answer, file, total)
                else:
                    self._copy(answer, output_file, total)

    def _copy(self, answer: Any, file: IO[bytes], total: int) -> None:
        done = 0
        with progress(self.file.path, max(total, 1) / 1e6, quiet=self.quiet) as bar:
            for block in answer.iter_content(CHUNK_BYTES):
                done += len(block)
                if done > self.most:
                    raise FormatError(f"it has more than {self.most} bytes")
                file.write(block)
                bar.advance(len(block) / 1e6)
        if total and done < total and not answer.headers.get("content-encoding"):
            raise FormatError(f"the transfer ended after {done} of {total} bytes")


def _refuse_other_schemes(answer: Any, *_: Any, **__: Any) -> None:
    import requests

    if answer.is_redirect:
        target = str(answer.headers.get("location", ""))
        try:
            if urlsplit(target).scheme:
                require_web(target)
        except ValueError as error:
            raise requests.exceptions.InvalidURL(
                f"it redirects to an address that is refused: {error}"
            ) from None


def _shown(url: str) -> str:
    """Return an address without its query, which may hold a signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "the server does not answer"
    if isinstance(error, requests.exceptions.InvalidURL):
        return str(error)
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the transfer broke off"
    return f"no connection ({type(error).__name__})"
