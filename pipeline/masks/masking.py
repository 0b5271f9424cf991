"""Masks of whole scenes: what is no data, saturated, cloudy, inside a polygon, too green or too bright is not used.

Everything is lazy and done block by block; no pixel is read before somebody asks for `valid`. The cube itself is never
changed.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError
from ..nodata import invalid_mask
from ..scene import nodata_values, replaced, scale_offset
from .config import MaskConfig, polygon_files
from .nodata import nodata_per_band
from .polygons import Source, polygon_plane

if TYPE_CHECKING:
    import xarray as xr

Range = tuple[float | None, float | None]
Quality = Sequence[str] | Mapping[str, Sequence[int] | Literal["nonzero"]]

RED_NM, INFRARED_NM = 670.0, 800.0
#: A band farther than this from the wanted wavelength is no red, or no near infrared.
_FAR_NM = 40.0
_PREFIX = "quality_"
#: Meanings of codes for pixels on which a layer cannot judge: they are not usable.
_UNKNOWN = ("fill", "error", "nodata", "no data", "missing")
#: A layer that was never made masks nothing by itself: the user decides.
_NOT_JUDGED = ("not processed", "not_processed")
_PAIR = re.compile(r"\s*(-?\d+)\s+(.+)")


def apply_mask(
    scene: xr.Dataset,
    *,
    nodata: float | Literal["auto", "none"] = "auto",
    saturated: float | Literal["auto"] | None = "auto",
    quality: Quality = (),
    polygons: Source | Sequence[Source] | None = None,
    keep: Literal["outside", "inside"] = "outside",
    ndvi: Range | None = None,
    brightness: Range | None = None,
    brightness_nm: tuple[float, float] | None = None,
) -> xr.Dataset:
    """Return the scene with fewer valid pixels.

    Parameters
    ----------
    scene
        Any scene.
    nodata
        The stored number that means no data; `auto` takes what the file declares, `none` takes none.
    saturated
        A pixel is masked where a band that is not listed as bad holds this stored number or more. `auto` takes what
        the product tells (its number, or its layer `quality_saturated`) and masks nothing where it tells nothing.
    quality
        Names of the scene's quality layers, with or without `quality_`. A flag masks where it is not 0; a fill value
        or a code for an error masks, too. For layers of codes give the codes that mask, ``{"cloud": [1, 2]}``, or
        ``{"cirrus": "nonzero"}``.
    polygons
        Vector files (GeoJSON, GeoPackage, Shapefile), or GeoJSON objects, of which the inside is masked.
    keep
        `inside`: the outside of the polygons is masked.
    ndvi
        Lowest and highest (NIR - red) / (NIR + red) to keep, of the bands nearest to 670 and 800 nm, in physical
        values. Pixels for which it is not defined are masked. On radiance or DN it is not the NDVI of the surface.
    brightness
        Lowest and highest mean to keep, over the bands that are not listed as bad, as far as they hold data, in the
        unit of the physical value.
    brightness_nm
        Window of the bands of that mean, both ends included.

    Returns
    -------
    xarray.Dataset
        `valid` is true where the scene's was and no mask forbids it; attrs `valid_rule` = "mask" and `mask_settings`
        (JSON text). Where nothing masks, the scene as it was.

    Raises
    ------
    ConfigError
        The scene has not got what a mask needs; what it has is told.
    """
    if nodata != "auto":
        scene = replaced(scene, nodata=nodata_per_band(scene, nodata))
    settings: dict[str, Any] = {"nodata": nodata}
    usable: list[da.Array] = []
    layers, limit = _saturation(scene, saturated)
    wanted = _named(scene, quality) | layers
    for name, codes in wanted.items():
        usable.append(_by_codes(scene, name, codes))
    if wanted:
        settings["quality"] = {
            name: codes if isinstance(codes, str) else list(codes) for name, codes in wanted.items()
        }
    tests = _spectral(scene, limit, ndvi, brightness, brightness_nm)
    if tests is not None:
        usable.append(tests.lazily(scene))
        given = {"saturated": None if limit is None else saturated, "ndvi": ndvi, "brightness": brightness}
        settings |= given | {"brightness_nm": brightness_nm}
    if polygons is not None:
        sources = [polygons] if isinstance(polygons, str | Path | Mapping) else list(polygons)
        usable.append(_by_polygons(scene, sources, keep))
        named = [str(source) if isinstance(source, str | Path) else "GeoJSON object" for source in sources]
        settings["polygons"] = {"path": named, "keep": keep}
    if not usable:
        return scene
    valid = scene["valid"].data
    for plane in usable:
        valid = valid & plane.rechunk(valid.chunks)
    before = json.loads(scene.attrs.get("mask_settings", "{}"))
    told = before | {key: value for key, value in settings.items() if value is not None}
    out = scene.assign(valid=(("y", "x"), valid, scene["valid"].attrs))
    return out.assign_attrs(valid_rule="mask", mask_settings=json.dumps(told))


def mask_scene(
    scene: xr.Dataset,
    config: MaskConfig,
    places: Sequence[Path] = (),
    *,
    stem: str = "",
    part: Literal["all", "stored", "physical"] = "all",
) -> xr.Dataset:
    """Apply the stage `mask` of a workflow.

    Parameters
    ----------
    scene
        The scene.
    config
        The stage.
    places, stem
        Folders for relative paths, and what `{stem}` stands for.
    part
        `stored`: what is judged by stored numbers, layers and place; `physical`: NDVI and brightness, which are
        thresholds of the calibrated scene.
    """
    stored: dict[str, Any] = {
        "nodata": config.nodata,
        "saturated": config.saturated,
        "quality": config.quality,
    }
    if config.polygons is not None:
        stored |= {"polygons": polygon_files(config, places, stem), "keep": config.polygons.keep}
    physical: dict[str, Any] = {
        "ndvi": config.ndvi,
        "brightness": config.brightness,
        "brightness_nm": config.brightness_nm,
    }
    chosen: dict[str, dict[str, Any]] = {
        "all": stored | physical,
        "stored": stored,
        "physical": physical | {"saturated": None},
    }
    return apply_mask(scene, **chosen[part])


def quality_layers(scene: xr.Dataset) -> list[str]:
    """Return the names of the scene's quality layers, without `quality_`."""
    return [str(name).removeprefix(_PREFIX) for name in scene.data_vars if str(name).startswith(_PREFIX)]


def _named(scene: xr.Dataset, quality: Quality) -> dict[str, Sequence[int] | str]:
    """Return the codes that mask for each quality layer asked for, by the layer's name in the scene."""
    has = quality_layers(scene)
    asked = quality if isinstance(quality, Mapping) else dict.fromkeys(quality, "flag")
    found: dict[str, Sequence[int] | str] = {}
    for name, codes in asked.items():
        short = name.removeprefix(_PREFIX)
        if short not in has:
            source = scene.attrs.get("source", "the scene")
            told = f"it has {', '.join(has)}" if has else "its product brings no quality layer"
            msg = f"mask.quality asks for {name!r}, which {source} has not: {told}"
            raise ConfigError(msg)
        found[short] = codes
    return found


def _by_codes(scene: xr.Dataset, name: str, codes: Sequence[int] | str) -> da.Array:
    """Return where a quality layer allows a pixel."""
    layer = scene[_PREFIX + name]
    meanings = _meanings(layer.attrs)
    if layer.dtype.kind not in "biu" and not meanings:
        msg = f"the quality layer {name!r} holds {layer.dtype}, no flag and no code; it cannot mask"
        raise ConfigError(msg)
    told = {code: word for code, word in meanings.items() if code not in (0, 1)}
    if codes == "flag" and any(word not in (*_UNKNOWN, *_NOT_JUDGED) for word in told.values()):
        listed = ", ".join(f"{code} = {word}" for code, word in meanings.items())
        msg = f"the quality layer {name!r} holds codes ({listed}); say which of them mask: {{{name}: [...]}}"
        raise ConfigError(msg)
    chosen = codes if isinstance(codes, str) else tuple(int(code) for code in codes)
    unknown = tuple(code for code, word in told.items() if word in _UNKNOWN)
    return da.map_blocks(
        _usable_by_codes,
        da.asarray(layer.data),
        name,
        chosen,
        unknown,
        dtype=bool,
        meta=np.ones((0, 0), bool),
    )


def _usable_by_codes(
    block_yx: NDArray[Any], name: str, codes: tuple[int, ...] | str, unknown: tuple[int, ...]
) -> NDArray[np.bool_]:
    if not isinstance(codes, str):
        return ~(np.isin(block_yx, codes) | np.isnan(block_yx))
    if codes == "flag" and block_yx.dtype.kind != "b":
        other = ~(np.isin(block_yx, (0, 1, *unknown)) | np.isnan(block_yx))
        if other.any():
            found = ", ".join(f"{code:g}" for code in np.unique(block_yx[other])[:20].tolist())
            msg = (
                f"the quality layer {name!r} is no flag of 0 and 1: it holds {found}. Say which codes mask, "
                f"{{{name}: [2, 3]}}, or {{{name}: nonzero}}"
            )
            raise ConfigError(msg)
    return block_yx == 0


def _meanings(attrs: Mapping[Any, Any]) -> dict[int, str]:
    """Return code -> meaning, told as `0 clear, 1 cloud`, or as CF does: words split by blanks beside flag_values."""
    told = str(attrs.get("flag_meanings", ""))
    pairs = [_PAIR.fullmatch(part) for part in told.split(",")]
    if all(pairs):
        return {int(pair[1]): pair[2].strip() for pair in pairs if pair}
    values = np.atleast_1d(attrs.get("flag_values", range(len(told.split())))).tolist()
    return {int(value): word for value, word in zip(values, told.split(), strict=False)}


def _saturation(
    scene: xr.Dataset, saturated: float | str | None
) -> tuple[dict[str, Sequence[int] | str], NDArray[np.float64] | None]:
    """Return the quality layer, or the stored number per band, that tells saturation."""
    if saturated is None:
        return {}, None
    if saturated == "auto":
        if "saturated" in quality_layers(scene):
            return {"saturated": "nonzero"}, None
        if "saturation" not in scene.attrs:
            return {}, None
        saturated = scene.attrs["saturation"]
    limit = np.broadcast_to(np.asarray(saturated, np.float64), (scene.sizes["band"],))
    dtype = scene["data"].dtype
    if dtype.kind in "iu" and not (limit <= np.iinfo(dtype).max).any():
        msg = f"mask.saturated is {saturated}, which no {dtype} reaches (at most {np.iinfo(dtype).max})"
        raise ConfigError(msg)
    return {}, limit


@dataclass(frozen=True)
class _Spectral:
    """Tests that look at the numbers of a block; bands are counted among `needed`."""

    needed: tuple[int, ...]  #: bands of the scene that the tests look at
    nodata_b: NDArray[np.float64]
    scale_b: NDArray[np.float64]
    offset_b: NDArray[np.float64]
    saturation_b: NDArray[np.float64]  #: stored number; infinite where nothing is saturated
    ndvi: tuple[int, int, float, float] | None  #: red, infrared, lowest, highest
    mean: tuple[tuple[int, ...], float, float] | None  #: bands, lowest, highest

    def lazily(self, scene: xr.Dataset) -> da.Array:
        """Return where the scene passes, lazy bool (y, x)."""
        cube = scene["data"].data
        # few bands are read alone, where the file's layout allows it
        whole = len(self.needed) * 4 > cube.shape[2]
        cube = (cube if whole else cube[:, :, list(self.needed)]).rechunk({2: -1})
        picked = self.needed if whole else None
        return cast(
            "da.Array",
            da.blockwise(
                self.usable, "yx", cube, "yxb", picked, None, dtype=bool, concatenate=True,
                meta=np.ones((0, 0), bool),
            ),
        )  # fmt: skip

    def usable(self, block_yxb: NDArray[Any], picked: tuple[int, ...] | None) -> NDArray[np.bool_]:
        """Return which pixels of a block pass; band by band, so that little memory is taken beside the block."""

        def stored(k: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            plane = block_yxb[:, :, k if picked is None else picked[k]]
            bad = invalid_mask(plane[:, :, None], self.nodata_b[k : k + 1])
            return plane, np.ones(plane.shape, bool) if bad is None else ~bad[:, :, 0]

        def physical(k: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
            plane, holds = stored(k)
            return np.where(holds, plane.astype(np.float64) * self.scale_b[k] + self.offset_b[k], 0.0), holds

        passed = np.ones(block_yxb.shape[:2], bool)
        for k in np.flatnonzero(np.isfinite(self.saturation_b)).tolist():
            plane, holds = stored(k)
            passed &= ~(holds & (plane >= self.saturation_b[k]))
        if self.ndvi is not None:
            red, infrared, low, high = self.ndvi
            (r, r_holds), (n, n_holds) = physical(red), physical(infrared)
            total = n + r
            index = np.divide(n - r, total, out=np.full(total.shape, np.nan), where=total != 0)
            passed &= r_holds & n_holds & (index >= low) & (index <= high)
        if self.mean is not None:
            bands, low, high = self.mean
            total, count = np.zeros(passed.shape), np.zeros(passed.shape)
            for k in bands:
                value, holds = physical(k)
                total += value
                count += holds
            mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
            passed &= (mean >= low) & (mean <= high)
        return passed


def _spectral(
    scene: xr.Dataset,
    limit: NDArray[np.float64] | None,
    ndvi: Range | None,
    brightness: Range | None,
    brightness_nm: tuple[float, float] | None,
) -> _Spectral | None:
    """Return the tests of the scene's numbers, None where none is asked for."""
    good = np.flatnonzero(scene["good_band"].values)
    good = good if len(good) else np.arange(scene.sizes["band"])
    pair = None if ndvi is None else [_band_near(scene, good, nm) for nm in (RED_NM, INFRARED_NM)]
    mean = [] if brightness is None else _bands_between(scene, good, brightness_nm)
    saturating = [] if limit is None else good.tolist()
    needed = sorted({*(pair or ()), *mean, *saturating})
    if not needed:
        return None
    at = {band: k for k, band in enumerate(needed)}
    scale_b, offset_b = scale_offset(scene)
    top = np.full(scene.sizes["band"], np.inf)
    if limit is not None:
        top[good] = limit[good]
    return _Spectral(
        tuple(needed),
        nodata_values(scene)[needed],
        scale_b[needed],
        offset_b[needed],
        top[needed],
        None if ndvi is None or pair is None else (at[pair[0]], at[pair[1]], *_ends(ndvi)),
        None if brightness is None else (tuple(at[band] for band in mean), *_ends(brightness)),
    )


def _ends(span: Range) -> tuple[float, float]:
    low, high = span
    return -np.inf if low is None else float(low), np.inf if high is None else float(high)


def _wavelengths(scene: xr.Dataset, what: str) -> NDArray[np.float64]:
    if "wavelength" not in scene.coords:
        msg = f"{what} needs wavelengths, and {scene.attrs.get('source', 'the scene')} has none; leave it out"
        raise ConfigError(msg)
    return np.asarray(scene["wavelength"].values, np.float64)


def _band_near(scene: xr.Dataset, good: NDArray[np.intp], wanted_nm: float) -> int:
    centres = np.abs(_wavelengths(scene, "mask.ndvi")[good] - wanted_nm)
    if not (centres <= _FAR_NM).any():
        msg = (
            f"mask.ndvi needs a band within {_FAR_NM:g} nm of {wanted_nm:g} nm that is not listed as bad, and "
            f"{scene.attrs.get('source', 'the scene')} has none"
        )
        raise ConfigError(msg)
    return int(good[np.nanargmin(centres)])


def _bands_between(
    scene: xr.Dataset, good: NDArray[np.intp], window_nm: tuple[float, float] | None
) -> list[int]:
    if window_nm is None:
        return good.tolist()
    centres = _wavelengths(scene, "mask.brightness_nm")[good]
    chosen = good[(centres >= window_nm[0]) & (centres <= window_nm[1])]
    if not len(chosen):
        msg = f"no band that is not listed as bad lies in mask.brightness_nm = {list(window_nm)}"
        raise ConfigError(msg)
    return chosen.tolist()


def _by_polygons(scene: xr.Dataset, sources: Sequence[Source], keep: str) -> da.Array:
    """Return where the polygons allow a pixel."""
    if keep not in ("outside", "inside"):
        msg = f"keep = {keep!r}; allowed: outside, inside"
        raise ConfigError(msg)
    inside, count = polygon_plane(scene, sources)
    if not count:
        warnings.warn(
            f"mask.polygons: no polygon touches {scene.attrs.get('source', 'the scene')}, so "
            f"{'all' if keep == 'inside' else 'nothing'} of it is masked",
            BandstreamWarning,
            stacklevel=3,
        )
    return inside if keep == "inside" else ~inside
