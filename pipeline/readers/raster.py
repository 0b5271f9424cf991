"""Array-like over any raster that rasterio opens, and the pool of open handles behind it."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning, RasterioIOError
from rasterio.windows import Window

from ..errors import FormatError, TruncatedFileError
from ..storage import is_remote
from .buffers import lend
from .cube import file_stamp
from .indexing import hull, indices, length, split_key, squeeze
from .remote import RemoteRaster

GDAL_CACHE_BYTES = 16 * 2**20
"""GDAL's block cache while we read: chunks end where blocks end, so nothing is worth keeping (its default is 5 % of
the machine's memory, outside any budget)."""

IDLE_BLOCK_BYTES = 64 * 2**20
"""What idle handles may hold together: each keeps the block that it decoded last. One handle may always stay, so that
the next window of a huge block need not decode it again."""


class RasterCube:
    """Any raster that rasterio opens; one open handle per reading thread, kept in a small pool.

    Parameters
    ----------
    path
        File path.
    shape
        (y, x, band).
    dtype
        Number type of all bands.
    driver
        GDAL driver that may open it; None for any (which lets a file refer to others, as VRT does).
    placed
        Whether the raster has a georeference (rasterio warns at each opening of one without).
    bands
        1-based numbers of the bands of the file that are bands of the cube, in order; all when None.
    """

    ndim = 3

    def __init__(
        self,
        path: str,
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        *,
        driver: str | None = "GTiff",
        placed: bool = True,
        bands: tuple[int, ...] | None = None,
    ) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype
        self.driver = driver
        self.placed = placed
        self.bands = bands

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a window of some bands."""
        (y, x, band), drop = split_key(key, self.shape)
        bands = indices(band, self.shape[2])
        y0, y1, y_inside = hull(y)
        x0, x1, x_inside = hull(x)
        if 0 in (y1 - y0, x1 - x0, len(bands)):
            return squeeze(np.empty((length(y), length(x), len(bands)), self.dtype), drop)
        numbers = [int(b) + 1 if self.bands is None else self.bands[int(b)] for b in bands]
        with pooled_raster(self.path, driver=self.driver, placed=self.placed) as raster:
            if raster.shape != self.shape[:2] or raster.count < max(numbers):
                # GDAL would stretch what is there over what is asked for
                raise TruncatedFileError(
                    f"{self.path} holds {raster.height} x {raster.width} pixels in {raster.count} bands and "
                    f"{self.shape[0]} x {self.shape[1]} were found in it before: it has changed since the scene was opened"
                )
            block = self._read(raster, numbers, window_of(y0, y1, x0, x1))
        return squeeze(block.transpose(1, 2, 0)[y_inside][:, x_inside], drop)

    def _read(self, raster: Any, numbers: list[int], window: Window) -> NDArray[Any]:
        """Return the bands (band, y, x) of a window of an open raster."""
        block = lend((len(numbers), int(window.height), int(window.width)), self.dtype)
        raster.read(numbers, window=window, out=block)
        return block


class MaskCube(RasterCube):
    """Which pixels of a raster hold data, bool (y, x, 1): by its alpha band, else by the mask that GDAL knows.

    Parameters
    ----------
    path, driver, placed
        As for `RasterCube`.
    shape_yx
        Size of the raster.
    alpha
        1-based number of the alpha band; None for GDAL's mask of the dataset (which takes an alpha band for one only
        where it is the last of 2 or 4 bands).
    """

    def __init__(
        self,
        path: str,
        shape_yx: tuple[int, int],
        *,
        driver: str | None = "GTiff",
        placed: bool = True,
        alpha: int | None = None,
    ) -> None:
        super().__init__(path, (*shape_yx, 1), np.dtype(bool), driver=driver, placed=placed)
        self.alpha = alpha

    def _read(self, raster: Any, numbers: list[int], window: Window) -> NDArray[Any]:
        """Return where pixels hold data, bool (1, y, x)."""
        del numbers
        if self.alpha is not None:
            return np.not_equal(raster.read([self.alpha], window=window), 0)
        return np.not_equal(raster.dataset_mask(window=window), 0)[None]


def window_of(y0: int, y1: int, x0: int, x1: int) -> Window:
    """Return rasterio's window of rows `y0` to `y1` and columns `x0` to `x1`."""
    return Window(x0, y0, x1 - x0, y1 - y0)  # pyright: ignore[reportCallIssue] # attrs class without stubs


def block_bytes(raster: Any, path: str) -> int:
    """Return the bytes that GDAL may hold while it reads one window of an open raster, beside the window itself.

    Blocks can only be decoded whole. GDAL holds the decoded block (with all bands where they are interleaved by
    pixel), the compressed block, and in its cache at least one band of the block: an upper bound of them all.

    Parameters
    ----------
    raster
        Open rasterio dataset.
    path
        Its file.
    """
    decoded = _decoded_bytes(raster)
    band_block = _band_block_bytes(raster)
    packed = 0
    if "COMPRESSION" in raster.tags(ns="IMAGE_STRUCTURE"):
        packed = min(decoded, os.path.getsize(path) if os.path.isfile(path) else decoded)
    across = -(-raster.width // min(cols for _, cols in raster.block_shapes))
    cached = max(band_block, min(GDAL_CACHE_BYTES, band_block * across * raster.count))
    return int(decoded + packed + cached)


def content_files(raster: Any, path: str) -> list[str]:
    """Return the file and the others from which GDAL took content (`.aux.xml`, `.tfw`, a VRT's sources...).

    Overviews are left out: they are never read.
    """
    beside = (str(name) for name in raster.files)
    kept = (name for name in beside if os.path.isfile(name) and not name.lower().endswith(".ovr"))
    return list(dict.fromkeys([path, *kept]))


def _band_block_bytes(raster: Any) -> int:
    """Return the bytes of the largest block, of one band."""
    blocks = zip(raster.block_shapes, raster.dtypes, strict=True)
    return max(rows * cols * np.dtype(dtype).itemsize for (rows, cols), dtype in blocks)


def _decoded_bytes(raster: Any) -> int:
    """Return the bytes of the largest block as GDAL decodes it: of all bands where they are interleaved by pixel."""
    by_pixel = raster.tags(ns="IMAGE_STRUCTURE").get("INTERLEAVE") == "PIXEL"
    return _band_block_bytes(raster) * (raster.count if by_pixel else 1)


_Key = tuple[str, int, int, str | None]


class _RasterPool:
    """Idle rasterio handles, least recently used first, none across a fork.

    Never more than `limit`, and unless it is the only one, none beyond `limit_bytes` of decoded blocks.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.clear()

    def clear(self) -> None:
        """Start afresh, as a forked child must, which shares file positions with its parent."""
        self.lock = threading.Lock()
        self.idle: OrderedDict[_Key, list[Any]] = OrderedDict()
        self.count = 0
        self.held = 0

    def take(self, key: _Key) -> Any | None:
        with self.lock:
            handles = self.idle.get(key)
            if not handles:
                return None
            self.count -= 1
            handle = handles.pop()
            self.held -= _decoded_bytes(handle)
            if not handles:
                del self.idle[key]
            return handle

    def give(self, key: _Key, handle: Any) -> None:
        surplus: list[Any] = []
        with self.lock:
            self.idle.setdefault(key, []).append(handle)
            self.idle.move_to_end(key)
            self.count += 1
            self.held += _decoded_bytes(handle)
            while self.count > self.limit or (self.count > 1 and self.held > self.limit_bytes):
                oldest = next(iter(self.idle))
                surplus.append(self.idle[oldest].pop(0))
                self.count -= 1
                self.held -= _decoded_bytes(surplus[-1])
                if not self.idle[oldest]:
                    del self.idle[oldest]
        for old in surplus:
            old.close()


def _many_files() -> int:
    """Return how many files of one band each may stay open: a quarter of what this process may open."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is in the thousands
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft < 0 else max(16, min(256, soft // 4))


_POOL = _RasterPool(limit=32, limit_bytes=IDLE_BLOCK_BYTES)
_BAND_POOL = _RasterPool(limit=_many_files(), limit_bytes=IDLE_BLOCK_BYTES)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.clear)
    os.register_at_fork(after_in_child=_BAND_POOL.clear)


@contextmanager
def pooled_raster(
    path: str, *, driver: str | None, placed: bool, one_of_many: bool = False
) -> Generator[Any]:
    """Lend an open rasterio dataset to one thread.

    Parameters
    ----------
    path, driver, placed
        As for `RasterCube`.
    one_of_many
        Whether it is one of hundreds of files of one band each, which are small and read in turn: more of those stay
        open, since opening takes longer than reading.
    """
    if is_remote(path):
        with rasterio.Env(GDAL_CACHEMAX=GDAL_CACHE_BYTES):
            try:
                with _remote(path, driver, placed=placed, again=True) as raster:
                    yield raster
            except RasterioIOError as error:
                raise _damaged(path, error) from error
        return
    pool = _BAND_POOL if one_of_many else _POOL
    key = (path, *file_stamp(path), driver)
    with rasterio.Env(GDAL_CACHEMAX=GDAL_CACHE_BYTES):
        handle: Any = None
        try:
            handle = pool.take(key) or _open(path, driver, placed=placed)
            yield handle
        except RasterioIOError as error:
            _close(handle)
            raise _damaged(path, error) from error
        except BaseException:
            _close(handle)
            raise
        pool.give(key, handle)


_OPENING = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread that it has not got
    os.register_at_fork(
        before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_OPENING.release
    )


def open_quietly(path: str, driver: str | None = None) -> Any:
    """Open a raster without rasterio's warning that it has no georeference, which a scene need not have.

    Filters of warnings belong to all threads: they are changed by one thread at a time. Use what is returned in a
    `with`, which is how one in a bucket must be.
    """
    return _remote(path, driver, placed=False) if is_remote(path) else _open(path, driver, placed=False)


def _remote(path: str, driver: str | None, *, placed: bool, again: bool = False) -> RemoteRaster:
    return RemoteRaster(path, lambda opener: _open(path, driver, placed=placed, opener=opener), again=again)


def _open(path: str, driver: str | None, *, placed: bool, opener: Any = None) -> Any:
    # filters of warnings belong to all threads, so they are left alone where nothing warns
    if placed:
        return rasterio.open(path, driver=driver, opener=opener)
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path, driver=driver, opener=opener)


def _damaged(path: str, error: RasterioIOError) -> FormatError:
    return FormatError(f"{path} cannot be read: {error}; the file is damaged or was cut short")


def _close(handle: Any) -> None:
    if handle is not None:
        handle.close()
