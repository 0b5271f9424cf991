"""Sensor tables: every file is sound, agrees with real files, and is found by any of its names."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from bandstream.pipeline import open_scene
from bandstream.pipeline.config import load_yaml, parse
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.sensors import Sensor, list_sensors, load_sensor, sensor_folder

FILES = sorted(sensor_folder().glob("*.yaml"))
ASKED_FOR = [
    "EnMAP",
    "PRISMA",
    "EMIT",
    "DESIS",
    "AVIRIS-Classic",
    "AVIRIS-NG",
    "AVIRIS-3",
    "Hyperion",
    "NEON",
    "ZY1-02D",
    "GF-5",
    "HyMap",
    "CASI",
    "HySpex",
    "FENIX",
    "FX10",
    "FX17",
    "Headwall",
    "Pika",
    "Pika L",
    "ROSIS",
    "AVIRIS-IndianPines",
    "HYDICE",
    "SAMSON",
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_table_is_sound(path: Path) -> None:
    sensor = parse(Sensor, load_yaml(path), path.name)
    assert path.stem == sensor.name.lower()
    assert len(sensor.source) > 40
    if sensor.bands is None:
        with pytest.raises(ConfigError, match="header"):
            _ = sensor.wavelength_nm
        return
    centres = sensor.wavelength_nm
    assert centres.dtype == np.float64
    assert len(centres) == sensor.count == len(sensor.good_band)
    assert centres.min() >= 340
    assert centres.max() <= 2600
    assert sensor.range_nm[0] <= centres.min() + 0.01
    assert centres.max() <= sensor.range_nm[1] + 0.01
    if sensor.bands is not None and sensor.bands.fwhm_nm is None:
        with pytest.raises(ConfigError, match="widths"):
            _ = sensor.fwhm_nm
        return
    widths = sensor.fwhm_nm
    assert widths.shape == centres.shape
    assert widths.min() > 1
    assert widths.max() < 25


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_bands_rise_within_a_detector_and_overlap_only_between_detectors(path: Path) -> None:
    sensor = parse(Sensor, load_yaml(path), path.name)
    if sensor.bands is None:
        return
    if sensor.detector is None:
        # the four spectrometers of AVIRIS are not told for the 220 bands of Indian Pines
        assert (np.diff(sensor.wavelength_nm) < 0).sum() == (3 if sensor.name == "AVIRIS-1992" else 0)
        return
    assert (sensor.detector != "").all(), "every band has a detector"
    for part in sensor.detectors:
        first, last = part.bands
        assert (np.diff(sensor.wavelength_nm[first - 1 : last]) > 0).all()


def test_the_quick_list_of_names_is_what_the_tables_say() -> None:
    whole = [parse(Sensor, load_yaml(path), path.name) for path in FILES]
    assert list_sensors() == sorted((s.name for s in whole), key=str.lower)
    for sensor in whole:
        for name in (sensor.name, *sensor.aliases):
            assert load_sensor(name) == sensor
            assert load_sensor(f"  {name.upper().replace('-', '_')} ") == sensor


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_sensors_that_products_come_from_are_known(name: str) -> None:
    assert load_sensor(name).count > 0


@pytest.mark.parametrize(
    "name",
    [
        "CASI",
        "HySpex-VNIR-1800",
        "HySpex-SWIR-384",
        "FENIX",
        "FX17",
        "Headwall-Nano",
        "Pika-II",
        "Pika-L",
        "ROSIS",
    ],
)
def test_a_sensor_without_one_table_for_all_gives_none_and_says_why(name: str) -> None:
    """Numbers spread evenly over a range would look like a calibration."""
    sensor = load_sensor(name)
    assert sensor.bands is None
    assert "exist" in sensor.source or "not known" in sensor.source
    with pytest.raises(ConfigError, match=f"{sensor.count} bands"):
        _ = sensor.wavelength_nm


@pytest.mark.parametrize(
    ("name", "general"),
    [
        ("CASI-Houston-2013", "CASI"),
        ("CASI-Houston-2018", "CASI"),
        ("HyMap-Berlin", "HyMap"),
        ("Specim-AisaFENIX-3500015", "FENIX"),
        ("Resonon-Pika-II-2018", "Pika-II"),
    ],
)
def test_the_table_of_one_data_set_is_named_by_the_sensor_and_lies_in_its_range(
    name: str, general: str
) -> None:
    one, all_ = load_sensor(name), load_sensor(general)
    assert name in all_.source
    low, high = all_.range_nm
    assert low - 5 <= one.wavelength_nm.min()
    assert one.wavelength_nm.max() <= high + 5


def test_the_bands_of_hydice_lie_on_the_grid_of_another_of_its_scenes() -> None:
    """Washington DC Mall: centres with three decimals, from the file that comes with that scene."""
    dc_mall_nm = np.array(
        [401.288, 443.358, 600.815, 705.237, 1011.06, 1350.55, 1421.14, 1802.93, 1937.15, 2473.16]
    )
    table = load_sensor("HYDICE").wavelength_nm
    away = np.abs(table[:, None] - dc_mall_nm).min(axis=0)
    assert away.max() < 3.1


@pytest.mark.real
def test_the_bands_of_the_pika_are_those_of_its_real_header(data_root: Path) -> None:
    header = next(iter(sorted((data_root / "hdr_zoo").glob("82__hs_process*.hdr"))))
    numbers = header.read_text().split("wavelength = {")[1].split("}")[0]
    table = load_sensor("Resonon-Pika-II-2018").wavelength_nm
    np.testing.assert_allclose(table, [float(part) for part in numbers.split(",")], atol=1e-3)


def test_a_misspelt_sensor_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean EnMAP"):
        load_sensor("Enmpa")


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("PRISMA", 1),
        ("Hyperion", 1),
        ("EnMAP", 1000),
        ("EMIT", 10),
        ("AVIRIS-NG", 10),
        ("AVIRIS-Classic", 10),
        ("DESIS", 10),
    ],
)
def test_the_factor_brings_the_native_unit_to_watts_per_square_metre_steradian_micrometre(
    name: str, factor: float
) -> None:
    sensor = load_sensor(name)
    power, area, _, width = sensor.radiance_unit.split()
    by_hand = (
        {"W": 1, "mW": 1e-3, "uW": 1e-6}[power]
        / {"m-2": 1, "cm-2": 1e-4}[area]
        / {"um-1": 1, "nm-1": 1e-3}[width]
    )
    assert sensor.radiance_factor == pytest.approx(by_hand) == factor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 3}, "count is 3"),
        ({"bad_bands": [[0, 1]]}, "not within 1 to 2"),
        ({"detectors": [{"name": "a", "bands": [1, 3]}]}, "not within 1 to 2"),
        ({"bands": {"wavelength_nm": [400, 500], "fwhm_nm": [5]}}, "one of each"),
        ({"radiance_factor": 10}, "belong together"),
        ({"bad_windows_nm": [[1400, 1300]]}, "window"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change: dict, message: str) -> None:
    good = {
        "version": 1,
        "name": "X",
        "title": "x",
        "kind": "airborne",
        "count": 2,
        "range_nm": [400, 500],
        "scale": "none",
        "source": "made for this test",
        "bands": {"wavelength_nm": [400, 500], "fwhm_nm": [5, 6]},
    }
    assert parse(Sensor, good, "x").fwhm_nm.tolist() == [5, 6]
    with pytest.raises(ConfigError, match=message):
        parse(Sensor, good | change, "x")


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("EnMAP", "enmap_potsdam_tiles/images/*_0_0.tif"),
        ("EMIT", "emit_reflectance_10x10/emit*.hdr"),
        ("AVIRIS-NG", "avirisng_radiance_10x10/*rdn*.hdr"),
        ("AVIRIS-Classic", "pycoal_aviris/f080702*456.hdr"),
    ],
)
def test_a_table_is_near_a_real_file_of_the_sensor(data_root: Path, name: str, pattern: str) -> None:
    path = next(iter(sorted(data_root.glob(pattern))), None) or next(
        iter(sorted(data_root.glob("enmap_potsdam_tiles/images/*.tif")))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scene = open_scene(path)
    sensor = load_sensor(name)
    np.testing.assert_allclose(sensor.wavelength_nm, scene["wavelength"].values, atol=1e-3)
    np.testing.assert_allclose(sensor.fwhm_nm, scene["fwhm"].values, atol=1e-3)


def test_the_bands_of_indian_pines_are_those_of_its_calibration_file() -> None:
    """The file is part of the tests of SPy."""
    import spectral

    path = Path(spectral.__file__).parent / "tests" / "data" / "92AV3C.spc"
    if not path.is_file():
        pytest.skip("this SPy comes without its test data")
    bands = np.loadtxt(path, skiprows=2)
    sensor = load_sensor("92AV3C")
    np.testing.assert_allclose(sensor.wavelength_nm, bands[:, 0], atol=1e-3)
    np.testing.assert_allclose(sensor.fwhm_nm, bands[:, 1], atol=1e-3)
    assert sensor.good_band.sum() == 200
