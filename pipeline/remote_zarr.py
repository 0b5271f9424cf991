"""Zarr's own way to objects, made strict: broken bodies are read again, and a chunk that is missing is an error."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore

from . import s3
from .errors import RemoteError, StoreCorruptError
from .storage import RemotePath, locate

_CHUNK = re.compile(r"(^|/)c(/[0-9]+)*$")


class RemoteStore(ObjectStore[Any]):
    """The objects below a folder, for reading. Make one with `RemoteStore.of`."""

    path: RemotePath

    @classmethod
    def of(cls, path: RemotePath) -> RemoteStore:
        """Return the store of a folder; it reads its credentials from the environment wherever it is unpickled."""
        made = cls(s3.client(path.bucket), read_only=True)
        made.path = path
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (str(self.path),)

    def __str__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def _key(self, key: str) -> str:
        return "/".join(part.strip("/") for part in (self.path.key, key) if part.strip("/"))

    async def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        return await super().exists(self._key(key))

    def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the names in a folder."""
        return super().list_dir(self._key(prefix))

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the keys below a folder."""
        async for key in super().list_prefix(self._key(prefix)):
            yield key.removeprefix(self.path.key).lstrip("/")

    def list(self) -> AsyncGenerator[str, None]:
        """Yield all keys."""
        return self.list_prefix("")

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object or a range of it; None for metadata that are not there.

        Raises
        ------
        StoreCorruptError
            A chunk is not there, which Zarr would take for fill values.
        RemoteError
            The server cannot be used.
        """
        s3.require_own_process()
        url = f"{self.path}/{key}"
        for wait in (*s3.waits(), None):
            try:
                found = await super().get(self._key(key), prototype, byte_range)
                if found is not None and isinstance(byte_range, RangeByteRequest):
                    asked = byte_range.end - byte_range.start
                    if len(found) != asked:
                        raise s3.ShortBodyError(f"{len(found)} of {asked} bytes came")
                break
            except Exception as error:  # noqa: BLE001 - worded by explain
                if wait is None or not s3.may_pass(error):
                    raise s3.explain(url, error) from None
                await asyncio.sleep(wait)
        else:
            raise RemoteError(url)
        if found is None and _CHUNK.search(key):
            raise StoreCorruptError(
                f"The object {url} is missing. Delete the store and run its workflow again; `bandstream store verify` "
                "lists everything that is wrong."
            )
        return found


def _again(url: str) -> RemoteStore:
    path = locate(url)
    assert isinstance(path, RemotePath)
    return RemoteStore.of(path)
