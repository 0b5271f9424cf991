"""What all kinds of labels can do, whatever file they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_CLASS = 4096
"""Largest class number."""


class Labels(Protocol):
    """Class numbers and group ids on the grid of one scene, read window by window; picklable.

    Within a workflow the same class, and the same group, has the same number in every scene.
    """

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """Return the class numbers (rows, cols) of a window inside the scene, 0 where there is no label."""
        ...

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """Return the numbers (rows, cols) of the groups, 0 where a pixel belongs to none."""
        ...

    @property
    def group_names(self) -> tuple[str, ...]:
        """Ids of the groups 1, 2, ..., as the files write them; empty where the labels tell of no groups."""
        ...

    @property
    def named(self) -> bool:
        """Whether the files tell classes by name, so that their numbers mean nothing by themselves."""
        ...

    def names(self) -> dict[int, str]:
        """Return the names of the classes as far as the files tell them."""
        ...

    def colors(self) -> dict[int, str]:
        """Return the colours (``#rrggbb``) of the classes as far as the files tell them."""
        ...

    def files(self) -> list[str]:
        """Return every file that decides the labels."""
        ...
