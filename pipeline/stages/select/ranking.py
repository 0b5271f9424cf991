"""What orders bands: information on the labels, share of signal, or what the chosen bands leave unexplained.

Every rank picks one band after the other; of bands that are equal to within rounding the lower number wins, so that a
choice does not hang on the last bit of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...statistics import F8, Moments
from .information import Binned

#: Relative: covariances hold to 1e-10, so a residual below that share of a band's own variance is rounding.
_DEPENDENT = 1e-10
#: Relative: scores closer than this are equal.
_TIE = 1e-9


@dataclass(frozen=True)
class Ranking:
    """Bands in the order in which a rank picked them."""

    picked: list[int]  #: numbers of bands, best first, without those that were there before
    scores: F8  #: (n,) of every band; see the function that made it
    spent: int | None = None  #: how many of `picked` still added something; the others follow by their number


def signal_share(moments: Moments, differences: Moments) -> F8:
    """Return the share of each band's variance that is signal: 1 - Sigma_N[b, b] / Sigma[b, b].

    Parameters
    ----------
    moments
        Of the pixels (n bands).
    differences
        Of the differences between neighbouring pixels; Sigma_N is half their covariance.

    Returns
    -------
    ndarray
        (n,) at most 1; below 0 where neighbours differ more than pixels at large; 0 for a band without variation.

    Notes
    -----
    One minus the noise fraction of Green, Berman, Switzer and Craig (1988), IEEE Trans. Geosci. Remote Sens. 26(1),
    65-74. It is also what weighting all MNF components by a band's loadings on them gives: with A = Sigma_N V and
    eigenvalues l, Sigma = A diag(l) A' and Sigma_N = A A', so sum (l - 1) A[b]**2 / sum l A[b]**2 is the same share.
    """
    total, noise = moments.std**2, differences.std**2 / 2
    return np.where(total > 0, 1 - np.divide(noise, total, out=np.zeros_like(total), where=total > 0), 0.0)


def by_score(scores: F8, taken: Sequence[int], count: int) -> Ranking:
    """Pick the bands of the highest scores."""
    free = np.ones(len(scores), bool)
    free[list(taken)] = False
    picked: list[int] = []
    while len(picked) < count:
        best = _best(scores, free)
        free[best] = False
        picked.append(best)
    return Ranking(picked, scores)


def orthogonal(covariance: F8, taken: Sequence[int], count: int) -> Ranking:
    """Pick bands by orthogonal subspace projection: each next one has the largest variance that those before leave.

    Parameters
    ----------
    covariance
        (n, n) of the pixels. Around their mean, so that bands are predicted from the others with a constant term.
    taken
        Bands that are kept anyhow; they are projected out first.
    count
        How many more to pick.

    Returns
    -------
    Ranking
        `scores` are the residual variances: of a picked band when it was picked, of a taken one when it was projected
        out, of the others at the end.

    Notes
    -----
    Du and Yang (2008), "Similarity-based unsupervised band selection for hyperspectral image analysis", IEEE Geosci.
    Remote Sens. Lett. 5(4), 564-568, whose projector is that of Harsanyi and Chang (1994), IEEE Trans. Geosci. Remote
    Sens. 32(4), 779-785. The residuals come from the covariance alone, as the pivots of its Cholesky factor. The first
    band is the one with the largest variance (theirs is chosen by a search from a random one).
    """
    variance = np.diagonal(covariance).copy()
    residual, scores = variance.copy(), np.full(len(variance), np.nan)
    free = np.ones(len(variance), bool)
    columns: list[F8] = []
    picked: list[int] = []
    spent: int | None = None
    for step in range(len(taken) + count):
        if step < len(taken):
            pivot = int(taken[step])
        else:
            live = free & (residual > _DEPENDENT * variance)
            if not live.any() and spent is None:
                spent = len(picked)
            pivot = _best(residual, live) if live.any() else int(np.argmax(free))
            picked.append(pivot)
        scores[pivot] = residual[pivot]
        free[pivot] = False
        if residual[pivot] > _DEPENDENT * variance[pivot]:
            known = np.array([column[pivot] for column in columns])
            rest = covariance[:, pivot] - (known @ np.stack(columns) if columns else 0.0)
            column = rest / np.sqrt(residual[pivot])
            columns.append(column)
            residual = np.maximum(residual - column**2, 0.0)
            residual[pivot] = 0.0
    scores[free] = residual[free]
    return Ranking(picked, scores, spent)


def relevant(binned: Binned, taken: Sequence[int], count: int) -> Ranking:
    """Pick bands that tell of the labels what no chosen band tells already.

    The next band has the largest minimum of I(band; label) and I(band; label | s) over the chosen bands s: conditional
    mutual information maximisation, Fleuret (2004), J. Machine Learning Research 5, 1531-1555. (Minimal redundancy and
    maximal relevance in its difference form, I(band; label) - mean I(band; s), ranks a band of pure noise, which shares
    nothing with any other, above most that tell something.)

    Returns
    -------
    Ranking
        `scores` are I(band; label) in nats.
    """
    relevance = binned.with_labels()
    # once nothing more is told, the bands follow by what they tell alone, those that never change at the end
    alone = np.where(binned.constant, -1.0, relevance)
    # a minimum over some of the chosen is a bound: only the bands that lead are looked at in full
    bound, looked = relevance.copy(), np.zeros(len(relevance), int)
    free = np.ones(len(relevance), bool)
    free[list(taken)] = False
    chosen, picked = list(taken), list[int]()
    spent: int | None = None
    while len(picked) < count:
        best = _best(bound if spent is None else alone, free)
        if spent is None:
            if bound[best] <= 0:
                spent = len(picked)
                continue
            if looked[best] < len(chosen):
                told = (binned.beyond(best, known) for known in chosen[looked[best] :])
                bound[best], looked[best] = min(bound[best], *told), len(chosen)
                continue
        free[best] = False
        picked.append(best)
        chosen.append(best)
    return Ranking(picked, relevance, spent)


def equal_intervals(order: NDArray[np.intp], taken: Sequence[int], count: int) -> Ranking:
    """Pick bands at equal intervals of their place in `order` (n,), among those not taken."""
    free = [int(band) for band in order if int(band) not in set(taken)]
    places = np.linspace(0, len(free) - 1, count) if count != 1 else np.array([(len(free) - 1) / 2])
    # halves up: np.round would take every second place of [0.5, 1.5, 2.5, ...] twice
    picked = [free[int(place)] for place in np.floor(places + 0.5)]
    return Ranking(picked, np.full(len(order), np.nan))


def _best(scores: F8, free: NDArray[np.bool_]) -> int:
    """Return the lowest number among the best of the free bands."""
    values = np.where(free, scores, -np.inf)
    top = float(values.max())
    return int(np.argmax(values >= top - _TIE * abs(top)))
