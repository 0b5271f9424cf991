"""Cubes without a product around them: MATLAB v5 and v7.3, NumPy.

Where each fact is from
-----------------------
- MATLAB v5 cubes (row, column, band) as the usual benchmark scenes have them (``indian_pines_corrected`` int16
  or uint16, ``paviaU``), ground truth in a file or variable of its own: common usage, not looked up.
- Jasper Ridge: ``Y`` (bands x pixels) uint16 with ``nBand``, ``cols``, ``lines``, ``maxValue``, ``Region``;
  other unmixing sets call the sizes ``nRow``, ``nCol``. A pixel's place is column-major, row + column * rows:
  the real ``jasperRidge2_R198.mat``, MATLAB's reshape.
- v7.3 is HDF5 behind a user block of 512 bytes that begins with "MATLAB 7.3 MAT-file" and ends with the version
  0x0200 and "IM"; arrays are stored with their axes reversed (band, column, row), each with an attribute
  ``MATLAB_class``: common knowledge, not looked up.
- ``.npy`` and ``.npz``: numpy's own formats; Fortran order and big-endian numbers are legal in both.

Not established
---------------
Nothing here says wavelengths, units or fill; they are the user's to state.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import scipy.io

from .truth import COLS, ROWS, Truth, reflectance

BANDS = 24


def _cube(seed: int, shape_yx: tuple[int, int], bands: int = BANDS) -> np.ndarray:
    return np.round(reflectance(np.linspace(420, 2400, bands), seed, shape_yx) * 1e4).astype("u2")


def _truth(path: Path, raw: np.ndarray, **extra) -> Truth:
    return Truth(
        paths=[path],
        physical_yxb=raw.astype(float),
        raw_yxb=raw,
        wavelength_nm=np.full(raw.shape[2], np.nan),
        quantity="dn",
        nodata_mask_yxb=np.zeros(raw.shape, bool),
        valid_yx=np.ones(raw.shape[:2], bool),
        scale=1.0,
        offset=0.0,
        **extra,
    )


def make_mat_v5(
    folder: Path,
    seed: int = 0,
    *,
    two_cubes: bool = False,
    compressed: bool = True,
    dtype: str = "u2",
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write a benchmark-like v5 file: the cube, and a 2-D ground truth beside it.

    Parameters
    ----------
    two_cubes
        a second 3-D variable ``paviaC``: the user has to choose, so that without a name the file is refused.
    """
    raw = _cube(seed, shape_yx).astype(dtype)
    path = folder / "scene.mat"
    content = {"paviaU": raw, "paviaU_gt": (np.indices(shape_yx).sum(axis=0) % 4).astype("u1")}
    if two_cubes:
        content["paviaC"] = raw[::-1, :, :5].copy()
    scipy.io.savemat(path, content, do_compression=compressed)
    return _truth(path, raw, refusal="variable" if two_cubes else "", extra={"variable": "paviaU"})


def make_mat_flat(
    folder: Path,
    seed: int = 0,
    *,
    sizes: tuple[str, str] = ("nRow", "nCol"),
    with_sizes: bool = True,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write ``Y`` of bands x pixels, column-major; `sizes` are the names of rows and columns."""
    raw = _cube(seed, shape_yx)
    path = folder / "unmixing.mat"
    flat = raw.transpose(2, 1, 0).reshape(raw.shape[2], -1)  # pixel = row + column * rows
    content = {
        "Y": flat,
        "maxValue": 10000,
        "nBand": raw.shape[2],
        "GT": np.arange(1, raw.shape[2] + 1)[:, None],
    }
    if with_sizes:
        content |= {sizes[0]: shape_yx[0], sizes[1]: shape_yx[1]}
    scipy.io.savemat(path, content)
    return _truth(
        path, raw, refusal="" if with_sizes else "rows", extra={"variable": "Y", "shape_yx": shape_yx}
    )


def make_mat_v73(
    folder: Path,
    seed: int = 0,
    *,
    two_cubes: bool = False,
    external_link: bool = False,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write a v7.3 file: HDF5 behind MATLAB's user block, axes reversed; `external_link` must be refused."""
    raw = _cube(seed, shape_yx)
    path = folder / "scene_v73.mat"
    with h5py.File(path, "w", userblock_size=512) as out:
        names = {"data": raw, "gt": (np.indices(shape_yx).sum(axis=0) % 4).astype("u1")}
        if two_cubes:
            names["other"] = raw[::-1, :, :5]
        for name, values in names.items():
            stored = np.ascontiguousarray(values.transpose())
            if external_link and name == "data":
                with h5py.File(folder / "elsewhere.h5", "w") as other:
                    other["data"] = stored
                out[name] = h5py.ExternalLink("elsewhere.h5", "/data")
                continue
            dataset = out.create_dataset(
                name, data=stored, chunks=True, compression="gzip", compression_opts=3
            )
            dataset.attrs["MATLAB_class"] = np.bytes_(stored.dtype.name)
    text = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jun  1 10:00:00 2020 HDF5 schema 1.00 ."
    with path.open("r+b") as file:
        file.write(text.ljust(116) + bytes(8) + b"\x00\x02IM")
    refusal = "link" if external_link else "variable" if two_cubes else ""
    return _truth(path, raw, refusal=refusal, extra={"variable": "data"})


def make_npy(
    folder: Path,
    seed: int = 0,
    *,
    fortran: bool = False,
    big_endian: bool = False,
    zipped: bool = False,
    two_cubes: bool = False,
    pickled: bool = False,
    shape_yx: tuple[int, int] = (ROWS, COLS),
) -> Truth:
    """Write a NumPy cube.

    Parameters
    ----------
    zipped
        ``.npz`` (compressed), the cube under the name ``cube`` beside a 2-D mask; `two_cubes` adds another 3-D one.
    pickled
        an array of objects, which only unpickling could read: must be refused.
    """
    raw = _cube(seed, shape_yx)
    stored = raw.astype(">u2") if big_endian else raw
    stored = np.asfortranarray(stored) if fortran else stored
    path = folder / ("cube.npz" if zipped else "cube.npy")
    if pickled:
        np.save(path, np.array([raw, None], dtype=object), allow_pickle=True)
        return _truth(path, raw, refusal="object", extra={"variable": None})
    if zipped:
        more = {"other": stored[:, :, :3]} if two_cubes else {}
        np.savez_compressed(path, cube=stored, mask=np.ones(shape_yx, bool), **more)
    else:
        np.save(path, stored, allow_pickle=False)
    refusal = "variable" if zipped and two_cubes else ""
    return _truth(path, raw, refusal=refusal, extra={"variable": "cube" if zipped else None})
