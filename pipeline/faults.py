"""Which scene an error is about, so that a workflow over many scenes can go on without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .errors import BandstreamError

_MARK = "bandstream_scene_id"


class HasSceneId(Protocol):
    """An opened scene, or what is made from one."""

    @property
    def scene_id(self) -> str:
        """Name of the scene within its workflow."""
        ...


Item = TypeVar("Item", bound=HasSceneId)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class SkippedScene:
    """A scene that a workflow went on without."""

    scene_id: str
    error: str  #: name of the error's class
    reason: str

    @classmethod
    def of(cls, scene_id: str, error: Exception) -> SkippedScene:
        """Name a scene and what went wrong with it."""
        return cls(scene_id, type(error).__name__, str(error))

    def note(self) -> str:
        """Return one line for people."""
        return f"skipped scene {self.scene_id}: {self.reason}"


def blames_scene(function: Callable[Concatenate[Item, P], R]) -> Callable[Concatenate[Item, P], R]:
    """Mark the errors of a function with the scene that its first argument stands for.

    Parameters
    ----------
    function
        Reads something of a scene.
    """

    @functools.wraps(function)
    def call(item: Item, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(item, *args, **kwargs)
        except (BandstreamError, OSError) as error:
            blame(error, item.scene_id)
            raise

    return call


def blame(error: BaseException, scene_id: str) -> None:
    """Mark an error with the scene that it is about; the mark travels with it, from another process too."""
    setattr(error, _MARK, scene_id)


def blamed_scene(error: BaseException) -> str | None:
    """Return the scene that an error was marked with."""
    found = getattr(error, _MARK, None)
    return found if isinstance(found, str) else None
