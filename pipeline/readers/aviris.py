"""AVIRIS-Classic, AVIRIS-NG and AVIRIS-3 in ENVI files: radiance and surface reflectance with what lies beside them.

Known by the flight line's name (`f080702t01p00r08`, `ang20170323t202244`, `AV320230926t201618`), the product in it
(`rdn`; `rfl`, `refl` or `corr`), and the number of bands and type that the product has (224 int16, 425 or 432, 284).
Cut-outs keep their name and are read alike; class maps, pictures, uncertainties and raw frames go to the plain reader.

Source of the facts: the AVIRIS distribution document (030217) and the AVIRIS-NG data product distribution document
(2016) of JPL, and real files. The traps:

- Radiance is in uW cm-2 nm-1 sr-1, so its scale is 10. Classic stores int16 (big-endian), to be *divided* by the gain of
  each band in the `.gain` file (two columns: gain, channel). Without that file the numbers stay `dn`.
- Fill is hardly ever declared: -50 in Classic radiance, -9999 elsewhere, -0.005 in the 432-band reflectance of 2014 and
  2015 (seen in real files: every band of the pixels around the image).
- Reflectance: `corr` (Gao 1993) and `rfl` are surface reflectance by the products' convention, a fraction in float32;
  Classic reflectance is int16, 10,000 times the fraction.
- Classic wavelengths step back after bands 32, 96 and 160, where the four spectrometers overlap; the order is kept.
- Ortho-images lie on a *rotated* grid, which is kept.
- `obs` holds the geometry per pixel: band 5 is the sun's zenith (not band 9, the cosine of incidence on the slope), band
  11 the distance to the sun, which the ten bands of older flights lack. `obs_ort` goes with the ortho-image.
- `loc` holds longitude, latitude, elevation; `igm` the same in *metres* of UTM, which are no degrees and not used.
- `glt` counts samples and lines from 1; negative ones are filled in from the nearest pixel, 0 is fill.

Files beside the image belong to it if flight line, cut-out and size agree. Proved on real files: NG radiance with `obs`
and `loc`, NG reflectance, a Classic pixel. The `.gain` file, `glt` and AVIRIS-3 are proved on generated files.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import xarray as xr

from ..errors import FormatError, SceneError
from .aviris_geometry import add_glt, geolocation, sun_geometry
from .aviris_names import FLIGHT, AvirisName, parse_name, read_gains
from .envi import EnviFile, check_file, envi_scene
from .envi_bands import RADIANCE_UNIT, band_facts
from .envi_files import find_header, scene_name
from .envi_header import EnviHeader, is_envi, layout, read_header
from .options import Notes, Options
from .reader import Reader
from .wavelengths import numbers, unit_factor

_BANDS = {"AVIRIS-Classic": (224,), "AVIRIS-NG": (425, 432), "AVIRIS-3": (284,)}


def open_aviris(path: str, options: Options, notes: Notes, why: str) -> xr.Dataset:
    """Open an AVIRIS radiance or reflectance image, given its header, its data file, or a folder with only that image.

    Raises
    ------
    SceneNotFoundError
        If header or data file is missing.
    FormatError
        If the name tells neither flight line nor product, or header or `.gain` file are not understood.
    TruncatedFileError
        If the data file is too short.
    """
    inside = _image_of(path) if os.path.isdir(path) else path
    if inside is None:
        msg = f"{path} holds no AVIRIS image, or several; give the header of one"
        raise FormatError(msg)
    file = check_file(inside, options, notes)
    name = parse_name(scene_name(file.header.path))
    if name is None or name.kind not in ("rdn", "rfl"):
        msg = (
            f"{file.header.path}: the name tells no AVIRIS product (like ang20170323t202244_rdn_..., f080702t01p00r08rdn_..., "
            "..._rfl_...); open it with reader='envi' and give scale= and quantity="
        )
        raise FormatError(msg)
    facts, more_files = _facts(file, name, options, notes)
    scene = envi_scene(
        file,
        facts,
        notes,
        sensor=name.sensor,
        product=f"{name.sensor} {'L1 radiance' if name.kind == 'rdn' else 'L2 reflectance'}",
        acquired=name.acquired,
        source=path,
        reader="aviris",
        why=why,
    )
    return _with_geometry(scene, file, name, more_files, notes)


def _facts(
    file: EnviFile, name: AvirisName, options: Options, notes: Notes
) -> tuple[dict[str, Any], list[str]]:
    """Return the facts about the bands, and the files besides header and data that they come from."""
    bands = file.place.shape_yxb[2]
    header = _with_unit(file.header)
    facts = band_facts(header, bands, options, notes)
    if options.nodata is None and header.get("data ignore value") is None:
        facts["nodata"] = _fill(name, bands)
        notes.warn(
            f"{header.path}: no `data ignore value`; {facts['nodata']:g}, the fill of such products, was taken"
        )
    if name.kind == "rfl":
        return facts | _reflectance(facts, file, options, notes), []
    if facts["scale"] is not None and options.scale is None:
        notes.warn(
            f"{header.path} scales its numbers itself; its word counts, not what is known of AVIRIS radiance"
        )
        return facts, []
    if options.scale is not None:
        return facts | _as_radiance(options), []
    if name.sensor != "AVIRIS-Classic":
        return facts | _as_radiance(options) | {"scale": 10.0}, []
    gain_path = _gain_file(file, name, notes)
    if gain_path is None:
        notes.warn(
            f"{header.path}: no {name.flight}*.gain file beside it, so the numbers stay dn; put the file there, or give "
            "scale= (10 divided by the gain of each band) and quantity='radiance'"
        )
        return facts | {"quantity": options.quantity or "dn", "units": options.units or ""}, []
    facts["scale"] = 10.0 / read_gains(gain_path, bands)
    return facts | _as_radiance(options), [gain_path]


def _as_radiance(options: Options) -> dict[str, str]:
    return {"quantity": options.quantity or "radiance", "units": options.units or RADIANCE_UNIT}


def _reflectance(facts: dict[str, Any], file: EnviFile, options: Options, notes: Notes) -> dict[str, Any]:
    """Return scale, quantity and unit of a reflectance image."""
    told = {"quantity": options.quantity or "surface_reflectance", "units": options.units or "1"}
    if facts["scale"] is not None or file.cube.dtype.kind == "f":
        return told
    notes.warn(f"{file.header.path}: no `reflectance scale factor`; 10000, that of the product, was taken")
    return told | {"scale": 1e-4}


def _fill(name: AvirisName, bands: int) -> float:
    """Return the fill that the product does not declare."""
    if name.kind == "rdn":
        return -50.0 if name.sensor == "AVIRIS-Classic" else -9999.0
    return -0.005 if bands == 432 else -9999.0


def _with_unit(header: EnviHeader) -> EnviHeader:
    """Return the header with nanometres where it names no unit and the wavelengths are AVIRIS's in nm."""
    listed = header.get("wavelength")
    if listed is None or unit_factor(header.get("wavelength units"), header.path) is not None:
        return header
    values = numbers(listed, "wavelength", header.path)
    if not len(values) or not (values.min() > 300 and values.max() < 2700):
        return header
    return replace(header, fields={**header.fields, "wavelength units": "Nanometers"})


def _gain_file(file: EnviFile, name: AvirisName, notes: Notes) -> str | None:
    """Return the flight line's `.gain` file beside the image."""
    folder = os.path.dirname(file.header.path)
    found = [entry for entry in _files_in(folder, ".gain") if entry.lower().startswith(name.flight)]
    if len(found) > 1:
        notes.warn(
            f"{file.header.path}: several .gain files lie beside it ({', '.join(found)}); none is used"
        )
    return os.path.join(folder, found[0]) if len(found) == 1 else None


def _with_geometry(
    scene: xr.Dataset, file: EnviFile, name: AvirisName, more_files: list[str], notes: Notes
) -> xr.Dataset:
    """Add what the files beside the image tell about each pixel."""
    beside = _companions(file, name, notes)
    chunks = scene["data"].data.chunks[0]
    used: list[EnviFile] = []
    if "obs" in beside and sun_geometry(scene, beside["obs"], chunks, notes):
        used.append(beside["obs"])
    if "spatial_ref" not in scene.coords:
        place = beside.get("loc", beside.get("igm"))
        if place is not None and geolocation(scene, place, chunks, notes):
            used.append(place)
        if "glt" in beside and add_glt(scene, beside["glt"], notes):
            used.append(beside["glt"])
    scene.attrs["files"] = [*file.files, *more_files, *(path for other in used for path in other.files)]
    return scene


def _companions(file: EnviFile, name: AvirisName, notes: Notes) -> dict[str, EnviFile]:
    """Return the obs, loc, igm and glt files of the same part of the flight line; all but the glt of the same size."""
    folder = os.path.dirname(file.header.path)
    found: dict[str, EnviFile] = {}
    for entry in _files_in(folder, ".hdr"):
        other = parse_name(scene_name(entry))
        if (
            other is None
            or other.kind in ("rdn", "rfl")
            or (other.flight, other.part) != (name.flight, name.part)
        ):
            continue
        try:
            beside = check_file(os.path.join(folder, entry), Options(), Notes())
        except SceneError as error:
            notes.warn(f"{entry}, which lies beside the image, is not used: {error}")
            continue
        rows, cols, bands = beside.place.shape_yxb
        fits = other.kind == "glt" or (rows, cols) == file.place.shape_yxb[:2]
        if fits and bands >= {"obs": 5, "glt": 2}.get(other.kind, 3):
            found.setdefault(other.kind, beside)
    return found


def _files_in(folder: str, ending: str) -> list[str]:
    """Return the names of the files of a folder with an ending, in order."""
    with os.scandir(folder or ".") as entries:
        return sorted(
            entry.name for entry in entries if entry.name.lower().endswith(ending) and entry.is_file()
        )


def _image_of(folder: str) -> str | None:
    """Return the header of the only AVIRIS image of a folder, or None."""
    headers = [os.path.join(folder, entry) for entry in _files_in(folder, ".hdr")]
    images = [header for header in headers if _reason(header, header) is not None]
    return images[0] if len(images) == 1 else None


def _reason(path: str, header_path: str | None) -> str | None:
    """Return why name and header make a file an AVIRIS image, or None."""
    name = parse_name(scene_name(path))
    if name is None or name.kind not in ("rdn", "rfl") or header_path is None:
        return None
    try:
        place = layout(read_header(header_path))
    except (SceneError, OSError):
        return None
    bands, kind = place.shape_yxb[2], place.dtype[1:]
    classic, radiance = name.sensor == "AVIRIS-Classic", name.kind == "rdn"
    types = ("i2",) if classic and radiance else ("i2", "f4") if classic else ("f4",)
    if bands not in _BANDS[name.sensor] or kind not in types:
        return None
    return f"{name.sensor} by the name ({name.flight}, {name.kind}) and the {bands} bands of its ENVI header"


def _recognise(path: str, head: bytes) -> str | None:
    try:
        if not head:
            image = _image_of(path) if os.path.isdir(path) else None
            return None if image is None else _reason(image, image)
        if FLIGHT.match(os.path.basename(path)) is None:
            return None
        return _reason(path, path if is_envi(head) else find_header(path))
    except OSError:
        return None


READER = Reader("aviris", "AVIRIS (ENVI files)", _recognise, open_aviris)
