"""`bandstream scene quicklook`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from .options import Read, read_options

_POINT = re.compile(r"(\d+)\s*,\s*(\d+)")
_STRETCH = re.compile(r"([\d.]+)\s*,\s*([\d.]+)")


def quicklook(
    path: Annotated[Path, typer.Argument(help="Scene: header, data file, GeoTIFF, product, or folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG to write.")] = Path("quicklook.png"),
    kind: Annotated[
        str | None,
        typer.Option(
            help="rgb, cir (colour-infrared), band, spectra, bands (their state), or all. rgb unless a band or points "
            "are given."
        ),
    ] = None,
    band: Annotated[int | None, typer.Option(help="Band to show, counted from 1.")] = None,
    wavelength: Annotated[float | None, typer.Option(help="Show the band nearest to this, in nm.")] = None,
    points: Annotated[
        list[str] | None,
        typer.Option(
            help="Row,column of spectra, counted from 0; several: --points '10,20 30,40', or repeated."
        ),
    ] = None,
    stretch: Annotated[str, typer.Option(help="Percentiles shown as black and as full.")] = "2,98",
    size: Annotated[int, typer.Option(help="Longest side of a picture in pixels.")] = 1024,
    read: Read = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was drawn, as JSON.")] = False,
) -> None:
    """Draw a scene: colours, one band, spectra at points, or the state of its bands."""
    places = _points(points or [])
    percent = _pair(_STRETCH, stretch, "--stretch", "two percentiles such as 2,98")
    chosen = kind or ("spectra" if places else "rgb" if band is None and wavelength is None else "band")
    if places and chosen not in ("spectra", "all"):
        msg = f"--points goes with --kind spectra or all, not {chosen}"
        raise ConfigError(msg)
    if (band is not None or wavelength is not None) and chosen not in ("band", "all"):
        msg = f"--band and --wavelength go with --kind band or all, not {chosen}"
        raise ConfigError(msg)

    from ..quicklook import Look, draw_quicklook
    from ..readers import open_scene

    scene = open_scene(path, **read_options(read))
    look = Look(chosen, band, wavelength, places, percent, size)
    made: dict[str, Any] = draw_quicklook(scene, out, look)
    if as_json:
        print(json.dumps(made, indent=1, allow_nan=False))
        return
    for picture in made["pictures"]:
        print(f"{picture['kind']:8s} {picture['caption']}")
    print(made["png"])


def _points(texts: list[str]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for text in texts:
        for part in re.sub(r"\s*,\s*", ",", text).replace(";", " ").split():
            row, col = _pair(_POINT, part, "--points", "row and column such as 10,20")
            found.append((int(row), int(col)))
    return found


def _pair(pattern: re.Pattern[str], text: str, option: str, allowed: str) -> tuple[float, float]:
    match = pattern.fullmatch(text.strip())
    try:
        if match:
            return float(match[1]), float(match[2])
    except ValueError:
        pass
    msg = f"{option} {text!r}: give {allowed}"
    raise ConfigError(msg)
