"""The stages in their order: one object that turns a scene's own pixels into a store's bands.

Fit once, on the training pixels, and applied unchanged to every scene: it is stored with the patch store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..config import fingerprint
from ..nodata import invalid_mask
from ..scene import nodata_values
from ..statistics import F8
from ..storage import zarr_store
from .affine import Affine
from .kinds import restore
from .prepare import Preparation
from .stage import AffineStage, BandTable, PixelStage, Stage

if TYPE_CHECKING:
    import xarray as xr

#: Numbers that go through the arithmetic at once: little enough to stay near the processor, and to reuse memory.
SLAB_VALUES = 1 << 20
NamedArrays = dict[str, tuple[tuple[str, ...], NDArray[Any]]]
#: What is applied one after the other: neighbouring affine maps are one.
Steps = tuple[Affine | PixelStage, ...]


def composed(first: Affine, stages: Sequence[Stage]) -> Steps:
    """Return `first` and the stages with neighbouring affine maps joined to one."""
    steps: list[Affine | PixelStage] = [first]
    for stage in stages:
        last = steps[-1]
        if not isinstance(stage, AffineStage):
            steps.append(cast("PixelStage", stage))
        elif isinstance(last, Affine):
            steps[-1] = last.then(stage.affine())
        else:
            steps.append(stage.affine())
    return tuple(steps)


def run_steps(steps: Steps, values_bp: NDArray[Any]) -> NDArray[np.float32]:
    """Map (bands, ...pixels), any real dtype and finite, to (outputs, pixels) float32; the first step is affine."""
    for step in steps:
        values_bp = step.apply(values_bp)
    return cast("NDArray[np.float32]", values_bp)


@dataclass
class Prefix:
    """The stages that stand before anything is fitted, for any choice of the candidate bands."""

    make: Callable[[BandTable], tuple[Stage, ...]]
    table: BandTable  #: of the candidate bands
    _made: dict[bytes, tuple[Stage, ...]] = field(default_factory=dict[bytes, "tuple[Stage, ...]"])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again at once."""
        return self.__dict__ | {"_made": {}}

    def stages(self, present: NDArray[np.bool_]) -> tuple[Stage, ...]:
        """Return the stages for some of the candidate bands."""
        key = present.tobytes()
        if key not in self._made:
            self._made[key] = self.make(self.table.select(np.flatnonzero(present)))
        return self._made[key]

    def bound(
        self, present: NDArray[np.bool_], scale: F8, offset: F8
    ) -> Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[np.float32]]:
        """Return what maps (bands, rows, cols) of those bands, 0 taken where the mask (rows, cols) is false."""
        steps = composed(Affine(np.zeros(len(scale)), scale, offset), self.stages(present))

        def through(values_byx: NDArray[Any], keep_yx: NDArray[np.bool_]) -> NDArray[np.float32]:
            values = np.where(keep_yx, values_byx, np.zeros((), values_byx.dtype))
            out = run_steps(steps, values.reshape(len(values), -1))
            return out.reshape(len(out), *keep_yx.shape)

        return through


@dataclass(frozen=True)
class FittedChain:
    """Band selection and fitted stages."""

    source_bands: int  #: bands of the scenes it takes
    judged: NDArray[np.int64]  #: a pixel is valid when all of these bands have data
    kept: NDArray[np.int64]  #: bands that enter the stages, a subset of `judged`
    preparation: Preparation  #: what was done to the scenes before
    mean: F8 | None  #: (kept,) calibrated mean of the training pixels, where float32 is centred
    stages: tuple[Stage, ...] = ()
    per_scene: bool = False  #: each scene is scaled by its own pixels first
    measured: NDArray[np.int64] | None = None  #: bands that its pixels are judged by for it

    @property
    def outputs(self) -> int:
        """Number of bands or components that come out."""
        return self.stages[-1].outputs if self.stages else len(self.kept)

    @property
    def output_bands(self) -> NDArray[np.int64] | None:
        """Source bands of the outputs, None where they are components."""
        bands = self.kept
        for stage in self.stages:
            if stage.kind == "reduce":
                chosen = getattr(stage, "chosen", None)
                if chosen is None:
                    return None
                bands = bands[chosen]
        return bands

    def bind(self, scene: xr.Dataset, numbers: tuple[F8, F8] | None = None) -> BoundChain:
        """Return the chain for one scene, prepared as `preparation` says.

        Parameters
        ----------
        scene
            The scene.
        numbers
            Scale and offset of all its bands where it is scaled by its own pixels; those it is stored with otherwise.
        """
        assert numbers is not None or not self.per_scene
        scale, offset = (values[self.kept] for values in numbers or self.preparation.numbers(scene))
        steps = composed(Affine(np.zeros(len(scale)), scale, offset), self.stages)
        first, kept = cast("Affine", steps[0]), self.kept
        if self.mean is not None:
            first = first.around(
                np.divide(self.mean - offset, scale, out=np.zeros_like(scale), where=scale != 0)
            )
        chosen, first = first.picked()
        nodata = nodata_values(scene)[self.judged]
        return BoundChain((first, *steps[1:]), self.judged, kept[chosen], nodata, self.source_bands)

    def arrays(self) -> NamedArrays:
        """Return what is to be stored, by path inside the store."""
        found: NamedArrays = {
            "transforms/judged": (("judged_band",), self.judged),
            "transforms/kept": (("kept_band",), self.kept),
        }
        if self.mean is not None:
            found["transforms/mean"] = (("kept_band",), self.mean)
        if self.measured is not None:
            found["transforms/measured"] = (("measured_band",), self.measured)
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
            "per_scene": self.per_scene,
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
        import zarr  # while a build imports it, its sources are hashed

        group = zarr.open_group(zarr_store(folder), mode="r", zarr_format=3)
        attrs: dict[str, Any] = dict(group.attrs)
        stages: list[Stage] = []
        for number, item in enumerate(attrs["stages"]):
            name = f"{number}_{item['kind']}"
            arrays: dict[str, NDArray[np.float64]] = {}
            if name in group:
                part = group[name]
                assert isinstance(part, zarr.Group)
                arrays = {key: np.asarray(array[...], np.float64) for key, array in part.arrays()}
            stages.append(restore(item["kind"], item["settings"], arrays))
        read = {name: np.asarray(array[...]) for name, array in group.arrays()}
        return cls(
            source_bands=int(attrs["source_bands"]),
            judged=read["judged"],
            kept=read["kept"],
            preparation=Preparation.restored(attrs["preparation"]),
            mean=read.get("mean"),
            stages=tuple(stages),
            per_scene=bool(attrs["per_scene"]),
            measured=read.get("measured"),
        )


@dataclass(frozen=True)
class BoundChain:
    """A chain with one scene's calibration and nodata folded in."""

    steps: Steps
    judged: NDArray[np.int64]
    kept: NDArray[np.int64]
    nodata: F8  #: (judged,)
    source_bands: int

    @property
    def outputs(self) -> int:
        """Number of bands or components that come out."""
        last = self.steps[-1]
        return len(last.bias) if isinstance(last, Affine) else last.outputs

    def validity(
        self, block_byx: NDArray[np.generic], usable_yx: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Return where every judged band of a block (source bands, rows, cols) holds data, (rows, cols)."""
        invalid = invalid_mask(take_bands(block_byx, self.judged).transpose(1, 2, 0), self.nodata)
        valid = np.ones(block_byx.shape[1:], bool)
        if invalid is not None:
            # along the bands first: that is how the memory lies
            np.logical_not(invalid.transpose(2, 0, 1).any(axis=0), out=valid)
        if usable_yx is not None:
            valid &= usable_yx
        return valid

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
        valid = self.validity(block_byx, usable_yx)
        values_byx = take_bands(block_byx, self.kept)
        masked = None if valid.all() else ~valid
        out = np.empty((self.outputs, rows, cols), np.float32)
        for part in _slabs(rows, cols, SLAB_VALUES // len(self.kept)):
            values = values_byx[(slice(None), *part)]
            shape = values.shape[1:]
            if masked is not None:
                # NaN and huge sentinels must not reach the arithmetic, where they would warn or spread
                values = np.where(masked[part], np.zeros((), values.dtype), values)
            out[(slice(None), *part)] = run_steps(self.steps, values).reshape(-1, *shape)
        if masked is not None:
            out[:, masked] = 0
        return out, valid


def _slabs(rows: int, cols: int, pixels: int) -> Iterator[tuple[slice, slice]]:
    """Cut a window into parts of about so many pixels: some rows, or a part of one where it is long."""
    height, width = max(1, pixels // cols), min(cols, max(256, pixels))
    for y in range(0, rows, height):
        for x in range(0, cols, width):
            yield slice(y, min(y + height, rows)), slice(x, min(x + width, cols))


def take_bands(block_byx: NDArray[Any], bands: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Select bands of a block, without a copy where they are one run."""
    first, count = int(bands[0]), len(bands)
    if int(bands[-1]) - first + 1 == count:
        return block_byx[first : first + count]
    return block_byx[bands]
