"""What a format has to offer to be a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xarray as xr

from .options import Notes, Options

PROVED = ("real files", "generated files", "unproved")
"""On what a reader was tried: files of the instrument, files written from the published structure, or nothing."""


@dataclass(frozen=True)
class Reader:
    """One format: how to know it, and how to open it.

    Attributes
    ----------
    name
        Name by which a user can ask for it.
    title
        Name for people.
    recognise
        From path and first bytes (none for a folder) to the reason why this is the format, or None. Never raises on
        what is foreign, and never reads much.
    open
        From path, options, notes and that reason to a scene.
    proved
        One of `PROVED`. A reader that never met a real file calls its scenes experimental.
    remote
        Whether it reads from a bucket (`s3://`) too.
    """

    name: str
    title: str
    recognise: Callable[[str, bytes], str | None]
    open: Callable[[str, Options, Notes, str], xr.Dataset]
    proved: str = "real files"
    remote: bool = False
