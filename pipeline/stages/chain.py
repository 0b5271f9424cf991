"""The fitted stages in their order: one object that turns a scene's own pixels into a store's bands.

Fit once, on the training pixels, and applied unchanged to every scene: it is stored with the patch store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from ..config import fingerprint
from ..nodata import invalid_mask
from ..scene import nodata_values
from ..statistics import F8
from .affine import Affine
from .normalize import Normalize
from .prepare import Preparation
from .reduce import Pca

if TYPE_CHECKING:
    import xarray as xr

Stage = Normalize | Pca
_KINDS: dict[str, type[Stage]] = {"normalize": Normalize, "reduce": Pca}
NamedArrays = dict[str, tuple[tuple[str, ...], NDArray[Any]]]


@dataclass(frozen=True)
class FittedChain:
    """Band selection and fitted stages."""

    source_bands: int  #: bands of the scenes it takes
    judged: NDArray[np.int64]  #: a pixel is valid when all of these bands have data
    kept: NDArray[np.int64]  #: bands that enter the stages, a subset of `judged`
    preparation: Preparation  #: what was done to the scenes before
    mean: F8 | None  #: (kept,) calibrated mean of the training pixels, where float32 is centred
    stages: tuple[Stage, ...] = ()

    @property
    def outputs(self) -> int:
        """Number of bands or components that come out."""
        for stage in reversed(self.stages):
            if isinstance(stage, Pca):
                return len(stage.components)
        return len(self.kept)

    def bind(self, scene: xr.Dataset) -> BoundChain:
        """Return the chain for one scene, prepared as `preparation` says."""
        scale, offset = (numbers[self.kept] for numbers in self.preparation.numbers(scene))
        affine = Affine(np.zeros(len(scale)), scale, offset)
        for stage in self.stages:
            affine = affine.then(stage.affine())
        if self.mean is not None:
            affine = affine.around(
                np.divide(self.mean - offset, scale, out=np.zeros_like(scale), where=scale != 0)
            )
        nodata = nodata_values(scene)[self.judged]
        return BoundChain(affine, self.judged, self.kept, nodata, self.source_bands)

    def arrays(self) -> NamedArrays:
        """Return what is to be stored, by path inside the store."""
        found: NamedArrays = {
            "transforms/judged": (("judged_band",), self.judged),
            "transforms/kept": (("kept_band",), self.kept),
        }
        if self.mean is not None:
            found["transforms/mean"] = (("kept_band",), self.mean)
        for number, stage in enumerate(self.stages):
            for name, values in stage.state()[1].items():
                axes = tuple(f"{name}_{axis}" for axis in range(values.ndim))
                found[f"transforms/{number}_{stage.kind}/{name}"] = (axes, values)
        return found

    def attrs(self) -> dict[str, Any]:
        """Return the attributes of the `transforms` group."""
        stages = [{"kind": stage.kind, "settings": stage.state()[0]} for stage in self.stages]
        return {
            "source_bands": self.source_bands,
            "preparation": self.preparation.stored(),
            "stages": stages,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of settings and arrays: equal chains give equal numbers."""
        digests = {
            path: hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
            for path, (_, values) in self.arrays().items()
        }
        return fingerprint({"attrs": self.attrs(), "arrays": digests})

    @classmethod
    def load(cls, folder: Path) -> FittedChain:
        """Read the chain from the `transforms` group of a store."""
        group = zarr.open_group(folder, mode="r")
        attrs: dict[str, Any] = dict(group.attrs)
        stages: list[Stage] = []
        for number, item in enumerate(attrs["stages"]):
            part = group[f"{number}_{item['kind']}"]
            assert isinstance(part, zarr.Group)
            arrays = {name: np.asarray(array[...], np.float64) for name, array in part.arrays()}
            stages.append(_KINDS[item["kind"]].restore(item["settings"], arrays))
        read = {name: np.asarray(array[...]) for name, array in group.arrays()}
        return cls(
            source_bands=int(attrs["source_bands"]),
            judged=read["judged"],
            kept=read["kept"],
            preparation=Preparation.restored(attrs["preparation"]),
            mean=read.get("mean"),
            stages=tuple(stages),
        )


@dataclass(frozen=True)
class BoundChain:
    """A chain with one scene's calibration and nodata folded in."""

    affine: Affine
    judged: NDArray[np.int64]
    kept: NDArray[np.int64]
    nodata: F8  #: (judged,)
    source_bands: int

    def apply(
        self, block_byx: NDArray[np.generic], usable_yx: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Transform a block of a scene.

        Parameters
        ----------
        block_byx
            (source bands, rows, cols) as stored in the file.
        usable_yx
            Pixels that a product or a mask allows, beside those without nodata; None = all.

        Returns
        -------
        tuple
            data (outputs, rows, cols) float32, exactly 0 where invalid; valid (rows, cols) bool.
        """
        bands, rows, cols = block_byx.shape
        assert bands == self.source_bands
        invalid = invalid_mask(take_bands(block_byx, self.judged).transpose(1, 2, 0), self.nodata)
        valid = np.ones((rows, cols), bool)
        if invalid is not None:
            np.logical_not(invalid.any(axis=2), out=valid)
        if usable_yx is not None:
            valid &= usable_yx
        values_bp = take_bands(block_byx, self.kept).reshape(len(self.kept), rows * cols)
        masked = None if valid.all() else ~valid.ravel()
        if masked is not None:
            # NaN and huge sentinels must not reach the arithmetic, where they would warn or spread
            values_bp = np.where(masked, np.zeros((), values_bp.dtype), values_bp)
        out = self.affine.apply(values_bp)
        if masked is not None:
            out[:, masked] = 0
        return out.reshape(len(out), rows, cols), valid


def take_bands(block_byx: NDArray[Any], bands: NDArray[np.int64]) -> NDArray[Any]:
    """Select bands of a block, without a copy where they are one run."""
    first, count = int(bands[0]), len(bands)
    if int(bands[-1]) - first + 1 == count:
        return block_byx[first : first + count]
    return block_byx[bands]
