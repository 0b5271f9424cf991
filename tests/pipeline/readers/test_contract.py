"""netCDF-4, HDF5 and Zarr of unknown programs and of our own: axes by name, CF packing kept, damage refused.

That a written scene is read back equal is shown in `writers/test_round_trip.py`.
"""

from __future__ import annotations

import json
import shutil

import dask.array as da
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from affine import Affine
from rasterio.crs import CRS

from bandstream.pipeline.errors import (
    BandstreamError,
    BandstreamWarning,
    FormatError,
    SceneError,
    TruncatedFileError,
)
from bandstream.pipeline.readers import contract, open_scene
from bandstream.pipeline.readers.options import Notes
from bandstream.pipeline.scene import make_scene, nodata_values, scale_offset, scene_crs, scene_transform
from bandstream.pipeline.writers import write_scene

CUBE = np.random.default_rng(5).integers(0, 4000, (9, 7, 5)).astype("i2")
CENTRES = np.array([450.0, 900.0, 860.5, 1500.0, 2400.0])


def foreign(path, dims=("y", "x", "band"), *, cube=CUBE, attrs=None, fill=None, coords=True, group=None):
    """Write a cube as another program would, by the netCDF library itself."""
    order = [("y", "x", "band").index({"row": "y", "col": "x", "wavelength": "band"}.get(d, d)) for d in dims]
    with netCDF4.Dataset(path, "w") as root:
        out = root if group is None else root.createGroup(group)
        sizes = dict(zip(("y", "x", "band"), cube.shape, strict=True))
        for dim in dims:
            out.createDimension(dim, sizes[{"row": "y", "col": "x", "wavelength": "band"}.get(dim, dim)])
        variable = out.createVariable("reflectance", cube.dtype, dims, zlib=True, fill_value=fill)
        variable.set_auto_maskandscale(False)
        variable[:] = cube.transpose(order)
        for name, value in (attrs or {}).items():
            variable.setncattr(name, value)
        if coords:
            name = "wavelength"
            band = next(d for d in dims if d in ("band", "wavelength"))
            centres = out.createVariable(name, "f8", (band,))
            centres[:] = CENTRES / 1000
            centres.units = "um"
    return path


@pytest.mark.parametrize(
    "dims",
    [
        ("y", "x", "band"),
        ("band", "y", "x"),
        ("y", "band", "x"),
        ("wavelength", "row", "col"),
        ("col", "row", "band"),
    ],
)
@pytest.mark.parametrize("group", [None, "swath"])
def test_axes_are_known_by_the_names_of_the_dimensions(tmp_path, dims, group):
    ds = open_scene(foreign(tmp_path / "a.nc", dims, group=group))
    assert np.array_equal(ds["data"].values, CUBE)
    assert np.allclose(ds["wavelength"].values, CENTRES)
    assert ds.attrs["variable"] == ("reflectance" if group is None else "swath/reflectance")
    assert ds.attrs["quantity"] == "other"


def test_cf_packing_is_kept_and_never_applied(tmp_path):
    """Case: the scale applied twice after a round trip."""
    cube = CUBE.copy()
    cube[2, 3] = -9999
    attrs = {"scale_factor": 1e-4, "add_offset": 0.25, "units": "1"}
    path = foreign(tmp_path / "a.nc", cube=cube, attrs=attrs, fill=-9999)
    ds = open_scene(path)
    assert ds["data"].dtype == np.int16
    assert np.array_equal(ds["data"].values, cube)
    assert np.array_equal(scale_offset(ds), [np.full(5, 1e-4), np.full(5, 0.25)])
    assert (nodata_values(ds) == -9999).all()
    assert not ds["valid"].values[2, 3]
    with xr.open_dataset(path, engine="netcdf4") as theirs:
        physical = np.where(cube == -9999, np.nan, ds["data"].values * 1e-4 + 0.25)
        assert np.allclose(theirs["reflectance"].values, physical, equal_nan=True)
    ds = open_scene(path, scale=2, offset=0, nodata=0, quantity="dn", units="counts")
    assert (ds.attrs["scale"], ds.attrs["nodata"], ds.attrs["quantity"], ds.attrs["units"]) == (
        2,
        0,
        "dn",
        "counts",
    )


def test_default_fill_values_are_not_assumed(tmp_path):
    ds = open_scene(foreign(tmp_path / "a.nc"))
    assert np.isnan(nodata_values(ds)).all()
    assert ds["valid"].values.all()


def test_missing_value_counts_where_there_is_no_fill_value(tmp_path):
    assert (
        nodata_values(open_scene(foreign(tmp_path / "a.nc", attrs={"missing_value": np.int16(-1)}))) == -1
    ).all()
    path = foreign(tmp_path / "b.nc", attrs={"missing_value": np.int16(-1)}, fill=-2)
    with pytest.warns(BandstreamWarning, match="missing_value = -1 beside _FillValue = -2"):
        assert (nodata_values(open_scene(path)) == -2).all()


def test_unsigned_numbers_in_signed_types_are_refused(tmp_path):
    with pytest.raises(FormatError, match="_Unsigned"):
        open_scene(foreign(tmp_path / "a.nc", attrs={"_Unsigned": "true"}))


def test_axes_without_names_are_asked_for_unless_the_wavelengths_settle_the_bands(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as out:
        out["cube"] = CUBE.transpose(2, 0, 1)
    with pytest.raises(FormatError, match=r"cube is 5 x 9 x 7 with the axes without names.*give axes="):
        open_scene(path)
    assert np.array_equal(open_scene(path, axes="byx")["data"].values, CUBE)
    path = tmp_path / "b.h5"
    with h5py.File(path, "w") as out:
        out["cube"] = CUBE.transpose(2, 0, 1)
        out["wavelength"] = CENTRES
        out["wavelength"].attrs["units"] = "nm"
    with pytest.warns(BandstreamWarning, match="read as axes='byx'"):
        ds = open_scene(path)
    assert np.array_equal(ds["data"].values, CUBE)
    assert np.array_equal(ds["wavelength"].values, CENTRES)


def test_of_several_cubes_the_user_chooses(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as out:
        out["g/first"], out["second"], out["plane"] = CUBE, CUBE[:, :, :2], CUBE[:, :, 0]
    with pytest.raises(
        FormatError, match=r"several datasets.*second 9 x 7 x 2 int16.*g/first 9 x 7 x 5 int16"
    ):
        open_scene(path)
    assert np.array_equal(open_scene(path, variable="/g/first", axes="yxb")["data"].values, CUBE)
    with pytest.raises(FormatError, match="did you mean 'g/first'"):
        open_scene(path, variable="g/frist")
    with pytest.raises(FormatError, match="a cube has three axes"):
        open_scene(path, variable="plane")
    with pytest.raises(FormatError, match="axes = 'xyz'; allowed"):
        open_scene(path, variable="second", axes="xyz")


def test_a_file_without_a_cube_lists_what_it_holds(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as out:
        out["plane"], out["text"] = CUBE[:, :, 0], "nothing"
    with pytest.raises(FormatError, match="no dataset with three axes; it holds plane 9 x 7 int16"):
        open_scene(path)


def test_place_and_coordinates_of_a_foreign_file(tmp_path):
    grid = Affine(30, 0, 366000, 0, -30, 5810000)
    x, y = 366000 + 30 * (np.arange(7) + 0.5), 5810000 - 30 * (np.arange(9) + 0.5)
    xr.Dataset(
        {
            "reflectance": (("y", "x", "band"), CUBE, {"grid_mapping": "utm"}),
            "utm": ((), 0, {"crs_wkt": CRS.from_epsg(32633).to_wkt()}),
        },
        coords={"x": x, "y": y},
    ).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    ds = open_scene(tmp_path / "a.nc")
    assert scene_crs(ds) == CRS.from_epsg(32633)
    assert np.allclose(list(scene_transform(ds)), list(grid))
    lat, lon = np.random.default_rng(0).random((2, 9, 7))
    xr.Dataset(
        {"rad": (("downtrack", "crosstrack", "bands"), CUBE)},
        coords={"lat": (("downtrack", "crosstrack"), lat), "lon": (("downtrack", "crosstrack"), lon)},
    ).to_netcdf(tmp_path / "b.nc", engine="netcdf4")
    ds = open_scene(tmp_path / "b.nc")
    assert np.array_equal(ds["data"].values, CUBE)
    assert np.array_equal(ds["lat"].values, lat)
    assert np.array_equal(ds["lon"].values, lon)
    assert scene_transform(ds) is None


def test_nothing_outside_the_file_is_read(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["cube"] = CUBE
    path = tmp_path / "a.h5"
    layout = h5py.VirtualLayout(CUBE.shape, "i2")
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "cube", CUBE.shape)
    with h5py.File(path, "w") as out:
        out["linked"] = h5py.ExternalLink("other.h5", "/cube")
        out.create_virtual_dataset("virtual", layout)
    with pytest.raises(FormatError, match="no dataset with three axes"):
        open_scene(path, axes="yxb")


@pytest.fixture
def stored(tmp_path):
    """A small scene in both containers."""
    truth = make_scene(
        da.from_array(CUBE), wavelength_nm=CENTRES, nodata=0, scale=1e-4, quantity="surface_reflectance",
        crs=CRS.from_epsg(32633), transform=Affine(30, 0, 366000, 0, -30, 5810000),
    )  # fmt: skip
    return {name: write_scene(truth, tmp_path / f"a.{name}")[0] for name in ("nc", "zarr")}


@pytest.mark.parametrize("name", ["nc", "zarr"])
def test_overrides_win_over_a_written_scene(stored, name):
    ds = open_scene(stored[name], nodata=5, scale=3, quantity="dn", units="counts")
    assert (ds.attrs["nodata"], ds.attrs["scale"], ds.attrs["quantity"], ds.attrs["units"]) == (
        5,
        3,
        "dn",
        "counts",
    )


@pytest.mark.parametrize("name", ["nc", "zarr"])
def test_windows_are_read_as_numpy_would(stored, name):
    ds = open_scene(stored[name])
    for key in (
        (slice(2, 8, 3), slice(None, None, -1), [4, 0]),
        (3, slice(1, 5), slice(None)),
        (slice(None), 2, 1),
    ):
        assert np.array_equal(
            ds["data"][key].values,
            ds["data"].values[key] if key[2] != [4, 0] else CUBE[2:8:3, ::-1][:, :, [4, 0]],
        )


def test_a_missing_or_damaged_chunk_is_an_error_and_never_fill_values(stored):
    path = stored["zarr"]
    chunk = next(p for p in (path / "data" / "c").rglob("*") if p.is_file())
    raw = chunk.read_bytes()
    ds = open_scene(path)
    chunk.unlink()
    with pytest.raises(TruncatedFileError, match="missing"):
        ds["data"].values  # noqa: B018 - reads
    with pytest.raises(TruncatedFileError, match="1 of its 2 chunks"):
        open_scene(path)
    for bad in (
        raw[:20],
        raw[:-3],
        raw[:4] + b"\xff\xff\xff\x7f" + raw[8:],
        b"",
        raw[:40] + bytes(len(raw) - 40),
    ):
        chunk.write_bytes(bad)
        try:
            values = open_scene(path)["data"].values
        except FormatError:
            continue
        assert bad[:40] == raw[:40], "only the damage that no checksum shows may be read"
        assert values.shape == CUBE.shape


def test_zarr_folders_of_other_kinds_are_refused_by_name(tmp_path, stored):
    old = tmp_path / "v2.zarr"
    xr.Dataset({"data": (("y", "x", "band"), CUBE)}).to_zarr(old, zarr_format=2, consolidated=False)
    with pytest.raises(FormatError, match="format 2; only format 3"):
        open_scene(old)
    other = tmp_path / "other.zarr"
    xr.Dataset({"cube": (("y", "x", "band"), CUBE)}).to_zarr(other, zarr_format=3, consolidated=False)
    with pytest.raises(FormatError, match=r"no scene that Bandstream wrote \(it holds cube\)"):
        open_scene(other)
    meta = stored["zarr"] / "data" / "zarr.json"
    good = json.loads(meta.read_text())
    for change, word in (
        ({"codecs": [{"name": "sharding_indexed", "configuration": {}}]}, "packed by sharding_indexed"),
        ({"codecs": [*good["codecs"][:1], {"name": "zstd"}]}, "packed by bytes, zstd"),
        ({"data_type": {"name": "object"}}, "holds"),
        ({"shape": [10**4, 10**4, 10**4]}, "of its .* chunks"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**4, 10**4, 10**4]}}},
            "chunks of",
        ),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 1, 1]}}}, "do not fit"),
        ({"shape": "x"}, "garbles"),
        ({"zarr_format": 2}, "only format 3"),
    ):
        meta.write_text(json.dumps(good | change))
        with pytest.raises(FormatError, match=word):
            open_scene(stored["zarr"])


@pytest.mark.parametrize("name", ["nc", "zarr"])
def test_damaged_scenes_end_in_an_error_of_ours(tmp_path, stored, name, monkeypatch):
    monkeypatch.setattr("warnings.warn", lambda *a, **k: None)
    rng = np.random.default_rng(17)
    files = [stored[name]] if name == "nc" else sorted(p for p in stored[name].rglob("*") if p.is_file())
    refused = 0
    for trial in range(60 if name == "nc" else 120):
        file = files[trial % len(files)]
        whole = file.read_bytes()
        raw = bytearray(whole)
        if trial % 4 == 0:
            raw = raw[: rng.integers(0, len(raw))]
        else:
            for at in rng.integers(0, len(raw), 1 + trial % 5):
                raw[at] = rng.integers(0, 256)
        file.write_bytes(raw)
        try:
            open_scene(stored[name])["data"].values  # noqa: B018 - reads
        except BandstreamError:
            refused += 1
        file.write_bytes(whole)
    assert refused > 5


def test_attributes_that_are_no_json_are_refused(stored):
    with h5py.File(stored["nc"], "a") as out:
        out.attrs["bandstream_attrs"] = "[1, 2"
    with pytest.raises(FormatError, match="own attributes cannot be read"):
        open_scene(stored["nc"])


def test_a_scene_of_a_later_mapping_is_refused(stored):
    with h5py.File(stored["nc"], "a") as out:
        out.attrs["bandstream_scene"] = 99
    with pytest.raises(FormatError, match="version 99 of the scene mapping; this release reads 1"):
        open_scene(stored["nc"])


def test_attributes_cannot_break_the_scene_contract(stored):
    with h5py.File(stored["nc"], "a") as out:
        out.attrs["bandstream_attrs"] = json.dumps(
            {"quantity": "nonsense", "files": ["/etc/passwd"], "source": "x"}
        )
    with pytest.raises(SceneError, match="quantity = 'nonsense'"):
        open_scene(stored["nc"])
    ds = open_scene(stored["nc"], quantity="dn")
    assert ds.attrs["files"] == [str(stored["nc"])]


def test_a_copied_file_is_the_same_scene_under_another_name(tmp_path, stored):
    copy = tmp_path / "b.nc"
    shutil.copy(stored["nc"], copy)
    assert open_scene(copy).attrs["source"] == str(copy)
    assert np.array_equal(open_scene(copy)["data"].values, CUBE)


def test_a_coordinate_system_of_bytes_that_are_no_text_is_left_out_with_a_warning():
    """Case: a damaged byte of the WKT came through as a UnicodeEncodeError."""
    notes = Notes()
    entry = contract.Entry("spatial_ref", (), (), None, {"crs_wkt": 'GEOGCS["\udc80"]'})
    assert contract.place_of(entry, "a.nc", notes) == (None, None)
    assert any("cannot be read" in message for message in notes.messages)
