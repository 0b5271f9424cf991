"""Small labelled scenes of known content, in ENVI and GeoTIFF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

NODATA = -9999
SCALE = 1e-4


@dataclass
class MadeScene:
    """A written scene, and what is in it."""

    path: Path
    labels_path: Path
    raw_yxb: np.ndarray
    labels: np.ndarray
    bad: np.ndarray  #: (band,) listed as bad

    @property
    def valid(self) -> np.ndarray:
        """Pixels with data in every band that is not listed as bad."""
        return (self.raw_yxb[:, :, ~self.bad] != NODATA).all(axis=2)


def make_envi(
    folder: Path,
    shape: tuple[int, int] = (40, 52),
    bands: int = 12,
    seed: int = 0,
    stem: str = "scene",
    east: int = 366000,
) -> MadeScene:
    """Write an int16 BIL scene with a nodata corner, scattered nodata, a listed bad band and labels."""
    rng = np.random.default_rng(seed)
    rows, cols = shape
    base = rng.normal(0, 1, (4, bands)).cumsum(axis=1)
    labels = (1 + (np.arange(rows)[:, None] // 7 + np.arange(cols)[None, :] // 9) % 4).astype(np.uint8)
    cube = 3000 + 400 * base[labels - 1] + rng.normal(0, 60, (rows, cols, bands))
    raw = cube.astype(np.int16)
    raw[: rows // 8, : cols // 8] = NODATA
    raw[rng.random(shape) < 0.01, 3] = NODATA
    bad = np.zeros(bands, bool)
    bad[5] = True
    raw[:, :, 5] = NODATA
    labels[rng.random(shape) < 0.4] = 0
    wavelength = np.linspace(450, 2400, bands)
    header = folder / f"{stem}.hdr"
    raw.transpose(0, 2, 1).astype("<i2").tofile(folder / f"{stem}.img")
    header.write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {bands}\nheader offset = 0\nfile type = ENVI Standard\n"
        f"data type = 2\ninterleave = bil\nbyte order = 0\nreflectance scale factor = 10000\n"
        f"data ignore value = {NODATA}\nwavelength units = Nanometers\n"
        f"wavelength = {{{', '.join(f'{w:.3f}' for w in wavelength)}}}\n"
        f"fwhm = {{{', '.join(['10'] * bands)}}}\nbbl = {{{', '.join('0' if b else '1' for b in bad)}}}\n"
        f"map info = {{UTM, 1, 1, {east}, 5810000, 30, 30, 33, North, WGS-84, units=Meters}}\n"
    )
    labels_path = folder / f"{stem}_labels.tif"
    with rasterio.open(
        labels_path, "w", driver="GTiff", height=rows, width=cols, count=1, dtype="uint8", crs="EPSG:32633",
        transform=from_origin(east, 5810000, 30, 30),
    ) as out:  # fmt: skip
        out.write(labels, 1)
    return MadeScene(header, labels_path, raw, labels, bad)


@pytest.fixture
def made(tmp_path: Path) -> MadeScene:
    """One scene in a folder of its own."""
    folder = tmp_path / "raw"
    folder.mkdir()
    return make_envi(folder)


@pytest.fixture
def flow(made: MadeScene, tmp_path: Path) -> dict[str, Any]:
    """A workflow over it, with every stage."""
    return {
        "version": 1,
        "name": "flow",
        "scenes": [{"path": str(made.path), "labels": str(made.labels_path)}],
        "stages": [
            {"calibrate": {"to": "surface_reflectance"}},
            {"mask": {}},
            {"drop_bands": {}},
            {"normalize": {"method": "zscore"}},
            {"reduce": {"components": 5}},
            {"normalize": {"method": "zscore"}},
        ],
        "tiles": {"size": 16, "halo": 2},
        "split": {"by": "blocks", "block": 13, "seed": 1},
        "store": {"root": str(tmp_path / "stores")},
    }
