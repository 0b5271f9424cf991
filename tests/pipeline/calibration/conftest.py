"""Small scenes for the calibration tests."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from bandstream.pipeline.scene import make_scene, scale_offset


@pytest.fixture
def scene():
    """Return a maker of scenes: ``scene(array, **facts)``, cut into chunks of `rows` rows."""

    def make(values, *, rows: int = 3, **facts):
        array = np.asarray(values)
        facts.setdefault("source", "made.hdr")
        return make_scene(da.from_array(array, chunks=(rows, -1, -1)), **facts)

    return make


@pytest.fixture
def physical():
    """Return the physical values of a scene, float64 with NaN where there is no data, spelled out with NumPy."""

    def values(ds):
        raw = ds["data"].values
        scale, offset = scale_offset(ds)
        out = raw.astype(np.float64) * scale + offset
        nodata = ds.attrs.get("nodata", ds["nodata"].values if "nodata" in ds.coords else np.nan)
        out[raw == nodata] = np.nan
        out[~np.isfinite(raw)] = np.nan
        return out

    return values
