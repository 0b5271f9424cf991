"""Headers from public repositories, each odd in its own way, with zero-filled data of the right size.

Every one becomes the scene that its header describes, or is refused for the reason that one expects. SPy and GDAL read
them independently: where the two agree, so does the scene, except where both are wrong (`BOTH_WRONG`).
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
import spectral
from rasterio.errors import RasterioError

from bandstream.pipeline.errors import BandstreamWarning, FormatError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene import check_scene, scene_crs, scene_transform

pytestmark = pytest.mark.real

REFUSED = {
    "04": "`wavelength` has 35 entries for 978 bands",
    "06": "interleave = 'bup' is unknown",
    "08": "ESRI",
    "16": "library of spectra is no scene",
    "18": "library of spectra is no scene",
    "20": "library of spectra is no scene",
    "22": "open the TIFF itself",
    "24": r"wavelength units = 'nm' contradicts the wavelengths 0\.46 \.\.\. 2\.409; they look like um",
    "26": "wavelength of band .* is -1",
    "28": "library of spectra is no scene",
    "46": "library of spectra is no scene",
    "50": "`bands` = 0",
    "62": "file type = 'Hypercloud'",
    "72": "`wavelength` has 215 entries for 1 bands",
    "94": "library of spectra is no scene",
}
"""What is wrong with the headers that are no scene, by their number."""

BOTH_WRONG = {
    "04": "35 wavelengths cannot belong to 978 bands; both go on without saying which bands have one",
    "06": "both take the misspelt interleave for bsq, though the camera writes bil",
    "24": "both take 0.46 ... 2.409 for nanometres",
    "26": "both take the first of two lists that contradict each other, with -1 and widths among the wavelengths",
    "72": "215 wavelengths cannot belong to one band",
}
"""Headers that SPy and GDAL both open, and why the scene is refused all the same."""

SPY_REFUSES = ("02", "10")
"""Headers without `byte order`, which SPy demands; GDAL and we take them as little-endian."""

GDAL_REFUSES = ("88",)
"""Data of a single byte, which GDAL takes for no file."""

OPENED = (
    *(
        "02",
        "10",
        "12",
        "14",
        "30",
        "32",
        "34",
        "36",
        "38",
        "40",
        "42",
        "44",
        "48",
        "52",
        "54",
        "56",
        "58",
        "60",
    ),
    *("64", "66", "68", "70", "74", "76", "78", "80", "82", "84", "86", "88", "90", "92"),
)

MICROMETRES = ("12", "32")
"""Headers whose wavelengths are micrometres; those of all others are nanometres."""

DTYPES = {1: "uint8", 2: "int16", 3: "int32", 4: "float32", 5: "float64", 12: "uint16"}


@pytest.fixture
def quiet():
    """Let our own warnings pass: what they say is looked at in the scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        yield


@pytest.fixture
def header(request, data_root, tmp_path) -> Path:
    """Copy the header of a number and put a sparse file of the right size beside it."""
    return sparse_pair(next((data_root / "hdr_zoo").glob(f"{request.param}__*.hdr")), tmp_path)


def sparse_pair(source: Path, folder: Path) -> Path:
    copy = folder / source.name
    shutil.copyfile(source, copy)
    text = source.read_text(encoding="latin-1")

    def number(key: str) -> int:
        found = re.search(rf"^\s*{key}\s*=\s*(\d+)", text, re.MULTILINE | re.IGNORECASE)
        return int(found[1]) if found else 0

    item = np.dtype(DTYPES.get(number("data type"), "uint8")).itemsize
    with (folder / source.name.removesuffix(".hdr")).open("wb") as file:
        file.truncate(number("header offset") + number("samples") * number("lines") * number("bands") * item)
    return copy


def test_the_tables_of_this_test_name_every_header(data_root):
    with (data_root / "hdr_zoo" / "index.tsv").open(encoding="utf-8", newline="") as file:
        listed = [row["file"][:2] for row in csv.DictReader(file, delimiter="\t")]
    assert sorted(listed) == sorted([*REFUSED, *OPENED])


@pytest.mark.parametrize("header", REFUSED, indirect=True)
def test_what_is_no_scene_is_refused_for_the_reason_one_expects(header, quiet):
    with pytest.raises(FormatError, match=REFUSED[header.name[:2]]):
        open_scene(header)


@pytest.mark.parametrize("header", OPENED, indirect=True)
def test_a_scene_is_what_its_header_says(header, quiet):
    """Size, type, wavelengths, widths and bad bands by SPy's parser, which shares nothing with ours."""
    ds = open_scene(header)
    check_scene(ds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keys in upper case
        told = spectral.envi.read_envi_header(str(header))
    rows, cols, bands = (int(told[key]) for key in ("lines", "samples", "bands"))
    assert ds["data"].shape == (rows, cols, bands)
    assert ds["data"].dtype == DTYPES[int(told["data type"])]
    assert not ds["data"][-1, -1].values.any()
    factor = 1000.0 if header.name[:2] in MICROMETRES else 1.0
    for name, key in (("wavelength", "wavelength"), ("fwhm", "fwhm")):
        values = told.get(key)
        if values is None and name == "wavelength":
            values = in_names(told)
        if values is None:
            assert name not in ds.coords
        else:
            np.testing.assert_allclose(ds[name].values, factor * np.array(values, float), rtol=1e-12)
    if "wavelength" in ds.coords:
        assert 300 < ds["wavelength"].values.max() < 2600
    good = np.array([float(v) for v in told["bbl"]]) > 0 if "bbl" in told else np.ones(bands, bool)
    assert np.array_equal(ds["good_band"].values, good)
    ignore = told.get("data ignore value")
    assert ds.attrs.get("nodata") == (float(ignore) if ignore else None)


@pytest.mark.parametrize("header", ["12", "36", "38", "76", "84", "90"], indirect=True)
def test_its_place_is_what_gdal_reads(header, quiet):
    ds = open_scene(header)
    with rasterio.open(str(header).removesuffix(".hdr")) as theirs:
        assert np.allclose(list(scene_transform(ds))[:6], list(theirs.transform)[:6], rtol=1e-12)
        assert scene_crs(ds) == theirs.crs


def in_names(told) -> list[float] | None:
    """Return the wavelengths that stand in the names of the bands."""
    found = [re.fullmatch(r"([\d.]+) Nanometers", name) for name in told.get("band names", [])]
    return [float(match[1]) for match in found] if found and all(found) else None


@pytest.mark.parametrize("header", [*OPENED, *BOTH_WRONG], indirect=True)
def test_where_spy_and_gdal_agree_so_do_we(header, quiet):
    """Size, type, first wavelength, and the pixels of the first rows, which are made of random bytes here."""
    with Path(str(header).removesuffix(".hdr")).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(np.random.default_rng(0).bytes(min(size, 2**16)))
    spy, gdal = spy_facts(header), gdal_facts(header)
    number = header.name[:2]
    if number in BOTH_WRONG:
        assert spy is not None
        assert gdal is not None
        with pytest.raises(FormatError):
            open_scene(header)
        return
    ds = open_scene(header)
    assert (spy is None, gdal is None) == (number in SPY_REFUSES, number in GDAL_REFUSES)
    spy, gdal = spy or gdal, gdal or spy
    assert spy["shape"] == gdal["shape"] == ds["data"].shape
    assert spy["dtype"] == gdal["dtype"] == ds["data"].dtype
    assert np.array_equal(spy["rows"], gdal["rows"], equal_nan=True)  # so they agree on layout and byte order
    assert np.array_equal(ds["data"][:2].values, gdal["rows"], equal_nan=True)
    if spy["first"] is not None and spy["first"] == gdal["first"]:
        factor = 1000.0 if number in MICROMETRES else 1.0
        assert float(ds["wavelength"][0]) == pytest.approx(factor * spy["first"], rel=1e-12)


def spy_facts(header: Path):
    """Return what SPy reads, or None where it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = spectral.envi.open(str(header), str(header).removesuffix(".hdr"))
        except (spectral.io.envi.EnviException, ValueError):
            return None
    centers = image.bands.centers
    return {
        "shape": image.shape,
        "dtype": np.dtype(image.dtype).newbyteorder("=").name,
        "rows": np.array(image.open_memmap(interleave="bip")[:2]),
        "first": float(centers[0]) if centers else None,
    }


def gdal_facts(header: Path):
    """Return what GDAL reads, or None where it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with rasterio.open(str(header).removesuffix(".hdr"), driver="ENVI") as raster:
                first = raster.tags(1).get("wavelength")
                return {
                    "shape": (raster.height, raster.width, raster.count),
                    "dtype": raster.dtypes[0],
                    "rows": raster.read(window=((0, min(2, raster.height)), (0, raster.width))).transpose(
                        1, 2, 0
                    ),
                    "first": float(first) if first is not None else None,
                }
        except RasterioError:
            return None


def test_a_gigantic_claim_costs_nothing(data_root, tmp_path, quiet):
    """The same headers with sizes that no disk holds end in a refusal, not in memory."""
    source = next((data_root / "hdr_zoo").glob("78__*.hdr"))
    copy = sparse_pair(source, tmp_path)
    text = copy.read_text()
    for key, value in (("lines", 10**18), ("bands", 10**9), ("samples", 2**62), ("lines", 2**24)):
        copy.write_text(re.sub(rf"^{key}\s*=\s*\d+", f"{key} = {value}", text, flags=re.MULTILINE))
        with pytest.raises(FormatError, match=rf"`{key}` = |cut short"):
            open_scene(copy)
    assert (tmp_path / source.name.removesuffix(".hdr")).stat().st_size < 10**6
