"""Random numbers as pure functions of one key per sample, the same in NumPy and in torch, on any device.

A generator with a state would give numbers that depend on what was drawn before, and so on ranks and workers. Here
each number is a hash of (key, use, count).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from .permutation import UInt64s, mix64

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
#: shifts and factors of a 32-bit hash of Stafford's form, with the constants found by Wellons 2018
_GOLDEN_32, _FACTOR_1, _FACTOR_2 = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
_QUANTILES = 1 << 16
_SHARES = 1 << 12


def words(keys_n: UInt64s, use: int, count: int) -> UInt64s:
    """Return `count` random words per key, uint64 (n, count); `use` keeps different purposes apart."""
    numbers = np.arange(count, dtype=np.uint64) + np.uint64((use << 32) + 1)
    return mix64(keys_n[:, None] + numbers * np.uint64(_GOLDEN))


def uniforms(keys_n: UInt64s, use: int, count: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), (n, count)."""
    return (words(keys_n, use, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@cache
def _beta_quantiles(alpha: float) -> NDArray[np.float32]:
    """The middle quantiles of Beta(alpha, alpha): its inverse is too slow to be taken per sample."""
    return special.betaincinv(alpha, alpha, (np.arange(_SHARES) + 0.5) / _SHARES).astype(np.float32)


def beta(keys_n: UInt64s, use: int, alpha: float) -> NDArray[np.float32]:
    """Return one number in [0, 1] per key from Beta(alpha, alpha), one of 4,096 quantiles, float32 (n,)."""
    return _beta_quantiles(alpha)[words(keys_n, use, 1)[:, 0] >> np.uint64(52)]


@cache
def _normal_quantiles() -> NDArray[np.float32]:
    """65,536 middle quantiles of the normal distribution (-4.2 to 4.2), scaled to a variance of exactly 1."""
    values = special.ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return (values / values.std()).astype(np.float32)


@cache
def _normal_quantiles_on(device: torch.device) -> Tensor:
    return torch.from_numpy(_normal_quantiles()).to(device)


def _halves(keys_n: UInt64s, use: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    word = words(keys_n, use, 1)
    return word.astype(np.uint32), (word >> np.uint64(32)).astype(np.uint32)


def normals(keys_n: UInt64s, use: int, count: int) -> NDArray[np.float32]:
    """Return `count` numbers per key from the normal distribution of mean 0 and variance 1.

    Each 32-bit hash gives two of 65,536 quantiles, so that NumPy and torch look the same numbers up.

    Returns
    -------
    ndarray
        float32 (n, count).
    """
    low, high = _halves(keys_n, use)
    word = (np.arange(-(-count // 2), dtype=np.uint32) * np.uint32(_GOLDEN_32))[None] ^ low
    shifted = word >> np.uint32(16)
    word ^= shifted
    word *= np.uint32(_FACTOR_1)
    word ^= high
    word ^= np.right_shift(word, np.uint32(15), out=shifted)
    word *= np.uint32(_FACTOR_2)
    word ^= np.right_shift(word, np.uint32(16), out=shifted)
    lower_first = word.astype("<u4", copy=False).view("<u2")
    return _normal_quantiles().take(lower_first[:, :count])


def normals_on(device: torch.device, keys_n: UInt64s, use: int, count: int) -> Tensor:
    """Return the numbers of `normals` as a tensor on a device: only the keys travel there."""
    low, high = (to_device(half.view(np.int32), device) for half in _halves(keys_n, use))
    word = (torch.arange(-(-count // 2), dtype=torch.int32, device=device) * _signed(_GOLDEN_32))[None] ^ low
    word = (word ^ _shifted(word, 16)) * _FACTOR_1 ^ high
    word = (word ^ _shifted(word, 15)) * _signed(_FACTOR_2)
    word = word ^ _shifted(word, 16)
    index = torch.stack([word & 0xFFFF, _shifted(word, 16)], dim=-1).reshape(len(keys_n), -1)
    return _normal_quantiles_on(device)[index[:, :count]]


def to_device(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Bring a small array to a device without waiting for what the device is doing."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _signed(word: int) -> int:
    """A 32-bit word as torch's int32 takes it; products wrap around as those of unsigned words do."""
    return word - (1 << 32) if word >> 31 else word


def _shifted(word: Tensor, by: int) -> Tensor:
    """Shift right as unsigned words shift: torch's own shift repeats the sign."""
    return (word >> by) & ((1 << (32 - by)) - 1)
