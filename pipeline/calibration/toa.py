"""Radiance to reflectance at the top of the atmosphere: pi L d^2 / (E0 cos(theta)).

L is the radiance in W m-2 sr-1 um-1, d the distance of the sun in astronomical units, E0 the sun's irradiance at 1 AU
convolved to each band with a Gaussian of the band's width, and theta the sun's zenith angle.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError, SceneError
from ..scene import scale_offset, scene_crs, scene_transform
from .gaussian import band_shapes
from .maps import UNITS, bands_text, name_of, per_band, per_pixel
from .radiance_scale import by_scale
from .solar import earth_sun_distance, load_solar, parse_time, sun_zenith

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

F8 = NDArray[np.float64]

_RADIANCE_UNITS = ("", UNITS["radiance"], "W/m2/sr/um", "W/(m2 sr um)", "W/m^2/sr/um", "W m-2 um-1 sr-1")

_ZONED = re.compile(r"T\d\d:?\d\d.*(Z|[+-]\d\d:?\d\d)$", re.IGNORECASE)


def to_toa(
    scene: xr.Dataset,
    *,
    solar: str | None = None,
    sun_zenith_deg: float | None = None,
    earth_sun_distance_au: float | None = None,
    scale: float | None = None,
    offset: float | None = None,
    quantity: str = "toa_reflectance",
    how: str = "",
) -> xr.Dataset:
    """Return top-of-atmosphere reflectance from radiance, lazily.

    The sun's zenith is the one given, else the scene's layer `sun_zenith` per pixel (NaN where that is no angle from 0
    to below 90 degrees), else the scene's own single number, else computed for the scene's centre from time and place.

    Parameters
    ----------
    scene
        At-sensor radiance.
    solar
        Table of solar irradiance, as for `load_solar`.
    sun_zenith_deg, earth_sun_distance_au
        Stand in for what the scene tells. The distance is computed from the date where nobody tells it.
    scale, offset
        Bring the stored numbers of a scene of unknown quantity to radiance first.
    quantity, how
        For methods that build on this one.

    Returns
    -------
    xarray.Dataset
        The scene in `quantity`; bands whose centre is unknown or beyond the solar table are NaN and listed as bad.

    Raises
    ------
    ConfigError
        The scene holds no at-sensor radiance, or the sun's place is not known.
    """
    if scene.attrs.get("quantity", "other") == "toa_reflectance":
        return scene
    radiance = _radiance(scene, scale, offset)
    centres, widths = band_shapes(radiance, "calibrate.method toa")
    table = load_solar(solar)
    irradiance = table.of_bands(centres, widths)
    unusable = ~(irradiance > 0)
    if unusable.all():
        raise ConfigError(
            f"No band of {name_of(scene)} lies within the solar table {table.name} ({table.wavelength_nm[0]:g} to "
            f"{table.wavelength_nm[-1]:g} nm); give another one by calibrate.solar."
        )
    if unusable.any():
        warnings.warn(
            f"{name_of(scene)}: no solar irradiance for band {bands_text(scene, unusable)}: without a wavelength, or beyond "
            f"the table {table.name}; these bands hold no data and are listed as bad.",
            BandstreamWarning,
            stacklevel=3,
        )
    distance = _distance(scene, earth_sun_distance_au)
    gain = np.pi * distance**2 / np.where(unusable, np.nan, irradiance)
    note = how or f"top-of-atmosphere reflectance with {table.name}, sun at {distance:.5f} AU"
    if sun_zenith_deg is None and "sun_zenith" in radiance:
        own_scale, own_offset = scale_offset(radiance)
        layer = cast("da.Array", radiance["sun_zenith"].data)
        out = per_pixel(
            radiance,
            own_scale * gain,
            own_offset * gain,
            _inverse_cosine(layer),
            quantity,
            f"{note}, zenith per pixel",
        )
        good = np.asarray(scene["good_band"].values, bool) & ~unusable
        return out.assign_coords(good_band=("band", good))
    zenith = _zenith(scene, sun_zenith_deg)
    gain /= np.cos(np.radians(zenith))
    note = f"{note}, zenith {zenith:.3f} degrees"
    return per_band(radiance, gain, np.zeros_like(gain), quantity, note, unusable)


def _radiance(scene: xr.Dataset, scale: float | None, offset: float | None) -> xr.Dataset:
    """Return the scene as at-sensor radiance, or refuse."""
    quantity, units = scene.attrs.get("quantity", "other"), str(scene.attrs.get("units", ""))
    if quantity in ("other", "dn") and scale is not None:
        return by_scale(scene, "radiance", scale, offset)
    if quantity != "radiance":
        hint = {
            "surface_radiance": "the atmosphere is out of it already, so that it has no top-of-atmosphere reflectance",
            "surface_reflectance": "it is calibrated already; leave the stage out",
        }.get(
            str(quantity),
            f"if its numbers times a factor are radiance in {UNITS['radiance']}, give that factor as calibrate.scale",
        )
        raise ConfigError(
            f"Top-of-atmosphere reflectance is made from at-sensor radiance, and {name_of(scene)} holds {quantity}: {hint}."
        )
    if units not in _RADIANCE_UNITS:
        raise ConfigError(
            f"{name_of(scene)} holds radiance in {units!r}, and {UNITS['radiance']} is needed; open it with the scale that "
            f"leads there and units={UNITS['radiance']!r} (x 10 from uW cm-2 sr-1 nm-1, x 1000 from W m-2 sr-1 nm-1)."
        )
    return by_scale(scene, "radiance", scale, offset)


def _distance(scene: xr.Dataset, given: float | None) -> float:
    """Return the sun's distance in astronomical units."""
    told = given if given is not None else scene.attrs.get("earth_sun_distance_au")
    if told is not None:
        if not 0.98 < float(told) < 1.02:
            raise ConfigError(
                f"The distance of the sun is {float(told):g} AU; it lies between 0.983 and 1.017: correct "
                "calibrate.earth_sun_distance_au."
            )
        return float(told)
    when = parse_time(str(scene.attrs.get("acquired", "")))
    if when is None:
        raise ConfigError(
            f"{name_of(scene)} tells neither the distance of the sun nor a date (acquired = "
            f"{scene.attrs.get('acquired')!r}); set calibrate.earth_sun_distance_au."
        )
    return earth_sun_distance(when)


def _zenith(scene: xr.Dataset, given: float | None) -> float:
    """Return one zenith angle of the sun for the scene, in degrees."""
    told = given if given is not None else scene.attrs.get("sun_zenith_deg")
    zenith = _computed_zenith(scene) if told is None else float(told)
    if not 0 <= zenith < 90:
        raise ConfigError(
            f"The sun's zenith angle for {name_of(scene)} is {zenith:g} degrees, so that it does not shine there; "
            "allowed: 0 to below 90. Correct calibrate.sun_zenith_deg, or the scene's time and place."
        )
    return zenith


def _computed_zenith(scene: xr.Dataset) -> float:
    """Return the zenith angle at the scene's centre from its time and place."""
    text = str(scene.attrs.get("acquired", "")).strip()
    when, place = parse_time(text), _centre(scene)
    # neither a date alone nor a time of an unknown zone says how high the sun stood
    if when is None or place is None or not _ZONED.search(text):
        raise ConfigError(
            f"{name_of(scene)} tells neither the sun's zenith angle nor both a time in UTC (acquired = {text!r}) and a "
            "place from which to compute it; set calibrate.sun_zenith_deg."
        )
    zenith = sun_zenith(when, *place)
    warnings.warn(
        f"{name_of(scene)} does not tell the sun's zenith angle; {zenith:.2f} degrees was computed for its centre at "
        f"{when:%Y-%m-%d %H:%M:%S} UTC.",
        BandstreamWarning,
        stacklevel=4,
    )
    return zenith


def _centre(scene: xr.Dataset) -> tuple[float, float] | None:
    """Return latitude and longitude of the scene's middle, or None where they are not known."""
    rows, cols = scene.sizes["y"], scene.sizes["x"]
    if "lat" in scene.coords and "lon" in scene.coords:
        at: dict[str, Any] = {"y": rows // 2, "x": cols // 2}
        lat, lon = (float(scene[name].isel(at).values) for name in ("lat", "lon"))
        return (lat, lon) if np.isfinite(lat) and np.isfinite(lon) and abs(lat) <= 90 else None
    try:
        crs, transform = scene_crs(scene), scene_transform(scene)
    except SceneError:
        return None
    if crs is None or transform is None:
        return None
    from rasterio.warp import transform as to_crs

    a, b, c, d, e, f = (float(v) for v in list(transform)[:6])
    col, row = cols / 2, rows / 2
    lons, lats = to_crs(crs, "EPSG:4326", [a * col + b * row + c], [d * col + e * row + f])[:2]
    return float(lats[0]), float(lons[0])


def _inverse_cosine(zenith_yx: da.Array) -> da.Array:
    return zenith_yx.map_blocks(_one_over_cosine, dtype=np.float64, meta=np.empty((0, 0), np.float64))


def _one_over_cosine(zenith_yx: NDArray[Any]) -> F8:
    """Return 1 / cos of angles in degrees, NaN where they are none from 0 to below 90 (fill values, sun below horizon)."""
    zenith = np.asarray(zenith_yx, np.float64)
    angle = np.where((zenith >= 0) & (zenith < 90), zenith, np.nan)
    return 1.0 / np.cos(np.radians(angle))
