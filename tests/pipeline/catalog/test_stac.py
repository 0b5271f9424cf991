"""Own entries and STAC items: round trips, what pystac and its schemas say, and hostile items."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.warp import transform_bounds
from typer.testing import CliRunner

from bandstream.pipeline import open_scene
from bandstream.pipeline.catalog import load_catalog
from bandstream.pipeline.catalog.add import entry_of_scene, write_entry
from bandstream.pipeline.catalog.entries import CatalogEntry
from bandstream.pipeline.catalog.from_stac import from_stac, read_item
from bandstream.pipeline.catalog.to_stac import core_problems, to_stac
from bandstream.pipeline.cli.catalog import catalog_app
from bandstream.pipeline.errors import BandstreamWarning, ConfigError, LabelError

from ..conftest import MadeScene


@pytest.fixture(autouse=True)
def _no_own_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANDSTREAM_CATALOG", raising=False)


def run(*call: str | Path) -> Any:
    done = CliRunner().invoke(catalog_app, [*map(str, call), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def dated(path: Path, when: str = "2022-07-24T10:45:26Z") -> Path:
    path.write_text(path.read_text().replace("folder:", f'datetime: "{when}"\nsensor: EnMAP\nfolder:'))
    return path


# -- add --------------------------------------------------------------------------------------------------------------


def test_a_scene_of_ones_own_becomes_an_entry_that_is_read_back(made: MadeScene, tmp_path: Path) -> None:
    out = tmp_path / "cat" / "mine.yaml"
    run("add", made.path, "--name", "My scene!", "--labels", made.labels_path, "--out", out)
    found = load_catalog(str(out))
    assert found.name == "My-scene"
    assert found.shape_yxb == made.raw_yxb.shape
    assert found.dtype == str(made.raw_yxb.dtype)
    assert found.bases([])[0] == made.path.parent
    assert found.scenes[0]["path"] == made.path.name
    assert found.scenes[0]["labels"] == {"path": made.labels_path.name}
    assert {f.path for f in found.files} >= {made.path.name, made.labels_path.name}
    for file in found.files:
        path = made.path.parent / file.path
        assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert file.size_bytes == path.stat().st_size
    assert found.proj_code == "EPSG:32633"
    scene = open_scene(made.path)
    with rasterio.open(made.labels_path) as raster:
        oracle = transform_bounds(raster.crs, "EPSG:4326", *raster.bounds)
    np.testing.assert_allclose(found.bbox, oracle, atol=1e-6)
    assert found == entry_of_scene(scene, name="My scene!", labels=made.labels_path).placed(out)


def test_an_entry_is_never_overwritten_unless_asked(made: MadeScene, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    run("add", made.path, "--out", out)
    before = out.read_text()
    with pytest.raises(ConfigError, match="--force"):
        run("add", made.path, "--name", "other", "--out", out)
    assert out.read_text() == before
    run("add", made.path, "--name", "other", "--out", out, "--force")
    assert load_catalog(str(out)).name == "other"


def test_labels_that_do_not_fit_are_refused(made: MadeScene, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.tif"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(wrong, "w", driver="GTiff", width=3, height=3, count=1, dtype="uint8") as file:
            file.write(np.zeros((1, 3, 3), np.uint8))
    with pytest.raises(LabelError):
        run("add", made.path, "--labels", wrong, "--out", tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


# -- export and back --------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(made: MadeScene) -> Path:
    """Return the STAC item of a scene, beside the scene's files."""
    folder = made.path.parent
    run("add", made.path, "--name", "mine", "--labels", made.labels_path, "--out", folder / "mine.yaml")
    dated(folder / "mine.yaml")
    run("export-stac", folder / "mine.yaml", "--out", folder / "item.json")
    return folder / "item.json"


def test_pystac_reads_the_item_and_its_core_schema_accepts_it(exported: Path, made: MadeScene) -> None:
    document = json.loads(exported.read_text())
    assert core_problems(document) == []
    item = pystac.Item.from_file(str(exported))
    validator = pystac.validation.RegisteredValidator.get_validator()
    assert item.to_dict()["stac_version"] == "1.1.0"
    core = pystac.Item.from_dict(document | {"stac_extensions": []}, preserve_dict=True)
    assert core.validate(validator)
    assert item.datetime is not None
    assert item.datetime.isoformat() == "2022-07-24T10:45:26+00:00"
    assert item.assets["data"].roles == ["data"]
    assert Path(str(item.assets["data"].get_absolute_href())) == made.path
    assert Path(str(item.assets["labels"].get_absolute_href())) == made.labels_path


def test_the_item_holds_bands_in_micrometres_and_the_place(exported: Path, made: MadeScene) -> None:
    document = json.loads(exported.read_text())
    scene = open_scene(made.path)
    bands = document["assets"]["data"]["bands"]
    centres = [band["eo:center_wavelength"] * 1000 for band in bands]
    np.testing.assert_allclose(centres, scene["wavelength"].values, atol=1e-5)
    np.testing.assert_allclose(
        [b["eo:full_width_half_max"] * 1000 for b in bands], scene["fwhm"].values, atol=1e-5
    )
    assert document["properties"]["proj:code"] == "EPSG:32633"
    assert document["properties"]["proj:shape"] == list(made.raw_yxb.shape[:2])
    with rasterio.open(made.labels_path) as raster:
        assert document["properties"]["proj:transform"] == list(raster.transform)[:6]


def test_an_item_comes_back_as_the_entry_it_was(exported: Path, tmp_path: Path) -> None:
    before = load_catalog(str(exported.with_name("mine.yaml")))
    run("import-stac", exported, "--out", tmp_path / "back.yaml")
    after = load_catalog(str(tmp_path / "back.yaml"))
    same = [
        "name",
        "title",
        "description",
        "license",
        "providers",
        "sensor",
        "folder",
        "scenes",
        "shape_yxb",
        "dtype",
        "class_names",
        "bbox",
        "proj_code",
        "proj_transform",
    ]
    for name in same:
        assert getattr(after, name) == getattr(before, name), name
    assert (after.datetime or "").replace("+00:00", "Z") == before.datetime
    assert {f.path: f.sha256 for f in after.files} == {f.path: f.sha256 for f in before.files}
    assert after.wavelength_nm is not None
    assert len(after.wavelength_nm) == (before.shape_yxb or ())[2]
    again = to_stac(after, exported)
    first = json.loads(exported.read_text())
    assert again["assets"]["data"]["href"] == first["assets"]["data"]["href"]
    assert [b.get("eo:center_wavelength") for b in again["assets"]["data"]["bands"]] == [
        b.get("eo:center_wavelength") for b in first["assets"]["data"]["bands"]
    ]


def test_an_entry_without_date_or_with_many_scenes_makes_no_item(made: MadeScene, tmp_path: Path) -> None:
    entry = entry_of_scene(open_scene(made.path), name="mine")
    with pytest.raises(ConfigError, match="datetime"):
        to_stac(entry, tmp_path / "item.json")
    with pytest.raises(ConfigError, match="several scenes"):
        to_stac(load_catalog("enmap-potsdam"), tmp_path / "item.json")
    bad = entry.model_copy(update={"datetime": "last summer"})
    with pytest.raises(ConfigError, match="last summer"):
        to_stac(bad, tmp_path / "item.json")


@pytest.mark.parametrize("name", ["indian-pines", "botswana", "whu-hi-longkou", "ksc"])
def test_a_benchmark_makes_a_valid_item_before_it_is_fetched(name: str, tmp_path: Path) -> None:
    document = to_stac(load_catalog(name), tmp_path / "item.json")
    assert document["geometry"] is None
    assert len(document["assets"]["data"]["bands"]) == (load_catalog(name).shape_yxb or ())[2]
    # where there is no address, the item tells a path of this machine, which is not read back
    if any(file.urls for file in load_catalog(name).files):
        back = from_stac(document, tmp_path / "item.json")
        assert back.class_names == load_catalog(name).class_names
        assert back.scenes == load_catalog(name).scenes


# -- import -----------------------------------------------------------------------------------------------------------


def item(**changes: Any) -> dict[str, Any]:
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": "scene-1",
        "geometry": None,
        "properties": {"datetime": "2020-01-02T03:04:05Z"},
        "links": [],
        "assets": {
            "data": {
                "href": "./cube.tif",
                "roles": ["data"],
                "bands": [{"eo:center_wavelength": 0.5, "eo:full_width_half_max": 0.01}],
            }
        },
    } | changes


def assets(**more: Any) -> dict[str, Any]:
    return {"assets": {"data": {"href": "cube.tif", "roles": ["data"]} | more}}


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("asset of 1.0", assets(**{"eo:bands": [{"center_wavelength": 0.4, "full_width_half_max": 0.02}]})),
        ("asset of 1.1", assets(bands=[{"eo:center_wavelength": 0.4, "eo:full_width_half_max": 0.02}])),
        (
            "properties of 1.0",
            {
                "properties": {
                    "datetime": None,
                    "eo:bands": [{"center_wavelength": 0.4, "full_width_half_max": 0.02}],
                }
            }
            | assets(),
        ),
        (
            "properties of 1.1",
            {"properties": {"bands": [{"eo:center_wavelength": 0.4, "eo:full_width_half_max": 0.02}]}}
            | assets(),
        ),
    ],
)
def test_bands_are_read_wherever_either_version_puts_them(where: str, change: dict, tmp_path: Path) -> None:
    version = "1.0.0" if "1.0" in where else "1.1.0"
    found = from_stac(item(stac_version=version, **change), tmp_path / "item.json")
    assert (found.wavelength_nm, found.fwhm_nm) == ([400.0], [20.0])


def test_remote_files_come_with_their_checksum(tmp_path: Path) -> None:
    digest = "ab" * 32
    remote = assets(
        **{"href": "https://host/a/cube.tif?sig=1", "file:checksum": f"1220{digest}", "file:size": 7}
    )
    found = from_stac(item(**remote), tmp_path / "item.json")
    assert found.files[0].model_dump(exclude_defaults=True) == {
        "path": "cube.tif",
        "urls": ["https://host/a/cube.tif?sig=1"],
        "sha256": digest,
        "size_bytes": 7,
    }
    assert (found.folder, found.scenes[0]["path"]) == ("scene-1", "cube.tif")


def test_old_and_new_ways_to_write_the_projection(tmp_path: Path) -> None:
    for more in ({"proj:epsg": 32633}, {"proj:code": "EPSG:32633"}):
        properties = {"proj:shape": [4, 5], "proj:transform": [30, 0, 1, 0, -30, 2, 0, 0, 1], **more}
        found = from_stac(item(properties=properties, bbox=[1, 2, 0, 3, 4, 9]), tmp_path / "item.json")
        assert found.proj_code == "EPSG:32633"
        assert found.shape_yxb == (4, 5, 1)
        assert found.bbox == (1, 2, 3, 4)
        assert found.proj_transform == [30, 0, 1, 0, -30, 2]


def test_of_several_assets_the_one_with_most_bands_is_taken(tmp_path: Path) -> None:
    band = {"eo:center_wavelength": 0.5}
    many = {
        "thumbnail": {"href": "t.png", "roles": ["thumbnail"]},
        "red": {"href": "red.tif", "roles": ["data"], "bands": [band]},
        "cube": {"href": "cube.tif", "roles": ["data"], "bands": [band, band]},
    }
    assert from_stac(item(assets=many), tmp_path / "item.json").scenes[0]["path"] == "cube.tif"
    alike = {"a": {"href": "a.tif", "bands": [band]}, "b": {"href": "b.tif", "bands": [band]}}
    with pytest.warns(BandstreamWarning, match="several assets"):
        from_stac(item(assets=alike), tmp_path / "item.json")


@pytest.mark.parametrize(
    "href", ["../secret.tif", "a/../../secret.tif", "/etc/passwd", "link.tif", "sub/../../x/secret.tif"]
)
def test_local_files_outside_the_items_folder_are_refused(tmp_path: Path, href: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.tif").write_bytes(b"x")
    (tmp_path / "in" / "link.tif").symlink_to(tmp_path / "secret.tif")
    path = tmp_path / "in" / "item.json"
    with pytest.raises(ConfigError, match="--allow-outside"):
        from_stac(item(**assets(href=href)), path)
    assert Path(
        from_stac(item(**assets(href=href)), path, allow_outside=True).scenes[0]["path"]
    ).is_absolute()


@pytest.mark.parametrize(
    "href", ["file:///etc/passwd", "s3://bucket/x", "ftp://h/x", "javascript:x", "/vsicurl/x", "", 5]
)
def test_other_addresses_are_refused(tmp_path: Path, href: Any) -> None:
    with pytest.raises(ConfigError):
        from_stac(item(**assets(href=href)), tmp_path / "item.json")


def test_the_fields_of_our_own_name_no_files(tmp_path: Path) -> None:
    """A foreign item must not slip a path in through them."""
    own = {
        "folder": "/etc",
        "scenes": [{"path": "/etc/passwd"}],
        "files": [{"path": "x", "urls": ["http://evil/x"]}],
        "reading": {
            "path": "/etc/passwd",
            "data_file": "/etc/passwd",
            "labels": {"path": "/x"},
            "variable": "v",
        },
    }
    found = from_stac(item(properties={"bandstream:entry": own}), tmp_path / "item.json")
    assert found.scenes == [{"variable": "v", "path": "cube.tif"}]
    assert found.folder == str(tmp_path)
    assert found.files == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"type": "Catalog"}',
        '{"type": "Feature", "stac_version": "0.9.0"}',
        '{"type": "Feature", "stac_version": 1}',
        '{"type": "Feature", "stac_version": "1.1.0", "bbox": [NaN, 0, 0, 0]}',
        "[" * 200_000,
        '{"a":' * 100_000,
        "9" * 5000,
        "\ud800".encode("utf-8", "surrogatepass"),
        b"\xff\xfe\0",
    ],
    ids=range(13),
)
def test_a_file_that_is_no_item_is_one_sentence(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "item.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as told:
        from_stac(read_item(path), path)
    assert len(str(told.value)) < 1000


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "item.json"
    with path.open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(ConfigError, match="5000000 bytes"):
        read_item(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "datetime",
        "title",
        "license",
        "providers",
        "instruments",
        "bands",
        "eo:bands",
        "proj:shape",
        "proj:code",
        "proj:epsg",
        "proj:transform",
        "bandstream:entry",
        "href",
        "roles",
        "file:checksum",
        "file:size",
        "center_wavelength",
        "eo:center_wavelength",
        "full_width_half_max",
    ]
)
OWN = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("class_names", "class_counts", "reading", "sensor", "dtype", "labels_unlabelled", "labels_variable"),
        JSON,
    ),
)
OBJECT = st.dictionaries(
    KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON, max_size=3), max_size=3) | OWN, max_size=6
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    document=st.fixed_dictionaries(
        {
            "properties": OBJECT | JSON,
            "assets": st.dictionaries(st.text(max_size=5), OBJECT, max_size=3) | JSON,
        },
        optional={
            "id": JSON,
            "bbox": JSON | st.lists(st.integers(-200, 200) | st.floats(), min_size=4, max_size=6),
        },
    ),
    usable=st.booleans(),
)
def test_a_random_item_is_an_entry_or_a_config_error(document: dict[str, Any], usable: bool) -> None:
    if usable:
        properties = document["properties"] if isinstance(document["properties"], dict) else {}
        asset = (
            next((a for a in document["assets"].values()), {}) if isinstance(document["assets"], dict) else {}
        )
        asset = asset if isinstance(asset, dict) else {}
        document = document | {
            "properties": properties,
            "assets": {"data": asset | {"href": "a.tif", "roles": ["data"]}},
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        try:
            entry = from_stac(document, Path("/nowhere/item.json"))
        except ConfigError:
            return
    assert entry.scenes[0]["path"]


def test_how_labels_are_read_comes_back_from_an_item(made: MadeScene, tmp_path: Path) -> None:
    labels = {
        "path": made.labels_path.name, "unlabelled": 9, "layer": "fields", "attribute": "crop", "group": "farm",
        "crs": "EPSG:32633", "classes": {"tree": [1, "oak"], "crop": [2]},
    }  # fmt: skip
    entry = CatalogEntry(
        version=1, name="mine", title="t", description="d", license="CC0-1.0", providers=["me"], datetime="2022-07-24",
        folder=str(made.path.parent),
        scenes=[{"path": made.path.name, "labels": labels}],
    )  # fmt: skip
    path = made.path.parent / "item.json"
    back = from_stac(to_stac(entry, path), path)
    assert back.scenes[0]["labels"] == labels


def test_what_import_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "item.json"
    tricky = {"title": "12:30:00", "description": "yes", "license": "1e5", "instruments": ["null"]}
    path.write_text(json.dumps(item(properties=tricky)))
    entry = from_stac(read_item(path), path)
    write_entry(entry, tmp_path / "out.yaml")
    back = load_catalog(str(tmp_path / "out.yaml"))
    assert (back.title, back.description, back.license, back.sensor) == ("12:30:00", "yes", "1e5", "null")
    assert back == entry.placed(tmp_path / "out.yaml")
