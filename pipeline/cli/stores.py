"""The `bandstream store` commands that compare stores and clear them away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def store_gc(
    root: Annotated[Path, typer.Argument(help="Folder of the stores.")] = Path("stores"),
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove what is listed; without it nothing is removed.")
    ] = False,
    unused: Annotated[
        bool, typer.Option("--unused", help="Also finished stores that no run folder refers to.")
    ] = False,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            help="Folder with training runs, for --unused; may be given several times.  [default: runs]",
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, help="Leave what was used within so many DAYS.", metavar="DAYS"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what may go from a folder of stores, and with --yes remove it.

    That is: stores whose build was cut off and is not running, left-over files of killed builds, statistics that were not
    used for 30 days, and with --unused finished stores that no run folder refers to. Links are not followed, and what
    Bandstream has not made stays.
    """
    from ..collect import collect

    found = collect(root, remove=yes, unused=unused, runs=runs, older_than_days=older_than)
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
        return
    for item in found.items:
        print(f"{item.kind:16s} {item.bytes / 2**20:10.1f} MiB  {item.path}")
    for path, why in found.kept:
        print(f"kept             {path}: {why}")
    if not found.items:
        print(f"There is nothing to remove in {root}.")
    elif found.removed:
        print(f"removed {found.bytes:,} bytes")
    else:
        print(f"would free {found.bytes:,} bytes; nothing was removed: add --yes")


def store_diff(
    a: Annotated[Path, typer.Argument(help="Store.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    pixels: Annotated[
        bool, typer.Option("--pixels", help="Also read all tiles of both and compare their values.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what differs between two stores; the exit code is 0 where their files are the same, else 1."""
    from ..files import json_value
    from ..store import PatchStore
    from ..storediff import diff, lines

    found = diff(PatchStore.open(a), PatchStore.open(b), pixels=pixels)
    if as_json:
        print(json.dumps(json_value(found), indent=1, allow_nan=False))
    else:
        print("\n".join(lines(found)))
    raise typer.Exit(0 if found["equal"] else 1)
