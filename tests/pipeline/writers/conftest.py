"""Scenes to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from affine import Affine
from rasterio.crs import CRS

from bandstream.pipeline.scene import make_scene

NORTH_UP = Affine(30, 0, 366000, 0, -30, 5810000)
TURNED = Affine(
    4.5, 2.25, 500010, 2.25, -4.5, 4200020
)  #: square pixels, turned as ENVI's `rotation` turns them
SHEARED = Affine(4.5, 2.0, 500010, 0.5, -4.5, 4200020)
SHAPE = (23, 17, 7)


def raw_of(dtype: str, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Return numbers that use the whole type, with 77 (the nodata value of most tests) among them."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        raw = rng.normal(0, 1000, shape).astype(kind)
    else:
        info = np.iinfo(kind)
        raw = rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
        raw[0, 0, :2] = info.min, info.max
    raw[1:4, 2:6] = 77
    raw[5, 5, 3] = 77
    return raw


@pytest.fixture
def scene() -> Callable[..., xr.Dataset]:
    """Return a maker of scenes: by default an EnMAP-like int16 cube with everything that a scene can say."""

    def make(raw: np.ndarray | None = None, *, place: Affine | None = NORTH_UP, **more: Any) -> xr.Dataset:
        values = raw_of("int16") if raw is None else raw
        bands = values.shape[2]
        given: dict[str, Any] = {
            # the detectors overlap, so that wavelengths are not ascending
            "wavelength_nm": np.r_[
                np.linspace(418.24, 993.37, bands // 2), np.linspace(901.961, 2445.3, bands - bands // 2)
            ],
            "fwhm_nm": np.linspace(6.5, 11.72, bands),
            "good_band": np.arange(bands) != 2,
            "band_names": [f"VNIR {b} = a" if b < 3 else f"SWIR {b}" for b in range(bands)],
            "crs": CRS.from_epsg(32633),
            "transform": place,
            "nodata": 77,
            "scale": 1e-4,
            "quantity": "surface_reflectance",
            "units": "1",
            "sensor": "EnMAP",
            "product": "EnMAP L2A",
            "acquired": "2022-07-27T10:31:06Z",
            "sun_zenith_deg": 33.25,
            "sun_azimuth_deg": 151.5,
            "scene_id": "made",
        }
        rows = max(1, values.shape[0] // 3)
        return make_scene(da.from_array(values, chunks=(rows, -1, -1)), **(given | more))

    return make
