"""Which source of bytes a store has: its folder or bucket, with a cache on disk before it if one is wanted."""

from __future__ import annotations

from hashlib import sha256

from ...pipeline.errors import StoreCorruptError
from ...pipeline.storage import RemotePath
from ...pipeline.store import MANIFEST, PatchStore
from .bytes_source import ByteSource, LocalSource
from .disk_cache import CachedBytes, DiskCache
from .remote import RemoteBytes


def open_source(store: PatchStore, cache: DiskCache | None = None) -> ByteSource:
    """Return the source of a store's bytes.

    Parameters
    ----------
    store
        In a local folder or a bucket.
    cache
        Asked first, and given what was fetched.

    Raises
    ------
    StoreCorruptError
        There is a cache, and the store's manifest cannot be read.
    RemoteError
        There is a cache, and the server cannot be used.
    """
    path = store.path
    source = RemoteBytes(path) if isinstance(path, RemotePath) else LocalSource(path)
    return source if cache is None else CachedBytes(source, cache, identity(store))


def identity(store: PatchStore) -> str:
    """Return a text that stores share only if all their files have equal bytes.

    The fingerprint alone is no such text: other versions of libraries may write other bytes from the same inputs.

    Raises
    ------
    StoreCorruptError
        The manifest, which holds the checksum of every file, cannot be read.
    RemoteError
        The server cannot be used.
    """
    try:
        return sha256(store.fingerprint.encode() + (store.path / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise StoreCorruptError(
            f"The file {MANIFEST} of the store {store.path} cannot be read: {error.strerror or error}. Run its workflow "
            "again."
        ) from error
