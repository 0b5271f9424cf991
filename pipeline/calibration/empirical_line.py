"""Empirical line: per band, the straight line from the scene's numbers to field spectra of targets in it.

Least squares over the targets' mean numbers (Smith, G. M. and Milton, E. J. 1999, Int. J. Remote Sensing 20(13),
2653-2662); with one target the line goes through the origin. It works from stored numbers as from radiance.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError, SceneError
from .field_spectra import read_spectra
from .gaussian import band_shapes
from .maps import bands_text, mean_spectrum, name_of, per_band

if TYPE_CHECKING:
    import xarray as xr

F8 = NDArray[np.float64]
Window = tuple[int, int, int, int]
"""First row, row after the last, first column, column after the last; counted from 0."""


@dataclass(frozen=True)
class Line:
    """The fitted line, reflectance = gain * value + offset, float64 (band,) each; NaN where it could not be fitted."""

    targets: tuple[str, ...]
    gain_b: F8
    offset_b: F8
    residual_b: F8  #: root mean square of what the line leaves of the targets' reflectance


def by_empirical_line(
    scene: xr.Dataset, spectra: str, targets: Mapping[str, Sequence[int]] | Sequence[str] | str
) -> xr.Dataset:
    """Return surface reflectance by the empirical line; no pixel is touched beyond the targets' windows.

    Parameters
    ----------
    scene
        Stored numbers, radiance, or top-of-atmosphere reflectance.
    spectra
        File of field spectra, as for `read_spectra`; the columns are named as the targets.
    targets
        Windows as for `parse_targets`.

    Raises
    ------
    ConfigError
        The scene is surface reflectance already; a target has no spectrum, no valid pixel or lies outside.
    """
    line = fit_line(scene, spectra, targets)
    unusable = ~(np.isfinite(line.gain_b) & np.isfinite(line.offset_b) & (line.gain_b > 0))
    if unusable.all():
        raise ConfigError(
            f"The empirical line can be fitted in no band of {name_of(scene)}: the spectra do not reach its bands, or "
            "brighter targets are darker in the scene; check the windows of the targets."
        )
    if unusable.any():
        warnings.warn(
            f"{name_of(scene)}: no rising line in band {bands_text(scene, unusable)}: the spectra do not reach there, or the "
            "scene holds no signal of the targets; these bands hold no data and are listed as bad.",
            BandstreamWarning,
            stacklevel=2,
        )
    if len(line.targets) == 1:
        warnings.warn(
            f"One target ({line.targets[0]}) alone: the line goes through the origin, so that path radiance stays in the "
            "reflectance; a dark target beside it would remove it.",
            BandstreamWarning,
            stacklevel=2,
        )
    rms = np.where(unusable, np.nan, line.residual_b)
    how = (
        f"empirical line over {', '.join(line.targets)}; residual {np.nanmedian(rms):.2g} (median of the bands), "
        f"{np.nanmax(rms):.2g} at most, in band {int(np.nanargmax(rms)) + 1}"
    )
    offset = np.where(unusable, 0.0, line.offset_b)
    return per_band(scene, line.gain_b, offset, "surface_reflectance", how, unusable)


def fit_line(
    scene: xr.Dataset, spectra: str, targets: Mapping[str, Sequence[int]] | Sequence[str] | str
) -> Line:
    """Fit the line of each band; parameters and errors as for `by_empirical_line`."""
    if scene.attrs.get("quantity", "other") in ("surface_reflectance", "surface_radiance"):
        raise ConfigError(f"{name_of(scene)} holds {scene.attrs['quantity']} already; leave the stage out.")
    windows = parse_targets(targets)
    try:
        table = read_spectra(spectra)
        table.require_reflectance()
    except SceneError as error:
        raise ConfigError(f"The field spectra cannot be used: {error}") from error
    lacking = [name for name in windows if name not in table.spectra]
    if lacking:
        raise ConfigError(
            f"{spectra} has no spectrum for the target {', '.join(lacking)}; it holds {', '.join(list(table.spectra)[:12])}."
        )
    centres, widths = band_shapes(scene, "calibrate.method empirical_line")
    field = np.stack([table.of_bands(name, centres, widths) for name in windows])
    seen = np.stack([target_mean(scene, name, window) for name, window in windows.items()])
    if len(windows) == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            gain, offset = field[0] / seen[0], np.zeros(len(centres))
    else:
        x, y = seen - seen.mean(axis=0), field - field.mean(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = (x * y).sum(axis=0) / (x * x).sum(axis=0)
        offset = field.mean(axis=0) - gain * seen.mean(axis=0)
    residual = np.sqrt(np.mean((gain * seen + offset - field) ** 2, axis=0))
    return Line(tuple(windows), gain, offset, residual)


def target_mean(scene: xr.Dataset, name: str, window: Window) -> F8:
    """Return the mean physical value per band over the valid pixels of a window, float64 (band,).

    Raises
    ------
    ConfigError
        The window lies outside the scene, or holds no valid pixel.
    """
    row, row_end, col, col_end = window
    rows, cols = scene.sizes["y"], scene.sizes["x"]
    if not (0 <= row < row_end <= rows and 0 <= col < col_end <= cols):
        raise ConfigError(
            f"The window of {name}, rows {row} to {row_end} and columns {col} to {col_end}, does not lie in "
            f"{name_of(scene)} of {rows} rows and {cols} columns (counted from 0, ends not included)."
        )
    mean = mean_spectrum(scene, slice(row, row_end), slice(col, col_end))
    if not np.isfinite(mean).any():
        raise ConfigError(f"The window of {name} holds no valid pixel of {name_of(scene)}.")
    return mean


def parse_targets(targets: Mapping[str, Sequence[int]] | Sequence[str] | str) -> dict[str, Window]:
    """Return windows by the target's name.

    Parameters
    ----------
    targets
        `{name: [row, row end, column, column end]}`, counted from 0, ends not included; texts such as
        ``tarp:10:14:20:24`` (or ``tarp:10:20`` for one pixel); or a CSV file with the columns `name`, `row`,
        `row_end`, `col`, `col_end`.

    Raises
    ------
    ConfigError
        A window is none, or a name stands twice.
    """
    if isinstance(targets, str):
        entries = _from_file(targets)
    elif isinstance(targets, Mapping):
        entries = [(name, [str(v) for v in window]) for name, window in targets.items()]
    else:
        entries = [(text.split(":")[0], text.split(":")[1:]) for text in targets]
    found: dict[str, Window] = {}
    for name, parts in entries:
        if name in found:
            raise ConfigError(f"The target {name!r} stands twice; each has one window.")
        found[name] = parse_window(parts, name)
    if not found:
        raise ConfigError("There is no target; give the window of at least one.")
    return found


def parse_window(parts: Sequence[str], name: str) -> Window:
    """Return four whole numbers (two name one pixel).

    Raises
    ------
    ConfigError
        They are none.
    """
    try:
        found = [int(part) for part in parts]
    except ValueError:
        found = []
    if len(found) == 2:
        found = [found[0], found[0] + 1, found[1], found[1] + 1]
    if len(found) != 4 or not (0 <= found[0] < found[1] and 0 <= found[2] < found[3]):
        raise ConfigError(
            f"The window of {name} is {':'.join(parts)!r}; write row:row_end:column:column_end (from 0, ends not "
            "included), or row:column for one pixel."
        )
    return found[0], found[1], found[2], found[3]


def _from_file(path: str) -> list[tuple[str, list[str]]]:
    """Read the windows from a CSV file."""
    keys = ("name", "row", "row_end", "col", "col_end")
    if not Path(path).is_file():
        raise ConfigError(f"There is no file {path} with the windows of the targets.")
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [dict(row) for row in reader]
            columns = list(reader.fieldnames or [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file of targets: {error}") from error
    if missing := [key for key in keys if key not in columns]:
        raise ConfigError(f"{path} lacks the column {', '.join(missing)}; it needs {', '.join(keys)}.")
    return [(str(row["name"]), [str(row[key]).strip() for key in keys[1:]]) for row in rows]
