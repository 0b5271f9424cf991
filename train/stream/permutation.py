"""Keyed permutations of 0 .. n - 1 and keyed random words, without a table.

The permutations are Feistel networks over a rectangle of about as many cells as the domain, whose coordinates are the
halves, walked along their cycles where they leave the domain (Black and Rogaway 2002, "Ciphers with arbitrary finite
domains").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
#: (numbers, width and height of the rectangle, key) -> numbers
_Turn = Callable[[UInt64s, tuple[UInt64s, UInt64s], UInt64s], UInt64s]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_ROUNDS = 3
_AFTER_ROUNDS = np.uint64(2 * _ROUNDS * 0x9E3779B97F4A7C15 % (1 << 64))


def mix64(values: UInt64s) -> UInt64s:
    """Scramble 64-bit words one by one (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLY_1
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLY_2
    return values ^ (values >> np.uint64(31))


def keys_of(*parts: int | Int64s) -> UInt64s:
    """Hash integers, or equally long arrays of them, into one 64-bit key per element.

    Parameters
    ----------
    parts
        Integers, negative ones too, or int64 arrays of shape (n,).

    Returns
    -------
    ndarray
        uint64 keys, (n,), or (1,) where all parts are integers.
    """
    key = np.zeros(1, np.uint64)
    for part in parts:
        if isinstance(part, int):
            word = np.array([part & 0xFFFFFFFFFFFFFFFF], np.uint64)
        else:
            word = part.astype(np.uint64)
        key = mix64((key ^ word) + _GOLDEN)
    return key


def permute(values: Int64s, domain: int | Int64s, key: UInt64s) -> Int64s:
    """Map each value of 0 .. domain - 1 to another one, one to one for equal domain and key.

    Parameters
    ----------
    values
        (n,) int64, each at least 0 and below its domain.
    domain
        Size of the set permuted, at most 2^53; one for all or (n,).
    key
        uint64 keys, (1,) or (n,).

    Returns
    -------
    ndarray
        (n,) int64.
    """
    return _walk(_feistel, values, domain, key)


def unpermute(values: Int64s, domain: int | Int64s, key: UInt64s) -> Int64s:
    """Undo `permute`: return what it maps to `values`, (n,) int64, for the same domain and key."""
    return _walk(_unfeistel, values, domain, key)


def _walk(turn: _Turn, values: Int64s, domain: int | Int64s, key: UInt64s) -> Int64s:
    """Turn numbers until they lie in the domain, which on a cycle they must."""
    domain_n, key_n = np.broadcast_to(domain, values.shape), np.broadcast_to(key, values.shape)
    low_n = np.ceil(np.sqrt(domain_n)).astype(np.int64)
    sides = low_n.astype(np.uint64), (-(-domain_n // low_n)).astype(np.uint64)
    out = turn(values.astype(np.uint64), sides, key_n).astype(np.int64)
    outside = np.flatnonzero(out >= domain_n)
    while outside.size:
        some = sides[0][outside], sides[1][outside]
        again = turn(out[outside].astype(np.uint64), some, key_n[outside]).astype(np.int64)
        out[outside] = again
        outside = outside[again >= domain_n[outside]]
    return out


def _feistel(words: UInt64s, sides: tuple[UInt64s, UInt64s], key: UInt64s) -> UInt64s:
    """Permute the cells of a rectangle: its coordinates shift each other in turn, which can be undone."""
    width, height = sides
    high, low = np.divmod(words, width)
    for _ in range(_ROUNDS):
        key = key + _GOLDEN
        high = _shifted(high, _scramble(low, key, height), height)
        key = key + _GOLDEN
        low = _shifted(low, _scramble(high, key, width), width)
    return high * width + low


def _unfeistel(words: UInt64s, sides: tuple[UInt64s, UInt64s], key: UInt64s) -> UInt64s:
    """Undo `_feistel`: the same steps backwards."""
    width, height = sides
    high, low = np.divmod(words, width)
    key = key + _AFTER_ROUNDS
    for _ in range(_ROUNDS):
        low = _shifted(low, width - _scramble(high, key, width), width)
        key = key - _GOLDEN
        high = _shifted(high, height - _scramble(low, key, height), height)
        key = key - _GOLDEN
    return high * width + low


def _shifted(coordinates: UInt64s, by: UInt64s, side: UInt64s) -> UInt64s:
    moved = coordinates + by
    return moved - side * (moved >= side)


def _scramble(coordinates: UInt64s, key: UInt64s, side: UInt64s) -> UInt64s:
    """Half of `mix64`, whose upper 32 bits are scaled to 0 .. side - 1; sides have at most 27 bits."""
    words = (coordinates ^ key) * _MULTIPLY_1
    words = (words ^ (words >> _HALF)) * _MULTIPLY_2
    return ((words >> _HALF) * side) >> _HALF
