"""Label rasters on a scene's own grid, read window by window.

With a CRS on both sides the labels are warped to the scene (nearest neighbour; the majority where they are finer).
A scene in sensor geometry takes georeferenced labels at the latitude and longitude of its pixels (nearest neighbour).
Without a place, as MATLAB and NumPy files are, they must have the scene's size, or an integer multiple of it of which
the majority is taken. The same reader serves split rasters.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform
from rasterio.windows import Window

from .errors import BandstreamWarning, FormatError, LabelError, SceneNotFoundError
from .ground import Geolocation, in_sensor_geometry, sample_nearest
from .readers.cube import file_stamp
from .readers.envi import class_table, find_header, read_header
from .readers.raster import open_quietly
from .scene import scene_crs, scene_transform

if TYPE_CHECKING:
    import xarray as xr

MAX_CLASS = 4096
#: Formats of labels and split rasters; none that refers to other files, as VRT does.
DRIVERS = ("GTiff", "ENVI", "HFA", "PNG", "AAIGrid", "EHdr")
#: Files of arrays without a place, by their ending.
ARRAY_FILES = (".mat", ".npy", ".npz")
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
    ground: Geolocation | None = (
        None  #: of a scene in sensor geometry, whose pixels sample georeferenced labels
    )
    variable: str | None = None  #: of a MATLAB or NumPy file

    @classmethod
    def on_grid(
        cls, path: Path, scene: xr.Dataset, unlabelled: int = 0, variable: str | None = None
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
        with _opened(path, variable) as raster:
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
            if raster.crs is not None and in_sensor_geometry(scene):
                return cls(str(path), shape, unlabelled, 1, None, Geolocation.of(scene))
            factor = raster.height // shape[0]
            if not factor or raster.shape != (shape[0] * factor, shape[1] * factor):
                raise LabelError(
                    f"The labels {path} have {raster.height} x {raster.width} pixels and the scene "
                    f"{scene.attrs.get('source')} has {shape[0]} x {shape[1]}. Without a CRS in both files labels must "
                    "have the scene's size or an integer multiple of it; give the label file the scene's CRS and "
                    "transform, or cut it to the scene."
                )
        return cls(str(path), shape, unlabelled, factor, None, None, variable)

    def read(self, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """Return the numbers (rows, cols) of a window inside the scene, 0 where there is no label.

        Raises
        ------
        LabelError
            A number is negative, too large or no whole number; its place is given.
        """
        f = self.factor
        if self.ground is not None:
            return self._sampled(self.ground, rows, cols)
        with _opened(Path(self.path), self.variable) as raster:
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

    def _sampled(self, ground: Geolocation, rows: slice, cols: slice) -> NDArray[np.uint16]:
        """Read the label in which each pixel's latitude and longitude lie."""
        lat, lon = ground.locations(rows, cols)
        with _opened(Path(self.path)) as raster:
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
    ) -> NDArray[np.uint16]:
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
        wrong = ~((values >= 0) & (values <= MAX_CLASS))
        if np.issubdtype(values.dtype, np.floating):
            wrong |= values != np.rint(values)
        if wrong.any():
            y, x = (int(n[0]) for n in np.nonzero(wrong))
            raise LabelError(
                f"The label file {self.path} holds {values[y, x]} at row {top + y}, column {left + x}"
                f"{' of the scene' if self.ground is not None else ''}; class numbers are "
                f"whole numbers from 1 to {MAX_CLASS}, and 0 (or labels.unlabelled) means no label."
            )
        return values.astype(np.uint16)

    def files(self) -> list[str]:
        """Return every file that decides the labels: the raster and what stands beside it (header, world file)."""
        with _opened(Path(self.path), self.variable) as raster:
            return sorted({self.path, *(str(name) for name in raster.files)})

    def colors(self) -> dict[int, str]:
        """Return the colours (``#rrggbb``) of the classes.

        They are told by the tag `class_colors`, an ENVI header's `class lookup`, or the file's colour table.
        """
        told = self._listed("class_colors") or self._envi(1)
        if told:
            return told
        with _opened(Path(self.path), self.variable) as raster:
            try:
                table = raster.colormap(1)
            except ValueError:
                return {}
        return {value: f"#{r:02x}{g:02x}{b:02x}" for value, (r, g, b, _) in table.items()}

    def names(self) -> dict[int, str]:
        """Return the names of the classes, as the tag `class_names` (a JSON list) or an ENVI header tells them."""
        return self._listed("class_names") or self._envi(0)

    def _envi(self, which: int) -> dict[int, str]:
        """Return names (0) or colours (1) of an ENVI class raster; its list begins with value 0, which is no class."""
        with _opened(Path(self.path), self.variable) as raster:
            header = find_header(self.path) if raster.driver == "ENVI" else None
        try:
            table = None if header is None else class_table(read_header(header))
        except FormatError as error:
            warnings.warn(f"The legend of the labels is not used: {error}", BandstreamWarning, stacklevel=3)
            table = None
        return {} if table is None else {n: item for n, item in enumerate(table[which]) if n > 0}

    def _listed(self, tag: str) -> dict[int, str]:
        with _opened(Path(self.path), self.variable) as raster:
            text = raster.tags().get(tag, "")
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return {n: str(item) for n, item in enumerate(found, 1)} if isinstance(found, list) else {}


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
    from .readers.planes import load_plane

    try:
        return load_plane(path, variable)
    except FormatError as error:
        raise LabelError(f"The label file {path} cannot be used: {error}") from error


@contextmanager
def _opened(path: Path, variable: str | None = None) -> Generator[Any]:
    if path.suffix.lower() in ARRAY_FILES:
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
