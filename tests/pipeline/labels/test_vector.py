"""Polygons as labels: the same pixels as GDAL burns and shapely finds, and one class for each name."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio.features
import shapely
from affine import Affine
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rasterio.warp import transform as transform_points

from bandstream.pipeline.errors import BandstreamWarning, LabelError
from bandstream.pipeline.labels import LabelFiles, LabelsConfig, number_together, open_labels
from bandstream.pipeline.scene import make_scene

UTM = CRS.from_epsg(32633)
GRID = from_origin(366000, 5810000, 30, 30)
TURNED = Affine(20.1, 7.3, 366000, 6.9, -21.7, 5810000)


def labels_of(path: Path, scene, **settings):
    groups = settings.pop("groups", None)
    config = LabelsConfig(path=str(path), groups=groups and str(groups), **settings)
    return open_labels(scene, LabelFiles(path, config, groups))


def read_all(labels, shape=(40, 50)) -> np.ndarray:
    return labels.read(slice(0, shape[0]), slice(0, shape[1]))


def blob(rng, transform: Affine, holes: bool = True):
    """Return a star-shaped polygon, of which some have a hole, somewhere about the scene."""
    angle = np.sort(rng.uniform(0, 2 * np.pi, 25))
    radius = rng.uniform(3, 12, 25)
    x, y = rng.uniform(-3, 53), rng.uniform(-3, 43)

    def ring(scale):
        points = zip(x + scale * radius * np.cos(angle), y + scale * radius * np.sin(angle), strict=True)
        a, b, c, d, e, f = tuple(transform)[:6]
        return [(a * col + b * row + c, d * col + e * row + f) for col, row in points]

    return shapely.Polygon(ring(1.0), [ring(0.4)] if holes and rng.random() < 0.5 else [])


@pytest.mark.parametrize("transform", [GRID, TURNED])
def test_polygons_are_burned_as_gdal_does_it_in_windows_of_any_size(
    tmp_path: Path, scene, write_vector, transform: Affine
) -> None:
    rng = np.random.default_rng(0)
    shapes = [blob(rng, transform) for _ in range(40)]
    codes = rng.integers(1, 7, 40).astype("int32")
    path = write_vector(tmp_path / "f.gpkg", shapes, **{"class": codes})
    with pytest.warns(BandstreamWarning, match="of different classes overlap"):
        labels = labels_of(path, scene(transform))
    expected = rasterio.features.rasterize(
        zip(shapes, codes.tolist(), strict=True), (40, 50), transform=transform, dtype="int32"
    )
    found = read_all(pickle.loads(pickle.dumps(labels)))  # noqa: S301
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, expected)
    for rows, cols in [
        (slice(3, 17), slice(0, 50)),
        (slice(39, 40), slice(49, 50)),
        (slice(0, 40), slice(7, 21)),
    ]:
        np.testing.assert_array_equal(labels.read(rows, cols), found[rows, cols])


def test_a_centre_on_a_common_edge_belongs_to_exactly_one_polygon(
    tmp_path: Path, scene, write_vector
) -> None:
    """Neighbours meet on the line through the centres of column 10 and of row 20."""
    x, y = 366000 + 10.5 * 30, 5810000 - 20.5 * 30
    west, east, north, south = 366000, 366000 + 1500, 5810000, 5810000 - 1200
    boxes = [(west, y, x, north), (x, y, east, north), (west, south, x, y), (x, south, east, y)]
    path = write_vector(tmp_path / "f.gpkg", [shapely.box(*b) for b in boxes], **{"class": [1, 2, 3, 4]})
    found = read_all(labels_of(path, scene()))
    assert (found > 0).all()
    assert set(np.unique(found[:20, :10])) == {1}
    assert set(np.unique(found[21:, 11:])) == {4}


@pytest.mark.parametrize("ending", ["gpkg", "geojson", "shp"])
def test_polygons_in_another_crs_are_brought_to_the_scenes(
    tmp_path: Path, scene, write_vector, ending: str
) -> None:
    rng = np.random.default_rng(1)
    shapes = [blob(rng, GRID, holes=False) for _ in range(6)]

    def degrees(xy):
        return np.column_stack(transform_points(UTM, CRS.from_epsg(4326), xy[:, 0], xy[:, 1]))

    path = write_vector(
        tmp_path / f"f.{ending}",
        [shapely.transform(shapely.segmentize(s, 5.0), degrees) for s in shapes],
        "EPSG:4326",
        **{"class": np.array(["wheat", "maize", "wheat", "beet", "maize", "oats"], object)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)  # they overlap
        labels = labels_of(path, scene())
    on_scene = labels.names()
    number = {name: n for n, name in on_scene.items()}
    names = ["wheat", "maize", "wheat", "beet", "maize", "oats"]
    x, y = np.meshgrid(366000 + 30 * (np.arange(50) + 0.5), 5810000 - 30 * (np.arange(40) + 0.5))
    expected = np.zeros((40, 50), int)
    for name, shape in zip(names, shapes, strict=True):
        inside = shapely.contains_xy(shape, x, y)
        expected[inside] = number.get(name, 0)
    assert (read_all(labels) == expected).mean() > 0.999
    assert list(on_scene.values()) == sorted(on_scene.values())
    assert str(path) in labels.files()
    assert len(labels.files()) == (5 if ending == "shp" else 1)


def test_a_name_has_one_number_in_all_scenes(tmp_path: Path, scene, write_vector) -> None:
    """The second scene has no beet, and the first no oats."""
    at = [shapely.box(366000 + 90 * n, 5809000, 366060 + 90 * n, 5809900) for n in range(3)]
    first = write_vector(tmp_path / "a.gpkg", at, **{"class": np.array(["wheat", "beet", "maize"], object)})
    second = write_vector(tmp_path / "b.gpkg", at, **{"class": np.array(["oats", "wheat", "maize"], object)})
    opened = [labels_of(path, scene()) for path in (first, second)]
    a, b = number_together(opened, None)
    assert a.names() == b.names() == {1: "beet", 2: "maize", 3: "oats", 4: "wheat"}
    assert [a.read(slice(20, 21), slice(3 * n, 3 * n + 1)).item() for n in range(3)] == [4, 1, 2]
    assert [b.read(slice(20, 21), slice(3 * n, 3 * n + 1)).item() for n in range(3)] == [3, 4, 2]
    order = ["maize", "wheat", "oats", "beet", "rye"]
    a, b = number_together(opened, order)
    assert [a.read(slice(20, 21), slice(3 * n, 3 * n + 1)).item() for n in range(3)] == [2, 4, 1]
    assert [b.read(slice(20, 21), slice(3 * n, 3 * n + 1)).item() for n in range(3)] == [3, 2, 1]
    assert pickle.loads(pickle.dumps(a)).names()[1] == "maize"  # noqa: S301
    with pytest.raises(LabelError, match=r"'oats'.*class_names"):
        number_together(opened, ["maize", "wheat", "beet"])


def test_numbers_and_names_go_together_only_by_class_names(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000, 5809000, 366600, 5809900)]
    numbers = write_vector(tmp_path / "a.gpkg", box, **{"class": [2]})
    names = write_vector(tmp_path / "b.gpkg", box, **{"class": np.array(["wheat"], object)})
    opened = [labels_of(path, scene()) for path in (numbers, names)]
    with pytest.raises(LabelError, match="by number and other label files"):
        number_together(opened, None)
    a, b = number_together(opened, ["maize", "wheat"])
    assert read_all(a).max() == read_all(b).max() == 2


def test_whole_numbers_written_as_text_are_class_numbers(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000 + 300 * n, 5809000, 366300 + 300 * n, 5809900) for n in range(3)]
    path = write_vector(tmp_path / "f.gpkg", box, **{"class": np.array(["12", " 3", "0"], object)})
    with pytest.warns(BandstreamWarning, match="1 of 3 polygons .* have no class"):
        labels = labels_of(path, scene())
    assert not labels.named
    assert set(np.unique(read_all(labels))) == {0, 3, 12}


def test_groups_are_column_values_or_polygons_and_agree_among_scenes(
    tmp_path: Path, scene, write_vector
) -> None:
    at = [shapely.box(366000 + 90 * n, 5809000, 366060 + 90 * n, 5809900) for n in range(4)]
    column = {"class": [1, 1, 2, 2]}
    a = write_vector(tmp_path / "a.gpkg", at, **column, field=np.array([10.0, 9.0, np.nan, 10.0]))
    b = write_vector(tmp_path / "b.gpkg", at, **column, field=np.array(["9", "x7", "10", ""], object))
    one, two, plain = number_together(
        [labels_of(a, scene(), group="field"), labels_of(b, scene(), group="field"), labels_of(a, scene())],
        None,
    )
    assert one.group_names[:3] == ("9", "10", "a.gpkg:1")
    assert one.group_names == two.group_names == plain.group_names

    def named(labels):
        codes = labels.group_codes(slice(20, 21), slice(0, 12))[0, ::3]
        assert codes.dtype == np.int32
        return [labels.group_names[code - 1] if code else "" for code in codes]

    assert named(one) == ["10", "9", "", "10"]
    assert named(two) == ["9", "x7", "10", ""]
    assert named(plain) == ["a.gpkg:1", "a.gpkg:2", "a.gpkg:3", "a.gpkg:4"]


def test_where_polygons_overlap_the_last_one_counts_and_the_pixels_are_told(
    tmp_path: Path, scene, write_vector
) -> None:
    first = shapely.box(366000, 5809400, 366300, 5809700)  # rows 10 to 19, columns 0 to 9
    second = shapely.box(366150, 5809400, 366600, 5809700)  # columns 5 to 19
    path = write_vector(tmp_path / "f.gpkg", [first, second], **{"class": [3, 1]})
    with pytest.warns(BandstreamWarning, match=r"1 pairs of polygons \(50 pixels\)"):
        labels = labels_of(path, scene())
    np.testing.assert_array_equal(read_all(labels)[12, :21], [3] * 5 + [1] * 15 + [0])
    same = write_vector(tmp_path / "g.gpkg", [first, second], **{"class": [1, 1]})
    labels_of(same, scene())  # of one class, they may


def test_classes_are_taken_together_or_left_out(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000 + 90 * n, 5809000, 366060 + 90 * n, 5809900) for n in range(4)]
    path = write_vector(
        tmp_path / "f.gpkg", box, **{"class": np.array(["oak", "pine", "road", "rye"], object)}
    )
    wanted = {"forest": ["pine", "oak"], "crop": ["rye", "wheat"]}
    with pytest.warns(BandstreamWarning, match="wheat, which no scene has"):
        (labels,) = number_together([labels_of(path, scene(), classes=wanted)], None)
    assert labels.names() == {1: "crop", 2: "forest"}
    np.testing.assert_array_equal(labels.read(slice(20, 21), slice(0, 12))[0, ::3], [2, 2, 0, 1])
    with pytest.raises(ValueError, match="takes oak twice"):
        LabelsConfig(path="x", classes={"a": ["oak"], "b": ["oak"]})


def test_sensor_geometry_is_labelled_at_each_pixels_latitude_and_longitude(
    tmp_path: Path, scene, write_vector
) -> None:
    rows, cols = np.mgrid[0:90, 0:70].astype(float)
    lat = 47.0 - 0.0003 * rows + 0.0001 * np.sin(cols / 5)
    lon = 179.9 + 0.0004 * cols + 0.0001 * rows
    lon = np.where(lon > 180, lon - 360, lon)  # the scene crosses the 180th meridian
    lat[5:9, 5:9] = np.nan
    made = scene(None, (90, 70), lat_yx=lat, lon_yx=lon)
    shapes = [shapely.box(179.9, 46.98, 179.91, 46.995), shapely.Point(179.915, 46.985).buffer(0.004)]
    shapes.append(shapely.box(9, 46.98, 9.1, 47))
    path = write_vector(tmp_path / "f.geojson", shapes, "EPSG:4326", **{"class": [2, 5, 7]})
    labels = labels_of(path, made)
    expected = np.zeros((90, 70), int)
    for shape, code in zip(shapes, [2, 5, 7], strict=True):
        expected[shapely.contains_xy(shape, np.nan_to_num(lon), np.nan_to_num(lat))] = code
    assert set(np.unique(expected)) == {0, 2, 5}
    found = read_all(pickle.loads(pickle.dumps(labels)), (90, 70))  # noqa: S301
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(labels.read(slice(11, 30), slice(3, 69)), expected[11:30, 3:69])


def test_polygons_elsewhere_and_invalid_ones_are_told(tmp_path: Path, scene, write_vector) -> None:
    path = write_vector(tmp_path / "f.gpkg", [shapely.box(0, 0, 10, 10)], **{"class": [1]})
    with pytest.warns(BandstreamWarning, match="No shape of the labels"):
        assert not read_all(labels_of(path, scene())).any()
    bow = shapely.Polygon([(366000, 5809000), (366900, 5809900), (366900, 5809000), (366000, 5809900)])
    path = write_vector(tmp_path / "g.gpkg", [bow], **{"class": [1]})
    with pytest.warns(BandstreamWarning, match="1 polygons .* were repaired"):
        found = read_all(labels_of(path, scene()))
    # both wings, of a quarter of the box of 30 x 30 pixels each
    assert abs(int(found.sum()) - 450) < 40


def test_layers_and_columns_have_to_be_chosen(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000, 5809000, 366600, 5809900)]
    path = write_vector(tmp_path / "f.gpkg", box, kind=[1])
    with pytest.raises(LabelError, match="no column 'class'; it has kind"):
        labels_of(path, scene())
    write_vector(path, box, kind=[2])
    with pytest.raises(LabelError, match=r"2 layers \(f, f2\); choose one by labels.layer"):
        labels_of(path, scene(), attribute="kind")
    assert read_all(labels_of(path, scene(), attribute="kind", layer="f2")).max() == 2
    with pytest.raises(LabelError, match="none"):
        labels_of(path, scene(), attribute="kind", layer="none")


@pytest.mark.parametrize(
    ("values", "message"),
    [([-3], "holds -3"), ([5000], "holds 5000"), ([1.5], "holds 1.5")],
)
def test_numbers_of_no_class_are_refused(tmp_path: Path, scene, write_vector, values, message: str) -> None:
    path = write_vector(
        tmp_path / "f.gpkg", [shapely.box(366000, 5809000, 366600, 5809900)], **{"class": values}
    )
    with pytest.raises(LabelError, match=message):
        labels_of(path, scene())


def test_polygons_and_scenes_without_a_place_are_refused(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000, 5809000, 366600, 5809900)]
    placed = write_vector(tmp_path / "f.gpkg", box, **{"class": [1]})
    bare = write_vector(tmp_path / "g.shp", box, **{"class": [1]})
    bare.with_suffix(".prj").unlink()
    with pytest.raises(LabelError, match="neither a CRS with a transform nor latitude"):
        labels_of(placed, scene(None))
    for made in (scene(), scene(None)):
        with pytest.raises(LabelError, match=r"does not tell its CRS|neither a CRS"):
            labels_of(bare, made)


NEST = {"type": "Point", "coordinates": [13.0, 52.4]}
for _ in range(40):
    NEST = {"type": "GeometryCollection", "geometries": [NEST]}
RING = [[13.0, 52.3], [13.2, 52.3], [13.2, 52.5], [13.0, 52.3]]


@pytest.mark.parametrize(
    "geometry",
    [
        "{",
        '{"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": {"type": "Poly',
        {"type": "Polygon", "coordinates": [[[1e300, 52], [1e301, 52], [13, 1e305], [1e300, 52]]]},
        {"type": "LineString", "coordinates": RING},
        {"type": "GeometryCollection", "geometries": [{"type": "Polygon", "coordinates": [RING]}]},
        NEST,
    ],
)
def test_hostile_geojson_ends_in_an_error(tmp_path: Path, scene, geometry) -> None:
    path = tmp_path / "f.geojson"
    if isinstance(geometry, dict):
        feature = {"type": "Feature", "properties": {"class": 1}, "geometry": geometry}
        path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    else:
        path.write_text(geometry)
    with pytest.raises(LabelError, match=r"f\.geojson"):
        labels_of(path, scene())


@pytest.mark.parametrize("ring", [[["a", "b"]], [[13.0, 52.3]], []])
def test_geometries_that_are_none_are_left_out_and_told(tmp_path: Path, scene, ring) -> None:
    path = tmp_path / "f.geojson"
    x, y = transform_points(UTM, CRS.from_epsg(4326), [366000, 367500], [5808800, 5810000])
    good = shapely.geometry.mapping(shapely.box(x[0] - 0.01, y[0] - 0.01, x[1] + 0.01, y[1] + 0.01))
    features = [
        {"type": "Feature", "properties": {"class": code}, "geometry": geometry}
        for code, geometry in ((1, {"type": "Polygon", "coordinates": [ring]}), (2, None), (3, good))
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    with pytest.warns(BandstreamWarning, match="[12] features .* have no geometry that can be read"):
        assert (read_all(labels_of(path, scene())) == 3).all()


def test_hostile_shapefiles_and_geopackages_end_in_an_error(tmp_path: Path, scene, write_vector) -> None:
    box = [shapely.box(366000, 5809000, 366600, 5809900)]
    path = write_vector(tmp_path / "f.shp", box, **{"class": [1]})
    (tmp_path / "f.dbf").unlink()
    with pytest.raises(LabelError, match="column 'class'"):
        labels_of(path, scene())
    path.write_bytes(path.read_bytes()[:110])
    with pytest.raises(LabelError, match=r"f\.shp"):
        labels_of(path, scene())
    pack = write_vector(tmp_path / "f.gpkg", box, **{"class": [1]})
    whole = pack.read_bytes()
    for cut in (100, 5000, len(whole) // 2):
        pack.write_bytes(whole[:cut])
        with pytest.raises(LabelError, match=r"f\.gpkg"):
            labels_of(pack, scene())


@pytest.mark.real
def test_polygons_of_a_real_class_map_give_the_map_back(
    data_root: Path, scene, write_vector, tmp_path: Path
) -> None:
    """The land cover of Potsdam, as polygons by GDAL, is the same map when it is burned again."""
    with rasterio.open(data_root / "enmap_potsdam_tiles" / "enmap_landcover_unstyled.tif") as source:
        values, transform, crs = source.read(1)[:200, :220], source.transform, source.crs
    values = values.astype("int32")
    parts = list(rasterio.features.shapes(values, mask=values > 0, transform=transform))
    assert len(parts) > 500
    path = write_vector(
        tmp_path / "cover.gpkg",
        [shapely.geometry.shape(shape) for shape, _ in parts],
        crs.to_string(),
        **{"class": np.array([int(code) for _, code in parts], "int32")},
    )
    made = scene(None, values.shape)
    made = make_scene(made["data"].data, crs=crs, transform=transform)
    np.testing.assert_array_equal(read_all(labels_of(path, made), values.shape), values.clip(0))
