"""Scenes known by name: entries (`entries`), where to fetch them (`fetch`, `archives`), one's own (`add`), and STAC.

The fields of an entry that STAC has too carry its names; `to_stac` and `from_stac` exchange them with others.
"""

from __future__ import annotations

from .entries import (
    CatalogEntry,
    catalog_folder,
    check_expected,
    completed,
    list_catalog,
    load_catalog,
    require_files_inside,
    require_inside,
)

__all__ = [
    "CatalogEntry",
    "catalog_folder",
    "check_expected",
    "completed",
    "list_catalog",
    "load_catalog",
    "require_files_inside",
    "require_inside",
]
