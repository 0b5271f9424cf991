"""Memory of batches: unchanged while anything refers to it, used again afterwards."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from bandstream.train.stream import PatchStream
from bandstream.train.stream.pool import KEPT_BATCHES, BatchMemory, fields_bytes

FIELDS = {"image": ((3, 5), np.float32), "mask": ((3,), np.bool_)}


def address(array) -> int:
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_array_is_gone():
    memory = BatchMemory()
    first = memory.take(FIELDS)
    place, mask = address(first["image"]), first["mask"]
    del first
    assert address(memory.take(FIELDS)["image"]) != place, "the mask is still held"
    del mask
    places = [address(memory.take(FIELDS)["image"]) for _ in range(4)]
    assert place in places


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1:],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[1:, :2],
        lambda tensor: tensor.T.view(-1, 3),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: torch.from_numpy(tensor.numpy()),
        torch.utils.dlpack.from_dlpack,
    ],
)
def test_every_kind_of_reference_keeps_the_memory(keep):
    memory = BatchMemory()
    array = memory.take(FIELDS)["image"]
    place = address(array)
    held = keep(torch.from_numpy(array))
    del array
    others = [memory.take(FIELDS)["image"] for _ in range(KEPT_BATCHES + 2)]
    assert place not in [address(other) for other in others]
    del held, others
    gc.collect()
    assert place in [address(free) for free in memory._free]


def test_arrays_of_a_batch_are_aligned_and_apart():
    arrays = BatchMemory().take(FIELDS)
    arrays["image"][...], arrays["mask"][...] = 7, True
    assert (arrays["image"] == 7).all()
    assert (address(arrays["mask"]) - address(arrays["image"])) % 64 == 0
    assert fields_bytes(FIELDS) == 128


def test_little_is_kept_of_many_batches_that_were_held():
    memory = BatchMemory()
    held = [memory.take(FIELDS) for _ in range(20)]
    del held
    assert len(memory._free) == KEPT_BATCHES


def test_memory_may_come_back_in_any_thread():
    memory, held = BatchMemory(), []

    def drop():
        for _ in range(500):
            held.append(memory.take(FIELDS))
            held.pop()

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [address(some["image"]) for some in [memory.take(FIELDS) for _ in range(6)]]
    assert len(set(places)) == 6


@pytest.mark.parametrize("patch", [None, 3])
def test_a_stream_runs_in_the_memory_of_a_few_batches(shared_store, patch):
    places = {batch["image"].data_ptr() for batch in PatchStream(shared_store(), patch=patch, batch_size=5)}
    assert len(places) <= KEPT_BATCHES
