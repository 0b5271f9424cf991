"""Scenes and class maps to files: ENVI, GeoTIFF, cloud-optimised GeoTIFF, netCDF-4 and Zarr.

`write_scene` keeps the numbers as they are, with everything that the format can say about them; what it cannot say is
told in one warning, never dropped in silence. Cubes are streamed in blocks of rows. A file is written under another
name and renamed when it is whole.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BandstreamWarning, ConfigError, SceneError
from ..scene import check_scene

if TYPE_CHECKING:
    import xarray as xr
    from affine import Affine
    from rasterio.crs import CRS

__all__ = ["FORMATS", "write_class_map", "write_scene"]

FORMATS = {
    "envi": (".hdr", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip"),
    "geotiff": (".tif", ".tiff", ".gtiff"),
    "cog": (),
    "netcdf": (".nc", ".nc4"),
    "zarr": (".zarr",),
}
"""Formats, with the endings by which they are chosen."""


def write_scene(
    scene: xr.Dataset,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word a user expects
    interleave: str = "bil",
    physical: bool = False,
    overwrite: bool = False,
) -> list[Path]:
    """Write a scene to a file that ENVI, SPy, GDAL, xarray and `open_scene` read back equal.

    Parameters
    ----------
    scene
        Any scene; its cube is read once, block by block.
    path
        Target. For ENVI the header or the data file: both are written beside each other.
    format
        One of `FORMATS`; by default the ending of `path` decides. `cog` makes a cloud-optimised GeoTIFF with
        overviews, in a second pass over a temporary file.
    interleave
        Order of the axes in an ENVI file: `bsq`, `bil` or `bip`.
    physical
        Write raw * scale + offset as float32, with NaN where there is no data (or where the scene is masked), in
        place of the raw numbers.
    overwrite
        Replace what is there. A file that the scene itself is read from is never replaced.

    Returns
    -------
    list of Path
        The files (or the folder) written.

    Raises
    ------
    ConfigError
        If the format or interleave is unknown, the target exists, is a source of the scene or cannot be written.
    SceneError
        If the format cannot hold the scene: its number type, nodata that differs between bands, or a sheared grid.
    """
    from . import envi, geotiff, netcdf, zarr_store
    from .cubes import as_physical

    check_scene(scene)
    target = Path(path)
    kind = _format(target, format)
    if interleave not in ("bsq", "bil", "bip"):
        msg = f"interleave = {interleave!r}; allowed: bsq, bil, bip"
        raise ConfigError(msg)
    writers: dict[str, Callable[[xr.Dataset, Path, str], list[Path]]] = {
        "envi": envi.write,
        "geotiff": geotiff.write,
        "cog": geotiff.write_cog,
        "netcdf": netcdf.write,
        "zarr": zarr_store.write,
    }
    outputs = [envi.header_path(target), envi.data_path(target)] if kind == "envi" else [target]
    _check_outputs(
        outputs,
        [str(name) for name in scene.attrs.get("files", [])],
        overwrite=overwrite,
        folder=kind == "zarr",
    )
    if kind in ("envi", "geotiff", "cog"):
        _say_what_is_lost(scene, kind, physical=physical)
    return writers[kind](as_physical(scene) if physical else scene, target, interleave)


def write_class_map(
    classes_yx: Any,
    path: str | os.PathLike[str],
    class_names: Sequence[str],
    colors: Sequence[str] = (),
    *,
    crs: CRS | None = None,
    transform: Affine | None = None,
    format: str | None = None,  # noqa: A002
    overwrite: bool = False,
) -> list[Path]:
    """Write a map of class numbers with names and colours: GeoTIFF, ENVI classification or netCDF.

    Parameters
    ----------
    classes_yx
        Whole numbers (y, x), NumPy or Dask: 0 = no class, k = `class_names[k - 1]`.
    path
        Target, as in `write_scene`.
    class_names
        Names of the classes 1, 2, ...
    colors
        `#rrggbb` for each class; may be left out.
    crs, transform
        Place on earth.
    format
        `geotiff`, `envi` or `netcdf`; by default the ending of `path` decides.
    overwrite
        Replace what is there.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ConfigError
        If names and colours do not fit each other, or the target cannot be written.
    SceneError
        If the array is no map of class numbers.
    """
    from . import class_maps, envi

    target = Path(path)
    kind = _format(target, format)
    if kind not in class_maps.WRITERS:
        msg = f"a class map cannot be written as {kind}; allowed: {', '.join(class_maps.WRITERS)}"
        raise ConfigError(msg)
    facts = class_maps.facts(classes_yx, class_names, colors, crs, transform)
    outputs = [envi.header_path(target), envi.data_path(target)] if kind == "envi" else [target]
    _check_outputs(outputs, [], overwrite=overwrite)
    return class_maps.WRITERS[kind](facts, target)


def _format(target: Path, given: str | None) -> str:
    """Return the format that was asked for, or that the ending stands for."""
    kind = given
    if kind is None:
        kind = next((name for name, endings in FORMATS.items() if target.suffix.lower() in endings), None)
    if kind not in FORMATS:
        endings = " ".join(ending for listed in FORMATS.values() for ending in listed)
        got = (
            f"format = {given!r} is unknown"
            if given is not None
            else f"{target} has no known ending ({endings})"
        )
        msg = f"{got}; give format=: {', '.join(FORMATS)}"
        raise ConfigError(msg)
    return kind


def _check_outputs(
    outputs: Sequence[Path], sources: Sequence[str], *, overwrite: bool, folder: bool = False
) -> None:
    """Refuse, before any work, a target that is there already, is being read from, or has no folder."""
    read = {Path(name).resolve() for name in sources}
    for path in outputs:
        if path.resolve() in read or any(path.resolve() in name.parents for name in read):
            msg = f"{path} is a file of the scene itself; choose another name"
            raise ConfigError(msg)
        if path.exists() and not overwrite:
            msg = f"{path} exists already; choose another name, or overwrite it (--overwrite)"
            raise ConfigError(msg)
        if path.is_dir() and not folder:
            msg = f"{path} is a folder; give the name of a file"
            raise ConfigError(msg)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"the folder of {path} cannot be made: {error}"
            raise ConfigError(msg) from error
        if not os.access(path.parent, os.W_OK):
            msg = f"the folder of {path} cannot be written to"
            raise ConfigError(msg)


def _say_what_is_lost(scene: xr.Dataset, kind: str, *, physical: bool) -> None:
    """Warn of the parts of a scene that only netCDF and Zarr can keep."""
    lost = [str(name) for name in scene.variables if scene[name].ndim == 2 and name != "valid"]
    if "valid_rule" in scene.attrs and not physical:
        lost.append("valid")
    if "detector" in scene.coords:
        lost.append("detector")
    if lost:
        msg = f"{kind} has no place for {', '.join(lost)}, which are left out; netCDF and Zarr keep them"
        warnings.warn(msg, BandstreamWarning, stacklevel=3)
    if not np_all_known(scene, "wavelength") or not np_all_known(scene, "fwhm"):
        msg = f"{kind} has no word for an unknown wavelength or width: 0 nm is written for single bands without one"
        warnings.warn(msg, BandstreamWarning, stacklevel=3)


def np_all_known(scene: xr.Dataset, name: str) -> bool:
    """Return whether a list of the bands has no NaN (or is not there at all)."""
    return name not in scene.coords or not bool(scene[name].isnull().any())


def refuse_dtype(kind: str, dtype: Any, allowed: Sequence[str]) -> None:
    """Refuse a number type that a format does not have.

    Raises
    ------
    SceneError
        Naming the types that it has.
    """
    if str(dtype) not in allowed:
        msg = f"{kind} cannot hold {dtype}; allowed: {', '.join(allowed)}: write it with physical=True (float32) or as Zarr"
        raise SceneError(msg)
