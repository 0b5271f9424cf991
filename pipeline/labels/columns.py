"""From the columns of vector files and CSVs to class numbers and groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LabelError
from .protocol import MAX_CLASS

_WHOLE_FLOAT = re.compile(r"-?[0-9]+(\.0+)?")


@dataclass(frozen=True, eq=False)
class FeatureLabels:
    """What labels of features (polygons, points) have in common; see `Labels`."""

    paths: tuple[str, ...]
    class_names: tuple[str, ...] | None  #: None where the file tells numbers
    group_names: tuple[str, ...]

    @property
    def named(self) -> bool:
        """See `Labels`."""
        return self.class_names is not None

    def names(self) -> dict[int, str]:
        """See `Labels`."""
        return dict(enumerate(self.class_names or (), 1))

    def colors(self) -> dict[int, str]:
        """Return nothing: such files tell no colours."""
        return {}

    def files(self) -> list[str]:
        """See `Labels`."""
        return list(self.paths)


def texts(values: NDArray[Any], where: str, column: NDArray[Any] | None = None) -> list[str]:
    """Return the entries of a column as text, empty where there is none; 7.0 is written 7, also where all are texts.

    Raises
    ------
    LabelError
        The column holds neither numbers nor text.
    """
    if values.dtype.kind not in "biufO":
        raise LabelError(f"{where} holds {values.dtype}; classes and groups are whole numbers or text.")
    entries = [_text(value) for value in values.tolist()]
    # so a table with gaps is written by tools that keep whole numbers as floats then
    if all(_WHOLE_FLOAT.fullmatch(entry) for entry in _entries(values if column is None else column)):
        return [entry.split(".")[0] for entry in entries]
    return entries


def _entries(column: NDArray[Any]) -> list[str]:
    return [entry for value in column.tolist() if (entry := _text(value))]


def _text(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def class_codes(
    values: NDArray[Any], unlabelled: int, where: str, column: NDArray[Any] | None = None
) -> tuple[NDArray[np.uint16], tuple[str, ...] | None]:
    """Return class numbers of the entries of a column, 0 where there is none.

    A column of whole numbers (as text, too) holds the numbers themselves; in any other the different texts are sorted.

    Parameters
    ----------
    values
        (entry,)
    unlabelled
        Number that means "no label".
    where
        Column and file, for messages.
    column
        The whole column, where `values` are those of one scene: whether it holds numbers must not depend on the scene.

    Returns
    -------
    codes
        (entry,)
    names
        Of the numbers 1, 2, ...; None where the column holds numbers.

    Raises
    ------
    LabelError
        A number is none of a class; or there are too many names.
    """
    entries = texts(values, where, column)
    told = [entry for entry in entries if entry]
    whole = _entries(values if column is None else column)
    if values.dtype.kind in "biuf" or (whole and all(_WHOLE_FLOAT.fullmatch(entry) for entry in whole)):
        return _numbers(entries, unlabelled, where), None
    names = tuple(sorted(set(told)))
    if len(names) > MAX_CLASS:
        raise LabelError(
            f"{where} holds {len(names):,} different names; at most {MAX_CLASS} are allowed. Is it the column of classes?"
        )
    code = {name: number for number, name in enumerate(names, 1)}
    return np.array([code.get(entry, 0) for entry in entries], np.uint16), names


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _numbers(entries: list[str], unlabelled: int, where: str) -> NDArray[np.uint16]:
    codes = np.zeros(len(entries), np.uint16)
    for at, entry in enumerate(entries):
        number = int(entry) if _is_whole(entry) and len(entry) < 20 else None
        if entry in ("", str(unlabelled)):
            continue
        if number is None or not 0 <= number <= MAX_CLASS or (number == 0 and unlabelled):
            raise LabelError(
                f"{where} holds {entry[:40]} (entry {at + 1}); class numbers are whole numbers from 1 to {MAX_CLASS}, and 0 "
                "(or labels.unlabelled) means no label."
            )
        codes[at] = number
    return codes


def group_codes(values: NDArray[Any], where: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the groups of the entries of a column, 0 where there is none, and the ids of the groups 1, 2, ...

    Raises
    ------
    LabelError
        The column holds neither numbers nor text.
    """
    from .numbering import sorted_ids

    entries = texts(values, where)
    names = sorted_ids(entry for entry in entries if entry)
    code = {name: number for number, name in enumerate(names, 1)}
    return np.array([code.get(entry, 0) for entry in entries], np.int32), names
