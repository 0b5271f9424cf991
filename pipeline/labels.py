"""Label rasters on a scene's own grid, read window by window.

With a CRS on both sides the labels are warped to the scene (nearest neighbour; the majority where they are finer).
Without, they must have the scene's size, or an integer multiple of it of which the majority is taken. The same reader
serves split rasters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from .errors import LabelError, SceneNotFoundError
from .scene import scene_crs, scene_transform

if TYPE_CHECKING:
    import xarray as xr

MAX_CLASS = 65534
# from this ratio of pixel sides on the labels count as finer than the scene
_FINER = 1.5


@dataclass(frozen=True)
class LabelRaster:
    """A raster of whole numbers, seen on the grid of one scene; picklable."""

    path: str
    shape_yx: tuple[int, int]  #: of the scene
    unlabelled: int
    factor: int  #: label pixels per scene pixel along a side, without a CRS
    warp: tuple[str, tuple[float, ...], bool] | None  #: CRS (WKT) and transform of the scene, majority or nearest

    @classmethod
    def on_grid(cls, path: Path, scene: xr.Dataset, unlabelled: int = 0) -> LabelRaster:
        """Open a raster for the grid of `scene`.

        Raises
        ------
        SceneNotFoundError
            There is no such file.
        LabelError
            It cannot be read, has several bands, or does not fit the scene.
        """
        if not path.is_file():
            raise SceneNotFoundError(f"There is no label file {path} for the scene {scene.attrs.get('source')}.")
        shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
        crs, transform = scene_crs(scene), scene_transform(scene)
        with _opened(path) as raster:
            if raster.count != 1:
                raise LabelError(f"The label file {path} has {raster.count} bands; labels need exactly one.")
            placed = crs is not None and transform is not None and raster.crs is not None
            if placed and (raster.shape != shape or raster.crs != crs or not _same(raster.transform, transform)):
                assert crs is not None and transform is not None
                side = abs(transform.determinant) ** 0.5
                finer = raster.crs == crs and side / abs(raster.transform.determinant) ** 0.5 >= _FINER
                return cls(str(path), shape, unlabelled, 1, (crs.to_wkt(), tuple(transform)[:6], finer))
            factor = raster.height // shape[0]
            if not factor or raster.shape != (shape[0] * factor, shape[1] * factor):
                raise LabelError(
                    f"The labels {path} have {raster.height} x {raster.width} pixels and the scene "
                    f"{scene.attrs.get('source')} has {shape[0]} x {shape[1]}. Without a CRS in both files labels must "
                    "have the scene's size or an integer multiple of it; give the label file the scene's CRS and "
                    "transform, or cut it to the scene."
                )
        return cls(str(path), shape, unlabelled, factor, None)

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """Return the numbers (rows, cols) of a window inside the scene, 0 where there is no label.

        Raises
        ------
        LabelError
            A number is negative, too large or no whole number; its place is given.
        """
        height, width = rows.stop - rows.start, cols.stop - cols.start
        with _opened(Path(self.path)) as raster:
            if self.warp:
                wkt, transform, majority = self.warp
                how = Resampling.mode if majority else Resampling.nearest
                with WarpedVRT(
                    raster,
                    crs=wkt,
                    transform=rasterio.Affine(*transform),
                    width=self.shape_yx[1],
                    height=self.shape_yx[0],
                    resampling=how,
                    nodata=self._empty(raster),
                ) as view:
                    values = view.read(1, window=Window(cols.start, rows.start, width, height))
            else:
                f = self.factor
                window = Window(cols.start * f, rows.start * f, width * f, height * f)
                values = raster.read(1, window=window)
            empty = raster.nodata
        codes = self._codes(values, empty, rows.start * self.factor, cols.start * self.factor)
        return codes if self.factor == 1 else _majority(codes, self.factor)

    def _empty(self, raster: Any) -> float:
        return self.unlabelled if raster.nodata is None else raster.nodata

    def _codes(self, values: NDArray[Any], empty: float | None, top: int, left: int) -> NDArray[np.uint16]:
        blank = values == self.unlabelled
        if empty is not None:
            blank |= values == empty if empty == empty else np.isnan(values)
        values = np.where(blank, 0, values)
        wrong = ~((values >= 0) & (values <= MAX_CLASS))
        if np.issubdtype(values.dtype, np.floating):
            wrong |= values != np.rint(values)
        if wrong.any():
            y, x = (int(n[0]) for n in np.nonzero(wrong))
            raise LabelError(
                f"The label file {self.path} holds {values[y, x]} at row {top + y}, column {left + x}; class numbers are "
                f"whole numbers from 1 to {MAX_CLASS}, and 0 (or labels.unlabelled) means no label."
            )
        return values.astype(np.uint16)

    def colors(self) -> dict[int, str]:
        """Return the colours (``#rrggbb``) of the file's colour table by class, as far as there is one."""
        with _opened(Path(self.path)) as raster:
            try:
                table = raster.colormap(1)
            except ValueError:
                return {}
        return {value: f"#{r:02x}{g:02x}{b:02x}" for value, (r, g, b, _) in table.items()}

    def names(self) -> dict[int, str]:
        """Return the class names that the file's tags tell (``class_1=...``) by class."""
        with _opened(Path(self.path)) as raster:
            tags = {**raster.tags(), **raster.tags(1)}
        prefix = "class_"
        return {
            int(key[len(prefix) :]): value
            for key, value in tags.items()
            if key.lower().startswith(prefix) and key[len(prefix) :].isdecimal()
        }


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with warnings.catch_warnings():
        # labels without a CRS are common and dealt with above
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            with rasterio.open(path) as raster:
                yield raster
        except RasterioError as error:
            raise LabelError(f"The label file {path} cannot be read as a raster: {error}") from error


def _same(a: rasterio.Affine, b: rasterio.Affine) -> bool:
    """Whether two grids agree to a thousandth of a pixel at the origin, and in their steps."""
    side = abs(b.determinant) ** 0.5
    steps = np.subtract(tuple(a)[:6], tuple(b)[:6]) / side
    return bool(np.all(np.abs(steps[[0, 1, 3, 4]]) < 1e-6) and np.all(np.abs(steps[[2, 5]]) < 1e-3))


def _majority(codes: NDArray[np.uint16], factor: int) -> NDArray[np.uint16]:
    """Return the commonest number of each factor x factor cell; the smallest of equally common ones."""
    rows, cols = codes.shape[0] // factor, codes.shape[1] // factor
    cells = codes.reshape(rows, factor, cols, factor).swapaxes(1, 2).reshape(rows, cols, factor * factor)
    cells = np.sort(cells, axis=-1)
    best = np.zeros((rows, cols), np.uint16)
    most = np.zeros((rows, cols), np.int64)
    for position in range(cells.shape[-1]):
        value = cells[..., position]
        count = (cells == value[..., None]).sum(axis=-1)
        better = count > most
        best, most = np.where(better, value, best), np.where(better, count, most)
    return best.astype(np.uint16)
