"""One rule for wavelengths: whatever a file says about them becomes nm, or nothing, or an error.

1. Wavenumbers and frequencies are refused by name.
2. Placeholder lists (all zero, all equal, the band index) count as no wavelengths, with a warning.
3. A declared unit holds if the values make sense in it (100 nm to 100 um). A unit that contradicts the values is an
   error: nm beside 0.46 ... 2.41 is never taken as 0.46 nm, nor silently as um.
4. No unit, or one that is no unit of length (`Unknown`, `Index`, `n`): decided by magnitude, with one warning.
5. Where there is no list, wavelengths that stand in the names of the bands count if *every* name carries exactly one,
   with its unit (`from_names`).
6. Widths that make no sense in the unit of the wavelengths are left out, with a warning.

No order of the bands is assumed anywhere.
"""

from __future__ import annotations

import re
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

_IN_NAME = re.compile(
    r"(?<![a-z0-9.])(\d{1,6}(?:\.\d{1,12})?)[ _]?"
    r"(nm|nanomet(?:er|re)s?|um|\N{MICRO SIGN}m|\N{GREEK SMALL LETTER MU}m|micromet(?:er|re)s?|microns?)(?![a-z0-9])",
    re.IGNORECASE,
)
"""A wavelength with its unit inside a name. Only units that nobody would use for a pixel's size."""

NARROWEST_NM = 0.02
"""No imaging spectrometer has narrower bands (those for fluorescence have 0.1 to 0.3 nm); micrometres taken as nm have."""

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
    if widths is not None and not (np.isfinite(widths) & (widths > 0)).any():
        notes.warn(f"{where}: the fwhm list holds no usable widths; the scene has none")
        widths = None
    elif widths is not None:
        widths = np.where(np.isfinite(widths) & (widths > 0), widths, np.nan)
        if np.nanmax(widths) * factor < NARROWEST_NM or np.nanmin(widths) > positive.max():
            span = f"{np.nanmin(widths):g} ... {np.nanmax(widths):g}"
            notes.warn(
                f"{where}: the fwhm {span} are no widths in the unit of the wavelengths; the scene has none"
            )
            widths = None
    return _scaled(given, factor), None if widths is None else _scaled(widths, factor)


def from_names(names: Sequence[str]) -> tuple[list[float], str] | None:
    """Return the wavelengths that stand in the names of the bands, and their unit.

    Returns
    -------
    tuple or None
        Values and the unit as the names spell it; None unless every name carries exactly one wavelength in that unit
        and the values make sense in it. `Band 1 (400.0 nm)` and `376.44 Nanometers` are such names.
    """
    values: list[float] = []
    unit = ""
    for name in names:
        found = _IN_NAME.findall(name)
        if len(found) != 1 or (unit and found[0][1].casefold() != unit):
            return None
        unit = found[0][1].casefold()
        values.append(float(found[0][0]))
    if not values or placeholder(np.array(values)) is not None:
        return None
    return (values, unit) if _plausible(np.array(values), _FACTORS[unit]) else None


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
    """Parse a list of numbers separated by commas, or by blanks only, with or without braces.

    Raises
    ------
    FormatError
        Naming the key, the file and the entry that is no number.
    """
    entries: Sequence[Any] = split_list(text) if isinstance(text, str) else text
    if isinstance(text, str) and len(entries) == 1:
        entries = entries[0].split()  # no comma at all
    out = np.empty(len(entries), np.float64)
    for i, entry in enumerate(entries):
        try:
            out[i] = to_float(entry)
        except ValueError as error:
            msg = f"{where}: entry {i + 1} of `{key}` is {str(entry)[:40]!r}; allowed: numbers separated by commas"
            raise FormatError(msg) from error
    return out


def to_float(text: Any) -> float:
    """Return a number as headers write it: Python's own forms without `_`, and IDL's `1.5D+02`.

    Raises
    ------
    ValueError
        If the text is no number.
    """
    try:
        number = float(text)
    except ValueError:
        return float(str(text).casefold().replace("d", "e", 1))
    if isinstance(text, str) and ("_" in text or not text.isascii()):
        raise ValueError(text)
    return number


def split_list(text: str) -> list[str]:
    """Split a braced or bare list at its commas; an empty last entry (trailing comma) is no entry.

    Commas inside inner braces split nothing, and inner braces around an entry go: `{a, {b, c}}` are `a` and `b, c`.
    """
    inner = text.strip()
    if inner.startswith("{"):
        inner = inner[1:].removesuffix("}")
    parts = inner.split(",") if "{" not in inner else _split_outside_braces(inner)
    parts = [" ".join(part.split()) for part in parts]
    if parts and not parts[-1]:
        parts.pop()
    return parts


def _split_outside_braces(text: str) -> list[str]:
    """Split at the commas outside braces; at all commas where the braces do not match."""
    if text.count("{") != text.count("}"):
        return text.split(",")
    entries: list[list[str]] = [[]]
    depth = 0
    for piece in re.split(r"([{},])", text):
        if piece == "," and depth <= 0:
            entries.append([])
            continue
        depth += {"{": 1, "}": -1}.get(piece, 0)
        entries[-1].append(piece)
    whole = ("".join(pieces).strip() for pieces in entries)
    return [part[1:-1] if part.startswith("{") and part.endswith("}") else part for part in whole]
