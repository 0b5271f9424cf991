"""Agreement of predicted and true classes, from one exact confusion matrix.

The matrix is accumulated by torchmetrics; the figures are computed from its integer counts in float64, since
torchmetrics' own are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .losses import IGNORE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NAMES = ("oa", "aa", "kappa", "macro_f1")


@dataclass(frozen=True)
class Scores:
    """The usual figures of one confusion matrix; NaN where a figure has no meaning."""

    confusion: NDArray[np.int64]  #: (true class, predicted class)
    oa: float  #: overall accuracy
    aa: float  #: mean producer's accuracy over the classes that occur in the truth
    kappa: float  #: Cohen 1960
    macro_f1: float  #: mean F1 over the classes that occur in truth or prediction
    producers: NDArray[np.float64]  #: (class,) recall
    users: NDArray[np.float64]  #: (class,) precision
    f1: NDArray[np.float64]  #: (class,)
    iou: NDArray[np.float64]  #: (class,)

    @property
    def pixels(self) -> int:
        """Number of pixels compared."""
        return int(self.confusion.sum())

    def line(self) -> dict[str, Any]:
        """Return the headline figures for `metrics.jsonl`; None in place of NaN, which JSON does not have."""
        return {name: number(getattr(self, name)) for name in NAMES} | {"pixels": self.pixels}

    def table(self, names: list[str]) -> list[dict[str, Any]]:
        """Return one row per class: name, pixels, producer's and user's accuracy, F1, IoU."""
        return [
            {
                "class": name,
                "pixels": int(self.confusion[k].sum()),
                "producers_accuracy": number(self.producers[k]),
                "users_accuracy": number(self.users[k]),
                "f1": number(self.f1[k]),
                "iou": number(self.iou[k]),
            }
            for k, name in enumerate(names)
        ]


def number(value: float) -> float | None:
    """Return a plain float, None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def scores(confusion: NDArray[np.int64]) -> Scores:
    """Compute every figure from a confusion matrix (true class, predicted class) of counts.

    Definitions as in Congalton 1991 (accuracies, kappa); a class that occurs neither in the truth nor in the
    prediction has NaN and enters no mean.
    """
    counts = confusion.astype(np.float64)
    hit, truth, guess, total = np.diag(counts), counts.sum(1), counts.sum(0), counts.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        producers, users = hit / truth, hit / guess
        f1, iou = 2 * hit / (truth + guess), hit / (truth + guess - hit)
        oa = hit.sum() / total
        chance = (truth * guess).sum() / total**2
        kappa = (oa - chance) / (1 - chance)
    return Scores(confusion, float(oa), _mean(producers), float(kappa), _mean(f1), producers, users, f1, iou)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan


def confusion_of(truth: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Count (true class, predicted class) over arrays of class numbers 1..K; pixels where either is 0 are left out."""
    both = (truth > 0) & (predicted > 0)
    pairs = (truth[both].astype(np.int64) - 1) * classes + (predicted[both].astype(np.int64) - 1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


class ConfusionCounter:
    """Accumulates the confusion matrix of batches on the model's device."""

    def __init__(self, classes: int, device: Any) -> None:
        from torchmetrics.functional.classification import multiclass_confusion_matrix

        self._count = multiclass_confusion_matrix
        self._classes, self._device = classes, device
        self._total: Tensor | None = None

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count one batch: logits (batch, classes, ...), target from `losses.targets`; ignored pixels do not count."""
        matrix = self._count(
            logits.argmax(1), target, num_classes=self._classes, ignore_index=IGNORE, validate_args=False
        )
        self._total = matrix if self._total is None else self._total + matrix

    def compute(self) -> Scores:
        """Return the figures of everything counted so far."""
        if self._total is None:
            return scores(np.zeros((self._classes, self._classes), np.int64))
        return scores(self._total.cpu().numpy().astype(np.int64))
