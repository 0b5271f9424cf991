"""Cut and damaged HDF5 products: our own errors or a scene, never another exception, a hang or much memory.

The library is C: a file could in principle end the process. None of the seeds below does, nor did any of the 8,000
others that were tried when this was written.
"""

from __future__ import annotations

import resource
import warnings

import dask
import numpy as np
import pytest

from bandstream.pipeline.errors import BandstreamError, TruncatedFileError
from bandstream.pipeline.readers import open_scene, registry

PRODUCTS = ("prisma_l1", "prisma_l2d", "emit_rfl", "neon_directional", "aviris3_rdn")
FEW, MANY = 30, 600


def mutated(data: bytes, seed: int) -> bytes:
    """Return a file with some bits turned, some bytes replaced, a piece blanked, or its end cut off."""
    rng = np.random.default_rng(seed)
    out, size = bytearray(data), len(data)
    kind = seed % 4
    if kind == 0:
        return data[: int(rng.integers(0, size))]
    if kind == 1:
        for _ in range(int(rng.integers(1, 9))):
            out[int(rng.integers(0, size))] ^= 1 << int(rng.integers(0, 8))
    elif kind == 2:
        for _ in range(int(rng.integers(1, 30))):
            out[int(rng.integers(0, size))] = int(rng.integers(0, 256))
    else:
        start, length = int(rng.integers(0, size)), int(rng.integers(1, 200))
        out[start : start + length] = bytes([int(rng.choice([0, 255]))]) * len(out[start : start + length])
    return bytes(out)


def read(path):
    """Open a file and read a window of all that it holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers may be anything
        scene = open_scene(path)
        layers = [scene[name][2:5, 1:4].data for name in scene.variables if scene[name].ndim >= 2]
        dask.compute(*layers, scheduler="synchronous")


@pytest.mark.parametrize(
    "count", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_damaged_products_end_in_our_errors_or_a_scene(products, tmp_path, name, count):
    source = next(path for path in products.make(name, tmp_path).paths if path.is_file())
    data = source.read_bytes()
    read(source)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for seed in range(count):
        source.write_bytes(mutated(data, seed))
        try:
            read(source)
        except BandstreamError:
            refused += 1
    assert refused >= count // 4, "a quarter of the files were cut: those at least must be noticed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024, "KiB"


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_cut_product_is_never_read(products, tmp_path, name):
    """Wherever a file is cut: the reader that is asked for says that it is too short, or no such file."""
    source = next(path for path in products.make(name, tmp_path).paths if path.is_file())
    data = source.read_bytes()
    reader = next(iter(registry.candidates(str(source))))[0].name
    for share in (0.999, 0.9, 0.5, 0.1, 0.01):
        source.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(BandstreamError) as caught:
            open_scene(source, reader=reader)
        assert source.name in str(caught.value)
        if share >= 0.1:
            assert isinstance(caught.value, TruncatedFileError)
