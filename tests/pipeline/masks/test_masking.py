"""Masks: which pixels stay valid, against the rule written out in numpy, shapely and rasterio."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import shapely
from affine import Affine
from rasterio.crs import CRS
from rasterio.features import geometry_mask
from rasterio.transform import from_origin
from rasterio.warp import transform as transform_points

from bandstream.pipeline import open_scene
from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import BandstreamWarning, ConfigError, SceneNotFoundError
from bandstream.pipeline.masks.config import MaskConfig, stage_files
from bandstream.pipeline.masks.masking import apply_mask, mask_scene
from bandstream.pipeline.masks.polygons import BurnedPolygons
from bandstream.pipeline.scene import make_scene

UTM = CRS.from_epsg(32633)
ROWS, COLS = 40, 30
NM = np.array([560.0, 800.0, 672.0, 1600.0])  # not ascending
RNG = np.random.default_rng(0)
RAW = RNG.integers(200, 4000, (ROWS, COLS, 4)).astype(np.int16)
RAW[3, 4] = -9999
RAW[5, 6, 1] = -9999
PLACE = from_origin(366000, 5810000, 30, 30)
TURNED = Affine(24.0, 18.0, 366000.0, 18.0, -24.0, 5810000.0)


def scene(raw: np.ndarray = RAW, *, chunk: int = 7, transform: Affine | None = PLACE, **options: Any) -> Any:
    crs = UTM if transform else None
    defaults = {"wavelength_nm": NM, "nodata": -9999, "scale": 1e-4, "offset": 0.01, "source": "made.hdr"}
    return make_scene(
        da.from_array(raw, chunks=(chunk, -1, -1)), crs=crs, transform=transform, **defaults | options
    )


def plane(values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=(11, -1))


def holds(raw: np.ndarray = RAW) -> np.ndarray:
    return (raw != -9999).any(axis=2)


def valid(masked: Any) -> np.ndarray:
    assert masked.attrs["valid_rule"] == "mask"
    return masked["valid"].values


def test_where_nothing_masks_the_scene_stays_as_it_was() -> None:
    before = scene()
    assert apply_mask(before) is before


def test_nodata_can_be_replaced_and_taken_away() -> None:
    other = apply_mask(scene(nodata=None), nodata=-9999)
    np.testing.assert_array_equal(other["valid"].values, holds())
    none = apply_mask(scene(), nodata="none")
    assert none["valid"].values.all()
    assert "nodata" not in none.attrs


@pytest.mark.parametrize("dtype", ["bool", "uint8"])
def test_flags_mask_where_they_are_set_and_the_cube_is_not_touched(dtype: str) -> None:
    cloud, cirrus = (RNG.random((ROWS, COLS)) < p for p in (0.3, 0.1))
    before = scene(quality={"cloud": plane(cloud.astype(dtype)), "cirrus": plane(cirrus)})
    masked = apply_mask(before, quality=["cloud", "quality_cirrus"])
    np.testing.assert_array_equal(valid(masked), holds() & ~cloud & ~cirrus)
    assert masked["valid"].data.chunks == before["valid"].data.chunks
    assert masked["data"].data is before["data"].data
    assert json.loads(masked.attrs["mask_settings"])["quality"] == {"cloud": "flag", "cirrus": "flag"}


def test_codes_mask_where_they_are_named() -> None:
    codes = RNG.integers(0, 4, (ROWS, COLS)).astype("uint8")
    layers = {"cloud": plane(codes)}
    found = apply_mask(scene(quality=layers), quality={"cloud": [1, 3]})
    np.testing.assert_array_equal(valid(found), holds() & (codes != 1) & (codes != 3))
    found = apply_mask(scene(quality=layers), quality={"cloud": "nonzero"})
    np.testing.assert_array_equal(valid(found), holds() & (codes == 0))


def test_codes_are_not_taken_for_flags() -> None:
    codes = np.full((ROWS, COLS), 2, "uint8")
    bare = apply_mask(scene(quality={"haze": plane(codes)}), quality=["haze"])
    with pytest.raises(ConfigError, match=r"'haze' is no flag of 0 and 1: it holds 2"):
        bare["valid"].compute()
    meanings = {"flag_values": [1, 2, 3], "flag_meanings": "land water background"}
    with pytest.raises(ConfigError, match="1 = land, 2 = water, 3 = background"):
        apply_mask(scene(quality={"classes": (plane(codes), meanings)}), quality=["classes"])


def test_fill_values_of_a_flag_mask_and_what_was_not_judged_is_asked() -> None:
    flag = (RNG.random((ROWS, COLS)) < 0.3).astype("float32")
    flag[5, 5], flag[6, 6] = -9999, np.nan
    meanings = {"flag_meanings": "0 no, 1 yes, -9999 fill"}
    found = apply_mask(scene(quality={"cloud": (plane(flag), meanings)}), quality=["cloud"])
    np.testing.assert_array_equal(valid(found), holds() & (flag == 0))
    codes = np.zeros((ROWS, COLS), "uint8")
    codes[0, 0], codes[1, 1] = 1, 255
    meanings = {"flag_meanings": "0 clear, 1 cloud, 10 not processed, 255 error"}
    found = apply_mask(scene(quality={"cloud": (plane(codes), meanings)}), quality=["cloud"])
    np.testing.assert_array_equal(valid(found), holds() & (codes == 0))
    codes[2] = 10
    found = apply_mask(scene(quality={"cloud": (plane(codes), meanings)}), quality=["cloud"])
    with pytest.raises(ConfigError, match="it holds 10"):
        found["valid"].compute()


@pytest.mark.parametrize(
    ("name", "layer", "stored"),
    [
        ("emit_rfl", "cloud", "Cloud flag"),
        ("emit_rfl", "cirrus", "Cirrus flag"),
        ("enmap_l2a", "cloud", "cloud"),
        ("enmap_l1c", "haze", "haze"),
    ],
)
def test_layers_of_generated_products_mask(
    products: Any, tmp_path: Path, name: str, layer: str, stored: str
) -> None:
    truth = products.make(name, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        opened = open_scene(truth.paths[0])
    expected = opened["valid"].values & (truth.quality[stored] == 0)
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(valid(apply_mask(opened, quality=[layer])), expected)


def test_layers_that_are_not_there_are_refused_with_those_that_are() -> None:
    zeros = plane(np.zeros((ROWS, COLS), bool))
    with pytest.raises(ConfigError, match=r"'snow'.*it has cloud, water"):
        apply_mask(scene(quality={"cloud": zeros, "water": zeros}), quality=["snow"])
    with pytest.raises(ConfigError, match="brings no quality layer"):
        apply_mask(scene(), quality=["cloud"])
    with pytest.raises(ConfigError, match="holds float64"):
        apply_mask(scene(quality={"aot": plane(np.zeros((ROWS, COLS)))}), quality=["aot"])


def test_saturation_is_told_by_the_product_or_the_user_and_never_guessed() -> None:
    assert apply_mask(scene(), saturated="auto").attrs.get("valid_rule") is None
    expected = holds() & ~(RAW >= 3900).any(axis=2)
    np.testing.assert_array_equal(valid(apply_mask(scene(), saturated=3900)), expected)
    np.testing.assert_array_equal(valid(apply_mask(scene(saturation=3900))), expected)
    flag = RAW[:, :, 0] > 3000
    np.testing.assert_array_equal(
        valid(apply_mask(scene(quality={"saturated": plane(flag)}))), holds() & ~flag
    )
    assert apply_mask(scene(saturation=3900), saturated=None).attrs.get("valid_rule") is None
    with pytest.raises(ConfigError, match="no int16 reaches"):
        apply_mask(scene(), saturated=70000)


def test_bad_bands_and_nodata_do_not_saturate() -> None:
    raw = np.full((ROWS, COLS, 4), 100, np.uint16)
    raw[0, 0, 1], raw[0, 1, 2], raw[0, 2, 0] = 65535, 60000, 60000
    options = {"nodata": 65535, "good_band": [True, True, False, True]}
    found = valid(apply_mask(scene(raw, **options), saturated=60000))
    expected = np.ones((ROWS, COLS), bool)
    expected[0, 2] = False
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("span", [(-0.1, 0.4), (None, 0.2), (0.0, None)])
def test_ndvi_is_of_physical_values_of_the_nearest_bands(span: tuple[float | None, float | None]) -> None:
    value = RAW * 1e-4 + 0.01
    red, infrared = value[:, :, 2], value[:, :, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        index = (infrared - red) / (infrared + red)
    low, high = (-np.inf if span[0] is None else span[0]), (np.inf if span[1] is None else span[1])
    expected = (RAW[:, :, 1] != -9999) & (RAW[:, :, 2] != -9999) & (index >= low) & (index <= high)
    np.testing.assert_array_equal(valid(apply_mask(scene(), ndvi=span)), expected)


def test_ndvi_needs_a_red_and_an_infrared_band() -> None:
    with pytest.raises(ConfigError, match="needs wavelengths"):
        apply_mask(scene(wavelength_nm=None), ndvi=(0, 1))
    with pytest.raises(ConfigError, match="within 40 nm of 800 nm"):
        apply_mask(scene(good_band=[True, False, True, True]), ndvi=(0, 1))


@pytest.mark.parametrize("window", [None, (600.0, 900.0)])
def test_brightness_is_the_mean_of_the_bands_that_hold_data(window: tuple[float, float] | None) -> None:
    good = np.array([True, True, True, False])
    chosen = good & ((window[0] <= NM) & (window[1] >= NM) if window else True)
    value = np.where(RAW == -9999, np.nan, RAW * 1e-4 + 0.01)[:, :, chosen]
    mean = np.nanmean(value[holds()], axis=1)
    expected = np.zeros((ROWS, COLS), bool)
    expected[holds()] = (mean >= 0.15) & (mean <= 0.3)
    found = apply_mask(scene(good_band=good), brightness=(0.15, 0.3), brightness_nm=window)
    np.testing.assert_array_equal(valid(found), expected)


def test_masks_add_up_and_do_not_depend_on_the_chunks() -> None:
    cloud = RNG.random((ROWS, COLS)) < 0.3
    options: dict[str, Any] = {
        "quality": ["cloud"], "ndvi": (-0.5, 0.5), "brightness": (0.1, 0.35), "saturated": 3990,
    }  # fmt: skip
    layers = {"cloud": plane(cloud)}
    found = [valid(apply_mask(scene(chunk=chunk, quality=layers), **options)) for chunk in (1, 7, 40)]
    alone = [valid(apply_mask(scene(quality=layers), **{key: value})) for key, value in options.items()]
    np.testing.assert_array_equal(found[0], np.logical_and.reduce(alone))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    twice = apply_mask(apply_mask(scene(quality=layers), quality=["cloud"]), ndvi=(-0.5, 0.5))
    np.testing.assert_array_equal(valid(twice), alone[0] & alone[1])
    assert {"quality", "ndvi"} <= set(json.loads(twice.attrs["mask_settings"]))


def test_what_the_product_calls_invalid_stays_invalid() -> None:
    told = np.zeros((ROWS, COLS), bool)
    told[2:9] = True
    found = apply_mask(scene(valid_yx=plane(told)), saturated=3900)
    np.testing.assert_array_equal(valid(found), told & ~((RAW >= 3900) & (RAW != -9999)).any(axis=2))


# polygons


def ring(transform: Affine, corners: list[tuple[float, float]]) -> shapely.Polygon:
    """Return a polygon from (col, row) corners, in the coordinates of the grid."""
    a, b, c, d, e, f = tuple(transform)[:6]
    return shapely.Polygon([(a * x + b * y + c, d * x + e * y + f) for x, y in corners])


CORNERS = [[(2.2, 1.7), (14.9, 3.1), (11.4, 19.6), (3.3, 12.2)], [(18.1, 20.3), (27.8, 22.2), (20.4, 38.9)]]


def lonlat(shape: shapely.Polygon) -> shapely.Polygon:
    def move(xy: np.ndarray) -> np.ndarray:
        return np.column_stack(transform_points(UTM, CRS.from_epsg(4326), xy[:, 0], xy[:, 1])[:2])

    return shapely.transform(shape, move)


def write(path: Path, shapes: list[Any], crs: str | None) -> Path:
    import pyogrio.raw

    wkb = np.array([shapely.to_wkb(s) for s in shapes], object)
    pyogrio.raw.write(
        path, geometry=wkb, field_data=[np.arange(len(shapes))], fields=["n"], crs=crs,
        geometry_type=shapes[0].geom_type,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("transform", [PLACE, TURNED], ids=["north up", "turned"])
@pytest.mark.parametrize("chunk", [3, 40])
def test_polygons_mask_pixels_whose_centre_is_inside(tmp_path: Path, transform: Affine, chunk: int) -> None:
    """Against shapely, centre by centre."""
    shapes = [ring(transform, corners) for corners in CORNERS]
    path = write(tmp_path / "fields.gpkg", shapes, "EPSG:32633")
    row, col = np.mgrid[:ROWS, :COLS] + 0.5
    a, b, c, d, e, f = tuple(transform)[:6]
    inside = shapely.contains_xy(shapely.union_all(shapes), a * col + b * row + c, d * col + e * row + f)
    assert 100 < inside.sum() < 600
    made = scene(chunk=chunk, transform=transform)
    np.testing.assert_array_equal(valid(apply_mask(made, polygons=path)), holds() & ~inside)
    np.testing.assert_array_equal(valid(apply_mask(made, polygons=[path], keep="inside")), holds() & inside)


def test_polygons_are_brought_to_the_scenes_crs_from_every_format(tmp_path: Path) -> None:
    shapes = [ring(PLACE, corners) for corners in CORNERS]
    moved = [lonlat(shape) for shape in shapes]
    expected = holds() & geometry_mask(shapes, (ROWS, COLS), PLACE)
    (tmp_path / "f.geojson").write_text(
        json.dumps(
            {
                "type": "FeatureCollection",
                "features": [
                    {"type": "Feature", "properties": {}, "geometry": shapely.geometry.mapping(shape)}
                    for shape in moved
                ],
            }
        )
    )
    sources = [
        tmp_path / "f.geojson",
        write(tmp_path / "f.shp", moved, "EPSG:4326"),
        write(tmp_path / "f.gpkg", shapes, "EPSG:32633"),
        shapely.geometry.mapping(shapely.MultiPolygon(moved)),
    ]
    for source in sources:
        np.testing.assert_array_equal(valid(apply_mask(scene(), polygons=source)), expected)
    two = [write(tmp_path / f"{k}.gpkg", [shape], "EPSG:32633") for k, shape in enumerate(shapes)]
    np.testing.assert_array_equal(valid(apply_mask(scene(), polygons=two)), expected)


def test_polygons_mask_a_cube_in_sensor_geometry_by_its_latitude_and_longitude(tmp_path: Path) -> None:
    row, col = np.mgrid[:ROWS, :COLS].astype(float)
    lat, lon = 48.2 - 2.6e-4 * row - 5e-5 * col, 11.3 + 4e-4 * col - 7e-5 * row
    lat[0, 0] = np.nan
    shape = shapely.Polygon([(11.3012, 48.197), (11.308, 48.1985), (11.306, 48.192)])
    source = shapely.geometry.mapping(shape)
    made = scene(transform=None, lat_yx=plane(lat), lon_yx=plane(lon))
    inside = np.array(
        [[shape.contains(shapely.Point(p)) for p in zip(*r, strict=True)] for r in zip(lon, lat, strict=True)]
    )
    assert 50 < inside.sum() < 600
    np.testing.assert_array_equal(valid(apply_mask(made, polygons=source)), holds() & ~inside)


def test_a_scene_without_a_place_takes_no_polygons() -> None:
    shape = shapely.geometry.mapping(lonlat(ring(PLACE, CORNERS[0])))
    with pytest.raises(ConfigError, match=r"made\.hdr.*neither a CRS.*nor\s+latitude"):
        apply_mask(scene(transform=None), polygons=shape)


def test_a_polygon_around_the_scene_masks_all_of_it() -> None:
    around = shapely.geometry.mapping(lonlat(ring(PLACE, [(-5, -5), (40, -5), (40, 50), (-5, 50)])))
    assert not valid(apply_mask(scene(), polygons=around)).any()
    np.testing.assert_array_equal(valid(apply_mask(scene(), polygons=around, keep="inside")), holds())


def test_polygons_elsewhere_are_told() -> None:
    far = shapely.geometry.mapping(shapely.box(20, 10, 21, 11))
    with pytest.warns(BandstreamWarning, match="no polygon touches made"):
        found = apply_mask(scene(), polygons=far)
    np.testing.assert_array_equal(valid(found), holds())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.vrt", b"<OGRVRTDataSource></OGRVRTDataSource>", "no vector file"),
        ("a.csv", b"x,y\n1,2\n", "no vector file"),
        ("a.geojson", b'{"type": "FeatureCollection", "features": [', "cannot be read"),
        ("a.geojson", b'{"hello": 1}', "cannot be read"),
        ("a.gpkg", b"SQLite format 3\0" + bytes(2000), "cannot be read"),
        ("a.shp", b"\x00\x00\x27\x0a" + bytes(50), "cannot be read"),
    ],
)
def test_what_is_no_vector_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        apply_mask(scene(), polygons=tmp_path / name)


def test_points_unplaced_and_missing_files_are_refused(tmp_path: Path) -> None:
    points = write(tmp_path / "p.gpkg", [shapely.Point(366100, 5809900)], "EPSG:32633")
    with pytest.raises(ConfigError, match="holds a Point"):
        apply_mask(scene(), polygons=points)
    bare = write(tmp_path / "b.shp", [ring(PLACE, CORNERS[0])], "EPSG:32633")
    bare.with_suffix(".prj").unlink()
    with pytest.raises(ConfigError, match="does not tell its CRS"):
        apply_mask(scene(), polygons=bare)
    with pytest.raises(SceneNotFoundError, match=r"none\.gpkg"):
        apply_mask(scene(), polygons=tmp_path / "none.gpkg")


def test_a_huge_scene_is_burned_only_where_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane of 10^10 pixels is never made as a whole."""
    rows = cols = 100_000
    cube = da.zeros((rows, cols, 2), dtype="int16", chunks=(200, cols, 2))
    made = make_scene(cube, crs=UTM, transform=from_origin(100000, 9000000, 1, 1))
    shape = shapely.box(100010.0, 9000000.0 - 50_000, 100020.0, 9000000.0)
    burned: list[tuple[int, int]] = []
    original = BurnedPolygons.burn

    def watch(self: BurnedPolygons, row: int, col: int, shape_yx: tuple[int, int]) -> np.ndarray:
        burned.append(shape_yx)
        return original(self, row, col, shape_yx)

    monkeypatch.setattr(BurnedPolygons, "burn", watch)
    import bandstream.pipeline.masks.polygons as module

    monkeypatch.setattr(module, "read_polygons", lambda *_: np.array([shape], object))
    masked = apply_mask(made, polygons="x.gpkg")
    assert burned == []
    window = masked["valid"][49_990:50_010, 0:40].values
    expected = np.ones((20, 40), bool)
    expected[:10, 10:20] = False
    np.testing.assert_array_equal(window, expected)
    assert sum(height for height, _ in burned) <= 400


@pytest.mark.parametrize("width", [0.2, 5.0, 170.0])
def test_an_edge_is_straight_in_the_crs_of_the_file_however_long(width: float) -> None:
    """Case: only the corners were brought to the scene's CRS, in which a parallel is a curve."""
    grid = from_origin(300000, 5000000, 300, 300)
    made = make_scene(da.ones((40, 50, 2), dtype="int16", chunks=(16, -1, -1)), crs=UTM, transform=grid)
    y, x = np.mgrid[:40, :50] + 0.5
    lon, lat = transform_points(
        UTM, CRS.from_epsg(4326), (300000 + 300 * x).ravel(), (5000000 - 300 * y).ravel()
    )[:2]
    middle = float(np.median(lat))
    shape = shapely.box(15 - width - 3, middle, 15 + width, 80.0)
    expected = (np.reshape(lat, (40, 50)) < middle) | (np.reshape(lon, (40, 50)) > 15 + width)
    expected |= np.reshape(lon, (40, 50)) < 15 - width - 3
    masked = apply_mask(made, polygons=shapely.geometry.mapping(shape))
    assert (valid(masked) != expected).sum() <= 2


def test_a_polygon_beyond_the_poles_touches_no_scene() -> None:
    """Case: PROJ's refusal of latitudes above 90 degrees came through as a traceback."""
    with pytest.warns(BandstreamWarning, match="no polygon touches"):
        masked = apply_mask(scene(), polygons=shapely.geometry.mapping(shapely.box(10.0, 91.0, 20.0, 95.0)))
    np.testing.assert_array_equal(masked["valid"].values, scene()["valid"].values)


@pytest.mark.parametrize("first", [-180.0, 0.0])
def test_longitudes_may_be_counted_from_0_or_from_minus_180(first: float) -> None:
    lat, lon = np.mgrid[-17.0:-17.2:8j, 179.9:180.1:10j]
    made = make_scene(
        da.ones((8, 10, 2), chunks=-1), lat_yx=plane(lat), lon_yx=plane((lon - first) % 360 + first)
    )
    for west in (-180.0, 180.0):
        masked = apply_mask(
            made, polygons=shapely.geometry.mapping(shapely.box(west, -18.0, west + 1, -16.0))
        )
        np.testing.assert_array_equal(valid(masked), lon < 180)


def test_burned_polygons_survive_pickling() -> None:
    burned = BurnedPolygons(TURNED, (shapely.to_wkb(ring(TURNED, CORNERS[0])),))
    before = burned.burn(0, 0, (ROWS, COLS))
    assert before.any()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(burned)).burn(0, 0, (ROWS, COLS)), before)  # noqa: S301


# configuration


def test_the_stage_is_read_and_applied(tmp_path: Path) -> None:
    shape = ring(PLACE, CORNERS[0])
    write(tmp_path / "s_fields.shp", [shape], "EPSG:32633")
    cloud = RNG.random((ROWS, COLS)) < 0.3
    config = parse(
        MaskConfig,
        {"nodata": -9999, "quality": {"cloud": [1]}, "polygons": "{stem}_fields.shp", "ndvi": [None, 0.3]},
        "the test",
    )
    made = scene(quality={"cloud": plane(cloud.astype("uint8"))})
    assert {path.suffix for path in stage_files(config, [tmp_path], "s")} >= {".shp", ".shx", ".dbf", ".prj"}
    whole = mask_scene(made, config, [tmp_path], stem="s")
    stored = mask_scene(made, config, [tmp_path], stem="s", part="stored")
    parts = mask_scene(stored, config, [tmp_path], stem="s", part="physical")
    np.testing.assert_array_equal(valid(whole), valid(parts))
    inside = ~geometry_mask([shape], (ROWS, COLS), PLACE)
    np.testing.assert_array_equal(valid(stored), holds() & ~cloud & ~inside)
    with pytest.raises(ConfigError, match="no file matches"):
        stage_files(config, [tmp_path], "other")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ndvi": [0.5, 0.1]}, "a range is"),
        ({"brightness": [None, None]}, "masks nothing"),
        ({"brightness_nm": [400, 700]}, "give brightness too"),
        ({"cloud": True}, "unknown key 'cloud'"),
        ({"polygons": {"path": "a.shp", "keep": "none"}}, "keep"),
        ({"quality": {"cloud": []}}, "cloud"),
    ],
)
def test_settings_that_make_no_sense_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(MaskConfig, content, "the test")


def test_the_configuration_loads_neither_xarray_nor_gdal() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import bandstream.pipeline.masks.config; "
        "print([m for m in ('xarray', 'dask', 'rasterio', 'shapely', 'pyogrio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
