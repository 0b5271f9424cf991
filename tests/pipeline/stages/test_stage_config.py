"""Settings of the stages that change spectra."""

from __future__ import annotations

from typing import Any

import pytest

from bandstream.pipeline.config import StrictModel, parse
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.stages.config import DerivativeConfig, NormalizeConfig, ReduceConfig, SmoothConfig


def test_components_are_30_unless_another_rule_gives_their_number() -> None:
    assert ReduceConfig().components == 30
    assert ReduceConfig(explained=0.99).components is None
    assert ReduceConfig(method="mnf", min_snr=5).components is None
    assert ReduceConfig(method="mnf", noise="diagonal", components=3).components == 3


@pytest.mark.parametrize(
    "settings",
    [
        NormalizeConfig(method="percentile", low_percent=0),
        NormalizeConfig(per="scene"),
        ReduceConfig(whiten=True),
        ReduceConfig(explained=0.9),
        ReduceConfig(method="mnf", noise="both"),
        SmoothConfig(),
        DerivativeConfig(order=2),
    ],
)
def test_settings_written_out_in_full_are_read_back_as_they_were(settings: StrictModel) -> None:
    assert type(settings).model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            NormalizeConfig,
            {"method": "minmax", "per": "scene"},
            "per: scene goes with method zscore, got minmax",
        ),
        (NormalizeConfig, {"low_percent": 1}, "go with method percentile, got zscore"),
        (
            NormalizeConfig,
            {"method": "percentile", "low_percent": 60, "high_percent": 40},
            "low_percent must be below high_percent, got 60 and 40",
        ),
        (ReduceConfig, {"method": "mnff"}, "method is pca, mnf, select or none, got 'mnff'"),
        (ReduceConfig, {"components": 5, "explained": 0.9}, "components and explained both set the number"),
        (ReduceConfig, {"min_snr": 5}, "min_snr goes with method mnf, got pca"),
        (ReduceConfig, {"method": "mnf", "whiten": True}, "whiten goes with method pca, got mnf"),
        (ReduceConfig, {"noise": "y"}, "noise goes with method mnf, got pca"),
        (ReduceConfig, {"explained": 99}, "explained"),
        (SmoothConfig, {"window": 4}, "window must be odd, so that it has a middle band, got 4"),
        (SmoothConfig, {"window": 5, "polynomial": 5}, "polynomial must be below window, got 5 and 5"),
        (DerivativeConfig, {"order": 3}, "order must be at most polynomial, got 3 and 2"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    model: type[StrictModel], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(model, data, "flow.yaml")
