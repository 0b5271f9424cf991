"""`bandstream scene convert`: any scene to ENVI, GeoTIFF, netCDF or Zarr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import Read, read_options


def convert(
    source: Annotated[str, typer.Argument(help="Scene: file, product folder, or pattern of tiles.")],
    target: Annotated[Path, typer.Argument(help="File to write; its ending says the format.")],
    kind: Annotated[
        str | None,
        typer.Option("--format", help="envi, geotiff, cog, netcdf or zarr, if the ending does not say."),
    ] = None,
    interleave: Annotated[str, typer.Option(help="ENVI: bsq, bil or bip.")] = "bil",
    physical: Annotated[
        bool, typer.Option("--physical", help="Write scaled float32 with NaN for no data.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    read: Read = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Write a scene in another format: numbers, wavelengths and place stay what they are."""
    from ..readers import open_scene
    from ..writers import write_scene

    scene = open_scene(source, **read_options(read))
    written = write_scene(
        scene, target, format=kind, interleave=interleave, physical=physical, overwrite=overwrite
    )
    if as_json:
        print(json.dumps({"written": [str(path) for path in written]}))
    else:
        print("\n".join(map(str, written)))
