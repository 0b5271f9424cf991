"""Point samples as labels: each gives its class to the pixel in which it lies."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import shapely
from rasterio.crs import CRS
from rasterio.warp import transform as transform_points

from bandstream.pipeline.errors import BandstreamWarning, LabelError
from bandstream.pipeline.labels import LabelFiles, LabelsConfig, open_labels

UTM, DEGREES = CRS.from_epsg(32633), CRS.from_epsg(4326)


def labels_of(path: Path, scene, **settings):
    config = LabelsConfig(path=str(path), **settings)
    return open_labels(scene, LabelFiles(path, config))


def read_all(labels, shape=(40, 50)) -> np.ndarray:
    return labels.read(slice(0, shape[0]), slice(0, shape[1]))


def table(path: Path, **columns) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]) + "\n")
    return path


def draw(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of 60 different pixels, and where in them the points lie."""
    rng = np.random.default_rng(seed)
    pixel = rng.permutation(40 * 50)[:60]
    return pixel // 50, pixel % 50, *rng.uniform(0.01, 0.99, (2, 60))


def test_rows_and_columns_are_taken_without_any_place(tmp_path: Path, scene) -> None:
    row, col, *_ = draw()
    names = np.array(["clay", "sand", "peat"])[np.arange(60) % 3]
    path = table(tmp_path / "p.csv", row=row, col=col, **{"class": names}, plot=np.arange(60) // 6)
    labels = pickle.loads(pickle.dumps(labels_of(path, scene(None), group="plot")))  # noqa: S301
    assert labels.names() == {1: "clay", 2: "peat", 3: "sand"}
    expected, groups = np.zeros((40, 50), int), np.zeros((40, 50), int)
    expected[row, col] = np.array([1, 3, 2])[np.arange(60) % 3]
    groups[row, col] = np.arange(60) // 6 + 1
    np.testing.assert_array_equal(read_all(labels), expected)
    np.testing.assert_array_equal(labels.group_codes(slice(0, 40), slice(0, 50)), groups)
    np.testing.assert_array_equal(labels.read(slice(7, 22), slice(13, 49)), expected[7:22, 13:49])
    assert labels.group_names == tuple(map(str, range(10)))
    assert labels_of(path, scene(None)).group_names == ()
    assert labels.files() == [str(path)]


@pytest.mark.parametrize("kind", ["x and y", "lon and lat", "vector"])
def test_points_on_earth_fall_into_their_pixels(tmp_path: Path, scene, write_vector, kind: str) -> None:
    row, col, down, across = draw(1)
    code = np.arange(60) % 5 + 1
    x, y = 366000 + 30 * (col + across), 5810000 - 30 * (row + down)
    if kind == "x and y":
        other = CRS.from_epsg(32632)
        x, y = transform_points(UTM, other, x, y)
        labels = labels_of(table(tmp_path / "p.csv", x=x, y=y, **{"class": code}), scene(), crs="EPSG:32632")
    elif kind == "lon and lat":
        lon, lat = transform_points(UTM, DEGREES, x, y)
        labels = labels_of(table(tmp_path / "p.csv", lat=lat, lon=lon, soil=code), scene(), attribute="soil")
    else:
        path = write_vector(tmp_path / "p.gpkg", list(shapely.points(x, y)), **{"class": code})
        labels = labels_of(path, scene())
    expected = np.zeros((40, 50), int)
    expected[row, col] = code
    np.testing.assert_array_equal(read_all(labels), expected)
    assert not labels.named


def test_in_sensor_geometry_a_point_belongs_to_the_nearest_pixel(tmp_path: Path, scene) -> None:
    rows, cols = np.mgrid[0:40, 0:50].astype(float)
    lat = 47.0 - 0.0003 * rows + 0.0001 * np.sin(cols / 5)
    lon = 179.99 + 0.0004 * cols + 0.0001 * rows
    lon = np.where(lon > 180, lon - 360, lon)
    lat[3, 3] = np.nan
    row, col, *_ = draw(2)
    known = ~((row == 3) & (col == 3))
    row, col = row[known], col[known]
    jitter = np.random.default_rng(3).uniform(-0.00009, 0.00009, (2, len(row)))
    points = {"lat": [*(lat[row, col] + jitter[0]), 46.9], "lon": [*(lon[row, col] + jitter[1]), 179.99]}
    path = table(tmp_path / "p.csv", **points, **{"class": [*(np.arange(len(row)) % 4 + 1), 1]})
    with pytest.warns(BandstreamWarning, match="1 of .* lie outside the scene"):
        labels = labels_of(path, scene(None, lat_yx=lat, lon_yx=lon))
    expected = np.zeros((40, 50), int)
    expected[row, col] = np.arange(len(row)) % 4 + 1
    np.testing.assert_array_equal(read_all(labels), expected)


def test_points_outside_and_points_that_disagree_are_told(tmp_path: Path, scene) -> None:
    path = table(
        tmp_path / "p.csv",
        row=[1, 1, 2, 2, -1, 40, 5],
        col=[1, 1, 2, 2, 0, 0, 5],
        **{"class": ["a", "b", "a", "a", "a", "b", ""]},
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = read_all(labels_of(path, scene()))
    texts = " ".join(str(item.message) for item in told)
    assert "2 of 7 points" in texts
    assert "1 pixels hold points of different classes" in texts
    assert found[2, 2] == 1
    assert found.sum() == 1


def test_points_where_a_crs_is_not_defined_lie_outside_and_spoil_no_others(tmp_path: Path, scene) -> None:
    """Metres taken for degrees, the commonest slip, and one typing error among good points."""
    made = scene()
    (x,), (y,) = transform_points(UTM, DEGREES, [366045.0], [5809925.0])
    good = table(tmp_path / "good.csv", lon=[x], lat=[y], **{"class": [1]})
    expected = read_all(labels_of(good, made))
    assert expected.sum() == 1
    path = table(tmp_path / "p.csv", lon=[366045.0, x, x], lat=[5809925.0, y, 90.5], **{"class": [2, 1, 2]})
    with pytest.warns(BandstreamWarning, match="2 of 3 points"):
        np.testing.assert_array_equal(read_all(labels_of(path, made)), expected)
    (x,), (y,) = transform_points(UTM, CRS.from_epsg(32632), [366045.0], [5809925.0])
    path = table(tmp_path / "q.csv", x=[1e12, x, 1e30], y=[1e12, y, 1e30], **{"class": [2, 1, 2]})
    with pytest.warns(BandstreamWarning, match="2 of 3 points"):
        np.testing.assert_array_equal(read_all(labels_of(path, made, crs="EPSG:32632")), expected)


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"", {}, "hold no points"),
        (b"row,col,class\n", {}, "hold no points"),
        (b"row,col,kind\n1,1,a\n", {}, "no column 'class'; they have row, col, kind"),
        (b"row,col,class\n1,1,a\n", {"group": "plot"}, "no column 'plot'"),
        (b"north,east,class\n1,1,a\n", {}, "exactly one of the pairs"),
        (b"row,col,x,y,class\n1,1,1,1,a\n", {}, "exactly one of the pairs"),
        (b"x,y,class\n1,1,a\n", {}, "labels.crs"),
        (b"row,col,class\n1,1,a\n", {"crs": "EPSG:32633"}, "leave it out"),
        (b"x,y,class\n1,1,a\n", {"crs": "EPSG:0"}, "is no CRS"),
        (b"row,col,class\n1.5,1,a\n", {}, "whole numbers"),
        (b"row,col,class\n1,nan,a\n", {}, r"'nan' in the column col \(point 1\)"),
        (b"row,col,class\n1,1,a,b\n", {}, "Line 2 .* 4 entries for 3 columns"),
        (b"row,col,class\n1,1,9999\n", {}, "holds 9999"),
        (b"row,row,class\n1,1,1\n", {}, "name a column twice"),
        (b"\xff\xfe\x00", {}, "no CSV file in UTF-8"),
        (b"row,col,class\n1,1,a\n", {"layer": "x"}, "labels.layer"),
        (b'row,col,class\n1,1,"' + b"a" * 200_000 + b'"\n', {}, "no CSV file"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(
    tmp_path: Path, scene, content, settings, message: str
) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(content)
    with pytest.raises(LabelError, match=message):
        labels_of(path, scene(), **settings)


def test_points_on_earth_need_a_scene_with_a_place(tmp_path: Path, scene) -> None:
    path = table(tmp_path / "p.csv", lon=[13.0], lat=[52.4], **{"class": [1]})
    with pytest.raises(LabelError, match="Give the columns row and col"):
        labels_of(path, scene(None))


def test_semicolons_and_tabs_part_columns_too(tmp_path: Path, scene) -> None:
    for mark in ";\t":
        path = tmp_path / "p.csv"
        path.write_text(f"row{mark}col{mark}class\n3{mark}4{mark}7\n", encoding="utf-8-sig")
        assert read_all(labels_of(path, scene()))[3, 4] == 7


def test_whole_numbers_that_a_tool_wrote_as_floats_are_numbers(tmp_path: Path, scene) -> None:
    """As tables come from tools that turn a column with gaps into floats; as names, 10.0 would stand before 2.0."""
    path = table(tmp_path / "p.csv", row=[0, 1, 2, 3], col=[4] * 4, **{"class": ["10.0", "2.0", "", "2.0"]})
    labels = labels_of(path, scene(None))
    assert not labels.named
    assert read_all(labels)[:4, 4].tolist() == [10, 2, 0, 2]


def test_whether_classes_are_numbers_is_said_by_the_whole_file(tmp_path: Path, scene, write_vector) -> None:
    """A scene that sees only those of a column of names that look like numbers must not take them for numbers."""
    path = table(tmp_path / "p.csv", row=[0, 1, 60], col=[4, 5, 6], **{"class": ["2", "1.0", "3a"]})
    points = [shapely.Point(366015, 5809985), shapely.Point(366045, 5809985), shapely.Point(300000, 5000000)]
    far = write_vector(tmp_path / "p.gpkg", points, **{"class": np.array(["2", "1.0", "3a"], object)})
    boxes = [shapely.box(p.x - 15, p.y - 15, p.x + 15, p.y + 15) for p in points]
    areas = write_vector(tmp_path / "a.gpkg", boxes, **{"class": np.array(["2", "1.0", "3a"], object)})
    for file, place in ((path, None), (far, ...), (areas, ...)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandstreamWarning)  # of points outside
            labels = labels_of(file, scene(None) if place is None else scene())
        assert labels.named
        assert labels.names() == {1: "1.0", 2: "2"}
