"""What a generated product file holds, and what its generators share.

The generators of this folder write small files from the *published* structure of each product. They know nothing
of the readers under test, so a mistake has to be made twice before it goes unseen. A test asks for them by the
fixture ``products`` (``tests/conftest.py``), which is the module ``catalog.py`` of this folder::

    def test_enmap_values(products, tmp_path):
        truth = products.make("enmap_l2a", tmp_path)
        scene = open_scene(str(truth.paths[0]))
        order = truth.order(scene.wavelength.values)
        np.testing.assert_allclose(physical(scene), truth.physical_yxb[:, :, order], rtol=1e-6)

``products.NAMES`` lists every name, ``products.make(name, folder, seed=0, **variants)`` writes one of them; the
variants are the keyword arguments of the ``make_...`` function that the name stands for. Bands stand in `Truth`
in the order of the file, the VNIR file or cube first; a reader may sort them or leave bad ones out, hence
`Truth.order`. Where two detectors have grids of their own (`Truth.parts`), the fields of the whole are those of
the VNIR.

A refusal is stated by `Truth.refusal`, a word that the message should hold; the other fields then say what the
file would have held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLS = 12, 10


@dataclass(frozen=True, eq=False)
class Truth:
    """The content of a product that was just written.

    Every array is in the order (y, x, band) of the file's own lines and samples, whatever the axes are on disk.
    """

    paths: list[Path]  #: all the paths a user could point at: image, folder, metadata
    physical_yxb: np.ndarray  #: float64; radiance in W m-2 sr-1 um-1, reflectance as a fraction; NaN: no data
    raw_yxb: np.ndarray  #: as stored, in the file's number type (native byte order)
    wavelength_nm: np.ndarray  #: (band,) NaN where the product gives none
    quantity: str  #: dn, radiance, surface_radiance, surface_reflectance, other
    fwhm_nm: np.ndarray | None = None
    good_band: np.ndarray | None = None  #: (band,) bool as the product declares it; None: it does not say
    detector: np.ndarray | None = None  #: (band,) "vnir" | "swir" as the product declares it
    nodata: float | None = None  #: the stored number that means no data, where one such number exists
    nodata_mask_yxb: np.ndarray | None = None  #: bool, True: this number is no measurement
    valid_yx: np.ndarray | None = None  #: bool; pixels with a measurement in every good band
    scale: np.ndarray | float | None = None  #: physical = raw * scale + offset
    offset: np.ndarray | float | None = None
    crs_epsg: int | None = None
    transform6: tuple[float, float, float, float, float, float] | None = None  #: (a, b, c, d, e, f) of Affine
    lat_yx: np.ndarray | None = None
    lon_yx: np.ndarray | None = None
    glt_row: np.ndarray | None = None  #: (ortho_y, ortho_x), 0-based, -1: fill
    glt_col: np.ndarray | None = None
    ortho_epsg: int | None = None
    ortho_transform6: tuple[float, float, float, float, float, float] | None = None
    sun_zenith_deg: float | None = None  #: the product's one number for the scene
    sun_azimuth_deg: float | None = None
    sun_zenith_yx: np.ndarray | None = None  #: per pixel, where the product brings it
    earth_sun_distance_au: float | None = None
    acquired: str | None = None  #: ISO 8601, UTC
    quality: dict[str, np.ndarray] = field(default_factory=dict)  #: name -> (y, x) as stored
    parts: dict[str, Truth] = field(default_factory=dict)  #: detector -> its own truth, where grids differ
    refusal: str = ""  #: not empty: the file must be refused, with this word in the message
    extra: dict[str, Any] = field(default_factory=dict)  #: what only one product has; see its module

    def order(
        self, wavelength_nm: np.ndarray, detector: np.ndarray | None = None, tolerance_nm: float = 2e-3
    ) -> np.ndarray:
        """Return for each wavelength the index of the band of this truth that has it.

        Parameters
        ----------
        wavelength_nm
            (n,) as the reader gives them, in any order, some left out; NaN is not allowed.
        detector
            (n,) names; settles two bands of the same wavelength.
        tolerance_nm
            how far a wavelength may be from the nearest band.
        """
        found = []
        for i, wanted in enumerate(np.asarray(wavelength_nm, float)):
            distance = np.abs(self.wavelength_nm - wanted)
            if detector is not None and self.detector is not None:
                distance = np.where(self.detector == detector[i], distance, np.inf)
            best = int(np.nanargmin(distance))
            assert distance[best] < tolerance_nm, (
                f"no band at {wanted} nm; the nearest is {self.wavelength_nm[best]} nm"
            )
            found.append(best)
        assert len(set(found)) == len(found), "two wavelengths stand for the same band"
        return np.array(found)

    def good(self) -> np.ndarray:
        """Return (band,) bool: not declared bad."""
        return np.ones(self.wavelength_nm.shape, bool) if self.good_band is None else self.good_band


def reflectance(wavelength_nm: np.ndarray, seed: int, shape_yx: tuple[int, int] = (ROWS, COLS)) -> np.ndarray:
    """Return smooth spectra (y, x, band), float64, in 0.03-0.7, different in every band and every pixel."""
    rng = np.random.default_rng(seed)
    rows, cols = shape_yx
    phase = rng.uniform(0, 2 * np.pi, 3)
    wave = np.asarray(wavelength_nm, float)
    base = 0.3 + 0.1 * np.sin(wave / 171.3 + phase[0]) + 0.06 * np.cos(wave / 63.7 + phase[1]) + wave * 3.1e-5
    level = 0.55 + 0.5 * (np.arange(rows)[:, None] / rows + 0.7 * np.arange(cols)[None, :] / cols) / 1.7
    tilt = rng.uniform(-0.03, 0.03, (rows, cols))
    return base * level[:, :, None] + tilt[:, :, None] * np.sin(wave / 300.0 + phase[2])


def radiance(wavelength_nm: np.ndarray, seed: int, shape_yx: tuple[int, int] = (ROWS, COLS)) -> np.ndarray:
    """Return at-sensor radiance (y, x, band), W m-2 sr-1 um-1, falling from some hundred to a few units."""
    sun = 1850.0 * np.exp(-np.asarray(wavelength_nm, float) / 620.0) + 6.0
    return reflectance(wavelength_nm, seed, shape_yx) * sun / np.pi


def latlon(shape_yx: tuple[int, int], *, west: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return a slightly turned and bent grid (latitude, longitude), degrees; `west`: columns run westwards."""
    row, col = np.mgrid[: shape_yx[0], : shape_yx[1]].astype(float)
    col = -col if west else col
    lat = 48.2 - 2.6e-4 * row - 5.0e-5 * col + 2e-7 * row * col
    lon = 11.3 + 4.0e-4 * col - 7.0e-5 * row + 1e-7 * col**2
    return lat, lon
