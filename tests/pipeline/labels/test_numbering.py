"""Rasters of groups, and classes of rasters taken together."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import scipy.io
import shapely
from rasterio.crs import CRS
from rasterio.transform import from_origin

from bandstream.pipeline.errors import BandstreamWarning, LabelError
from bandstream.pipeline.labels import LabelFiles, LabelsConfig, number_together, open_labels

UTM, GRID = CRS.from_epsg(32633), from_origin(366000, 5810000, 30, 30)


def labels_of(path: Path, scene, groups: Path | None = None, **settings):
    config = LabelsConfig(path=str(path), groups=groups and str(groups), **settings)
    return open_labels(scene, LabelFiles(path, config, groups))


def raster(path: Path, values: np.ndarray, transform=GRID) -> Path:
    height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=1, dtype=values.dtype, crs=UTM,
        transform=transform,
    ) as out:  # fmt: skip
        out.write(values, 1)
    return path


ALL = slice(0, 40), slice(0, 50)


def test_a_raster_tells_groups_by_large_ids_for_any_kind_of_labels(
    tmp_path: Path, scene, write_vector
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.choice(np.array([0, 7, 1_900_000_000, 80_001], "int32"), (40, 50))
    groups = raster(tmp_path / "g.tif", ids)
    classes = raster(tmp_path / "l.tif", rng.integers(0, 4, (40, 50)).astype("uint8"))
    box = write_vector(tmp_path / "f.gpkg", [shapely.box(366000, 5809000, 366600, 5809900)], **{"class": [1]})
    for path in (classes, box):
        (labels,) = number_together([labels_of(path, scene(), groups)], None)
        labels = pickle.loads(pickle.dumps(labels))  # noqa: S301
        assert labels.group_names == ("7", "80001", "1900000000")
        codes = labels.group_codes(*ALL)
        assert codes.dtype == np.int32
        np.testing.assert_array_equal(np.array([0, 7, 80_001, 1_900_000_000])[codes], ids)
        np.testing.assert_array_equal(labels.group_codes(slice(3, 9), slice(2, 31)), codes[3:9, 2:31])
        assert {str(path), str(groups)} <= set(labels.files())


def test_groups_of_several_scenes_are_numbered_together(tmp_path: Path, scene) -> None:
    classes = raster(tmp_path / "l.tif", np.ones((40, 50), "uint8"))
    one = raster(tmp_path / "a.tif", np.full((40, 50), 12, "int16"))
    two = raster(tmp_path / "b.tif", np.full((40, 50), 5, "int16"))
    opened = [
        labels_of(classes, scene(), one), None, labels_of(classes, scene(), two), labels_of(classes, scene())
    ]  # fmt: skip
    a, none, b, plain = number_together(opened, None)
    assert none is None
    assert a.group_names == b.group_names == plain.group_names == ("5", "12")
    assert [item.group_codes(*ALL).max() for item in (a, b, plain)] == [2, 1, 0]


def test_classes_of_a_raster_are_taken_together_by_number(tmp_path: Path, scene) -> None:
    values = np.random.default_rng(1).integers(0, 7, (40, 50)).astype("uint8")
    scipy.io.savemat(tmp_path / "gt.mat", {"gt": values})
    wanted = {"water": [6], "crop": [1, 2, 4]}
    (labels,) = number_together([labels_of(tmp_path / "gt.mat", scene(), classes=wanted)], None)
    assert labels.names() == {1: "crop", 2: "water"}
    expected = np.where(np.isin(values, [1, 2, 4]), 1, np.where(values == 6, 2, 0))
    np.testing.assert_array_equal(labels.read(*ALL), expected)
    (labels,) = number_together(
        [labels_of(tmp_path / "gt.mat", scene(), classes=wanted)], ["water", "snow", "crop"]
    )
    np.testing.assert_array_equal(labels.read(*ALL), np.array([0, 3, 1])[expected])
    with pytest.raises(LabelError, match="takes 'oak', which is no class"):
        labels_of(tmp_path / "gt.mat", scene(), classes={"forest": ["oak"]})
    with pytest.raises(LabelError, match="takes the number 0"):
        labels_of(tmp_path / "gt.mat", scene(), classes={"none": [0]})


def test_settings_of_other_kinds_of_files_are_refused(tmp_path: Path, scene) -> None:
    path = raster(tmp_path / "l.tif", np.ones((40, 50), "uint8"))
    for name in ("layer", "attribute", "group", "crs"):
        with pytest.raises(LabelError, match=f"labels.{name} is for vector files"):
            labels_of(path, scene(), **{name: "x"})


def test_one_number_with_two_names_in_two_scenes_is_told(tmp_path: Path, scene) -> None:
    files = [raster(tmp_path / f"{n}.tif", np.full((40, 50), 2, "uint8")) for n in range(3)]
    for file, names in zip(files, ('["oak", "corn"]', '["oak", "wheat"]', '["oak", "corn"]'), strict=True):
        with rasterio.open(file, "r+") as out:
            out.update_tags(class_names=names)
    opened = [labels_of(file, scene()) for file in files]
    with pytest.warns(BandstreamWarning, match=r"2 is 'corn' in .*0\.tif and 'wheat' in .*1\.tif"):
        number_together(opened, None)
    number_together(opened, ["oak", "cereals"])  # no warning: that says what they mean
    number_together(opened[::2], None)


def test_a_class_is_not_taken_by_its_number_and_its_name(tmp_path: Path, scene) -> None:
    file = raster(tmp_path / "l.tif", np.ones((40, 50), "uint8"))
    with rasterio.open(file, "r+") as out:
        out.update_tags(class_names='["oak", "corn"]')
    with pytest.raises(LabelError, match=r"takes the class 1 of .* twice, by its number and by its name"):
        labels_of(file, scene(), classes={"tree": [1], "crop": ["oak"]})


def test_numbering_again_without_a_scene_forgets_its_classes(tmp_path: Path, scene) -> None:
    """A scene that fails when its pixels are read must leave the same store as one that fails when it is opened."""
    for name, number in (("a", "ash"), ("b", "oak")):
        (tmp_path / f"{name}.csv").write_text(f"row,col,class,id\n3,4,{number},{name}\n")
    opened = [labels_of(tmp_path / f"{name}.csv", scene(), group="id") for name in "ab"]
    both = number_together(opened, None)
    (left,), (alone,) = number_together(both[1:], None), number_together(opened[1:], None)
    assert left is not None
    assert alone is not None
    assert (left.names(), left.group_names) == (alone.names(), alone.group_names) == ({1: "oak"}, ("b",))
    assert left.read(*ALL)[3, 4] == 1
