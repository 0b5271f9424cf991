"""One numbering of classes and groups for all scenes of a workflow.

Each scene's labels are opened by themselves, and number what they find on their own. Where classes are told by name,
the names of all scenes are sorted and numbered from 1, unless `class_names` gives the order; where they are told by
number, the number is the class. Groups are numbered in the order of their ids: whole numbers by size, then texts. The
same id in two scenes is the same group, so that no split can tear it apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BandstreamWarning, LabelError
from .config import Member
from .protocol import MAX_CLASS, Labels
from .raster import LabelRaster

MOST_GROUPS = 2**20
"""Most ids of a raster of groups; more means that they are no ids."""
_SLAB_PIXELS = 4 << 20


@dataclass(frozen=True)
class Numbered:
    """Labels whose numbers are replaced by those of the workflow."""

    inner: Labels
    classes: tuple[int, ...] | None  #: for the inner number (0 included) the workflow's; None = as they are
    class_names: tuple[tuple[int, str], ...]  #: that the files told, by the workflow's number
    groups: tuple[int, ...]  #: for the inner number (0 included) the workflow's
    group_names: tuple[str, ...]  #: of the workflow's groups 1, 2, ...
    named = False

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """See `Labels`.

        Raises
        ------
        LabelError
            The labels cannot be read.
        """
        found = self.inner.read(rows, cols)
        if self.classes is None:
            return found
        table = np.asarray(self.classes, np.uint16)
        # numbers beyond the table are taken by no class
        return np.where(found < len(table), table[np.minimum(found, len(table) - 1)], 0).astype(np.uint16)

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """See `Labels`."""
        return np.asarray(self.groups, np.int32)[self.inner.group_codes(rows, cols)]

    def names(self) -> dict[int, str]:
        """See `Labels`."""
        return self.inner.names() if self.classes is None else dict(self.class_names)

    def colors(self) -> dict[int, str]:
        """See `Labels`; of classes taken together the colour of the first."""
        told = self.inner.colors()
        if self.classes is None:
            return told
        new: dict[int, str] = {}
        for number, code in enumerate(self.classes):
            if code and number in told:
                new.setdefault(code, told[number])
        return new

    def files(self) -> list[str]:
        """See `Labels`."""
        return self.inner.files()


@dataclass(frozen=True)
class Merged:
    """Labels whose classes are taken together under new names, or left out; the new numbers are those of the names."""

    inner: Labels
    classes: tuple[int, ...]  #: for the inner number (0 included) the new one
    class_names: tuple[str, ...]
    absent: tuple[str, ...] = ()  #: names to take that these labels do not have
    named = True

    @classmethod
    def of(cls, inner: Labels, wanted: dict[str, list[Member]], where: str) -> Merged:
        """Take classes together.

        Parameters
        ----------
        inner
            Labels that tell classes by number, or by name.
        wanted
            New name -> old numbers or names.
        where
            Name of the file, for messages.

        Raises
        ------
        LabelError
            A name does not occur, or a number cannot be one of a class.
        """
        known = {name: number for number, name in inner.names().items()}
        pairs: list[tuple[int, int]] = []
        absent: list[str] = []
        for new, members in enumerate(wanted.values(), 1):
            for member in members:
                if isinstance(member, int) and inner.named:
                    number = known.get(str(member))
                else:
                    number = member if isinstance(member, int) else known.get(member.strip())
                if number is None and inner.named:
                    absent.append(str(member))  # of another scene of the workflow, or of none
                    continue
                if number is None:
                    raise LabelError(
                        f"labels.classes takes {member!r}, which is no class of {where}; it has "
                        f"{', '.join(map(str, known)) or 'numbers only'}."
                    )
                if not 1 <= number <= MAX_CLASS:
                    raise LabelError(
                        f"labels.classes takes the number {number}; classes have the numbers 1 to {MAX_CLASS}."
                    )
                pairs.append((number, new))
        table = [0] * (max((number for number, _ in pairs), default=0) + 1)
        for number, new in pairs:
            if table[number] not in (0, new):
                raise LabelError(
                    f"labels.classes takes the class {number} of {where} twice, by its number and by its name."
                )
            table[number] = new
        return cls(inner, tuple(table), tuple(wanted), tuple(absent))

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """See `Labels`."""
        return Numbered(self.inner, self.classes, (), (0,), ()).read(rows, cols)

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """See `Labels`; pixels that lose their class keep their group."""
        return self.inner.group_codes(rows, cols)

    @property
    def group_names(self) -> tuple[str, ...]:
        """See `Labels`."""
        return self.inner.group_names

    def names(self) -> dict[int, str]:
        """See `Labels`."""
        return dict(enumerate(self.class_names, 1))

    def colors(self) -> dict[int, str]:
        """See `Labels`."""
        return Numbered(self.inner, self.classes, (), (0,), ()).colors()

    def files(self) -> list[str]:
        """See `Labels`."""
        return self.inner.files()


@dataclass(frozen=True)
class GroupRaster:
    """Labels whose groups are told by a raster of ids on the scene's grid."""

    inner: Labels
    raster: LabelRaster
    ids: tuple[int, ...]  #: that occur on the scene, rising

    @classmethod
    def of(cls, inner: Labels, raster: LabelRaster) -> GroupRaster:
        """Look through the raster once for the ids that occur.

        Raises
        ------
        LabelError
            It cannot be read, or holds more ids than groups can be.
        """
        rows, cols = raster.shape_yx
        step = max(1, _SLAB_PIXELS // cols)
        ids = np.zeros(0, np.int64)
        for start in range(0, rows, step):
            part = raster.numbers(slice(start, min(rows, start + step)), slice(0, cols))
            ids = np.union1d(ids, part)
            if len(ids) > MOST_GROUPS:
                raise LabelError(f"The raster of groups {raster.path} holds over {MOST_GROUPS:,} ids.")
        return cls(inner, raster, tuple(ids[ids > 0].tolist()))

    @property
    def named(self) -> bool:
        """See `Labels`."""
        return self.inner.named

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """See `Labels`."""
        return self.inner.read(rows, cols)

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """See `Labels`.

        Raises
        ------
        LabelError
            The raster cannot be read, or has changed since it was opened.
        """
        found = self.raster.numbers(rows, cols)
        ids = np.array((0, *self.ids), np.int64)
        codes = np.searchsorted(ids, found)
        if (ids[np.minimum(codes, len(ids) - 1)] != found).any():
            raise LabelError(f"The raster of groups {self.raster.path} has changed since it was opened.")
        return codes.astype(np.int32)

    @property
    def group_names(self) -> tuple[str, ...]:
        """See `Labels`."""
        return tuple(map(str, self.ids))

    def names(self) -> dict[int, str]:
        """See `Labels`."""
        return self.inner.names()

    def colors(self) -> dict[int, str]:
        """See `Labels`."""
        return self.inner.colors()

    def files(self) -> list[str]:
        """See `Labels`."""
        return [*self.inner.files(), *self.raster.files()]


def number_together(found: Sequence[Labels | None], class_names: Sequence[str] | None) -> list[Labels | None]:
    """Give the classes and groups of all scenes of a workflow one numbering.

    Parameters
    ----------
    found
        Labels of each scene, numbered on their own.
    class_names
        Names of the classes 1, 2, ... where the workflow gives them.

    Raises
    ------
    LabelError
        A name stands not among `class_names`; or some scenes tell classes by number and others by name, and there are
        no `class_names` to say which is which.
    """
    # the numbers of another set of scenes do not count
    found = [item.inner if isinstance(item, Numbered) else item for item in found]
    labels = [item for item in found if item is not None]
    _tell_unused(labels)
    names = {name for item in labels if item.named for name in item.names().values()}
    by_number = [item for item in labels if not item.named]
    if class_names is not None:
        unknown = sorted(names - set(class_names))
        if unknown:
            raise LabelError(
                f"The labels hold the class {unknown[0]!r}, which class_names does not name (it has "
                f"{', '.join(class_names)}). Add it there, or leave it out by labels.classes."
            )
        order = list(class_names)
    else:
        if names and by_number:
            raise LabelError(
                f"{by_number[0].files()[0]} tells its classes by number and other label files of the workflow by name "
                f"({', '.join(sorted(names)[:5])}); give class_names, the names of the classes 1, 2, ..."
            )
        order = sorted(names)
        _tell_contradictions(by_number)
    if len(order) > MAX_CLASS:
        raise LabelError(f"The labels hold {len(order)} classes; at most {MAX_CLASS} are allowed.")
    groups = sorted_ids(name for item in labels for name in item.group_names)
    return [None if item is None else _numbered(item, order, groups) for item in found]


def _tell_unused(found: Sequence[Labels]) -> None:
    """Warn of names that `labels.classes` takes and no scene has: a slip, or a class that does not occur."""
    merged = [
        inner
        for item in found
        if isinstance(inner := item.inner if isinstance(item, GroupRaster) else item, Merged)
    ]
    known = {name for item in merged for name in item.inner.names().values()}
    unused = sorted({name for item in merged for name in item.absent} - known)
    if unused:
        warnings.warn(
            f"labels.classes takes {', '.join(unused[:10])}, which no scene has; the labels hold "
            f"{', '.join(sorted(known)[:20]) or 'no classes'}.",
            BandstreamWarning,
            stacklevel=3,
        )


def _tell_contradictions(found: Sequence[Labels]) -> None:
    """Warn of a class number that the files of two scenes name differently: what is learned would be a mixture."""
    told: dict[int, tuple[str, Labels]] = {}
    wrong: list[str] = []
    for item in found:
        for number, name in item.names().items():
            first, other = told.setdefault(number, (name, item))
            if first != name:
                wrong.append(f"{number} is {first!r} in {other.files()[0]} and {name!r} in {item.files()[0]}")
    if wrong:
        warnings.warn(
            f"The labels name classes differently ({len(wrong)} times): {wrong[0]}. Where that is no mere spelling, "
            "renumber them; class_names says what the numbers mean.",
            BandstreamWarning,
            stacklevel=4,
        )


def sorted_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Return different ids in order: whole numbers by size, then texts."""
    return tuple(
        sorted(set(ids), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    )


def _numbered(item: Labels, order: Sequence[str], groups: tuple[str, ...]) -> Labels:
    if not item.named and item.group_names == groups:
        return item
    classes: tuple[int, ...] | None = None
    told: dict[int, str] = {}
    if item.named:
        code = {name: number for number, name in enumerate(order, 1)}
        own = item.names()
        classes = (
            0,
            *(code[own[number]] if number in own else 0 for number in range(1, max(own, default=0) + 1)),
        )
        told = {number: name for name, number in code.items()}
    at = {name: number for number, name in enumerate(groups, 1)}
    return Numbered(item, classes, tuple(told.items()), (0, *(at[name] for name in item.group_names)), groups)
