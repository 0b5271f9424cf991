"""Plots along the bands: spectra, and the state of the bands."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .pictures import class_palette

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_IN = (9.0, 5.0)
_DPI = 150
_SHADE = "#dddddd"
#: From the worst to the best, in the order in which they hide each other; Okabe & Ito (2008).
_STATES = {"no data": "#000000", "listed as bad": "#d55e00", "constant": "#e69f00", "water window": "#56b4e9"}
_GOOD = "#009e73"


@dataclass(frozen=True)
class BandStates:
    """What a thinned sample of the pixels tells about each band."""

    listed_bad: NDArray[np.bool_]
    in_window: NDArray[np.bool_]  #: centre in a water window
    nodata_share: NDArray[np.float64]
    constant: NDArray[np.bool_]  #: one value wherever there is data
    spread: NDArray[np.float64] = field(
        repr=False
    )  #: (3, band) 2nd, 50th and 98th percentile of the physical values
    pixels: int = 0  #: of the sample


def band_axis(scene: xr.Dataset) -> tuple[NDArray[np.float64], str]:
    """Return the place of each band on the horizontal axis, and the name of that axis."""
    bands = int(scene.sizes["band"])
    if "wavelength" not in scene.coords:
        return np.arange(1, bands + 1, dtype=np.float64), "band"
    return np.asarray(scene["wavelength"].values, np.float64), "wavelength (nm)"


def breaks(x: NDArray[np.float64], detector: NDArray[Any] | None = None) -> NDArray[np.intp]:
    """Return the bands before which a line is broken.

    That is where the order turns back, where bands are missing (five times the usual step), or where another detector
    begins.
    """
    steps = np.diff(x)
    rising = np.nansum(np.sign(steps)) >= 0
    turned = steps <= 0 if rising else steps >= 0
    far = np.abs(steps)
    turned |= far > 5 * np.nanmedian(far[far > 0]) if (far > 0).any() else False
    if detector is not None:
        turned |= detector[1:] != detector[:-1]
    return np.flatnonzero(turned) + 1


def draw_spectra(
    scene: xr.Dataset,
    values: NDArray[np.float64],
    names: Sequence[str],
    shaded: NDArray[np.bool_],
    windows: Sequence[tuple[float, float]],
    title: str,
    caption: str,
    out_png: Path,
) -> None:
    """Write spectra (line, band), NaN where nothing is drawn, as PNG; shaded bands and windows lie behind them."""
    figure, (axes,) = _page(title, caption, [1.0])
    x, name = band_axis(scene)
    _shade(axes, x, shaded, windows)
    cuts = breaks(x, scene["detector"].values if "detector" in scene.coords else None)
    gaps = np.insert(x, cuts, np.nan)
    for line, label, color in zip(values, names, class_palette(len(names)), strict=True):
        # a lone band between two gaps would be no line
        axes.plot(gaps, np.insert(line, cuts, np.nan), color=color, lw=1.2, marker=".", ms=2.5, label=label)
    axes.set_xlabel(name, fontsize=9)
    axes.set_ylabel(_value_words(scene), fontsize=9)
    axes.legend(fontsize=8, frameon=False, title="row, column", title_fontsize=8)
    _write(figure, out_png)


def draw_bands(scene: xr.Dataset, states: BandStates, title: str, caption: str, out_png: Path) -> None:
    """Write the state of the bands as PNG: values above, share of nodata and state below."""
    from matplotlib.patches import Patch

    figure, (above, below, strip) = _page(title, caption, [3.0, 1.6, 0.45])
    x, name = band_axis(scene)
    worst = {
        "no data": states.nodata_share == 1,
        "listed as bad": states.listed_bad,
        "constant": states.constant,
        "water window": states.in_window,
    }
    cuts = breaks(x, scene["detector"].values if "detector" in scene.coords else None)
    gaps = np.insert(x, cuts, np.nan)
    low, middle, high = (np.insert(line, cuts, np.nan) for line in states.spread)
    above.fill_between(gaps, low, high, color="#b3cde3", lw=0, label="2nd to 98th percentile")
    above.plot(gaps, middle, color="#0072b2", lw=1.2, marker=".", ms=2, label="median")
    above.set_ylabel(_value_words(scene), fontsize=9)
    above.legend(fontsize=8, frameon=False)
    left, right = _edges(x)
    below.bar(left, 100 * states.nodata_share, right - left, align="edge", color="#555555", lw=0)
    below.set_ylim(0, 100)
    below.set_ylabel("no data (%)", fontsize=9)
    colors = np.full(len(x), _GOOD, object)
    for state in reversed(_STATES):
        colors[worst[state]] = _STATES[state]
    strip.bar(left, np.ones(len(x)), right - left, align="edge", color=colors.tolist(), lw=0)
    strip.set_yticks([])
    strip.set_ylim(0, 1)
    strip.set_xlabel(name, fontsize=9)
    known = np.isfinite(left) & np.isfinite(right)
    for axes in (above, below, strip):
        axes.set_xlim(left[known].min(), right[known].max())
    for axes in (above, below):
        axes.tick_params(labelbottom=False)
    shown = [(s, c) for s, c in _STATES.items() if worst[s].any()] + [("usable", _GOOD)]
    handles = [Patch(facecolor=color, label=state) for state, color in shown]
    strip.legend(
        handles=handles,
        ncols=len(handles),
        fontsize=8,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -1.35),
    )
    _write(figure, out_png)


def _value_words(scene: xr.Dataset) -> str:
    quantity, units = str(scene.attrs.get("quantity", "other")), str(scene.attrs.get("units", ""))
    words = {"dn": "digital number", "other": "value"}.get(quantity, quantity.replace("_", " "))
    words = words.replace("toa", "top-of-atmosphere")
    return words if units in ("", "1") else f"{words} ({units})"


def _edges(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return left and right edge of each band: half way to its neighbours, unless bands are missing there."""
    known = np.flatnonzero(np.isfinite(x))
    order = known[np.argsort(x[known], kind="stable")]
    steps = np.diff(x[order])
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    half = np.minimum(steps, 2 * usual) / 2
    left, right = np.full(x.shape, np.nan), np.full(x.shape, np.nan)
    left[order] = x[order] - np.concatenate([[usual / 2], half])
    right[order] = x[order] + np.concatenate([half, [usual / 2]])
    return left, right


def _shade(
    axes: Axes, x: NDArray[np.float64], shaded: NDArray[np.bool_], windows: Sequence[tuple[float, float]]
) -> None:
    left, right = _edges(x)
    bands = np.flatnonzero(shaded & np.isfinite(x)).tolist()
    first, last = float(np.nanmin(left)), float(np.nanmax(right))
    for low, high in [*((left[band], right[band]) for band in bands), *windows]:
        if low < last and high > first:
            axes.axvspan(max(low, first), min(high, last), color=_SHADE, lw=0, zorder=0)
    axes.set_xlim(first, last)


def _page(title: str, caption: str, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Return a page with its title, caption and one plot below the other."""
    from matplotlib.figure import Figure

    lines = textwrap.wrap(caption, 135)
    figure = Figure(figsize=_SIZE_IN, dpi=_DPI, facecolor="white")
    foot = 0.17 * len(lines) / _SIZE_IN[1] + 0.05
    grid = figure.add_gridspec(
        len(heights), 1, height_ratios=list(heights), left=0.09, right=0.98, top=0.91,
        bottom=foot + (0.09 if len(heights) == 1 else 0.19), hspace=0.12,
    )  # fmt: skip
    plots = [figure.add_subplot(grid[row, 0]) for row in range(len(heights))]
    for axes in plots:
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    if title:
        figure.text(0.03, 0.985, title, fontsize=12, weight="bold", va="top")
    figure.text(0.03, foot, "\n".join(lines), fontsize=8, color="#444444", va="top", linespacing=1.25)
    return figure, plots


def _write(figure: Figure, out_png: Path) -> None:
    figure.savefig(out_png, format="png", metadata={"Software": None})
