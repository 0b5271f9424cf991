"""A proxy before an S3 server on this machine that answers late, refuses, breaks off, or loses its answers."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("busy", "reset", "lost", "cut", "short", "slow")
BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"


@dataclass
class Seen:
    """One request that came through."""

    method: str
    path: str
    sent: int  #: bytes of the answer's body


class FlakyServer:
    """Passes requests on to `port`; some of them meet a fault.

    Parameters
    ----------
    port
        Of the server behind it.
    """

    def __init__(self, port: int) -> None:
        self.behind = port
        self.seen: list[Seen] = []
        self.faults: Counter[str] = Counter()
        self.choose: Callable[[str, str], str] = lambda method, path: ""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that has gone: that is what this server is for

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def calm(self) -> None:
        """Pass everything on from now, and forget what was seen."""
        self.choose = lambda method, path: ""
        self.seen.clear()
        self.faults.clear()

    def storm(self, seed: int, share: float, faults: tuple[str, ...] = FAULTS) -> None:
        """Let a share of the requests meet faults, drawn by a seed."""
        self.calm()
        rng, lock = random.Random(seed), threading.Lock()

        def choose(method: str, path: str) -> str:
            del method, path
            with lock:
                return rng.choice(faults) if rng.random() < share else ""

        self.choose = choose

    def stop(self) -> None:
        """End."""
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self.choose(request.command, request.path)
        if fault:
            self.faults[fault] += 1
        if fault == "reset":
            return self.reset(request)
        if fault == "slow":
            time.sleep(0.05)
        status, headers, content = (
            (int(fault), [], BUSY)
            if fault.isdecimal()
            else (503, [], BUSY)
            if fault == "busy"
            else self.fetch(request, body)
        )
        if fault == "lost":
            return self.reset(request)
        self.seen.append(Seen(request.command, request.path, len(content)))
        request.send_response(status)
        head = request.command == "HEAD"
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                request.send_header(name, value)
        length = next(
            (value for name, value in headers if head and name.lower() == "content-length"), len(content)
        )
        request.send_header("Content-Length", str(length))
        request.end_headers()
        if head:
            return None
        if fault in ("cut", "short") and len(content) > 1:
            request.wfile.write(content[: len(content) // 2])
            request.wfile.flush()
            if fault == "cut":
                return self.reset(request)
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return None
        request.wfile.write(content)
        return None

    def fetch(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server behind."""
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=30)
        try:
            headers = {
                k: v for k, v in request.headers.items() if k.lower() not in ("connection", "content-length")
            }
            connection.request(
                request.command, request.path, body or None, headers | {"Content-Length": str(len(body))}
            )
            found = connection.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            connection.close()

    @staticmethod
    def reset(request: BaseHTTPRequestHandler) -> None:
        """Break the connection off without a word."""
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.close_connection = True
        request.connection.close()
