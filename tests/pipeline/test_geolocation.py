"""Cubes in sensor geometry: labels brought to their pixels, maps brought to the ground and back."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rasterio.warp import transform as transform_points
from scipy.spatial import KDTree

from bandstream.pipeline import geolocation, ground, open_scene
from bandstream.pipeline.errors import BandstreamWarning, ConfigError, LabelError, SceneError
from bandstream.pipeline.geolocation import in_sensor_geometry, locations, ortho_grid, orthorectify
from bandstream.pipeline.ground import earth_centred, sample_nearest, utm_zone
from bandstream.pipeline.labels import LabelRaster
from bandstream.pipeline.scene import make_scene

WGS84 = CRS.from_epsg(4326)
UTM = CRS.from_epsg(32632)
RNG = np.random.default_rng(0)


def swath(
    rows: int = 60, cols: int = 45, *, lon0: float = 11.3, lat0: float = 48.2
) -> tuple[np.ndarray, np.ndarray]:
    """Return latitude and longitude of a turned and bent grid of about 30 m."""
    row, col = np.mgrid[:rows, :cols].astype(float)
    lat = lat0 - 2.6e-4 * row - 5.0e-5 * col + 1e-7 * row * col
    lon = lon0 + 4.0e-4 * col - 7.0e-5 * row + 1e-7 * col**2
    return lat, lon


def plane(values: np.ndarray, chunk: int = 13) -> da.Array:
    return da.from_array(values, chunks=(chunk, -1))


def sensor_scene(lat: np.ndarray, lon: np.ndarray, **options: Any) -> Any:
    cube = da.zeros((*lat.shape, 2), dtype="int16", chunks=(13, -1, -1))
    return make_scene(cube, lat_yx=plane(lat), lon_yx=plane(lon), source="made.nc", **options)


def table_scene(glt_row: np.ndarray, glt_col: np.ndarray, shape: tuple[int, int], transform: Affine) -> Any:
    made = make_scene(da.zeros((*shape, 2), dtype="int16", chunks=(13, -1, -1)), source="made.nc")
    made = made.assign(
        glt_row=(("ortho_y", "ortho_x"), plane(glt_row)), glt_col=(("ortho_y", "ortho_x"), plane(glt_col))
    )
    return made.assign_attrs(ortho_crs_wkt=WGS84.to_wkt(), ortho_transform=list(transform)[:6])


# locations


def test_locations_are_those_of_the_product_and_fill_values_are_none() -> None:
    lat, lon = swath()
    lat[3, 4] = lon[3, 4] = -9999
    lat[5, 6] = np.nan
    found = locations(sensor_scene(lat, lon), slice(2, 30), slice(4, 9))
    expected = lat[2:30, 4:9].copy(), lon[2:30, 4:9].copy()
    for values in expected:
        values[1, 0] = values[3, 2] = np.nan
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_locations_of_a_map_grid_are_its_pixel_centres() -> None:
    transform = Affine(24.0, 18.0, 366000.0, 18.0, -24.0, 5310000.0)
    made = make_scene(da.zeros((20, 10, 2), dtype="int16"), crs=UTM, transform=transform)
    lat, lon = locations(made, slice(5, 7), slice(3, 4))
    x, y = transform @ (3.5, 6.5) if hasattr(transform, "__matmul__") else transform * (3.5, 6.5)
    (east,), (north,) = transform_points(UTM, WGS84, [x], [y])
    assert (lon[1, 0], lat[1, 0]) == pytest.approx((east, north), abs=1e-12)


def test_a_scene_without_any_place_is_refused() -> None:
    made = make_scene(da.zeros((4, 5, 2), dtype="int16"), source="bare.hdr")
    assert not in_sensor_geometry(made)
    for call in (lambda: locations(made, slice(0, 2), slice(0, 2)), lambda: ortho_grid(made)):
        with pytest.raises(SceneError, match=r"bare\.hdr has no latitude"):
            call()


def test_earth_centred_distances_are_those_of_a_projection() -> None:
    """Within 100 m of each other, against UTM near its central meridian (scale 0.9996)."""
    lat, lon = np.array([48.2, 48.2005, 48.2]), np.array([9.0, 9.0, 9.001])
    xyz = earth_centred(lat, lon)
    x, y = (np.array(v) for v in transform_points(WGS84, UTM, lon, lat))
    for k in (1, 2):
        flat = np.hypot(x[k] - x[0], y[k] - y[0]) / 0.9996
        assert np.linalg.norm(xyz[k] - xyz[0]) == pytest.approx(flat, rel=1e-6)


@pytest.mark.parametrize(
    ("lat", "lon", "epsg"),
    [(48.2, 11.3, 32632), (-33.9, 151.2, 32756), (10, -180, 32601), (10, 180, 32601), (10, 179.9, 32660),
     (88, 20, 32661), (-85, 20, 32761)],
)  # fmt: skip
def test_the_utm_zone_is_that_of_the_place(lat: float, lon: float, epsg: int) -> None:
    assert utm_zone(lat, lon).to_epsg() == epsg


# orthorectified by nearest neighbour


def brute_force(
    codes: np.ndarray, lat: np.ndarray, lon: np.ndarray, crs: CRS, transform: Affine, shape
) -> tuple:
    """Return the nearest pixel's code and its distance, comparing all pixels in the map's own plane."""
    x, y = (np.array(v).reshape(lat.shape) for v in transform_points(WGS84, crs, lon.ravel(), lat.ravel()))
    row, col = np.mgrid[: shape[0], : shape[1]] + 0.5
    east, north = transform.a * col + transform.c, transform.e * row + transform.f
    distance = np.hypot(east[..., None] - x.ravel(), north[..., None] - y.ravel())
    return codes.ravel()[distance.argmin(-1)], distance.min(-1)


@pytest.mark.parametrize("block", [256, 16])
def test_each_map_pixel_takes_the_nearest_pixel_on_the_ground(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geolocation, "BLOCK", block)
    lat, lon = swath()
    codes = np.arange(1, lat.size + 1, dtype=np.uint16).reshape(lat.shape)
    found, crs, transform = orthorectify(codes, sensor_scene(lat, lon))
    assert crs == UTM
    assert transform.a == -transform.e == pytest.approx(29.5, abs=1.0)
    nearest, distance = brute_force(codes, lat, lon, crs, transform, found.shape)
    inside = found > 0
    np.testing.assert_array_equal(found[inside], nearest[inside])
    pixel = np.hypot(29.4, 29.9)  # about one and a half pixels: the diagonal
    assert distance[inside].max() < 1.02 * pixel
    assert inside[distance < 0.95 * pixel].all()
    assert not inside[distance > 1.05 * pixel].any()
    assert set(np.unique(found)) - {0} == set(range(1, lat.size + 1)) - lost(codes, found)


def lost(codes: np.ndarray, found: np.ndarray) -> set[int]:
    """Return the few pixels that no map pixel chose, since their spacing is slightly finer than the map's."""
    gone = set(codes.ravel().tolist()) - set(found.ravel().tolist())
    assert len(gone) < 0.12 * codes.size
    return gone


def test_the_map_does_not_depend_on_the_windows_and_reads_only_what_lies_in_them() -> None:
    lat, lon = swath()
    codes = RNG.integers(1, 200, lat.shape).astype(np.uint8)
    grid = ortho_grid(sensor_scene(lat, lon))
    reads: list[int] = []

    def read(rows: slice, cols: slice) -> np.ndarray:
        piece = codes[rows, cols]
        reads.append(piece.size)
        return piece

    height, width = grid.shape_yx
    whole = grid.take(read, slice(0, height), slice(0, width), 0)
    grid.block, reads[:] = 16, []
    for rows, cols in grid.windows():
        np.testing.assert_array_equal(grid.take(read, rows, cols, 0), whole[rows, cols])
    assert max(reads) <= 32 * 32
    np.testing.assert_array_equal(orthorectify(codes, sensor_scene(lat, lon))[0], whole)


def test_gaps_and_unknown_places_stay_empty() -> None:
    lat, lon = swath()
    lat[20:30] = np.nan
    codes = np.full(lat.shape, 5, np.uint8)
    found, crs, transform = orthorectify(codes, sensor_scene(lat, lon), fill=255)
    _, distance = brute_force(
        codes,
        *(np.where(np.isnan(lat), fake, v) for fake, v in ((0.0, lat), (0.0, lon))),
        crs,
        transform,
        found.shape,
    )
    assert (found[distance > 45] == 255).all()
    assert (found[distance < 40] == 5).all()
    assert ((distance > 45) & (distance < 200)).sum() > 200


def test_the_user_chooses_crs_and_resolution() -> None:
    lat, lon = swath()
    codes = RNG.integers(1, 9, lat.shape).astype(np.uint8)
    found, crs, transform = orthorectify(codes, sensor_scene(lat, lon), crs="EPSG:32633", resolution=60)
    assert crs.to_epsg() == 32633
    assert (transform.a, transform.e, transform.c % 60, transform.f % 60) == (60, -60, 0, 0)
    nearest, _ = brute_force(codes, lat, lon, crs, transform, found.shape)
    np.testing.assert_array_equal(found[found > 0], nearest[found > 0])
    degrees, crs, transform = orthorectify(codes, sensor_scene(lat, lon), crs=WGS84)
    assert crs == WGS84
    assert transform.a == pytest.approx(29.5 / 111_320, rel=0.05)
    assert (degrees > 0).mean() > 0.4
    for wrong, message in (
        ({"resolution": 0}, "positive"),
        ({"crs": "EPSG:99999999"}, "no coordinate reference"),
    ):
        with pytest.raises(ConfigError, match=message):
            orthorectify(codes, sensor_scene(lat, lon), **wrong)
    with pytest.raises(ConfigError, match="too fine"):
        orthorectify(codes, sensor_scene(lat, lon), resolution=1e-4)


def test_a_scene_across_the_180th_meridian_is_one_piece() -> None:
    lat, lon = swath(lon0=179.995)
    lon = np.where(lon > 180, lon - 360, lon)
    assert (lon < 0).any()
    assert (lon > 0).any()
    codes = np.full(lat.shape, 3, np.uint8)
    found, crs, _ = orthorectify(codes, sensor_scene(lat, lon))
    assert crs.to_epsg() in (32601, 32660)
    assert found.size < 4 * codes.size
    assert (found == 3).sum() > 0.9 * codes.size


def test_bands_in_front_are_kept() -> None:
    lat, lon = swath(20, 15)
    share = RNG.random((4, *lat.shape)).astype(np.float32)
    found, *_ = orthorectify(share, sensor_scene(lat, lon), fill=np.nan)
    alone, *_ = orthorectify(share[2], sensor_scene(lat, lon), fill=np.nan)
    assert found.shape[0] == 4
    np.testing.assert_array_equal(found[2], alone)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "no pixel of made"), (48.0, "at one place")])
def test_latitudes_that_tell_nothing_are_refused(value: float, message: str) -> None:
    same = np.full((10, 12), value)
    with pytest.raises(SceneError, match=message):
        orthorectify(np.ones((10, 12), np.uint8), sensor_scene(same, same))


def test_a_map_of_another_size_is_refused() -> None:
    with pytest.raises(SceneError, match=r"\(5, 6\).*\(60, 45\)"):
        orthorectify(np.ones((5, 6), np.uint8), sensor_scene(*swath()))


# orthorectified by the product's table


def test_the_look_up_table_decides_where_there_is_one() -> None:
    shape, ortho = (30, 20), (41, 37)
    row, col = RNG.integers(0, 30, ortho).astype(np.int32), RNG.integers(0, 20, ortho).astype(np.int32)
    none = RNG.random(ortho) < 0.3
    row[none] = col[none] = -1
    row[0, 0], col[0, 0] = 30, 0  # behind the last line: no pixel
    codes = RNG.integers(1, 200, shape).astype(np.uint8)
    transform = from_origin(11.3, 48.2, 0.0005, 0.0005)
    found, crs, place = orthorectify(codes, table_scene(row, col, shape, transform))
    expected = np.where(none, 0, codes[np.where(none, 0, np.minimum(row, 29)), np.where(none, 0, col)])
    expected[0, 0] = 0
    np.testing.assert_array_equal(found, expected)
    assert (crs, place) == (WGS84, transform)
    part = table_scene(row, col, shape, transform).isel(y=slice(4, 20), x=slice(3, 11))
    cut, *_ = orthorectify(codes[4:20, 3:11], part)
    kept = ~none & (row >= 4) & (row < 20) & (col >= 3) & (col < 11)
    np.testing.assert_array_equal(cut, np.where(kept, expected, 0))
    with pytest.raises(SceneError, match="thinned"):
        ortho_grid(table_scene(row, col, shape, transform).isel(y=slice(None, None, 2)))


# labels


def write_labels(path: Path, values: np.ndarray, crs: CRS, transform: Affine, **profile: Any) -> Path:
    with rasterio.open(
        path, "w", driver="GTiff", height=values.shape[0], width=values.shape[1], count=1, dtype=values.dtype,
        crs=crs, transform=transform, **profile,
    ) as out:  # fmt: skip
        out.write(values, 1)
    return path


def read_all(labels: LabelRaster) -> np.ndarray:
    return labels.read(slice(0, labels.shape_yx[0]), slice(0, labels.shape_yx[1]))


@pytest.mark.parametrize("crs", [UTM, WGS84], ids=["utm", "degrees"])
def test_georeferenced_labels_are_sampled_where_the_pixels_lie(
    tmp_path: Path, crs: CRS, monkeypatch: pytest.MonkeyPatch
) -> None:
    lat, lon = swath()
    lat[7, 8] = np.nan
    values = RNG.integers(1, 200, (90, 110)).astype("uint8")
    values[RNG.random(values.shape) < 0.1] = 0
    (west,), (north,) = transform_points(WGS84, crs, [11.300013], [48.198017])
    step = 20.0 if crs == UTM else 0.0002571
    transform = from_origin(west, north, step, step)
    scene = sensor_scene(lat, lon)
    labels = LabelRaster.on_grid(write_labels(tmp_path / "l.tif", values, crs, transform), scene)
    x, y = (
        np.array(v).reshape(lat.shape)
        for v in transform_points(WGS84, crs, lon.ravel(), np.nan_to_num(lat).ravel())
    )
    col, row = np.floor((x - west) / step).astype(int), np.floor((north - y) / step).astype(int)
    inside = (row >= 0) & (row < 90) & (col >= 0) & (col < 110) & np.isfinite(lat)
    expected = np.where(inside, values[np.clip(row, 0, 89), np.clip(col, 0, 109)], 0)
    assert 500 < inside.sum() < inside.size
    np.testing.assert_array_equal(read_all(labels), expected)
    np.testing.assert_array_equal(labels.read(slice(11, 12), slice(5, 40)), expected[11:12, 5:40])
    copy = pickle.loads(pickle.dumps(labels))  # noqa: S301
    monkeypatch.setattr(ground, "MOST_SAMPLED", 50)
    np.testing.assert_array_equal(read_all(copy), expected)


@pytest.mark.parametrize("west", [-360.0, -180.0, 0.0, 179.0])
@pytest.mark.parametrize("counted_from", [-180.0, 0.0])
def test_labels_in_degrees_are_found_wherever_longitudes_begin(
    tmp_path: Path, west: float, counted_from: float
) -> None:
    """Case: beyond the 180th meridian the labels were lost without a word."""
    lat, lon = swath(lon0=179.995, lat0=-17.0)
    values = np.ones((100, 360), np.uint8)
    path = write_labels(tmp_path / "l.tif", values, WGS84, from_origin(west, -16.0, 1.0, 0.1))
    made = sensor_scene(lat, (lon - counted_from) % 360 + counted_from)
    assert (read_all(LabelRaster.on_grid(path, made)) == 1).all()


def test_sampling_reads_windows_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "MOST_SAMPLED", 400)
    sizes: list[int] = []

    def read(rows: slice, cols: slice) -> np.ndarray:
        row, col = np.mgrid[rows, cols]
        sizes.append(row.size)
        return row * 10_000 + col

    row, col = np.meshgrid(np.arange(100, 1900, 80), np.arange(50, 1950, 63), indexing="ij")
    lat, lon = 2 - 0.001 * (row + 0.4), 0.001 * (col + 0.7)
    transform = from_origin(0, 2, 0.001, 0.001)
    values, inside = sample_nearest(read, WGS84, transform, (2000, 2000), lat, lon)
    assert inside.all()
    np.testing.assert_array_equal(values, row * 10_000 + col)
    assert max(sizes) <= 400


def test_labels_with_a_nodata_number_and_a_wrong_number(tmp_path: Path) -> None:
    lat, lon = swath(20, 20)
    values = np.full((400, 400), -9999, "int16")
    values[:200] = 4
    path = write_labels(
        tmp_path / "l.tif", values, WGS84, from_origin(11.29, 48.201, 1e-4, 1e-4), nodata=-9999
    )
    found = read_all(LabelRaster.on_grid(path, sensor_scene(lat, lon), unlabelled=255))
    assert set(np.unique(found)) <= {0, 4}
    assert (found == 4).any()
    path = write_labels(
        tmp_path / "w.tif", np.full((400, 400), -3, "int16"), WGS84, from_origin(11.29, 48.201, 1e-4, 1e-4)
    )
    with pytest.raises(LabelError, match="holds -3 at row 2, column 5 of the scene"):
        LabelRaster.on_grid(path, sensor_scene(lat, lon)).read(slice(2, 4), slice(5, 9))


def test_labels_without_a_place_still_need_the_sensors_size(tmp_path: Path) -> None:
    lat, lon = swath(20, 15)
    values = RNG.integers(0, 5, (20, 15)).astype("uint8")
    np.save(tmp_path / "l.npy", values)
    np.testing.assert_array_equal(
        read_all(LabelRaster.on_grid(tmp_path / "l.npy", sensor_scene(lat, lon))), values
    )


def test_georeferenced_labels_need_latitudes(tmp_path: Path) -> None:
    shape = (30, 20)
    table = np.zeros((5, 5), np.int32)
    made = table_scene(table, table, shape, from_origin(11.3, 48.2, 0.0005, 0.0005))
    path = write_labels(
        tmp_path / "l.tif", np.ones((5, 5), "uint8"), WGS84, from_origin(11.3, 48.2, 0.0005, 0.0005)
    )
    with pytest.raises(SceneError, match="no latitude and longitude"):
        LabelRaster.on_grid(path, made)


# there and back


def test_labels_burned_through_a_generated_product_come_back_on_its_ground_grid(
    products, tmp_path: Path
) -> None:
    """EMIT: labels on the ortho grid -> sensor geometry -> orthorectified back, each step against the product's truth."""
    truth = products.make("emit_rfl", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        scene = open_scene(truth.paths[0])
    assert in_sensor_geometry(scene)
    ortho = truth.glt_row.shape
    transform, crs = Affine(*truth.ortho_transform6), CRS.from_epsg(truth.ortho_epsg)
    original = RNG.integers(1, 200, ortho).astype("uint8")
    path = write_labels(tmp_path / "labels.tif", original, crs, transform)
    burned = read_all(LabelRaster.on_grid(path, scene))
    col = np.floor((truth.lon_yx - transform.c) / transform.a).astype(int)
    row = np.floor((truth.lat_yx - transform.f) / transform.e).astype(int)
    inside = (row >= 0) & (row < ortho[0]) & (col >= 0) & (col < ortho[1])
    assert inside.mean() > 0.5
    np.testing.assert_array_equal(
        burned, np.where(inside, original[row.clip(0, ortho[0] - 1), col.clip(0, ortho[1] - 1)], 0)
    )

    back, found_crs, found_transform = orthorectify(burned, scene)
    assert (found_crs, found_transform) == (crs, transform)
    covered = truth.glt_row >= 0
    np.testing.assert_array_equal(back[covered], burned[truth.glt_row[covered], truth.glt_col[covered]])
    assert (back[~covered] == 0).all()


def test_labels_through_a_table_that_fits_the_latitudes_come_back_as_they_were(tmp_path: Path) -> None:
    """A table made from the latitudes themselves: whatever cell a pixel lies in gets its own label back."""
    lat, lon = swath()
    transform, ortho = from_origin(lon.min(), lat.max(), 0.0004, 0.0004), (55, 50)
    y, x = np.mgrid[: ortho[0], : ortho[1]] + 0.5
    centre = np.stack([transform.f - 0.0004 * y, transform.c + 0.0004 * x], -1)
    apart, index = KDTree(np.column_stack([lat.ravel(), lon.ravel()])).query(centre)
    covered = apart < 0.0003
    glt_row, glt_col = (
        np.where(covered, part, -1).astype(np.int32) for part in np.divmod(index, lat.shape[1])
    )
    made = table_scene(glt_row, glt_col, lat.shape, transform)
    scene = made.assign_coords(lat=(("y", "x"), plane(lat)), lon=(("y", "x"), plane(lon)))
    original = (1 + (np.arange(55)[:, None] // 11 + np.arange(50)[None, :] // 10) % 4).astype("uint8")
    path = write_labels(tmp_path / "labels.tif", original, WGS84, transform)
    burned = read_all(LabelRaster.on_grid(path, scene))
    back, *_ = orthorectify(burned, scene)
    col = np.floor((lon - transform.c) / 0.0004).astype(int)
    row = np.floor((transform.f - lat) / 0.0004).astype(int)
    # the source pixel lies in the very cell that it is taken for
    same = covered & (row[glt_row, glt_col] == np.floor(y)) & (col[glt_row, glt_col] == np.floor(x))
    assert same.sum() > 0.9 * covered.sum() > 1000
    np.testing.assert_array_equal(back[same], original[same])
    assert (back == original)[covered].mean() > 0.95, "elsewhere the label is that of the neighbouring cell"
