"""netCDF-4 and HDF5: scenes that `writers` stored, and cubes of unknown programs.

A foreign file is opened if it is clear what it holds: the only dataset with three axes, or the one that `variable`
names (a path such as `group/name`). What the axes are is told by the names of its dimensions, by the length of a list
of wavelengths, or by the user's `axes` (as stored, slowest first); it is never guessed from sizes.

Traps: `_FillValue`, `scale_factor` and `add_offset` are kept and not applied (xarray applies them on its own, so a cube
that went through it holds physical values already); netCDF's default fill values are not assumed to mean no data;
`_Unsigned` numbers are refused; links and virtual datasets that lead out of the file are refused (`hdf_file`).
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from itertools import permutations

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS

from ..errors import FormatError
from ..scene import make_scene
from . import contract
from .contract import MARKER, Entry, is_small, place_of
from .hdf import is_hdf5, opened
from .hdf_container import HdfContainer, text_of
from .options import Notes, Options
from .reader import Reader
from .wavelengths import to_nanometres

AXIS_NAMES = {
    "y": "y row rows line lines lat latitude northing nrows height downtrack along_track",
    "x": "x col cols column columns sample samples lon longitude easting ncols width crosstrack across_track",
    "b": "b band bands wavelength wavelengths wl lambda channel channels spectral nbands",
}
"""Names of dimensions by what they are, without regard to case."""

WAVELENGTH_NAMES = (
    "wavelength",
    "wavelengths",
    "wl",
    "lambda",
    "band_center",
    "band_centers",
    "center_wavelengths",
)
FWHM_NAMES = ("fwhm", "bandwidth", "fwhms")
QUANTITIES = {
    "toa_bidirectional_reflectance": "toa_reflectance",
    "surface_bidirectional_reflectance": "surface_reflectance",
}
"""CF standard names that settle the quantity."""

_ALL_AXES = tuple("".join(p) for p in permutations("yxb"))


def open_netcdf(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open a netCDF-4 or HDF5 file as a lazy scene.

    Parameters
    ----------
    path
        The file.
    options
        Overrides; `variable` and `axes` belong to this reader.
    notes
        Takes the warnings.
    why
        Why this reader was chosen.

    Raises
    ------
    FormatError
        If it is not clear which dataset is the cube or what its axes are; the message lists what the file holds.
    """
    with opened(path) as h5:
        store = HdfContainer(h5)
    if MARKER in store.attrs and options.variable in (None, "data"):
        return contract.scene_of(store, options, notes, reader="netcdf", why=why, files=[path])
    return _foreign(store, options, notes, why)


def _foreign(store: HdfContainer, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Make a scene of a cube of an unknown program."""
    entry = _choose(store, options)
    where = f"{store.path}, {entry.name}"
    centres = _lists(store, entry, WAVELENGTH_NAMES)
    axes = _axes_of(entry, centres, options, notes, where)
    bands = entry.shape[axes.index("b")]
    if entry.attrs.get("_Unsigned") is not None:
        msg = f"{where}: _Unsigned is set, so that its numbers are not of the type that is stored; rewrite it as unsigned"
        raise FormatError(msg)
    wavelength, fwhm = _wavelengths(store, entry, centres, bands, options, notes, where)
    crs, transform = _place(store, entry, axes, notes)
    data, held = store.cube(entry.name, axes, notes)
    told = _numbers(entry, notes, where)
    lat, lon = (None, None) if transform is not None else _latlon(store, entry, axes)
    unit = text_of(entry.attrs.get("units")) or ""
    return make_scene(
        data,
        wavelength_nm=wavelength,
        fwhm_nm=fwhm,
        crs=crs,
        transform=transform,
        nodata=options.nodata if options.nodata is not None else told.get("nodata"),
        scale=options.scale if options.scale is not None else told.get("scale"),
        offset=options.offset if options.offset is not None else told.get("offset"),
        quantity=options.quantity or QUANTITIES.get(text_of(entry.attrs.get("standard_name")) or "", "other"),
        units=options.units if options.units is not None else unit,
        lat_yx=lat,
        lon_yx=lon,
        scene_id=os.path.splitext(os.path.basename(store.path))[0],
        source=store.path,
        files=[store.path],
        variable=entry.name,
        block_bytes=held,
        reader="netcdf",
        why=why,
    )


def _choose(store: HdfContainer, options: Options) -> Entry:
    """Return the dataset that the user named, or the only one that can be a cube."""
    numeric = {n: e for n, e in store.entries.items() if e.dtype is not None and e.dtype.kind in "iuf"}
    listed = ", ".join(
        f"{n} {' x '.join(map(str, e.shape))} {e.dtype}" for n, e in list(numeric.items())[:12] if e.shape
    )
    listed = listed or "nothing"
    if options.variable is not None:
        name = options.variable.strip("/")
        if name not in numeric:
            close = get_close_matches(name, list(numeric), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            msg = f"{store.path} has no numeric dataset {name!r}; it holds {listed}{hint}"
            raise FormatError(msg)
        found = [numeric[name]]
    else:
        found = [entry for entry in numeric.values() if len(entry.shape) == 3]
    if len(found) != 1:
        if found:
            those = ", ".join(f"{e.name} {' x '.join(map(str, e.shape))} {e.dtype}" for e in found[:12])
            msg = f"{store.path} holds several datasets with three axes: {those}; choose one by variable= (--read variable=NAME)"
        else:
            msg = f"{store.path} holds no dataset with three axes; it holds {listed}"
        raise FormatError(msg)
    if len(found[0].shape) != 3 or 0 in found[0].shape:
        msg = f"{store.path}: {found[0].name} has the shape {found[0].shape}; a cube has three axes"
        raise FormatError(msg)
    return found[0]


def _axes_of(
    entry: Entry, centres: dict[str, NDArray[np.float64]], options: Options, notes: Notes, where: str
) -> str:
    """Return what the stored axes are, slowest first."""
    if options.axes is not None:
        if options.axes not in _ALL_AXES:
            msg = f"axes = {options.axes!r}; allowed: y, x and b in the order of the stored axes, such as 'yxb' or 'byx'"
            raise FormatError(msg)
        return options.axes
    named = [
        next(
            (
                axis
                for axis, names in AXIS_NAMES.items()
                if dim.rsplit("/", 1)[-1].casefold() in names.split()
            ),
            "?",
        )
        for dim in entry.dims
    ]
    if sorted(named) == ["b", "x", "y"]:
        return "".join(named)
    shape = " x ".join(map(str, entry.shape))
    lengths = {len(values) for values in centres.values()}
    fitting = [i for i, n in enumerate(entry.shape) if n in lengths]
    if len(fitting) == 1:
        axes = "yx"[: fitting[0]] + "b" + "yx"[fitting[0] :]
        notes.warn(
            f"{where}: of its axes ({shape}) only the bands are told, by the wavelengths; it was read as axes={axes!r}"
        )
        return axes
    dims = ", ".join(entry.dims) if any(entry.dims) else "without names"
    msg = (
        f"{where} is {shape} with the axes {dims}; which are rows, columns and bands is not told: give axes=, such as "
        "'yxb' or 'byx', in the stored order"
    )
    raise FormatError(msg)


def _lists(store: HdfContainer, entry: Entry, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Return the lists of numbers with one of these names, nearest to the cube first: its own dimensions, its group."""
    group = entry.name.rpartition("/")[0]
    found = [
        other
        for name, other in store.entries.items()
        if len(other.shape) == 1
        and other.dtype is not None
        and other.dtype.kind in "iuf"
        and is_small(other)
        and (
            name.rsplit("/", 1)[-1].casefold() in names
            or (
                names is WAVELENGTH_NAMES
                and "wavelength" in (text_of(other.attrs.get("standard_name")) or "")
            )
        )
    ]
    found.sort(
        key=lambda other: (other.name not in entry.dims, other.name.rpartition("/")[0] != group, other.name)
    )
    return {other.name: np.asarray(store.values(other.name), np.float64) for other in found[:8]}


def _wavelengths(
    store: HdfContainer,
    entry: Entry,
    centres: dict[str, NDArray[np.float64]],
    bands: int,
    options: Options,
    notes: Notes,
    where: str,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return wavelengths and widths in nm of the first lists of the right length."""
    name = next((name for name, values in centres.items() if len(values) == bands), None)
    if name is None:
        return None, None
    widths = next((v for v in _lists(store, entry, FWHM_NAMES).values() if len(v) == bands), None)
    unit = text_of(store.entries[name].attrs.get("units"))
    return to_nanometres(centres[name], unit, where, notes, fwhm=widths, override=options.wavelength_unit)


def _numbers(entry: Entry, notes: Notes, where: str) -> dict[str, float]:
    """Return nodata, scale and offset by CF's attributes, which are kept and never applied here."""
    out: dict[str, float] = {}
    for name, word in (
        ("scale", "scale_factor"),
        ("offset", "add_offset"),
        ("nodata", "_FillValue"),
        ("nodata", "missing_value"),
    ):
        value = entry.attrs.get(word)
        if value is None:
            continue
        try:
            numbers = np.asarray(value, np.float64).reshape(-1)
        except (TypeError, ValueError):
            numbers = np.empty(0)
        if numbers.size != 1:
            notes.warn(f"{where}: {word} = {str(value)[:60]} is not one number; it is not used")
            continue
        if name in out and not np.array_equal(out[name], float(numbers[0]), equal_nan=True):
            notes.warn(f"{where}: {word} = {numbers[0]:g} beside _FillValue = {out[name]:g}, which is used")
        out.setdefault(name, float(numbers[0]))
    return out


def _place(store: HdfContainer, entry: Entry, axes: str, notes: Notes) -> tuple[CRS | None, Affine | None]:
    """Return coordinate system and transform: the CF grid mapping, and evenly spaced coordinates of the axes."""
    group = entry.name.rpartition("/")[0]
    mapping = (text_of(entry.attrs.get("grid_mapping")) or "").split(":")[0].strip()
    beside = f"{group}/{mapping}" if group else mapping
    crs, transform = place_of(store.entries.get(beside) or store.entries.get(mapping), store.path, notes)
    if transform is not None or not any(entry.dims):
        return crs, transform
    steps: dict[str, tuple[float, float]] = {}
    for axis in "yx":
        dim = entry.dims[axes.index(axis)]
        coordinate = store.entries.get(dim)
        if (
            coordinate is None
            or coordinate.dtype is None
            or coordinate.dtype.kind not in "iuf"
            or not is_small(coordinate)
        ):
            return crs, None
        centres = np.asarray(store.values(dim), np.float64)
        step = np.diff(centres)
        if (
            len(centres) < 2
            or not np.isfinite(step).all()
            or np.ptp(step) > 1e-3 * abs(step[0])
            or step[0] == 0
        ):
            return crs, None
        size = (centres[-1] - centres[0]) / (len(centres) - 1)
        if np.array_equal(centres, np.arange(len(centres))):
            return crs, None  # numbers of rows or columns, no places
        steps[axis] = float(centres[0] - size / 2), float(size)
    return crs, Affine(steps["x"][1], 0.0, steps["x"][0], 0.0, steps["y"][1], steps["y"][0])


def _latlon(store: HdfContainer, entry: Entry, axes: str) -> tuple[da.Array | None, da.Array | None]:
    """Return lazy latitude and longitude planes of the cube's size, or Nones."""
    size = tuple(entry.shape[axes.index(axis)] for axis in "yx")
    found: list[da.Array] = []
    for words in (("lat", "latitude"), ("lon", "longitude")):
        for name, other in store.entries.items():
            fits = other.shape == size and other.dtype is not None and other.dtype.kind == "f"
            if fits and name.rsplit("/", 1)[-1].casefold() in words:
                found.append(store.plane(name, "yx"))
                break
    return (found[0], found[1]) if len(found) == 2 else (None, None)


def _recognise(path: str, head: bytes) -> str | None:
    if not is_hdf5(path, head):
        return None
    return "the file has the signature of HDF5 (netCDF-4 is HDF5), and no product's structure was found in it"


READER = Reader("netcdf", "netCDF-4 or HDF5", _recognise, open_netcdf, proved="real files")
