"""Places from polynomials and corners: edges of the globe, damaged tags."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import rasterio
from rasterio.rpc import RPC

from bandstream.pipeline.readers.options import Notes
from bandstream.pipeline.readers.rpc import located, rpc_of_raster

CUBE = da.zeros((5, 4, 2), chunks=(2, 4, 2))


def flat(lat: float, lon: float, **changes) -> RPC:
    """A view straight down: 1 row is -0.001 degrees of latitude, 1 column 0.001 degrees of longitude."""

    def only(place, value):
        return [value if i == place else 0.0 for i in range(20)]

    numbers = {
        "height_off": 0.0, "height_scale": 1.0, "lat_off": lat, "lat_scale": 0.1, "long_off": lon, "long_scale": 0.1,
        "line_off": 0.0, "line_scale": 100.0, "samp_off": 0.0, "samp_scale": 100.0, "line_num_coeff": only(2, -1.0),
        "samp_num_coeff": only(1, 1.0), "line_den_coeff": only(0, 1.0), "samp_den_coeff": only(0, 1.0),
    }  # fmt: skip
    return RPC(**(numbers | changes))


def test_row_and_column_0_are_the_centre_of_the_first_pixel() -> None:
    found = located(CUBE, flat(48, 11), None, {}, "it", Notes())
    np.testing.assert_allclose(
        found["lat_yx"].compute(), 48 - 0.001 * np.arange(5)[:, None] + np.zeros(4), atol=1e-8
    )
    np.testing.assert_allclose(
        found["lon_yx"].compute(), 11 + 0.001 * np.arange(4) + np.zeros((5, 1)), atol=1e-8
    )
    assert found["lat_yx"].chunks == CUBE.chunks[:2]


def test_equal_views_have_equal_keys_and_others_not() -> None:
    names = [located(CUBE, flat(48, lon), h, {}, "it", Notes())["lat_yx"].name for lon, h in ((11, 0), (11, 0), (12, 0), (11, 5))]  # fmt: skip
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_corners_over_the_date_line_are_joined_the_short_way() -> None:
    corners = {"upper_left": (1.0, 179.9), "upper_right": (1.0, -179.8), "lower_left": (0.0, 179.9), "lower_right": (0.0, -179.8)}  # fmt: skip
    notes = Notes()
    found = located(CUBE, None, None, corners, "it", notes)
    np.testing.assert_allclose(found["lon_yx"].compute()[0], [179.9, -180, -179.9, -179.8])
    np.testing.assert_allclose(found["lat_yx"].compute()[:, 2], [1, 0.75, 0.5, 0.25, 0])
    assert len(notes.messages) == 1


@pytest.mark.parametrize(
    "corners",
    [
        {},
        {"upper_left": (0, 0), "upper_right": (0, 1), "lower_left": (1, 0)},
        dict.fromkeys(("upper_left", "upper_right", "lower_left", "lower_right"), (5.0, 5.0)),
        dict(zip(("upper_left", "upper_right", "lower_left", "lower_right"), ((95.0, 0), (95, 1), (94, 0), (94, 1)), strict=True)),
    ],
)  # fmt: skip
def test_corners_that_span_nothing_are_no_place(corners) -> None:
    notes = Notes()
    assert located(CUBE, None, None, corners, "it", notes) == {}
    assert "not known" in notes.messages[0]


@pytest.mark.parametrize(
    "changes",
    [{"samp_num_coeff": [0.0] * 20}, {"lat_scale": 0.0}, {"line_den_coeff": [0.0] * 20}, {"lat_off": 500.0}],
)
def test_polynomials_without_a_solution_are_not_used(changes) -> None:
    notes = Notes()
    assert located(CUBE, flat(48, 11, **changes), None, {}, "it", notes) == {}
    assert any("no place on earth" in text for text in notes.messages)


def test_damaged_tags_are_no_polynomials(tmp_path) -> None:
    path = tmp_path / "a.tif"
    with rasterio.open(path, "w", driver="GTiff", width=4, height=4, count=1, dtype="uint8", crs="EPSG:4326", transform=rasterio.Affine(1, 0, 10, 0, -1, 50)) as out:  # fmt: skip
        out.write(np.zeros((1, 4, 4), "u1"))
    assert rpc_of_raster(str(path)) is None
    with rasterio.open(path, "r+") as out:
        out.update_tags(ns="RPC", LINE_OFF="x", LAT_OFF="1")
    assert rpc_of_raster(str(path)) is None
    assert rpc_of_raster(str(tmp_path / "none.tif")) is None
