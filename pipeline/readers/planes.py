"""Small planes of numbers, such as label rasters, from array files."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import NDArray

from ..errors import FormatError, SceneNotFoundError
from . import matlab, numpy_file


def load_plane(path: str | os.PathLike[str], variable: str | None = None) -> NDArray[Any]:
    """Read one array with two axes from a `.mat`, `.npy` or `.npz` file into memory.

    Parameters
    ----------
    path
        The file; its content decides what it is.
    variable
        Name of the array, where the file holds several with two axes.

    Returns
    -------
    numpy.ndarray
        (rows, columns) as MATLAB or NumPy shows them, in the file's number type, native byte order; logical arrays as
        uint8.

    Raises
    ------
    SceneNotFoundError
        If there is no such file.
    FormatError
        If it is no such file, or which array is meant is not clear.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        msg = f"{name} does not exist"
        raise SceneNotFoundError(msg)
    with open(name, "rb") as file:
        head = file.read(512)
    for reader, load in ((matlab.READER, matlab.load_plane), (numpy_file.READER, numpy_file.load_plane)):
        if reader.recognise(name, head) is not None:
            return load(name, variable)
    msg = f"{name} is no array file; allowed: MATLAB (.mat), NumPy (.npy, .npz)"
    raise FormatError(msg)
