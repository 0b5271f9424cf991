"""`bandstream scene info` on every real ENVI file, beside what SPy and GDAL read from it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
import spectral
from rasterio.crs import CRS
from typer.testing import CliRunner

from bandstream.pipeline.cli import app
from bandstream.pipeline.errors import FormatError, SceneNotFoundError
from bandstream.pipeline.readers import open_scene

pytestmark = pytest.mark.real

FOLDERS = (
    *("avirisng_radiance_10x10", "avirisng_raw_l0", "emit_reflectance_10x10", "plantcv_corn_kernel"),
    *("pycoal_aviris", "qps_wavelength_zoo"),
)

REFUSED = {
    "blank_linearity.hdr": (FormatError, "`bands` = 0"),
    "reference.hdr": (SceneNotFoundError, "no data file beside it"),
    "fake_refl.hdr": (SceneNotFoundError, "no data file beside it"),
}
"""Headers that came without data."""

MICROMETRES = ("envi_wl_implicit_um.hdr", "envi.hdr")


def headers(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.hdr")) if path.name not in REFUSED]


def info(path: Path) -> dict:
    """Return what the command line prints for scripts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, ["scene", "info", str(path), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("folder", FOLDERS)
def test_scene_info_says_what_spy_and_gdal_say(data_root, folder):
    found = headers(data_root / folder)
    assert found
    for header in found:
        said = info(header)
        assert said["reader"] in ("envi", "aviris")
        assert said["why"]
        check_against_spy(header, said)
        check_against_gdal(Path(said["files"][1]), said)


def check_against_spy(header: Path, said: dict) -> None:
    told = spectral.envi.read_envi_header(str(header))
    assert said["shape_yxb"] == [int(told[key]) for key in ("lines", "samples", "bands")]
    factor = 1000 if header.name in MICROMETRES else 1
    if "wavelength" in told:
        np.testing.assert_allclose(
            said["wavelength_nm"], [factor * float(v) for v in told["wavelength"]], rtol=1e-12
        )
    else:
        assert said["wavelength_nm"] is None
    widths = told.get("fwhm")
    assert said["fwhm_nm"] == (None if widths is None else [float(v) for v in widths])
    assert said["good_band"] == [float(v) > 0 for v in told.get("bbl", [1] * said["shape_yxb"][2])]
    if "data ignore value" in told:
        assert said["nodata"] == float(told["data ignore value"])
    elif said["reader"] == "envi":
        assert said["nodata"] is None


def check_against_gdal(data: Path, said: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            raster = rasterio.open(data, driver="ENVI")
        except rasterio.errors.RasterioIOError:
            assert data.stat().st_size < 20  # GDAL takes so small a file for none
            return
        with raster:
            assert [raster.height, raster.width, raster.count] == said["shape_yxb"]
            assert raster.dtypes[0] == said["dtype"]
            placed = raster.transform != rasterio.Affine.identity()
            assert (said["transform"] is not None) == placed
            if placed:
                np.testing.assert_allclose(said["transform"], list(raster.transform)[:6], rtol=1e-12)
            assert (said["crs"] is None) == (raster.crs is None)
            if raster.crs is not None:
                assert CRS.from_user_input(said["crs"]) == raster.crs
            scene = open_scene(data)
            assert np.array_equal(scene["data"].values, raster.read().transpose(1, 2, 0), equal_nan=True)


def test_headers_without_data_are_refused_by_name(data_root):
    for name, (error, message) in REFUSED.items():
        (header,) = data_root.glob(f"*/{name}")
        with pytest.raises(error, match=message):
            open_scene(header)
