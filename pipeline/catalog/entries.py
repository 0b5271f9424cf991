"""Scene catalogs: YAML files that name scenes, their labels and where they come from.

The fields that STAC has too carry its names (`title`, `description`, `license`, `providers`, `datetime`, `bbox`).
Entries ship with the package; a user's own stand in the folders or files that BANDSTREAM_CATALOG names, and go first.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import pydantic

from ..config import StrictModel, data_roots, load_yaml, parse
from ..errors import BandstreamWarning, ConfigError, SceneError, SceneNotFoundError

if TYPE_CHECKING:
    import xarray as xr

CATALOG_VARIABLE = "BANDSTREAM_CATALOG"
SUFFIXES = (".yaml", ".yml")
Count = Annotated[int, pydantic.Field(ge=0)]
Finite = pydantic.FiniteFloat


class CatalogFile(StrictModel):
    """One file of an entry, and where it can be fetched."""

    path: str  #: in the entry's folder; for an archive, the archive's own name
    urls: list[str] = []  #: tried in this order; http and https only
    sha256: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    md5: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    size_bytes: Count | None = None
    unpack: bool = False  #: a zip or tar archive whose content belongs into the folder

    @pydantic.field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = PurePosixPath(value.replace("\\", "/"))
        if (
            not parts.parts
            or parts.is_absolute()
            or ".." in parts.parts
            or ":" in parts.parts[0]
            or "\0" in value
        ):
            raise ValueError(f"a file of an entry lies inside its folder, got {value!r}")
        return value

    @pydantic.field_validator("urls")
    @classmethod
    def _web(cls, value: list[str]) -> list[str]:
        for url in value:
            require_web(url)
        return value


class RemovedBands(StrictModel):
    """Which bands of the sensor are not in the files."""

    of: Annotated[int, pydantic.Field(ge=1)]  #: bands before
    bands: list[tuple[int, int]] | None = (
        None  #: first and last of each run, 1-based; None where not published
    )


class CatalogEntry(StrictModel):
    """One catalog file: a named set of scenes with its origin."""

    version: Literal[1]
    #: files are named after it, so that it must not lead to another folder
    name: Annotated[str, pydantic.Field(pattern=r"^\w[\w .+-]{0,149}$")]
    title: str
    description: str
    license: str
    providers: list[str]
    citation: str | None = None
    source: str | None = None  #: what the figures of the entry were compared with
    unverified: str | None = None  #: what could not be compared with anything, in words
    datetime: str | None = None
    sensor: str | None = None
    folder: str = "."  #: folder of the files, under the working folder or $BANDSTREAM_DATA
    #: entries as in a workflow's `scenes`
    scenes: Annotated[list[dict[str, Any]], pydantic.Field(min_length=1)]
    shape_yxb: tuple[int, int, int] | None = None  #: of each scene: rows, columns, bands
    dtype: str | None = None  #: number type of each scene
    removed_bands: RemovedBands | None = None
    class_names: list[str] | None = None
    class_counts: list[Count] | None = None  #: labelled pixels of each class, as published
    materials: list[str] | None = None  #: end members of an unmixing scene, which has no class map
    files: list[CatalogFile] = []
    bbox: tuple[Finite, Finite, Finite, Finite] | None = None  #: west, south, east, north in degrees
    proj_code: str | None = None  #: such as EPSG:32633
    proj_transform: Annotated[list[Finite], pydantic.Field(min_length=6, max_length=6)] | None = (
        None  #: a, b, c, d, e, f: from column and row to coordinates
    )
    wavelength_nm: list[float] | None = None  #: where the origin tells them and the files do not
    fwhm_nm: list[float] | None = None
    _origin: Path | None = pydantic.PrivateAttr(default=None)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> CatalogEntry:
        if self.class_counts is not None and len(self.class_counts) != len(self.class_names or ()):
            raise ValueError(
                f"class_counts has {len(self.class_counts)} numbers for {len(self.class_names or ())} class names"
            )
        without = [n for n, scene in enumerate(self.scenes, 1) if not isinstance(scene.get("path"), str)]
        if without:
            raise ValueError(f"scene {without[0]} has no path; every scene names its file")
        if self.shape_yxb is not None and min(self.shape_yxb) < 1:
            raise ValueError(f"shape_yxb must be three numbers of at least 1, got {list(self.shape_yxb)}")
        removed = self.removed_bands
        if removed is not None and removed.bands is not None and self.shape_yxb is not None:
            left = removed.of - sum(last - first + 1 for first, last in removed.bands)
            if left != self.shape_yxb[2]:
                raise ValueError(f"removed_bands leaves {left} bands and shape_yxb says {self.shape_yxb[2]}")
        for name in ("wavelength_nm", "fwhm_nm"):
            values = getattr(self, name)
            if values is not None and self.shape_yxb is not None and len(values) != self.shape_yxb[2]:
                raise ValueError(f"{name} has {len(values)} numbers for {self.shape_yxb[2]} bands")
        return self

    @property
    def origin(self) -> Path | None:
        """The user's own YAML file of the entry; None for an entry that ships with the package."""
        return self._origin

    def placed(self, path: Path) -> CatalogEntry:
        """Return the entry as one that stands in the user's own file `path`."""
        copy = self.model_copy()
        copy._origin = Path(os.path.abspath(path))  # noqa: SLF001 - of its own kind
        return copy

    def bases(self, bases: Sequence[Path]) -> list[Path]:
        """Return the folders in which the entry's relative paths are looked for.

        Raises
        ------
        SceneNotFoundError
            The entry's folder is nowhere.
        """
        folder = Path(self.folder).expanduser()
        own = [] if self._origin is None else [self._origin.parent]
        places = [base / folder for base in (*own, *bases, *data_roots())]
        found = [
            place for place in dict.fromkeys([folder] if folder.is_absolute() else places) if place.is_dir()
        ]
        if not found:
            fetch = f", or fetch it: `bandstream catalog fetch {self.name}`" if self.files else ""
            raise SceneNotFoundError(
                f"The folder {self.folder} of the catalog entry {self.name} was found neither beside the workflow nor "
                f"in the working folder; set BANDSTREAM_DATA to the folder that holds it{fetch}."
            )
        return found


def require_web(url: str) -> None:
    """Refuse an address that is not http or https, or that carries a password.

    Raises
    ------
    ValueError
        Says what is allowed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"files are fetched by http or https only, got {url!r}")
    if parts.username or parts.password:
        raise ValueError("an address of a catalog must not carry a user name or password; use ~/.netrc")


def require_inside(given: str, found: Path, entry: CatalogEntry, places: Sequence[Path]) -> None:
    """Refuse a file that a relative path of a catalog entry reaches outside the entry's folder.

    A catalog may come from elsewhere, so that neither `..` nor a symbolic link in its folder may point it at other
    files. An absolute path in an entry of the user's own is the user's word.

    Parameters
    ----------
    given
        The path as the entry writes it.
    found
        The file that it led to.
    entry
        The entry.
    places
        Its folders, from `CatalogEntry.bases`.

    Raises
    ------
    ConfigError
        The file lies outside; says how to proceed.
    """
    if Path(given).expanduser().is_absolute():
        return
    real = found.resolve()
    if not any(real.is_relative_to(place.resolve()) for place in places):
        how = "a symbolic link" if ".." not in Path(given).parts else "`..`"
        raise ConfigError(
            f"{given} of the catalog entry {entry.name} leads through {how} to {real}, outside the entry's folder "
            f"({', '.join(map(str, places))}), which a catalog may not do. Put the file itself there, or copy the entry "
            "and write the file's absolute path into it."
        )


def require_files_inside(files: Sequence[str | Path], entry: CatalogEntry, places: Sequence[Path]) -> None:
    """Refuse a file of the entry's folder that is a link out of it, such as the data file of a header.

    Parameters
    ----------
    files
        Every file that was, or will be, read; those that lie elsewhere by name are the user's word.
    entry, places
        As for `require_inside`.

    Raises
    ------
    ConfigError
        One leads out.
    """
    for file in files:
        path = Path(os.path.abspath(file))
        home = next((p for p in places if path.is_relative_to(os.path.abspath(p))), None)
        if home is not None:
            require_inside(str(path.relative_to(os.path.abspath(home))), path, entry, places)


def check_expected(entry: CatalogEntry, scene: xr.Dataset) -> None:
    """Compare an opened scene with what its catalog entry promises.

    Raises
    ------
    SceneError
        The scene has another shape: it is another file, another cut or another choice of bands.

    Warns
    -----
    BandstreamWarning
        Its numbers are of another type.
    """
    where = f"{scene.attrs.get('source', scene.attrs.get('scene_id'))} (catalog entry {entry.name})"
    shape = tuple(int(scene.sizes[axis]) for axis in ("y", "x", "band"))
    if entry.shape_yxb is not None and shape != entry.shape_yxb:
        hint = ""
        if sorted(shape) == sorted(entry.shape_yxb):
            hint = " The axes seem to be in another order: set `axes` in the entry's scene."
        elif shape[:2] == entry.shape_yxb[:2]:
            hint = " It holds another choice of bands; another entry may describe it."
        raise SceneError(
            f"{where} has {shape[0]} rows, {shape[1]} columns and {shape[2]} bands; the entry promises "
            f"{' x '.join(map(str, entry.shape_yxb))}.{hint} Fetch the right file, or leave shape_yxb out of a copy of "
            "the entry."
        )
    dtype = str(scene["data"].dtype)
    if entry.dtype is not None and dtype != entry.dtype:
        message = (
            f"{where} holds {dtype} and the entry promises {entry.dtype}; the file may have been converted."
        )
        warnings.warn(message, BandstreamWarning, stacklevel=2)


def completed(entry: CatalogEntry, scene: xr.Dataset) -> xr.Dataset:
    """Return an opened scene, checked against its entry, with the entry's wavelengths where it has none.

    Raises
    ------
    SceneError
        See `check_expected`; or the entry's wavelengths are not as many as the scene's bands.
    """
    check_expected(entry, scene)
    for name, values in (("wavelength", entry.wavelength_nm), ("fwhm", entry.fwhm_nm)):
        if values is None or name in scene.coords:
            continue
        if len(values) != scene.sizes["band"]:
            raise SceneError(
                f"The catalog entry {entry.name} gives {len(values)} numbers as {name}_nm and "
                f"{scene.attrs.get('source')} has {scene.sizes['band']} bands; correct the entry."
            )
        scene = scene.assign_coords({name: ("band", values, {"units": "nm"})})
    return scene


def catalog_folder() -> Path:
    """Return the folder of the catalogs that ship with the package."""
    return Path(str(resources.files(f"{__name__.rsplit('.', 3)[0]}.catalogs"))) / "scenes"


def own_files() -> list[Path]:
    """Return the YAML files that BANDSTREAM_CATALOG names, in its order: files, and those of folders by name.

    Raises
    ------
    ConfigError
        A place that it names does not exist.
    """
    files: list[Path] = []
    for part in filter(None, os.environ.get(CATALOG_VARIABLE, "").split(os.pathsep)):
        place = Path(part).expanduser()
        if place.is_dir():
            files += sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        elif place.is_file():
            files.append(place)
        else:
            raise ConfigError(f"{CATALOG_VARIABLE} names {part}, which is neither a folder nor a file.")
    return files


def list_catalog() -> list[CatalogEntry]:
    """Return all entries: the user's own, then those that ship with the package and have another name.

    Warns
    -----
    BandstreamWarning
        A file of the user's own is no entry; the others are listed all the same.
    """
    entries: dict[str, CatalogEntry] = {}
    for path in own_files():
        try:
            entry = read_entry(path)
        except ConfigError as error:
            warnings.warn(f"not listed: {error}", BandstreamWarning, stacklevel=2)
        else:
            entries.setdefault(entry.name, entry)
    for path in sorted(catalog_folder().glob("*.yaml")):
        entries.setdefault(path.stem, read_entry(path))
    return list(entries.values())


def load_catalog(name: str, bases: Sequence[Path] = ()) -> CatalogEntry:
    """Load an entry by its name, or by the path of a YAML file of one's own.

    Raises
    ------
    ConfigError
        There is no such entry; the nearest name is given.
    """
    if name.lower().endswith(SUFFIXES):
        path = next((base / name for base in bases if (base / name).is_file()), Path(name))
        return read_entry(path)
    names = {path.stem for path in catalog_folder().glob("*.yaml")}
    for path in sorted(own_files(), key=lambda p: p.stem != name):  # the likely file first
        try:
            entry = read_entry(path)
        except ConfigError:
            if path.stem == name:
                raise
        else:
            if entry.name == name:
                return entry
            names.add(entry.name)
    path = catalog_folder() / f"{name}.yaml"
    if name not in names or not path.is_file():
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"There is no catalog entry {name!r}.{hint} There are {', '.join(sorted(names))}.")
    return read_entry(path)


def read_entry(path: Path) -> CatalogEntry:
    """Read one YAML file of a catalog.

    Raises
    ------
    ConfigError
        It is no entry.
    """
    shipped = path.resolve().parent == catalog_folder().resolve()
    entry = parse(CatalogEntry, load_yaml(path), path.name if shipped else str(path))
    return entry if shipped else entry.placed(path)
