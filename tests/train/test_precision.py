"""The choice of precision: by measurement, never against the numbers, and without a trace on the run."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.train.precision import LOGITS_TOLERANCE, PrecisionPlan, choose_precision, default_threads


class Pretender(nn.Module):
    """A small network whose half-precision path is slower, faster or wrong, as the test wants it."""

    def __init__(self, *, slow_half: float = 0, slow_full: float = 0, factor: float = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(72, 4)
        )
        self.slow_half, self.slow_full, self.factor = slow_half, slow_full, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = torch.is_autocast_enabled("cpu")
        time.sleep(self.slow_half if half else self.slow_full)
        z = self.layers(x)
        return z * self.factor if half else z


def decide(asked: str, **behaviour: Any) -> PrecisionPlan:
    torch.manual_seed(0)
    model, image = Pretender(**behaviour), torch.randn(16, 3, 5, 5)

    def loss_of(copy: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = copy(x)
        return logits.float().square().mean(), logits

    return choose_precision(asked, model, image, loss_of)


def test_auto_takes_bf16_where_it_is_faster_and_agrees() -> None:
    plan = decide("auto", slow_full=0.02)
    assert plan.name == "bf16"
    assert plan.fp32_step_ms is not None
    assert plan.half_step_ms is not None
    assert plan.half_step_ms < plan.fp32_step_ms
    assert plan.logits_difference is not None
    assert 0 < plan.logits_difference < LOGITS_TOLERANCE


def test_auto_keeps_fp32_where_bf16_is_slower() -> None:
    plan = decide("auto", slow_half=0.02)
    assert plan.name == "fp32"
    assert "not faster" in plan.reason


@pytest.mark.parametrize("factor", [1.2, 0.0, float("nan"), float("inf")])
def test_bf16_that_gives_other_numbers_is_not_used_however_fast(factor: float) -> None:
    plan = decide("auto", slow_full=0.02, factor=factor)
    assert plan.name == "fp32"
    assert "disagrees with fp32" in plan.reason


def test_bf16_that_was_asked_for_but_is_wrong_falls_back_and_says_so() -> None:
    with pytest.warns(BandstreamWarning, match=r"bf16 was asked for, but bf16 disagrees.*training in fp32"):
        plan = decide("bf16", factor=2.0)
    assert plan.name == "fp32"


def test_bf16_that_was_asked_for_is_used_though_slower() -> None:
    assert decide("bf16", slow_half=0.01).name == "bf16"


def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        decide("fp16")


def test_fp32_is_taken_without_measuring() -> None:
    assert decide("fp32", slow_full=5) == PrecisionPlan("fp32", "asked for")


def test_measuring_leaves_weights_buffers_and_random_numbers_alone() -> None:
    model, image = Pretender(), torch.randn(16, 3, 5, 5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    choose_precision("auto", model, image, lambda copy, x: (copy(x).sum(), copy(x)))
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_the_plan_records_figures_and_tolerances() -> None:
    found = decide("bf16").to_json()
    assert found["name"] == "bf16"
    assert found["logits_tolerance"] == LOGITS_TOLERANCE
    assert found["gradient_difference"] is not None


def test_small_steps_take_one_thread_and_large_ones_all() -> None:
    assert default_threads(torch.zeros(128, 16, 5, 5), 8) == 1
    assert default_threads(torch.zeros(8, 40, 48, 48), 8) == 8
