"""Rational polynomials (RPC) for generated products in sensor geometry, and where they put each pixel.

Where each fact is from
-----------------------
- Twenty terms per polynomial, their order (1, L, P, H, LP, LH, PH, L2, P2, H2, PLH, L3, LP2, LH2, L2P, P3, PH2, L2H,
  P2H, H3) and the normalisation by offset and scale: the RPC00B convention, as GDAL's RFC 22 and EnPT have it.
- Magnitudes, and the names of the elements: ``product/navigation/RPC/bandID[@number]/{ROW,COL,LAT,LONG,HEIGHT}_OFF,
  ..._SCALE, {ROW,COL}_{NUM,DEN}_{01..20}`` of the DLR test product of EnMAP L1B (datatake 326721).
- Row and column 0 are the first pixel itself (its centre): in that product the four corners of ``boundingPolygon`` are
  sent to rows 0 and 1023 and columns 0 and 999 (to a tenth of a row, and a fifth of a column at
  ``specific/meanGroundElevation``), not to 0 and 1024. EnPT and GDAL count so too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

METRES_PER_DEGREE = 111_000.0


@dataclass(frozen=True)
class Model:
    """Offsets and scales by name, and the four polynomials."""

    numbers: dict[str, float]
    polynomials: dict[str, np.ndarray]

    def image(self, lat, lon, height):
        """Return row and column of places."""
        n = self.numbers
        p, q, h = (
            (value - n[f"{key}_OFF"]) / n[f"{key}_SCALE"]
            for key, value in (("LAT", lat), ("LONG", lon), ("HEIGHT", height))
        )
        terms = np.stack(np.broadcast_arrays(
            1.0, q, p, h, q * p, q * h, p * h, q * q, p * p, h * h, p * q * h, q**3, q * p * p, q * h * h,
            q * q * p, p**3, p * h * h, q * q * h, p * p * h, h**3,
        ))  # fmt: skip
        found = []
        for axis in ("ROW", "COL"):
            ratio = np.tensordot(self.polynomials[f"{axis}_NUM"], terms, 1) / np.tensordot(
                self.polynomials[f"{axis}_DEN"], terms, 1
            )
            found.append(ratio * n[f"{axis}_SCALE"] + n[f"{axis}_OFF"])
        return found

    def ground(self, row, col, height):
        """Return latitude and longitude that are sent to row and column, by Newton's method."""
        n, step = self.numbers, 1e-6
        lat, lon = np.full(np.shape(row), n["LAT_OFF"]), np.full(np.shape(row), n["LONG_OFF"])
        for _ in range(12):
            r, c = self.image(lat, lon, height)
            rp, cp = self.image(lat + step, lon, height)
            rl, cl = self.image(lat, lon + step, height)
            a, b, d, e = (rp - r) / step, (rl - r) / step, (cp - c) / step, (cl - c) / step
            det = a * e - b * d
            lat = lat + (e * (row - r) - b * (col - c)) / det
            lon = lon + (a * (col - c) - d * (row - r)) / det
        return lat, lon

    def xml(self) -> str:
        """Return the elements of a band."""
        text = "".join(f"<{k}>{v:.10f}</{k}>" for k, v in self.numbers.items())
        for name, values in self.polynomials.items():
            text += "".join(f"<{name}_{i:02d}>{v:.15e}</{name}_{i:02d}>" for i, v in enumerate(values, 1))
        return text


def model(shape_yx: tuple[int, int], seed: int, *, lat: float, lon: float, step_m: float = 30.0) -> Model:
    """Return a slightly turned and bent view of the ground around a place."""
    rng = np.random.default_rng(seed)
    rows, cols = shape_yx
    half_m = 0.505 * step_m * max(rows, cols)
    numbers = {
        "ROW_OFF": rows / 2, "COL_OFF": cols / 2, "LAT_OFF": lat, "LONG_OFF": lon, "HEIGHT_OFF": 1792.5,
        "ROW_SCALE": 0.505 * rows, "COL_SCALE": 0.505 * cols, "LAT_SCALE": half_m / METRES_PER_DEGREE,
        "LONG_SCALE": half_m / METRES_PER_DEGREE / np.cos(np.radians(lat)), "HEIGHT_SCALE": 1507.5,
    }  # fmt: skip
    numbers = {k: float(f"{v:.10f}") for k, v in numbers.items()}
    stretch = max(rows, cols) / np.array([rows, cols])
    polynomials = {}
    below = np.concatenate([[1.0], rng.uniform(-2e-3, 2e-3, 19)])
    for axis, (q, p, h), factor in zip(
        ("ROW", "COL"), ((-0.23, -0.97, 3e-2), (0.97, -0.23, 9e-2)), stretch, strict=True
    ):
        above = np.concatenate([[rng.uniform(-0.02, 0.02), q, p, h], rng.uniform(-3e-3, 3e-3, 16)]) * factor
        polynomials[f"{axis}_NUM"] = np.array([float(f"{v:.15e}") for v in above])
        polynomials[f"{axis}_DEN"] = np.array([float(f"{v:.15e}") for v in below])
    return Model(numbers, polynomials)
