"""Targets: numbers to learn per pixel, such as leaf area index or abundances, on a scene's own grid.

Rasters with a CRS are warped to the scene: by the average where they are finer, else bilinear. A scene in sensor
geometry takes the layer's pixel in which each of its own lies (nearest). Without a place, as MATLAB and NumPy files
are, layers must have the scene's size, or an integer multiple of it of which the mean is taken; tables (targets x
pixels) and arrays with the targets first or last are unfolded. What is not known is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from ..errors import FormatError, LabelError, SceneNotFoundError
from ..ground import Geolocation, in_sensor_geometry, sample_nearest
from ..scene import scene_crs, scene_transform
from ..storage import is_remote, locate
from .planes import ARRAY_FILES, opened
from .raster import finer, same_grid, whole_factor

if TYPE_CHECKING:
    import xarray as xr

    from .config import TargetsConfig

F4 = NDArray[np.float32]
MAX_TARGETS = 256
"""Most targets of a workflow; more are an image, not what is known of one."""


@dataclass(frozen=True)
class _Layers:
    """The layers of one file, seen on the grid of one scene; picklable."""

    path: str
    names: tuple[str, ...]  #: empty text where the file tells none
    shape_yx: tuple[int, int]  #: of the scene
    nodata: float | None  #: that the user gave
    factor: int = 1  #: layer pixels per scene pixel along a side, of which the mean is taken
    warp: tuple[str, Affine, bool] | None = None  #: CRS (WKT) and transform of the scene; whether to average
    ground: Geolocation | None = None  #: of a scene in sensor geometry
    data: da.Array | None = None  #: (y, x, layer) of an array file

    def read(self, rows: slice, cols: slice) -> F4:
        """Return a window (layer, y, x), NaN where nothing is known."""
        if self.data is not None:
            f = self.factor
            window = self.data[rows.start * f : rows.stop * f, cols.start * f : cols.stop * f]
            # on this thread: it may already be one of Dask's own
            (values,) = dask.compute(window, scheduler="synchronous")
            return _mean(self._known(np.moveaxis(np.asarray(values), -1, 0), [None] * len(self.names)), f)
        with opened(locate(self.path)) as raster:
            if self.warp is not None:
                return self._warped(raster, rows, cols)
            if self.ground is not None:
                return self._sampled(raster, self.ground, rows, cols)
            f = self.factor
            span = [n * f for n in (cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)]
            window = Window(*span)  # pyright: ignore[reportCallIssue] - an attrs class without stubs
            return _mean(self._scaled(raster, raster.read(window=window)), f)

    def _warped(self, raster: Any, rows: slice, cols: slice) -> F4:
        assert self.warp is not None
        wkt, transform, average = self.warp
        nodata = self.nodata if self.nodata is not None else raster.nodata
        with WarpedVRT(
            raster,
            crs=wkt,
            transform=transform,
            height=self.shape_yx[0],
            width=self.shape_yx[1],
            resampling=Resampling.average if average else Resampling.bilinear,
            src_nodata=nodata,
            nodata=np.nan,
            dtype="float64",
            # as good as exact, so that a number does not depend on the window it is read in (0 makes rasterio fail)
            tolerance=1e-9,
        ) as view:
            span = (cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)
            window = Window(*span)  # pyright: ignore[reportCallIssue] - an attrs class without stubs
            values = np.asarray(view.read(window=window), np.float64)
        return _unscaled(raster, values).astype(np.float32)

    def _sampled(self, raster: Any, ground: Geolocation, rows: slice, cols: slice) -> F4:
        lat, lon = ground.locations(rows, cols)
        layers: list[NDArray[Any]] = []
        for band in range(1, raster.count + 1):

            def read(y: slice, x: slice, band: int = band) -> NDArray[Any]:
                span = (x.start, y.start, x.stop - x.start, y.stop - y.start)
                window = Window(*span)  # pyright: ignore[reportCallIssue] - an attrs class without stubs
                return np.asarray(raster.read(band, window=window), np.float64)

            values, inside = sample_nearest(read, raster.crs, raster.transform, raster.shape, lat, lon)
            layers.append(np.where(inside, values, np.nan))
        return self._scaled(raster, np.stack(layers))

    def _scaled(self, raster: Any, values: NDArray[Any]) -> F4:
        return _unscaled(raster, self._known(values, raster.nodatavals)).astype(np.float32)

    def _known(self, values: NDArray[Any], told: Sequence[float | None]) -> NDArray[np.float64]:
        """Return the layers (layer, y, x) with NaN for nodata, as the user gave it or else the file tells it."""
        found = values.astype(np.float64)
        for layer, of_file in enumerate(told):
            nodata = self.nodata if self.nodata is not None else of_file
            if nodata is not None:
                # compared in the file's own type: 0.1 in float32 is not 0.1
                own = values.dtype.type(nodata) if values.dtype.kind == "f" else nodata
                found[layer][values[layer] == own] = np.nan
        found[~np.isfinite(found)] = np.nan
        return found


def _unscaled(raster: Any, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply the scale and offset that a file tells for its layers."""
    scales, offsets = (
        np.asarray(told, np.float64)[:, None, None] for told in (raster.scales, raster.offsets)
    )
    return values * scales + offsets


def _mean(values: NDArray[np.float64] | F4, factor: int) -> F4:
    """Return the mean of what is known in each factor x factor cell of (layer, y, x)."""
    if factor == 1:
        return values.astype(np.float32)
    layers, rows, cols = values.shape
    cells = values.astype(np.float64).reshape(layers, rows // factor, factor, cols // factor, factor)
    known = np.isfinite(cells)
    count = known.sum(axis=(2, 4))
    total = np.where(known, cells, 0.0).sum(axis=(2, 4))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


@dataclass(frozen=True)
class Targets:
    """All targets of one scene; picklable."""

    layers: tuple[_Layers, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]

    @classmethod
    def on_grid(cls, paths: Sequence[Path], scene: xr.Dataset, config: TargetsConfig) -> Targets:
        """Open layers for the grid of `scene`.

        Parameters
        ----------
        paths
            Rasters, or MATLAB or NumPy files.
        scene
            The scene.
        config
            Names, units, nodata.

        Raises
        ------
        SceneNotFoundError
            A file is not there.
        LabelError
            One cannot be read or does not fit the scene, or the names do not go with the layers.
        """
        layers = tuple(_open(path, scene, config) for path in paths)
        told = [name for layer in layers for name in layer.names]
        if len(told) > MAX_TARGETS:
            raise LabelError(f"The targets have {len(told)} layers; at most {MAX_TARGETS} are allowed.")
        if config.names is not None and len(config.names) != len(told):
            raise LabelError(
                f"targets.names has {len(config.names)} names and the files of {scene.attrs.get('source')} hold "
                f"{len(told)} layers ({', '.join(str(path) for path in paths)}); give one for each."
            )
        names = config.names or [name or f"target {number}" for number, name in enumerate(told, 1)]
        if len(set(names)) != len(names):
            names = [f"target {number}" for number in range(1, len(told) + 1)]
        units = [config.units] * len(told) if isinstance(config.units, str) else config.units
        if len(units) != len(told):
            raise LabelError(
                f"targets.units has {len(units)} entries for {len(told)} layers; give one for each."
            )
        return cls(layers, tuple(names), tuple(units))

    def read(self, rows: slice, cols: slice) -> F4:
        """Return the targets (target, y, x) of a window inside the scene, NaN where they are not known.

        Raises
        ------
        LabelError
            A file cannot be read.
        """
        return np.concatenate([layer.read(rows, cols) for layer in self.layers])

    def window_bytes(self, pixels: int) -> int:
        """Return an upper bound of the memory that reading a window of so many pixels takes, in bytes."""
        arrays = [layer.data for layer in self.layers if layer.data is not None]
        held = [int(np.prod(data.shape)) * data.dtype.itemsize for data in arrays]
        # as read, in float64 with the mask of nodata, and the parts put together
        return sum(held) + sum(
            len(item.names) * item.factor**2 * pixels * (8 + 8 + 8) for item in self.layers
        )

    def files(self) -> list[str]:
        """Return every file that decides the targets."""
        found: list[str] = []
        for layer in self.layers:
            if layer.data is not None:
                found.append(layer.path)
                continue
            with opened(locate(layer.path)) as raster:
                beside = (str(name) for name in raster.files if not is_remote(layer.path))
                found += sorted({layer.path, *beside})
        return found


def require_same_targets(found: Sequence[Targets | None]) -> None:
    """Refuse scenes whose targets have different names or units; scenes without any are well.

    Raises
    ------
    LabelError
        Says which differ.
    """
    told = [item for item in found if item is not None]
    for item in told[1:]:
        if (item.names, item.units) != (told[0].names, told[0].units):
            raise LabelError(
                f"The targets of the scenes differ: {', '.join(told[0].names)} in {told[0].layers[0].path} and "
                f"{', '.join(item.names)} in {item.layers[0].path}; give the same targets.names and units."
            )


def _open(path: Path, scene: xr.Dataset, config: TargetsConfig) -> _Layers:
    if not path.is_file():
        raise SceneNotFoundError(f"There is no target file {path} for the scene {scene.attrs.get('source')}.")
    shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    if path.suffix.lower() in ARRAY_FILES:
        if is_remote(path):
            raise LabelError(
                f"{path}: targets in MATLAB or NumPy files are not read from s3://; copy the file to a local disc."
            )
        return _open_array(path, scene, config)
    if config.variable is not None:
        raise LabelError(
            f"targets.variable chooses an array of a MATLAB or NumPy file; {path} is none: leave it out."
        )
    crs, transform = scene_crs(scene), scene_transform(scene)
    with opened(path) as raster:
        if any(np.dtype(kind).kind not in "iuf" for kind in raster.dtypes):
            raise LabelError(f"The targets {path} hold {raster.dtypes[0]}; they must be real numbers.")
        names = tuple(str(text or "").strip() for text in raster.descriptions)
        made = _Layers(str(path), names, shape, config.nodata)
        if raster.crs is not None and in_sensor_geometry(scene):
            return replace(made, ground=Geolocation.of(scene))
        if crs is not None and transform is not None and raster.crs is not None:
            if raster.shape == shape and raster.crs == crs and same_grid(raster.transform, transform):
                return made
            return replace(made, warp=(crs.to_wkt(), transform, finer(raster, crs, transform) > 1))
        return replace(made, factor=_factor(path, raster.shape, scene))


def _factor(path: Path, shape_yx: tuple[int, int], scene: xr.Dataset) -> int:
    factor = whole_factor(shape_yx, scene)
    if not factor:
        shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
        raise LabelError(
            f"The targets {path} have {shape_yx[0]} x {shape_yx[1]} pixels and the scene {scene.attrs.get('source')} has "
            f"{shape[0]} x {shape[1]}. Without a CRS in both files targets must have the scene's size or an integer "
            "multiple of it."
        )
    return factor


def _open_array(path: Path, scene: xr.Dataset, config: TargetsConfig) -> _Layers:
    """Open a plane, a cube or a table of a MATLAB or NumPy file."""
    from ..readers import open_scene
    from ..readers.planes import load_plane

    shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    problem: FormatError | None = None
    for axes in (None, "byx"):
        try:
            cube = open_scene(path, variable=config.variable, shape_yx=shape, axes=axes)
        except FormatError as error:
            problem = problem or error
            continue
        data = da.asarray(cube["data"].data)
        return _Layers(str(path), ("",) * int(data.shape[2]), shape, config.nodata, data=data)
    try:
        plane = load_plane(path, config.variable)
    except FormatError as error:
        raise LabelError(
            f"The targets {path} cannot be used for a scene of {shape[0]} x {shape[1]} pixels: {problem or error}"
        ) from error
    factor = _factor(path, plane.shape, scene)
    data = da.asarray(plane)[:, :, None]
    return _Layers(str(path), ("",), shape, config.nodata, factor, data=data)
