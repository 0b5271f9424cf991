"""Sizes: what people write, and what processes hold."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import MemoryBudgetError

MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 1024 * MIB
#: The readers' idle buffers (64 MiB at most), libraries that load late, and what the allocator keeps.
RESERVE_BYTES = 128 * MIB
#: What a worker process holds beside its task: Python with all libraries (170 MiB measured on Linux with the versions
#: of constraints.txt), the readers' idle buffers, the scenes as sent to it (1 MB for 100 GB), and results on their way.
WORKER_BYTES = 288 * MIB


def held_bytes() -> int:
    """Return what the process holds now, with a reserve for what comes beside the tasks, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + RESERVE_BYTES


def parse_bytes(text: str) -> int:
    """Read a size such as ``800MB``, ``1.5GiB`` or ``2g``.

    Raises
    ------
    MemoryBudgetError
        It is no size.
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if not found:
        raise MemoryBudgetError(f"{text!r} is no size; write it as 800MB, 1GiB or 2G.")
    power = " kmgt".index(found[2].lower() or " ")
    # 1G and 1GiB are binary, 1GB is decimal
    base = 1000 if found[2] and not found[3] and text.strip().lower().endswith("b") else 1024
    return int(float(found[1]) * base**power)
