"""Label rasters on a scene's own grid, read window by window.

With a CRS on both sides the labels are warped to the scene (nearest neighbour; the majority where they are finer).
A scene in sensor geometry takes georeferenced labels at the latitude and longitude of its pixels (nearest neighbour,
also behind the stage `resample`: what its pixels cover on the ground is not known).
Without a place, as MATLAB and NumPy files are, they must have the scene's size, or an integer multiple of it of which
the majority is taken; behind `resample`, the size before will do where whole pixels were put together. The same reader
serves split rasters.
"""

from __future__ import annotations

import json
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform
from rasterio.windows import Window

from ..errors import BandstreamWarning, FormatError, LabelError, SceneNotFoundError
from ..ground import Geolocation, in_sensor_geometry, sample_nearest
from ..readers.envi import class_table, find_header, read_header
from ..scene import scene_crs, scene_transform
from ..storage import is_remote
from .planes import opened
from .protocol import MAX_CLASS

if TYPE_CHECKING:
    import xarray as xr

# from this ratio of pixel sides on the labels count as finer than the scene
_FINER = 1.5
_READ_PIXELS = 1 << 20  #: of finer labels that are held at once, but for one row of the scene


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
    ground: Geolocation | None = (
        None  #: of a scene in sensor geometry, whose pixels sample georeferenced labels
    )
    variable: str | None = None  #: of a MATLAB or NumPy file
    largest: int = MAX_CLASS  #: number that may occur

    @classmethod
    def on_grid(
        cls,
        path: Path,
        scene: xr.Dataset,
        unlabelled: int = 0,
        variable: str | None = None,
        largest: int = MAX_CLASS,
    ) -> LabelRaster:
        """Open a raster for the grid of `scene`.

        Parameters
        ----------
        path
            Raster, or a MATLAB or NumPy file.
        scene
            Georeferenced labels for a scene in sensor geometry are sampled (nearest) at its latitudes and longitudes.
        unlabelled
            Number that means "no label".
        variable
            Which array of a MATLAB or NumPy file, where it holds several.
        largest
            Number that may occur.

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
        with opened(path, variable) as raster:
            if raster.count != 1:
                raise LabelError(f"The label file {path} has {raster.count} bands; labels need exactly one.")
            placed = None if crs is None or transform is None or raster.crs is None else (crs, transform)
            if placed and (
                raster.shape != shape or raster.crs != placed[0] or not same_grid(raster.transform, placed[1])
            ):
                crs, transform = placed
                warp = (crs.to_wkt(), transform)
                factor = finer(raster, crs, transform)
                return cls(str(path), shape, unlabelled, factor, warp, largest=largest)
            if raster.crs is not None and in_sensor_geometry(scene):
                ground = Geolocation.of(scene)
                return cls(str(path), shape, unlabelled, 1, None, ground, largest=largest)
            factor = whole_factor(raster.shape, scene)
            if not factor:
                raise LabelError(
                    f"The labels {path} have {raster.height} x {raster.width} pixels and the scene "
                    f"{scene.attrs.get('source')} has {shape[0]} x {shape[1]}. Without a CRS in both files labels must "
                    "have the scene's size or an integer multiple of it; give the label file the scene's CRS and "
                    "transform, or cut it to the scene."
                )
        return cls(str(path), shape, unlabelled, factor, None, None, variable, largest)

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """Return the numbers (rows, cols) of a window inside the scene, 0 where there is no label.

        Raises
        ------
        LabelError
            A number is negative, too large or no whole number; its place is given.
        """
        return self.numbers(rows, cols).astype(np.uint16)

    def group_codes(self, rows: slice, cols: slice) -> NDArray[np.int32]:
        """Return zeros: class numbers tell of no groups."""
        return np.zeros((rows.stop - rows.start, cols.stop - cols.start), np.int32)

    @property
    def group_names(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def named(self) -> bool:
        """No: a raster holds numbers."""
        return False

    def numbers(self, rows: slice, cols: slice) -> NDArray[np.int64]:
        """Return what `read` does in a wider type, for a `largest` beyond it."""
        f = self.factor
        if self.ground is not None:
            return self._sampled(self.ground, rows, cols)
        # of finer labels many times as many pixels are read as the scene has
        step = max(1, _READ_PIXELS // max(1, (cols.stop - cols.start) * f * f)) if f > 1 else rows.stop
        found: list[NDArray[np.int64]] = []
        with opened(Path(self.path), self.variable) as raster, self._on_scene(raster) as view:
            for top in range(rows.start, rows.stop, max(1, step)):
                values = _window(view, slice(top, min(top + step, rows.stop)), cols, f)
                codes = self._codes(values, raster.nodata, top * f, cols.start * f)
                found.append(codes if f == 1 else _majority(codes, f))
        return np.concatenate(found) if found else np.zeros((0, cols.stop - cols.start), np.int64)

    def _on_scene(self, raster: Any) -> Any:
        """Return the raster on a grid as many times finer than the scene's as the labels are, by nearest neighbour."""
        if self.warp is None:
            return nullcontext(raster)
        wkt, transform = self.warp
        height, width = (n * self.factor for n in self.shape_yx)
        a, b, c, d, e, f = (float(v) for v in tuple(transform)[:6])
        fine = Affine(a / self.factor, b / self.factor, c, d / self.factor, e / self.factor, f)
        grid = {"crs": wkt, "transform": fine, "width": width, "height": height}
        # as good as exact, so that a label does not depend on the window it is read in (0 makes rasterio fail)
        return WarpedVRT(
            raster, resampling=Resampling.nearest, nodata=self._empty(raster), tolerance=1e-9, **grid
        )

    def _sampled(self, ground: Geolocation, rows: slice, cols: slice) -> NDArray[np.int64]:
        """Read the label in which each pixel's latitude and longitude lie."""
        lat, lon = ground.locations(rows, cols)
        with opened(Path(self.path)) as raster:
            values, inside = sample_nearest(
                lambda y, x: _window(raster, y, x, 1), raster.crs, raster.transform, raster.shape, lat, lon
            )
            return self._codes(values, raster.nodata, rows.start, cols.start, outside=~inside)

    def _empty(self, raster: Any) -> float:
        return self.unlabelled if raster.nodata is None else raster.nodata

    def _codes(
        self,
        values: NDArray[Any],
        empty: float | None,
        top: int,
        left: int,
        outside: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        if np.iscomplexobj(values):
            raise LabelError(
                f"The label file {self.path} holds complex numbers; class numbers are whole numbers."
            )
        blank = values == self.unlabelled
        if outside is not None:
            blank |= outside
        if empty is not None:
            blank |= values == empty if empty == empty else np.isnan(values)
        if self.unlabelled and bool(((values == 0) & ~blank).any()):
            raise LabelError(
                f"The label file {self.path} holds 0 though labels.unlabelled is {self.unlabelled}: classes are counted "
                "from 1, so that class 0 would be lost. Renumber the classes, or leave labels.unlabelled out."
            )
        values = np.where(blank, 0, values)
        wrong = ~((values >= 0) & (values <= self.largest))
        if np.issubdtype(values.dtype, np.floating):
            wrong |= values != np.rint(values)
        if wrong.any():
            y, x = (int(n[0]) for n in np.nonzero(wrong))
            raise LabelError(
                f"The label file {self.path} holds {values[y, x]} at row {top + y}, column {left + x}"
                f"{' of the scene' if self.ground is not None else ''}; class numbers are "
                f"whole numbers from 1 to {self.largest}, and 0 (or labels.unlabelled) means no label."
            )
        return values.astype(np.int64)

    def files(self) -> list[str]:
        """Return every file that decides the labels: the raster and what stands beside it (header, world file)."""
        return list(self._told[0])

    def names(self) -> dict[int, str]:
        """Return the names of the classes, as the tag `class_names` (a JSON list) or an ENVI header tells them."""
        return dict(self._told[1])

    def colors(self) -> dict[int, str]:
        """Return the colours (``#rrggbb``) of the classes.

        They are told by the tag `class_colors`, an ENVI header's `class lookup`, or the file's colour table.
        """
        return dict(self._told[2])

    @cached_property
    def _told(self) -> tuple[list[str], dict[int, str], dict[int, str]]:
        """What the file tells beside its numbers (files, names, colours), looked up once: many scenes ask often."""
        with opened(Path(self.path), self.variable) as raster:
            # of an object GDAL tells a name of its own
            beside = (str(name) for name in raster.files if not is_remote(self.path))
            files = sorted({self.path, *beside})
            names, colors = (_listed(raster, tag) for tag in ("class_names", "class_colors"))
            if not (names and colors) and raster.driver == "ENVI":
                legend = _envi_legend(self.path)
                names, colors = names or legend[0], colors or legend[1]
            return files, names, colors or _color_table(raster)


def _listed(raster: Any, tag: str) -> dict[int, str]:
    """Return a tag that holds a JSON list, by the numbers 1, 2, ..."""
    try:
        found = json.loads(raster.tags().get(tag, ""))
    except ValueError:
        return {}
    return {n: str(item) for n, item in enumerate(found, 1)} if isinstance(found, list) else {}


def _envi_legend(path: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return names and colours of an ENVI class raster; its list begins with value 0, which is no class."""
    header = find_header(path)
    try:
        table = None if header is None else class_table(read_header(header))
    except FormatError as error:
        warnings.warn(f"The legend of the labels is not used: {error}", BandstreamWarning, stacklevel=4)
        table = None
    if table is None:
        return {}, {}
    names, colors = ({n: item for n, item in enumerate(items) if n > 0} for items in table[:2])
    return names, colors


def _color_table(raster: Any) -> dict[int, str]:
    try:
        table = raster.colormap(1)
    except ValueError:
        return {}
    return {value: f"#{r:02x}{g:02x}{b:02x}" for value, (r, g, b, _) in table.items()}


def whole_factor(shape_yx: tuple[int, int], scene: xr.Dataset) -> int:
    """Return how many pixels of a raster without a place lie along a side of a scene's pixel; 0 if it does not fit."""
    before = scene.attrs.get("resampled_from_yx")
    if before is not None:
        # the last rows and columns may have made no whole pixel
        down, across = scene.attrs["resampled_by_yx"]
        times = shape_yx[0] // before[0]
        if times and shape_yx == (before[0] * times, before[1] * times) and down == across == int(down):
            return int(down) * times
    rows, cols = int(scene.sizes["y"]), int(scene.sizes["x"])
    times = shape_yx[0] // rows
    return times if shape_yx == (rows * times, cols * times) else 0


def finer(raster: Any, crs: CRS, transform: Affine) -> int:
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


def same_grid(a: Affine, b: Affine) -> bool:
    """Whether two grids agree to a thousandth of a pixel at the origin, and in their steps."""
    side = abs(b.determinant) ** 0.5
    steps = np.subtract(tuple(a)[:6], tuple(b)[:6]) / side
    return bool(np.all(np.abs(steps[[0, 1, 3, 4]]) < 1e-6) and np.all(np.abs(steps[[2, 5]]) < 1e-3))


def _majority(codes: NDArray[np.int64], factor: int) -> NDArray[np.int64]:
    """Return the commonest number of each factor x factor cell; the smallest of equally common ones."""
    rows, cols = codes.shape[0] // factor, codes.shape[1] // factor
    cells = codes.reshape(rows, factor, cols, factor).swapaxes(1, 2).reshape(rows, cols, factor * factor)
    cells.sort(axis=-1)
    # how many equal ones stand before each: the first place where that is most belongs to the smallest number
    place = np.arange(factor * factor)
    begins = np.where(np.diff(cells, axis=-1, prepend=-1) != 0, place, 0)
    longest = np.argmax(place - np.maximum.accumulate(begins, axis=-1), axis=-1)
    return np.take_along_axis(cells, longest[..., None], axis=-1)[..., 0]
