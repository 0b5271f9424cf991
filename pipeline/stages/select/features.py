"""Named spectral features, as `catalogs/features.yaml` lists them."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Sequence
from importlib import resources
from typing import Annotated, Any, Literal

import pydantic

from ...config import StrictModel, parse, parse_yaml
from ...errors import ConfigError

Interval = tuple[float, float]


def _interval(value: Any) -> Any:
    return (value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


#: one wavelength, or the interval inside which it lies, in nm
Wavelength = Annotated[Interval, pydantic.BeforeValidator(_interval)]


class Feature(StrictModel):
    """One feature: where it is, and where the spectrum beside it tells that it is there."""

    name: str = ""
    centre_nm: Wavelength  #: of the absorption, peak or edge
    left_nm: Wavelength | None = None  #: shoulder towards short wavelengths; None where it has none
    right_nm: Wavelength | None = None  #: shoulder towards long wavelengths
    tells: str  #: what it is seen in
    sets: Annotated[list[str], pydantic.Field(min_length=1)]  #: groups it belongs to
    sources: Annotated[list[str], pydantic.Field(min_length=1)]  #: keys of the catalog's list of publications

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Feature:
        ends = [end for part in (self.left_nm, self.centre_nm, self.right_nm) if part for end in part]
        if not all(0 < low <= high for low, high in itertools.pairwise(ends)):
            raise ValueError(f"left, centre and right must follow each other, got {ends}")
        return self

    @property
    def points(self) -> tuple[tuple[str, Interval], ...]:
        """What is looked for, the centre first."""
        parts = (
            ("centre", self.centre_nm),
            ("left shoulder", self.left_nm),
            ("right shoulder", self.right_nm),
        )
        return tuple((name, part) for name, part in parts if part is not None)


class _Table(StrictModel):
    version: Literal[1]
    sources: dict[str, str]
    features: dict[str, Feature]

    @pydantic.model_validator(mode="after")
    def _cited(self) -> _Table:
        cited = {key for feature in self.features.values() for key in feature.sources}
        if cited != set(self.sources):
            raise ValueError(f"sources cited and listed differ in {sorted(cited ^ set(self.sources))}")
        clash = {name for feature in self.features.values() for name in feature.sets} & {
            *self.features,
            "all",
        }
        if clash:
            raise ValueError(f"names of sets that are names of features too: {sorted(clash)}")
        return self


@functools.lru_cache(maxsize=1)
def load_features() -> dict[str, Feature]:
    """Return all features by name, in the order of the catalog."""
    file = resources.files(f"{__name__.rsplit('.', 4)[0]}.catalogs") / "features.yaml"
    table = parse(_Table, parse_yaml(file.read_text(encoding="utf-8"), "features.yaml"), "features.yaml")
    return {name: feature.model_copy(update={"name": name}) for name, feature in table.features.items()}


def feature_sets() -> dict[str, tuple[str, ...]]:
    """Return the names of the features of each set; `all` holds every one."""
    features = load_features()
    names = sorted({name for feature in features.values() for name in feature.sets})
    sets = {name: tuple(key for key, feature in features.items() if name in feature.sets) for name in names}
    return {**sets, "all": tuple(features)}


def features_named(names: Sequence[str]) -> tuple[Feature, ...]:
    """Return features by their names and the names of sets, each once, in the order of the catalog.

    Raises
    ------
    ConfigError
        There is no feature and no set of such a name; the nearest name is given.
    """
    features, sets = load_features(), feature_sets()
    wanted: set[str] = set()
    for name in names:
        if name not in features and name not in sets:
            near = difflib.get_close_matches(name, [*sets, *features], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"There is no feature or set of features named {name!r}.{hint} Sets: {', '.join(sets)}. Features: "
                f"{', '.join(features)}."
            )
        wanted.update(sets.get(name, (name,)))
    return tuple(feature for key, feature in features.items() if key in wanted)
