"""Quicklooks of scenes as PNG: colour pictures, single bands, spectra at points, and the state of the bands.

Only a thinned set of rows and columns is read, chunk by chunk, so that a scene of any size needs little memory. What
was shown, and how it was stretched, stands in the picture and is returned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .nodata import invalid_mask
from .page import Panel, write_page
from .pictures import Picture, band_picture, colour_picture, thinned
from .scene import nearest_band, nodata_values, scale_offset
from .spectraplot import BandStates, draw_bands, draw_spectra
from .stages.bands import named_windows

if TYPE_CHECKING:
    import xarray as xr

KINDS = ("rgb", "cir", "band", "spectra", "bands", "all")
SAMPLE_SIDE = 64
"""Rows, and columns, that are looked at to judge the bands."""
MAX_POINTS = 12
_DPI = 150


@dataclass(frozen=True)
class Look:
    """What to draw."""

    kind: str = "rgb"
    band: int | None = None  #: counted from 1
    wavelength_nm: float | None = None
    points: Sequence[tuple[int, int]] = ()  #: row and column, counted from 0
    stretch: tuple[float, float] = (2.0, 98.0)  #: percentiles
    size: int = 1024  #: longest side of a picture in pixels


def draw_quicklook(scene: xr.Dataset, out_png: str | Path, look: Look | None = None) -> dict[str, Any]:
    """Draw a scene.

    Parameters
    ----------
    scene
        Any scene; without wavelengths its first, middle and last bands are shown, and the picture says so.
    out_png
        PNG to write.
    look
        `rgb`, `cir`, one `band`, `spectra` at points (five spread over the scene unless given), the state of the
        `bands`, or `all` of them below each other.

    Returns
    -------
    dict
        `png`, and `pictures`: per picture its `kind`, `caption`, and the bands (counted from 1), stretch limits
        (physical values), points, or states of the bands that it shows.

    Raises
    ------
    ConfigError
        The kind is unknown, a band or a point lies outside the scene, or the output is one of the scene's files.
    """
    look = look or Look()
    target = Path(out_png)
    if look.kind not in KINDS:
        msg = f"kind = {look.kind!r}; allowed are {', '.join(KINDS)}"
        raise ConfigError(msg)
    if target.resolve() in {Path(str(name)).resolve() for name in scene.attrs.get("files", [])}:
        msg = f"the output {target} is a file of the scene; choose another name"
        raise ConfigError(msg)
    target.parent.mkdir(parents=True, exist_ok=True)
    pages = _pages(scene, look)
    if len(pages) == 1:
        return {"png": str(target), "pictures": [pages[0](target)]}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.png" for number in range(len(pages))]
        told = [page(file) for page, file in zip(pages, files, strict=True)]
        _stack(files, target)
    return {"png": str(target), "pictures": told}


Page = Callable[[Path], dict[str, Any]]


def _pages(scene: xr.Dataset, look: Look) -> list[Page]:
    """Return what draws each page, everything checked."""
    every = look.kind == "all"
    # without wavelengths both kinds of colour show the same bands
    colours = ("rgb", "cir") if "wavelength" in scene.coords or not every else ("rgb",)
    one = look.kind == "band" or (every and (look.band is not None or look.wavelength_nm is not None))
    pages: list[Page] = [_photo_page(scene, look, kind) for kind in colours if look.kind == kind or every]
    if one:
        pages.append(_photo_page(scene, look, "band"))
    if look.kind == "spectra" or every:
        points = _checked_points(scene, look.points) if look.points else _spread_points(scene)
        pages.append(lambda out: _spectra_page(scene, points, out))
    if look.kind == "bands" or every:
        pages.append(lambda out: _bands_page(scene, out))
    return pages


def _photo_page(scene: xr.Dataset, look: Look, kind: str) -> Page:
    band = _chosen_band(scene, look) if kind == "band" else 0

    def write(out: Path) -> dict[str, Any]:
        settings: dict[str, Any] = {"max_side": look.size, "percent": look.stretch}
        if kind == "band":
            made = band_picture(scene, [band], "Band", **settings)
        else:
            made = colour_picture(scene, kind="true" if kind == "rgb" else "cir", **settings)
        caption = f"{made.caption}{_limits_words(scene, made)} {_size_words(scene)}"
        if "wavelength" not in scene.coords and len(made.bands) > 1:
            caption += " The scene has no wavelengths: its first, middle and last usable band."
        panel_in = max(6.4, made.pixels.shape[1] / _DPI)
        write_page([Panel(made.pixels, photo=True)], [], _name(scene), caption, out, panel_in=panel_in)
        return {
            "kind": kind,
            "caption": caption,
            "bands": [number + 1 for number in made.bands],
            "wavelength_nm": _wavelengths(scene, made.bands),
            "stretch": [list(pair) for pair in made.limits],
            "step": made.step,
            "shape_yx": list(made.pixels.shape[:2]),
        }

    return write


def _chosen_band(scene: xr.Dataset, look: Look) -> int:
    """Return the band (0-based) that the user asks for."""
    if (look.band is None) == (look.wavelength_nm is None):
        msg = "a picture of one band needs either its number, counted from 1 (--band), or a wavelength in nm (--wavelength)"
        raise ConfigError(msg)
    if look.wavelength_nm is not None:
        return nearest_band(scene, look.wavelength_nm)
    bands = scene.sizes["band"]
    assert look.band is not None
    if not 1 <= look.band <= bands:
        msg = f"band {look.band} is none of the scene's {bands}, which are counted from 1"
        raise ConfigError(msg)
    return look.band - 1


def _limits_words(scene: xr.Dataset, made: Picture) -> str:
    """Say between which values the picture is stretched."""
    if not made.limits:
        return ""
    unit = str(scene.attrs.get("units", ""))
    spans = ", ".join(f"{low:.4g} to {high:.4g}" for low, high in made.limits)
    return f" Shown: {spans}{'' if unit in ('', '1') else ' ' + unit}."


def _size_words(scene: xr.Dataset) -> str:
    sizes = scene.sizes
    return f"{sizes['y']:,} x {sizes['x']:,} pixels, {_bands(scene)}."


def _bands(scene: xr.Dataset) -> str:
    count = scene.sizes["band"]
    return f"{count} band{'' if count == 1 else 's'}"


def _name(scene: xr.Dataset) -> str:
    return str(scene.attrs.get("scene_id", ""))


def _wavelengths(scene: xr.Dataset, bands: Sequence[int]) -> list[float | None] | None:
    """Return the centres of bands as JSON can hold them."""
    if "wavelength" not in scene.coords:
        return None
    centres = np.asarray(scene["wavelength"].values, np.float64)[list(bands)]
    return [float(nm) if np.isfinite(nm) else None for nm in centres]


# spectra


def _checked_points(scene: xr.Dataset, points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    rows, cols = int(scene.sizes["y"]), int(scene.sizes["x"])
    if len(points) > MAX_POINTS:
        msg = f"{len(points)} points; more than {MAX_POINTS} spectra cannot be told apart"
        raise ConfigError(msg)
    for row, col in points:
        if not (0 <= row < rows and 0 <= col < cols):
            msg = (
                f"the point {row},{col} (row, column) lies outside the scene: rows are 0 to {rows - 1}, columns 0 to "
                f"{cols - 1}"
            )
            raise ConfigError(msg)
    return list(points)


def _spread_points(scene: xr.Dataset) -> list[tuple[int, int]]:
    """Return the middle and the middles of the quarters, each once."""
    rows, cols = int(scene.sizes["y"]), int(scene.sizes["x"])
    places = [(0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)]
    return list(dict.fromkeys((int(rows * y), int(cols * x)) for y, x in places))


def spectra_at(scene: xr.Dataset, points: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return physical values (point, band) at (row, column), NaN where there is no data."""
    scale_b, offset_b = scale_offset(scene)
    nodata_b = nodata_values(scene)
    found = np.empty((len(points), scene.sizes["band"]))
    for number, (row, col) in enumerate(points):
        raw = np.asarray(scene["data"].isel(y=row, x=col).values)
        bad = invalid_mask(raw[None], nodata_b)
        found[number] = raw.astype(np.float64) * scale_b + offset_b
        if bad is not None:
            found[number, bad[0]] = np.nan
    return found


def _spectra_page(scene: xr.Dataset, points: Sequence[tuple[int, int]], out: Path) -> dict[str, Any]:
    values = spectra_at(scene, points)
    shaded = _in_windows(scene) | ~np.asarray(scene["good_band"].values, bool)
    blank = [f"{row},{col}" for (row, col), line in zip(points, values, strict=True) if np.isnan(line).all()]
    caption = "Spectra at pixels (row, column). " + _shading_words(scene, shaded)
    if blank:
        caption += f" No data at {'; '.join(blank)}."
    if "wavelength" not in scene.coords:
        caption += " The scene has no wavelengths: bands are counted from 1."
    names = [f"{row}, {col}" for row, col in points]
    values = np.where(np.asarray(scene["good_band"].values, bool), values, np.nan)
    windows = named_windows("water") if "wavelength" in scene.coords else []
    draw_spectra(scene, values, names, shaded, windows, _name(scene), caption, out)
    listed = [[None if np.isnan(v) else float(v) for v in line] for line in values]
    told = {"kind": "spectra", "caption": caption, "points": [list(point) for point in points]}
    return told | {"wavelength_nm": _wavelengths(scene, range(scene.sizes["band"])), "values": listed}


def _shading_words(scene: xr.Dataset, shaded: NDArray[np.bool_]) -> str:
    if not shaded.any():
        return "No band is listed as bad or lies in a water window."
    what = "listed as bad" if "wavelength" not in scene.coords else "listed as bad or in a water window"
    return f"Shaded: {int(shaded.sum())} of {len(shaded)} bands, {what}; bands listed as bad are not drawn."


def _in_windows(scene: xr.Dataset) -> NDArray[np.bool_]:
    """Return which bands lie where water vapour leaves no signal."""
    inside = np.zeros(scene.sizes["band"], bool)
    if "wavelength" in scene.coords:
        centres = np.asarray(scene["wavelength"].values, np.float64)
        for low, high in named_windows("water"):
            inside |= (centres >= low) & (centres <= high)
    return inside


# state of the bands


def band_states(scene: xr.Dataset) -> BandStates:
    """Judge every band by at most 64 x 64 pixels spread over the scene."""
    step_y, step_x = (-(-int(scene.sizes[axis]) // SAMPLE_SIDE) for axis in ("y", "x"))
    values = thinned(scene, range(scene.sizes["band"]), step_y, step_x).reshape(-1, scene.sizes["band"])
    holds = np.isfinite(values)
    some = holds.any(axis=0)
    low = np.where(holds, values, np.inf).min(axis=0)
    high = np.where(holds, values, -np.inf).max(axis=0)
    spread = np.full((3, values.shape[1]), np.nan)
    if some.any():
        spread[:, some] = np.nanpercentile(values[:, some], [2.0, 50.0, 98.0], axis=0)
    return BandStates(
        ~np.asarray(scene["good_band"].values, bool),
        _in_windows(scene),
        1.0 - holds.mean(axis=0),
        some & (low == high),
        spread,
        len(values),
    )


def _bands_page(scene: xr.Dataset, out: Path) -> dict[str, Any]:
    states = band_states(scene)
    empty = states.nodata_share == 1
    counts = {
        "listed as bad": states.listed_bad,
        "without data": empty,
        "constant": states.constant,
        "in a water window": states.in_window,
    }
    caption = f"{_bands(scene)}: " + ", ".join(f"{int(m.sum())} {w}" for w, m in counts.items())
    caption += f". Judged by {states.pixels:,} pixels spread over the scene."
    if "wavelength" not in scene.coords:
        caption += " The scene has no wavelengths: bands are counted from 1, and water windows are not known."
    draw_bands(scene, states, _name(scene), caption, out)

    def numbers(mask: NDArray[np.bool_]) -> list[int]:
        return (np.flatnonzero(mask) + 1).tolist()

    return {
        "kind": "bands",
        "caption": caption,
        "listed_bad": numbers(states.listed_bad),
        "without_data": numbers(empty),
        "constant": numbers(states.constant),
        "in_water_window": numbers(states.in_window),
        "nodata_share": [round(float(share), 6) for share in states.nodata_share],
        "pixels": states.pixels,
        "wavelength_nm": _wavelengths(scene, range(scene.sizes["band"])),
    }


def _stack(files: Sequence[Path], target: Path) -> None:
    """Put pages below each other."""
    from PIL import Image

    pages: list[NDArray[np.uint8]] = []
    for file in files:
        with Image.open(file) as page:
            pages.append(np.asarray(page.convert("RGB")))
    whole = np.full((sum(p.shape[0] for p in pages), max(p.shape[1] for p in pages), 3), 255, dtype=np.uint8)
    top = 0
    for page in pages:
        whole[top : top + page.shape[0], : page.shape[1]] = page
        top += page.shape[0]
    Image.fromarray(whole).save(target, format="PNG")
