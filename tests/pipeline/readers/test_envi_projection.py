"""`projection info` of ENVI headers: GDAL's coordinate systems, but no datum that nobody named."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.warp import transform

from bandstream.pipeline import open_scene
from bandstream.pipeline.errors import BandstreamWarning
from bandstream.pipeline.readers.envi_projection import crs_of_projection
from bandstream.pipeline.scene import scene_crs

AXES = "6378137.0, 6356752.3"
CONIC = f"4, {AXES}, 44, -100, 1000000, 50, 45, 49, North America 1983, Lambert"
KNOWN = [
    (f"{CONIC}, units=Meters", "units=Meters", (-100.5, 44.2)),
    (CONIC, "", (-100.5, 44.2)),
    (CONIC, "units=Feet", (-100.5, 44.2)),
    (CONIC, "units=Km", (-100.5, 44.2)),
    (CONIC, "units=Miles", (-100.5, 44.2)),
    (CONIC, "units=Yards", (-100.5, 44.2)),
    ("4, 6378206.4, 6356583.8, 44, -100, 1e6, 0, 45, 49, North America 1927, Lambert", "", (-99, 43)),
    (f"4, {AXES}, 44, -100, 1000000, 0, 45, 49, a name alone", "", (-99, 43)),
    ("4, 6370000, 6370000, 44, -100, 1000000, 0, 45, 49, a sphere", "", (-99, 43)),
    (f"9, {AXES}, 23, -96, 0, 10, 29.5, 45.5, WGS-84, Albers, units=Meters", "units=Meters", (-90, 40)),
    (f"3, {AXES}, 0, 12, 4500000, 0, 1, WGS-84, Gauss", "", (12.4, 50)),
    (f"3, {AXES}, 0, 15, 500000, 0, 0.9996, WGS-84, zone 33", "", (14, 50)),
    ("3, 6377563.4, 6356256.9, 49, -2, 400000, -100000, 0.9996012717, Ordnance Survey of Great Britain '36, OS", "", (-1, 52)),
    (f"7, {AXES}, 52, 5, 155000, 463000, 0.9999, WGS-84, stereo", "", (5.5, 52)),
    (f"10, {AXES}, 0, -54, 5000000, 10000000, WGS-84, poly", "", (-50, -10)),
    (f"11, {AXES}, 52, 10, 4321000, 3210000, WGS-84, azimuthal", "", (9, 50)),
    (f"12, {AXES}, 40, -100, 0, 0, WGS-84, equidistant", "", (-99, 43)),
    (f"31, {AXES}, -71, 0, 0, 0, WGS-84, polar", "", (20, -75)),
    (f"31, {AXES}, 70, -45, 0, 0, WGS-84, polar", "", (-40, 75)),
    (f"11, {AXES}, 5, -60, 0, 0, SAD-69/Brazil, L", "", (-59, 4)),
    (f"11, {AXES}, 45, 2, 0, 0, Nouvelle Triangulation Francaise IGN, L", "", (3, 46)),
]  # fmt: skip


def write(folder: Path, projection: str, units: str = "", name: str = "Lambert") -> Path:
    header = folder / "x.hdr"
    header.write_text(
        "ENVI\nsamples = 4\nlines = 3\nbands = 3\ndata type = 2\ninterleave = bil\nbyte order = 0\n"
        f"map info = {{{name}, 1, 1, 100, 50, 1, 1{', ' + units if units else ''}}}\nprojection info = {{{projection}}}\n"
    )
    (folder / "x").write_bytes(bytes(72))
    return header


@pytest.mark.parametrize(("projection", "units", "place"), KNOWN)
def test_the_coordinate_system_is_the_one_that_gdal_reads(tmp_path, projection, units, place) -> None:
    path = write(tmp_path, projection, units)
    with rasterio.open(tmp_path / "x") as raster:
        expected = raster.crs
    found = scene_crs(open_scene(path))
    assert found == expected
    assert found.to_epsg() == expected.to_epsg()
    # not by comparison alone: a place has the same coordinates
    base = CRS.from_epsg(4326)
    ours, theirs = (transform(base, crs, [place[0]], [place[1]]) for crs in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_the_geographic_type_tells_the_datum_that_map_info_leaves_out(tmp_path) -> None:
    projection = f"1, {AXES}, North America 1983, Geographic Lat/Lon, units=Degrees"
    path = write(tmp_path, projection, "units=Degrees", "Geographic Lat/Lon")
    assert scene_crs(open_scene(path)).to_epsg() == 4269


@pytest.mark.parametrize(
    "projection",
    [
        f"4, {AXES}, 44, -100, 1000000, 50, 45, 49, Krakatoa 1883, Lambert",  # GDAL takes WGS 84
        f"4, {AXES}, 44, -100, 1000000, 50, 45, WGS-84, Lambert",  # a parallel short
        f"4, {AXES}, 44, -100, x, 50, 45, 49, WGS-84, Lambert",
        f"4, {AXES}, 44, -100, nan, 50, 45, 49, WGS-84, Lambert",
        f"4, {AXES}, 944, -100, 1e999, 50, 45, 49, WGS-84, Lambert",
        f"6, {AXES}, 44, -100, 30, 0, 0, 1, WGS-84, oblique",
        f"99, {AXES}, 44, WGS-84, x",
        "4, 0, 0, 44, -100, 1000000, 50, 45, 49, Lambert",
        "inf, 1, 2",
        "",
    ],
)
def test_what_is_not_known_is_no_coordinate_system_with_a_warning(tmp_path, projection) -> None:
    path = write(tmp_path, projection)
    with pytest.warns(BandstreamWarning, match="is not known; the scene has no CRS"):
        assert scene_crs(open_scene(path)) is None


def test_a_datum_that_map_info_names_is_not_replaced(tmp_path) -> None:
    path = write(tmp_path, f"1, {AXES}, WGS-84, Geographic", "Krakatoa 1883", "Geographic Lat/Lon")
    with pytest.warns(BandstreamWarning, match="is not known"):
        assert scene_crs(open_scene(path)) is None


def test_the_coordinate_system_string_wins(tmp_path) -> None:
    path = write(tmp_path, CONIC)
    wkt = CRS.from_epsg(32633).to_wkt(version="WKT1_ESRI")
    path.write_text(path.read_text() + f"coordinate system string = {{{wkt}}}\n")
    assert scene_crs(open_scene(path)).to_epsg() == 32633


def test_miles_of_a_zone_are_no_metres(tmp_path) -> None:
    path = write(tmp_path, "", "33, North, WGS-84, units=Miles", "UTM")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert scene_crs(open_scene(path)) is None
    assert any("is not known" in str(w.message) for w in caught)


def test_names_end_no_quotes() -> None:
    found = crs_of_projection(f'4, {AXES}, 44, -100, 0, 0, 45, 49, WGS-84, a"]],AUTHORITY["EPSG","1"', "")
    assert found is None or found.to_epsg() is None
