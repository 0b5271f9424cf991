"""What the arguments of a stream may be."""

from __future__ import annotations

from typing import cast

from ...pipeline.errors import ConfigError
from ...pipeline.store import PatchStore


def is_integer(value: object) -> bool:
    """Whether a value is an integer; booleans are none here."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_integer(name: str, value: object, least: int | None) -> None:
    """Refuse what is no integer, or below `least`, with a ConfigError."""
    if not is_integer(value) or (least is not None and cast("int", value) < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r} is not allowed; give an integer{bound}.")


def check_patch(patch: int | None, store: PatchStore) -> None:
    """Refuse, with a ConfigError, patches that have no centre pixel or that the store's halo does not hold."""
    if patch is None:
        return
    if not is_integer(patch) or patch < 1 or patch % 2 == 0:
        raise ConfigError(
            f"patch={patch!r} is not allowed; give an odd integer, so that a patch has a centre pixel."
        )
    if patch > 2 * store.halo + 1:
        raise ConfigError(
            f"patch={patch} does not fit the store {store.path}: its halo of {store.halo} pixels allows patches up to "
            f"{2 * store.halo + 1}. Give a smaller patch, or set tiles.halo to {patch // 2} or more in the workflow and "
            "run it again."
        )


def check_ranks(rank: int | None, world_size: int | None) -> None:
    """Refuse, with a ConfigError, a rank that is none of `world_size`, and one of the two alone."""
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None:
        raise ConfigError(f"rank={rank!r} and world_size={world_size!r} go together; give both or neither.")
    check_integer("world_size", world_size, 1)
    check_integer("rank", rank, 0)
    if rank >= world_size:
        raise ConfigError(
            f"rank={rank} is not allowed with world_size={world_size}; ranks are 0 to {world_size - 1}."
        )
