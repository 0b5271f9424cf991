"""Scenes as `writers` store them, in netCDF-4 or Zarr: read back equal in every variable, coordinate and attribute.

One mapping for both containers. The cube may have its axes in any order, since they have names. Its nodata, scale and
offset are `_FillValue`, `scale_factor` and `add_offset` where they are the same for all bands, else variables of the
bands. They are taken over as what they are and never applied here. What CF has no words for stands as JSON in an
attribute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from ..errors import FormatError
from ..scene import PER_BAND, make_scene
from .anywhere import files_below, is_file
from .options import Notes, Options

CONVENTIONS = "CF-1.11"
MARKER = "bandstream_scene"
"""Attribute of a file that a scene was written to; holds the version of the mapping."""

MARKER_VERSION = 1
MORE = "bandstream_attrs"
TEXTS = "bandstream_texts"
"""Attributes that hold JSON: the scene's own attributes, and lists of texts along the bands."""

_MOST_JSON = 4 * 2**20
_PACKING = {"nodata": "_FillValue", "scale": "scale_factor", "offset": "add_offset"}
_BAND_COORDS = ("wavelength", "fwhm", "good_band", "band_name", "detector", *PER_BAND)
_PLACES = ("y", "x", "band", "spatial_ref", "ortho_y", "ortho_x")
_RESERVED = ("quantity", "units", *PER_BAND, "source", "files", "reader", "why", "warnings", "valid_rule")


@dataclass(frozen=True)
class Entry:
    """One array of a container: its axes by name, shape, number type (None for texts and the like) and attributes."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Container(Protocol):
    """A netCDF-4 file or a Zarr folder."""

    @property
    def path(self) -> str:
        """File or folder."""
        ...

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the whole."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Arrays by name."""
        ...

    def values(self, name: str) -> NDArray[Any]:
        """Read a small array: numbers, bool, or texts as objects."""
        ...

    def cube(self, name: str, axes: str, notes: Notes) -> tuple[da.Array, int | None]:
        """Return an array as lazy cube (y, x, band), and the bytes that reading takes beside a window."""
        ...

    def plane(self, name: str, axes: str) -> da.Array:
        """Return an array as lazy plane (y, x)."""
        ...


def encode_attrs(attrs: Mapping[str, Any]) -> str:
    """Return attributes as JSON; numbers of NumPy become plain ones, NaN stays NaN."""

    def plain(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            return value.tolist()
        return str(value)

    return json.dumps(dict(attrs), default=plain, ensure_ascii=False)


def decode_attrs(text: Any, where: str) -> dict[str, Any]:
    """Return attributes from JSON.

    Raises
    ------
    FormatError
        If it is no JSON object of a sane size.
    """
    try:
        found: Any = json.loads(str(text)) if len(str(text)) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        msg = f"{where}: the attribute with the scene's own attributes cannot be read; the file is damaged"
        raise FormatError(msg)
    return cast("dict[str, Any]", found)


def scene_of(
    store: Container, options: Options, notes: Notes, *, reader: str, why: str, files: list[str]
) -> xr.Dataset:
    """Make the scene that a container holds.

    Raises
    ------
    FormatError
        If a variable is missing, or contradicts another one.
    """
    where = store.path
    version = store.attrs.get(MARKER)
    if version is None or int(np.asarray(version).reshape(-1)[0]) != MARKER_VERSION:
        msg = f"{where}: written under version {version} of the scene mapping; this release reads {MARKER_VERSION}"
        raise FormatError(msg)
    cube = store.entries.get("data")
    if cube is None or sorted(cube.dims) != ["band", "x", "y"]:
        msg = f"{where}: no variable data(y, x, band); the file is incomplete: write it again"
        raise FormatError(msg)
    bands = cube.shape[cube.dims.index("band")]
    data, held = store.cube("data", "".join(dim[0] for dim in cube.dims), notes)
    lists = _band_lists(store, bands)
    crs, transform = place_of(store.entries.get("spatial_ref"), where, notes)
    attrs = decode_attrs(store.attrs.get(MORE, "{}"), where)
    quantity, units = str(attrs.get("quantity", "other")), str(attrs.get("units", ""))
    numbers: dict[str, Any] = {name: cube.attrs.get(word, lists.get(name)) for name, word in _PACKING.items()}
    if numbers["nodata"] is not None and cube.dtype == np.float32 and "_FillValue" in cube.attrs:
        # the decimal that was meant: -0.005, not the double nearest to the float nearest to it
        numbers["nodata"] = float(str(np.float32(numbers["nodata"])))
    numbers |= {name: value for name in PER_BAND if (value := getattr(options, name)) is not None}
    planes = {n: e for n, e in store.entries.items() if set(e.dims) == {"y", "x"} and len(e.dims) == 2}
    lazy = {name: store.plane(name, "".join(entry.dims)) for name, entry in planes.items()}
    valid = lazy.pop("valid", None)
    more = {n: (lazy[n], layer_attrs(planes[n].attrs)) for n in lazy if n not in ("lat", "lon")}
    scene = make_scene(
        data,
        wavelength_nm=lists.get("wavelength"),
        fwhm_nm=lists.get("fwhm"),
        good_band=lists.get("good_band"),
        band_names=lists.get("band_name"),
        detector=lists.get("detector"),
        crs=crs,
        transform=transform,
        **{name: None if value is None else np.asarray(value, np.float64) for name, value in numbers.items()},
        quantity=options.quantity or quantity,
        units=options.units if options.units is not None else units,
        valid_yx=None if valid is None else valid.astype(bool),
        layers=more,
        lat_yx=lazy.get("lat"),
        lon_yx=lazy.get("lon"),
        **{k: v for k, v in attrs.items() if k not in _RESERVED and k.isidentifier()},
        source=where,
        files=files,
        block_bytes=held,
        reader=reader,
        why=why,
    )
    if valid is not None and attrs.get("valid_rule"):
        scene.attrs["valid_rule"] = str(attrs["valid_rule"])
    return _with_lookup(scene, store)


def _with_lookup(scene: xr.Dataset, store: Container) -> xr.Dataset:
    """Add the geometric look-up table, which has a grid of its own."""
    for name, entry in store.entries.items():
        if entry.dims == ("ortho_y", "ortho_x"):
            scene[name] = (entry.dims, store.plane(name, "yx"), layer_attrs(entry.attrs))
    return scene


def layer_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a layer without those that belong to the container."""
    own = (
        "_FillValue",
        "dtype",
        "coordinates",
        "grid_mapping",
        "DIMENSION_LIST",
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
    )
    return {k: v for k, v in attrs.items() if k not in own and not k.startswith("_Netcdf4")}


def _band_lists(store: Container, bands: int) -> dict[str, Any]:
    """Return the lists along the bands, by name."""
    texts = decode_attrs(store.attrs.get(TEXTS, "{}"), store.path)
    out: dict[str, Any] = {}
    for name in _BAND_COORDS:
        values: Any = None
        if name in store.entries and store.entries[name].dims == ("band",):
            values = store.values(name)
        elif name in texts:
            values = texts[name]
        if values is None:
            continue
        if len(values) != bands:
            msg = f"{store.path}: {name} has {len(values)} entries for {bands} bands; the file is damaged"
            raise FormatError(msg)
        out[name] = [str(v) for v in values] if name in ("band_name", "detector") else np.asarray(values)
    return out


def place_of(entry: Entry | None, where: str, notes: Notes) -> tuple[CRS | None, Affine | None]:
    """Return coordinate system and transform of a CF grid mapping variable, with a warning where they are unreadable."""
    if entry is None:
        return None, None
    crs: CRS | None = None
    wkt = entry.attrs.get("crs_wkt") or entry.attrs.get("spatial_ref")
    if wkt:
        try:
            crs = CRS.from_wkt(str(wkt))
        except (CRSError, ValueError):  # ValueError: bytes that are no text
            notes.warn(f"{where}: the coordinate system of {entry.name} cannot be read; the scene has no CRS")
    text = entry.attrs.get("GeoTransform")
    if text is None:
        return crs, None
    try:
        six = [
            float(v) for v in (str(text).split() if isinstance(text, str) else np.asarray(text).reshape(-1))
        ]
    except ValueError:
        six = []
    if len(six) != 6 or not np.isfinite(six).all() or six[1] * six[5] - six[2] * six[4] == 0:
        notes.warn(f"{where}: GeoTransform = {str(text)[:80]!r} makes no grid; the scene has no transform")
        return crs, None
    return crs, Affine.from_gdal(*six)


def files_of(path: str) -> list[str]:
    """Return the file, or all files of a folder, sorted."""
    return [path] if is_file(path) else files_below(path)


def is_small(entry: Entry) -> bool:
    """Return whether an array may be read as a list."""
    return math.prod(entry.shape) <= 1_000_000
