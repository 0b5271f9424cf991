"""Running the tasks of a build: in threads, in worker processes, or on a cluster, within a memory budget."""

from __future__ import annotations

from .budget import DEFAULT_MEMORY_BYTES, MIB, held_bytes, parse_bytes
from .engine import Engine, recruit
from .tasks import fold

__all__ = ["DEFAULT_MEMORY_BYTES", "MIB", "Engine", "fold", "held_bytes", "parse_bytes", "recruit"]
