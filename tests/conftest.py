"""What all tests share: the folder of real files, and quiet defaults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of real files, or skip: they are not part of the repository."""
    folder = os.environ.get("BANDSTREAM_TEST_DATA")
    if not folder:
        pytest.skip("BANDSTREAM_TEST_DATA is not set: the real files are not part of the repository")
    path = Path(folder).resolve()
    assert path.is_dir(), f"BANDSTREAM_TEST_DATA={folder} is no folder"
    return path
