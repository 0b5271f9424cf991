"""What all tests share: the folder of real files, and generated product files."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="session")
def products() -> ModuleType:
    """Return the generators of product files: ``products.make(name, folder)``; see ``products/truth.py``."""
    return _products()


def _products() -> ModuleType:
    """Load ``products/catalog.py`` as the head of a package, so that its modules may import each other."""
    name, folder = "bandstream_test_products", Path(__file__).parent / "products"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "catalog.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
