"""Opening the rasters and arrays that hold labels or targets, as rasterio opens files; none that refers to others."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rasterio.errors import RasterioError
from rasterio.windows import Window

from ..errors import FormatError, LabelError
from ..readers.cube import file_stamp
from ..readers.raster import open_quietly
from ..storage import is_remote, locate

#: Formats of labels and split rasters; none that refers to other files, as VRT does.
DRIVERS = ("GTiff", "ENVI", "HFA", "PNG", "AAIGrid", "EHdr")
#: Files of arrays without a place, by their ending.
ARRAY_FILES = (".mat", ".npy", ".npz")


class _Plane:
    """One array (y, x) of a MATLAB or NumPy file, as if rasterio had opened it."""

    count, crs, nodata, driver = 1, None, None, "array"

    def __init__(self, path: Path, variable: str | None) -> None:
        self._values = _load_plane(str(path), variable, file_stamp(str(path)))
        self.files = [str(path)]
        self.shape = self._values.shape
        self.height, self.width = self.shape

    def read(self, _band: int, window: Window) -> NDArray[Any]:
        rows, cols = window.toslices()
        return self._values[rows, cols]

    def tags(self) -> dict[str, str]:
        return {}

    def colormap(self, _band: int) -> Any:
        raise ValueError("an array has no colour table")


@lru_cache(maxsize=8)
def _load_plane(path: str, variable: str | None, _stamp: tuple[int, int]) -> NDArray[Any]:
    """Load an array once per process, as long as the file stays as it is: such label files are small."""
    from ..readers.planes import load_plane

    try:
        return load_plane(path, variable)
    except FormatError as error:
        raise LabelError(f"The label file {path} cannot be used: {error}") from error


@contextmanager
def opened(path: Path, variable: str | None = None) -> Generator[Any]:
    """Open a raster, or one array of a MATLAB or NumPy file, for reading as rasterio does.

    Raises
    ------
    LabelError
        It cannot be read, or may refer to other files.
    """
    path = locate(path)
    if path.suffix.lower() in ARRAY_FILES:
        if is_remote(path):
            raise LabelError(
                f"{path}: labels in MATLAB or NumPy files are not read from s3://; copy the file to a local disc."
            )
        yield _Plane(path, variable)
        return
    if variable is not None:
        raise LabelError(
            f"labels.variable = {variable!r} chooses an array of a MATLAB or NumPy file; {path} is none: leave it out."
        )
    try:
        with path.open("rb") as file:
            if file.read(256).lstrip().startswith(b"<"):
                # XML is how GDAL's formats that refer to other files and addresses are written
                raise LabelError(
                    f"The label file {path} is XML, which may refer to other files; give a raster."
                )
        with open_quietly(str(path)) as raster:
            if raster.driver not in DRIVERS:
                raise LabelError(
                    f"The label file {path} is read by GDAL as {raster.driver}; labels may be {', '.join(DRIVERS)}."
                )
            yield raster
    except RasterioError as error:
        raise LabelError(f"The label file {path} cannot be read as a raster: {error}") from error
