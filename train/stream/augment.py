"""Augmentation of training batches: what a sample looks like depends on (seed, epoch, sample) alone.

So it repeats under any number of ranks and workers, and differs between epochs. Mixup alone also needs a partner: it is
a fixed place of the same *global* batch (`mixup_roll`), so that it repeats under the same ranks and workers as the order
of the samples does, as long as global batch, lanes and window stay.

One code serves NumPy arrays (in the stream's own threads) and tensors (on the device); all draws come from `draws`.
Pixels without data are 0 in every band and stay so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...pipeline.store import SPLIT_CODE, PatchStore
from . import draws
from .augment_config import AugmentConfig
from .permutation import UInt64s

if TYPE_CHECKING:
    from torch import Tensor

_USE_SHIFT, _USE_MIXUP, _USE_NOISE, _USE_DROPOUT = 1, 2, 3, 4
_GROUP_VALUES = 1 << 16  # values that NumPy works on at once: temporaries then stay in the processor's cache
_MEASURED_CHUNKS = 16


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of the batches of one store. `Augmentation.of` fills in what depends on the store."""

    config: AugmentConfig
    noise_std_b: NDArray[np.float32] | None = None  #: (band,) or (1,); None: no noise
    step_b: NDArray[np.float32] | None = (
        None  #: (band - 1,) distance to the next band, in source bands; None: no shift
    )

    @classmethod
    def of(cls, config: AugmentConfig, store: PatchStore) -> Augmentation:
        """Prepare the augmentation of a store's samples; relative noise reads up to 16 of its chunks.

        Raises
        ------
        ConfigError
            The settings do not fit the store's bands.
        """
        noise = None
        if config.noise_std_relative:
            noise = (config.noise_std_relative * band_std(store)).astype(np.float32)
        elif config.noise_std != 0:
            noise = np.atleast_1d(np.asarray(config.noise_std, np.float32))
            if len(noise) not in (1, store.bands):
                raise ConfigError(
                    f"augment.noise_std has {len(noise)} values and the store {store.path} {store.bands} bands. Give "
                    "one value for all bands, or one per band."
                )
        return cls(config, noise, _band_steps(store) if config.spectral_shift_bands else None)

    def __call__(self, batch: dict[str, Any], keys_n: UInt64s, roll: int = 0) -> None:
        """Change a batch of NumPy arrays in place.

        Parameters
        ----------
        batch
            `image` float32 (n, band, y, x); `label` int64 and `mask` bool, (n, y, x) for tiles or (n,) for patches;
            `target` float32 (n, target, y, x) or (n, target) where there are any. Mixup adds `label_b` (the partner's
            label, 0 where either has none) and `mix` (float32, share of the own label), both like `label`.
        keys_n
            Key of each sample (`order.sample_keys`).
        roll
            For mixup: sample i is mixed with i + `roll` of the batch, counted around (`mixup_roll`).
        """
        self._change(_Numpy(), batch, keys_n, roll)

    def on_device(self, batch: dict[str, Any], keys_n: UInt64s, roll: int = 0) -> None:
        """Change a batch of tensors in place, on the device where they are; numbers as in NumPy, but for rounding."""
        self._change(_Torch(batch["image"].device), batch, keys_n, roll)

    def _change(self, xp: _Arrays, batch: dict[str, Any], keys_n: UInt64s, roll: int) -> None:
        config = self.config
        if config.flips:
            code = turn_codes(keys_n, quarter_turns=config.quarter_turns)
            for name in ("image", "label", "mask", "target"):
                if name in batch and batch[name].ndim >= 3:
                    xp.turn_(batch[name], code)
        # patches lie with the band last in memory, and are worked on as they lie
        patches = batch["label"].ndim == 1
        image = batch["image"].swapaxes(1, 2).swapaxes(2, 3) if patches else batch["image"]
        groups = list(xp.groups(image))
        if self.step_b is not None:
            for some in groups:
                self._shift(xp, _Image(image[some], patches), keys_n[some])
        if config.mixup_alpha:
            self._mix(xp, batch, _Image(image, patches), keys_n, roll)
        for some in groups:
            part = _Image(image[some], patches)
            if self.noise_std_b is not None:
                self._add_noise(xp, part, keys_n[some])
            if config.band_dropout_probability:
                kept = kept_bands(keys_n[some], part.bands, config.band_dropout_probability)
                part.x *= part.per_band(xp.of(kept))

    def _shift(self, xp: _Arrays, image: _Image, keys_n: UInt64s) -> None:
        """Interpolate between neighbouring bands: by a positive shift each band takes from the next one."""
        shift_n1 = (2 * draws.uniforms(keys_n, _USE_SHIFT, 1) - 1) * self.config.spectral_shift_bands
        up = np.minimum(np.maximum(shift_n1, 0) / self.step_b, 1).astype(np.float32)
        down = np.minimum(np.maximum(-shift_n1, 0) / self.step_b, 1).astype(np.float32)
        difference = image.between(1, None) - image.between(0, -1)
        image.between(0, -1)[...] += image.per_band(xp.of(up)) * difference
        image.between(1, None)[...] -= image.per_band(xp.of(down)) * difference

    def _add_noise(self, xp: _Arrays, image: _Image, keys_n: UInt64s) -> None:
        assert self.noise_std_b is not None
        seen = image.per_pixel(image.seen())
        noise = xp.normals(keys_n, math.prod(image.x.shape[1:])).reshape(image.x.shape)
        noise *= image.per_band(xp.of(self.noise_std_b[None]))
        noise *= seen
        image.x += noise

    def _mix(self, xp: _Arrays, batch: dict[str, Any], image: _Image, keys_n: UInt64s, roll: int) -> None:
        """Mix each sample with its partner, where both have data; labels are kept side by side."""
        number = len(keys_n)
        assert roll % number, "mixup needs a partner: give the roll that `mixup_roll` returns"
        partner = xp.of((np.arange(number) + roll) % number)
        label, mask = batch["label"], batch["mask"]
        seen = image.seen()
        # a partner that only fills up the last batch is none
        real = mask.reshape(number, -1).any(1)[partner]
        taken = xp.of(1 - draws.beta(keys_n, _USE_MIXUP, self.config.mixup_alpha))
        taken_nyx = (taken * real)[:, None, None] * (seen & seen[partner])
        other = image.x[partner]
        other -= image.x
        other *= image.per_pixel(taken_nyx)
        image.x += other
        if label.ndim == 1:
            taken_nyx = taken_nyx[:, seen.shape[1] // 2, seen.shape[2] // 2]
        batch["label_b"] = label[partner] * (mask & mask[partner])
        batch["mix"] = 1 - taken_nyx
        if "target" in batch:
            target, share = batch["target"], taken_nyx[:, None]
            # unknown (NaN) times 0 would be unknown
            mixed = target + (target[partner] - target) * share
            target[...] = xp.where(share > 0, mixed, target)


def turn_codes(keys_n: UInt64s, *, quarter_turns: bool = True) -> NDArray[np.uint8]:
    """Return the element of the dihedral group for each sample, as `dihedral_` takes it."""
    code = (keys_n >> np.uint64(61)).astype(np.uint8)
    return code if quarter_turns else code & np.uint8(6)


def kept_bands(keys_n: UInt64s, bands: int, probability: float) -> NDArray[np.float32]:
    """Return 0 for the bands that are dropped and 1 for the others, (n, band): the last one left is always kept."""
    drawn = draws.uniforms(keys_n, _USE_DROPOUT, bands)
    kept = drawn >= probability
    kept[np.arange(len(kept)), drawn.argmax(axis=1)] = True
    return kept.astype(np.float32)


def mixup_roll(batch_size: int, world_size: int, lanes: int) -> int:
    """Return how many places further in a rank's batch the mixup partner lies.

    In the global batch of G samples it is half a batch away, or half the lanes less where that would be the same lane and
    thus the same few chunks. That number depends on no rank; ranks that divide it find the partner among their own
    samples.

    Parameters
    ----------
    batch_size
        Samples per rank and batch.
    world_size
        Number of ranks.
    lanes
        L of the order.

    Raises
    ------
    ConfigError
        Some partners belong to other ranks.
    """
    samples = batch_size * world_size
    distance = samples // 2
    if distance % lanes == 0 and lanes > 1:
        distance -= lanes // 2
    if distance < 1 or distance % world_size:
        raise ConfigError(
            f"augment.mixup_alpha: with batch_size={batch_size}, {world_size} ranks and lanes={lanes} the partner of a "
            f"sample, {distance} places further in the global batch, belongs to another rank. Give an even batch_size "
            f"and lanes={2 * world_size} (twice the ranks), or leave mixup out."
        )
    return distance // world_size


def band_std(store: PatchStore) -> NDArray[np.float64]:
    """Standard deviation of each band over valid training pixels of up to 16 chunks spread over the store, (band,)."""
    train = SPLIT_CODE["train"]
    tiles = np.flatnonzero(store.index.pixels[:, train])
    chunks = np.unique(tiles // store.chunk_tiles)
    chosen = chunks[np.unique(np.linspace(0, len(chunks) - 1, _MEASURED_CHUNKS).round().astype(int))]
    count, total, squares, centre = 0, 0.0, 0.0, None
    for first in (chosen * store.chunk_tiles).tolist():
        stop = min(first + store.chunk_tiles, len(store))
        own = store.read_tiles("valid", first, stop) & (store.read_tiles("split", first, stop) == train)
        values = store.read_tiles("data", first, stop).transpose(0, 2, 3, 1)[own].astype(np.float64)
        # about the first chunk's mean, so that large values of small spread lose no digits
        centre = values.mean(axis=0) if centre is None else centre
        values -= centre
        count, total, squares = count + len(values), total + values.sum(0), squares + (values**2).sum(0)
    return np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))


def _band_steps(store: PatchStore) -> NDArray[np.float32]:
    """Distance from each band to the next in source bands, (band - 1,).

    Raises
    ------
    ConfigError
        The store holds components, whose neighbours have nothing to do with each other.
    """
    if not (store.path / "bands" / "output").is_dir():
        raise ConfigError(
            f"augment.spectral_shift_bands does not fit the store {store.path}: its {store.bands} bands are components "
            "(PCA, MNF), ordered by variance and not by wavelength, so that the next one is no neighbour in the spectrum. "
            "Leave it out, or use a workflow without reduce or with reduce: {method: select}."
        )
    return np.diff(store.band_values("output")).astype(np.float32)


def dihedral_(array: NDArray[Any], code: NDArray[np.uint8]) -> None:
    """Turn each square of a batch by its own element of the dihedral group, in place.

    Parameters
    ----------
    array
        (n, ..., y, x) with y = x.
    code
        (n,) 0 to 7: bit 0 swaps y and x, then bit 1 flips y and bit 2 flips x. All eight are different; 0 is none.
    """
    for kind in range(1, 8):
        which = np.flatnonzero(code == kind)
        if not which.size:
            continue
        turned = array[which]
        if kind & 1:
            turned = turned.swapaxes(-1, -2)
        if kind & 2:
            turned = turned[..., ::-1, :]
        if kind & 4:
            turned = turned[..., ::-1]
        array[which] = turned


@dataclass
class _Image:
    """Images of a batch in the order in which they lie in memory: (n, band, y, x), or (n, y, x, band) for patches."""

    x: Any
    band_last: bool

    @property
    def bands(self) -> int:
        return int(self.x.shape[3 if self.band_last else 1])

    def seen(self) -> Any:
        """Whether each pixel has data, (n, y, x)."""
        return (self.x != 0).any(3 if self.band_last else 1)

    def per_pixel(self, values_nyx: Any) -> Any:
        return values_nyx[..., None] if self.band_last else values_nyx[:, None]

    def per_band(self, values_nb: Any) -> Any:
        return values_nb[:, None, None, :] if self.band_last else values_nb[:, :, None, None]

    def between(self, first: int, stop: int | None) -> Any:
        """The bands first..stop-1, a view."""
        return self.x[..., first:stop] if self.band_last else self.x[:, first:stop]


class _Arrays(Protocol):
    """What NumPy and torch do differently."""

    def of(self, values: NDArray[Any]) -> Any: ...
    def where(self, condition: Any, one: Any, other: Any) -> Any: ...
    def normals(self, keys_n: UInt64s, count: int) -> Any: ...
    def turn_(self, array: Any, code: NDArray[np.uint8]) -> None: ...
    def groups(self, image: Any) -> Iterator[slice]: ...


class _Numpy:
    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def where(self, condition: NDArray[np.bool_], one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        return np.where(condition, one, other)

    def turn_(self, array: NDArray[Any], code: NDArray[np.uint8]) -> None:
        dihedral_(array, code)

    def normals(self, keys_n: UInt64s, count: int) -> NDArray[np.float32]:
        return draws.normals(keys_n, _USE_NOISE, count)

    def groups(self, image: NDArray[Any]) -> Iterator[slice]:
        width = max(1, _GROUP_VALUES // image[0].size)
        for first in range(0, len(image), width):
            yield slice(first, first + width)


class _Torch:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def where(self, condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return torch.where(condition, one, other)

    def of(self, values: NDArray[Any]) -> Tensor:
        return draws.to_device(values, self._device)

    def normals(self, keys_n: UInt64s, count: int) -> Tensor:
        return draws.normals_on(self._device, keys_n, _USE_NOISE, count)

    def turn_(self, array: Tensor, code: NDArray[np.uint8]) -> None:
        for kind in range(1, 8):
            which = np.flatnonzero(code == kind)
            if not which.size:
                continue
            index = self.of(which)
            turned = array[index]
            if kind & 1:
                turned = turned.swapaxes(-1, -2)
            flipped = [axis for bit, axis in ((2, -2), (4, -1)) if kind & bit]
            array[index] = turned.flip(flipped) if flipped else turned

    def groups(self, image: Tensor) -> Iterator[slice]:
        del image
        yield slice(None)
