"""Options that several commands share. Imports nothing heavy, as every command line does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

READ_KEYS = (
    *("reader", "data_file", "header_offset", "wavelength_unit", "nodata", "scale", "offset", "quantity"),
    *("units", "variable", "detector", "axes", "shape_yx", "height_m"),
)
"""The keys of `ReaderOptions`, spelled out so that `--help` does not load pydantic."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="KEY=VALUE",
        help=f"What the file does not tell, once or more: {', '.join(READ_KEYS)}.",
    ),
]


def read_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of `open_scene` that the texts after `--read` give.

    Raises
    ------
    ConfigError
        A key is unknown, or a value is not allowed.
    """
    if not given:
        return {}
    from ..reader_options import parse_options

    return parse_options(given)
