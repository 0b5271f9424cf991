"""Catalog entries: those that ship are sound, a user's own are found, and none reaches files outside its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.io
import yaml
from typer.testing import CliRunner

from bandstream.pipeline import open_scene
from bandstream.pipeline.catalog import (
    CatalogEntry,
    catalog_folder,
    check_expected,
    list_catalog,
    load_catalog,
    require_inside,
)
from bandstream.pipeline.cli.catalog import catalog_app
from bandstream.pipeline.config import parse
from bandstream.pipeline.errors import BandstreamWarning, ConfigError, SceneError, SceneNotFoundError
from bandstream.pipeline.scene import make_scene
from bandstream.pipeline.sensors import load_sensor
from bandstream.pipeline.sources import find_sources, open_sources
from bandstream.pipeline.workflow import SceneConfig, load_workflow, scene_entries

ENTRIES = {path.stem: load_catalog(path.stem) for path in sorted(catalog_folder().glob("*.yaml"))}
#: pixels with a label, as the publications of the data sets add them up
TOTALS = {
    "indian-pines": 10249,
    "indian-pines-full": 10249,
    "salinas": 54129,
    "salinas-full": 54129,
    "salinas-a": 5348,
    "pavia-university": 42776,
    "pavia-centre": 148152,
    "ksc": 5211,
    "botswana": 3248,
    "houston-2013": 15029,
    "houston-2018": 504856,
    "whu-hi-longkou": 204542,
    "whu-hi-hanchuan": 257530,
    "whu-hi-honghu": 386693,
}
MINIMAL: dict[str, Any] = {
    "version": 1,
    "name": "mine",
    "title": "Mine",
    "description": "d",
    "license": "CC0-1.0",
    "providers": [],
    "scenes": [{"path": "a.tif"}],
}


@pytest.fixture(autouse=True)
def _no_own_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANDSTREAM_CATALOG", raising=False)


def entry(**changes: Any) -> CatalogEntry:
    return parse(CatalogEntry, MINIMAL | changes, "test")


def write(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(MINIMAL | changes))
    return path


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_ships_is_sound(name: str) -> None:
    found = ENTRIES[name]
    assert found.origin is None
    if found.sensor != "simulated":
        sensor = load_sensor(str(found.sensor))
        if found.removed_bands is not None and found.sensor != "ROSIS":
            assert found.removed_bands.of == sensor.count
    assert not Path(found.folder).is_absolute()
    listed = {item["path"] for item in found.scenes}
    for file in found.files:
        assert all(url.startswith("https://") for url in file.urls)
        labels = [item["labels"]["path"] for item in found.scenes if isinstance(item.get("labels"), dict)]
        assert file.path in {*listed, *labels}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_ships_tells_its_sources_and_what_nobody_could_compare(name: str) -> None:
    found = ENTRIES[name]
    assert found.source
    assert len(found.source) > 30
    if found.license == "unknown" and not found.class_names:
        assert "licence" in (found.unverified or "").lower()
    unknown = [f.path for f in found.files if f.sha256 is None]
    assert not unknown or "checksum" in (found.unverified or "").lower()
    assert len(set(found.class_names or ())) == len(found.class_names or ())


@pytest.mark.parametrize("name", ENTRIES)
def test_wavelengths_of_an_entry_are_those_of_its_sensor_less_the_bands_left_out(name: str) -> None:
    found = ENTRIES[name]
    if found.wavelength_nm is None:
        return
    sensor = load_sensor(str(found.sensor))
    keep = np.ones(sensor.count, bool)
    for first, last in (found.removed_bands.bands if found.removed_bands else None) or []:
        keep[first - 1 : last] = False
    np.testing.assert_allclose(found.wavelength_nm, sensor.wavelength_nm[keep], atol=1e-4)
    if found.fwhm_nm is not None:
        np.testing.assert_allclose(found.fwhm_nm, sensor.fwhm_nm[keep], atol=1e-4)


def test_what_is_not_verified_is_shown() -> None:
    shown = CliRunner().invoke(catalog_app, ["show", "pavia-centre"])
    assert shown.exit_code == 0
    told = yaml.safe_load(shown.output)
    assert "classes 3 to 9" in told["unverified"]
    assert "Counts" in told["source"]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_scenes_of_an_entry_are_scenes_of_a_workflow(name: str) -> None:
    for item in ENTRIES[name].scenes:
        assert parse(SceneConfig, item, name).path == item["path"]


@pytest.mark.parametrize("name", TOTALS)
def test_the_class_counts_add_up_to_the_published_total(name: str) -> None:
    assert sum(ENTRIES[name].class_counts or []) == TOTALS[name]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "file", "variable"),
    [
        ("indian-pines", "Indian_pines_gt.mat", "indian_pines_gt"),
        ("salinas", "Salinas_gt.mat", "salinas_gt"),
        ("pavia-university", "PaviaU_gt.mat", "paviaU_gt"),
    ],
)
def test_counts_shape_and_checksum_are_those_of_the_real_ground_truth(
    data_root: Path, name: str, file: str, variable: str
) -> None:
    import hashlib

    path = data_root / "ground_truth_only" / file
    labels = scipy.io.loadmat(path)[variable]
    found = ENTRIES[name]
    assert found.scenes[0]["labels"] == {"path": file, "variable": variable}
    assert np.bincount(labels.ravel())[1:].tolist() == found.class_counts
    assert labels.shape == (found.shape_yxb or ())[:2]
    listed = next(f for f in found.files if f.path == file)
    assert listed.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert listed.size_bytes == path.stat().st_size


@pytest.mark.real
def test_the_real_jasper_ridge_file_is_the_one_of_its_entry(data_root: Path) -> None:
    import hashlib

    path = data_root / "jasper_ridge_mat" / "jasperRidge2_R198.mat"
    found = ENTRIES["jasper-ridge"]
    stored = scipy.io.loadmat(path)
    rows, cols, bands = found.shape_yxb or (0, 0, 0)
    assert stored[found.scenes[0]["variable"]].shape == (bands, rows * cols)
    assert str(stored["Y"].dtype) == found.dtype
    assert (stored["lines"].item(), stored["cols"].item()) == (rows, cols)
    assert found.files[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.real
def test_the_real_potsdam_tiles_are_what_their_entry_promises(data_root: Path) -> None:
    found = ENTRIES["enmap-potsdam"]
    paths = sorted((data_root / found.folder / "images").glob("*.tif"))
    assert len(paths) == 18
    for path in paths:
        check_expected(found, open_scene(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": ["a"], "class_counts": [1, 2]}, "class_counts has 2"),
        ({"class_counts": [1]}, "class_counts has 1"),
        ({"shape_yxb": [1, 0, 3]}, "shape_yxb"),
        ({"shape_yxb": [1, 1, 9], "removed_bands": {"of": 12, "bands": [[1, 2]]}}, "leaves 10 bands"),
        ({"shape_yxb": [1, 1, 9], "wavelength_nm": [400.0]}, "wavelength_nm has 1"),
        ({"files": [{"path": "../x"}]}, "inside its folder"),
        ({"files": [{"path": "/etc/passwd"}]}, "inside its folder"),
        ({"files": [{"path": "."}]}, "inside its folder"),
        ({"files": [{"path": "a\0b"}]}, "inside its folder"),
        ({"name": "../../elsewhere"}, "name"),
        ({"scenes": []}, "scenes"),
        ({"scenes": [{"labels": "x"}]}, "scene 1 has no path"),
        ({"bbox": [float("nan"), 1, 2, 3]}, "bbox"),
        ({"proj_transform": [1, 2]}, "proj_transform"),
        ({"files": [{"path": "C:\\x"}]}, "inside its folder"),
        ({"files": [{"path": "x", "urls": ["file:///etc/passwd"]}]}, "http or https only"),
        ({"files": [{"path": "x", "urls": ["ftp://host/x"]}]}, "http or https only"),
        ({"files": [{"path": "x", "urls": ["https://me:secret@host/x"]}]}, "netrc"),
        ({"files": [{"path": "x", "sha256": "12"}]}, "sha256"),
        ({"liscence": "x"}, "license"),
    ],
)
def test_an_entry_that_is_wrong_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        entry(**changes)


def scene(shape: tuple[int, int, int], dtype: str = "uint16") -> Any:
    return make_scene(da.zeros(shape, dtype=dtype), scene_id="s", source="s.mat")


def test_a_scene_of_the_expected_shape_passes() -> None:
    check_expected(entry(shape_yxb=[4, 5, 6], dtype="uint16"), scene((4, 5, 6)))
    check_expected(entry(), scene((4, 5, 6)))


@pytest.mark.parametrize(
    ("shape", "message"), [((5, 4, 6), "`axes`"), ((4, 5, 7), "choice of bands"), ((9, 9, 9), "9 rows")]
)
def test_a_scene_of_another_shape_is_refused_with_the_likely_reason(
    shape: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(SceneError, match=message):
        check_expected(entry(shape_yxb=[4, 5, 6]), scene(shape))


def test_another_number_type_is_told() -> None:
    with pytest.warns(BandstreamWarning, match="float64"):
        check_expected(entry(dtype="uint16"), scene((4, 5, 6), "float64"))


def test_a_link_or_dots_out_of_the_folder_are_refused_and_the_way_on_is_told(tmp_path: Path) -> None:
    folder, outside = tmp_path / "data", tmp_path / "secret.tif"
    (folder / "sub").mkdir(parents=True)
    outside.write_bytes(b"x")
    (folder / "good.tif").write_bytes(b"x")
    (folder / "link.tif").symlink_to(outside)
    (folder / "inner.tif").symlink_to(folder / "good.tif")
    (folder / "away").symlink_to(tmp_path, target_is_directory=True)
    mine = entry(folder=str(folder))
    places = mine.bases([])
    for name in ("good.tif", "inner.tif"):
        require_inside(name, folder / name, mine, places)
    for name in ("link.tif", "../secret.tif", "away/secret.tif"):
        with pytest.raises(ConfigError, match="absolute path"):
            require_inside(name, folder / name, mine, places)
    require_inside(str(outside), outside, mine, places)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.tif").write_bytes(b"x")
    (tmp_path / "data").symlink_to(tmp_path / "disk", target_is_directory=True)
    mine = entry(folder=str(tmp_path / "data"))
    require_inside("a.tif", tmp_path / "data" / "a.tif", mine, mine.bases([]))


def test_own_entries_come_first_and_are_listed_beside_those_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cat" / "one.yaml", name="ksc", title="My KSC")
    single = write(tmp_path / "single.yml", name="mine")
    monkeypatch.setenv("BANDSTREAM_CATALOG", f"{tmp_path / 'cat'}:{single}")
    found = {e.name: e for e in list_catalog()}
    assert set(found) == {*ENTRIES, "mine"}
    assert found["ksc"].title == load_catalog("ksc").title == "My KSC"
    assert load_catalog("mine").origin == single
    with pytest.raises(ConfigError, match="Did you mean mine"):
        load_catalog("mime")


def test_a_broken_own_file_is_told_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("version: 1\nname: bad\n")
    monkeypatch.setenv("BANDSTREAM_CATALOG", str(tmp_path))
    with pytest.warns(BandstreamWarning, match=r"bad\.yaml"):
        assert len(list_catalog()) == len(ENTRIES)
    assert load_catalog("ksc").name == "ksc"
    with pytest.raises(ConfigError, match="missing"):
        load_catalog("bad")
    monkeypatch.setenv("BANDSTREAM_CATALOG", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        list_catalog()


def test_the_files_of_an_own_entry_are_looked_for_beside_it_first(tmp_path: Path) -> None:
    path = write(tmp_path / "own" / "mine.yaml", folder="data")
    (tmp_path / "own" / "data").mkdir()
    (tmp_path / "data").mkdir()
    assert load_catalog(str(path)).bases([tmp_path])[0] == tmp_path / "own" / "data"


def test_a_missing_folder_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(SceneNotFoundError, match="bandstream catalog fetch indian-pines"):
        load_catalog("indian-pines").bases([tmp_path])


def test_the_data_file_of_a_header_may_not_be_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.img").write_bytes(np.arange(1, 65, dtype="<u2").tobytes())
    (tmp_path / "data" / "a.hdr").write_text(
        "ENVI\nsamples = 4\nlines = 4\nbands = 4\ndata type = 12\ninterleave = bil\nbyte order = 0\n"
    )
    (tmp_path / "data" / "a.img").symlink_to(tmp_path / "secret.img")
    write(tmp_path / "mine.yaml", folder="data", scenes=[{"path": "a.hdr"}])
    flow = {
        "version": 1,
        "name": "w",
        "scenes": {"catalog": str(tmp_path / "mine.yaml")},
        "tiles": {"size": 4},
    }
    workflow, bases = load_workflow(flow)
    listed = scene_entries(workflow, bases)
    with pytest.raises(ConfigError, match=r"a\.img.*symbolic link"):
        open_sources(find_sources(workflow, listed), workflow.preparation(listed.places))
    (tmp_path / "data" / "a.img").unlink()
    (tmp_path / "secret.img").rename(tmp_path / "data" / "a.img")
    assert len(open_sources(find_sources(workflow, listed), workflow.preparation(listed.places))) == 1


@pytest.mark.parametrize("more", [{"bogus": 1}, {"scale": "x"}])
def test_an_entry_whose_scene_has_wrong_options_is_told_so_on_export(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    (tmp_path / "a.tif").write_bytes(b"x")
    path = write(
        tmp_path / "mine.yaml",
        folder=str(tmp_path),
        scenes=[{"path": "a.tif", **more}],
        datetime="2022-01-01",
    )
    found = CliRunner().invoke(catalog_app, ["export-stac", str(path), "--out", str(tmp_path / "i.json")])
    assert isinstance(found.exception, ConfigError), found.output


def test_nan_in_an_entry_is_printed_as_null(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", scenes=[{"path": "a.tif", "nodata": float("nan")}])
    found = CliRunner().invoke(catalog_app, ["show", str(path), "--json"])
    assert json.loads(found.output)["scenes"][0]["nodata"] is None
