"""One rule for wavelengths: whatever a file says about them becomes nm, or nothing, or an error.

1. Wavenumbers and frequencies are refused by name.
2. Placeholder lists (all zero, all equal, the band index) count as no wavelengths, with a warning.
3. A declared unit holds if the values make sense in it (100 nm to 100 um). A unit that contradicts the values is an
   error: nm beside 0.46 ... 2.41 is never taken as 0.46 nm, nor silently as um.
4. No unit, or one that is no unit of length (`Unknown`, `Index`, `n`): decided by magnitude, with one warning.

No order of the bands is assumed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import FormatError
from .options import Notes

UNITS_NM = {
    1.0: ("nm", "nanometer", "nanometers", "nanometre", "nanometres", "nano meters", "nanometer(s)"),
    1e3: (
        *(
            "um",
            "\N{MICRO SIGN}m",
            "\N{GREEK SMALL LETTER MU}m",
            "\N{MICRO SIGN}",
            "mu",
            "micrometer",
            "micrometers",
        ),
        *("micrometer(s)", "micrometre", "micrometres", "micro meters", "micron", "microns"),
    ),
    0.1: ("angstrom", "angstroms", "a", "\N{ANGSTROM SIGN}", "\N{LATIN CAPITAL LETTER A WITH RING ABOVE}"),
    1e6: ("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
    1e7: ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
    1e9: ("m", "meter", "meters", "metre", "metres"),
}
"""Nanometres per unit, by every spelling met (compared without regard to case and blanks around)."""

NOT_LENGTHS = (
    "wavenumber",
    "wavenumbers",
    "wave number",
    "1/cm",
    "cm-1",
    "cm^-1",
    "ghz",
    "mhz",
    "thz",
    "hz",
    "ev",
)
"""Units of other quantities than length, which are refused."""

_FACTORS = {spelling.casefold(): factor for factor, spellings in UNITS_NM.items() for spelling in spellings}

SHORTEST_NM, LONGEST_NM = 100.0, 100_000.0
"""From the far ultraviolet to the thermal infrared. As micrometres this is 0.1 to 100, so the two never overlap."""


def unit_factor(unit: str | None, where: str) -> float | None:
    """Return nm per unit, or None for no unit or a text that is none.

    Raises
    ------
    FormatError
        If the unit is a wavenumber or a frequency.
    """
    text = (unit or "").strip().strip("{}\"'").strip().casefold()
    if text in NOT_LENGTHS:
        msg = (
            f"{where}: wavelength units = {unit!r} is no length; only wavelengths are supported "
            "(nm, um and the like): convert the list and its unit in the header"
        )
        raise FormatError(msg)
    return _FACTORS.get(text)


def to_nanometres(
    values: ArrayLike,
    unit: str | None,
    where: str,
    notes: Notes,
    *,
    fwhm: ArrayLike | None = None,
    override: str | None = None,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return wavelengths and widths in nm by the rule of this module.

    Parameters
    ----------
    values
        Band centres as the file lists them.
    unit
        Unit as the file declares it; None where it does not.
    where
        Name of the file, for messages.
    notes
        Takes the warnings.
    fwhm
        Full widths at half maximum in the same unit.
    override
        Unit given by the user, which replaces the declared one.

    Returns
    -------
    tuple
        Wavelengths and FWHM as float64 in nm; None for what is unknown.

    Raises
    ------
    FormatError
        If values and declared unit contradict each other, or a value is no positive number.
    """
    given = np.asarray(values, np.float64).reshape(-1)
    declared = override if override is not None else unit
    factor = unit_factor(declared, where)
    if override is not None and factor is None:
        msg = f"wavelength_unit = {override!r} is no unit of length; allowed: nm, um, mm, m, angstrom"
        raise FormatError(msg)
    if not given.size:
        return None, None
    reason = placeholder(given)
    if reason is not None:
        notes.warn(f"{where}: the wavelengths are placeholders ({reason}); the scene has none")
        return None, None
    if not np.isfinite(given).all() or (given < 0).any():
        at = int(np.flatnonzero(~np.isfinite(given) | (given < 0))[0])
        msg = (
            f"{where}: wavelength of band {at + 1} is {given[at]:g}; allowed: positive numbers, one per band"
        )
        raise FormatError(msg)
    if (given == 0).any():
        bands = np.flatnonzero(given == 0) + 1
        notes.warn(
            f"{where}: wavelength 0 in band {', '.join(map(str, bands[:5]))}: a placeholder, kept as 0 nm"
        )
    positive = given[given > 0]
    factor = _decide(positive, declared, factor, where, notes)
    if factor is None:
        return None, None
    widths = None if fwhm is None else np.asarray(fwhm, np.float64).reshape(-1)
    if widths is not None and (not np.isfinite(widths).all() or (widths <= 0).all() or (widths < 0).any()):
        notes.warn(f"{where}: the fwhm list holds no usable widths; the scene has none")
        widths = None
    return _scaled(given, factor), None if widths is None else _scaled(widths, factor)


def placeholder(values: NDArray[np.float64]) -> str | None:
    """Return why a list of wavelengths is none, or None for a real one."""
    if (values == 0).all():
        return "all zero"
    if len(values) > 1 and (values == values[0]).all():
        return f"all {values[0]:g}"
    steps = np.arange(len(values), dtype=np.float64)
    if len(values) > 1 and (np.array_equal(values, steps) or np.array_equal(values, steps + 1)):
        return "the band index"
    return None


def _decide(
    positive: NDArray[np.float64], declared: str | None, factor: float | None, where: str, notes: Notes
) -> float | None:
    """Return nm per unit of the values; None when nobody can tell."""
    span = f"{positive.min():g} ... {positive.max():g}"
    if factor is not None:
        if _plausible(positive, factor):
            return factor
        fitting = next(
            (name for name, other in (("nm", 1.0), ("um", 1e3)) if _plausible(positive, other)), None
        )
        hint = (
            f"; they look like {fitting}: correct the file, or give wavelength_unit={fitting!r}"
            if fitting
            else ""
        )
        msg = f"{where}: wavelength units = {declared!r} contradicts the wavelengths {span}{hint}"
        raise FormatError(msg)
    stated = "no wavelength unit" if not (declared or "").strip() else f"wavelength units = {declared!r}"
    for name, candidate in (("nm", 1.0), ("um", 1e3)):
        if _plausible(positive, candidate):
            notes.warn(f"{where}: {stated}; the wavelengths {span} were taken as {name}")
            return candidate
    notes.warn(f"{where}: {stated}, and the wavelengths {span} fit neither nm nor um; the scene has none")
    return None


def _plausible(positive: NDArray[np.float64], factor: float) -> bool:
    low, high = float(positive.min()) * factor, float(positive.max()) * factor
    return low >= SHORTEST_NM and high < LONGEST_NM


def _scaled(values: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return nm; nanometres stay as they are, others lose what the multiplication adds (2.2 um is 2200 nm)."""
    if factor == 1:
        return values
    return np.asarray(np.round(values * factor, 9), np.float64)


def numbers(text: str | Sequence[str], key: str, where: str) -> NDArray[np.float64]:
    """Parse a list of numbers separated by commas, with or without braces.

    Raises
    ------
    FormatError
        Naming the key, the file and the entry that is no number.
    """
    entries: Sequence[Any] = split_list(text) if isinstance(text, str) else text
    out = np.empty(len(entries), np.float64)
    for i, entry in enumerate(entries):
        try:
            out[i] = float(entry)
        except ValueError as error:
            msg = f"{where}: entry {i + 1} of `{key}` is {str(entry)[:40]!r}; allowed: numbers separated by commas"
            raise FormatError(msg) from error
    return out


def split_list(text: str) -> list[str]:
    """Split a braced or bare list at its commas; an empty last entry (trailing comma) is no entry."""
    inner = text.strip()
    if inner.startswith("{"):
        inner = inner[1:].removesuffix("}")
    parts = [" ".join(part.split()) for part in inner.split(",")]
    if parts and not parts[-1]:
        parts.pop()
    return parts
