"""Keys of array-likes with the axes (y, x, band): any NumPy key becomes one slice or index array per axis."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Axis = slice | NDArray[np.intp]
"""A resolved slice (forwards, 0 <= start <= stop), or indices."""


def split_key(key: Any, shape: tuple[int, int, int]) -> tuple[tuple[Axis, Axis, Axis], tuple[int, ...]]:
    """Resolve a NumPy key into one slice or index array per axis, and the axes that an integer removes.

    Lists on several axes are taken orthogonally (Dask never asks for more than one at a time).
    """
    parts: list[Any] = list(key) if isinstance(key, tuple) else [key]
    if any(p is Ellipsis for p in parts):
        at = next(i for i, p in enumerate(parts) if p is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (3 - len(parts) + 1)
    parts += [slice(None)] * (3 - len(parts))
    if len(parts) != 3:
        msg = f"too many indices: {len(parts)} for the axes (y, x, band)"
        raise IndexError(msg)
    axes: list[Axis] = []
    drop: list[int] = []
    for axis, (part, length) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            # backwards, the stop before index 0 is -1, which as a slice would mean the last index
            axes.append(slice(start, max(start, stop), step) if step > 0 else np.arange(start, stop, step))
        elif isinstance(part, (int, np.integer)):
            index = range(length)[int(part)]
            axes.append(slice(index, index + 1, 1))
            drop.append(axis)
        else:
            axes.append(_index_array(part, length))
    return (axes[0], axes[1], axes[2]), tuple(drop)


def _index_array(part: Any, length: int) -> NDArray[np.intp]:
    """Return non-negative indices of a list, an integer array or a bool array."""
    array = np.asarray(part)
    if array.dtype == np.bool_:
        return np.flatnonzero(array)
    index = array.astype(np.intp).reshape(-1)
    index = np.where(index < 0, index + length, index)
    if index.size and (index.min() < 0 or index.max() >= length):
        msg = f"index out of range for an axis of length {length}"
        raise IndexError(msg)
    return index


def indices(axis: Axis, length: int) -> NDArray[np.intp]:
    """Return the indices that an axis stands for."""
    return np.arange(length)[axis]


def length(axis: Axis) -> int:
    """Return how many indices an axis stands for."""
    return len(range(axis.start, axis.stop, axis.step)) if isinstance(axis, slice) else len(axis)


def as_run(axis: Axis) -> slice | None:
    """Return the axis as a slice of step 1 with start <= stop, if it is one."""
    return axis if isinstance(axis, slice) and axis.step == 1 else None


def is_whole(axis: Axis, length: int) -> bool:
    """Return whether the axis is taken whole and in order."""
    return isinstance(axis, slice) and axis == slice(0, length, 1)


def hull(axis: Axis) -> tuple[int, int, Axis]:
    """Return first and last + 1 index of an axis, and the axis relative to the first."""
    index = np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, slice) else axis
    if not index.size:
        return 0, 0, slice(0, 0)
    first, last = int(index.min()), int(index.max())
    if isinstance(axis, slice) and axis.step == 1:
        return first, last + 1, slice(0, last + 1 - first)
    return first, last + 1, cast("NDArray[np.intp]", index - first)


def squeeze(block: NDArray[Any], drop: tuple[int, ...]) -> NDArray[Any]:
    """Remove the axes that an integer picked."""
    return block.squeeze(axis=drop) if drop else block
