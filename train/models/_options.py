"""Checks of model options, which come from YAML and may be anything."""

from __future__ import annotations

from ...pipeline.errors import ConfigError


def integer(name: str, value: object, least: int) -> int:
    """An integer not below `least`.

    Raises
    ------
    ConfigError
        Another type (booleans are not numbers), or below.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"model.{name}: got {value!r}; an integer of at least {least} is needed")
    return value


def fraction(name: str, value: object) -> float:
    """A probability in [0, 1).

    Raises
    ------
    ConfigError
        Not a number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"model.{name}: got {value!r}; a number from 0 to below 1 is needed")
    return float(value)


def switch(name: str, value: object) -> bool:
    """True or false.

    Raises
    ------
    ConfigError
        Anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"model.{name}: got {value!r}; true or false is needed")
    return value
