"""Pictures of scenes, labels, maps and splits, written as PNG.

True colour is near 660/560/480 nm and colour-infrared near 860/650/550 nm; every channel is stretched between
the 2nd and the 98th percentile of the pixels shown, and captions say so. Pixels without data are light grey.
Scenes are thinned while they are read, chunk by chunk, so that a picture of a huge scene needs little memory.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
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


def rgb(scene: xr.Dataset, *, kind: str = "true", max_side: int = 1024) -> tuple[NDArray[np.uint8], str]:
    """Return a colour picture of a scene and its caption.

    Parameters
    ----------
    scene
        A scene; only the rows shown are read.
    kind
        `true` or `cir`. Where the scene has no such wavelengths, the first, middle and last usable bands are
        shown, the longest wavelength in red, and the caption says so; a single band is shown in grey.
    max_side
        Longest side in pixels; larger scenes are thinned by a whole step.

    Returns
    -------
    picture
        uint8 (y, x, 3).
    caption
        Bands, thinning and stretch in words.

    Raises
    ------
    ConfigError
        `kind` or `max_side` is not allowed.
    """
    if kind not in KINDS:
        msg = f"kind={kind!r}; allowed are {', '.join(KINDS)}"
        raise ConfigError(msg)
    if max_side < 1:
        msg = f"max_side={max_side}; a picture needs at least 1 pixel"
        raise ConfigError(msg)
    bands, title = _choose_bands(scene, kind)
    step = -(-max(scene.sizes["y"], scene.sizes["x"]) // max_side)
    values = _thinned(scene, bands, step)
    picture = _stretched(values)
    parts = [f"{title}: {_band_words(scene, bands)}"]
    if not np.isfinite(values).any():
        parts.append("no pixel holds data")
    else:
        parts.append(
            "each stretched between its 2nd and 98th percentile" if len(bands) > 1 else "2-98 % stretch"
        )
    if step > 1:
        parts.append(f"every {step}{_ordinal(step)} pixel")
    return picture, "; ".join(parts) + "."


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


def _ordinal(number: int) -> str:
    if 10 <= number % 100 <= 20:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _thinned(scene: xr.Dataset, bands: list[int], step: int) -> NDArray[np.float64]:
    """Return every step-th pixel of some bands, float64 (y, x, band), NaN where any of them has no data.

    One row chunk is in memory at a time: slices of a chunk would keep all of it alive until the end.
    """
    from .scene import invalid_mask, nodata_values, scale_offset

    cube = scene["data"]
    nodata_b = nodata_values(scene)[bands]
    scale_b, offset_b = (numbers[bands] for numbers in scale_offset(scene))
    rows, cols = (-(-cube.sizes[axis] // step) for axis in ("y", "x"))
    result = np.empty((rows, cols, len(bands)), dtype=np.float64)
    heights: Sequence[int] = cube.chunks[0] if cube.chunks is not None else (cube.sizes["y"],)
    start = done = 0
    for height in heights:
        start += height
        chosen = slice(done * step, start, step)
        count = len(range(done * step, start, step))
        if not count:
            continue
        block = np.asarray(cube.isel(y=chosen, x=slice(None, None, step), band=bands).values)
        values = block.astype(np.float64) * scale_b + offset_b
        bad = invalid_mask(block, nodata_b)
        if bad is not None:
            values[bad.any(axis=-1)] = np.nan
        result[done : done + count] = values
        done += count
    return result


def _stretched(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3): channels stretched 2-98 %; constant ones are middle grey, NaN light grey."""
    valid = np.isfinite(values).all(axis=-1)
    picture = np.full((*valid.shape, 3), NODATA_GREY, dtype=np.uint8)
    if not valid.any():
        return picture
    for channel in range(3):
        shown = values[..., min(channel, values.shape[-1] - 1)][valid]
        low, high = np.percentile(shown, [2.0, 98.0])
        level = np.full(shown.shape, 0.5) if high <= low else np.clip((shown - low) / (high - low), 0.0, 1.0)
        picture[valid, channel] = np.rint(level * 255.0).astype(np.uint8)
    return picture


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
