"""The loss: unlabelled pixels count for nothing, and micro-batches add up to their batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from bandstream.train.losses import IGNORE, balanced_weights, summed_cross_entropy, targets, weight_total


def mean_loss(
    model: nn.Module, image: torch.Tensor, target: torch.Tensor, parts: int, weight: torch.Tensor | None
) -> list[torch.Tensor]:
    """Accumulate over `parts` micro-batches as the trainer does; return loss and gradients."""
    model.zero_grad()
    total, loss = weight_total(target, weight), torch.zeros((), dtype=torch.float64)
    for x, goal in zip(image.chunk(parts), target.chunk(parts), strict=True):
        portion = summed_cross_entropy(model(x), goal, weight, 0.1) / total
        portion.backward()
        loss = loss + portion.detach()
    return [loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_accumulated_gradients_are_those_of_the_whole_batch(parts: int, weighted: bool) -> None:
    """Also where micro-batches have very unequal numbers of labelled pixels, or none."""
    rng = torch.Generator().manual_seed(3)
    image = torch.randn(6, 5, 9, 7, generator=rng, dtype=torch.float64)
    label = torch.randint(0, 4, (6, 9, 7), generator=rng)
    mask = torch.rand(6, 9, 7, generator=rng) < torch.tensor([0.0, 0.02, 0.9, 0.4, 1.0, 0.1])[:, None, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(5, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 3, 1)).double()
    weight = torch.tensor([0.2, 1.0, 3.0]) if weighted else None
    target = targets(label, mask)
    whole, split = mean_loss(model, image, target, 1, weight), mean_loss(model, image, target, parts, weight)
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.real
def test_accumulation_over_real_tiles_with_130_to_807_labelled_pixels(data_root: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    folder = data_root / "enmap_potsdam_tiles"
    files = sorted(
        p for p in folder.rglob("*.tif") if "label" in str(p.parent).lower() or "label" in p.name.lower()
    )
    assert len(files) >= 6, [str(p) for p in folder.rglob("*")][:20]
    label = torch.from_numpy(np.stack([rasterio.open(path).read(1) for path in files[:6]]).astype(np.int64))
    classes = int(label.max())
    counts = (label > 0).sum((1, 2))
    assert counts.max() > 2 * counts.min()
    image = torch.randn(
        6, 4, *label.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, classes, 1)).double()
    target = targets(label, torch.ones_like(label, dtype=torch.bool))
    whole = mean_loss(model, image, target, 1, None)
    for a, b in zip(whole, mean_loss(model, image, target, 6, None), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    # the rule that is wrong: the mean of the micro-batches' own means
    model.zero_grad()
    for x, goal in zip(image.chunk(6), target.chunk(6), strict=True):
        (summed_cross_entropy(model(x), goal, None, 0.1) / weight_total(goal, None) / 6).backward()
    wrong = next(model.parameters()).grad
    assert wrong is not None
    assert (wrong - whole[1]).norm() > 0.01 * whole[1].norm()


@pytest.mark.parametrize("weighted", [False, True])
def test_sum_over_total_is_torchs_own_mean(weighted: bool) -> None:
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 5, 6, 6, generator=rng)
    target = torch.randint(-1, 5, (4, 6, 6), generator=rng)
    target[target < 0] = IGNORE
    weight = torch.rand(5, generator=rng) if weighted else None
    expected = nn.functional.cross_entropy(logits, target, weight, ignore_index=IGNORE, label_smoothing=0.2)
    found = summed_cross_entropy(logits, target, weight, 0.2) / weight_total(target, weight)
    torch.testing.assert_close(found, expected)


def test_logits_of_unlabelled_pixels_change_nothing_and_get_no_gradient() -> None:
    rng = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 4, 5, 5, generator=rng, requires_grad=True)
    label, mask = torch.randint(0, 5, (3, 5, 5), generator=rng), torch.rand(3, 5, 5, generator=rng) < 0.5
    target = targets(label, mask)
    loss = summed_cross_entropy(logits, target)
    loss.backward()
    off = (~mask | (label == 0))[:, None].expand_as(logits)
    assert logits.grad is not None
    assert (logits.grad[off] == 0).all()
    assert (logits.grad[~off] != 0).any()
    changed = torch.where(off, 1e6, logits.detach())
    assert summed_cross_entropy(changed, target) == loss


def test_targets_start_at_zero_and_ignore_masked_and_unlabelled() -> None:
    label, mask = torch.tensor([0, 1, 3, 2]), torch.tensor([True, True, True, False])
    assert targets(label, mask).tolist() == [IGNORE, 0, 2, IGNORE]


def test_a_batch_without_any_label_has_loss_zero_and_gradient_zero() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    target = torch.full((2,), IGNORE)
    for weight in (None, torch.tensor([0.0, 1.0, 2.0])):
        loss = summed_cross_entropy(logits, target, weight) / weight_total(target, weight)
        loss.backward()
        assert loss.item() == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(4096, 3).bfloat16()
    target = torch.zeros(4096, dtype=torch.int64)
    found = summed_cross_entropy(logits, target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, summed_cross_entropy(logits.float(), target))


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.repeat([0, 1, 3], [50, 7, 300])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    found = balanced_weights(np.bincount(labels, minlength=5))
    np.testing.assert_allclose(found[[0, 1, 3]], expected, rtol=1e-6)
    assert found[2] == found[4] == 0
