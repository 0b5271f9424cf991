"""Opening the labels of a scene, whatever kind of file holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import LabelError, SceneNotFoundError
from ..storage import is_remote
from .numbering import GroupRaster, Merged
from .points import is_table, open_points
from .raster import LabelRaster
from .vector import is_vector, open_vector

if TYPE_CHECKING:
    import xarray as xr

    from .config import LabelFiles
    from .protocol import Labels

_LARGEST_ID = 2**31 - 1


def open_labels(scene: xr.Dataset, files: LabelFiles) -> Labels:
    """Open the labels of one scene, numbered on their own; `number_together` makes the numbers of scenes agree.

    Parameters
    ----------
    scene
        An opened scene.
    files
        Raster, vector file or CSV, and how it is read.

    Raises
    ------
    SceneNotFoundError
        A file is not there.
    LabelError
        One cannot be used for the scene.
    """
    path, config = files.path, files.config
    if not path.is_file():
        raise SceneNotFoundError(f"There is no label file {path} for the scene {scene.attrs.get('source')}.")
    if is_remote(path) and (is_table(path) or is_vector(path)):
        raise LabelError(
            f"{path}: tables and polygons are not read from s3://; copy the file to a local disc."
        )
    labels: Labels
    if is_table(path):
        labels = open_points(path, scene, config)
    elif is_vector(path):
        labels = open_vector(path, scene, config)
    else:
        needless = [
            name for name in ("layer", "attribute", "group", "crs") if getattr(config, name) is not None
        ]
        if needless:
            raise LabelError(
                f"labels.{needless[0]} is for vector files and CSVs of points; {path} is read as a raster: leave it out"
                f"{', or give a raster of ids as labels.groups' if needless[0] == 'group' else ''}."
            )
        labels = LabelRaster.on_grid(path, scene, config.unlabelled, config.variable)
    if config.classes is not None:
        labels = Merged.of(labels, config.classes, str(path))
    if files.groups is not None:
        raster = LabelRaster.on_grid(files.groups, scene, largest=_LARGEST_ID)
        labels = GroupRaster.of(labels, raster)
    return labels
