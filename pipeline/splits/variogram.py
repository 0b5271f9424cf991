"""How far pixels stay alike: the range of an empirical variogram, for the margin between splits.

Blocks that lie closer together than the range of the spatial autocorrelation are no independent test of each other
(Roberts et al. 2017, "Cross-validation strategies for data with temporal, spatial, hierarchical, or phylogenetic
structure"). The semivariance of the first principal component is estimated with Matheron's estimator from pairs of
pixels along rows and columns, and an exponential model with a nugget is fitted by weighted least squares with the
weights N(h) / gamma(h)^2 (Cressie 1985, "Fitting variogram models by weighted least squares"; Cressie 1993, "Statistics
for spatial data", sections 2.4 and 2.6). Its practical range is where it reaches 95 % of the sill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..faults import blames_scene
from ..nodata import invalid_mask
from ..reading import read_block, read_usable
from ..scene import nodata_values

if TYPE_CHECKING:
    import xarray as xr

    from ..sources import OpenScene

F8 = NDArray[np.float64]
STRIP_ROWS = 128  #: rows of a strip; lags go to half of them
STRIPS = 8
READ_BYTES = 128 << 20  #: bytes read, or held as float32, at most, but for one strip of 32 rows
_BANDS = 16
_SEED = 0
_LEAST_LAGS = 4


@dataclass(frozen=True)
class Strip:
    """Some whole rows of a scene."""

    scene: int
    rows: slice


@dataclass(frozen=True)
class SpatialRange:
    """How far pixels stay alike, and what that was found on."""

    pixels: float  #: where the model reaches 95 % of its sill
    capped: bool  #: the pixels are alike as far as was looked
    strips: int
    read_bytes: int

    def told(self) -> str:
        """Return it as part of a sentence."""
        looked = (
            f"{self.strips} strip{'s' if self.strips > 1 else ''}, {self.read_bytes / 2**20:.1f} MiB read"
        )
        if self.capped:
            return f"the variogram still rises at {self.pixels:.1f} pixels, as far as was looked; {looked}"
        return f"95 % of the variogram's sill at {self.pixels:.1f} pixels; {looked}"


def spatial_range(scenes: Sequence[OpenScene]) -> SpatialRange:
    """Estimate how far pixels stay alike from a few strips of whole rows of the scenes.

    At most `STRIPS` strips of at most `STRIP_ROWS` rows are read, drawn with a fixed seed over all scenes, and about
    `READ_BYTES` in all. Up to 16 bands, evenly spaced among those with data, are brought to unit variance, and their
    first principal component over all strips is taken. No label and no split plays a part.

    Parameters
    ----------
    scenes
        Prepared, all with the same bands.

    Raises
    ------
    ConfigError
        The scenes are too small, or the strips hold too few valid pixels.
    """
    from threadpoolctl import threadpool_limits

    row_bytes = [_row_bytes(item.scene) for item in scenes]
    held = 2 * _BANDS * 4 * max(item.shape_yx[1] for item in scenes)
    strips = choose_strips([item.shape_yx for item in scenes], max(held, *row_bytes))
    with threadpool_limits(1):  # the same margin whatever the number of cores
        values = [_strip_values(scenes[strip.scene], strip.rows) for strip in strips]
        lags = max(min(part.shape[1:]) for part in values) // 2
        components = _first_component(values)
        if lags < _LEAST_LAGS or components is None:
            raise ConfigError(
                "split.margin: range needs scenes of at least 8 x 8 pixels with data that varies; the strips that were "
                "looked at have none. Give split.margin a number of pixels, or auto."
            )
        semivariance, pairs = semivariances(components, lags)
        found, capped = practical_range(semivariance, pairs)
    read = sum((s.rows.stop - s.rows.start) * row_bytes[s.scene] for s in strips)
    return SpatialRange(found, capped, len(strips), read)


def _row_bytes(scene: xr.Dataset) -> int:
    return int(scene.sizes["x"] * scene.sizes["band"] * scene["data"].dtype.itemsize)


def choose_strips(shapes_yx: Sequence[tuple[int, int]], row_bytes: int) -> list[Strip]:
    """Draw strips of whole rows, over as many scenes as possible, with a fixed seed.

    Parameters
    ----------
    shapes_yx
        Of the scenes.
    row_bytes
        Bytes of one row, as read or as held.
    """
    rng = np.random.default_rng(_SEED)
    height = int(np.clip(READ_BYTES // row_bytes, 32, STRIP_ROWS))
    count = int(np.clip(READ_BYTES // (row_bytes * height), 1, STRIPS))
    order = rng.permutation(len(shapes_yx))
    per_scene = -(-count // len(order))
    strips: list[Strip] = []
    for number in order[:count].tolist():
        rows = shapes_yx[number][0]
        places = -(-rows // height)
        for place in sorted(rng.permutation(places)[:per_scene].tolist()):
            # the last strip moves up, so that each has its full height
            start = max(0, min(place * height, rows - height))
            strips.append(Strip(number, slice(start, min(rows, start + height))))
    return strips[:count]


@blames_scene
def _strip_values(item: OpenScene, rows: slice) -> NDArray[np.float32]:
    """Return (bands, y, x) of a few bands, NaN where there is no data."""
    scene = item.scene
    bands = np.unique(np.linspace(0, scene.sizes["band"] - 1, 2 * _BANDS).round().astype(np.intp))
    if "good_band" in scene.coords:
        good = np.asarray(scene["good_band"].values, bool)
        bands = bands[good[bands]] if good[bands].any() else bands
    nodata, cols = nodata_values(scene)[bands], slice(0, int(scene.sizes["x"]))
    parts: list[NDArray[np.float32]] = []
    for piece in _pieces(scene, rows):
        raw = read_block(scene, piece, cols)[bands]
        values = raw.astype(np.float32)
        invalid = invalid_mask(raw.transpose(1, 2, 0), nodata)
        if invalid is not None:
            values[invalid.transpose(2, 0, 1)] = np.nan
        usable = read_usable(scene, piece, cols)
        if usable is not None:
            values[:, ~usable] = np.nan
        parts.append(values)
    return np.concatenate(parts, axis=1)


def _pieces(scene: xr.Dataset, rows: slice) -> Iterator[slice]:
    """Cut rows where the scene's chunks end: each is read once, and never more than one is held."""
    edges = np.cumsum((0, *scene["data"].data.chunks[0]))
    inner = edges[(edges > rows.start) & (edges < rows.stop)].tolist()
    for start, stop in zip([rows.start, *inner], [*inner, rows.stop], strict=True):
        yield slice(start, stop)


def _first_component(strips: list[NDArray[np.float32]]) -> list[NDArray[np.float32]] | None:
    """Return the first principal component (y, x) of each strip, NaN where a band has no data; None if there is none."""
    share = np.mean([np.isfinite(part).mean(axis=(1, 2)) for part in strips], axis=0)
    # bands without data say nothing; of those with most of it every n-th is taken
    bands = np.flatnonzero(share >= 0.9 * share.max()) if share.max() > 0 else np.zeros(0, np.intp)
    bands = bands[:: -(-len(bands) // _BANDS)] if len(bands) else bands
    chosen = [part[bands] for part in strips]
    valid = [np.isfinite(part).all(axis=0) for part in chosen]
    count = sum(int(ok.sum()) for ok in valid)
    if not len(bands) or count < 2:
        return None

    def pixels() -> Iterator[F8]:
        # strip by strip: all of them in float64 would be the most memory that the search takes
        return (part[:, ok].astype(np.float64) for part, ok in zip(chosen, valid, strict=True))

    none = np.zeros(len(bands))
    mean = sum((part.sum(axis=1) for part in pixels()), none) / count
    scatter = sum(((c := part - mean[:, None]) @ c.T for part in pixels()), np.outer(none, none))
    std = np.sqrt(np.diagonal(scatter) / count)
    varied = std > 1e-9 * np.abs(mean)
    if not varied.any():
        return None
    weight = np.zeros(len(bands))
    correlation = scatter[np.ix_(varied, varied)] / np.outer(std[varied], std[varied])
    weight[varied] = np.linalg.eigh(correlation)[1][:, -1] / std[varied]
    return [
        np.where(ok, np.tensordot(weight, part - mean[:, None, None], 1), np.nan).astype(np.float32)
        for part, ok in zip(chosen, valid, strict=True)
    ]


def semivariances(fields_yx: Sequence[NDArray[Any]], lags: int) -> tuple[F8, NDArray[np.int64]]:
    """Return Matheron's estimate of the semivariance at the lags 1..`lags`, and the number of pairs behind each.

    Parameters
    ----------
    fields_yx
        Values, NaN where there is none.
    lags
        The longest lag, in pixels; pairs lie in one row or in one column.

    Returns
    -------
    tuple
        (lags,) half the mean squared difference, NaN without pairs; (lags,) pairs.
    """
    total, pairs = np.zeros(lags), np.zeros(lags, np.int64)
    for field in fields_yx:
        values = np.asarray(field, np.float64)
        for lag in range(1, lags + 1):
            for apart in (values[lag:] - values[:-lag], values[:, lag:] - values[:, :-lag]):
                there = np.isfinite(apart)
                total[lag - 1] += float((apart[there] ** 2).sum())
                pairs[lag - 1] += int(there.sum())
    with np.errstate(invalid="ignore"):
        return total / pairs / 2, pairs


def practical_range(semivariance: F8, pairs: NDArray[np.int64]) -> tuple[float, bool]:
    """Fit nugget + partial sill x (1 - exp(-3 h / range)) and return the range, and whether it was capped.

    Parameters
    ----------
    semivariance, pairs
        (lags,) at the lags 1, 2, ...; lags without pairs are left out.

    Returns
    -------
    tuple
        Range in pixels, between 1 and the longest lag; True when the model rises beyond it.
    """
    from scipy.optimize import least_squares

    used = (pairs > 0) & np.isfinite(semivariance) & (semivariance > 0)
    lag, gamma = np.arange(1, len(semivariance) + 1)[used].astype(float), semivariance[used]
    longest = float(len(semivariance))
    if len(lag) < 3 or np.ptp(gamma) <= 1e-9 * gamma.max():
        return 1.0, False  # alike nowhere, or everywhere the same: nothing that a margin could keep apart
    gamma = gamma / gamma.max()
    weight = np.sqrt(pairs[used] / pairs[used].max())

    def misfit(model: F8) -> F8:
        nugget, sill, reach = model
        fitted = nugget + sill * -np.expm1(-3 * lag / reach)
        return cast("F8", weight * (gamma - fitted) / np.maximum(fitted, 1e-6))

    start = (0.1 * float(gamma[0]), float(gamma[-1]), longest / 3)
    # ranges far beyond the longest lag are all the same straight line
    bounds = ((0.0, 1e-9, 0.1), (2.0, 100.0, 10 * longest))
    found = float(least_squares(misfit, start, bounds=bounds).x[2])
    return (longest, True) if found > longest else (max(1.0, found), False)
