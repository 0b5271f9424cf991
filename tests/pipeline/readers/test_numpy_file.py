"""NumPy files against NumPy itself: both orders, both byte orders, archives stored and packed, and what is refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from bandstream.pipeline.errors import BandstreamError, BandstreamWarning, FormatError, TruncatedFileError
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.readers.planes import load_plane

CUBE = np.random.default_rng(5).integers(0, 4000, (9, 7, 5)).astype("u2")


def npy(path, array):
    np.save(path, array, allow_pickle=False)
    return path


def npz(path, packed=True, **arrays):
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    return path


def header(shape, descr="<u2", fortran=False):
    """Return the bytes of a header that claims whatever it likes."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", ">u4", "<f4", ">f4", ">f8", "<u8", "f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order_is_read_in_native_order(tmp_path, dtype, order):
    array = np.asarray(CUBE % 100, dtype=dtype, order=order)
    ds = open_scene(npy(tmp_path / "a.npy", array))
    assert ds["data"].dtype == np.dtype(dtype).newbyteorder("=")
    assert ds["data"].dtype.isnative
    assert np.array_equal(ds["data"].values, array)
    assert np.array_equal(ds["data"][1:8:3, ::-1, [3, 0]].values, array[1:8:3, ::-1, [3, 0]])
    assert ds["data"].data.compute().flags.writeable


@pytest.mark.parametrize("dtype", [">i2", ">f4"])
def test_big_endian_blocks_go_into_torch_without_a_word(tmp_path, dtype):
    """And what is done to them leaves the file as it was."""
    torch = pytest.importorskip("torch")
    path = npy(tmp_path / "a.npy", CUBE.astype(dtype))
    before = path.read_bytes()
    path.chmod(0o444)
    block = open_scene(path)["data"].data.compute()
    tensor = torch.from_numpy(block)  # warnings are errors here
    assert np.array_equal(tensor.numpy(), CUBE)
    tensor += 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("axes", ["yxb", "ybx", "byx", "bxy", "xyb", "xby"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_axes_that_the_user_gives_are_in_the_order_of_the_shape(tmp_path, axes, order):
    stored = np.asarray(CUBE.transpose(["yxb".index(axis) for axis in axes]), order=order)
    ds = open_scene(npy(tmp_path / "a.npy", stored), axes=axes)
    assert np.array_equal(ds["data"].values, CUBE)


def test_a_table_of_pixels_is_unfolded_row_by_row(tmp_path):
    ds = open_scene(npy(tmp_path / "a.npy", CUBE.reshape(63, 5)), shape_yx=(9, 7))
    assert np.array_equal(ds["data"].values, CUBE)
    ds = open_scene(npy(tmp_path / "b.npy", CUBE.transpose(2, 0, 1).reshape(5, 63)), shape_yx=(9, 7))
    assert np.array_equal(ds["data"].values, CUBE)
    with pytest.raises(FormatError, match=r"plane, not a cube.*shape_yx"):
        open_scene(tmp_path / "a.npy")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_archives_are_read_in_place_or_unpacked(tmp_path, packed, order, monkeypatch):
    monkeypatch.setattr("bandstream.pipeline.readers.cube.CHUNK_BYTES", 2 * 7 * 5 * 2)
    cube = np.asarray(CUBE.astype(">u2"), order=order)
    centres = np.linspace(450, 2400, 5)
    ds = open_scene(npz(tmp_path / "a.npz", packed, cube=cube, wavelength_nm=centres, mask=CUBE[:, :, 0] > 9))
    assert np.array_equal(ds["data"].values, CUBE)
    assert np.array_equal(ds["wavelength"], centres)
    assert ds.attrs["variable"] == "cube"
    assert ds["data"].data.npartitions > 1
    assert ("block_bytes" in ds.attrs) == packed


def test_of_several_cubes_in_an_archive_the_user_chooses(tmp_path):
    path = npz(tmp_path / "a.npz", a=CUBE, b=CUBE[:, :, :2])
    with pytest.raises(
        FormatError, match=r"several cubes: a 9 x 7 x 5 uint16, b 9 x 7 x 2 uint16.*variable="
    ):
        open_scene(path)
    assert open_scene(path, variable="b")["data"].shape == (9, 7, 2)


def test_pickles_and_other_types_are_refused_by_name_and_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.save(tmp_path / "a.npy", np.array([[[Bomb()]]], object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"object \(a pickle\)"):
        open_scene(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x=np.array([[[Bomb()]]], object))
    with pytest.raises(FormatError, match=r"object \(a pickle\)"):
        open_scene(tmp_path / "a.npz")
    with pytest.raises(FormatError, match="'array' is complex64; a scene holds real numbers"):
        open_scene(npy(tmp_path / "b.npy", CUBE.astype("c8")), variable="array")
    for array, word in (
        (np.zeros((2, 2, 2), [("a", "u1"), ("b", "f4")]), "holds no cube"),
        (np.zeros((2, 2, 2), "M8[s]"), "datetime64"),
        (np.full((2, 2, 2), "text"), "text"),
        (np.zeros((2, 2, 2, 2)), "2 x 2 x 2 x 2"),
        (np.zeros((2, 0, 2)), "empty"),
        (CUBE > 5, "logical"),
    ):
        with pytest.raises(FormatError, match=word):
            open_scene(npy(tmp_path / "c.npy", array))


def test_a_file_is_compared_with_what_its_header_promises(tmp_path):
    path = npy(tmp_path / "a.npy", CUBE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        TruncatedFileError, match=f"holds {len(whole) - 1} bytes, but its header promises {len(whole)}"
    ):
        open_scene(path)
    path.write_bytes(whole + b"abc")
    with pytest.warns(BandstreamWarning, match="3 bytes more"):
        assert np.array_equal(open_scene(path)["data"].values, CUBE)


@pytest.mark.parametrize("shape", [(10**4, 10**4, 10**4), (10**30, 1, 1), (2**63, 2, 2), (3, -1, 2)])
def test_a_header_that_claims_the_moon_is_refused_without_memory(tmp_path, shape):
    path = tmp_path / "a.npy"
    path.write_bytes(header(shape) + bytes(100))
    packed = tmp_path / "a.npz"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cube.npy", header(shape) + bytes(100))
    tracemalloc.start()
    for name in (path, packed):
        with pytest.raises(FormatError):
            open_scene(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_an_archive_that_claims_more_than_its_bytes_can_hold_is_refused(tmp_path):
    """The central directory says 4 GB, header and all, of a member that is a few hundred bytes long."""
    shape = (1000, 1000, 2000)
    content = header(shape) + bytes(1000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cube.npy", content)
    raw = bytearray(buffer.getvalue())
    claimed = struct.pack("<I", len(header(shape)) + 4 * 10**9)
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 24 : at + 28] = claimed
    path = tmp_path / "a.npz"
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=r"more than its .* packed bytes can hold"):
        open_scene(path)


def test_a_packed_member_with_a_wrong_checksum_or_an_unknown_packing_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", cube=CUBE)
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 16] ^= 1  # its CRC-32
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="damaged"):
        open_scene(path)["data"].values  # noqa: B018 - reads
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("cube.npy", header(CUBE.shape) + CUBE.tobytes())
    with pytest.raises(FormatError, match="packed by method 12"):
        open_scene(path)


def test_a_zip_without_arrays_is_not_taken(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(FormatError, match="zip archive"):
        open_scene(path)


@pytest.mark.parametrize("kind", ["npy", "npz", "stored"])
def test_damaged_files_end_in_an_error_of_ours(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("warnings.warn", lambda *a, **k: None)
    path = tmp_path / ("a.npy" if kind == "npy" else "a.npz")
    if kind == "npy":
        npy(path, CUBE)
    else:
        npz(path, kind == "npz", cube=CUBE, wl=np.linspace(450, 900, 5), h=3)
    whole, rng = path.read_bytes(), np.random.default_rng(13)
    opened = 0
    for trial in range(150):
        raw = bytearray(whole)
        if trial % 3 == 0:
            raw = raw[: rng.integers(0, len(raw))]
        else:
            near = len(raw) if trial % 2 else 128
            for at in rng.integers(-near if trial % 5 == 0 else 0, near if trial % 5 else 0, 1 + trial % 4):
                raw[at] = rng.integers(0, 256)
        path.write_bytes(raw)
        try:
            open_scene(path)["data"].values  # noqa: B018 - reads
            opened += 1
        except BandstreamError:
            continue
    assert opened < 150


def test_planes(tmp_path):
    labels = (CUBE[:, :, 0] % 4).astype("u1")
    assert np.array_equal(load_plane(str(npy(tmp_path / "a.npy", np.asfortranarray(labels)))), labels)
    path = str(npz(tmp_path / "a.npz", cube=CUBE, gt=labels, other=labels > 1))
    with pytest.raises(FormatError, match="several arrays"):
        load_plane(path)
    assert np.array_equal(load_plane(path, "gt"), labels)
    assert np.array_equal(load_plane(path, "other"), labels > 1)
    (tmp_path / "a.txt").write_text("1 2")
    with pytest.raises(FormatError, match="no array file"):
        load_plane(tmp_path / "a.txt")


VARIANTS = [
    ("npy", {}), ("npy", {"fortran": True}), ("npy", {"big_endian": True, "fortran": True}), ("npy", {"pickled": True}),
    ("npz", {}), ("npz", {"big_endian": True}), ("npz", {"two_cubes": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_files_that_somebody_else_wrote(products, tmp_path, name, variant):
    truth = products.make(name, tmp_path, **variant)
    if truth.refusal:
        with pytest.raises(FormatError, match=truth.refusal):
            open_scene(truth.paths[0])
    if "pickled" in variant:
        return
    ds = open_scene(truth.paths[0], variable=truth.extra["variable"])
    assert np.array_equal(ds["data"].values, truth.raw_yxb)
    assert ds["data"].dtype == truth.raw_yxb.dtype
