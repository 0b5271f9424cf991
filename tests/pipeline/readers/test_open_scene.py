"""Which reader opens what, and what is said when none does."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.transform import from_origin

from bandstream.pipeline.errors import BandstreamWarning, FormatError, SceneError, SceneNotFoundError
from bandstream.pipeline.readers import READERS, open_scene, open_scenes


def envi(folder, name, value=0):
    (folder / f"{name}.img").write_bytes(np.full((2, 3, 2), value, "<i2").tobytes())
    header = folder / f"{name}.hdr"
    header.write_text("ENVI\nsamples=3\nlines=2\nbands=2\ndata type=2\ninterleave=bip\nbyte order=0\n")
    return header


def tiff(folder, name, driver="GTiff"):
    path = folder / name
    profile = {"dtype": "int16", "crs": CRS.from_epsg(32633), "transform": from_origin(0, 9, 1, 1)}
    with rasterio.open(path, "w", driver=driver, height=2, width=3, count=1, **profile) as out:
        out.write(np.ones((1, 2, 3), "int16"))
    return path


def test_content_decides_whatever_the_name(tmp_path):
    assert open_scene(tiff(tmp_path, "a.img")).attrs["reader"] == "geotiff"
    header = envi(tmp_path, "b")
    renamed = tmp_path / "b.txt"
    header.rename(renamed)
    ds = open_scene(renamed, data_file="b.img")
    assert ds.attrs["reader"] == "envi"
    assert "ENVI" in ds.attrs["why"]


def test_a_reader_can_be_asked_for_by_name(tmp_path):
    path = envi(tmp_path, "a")
    assert open_scene(path, reader="envi").attrs["why"] == "asked for"
    with pytest.raises(FormatError, match="cannot be opened as GeoTIFF"):
        open_scene(path, reader="geotiff")
    with pytest.raises(FormatError, match=r"allowed: enmap, .*, envi, geotiff"):
        open_scene(path, reader="vicar")


def test_a_missing_file_is_told_with_names_near_it(tmp_path):
    envi(tmp_path, "flight_one")
    for given in (tmp_path / "flight_0ne.hdr", [tmp_path / "flight_0ne.hdr"]):
        with pytest.raises(
            SceneNotFoundError, match=r"flight_0ne\.hdr does not exist; near it: flight_one\.hdr"
        ):
            open_scene(given)
    with pytest.raises(SceneNotFoundError, match="neither does the folder"):
        open_scene(tmp_path / "no" / "x.hdr")
    with pytest.raises(SceneNotFoundError, match="no file matches"):
        open_scene(str(tmp_path / "*.tif"))
    with pytest.raises(FileNotFoundError):  # what a caller would expect
        open_scenes([])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x0e\x03\x13\x01....", "HDF4"),
        (b"CDF\x01....", "netCDF-3"),
        (b"MATLAB 5.0 MAT-file, ...", "MATLAB"),
        (b"NITF02.10", "NITF"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"<VRTDataset rasterXSize='3'>", "VRT"),
        (b"", "empty"),
        (b"\1\2\3\4 raw numbers", "which no reader knows"),
    ],
)
def test_what_no_reader_opens_is_named_with_the_readers_there_are(tmp_path, content, kind):
    path = tmp_path / "file.dat"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=kind) as caught:
        open_scene(path)
    assert all(reader.name in str(caught.value) for reader in READERS)


def test_a_zip_archive_is_named(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(FormatError, match="a zip archive"):
        open_scene(path)


@pytest.mark.parametrize(
    "name", ["/vsizip/a.zip/b.tif", "/vsicurl/http://h/a.tif", "https://host/a.tif", "gs://b/a.tif"]
)
def test_virtual_paths_are_refused_unless_allowed(name):
    with pytest.raises(FormatError, match="allow_vrt=True"):
        open_scene(name)


def test_a_vrt_is_read_only_when_allowed(tmp_path):
    source = tiff(tmp_path, "a.tif")
    path = tmp_path / "b.vrt"
    path.write_text(
        '<VRTDataset rasterXSize="3" rasterYSize="2"><GeoTransform>0, 1, 0, 9, 0, -1</GeoTransform>'
        '<VRTRasterBand dataType="Int16" band="1"><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">{source.name}</SourceFilename><SourceBand>1</SourceBand>'
        "</SimpleSource></VRTRasterBand></VRTDataset>"
    )
    with pytest.raises(FormatError, match="VRT"):
        open_scene(path)
    assert open_scene(path, allow_vrt=True)["data"].values.tolist() == np.ones((2, 3, 1)).tolist()
    renamed = path.rename(tmp_path / "c.tif")  # nor by another name
    with pytest.raises(FormatError):
        open_scene(renamed)


def test_a_vrt_can_be_read_from_a_zip_when_allowed(tmp_path):
    source = tiff(tmp_path, "a.tif")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(source, "a.tif")
    ds = open_scene(f"/vsizip/{tmp_path}/a.zip/a.tif", allow_vrt=True)
    assert ds["data"].values.sum() == 6


def test_a_folder_without_tiles_says_what_it_holds(tmp_path):
    with pytest.raises(FormatError, match="it holds nothing"):
        open_scene(tmp_path)
    envi(tmp_path, "a")
    with pytest.raises(FormatError, match=r"ENVI headers \(a\.hdr\): give one of them"):
        open_scene(tmp_path)
    tiff(tmp_path, "t.TIF")
    assert open_scene(tmp_path).attrs["scene_id"] == "t"


def test_many_files_are_scenes_of_their_own_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        envi(tmp_path, f"line{number}", number)
    for pattern in (tmp_path / "*.hdr", str(tmp_path / "line*"), str(tmp_path / "*.img")):
        scenes = open_scenes(pattern)
        assert [ds.attrs["scene_id"] for ds in scenes] == ["line1", "line2", "line10"]
        assert [int(ds["data"].values[0, 0, 0]) for ds in scenes] == [1, 2, 10]
    assert len(open_scenes(tmp_path / "line1.hdr", quantity="dn")) == 1
    assert (
        open_scenes([tmp_path / "line2.hdr", tmp_path / "line1.hdr"], quantity="dn")[0].attrs["scene_id"]
        == "line2"
    )


def test_several_envi_files_are_not_one_scene(tmp_path):
    envi(tmp_path, "a")
    envi(tmp_path, "b")
    with pytest.raises(FormatError, match="one by one"):
        open_scene(str(tmp_path / "*.hdr"))


def test_a_pattern_that_meets_a_tiff_and_its_sidecars_is_one_scene(tmp_path):
    path = tiff(tmp_path, "a.tif")
    (tmp_path / "a.tif.hdr").write_text("ENVI\nfile type = TIFF\nbands = 1\n")
    (tmp_path / "a.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
    scenes = open_scenes(str(tmp_path / "a*"))
    assert len(scenes) == 1
    assert scenes[0].attrs["files"] == [str(path), f"{path}.aux.xml", f"{path}.hdr"]


def test_warnings_point_at_the_caller_and_stay_with_the_scene(tmp_path):
    header = envi(tmp_path, "a")
    header.write_text(header.read_text() + "wavelength = {400, 500}\n")
    with pytest.warns(BandstreamWarning) as caught:
        ds = open_scene(header)
    assert [w.filename for w in caught] == [__file__]
    assert ds.attrs["warnings"] == [str(w.message) for w in caught]
    with pytest.warns(BandstreamWarning) as caught:
        open_scenes(header)
    assert [w.filename for w in caught] == [__file__]


def test_a_quantity_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(SceneError, match="allowed: dn, radiance"):
        open_scene(envi(tmp_path, "a"), quantity="reflectivity")
