"""The scene that `simulate` writes: ground, light and sensor as a function of absolute rows.

A scene is a patchwork of ground covers (`fields.patches`), each pixel a linear mixture of endmember spectra
(`spectra`) under varying illumination, seen by a pushbroom sensor: signal-dependent and white noise that
grows towards the ends of the detectors, one offset per detector column (stripes), water vapour bands
without signal, and slanted no-data edges as an orthorectified strip has them. The share of its own cover
scatters from pixel to pixel within a patch, so that several pixels in a hundred look more like another cover
and more are in doubt: single spectra cannot tell the classes apart reliably, their surroundings can.

Everything comes from generators keyed by (seed, absolute row): any rows come out the same however they are
grouped, and nothing grows with the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import fields, spectra

NODATA: Final = -9999
SCALE_FACTOR: Final = 10_000

# Streams of the generators; smooth fields and patches take up to 32 numbers from theirs.
_GROUND, _SUN, _SLOPE, _PIXEL, _SENSOR, _STRIPES = 0, 64, 96, 128, 129, 130


@dataclass(frozen=True)
class SceneModel:
    """What is simulated; any rows can be asked for with `rows`."""

    shape_yxb: tuple[int, int, int]
    """Rows, columns and bands."""
    classes: int
    """Number of ground covers."""
    seed: int = 0
    """Key of all random numbers."""
    noise: float = 0.006
    """Standard deviation of the noise in reflectance, at reflectance 0.3 in the middle of a detector."""
    texture: float = 0.14
    """Standard deviation, from pixel to pixel, of the share of its own cover in a pixel."""
    labelled_share: float = 0.6
    """Share of the patches whose label is told."""
    nodata_border: float = 0.05
    """How far the edges of the strip slant into the scene, as a share of its shorter side."""

    @cached_property
    def wavelength_nm(self) -> NDArray[np.float64]:
        """Band centres (band,), evenly spaced from 400 to 2500 nm."""
        return np.round(np.linspace(spectra.FIRST_NM, spectra.LAST_NM, self.shape_yxb[2]), 3)

    @cached_property
    def fwhm_nm(self) -> NDArray[np.float64]:
        """Full widths at half maximum (band,): 1.1 times the spacing, 2 to 120 nm."""
        step = (spectra.LAST_NM - spectra.FIRST_NM) / max(1, self.shape_yxb[2] - 1)
        return np.full(self.shape_yxb[2], round(float(np.clip(1.1 * step, 2.0, 120.0)), 3))

    @cached_property
    def good_band(self) -> NDArray[np.bool_]:
        """Whether a band lies outside the water vapour windows (band,)."""
        good = np.ones(self.shape_yxb[2], dtype=bool)
        for first, last in spectra.WATER_VAPOUR_NM:
            good &= (self.wavelength_nm < first) | (self.wavelength_nm > last)
        return good

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 1..K (their materials)."""
        return tuple(spectra.material(number).name for number in range(self.classes))

    @property
    def cell_px(self) -> float:
        """Size of a patch in pixels; from the width alone, so that rows do not depend on their number."""
        return float(np.clip(self.shape_yxb[1] / 16.0, 8.0, 32.0))

    @cached_property
    def _basis(self) -> NDArray[np.float32]:
        """(3 classes, band): endmembers, their change with stronger features, endmembers times slope."""
        wavelength, fwhm = self.wavelength_nm, self.fwhm_nm
        pure, _ = spectra.endmembers(self.classes, wavelength, fwhm)
        strong, _ = spectra.endmembers(self.classes, wavelength, fwhm, strength=1.25)
        tilt = (wavelength - 1450.0) / 1050.0
        signal = np.where(self.good_band, 1.0, 0.02)
        return (np.concatenate([pure, strong - pure, pure * tilt]) * signal).astype(np.float32)

    @cached_property
    def _noise_b(self) -> NDArray[np.float32]:
        """(band,) noise in reflectance at reflectance 0.3; silicon to 1000 nm, HgCdTe beyond."""
        nm = self.wavelength_nm
        ends = 1.0 + 2.0 * np.exp(-(nm - 400.0) / 40.0) + 1.5 * np.exp(-np.abs(nm - 1000.0) / 25.0)
        ends += 2.0 * np.exp(-(2500.0 - nm) / 80.0)
        return (self.noise * ends / np.clip(spectra.transmittance(nm), 0.3, 1.0)).astype(np.float32)

    @cached_property
    def _stripes_xb(self) -> NDArray[np.float32]:
        """(col, band) offsets of the detector columns: 1/3 of the noise, 4/3 in one column of 64."""
        _, cols, bands = self.shape_yxb
        rng = fields.generator(self.seed, _STRIPES, 0)
        size = np.where(rng.random(cols) < 1 / 64, 4.0, 1.0)[:, None] / 3.0
        return rng.standard_normal((cols, bands), dtype=np.float32) * (size * self._noise_b).astype(
            np.float32
        )

    def valid(self, rows: range) -> NDArray[np.bool_]:
        """Return (row, col): inside the slanted strip."""
        height, width, _ = self.shape_yxb
        border = self.nodata_border * min(height, width)
        y = (np.arange(rows.start, rows.stop) + 0.5)[:, None]
        x = (np.arange(width) + 0.5)[None, :]
        top = border * (x - border) / (width - border)
        right = width - border * (y - border) / (height - border)
        bottom = height - border + border * x / (width - border)
        left = border - border * y / (height - border)
        return (y >= top) & (x <= right) & (y <= bottom) & (x >= left)

    def _shares(self, ground: fields.Patches, scatter: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (row, col, class) shares of the ground covers; they sum to 1 in each pixel."""
        height, width = ground.cell.shape
        shares = np.zeros((height, width, self.classes), dtype=np.float32)
        own = np.clip(np.float32(0.72) + np.float32(self.texture) * scatter, 0, 1)
        # A pixel on the border between two patches sees both.
        spill = np.float32(0.5) * np.clip(1 - ground.border_px, 0, 1)
        y, x = np.arange(height)[:, None], np.arange(width)[None, :]
        for cell, weight in ((ground.cell, 1 - spill), (ground.beside, spill)):
            shares[y, x, ground.kind[cell]] += weight * own
            shares[y, x, ground.companion[cell]] += weight * (1 - own)
        return shares

    def rows(self, start: int, stop: int) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
        """Return some rows of the scene.

        Parameters
        ----------
        start, stop
            Absolute rows, 0 <= start < stop <= rows.

        Returns
        -------
        data_yxb
            int16 (stop - start, col, band), reflectance times 10,000, -9999 where there is no data.
        labels_yx
            uint8 (stop - start, col), 0 = unlabelled.
        """
        span = range(start, stop)
        cols = self.shape_yxb[1]
        ground = fields.patches(self.seed, _GROUND, span, cols, self.cell_px, self.classes)
        white = fields.normals(self.seed, _PIXEL, span, (3, cols))
        scatter, flicker, bend = white[:, 0], white[:, 1], white[:, 2]
        bright, slope, vigour = (trait[ground.cell] for trait in ground.traits.T)
        sun = fields.smooth_field(self.seed, _SUN, span, cols, self.cell_px * 5)
        haze = fields.smooth_field(self.seed, _SLOPE, span, cols, self.cell_px * 8)
        gain = (1 + 0.10 * sun) * (1 + 0.08 * bright) * (1 + 0.04 * flicker)
        gain = np.clip(gain, 0.35, 1.7).astype(np.float32)
        tilt = (0.05 * slope + 0.03 * haze + 0.015 * bend).astype(np.float32)
        lit = self._shares(ground, scatter) * gain[..., None]
        parts = (lit, lit * np.clip(vigour, -2, 2)[..., None], lit * tilt[..., None])
        # One product per row (batched), so that rounding does not depend on how many rows there are.
        signal = np.matmul(np.concatenate(parts, axis=-1), self._basis)
        if self.noise > 0:
            self._add_noise(signal, span)
        np.multiply(signal, SCALE_FACTOR, out=signal)
        np.rint(signal, out=signal)
        np.clip(signal, -2_000, 20_000, out=signal)
        data = signal.astype(np.int16)
        valid = self.valid(span)
        data[~valid] = NODATA
        told = valid & (ground.rank[ground.cell] < self.labelled_share)
        labels = np.where(told, ground.kind[ground.cell] + 1, 0).astype(np.uint8)
        return data, labels

    def _add_noise(self, signal: NDArray[np.float32], span: range) -> None:
        """Add white and shot noise (variance linear in the signal) and stripes, in place."""
        noise = fields.normals(self.seed, _SENSOR, span, signal.shape[1:])
        size = np.maximum(signal, 0)
        size *= np.float32(0.65 / 0.3)
        size += np.float32(0.35)
        np.sqrt(size, out=size)
        size *= self._noise_b
        noise *= size
        noise += self._stripes_xb
        signal += noise
