"""Label rasters on a scene's own grid, read window by window.

With a CRS on both sides the labels are warped to the scene (nearest neighbour; the majority where they are finer).
Without, they must have the scene's size, or an integer multiple of it of which the majority is taken. The same reader
serves split rasters.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform
from rasterio.windows import Window

from .errors import LabelError, SceneNotFoundError
from .scene import scene_crs, scene_transform

if TYPE_CHECKING:
    import xarray as xr

MAX_CLASS = 4096
#: Formats of labels and split rasters; none that refers to other files, as VRT does.
DRIVERS = ("GTiff", "ENVI", "HFA", "PNG", "AAIGrid", "EHdr")
# from this ratio of pixel sides on the labels count as finer than the scene
_FINER = 1.5


@dataclass(frozen=True)
class LabelRaster:
    """A raster of whole numbers, seen on the grid of one scene; picklable."""

    path: str
    shape_yx: tuple[int, int]  #: of the scene
    unlabelled: int
    factor: int  #: label pixels per scene pixel along a side, of which the majority is taken
    warp: (
        tuple[str, Affine] | None
    )  #: CRS (WKT) and transform of the scene, where the labels lie on another grid

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
            raise SceneNotFoundError(
                f"There is no label file {path} for the scene {scene.attrs.get('source')}."
            )
        shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
        crs, transform = scene_crs(scene), scene_transform(scene)
        with _opened(path) as raster:
            if raster.count != 1:
                raise LabelError(f"The label file {path} has {raster.count} bands; labels need exactly one.")
            placed = None if crs is None or transform is None or raster.crs is None else (crs, transform)
            if placed and (
                raster.shape != shape or raster.crs != placed[0] or not _same(raster.transform, placed[1])
            ):
                crs, transform = placed
                return cls(
                    str(path), shape, unlabelled, _finer(raster, crs, transform), (crs.to_wkt(), transform)
                )
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
        f = self.factor
        with _opened(Path(self.path)) as raster:
            values = self._warped(raster, rows, cols) if self.warp else _window(raster, rows, cols, f)
            empty = raster.nodata
        codes = self._codes(values, empty, rows.start * f, cols.start * f)
        return codes if f == 1 else _majority(codes, f)

    def _warped(self, raster: Any, rows: slice, cols: slice) -> NDArray[Any]:
        """Read by nearest neighbour, on a grid as many times finer than the scene's as the labels are."""
        assert self.warp is not None
        wkt, transform = self.warp
        height, width = (n * self.factor for n in self.shape_yx)
        a, b, c, d, e, f = (float(v) for v in tuple(transform)[:6])
        fine = Affine(a / self.factor, b / self.factor, c, d / self.factor, e / self.factor, f)
        grid = {"crs": wkt, "transform": fine, "width": width, "height": height}
        with WarpedVRT(raster, resampling=Resampling.nearest, nodata=self._empty(raster), **grid) as view:
            return _window(view, rows, cols, self.factor)

    def _empty(self, raster: Any) -> float:
        return self.unlabelled if raster.nodata is None else raster.nodata

    def _codes(self, values: NDArray[Any], empty: float | None, top: int, left: int) -> NDArray[np.uint16]:
        if np.iscomplexobj(values):
            raise LabelError(
                f"The label file {self.path} holds complex numbers; class numbers are whole numbers."
            )
        blank = values == self.unlabelled
        if empty is not None:
            blank |= values == empty if empty == empty else np.isnan(values)
        if self.unlabelled and bool(((values == 0) & ~blank).any()):
            raise LabelError(
                f"The label file {self.path} holds 0 though labels.unlabelled is {self.unlabelled}: classes are counted "
                "from 1, so that class 0 would be lost. Renumber the classes, or leave labels.unlabelled out."
            )
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

    def files(self) -> list[str]:
        """Return every file that decides the labels: the raster and what stands beside it (header, world file)."""
        with _opened(Path(self.path)) as raster:
            return sorted({self.path, *(str(name) for name in raster.files)})

    def colors(self) -> dict[int, str]:
        """Return the colours (``#rrggbb``) of the classes: the tag `class_colors`, or else the file's colour table."""
        told = self._listed("class_colors")
        if told:
            return told
        with _opened(Path(self.path)) as raster:
            try:
                table = raster.colormap(1)
            except ValueError:
                return {}
        return {value: f"#{r:02x}{g:02x}{b:02x}" for value, (r, g, b, _) in table.items()}

    def names(self) -> dict[int, str]:
        """Return the names of the classes, as the tag `class_names` (a JSON list) tells them."""
        return self._listed("class_names")

    def _listed(self, tag: str) -> dict[int, str]:
        with _opened(Path(self.path)) as raster:
            text = raster.tags().get(tag, "")
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return {n: str(item) for n, item in enumerate(found, 1)} if isinstance(found, list) else {}


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    with warnings.catch_warnings():
        # labels without a CRS are common and dealt with above
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            with path.open("rb") as file:
                if file.read(256).lstrip().startswith(b"<"):
                    # XML is how GDAL's formats that refer to other files and addresses are written
                    raise LabelError(
                        f"The label file {path} is XML, which may refer to other files; give a raster."
                    )
            with rasterio.open(path) as raster:
                if raster.driver not in DRIVERS:
                    raise LabelError(
                        f"The label file {path} is read by GDAL as {raster.driver}; labels may be {', '.join(DRIVERS)}."
                    )
                yield raster
        except RasterioError as error:
            raise LabelError(f"The label file {path} cannot be read as a raster: {error}") from error


def _finer(raster: Any, crs: Any, transform: Affine) -> int:
    """Return how many label pixels lie along a side of a scene pixel, 1 where they are not clearly finer."""
    place, _, _ = calculate_default_transform(raster.crs, crs, raster.width, raster.height, *raster.bounds)
    ratio = (abs(transform.determinant) / abs(place.determinant)) ** 0.5
    return round(ratio) if ratio >= _FINER else 1


def _window(raster: Any, rows: slice, cols: slice, factor: int) -> NDArray[Any]:
    span = [
        number * factor for number in (cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)
    ]
    window = Window(*span)  # pyright: ignore[reportCallIssue] - an attrs class without stubs
    return np.asarray(raster.read(1, window=window))


def _same(a: Affine, b: Affine) -> bool:
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
