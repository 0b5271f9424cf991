"""The readers in the order in which they are asked, and how one is chosen.

A reader is chosen by what a file or folder holds, not by its name. Products come before the plain formats that they
are written in: an EnMAP image is a GeoTIFF too. Adding a format means adding a module here that ends in a `READER`,
and its name to `READERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage import is_remote
from . import (
    ahsi,
    aviris,
    aviris_netcdf,
    desis,
    emit,
    enmap,
    envi,
    geotiff,
    hyperion,
    matlab,
    neon,
    netcdf,
    numpy_file,
    prisma,
    zarr_folder,
)
from .anywhere import first_bytes
from .reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

READERS: tuple[Reader, ...] = (
    enmap.READER,
    desis.READER,
    hyperion.READER,
    ahsi.READER,
    aviris.READER,
    prisma.READER,
    emit.READER,
    neon.READER,
    aviris_netcdf.READER,
    matlab.READER,
    numpy_file.READER,
    zarr_folder.READER,
    netcdf.READER,
    envi.READER,
    geotiff.READER,
)
"""All readers: products first; then what has a signature of its own; then ENVI, which takes any file with a header
beside it (`netcdf` takes any HDF5 file, so that products in HDF5 must stand before it)."""

HEAD_BYTES = 512
"""How much of a file's beginning a reader is shown."""


def head_of(path: str) -> bytes:
    """Return the first bytes of a file, none of a folder."""
    return first_bytes(path, HEAD_BYTES)


def candidates(path: str) -> Iterator[tuple[Reader, str]]:
    """Yield the readers that know `path`, each with its reason."""
    head = head_of(path)
    for reader in READERS:
        if is_remote(path) and not reader.remote:
            continue
        why = reader.recognise(path, head)
        if why is not None:
            yield reader, why


def named(name: str) -> Reader | None:
    """Return the reader of that name."""
    return next((reader for reader in READERS if reader.name == name), None)
