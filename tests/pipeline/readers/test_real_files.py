"""Real files: each ends in a correct scene or in one clear refusal (headers alone: `test_hdr_zoo`)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import rasterio
import spectral

from bandstream.pipeline.errors import BandstreamWarning, SceneError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.envi import class_table, read_header
from bandstream.pipeline.scene import check_scene, nodata_values, scene_crs, scene_transform

pytestmark = pytest.mark.real


@pytest.fixture
def quiet():
    """Let warnings pass: what they say is looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        yield


def test_plantcv_lacks_a_byte_order_which_is_one_warning(data_root):
    with pytest.warns(BandstreamWarning, match="byte order") as caught:
        ds = open_scene(data_root / "plantcv_corn_kernel" / "corn-kernel-hyperspectral.hdr")
    assert len(caught) == 1
    assert ds["data"].shape == (31, 43, 580)
    assert ds["data"].dtype == np.uint16
    raw = np.fromfile(data_root / "plantcv_corn_kernel" / "corn-kernel-hyperspectral.raw", "<u2")
    assert np.array_equal(ds["data"].values, raw.reshape(31, 580, 43).transpose(0, 2, 1))


def test_emit_keeps_244_of_285_bands_with_every_list_in_order(data_root, quiet):
    ds = open_scene(data_root / "emit_reflectance_10x10" / "emit20250324t221005_jpl_unmix_ex.hdr")
    good = ds.isel(band=np.flatnonzero(ds["good_band"].values))
    assert good.sizes["band"] == 244
    theirs = spectral.envi.read_envi_header(ds.attrs["files"][0])
    keep = [float(v) == 1 for v in theirs["bbl"]]
    for ours, key in (("wavelength", "wavelength"), ("fwhm", "fwhm")):
        assert good[ours].values.tolist() == [float(v) for v, k in zip(theirs[key], keep, strict=True) if k]
    assert good["band_name"].values.tolist() == [
        v for v, k in zip(theirs["band names"], keep, strict=True) if k
    ]


@pytest.mark.parametrize(
    "name",
    [
        "pycoal_aviris/ang20140912t192359_corr_v1c_img_2580-2590_540-550.hdr",
        "pycoal_aviris/f080702t01p00r08rdn_c_sc01_ort_img_123_456.hdr",
        "avirisng_radiance_10x10/ang20170323t202244_rdn_7000-7010.hdr",
        "avirisng_radiance_10x10/ang20170323t202244_obs_7000-7010.hdr",
        "qps_wavelength_zoo/envi.hdr",
    ],
)
def test_numbers_of_real_envi_files_equal_spys(data_root, quiet, name):
    ds = open_scene(data_root / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = spectral.envi.open(str(data_root / name)).open_memmap(interleave="bip")
        assert np.array_equal(ds["data"].values, theirs, equal_nan=True)


def test_every_envi_header_of_the_data_opens_or_is_refused_as_a_scene_error(data_root, quiet):
    opened = 0
    for header in sorted(data_root.glob("*/*.hdr")):
        if header.parent.name == "hdr_zoo":
            continue
        try:
            ds = open_scene(header)
        except SceneError as error:
            assert header.name in str(error)  # noqa: PT017 - either outcome is right
            continue
        opened += 1
        assert ds["data"][0, 0].values.shape == (ds.sizes["band"],)
    assert opened > 25


def test_class_names_of_a_mineral_map_hold_equals_signs(data_root):
    folder = data_root / "hdr_zoo"
    names, colors = class_table(read_header(next(folder.glob("42__*"))))
    assert len(names) == len(colors) == 1366
    assert names[:2] == ["No data", "Acmite NMNH133746 Pyroxene s06av95a=a"]
    assert colors[:2] == ["#000000", "#ff0000"]


def test_an_enmap_tile_keeps_raw_numbers_nodata_and_bad_bands(data_root):
    path = data_root / "enmap_potsdam_tiles" / "images" / "enmap_potsdam_tile_128_0.tif"
    ds = open_scene(path)
    assert ds["data"].shape == (32, 32, 224)
    assert (ds.attrs["scale"], ds.attrs["nodata"]) == (1e-4, -32768)
    assert np.flatnonzero(~ds["good_band"].values).tolist() == list(range(129, 135))
    assert (ds["data"].values[:, :, 129:135] == -32768).all()
    assert ds["wavelength"].values[[0, 223]].tolist() == [418.24, 2445.53]
    assert (np.diff(ds["wavelength"].values) < 0).sum() == 1  # the detectors overlap
    assert 5 < ds["fwhm"].values.min() < ds["fwhm"].values.max() < 15
    assert ds.attrs["acquired"] == "2022-07-24T10:45:26"
    with rasterio.open(path) as theirs:
        assert np.array_equal(ds["data"].values, theirs.read().transpose(1, 2, 0))


def test_the_enmap_tiles_are_one_scene_with_gaps(data_root):
    folder = data_root / "enmap_potsdam_tiles" / "images"
    ds = open_scene(folder)
    assert ds["data"].shape == (192, 160, 224)
    tiles = sorted(folder.glob("*.tif"))
    assert int(ds["valid"].values.sum()) == len(tiles) * 32 * 32
    for path in tiles[:3]:
        row, col = (int(part) for part in path.stem.split("_")[-2:])
        with rasterio.open(path) as theirs:
            origin = ~scene_transform(ds) @ (theirs.transform.c, theirs.transform.f)
            y, x = round(origin[1]), round(origin[0])
            assert (y % 32, x % 32, row % 32, col % 32) == (0, 0, 0, 0)
            assert np.array_equal(ds["data"][y : y + 32, x : x + 32].values, theirs.read().transpose(1, 2, 0))
    assert (ds["data"].values[~ds["valid"].values] == nodata_values(ds)[0]).all()


@pytest.mark.parametrize(
    ("name", "wavelength", "fwhm", "good", "warned"),
    [
        ("enmap.tif", 460.0, 5.8, True, 0),
        ("enmapbox_envidomain_bandlevel.tif", 400.0, None, False, 1),
        ("enmapbox_envidomain_dslevel.tif", 400.0, None, False, 0),
        ("gdal_wl_fwhm.tif", 400.0, 10.0, True, 0),
        ("gdal_wl_only.tif", 400.0, None, True, 0),
        ("gdal_no_info.tif", None, None, True, 0),
        ("staclike.tif", 4000.0, 100.0, True, 0),
        ("hymap.tif", None, None, True, 0),
        ("envi_wl_fwhm.bsq", 400.0, 10.0, False, 0),
        ("envi_wl_implicit_nm.bsq", 400.0, None, True, 1),
        ("envi_wl_implicit_um.hdr", 400.0, None, True, 1),
    ],
)
def test_wavelengths_of_first_bands_wherever_programs_put_them(
    data_root, quiet, name, wavelength, fwhm, good, warned
):
    ds = open_scene(data_root / "qps_wavelength_zoo" / name)
    assert (float(ds["wavelength"][0]) if "wavelength" in ds.coords else None) == wavelength
    assert (float(ds["fwhm"][0]) if "fwhm" in ds.coords else None) == fwhm
    assert bool(ds["good_band"][0]) == good
    assert len(ds.attrs["warnings"]) == warned


def test_every_tiff_of_the_data_says_what_rasterio_says(data_root, quiet):
    """Shape, type, place, nodata, scales and pixels; wavelengths against the tags as GDAL gives them."""
    paths = sorted(data_root.glob("**/*.tif"))
    assert len(paths) > 40
    with_wavelengths = 0
    for path in paths:
        ds = open_scene(path)
        check_scene(ds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = rasterio.open(path)
        with theirs:
            assert ds["data"].shape == (theirs.height, theirs.width, theirs.count), path
            assert ds["data"].dtype == theirs.dtypes[0]
            assert scene_crs(ds) == theirs.crs
            assert scene_transform(ds) == theirs.transform
            nodata = [np.nan if v is None else v for v in theirs.nodatavals]
            assert np.array_equal(nodata_values(ds), nodata, equal_nan=True)
            if path.parent.name != "images":  # those are compared above
                assert np.array_equal(ds["data"].values, theirs.read().transpose(1, 2, 0))
            expected = tagged_nm(theirs)
        if expected is not None:
            with_wavelengths += 1
            assert np.allclose(ds["wavelength"].values, expected, rtol=1e-9), path
        else:
            assert "wavelength" not in ds.coords or path.name == "staclike.tif"
    assert with_wavelengths > 20


def tagged_nm(raster) -> list[float] | None:
    """Return the wavelengths of a raster's tags in nm, by hand."""
    bands = range(1, raster.count + 1)
    if raster.tags(1, ns="IMAGERY").get("CENTRAL_WAVELENGTH_UM"):
        return [float(raster.tags(b, ns="IMAGERY")["CENTRAL_WAVELENGTH_UM"]) * 1000 for b in bands]
    if raster.tags(1).get("wavelength"):
        values = [float(raster.tags(b)["wavelength"]) for b in bands]
    elif raster.tags(1, ns="ENVI").get("wavelength"):
        values = [float(raster.tags(b, ns="ENVI")["wavelength"]) for b in bands]
    else:
        text = raster.tags(ns="ENVI").get("wavelength") or raster.tags().get("wavelength")
        if text is None:
            return None
        values = [float(v) for v in text.strip("{} ").split(",")]
    return [v * 1000 if v < 100 else v for v in values]
