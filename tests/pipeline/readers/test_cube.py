"""Array-likes that Dask reads through: right values for any key, and no byte more than needed."""

from __future__ import annotations

import gc
import os
import pickle
import threading

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import SceneNotFoundError, TruncatedFileError
from bandstream.pipeline.readers import buffers
from bandstream.pipeline.readers import cube as cube_module
from bandstream.pipeline.readers.cube import CHUNK_BYTES, RawCube, even_chunks, lazy_cube, rows_per_chunk

SHAPE = (7, 6, 5)
ORDERS = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}


def write(path, values_yxb, interleave, dtype, start=0):
    path.write_bytes(b"\7" * start + values_yxb.transpose(ORDERS[interleave]).astype(dtype).tobytes())
    return RawCube(str(path), values_yxb.shape, dtype, interleave, start)


@pytest.fixture(scope="module", params=["bsq", "bil", "bip"])
def pair(request, tmp_path_factory):
    values = np.random.default_rng(1).integers(-30_000, 30_000, SHAPE)
    path = tmp_path_factory.mktemp("raw") / f"{request.param}.img"
    return write(path, values, request.param, ">i2", 11), values.astype("int16")


def axis_keys(length):
    run = st.slices(length)
    index = st.integers(-length, length - 1)
    return st.one_of(run, index)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_key_gives_what_numpy_gives(pair, data):
    cube, values = pair
    key = data.draw(st.tuples(*(axis_keys(n) for n in SHAPE)))
    if data.draw(st.booleans()):
        # one list beside slices only: with integers NumPy moves axes, which Dask never asks for
        key = tuple(slice(None) if isinstance(k, int) else k for k in key)
        axis = data.draw(st.integers(0, 2))
        chosen = data.draw(st.lists(st.integers(-SHAPE[axis], SHAPE[axis] - 1), max_size=6))
        key = (*key[:axis], chosen, *key[axis + 1 :])
        expected = values[tuple(np.array(k, int) if isinstance(k, list) else k for k in key)]
    else:
        expected = values[key]
    got = cube[key]
    assert got.dtype == np.dtype("int16")
    assert got.dtype.isnative
    assert np.array_equal(got, expected)


def test_ellipsis_short_keys_and_masks(pair):
    cube, values = pair
    assert np.array_equal(cube[..., 2], values[..., 2])
    assert np.array_equal(cube[3], values[3])
    mask = np.array([True, False, True, True, False])
    assert np.array_equal(cube[:, :, mask], values[:, :, mask])
    with pytest.raises(IndexError):
        cube[0, 0, 5]
    with pytest.raises(IndexError, match="too many"):
        cube[0, 0, 0, 0]


def test_full_rows_come_in_the_files_own_layout(pair):
    cube, _ = pair
    block = cube[2:5]
    own = block.transpose(ORDERS[cube.interleave])
    assert own.flags.c_contiguous
    assert block.flags.writeable


def read_counter(monkeypatch):
    counted = []
    true_read = os.preadv

    def counting(fd, views, offset):
        got = true_read(fd, views, offset)
        counted.append((offset, got))
        return got

    monkeypatch.setattr(cube_module.os, "preadv", counting)
    return counted


def test_row_chunks_read_every_byte_once(pair, monkeypatch):
    cube, values = pair
    counted = read_counter(monkeypatch)
    with dask.config.set(scheduler="threads"):
        got = lazy_cube(cube, (3, 3, 1)).compute()
    assert np.array_equal(got, values)
    touched = np.zeros(11 + values.size * 2, int)
    for offset, size in counted:
        touched[offset : offset + size] += 1
    assert (touched[:11] == 0).all()
    assert (touched[11:] == 1).all()


def test_bands_chosen_before_computing_are_all_that_is_read_of_a_bsq_file(tmp_path, monkeypatch):
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    lazy = lazy_cube(write(tmp_path / "a", values, "bsq", "<f4"), (4, 3))
    counted = read_counter(monkeypatch)
    assert np.array_equal(lazy[:, :, 1:3].compute(scheduler="sync"), values[:, :, 1:3])
    assert sum(size for _, size in counted) == 7 * 6 * 2 * 4


def test_a_file_that_shrinks_or_goes_after_opening_is_an_error(pair, tmp_path):
    _, values = pair
    cube = write(tmp_path / "a.img", values, "bil", "<i2")
    os.truncate(cube.path, values.size * 2 - 1)
    for key in ((slice(6, 7),), (slice(None), slice(2, 3))):  # positioned read, and map
        with pytest.raises(TruncatedFileError, match="419 bytes"):
            cube[key]
    (tmp_path / "a.img").unlink()
    with pytest.raises(SceneNotFoundError):
        cube[0]


def test_a_cube_can_be_pickled_and_names_depend_on_the_file(pair, tmp_path):
    cube, values = pair
    assert np.array_equal(pickle.loads(pickle.dumps(cube))[...], values)  # noqa: S301 - our own bytes
    assert lazy_cube(cube, (7,)).name == lazy_cube(cube, (7,)).name
    other = write(tmp_path / "b", values, cube.interleave, ">i2", 11)
    assert lazy_cube(other, (7,)).name != lazy_cube(cube, (7,)).name
    before = lazy_cube(other, (7,)).name
    os.utime(other.path, ns=(1, 1))
    assert lazy_cube(other, (7,)).name != before


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_schedulers_agree(pair, scheduler):
    cube, values = pair
    assert np.array_equal(lazy_cube(cube, (2, 2, 2, 1)).compute(scheduler=scheduler), values)


@settings(deadline=None)
@given(row_bytes=st.integers(1, 2**26), rows=st.integers(1, 5000), multiple=st.integers(1, 300))
def test_chunks_stay_within_their_size_and_end_at_blocks(row_bytes, rows, multiple):
    count = rows_per_chunk(row_bytes, rows, multiple)
    chunks = even_chunks(rows, count)
    assert sum(chunks) == rows
    assert count == rows or count % multiple == 0
    assert count * row_bytes <= max(CHUNK_BYTES, multiple * row_bytes)
    if count < rows:  # at least half a chunk, so that there are no needless tasks
        assert 2 * count * row_bytes > CHUNK_BYTES


def test_memory_of_a_block_is_reused_only_after_its_last_view_is_gone():
    shape = (3, 2**20)
    first = buffers.lend(shape, "<i2")
    first[:] = 7
    view = first[1, 5:10]
    address = first.ctypes.data
    del first
    gc.collect()
    second = buffers.lend(shape, "<i2")
    second[:] = 9
    assert second.ctypes.data != address
    assert view.tolist() == [7] * 5
    del view
    gc.collect()
    assert buffers.lend(shape, "<i2").ctypes.data == address


def test_lent_memory_of_concurrent_threads_never_overlaps():
    failures = []

    def work(number):
        for _ in range(40):
            block = buffers.lend((2**18,), "i8")
            block[:] = number
            if not (block == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_pool_holds_little_when_idle():
    blocks = [buffers.lend((2**24,), "u1") for _ in range(9)]
    del blocks
    gc.collect()
    assert sum(b.size for b in buffers._POOL._idle) <= buffers.IDLE_BYTES
