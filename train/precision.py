"""Which precision to train with: measured on the real shape, and checked against fp32 before it is trusted.

bfloat16 convolutions are twice as fast on some processors, several times slower on others, and have been silently
wrong for large 3-D inputs in some cuDNN versions. So a few training steps are timed in both precisions on a copy of
the model, and the half-precision logits and gradients must agree with fp32.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..pipeline.errors import BandstreamWarning, ConfigError
from .metrics import number

if TYPE_CHECKING:
    from torch import Tensor, nn

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: largest relative L2 difference from fp32. bf16 keeps 8 bits (0.4 %): correct kernels stay near 1 % in the logits and
#: below 10 % in the gradients (ReLUs near zero flip); a wrong kernel is off by its whole magnitude.
LOGITS_TOLERANCE = 0.05
GRADIENT_TOLERANCE = 0.25
#: half precision must save at least this share of the step time to be chosen
LEAST_GAIN = 0.1
#: CUDA only: half precision may not take more than this multiple of fp32's peak memory
MOST_MEMORY = 1.1
#: a first look on this share of the micro-batch; half precision that is so many times slower there is not tried further
_PROBE_SHARE = 8
_HOPELESS = 1.5
_TIMED_SECONDS = 1.0
_MOST_REPEATS = 5
#: values in the images of a micro-batch from which on a step is worth more than one thread
_MANY_VALUES = 1 << 18

#: model, images -> (loss, logits); called under autocast with the first images of the batch
LossOf = Callable[["nn.Module", "Tensor"], "tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class PrecisionPlan:
    """The decision and what it rests on; kept in `plan.json` and never measured again on resume."""

    name: str  #: fp32, bf16 or fp16
    reason: str
    fp32_step_ms: float | None = None
    half_step_ms: float | None = None
    logits_difference: float | None = None  #: relative L2 difference from fp32
    gradient_difference: float | None = None
    fp32_peak_bytes: int | None = None  #: CUDA only
    half_peak_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the tolerances they were held against."""
        return asdict(self) | {
            "logits_tolerance": LOGITS_TOLERANCE,
            "gradient_tolerance": GRADIENT_TOLERANCE,
            "least_gain": LEAST_GAIN,
        }


@dataclass(frozen=True)
class _Trial:
    logits: Tensor
    gradient: Tensor
    step_ms: float
    peak_bytes: int | None


def autocast(name: str, device: torch.device) -> torch.autocast:
    """Return the context in which forward passes of precision `name` run."""
    return torch.autocast(device.type, HALF.get(name, torch.bfloat16), enabled=name != "fp32")


def choose_precision(asked: str, model: nn.Module, image: Tensor, loss_of: LossOf) -> PrecisionPlan:
    """Decide on the precision of training steps like this one.

    Parameters
    ----------
    asked
        auto, fp32, bf16 or fp16.
    model
        Not changed: all steps run on copies, and the random generators are restored.
    image
        (micro-batch, band, y, x) on the model's device: the real shape.
    loss_of
        `loss_of(model, image)` -> (loss, logits), for any number of the first images.

    Raises
    ------
    ConfigError
        fp16 asked for on a CPU.
    """
    device = image.device
    if asked == "fp16" and device.type != "cuda":
        raise ConfigError(
            "precision: fp16 needs a CUDA device; on a CPU it is 25 to 50 times as slow as fp32. "
            "Use auto, bf16 or fp32."
        )
    if asked == "fp32":
        return PrecisionPlan("fp32", "asked for")
    half = "bf16" if asked == "auto" else asked
    if half == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return _fall_back(asked, "this CUDA device has no bfloat16")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if asked == "auto" and len(image) >= _PROBE_SHARE:
            few = image[: max(2, len(image) // _PROBE_SHARE)]
            full, fast = _trial(model, few, loss_of, "fp32"), _trial(model, few, loss_of, half)
            if fast.step_ms > _HOPELESS * full.step_ms:
                return _decide(asked, half, full, fast)
        full, fast = _trial(model, image, loss_of, "fp32"), _trial(model, image, loss_of, half)
    return _decide(asked, half, full, fast)


def default_threads(image: Tensor, most: int) -> int:
    """Return how many threads of torch a step on such images takes: one where it is small, else `most`.

    Small steps gain little from threads that wait for each other, and lose much where other programs run. A rule and no
    measurement, so that equal experiments on equal machines repeat each other bit for bit.
    """
    return most if image.device.type != "cpu" or image.numel() >= _MANY_VALUES else 1


def _trial(model: nn.Module, image: Tensor, loss_of: LossOf, name: str) -> _Trial:
    """One checked step, then timed ones, on a copy; the same random numbers in every trial."""
    device = image.device
    model = copy.deepcopy(model).train()
    scale = 1024.0 if name == "fp16" else 1.0  # keeps small gradients above fp16's smallest number

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with autocast(name, device):
            loss, logits = loss_of(model, image)
        (loss * scale).backward()
        return logits

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(0)
    logits = step().detach().double().cpu()
    gradient = torch.cat([p.grad.double().flatten().cpu() for p in model.parameters() if p.grad is not None])
    best, spent, repeats = math.inf, 0.0, 0
    while repeats < _MOST_REPEATS and (repeats == 0 or spent < _TIMED_SECONDS):
        _synchronize(device)
        start = time.perf_counter()
        step()
        _synchronize(device)
        seconds = time.perf_counter() - start
        best, spent, repeats = min(best, seconds), spent + seconds, repeats + 1
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return _Trial(logits, gradient / scale, best * 1000, peak)


def _decide(asked: str, half: str, full: _Trial, fast: _Trial) -> PrecisionPlan:
    logits, gradient = _difference(fast.logits, full.logits), _difference(fast.gradient, full.gradient)
    figures: dict[str, Any] = {
        "fp32_step_ms": round(full.step_ms, 3),
        "half_step_ms": round(fast.step_ms, 3),
        "logits_difference": number(logits),
        "gradient_difference": number(gradient),
        "fp32_peak_bytes": full.peak_bytes,
        "half_peak_bytes": fast.peak_bytes,
    }
    # NaN compares false, so the question is whether both are inside, not whether one is outside
    if not (logits <= LOGITS_TOLERANCE and gradient <= GRADIENT_TOLERANCE):
        why = (
            f"{half} disagrees with fp32 on this model and shape: logits differ by {logits:.1%} (allowed "
            f"{LOGITS_TOLERANCE:.0%}), gradients by {gradient:.1%} (allowed {GRADIENT_TOLERANCE:.0%})"
        )
        return _fall_back(asked, why, **figures)
    if asked != "auto":
        return PrecisionPlan(half, "asked for; agrees with fp32", **figures)
    ratio = full.step_ms / fast.step_ms
    if fast.peak_bytes and full.peak_bytes and fast.peak_bytes > MOST_MEMORY * full.peak_bytes:
        return PrecisionPlan("fp32", f"{half} takes more memory than fp32 here", **figures)
    if fast.step_ms > (1 - LEAST_GAIN) * full.step_ms:
        return PrecisionPlan("fp32", f"{half} is not faster here ({ratio:.2f} x fp32's speed)", **figures)
    return PrecisionPlan(half, f"{ratio:.2f} x as fast as fp32 and agrees with it", **figures)


def _fall_back(asked: str, why: str, **figures: Any) -> PrecisionPlan:
    if asked != "auto":
        warnings.warn(
            f"precision: {asked} was asked for, but {why}; training in fp32.", BandstreamWarning, stacklevel=4
        )
    return PrecisionPlan("fp32", why, **figures)


def _difference(value: Tensor, reference: Tensor) -> float:
    """Relative L2 difference; NaN where either is not finite."""
    return float((value - reference).norm() / reference.norm().clamp(min=torch.finfo(torch.float64).tiny))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
