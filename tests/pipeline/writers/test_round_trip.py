"""What `write_scene` writes, `open_scene` reads back equal; SPy, GDAL and xarray agree."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import rasterio
import spectral
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS

from bandstream.pipeline.errors import BandstreamWarning
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.carried import read_carried
from bandstream.pipeline.readers.envi_header import read_header
from bandstream.pipeline.scene import nodata_values, scale_offset, scene_crs, scene_transform
from bandstream.pipeline.writers import write_scene

from .conftest import NORTH_UP, SHAPE, SHEARED, TURNED, raw_of

FORMATS = ["a.hdr", "a.tif", "a.nc", "a.zarr", "cog.tif"]
ENVI_TYPES = ["uint8", "int16", "int32", "float32", "float64", "uint16", "uint32", "int64", "uint64"]


def written(scene, folder, name, **more):
    more |= {"format": "cog"} if name == "cog.tif" else {}
    return write_scene(scene, folder / name, **more)[0]


def assert_equal(found, truth):
    """Compare everything that every format can say."""
    assert found["data"].dtype == truth["data"].dtype
    assert np.array_equal(found["data"].values, truth["data"].values, equal_nan=True)
    assert np.array_equal(found["valid"].values, truth["valid"].values)
    for name in ("wavelength", "fwhm"):
        assert (name in found.coords) == (name in truth.coords)
        if name in truth.coords:
            assert np.allclose(found[name].values, truth[name].values, rtol=0, atol=1e-9)
    assert np.array_equal(found["good_band"].values, truth["good_band"].values)
    assert found.attrs["quantity"] == truth.attrs["quantity"]
    assert found.attrs["units"] == truth.attrs["units"]
    assert found["band_name"].values.tolist() == truth["band_name"].values.tolist()
    own = (
        nodata_values(each).astype(found["data"].dtype if found["data"].dtype.kind == "f" else "f8")
        for each in (found, truth)
    )
    assert np.array_equal(*own, equal_nan=True)
    assert np.array_equal(scale_offset(found), scale_offset(truth))
    assert scene_crs(found) == scene_crs(truth)
    there, here = scene_transform(truth), scene_transform(found)
    assert (there is None) == (here is None)
    if there is not None:
        assert np.allclose(list(here), list(there), rtol=1e-12, atol=1e-9)
    assert np.allclose(found["y"].values, truth["y"].values, rtol=1e-12)
    assert np.allclose(found["x"].values, truth["x"].values, rtol=1e-12)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("place", [NORTH_UP, TURNED, None])
def test_a_scene_is_read_back_equal(scene, tmp_path, name, place):
    truth = scene(place=place)
    assert_equal(open_scene(written(truth, tmp_path, name)), truth)


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_netcdf_and_zarr_keep_every_variable_coordinate_and_attribute(scene, tmp_path, name):
    import dask.array as da

    rng = np.random.default_rng(1)
    truth = scene(
        place=None, crs=None,
        detector=["vnir"] * 3 + ["swir"] * 4,
        nodata=[77, 77, np.nan, 0, 77, 77, -1], scale=np.linspace(1, 2, 7), offset=np.linspace(-1, 1, 7),
        wavelength_nm=[450, np.nan, 600, 700, 650, 900, 1000],
        quality={"cloud": (da.from_array(rng.random(SHAPE[:2]) > 0.5), {"flag_meanings": "clear cloud"}),
                 "code": da.from_array(rng.integers(0, 9, SHAPE[:2]).astype("u1"))},
        layers={"sun_zenith": da.from_array(rng.random(SHAPE[:2]).astype("f4"))},
        lat_yx=da.from_array(rng.random(SHAPE[:2])), lon_yx=da.from_array(rng.random(SHAPE[:2])),
        valid_yx=da.from_array(rng.random(SHAPE[:2]) > 0.3),
        default_bands=[4, 2, 1], resampled=True, ortho_crs_wkt="GEOGCS[...]", ortho_transform=[1.0, 0, 2, 0, -1, 3],
    )  # fmt: skip
    truth["glt_row"] = (("ortho_y", "ortho_x"), da.from_array(rng.integers(-1, 20, (31, 29)).astype("i4")))
    found = open_scene(written(truth, tmp_path, name))
    skipped = ("source", "files", "reader", "why", "warnings", "block_bytes")
    kept = {k: v for k, v in truth.attrs.items() if k not in skipped}
    assert {k: v for k, v in found.attrs.items() if k not in skipped} == kept
    found.attrs = truth.attrs
    assert set(found.variables) == set(truth.variables)
    for variable in truth.variables:
        assert found[variable].dims == truth[variable].dims
        assert found[variable].dtype.kind == truth[variable].dtype.kind
        assert found[variable].attrs == truth[variable].attrs
        if truth[variable].dtype.kind in "UOT":
            assert found[variable].values.tolist() == truth[variable].values.tolist()
        else:
            assert found[variable].dtype == truth[variable].dtype
            assert np.array_equal(
                found[variable].values, truth[variable].values, equal_nan=truth[variable].dtype.kind == "f"
            )


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_type_interleave_place_and_number_survives(scene, tmp_path_factory, data):
    name = data.draw(st.sampled_from(["a.hdr", "a.img", "a.tif", "a.nc", "a.zarr"]))
    dtype = data.draw(st.sampled_from(ENVI_TYPES))
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)))
    raw = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 100, shape).astype(dtype)
    truth = scene(
        raw,
        place=data.draw(st.sampled_from([NORTH_UP, TURNED, None])),
        nodata=data.draw(st.sampled_from([None, 0, 77])),
        scale=data.draw(st.sampled_from([None, 1e-4, 3.7, list(np.linspace(1, 2, shape[2]))])),
        offset=data.draw(st.sampled_from([None, -0.1, list(np.linspace(-1, 1, shape[2]))])),
        quantity=data.draw(st.sampled_from(["dn", "radiance", "surface_reflectance", "other"])),
        crs=data.draw(
            st.sampled_from([None, CRS.from_epsg(32633), CRS.from_epsg(4326), CRS.from_epsg(3035)])
        ),
    )
    folder = tmp_path_factory.mktemp("a")
    path = write_scene(truth, folder / name, interleave=data.draw(st.sampled_from(["bsq", "bil", "bip"])))[0]
    assert_equal(open_scene(path), truth)


@pytest.mark.parametrize("name", ["a.tif", "a.nc", "a.zarr"])
@pytest.mark.parametrize("dtype", ["int8", *ENVI_TYPES])
def test_the_ends_of_every_type_survive(scene, tmp_path, name, dtype):
    truth = scene(raw_of(dtype))
    assert_equal(open_scene(written(truth, tmp_path, name)), truth)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("nodata", [np.nan, -1.23e34, -9999.0])
def test_nodata_of_floats_is_no_data_again(scene, tmp_path, name, nodata):
    raw = raw_of("float32")
    raw[2, 3] = nodata
    raw[4, 4, 1] = nodata
    raw[6, 6] = np.inf
    truth = scene(raw, nodata=nodata, scale=None, quantity="other")
    found = open_scene(written(truth, tmp_path, name))
    assert np.array_equal(found["valid"].values, truth["valid"].values)
    assert not found["valid"].values[2, 3]
    assert np.array_equal(found["data"].values, raw, equal_nan=True)
    assert np.array_equal(nodata_values(found).astype("f4"), np.full(7, nodata, "f4"), equal_nan=True)


@pytest.mark.parametrize("name", ["a.tif", "a.nc", "a.zarr"])
def test_a_sheared_grid_is_kept_where_the_format_can(scene, tmp_path, name):
    truth = scene(place=SHEARED)
    assert_equal(open_scene(written(truth, tmp_path, name)), truth)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("place", [NORTH_UP, TURNED])
def test_a_cropped_and_thinned_scene_keeps_its_own_place(scene, tmp_path, name, place):
    part = scene(place=place).isel(y=slice(3, 20, 2), x=slice(5, None, 2), band=[4, 1, 2])
    found = open_scene(written(part, tmp_path, name))
    assert np.array_equal(found["data"].values, part["data"].values)
    assert np.allclose(list(scene_transform(found)), list(scene_transform(part)), rtol=1e-12)
    assert np.allclose(found["wavelength"].values, part["wavelength"].values)
    assert found["good_band"].values.tolist() == [True, True, False]


@pytest.mark.parametrize("name", FORMATS)
def test_physical_values_are_scaled_once_and_nodata_is_nan(scene, tmp_path, name):
    """Case: the scale applied twice after a round trip."""
    raw = raw_of("int16")
    found = open_scene(written(scene(raw, scale=1e-4, offset=0.5), tmp_path, name, physical=True))
    by_hand = np.where(raw == 77, np.nan, raw * 1e-4 + 0.5)
    assert found["data"].dtype == np.float32
    assert np.allclose(found["data"].values, by_hand, rtol=1e-6, equal_nan=True)
    assert np.array_equal(scale_offset(found), [np.ones(7), np.zeros(7)])
    assert np.isnan(nodata_values(found)).all()
    assert np.array_equal(found["valid"].values, (raw != 77).any(axis=2))
    again = open_scene(
        written(
            found, tmp_path, "again_" + name, physical=True, **({"format": "cog"} if "cog" in name else {})
        )
    )
    assert np.array_equal(again["data"].values, found["data"].values, equal_nan=True)


def test_a_masked_scene_is_nan_where_it_is_masked(scene, tmp_path):
    masked = scene()
    masked["valid"] = masked["valid"] & (np.arange(SHAPE[0]) > 9)[:, None]
    masked.attrs["valid_rule"] = "mask"
    with pytest.warns(BandstreamWarning, match="no place for valid"):
        write_scene(masked, tmp_path / "a.tif")
    found = open_scene(write_scene(masked, tmp_path / "b.tif", physical=True)[0])
    assert np.isnan(found["data"].values[:10]).all()
    assert np.array_equal(found["valid"].values, masked["valid"].values)


def test_spy_and_gdal_read_an_envi_file_as_we_do(scene, tmp_path):
    raw = raw_of("int16")
    for interleave in ("bsq", "bil", "bip"):
        truth = scene(raw, place=TURNED)
        header, data = write_scene(truth, tmp_path / f"{interleave}.hdr", interleave=interleave)
        theirs = spectral.open_image(str(header))
        assert theirs.metadata["interleave"] == interleave
        assert np.array_equal(theirs.open_memmap(interleave="bip"), raw)  # `load` applies the scale
        assert np.allclose(theirs.bands.centers, truth["wavelength"].values, rtol=0, atol=1e-9)
        assert np.allclose(theirs.bands.bandwidths, truth["fwhm"].values, rtol=0, atol=1e-9)
        assert [float(b) == 1 for b in theirs.metadata["bbl"]] == truth["good_band"].values.tolist()
        assert theirs.metadata["band names"] == truth["band_name"].values.tolist()
        with rasterio.open(data) as raster:
            assert np.array_equal(raster.read().transpose(1, 2, 0), raw)
            assert raster.crs == scene_crs(truth)
            assert np.allclose(list(raster.transform), list(TURNED), rtol=1e-12)
            assert raster.nodata == 77


@pytest.mark.parametrize("epsg", [32633, 32733, 4326, 3035, 2154])
def test_gdal_finds_the_coordinate_system_of_an_envi_file(scene, tmp_path, epsg):
    crs = CRS.from_epsg(epsg)
    header, data = write_scene(scene(crs=crs), tmp_path / "a.hdr")
    with rasterio.open(data) as raster:
        assert raster.crs.to_epsg(confidence_threshold=20) == epsg
        assert np.allclose(list(raster.transform), list(NORTH_UP))
    assert scene_crs(open_scene(header)) == crs


@pytest.mark.parametrize("name", ["a.tif", "cog.tif"])
def test_gdal_finds_wavelengths_names_and_scales_in_a_geotiff(scene, tmp_path, name):
    truth = scene(place=TURNED, offset=-0.1)
    with rasterio.open(written(truth, tmp_path, name)) as raster:
        assert np.array_equal(raster.read().transpose(1, 2, 0), truth["data"].values)
        assert np.allclose(list(raster.transform), list(TURNED), rtol=1e-12)
        assert raster.crs == scene_crs(truth)
        assert raster.nodata == 77
        assert raster.scales == (1e-4,) * 7
        assert raster.offsets == (-0.1,) * 7
        assert list(raster.descriptions) == truth["band_name"].values.tolist()
        for band, centre in enumerate(truth["wavelength"].values, start=1):
            imagery = raster.tags(band, ns="IMAGERY")
            assert float(imagery["CENTRAL_WAVELENGTH_UM"]) * 1000 == pytest.approx(centre, abs=1e-9)
            assert float(raster.tags(band)["wavelength"]) == centre
            assert raster.tags(band)["bbl"] == ("0" if band == 3 else "1")
        tags = raster.tags()
        assert tags["bandstream_quantity"] == "surface_reflectance"
        assert tags["bandstream_sensor"] == "EnMAP"
        assert float(tags["bandstream_sun_zenith_deg"]) == 33.25


@pytest.mark.parametrize("name", ["a.tif", "cog.tif"])
@pytest.mark.parametrize("bands", [1, 2, 3, 4, 5])
def test_no_band_of_a_geotiff_is_taken_for_transparency_or_colour(scene, tmp_path, name, bands):
    """GDAL calls the last of two or four bands of bytes alpha unless it is told not to."""
    raw = np.random.default_rng(0).integers(0, 255, (8, 9, bands), dtype="u1")
    truth = scene(raw, wavelength_nm=np.linspace(450, 900, bands), fwhm_nm=None, nodata=None)
    path = written(truth, tmp_path, name)
    assert_equal(open_scene(path), truth)
    with rasterio.open(path) as raster:
        assert {colour.name for colour in raster.colorinterp} <= {"gray", "undefined"}


def test_a_cloud_optimised_geotiff_has_tiles_and_overviews(scene, tmp_path):
    big = scene(raw_of("uint8", shape=(700, 900, 4)))
    path = written(big, tmp_path, "cog.tif")
    with rasterio.open(path) as raster:
        assert raster.overviews(1) == [2]
        assert raster.block_shapes[0] == (512, 512)
        assert raster.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
    assert np.array_equal(open_scene(path)["data"].values, big["data"].values)


def test_gdal_and_xarray_read_a_netcdf_file_as_we_do(scene, tmp_path):
    raw = raw_of("int16")
    truth = scene(raw, offset=0.25)
    path = written(truth, tmp_path, "a.nc")
    with rasterio.open(f"netcdf:{path}:data") as raster:
        assert np.array_equal(raster.read().transpose(1, 2, 0), raw)
        assert raster.crs == scene_crs(truth)
        assert np.allclose(list(raster.transform), list(NORTH_UP))
        assert raster.nodata == 77
    physical = np.where(raw == 77, np.nan, raw * 1e-4 + 0.25)
    for engine in ("h5netcdf", "netcdf4"):
        with xr.open_dataset(path, engine=engine) as theirs:
            assert np.allclose(theirs["data"].transpose("y", "x", "band").values, physical, equal_nan=True)
            assert np.array_equal(theirs["wavelength"].values, truth["wavelength"].values)
            assert theirs["wavelength"].attrs["units"] == "nm"
            assert np.array_equal(theirs["good_band"].values, truth["good_band"].values)
            assert theirs["band_name"].values.tolist() == truth["band_name"].values.tolist()
            assert CRS.from_wkt(theirs["spatial_ref"].attrs["crs_wkt"]) == scene_crs(truth)
            assert np.allclose(theirs["x"].values, truth["x"].values)
        with xr.open_dataset(path, engine=engine, mask_and_scale=False) as theirs:
            assert np.array_equal(theirs["data"].transpose("y", "x", "band").values, raw)


@pytest.mark.parametrize("name", ["s.nc", "s.zarr"])
def test_stored_numbers_with_a_scale_per_band_carry_no_physical_unit(scene, tmp_path, name):
    """CF scales a variable as a whole: another program would take raw numbers for radiance."""
    bands = scene().sizes["band"]
    truth = scene(scale=np.linspace(1e-4, 2e-4, bands))
    path = written(truth, tmp_path, name)
    theirs = (
        xr.open_dataset(path, engine="netcdf4")
        if name.endswith("nc")
        else xr.open_zarr(path, consolidated=False)
    )
    with theirs:
        assert "units" not in theirs["data"].attrs
        assert "scale of each band" in theirs["data"].attrs["long_name"]
    assert open_scene(path).attrs["units"] == truth.attrs["units"]


def test_xarray_reads_a_zarr_folder_as_we_do(scene, tmp_path):
    raw = raw_of("float32")
    truth = scene(raw, nodata=np.nan, scale=None)
    path = written(truth, tmp_path, "a.zarr")
    with xr.open_zarr(path, consolidated=False) as theirs:
        assert theirs["data"].dims == ("y", "x", "band")
        assert np.array_equal(theirs["data"].values, raw)
        assert np.array_equal(theirs["wavelength"].values, truth["wavelength"].values)


def test_a_file_that_went_through_xarray_is_not_scaled_again(scene, tmp_path):
    """Case: the scale applied twice. xarray applies it, drops it, and the reader finds none."""
    raw = raw_of("int16")
    written(scene(raw), tmp_path, "a.nc")
    with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as theirs:
        plain = theirs.drop_encoding()
        plain.to_netcdf(tmp_path / "b.nc", engine="h5netcdf", encoding={"data": {"_FillValue": None}})
    found = open_scene(tmp_path / "b.nc")
    assert np.array_equal(scale_offset(found), [np.ones(7), np.zeros(7)])
    assert np.allclose(found["data"].values, np.where(raw == 77, np.nan, raw * 1e-4), equal_nan=True)


def test_what_is_known_of_a_scene_stands_in_an_envi_header(scene, tmp_path):
    fields = read_header(
        write_scene(scene(quantity="radiance", units="W m-2 sr-1 um-1"), tmp_path / "a.hdr")[0]
    ).fields
    assert fields["bandstream quantity"] == "radiance"
    assert fields["data units"] == fields["bandstream units"] == "W m-2 sr-1 um-1"
    assert fields["sensor type"] == fields["bandstream sensor"] == "EnMAP"
    assert fields["acquisition time"] == "2022-07-27T10:31:06Z"
    assert float(fields["sun elevation"]) == 90 - 33.25
    assert float(fields["sun azimuth"]) == 151.5
    carried = read_carried(fields, " ")
    assert carried["product"] == "EnMAP L2A"
    assert carried["sun_zenith_deg"] == 33.25
    assert read_carried({"bandstream quantity": "nonsense", "bandstream sun_zenith_deg": "x"}, " ") == {}


REAL = [
    "avirisng_radiance_10x10/*.hdr", "emit_reflectance_10x10/*.hdr", "plantcv_corn_kernel/*.hdr", "pycoal_aviris/*.hdr",
    "enmap_potsdam_tiles/*/*.tif", "jasper_ridge_mat/*.mat",
]  # fmt: skip


@pytest.mark.real
@pytest.mark.filterwarnings("ignore::bandstream.pipeline.errors.BandstreamWarning")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pattern", REAL)
def test_real_files_survive_the_trip(data_root, tmp_path, pattern, name):
    source = min(data_root.glob(pattern))
    truth = open_scene(source)
    found = open_scene(written(truth, tmp_path, name))
    assert_equal(found, truth)
    for key in ("acquired", "sensor"):
        if name != "cog.tif" and not (name == "a.tif" and key == "sensor"):
            assert found.attrs.get(key) == truth.attrs.get(key)


def test_what_a_format_cannot_say_is_told(scene, tmp_path):
    import dask.array as da

    full = scene(detector=["vnir"] * 7, quality={"cloud": da.ones(SHAPE[:2], dtype=bool)})
    with pytest.warns(BandstreamWarning, match="envi has no place for quality_cloud, detector"):
        write_scene(full, tmp_path / "a.hdr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_scene(full, tmp_path / "a.nc")
    unknown = scene(wavelength_nm=[450, np.nan, 600, 700, 650, 900, 1000])
    with pytest.warns(BandstreamWarning, match="0 nm is written"):
        write_scene(unknown, tmp_path / "b.hdr")
