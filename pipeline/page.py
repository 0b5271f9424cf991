"""Layout of pictures on a page: panels, legend and caption placed in inches, so that nothing overlaps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI: Final = 150

# Inches. Letter widths are those of 8 and 9 points in the default font, on the wide side.
_MARGIN: Final = 0.25
_GAP: Final = 0.2
_LEGEND_ROW: Final = 0.185
_CAPTION_ROW: Final = 0.17
_CAPTION_LETTER: Final = 0.064
_LEGEND_LETTER: Final = 0.07
_NARROWEST: Final = 4.2
_TALLEST: Final = 7.0
_LONGEST_NAME: Final = 36


@dataclass(frozen=True)
class Panel:
    """One picture of a page."""

    picture: NDArray[np.uint8]
    """(y, x, 3)."""
    title: str = ""
    """Text above; empty for none."""
    photo: bool = False
    """Whether neighbouring pixels may be averaged, which codes of classes may not."""


@dataclass(frozen=True)
class _Grid:
    """Where the panels stand, in inches."""

    width: float
    """Of one panel."""
    height: float
    """Of one panel."""
    head: float
    """Room for the title above each panel."""
    across: int
    """Panels in a row."""
    down: int
    """Rows of panels."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all panels together."""
        return (
            self.across * self.width + (self.across - 1) * _GAP,
            self.down * (self.height + self.head) + (self.down - 1) * _GAP / 2,
        )

    def corner(self, number: int) -> tuple[float, float]:
        """Left and top of a panel's picture."""
        row, col = divmod(number, self.across)
        return col * (self.width + _GAP), self.head + row * (self.height + self.head + _GAP / 2)


def _grid(panels: Sequence[Panel], panel_in: float) -> _Grid:
    """Choose the size of the panels from the shape of the first: wide strips stand above each other."""
    rows, cols = panels[0].picture.shape[:2]
    aspect = rows / cols
    stacked = aspect < 0.4 and len(panels) > 1
    width = panel_in * (0.75 * len(panels) if stacked else 1.0)
    height = float(np.clip(width * aspect, 0.5, _TALLEST))
    width = float(np.clip(height / aspect, min(1.2, width), width))
    head = 0.28 if any(panel.title for panel in panels) else 0.0
    return _Grid(width, height, head, 1 if stacked else len(panels), len(panels) if stacked else 1)


def write_page(
    panels: Sequence[Panel],
    legend: Sequence[tuple[str, str]],
    title: str,
    caption: str,
    out_png: str | Path,
    *,
    panel_in: float,
) -> Path:
    """Write a page as PNG.

    Parameters
    ----------
    panels
        Pictures of the same ground, so of the same aspect.
    legend
        Colours (#rrggbb) and names.
    title, caption
        Heading and text below; empty for none.
    out_png
        Where to write.
    panel_in
        Largest width of a panel in inches; 150 pixels per inch.
    """
    from matplotlib.figure import Figure

    grid = _grid(panels, panel_in)
    body_width, body_height = grid.size
    inner = max(body_width, _NARROWEST)
    names = [(color, _short(name)) for color, name in legend]
    longest = max((len(name) for _, name in names), default=1)
    columns = max(1, min(len(names), int(inner / (0.45 + _LEGEND_LETTER * longest))))
    legend_height = 0.1 + _LEGEND_ROW * -(-len(names) // columns) if names else 0.0
    lines = textwrap.wrap(caption, int(inner / _CAPTION_LETTER))
    caption_height = 0.1 + _CAPTION_ROW * len(lines) if lines else 0.0
    body_top = _MARGIN + (0.28 if title else 0.0)
    legend_top = body_top + body_height
    caption_top = legend_top + legend_height
    page_width, page_height = inner + 2 * _MARGIN, caption_top + caption_height + _MARGIN

    figure = Figure(figsize=(page_width, page_height), dpi=_DPI, facecolor="white")
    for number, panel in enumerate(panels):
        left, top = grid.corner(number)
        left, top = left + _MARGIN, top + body_top
        size = (grid.width / page_width, grid.height / page_height)
        axes = figure.add_axes((left / page_width, 1 - (top + grid.height) / page_height, *size))
        _draw(axes, panel, grid.width * _DPI)
    x = _MARGIN / page_width
    if title:
        figure.text(x, 1 - _MARGIN / page_height, title, fontsize=12, weight="bold", va="top")
    if names:
        _draw_legend(figure, names, columns, (x, 1 - (legend_top + 0.1) / page_height))
    if lines:
        y = 1 - (caption_top + 0.1) / page_height
        figure.text(x, y, "\n".join(lines), fontsize=8, color="#444444", va="top", linespacing=1.25)
    path = Path(out_png)
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3].rstrip()}..."


def _draw(axes: Axes, panel: Panel, width_px: float) -> None:
    """Draw one panel; photographs are averaged where they are reduced, all else stays sharp."""
    reduced = panel.photo and panel.picture.shape[1] > width_px
    axes.imshow(panel.picture, aspect="auto", interpolation="hanning" if reduced else "nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, color="#888888")
    if panel.title:
        axes.set_title(panel.title, fontsize=10, loc="left", pad=4)


def _draw_legend(
    figure: Figure, names: Sequence[tuple[str, str]], columns: int, place: tuple[float, float]
) -> None:
    """Draw colour boxes with names, row by row, below the panels."""
    from matplotlib.patches import Patch

    # matplotlib fills column by column; readers go row by row.
    rows = -(-len(names) // columns)
    order = [
        row * columns + col
        for col in range(columns)
        for row in range(rows)
        if row * columns + col < len(names)
    ]
    handles = [
        Patch(facecolor=color, edgecolor="#555555", linewidth=0.5, label=name)
        for color, name in (names[k] for k in order)
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=place,
        ncols=columns,
        fontsize=9,
        frameon=False,
        borderpad=0.0,
        borderaxespad=0.0,
        handlelength=1.3,
        handleheight=1.0,
        columnspacing=1.4,
        labelspacing=0.35,
    )
