"""The stream beside what memory alone gives, and what it loses when every request is answered late; in turn.

    python tests/benchmarks/stream.py [SIDE] [ROUNDS]              tiles and pixel patches, SIDE x SIDE pixels (2048)
    python tests/benchmarks/stream.py late [MS] [SIDE] [MIB]       from a server on this machine, at once and MS late (50);
                                                                   SIDE 4096, budget 1024 MiB: half of it stays in memory

Prints medians and ratios. `memory` is a shuffling DataLoader over all tiles in one tensor; `gather` cuts patches out of
the padded scene in memory with NumPy. Every stream is first compared with plain Zarr, batch by batch. Ratios are what
counts: both sides of one stand in the same run, on the same machine.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np

BANDS, KEPT, TILE, BATCH, PIXELS, PATCH = 64, 32, 64, 16, 512, 11
SECONDS = 5.0
FLOW = """version: 1
name: bench
scenes: [{{path: {scene}}}]
stages:
  - normalize: {{method: zscore}}
  - reduce: {{method: pca, components: 32}}
tiles: {{size: 64, halo: {halo}}}
split: {{by: none}}
store: {{root: {root}, codec: {codec}}}
"""


def make_scene(header: Path, side: int) -> None:
    """Write an int16 BIL scene: mixtures of twelve smooth spectra in fields of 10 x 10 pixels, and white noise."""
    rng = np.random.default_rng(1)
    spectra = rng.standard_normal((12, BANDS)).cumsum(axis=1)
    spectra = 8000 * (spectra - spectra.min(1, keepdims=True)) / np.ptp(spectra, axis=1, keepdims=True)
    fields = rng.dirichlet(np.full(12, 0.3), size=(-(-side // 10), -(-side // 10))) @ spectra
    with header.with_suffix(".img").open("wb") as out:
        for row in range(side):
            line = fields[row // 10].repeat(10, 0)[:side] + rng.normal(0, 60, (side, BANDS))
            out.write(np.ascontiguousarray(line.T).astype("<i2").tobytes())
    centres = ", ".join(f"{centre:.2f}" for centre in np.linspace(400, 2500, BANDS))
    header.write_text(
        f"ENVI\nsamples = {side}\nlines = {side}\nbands = {BANDS}\nheader offset = 0\nfile type = ENVI Standard\n"
        f"data type = 2\ninterleave = bil\nbyte order = 0\nwavelength units = nm\nwavelength = {{{centres}}}\n"
    )


def build_store(scratch: Path, scene: Path, codec: str, halo: int) -> str:
    """Build a store and return its path."""
    from bandstream.pipeline import build

    flow = scratch / f"{codec}-{halo}.yaml"
    flow.write_text(FLOW.format(scene=scene, halo=halo, root=scratch / "stores", codec=codec))
    return str(build(flow).path)


def rate(epochs: Iterator[Iterable[Any]], seconds: float = SECONDS) -> float:
    """Return samples per second over whole epochs, after an untimed one."""

    def run() -> int:
        return sum(len(batch["image"] if isinstance(batch, dict) else batch[0]) for batch in next(epochs))

    run()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        count += run()
    return count / (time.perf_counter() - start)


def epochs_of(stream: Any) -> Iterator[Iterable[Any]]:
    """Yield a stream's epochs, one after the other."""
    for epoch in range(1 << 30):
        stream.set_epoch(epoch)
        yield stream


def check(stream: Any, store: str) -> None:
    """Compare every batch with plain Zarr while the one before is held, and count that nothing is missing."""
    import zarr

    data: Any = zarr.open_group(store, mode="r")["tiles/data"]
    wanted = np.asarray(data[:])
    index: Any = zarr.open_group(store, mode="r")["tiles/index"]
    first_row, first_col = np.asarray(index["row"][:]), np.asarray(index["col"][:])
    held: dict[str, Any] | None = None
    seen = 0
    for batch in stream:
        for one in filter(None, (held, batch)):
            tile = one["tile"].numpy()
            if stream.patch is None:
                assert np.array_equal(one["image"].numpy(), wanted[tile]), "a batch differs from the store"
                continue
            row, col = one["row"].numpy() - first_row[tile], one["col"].numpy() - first_col[tile]
            half = PATCH // 2  # also the halo of this store
            for i in range(0, len(tile), 97):
                cut = wanted[tile[i], :, row[i] : row[i] + 2 * half + 1, col[i] : col[i] + 2 * half + 1]
                assert np.array_equal(one["image"][i].numpy(), cut), "a patch differs from the store"
        held, seen = batch, seen + len(np.unique(batch["tile"].numpy())) if stream.patch is None else seen
    assert stream.patch is not None or seen >= len(wanted), "tiles are missing"


def ours(store: str, patch: int | None, **options: Any) -> float:
    """Return the rate of a stream that was checked."""
    from bandstream.train import PatchStream

    batch = BATCH if patch is None else PIXELS
    stream = PatchStream(store, split="all", patch=patch, batch_size=batch, seed=0, **options)
    check(stream, store)
    return rate(epochs_of(stream))


def memory(store: str) -> float:
    """Return the rate of a shuffling DataLoader over all tiles in memory."""
    import torch
    import zarr
    from torch.utils.data import DataLoader, TensorDataset

    data: Any = zarr.open_group(store, mode="r")["tiles/data"]
    tiles = torch.from_numpy(np.asarray(data[:]))
    loader = DataLoader(TensorDataset(tiles), batch_size=BATCH, shuffle=True)
    return rate(iter(lambda: loader, None))


def gather(store: str) -> float:
    """Return the rate of cutting random patches out of the padded scene in memory with NumPy."""
    import torch
    import zarr

    data: Any = zarr.open_group(store, mode="r")["tiles/data"]
    tiles = np.asarray(data[:])
    across, half = int(len(tiles) ** 0.5), PATCH // 2
    grid = tiles[: across**2].reshape(across, across, KEPT, TILE, TILE).transpose(0, 3, 1, 4, 2)
    scene = grid.reshape(across * TILE, across * TILE, KEPT)
    padded = np.pad(scene, ((half, half), (half, half), (0, 0)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (PATCH, PATCH), axis=(0, 1))
    rng = np.random.default_rng(0)

    def epochs() -> Iterator[Iterable[Any]]:
        while True:
            picks = rng.permutation(scene.shape[0] * scene.shape[1])[:200_000]
            yield (
                (torch.from_numpy(np.ascontiguousarray(windows[some // len(scene), some % len(scene)])),)
                for some in np.split(picks, range(PIXELS, len(picks), PIXELS))
            )

    return rate(epochs())


def beside_memory(scratch: Path, side: int, rounds: int) -> None:
    """Measure tiles and patches beside memory, each in a process of its own, in turn."""
    scene = scratch / "scene.hdr"
    make_scene(scene, side)
    tiles, plain = build_store(scratch, scene, "default", 0), build_store(scratch, scene, "none", 0)
    pixels = build_store(scratch, scene, "default", PATCH // 2)
    jobs = {
        "tiles": ("ours", tiles),
        "tiles, codec none": ("ours", plain),
        "memory": ("memory", plain),
        "patches": ("patches", pixels),
        "gather": ("gather", plain),
    }
    seen: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (kind, store) in jobs.items():
            seen[name].append(float(_child("one", kind, store).stdout.split()[-1]))
    best = {name: statistics.median(found) for name, found in seen.items()}
    for name, value in best.items():
        print(f"{name:18s} {value:10.0f} per second")
    print(f"codec none / memory {best['tiles, codec none'] / best['memory']:.2f}")
    print(f"patches / gather    {best['patches'] / best['gather']:.2f}")


def late(scratch: Path, milliseconds: float = 50.0, side: int = 4096, budget_mib: int = 1024) -> None:
    """Measure the stream from a server that answers at once, and from one that answers late."""
    scene = scratch / "scene.hdr"
    make_scene(scene, side)
    store = Path(build_store(scratch, scene, "default", 0))
    rates: dict[float, list[float]] = {0.0: [], milliseconds: []}
    for _ in range(3):
        for wait, found in rates.items():
            server = subprocess.Popen(
                [sys.executable, __file__, "serve", str(store.parent), str(wait)],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert server.stdout is not None
                settings = {
                    "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                    "AWS_ACCESS_KEY_ID": "anyone",
                    "AWS_SECRET_ACCESS_KEY": "anything",
                }
                done = _child("one", "remote", f"s3://bench/{store.name}", str(budget_mib), **settings)
                found.append(float(done.stdout.split()[-1]))
            finally:
                server.kill()
                server.wait()
    at_once, later = (statistics.median(found) for found in rates.values())
    print(f"answered at once        {at_once:8.0f} tiles per second")
    print(f"answered {milliseconds:g} ms later    {later:8.0f} tiles per second")
    print(f"ratio {later / at_once:.2f}")


def _child(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(arguments)}\n{done.stderr[-2000:]}")
    return done


def one(kind: str, store: str, budget_mib: str = "1024") -> float:
    """Measure one contender."""
    if kind == "memory":
        return memory(store)
    if kind == "gather":
        return gather(store)
    if kind == "remote":
        from bandstream.train import PatchStream

        return rate(
            epochs_of(PatchStream(store, split="all", batch_size=BATCH, budget_bytes=int(budget_mib) << 20))
        )
    return ours(store, PATCH if kind == "patches" else None)


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as reading a store takes, for the files of one folder."""

    protocol_version = "HTTP/1.1"
    folder = Path()
    seconds = 0.0

    def do_GET(self) -> None:
        """Answer with an object, a range of it, or a listing."""
        time.sleep(self.seconds)
        url = urlsplit(self.path)
        query, key = parse_qs(url.query), unquote(url.path).partition("/")[2].partition("/")[2]
        if "list-type" in query:
            self._list(query)
            return
        path = self.folder / key
        if not path.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        start, stop = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.flush()
            with path.open("rb") as file:
                self.connection.sendfile(file, start, stop - start)

    do_HEAD = do_GET  # noqa: N815

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        names = sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{(self.folder / name).stat().st_size}</Size><ETag>1</ETag>"
            "<LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents>"
            for name in names
            if name.startswith(prefix)
        )
        self._send(
            200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode()
        )

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def serve(folder: str, milliseconds: float) -> None:
    """Serve a folder as a bucket until killed; print the address."""
    Bucket.folder, Bucket.seconds = Path(folder), milliseconds / 1e3
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def main(arguments: list[str]) -> None:
    """Measure what the command line asks for."""
    if arguments[:1] == ["one"]:
        print(one(*arguments[1:]))
        return
    if arguments[:1] == ["serve"]:
        serve(arguments[1], float(arguments[2]))
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "zarr", "torch"))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.platform()}, {os.cpu_count()} cores, {packages}")
    scratch = Path(tempfile.mkdtemp())
    try:
        if arguments[:1] == ["late"]:
            late(scratch, *map(float, arguments[1:2]), *map(int, arguments[2:]))
        else:
            side, rounds = (int(text) for text in (arguments + ["2048", "3"][len(arguments) :]))
            beside_memory(scratch, side, rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
