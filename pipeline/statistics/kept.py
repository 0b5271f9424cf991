"""Statistics on disk, so that a workflow whose later stages change need not read its scenes again.

A file is a NumPy archive: the arrays, and a JSON text that says how they make up the statistics. Nothing in it can run.
"""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bands import BandStatistics, Group, Wanted
from .histogram import Histogram
from .moments import Moments
from .sample import Sample

_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (BandStatistics, Group, Histogram, Moments, Sample, Wanted)
}


def to_bytes(statistics: BandStatistics, wanted: Wanted) -> bytes:
    """Return statistics, and what was asked for, as the content of a file."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_plain([wanted, statistics], arrays))
    out = io.BytesIO()
    names = {f"a{number}": array for number, array in enumerate(arrays)}
    np.savez(out, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **names)
    return out.getvalue()


def from_bytes(content: bytes) -> tuple[BandStatistics, Wanted]:
    """Return what `to_bytes` was given.

    Raises
    ------
    ValueError
        The content is not as it was written.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = [archive[f"a{number}"] for number in range(len(archive.files) - 1)]
            wanted, statistics = _made(json.loads(archive["text"].tobytes()), arrays)
        assert isinstance(statistics, BandStatistics)
        assert isinstance(wanted, Wanted)
    except Exception as error:  # a damaged archive ends in whatever zipfile or NumPy stumble over
        raise ValueError(f"no statistics can be read: {error}") from error
    return statistics, wanted


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if dataclasses.is_dataclass(value):
        fields = {f.name: _plain(getattr(value, f.name), arrays) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, dict):
        return {"items": [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple": [_plain(item, arrays) for item in value]}
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def _made(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "class" in value:
        fields = {name: _made(item, arrays) for name, item in value["fields"].items()}
        return _CLASSES[value["class"]](**fields)
    if "items" in value:
        return {_made(key, arrays): _made(item, arrays) for key, item in value["items"]}
    if "tuple" in value:
        return tuple(_made(item, arrays) for item in value["tuple"])
    return bytes.fromhex(value["bytes"])
