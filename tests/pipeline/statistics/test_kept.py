"""Statistics that were written come back as they were, and damaged files are refused."""

from __future__ import annotations

import numpy as np
import pytest

from bandstream.pipeline.statistics import (
    BandStatistics,
    Group,
    Judged,
    Slab,
    Wanted,
    from_bytes,
    pixel_keys,
    to_bytes,
)

WANTED = Wanted(
    covariance=True,
    directions=("x", "diagonal"),
    classes=3,
    sample_below=2**63,
    labelled_below=2**62,
    histogram=True,
)


def _statistics() -> BandStatistics:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 90, (4, 6, 8)).astype(np.int16)
    invalid = rng.random(values.shape) < 0.05
    judged = Judged.of(invalid, np.ones((6, 8), bool), 4, judge=True)
    labels = rng.integers(0, 4, (6, 8)).astype(np.uint16)
    slab = Slab(values, judged.keep_yx, labels, pixel_keys(0, slice(0, 6), 8))
    return judged.statistics(Group.of(slab, WANTED)).affine(np.full(4, 1e-4), np.zeros(4))


def test_what_was_written_comes_back_bit_for_bit() -> None:
    before = _statistics()
    after, wanted = from_bytes(to_bytes(before, WANTED))
    assert wanted == WANTED
    a, b = before.group(), after.group()
    assert a is not None
    assert b is not None
    assert after.considered == before.considered
    np.testing.assert_array_equal(a.moments.scatter, b.moments.scatter)
    assert list(a.differences) == list(b.differences)
    np.testing.assert_array_equal(a.differences["x"].scatter, b.differences["x"].scatter)
    for one, other in zip(a.classes, b.classes, strict=True):
        np.testing.assert_array_equal(one.mean, other.mean)
    assert a.sample is not None
    assert b.sample is not None
    np.testing.assert_array_equal(a.sample.drawn()[0], b.sample.drawn()[0])
    # and they merge with others as before
    again = after.merge(_statistics()).group()
    assert again is not None
    assert again.moments.count == 2 * a.moments.count


@pytest.mark.parametrize("cut", [0, 10, 1000, -1])
def test_a_file_that_was_cut_or_changed_is_refused(cut: int) -> None:
    content = to_bytes(_statistics(), WANTED)
    with pytest.raises(ValueError, match="no statistics can be read"):
        from_bytes(content[:cut])
    middle = len(content) // 2
    with pytest.raises(ValueError, match="no statistics can be read"):
        from_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])


def test_more_than_was_asked_for_serves_too_and_less_does_not() -> None:
    plain = Wanted(covariance=True)
    assert WANTED.covers(plain)
    assert WANTED.covers(WANTED)
    assert not plain.covers(WANTED)
    assert not Wanted().covers(plain)
    assert not WANTED.covers(Wanted(directions=("y",)))
