"""Latitude and longitude of a cube in sensor geometry: from rational polynomials (RPC), else from its four corners.

An RPC maps latitude, longitude and height to row and column, where 0 is the centre of the first pixel; GDAL inverts it
pixel by pixel, at one height for the whole scene. Relief displaces a pixel by its height above that times the tangent
of the viewing angle: 18 m for each 100 m at 10 degrees off nadir.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from xml.etree.ElementTree import Element

import dask.array as da
import numpy as np
import rasterio
from dask.base import tokenize
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError  # which GDAL's transformers raise as it is
from rasterio.errors import RasterioError
from rasterio.rpc import RPC
from rasterio.transform import RPCTransformer

from .indexing import indices, split_key, squeeze
from .options import Notes
from .raster import open_quietly
from .xml_metadata import number_of

F8 = NDArray[np.float64]
Place = tuple[float, float]
"""Latitude and longitude in degrees."""

CORNERS = ("upper_left", "upper_right", "lower_left", "lower_right")

_PIXEL_ERROR = 1e-3
"""In pixels, at which GDAL stops improving a place."""
_FAR = 0.2
"""Of the scene's diagonal: corners of both kinds further apart contradict each other. EnMAP's SWIR lies 0.014 apart."""


@dataclass(frozen=True)
class Polynomials:
    """An RPC at one height."""

    rpc: RPC
    height_m: float

    def locate(self, row: F8, col: F8) -> F8:
        """Return latitude and longitude (2, ...) of pixels; NaN where there is no such place."""
        how = {"RPC_HEIGHT": self.height_m, "RPC_PIXEL_ERROR_THRESHOLD": _PIXEL_ERROR}
        try:
            # in an environment what GDAL complains about goes into the exception, not to the terminal
            with rasterio.Env(), RPCTransformer(self.rpc, **how) as rpc:
                lon, lat = rpc.xy(row.ravel(), col.ravel(), offset="center")
        except (RasterioError, CPLE_BaseError, ValueError, OverflowError):
            return np.full((2, *row.shape), np.nan)
        found = np.stack([np.asarray(lat, np.float64), np.asarray(lon, np.float64)])
        away = ~((np.abs(found[0]) <= 90) & (np.abs(found[1]) <= 360))
        found[:, away] = np.nan
        return found.reshape(2, *row.shape)


@dataclass(frozen=True)
class Corners:
    """Places of the four corner pixels, in the order of `CORNERS`; bilinear between them."""

    shape_yx: tuple[int, int]
    places: tuple[Place, ...]

    def locate(self, row: F8, col: F8) -> F8:
        """Return latitude and longitude (2, ...) of pixels."""
        down, across = (
            value / max(1, size - 1) for value, size in zip((row, col), self.shape_yx, strict=True)
        )
        corner = np.array(self.places)
        corner[:, 1] = corner[0, 1] + (corner[:, 1] - corner[0, 1] + 180) % 360 - 180  # over the date line
        weights = ((1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across)
        found = np.tensordot(corner.T, np.stack(weights), 1)
        found[1] = (found[1] + 180) % 360 - 180
        return found


class _Plane:
    """Latitude (0) or longitude (1) as an array-like (y, x)."""

    ndim = 2
    dtype = np.dtype(np.float64)

    def __init__(self, view: Polynomials | Corners, shape_yx: tuple[int, int], which: int) -> None:
        self.view, self.shape, self.which = view, shape_yx, which

    def __getitem__(self, key: Any) -> F8:
        parts = key if isinstance(key, tuple) else (key,)
        axes, drop = split_key((*parts, *(slice(None),) * (2 - len(parts)), 0), (*self.shape, 1))
        row, col = np.meshgrid(*(indices(a, n).astype(np.float64) for a, n in zip(axes, self.shape, strict=False)),
                               indexing="ij")  # fmt: skip
        return squeeze(self.view.locate(row, col)[self.which][:, :, None], drop)


def located(
    like_yxb: da.Array,
    rpc: RPC | None,
    height_m: float | None,
    corners: Mapping[str, Place],
    name: str,
    notes: Notes,
) -> dict[str, Any]:
    """Return lazy `lat_yx` and `lon_yx` of a cube, as arguments of `make_scene`; nothing where its place is not known.

    Parameters
    ----------
    like_yxb
        The cube.
    rpc
        What the product tells; None for nothing.
    height_m
        Height of the ground above the ellipsoid; None for the RPC's own middle.
    corners
        Places of the corner pixels, by the names in `CORNERS`.
    name
        The product, for messages.
    notes
        Takes the warnings.
    """
    shape = (int(like_yxb.shape[0]), int(like_yxb.shape[1]))
    known = tuple(corners[key] for key in CORNERS if key in corners)
    between = Corners(shape, known) if len(known) == len(CORNERS) and _on_earth(known) else None
    view = None if rpc is None else Polynomials(rpc, rpc.height_off if height_m is None else height_m)
    at = np.array([[0.0, 0, shape[0] - 1, shape[0] - 1], [0, shape[1] - 1, 0, shape[1] - 1]])
    if view is not None and not _leads_somewhere(view, at):
        notes.warn(f"{name}: its rational polynomials (RPC) lead to no place on earth; they are not used")
        view = None
    if view is None and between is None:
        notes.warn(
            f"{name}: neither rational polynomials (RPC) nor four corners; where its pixels lie is not known"
        )
        return {}
    if view is None:
        notes.warn(
            f"{name} has no usable rational polynomials (RPC): latitude and longitude are interpolated between its four "
            "corners, which can be some 20 pixels wrong, and more over relief; use a map product (L1C, L2A) where places "
            "matter"
        )
    elif between is not None and _contradict(view.locate(*at), between.locate(*at)):
        notes.warn(
            f"{name}: its rational polynomials (RPC) and its corners put the scene at different places; latitude and "
            "longitude follow the polynomials"
        )
    chosen = view if view is not None else between
    assert chosen is not None, "one of both is there"
    told = f"RPC at {view.height_m:g} m" if view is not None else "bilinear between four corners"
    planes = {
        key: da.from_array(
            _Plane(chosen, shape, which),
            chunks=like_yxb.chunks[:2],
            name=f"located-{tokenize(_identity(chosen), shape, which)}",
            asarray=False,
            inline_array=True,
            meta=np.empty((0, 0), np.float64),
        )
        for which, key in enumerate(("lat_yx", "lon_yx"))
    }
    return {**planes, "geolocation": told}


def rpc_of_element(node: Element, path: str) -> RPC | None:
    """Return the RPC that an element keeps in `ROW_OFF` ... `HEIGHT_SCALE`, `ROW_NUM_01` ... `COL_DEN_20`; None if incomplete.

    Raises
    ------
    FormatError
        If a number is none.
    """
    names = [
        f"{axis}_{kind}" for axis in ("ROW", "COL", "LAT", "LONG", "HEIGHT") for kind in ("OFF", "SCALE")
    ]
    terms = [f"{axis}_{kind}" for axis in ("ROW", "COL") for kind in ("NUM", "DEN")]
    found = {name: number_of(node, name, path) for name in names}
    lists = {name: [number_of(node, f"{name}_{i:02d}", path) for i in range(1, 21)] for name in terms}
    if None in found.values() or any(None in values for values in lists.values()):
        return None
    n, t = cast("dict[str, float]", found), cast("dict[str, list[float]]", lists)
    make = cast("Any", RPC)  # an attrs class without stubs
    return make(
        height_off=n["HEIGHT_OFF"],
        height_scale=n["HEIGHT_SCALE"],
        lat_off=n["LAT_OFF"],
        lat_scale=n["LAT_SCALE"],
        long_off=n["LONG_OFF"],
        long_scale=n["LONG_SCALE"],
        line_off=n["ROW_OFF"],
        line_scale=n["ROW_SCALE"],
        samp_off=n["COL_OFF"],
        samp_scale=n["COL_SCALE"],
        line_num_coeff=t["ROW_NUM"],
        line_den_coeff=t["ROW_DEN"],
        samp_num_coeff=t["COL_NUM"],
        samp_den_coeff=t["COL_DEN"],
    )


def rpc_of_raster(path: str) -> RPC | None:
    """Return the RPC in a raster's tags, None where it has none or damaged ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_quietly(path) as raster:
                found = raster.rpcs
    except (RasterioError, ValueError, KeyError, TypeError):
        return None
    numbers = [] if found is None else [v for value in found.to_dict().values() for v in np.atleast_1d(value)]
    told = [v for v in numbers if v is not None]
    return found if told and np.isfinite(np.array(told, np.float64)).all() else None


def points_of(node: Element, path: str) -> dict[str, Place]:
    """Return the places of `base/spatialCoverage/boundingPolygon/point` by the name of their frame.

    Raises
    ------
    FormatError
        If a number is none.
    """
    found: dict[str, Place] = {}
    for point in node.findall("base/spatialCoverage/boundingPolygon/point"):
        frame = point.findtext("frame", "").strip()
        lat, lon = (number_of(point, name, path) for name in ("latitude", "longitude"))
        if frame and lat is not None and lon is not None:
            found[frame] = (lat, lon)
    return found


def _identity(view: Polynomials | Corners) -> Any:
    return (
        (view.rpc.to_dict(), view.height_m) if isinstance(view, Polynomials) else (view.shape_yx, view.places)
    )


def _leads_somewhere(view: Polynomials, at: F8) -> bool:
    """Return whether pixels (2, n) have places."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rasterio's, of places without a solution
        return bool(np.isfinite(view.locate(*at)).all())


def _on_earth(places: tuple[Place, ...]) -> bool:
    return all(abs(lat) <= 90 and abs(lon) <= 360 for lat, lon in places) and len(set(places)) > 1


def _contradict(first: F8, other: F8) -> bool:
    """Return whether corners (2, 4) lie much further apart than the corners of one scene."""
    apart = np.stack([first[0] - other[0], (first[1] - other[1] + 180) % 360 - 180])
    across = np.array([other[0, 0] - other[0, 3], (other[1, 0] - other[1, 3] + 180) % 360 - 180])
    shrink = np.array([1.0, np.cos(np.radians(other[0, 0]))])
    return bool(
        np.hypot(*(apart * shrink[:, None])).max() > _FAR * max(float(np.hypot(*(across * shrink))), 1e-12)
    )
