"""Zarr format 3 of the Scene contract: as `netcdf`, in a folder of chunks.

Every chunk is written, an empty one too, so that a missing one is an error and never a run of fill values. Lists of
texts (band names, detectors) stand in an attribute, since Zarr has no settled type for them.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from ..errors import ConfigError
from ..readers.contract import MARKER, TEXTS, encode_attrs
from .cubes import appearing, blocks
from .netcdf import chunk_shape, frame

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr


def write(scene: xr.Dataset, path: Path, interleave: str = "") -> list[Path]:
    """Write a scene as Zarr.

    Raises
    ------
    ConfigError
        If the folder that would be replaced is no scene that was written by this.
    """
    del interleave  # ENVI's
    _check_replaced(path)
    beside, attrs = frame(scene)
    texts = {str(n): beside[n].values.tolist() for n in beside.variables if beside[n].dtype.kind in "UOT"}
    beside = beside.drop_vars(list(texts))
    beside.attrs[TEXTS] = encode_attrs(texts)
    named = [name for name in attrs.get("coordinates", "").split() if name not in texts]
    attrs["coordinates"] = " ".join(named)
    beside.attrs = {k: v.item() if isinstance(v, np.generic) else v for k, v in beside.attrs.items()}
    fill = attrs.pop("_FillValue", None)
    packing = BloscCodec(cname="zstd", clevel=1)
    with appearing([path]) as (hidden,):
        codecs = {str(name): {"compressors": (packing,)} for name in beside.variables}
        beside.to_zarr(
            hidden, mode="w", zarr_format=3, consolidated=False, write_empty_chunks=True, encoding=codecs
        )
        group = zarr.open_group(hidden, mode="r+", zarr_format=3)
        cube = group.create_array(
            "data",
            shape=scene["data"].shape,
            dtype=scene["data"].dtype,
            chunks=chunk_shape(scene),
            compressors=packing,
            fill_value=0,
            dimension_names=("y", "x", "band"),
            config={"write_empty_chunks": True},
            attributes={
                **{k: v.item() if isinstance(v, np.generic) else v for k, v in attrs.items() if v != ""},
                **({} if fill is None else {"_FillValue": encode_fill(fill)}),
            },
        )
        for rows, block in blocks(scene, chunk_shape(scene)[0]):
            cube[rows] = block.transpose(1, 2, 0)
    return [path]


def encode_fill(fill: np.generic) -> int | str:
    """Return a fill value as xarray keeps it in an attribute: floats as the base64 of a double, for NaN's sake."""
    if fill.dtype.kind in "iu":
        return int(fill)
    return base64.standard_b64encode(struct.pack("<d", float(fill))).decode()


def _check_replaced(path: Path) -> None:
    """Refuse to delete a folder that was not written by us."""
    if not path.is_dir():
        return
    try:
        ours = MARKER in zarr.open_group(path, mode="r", zarr_format=3).attrs
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours and any(path.iterdir()):
        msg = f"{path} is a folder that is no scene written by Bandstream; it is not replaced"
        raise ConfigError(msg)
