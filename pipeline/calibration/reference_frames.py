"""Dark and white reference frames: (raw - dark) / (white - dark) times the panel's reflectance.

Push-broom instruments in laboratories and on drones record the closed shutter and a panel of known reflectance with
the same columns and bands as the scene. Both are averaged over their lines, so that a column's own sensitivity and
offset (the stripes of the raw image) drop out.

Traps: the frames may have any number of lines (they are streamed, never held); an integration time other than the
scene's scales the panel's numbers; a column where the panel is no brighter than the dark frame tells nothing.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..errors import BandstreamWarning, ConfigError, FormatError, SceneError
from ..readers.envi_header import read_header
from ..scene import scale_offset
from .field_spectra import read_spectra
from .gaussian import band_shapes
from .maps import bands_text, blocks, name_of, per_pixel, sums

F8 = NDArray[np.float64]
FrameSource = str | os.PathLike[str] | xr.Dataset

EXPOSURE_KEYS = ("tint", "integration time", "shutter", "exposure time", "exposure")
"""Header keys under which cameras note their integration time."""

FULL_SCALES = tuple(2**bits - 1 for bits in (8, 10, 12, 14, 16))
"""Largest numbers of the usual converters."""


@dataclass(frozen=True)
class Frame:
    """A reference frame, averaged over its lines."""

    name: str
    mean_xb: F8  #: physical value per column and band; NaN where it holds no data
    lines: int
    exposure: tuple[str, float] | None  #: header key and integration time
    saturated: int  #: numbers at the full scale of the converter


def by_frames(
    scene: xr.Dataset,
    dark: FrameSource,
    white: FrameSource,
    *,
    panel: float | str | None = None,
    exposure_ratio: float | None = None,
) -> xr.Dataset:
    """Return surface reflectance from a raw scene and its reference frames, lazily.

    Parameters
    ----------
    scene
        Raw numbers, or radiance in which the frames are given too.
    dark, white
        Scenes, or paths of scenes, with the columns and bands of `scene`. They are read here, chunk by chunk.
    panel
        Reflectance of the panel: a number, or a file of its spectrum; 1 by default, which gives reflectance relative
        to the panel.
    exposure_ratio
        Integration time of the scene over that of the white frame; 1 by default. The dark signal is taken as the same
        for both.

    Returns
    -------
    xarray.Dataset
        float32; NaN where the stored number, or a frame in that column and band, tells nothing.

    Raises
    ------
    ConfigError
        The scene is reflectance already, the frames do not fit, or headers tell different integration times.
    """
    if scene.attrs.get("quantity", "other") in ("surface_reflectance", "toa_reflectance"):
        raise ConfigError(
            f"{name_of(scene)} holds {scene.attrs['quantity']} already, which reference frames would spoil; leave the "
            "stage out."
        )
    frames = [load_frame(source, scene, role) for source, role in ((dark, "dark"), (white, "white"))]
    ratio = _exposure_ratio(scene, frames[0], frames[1], exposure_ratio)
    reflectance_b = _panel(scene, panel)
    difference = frames[1].mean_xb - frames[0].mean_xb
    usable = difference > 0
    if not usable.any():
        raise ConfigError(
            f"The white frame {frames[1].name} is nowhere brighter than the dark frame {frames[0].name}; are they swapped?"
        )
    _tell(scene, usable, frames)
    gain = np.divide(reflectance_b / ratio, difference, out=np.full_like(difference, np.nan), where=usable)
    scale, offset = scale_offset(scene)
    how = f"dark and white reference frames of {frames[0].lines} and {frames[1].lines} lines"
    if ratio != 1:
        how += f", exposure ratio {ratio:g}"
    return per_pixel(
        scene, scale * gain, (offset - frames[0].mean_xb) * gain, None, "surface_reflectance", how
    )


def load_frame(source: FrameSource, scene: xr.Dataset, role: str) -> Frame:
    """Average a reference frame over its lines in float64; only one chunk of it is held.

    Parameters
    ----------
    source
        Scene, or path.
    scene
        The scene it belongs to, whose columns, bands and wavelengths it must have.
    role
        `dark` or `white`, for messages.

    Raises
    ------
    ConfigError
        Its columns, bands or wavelengths are others, or it holds no data.
    """
    from ..readers import open_scene

    frame = source if isinstance(source, xr.Dataset) else open_scene(source)
    name = name_of(frame)
    own, other = (str(ds.attrs.get("quantity", "other")) for ds in (scene, frame))
    if own != other and not {own, other} <= {"dn", "other"}:
        raise ConfigError(
            f"The {role} frame {name} holds {other}, and {name_of(scene)} holds {own}; a frame must be in the numbers of "
            "the scene: give the frames and the scene raw, or all of them as radiance."
        )
    alike = all(np.array_equal(a, b) for a, b in zip(scale_offset(scene), scale_offset(frame), strict=False))
    if frame.sizes["band"] == scene.sizes["band"] and own in {"dn", "other"} and not alike:
        raise ConfigError(
            f"The {role} frame {name} and {name_of(scene)} have different scales, so that their numbers cannot be "
            "compared; leave `scale` and `offset` of the scene out, or open the frame with the same and give it to "
            "`calibrate` as a scene."
        )
    for axis, what in (("x", "columns"), ("band", "bands")):
        if frame.sizes[axis] != scene.sizes[axis]:
            raise ConfigError(
                f"The {role} frame {name} has {frame.sizes[axis]} {what}, and {name_of(scene)} has {scene.sizes[axis]}; "
                "they must be of the same instrument, binning and region."
            )
    if "wavelength" in frame.coords and "wavelength" in scene.coords:
        # NaN stands for a band without a centre
        apart = np.nan_to_num(np.abs(frame["wavelength"].values - scene["wavelength"].values))
        if float(apart.max()) > 0.5:
            at = int(apart.argmax())
            raise ConfigError(
                f"Band {at + 1} of the {role} frame {name} lies at {frame['wavelength'].values[at]:.2f} nm, that of "
                f"{name_of(scene)} at {scene['wavelength'].values[at]:.2f} nm; they must be the same bands."
            )
    total = np.zeros((frame.sizes["x"], frame.sizes["band"]))
    count = np.zeros(total.shape, np.int64)
    highest, at_highest = 0, 0
    for block in blocks(frame):
        part, number = sums(block, 0)
        cols = slice(block.first_col, block.first_col + len(part))
        total[cols] += part
        count[cols] += number
        if block.raw_yxb.dtype.kind in "iu":
            top = int(block.raw_yxb.max())
            if top >= highest:
                at_highest = int((block.raw_yxb == top).sum()) + (at_highest if top == highest else 0)
                highest = top
    if not count.any():
        raise ConfigError(f"The {role} frame {name} holds no data.")
    scale, offset = scale_offset(frame)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0) * scale + offset
    saturated = at_highest if highest in FULL_SCALES else 0
    return Frame(name, mean, frame.sizes["y"], exposure(frame), saturated)


def exposure(scene: xr.Dataset) -> tuple[str, float] | None:
    """Return the header key and the integration time of an ENVI scene, or None where none is told."""
    files = [str(name) for name in scene.attrs.get("files", []) if str(name).lower().endswith(".hdr")]
    for path in files:
        try:
            header = read_header(path)
        except (FormatError, OSError):
            continue
        for key in EXPOSURE_KEYS:
            try:
                value = float(str(header.get(key) or "").split(",")[0])
            except ValueError:
                continue
            if value > 0:
                return key, value
    return None


def _exposure_ratio(scene: xr.Dataset, dark: Frame, white: Frame, given: float | None) -> float:
    """Return the scene's integration time over that of the white frame."""
    if given is not None:
        return given
    own = exposure(scene)
    for frame, effect in ((white, "the panel's numbers"), (dark, "the dark signal")):
        if (
            own is None
            or frame.exposure is None
            or own[0] != frame.exposure[0]
            or own[1] == frame.exposure[1]
        ):
            continue
        raise ConfigError(
            f"{name_of(scene)} was taken with {own[0]} = {own[1]:g}, and the frame {frame.name} with "
            f"{frame.exposure[1]:g}, which scales {effect}; take frames of the same integration time, or set "
            f"calibrate.exposure_ratio (scene over white, here {own[1] / (white.exposure or own)[1]:g}) if the dark "
            "signal does not depend on it."
        )
    return 1.0


def _panel(scene: xr.Dataset, panel: float | str | None) -> F8:
    """Return the panel's reflectance per band."""
    bands = scene.sizes["band"]
    if panel is None:
        warnings.warn(
            "The panel's reflectance is not told and was taken as 1: the reflectance is relative to the panel; set "
            "calibrate.panel to a number or to the file of its spectrum.",
            BandstreamWarning,
            stacklevel=3,
        )
        return np.ones(bands)
    if not isinstance(panel, str):
        if not 0 < panel <= 1.5:
            raise ConfigError(
                f"calibrate.panel is {panel:g}; a reflectance lies between 0 and 1 (0.99, not 99)."
            )
        return np.full(bands, float(panel))
    try:
        table = read_spectra(panel)
        table.require_reflectance()
    except SceneError as error:
        raise ConfigError(f"The panel's spectrum cannot be used: {error}") from error
    if len(table.spectra) != 1:
        raise ConfigError(
            f"{panel} holds {len(table.spectra)} spectra ({', '.join(list(table.spectra)[:6])}); keep one."
        )
    values = table.of_bands(next(iter(table.spectra)), *band_shapes(scene, "calibrate.panel"))
    uncovered = ~np.isfinite(values)
    if uncovered.any():
        warnings.warn(
            f"The panel's spectrum {panel} does not reach band {bands_text(scene, uncovered)}; these bands hold no data.",
            BandstreamWarning,
            stacklevel=3,
        )
    return values


def _tell(scene: xr.Dataset, usable_xb: NDArray[np.bool_], frames: list[Frame]) -> None:
    """Warn of columns that tell nothing, and of saturated frames."""
    lost = int(usable_xb.size - usable_xb.sum())
    if lost:
        whole: NDArray[Any] = np.logical_not(usable_xb.any(axis=0))
        where = f", among them all columns of band {bands_text(scene, whole)}" if whole.any() else ""
        warnings.warn(
            f"{frames[1].name} is not brighter than {frames[0].name} in {lost:,} of {usable_xb.size:,} places (columns x "
            f"bands){where}; the scene holds no data there.",
            BandstreamWarning,
            stacklevel=3,
        )
    if frames[1].saturated:
        warnings.warn(
            f"{frames[1].saturated:,} numbers of the white frame {frames[1].name} are at the converter's full scale: if it "
            "is saturated, the reflectance there is too high.",
            BandstreamWarning,
            stacklevel=3,
        )
