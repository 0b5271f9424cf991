"""The command `bandstream scene calibrate`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from .options import Read, read_options


def scene_calibrate(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Scene.")],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="DST", help="File to write: .hdr (ENVI), .tif (GeoTIFF), .nc (netCDF) or .zarr."
        ),
    ],
    to: Annotated[
        str, typer.Option(help="surface_reflectance, toa_reflectance, radiance or surface_radiance.")
    ] = "surface_reflectance",
    method: Annotated[
        str,
        typer.Option(
            help="auto, scale, toa, dark_white, empirical_line, dark_object, flat_field, iarr, or none (with --sensor)."
        ),
    ] = "auto",
    scale: Annotated[float | None, typer.Option(help="Stands in for what the file does not tell.")] = None,
    offset: Annotated[float | None, typer.Option(help="Likewise.")] = None,
    solar: Annotated[str | None, typer.Option(help="Table of solar irradiance, by name or CSV file.")] = None,
    sun_zenith: Annotated[float | None, typer.Option(help="Zenith angle of the sun in degrees.")] = None,
    distance: Annotated[float | None, typer.Option(help="Distance of the sun in astronomical units.")] = None,
    dark: Annotated[Path | None, typer.Option(help="Dark reference frame.")] = None,
    white: Annotated[Path | None, typer.Option(help="White reference frame.")] = None,
    panel: Annotated[
        str | None, typer.Option(help="Reflectance of the panel: a number, or a spectrum's file.")
    ] = None,
    exposure_ratio: Annotated[
        float | None, typer.Option(help="Integration time of the scene over that of the white frame.")
    ] = None,
    spectra: Annotated[Path | None, typer.Option(help="Field spectra of the targets (CSV or .sli).")] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            help="Where a target lies: name:row:row_end:col:col_end, from 0; or a CSV file of them."
        ),
    ] = None,
    window: Annotated[str | None, typer.Option(help="Flat field: row:row_end:col:col_end, from 0.")] = None,
    percentile: Annotated[
        float | None, typer.Option(help="Dark object: per cent of the pixels, 0 to 5.")
    ] = None,
    sensor: Annotated[
        str | None, typer.Option(help="Resample to the bands of this sensor afterwards.")
    ] = None,
    drop_missing: Annotated[
        bool,
        typer.Option("--drop-missing", help="Leave out bands of --sensor that the scene does not cover."),
    ] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="Keep the stored numbers where scale and offset say it all.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST if it is there.")] = False,
    read: Read = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Calibrate a scene to reflectance or radiance and write it."""
    from ..calibration import calibrate, resample_bands
    from ..calibration.empirical_line import parse_window
    from ..readers import open_scene
    from ..writers import write_scene

    options: dict[str, Any] = {
        "scale": scale,
        "offset": offset,
        "solar": solar,
        "sun_zenith_deg": sun_zenith,
        "earth_sun_distance_au": distance,
        "panel": _number_or_text(panel),
        "exposure_ratio": exposure_ratio,
        "spectra": None if spectra is None else str(spectra),
        "targets": _targets(targets),
        "window": None if window is None else parse_window(window.split(":"), "the flat field"),
        "percentile": percentile,
    }
    given = {name: value for name, value in options.items() if value is not None}
    scene = open_scene(source, **read_options(read))
    if method != "none":
        try:
            scene = calibrate(scene, to, method, dark=dark, white=white, **given)
        except ConfigError as error:
            raise ConfigError(_with_option_names(str(error))) from error
    elif sensor is None or given or dark or white:
        raise ConfigError("--method none only resamples: give --sensor, and no setting of a calibration.")
    if sensor is not None:
        scene = resample_bands(scene, sensor=sensor, missing="drop" if drop_missing else "refuse")
    write_scene(scene, out, physical=not stored, overwrite=overwrite)
    done: dict[str, Any] = {
        "path": str(out),
        "quantity": scene.attrs.get("quantity", "other"),
        "units": scene.attrs.get("units", ""),
        "bands": scene.sizes["band"],
        "calibration": list(scene.attrs.get("calibration", [])),
    }
    if as_json:
        print(json.dumps(done, indent=1))
    else:
        print("; ".join([f"{out}: {done['quantity']}, {done['bands']} bands", *done["calibration"]]))


def _with_option_names(message: str) -> str:
    """Return a message with the settings of a workflow's stage named as they are on the command line."""
    named = {"sun_zenith_deg": "sun-zenith", "earth_sun_distance_au": "distance"}
    return re.sub(
        r"calibrate\.([a-z_]+)", lambda found: f"--{named.get(found[1], found[1].replace('_', '-'))}", message
    )


def _targets(given: list[str] | None) -> list[str] | str | None:
    """Return windows as written, or the path of a file of them."""
    if not given:
        return None
    if len(given) == 1 and ":" not in given[0]:
        return given[0]
    return given


def _number_or_text(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text
