"""A build beside what one would write by hand, and beside SPy, each as a whole process, in turn.

    python tests/benchmarks/preprocess.py [ROWS COLS] [pca|mnf] [ROUNDS]
    python tests/benchmarks/preprocess.py scaling        time and memory of ten times as many pixels

Prints medians, ratios and peak memory. The floor is two passes with NumPy over a memory map, in one process, with
nothing checked, masked, split or described; SPy holds the cube in memory. Ratios are what counts: both sides of one
stand in the same run, on the same machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

BANDS, COMPONENTS, TILE = 224, 30, 64
FLOW = """version: 1
name: bench
scenes: [{{path: {scene}}}]
stages:
  - normalize: {{method: zscore}}
  - reduce: {{method: {method}, components: 30{more}}}
tiles: {{size: 64, halo: 0}}
split: {{by: none}}
store: {{root: {root}}}
"""


def make_scene(header: Path, rows: int, cols: int) -> None:
    """Write an int16 BIL scene: mixtures of twelve smooth spectra in fields of 10 x 10 pixels, and white noise."""
    rng = np.random.default_rng(1)
    spectra = rng.standard_normal((12, BANDS)).cumsum(axis=1)
    spectra = 8000 * (spectra - spectra.min(1, keepdims=True)) / np.ptp(spectra, axis=1, keepdims=True)
    with header.with_suffix(".img").open("wb") as out:
        for top in range(0, rows, 40):
            count = min(40, rows - top)
            fields = rng.dirichlet(np.full(12, 0.3), size=(-(-count // 10), -(-cols // 10)))
            mixed = (fields @ spectra).repeat(10, 0).repeat(10, 1)[:count, :cols]
            cube = mixed + rng.normal(0, 60, (count, cols, BANDS))
            out.write(np.ascontiguousarray(cube.transpose(0, 2, 1)).astype("<i2").tobytes())
    centres = ", ".join(f"{centre:.2f}" for centre in np.linspace(400, 2500, BANDS))
    header.write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {BANDS}\nheader offset = 0\nfile type = ENVI Standard\n"
        f"data type = 2\ninterleave = bil\nbyte order = 0\nwavelength units = nm\nwavelength = {{{centres}}}\n"
    )


def floor(header: str, out: str, rows: int, cols: int) -> None:
    """Memory map -> mean and covariance -> zscore and PCA -> tiles, by hand."""
    import zarr

    raw = np.memmap(Path(header).with_suffix(".img"), "<i2", "r", shape=(rows, BANDS, cols))
    shift = raw[:: max(1, rows // 64)].mean(axis=(0, 2))
    total, cross = np.zeros(BANDS), np.zeros((BANDS, BANDS))
    for top in range(0, rows, TILE):
        x = raw[top : top + TILE].transpose(1, 0, 2).reshape(BANDS, -1) - shift[:, None]
        total += x.sum(axis=1)
        cross += x @ x.T
    mean = total / (rows * cols)
    covariance = cross / (rows * cols) - np.outer(mean, mean)
    std = np.sqrt(np.diag(covariance))
    vectors = np.linalg.eigh(covariance / np.outer(std, std))[1][:, ::-1][:, :COMPONENTS]
    basis, centre = (vectors / std[:, None]).astype(np.float32), (mean + shift).astype(np.float32)
    across = cols // TILE
    shape = (rows // TILE * across, COMPONENTS, TILE, TILE)
    codec = zarr.codecs.BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")
    tiles = zarr.create_array(out, shape=shape, chunks=(8, *shape[1:]), dtype="f4", compressors=codec)
    for row, top in enumerate(range(0, rows, TILE)):
        x = raw[top : top + TILE].transpose(1, 0, 2).astype(np.float32) - centre[:, None, None]
        scores = (basis.T @ x.reshape(BANDS, -1)).reshape(COMPONENTS, TILE, across, TILE)
        tiles[row * across : (row + 1) * across] = scores.transpose(2, 0, 1, 3)


def spy(header: str, out: str, method: str) -> None:
    """Do the same with Spectral Python, which holds the cube in memory."""
    import spectral
    import zarr
    from spectral.io import envi

    cube = np.asarray(envi.open(header).load())
    if method == "pca":
        cube = (cube - cube.mean(axis=(0, 1))) / cube.std(axis=(0, 1))
        scores = spectral.principal_components(cube).reduce(num=COMPONENTS).transform(cube)
    else:
        found = spectral.mnf(spectral.calc_stats(cube), spectral.noise_from_diffs(cube))
        scores = found.reduce(cube, num=COMPONENTS)
    down, across = cube.shape[0] // TILE, cube.shape[1] // TILE
    blocks = scores.astype(np.float32).reshape(down, TILE, across, TILE, COMPONENTS).transpose(0, 2, 4, 1, 3)
    zarr.create_array(
        out,
        data=np.ascontiguousarray(blocks.reshape(-1, COMPONENTS, TILE, TILE)),
        chunks=(8, COMPONENTS, TILE, TILE),
    )


def timed(command: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak resident MiB of a command."""
    start = time.perf_counter()
    _, status, usage = os.wait4(subprocess.Popen(command).pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def build_command(folder: Path, scene: Path, method: str) -> list[str]:
    """Write a workflow and return the command that builds it."""
    flow = folder / "flow.yaml"
    more = ", noise: diagonal" if method == "mnf" else ""
    flow.write_text(FLOW.format(scene=scene, method=method, root=folder / "stores", more=more))
    return [str(Path(sys.executable).with_name("bandstream")), "run", str(flow), "--quiet"]


def compare(folder: Path, rows: int, cols: int, method: str, rounds: int) -> None:
    """Run the three in turn and print medians and ratios."""
    scene = folder / "scene.hdr"
    make_scene(scene, rows, cols)
    own = [sys.executable, __file__]
    jobs = {
        "ours": build_command(folder, scene, method),
        "floor": [*own, "floor", str(scene), str(folder / "floor.zarr"), str(rows), str(cols)],
        "spy": [*own, "spy", str(scene), str(folder / "spy.zarr"), method],
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            for made in ("stores", "floor.zarr", "spy.zarr"):
                shutil.rmtree(folder / made, ignore_errors=True)
            result = timed(job)
            if turn:  # the first warms the page cache
                seen[name].append(result)
    wall = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in seen.items()}
    for name, runs in seen.items():
        print(
            f"{rows} x {cols} {method}  {name:5s} {wall[name]:7.2f} s  {max(peak for _, peak in runs):6.0f} MiB"
        )
    print(f"ours/floor {wall['ours'] / wall['floor']:.2f}   spy/ours {wall['spy'] / wall['ours']:.2f}")


def scaling(folder: Path) -> None:
    """Time and peak memory of 1024 x 1024 pixels and of ten times as many."""
    results: list[tuple[float, float]] = []
    for rows in (1024, 10240):
        scene = folder / f"scene{rows}.hdr"
        make_scene(scene, rows, 1024)
        runs: list[tuple[float, float]] = []
        for _ in range(3 if rows == 1024 else 1):
            shutil.rmtree(folder / "stores", ignore_errors=True)
            runs.append(timed(build_command(folder, scene, "pca")))
        results.append(sorted(runs)[len(runs) // 2])
        print(f"{rows} x 1024: {results[-1][0]:.2f} s, {results[-1][1]:.0f} MiB", flush=True)
    (small, peak), (large, most) = results
    print(f"10 x the pixels: {large / small:.2f} x the time, {most / peak:.2f} x the memory")


def main() -> None:
    """Do what the command line says."""
    asked = sys.argv[1:]
    if asked[:1] == ["floor"]:
        return floor(asked[1], asked[2], int(asked[3]), int(asked[4]))
    if asked[:1] == ["spy"]:
        return spy(*asked[1:4])
    names = ("bandstream", "numpy", "zarr", "dask", "spectral")
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)
    )
    folder = Path(tempfile.mkdtemp())
    try:
        if asked[:1] == ["scaling"]:
            return scaling(folder)
        sizes = [int(text) for text in asked if text.isdigit()]
        rows, cols = sizes[:2] if len(sizes) > 1 else (1024, 1024)
        method = next((text for text in asked if text in ("pca", "mnf")), "pca")
        return compare(folder, rows, cols, method, sizes[2] if len(sizes) > 2 else 3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
