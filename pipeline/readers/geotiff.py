"""GeoTIFF by rasterio: one file here, several tiles of one grid in `mosaic`.

Where programs put the wavelengths of a TIFF, in the order in which they are looked up: GDAL's `IMAGERY` domain of the
bands (always micrometres), tags of the bands, the `ENVI` domain of the bands, the `ENVI` domain of the file, lists in
the tags of the file, an ENVI header beside it (`x.hdr`, `x.tif.hdr`). Proved on files of EnMAP-Box and EnMAP.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import MaskFlags
from rasterio.errors import RasterioError

from ..errors import FormatError
from ..scene import make_scene
from .cube import CHUNK_BYTES, even_chunks, lazy_cube, rows_per_chunk
from .envi import band_facts, good_bands
from .envi_header import EnviHeader, is_envi, read_header
from .options import Notes, Options
from .raster import RasterCube, block_bytes, content_files, open_quietly
from .wavelengths import numbers, to_nanometres

SUFFIXES = (".tif", ".tiff", ".gtif", ".gtiff")
"""Endings by which the tiles of a folder are known."""

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
BLOCK_ROW_BYTES = 64 * 2**20
"""A row of TIFF blocks up to this size is read whole; a larger one is cut between block columns."""

_LARGEST_CHUNK = 256 * 2**20
_SAME_NM = 1.0


@dataclass(frozen=True)
class RasterFacts:
    """What a raster file tells about itself."""

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


@dataclass
class _Source:
    """One place in which a file may keep its wavelengths."""

    label: str
    values: NDArray[np.float64] | None = None
    unit: str | None = None
    fwhm: NDArray[np.float64] | None = None
    bbl: NDArray[np.float64] | None = None


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
    cube = cube_of(facts)
    rows, cols = chunks_by_blocks(facts, notes)
    return scene_of(
        facts,
        lazy_cube(cube, rows, cols),
        options,
        source=path,
        scene_id=stem(path),
        files=facts.files,
        block_bytes=facts.block_bytes,
        why=why,
    )


def cube_of(facts: RasterFacts) -> RasterCube:
    """Return the array-like of a raster file."""
    placed = facts.transform is not None
    return RasterCube(facts.path, facts.shape, facts.dtype, driver=facts.driver, placed=placed)


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
) -> xr.Dataset:
    """Make the scene of a lazy cube from the facts of its (first) file and the user's overrides."""
    nodata = options.nodata if options.nodata is not None else facts.nodata
    return make_scene(
        data,
        **facts.bands,
        crs=facts.crs,
        transform=transform or facts.transform,
        nodata=nodata,
        scale=options.scale if options.scale is not None else facts.scale,
        offset=options.offset if options.offset is not None else facts.offset,
        quantity=options.quantity or "other",
        units=options.units or "",
        acquired=facts.acquired,
        scene_id=scene_id,
        source=source,
        files=files,
        block_bytes=block_bytes,
        reader="geotiff",
        why=why,
    )


def read_facts(path: str, options: Options, notes: Notes) -> RasterFacts:
    """Read the metadata of a raster file.

    Raises
    ------
    FormatError
        If it cannot be opened, holds complex numbers, or bands of several types.
    """
    driver = None if options.allow_vrt else "GTiff"
    try:
        with open_quietly(path, driver) as raster:
            return _facts(raster, path, driver, options, notes)
    except RasterioError as error:
        msg = f"{path} cannot be opened as GeoTIFF: {error}"
        raise FormatError(msg) from error


def _facts(raster: Any, path: str, driver: str | None, options: Options, notes: Notes) -> RasterFacts:
    """Collect the facts of an open raster."""
    types = set(raster.dtypes)
    dtype = np.dtype(raster.dtypes[0]) if not raster.dtypes[0].startswith("complex") else np.dtype(complex)
    if len(types) != 1 or dtype.kind not in "iuf":
        msg = f"{path} holds {', '.join(sorted(types))}; a scene needs one type of real numbers in all bands"
        raise FormatError(msg)
    bands = int(raster.count)
    header, sidecar_is_own = _sidecar(path, raster, notes)
    nodata = np.array([np.nan if v is None else v for v in raster.nodatavals], np.float64)
    scale, offset = np.array(raster.scales, np.float64), np.array(raster.offsets, np.float64)
    facts = _band_facts(raster, path, header, options, notes)
    has_nodata = any(v is not None for v in raster.nodatavals)
    if header is not None and sidecar_is_own:
        more = band_facts(header, bands, options, Notes())
        if not has_nodata and more["nodata"] is not None:
            nodata, has_nodata = np.full(bands, more["nodata"], np.float64), True
        if more["scale"] is not None and (scale == 1).all() and (offset == 0).all():
            scale = np.broadcast_to(np.asarray(more["scale"], np.float64), (bands,))
    if not has_nodata and options.nodata is None and MaskFlags.per_dataset in raster.mask_flag_enums[0]:
        notes.warn(
            f"{path} has a mask or alpha band, which is not read; give nodata= where pixels are missing"
        )
    if len(raster.subdatasets) > 1:
        notes.warn(f"{path} holds {len(raster.subdatasets)} pages; the first one is read")
    transform = _transform(raster, path, notes)
    files = content_files(raster, path)
    tags = raster.tags()
    return RasterFacts(
        path=path,
        shape=(int(raster.height), int(raster.width), bands),
        dtype=dtype,
        block=cast("tuple[int, int]", raster.block_shapes[0]),
        crs=cast("CRS | None", raster.crs) or None,
        transform=transform,
        nodata=nodata if has_nodata else None,
        scale=scale,
        offset=offset,
        bands=facts,
        files=list(dict.fromkeys(files + ([] if header is None else [header.path]))),
        block_bytes=block_bytes(raster, path),
        acquired=tags.get("start_time") or raster.tags(ns="IMAGERY").get("ACQUISITIONDATETIME"),
        driver=driver,
    )


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


def _sidecar(path: str, raster: Any, notes: Notes) -> tuple[EnviHeader | None, bool]:
    """Return the ENVI header beside a TIFF, and whether it says that it was made for a TIFF."""
    for name in (path + ".hdr", os.path.splitext(path)[0] + ".hdr"):
        if not os.path.isfile(name):
            continue
        with open(name, "rb") as file:
            if not is_envi(file.read(64)):
                continue
        header = read_header(name)
        stated = [header.get(key) for key in ("lines", "samples", "bands")]
        actual = [str(raster.height), str(raster.width), str(raster.count)]
        if all(s is None or s == a for s, a in zip(stated, actual, strict=True)):
            return header, "tif" in (header.get("file type") or "").casefold()
        notes.warn(
            f"{name} describes {stated} (lines, samples, bands), the TIFF holds {actual}; it is not used"
        )
    return None, False


def _band_facts(
    raster: Any,
    path: str,
    header: EnviHeader | None,
    options: Options,
    notes: Notes,
) -> dict[str, Any]:
    """Return wavelengths, widths, good bands and names, as arguments of `make_scene`."""
    sources = _sources(raster, path, notes)
    good = next((good_bands(source.bbl, path) for source in sources if source.bbl is not None), None)
    names = [text or f"Band {i + 1}" for i, text in enumerate(raster.descriptions)]
    wavelength, fwhm = _choose(sources, path, options, notes)
    if header is not None:
        beside = band_facts(header, raster.count, options, notes)
        if wavelength is None:
            wavelength, fwhm = beside["wavelength_nm"], beside["fwhm_nm"]
        good = beside["good_band"] if good is None else good
        if not any(raster.descriptions) and beside["band_names"] is not None:
            names = beside["band_names"]
    return {"wavelength_nm": wavelength, "fwhm_nm": fwhm, "good_band": good, "band_names": names}


def _choose(
    sources: list[_Source], path: str, options: Options, notes: Notes
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return the wavelengths of the first place that has some, and warn when another place contradicts them."""
    chosen: NDArray[np.float64] | None = None
    chosen_fwhm: NDArray[np.float64] | None = None
    label = ""
    for source in sources:
        if source.values is None:
            continue
        if chosen is None:
            override = None if source.label == _IMAGERY else options.wavelength_unit
            chosen, chosen_fwhm = to_nanometres(
                source.values, source.unit, path, notes, fwhm=source.fwhm, override=override
            )
            label = source.label
            continue
        try:
            other, _ = to_nanometres(source.values, source.unit, path, Notes())
        except FormatError:
            other = None
        if other is None or np.abs(other - chosen).max() > _SAME_NM:
            notes.warn(
                f"{path}: the wavelengths of the {source.label} differ from those of the {label}, which are used"
            )
    return chosen, chosen_fwhm


_IMAGERY = "IMAGERY domain"


def _sources(raster: Any, path: str, notes: Notes) -> list[_Source]:
    """Return the places where the file itself may keep wavelengths, best first."""
    count = int(raster.count)
    domains = [set(raster.tag_namespaces(b + 1)) for b in range(count)]
    imagery = [
        _keyed(raster.tags(b + 1, ns="IMAGERY")) if "IMAGERY" in domains[b] else {} for b in range(count)
    ]
    envi = [_keyed(raster.tags(b + 1, ns="ENVI")) if "ENVI" in domains[b] else {} for b in range(count)]
    plain = [_keyed(raster.tags(b + 1)) for b in range(count)]
    first = _Source(_IMAGERY, unit="um")
    first.values = _column(imagery, "central wavelength um", path, notes)
    first.fwhm = _column(imagery, "fwhm um", path, notes)
    sources = [first]
    for label, tags in (("tags of the bands", plain), ("ENVI domain of the bands", envi)):
        source = _Source(label, unit=_common_unit(tags))
        source.values = _column(tags, "wavelength", path, notes)
        source.fwhm = _column(tags, "fwhm", path, notes)
        source.bbl = _column(tags, "bbl", path, notes)
        sources.append(source)
    for label, tags in (
        ("ENVI domain of the file", raster.tags(ns="ENVI")),
        ("tags of the file", raster.tags()),
    ):
        keyed = _keyed(tags)
        source = _Source(label, unit=_unit(keyed))
        source.values, source.fwhm, source.bbl = (
            _file_list(keyed, key, count, path) for key in ("wavelength", "fwhm", "bbl")
        )
        sources.append(source)
    return sources


def _keyed(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags by lower-case keys with blanks for underscores (`wavelength_units` = `wavelength units`)."""
    return {key.lower().replace("_", " ").strip(): value for key, value in tags.items()}


def _unit(keyed: Mapping[str, str]) -> str | None:
    return keyed.get("wavelength units", keyed.get("wavelength unit"))


def _common_unit(tags: list[dict[str, str]]) -> str | None:
    """Return the unit that all bands agree on; a file whose bands name different ones has declared none."""
    units = {_unit(band) for band in tags}
    return units.pop() if len(units) == 1 else None


def _column(tags: list[dict[str, str]], key: str, path: str, notes: Notes) -> NDArray[np.float64] | None:
    """Return one number per band from the bands' tags; None unless every band has it."""
    have = [key in band for band in tags]
    if not any(have):
        return None
    if not all(have):
        missing = have.index(False) + 1
        notes.warn(
            f"{path}: only {sum(have)} of {len(have)} bands have `{key}` (band {missing} lacks it); it is not used"
        )
        return None
    return numbers([band[key] for band in tags], key, path)


def _file_list(keyed: Mapping[str, str], key: str, count: int, path: str) -> NDArray[np.float64] | None:
    """Return a comma-separated list of the file's tags.

    Raises
    ------
    FormatError
        If it does not have one entry per band.
    """
    text = keyed.get(key, "").strip()
    if not text or text == "{}":
        return None
    values = numbers(text, key, path)
    if len(values) != count:
        msg = f"{path}: `{key}` has {len(values)} entries for {count} bands; it must have one per band"
        raise FormatError(msg)
    return values
