"""Class maps of whole scenes, streamed through the store's fitted transforms.

Rows are transformed once, in slabs, with as much context around each tile as decides its pixels; scene edges are
reflected as in the store. So the map does not depend on how the scene is cut: logits agree within 1e-5 (convolution
kernels sum in another order for other shapes), and the test score of a map is that of the run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dask.array as da
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from ..pipeline.errors import ConfigError, RunConflictError, TrainingError
from ..pipeline.geolocation import OrthoGrid, in_sensor_geometry, ortho_grid
from ..pipeline.progress import progress
from ..pipeline.store import PatchStore
from .checkpoints import Checkpoints
from .maps import check_outputs, map_files, map_outputs, orthorectified, probability_path, sensor_path
from .parts import make_model
from .runs import RunFolder

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray
    from torch import nn

TILE = 256  #: side of the pieces that are predicted at once, in pixels
_PATCHES = 256  #: most patches of a batch, and their most bytes
_PATCH_BYTES = 16 << 20


def predict(
    run: str | Path,
    scene: str | Path | xr.Dataset,
    out_tif: str | Path,
    *,
    tile: int = TILE,
    probabilities: bool = False,
    store: str | Path | None = None,
    crs: str | None = None,
    resolution: float | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Classify every valid pixel of a scene with the best weights of a run.

    A scene in sensor geometry is mapped pixel by pixel as the sensor saw it (`<name>_sensor.tif`), and that map is then
    brought to the ground by nearest neighbour: `out_tif` always is a map where the scene tells its place.

    Parameters
    ----------
    run
        Run folder.
    scene
        Scene file, or an opened scene.
    out_tif
        GeoTIFF to write: class numbers as in the store, 0 where there is no data; names and colours inside.
    tile
        Side in pixels of what is predicted at once; changes memory and speed only.
    probabilities
        Also write `<name>_probabilities.tif`: one float32 band per class, NaN where there is no data.
    store
        Where the run's store lies now, if it was moved.
    crs, resolution
        Grid of the map of a scene in sensor geometry; by default that of the product's look-up table, or the UTM zone
        of the scene's centre at the spacing of its pixels.

    Returns
    -------
    dict
        `map`, `map_sensor` and `probabilities` (paths or None), `shape_yx` of the scene, `pixels` (valid ones of the
        scene), `classes` (name -> pixels), `seconds`.

    Raises
    ------
    TrainingError
        There is no such run.
    CheckpointError
        It has no weights yet, or they are damaged.
    SceneError
        The scene does not fit the store's transforms.
    """
    predictor = Predictor.of(run, store)
    opened = opened_scene(scene)
    return map_scene(
        predictor,
        predictor.transform(opened),
        Path(out_tif),
        tile=tile,
        probabilities=probabilities,
        grid=map_grid(predictor.placed(opened), crs=crs, resolution=resolution),
        quiet=quiet,
    )


def opened_scene(scene: str | Path | xr.Dataset) -> xr.Dataset:
    """Open a scene unless it is open."""
    from ..pipeline import open_scene

    return open_scene(scene) if isinstance(scene, str | Path) else scene


def map_grid(
    scene: xr.Dataset, *, crs: str | None = None, resolution: float | None = None
) -> OrthoGrid | None:
    """Return the ground grid of the map of a scene in sensor geometry, None for any other scene.

    Raises
    ------
    ConfigError
        A grid is asked for, but the scene has its own, or tells no place at all.
    """
    if in_sensor_geometry(scene):
        return ortho_grid(scene, crs=crs, resolution=resolution)
    if crs is not None or resolution is not None:
        raise ConfigError(
            f"{scene.attrs.get('source', 'The scene')} is not in sensor geometry with latitude and longitude: its map "
            "has the scene's own grid. Leave crs and resolution out."
        )
    return None


def map_scene(
    predictor: Predictor,
    transformed: xr.Dataset,
    target: Path,
    *,
    tile: int = TILE,
    probabilities: bool = False,
    grid: OrthoGrid | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Write the map of a scene that has been through the store's transforms; see `predict`.

    With a `grid` the map as the sensor saw it goes to `sensor_path(target)`, and orthorectified to `target`.
    """
    if tile < 1:
        raise ConfigError(f"tile must be 1 or more, got {tile}.")
    outputs = map_outputs(target, sensor=grid is not None, probabilities=probabilities)
    check_outputs(outputs, transformed.attrs.get("files", []))
    started = time.perf_counter()
    counts = np.zeros(predictor.store.classes + 1, np.int64)
    own = target if grid is None else sensor_path(target)
    files = map_files(own, transformed, predictor.store, probabilities)
    with _threads(predictor.threads), files as (classes, chances):
        for top, left, logits, valid in predictor.tiles(transformed, tile, quiet=quiet):
            codes = np.where(valid, logits.argmax(0) + 1, 0)
            counts += np.bincount(codes.ravel(), minlength=len(counts))
            window = ((top, top + codes.shape[0]), (left, left + codes.shape[1]))
            classes.write(codes.astype(classes.dtypes[0]), 1, window=window)
            if chances is not None:
                share = torch.from_numpy(logits).softmax(0).numpy()
                chances.write(np.where(valid, share, np.float32(np.nan)), window=window)
    if grid is not None:
        orthorectified(own, target, grid, quiet=quiet)
        if probabilities:
            orthorectified(probability_path(own), probability_path(target), grid, quiet=quiet)
    names = predictor.store.class_names
    return {
        "map": str(target),
        "map_sensor": None if grid is None else str(own),
        "probabilities": str(probability_path(target)) if probabilities else None,
        "shape_yx": [int(transformed.sizes[axis]) for axis in ("y", "x")],
        "pixels": int(counts[1:].sum()),
        "classes": {name: int(count) for name, count in zip(names, counts[1:], strict=True)},
        "seconds": round(time.perf_counter() - started, 3),
    }


@contextmanager
def _threads(number: int | None) -> Generator[None]:
    """Let torch use as many threads as the run did: its own maps come out bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Predictor:
    """A trained model with the store whose transforms it was trained on."""

    def __init__(
        self,
        model: nn.Module,
        store: PatchStore,
        *,
        patch: int | None,
        batch: int,
        threads: int | None = None,
    ) -> None:
        self.model, self.store, self.patch, self.threads = model.eval(), store, patch, threads
        self.device = next(model.parameters()).device
        radius = patch // 2 if patch is not None else getattr(model, "receptive_radius", None)
        if radius is None:
            raise TrainingError(
                f"{type(model).__name__} does not tell its receptive_radius, so that a map would depend on how the "
                "scene is cut. Dense models need that attribute."
            )
        self.radius = int(radius)  #: pixels around a pixel that decide its logits
        fitting = _PATCH_BYTES // (4 * store.bands * (2 * self.radius + 1) ** 2)
        self.batch = max(batch, min(_PATCHES, fitting))  #: patches at once; at least what training took

    @classmethod
    def of(cls, path: str | Path, store: str | Path | None = None) -> Predictor:
        """Load the best weights of the run at `path`; `store` where its store was moved to.

        Raises
        ------
        RunConflictError
            The store is not the one that the run was trained on.
        """
        run = RunFolder.read(path)
        plan = cast("dict[str, Any]", run.plan)
        opened = PatchStore.open(store or plan["store"]["path"])
        if opened.fingerprint != run.store_fingerprint:
            raise RunConflictError(
                f"The store {opened.path} has fingerprint {opened.fingerprint[:12]}, the run {run.path} was trained on "
                f"{run.store_fingerprint[:12]}. Give the run's own store."
            )
        weights = Checkpoints(run.checkpoint_folder, run.identity).best()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trainer has said it
            model = make_model(run.experiment, opened)
        model.load_state_dict(weights.under("model"))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        settings = run.experiment
        return cls(
            model.to(device), opened, patch=settings.patch, batch=settings.micro, threads=plan["threads"]
        )

    def placed(self, scene: xr.Dataset) -> xr.Dataset:
        """Return the scene on the pixels of its map, which are larger where the store's workflow has resampled."""
        return self.store.chain.preparation.on_pixels(scene)

    def transform(self, scene: str | Path | xr.Dataset) -> xr.Dataset:
        """Open a scene and put it through the store's transforms, lazily."""
        from ..pipeline import transform

        return transform(opened_scene(scene), self.store)

    def tiles(
        self, transformed: xr.Dataset, tile: int = TILE, *, quiet: bool = True
    ) -> Generator[tuple[int, int, NDArray[np.float32], NDArray[np.bool_]]]:
        """Yield row and column of a tile, its logits (class, y, x) and its valid pixels (y, x).

        Logits of invalid pixels mean nothing.
        """
        rows = _Rows(transformed, self.radius)
        height, width = rows.shape_yx
        with progress("mapping", height, quiet=quiet) as bar:
            for top in range(0, height, tile):
                bottom = min(top + tile, height)
                slab_yxb, valid = rows.read(top, bottom)
                for left in range(0, width, tile):
                    right = min(left + tile, width)
                    piece = slab_yxb[:, left : right + 2 * self.radius]
                    inside = valid[:, left:right]
                    yield top, left, self.logits(piece, inside), inside
                bar.advance(bottom - top)

    def logits(self, piece_yxb: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return logits (class, y, x) of a piece that has `radius` pixels of context on every side."""
        with torch.no_grad():
            return self._dense(piece_yxb) if self.patch is None else self._centres(piece_yxb, valid)

    def _dense(self, piece_yxb: NDArray[np.float32]) -> NDArray[np.float32]:
        x_nbhw = torch.from_numpy(np.ascontiguousarray(piece_yxb.transpose(2, 0, 1))[None]).to(self.device)
        z_khw = self.model(x_nbhw)[0].float().cpu().numpy()
        height, width = (size - 2 * self.radius for size in z_khw.shape[1:])
        return z_khw[:, self.radius : self.radius + height, self.radius : self.radius + width]

    def _centres(self, piece_yxb: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        side = 2 * self.radius + 1
        windows = sliding_window_view(piece_yxb, (side, side), axis=cast("Any", (0, 1)))  # (y, x, band, y, x)
        found = np.zeros((self.store.classes, *valid.shape), np.float32)
        row, col = np.nonzero(valid)
        # always whole batches: kernels chosen by batch size would round differently at a tile's end
        x_nbhw = np.zeros((self.batch, piece_yxb.shape[2], side, side), np.float32)
        for start in range(0, len(row), self.batch):
            y, x = row[start : start + self.batch], col[start : start + self.batch]
            x_nbhw[: len(y)] = windows[y, x]
            z_nk = self.model(torch.from_numpy(x_nbhw).to(self.device))[: len(y)]
            found[:, y, x] = z_nk.float().cpu().numpy().T
        return found


class _Rows:
    """Transformed rows with context, every row computed once as long as slabs are asked for from top to bottom."""

    def __init__(self, transformed: xr.Dataset, context: int) -> None:
        self._data, self._valid, self._context = transformed["data"], transformed["valid"], context
        self.shape_yx = (int(self._data.sizes["y"]), int(self._data.sizes["x"]))
        chunks = self._data.chunks
        self._edges = np.cumsum(chunks[0]) if chunks else np.array([self.shape_yx[0]])
        self._first = 0
        self._kept: list[NDArray[np.float32]] = []  # rows _first.. one block behind the other
        self._mask = np.zeros((0, self.shape_yx[1]), bool)
        self._end = 0

    def read(self, top: int, bottom: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the rows top..bottom-1 with context on all four sides (y, x, band), and their valid pixels (y, x)."""
        height, width = self.shape_yx
        rows = reflect(np.arange(top - self._context, bottom + self._context), height)
        self._fetch(int(rows.max()) + 1)
        block = np.concatenate(self._kept) if len(self._kept) > 1 else self._kept[0]
        cols = reflect(np.arange(-self._context, width + self._context), width)
        slab = np.take(block[rows - self._first], cols, axis=1)
        valid = self._mask[top - self._first : bottom - self._first]
        drop = int(rows.min()) - self._first
        self._kept, self._mask, self._first = [block[drop:]], self._mask[drop:], self._first + drop
        return slab, valid

    def _fetch(self, stop: int) -> None:
        while self._end < stop:
            # up to a chunk's end, since a chunk is computed as a whole
            end = int(self._edges[np.searchsorted(self._edges, self._end, side="right")])
            part = slice(self._end, end)
            data, valid = da.compute(self._data[part].data, self._valid[part].data)
            data = np.array(data, np.float32)
            data[~valid] = 0
            self._kept.append(data)
            self._mask = np.concatenate([self._mask, valid])
            self._end = end


def reflect(index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Map indices beyond 0..size-1 back as `numpy.pad(mode="reflect")` does: the edge itself is not repeated."""
    if size == 1:
        return np.zeros_like(index)
    folded = np.abs(index) % (2 * (size - 1))
    return np.minimum(folded, 2 * (size - 1) - folded)
