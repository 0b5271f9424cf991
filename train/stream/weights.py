"""How often each sample is drawn in an epoch, where that is not once: whole repeats, keyed by (seed, epoch).

Samples are put into strata: the classes of one store, of all stores together, or whole stores. Every stratum gets a
fixed number of draws per epoch, so that a sample of a stratum of n samples and t draws is drawn floor(t / n) or
floor(t / n) + 1 times. All of that follows from the counts of each block in the store's index, without looking at a
sample: the draws beyond the common floor are dealt to the blocks by systematic sampling with a random start (a block
of m samples gets m (t mod n) / n of them, rounded down or up, and the sum is exact), and inside a block a keyed
permutation says which samples they are. No memory per sample is needed, and repeats of a sample stay in its block,
which is thus read as often as without weights.

What is balanced:

- of patches, the class of the centre pixel, exactly;
- of tiles, the rarest class among those that a tile holds, since a tile holds pixels of several classes. Class numbers
  of pixels are then not equal, but no class goes under.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from .permutation import Int64s, keys_of, permute

Int32s = NDArray[np.int32]
# what a key is for, beside the uses that order.py lists
_USE_START, _USE_EXTRA = 4, 5


@dataclass(frozen=True)
class Strata:
    """The samples of every block, by stratum.

    Blocks of one group follow each other; strata of equal number in different groups are different ones.
    """

    counts: Int32s  #: (block, stratum) samples
    first_block: Int64s  #: (group + 1,) first block of each group, and the end

    @property
    def totals(self) -> Int64s:
        """Samples of each stratum, (group, stratum)."""
        return np.add.reduceat(self.counts, self.first_block[:-1], axis=0, dtype=np.int64)


@dataclass(frozen=True)
class Repeats:
    """How many draws every stratum gets in an epoch."""

    strata: Strata
    draws: Int64s  #: (group, stratum), 0 where a stratum holds no samples
    seed: int

    @property
    def samples(self) -> int:
        """Draws of an epoch."""
        return int(self.draws.sum())

    def epoch(self, epoch: int) -> EpochRepeats:
        """Return who is drawn how often in one epoch; equal numbers give equal draws."""
        strata = self.strata
        population = strata.totals
        quotient, rest = np.divmod(self.draws, np.maximum(population, 1))
        extra = np.zeros_like(strata.counts)
        for group, (first, stop) in enumerate(
            zip(strata.first_block[:-1].tolist(), strata.first_block[1:].tolist(), strict=True)
        ):
            for stratum in np.flatnonzero(rest[group]).tolist():
                of = int(population[group, stratum])
                start = int(keys_of(_USE_START, self.seed, epoch, group, stratum)[0]) % of
                counts = strata.counts[first:stop, stratum]
                extra[first:stop, stratum] = _systematic(counts, int(rest[group, stratum]), of, start)
        return EpochRepeats(self, epoch, quotient, extra)


def _systematic(counts: Int32s, rest: int, population: int, start: int) -> Int64s:
    """Deal `rest` of `population` draws to blocks in proportion to their counts, rounded down or up, exact in sum."""
    whole, parts = np.divmod(counts.astype(np.int64) * rest, population)
    reached = (np.cumsum(parts) + start) // population
    return whole + np.diff(reached, prepend=0)


@dataclass(frozen=True)
class EpochRepeats:
    """Who is drawn how often in one epoch; made by `Repeats.epoch`."""

    repeats: Repeats
    epoch: int
    quotient: Int64s  #: (group, stratum) draws that every sample gets
    extra: Int32s  #: (block, stratum) samples that get one more

    @property
    def block_samples(self) -> Int64s:
        """Draws from each block, (block,)."""
        return self._drawn(np.arange(len(self.extra), dtype=np.int64)).sum(axis=1)

    def _quotient(self, blocks: Int64s) -> Int64s:
        group = np.searchsorted(self.repeats.strata.first_block, blocks, side="right") - 1
        return self.quotient[group]

    def _drawn(self, blocks: Int64s) -> Int64s:
        """Draws of (block, stratum)."""
        return self.repeats.strata.counts[blocks] * self._quotient(blocks) + self.extra[blocks]

    def samples_of(self, blocks: Int64s, items: Int64s) -> tuple[Int64s, Int64s]:
        """Return which samples are drawn.

        Parameters
        ----------
        blocks, items
            (n,) block of each draw and its number among the block's draws.

        Returns
        -------
        tuple
            Number of the sample inside its block, whose samples are counted stratum by stratum, and how often the
            sample comes before this draw; int64 (n,).
        """
        # one row for each block: there are few, and many samples of each
        own, row = np.unique(blocks, return_inverse=True)
        counts, drawn = self.repeats.strata.counts[own].astype(np.int64), self._drawn(own)
        until = np.cumsum(drawn, axis=1)
        # all rows as one rising line, on which a draw lies in the part of its block and stratum
        length = int(until.max(initial=0)) + 1
        line = until + length * np.arange(len(own), dtype=np.int64)[:, None]
        part = np.searchsorted(line.ravel(), items + length * row, side="right")
        count, quotient = counts.ravel()[part], self._quotient(own).ravel()[part]
        item = items - (until - drawn).ravel()[part]
        # first come all the samples of the stratum, as often as all are drawn, then those drawn once more
        repeat, sample = np.divmod(item, count)
        more = np.flatnonzero(repeat == quotient)
        stratum = (part[more] % counts.shape[1]).astype(np.int64)
        key = keys_of(_USE_EXTRA, self.repeats.seed, self.epoch, blocks[more], stratum)
        sample[more] = permute(sample[more], count[more], key)
        return (np.cumsum(counts, axis=1) - counts).ravel()[part] + sample, repeat


def share_out(samples: int, shares: Sequence[float]) -> list[int]:
    """Cut a number into whole parts in proportion to shares, by largest remainder (first ones first where equal)."""
    exact = [Fraction(share) for share in shares]
    whole = sum(exact)
    parts = [samples * share // whole for share in exact]
    remainders = [samples * share / whole - part for share, part in zip(exact, parts, strict=True)]
    left = samples - sum(parts)
    for k in sorted(range(len(parts)), key=lambda k: (-remainders[k], k))[:left]:
        parts[k] += 1
    return parts


def class_shares(
    balance: str | Mapping[str, float], class_names: Sequence[str], populations: Sequence[int]
) -> list[float]:
    """Return the share of each class in the draws: of those that hold samples, all the same, or as asked for.

    Parameters
    ----------
    balance
        `classes`, or class name -> share for every class that holds samples; shares need not add up to 1.
    class_names
        Of classes 1, 2, ...
    populations
        Samples of each class, in all stores.

    Raises
    ------
    ConfigError
        Not every class with samples has a share, an unknown or empty one has, or a share is no number of 0 or more.
    """
    if not isinstance(balance, Mapping):
        return [float(count > 0) for count in populations]
    unknown = [name for name in balance if name not in class_names]
    if unknown:
        raise ConfigError(
            f"balance names {_listed(unknown)}, which the store's classes are not: {_listed(class_names)}."
        )
    missing = [
        name for name, count in zip(class_names, populations, strict=True) if count and name not in balance
    ]
    if missing:
        raise ConfigError(
            f"balance gives no share to {_listed(missing)}; give one, or 0 to leave a class out."
        )
    shares = [check_share(f"balance[{name!r}]", balance.get(name, 0.0)) for name in class_names]
    for name, share, count in zip(class_names, shares, populations, strict=True):
        if share and not count:
            raise ConfigError(
                f"balance gives {name!r} a share of {share:g}, but no sample of the split counts as one (of whole tiles, "
                "each counts as the rarest class that it holds); leave it out."
            )
    if not any(shares):
        raise ConfigError("balance gives every class a share of 0; give one of them more.")
    return shares


def check_share(name: str, value: Any) -> float:
    """Return a share or weight as a float.

    Raises
    ------
    ConfigError
        It is no finite number of 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value!r} is not allowed; give a number of 0 or more.")
    return float(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def rarest_class(labelled: Int64s, populations: Int64s) -> Int64s:
    """Return the stratum of each tile: the class that it holds and of which there are fewest pixels.

    Parameters
    ----------
    labelled
        (tile, class) labelled pixels.
    populations
        (class,) labelled pixels of all tiles.

    Returns
    -------
    ndarray
        (tile,) column of the class; -1 where nothing is labelled.
    """
    order = np.argsort(populations, kind="stable")
    found = labelled[:, order] > 0
    return np.where(found.any(axis=1), order[found.argmax(axis=1)], -1)
