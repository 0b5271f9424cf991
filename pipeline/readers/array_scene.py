"""Which variable of an array file is the cube, and what its axes mean.

Such files hold numbers with a shape and a name, and nothing that says what the axes are. So nothing is guessed from
sizes alone: a cube with three axes is taken as (rows, columns, bands), the order of nearly all published benchmarks,
unless the user gives `axes`; a table of pixels needs its rows and columns, from variables beside it or from the user.
`axes` names the axes in the order in which MATLAB's `size` or NumPy's `shape` lists them. What the file itself
contradicts is refused, and what it leaves open is said in a warning.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import permutations
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import FormatError
from ..scene import make_scene
from .arrays import Variable
from .options import Notes, Options
from .wavelengths import to_nanometres

SIZE_NAMES = (
    *(("nrow", "ncol"), ("nrows", "ncols"), ("lines", "cols"), ("lines", "samples"), ("rows", "cols")),
    *(("h", "w"), ("height", "width")),
)
"""Names of the variables that give rows and columns of a table of pixels, without regard to case."""

WAVELENGTH_NAMES = (
    "wavelength",
    "wavelengths",
    "wl",
    "wvl",
    "lambda",
    "lambdas",
    "bandcenters",
    "centerwavelengths",
)
SELECTION_NAMES = ("slectbands", "selectbands", "selectedbands", "gt")
"""Lists of the numbers of the bands that were kept (Jasper Ridge and Urban spell it so)."""

_AXES_3 = tuple("".join(p) for p in permutations("yxb"))
_AXES_2 = tuple(axes for axes in _AXES_3 if axes[1] != "b")


def scene_of(
    path: str, variables: Sequence[Variable], options: Options, notes: Notes, *, reader: str, why: str
) -> xr.Dataset:
    """Make the scene of the variable that the user chose, or of the only one that can be a cube.

    Raises
    ------
    FormatError
        If no variable, or more than one, can be the cube, or its axes are not known.
    """
    sizes = options.shape_yx or _sizes_beside(variables)
    chosen = _choose(path, variables, options, sizes)
    where = f"{path}, variable {chosen.name!r}"
    axes, shape = _axes_of(chosen, options, sizes, where)
    named = dict(zip(axes, shape, strict=True))
    rows, cols, bands = (named[axis] for axis in "yxb")
    wavelength, fwhm = _wavelengths(variables, chosen, axes, shape, options, notes, where)
    if (
        axes == "yxb"
        and options.axes is None
        and len(chosen.shape) == 3
        and wavelength is None
        and rows < min(cols, bands)
    ):
        notes.warn(
            f"{where}: its shape {_text(shape)} was taken as (rows, columns, bands); if the bands come first give "
            "axes='byx'"
        )
    data, held = chosen.lazy(
        (rows, cols, bands), _file_axes(chosen, axes, first_fastest=reader == "matlab"), notes
    )
    _say_scale(variables, options, notes, where)
    return make_scene(
        data,
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        band_names=_names(variables, bands, notes, where),
        nodata=options.nodata,
        scale=options.scale,
        offset=options.offset,
        quantity=options.quantity or "other",
        units=options.units or "",
        scene_id=os.path.splitext(os.path.basename(path))[0],
        source=path,
        files=[path],
        variable=chosen.name,
        block_bytes=held,
        reader=reader,
        why=why,
    )


def load_plane_of(path: str, variables: Sequence[Variable], variable: str | None) -> NDArray[Any]:
    """Return the one 2-D numeric array of a file, such as a label raster.

    Raises
    ------
    FormatError
        If there is none, or more than one and `variable` is None.
    """
    planes = [v for v in variables if v.dtype is not None and len(v.shape) == 2 and min(v.shape) > 1]
    if variable is not None:
        planes = [_by_name(path, variables, variable)]
    if len(planes) != 1:
        many = "several arrays" if planes else "no array"
        msg = f"{path} holds {many} with two axes; it holds {listing(variables)}: choose one by variable="
        raise FormatError(msg)
    plane = planes[0]
    if plane.dtype is None or len(plane.shape) != 2:
        msg = f"{path}: the variable {plane.name!r} is {plane.kind} {_text(plane.shape)}; a plane has numbers and two axes"
        raise FormatError(msg)
    return plane.values()


def listing(variables: Sequence[Variable]) -> str:
    """Return names, shapes and types, for messages."""
    texts = [f"{v.name} {_text(v.shape)} {v.kind}" for v in variables[:12]]
    more = f" and {len(variables) - 12} more" if len(variables) > 12 else ""
    return (", ".join(texts) or "nothing") + more


def _text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _by_name(path: str, variables: Sequence[Variable], name: str) -> Variable:
    for variable in variables:
        if variable.name == name:
            return variable
    close = get_close_matches(name, [v.name for v in variables], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    msg = f"{path} has no variable {name!r}; it holds {listing(variables)}{hint}"
    raise FormatError(msg)


def _choose(
    path: str, variables: Sequence[Variable], options: Options, sizes: tuple[int, int] | None
) -> Variable:
    """Return the variable that holds the cube."""
    if options.variable is not None:
        chosen = _by_name(path, variables, options.variable)
        if chosen.dtype is None:
            msg = f"{path}: the variable {chosen.name!r} is {chosen.kind}; a scene holds real numbers"
            raise FormatError(msg)
        return chosen
    numeric = [v for v in variables if v.dtype is not None and v.kind != "logical"]
    found = [v for v in numeric if len(v.shape) == 3]
    if not found and sizes is not None:
        pixels = sizes[0] * sizes[1]
        found = [v for v in numeric if len(v.shape) == 2 and min(v.shape) > 1 and pixels in v.shape]
    if len(found) == 1:
        return found[0]
    if found:
        msg = f"{path} holds several cubes: {listing(found)}; choose one by variable= (--read variable=NAME)"
        raise FormatError(msg)
    refused = [v for v in variables if v.kind.startswith("refused")]
    planes = [v for v in numeric if len(v.shape) == 2 and min(v.shape) > 1]
    if len(planes) == 1 and not refused:
        msg = (
            f"{path} holds {planes[0].name} {_text(planes[0].shape)}: a plane, not a cube; if it holds labels give it "
            "as the labels of a scene, if it is a table of pixels and bands give shape_yx=(rows, columns)"
        )
        raise FormatError(msg)
    msg = (
        f"{path} holds no cube: a scene needs a numeric array with three axes, or a table of pixels and "
        f"shape_yx=(rows, columns); it holds {listing(variables)}"
    )
    raise FormatError(msg)


def _axes_of(
    chosen: Variable, options: Options, sizes: tuple[int, int] | None, where: str
) -> tuple[str, tuple[int, int, int]]:
    """Return the meaning of the axes, and the shape with a table's pixels unfolded."""
    shape, axes = chosen.shape, options.axes
    if axes is not None and axes not in _AXES_3:
        msg = f"axes = {axes!r}; allowed: y, x and b in the order of the file's axes, such as 'yxb' or 'byx'"
        raise FormatError(msg)
    if any(n < 1 for n in shape):
        msg = f"{where} is empty ({_text(shape)})"
        raise FormatError(msg)
    if len(shape) == 3:
        axes = axes or "yxb"
        out = (shape[0], shape[1], shape[2])
        stated = (out[axes.index("y")], out[axes.index("x")])
        if options.shape_yx is not None and stated != tuple(options.shape_yx):
            msg = f"{where} has {stated[0]} x {stated[1]} pixels with axes={axes!r}, not shape_yx = {options.shape_yx}"
            raise FormatError(msg)
        return axes, out
    if len(shape) != 2:
        msg = f"{where} has {len(shape)} axes ({_text(shape)}); a cube has three"
        raise FormatError(msg)
    if sizes is None:
        msg = f"{where} is a table {_text(shape)}; give shape_yx=(rows, columns) if it holds pixels and bands"
        raise FormatError(msg)
    return _unfold(shape, axes, sizes, where)


def _unfold(
    shape: tuple[int, ...], axes: str | None, sizes: tuple[int, int], where: str
) -> tuple[str, tuple[int, int, int]]:
    """Return axes and shape of a table of pixels, whose pixel axis becomes rows and columns."""
    rows, cols = sizes
    pixels = rows * cols
    if axes is None:
        if shape[0] == shape[1]:
            msg = f"{where} is a table {_text(shape)}, so that either axis can hold the pixels; give axes='byx' or 'yxb'"
            raise FormatError(msg)
        axes = "yxb" if shape[0] == pixels else "byx"
    if axes not in _AXES_2:
        msg = f"{where} is a table, so axes = {axes!r} cannot be; allowed: {', '.join(_AXES_2)}"
        raise FormatError(msg)
    band_first = axes[0] == "b"
    if shape[1 if band_first else 0] != pixels:
        msg = f"{where} is a table {_text(shape)}; with axes={axes!r} it has not {rows} x {cols} = {pixels} pixels"
        raise FormatError(msg)
    named = {"y": rows, "x": cols, "b": shape[0 if band_first else 1]}
    return axes, (named[axes[0]], named[axes[1]], named[axes[2]])


def _file_axes(chosen: Variable, axes: str, *, first_fastest: bool) -> str:
    """Return the axes in the file, slowest first.

    The pixels of a table are numbered as the program numbers them, whatever the order in the file: MATLAB lets the first
    of the two axes run fastest, NumPy the last.
    """
    if len(chosen.shape) == 3:
        return axes[::-1] if chosen.column_major else axes
    pixels = axes.replace("b", "")
    pixels = pixels[::-1] if first_fastest else pixels
    return pixels + "b" if (axes[0] == "b") == chosen.column_major else "b" + pixels


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _small(variable: Variable) -> NDArray[Any] | None:
    """Return a small numeric array as a vector."""
    count = math.prod(variable.shape)
    if variable.dtype is None or not variable.small or count < 1 or count != max(variable.shape, default=1):
        return None
    return variable.values().reshape(-1)


def _named_vector(
    variables: Sequence[Variable], names: Sequence[str]
) -> tuple[Variable, NDArray[Any]] | None:
    """Return the first vector with one of these names."""
    for name in names:
        for variable in variables:
            if _plain(variable.name) == name:
                vector = _small(variable)
                if vector is not None:
                    return variable, vector
    return None


def _sizes_beside(variables: Sequence[Variable]) -> tuple[int, int] | None:
    """Return rows and columns from scalars beside a table of pixels."""
    for pair in SIZE_NAMES:
        found = [_named_vector(variables, (name,)) for name in pair]
        numbers = [f[1] for f in found if f is not None and f[1].size == 1]
        if len(numbers) == 2 and all(float(n[0]) == round(float(n[0])) >= 1 for n in numbers):
            return int(numbers[0][0]), int(numbers[1][0])
    return None


def _wavelengths(
    variables: Sequence[Variable],
    chosen: Variable,
    axes: str,
    shape: tuple[int, int, int],
    options: Options,
    notes: Notes,
    where: str,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return wavelengths and widths from vectors with such names; a length of another axis contradicts the axes."""
    names = [name + unit for name in WAVELENGTH_NAMES for unit in ("", "nm", "um")]
    found = _named_vector([v for v in variables if v is not chosen], names)
    if found is None:
        return None, None
    variable, values = found
    bands = shape[axes.index("b")]
    if len(values) != bands:
        other = [axis for axis, n in zip(axes, shape, strict=True) if n == len(values)]
        if len(other) == 1 and options.axes is None and len(chosen.shape) == 3:
            at = axes.index(other[0])
            right = {0: "byx", 1: "ybx"}.get(at, "yxb")
            msg = (
                f"{where}: {variable.name} has {len(values)} entries, as axis {at + 1} of {_text(shape)}, while axis "
                f"{axes.index('b') + 1} was taken as the bands; give axes={right!r}, or axes={axes!r} to keep it so"
            )
            raise FormatError(msg)
        notes.warn(f"{where}: {variable.name} has {len(values)} entries for {bands} bands; it is not used")
        return None, None
    widths = _named_vector(variables, ("fwhm", "fwhmnm", "fwhmum"))
    unit = next((u for u in ("nm", "um") if _plain(variable.name).endswith(u)), None)
    fwhm = None if widths is None or len(widths[1]) != bands else widths[1]
    return to_nanometres(values, unit, where, notes, fwhm=fwhm, override=options.wavelength_unit)


def _names(variables: Sequence[Variable], bands: int, notes: Notes, where: str) -> list[str] | None:
    """Return band names from a list of the numbers of the bands that were kept."""
    found = _named_vector(variables, SELECTION_NAMES)
    if found is None or len(found[1]) != bands or bands < 2:
        return None
    numbers = found[1].astype(np.float64)
    if (numbers != np.round(numbers)).any() or (np.diff(numbers) <= 0).any() or numbers[0] < 0:
        return None
    notes.warn(
        f"{where}: {found[0].name} was taken for the numbers of the {bands} bands that were kept "
        f"({numbers[0]:g} ... {numbers[-1]:g}), which became the band names"
    )
    return [f"Band {int(n)}" for n in numbers]


def _say_scale(variables: Sequence[Variable], options: Options, notes: Notes, where: str) -> None:
    """Warn of a largest value beside the cube, by which some programs divide and we do not."""
    found = _named_vector(variables, ("maxvalue",))
    if found is not None and options.scale is None:
        notes.warn(
            f"{where}: {found[0].name} = {found[1][0]:g} stands beside the cube; the numbers are not divided by it: "
            "give scale= if they should be"
        )
