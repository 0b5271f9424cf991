"""GeoTIFF by rasterio: one file here, several tiles of one grid in `mosaic`, wavelengths in `geotiff_tags`.

Traps: a mask of the file (internal or `.msk`) or an alpha band says which pixels are missing, and neither is a band of
the cube; scales and offsets of the TIFF are kept, not applied; blocks are decoded whole, so chunks end where blocks do.
Proved on files of EnMAP-Box and EnMAP.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import dask.array as da
import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import RasterioError

from ..errors import FormatError
from ..scene import make_scene
from .carried import read_carried
from .cube import CHUNK_BYTES, even_chunks, lazy_cube, rows_per_chunk
from .envi import band_facts
from .geotiff_tags import BandTags, read_band_tags
from .options import Notes, Options
from .raster import MaskCube, RasterCube, block_bytes, content_files, open_quietly
from .reader import Reader

SUFFIXES = (".tif", ".tiff", ".gtif", ".gtiff")
"""Endings by which the tiles of a folder are known."""

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
BLOCK_ROW_BYTES = 64 * 2**20
"""A row of TIFF blocks up to this size is read whole; a larger one is cut between block columns."""

_LARGEST_CHUNK = 256 * 2**20

_OF_A_PRODUCT = re.compile(r"^(ENMAP|DESIS).*-SPECTRAL_IMAGE(_VNIR|_SWIR)?(_COG)?\.tiff?$", re.IGNORECASE)
"""Names of images that say nothing about their numbers: the metadata beside them do. Their readers come first."""


@dataclass(frozen=True)
class RasterFacts:
    """What a raster file tells about itself.

    Attributes
    ----------
    shape
        (y, x, band) of the cube: without alpha bands.
    kept
        1-based numbers of the cube's bands in the file; None for all.
    masked, alpha
        Whether a mask or alpha band says which pixels are missing, and the 1-based number of the latter.
    nodata, scale, offset
        float64 (band,); NaN in `nodata` where a band has none.
    bands
        Wavelengths, widths, good bands and names, as arguments of `make_scene`.
    carried
        Attributes that our own writer put into the tags.
    """

    path: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    block: tuple[int, int]
    crs: CRS | None
    transform: Affine | None
    nodata: NDArray[np.float64] | None
    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    bands: dict[str, Any]
    files: list[str]
    block_bytes: int
    acquired: str | None
    driver: str | None
    kept: tuple[int, ...] | None = None
    masked: bool = False
    alpha: int | None = None
    carried: dict[str, Any] = field(default_factory=dict[str, Any])


def is_tiff(first_bytes: bytes) -> bool:
    """Return whether a file that begins so is a TIFF (or BigTIFF)."""
    return first_bytes[:4] in _MAGIC


def open_geotiff(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open one raster file as a lazy scene.

    Raises
    ------
    FormatError
        If rasterio cannot open it, or what it says about its bands is contradictory.
    """
    facts = read_facts(path, options, notes)
    if _OF_A_PRODUCT.search(os.path.basename(path)):
        notes.warn(
            f"{path}: the image of an EnMAP or DESIS product without the product's metadata (XML) beside it, which tell "
            "scale, unit and no data; put them there, or the stored numbers are taken as they are"
        )
    data = lazy_raster(facts, notes)
    return scene_of(
        facts,
        data,
        options,
        valid_yx=lazy_plane(mask_of(facts), data) if facts.masked else None,
        source=path,
        scene_id=stem(path),
        files=facts.files,
        block_bytes=facts.block_bytes,
        why=why,
    )


def cube_of(facts: RasterFacts) -> RasterCube:
    """Return the array-like of a raster file."""
    placed = facts.transform is not None
    return RasterCube(
        facts.path, facts.shape, facts.dtype, driver=facts.driver, placed=placed, bands=facts.kept
    )


def mask_of(facts: RasterFacts) -> MaskCube:
    """Return the array-like (y, x, 1) that says which pixels of a raster file hold data."""
    placed = facts.transform is not None
    return MaskCube(facts.path, facts.shape[:2], driver=facts.driver, placed=placed, alpha=facts.alpha)


def lazy_raster(facts: RasterFacts, notes: Notes) -> da.Array:
    """Return the lazy cube (y, x, band) of a raster file, in chunks that end where its blocks end."""
    rows, cols = chunks_by_blocks(facts, notes)
    return lazy_cube(cube_of(facts), rows, cols)


def lazy_plane(cube: Any, like_yxb: da.Array, band: int = 0, *, paths: Sequence[str] = ()) -> da.Array:
    """Return one band of an array-like as a lazy plane (y, x), in the chunks of a cube of the same size."""
    rows, cols = like_yxb.chunks[:2]
    return cast("da.Array", lazy_cube(cube, rows, cols, paths=paths)[..., band])


def scene_of(
    facts: RasterFacts,
    data: Any,
    options: Options,
    *,
    source: str,
    scene_id: str,
    files: list[str],
    block_bytes: int,
    why: str,
    transform: Affine | None = None,
    valid_yx: da.Array | None = None,
) -> xr.Dataset:
    """Make the scene of a lazy cube from the facts of its (first) file and the user's overrides."""
    nodata = options.nodata if options.nodata is not None else facts.nodata
    others: dict[str, Any] = {"acquired": facts.acquired} | facts.carried
    quantity, units = others.pop("quantity", "other"), others.pop("units", "")
    return make_scene(
        data,
        **facts.bands,
        crs=facts.crs,
        transform=transform or facts.transform,
        nodata=nodata,
        scale=options.scale if options.scale is not None else facts.scale,
        offset=options.offset if options.offset is not None else facts.offset,
        quantity=options.quantity or quantity,
        units=options.units or units,
        valid_yx=valid_yx,
        **others,
        scene_id=scene_id,
        source=source,
        files=files,
        block_bytes=block_bytes,
        reader="geotiff",
        why=why,
    )


def read_facts(path: str, options: Options, notes: Notes, *, tags: bool = True) -> RasterFacts:
    """Read the metadata of a raster file.

    Parameters
    ----------
    path, options, notes
        As for `open_geotiff`.
    tags
        Whether tags and headers beside the file tell about its bands; not for products, whose metadata do.

    Raises
    ------
    FormatError
        If it cannot be opened, holds complex numbers, or bands of several types.
    """
    driver = None if options.allow_vrt else "GTiff"
    try:
        with open_quietly(path, driver) as raster:
            return _facts(raster, path, driver, options, notes, tags=tags)
    except RasterioError as error:
        msg = f"{path} cannot be opened as GeoTIFF: {error}"
        raise FormatError(msg) from error


def _facts(
    raster: Any, path: str, driver: str | None, options: Options, notes: Notes, *, tags: bool
) -> RasterFacts:
    """Collect the facts of an open raster."""
    kept, alpha = _kept(raster, path, notes)
    types = {str(raster.dtypes[b - 1]) for b in kept}
    first = min(types)
    dtype = np.dtype(first) if not first.startswith("complex") else np.dtype(complex)
    if len(types) != 1 or dtype.kind not in "iuf":
        msg = f"{path} holds {', '.join(sorted(types))}; a scene needs one type of real numbers in all bands"
        raise FormatError(msg)
    told = read_band_tags(raster, path, kept, options, notes) if tags else BandTags({})
    if len(raster.subdatasets) > 1:
        notes.warn(f"{path} holds {len(raster.subdatasets)} pages; the first one is read")
    nodata, scale, offset = _numbers(raster, kept, told, options)
    return RasterFacts(
        path=path,
        shape=(int(raster.height), int(raster.width), len(kept)),
        dtype=dtype,
        block=cast("tuple[int, int]", raster.block_shapes[0]),
        crs=cast("CRS | None", raster.crs) or None,
        transform=_transform(raster, path, notes),
        nodata=nodata,
        scale=scale,
        offset=offset,
        bands=told.bands,
        files=list(dict.fromkeys(content_files(raster, path) + told.files)),
        block_bytes=block_bytes(raster, path),
        acquired=raster.tags().get("start_time") or raster.tags(ns="IMAGERY").get("ACQUISITIONDATETIME"),
        carried=read_carried(raster.tags(), "_"),
        driver=driver,
        kept=None if len(kept) == raster.count else kept,
        masked=alpha is not None or MaskFlags.per_dataset in raster.mask_flag_enums[kept[0] - 1],
        alpha=alpha,
    )


def _kept(raster: Any, path: str, notes: Notes) -> tuple[tuple[int, ...], int | None]:
    """Return the 1-based numbers of the bands that are no transparency, and of the first that is."""
    alpha = [b for b, kind in enumerate(raster.colorinterp, 1) if kind == ColorInterp.alpha]
    kept = tuple(b for b in range(1, raster.count + 1) if b not in alpha)
    if not kept:
        msg = f"{path} holds nothing but transparency (alpha) in {raster.count} bands; a scene needs bands of numbers"
        raise FormatError(msg)
    if alpha:
        notes.warn(
            f"{path}: band {', '.join(map(str, alpha))} is declared as transparency (alpha); it tells which pixels "
            "hold data and is no band of the scene"
        )
    return kept, alpha[0] if alpha else None


def _numbers(
    raster: Any, kept: tuple[int, ...], told: BandTags, options: Options
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64], NDArray[np.float64]]:
    """Return nodata, scale and offset per band: of the TIFF, else of the ENVI header that was made for it."""
    given = [raster.nodatavals[b - 1] for b in kept]
    nodata = np.array([np.nan if v is None else v for v in given], np.float64)
    scale = np.array([raster.scales[b - 1] for b in kept], np.float64)
    offset = np.array([raster.offsets[b - 1] for b in kept], np.float64)
    has_nodata = any(v is not None for v in given)
    if told.header is not None and len(kept) == raster.count:
        more = band_facts(told.header, len(kept), options, Notes())
        if not has_nodata and more["nodata"] is not None:
            nodata, has_nodata = np.broadcast_to(np.float64(more["nodata"]), (len(kept),)), True
        if more["scale"] is not None and (scale == 1).all() and (offset == 0).all():
            scale = np.broadcast_to(np.asarray(more["scale"], np.float64), (len(kept),))
    return nodata if has_nodata else None, scale, offset


def _transform(raster: Any, path: str, notes: Notes) -> Affine | None:
    """Return the transform of an open raster; None where it has none, or, with a warning, one that makes no grid."""
    transform = cast("Affine", raster.transform)
    if transform == Affine.identity():
        return None
    six = [float(v) for v in list(transform)[:6]]
    if not np.isfinite(six).all() or transform.determinant == 0:
        notes.warn(f"{path}: its transform {six} makes no grid; the scene has none")
        return None
    return transform


def chunks_by_blocks(facts: RasterFacts, notes: Notes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return row and column chunks that end where the file's blocks end, so that no block is decoded twice."""
    rows, cols, bands = facts.shape
    block_rows, block_cols = min(facts.block[0], rows), min(facts.block[1], cols)
    pixel_bytes = bands * facts.dtype.itemsize
    if block_rows * cols * pixel_bytes <= BLOCK_ROW_BYTES:
        count = rows_per_chunk(cols * pixel_bytes, rows, block_rows)
        return even_chunks(rows, count), (cols,)
    block_bytes = block_rows * block_cols * pixel_bytes
    if block_bytes <= _LARGEST_CHUNK:
        width = block_cols * max(1, CHUNK_BYTES // block_bytes)
        return even_chunks(rows, block_rows), even_chunks(cols, width)
    count = rows_per_chunk(cols * pixel_bytes, rows)
    notes.warn(
        f"{facts.path} is stored in blocks of {block_bytes / 2**20:.0f} MiB (all bands), each of which is decoded "
        f"{-(-block_rows // count)} times; rewrite it with tiles of 256 x 256"
    )
    return even_chunks(rows, count), (cols,)


def stem(path: str) -> str:
    """Return a file's name without folder and ending."""
    return os.path.splitext(os.path.basename(path))[0]


def _recognise(path: str, head: bytes) -> str | None:
    del path
    return f"the file begins with the signature of a TIFF ({head[:2].decode()})" if is_tiff(head) else None


READER = Reader("geotiff", "GeoTIFF", _recognise, open_geotiff, remote=True)
