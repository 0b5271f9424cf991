"""The balance of the splits, class by class."""

from __future__ import annotations

from bandstream.pipeline.splits.balance import absent_classes, balance_lines, class_shares

NAMES = ["oak", "larch", "bare soil", "never"]
LABELLED = {"none": [5, 0, 1, 0], "train": [60, 0, 9, 0], "validation": [20, 3, 0, 0], "test": [20, 1, 1, 0]}


def test_shares_are_of_what_the_splits_hold_without_the_margin() -> None:
    assert class_shares(LABELLED) == {
        "train": [0.6, 0.0, 0.9, 0.0],
        "validation": [0.2, 0.75, 0.0, 0.0],
        "test": [0.2, 0.25, 0.1, 0.0],
    }


def test_the_table_has_counts_and_shares_of_each_class() -> None:
    lines = balance_lines(NAMES, LABELLED)
    assert lines[0].split() == ["margin", "train", "validation", "test"]
    assert lines[1].split() == ["oak", "5", "60", "60.0%", "20", "20.0%", "20", "20.0%"]
    assert lines[3].split() == ["bare", "soil", "1", "9", "90.0%", "0", "0.0%", "1", "10.0%"]
    with_pixels = balance_lines(NAMES, LABELLED, {"none": 0, "train": 7000, "validation": 5, "test": 0})
    assert with_pixels[0].split() == ["train", "validation"]
    assert with_pixels[1].split() == ["pixels", "7,000", "5"]
    assert balance_lines([], {name: [] for name in LABELLED}) == []


def test_classes_that_a_split_lacks_are_named_and_those_without_any_label_are_not() -> None:
    told = absent_classes(NAMES, LABELLED)
    assert [sentence.split(":")[0] for sentence in told] == [
        "The train split holds no labelled pixel of larch",
        "The validation split holds no labelled pixel of bare soil",
    ]
    # a split that holds no labels at all is another matter
    assert absent_classes(["a"], {"none": [1], "train": [3], "validation": [0], "test": [0]}) == []
