"""Small files, written whole or not at all."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, cast


def write_text(path: Path, text: str) -> None:
    """Write `text` under another name and rename: a reader sees the old file or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def json_value(value: Any) -> Any:
    """Return a value of dicts, lists and scalars as JSON can hold it: NaN and infinity, which it lacks, become null."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
