"""The fitted stages of a store, or of a workflow, on any scene of the same bands, lazily."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BandstreamWarning, ConfigError, StoreSchemaError
from .scene import check_scene
from .stages.chain import BoundChain, FittedChain
from .stages.prepare import prepare_scene
from .store import PatchStore

if TYPE_CHECKING:
    import xarray as xr


#: Attributes that say what the scene's own numbers mean, which those of the result no longer do.
_OF_STORED_NUMBERS = ("nodata", "scale", "offset", "quantity", "units", "valid_rule", "block_bytes")


def transform(
    scene: xr.Dataset, by: PatchStore | str | Path | dict[str, Any], *, chunk_rows: int | None = None
) -> xr.Dataset:
    """Return `scene` through the stages of a store, or of a workflow: the same numbers that tiles hold.

    Parameters
    ----------
    scene
        Any scene with the bands of those that the stages were fitted on.
    by
        A store (or its path), whose fitted stages are applied unchanged. Or a workflow (a YAML file, or its content): its stages are
        fitted as a build would fit them, on its own scenes' training pixels, whose statistics are kept under its store
        root; no store is written. A workflow without `scenes` is fitted on `scene` itself.
    chunk_rows
        Rows of a chunk of the result; the scene's own chunks by default.

    Returns
    -------
    xarray.Dataset
        `data(y, x, component)` float32, exactly 0 where invalid, and `valid(y, x)` bool, both lazy, with the scene's
        own `y`, `x` and `spatial_ref`. Where the outputs are bands, their `wavelength`, `fwhm` and `band` numbers
        (1-based, of the scene) come along.

    Raises
    ------
    StoreSchemaError
        The scene's bands are not those the stages were fitted for.
    ConfigError
        The scene cannot be calibrated as the fitted ones were, or `by` is nothing of that kind.
    """
    check_scene(scene)
    if isinstance(by, str | Path) and str(by).rstrip("/").endswith(".zarr"):
        by = PatchStore.open(by)
    if isinstance(by, PatchStore):
        told = f"the transforms of {by.path}"
        chain, centres = by.chain, by.wavelength_nm
    elif not isinstance(by, str | Path | dict):  # pyright: ignore[reportUnnecessaryIsInstance] - notebooks check no types
        raise ConfigError(
            f"transform takes a store, a workflow's file or its content, got {type(by).__name__}; stages of your own go "
            'in a dict: {"stages": [{"normalize": {"method": "zscore"}}]}.'
        )
    else:
        from .fitted import fit_workflow

        told = "the stages of the workflow"
        chain, centres = fit_workflow(by, scene)
    scene = prepare_scene(scene, chain.preparation)
    _require_bands(scene, chain, centres, told)
    if not chain.per_scene:
        return _through(scene, chain.bind(scene), chain, chunk_rows)
    from .fitted import own_numbers

    return _through(scene, chain.bind(scene, own_numbers(scene, chain)), chain, chunk_rows)


def _through(scene: xr.Dataset, bound: BoundChain, chain: FittedChain, chunk_rows: int | None) -> xr.Dataset:
    import dask.array as da
    import xarray as xr

    source = scene["data"].data.rechunk({0: chunk_rows, 2: -1} if chunk_rows else {2: -1})
    usable = scene["valid"].data.rechunk(source.chunks[:2]) if "valid_rule" in scene.attrs else None
    outputs = chain.outputs
    both = da.map_blocks(
        _apply,
        source,
        *([] if usable is None else [usable[:, :, None]]),
        bound=bound,
        dtype=np.float32,
        chunks=(source.chunks[0], source.chunks[1], (outputs + 1,)),
        meta=np.empty((0, 0, 0), np.float32),
    )
    coords: dict[str, Any] = {
        name: scene.coords[name] for name in ("y", "x", "spatial_ref", "lat", "lon") if name in scene.coords
    }
    bands = chain.output_bands
    if bands is not None:
        coords["band"] = ("component", bands + 1)
        for name in ("wavelength", "fwhm", "band_name", "detector"):
            if name in scene.coords:
                coords[name] = ("component", scene[name].values[bands], scene[name].attrs)
    attrs = {key: value for key, value in scene.attrs.items() if key not in _OF_STORED_NUMBERS}
    data = xr.DataArray(both[..., :outputs], dims=("y", "x", "component"))
    valid = xr.DataArray(both[..., outputs] > 0, dims=("y", "x"))
    layers = {name: layer for name, layer in scene.data_vars.items() if str(name).startswith("quality_")}
    result = xr.Dataset({"data": data, "valid": valid, **layers}, coords=coords, attrs=attrs)
    if "spatial_ref" in coords:
        for name in ("data", "valid"):
            result[name].attrs["grid_mapping"] = "spatial_ref"
    return result


def _require_bands(
    scene: xr.Dataset, chain: FittedChain, centres: NDArray[np.float64] | None, told: str
) -> None:
    name = scene.attrs.get("source", "the scene")
    if scene.sizes["band"] != chain.source_bands:
        raise StoreSchemaError(
            f"{name} has {scene.sizes['band']} bands; {told} were fitted for "
            f"{chain.source_bands}. Take a scene of the same sensor and product."
        )
    if centres is None:
        return
    if "wavelength" not in scene.coords:
        warnings.warn(
            f"{name} tells no wavelengths; its {chain.source_bands} bands are taken for those of the scenes that the "
            "store was made from.",
            BandstreamWarning,
            stacklevel=4,
        )
        return
    own = scene["wavelength"].values[chain.kept]
    width = scene["fwhm"].values[chain.kept] if "fwhm" in scene.coords else np.full(len(own), 10.0)
    wrong = np.abs(own - centres) > 0.1 * width
    if wrong.any():
        band = int(np.argmax(wrong))
        raise StoreSchemaError(
            f"Band {int(chain.kept[band]) + 1} of {name} lies at {own[band]:.2f} nm; {told} were "
            f"fitted at {centres[band]:.2f} nm, further apart than 10 % of its width. Take a scene of the same sensor "
            "and product."
        )


def _apply(
    block_yxb: NDArray[Any], usable_yx1: NDArray[np.bool_] | None = None, *, bound: BoundChain
) -> NDArray[np.float32]:
    """Return the outputs with the valid mask as one component more, (y, x, outputs + 1)."""
    usable = None if usable_yx1 is None else usable_yx1[:, :, 0]
    data_cyx, valid = bound.apply(np.ascontiguousarray(block_yxb.transpose(2, 0, 1)), usable)
    both = np.empty((*valid.shape, len(data_cyx) + 1), np.float32)
    both[..., :-1] = data_cyx.transpose(1, 2, 0)
    both[..., -1] = valid
    return both
