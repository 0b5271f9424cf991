"""Pictures of scenes, labels, maps and splits, written as PNG.

True colour is near 660/560/480 nm and colour-infrared near 860/650/550 nm; every channel is stretched between
the 2nd and the 98th percentile of the pixels shown, and captions say so. Pixels without data are light grey.
Scenes are thinned while they are read, chunk by chunk, so that a picture of a huge scene needs little memory.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError, LabelError
from .page import Panel, write_page

if TYPE_CHECKING:
    import xarray as xr

NODATA_GREY: Final = 217
KINDS: Final = {"true": (660.0, 560.0, 480.0), "cir": (860.0, 650.0, 550.0)}
SPLITS: Final = ("none or margin", "train", "validation", "test")

_KIND_NAMES: Final = {"true": "True colour", "cir": "Colour-infrared"}
_SPLIT_COLORS: Final = ("#e4e4e4", "#0072b2", "#e69f00", "#009e73")
# Chunks that are read at once, together.
_READ_BYTES: Final = 64 * 2**20
# A band farther than this from the wanted wavelength shows something else.
_FAR_NM: Final = 80.0

# Okabe & Ito (2008), "Color universal design", then colours found by walking to the farthest one in CIELAB,
# for normal sight and for protanopia and deuteranopia (Machado, Oliveira & Fernandes 2009) alike, away from
# white and light grey.
_PALETTE: Final = (
    *("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#000000"),
    *("#692d0f", "#00f087", "#e1004b", "#0078ff", "#b4a54b", "#4b1e5a", "#a5d2a5", "#8796ff"),
    *("#4b693c", "#780f3c", "#96f069", "#5a5a78", "#f0d2ff", "#1e3c96", "#f05a78", "#3cb4c3"),
    *("#963c00", "#873cd2", "#96b469", "#d22dc3", "#1e0f96", "#5a961e", "#004bf0", "#3c4b87"),
    *("#0000ff", "#0000c3", "#00d21e", "#1e785a", "#5ac3a5", "#004b4b", "#5a1e1e", "#a52d2d"),
)


def class_palette(n: int) -> list[str]:
    """Return `n` different colours as #rrggbb, none of them white or grey.

    The first 8 are those of Okabe & Ito; up to 40 stay apart for colour-blind eyes too; more only differ.
    """
    colors = list(_PALETTE[:n])
    taken, turn = set(colors), 0
    while len(colors) < n:
        turn += 1
        hue, light = (turn * 0.6180339887) % 1.0, 0.30 + 0.45 * ((turn * 0.7548776662) % 1.0)
        r, g, b = colorsys.hls_to_rgb(hue, light, 0.75)
        color = f"#{round(255 * r):02x}{round(255 * g):02x}{round(255 * b):02x}"
        if color not in taken:
            taken.add(color)
            colors.append(color)
    return colors


@dataclass(frozen=True)
class Picture:
    """One picture of a scene, and what it shows."""

    pixels: NDArray[np.uint8]  #: (y, x, 3)
    caption: str  #: bands, thinning and stretch in words
    bands: list[int]  #: 0-based, red first, or one for grey
    limits: list[
        tuple[float, float]
    ]  #: physical values shown as black and full, per band; empty without data
    step: int  #: every step-th row and column is shown


def rgb(scene: xr.Dataset, *, kind: str = "true", max_side: int = 1024) -> tuple[NDArray[np.uint8], str]:
    """Return a colour picture of a scene and its caption; parameters as `colour_picture`.

    Returns
    -------
    picture
        uint8 (y, x, 3).
    caption
        Bands, thinning and stretch in words.
    """
    made = colour_picture(scene, kind=kind, max_side=max_side)
    return made.pixels, made.caption


def colour_picture(
    scene: xr.Dataset, *, kind: str = "true", max_side: int = 1024, percent: tuple[float, float] = (2.0, 98.0)
) -> Picture:
    """Return a colour picture of a scene.

    Parameters
    ----------
    scene
        A scene; only the rows shown are read.
    kind
        `true` or `cir`. Where the scene has no such wavelengths, the first, middle and last usable bands are
        shown, the longest wavelength in red, and the caption says so; a single band is shown in grey.
    max_side
        Longest side in pixels; larger scenes are thinned by a whole step.
    percent
        Percentiles of the pixels shown between which each channel is stretched.

    Raises
    ------
    ConfigError
        `kind`, `max_side` or `percent` is not allowed.
    """
    if kind not in KINDS:
        msg = f"kind={kind!r}; allowed are {', '.join(KINDS)}"
        raise ConfigError(msg)
    return band_picture(scene, *_choose_bands(scene, kind), max_side=max_side, percent=percent)


def band_picture(
    scene: xr.Dataset,
    bands: list[int],
    title: str,
    *,
    max_side: int = 1024,
    percent: tuple[float, float] = (2.0, 98.0),
) -> Picture:
    """Return a picture of three bands (0-based; red, green, blue), or of one in grey; parameters as `colour_picture`."""
    low, high = percent
    if max_side < 1:
        msg = f"max_side={max_side}; a picture needs at least 1 pixel"
        raise ConfigError(msg)
    if not 0 <= low < high <= 100:
        msg = f"the stretch {low:g},{high:g} is none; give two percentiles such as 2,98"
        raise ConfigError(msg)
    step = -(-max(scene.sizes["y"], scene.sizes["x"]) // max_side)
    values = thinned(scene, bands, step)
    values[~np.isfinite(values).all(axis=-1)] = np.nan
    pixels, limits = _stretched(values, percent)
    parts = [f"{title}: {_band_words(scene, bands)}"]
    if not limits:
        parts.append("no pixel holds data")
    elif len(bands) > 1:
        parts.append(f"each stretched between its {_nth(low)} and {_nth(high)} percentile")
    else:
        parts.append(f"{low:g}-{high:g} % stretch")
    if step > 1:
        parts.append(f"every {_nth(step)} pixel")
    return Picture(pixels, "; ".join(parts) + ".", bands, limits, step)


def _choose_bands(scene: xr.Dataset, kind: str) -> tuple[list[int], str]:
    """Return band numbers for red, green and blue (or one for grey), and what they are called."""
    good = np.asarray(scene["good_band"].values, dtype=bool)
    usable = np.flatnonzero(good) if good.any() else np.arange(len(good))
    if "wavelength" in scene.coords:
        nm = np.asarray(scene["wavelength"].values, dtype=np.float64)
        usable = usable[np.isfinite(nm[usable])] if np.isfinite(nm[usable]).any() else usable
        if len(usable) >= 3 and np.isfinite(nm[usable]).all():
            nearest = [int(usable[np.abs(nm[usable] - wanted).argmin()]) for wanted in KINDS[kind]]
            far = max(abs(nm[band] - wanted) for band, wanted in zip(nearest, KINDS[kind], strict=True))
            if far <= _FAR_NM and len(set(nearest)) == 3:
                return nearest, _KIND_NAMES[kind]
            usable = usable[np.argsort(nm[usable], kind="stable")[::-1]]
    if len(usable) == 1:
        return [int(usable[0])], "Single band"
    return [int(usable[0]), int(usable[len(usable) // 2]), int(usable[-1])], "False colour"


def _band_words(scene: xr.Dataset, bands: list[int]) -> str:
    nm = scene["wavelength"].values if "wavelength" in scene.coords else None
    words: list[str] = []
    for channel, band in zip(("red", "green", "blue"), bands, strict=False):
        known = nm is not None and bool(np.isfinite(nm[band]))
        text = (
            f"{float(nm[band]):.0f} nm (band {band + 1})" if nm is not None and known else f"band {band + 1}"
        )
        words.append(text if len(bands) == 1 else f"{channel} {text}")
    return ", ".join(words)


def _nth(number: float) -> str:
    """Return 1st, 2nd, 3rd, 4th..."""
    if number != int(number) or 10 <= number % 100 <= 20:
        return f"{number:g}th"
    return f"{number:g}{({1: 'st', 2: 'nd', 3: 'rd'}).get(int(number) % 10, 'th')}"


def thinned(
    scene: xr.Dataset, bands: Sequence[int], step: int, step_x: int | None = None
) -> NDArray[np.float64]:
    """Return every step-th pixel of some bands in physical values, float64 (y, x, band), NaN where there is no data.

    Few row chunks are in memory at a time: slices of a chunk may keep all of it alive until the end.

    Parameters
    ----------
    scene
        A scene.
    bands
        0-based.
    step, step_x
        Of the rows, and of the columns where it differs.
    """
    from .nodata import invalid_mask
    from .scene import nodata_values, scale_offset

    cube, chosen_bands = scene["data"], list(bands)
    nodata_b = nodata_values(scene)[chosen_bands]
    scale_b, offset_b = (numbers[chosen_bands] for numbers in scale_offset(scene))
    across = step_x or step
    result = np.empty(
        (-(-cube.sizes["y"] // step), -(-cube.sizes["x"] // across), len(chosen_bands)), dtype=np.float64
    )
    data = cube.chunk().data if cube.chunks is None else cube.data
    low, high = min(chosen_bands), max(chosen_bands) + 1
    # slices reach the reader, which then reads no more than them; a list of bands, or two slices in one go, would not
    near = high - low <= max(len(chosen_bands), data.shape[2] // 2)
    spans = (
        [(slice(low, high), [b - low for b in chosen_bands])]
        if near
        else [(slice(b, b + 1), [0]) for b in chosen_bands]
    )
    done = 0
    for stop in _stops(data):
        count = len(range(done * step, stop, step))
        if not count:
            continue
        rows = slice(done * step, stop, step)
        parts = [data[rows, ::across, span].compute(scheduler="synchronous")[..., own] for span, own in spans]
        block = np.concatenate(parts, axis=2)
        values = block.astype(np.float64) * scale_b + offset_b
        bad = invalid_mask(block, nodata_b)
        if bad is not None:
            values[bad] = np.nan
        result[done : done + count] = values
        done += count
    return result


def _stops(data: Any) -> list[int]:
    """Return the rows before which a read ends: at chunk ends, so far apart as `_READ_BYTES` allows."""
    row_bytes = data.shape[1] * data.shape[2] * data.dtype.itemsize
    stops: list[int] = []
    start = end = 0
    for height in data.chunks[0]:
        if end > start and (end + height - start) * row_bytes > _READ_BYTES:
            stops.append(end)
            start = end
        end += height
    return [*stops, end]


def _stretched(
    values: NDArray[np.float64], percent: tuple[float, float]
) -> tuple[NDArray[np.uint8], list[tuple[float, float]]]:
    """Return uint8 (y, x, 3) and the limits: channels stretched; constant ones are middle grey, NaN light grey."""
    valid = np.isfinite(values).all(axis=-1)
    picture = np.full((*valid.shape, 3), NODATA_GREY, dtype=np.uint8)
    limits: list[tuple[float, float]] = []
    if not valid.any():
        return picture, limits
    levels: list[NDArray[np.uint8]] = []
    for band in range(values.shape[-1]):
        shown = values[..., band][valid]
        low, high = (float(v) for v in np.percentile(shown, percent))
        level = np.full(shown.shape, 0.5) if high <= low else np.clip((shown - low) / (high - low), 0.0, 1.0)
        levels.append(np.rint(level * 255.0).astype(np.uint8))
        limits.append((low, high))
    for channel in range(3):
        picture[valid, channel] = levels[min(channel, len(levels) - 1)]
    return picture, limits


def quicklook(
    scene: xr.Dataset,
    out_png: str | Path,
    *,
    kind: str = "true",
    max_side: int = 1024,
    title: str | None = None,
) -> Path:
    """Write a colour picture of a scene with title (its name by default) and caption; parameters as `rgb`."""
    picture, caption = rgb(scene, kind=kind, max_side=max_side)
    name = str(scene.attrs.get("scene_id", "")) if title is None else title
    sizes = scene.sizes
    caption += f" {sizes['y']:,} x {sizes['x']:,} pixels, {sizes['band']} bands."
    return write_page([Panel(picture, photo=True)], [], name, caption, out_png, panel_in=6.4)


def side_by_side(
    out_png: str | Path,
    rgb: NDArray[np.uint8],
    truth: NDArray[Any] | None,
    predicted: NDArray[Any],
    class_names: Sequence[str],
    class_colors: Sequence[str] | None = None,
    *,
    title: str = "",
    caption: str = "",
    score: str = "",
) -> Path:
    """Write a scene, its labels and a classified map beside each other, with a legend.

    Parameters
    ----------
    out_png
        Where to write.
    rgb
        uint8 (y, x, 3).
    truth, predicted
        Class numbers (y, x), 0 = unlabelled or not mapped, 1..K; None leaves the truth out. Large maps
        are thinned.
    class_names, class_colors
        Names and colours (#rrggbb) of the classes 1..K; colours default to `class_palette`.
    title, caption, score
        Heading, text below, and the score shown over the map, such as `OA 91.2 %`.

    Raises
    ------
    LabelError
        A number in `truth` or `predicted` is no class.
    ConfigError
        There are not as many colours as names.
    """
    colors = list(class_colors) if class_colors is not None else class_palette(len(class_names))
    if len(colors) != len(class_names):
        msg = f"{len(class_names)} class names but {len(colors)} class colours; give one colour per class"
        raise ConfigError(msg)
    panels = [Panel(_fit(rgb), "Scene", photo=True)]
    legend = list(zip(colors, class_names, strict=True))
    codes = ["#ffffff", *colors]
    if truth is not None:
        panels.append(Panel(_painted(truth, codes, "truth"), "Labels"))
    panels.append(Panel(_painted(predicted, codes, "predicted"), f"Map ({score})" if score else "Map"))
    if any(bool((codes == 0).any()) for codes in (truth, predicted) if codes is not None):
        legend.append(("#ffffff", "no label"))
    return write_page(panels, legend, title, caption, out_png, panel_in=4.0)


def split_picture(
    out_png: str | Path,
    split: NDArray[Any],
    *,
    rgb: NDArray[np.uint8] | None = None,
    title: str = "",
    caption: str = "",
) -> Path:
    """Write the split map of a scene, beside its picture if given; the legend counts the pixels of each part.

    Parameters
    ----------
    out_png
        Where to write.
    split
        (y, x) codes: 0 none or margin, 1 train, 2 validation, 3 test.
    rgb
        uint8 (y, x, 3).
    title, caption
        Heading and text below.

    Raises
    ------
    LabelError
        A code is not 0..3.
    """
    panels = [] if rgb is None else [Panel(_fit(rgb), "Scene", photo=True)]
    panels.append(Panel(_painted(split, _SPLIT_COLORS, "split"), "Split" if panels else ""))
    counts = np.bincount(np.asarray(split).ravel(), minlength=4)
    legend = [
        (color, f"{name}: {count:,} ({count / max(1, counts.sum()):.1%})")
        for color, name, count in zip(_SPLIT_COLORS, SPLITS, counts.tolist(), strict=True)
    ]
    return write_page(panels, legend, title, caption, out_png, panel_in=4.6)


def _fit(array: NDArray[Any], max_side: int = 1600) -> NDArray[Any]:
    """Return the array, thinned by a whole step to at most `max_side` pixels a side."""
    step = max(1, -(-max(array.shape[:2]) // max_side))
    return array[::step, ::step]


def _painted(codes: NDArray[Any], colors: Sequence[str], what: str) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3): the colour of each code."""
    shown = np.asarray(codes)
    low, high = int(shown.min(initial=0)), int(shown.max(initial=0))
    if low < 0 or high >= len(colors):
        msg = f"`{what}` holds {low if low < 0 else high}; allowed are 0..{len(colors) - 1}"
        raise LabelError(msg)
    table = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in colors], dtype=np.uint8)
    return table[_fit(shown).astype(np.intp)]
