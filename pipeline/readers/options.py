"""What every reader is given: the user's overrides, and a place for warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Number = float | Sequence[float]


class Notes:
    """Collects what a reader has to tell the user; `open_scene` emits it and keeps it with the scene."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        """Note a warning, the same one only once."""
        if message not in self.messages:
            self.messages.append(message)


@dataclass(frozen=True)
class Options:
    """Overrides of what a file says, or fails to say; None leaves the file's word.

    Attributes
    ----------
    nodata, scale, offset
        One number, or one per band.
    quantity, units
        What the physical value is, and in which unit.
    wavelength_unit
        Unit of the wavelengths, such as `nm` or `um`.
    data_file
        ENVI: the file of numbers, where its name does not follow from the header's.
    header_offset
        ENVI: bytes before the first number.
    allow_vrt
        Let rasterio open files that refer to other files (VRT) and GDAL's virtual paths (`/vsi...`).
    variable
        Which variable to read, where a file holds several (MATLAB, NumPy archives, HDF5, netCDF).
    detector
        `vnir` or `swir`, where a product keeps them apart.
    axes
        What the stored axes are, slowest first, such as `yxb` or `byx`, where a file does not tell.
    shape_yx
        Rows and columns of a cube that is stored as a table of pixels.
    height_m
        Height of the ground above the ellipsoid at which a cube in sensor geometry is located (EnMAP and DESIS L1B).
    """

    nodata: Number | None = None
    scale: Number | None = None
    offset: Number | None = None
    quantity: str | None = None
    units: str | None = None
    wavelength_unit: str | None = None
    data_file: str | None = None
    header_offset: int | None = None
    allow_vrt: bool = False
    variable: str | None = None
    detector: str | None = None
    axes: str | None = None
    shape_yx: tuple[int, int] | None = None
    height_m: float | None = None
