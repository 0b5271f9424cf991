"""Loss over the labelled pixels, summed, so that micro-batches of unequal counts add up to their whole batch.

A mean per micro-batch would weigh a pixel by how few labelled neighbours it happens to have. Here every micro-batch
gives a *sum*, and all of them are divided by one number known before the first backward pass: the weight of all
labelled pixels of the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

IGNORE = -100


def targets(label: Tensor, mask: Tensor) -> Tensor:
    """Turn store labels (1..K, 0 = unlabelled) into class indices 0..K-1, `IGNORE` wherever `mask` is false."""
    return torch.where(mask & (label > 0), label - 1, IGNORE)


def goals(batch: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """Return what a batch is to be taken for: `targets`, and the share of each pixel's loss that they have (None: all).

    One pair, or for a batch mixed by mixup two: the own labels and the partner's (Zhang et al. 2018).
    """
    own = targets(batch["label"], batch["mask"])
    if "mix" not in batch:
        return [(own, None)]
    return [(own, batch["mix"]), (targets(batch["label_b"], batch["mask"]), 1 - batch["mix"])]


def weight_total(target: Tensor, class_weight: Tensor | None, share: Tensor | None = None) -> Tensor:
    """Sum the class weights over the labelled pixels, each times its share; without either, count them.

    At least a tiny positive number, so that a batch without any labelled pixel has loss 0 and not 0 / 0.
    """
    labelled = target != IGNORE
    if class_weight is None and share is None:
        return labelled.sum().clamp(min=1).to(torch.float32)
    weights = labelled if class_weight is None else class_weight[target.clamp(min=0)] * labelled
    weights = weights if share is None else weights * share
    return weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def summed_cross_entropy(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    share: Tensor | None = None,
) -> Tensor:
    """Cross-entropy summed over the labelled pixels.

    Divided by `weight_total` it is torch's own weighted mean.

    Parameters
    ----------
    logits
        (batch, classes) or (batch, classes, y, x); half precision is computed in float32.
    target
        (batch,) or (batch, y, x) int64 from `targets`.
    class_weight
        (classes,) or None.
    label_smoothing
        Share of the target spread evenly over all classes.
    share
        Factor of each pixel's loss, shaped like `target`; None: 1.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    # one row per pixel: the two-dimensional kernels have no deterministic form on CUDA
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    loss = functional.cross_entropy(
        rows,
        target.reshape(-1),
        weight=None if class_weight is None else class_weight.to(rows.dtype),
        ignore_index=IGNORE,
        reduction="sum" if share is None else "none",
        label_smoothing=label_smoothing,
    )
    return loss if share is None else (loss * share.reshape(-1)).sum()


def balanced_weights(counts: NDArray[np.int64]) -> Tensor:
    """Class weights inverse to the counts: n / (k n_c) over the k classes that occur, 0 for the others.

    The rule of King & Zeng 2001 that scikit-learn calls `balanced`; the weights average 1 over the pixels.
    """
    present = counts > 0
    weights = np.zeros(counts.shape, np.float64)
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return torch.from_numpy(weights.astype(np.float32))
