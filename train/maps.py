"""Maps as files, the scenes of a store put together again, and the comparison of a map with labels."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dask.array as da
import numpy as np
import rasterio
from dask.delayed import delayed
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import Affine

from ..pipeline.errors import ConfigError
from ..pipeline.geolocation import OrthoGrid
from ..pipeline.progress import progress
from ..pipeline.scene import make_scene, scene_crs, scene_transform
from ..pipeline.store import SPLITS, PatchStore
from .metrics import confusion_of, scores

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

_BLOCK = 256  #: side of the GeoTIFF's own tiles


def probability_path(out_tif: Path) -> Path:
    """Return where the probabilities of a map go."""
    return out_tif.with_name(f"{out_tif.stem}_probabilities.tif")


def sensor_path(out_tif: Path) -> Path:
    """Return where the map of a scene in sensor geometry goes as the sensor saw it."""
    return out_tif.with_name(f"{out_tif.stem}_sensor.tif")


def map_outputs(target: Path, *, sensor: bool, probabilities: bool) -> list[Path]:
    """Return every file that a map becomes, the map itself first; `sensor`: the scene is in sensor geometry."""
    maps = [target, *([sensor_path(target)] if sensor else [])]
    return [*maps, *(probability_path(path) for path in maps if probabilities)]


@contextmanager
def map_files(
    target: Path, transformed: xr.Dataset, store: PatchStore, probabilities: bool
) -> Generator[tuple[Any, Any | None]]:
    """Open the map (and the probabilities) under temporary names; renamed when all went well, else removed."""
    place = scene_transform(transformed)
    profile: dict[str, Any] = {
        "driver": "GTiff",
        "height": int(transformed.sizes["y"]),
        "width": int(transformed.sizes["x"]),
        "crs": scene_crs(transformed),
        "tiled": True,
        "blockxsize": _BLOCK,
        "blockysize": _BLOCK,
        "compress": "deflate",
        "bigtiff": "if_safer",
        **({} if place is None else {"transform": place}),
    }
    codes: dict[str, Any] = {"count": 1, "dtype": "uint8" if store.classes < 256 else "uint16", "nodata": 0}
    shares: dict[str, Any] = {
        "count": store.classes,
        "dtype": "float32",
        "nodata": float("nan"),
        "predictor": 3,
    }
    wanted = [(target, codes)] + ([(probability_path(target), shares)] if probabilities else [])
    hidden = [path.with_name(f".{path.stem}.partial.tif") for path, _ in wanted]
    try:
        with warnings.catch_warnings():
            # scenes without a CRS are common, and the map is as they are
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            rasters = [
                rasterio.open(path, "w", **profile, **own)
                for path, (_, own) in zip(hidden, wanted, strict=True)
            ]
            try:
                _describe(rasters, store)
                yield rasters[0], rasters[1] if probabilities else None
            finally:
                for raster in rasters:
                    raster.close()
        for path, (final, _) in zip(hidden, wanted, strict=True):
            path.replace(final)
    finally:
        for path in hidden:
            path.unlink(missing_ok=True)


def orthorectified(source: Path, target: Path, grid: OrthoGrid, *, quiet: bool = True) -> None:
    """Bring a raster in sensor geometry onto a map grid (nearest neighbour), with its names, colours and tags."""
    hidden = target.with_name(f".{target.stem}.partial.tif")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(source) as raster:
                height, width = grid.shape_yx
                profile: dict[str, Any] = {**raster.profile, "bigtiff": "if_safer"}
                profile |= {"crs": grid.crs, "transform": grid.transform, "height": height, "width": width}
                with rasterio.open(hidden, "w", **profile) as out:
                    _copy_words(raster, out)
                    _fill(raster, out, grid, quiet=quiet)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)


def _copy_words(raster: Any, out: Any) -> None:
    """Copy what a map says about itself."""
    out.update_tags(**{key: value for key, value in raster.tags().items() if key != "AREA_OR_POINT"})
    out.descriptions = raster.descriptions
    if raster.count == 1 and raster.dtypes[0] in {"uint8", "uint16"}:
        out.write_colormap(1, raster.colormap(1))


def _fill(raster: Any, out: Any, grid: OrthoGrid, *, quiet: bool) -> None:
    def read(rows: slice, cols: slice) -> NDArray[Any]:
        return raster.read(window=((rows.start, rows.stop), (cols.start, cols.stop)))

    with progress("orthorectifying", grid.shape_yx[0], quiet=quiet) as bar:
        for rows, cols in grid.windows():
            piece = grid.take(read, rows, cols, raster.nodata)
            out.write(piece, window=((rows.start, rows.stop), (cols.start, cols.stop)))
            if cols.start == 0:
                bar.advance(rows.stop - rows.start)


def _describe(rasters: list[Any], store: PatchStore) -> None:
    """Put class names, colours and provenance into the files."""
    names = dict(enumerate(store.class_names, start=1))
    first = rasters[0]
    first.set_band_description(1, "class")
    first.write_colormap(
        1, {0: (0, 0, 0, 0), **{k: _rgba(c) for k, c in enumerate(store.class_colors, start=1)}}
    )
    # the tags that label files carry too, so that a map can serve as labels
    first.update_tags(class_names=json.dumps(store.class_names), class_colors=json.dumps(store.class_colors))
    for raster in rasters:
        raster.update_tags(bandstream_store=store.fingerprint, bandstream_store_name=store.name)
    for raster in rasters[1:]:
        for k, name in names.items():
            raster.set_band_description(k, name)


def _rgba(color: str) -> tuple[int, int, int, int]:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue, 255


def check_outputs(outputs: Sequence[Path], inputs: Sequence[str | Path]) -> None:
    """Refuse outputs that would replace an input or each other, or that cannot be written, before any work.

    Raises
    ------
    ConfigError
        Names the output.
    """
    taken = {Path(name).resolve() for name in inputs}
    for path in outputs:
        if path.resolve() in taken:
            raise ConfigError(f"The output {path} is an input too, or stands twice; choose another name.")
        taken.add(path.resolve())
        if path.is_dir():
            raise ConfigError(f"The output {path} is a folder; give the name of a file in it.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The folder of the output {path} cannot be made: {error}.") from error
        if not os.access(path.parent, os.W_OK):
            raise ConfigError(f"The folder of the output {path} cannot be written to.")


def read_map(path: str | Path) -> NDArray[Any]:
    """Return the class numbers (y, x) of a map or of any other single-band raster of classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path) as raster:
            return cast("NDArray[Any]", raster.read(1))


def stored_scene(store: PatchStore, scene: int) -> xr.Dataset:
    """Put a scene's transformed pixels together again from the cores of its tiles, lazily.

    The same as `bandstream.pipeline.transform` of the scene's own file, without needing that file.

    Returns
    -------
    xarray.Dataset
        `data(y, x, band)` float32, `valid(y, x)` bool, with CRS and transform where the store has them.
    """
    grid = store.scenes[scene]
    size = store.tile_size
    rows = [min(size, grid.shape_yx[0] - top) for top in range(0, grid.shape_yx[0], size)]
    shape = {"data": (store.bands,), "valid": ()}
    parts: dict[str, da.Array] = {}
    for name, more in shape.items():
        dtype = store.array(name).dtype
        strips = [
            da.from_delayed(
                delayed(_strip)(store, name, scene, number * size),
                (count, grid.shape_yx[1], *more),
                dtype,
            )
            for number, count in enumerate(rows)
        ]
        parts[name] = da.concatenate(strips)
    return make_scene(
        parts["data"],
        crs=CRS.from_wkt(grid.crs_wkt) if grid.crs_wkt else None,
        transform=Affine(*grid.transform) if grid.transform else None,
        valid_yx=parts["valid"],
        scene_id=grid.scene_id,
    )


def store_layer(store: PatchStore, name: str, scene: int) -> NDArray[Any]:
    """Put a layer of a scene together again from the cores of its tiles: `labels`, `split` or `valid` (y, x)."""
    height = store.scenes[scene].shape_yx[0]
    return np.concatenate([_strip(store, name, scene, top) for top in range(0, height, store.tile_size)])


def _strip(store: PatchStore, name: str, scene: int, top: int) -> NDArray[Any]:
    """Return one row of tiles, without halo: (y, x), for `data` (y, x, band)."""
    height, width = store.scenes[scene].shape_yx
    size, halo, index = store.tile_size, store.halo, store.index
    more = (store.bands,) if name == "data" else ()
    strip = np.zeros((min(size, height - top), width, *more), store.array(name).dtype)
    for number in np.flatnonzero((index.scene == scene) & (index.row == top)).tolist():
        left = int(index.col[number])
        core = store.read_tiles(name, number, number + 1)[0][..., halo : halo + size, halo : halo + size]
        core = np.moveaxis(core, 0, -1) if name == "data" else core
        strip[:, left : left + size] = core[: len(strip), : width - left]
    return strip


def scene_number(store: PatchStore, scene: xr.Dataset) -> int | None:
    """Return the number of a scene in a store: the same files by content, whatever their names; None if it is none.

    Names and places do not tell: scenes of one name and size are common, and then a map would be scored with the labels
    of another scene.
    """
    shape = (int(scene.sizes["y"]), int(scene.sizes["x"]))
    alike = [number for number, grid in enumerate(store.scenes) if grid.shape_yx == shape]
    return store.find_scene(scene.attrs.get("files", []), alike) if alike else None


def score_map(
    predicted: NDArray[Any], truth: NDArray[Any], classes: int, split: NDArray[np.uint8] | None = None
) -> dict[str, Any]:
    """Compare a class map with labels, 0 = none in both.

    Parameters
    ----------
    predicted, truth
        (y, x) class numbers from 1.
    classes
        Number of classes.
    split
        (y, x) split codes where the scene belongs to the run's store; scores are then given per split too. Only the
        test split tells how the map does elsewhere.

    Returns
    -------
    dict
        `all`, and the names of the splits that have labels: oa, aa, kappa, macro_f1, pixels.
    """
    parts: dict[str, NDArray[np.bool_]] = {"all": np.ones(truth.shape, bool)}
    if split is not None:
        parts |= {name: split == code for code, name in enumerate(SPLITS) if code and (split == code).any()}
    found = {name: scores(confusion_of(truth * part, predicted, classes)) for name, part in parts.items()}
    return {name: value.line() for name, value in found.items() if value.pixels}
