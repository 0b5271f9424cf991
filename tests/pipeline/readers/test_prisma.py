"""PRISMA: every variant of the generated products equals what was written, and each trap is met."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from affine import Affine

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene, prisma
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform

LEVELS = ("prisma_l1", "prisma_l1g", "prisma_l2b", "prisma_l2c", "prisma_l2d")
SENSOR_GRID = ("prisma_l1", "prisma_l1g", "prisma_l2b", "prisma_l2c")


def quietly(path, **options):
    """Open without the warnings, which are looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene(path, **options)


def told(scene):
    """Return what the reader warned of, beside the word that it is experimental."""
    return [text for text in scene.attrs["warnings"] if "experimental" not in text]


def physical(scene):
    scale_b, offset_b = scale_offset(scene)
    raw = scene["data"].values
    missing = (raw == nodata_values(scene)) | ~scene["valid"].values[:, :, None]
    return np.where(missing, np.nan, raw * scale_b + offset_b)


def assert_same(scene, truth):
    """All that a scene states equals what was written, for the bands that it kept."""
    order = truth.order(scene["wavelength"].values, scene["detector"].values)
    assert scene["data"].dtype == truth.raw_yxb.dtype
    assert np.array_equal(scene["data"].values, truth.raw_yxb[:, :, order])
    assert np.allclose(physical(scene), truth.physical_yxb[:, :, order], rtol=1e-6, atol=0, equal_nan=True)
    assert np.array_equal(scene["wavelength"].values, truth.wavelength_nm[order])
    assert np.array_equal(scene["fwhm"].values, truth.fwhm_nm[order].astype(float))
    assert scene["detector"].values.tolist() == truth.detector[order].tolist()
    assert scene["good_band"].values.all()
    assert scene.attrs["quantity"] == truth.quantity
    assert scene.attrs.get("nodata") == truth.nodata
    assert np.array_equal(scene["valid"].values, ~truth.nodata_mask_yxb[:, :, order].all(axis=2))
    assert scene.attrs["sun_zenith_deg"] == truth.sun_zenith_deg
    assert scene.attrs["sun_azimuth_deg"] == truth.sun_azimuth_deg
    assert scene.attrs["acquired"] == truth.acquired
    assert scene.attrs["sensor"] == "PRISMA"
    assert scene.attrs["experimental"] is True
    for name, values in truth.quality.items():
        assert np.array_equal(scene[f"quality_{name}"].values, values)
    if truth.lat_yx is not None and truth.crs_epsg is None:
        assert np.array_equal(scene["lat"].values, truth.lat_yx, equal_nan=True)
        assert np.array_equal(scene["lon"].values, truth.lon_yx, equal_nan=True)
    if truth.sun_zenith_yx is not None:
        known = np.isfinite(truth.sun_zenith_yx) & (truth.sun_zenith_yx > 0) & (truth.sun_zenith_yx < 90)
        assert np.array_equal(scene["sun_zenith"].values[known], truth.sun_zenith_yx[known])
        assert np.isnan(scene["sun_zenith"].values[~known]).all()
    assert told(scene) == []


@pytest.mark.parametrize("name", LEVELS)
def test_file_and_folder_give_the_scene_that_was_written(products, tmp_path, name):
    truth = products.make(name, tmp_path)
    for path in {*truth.paths, tmp_path}:
        scene = quietly(path)
        assert_same(scene, truth)
        assert scene.attrs["reader"] == "prisma"
        assert [Path(file).suffix for file in scene.attrs["files"]] == [".he5"]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("prisma_l1", {"scale_factor": 250.0, "offset": 1.5}),
        ("prisma_l1", {"flagged_off": 30, "seed": 3}),
        ("prisma_l1", {"absent": (0, 1)}),
        ("prisma_l2b", {"absent": (0, 0), "shape_yx": (7, 13)}),
        ("prisma_l2d", {"shape_yx": (9, 21)}),
        ("prisma_l2d", {"shape_yx": (21, 9), "flagged_off": 65}),
    ],
)
def test_every_variant(products, tmp_path, name, variants):
    assert_same(
        quietly(products.make(name, tmp_path, **variants).paths[0]),
        products.make(name, tmp_path / "b", **variants),
    )


def test_l1_radiance_by_hand(products, tmp_path):
    """DN / ScaleFactor - Offset, factor 1: PRISMA gives W m-2 sr-1 um-1."""
    truth = products.make("prisma_l1", tmp_path, scale_factor=50.0, offset=0.25)
    scene = quietly(truth.paths[0])
    with h5py.File(truth.paths[0]) as file:
        raw = file["HDFEOS/SWATHS/PRS_L1_HCO/Data Fields/SWIR_Cube"][3, 40, 5]
        wave = file.attrs["List_Cw_Swir"][40]
    band = int(np.flatnonzero((scene["wavelength"].values == wave) & (scene["detector"].values == "swir"))[0])
    scale_b, offset_b = scale_offset(scene)
    assert scene["data"].values[3, 5, band] * scale_b[band] + offset_b[band] == pytest.approx(
        raw / 50.0 - 0.25, rel=1e-6
    )
    assert scene.attrs["units"] == "W m-2 sr-1 um-1"


def test_l1_keeps_single_zeros_and_masks_pixels_that_are_0_in_all_bands(products, tmp_path):
    truth = products.make("prisma_l1", tmp_path)
    scene = quietly(truth.paths[0])
    raw, valid = scene["data"].values, scene["valid"].values
    assert np.array_equal(valid, (raw != 0).any(axis=2))
    assert not valid.all()
    assert ((raw == 0).any(axis=2) & valid).any(), "a generated file without a single 0 proves nothing"
    assert "nodata" not in scene.attrs
    assert scene.attrs["valid_rule"] == "product"
    assert np.array_equal(scene["valid"][3:9:2, [4, 1, 0]].values, valid[3:9:2][:, [4, 1, 0]])


def test_nodata_of_the_users_own_replaces_the_rule_of_zeros(products, tmp_path):
    scene = quietly(products.make("prisma_l1", tmp_path).paths[0], nodata=0)
    assert scene.attrs["nodata"] == 0
    assert "valid_rule" not in scene.attrs


@pytest.mark.parametrize("name", ["prisma_l2b", "prisma_l2c", "prisma_l2d"])
def test_l2_zero_is_missing_band_by_band(products, tmp_path, name):
    truth = products.make(name, tmp_path)
    scene = quietly(truth.paths[0])
    missing = np.isnan(physical(scene))
    assert np.array_equal(missing, scene["data"].values == 0)
    assert (missing.any(axis=2) & ~missing.all(axis=2)).any()
    assert scene.attrs["quantity"] == ("surface_radiance" if name.endswith("b") else "surface_reflectance")


def test_absent_bands_are_left_out_and_the_overlap_is_kept(products, tmp_path):
    truth = products.make("prisma_l2c", tmp_path, flagged_off=10)
    scene = quietly(truth.paths[0])
    wave, detector = scene["wavelength"].values, scene["detector"].values
    with h5py.File(truth.paths[0]) as file:
        kept = sum(int((np.asarray(file.attrs[f"List_Cw_{d}_Flags"]) > 0).sum()) for d in ("Vnir", "Swir"))
    assert (wave > 0).all()
    assert len(wave) == kept < 66 + 173
    assert wave[detector == "swir"].min() < wave[detector == "vnir"].max()
    assert (np.diff(wave[detector == "vnir"]) < 0).all()


@pytest.mark.parametrize("detector", ["vnir", "swir"])
@pytest.mark.parametrize("name", LEVELS)
def test_one_detector_is_the_same_as_its_part_of_both(products, tmp_path, name, detector):
    path = products.make(name, tmp_path).paths[0]
    both, one = quietly(path), quietly(path, detector=detector)
    part = both.isel(band=np.flatnonzero(both["detector"].values == detector))
    assert set(one["detector"].values) == {detector}
    assert np.array_equal(one["data"].values, part["data"].values)
    assert np.array_equal(one["wavelength"].values, part["wavelength"].values)
    assert one.attrs["scene_id"] == f"{both.attrs['scene_id']}_{detector}"


def test_each_detector_brings_its_own_places(products, tmp_path):
    path = products.make("prisma_l1", tmp_path).paths[0]
    with h5py.File(path) as file:
        fields = file["HDFEOS/SWATHS/PRS_L1_HCO/Geolocation Fields"]
        for detector in ("vnir", "swir"):
            lat = quietly(path, detector=detector)["lat"].values
            assert np.array_equal(lat, fields[f"Latitude_{detector.upper()}"][()])


# --- the grid of L2D ---


def _turned(path, turn):
    """Turn the stored arrays of an L2D file, as another processor might store them; the corners stay."""
    with h5py.File(path, "r+") as file:
        swath = file["HDFEOS/SWATHS/PRS_L2D_HCO"]
        for group in swath.values():
            for name, found in list(group.items()):
                if found.ndim in (2, 3):
                    values = turn(found[()])
                    del group[name]
                    group[name] = values


TURNS = {
    "as it is": lambda a: a,
    "upside down": lambda a: a[::-1],
    "mirrored": lambda a: a[..., ::-1],
    "half turn": lambda a: a[::-1][..., ::-1],
    "transposed": lambda a: np.swapaxes(a, 0, -1),
    "quarter turn": lambda a: np.swapaxes(a, 0, -1)[::-1],
    "quarter turn back": lambda a: np.swapaxes(a, 0, -1)[..., ::-1],
    "the other diagonal": lambda a: np.swapaxes(a, 0, -1)[::-1][..., ::-1],
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_l2d_is_placed_by_its_latitudes_whatever_way_it_is_stored(products, tmp_path, turn):
    """Each pixel lies where its own latitude and longitude say; the corners are centres of pixels."""
    truth = products.make("prisma_l2d", tmp_path, shape_yx=(14, 9))
    _turned(truth.paths[0], turn)
    scene = quietly(truth.paths[0])
    crs, place = scene_crs(scene), scene_transform(scene)
    assert crs.to_epsg() == truth.crs_epsg
    assert scene.attrs["resampled"] is True
    assert "lat" not in scene.coords
    assert (place.b, place.d) == (0, 0)
    order = truth.order(scene["wavelength"].values, scene["detector"].values)
    theirs = Affine(*truth.transform6)
    their_col = np.round((scene["x"].values - theirs.c) / theirs.a - 0.5).astype(int)
    their_row = np.round((scene["y"].values - theirs.f) / theirs.e - 0.5).astype(int)
    expected = truth.raw_yxb[their_row][:, their_col][:, :, order]
    assert np.array_equal(scene["data"].values, expected)
    assert (place.a, place.e) in {(30.0, -30.0), (30.0, 30.0), (-30.0, -30.0), (-30.0, 30.0)}


def test_l2d_corners_are_pixel_centres(products, tmp_path):
    """Half a pixel beyond the corner coordinates lies the edge."""
    truth = products.make("prisma_l2d", tmp_path)
    with h5py.File(truth.paths[0]) as file:
        east, north = (float(file.attrs[f"Product_ULcorner_{a}"]) for a in ("easting", "northing"))
    scene = quietly(truth.paths[0])
    assert scene_transform(scene) == Affine(30, 0, east - 15, 0, -30, north + 15) == Affine(*truth.transform6)
    assert scene["x"].values[0] == east
    assert scene["y"].values[0] == north


def test_l2d_without_usable_latitudes_is_taken_as_north_up_with_a_warning(products, tmp_path):
    truth = products.make("prisma_l2d", tmp_path)
    with h5py.File(truth.paths[0], "r+") as file:
        fields = file["HDFEOS/SWATHS/PRS_L2D_HCO/Geolocation Fields"]
        for name in ("Latitude", "Longitude"):
            fields[name][()] = 0
    scene = quietly(truth.paths[0])
    assert scene_transform(scene) == Affine(*truth.transform6)
    assert "north was taken to be up" in told(scene)[0]


def test_l2d_whose_corners_contradict_its_latitudes_warns(products, tmp_path):
    path = products.make("prisma_l2d", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        for corner in ("UR", "LR"):
            file.attrs[f"Product_{corner}corner_easting"] = file.attrs["Product_ULcorner_easting"] + 5000
    assert "by latitude" in told(quietly(path))[0]


def test_l2d_without_corners_keeps_latitudes(products, tmp_path):
    path = products.make("prisma_l2d", tmp_path).paths[0]
    with h5py.File(path, "r+") as file:
        del file.attrs["Product_LRcorner_easting"]
    scene = quietly(path)
    assert scene_transform(scene) is None
    assert "lat" in scene.coords
    assert "corner coordinates" in told(scene)[0]


# --- quality ---


@pytest.mark.parametrize("name", ["prisma_l1", "prisma_l2c"])
def test_saturated_means_in_some_band(products, tmp_path, name):
    path = products.make(name, tmp_path).paths[0]
    level = name[-2:].upper() if name == "prisma_l1" else "L2C"
    kind, code = ("SAT", 2) if level == "L1" else ("L2", 3)
    with h5py.File(path, "r+") as file:
        fields = file[f"HDFEOS/SWATHS/PRS_{level}_HCO/Data Fields"]
        for other in ("VNIR", "SWIR"):
            matrix = f"{other}_PIXEL_{kind}_ERR_MATRIX"
            fields[matrix][()] = np.zeros(fields[matrix].shape, "u1")
        fields[f"VNIR_PIXEL_{kind}_ERR_MATRIX"][4, 20, 3] = code
        fields[f"SWIR_PIXEL_{kind}_ERR_MATRIX"][5, 60, 2] = code
        fields[f"VNIR_PIXEL_{kind}_ERR_MATRIX"][6, 20, 3] = 1
    saturated = quietly(path)["quality_saturated"]
    assert saturated.dtype == bool
    assert np.argwhere(saturated.values).tolist() == [[4, 3], [5, 2]]


def test_masks_tell_their_meanings(products, tmp_path):
    scene = quietly(products.make("prisma_l1", tmp_path).paths[0])
    assert "cloud" in scene["quality_cloud"].attrs["flag_meanings"]
    assert scene["quality_landcover"].dtype == np.uint8
    assert (scene["quality_landcover"].values == 2).all()


# --- refusals ---


def test_a_cube_that_lies_in_another_file_is_refused(products, tmp_path):
    truth = products.make("prisma_l1", tmp_path, external_link=True)
    with pytest.raises(FormatError, match=r"out of the file"):
        quietly(truth.paths[0])


def _without(path, change):
    with h5py.File(path, "r+") as file:
        change(file)
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: f.attrs.__delitem__("List_Cw_Vnir"), "List_Cw_Vnir"),
        (lambda f: f.attrs.__delitem__("ScaleFactor_Swir"), "ScaleFactor_Swir"),
        (lambda f: f.attrs.__setitem__("ScaleFactor_Swir", 0.0), "ScaleFactor_Swir"),
        (lambda f: f.attrs.__setitem__("List_Fwhm_Swir", [1.0, 2.0]), "List_Fwhm_Swir"),
        (lambda f: f.attrs.__setitem__("List_Cw_Vnir", "nothing"), "List_Cw_Vnir"),
        (lambda f: f.attrs.__setitem__("List_Cw_Vnir_Flags", np.zeros(66)), "not acquired"),
        (lambda f: f.__delitem__("HDFEOS/SWATHS/PRS_L1_HCO/Data Fields/SWIR_Cube"), "SWIR_Cube"),
    ],
)
def test_what_is_missing_or_wrong_is_named(products, tmp_path, change, named):
    path = _without(products.make("prisma_l1", tmp_path).paths[0], change)
    with pytest.raises(FormatError, match=named):
        quietly(path)


def test_options_that_do_not_apply_are_refused(products, tmp_path):
    path = products.make("prisma_l1", tmp_path).paths[0]
    for wrong, named in (
        ({"detector": "pan"}, "vnir and swir"),
        ({"variable": "PAN_Cube"}, "variable"),
        ({"axes": "yxb"}, "axes"),
    ):
        with pytest.raises(FormatError, match=named):
            quietly(path, **wrong)


def test_overrides_replace_the_files_word(products, tmp_path):
    scene = quietly(
        products.make("prisma_l2c", tmp_path).paths[0],
        scale=2,
        offset=1,
        nodata=7,
        quantity="other",
        units="m",
    )
    assert [scene.attrs[k] for k in ("scale", "offset", "nodata", "quantity", "units")] == [
        2,
        1,
        7,
        "other",
        "m",
    ]


def test_a_folder_of_two_granules_asks_for_one(products, tmp_path):
    path = products.make("prisma_l1", tmp_path).paths[0]
    shutil.copy(path, tmp_path / "second.he5")
    with pytest.raises(FormatError, match="2 files"):
        quietly(tmp_path)


def test_the_scene_can_be_pickled_and_reads_windows(products, tmp_path):
    truth = products.make("prisma_l1", tmp_path)
    scene = pickle.loads(pickle.dumps(quietly(truth.paths[0])))  # noqa: S301 - our own
    order = truth.order(scene["wavelength"].values, scene["detector"].values)
    assert np.array_equal(scene["data"][2:5, 3:4].values, truth.raw_yxb[2:5, 3:4][:, :, order])
    assert np.array_equal(
        scene["data"].isel(band=[200, 3, 70]).values, truth.raw_yxb[:, :, order][:, :, [200, 3, 70]]
    )


def test_nothing_but_metadata_is_read_at_opening(products, tmp_path, monkeypatch):
    path = products.make("prisma_l2c", tmp_path).paths[0]
    monkeypatch.setattr(prisma.H5Cube, "__getitem__", lambda *_: pytest.fail("pixels were read"))
    monkeypatch.setattr(prisma.StackedCube, "__getitem__", lambda *_: pytest.fail("pixels were read"))
    assert quietly(path)["data"].shape[:2] == (12, 10)
