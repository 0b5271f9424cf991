"""The Scene contract: one lazy `xarray.Dataset` for every hyperspectral file, whatever its format.

Every reader ends in `make_scene`, and everything after the readers looks at a scene only through the functions of
this module. A scene holds

- `data(y, x, band)`: Dask-backed, in the file's own number type (native byte order) and not yet scaled;
- `valid(y, x)`: the pixel holds data in at least one band (or what the product, or a mask, says: `valid_rule`);
- `quality_*(y, x)`: the product's own quality layers; `lat(y, x)` and `lon(y, x)` in degrees where the cube is in
  sensor geometry; `glt_row` and `glt_col (ortho_y, ortho_x)` where the product tells which pixel belongs where on earth;
- coordinates `wavelength(band)` and `fwhm(band)` in nm (left out where unknown), `good_band(band)`,
  `band_name(band)`, `y`, `x`, and `spatial_ref` (a CF grid mapping) where the place on earth is known;
- `nodata`, `scale` and `offset` as attributes when they are the same for all bands, else as coordinates of `band`,
  so that choosing bands by `isel(band=...)` keeps them true. Physical value = raw * scale + offset, and nodata is
  compared with the raw number.

Wavelengths need not be ascending: detectors overlap, and some files list bands backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import ArrayLike, NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from .errors import SceneError
from .nodata import lazy_valid
from .place import grid_mapping_attrs, index_origin, pixel_coordinates, shifted

QUANTITIES = ("dn", "radiance", "toa_reflectance", "surface_radiance", "surface_reflectance", "other")
"""What the physical value can be; `other` where neither file nor user says."""

PER_BAND = ("nodata", "scale", "offset")
"""Numbers that are an attribute when uniform and a coordinate of `band` when not."""

WAVELENGTH_NAME = "sensor_band_central_radiation_wavelength"
"""CF standard name of the wavelength coordinate (CF has none for the full width at half maximum)."""

SHORTEST_NM = 100.0
"""Wavelengths below this are micrometres that somebody took for nanometres."""


Layer = da.Array | tuple[da.Array, dict[str, Any]]
"""A lazy plane (y, x), with attributes if there are any."""


def make_scene(
    data_yxb: da.Array,
    *,
    wavelength_nm: ArrayLike | None = None,
    fwhm_nm: ArrayLike | None = None,
    good_band: ArrayLike | None = None,
    band_names: Sequence[str] | None = None,
    detector: Sequence[str] | None = None,
    crs: CRS | None = None,
    transform: Affine | None = None,
    nodata: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    quantity: str = "other",
    units: str = "",
    valid_yx: da.Array | None = None,
    quality: Mapping[str, Layer] | None = None,
    layers: Mapping[str, Layer] | None = None,
    lat_yx: da.Array | None = None,
    lon_yx: da.Array | None = None,
    **attrs: Any,
) -> xr.Dataset:
    """Put a lazy cube and what is known about it into a scene.

    Parameters
    ----------
    data_yxb
        Lazy cube, axes (y, x, band), any real number type.
    wavelength_nm, fwhm_nm
        Band centres and widths in nm, one per band, in the order of the bands; None where unknown.
    good_band
        Per band: true where the band is usable; all true when None.
    band_names, detector
        One text per band. Names default to `Band 1`, `Band 2`...; `detector` is set only where the product tells it.
    crs, transform
        Place on earth: `transform` maps (column, row) of pixel corners to coordinates and may be rotated.
    nodata, scale, offset
        One number, or one per band; physical value = raw * scale + offset. NaN in a per-band `nodata` means none.
    quantity, units
        One of `QUANTITIES`, and the unit of the physical value.
    valid_yx
        Lazy bool (y, x), when it is not simply derived from `nodata` and the finite numbers.
    quality, layers
        Lazy arrays (y, x) by name, or (array, attributes): quality layers become `quality_<name>`, other layers (such
        as `sun_zenith` in degrees) keep their name.
    lat_yx, lon_yx
        Lazy latitude and longitude of the pixel centres in degrees (WGS 84), for a cube in sensor geometry.
    **attrs
        Further attributes, such as `scene_id`, `source`, `files`, `reader`, `sensor`; None values are left out.

    Returns
    -------
    xarray.Dataset
        A scene as the module describes it.

    Raises
    ------
    SceneError
        If the lengths of the lists do not fit the bands, or `quantity` is unknown.
    """
    if data_yxb.ndim != 3:
        msg = f"a scene needs a cube with the axes (y, x, band), got {data_yxb.ndim} axes: {data_yxb.shape}"
        raise SceneError(msg)
    rows, cols, bands = (int(n) for n in data_yxb.shape)
    y, x = pixel_coordinates(rows, cols, transform)
    coords: dict[str, Any] = {"y": ("y", y), "x": ("x", x)}
    coords |= _band_coords(bands, wavelength_nm, fwhm_nm, good_band, band_names, detector)
    spatial = grid_mapping_attrs(crs, transform)
    grid: dict[str, Any] = {}
    if spatial is not None:
        coords["spatial_ref"] = ((), np.int64(0), spatial)
        grid = {"grid_mapping": "spatial_ref"}

    kept = {"quantity": quantity, "units": units, **{k: v for k, v in attrs.items() if v is not None}}
    kept.setdefault("warnings", [])
    numbers = {"nodata": nodata, "scale": scale, "offset": offset}
    for name, value in numbers.items():
        if value is not None:
            _put_per_band(coords, kept, name, np.asarray(value, np.float64), bands)
    nodata_b = _spread(None if nodata is None else np.asarray(nodata, np.float64), bands, np.nan)
    valid = lazy_valid(data_yxb, nodata_b) if valid_yx is None else valid_yx
    if valid_yx is not None:
        kept["valid_rule"] = "product"
    named = {f"quality_{name}": layer for name, layer in (quality or {}).items()} | dict(layers or {})
    planes = {name: _plane(layer, grid) for name, layer in named.items()}
    for name, array, standard, unit in (
        ("lat", lat_yx, "latitude", "degrees_north"),
        ("lon", lon_yx, "longitude", "degrees_east"),
    ):
        if array is not None:
            coords[name] = (("y", "x"), array, {"standard_name": standard, "units": unit})
    scene = xr.Dataset(
        {"data": (("y", "x", "band"), data_yxb, grid), "valid": (("y", "x"), valid, grid)} | planes,
        coords=coords,
        attrs=kept,
    )
    check_scene(scene)
    return scene


def _plane(layer: Layer, grid: dict[str, Any]) -> tuple[tuple[str, str], Any, dict[str, Any]]:
    """Return a layer (y, x) as xarray takes it."""
    array, attrs = layer if isinstance(layer, tuple) else (layer, {})
    return ("y", "x"), array, {**grid, **attrs}


def check_scene(ds: xr.Dataset) -> None:
    """Raise unless `ds` keeps the Scene contract (so that a Dataset of the user's own can be fed).

    Raises
    ------
    SceneError
        Naming the first variable, coordinate or attribute that breaks the contract, and what is allowed.
    """
    for name, dims in (("data", ("y", "x", "band")), ("valid", ("y", "x"))):
        if name not in ds:
            msg = f"the scene has no variable `{name}`; it needs data(y, x, band) and valid(y, x), got {list(ds)}"
            raise SceneError(msg)
        if ds[name].dims != dims:
            msg = f"`{name}` has the axes {ds[name].dims}; a scene needs {dims}: use .transpose{dims}"
            raise SceneError(msg)
    if ds["data"].dtype.kind not in "iuf":
        msg = f"`data` holds {ds['data'].dtype}; a scene holds real numbers (integers or floats)"
        raise SceneError(msg)
    if ds["valid"].dtype != np.bool_:
        msg = f"`valid` holds {ds['valid'].dtype}; it must be bool"
        raise SceneError(msg)
    if 0 in ds["data"].shape:
        msg = f"the scene is empty: (y, x, band) = {ds['data'].shape}"
        raise SceneError(msg)
    for name in ("good_band", "wavelength", "fwhm", "band_name", "detector", *PER_BAND):
        if name in ds.coords and ds[name].dims != ("band",):
            msg = f"coordinate `{name}` has the axes {ds[name].dims}; it needs ('band',)"
            raise SceneError(msg)
    if "good_band" not in ds.coords or ds["good_band"].dtype != np.bool_:
        msg = "the scene needs the bool coordinate good_band(band); all true where nothing is known"
        raise SceneError(msg)
    _check_numbers(ds)


def _check_numbers(ds: xr.Dataset) -> None:
    """Check quantity, wavelengths and the per-band numbers of a scene."""
    quantity = ds.attrs.get("quantity", "other")
    if quantity not in QUANTITIES:
        msg = f"quantity = {quantity!r} is unknown; allowed: {', '.join(QUANTITIES)}"
        raise SceneError(msg)
    if "wavelength" in ds.coords and float(np.nanmax(ds["wavelength"].values)) < SHORTEST_NM:
        longest = float(np.nanmax(ds["wavelength"].values))
        msg = f"the longest wavelength is {longest:g} nm; a scene holds nm: multiply micrometres by 1000"
        raise SceneError(msg)
    for name in PER_BAND:
        if name in ds.attrs and name in ds.coords:
            msg = f"`{name}` is both attribute and coordinate; keep the coordinate when bands differ, else the attribute"
            raise SceneError(msg)
    scale_b, offset_b = scale_offset(ds)
    if not (np.isfinite(scale_b).all() and np.isfinite(offset_b).all() and (scale_b != 0).all()):
        msg = "scale must be finite and not 0, and offset finite, in every band"
        raise SceneError(msg)


def replaced(
    ds: xr.Dataset,
    *,
    nodata: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    quantity: str | None = None,
    units: str | None = None,
) -> xr.Dataset:
    """Return the scene with other numbers per band, or another quantity; None keeps what it has.

    Parameters
    ----------
    ds
        A scene.
    nodata, scale, offset
        One number, or one per band. NaN in `nodata` means none; `valid` follows, unless the product brought it.
    quantity, units
        As for `make_scene`.
    """
    bands = ds.sizes["band"]
    coords: dict[str, Any] = {}
    attrs = dict(ds.attrs)
    gone: list[str] = []
    for name, value in {"nodata": nodata, "scale": scale, "offset": offset}.items():
        if value is None:
            continue
        attrs.pop(name, None)
        if name in ds.coords:
            gone.append(name)
        _put_per_band(coords, attrs, name, np.asarray(value, np.float64), bands)
    attrs |= {k: v for k, v in {"quantity": quantity, "units": units}.items() if v is not None}
    out = ds.drop_vars(gone).assign_coords(coords)
    out.attrs = attrs
    if nodata is not None and "valid_rule" not in attrs:
        out["valid"] = (("y", "x"), lazy_valid(out["data"].data, nodata_values(out)), ds["valid"].attrs)
    check_scene(out)
    return out


def scene_crs(ds: xr.Dataset) -> CRS | None:
    """Return the coordinate reference system, or None where it is unknown."""
    wkt = cast("object", ds["spatial_ref"].attrs.get("crs_wkt")) if "spatial_ref" in ds.coords else None
    if not wkt:
        return None
    try:
        return CRS.from_wkt(str(wkt))
    except CRSError as error:
        msg = f"spatial_ref.crs_wkt cannot be read: {error}"
        raise SceneError(msg) from error


def scene_transform(ds: xr.Dataset) -> Affine | None:
    """Return the affine map from (column, row) of pixel corners to coordinates, or None where it is unknown.

    It follows the `y` and `x` coordinates, so that it stays true after cropping and regular thinning by `isel`.
    """
    text = ds["spatial_ref"].attrs.get("GeoTransform") if "spatial_ref" in ds.coords else None
    if not text:
        return None
    transform = Affine.from_gdal(*(float(v) for v in str(text).split()))
    col, col_step = index_origin(ds["x"].values, transform, transform.c, transform.a)
    row, row_step = index_origin(ds["y"].values, transform, transform.f, transform.e)
    if (col, row, col_step, row_step) == (0.0, 0.0, 1.0, 1.0):
        return transform
    return shifted(transform, col, row, col_step, row_step)


def scale_offset(ds: xr.Dataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scale and offset per band, float64 (band,): physical value = raw * scale + offset."""
    return _numbers(ds, "scale", 1.0), _numbers(ds, "offset", 0.0)


def nodata_values(ds: xr.Dataset) -> NDArray[np.float64]:
    """Return the nodata value per band, float64 (band,); NaN where a band has none (NaN pixels are invalid anyway)."""
    return _numbers(ds, "nodata", np.nan)


def nearest_band(ds: xr.Dataset, wavelength_nm: float) -> int:
    """Return the 0-based band whose centre is nearest to `wavelength_nm`, whatever the order of the bands.

    Raises
    ------
    SceneError
        If the scene has no wavelengths.
    """
    if "wavelength" not in ds.coords:
        msg = f"the scene has no wavelengths, so no band is nearest to {wavelength_nm:g} nm; choose bands by number"
        raise SceneError(msg)
    return int(np.nanargmin(np.abs(ds["wavelength"].values - wavelength_nm)))


def summary(ds: xr.Dataset) -> dict[str, Any]:
    """Return what `bandstream scene info --json` prints: plain lists and numbers, None where unknown."""
    crs, transform = scene_crs(ds), scene_transform(ds)
    out: dict[str, Any] = {
        "shape_yxb": list(ds["data"].shape),
        "dtype": str(ds["data"].dtype),
        "wavelength_nm": ds["wavelength"].values.tolist() if "wavelength" in ds.coords else None,
        "fwhm_nm": ds["fwhm"].values.tolist() if "fwhm" in ds.coords else None,
        "good_band": ds["good_band"].values.tolist(),
        "nodata": _plain(ds, "nodata"),
        "scale": _plain(ds, "scale"),
        "offset": _plain(ds, "offset"),
        "quantity": ds.attrs.get("quantity", "other"),
        "units": ds.attrs.get("units", ""),
        "crs": None if crs is None else crs.to_string(),
        "transform": None if transform is None else list(transform)[:6],
    }
    for name in (
        *("sensor", "product", "acquired", "scene_id", "reader", "why", "experimental", "resampled"),
        *("sun_zenith_deg", "sun_azimuth_deg", "view_zenith_deg", "earth_sun_distance_au"),
    ):
        out[name] = ds.attrs.get(name)
    out["layers"] = [str(name) for name in ds.variables if ds[name].dims == ("y", "x") and name != "valid"]
    for name in ("files", "warnings"):
        out[name] = list(ds.attrs.get(name, []))
    return out


def _plain(ds: xr.Dataset, name: str) -> float | str | list[float | str] | None:
    """Return a per-band number as JSON can hold it (NaN and infinities become text)."""

    def one(value: float) -> float | str:
        return value if np.isfinite(value) else str(value)

    if name in ds.coords:
        return [one(float(v)) for v in ds[name].values]
    return one(float(ds.attrs[name])) if name in ds.attrs else None


def _numbers(ds: xr.Dataset, name: str, default: float) -> NDArray[np.float64]:
    """Return a per-band number from the coordinate or the attribute, whichever holds it."""
    bands = ds.sizes["band"]
    if name in ds.coords:
        return np.array(ds[name].values, np.float64)
    return np.full(bands, float(ds.attrs.get(name, default)), np.float64)


def _band_coords(
    bands: int,
    wavelength_nm: ArrayLike | None,
    fwhm_nm: ArrayLike | None,
    good_band: ArrayLike | None,
    band_names: Sequence[str] | None,
    detector: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the coordinates along `band`, each checked to have one entry per band."""
    names = [f"Band {b + 1}" for b in range(bands)] if band_names is None else band_names
    good = np.ones(bands, bool) if good_band is None else np.asarray(good_band).astype(bool)
    coords: dict[str, Any] = {
        "good_band": ("band", _per_band("good_band", good, bands)),
        "band_name": ("band", np.array(_listed("band_names", names, bands))),
    }
    if wavelength_nm is not None:
        wavelength = _per_band("wavelength_nm", np.asarray(wavelength_nm, np.float64), bands)
        coords["wavelength"] = ("band", wavelength, {"units": "nm", "standard_name": WAVELENGTH_NAME})
    if fwhm_nm is not None:
        fwhm = _per_band("fwhm_nm", np.asarray(fwhm_nm, np.float64), bands)
        coords["fwhm"] = ("band", fwhm, {"units": "nm", "long_name": "full width at half maximum"})
    if detector is not None:
        coords["detector"] = ("band", np.array(_listed("detector", detector, bands)))
    return coords


def _per_band(name: str, values: NDArray[Any], bands: int) -> NDArray[Any]:
    """Return `values` if there is one per band."""
    if values.shape != (bands,):
        msg = f"`{name}` has {values.size} values for {bands} bands; give one per band"
        raise SceneError(msg)
    return values


def _listed(name: str, values: Sequence[str], bands: int) -> list[str]:
    """Return a list of texts if there is one per band."""
    if len(values) != bands:
        msg = f"`{name}` has {len(values)} entries for {bands} bands; give one per band"
        raise SceneError(msg)
    return [str(v) for v in values]


def _spread(value: NDArray[np.float64] | None, bands: int, default: float) -> NDArray[np.float64]:
    """Return one number per band."""
    return np.broadcast_to(np.float64(default) if value is None else value, (bands,)).astype(np.float64)


def _put_per_band(
    coords: dict[str, Any], attrs: dict[str, Any], name: str, value: NDArray[np.float64], bands: int
) -> None:
    """Store a number as attribute when uniform, else as coordinate; what changes nothing is left out."""
    neutral: dict[str, Callable[[NDArray[Any]], Any]] = {
        "nodata": lambda v: np.isnan(v).all() and v.ndim > 0,
        "scale": lambda v: (v == 1).all(),
        "offset": lambda v: (v == 0).all(),
    }
    if value.ndim > 0:
        _per_band(name, value, bands)
    if neutral[name](value):
        return
    first = value.reshape(-1)[0]
    if ((value == first) | (np.isnan(value) & np.isnan(first))).all():
        attrs[name] = float(first)
    else:
        coords[name] = ("band", value)
