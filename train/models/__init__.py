"""The networks that come with Bandstream, made by name.

Every model takes `x_nbhw` float32 (batch, band, y, x) and is an `nn.Module` with

- `bands`, `classes`: the sizes it was made for;
- `stages`: an `nn.Sequential` whose parts, called one after the other, are the whole forward pass (the chain that
  memory schedules cut);
- `receptive_radius` for dense tasks: how many pixels to each side of a pixel decide its logits.

The registry names options without importing torch; the network's own module is imported when a model is made.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ...pipeline.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "ModelInfo", "create", "known_model"]


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model before it is made."""

    name: str
    """Name to write in `model: {name: ...}`."""
    tasks: tuple[str, ...]
    """Tasks that it serves: `classify` gives (batch, classes), `segment` gives (batch, classes, y, x)."""
    options: Mapping[str, object]
    """Every option with its default."""
    summary: str
    """One line for lists."""
    source: str
    """Literature."""
    module: str
    """Module of this package that defines it."""
    factory: str
    """Class in that module, called as `factory(bands=, classes=, patch=, **options)`."""


_KNOWN = (
    ModelInfo(
        name="cnn3d",
        tasks=("classify",),
        options=MappingProxyType(
            {"channels": 2, "hidden": 0, "batch_norm": False, "dropout": 0.0, "spectral_skip": False}
        ),
        summary="two 3-D convolutions without pooling, then fully connected; centre pixel of a patch",
        source="Li, Zhang & Shen 2017, Remote Sensing 9(1):67",
        module="cnn3d",
        factory="Cnn3d",
    ),
    ModelInfo(
        name="segmenter",
        tasks=("segment",),
        options=MappingProxyType({"width": 64, "dilations": (1, 2), "batch_norm": True, "dropout": 0.0}),
        summary="spectral 1x1 front, dilated residual blocks, 1x1 head; every pixel of a tile",
        source="residual blocks of He et al. 2016, dilations of Yu & Koltun 2016",
        module="segmenter",
        factory="Segmenter",
    ),
)

MODELS: Mapping[str, ModelInfo] = MappingProxyType({info.name: info for info in _KNOWN})
"""The models that `create` knows, by name."""


def create(name: str, *, bands: int, classes: int, patch: int | None, **options: object) -> nn.Module:
    """Make a model with fresh weights (drawn from torch's global generator).

    Parameters
    ----------
    name
        A key of `MODELS`.
    bands
        Bands or components of the store.
    classes
        Classes, without "unlabelled": output 0 is class 1.
    patch
        Side of the pixel-centred patches; None for tiles (dense models do not depend on it).
    **options
        Options of that model, see `MODELS[name].options`.

    Raises
    ------
    ConfigError
        Unknown name or option, or a value out of range.
    """
    info = known_model(name, options)
    for key, value in (("bands", bands), ("classes", classes)):
        if value < 1:
            raise ConfigError(f"model {name}: {key} = {value}; at least 1 is needed")
    module = importlib.import_module(f".{info.module}", __name__)
    factory = cast("Callable[..., nn.Module]", getattr(module, info.factory))
    return factory(bands=bands, classes=classes, patch=patch, **{**info.options, **options})


def known_model(name: str, options: Mapping[str, object]) -> ModelInfo:
    """Look a model up and check that it has the named options; their values are checked when it is made.

    Raises
    ------
    ConfigError
        Unknown name or option.
    """
    if name not in MODELS:
        raise ConfigError(f"model.name: got {name!r}{_nearest(name, MODELS)}; allowed: {', '.join(MODELS)}")
    info = MODELS[name]
    for key in options:
        if key not in info.options:
            allowed = ", ".join(f"{option} (default {value!r})" for option, value in info.options.items())
            raise ConfigError(
                f"model.{key}: {name} has no such option{_nearest(key, info.options)}; allowed: {allowed}"
            )
    return info


def _nearest(name: str, known: Mapping[str, object]) -> str:
    """`(did you mean 'x'?)` or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
