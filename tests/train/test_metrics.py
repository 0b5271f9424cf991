"""Scores against scikit-learn, from counts that are exact."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from bandstream.train.losses import IGNORE
from bandstream.train.metrics import ConfusionCounter, confusion_of, scores


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 7),
    pixels=st.integers(1, 200),
    skill=st.floats(0, 1),
    used=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores_are_those_of_scikit_learn(
    classes: int, pixels: int, skill: float, used: int, seed: int
) -> None:
    """Also with classes that are missing in truth or prediction."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, min(used, classes), pixels)
    guess = np.where(rng.random(pixels) < skill, truth, rng.integers(0, classes, pixels))
    found = scores(confusion_of(truth + 1, guess + 1, classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn speaks up about absent classes
        assert found.oa == pytest.approx(oracle.accuracy_score(truth, guess), abs=1e-12)
        assert found.aa == pytest.approx(oracle.balanced_accuracy_score(truth, guess), abs=1e-12)
        assert found.macro_f1 == pytest.approx(oracle.f1_score(truth, guess, average="macro"), abs=1e-12)
        assert found.kappa == pytest.approx(oracle.cohen_kappa_score(truth, guess), abs=1e-9, nan_ok=True)
        labels = list(range(classes))
        users, producers, f1, pixels_k = oracle.precision_recall_fscore_support(truth, guess, labels=labels)
        iou = oracle.jaccard_score(truth, guess, labels=labels, average=None)
    np.testing.assert_array_equal(found.confusion, oracle.confusion_matrix(truth, guess, labels=labels))
    for ours, theirs in (
        (found.users, users),
        (found.producers, producers),
        (found.f1, f1),
        (found.iou, iou),
    ):
        known = np.isfinite(ours)
        np.testing.assert_allclose(ours[known], theirs[known], atol=1e-12)
        assert (theirs[~known] == 0).all()
    assert [row["pixels"] for row in found.table([str(k) for k in labels])] == pixels_k.tolist()


def test_the_counter_counts_every_labelled_pixel_once_and_no_other() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 4, 5, 6, generator=rng)
    target = torch.randint(0, 4, (7, 5, 6), generator=rng)
    target[torch.rand(7, 5, 6, generator=rng) < 0.3] = IGNORE
    counter = ConfusionCounter(4, torch.device("cpu"))
    for a, b in zip(logits.split(3), target.split(3), strict=True):
        counter.update(a, b)
    kept = target != IGNORE
    expected = oracle.confusion_matrix(target[kept], logits.argmax(1)[kept], labels=range(4))
    np.testing.assert_array_equal(counter.compute().confusion, expected)


def test_counts_beyond_the_precision_of_float32_stay_exact() -> None:
    confusion = np.array([[2**30 + 1, 1], [0, 2**25 + 3]])
    found = scores(confusion)
    assert found.oa == (2**30 + 1 + 2**25 + 3) / confusion.sum()
    assert found.pixels == confusion.sum()


def test_figures_without_meaning_are_none_in_json_lines() -> None:
    line = ConfusionCounter(3, torch.device("cpu")).compute().line()
    assert line == {"oa": None, "aa": None, "kappa": None, "macro_f1": None, "pixels": 0}
    assert math.isnan(scores(np.diag([5, 0, 0])).kappa)


def test_pixels_without_label_or_prediction_are_left_out() -> None:
    truth, guess = np.array([[0, 1, 2], [2, 1, 0]]), np.array([[1, 1, 0], [2, 2, 0]])
    np.testing.assert_array_equal(confusion_of(truth, guess, 2), [[1, 1], [0, 1]])
