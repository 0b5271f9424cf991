"""The bytes of a store in a bucket: neighbouring ranges in one request, several requests at once.

A request costs tens of milliseconds however little it asks for, so that what lies close together is fetched together,
and large ranges are fetched in parts that travel side by side. Retries, credentials and wording of errors are those of
`pipeline/s3.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from ...pipeline import s3
from ...pipeline.storage import RemotePath
from .bytes_source import missing_file, truncated_file

GAP_BYTES = 32 << 10
"""Fetched and thrown away, at most, between two ranges that share a request: less than a round trip's worth."""

REQUEST_BYTES = 4 << 20
"""Most that one request asks for."""

REQUESTS_AT_ONCE = 16
"""Requests in flight for one call of `read`; other threads have their own."""

PIECE_BYTES = 1 << 20
"""A body is copied to its place in pieces of about this size, so that no whole body lies in memory beside it."""


@dataclass(frozen=True)
class Request:
    """Bytes start..stop-1 of an object, and where parts of them belong."""

    start: int
    stop: int
    parts: tuple[tuple[int, memoryview], ...]  #: rising (offset in the object, its buffer); they may overlap


def plan_requests(
    ranges: Sequence[tuple[int, int]],
    out: Sequence[memoryview],
    gap_bytes: int = GAP_BYTES,
    request_bytes: int = REQUEST_BYTES,
) -> list[Request]:
    """Return the requests that fetch ranges of one object.

    Parameters
    ----------
    ranges, out
        (offset, length) in bytes, and the buffer of each.
    gap_bytes
        Ranges that lie at most this far apart share a request.
    request_bytes
        Most of a request; longer ranges are cut.

    Returns
    -------
    list of Request
        By offset; ranges of no length are in none.
    """
    parts = sorted(
        (
            (offset + at, buffer[at : at + request_bytes])
            for (offset, length), buffer in zip(ranges, out, strict=True)
            for at in range(0, length, request_bytes)
        ),
        key=lambda part: part[0],
    )
    requests: list[Request] = []
    for offset, buffer in parts:
        stop = offset + len(buffer)
        last = requests[-1] if requests else None
        if last and offset - last.stop <= gap_bytes and max(stop, last.stop) - last.start <= request_bytes:
            requests[-1] = Request(last.start, max(stop, last.stop), (*last.parts, (offset, buffer)))
        else:
            requests.append(Request(offset, stop, ((offset, buffer),)))
    return requests


class RemoteBytes:
    """The files of a store in a bucket, as a `ByteSource`.

    Parameters
    ----------
    folder
        Of the store.
    gap_bytes, request_bytes
        See `plan_requests`.
    requests_at_once
        Of one call; the threads that call share nothing else.

    Notes
    -----
    Pickled, it is only its address; credentials are read from the environment wherever it comes to. A process that was
    forked from one that has used s3:// is refused (`pipeline/s3.py` says why).
    """

    def __init__(
        self,
        folder: RemotePath,
        *,
        gap_bytes: int = GAP_BYTES,
        request_bytes: int = REQUEST_BYTES,
        requests_at_once: int = REQUESTS_AT_ONCE,
    ) -> None:
        self._folder = folder
        self._gap_bytes, self._request_bytes, self._at_once = gap_bytes, request_bytes, requests_at_once
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0
        self._sizes: dict[str, int] | None = None

    def size(self, name: str) -> int:
        """Return the bytes of an object; see `ByteSource`.

        Raises
        ------
        RemoteError
            The server cannot be used.
        """
        s3.require_own_process()
        with self._lock:
            if self._sizes is None:
                # one listing of all objects instead of a question for each of thousands of shards
                self._sizes = self._folder.sizes_below()
        if name not in self._sizes:
            raise missing_file(self._folder, name)
        return self._sizes[name]

    def read(self, name: str, ranges: Sequence[tuple[int, int]], out: Sequence[memoryview]) -> None:
        """Read ranges of an object; see `ByteSource`.

        Raises
        ------
        RemoteError
            The server cannot be used.
        """
        s3.require_own_process()
        requests = plan_requests(ranges, out, self._gap_bytes, self._request_bytes)
        if len(requests) == 1:
            self._fetch(name, requests[0])
            return
        waiting = [self._threads().submit(self._fetch, name, request) for request in requests]
        try:
            for one in waiting:
                one.result()
        finally:
            # the buffers are the caller's again when this returns, so nothing may still write into them
            for one in waiting:
                if not one.cancel():
                    one.exception()

    def close(self) -> None:
        """End the threads; see `ByteSource`."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown()

    def _at(self, name: str) -> RemotePath:
        return RemotePath(f"s3:/{self._folder.bucket}/{self._folder.key}/{name}")

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._pool, self._process = ThreadPoolExecutor(self._at_once, "bandstream-s3"), os.getpid()
            return self._pool

    def _fetch(self, name: str, request: Request) -> None:
        path = self._at(name)
        options: Any = {"range": (request.start, request.stop)}

        def fetch() -> None:
            try:
                answer = s3.obstore().get(s3.client(path.bucket), path.key, options=options)
            except Exception as error:
                # where a range lies wholly behind the end, the server sends no size
                if "status code: 416" in str(error):
                    raise truncated_file(self._folder, name, request.stop, path.stat().st_size) from None
                raise
            if answer.meta["size"] < request.stop:
                raise truncated_file(self._folder, name, request.stop, answer.meta["size"])
            _scatter(answer.stream(min_chunk_size=PIECE_BYTES), request)

        try:
            s3.attempt(str(path), fetch)
        except FileNotFoundError as error:
            raise missing_file(self._folder, name) from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_pool": None, "_process": 0, "_sizes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())


def _scatter(pieces: Any, request: Request) -> None:
    """Copy a body that comes in pieces to where its parts belong.

    Raises
    ------
    ShortBodyError
        It ends too early.
    """
    at = request.start
    for piece in pieces:
        body = np.frombuffer(piece, np.uint8)
        for offset, buffer in request.parts:
            first, last = max(at, offset), min(at + len(body), offset + len(buffer))
            if first < last:
                # numpy copies without the interpreter lock
                np.frombuffer(buffer, np.uint8)[first - offset : last - offset] = body[first - at : last - at]
        at += len(body)
    if at != request.stop:
        raise s3.ShortBodyError(f"{at - request.start} of {request.stop - request.start} bytes came")
