"""Small files, written whole or not at all."""

from __future__ import annotations

import math
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from .storage import RemotePath


def write_text(path: Path, text: str) -> None:
    """Write `text` under another name and rename (objects need neither): a reader sees the old file or the new one, never a part of it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` as `write_text` does."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:  # on a full disk what was written so far would stay in the way
        with suppress(OSError):
            temporary.unlink()
        raise


def json_value(value: Any) -> Any:
    """Return a value of dicts, lists and scalars as JSON can hold it: NaN and infinity, which it lacks, become null."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
