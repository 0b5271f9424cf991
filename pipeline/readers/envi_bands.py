"""What an ENVI header tells about its bands: wavelengths, bad bands, names, and how raw numbers become physical ones.

Rules where headers leave a choice:

- `data gain values` and `data offset values` lead to a quantity that ENVI does not name: it stays `other`, unless
  `data units` spells out a unit of radiance of `RADIANCE_UNITS`. The word radiance in a description decides nothing.
- `data reflectance gain values` and `data reflectance offset values` lead to reflectance at the top of the atmosphere
  (that is what ENVI calibrates with them). Where a header has both pairs, the first counts, as it does in GDAL, and a
  warning tells of the second.
- `reflectance scale factor` divides. With gains beside it the order is not defined, so the user is asked.
- Wavelengths that stand only in the band names are read if every name carries one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .carried import read_carried
from .envi_header import DATA_TYPES, EnviHeader
from .options import Notes, Options
from .wavelengths import from_names, numbers, split_list, to_float, to_nanometres

RADIANCE_UNIT = "W m-2 sr-1 um-1"
"""The unit of radiance in every scene."""

RADIANCE_UNITS = {
    "w/(m^2*sr*um)": 1.0,
    "w/(m^2*um*sr)": 1.0,
    "w/m^2/sr/um": 1.0,
    "w/m^2/um/sr": 1.0,
    "wm-2sr-1um-1": 1.0,
    "wm-2um-1sr-1": 1.0,
    "uw/(cm^2*nm*sr)": 10.0,
    "uw/(cm^2*sr*nm)": 10.0,
    "uw/cm^2/nm/sr": 10.0,
    "uw/cm^2/sr/nm": 10.0,
    "uwcm-2nm-1sr-1": 10.0,
    "uwcm-2sr-1nm-1": 10.0,
    "uwnm-1cm-2sr-1": 10.0,
}
"""Factor to W m-2 sr-1 um-1 by the spelling of the unit, without blanks, lower case, `u` for micro."""

_Numbers = NDArray[np.float64] | None


def band_facts(header: EnviHeader, bands: int, options: Options, notes: Notes) -> dict[str, Any]:
    """Return what a header tells about its bands, as arguments of `make_scene`, with the user's overrides.

    Raises
    ------
    FormatError
        If a list does not have one entry per band, or holds something else than numbers.
    """
    where = header.path
    names = _band_names(header, bands, notes)
    wavelength_nm, fwhm_nm = _wavelengths(header, bands, names, options, notes)
    bbl = listed(header, "bbl", bands)
    scale, offset, told, units = _scaling(header, bands, options, notes)
    own = read_carried(header.fields, " ")
    told, units = own.get("quantity", told), own.get("units", units)
    return {
        "wavelength_nm": wavelength_nm,
        "fwhm_nm": fwhm_nm,
        "good_band": None if bbl is None else good_bands(bbl, where),
        "band_names": names,
        "nodata": options.nodata if options.nodata is not None else _ignore_value(header, notes),
        "scale": options.scale if options.scale is not None else scale,
        "offset": options.offset if options.offset is not None else offset,
        "quantity": options.quantity or told,
        "units": options.units or ("" if options.quantity or options.scale is not None else units),
    }


def good_bands(bbl: NDArray[np.float64], where: str) -> NDArray[np.bool_]:
    """Return per band whether a list of bad bands (`bbl`: 0 bad, more than 0 good) calls it good.

    Raises
    ------
    FormatError
        If an entry is NaN or infinite.
    """
    wrong = np.flatnonzero(~np.isfinite(bbl))
    if wrong.size:
        msg = f"{where}: `bbl` holds {bbl[wrong[0]]} for band {wrong[0] + 1}; allowed: 0 (bad) or 1 (good)"
        raise FormatError(msg)
    return bbl > 0


def listed(header: EnviHeader, key: str, bands: int) -> NDArray[np.float64] | None:
    """Return a list of one number per band, or None when the key is absent or empty.

    Raises
    ------
    FormatError
        If the count is another one (with both counts), or an entry is no number.
    """
    text = header.get(key)
    if text is None:
        return None
    values = numbers(text, key, header.path)
    if len(values) != bands:
        msg = f"{header.path}: `{key}` has {len(values)} entries for {bands} bands; it must have one per band"
        raise FormatError(msg)
    return values


def _wavelengths(
    header: EnviHeader, bands: int, names: Sequence[str] | None, options: Options, notes: Notes
) -> tuple[_Numbers, _Numbers]:
    """Return wavelengths and widths in nm, from the lists or else from the names of the bands."""
    widths = listed(header, "fwhm", bands)
    centres: Sequence[float] | _Numbers = listed(header, "wavelength", bands)
    unit = header.get("wavelength units")
    if centres is None:
        named = None if names is None else from_names(names)
        if named is None:
            return None, None
        centres, unit = named
        notes.warn(
            f"{header.path}: no `wavelength` list; the wavelengths were read from the names of the bands ({unit})"
        )
    return to_nanometres(centres, unit, header.path, notes, fwhm=widths, override=options.wavelength_unit)


def _scaling(
    header: EnviHeader, bands: int, options: Options, notes: Notes
) -> tuple[_Numbers, _Numbers, str, str]:
    """Return scale and offset per band, the quantity they lead to, and its unit."""
    gains, offsets, kind, units = _gains(header, bands, options, notes)
    factor = _reflectance_factor(header, options)
    if factor is not None and not _changes(gains, offsets):
        return np.full(bands, 1.0 / factor), None, "surface_reflectance", "1"
    if factor not in (None, 1.0) and options.scale is None:
        msg = (
            f"{header.path}: both `reflectance scale factor` and data gains or offsets are given, and which comes "
            "first is not defined; give scale= and offset="
        )
        raise FormatError(msg)
    return _in_known_units(header, bands, gains, offsets, kind, units)


def _gains(
    header: EnviHeader, bands: int, options: Options, notes: Notes
) -> tuple[_Numbers, _Numbers, str, str]:
    """Return the gains and offsets that count, the quantity they lead to, and its unit."""
    gains = listed(header, "data gain values", bands)
    offsets = listed(header, "data offset values", bands)
    to_reflectance = listed(header, "data reflectance gain values", bands)
    shift = listed(header, "data reflectance offset values", bands)
    if not _changes(to_reflectance, shift):
        return gains, offsets, "other", ""
    if not _changes(gains, offsets):
        return to_reflectance, shift, "toa_reflectance", "1"
    if options.scale is None:
        notes.warn(
            f"{header.path}: gains to radiance and gains to reflectance are both given; the first are used. "
            "For reflectance give scale=, offset= and quantity='toa_reflectance'"
        )
    return gains, offsets, "other", ""


def _reflectance_factor(header: EnviHeader, options: Options) -> float | None:
    """Return the number that stored reflectance is divided by; None where there is none, or the user's scale counts."""
    text = header.get("reflectance scale factor")
    if text is None:
        return None
    factor = float(numbers([text], "reflectance scale factor", header.path)[0])
    if factor > 0 and np.isfinite(factor):
        return factor
    if options.scale is not None:
        return None
    msg = (
        f"{header.path}: reflectance scale factor = {text[:40]}; allowed: a positive number; "
        "correct the header, or give scale="
    )
    raise FormatError(msg)


def _changes(gains: _Numbers, offsets: _Numbers) -> bool:
    """Return whether gains and offsets do anything."""
    return (gains is not None and bool((gains != 1).any())) or (
        offsets is not None and bool((offsets != 0).any())
    )


def _in_known_units(
    header: EnviHeader, bands: int, gains: _Numbers, offsets: _Numbers, kind: str, units: str
) -> tuple[_Numbers, _Numbers, str, str]:
    """Bring numbers whose unit of radiance the header spells out to W m-2 sr-1 um-1."""
    told = "".join((header.get("data units") or "").casefold().split()).replace(
        "\N{GREEK SMALL LETTER MU}", "u"
    )
    factor = RADIANCE_UNITS.get(told)
    if factor is None or kind != "other":
        return gains, offsets, kind, units
    gains = factor * (np.ones(bands) if gains is None else gains)
    return gains, None if offsets is None else factor * offsets, "radiance", RADIANCE_UNIT


def _ignore_value(header: EnviHeader, notes: Notes) -> float | None:
    text = header.get("data ignore value")
    if text is None:
        return None
    try:
        value = to_float(text)
    except ValueError:
        value = np.inf
    if not np.isinf(value):
        dtype = np.dtype(DATA_TYPES.get(_code(header), "f8"))
        if dtype.kind in "iu" and abs(value) < 1e30:  # ENVI writes -1.23e34 into headers of integers too
            info = np.iinfo(dtype)
            # as floats: the one nearest to the largest 64-bit number lies beyond it
            if value != round(value) or not float(info.min) <= value <= float(info.max):
                notes.warn(
                    f"{header.path}: data ignore value = {text[:40]} is no number of {dtype.name}; it marks nothing as no data: "
                    "give nodata= if another number does"
                )
        return value
    notes.warn(
        f"{header.path}: data ignore value = {text[:40]!r} is no finite number (nor NaN); the scene has no nodata value"
    )
    return None


def _code(header: EnviHeader) -> int:
    """Return the number of the data type; 0 where a header beside a TIFF lacks it."""
    try:
        return int(to_float(header.get("data type") or "0"))
    except (ValueError, OverflowError):
        return 0


def _band_names(header: EnviHeader, bands: int, notes: Notes) -> Sequence[str] | None:
    text = header.get("band names")
    if text is None:
        return None
    names = split_list(text)
    if len(names) == bands:
        return names
    notes.warn(f"{header.path}: `band names` has {len(names)} entries for {bands} bands; they are not used")
    return None
