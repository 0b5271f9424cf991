"""The command `stream`: how fast a store streams on this machine, and what holds it back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..pipeline.cli.options import Json

if TYPE_CHECKING:
    from .stream.speed import Speed


def stream(
    store: Annotated[str, typer.Argument(help="Store: a folder, or s3://bucket/key.")],
    split: Annotated[str, typer.Option(help="train, validation, test or all.")] = "train",
    patch: Annotated[
        int | None, typer.Option(help="Side of patches around single pixels, odd; whole tiles if not given.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples in a batch.")] = 16,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="How long to measure; as long, at most, goes before it.")
    ] = 5.0,
    step: Annotated[
        float,
        typer.Option(
            min=0, max=3_600_000, metavar="MS", help="Milliseconds that a training step takes for each batch."
        ),
    ] = 0.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that read and decode.  [default: as many as are of use]"),
    ] = None,
    budget: Annotated[str, typer.Option(help="Most memory that the stream may hold.")] = "1GiB",
    checksum: Annotated[
        str, typer.Option(help="Compare a chunk's checksum: first, always or never.")
    ] = "first",
    cache: Annotated[
        Path | None, typer.Option(help="Local folder that keeps what was fetched of a store in a bucket.")
    ] = None,
    cache_size: Annotated[str, typer.Option(help="Most that the cache may take on the disk.")] = "32GiB",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure how fast a store streams here, and say what limits it."""
    from ..pipeline.engine import parse_bytes
    from ..pipeline.progress import progress
    from ..pipeline.storage import is_remote
    from .stream import PatchStream
    from .stream.speed import advice, measure

    made = PatchStream(
        store,
        split=split,
        patch=patch,
        batch_size=batch,
        threads=threads,
        budget_bytes=parse_bytes(budget),
        checksum=checksum,  # pyright: ignore[reportArgumentType] - it refuses what is not allowed
        cache=cache,
        cache_bytes=parse_bytes(cache_size),
    )
    try:
        with progress("measuring", 2 * seconds, quiet=quiet or as_json) as shown:
            speed = measure(made, seconds, step / 1e3, shown.advance)
    finally:
        made.close()
    told = advice(
        speed,
        remote=is_remote(made.store.path),
        codec=str(made.store.attrs.get("codec", "default")),
        cached=cache is not None,
    )
    if as_json:
        print(json.dumps({"store": str(made.store.path), **asdict(speed), "advice": told}, indent=1))
        return
    print("\n".join(_lines(speed)))
    print(told)


def _lines(speed: Speed) -> list[str]:
    def percent(share: float) -> str:
        return f"{100 * share:.1f} %"

    rows: dict[str, Any] = {
        "rate": f"{speed.samples_per_s:.0f} samples/s, {speed.mb_per_s:.0f} MB/s of images, {speed.batches} batches in "
        f"{speed.seconds:.1f} s",
        "first": f"batch after {speed.first_batch_s:.2f} s",
        "waiting": f"{percent(speed.wait_share)} of the time, for {speed.threads} threads",
        "work": f"reading {percent(speed.read_share)}, decoding {percent(speed.decode_share)}, gathering "
        f"{percent(speed.gather_share)}, augmentation {percent(speed.augment_share)}",
        "read": f"{speed.bytes_read / 1e6:.1f} MB in {speed.blocks_read} blocks; {min(speed.slots, speed.blocks)} of "
        f"{speed.blocks} blocks fit into memory",
    }
    return [f"{name:8s} {text}" for name, text in rows.items()]
