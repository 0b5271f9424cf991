"""Who builds a store: an advisory lock that tells host, process and a sign of life.

The lock is a small JSON file beside the stores. Creating it is the one atomic step, which local discs, NFS and object
stores all offer; its holder writes a new sign of life into it every `BEAT_SECONDS`. A lock is taken over when its
process is gone (same machine), or when nothing was heard of it for a while (another machine): by its own clock for
`SILENT_SECONDS`, or watched without a change for `WATCH_SECONDS`. A lock that is taken over wrongly wastes work and does
no harm, since equal builds write equal bytes (see `writer.py`).
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import BandstreamWarning, RemoteError, StoreBusyError, StoreWriteError
from .storage import RemotePath

#: Folder beside the stores for what is not part of any.
CACHE = ".bandstream"
BEAT_SECONDS = 15.0
#: Clocks of two machines may differ by minutes.
SILENT_SECONDS = 600.0
#: Eight beats; NFS may show an old file for a minute.
WATCH_SECONDS = 120.0
_POLL_SECONDS = (0.1, 2.0)
#: What a file system answers that has no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as the lock file tells."""

    host: str
    pid: int
    since: str  #: ISO 8601 UTC
    heartbeat: float  #: seconds since 1970, by the holder's clock
    token: str  #: of this one lock
    machine: str = ""  #: within one of these, process numbers can be compared
    started: str = ""  #: when the process began, in the system's own count: process numbers come round
    thread: int = 0

    @classmethod
    def me(cls) -> Holder:
        """Return a new lock's record for this thread."""
        return cls(
            platform.node(),
            os.getpid(),
            datetime.now(UTC).isoformat(timespec="seconds"),
            time.time(),
            uuid.uuid4().hex,
            _machine(),
            _process(os.getpid()) or "",
            threading.get_ident(),
        )

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        """Read a lock file; None where it is none, or one that was cut off."""
        try:
            holder = cls(**json.loads(text))
            holder = replace(holder, heartbeat=float(holder.heartbeat))
            known = all(type(value) is type(asdict(_NOBODY)[key]) for key, value in asdict(holder).items())
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        return holder if known and 0 < holder.pid < _MOST_PID and math.isfinite(holder.heartbeat) else None

    def text(self) -> str:
        """Return the content of the lock file."""
        return json.dumps(asdict(self), sort_keys=True)

    def who(self) -> str:
        """Return how the holder is named to people."""
        return f"pid {self.pid} on {self.host}, since {self.since}"

    def is_dead(self) -> bool:
        """Whether the holder is gone for certain; of another machine only a long silence tells."""
        if not self.machine or self.machine != _machine():
            return time.time() - self.heartbeat > SILENT_SECONDS
        if self.pid == os.getpid() and self.started == (_process(self.pid) or ""):
            return self.token not in _HELD
        return _process(self.pid) != self.started if self.started else not _exists(self.pid)


_NOBODY = Holder("", 0, "", 0.0, "")
_MOST_PID = 1 << 31
#: Tokens of the locks that this process holds.
_HELD: set[str] = set()


@dataclass
class Lock:
    """A lock that is held."""

    holder: Holder
    notes: list[str] = field(default_factory=list[str])  #: what is to be told about how it was got


def lock_path(store: Path) -> Path:
    """Return the lock file of a store."""
    return store.parent / CACHE / f"{store.stem}.lock"


@contextmanager
def hold(store: Path, wait_seconds: float | None = None) -> Generator[Lock]:
    """Hold the lock of a store while it is built.

    Parameters
    ----------
    store
        Folder of the store; it need not exist.
    wait_seconds
        How long to wait for another build at most; 0 refuses at once, None waits as long as it takes.

    Raises
    ------
    StoreBusyError
        Another process is still building the store, or this very thread is.
    StoreWriteError
        The lock cannot be written.
    """
    path = lock_path(store)
    try:
        lock = _acquire(path, store, wait_seconds)
    except OSError as error:
        if isinstance(error, StoreWriteError):
            raise
        raise StoreWriteError(
            f"The lock {path} cannot be written: {error.strerror or error}. Make room, or set store.root to a folder that "
            "can be written."
        ) from error
    _HELD.add(lock.holder.token)
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, lock.holder, stop), name="store-lock", daemon=True)
    beat.start()
    try:
        yield lock
    finally:
        stop.set()
        beat.join()
        _HELD.discard(lock.holder.token)
        with suppress(OSError, RemoteError):
            if _is_mine(path, lock.holder):
                _remove(path)


def _acquire(path: Path, store: Path, wait_seconds: float | None) -> Lock:
    mine, started, pause = Holder.me(), time.monotonic(), _POLL_SECONDS[0]
    seen, changed, told = "", started, False
    while True:
        mine = replace(mine, heartbeat=time.time())
        _HELD.add(mine.token)  # before others can see the lock
        if _create(path, mine.text()):
            return Lock(mine)
        _HELD.discard(mine.token)
        text, now = _read(path), time.monotonic()
        if text is None:  # just released
            if path.is_symlink():
                raise StoreWriteError(f"The lock {path} is a link that leads nowhere; remove it.")
            continue
        if text != seen:
            seen, changed = text, now
        other = Holder.parse(text)
        who = other.who() if other else "unknown"
        dead = other.is_dead() if other else _age_seconds(path) > SILENT_SECONDS
        if dead or now - changed > WATCH_SECONDS:
            mine = replace(mine, heartbeat=time.time())
            _HELD.add(mine.token)
            if _take_over(path, text, mine.text()):
                return Lock(mine, [f"took over from a build that ended without finishing ({who})"])
            _HELD.discard(mine.token)
            continue
        own = other is not None and (other.machine, other.pid, other.thread) == (
            mine.machine,
            mine.pid,
            mine.thread,
        )
        if own or (wait_seconds is not None and now - started >= wait_seconds):
            raise StoreBusyError(
                f"Another process or call ({who}) is building {store}; wait until it is done, then run again: the "
                "finished store is reused."
            )
        if not told:
            told = True
            warnings.warn(
                f"Waiting for another build of {store} ({who}); its finished store will be reused.",
                BandstreamWarning,
                stacklevel=5,
            )
        left = pause if wait_seconds is None else started + wait_seconds - now
        time.sleep(max(0.0, min(pause, left)))
        pause = min(pause * 1.5, _POLL_SECONDS[1])


def _beat(path: Path, holder: Holder, stop: threading.Event) -> None:
    """Renew the sign of life until the build ends, or until somebody has taken the lock over."""
    while not stop.wait(BEAT_SECONDS):
        holder = replace(holder, heartbeat=time.time())
        # on a full disc, or while the network is away, the next beat may get through
        with suppress(OSError, RemoteError):
            if _is_mine(path, holder):
                _replace(path, holder.text())
            elif _read(path) is not None:
                return


def _is_mine(path: Path, holder: Holder) -> bool:
    found = Holder.parse(_read(path) or "")
    return found is not None and found.token == holder.token


# The lock's input and output: create if absent, read, replace, remove; all that a storage must offer.


def _create(path: Path, text: str) -> bool:
    """Create the lock file, whole or not at all; False if there is one."""
    if isinstance(path, RemotePath):
        return path.create(text.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    if isinstance(path, RemotePath):
        path.write_text(text)
        return
    _temporary(path, text).replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _take_over(path: Path, old: str, new: str) -> bool:
    """Replace the lock file if it still holds `old`; of several who try, one gets it."""
    if isinstance(path, RemotePath):
        return path.exchange(old.encode(), new.encode())
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    try:
        if _read(aside) != old:  # somebody else was faster: give back what is theirs
            with suppress(OSError):
                os.link(aside, path)
            return False
        return _create(path, new)
    finally:
        aside.unlink(missing_ok=True)


def _temporary(path: Path, text: str) -> Path:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return temporary


def _age_seconds(path: Path) -> float:
    """Return how long a file that names no holder has been there; of an object nothing is known."""
    if isinstance(path, RemotePath):
        return 0.0
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


# Processes


def _machine() -> str:
    """Return what tells where process numbers mean the same: host, its start, and the container's own numbering."""
    parts: list[str] = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)


def _process(pid: int) -> str | None:
    """Return when a running process began, in clock ticks since the machine did; None where that cannot be told."""
    try:
        # the name in the second field may hold anything, brackets too
        fields: list[Any] = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    ended = fields[0] in {"Z", "X"}  # killed, and not yet asked after by its parent
    return None if ended else str(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
