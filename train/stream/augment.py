"""Random flips and quarter turns, seeded by sample.

What a sample looks like depends on (seed, epoch, sample) alone, so that it repeats under any number of ranks and
workers, and differs between epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def dihedral_(array: NDArray[Any], code: NDArray[np.uint8]) -> None:
    """Turn each square of a batch by its own element of the dihedral group, in place.

    Parameters
    ----------
    array
        (n, ..., y, x) with y = x.
    code
        (n,) 0 to 7: bit 0 swaps y and x, then bit 1 flips y and bit 2 flips x. All eight are different; 0 is none.
    """
    for kind in range(1, 8):
        which = np.flatnonzero(code == kind)
        if not which.size:
            continue
        turned = array[which]
        if kind & 1:
            turned = turned.swapaxes(-1, -2)
        if kind & 2:
            turned = turned[..., ::-1, :]
        if kind & 4:
            turned = turned[..., ::-1]
        array[which] = turned
