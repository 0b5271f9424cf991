"""HDF5 datasets as lazy cubes: every order of axes, every window, and nothing that leaves the file or lies about it."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandstream.pipeline.errors import FormatError, SceneNotFoundError, TruncatedFileError
from bandstream.pipeline.readers import hdf, hdf_file
from bandstream.pipeline.readers.hdf import (
    H5Cube,
    H5Plane,
    StackedCube,
    cube_of,
    lazy_h5,
    opened,
    plane_of,
    row_chunks,
)
from bandstream.pipeline.readers.hdf_file import is_hdf5, iso_utc, list_cubes, recognised
from bandstream.pipeline.readers.hdf_handles import HANDLES
from bandstream.pipeline.readers.options import Notes

SHAPE = (23, 17, 11)
VALUES = np.random.default_rng(3).integers(-3000, 3000, SHAPE).astype(np.int16)
ORDERS = ["".join(order) for order in itertools.permutations("yxb")]


def write(path: Path, axes="yxb", values=VALUES, name="group/cube", **how) -> Path:
    """Write `values` (y, x, band) in a stored order of axes."""
    with h5py.File(path, "w") as out:
        out.create_dataset(name, data=values.transpose(["yxb".index(a) for a in axes]), **how)
    return path


def open_cube(path, axes="yxb", bands=None, name="group/cube"):
    with opened(str(path)) as h5:
        return cube_of(h5, name, axes, bands)


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("how", [{}, {"chunks": (5, 4, 3), "compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", ">f4"])
def test_every_order_of_axes_gives_the_numbers_in_native_order(tmp_path, axes, how, dtype):
    cube = open_cube(write(tmp_path / "a.h5", axes, VALUES.astype(dtype), **how), axes)
    assert cube.shape == SHAPE
    assert cube.dtype.isnative
    got = cube[:, :, :]
    assert got.dtype == cube.dtype
    assert np.array_equal(got, VALUES)
    assert np.array_equal(cube[3:20:2, ::-1, [7, 2, 2]], VALUES[3:20:2, ::-1][:, :, [7, 2, 2]])
    assert np.array_equal(cube[4, ..., -1], VALUES[4, :, -1])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window_equals_numpy(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "windows.h5"
    axes = "ybx"
    if not path.exists():
        write(path, axes, chunks=(4, 3, 6), compression="gzip")
    kept = sorted(data.draw(st.sets(st.integers(0, SHAPE[2] - 1), min_size=1)))
    cube = open_cube(path, axes, kept)
    key = tuple(
        data.draw(
            st.one_of(st.integers(0, n - 1), st.slices(n), st.lists(st.integers(-n, n - 1), max_size=5))
        )
        for n in cube.shape
    )
    expected = VALUES[:, :, kept]
    for axis in (2, 1, 0):
        expected = expected[(slice(None),) * axis + (key[axis],)]
    assert np.array_equal(cube[key], expected)


def test_stacked_parts_fill_one_buffer_and_leave_bands_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out["one"] = VALUES.transpose(0, 2, 1)
        out["two"] = VALUES.transpose(0, 2, 1)[:, ::-1] + 1
    first = open_cube(tmp_path / "a.h5", "ybx", [1, 2, 9], "one")
    second = open_cube(tmp_path / "a.h5", "ybx", [0, 4], "two")
    both = StackedCube((first, second))
    expected = np.concatenate([VALUES[:, :, [1, 2, 9]], (VALUES[:, :, ::-1] + 1)[:, :, [0, 4]]], axis=2)
    assert both.shape == expected.shape
    assert np.array_equal(both[...], expected)
    assert np.array_equal(both[2:9, 3:5, [4, 0, 3, 1]], expected[2:9, 3:5, [4, 0, 3, 1]])
    assert np.array_equal(both[:, :, ::-1], expected[:, :, ::-1])


def test_many_scattered_bands_come_in_their_order(tmp_path):
    values = np.arange(4 * 3 * 90, dtype=np.int32).reshape(4, 3, 90)
    cube = open_cube(write(tmp_path / "a.h5", "yxb", values))
    assert np.array_equal(cube[:, :, ::-1], values[:, :, ::-1])
    assert np.array_equal(
        cube[1:3, :, [80, 3, 80, *range(60, 0, -2)]], values[1:3][:, :, [80, 3, 80, *range(60, 0, -2)]]
    )


@pytest.mark.parametrize("axes", ["yx", "xy"])
def test_a_plane_in_either_order(tmp_path, axes):
    plane = VALUES[:, :, 0]
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out["p"] = plane if axes == "yx" else plane.T
    with opened(str(tmp_path / "a.h5")) as h5:
        got = plane_of(h5, "p", SHAPE[:2], axes)
        assert plane_of(h5, "p", (5, 5), axes) is None, "a plane of another size is none of this cube's"
        assert plane_of(h5, "nothing", SHAPE[:2], axes) is None
    assert np.array_equal(got[:, :], plane)
    assert np.array_equal(got[3], plane[3])
    assert np.array_equal(got[2:5, [4, 1]], plane[2:5, [4, 1]])


def test_one_band_of_a_layer_stack_is_a_plane(tmp_path):
    write(tmp_path / "a.h5", "yxb")
    with opened(str(tmp_path / "a.h5")) as h5:
        plane = plane_of(h5, "group/cube", SHAPE[:2], "yxb", 4)
        assert plane_of(h5, "group/cube", SHAPE[:2], "yxb", 11) is None
    assert np.array_equal(plane[1:4, :], VALUES[1:4, :, 4])


def test_cubes_survive_pickling_and_threads(tmp_path):
    path = write(tmp_path / "a.h5", "byx", chunks=(3, 7, 17), compression="gzip")
    cube = pickle.loads(pickle.dumps(open_cube(path, "byx")))  # noqa: S301 - our own
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: cube[i % 20 : i % 20 + 3], range(60)))
    assert all(np.array_equal(block, VALUES[i % 20 : i % 20 + 3]) for i, block in enumerate(got))


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_too(tmp_path):
    cube = open_cube(write(tmp_path / "a.h5", chunks=(5, 17, 11), compression="gzip"))
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            cube[0:6]

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0 if np.array_equal(cube[...], VALUES) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    assert np.array_equal(cube[...], VALUES)


def test_lazy_arrays_of_two_datasets_never_share_a_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out["a"], out["b"] = VALUES, VALUES + 1
    with opened(str(tmp_path / "a.h5")) as h5:
        lazy = [lazy_h5(cube_of(h5, name, "yxb"), (10, 13)) for name in "ab"]
        again = lazy_h5(cube_of(h5, "a", "yxb"), (10, 13))
    assert lazy[0].name != lazy[1].name
    assert lazy[0].name == again.name
    one, two = dask.compute(*lazy, scheduler="synchronous")
    assert np.array_equal(one, VALUES)
    assert np.array_equal(two, VALUES + 1)


def test_chunks_end_where_the_files_chunks_end(tmp_path):
    rows, cols, bands = 700, 40, 20
    values = np.zeros((rows, cols, bands), np.float32)
    path = write(tmp_path / "a.h5", "byx", values, chunks=(5, 100, 20), compression="gzip")
    with opened(str(path)) as h5:
        cube = cube_of(h5, "group/cube", "byx")
        y, x, held = row_chunks([cube], h5, Notes())
    assert sum(y) == rows
    assert all(n % 100 == 0 for n in y)
    assert x == (cols,)
    # what is kept decoded: a row of chunks, 8 of them 100 x 20 x 5 float32, and one on its way
    assert held == (8 + 2) * 100 * 20 * 5 * 4


def test_a_contiguous_cube_keeps_nothing_decoded(tmp_path):
    with opened(str(write(tmp_path / "a.h5"))) as h5:
        y, x, held = row_chunks([cube_of(h5, "group/cube", "yxb")], h5, Notes())
    assert (sum(y), x, held) == (SHAPE[0], (SHAPE[1],), None)


@pytest.fixture
def bytes_read(monkeypatch):
    """Return a list to which each read of a dataset's file adds its bytes."""
    sizes: list[int] = []

    class Counting(io.FileIO):
        def readinto(self, buffer):
            count = super().readinto(buffer)
            sizes.append(count)
            return count

    real, files = h5py.File, []

    def counted(path, *args, **kwargs):
        if isinstance(path, str):
            path = Counting(path)
            files.append(path)
        return real(path, *args, **kwargs)

    HANDLES.clear()
    monkeypatch.setattr(hdf.h5py, "File", counted)
    yield sizes
    for handle in HANDLES.open.values():
        handle.file.close()
    HANDLES.clear()
    for file in files:
        file.close()


def test_rows_in_windows_decode_no_chunk_twice(tmp_path, bytes_read):
    values = np.random.default_rng(0).integers(0, 9999, (96, 50, 30)).astype(np.int16)
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.create_dataset("cube", data=values, chunks=(48, 13, 7), compression="gzip")
    cube = H5Cube(str(tmp_path / "a.h5"), "cube", values.shape, values.dtype)
    bytes_read.clear()
    for start in range(0, 96, 4):
        assert np.array_equal(cube[start : start + 4], values[start : start + 4])
    assert sum(bytes_read) < 1.1 * (tmp_path / "a.h5").stat().st_size


def test_a_row_of_chunks_too_large_to_keep_is_kept_in_part(tmp_path, monkeypatch, bytes_read):
    """Columns beyond what the cache holds are read through another handle, so that they cannot push out the others."""
    values = np.random.default_rng(0).integers(0, 99, (64, 64, 8)).astype(np.int32)
    path = write(tmp_path / "a.h5", "byx", values, chunks=(2, 32, 8), compression="gzip")
    chunk_column = 4 * 2 * 32 * 8 * 4
    monkeypatch.setattr(hdf, "CACHE_BYTES", 5 * chunk_column)
    monkeypatch.setattr(hdf, "BLOCK_ROW_BYTES", 0)
    with opened(str(path)) as h5:
        cube, notes = cube_of(h5, "group/cube", "byx"), Notes()
        y, x, held = row_chunks([cube], h5, notes)
    assert set(y) == {32}
    assert sum(x) == 64
    assert held == 5 * chunk_column + 2 * chunk_column // 4
    assert "is decoded once per window" in notes.messages[0]
    for start in range(0, 64, 8):
        cube[start : start + 8]
    # columns 0-39 once, columns 40-63 in each of the 4 windows of a chunk's rows
    once = path.stat().st_size
    assert once < sum(bytes_read) < (40 / 64 + 4 * 24 / 64 + 0.2) * once
    assert np.array_equal(cube[...], values)
    assert np.array_equal(cube[3:9, 38:50], values[3:9, 38:50])
    assert np.array_equal(cube[3:9, 45:50], values[3:9, 45:50])


def test_a_file_rewritten_in_place_is_not_read_with_the_old_structure(tmp_path):
    """The library shares the structure of open files: the old handle must have gone before the new one comes."""
    path = write(tmp_path / "a.h5", chunks=(5, 17, 11), compression="gzip")
    assert np.array_equal(open_cube(path)[...], VALUES)
    other = write(tmp_path / "b.h5", values=VALUES[:9, :8] + 1, name="elsewhere/cube")
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(other.read_bytes())
    assert [name for name, _, _ in list_cubes(str(path))] == ["elsewhere/cube"]
    assert np.array_equal(open_cube(path, name="elsewhere/cube")[...], VALUES[:9, :8] + 1)


def test_a_changed_file_is_opened_afresh_and_a_lost_one_is_named(tmp_path):
    path = write(tmp_path / "a.h5")
    cube = open_cube(path)
    assert np.array_equal(cube[0], VALUES[0])
    other = write(tmp_path / "b.h5", values=VALUES + 1)
    os.utime(other, ns=(1, 1))
    other.replace(path)
    assert np.array_equal(cube[0], VALUES[0] + 1)
    path.unlink()
    with pytest.raises(SceneNotFoundError, match="has gone"):
        cube[0]


def test_idle_handles_stay_few(tmp_path):
    HANDLES.clear()
    for i in range(40):
        open_cube(write(tmp_path / f"{i}.h5"))[0]
    assert len(HANDLES.open) <= 32


# --- what a file may not do ---


def _hostile(path: Path, kind: str) -> Path:
    write(path.with_name("other.h5"), name="cube")
    with h5py.File(path, "w") as out:
        group = out.create_group("group")
        if kind == "external link":
            group["cube"] = h5py.ExternalLink("other.h5", "cube")
        elif kind == "soft link to an external link":
            out["away"] = h5py.ExternalLink("other.h5", "cube")
            group["cube"] = h5py.SoftLink("/away")
        elif kind == "external group":
            del out["group"]
            out["group"] = h5py.ExternalLink("other.h5", "/")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(SHAPE, "i2")
            layout[:] = h5py.VirtualSource("other.h5", "cube", SHAPE)
            group.create_virtual_dataset("cube", layout)
        elif kind == "external storage":
            group.create_dataset("cube", SHAPE, "i2", external=[("other.raw", 0, h5py.h5f.UNLIMITED)])
        elif kind == "circle":
            out["a"], out["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
            group["cube"] = h5py.SoftLink("/a")
        elif kind == "huge claim":
            group.create_dataset("cube", (10**6, 10**6, 300), "i2", chunks=(1, 100, 10), compression="gzip")
        elif kind == "huge chunk":
            group.create_dataset(
                "cube", (2**20, 2**9, 2), "i2", maxshape=(None,) * 3, chunks=(2**20, 2**9, 2)
            )
        elif kind == "no numbers":
            group.create_dataset("cube", (2, 2, 2), "S4")
        elif kind == "complex":
            group.create_dataset("cube", (2, 2, 2), "c8")
        elif kind == "empty":
            group["cube"] = h5py.Empty("f4")
        elif kind == "two axes":
            group["cube"] = VALUES[:, :, 0]
    return path


KINDS = (
    *(
        "external link",
        "soft link to an external link",
        "external group",
        "virtual",
        "external storage",
        "circle",
    ),
    *("huge claim", "huge chunk", "no numbers", "complex", "empty", "two axes"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_reaches_out_of_the_file_or_lies_is_refused_by_name(tmp_path, kind):
    path = _hostile(tmp_path / "a.h5", kind)
    with pytest.raises(FormatError, match=r"a\.h5"):
        open_cube(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_cubes_shows_nothing_of_what_is_refused(tmp_path, kind):
    names = [name for name, _, _ in list_cubes(str(_hostile(tmp_path / "a.h5", kind)))]
    assert names == (["group/cube"] if kind == "two axes" else [])


def test_a_link_that_is_swapped_in_after_opening_is_refused_on_reading(tmp_path):
    cube = open_cube(write(tmp_path / "a.h5"))
    _hostile(tmp_path / "b.h5", "external link").replace(tmp_path / "a.h5")
    with pytest.raises(FormatError, match="out of the file"):
        cube[0]


def test_soft_and_hard_links_inside_the_file_are_followed(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "a") as out:
        out["soft"] = h5py.SoftLink("/group/cube")
        out["group/relative"] = h5py.SoftLink("cube")
        out["hard"] = out["group"]
    for name in ("soft", "group/relative", "hard/cube"):
        assert np.array_equal(open_cube(path, name=name)[0], VALUES[0])
    assert [found[0] for found in list_cubes(str(path))] == ["soft"], "each dataset once"


def test_cubes_are_listed_with_shape_and_type(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out["b/cube"], out["plane"], out["list"] = VALUES, VALUES[:, :, 0], VALUES[0, 0]
        out["text"] = "hello"
    assert list_cubes(str(tmp_path / "a.h5")) == [
        ("plane", SHAPE[:2], np.dtype("i2")),
        ("b/cube", SHAPE, np.dtype("i2")),
    ]


def test_an_unknown_filter_is_named(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as out:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(SHAPE)
        plist.set_filter(305, h5py.h5z.FLAG_OPTIONAL)  # a number kept for tests
        h5py.h5d.create(out.id, b"cube", h5py.h5t.NATIVE_INT16, h5py.h5s.create_simple(SHAPE), plist)
    with pytest.raises(FormatError, match="filter 305"):
        open_cube(path, name="cube")


def test_a_cut_file_is_too_short(tmp_path):
    path = write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(TruncatedFileError, match="shorter"), opened(str(path)):
        pass


def test_a_file_cut_under_an_open_cube_ends_in_our_error(tmp_path):
    path = write(tmp_path / "a.h5")
    cube = open_cube(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(FormatError):
        cube[...]


@pytest.mark.parametrize("user_block", [0, 512, 4096])
def test_the_signature_is_found_behind_a_user_block(tmp_path, user_block):
    path = tmp_path / "a.h5"
    h5py.File(path, "w", userblock_size=user_block).close()
    with path.open("rb") as file:
        head = file.read(512)
    assert is_hdf5(str(path), head)
    assert recognised(str(path), head, lambda _: "yes") == "yes"


@pytest.mark.parametrize(
    "content", [b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(4000), bytes(3000)]
)
def test_recognition_never_raises_on_what_is_none(tmp_path, content):
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    assert recognised(str(path), content[:512], lambda _: "yes") is None
    assert recognised(str(tmp_path / "nothing"), b"\x89HDF\r\n\x1a\n", lambda _: "yes") is None


def test_attributes_and_lists_are_read_in_all_their_forms(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.attrs["bytes"], out.attrs["text"] = np.bytes_("a "), "b"
        out.attrs["one"], out.attrs["ones"], out.attrs["words"] = np.float32(2.5), [3, 4], "5, 6"
        out.attrs["empty"] = h5py.Empty("f4")
        out["names"] = np.array(["x", "y"], h5py.string_dtype())
        out["fixed"], out["scalar"] = np.array([b"u", b"v"]), np.bytes_("w")
        out["list"] = np.arange(3, dtype=">i2")
        out.create_dataset("long", (2_000_000,), "u1", chunks=True)
    with opened(str(tmp_path / "a.h5")) as h5:
        assert [h5.text(k) for k in ("bytes", "text", "nothing", "empty")] == ["a", "b", None, None]
        assert (h5.number("one"), h5.number("ones"), h5.number("nothing")) == (2.5, 3.0, None)
        assert h5.numbers("words").tolist() == [5, 6]
        assert [h5.texts(k) for k in ("names", "fixed", "scalar")] == [["x", "y"], ["u", "v"], ["w"]]
        assert h5.floats("list", 3).tolist() == [0, 1, 2]
        for wrong in (
            lambda: h5.floats("list", 4),
            lambda: h5.floats("names"),
            lambda: h5.floats("long"),
            lambda: h5.numbers("text"),
            lambda: h5.need("missing"),
            lambda: h5.need_numbers("missing", 1),
            lambda: h5.need_numbers("ones", 3),
        ):
            with pytest.raises(FormatError, match=r"a\.h5"):
                wrong()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2022-08-10T03:41:03+0000", "2022-08-10T03:41:03Z"),
        ("2022-08-10T03:41:03", "2022-08-10T03:41:03Z"),
        ("2022-08-10T05:41:03.5+02:00", "2022-08-10T03:41:03.500000Z"),
        ("yesterday", None),
        ("2022-13-45T99:00", None),
        (None, None),
    ],
)
def test_times_become_utc(text, expected):
    assert iso_utc(text) == expected


def test_a_plane_and_a_cube_tell_what_they_are():
    """The names of lazy arrays are made of `repr`."""
    cube = H5Cube("a", "b", (1, 2, 3), np.dtype("i2"), "ybx", (1, 2))
    plane = H5Plane("a", "b", (1, 2), np.dtype("i2"), "yxb", 7)
    for text in ("'a'", "'b'", "ybx", "(1, 2)"):
        assert text in repr(cube)
    assert "band=7" in repr(plane)
    assert hdf_file.SIGNATURE.startswith(b"\x89HDF")
