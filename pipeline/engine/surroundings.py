"""What every process of a build must have in common with the driver: versions, CPU, sources and the store's root.

Equal bytes need equal libraries, and BLAS and NumPy choose their kernels by the CPU. A worker that lacks a file would
otherwise be noticed hours later, or not at all when a file of the same name holds something else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

EDGE_BYTES = 1 << 16


def cpu() -> dict[str, str]:
    """Return by which kernels NumPy and the BLAS libraries of this process compute."""
    import numpy as np
    import scipy.linalg  # noqa: F401  # pyright: ignore[reportUnusedImport] - brings its own BLAS
    from threadpoolctl import threadpool_info

    found = {
        f"{item['internal_api']} {item.get('version')}": str(item.get("architecture", "unknown"))
        for item in threadpool_info()
        if item["user_api"] == "blas"
    }
    simd = cast("dict[str, Any]", np.show_config("dicts") or {}).get("SIMD Extensions", {})
    return {"CPU": platform.machine(), "NumPy's SIMD": " ".join(simd.get("found", []))} | found


def file_mark(name: str) -> list[int | str]:
    """Return size and a SHA-256 of the first and last 64 KiB of a file: enough to know another file of that name."""
    path = Path(name)
    size = path.stat().st_size
    if path.is_dir():
        return ["folder"]
    with path.open("rb") as file:
        edges = file.read(EDGE_BYTES)
        file.seek(max(len(edges), size - EDGE_BYTES))
        edges += file.read(EDGE_BYTES)
    return [size, hashlib.sha256(edges).hexdigest()]


@dataclass(frozen=True)
class Expected:
    """The driver's surroundings."""

    versions: dict[str, str]
    cpu: dict[str, str]
    files: dict[str, list[int | str]]  #: of every source file on a file system, by its absolute path
    token: str | None  #: a file that the driver put under the store's root; None where the root is no folder

    @classmethod
    def here(cls, files: Iterable[str], root: Path | None) -> Expected:
        """Take stock of this process, and leave a token under the root; `forget` takes it away.

        Parameters
        ----------
        files
            All source files; those behind a URL are left to their own errors.
        root
            Folder under the store's root that the token goes to.
        """
        from ..finish import versions

        marks = {os.path.abspath(name): file_mark(name) for name in files if "://" not in name}
        token = None
        if root is not None:
            path = root.absolute() / f"cluster-{uuid.uuid4().hex}.token"
            path.touch()
            token = str(path)
        return cls(versions(), cpu(), marks, token)

    def forget(self) -> None:
        """Remove the token."""
        if self.token:
            Path(self.token).unlink(missing_ok=True)

    def problem(self) -> str | None:
        """Return what is different in this process, to be read after "The worker ... joined, but"; None if nothing."""
        from ..finish import versions

        for kind, ours, theirs in (("version", self.versions, versions()), ("kernels", self.cpu, cpu())):
            for name in sorted(ours | theirs):
                if (mine := ours.get(name, "none")) != (other := theirs.get(name, "none")):
                    advice = (
                        "install the same versions on both"
                        if kind == "version"
                        else "use workers with the same kind of CPU, or set OPENBLAS_CORETYPE and "
                        "NPY_DISABLE_CPU_FEATURES alike everywhere"
                    )
                    return f"its {name} is {other} and the driver's is {mine}, so that its bytes could differ; {advice}."
        return self._file_problem() or self._root_problem()

    def _file_problem(self) -> str | None:
        for name, mark in self.files.items():
            try:
                found = file_mark(name)
            except OSError as error:
                return (
                    f"it cannot read the source file {name} ({error.strerror or error}); every worker needs the sources "
                    "under the same paths as the driver."
                )
            if found != mark:
                sizes = f"{found[0]} bytes, the driver's {mark[0]}" if found[0] != mark[0] else "same size"
                return f"its file {name} is not the driver's ({sizes}); every worker needs the same sources."
        return None

    def _root_problem(self) -> str | None:
        if self.token is None:
            return None
        token = Path(self.token)
        root = token.parent.parent
        if not token.is_file():
            return (
                f"its folder {root} is not the driver's; the store's root must lie on a file system that every worker "
                "shares (store.root)."
            )
        mine = token.with_name(f"{token.stem}-{uuid.uuid4().hex}.partial")
        try:
            mine.touch()
            mine.unlink()
        except OSError as error:
            return f"it cannot write to the store's root {root} ({error.strerror or error}); see store.root."
        return None
