"""The direction of imports: the contracts of pyproject.toml hold, and each of them notices when it is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="import-linter is in the extra `dev`")

ROOT = Path(__file__).resolve().parents[1]
LINT = Path(sysconfig.get_path("scripts")) / "lint-imports"

pytestmark = pytest.mark.process


def lint(folder: Path) -> tuple[int, str]:
    """Check the packages in `folder/bandstream`; return the exit code and what was said."""
    done = subprocess.run(
        [LINT, "--no-cache", "--no-logo", ROOT / "pyproject.toml"],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a copy of both halves under their installed names."""
    for name in ("pipeline", "train"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "bandstream" / name, ignore=ignore)
    return tmp_path


def test_all_contracts_hold(packages: Path) -> None:
    code, said = lint(packages)
    assert code == 0, said
    assert "0 broken" in said


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("pipeline/wrong.py", "from ..train import stream", "pipeline knows neither"),
        ("pipeline/stages/wrong.py", "import torch.nn", "pipeline knows neither"),
        ("pipeline/readers/wrong.py", "from .. import store", "readers know"),
        ("pipeline/readers/wrong.py", "from ..stages import normalize", "readers know"),
        ("train/wrong.py", "from ..pipeline.statistics import Moments", "train uses"),
        ("train/models/wrong.py", "from ...pipeline.readers import envi", "train uses"),
    ],
)
def test_a_wrong_import_breaks_its_contract(packages: Path, module: str, line: str, contract: str) -> None:
    # Inside a function as well: a late import couples no less.
    (packages / "bandstream" / module).write_text(f"def f():\n    {line}\n", encoding="utf-8")
    code, said = lint(packages)
    assert code != 0, said
    assert [text for text in said.splitlines() if text.startswith(contract) and "BROKEN" in text], said
