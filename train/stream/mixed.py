"""Several stores as one stream, and the draws of each store and class: what may be mixed, and in which shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...pipeline.errors import ConfigError, EmptySplitError, StoreSchemaError
from .permutation import Int64s
from .weights import Repeats, Strata, check_share, class_shares, share_out

if TYPE_CHECKING:
    from ...pipeline.store import PatchStore
    from .samples import Samples

#: Band centres of mixed stores may lie this part of the band's width apart.
CENTRE_TOLERANCE = 0.1


def check_mixable(stores: Sequence[PatchStore], patch: int | None) -> None:
    """Refuse stores whose samples do not mean the same.

    Parameters
    ----------
    stores
        One or more.
    patch
        Side of pixel-centred patches, which may come from tiles of any size; None: whole tiles.

    Raises
    ------
    StoreSchemaError
        A store differs from the first in bands, transforms, tiles, classes or targets; both values are named.
    """
    first = stores[0]
    for other in stores[1:]:
        _check_centres(first, other)
        if first.transform_fingerprint != other.transform_fingerprint:
            raise StoreSchemaError(
                f"The stores {first.path} and {other.path} cannot be one stream: their fitted transforms differ "
                f"(fingerprints {first.transform_fingerprint} and {other.transform_fingerprint}), so that equal spectra "
                "have other values in each. Put the scenes into one workflow, which fits its stages to all of them, with "
                "the stage resample_bands first if their bands differ."
            )
        tiles = () if patch is not None else ("tile_size", "halo")
        for what, one, two in (
            ("bands", first.bands, other.bands),
            *(
                (f"tiles.{name.removeprefix('tile_')}", getattr(first, name), getattr(other, name))
                for name in tiles
            ),
            ("classes", first.class_names, other.class_names),
            ("targets", first.targets, other.targets),
        ):
            if one != two:
                raise StoreSchemaError(
                    f"The stores {first.path} and {other.path} cannot be one stream: {what} is {one!r} in the first and "
                    f"{two!r} in the other. Run their workflows with the same {what}."
                )


def _check_centres(first: PatchStore, other: PatchStore) -> None:
    one, two = first.wavelength_nm, other.wavelength_nm
    where = f"The stores {first.path} and {other.path} cannot be one stream: "
    advice = "Bring both to the same bands with the stage resample_bands in their workflows."
    if one is None and two is None:
        return
    if one is None or two is None:
        path = first.path if one is None else other.path
        raise StoreSchemaError(
            f"{where}{path} does not say where its bands lie, while the other does. {advice}"
        )
    if len(one) != len(two):
        raise StoreSchemaError(f"{where}they have {len(one)} and {len(two)} bands. {advice}")
    width = np.minimum(_widths(first, one), _widths(other, two))
    far = np.flatnonzero(~(np.abs(one - two) <= CENTRE_TOLERANCE * width))
    if far.size:
        band = int(far[0])
        raise StoreSchemaError(
            f"{where}{far.size} of {len(one)} band centres lie more than {CENTRE_TOLERANCE:.0%} of the band's width "
            f"apart, the first is band {band} at {one[band]:g} nm and {two[band]:g} nm (width {width[band]:g} nm). "
            f"{advice}"
        )


def _widths(store: PatchStore, centres: np.ndarray) -> np.ndarray:
    """Widths of the bands in nm: FWHM, or the distance of neighbours where it is not known; 0 for a single band."""
    if (store.path / "bands" / "fwhm").is_dir():
        fwhm = store.band_values("fwhm")
        if np.isfinite(fwhm).all():
            return fwhm
    return np.abs(np.gradient(centres)) if len(centres) > 1 else np.zeros(1)


def make_repeats(
    samples: Samples,
    balance: str | Mapping[str, float] | None,
    store_weights: Sequence[float] | None,
    seed: int,
) -> Repeats | None:
    """Return how many draws every store and class gets in an epoch, which has as many draws as there are samples.

    Parameters
    ----------
    samples
        Of all stores; numbered by class where classes are balanced.
    balance
        None: all samples of a store alike. `classes`: every class that holds samples is drawn equally often. Class
        name -> share: in these shares.
    store_weights
        Share of each store in the draws; None: by its samples.
    seed
        Of the draws.

    Returns
    -------
    Repeats or None
        None where every sample is drawn once.

    Raises
    ------
    ConfigError
        A setting is not allowed.
    StoreSchemaError
        Classes are to be balanced and the stores have none.
    EmptySplitError
        A store that is to be drawn from holds no samples, or none that has a class.
    """
    if balance is None and store_weights is None:
        return None
    if balance is not None and balance != "classes" and not isinstance(balance, Mapping):
        raise ConfigError(
            f"balance={balance!r} is not known; give None, 'classes', or a share for every class by name."
        )
    sets = samples.sets
    edges = samples.first_block if store_weights is not None else samples.first_block[[0, -1]]
    counts = samples.block_samples[:, None] if balance is None else _class_counts(samples)
    strata = Strata(counts.astype(np.int32), edges)
    totals = strata.totals
    if totals.sum() == 0:
        raise EmptySplitError(f"No sample of the split {sets[0].split!r} has a class; {sets[0].describe()}.")
    names = sets[0].store.class_names
    shares = [1.0] if balance is None else class_shares(balance, names, totals.sum(axis=0).tolist())
    draws = np.zeros_like(totals)
    for group, of_group in enumerate(_store_draws(samples, totals, store_weights)):
        present = [share * (count > 0) for share, count in zip(shares, totals[group].tolist(), strict=True)]
        if of_group and not any(present):
            raise EmptySplitError(
                f"The store {sets[group].store.path} holds no sample of a class that has a share of the draws. Leave it "
                "out, or give a class that it holds a share."
            )
        if of_group:
            draws[group] = share_out(of_group, present)
    return Repeats(strata, draws, seed)


def _store_draws(samples: Samples, totals: Int64s, store_weights: Sequence[float] | None) -> list[int]:
    """Draws of each store, or of all together."""
    if store_weights is None:
        return [int(totals.sum())]
    if len(store_weights) != len(samples.sets):
        raise ConfigError(
            f"There are {len(samples.sets)} stores and {len(store_weights)} store_weights; give one for each."
        )
    weights = [check_share(f"store_weights[{k}]", weight) for k, weight in enumerate(store_weights)]
    for one, weight, count in zip(samples.sets, weights, totals.sum(axis=1).tolist(), strict=True):
        if weight and not count:
            raise EmptySplitError(
                f"The split {one.split!r} of the store {one.store.path} holds no samples ({one.describe()}), but is given "
                f"a weight of {weight:g}. Leave the store out, or give it 0."
            )
    if not any(weights):
        raise ConfigError("All store_weights are 0; give one of them more.")
    return share_out(int(totals.sum()), weights)


def _class_counts(samples: Samples) -> Int64s:
    """Samples of each (block, class) of all stores."""
    classes = samples.sets[0].store.classes
    if not classes:
        raise StoreSchemaError(
            f"balance asks for classes, but the store {samples.sets[0].store.path} has no labels. Give its workflow "
            "`labels`, or leave out balance."
        )
    counted: list[Int64s] = []
    for one, first in zip(samples.sets, samples.first_tile.tolist(), strict=False):
        if one.patch is None:
            of_tiles = samples.tile_class[first : first + len(one.store), None] == np.arange(classes)
        else:
            of_tiles = one.class_pixels
        starts = np.arange(0, len(one.store), one.store.chunk_tiles)
        counted.append(np.add.reduceat(of_tiles, starts, axis=0, dtype=np.int64))
    return np.concatenate(counted)
