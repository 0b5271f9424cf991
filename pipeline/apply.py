"""A store's fitted transforms on any scene of the same bands, lazily."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BandstreamWarning, StoreSchemaError
from .scene import check_scene
from .stages.chain import BoundChain
from .stages.prepare import prepare_scene

if TYPE_CHECKING:
    import xarray as xr

    from .store import PatchStore


def transform(scene: xr.Dataset, store: PatchStore, *, chunk_rows: int | None = None) -> xr.Dataset:
    """Return `scene` through the transforms fitted for `store`: the same numbers that its tiles hold.

    Parameters
    ----------
    scene
        Any scene with the bands of those the store was made from.
    store
        Its fitted band selection, normalisation and reduction are applied unchanged.
    chunk_rows
        Rows of a chunk of the result; the scene's own chunks by default.

    Returns
    -------
    xarray.Dataset
        `data(y, x, component)` float32, exactly 0 where invalid, and `valid(y, x)` bool, both lazy, with the scene's
        own `y`, `x` and `spatial_ref`.

    Raises
    ------
    StoreSchemaError
        The scene's bands are not those the transforms were fitted for.
    ConfigError
        The scene cannot be calibrated as the store's scenes were.
    """
    import dask.array as da
    import xarray as xr

    check_scene(scene)
    scene = prepare_scene(scene, store.chain.preparation)
    _require_bands(scene, store)
    bound = store.chain.bind(scene)
    source = scene["data"].data.rechunk({0: chunk_rows, 2: -1} if chunk_rows else {2: -1})
    usable = scene["valid"].data.rechunk(source.chunks[:2]) if "valid_rule" in scene.attrs else None
    outputs = store.bands
    both = da.map_blocks(
        _apply,
        source,
        *([] if usable is None else [usable[:, :, None]]),
        bound=bound,
        dtype=np.float32,
        chunks=(source.chunks[0], source.chunks[1], (outputs + 1,)),
        meta=np.empty((0, 0, 0), np.float32),
    )
    coords = {name: scene.coords[name] for name in ("y", "x", "spatial_ref") if name in scene.coords}
    attrs = {
        key: scene.attrs[key]
        for key in ("source", "scene_id", "sensor", "acquired", "files")
        if key in scene.attrs
    }
    data = xr.DataArray(both[..., :outputs], dims=("y", "x", "component"))
    valid = xr.DataArray(both[..., outputs] > 0, dims=("y", "x"))
    result = xr.Dataset({"data": data, "valid": valid}, coords=coords, attrs=attrs)
    if "spatial_ref" in coords:
        for name in ("data", "valid"):
            result[name].attrs["grid_mapping"] = "spatial_ref"
    return result


def _require_bands(scene: xr.Dataset, store: PatchStore) -> None:
    name, chain = scene.attrs.get("source", "the scene"), store.chain
    if scene.sizes["band"] != chain.source_bands:
        raise StoreSchemaError(
            f"{name} has {scene.sizes['band']} bands; the transforms of {store.path} were fitted for "
            f"{chain.source_bands}. Take a scene of the same sensor and product."
        )
    centres = store.wavelength_nm
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
            f"Band {int(chain.kept[band]) + 1} of {name} lies at {own[band]:.2f} nm; the transforms of {store.path} were "
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
