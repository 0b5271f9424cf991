"""Simulated, labelled hyperspectral scenes of any size, written as ENVI with a GeoTIFF of labels.

What is in them: `scene_model`; the ground covers: `spectra`. A scene is written a few rows at a time, so that
memory does not grow with the number of rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .pictures import class_palette
from .scene_model import NODATA, SCALE_FACTOR, SceneModel

if TYPE_CHECKING:
    from rasterio.io import DatasetWriter

INTERLEAVES: Final = ("bil", "bip", "bsq")

_PIXEL_M: Final = 30.0
_WEST_NORTH_M: Final = (500_000.0, 5_400_000.0)
_EPSG: Final = 32632
# Rows made at a time: so many bytes of float32 numbers, of which the ground takes about so many a pixel.
_SLAB_BYTES: Final = 8 << 20
_GROUND_NUMBERS: Final = 64


@dataclass(frozen=True)
class SimulatedScene:
    """The files of a simulated scene."""

    header: Path
    """ENVI header."""
    data: Path
    """ENVI raw file, int16, reflectance times 10,000."""
    labels: Path
    """GeoTIFF uint8 on the same grid; 0 = unlabelled, 1..K the classes."""
    class_names: tuple[str, ...]
    """Names of the classes 1..K."""
    class_colors: tuple[str, ...]
    """Colours of the classes 1..K as #rrggbb."""


def simulate(
    out_hdr: str | Path,
    *,
    rows: int = 512,
    cols: int = 512,
    bands: int = 200,
    classes: int = 6,
    seed: int = 0,
    interleave: str = "bil",
    noise: float = 0.006,
    texture: float = 0.14,
    labelled_share: float = 0.6,
    nodata_border: float = 0.05,
    progress: Callable[[int], object] | None = None,
) -> SimulatedScene:
    """Write a simulated scene: OUT.hdr, OUT.img and OUT_labels.tif.

    Files are written under temporary names beside the result and renamed at the end, the header last;
    existing files of the same names are replaced. After a failure nothing of the attempt is left.

    Parameters
    ----------
    out_hdr
        Name of the ENVI header, ending in `.hdr`; missing folders are made.
    rows, cols, bands
        Size. Bands are evenly spaced from 400 to 2500 nm.
    classes
        Number of ground covers, 1..255; beyond 16 they are variants of the first ones.
    seed
        Equal seeds give equal scenes.
    interleave
        `bil`, `bip` or `bsq`.
    noise
        Standard deviation of the noise in reflectance, at reflectance 0.3 in the middle of a detector; 0
        for none (stripes neither).
    texture
        Standard deviation, from pixel to pixel, of the share of its own cover in a pixel; 0 for patches all
        alike.
    labelled_share
        Share of the patches whose label is told, 0..1.
    nodata_border
        How far the edges of the strip slant into the scene, as a share of its shorter side, 0..0.45.
    progress
        Called with the number of rows done since the last call.

    Raises
    ------
    ConfigError
        An argument is out of its range, the name does not end in `.hdr`, or the disk is too small.
    """
    header = Path(out_hdr)
    _check_numbers(rows=rows, cols=cols, bands=bands, classes=classes, seed=seed)
    _check_shares(noise=noise, texture=texture, labelled_share=labelled_share, nodata_border=nodata_border)
    if interleave not in INTERLEAVES:
        msg = f"simulate: interleave={interleave!r}; allowed are {', '.join(INTERLEAVES)}"
        raise ConfigError(msg)
    model = SceneModel((rows, cols, bands), classes, seed, noise, texture, labelled_share, nodata_border)
    scene = _target(header, model)
    with _temporary(scene.data, scene.labels, scene.header) as (data, labels, head):
        head.write_text(_header_text(model, interleave), encoding="utf-8", newline="\n")
        _write(model, interleave, data, labels, scene.class_colors, progress)
    return scene


def _check_numbers(**numbers: object) -> None:
    limits = {"rows": (1, 2**31 - 1), "cols": (1, 2**31 - 1), "bands": (2, 10_000), "classes": (1, 255)}
    limits["seed"] = (0, 2**64 - 1)
    for name, value in numbers.items():
        low, high = limits[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            msg = f"simulate: {name}={value!r}; allowed are whole numbers from {low} to {high}"
            raise ConfigError(msg)


def _check_shares(**shares: object) -> None:
    limits = {"noise": (0.0, 1.0), "texture": (0.0, 1.0), "labelled_share": (0.0, 1.0)}
    limits["nodata_border"] = (0.0, 0.45)
    for name, value in shares.items():
        low, high = limits[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            msg = f"simulate: {name}={value!r}; allowed are numbers from {low:g} to {high:g}"
            raise ConfigError(msg)


def _target(header: Path, model: SceneModel) -> SimulatedScene:
    """Return the files to be, or raise ConfigError where they cannot be written."""
    if header.suffix != ".hdr":
        msg = f"simulate: the output is {header.name!r}; its name must end in .hdr, e.g. {header.stem}.hdr"
        raise ConfigError(msg)
    data, labels = header.with_suffix(".img"), header.with_name(f"{header.stem}_labels.tif")
    for path in (header, data, labels):
        if path.is_dir():
            msg = f"simulate: {path} is a folder; choose another name for the scene"
            raise ConfigError(msg)
    header.parent.mkdir(parents=True, exist_ok=True)
    rows, cols, bands = model.shape_yxb
    needed, free = rows * cols * (2 * bands + 1), shutil.disk_usage(header.parent).free
    if needed > free:
        msg = (
            f"simulate: {rows} x {cols} x {bands} needs {needed:,} bytes; {header.parent} has {free:,} free; "
            "ask for fewer rows, columns or bands, or another folder"
        )
        raise ConfigError(msg)
    return SimulatedScene(header, data, labels, model.class_names, tuple(class_palette(model.classes)))


@contextmanager
def _temporary(*targets: Path) -> Generator[list[Path]]:
    """Yield temporary names beside the targets; rename in order when all went well, else remove them."""
    names = [path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}") for path in targets]
    try:
        yield names
        # The header goes first and comes last: without it the scene does not exist.
        targets[-1].unlink(missing_ok=True)
        for name, target in zip(names, targets, strict=True):
            name.replace(target)
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def _write(
    model: SceneModel,
    interleave: str,
    data: Path,
    labels: Path,
    colors: tuple[str, ...],
    progress: Callable[[int], object] | None,
) -> None:
    """Write data and labels slab by slab."""
    import rasterio

    rows, cols, bands = model.shape_yxb
    slab = max(1, _SLAB_BYTES // (4 * cols * (bands + _GROUND_NUMBERS + 3 * model.classes)))
    # GDAL would keep up to 5 % of the machine's memory in labels not yet written.
    with (
        rasterio.Env(GDAL_CACHEMAX=16),
        data.open("wb") as raw,
        _labels_file(labels, model, colors) as tif,
    ):
        for start in range(0, rows, slab):
            stop = min(rows, start + slab)
            block, codes = model.rows(start, stop)
            _write_block(raw, block, interleave, start, rows)
            tif.write(codes, 1, window=((start, stop), (0, cols)))
            if progress is not None:
                progress(stop - start)


def _write_block(raw: BinaryIO, block_yxb: NDArray[np.int16], interleave: str, start: int, rows: int) -> None:
    """Write some rows in the interleave: little-endian int16."""
    block = block_yxb.astype("<i2", copy=False)
    if interleave == "bip":
        raw.write(block.data)
    elif interleave == "bil":
        raw.write(np.ascontiguousarray(block.transpose(0, 2, 1)).data)
    else:
        cols = block.shape[1]
        for band, image in enumerate(np.ascontiguousarray(block.transpose(2, 0, 1))):
            raw.seek((band * rows + start) * cols * block.itemsize)
            raw.write(image.data)


def _labels_file(path: Path, model: SceneModel, colors: tuple[str, ...]) -> DatasetWriter:
    """Open the GeoTIFF of labels for writing: colour table, class names as tags, strips in DEFLATE."""
    import rasterio
    from affine import Affine
    from rasterio.crs import CRS

    rows, cols, _ = model.shape_yxb
    west, north = _WEST_NORTH_M
    tif = rasterio.open(
        path,
        "w",
        driver="GTiff",
        height=rows,
        width=cols,
        count=1,
        dtype="uint8",
        crs=CRS.from_epsg(_EPSG),
        transform=Affine(_PIXEL_M, 0.0, west, 0.0, -_PIXEL_M, north),
        nodata=0,
        compress="deflate",
        bigtiff="if_safer",
    )
    table = {0: (255, 255, 255, 0)}
    for number, color in enumerate(colors, start=1):
        table[number] = (int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16), 255)
    tif.write_colormap(1, table)
    tif.update_tags(class_names=json.dumps(model.class_names), class_colors=json.dumps(colors))
    tif.set_band_description(1, "class")
    return tif


def _header_text(model: SceneModel, interleave: str) -> str:
    """Return the ENVI header."""
    from rasterio.crs import CRS

    rows, cols, bands = model.shape_yxb
    west, north = _WEST_NORTH_M
    nearest = [int(np.abs(model.wavelength_nm - nm).argmin()) + 1 for nm in (660.0, 560.0, 480.0)]
    lines = [
        "ENVI",
        f"description = {{Simulated surface reflectance, {model.classes} ground covers, seed {model.seed}}}",
        f"samples = {cols}",
        f"lines = {rows}",
        f"bands = {bands}",
        "header offset = 0",
        "file type = ENVI Standard",
        "data type = 2",
        f"interleave = {interleave}",
        "sensor type = Simulated",
        "acquisition time = 2024-06-21T10:30:00Z",
        "byte order = 0",
        f"reflectance scale factor = {SCALE_FACTOR}",
        f"data ignore value = {NODATA}",
        f"default bands = {{{', '.join(map(str, nearest))}}}",
        f"map info = {{UTM, 1, 1, {west}, {north}, {_PIXEL_M}, {_PIXEL_M}, 32, North, WGS-84, units=Meters}}",
        f"coordinate system string = {{{CRS.from_epsg(_EPSG).to_wkt(version='WKT1_ESRI')}}}",
        "wavelength units = Nanometers",
        f"wavelength = {{{', '.join(f'{nm:.3f}' for nm in model.wavelength_nm)}}}",
        f"fwhm = {{{', '.join(f'{nm:.3f}' for nm in model.fwhm_nm)}}}",
        f"bbl = {{{', '.join(str(int(good)) for good in model.good_band)}}}",
    ]
    return "\n".join(lines) + "\n"
