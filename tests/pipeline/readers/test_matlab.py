"""MATLAB files against SciPy and h5py, the real Jasper Ridge file among them."""

from __future__ import annotations

import pickle
import struct
import zlib

import dask
import h5py
import numpy as np
import pytest
import scipy.io

from bandstream.pipeline.errors import BandstreamError, BandstreamWarning, FormatError, TruncatedFileError
from bandstream.pipeline.readers import open_scene, unpacking
from bandstream.pipeline.readers.planes import load_plane

RNG = np.random.default_rng(3)
CUBE = RNG.integers(0, 4000, (9, 7, 5)).astype("u2")


def v5(path, compressed=True, **content):
    scipy.io.savemat(path, content, do_compression=compressed)
    return path


def v73(path, **content):
    """Write as MATLAB does: HDF5 behind a user block, axes backwards."""
    with h5py.File(path, "w", userblock_size=512) as out:
        for name, values in content.items():
            array = np.atleast_2d(np.asarray(values))
            dataset = out.create_dataset(name, data=array.T, chunks=array.T.shape, compression="gzip")
            dataset.attrs["MATLAB_class"] = np.bytes_(array.dtype.name)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x02IM")
    return path


WRITERS = {"v7": v5, "v6": lambda path, **c: v5(path, compressed=False, **c), "v7.3": v73}


@pytest.fixture(params=list(WRITERS))
def write(request):
    return WRITERS[request.param]


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8", "i8", "u8"])
def test_a_cube_of_any_type_is_read_as_rows_columns_bands(tmp_path, write, dtype):
    cube = (CUBE % 120).astype(dtype)
    ds = open_scene(write(tmp_path / "a.mat", X=cube, gt=np.ones((9, 7), "u1")))
    assert ds["data"].dtype == np.dtype(dtype)
    assert np.array_equal(ds["data"].values, cube)
    assert ds.attrs["reader"] == "matlab"
    assert ds.attrs["variable"] == "X"
    assert "wavelength" not in ds.coords
    assert np.array_equal(ds["data"][2:8:3, ::-1, [4, 0]].values, cube[2:8:3, ::-1, [4, 0]])
    assert np.array_equal(ds["data"][3, 2].values, cube[3, 2])


@pytest.mark.parametrize("axes", ["yxb", "ybx", "byx", "bxy", "xyb", "xby"])
def test_the_axes_that_the_user_gives_are_in_the_order_of_matlabs_size(tmp_path, write, axes):
    stored = CUBE.transpose(["yxb".index(axis) for axis in axes])
    ds = open_scene(write(tmp_path / "a.mat", X=stored), axes=axes)
    assert np.array_equal(ds["data"].values, CUBE)


@pytest.mark.parametrize("axes", ["byx", "bxy", "yxb", "xyb"])
def test_a_table_of_pixels_is_unfolded_in_matlabs_order(tmp_path, write, axes):
    """MATLAB's own reshape: the first of the two pixel axes runs fastest."""
    unfolded = CUBE.transpose(["yxb".index(axis) for axis in axes])
    shape = (5, 63) if axes[0] == "b" else (63, 5)
    path = write(tmp_path / "a.mat", Y=unfolded.reshape(shape, order="F"))
    ds = open_scene(path, axes=axes, shape_yx=(9, 7))
    assert np.array_equal(ds["data"].values, CUBE)
    assert np.array_equal(ds["data"][4:6, 3:1:-1, 1::2].values, CUBE[4:6, 3:1:-1, 1::2])


@pytest.mark.parametrize("names", [("nRow", "nCol"), ("lines", "cols"), ("H", "W"), ("Rows", "Cols")])
def test_rows_and_columns_beside_a_table_are_found(tmp_path, write, names):
    flat = CUBE.transpose(2, 0, 1).reshape(5, 63, order="F")
    path = write(tmp_path / "a.mat", Y=flat, **{names[0]: np.uint8(9), names[1]: np.uint8(7)})
    assert np.array_equal(open_scene(path)["data"].values, CUBE)


def test_a_table_as_wide_as_it_is_high_needs_its_axes(tmp_path):
    square = np.arange(36).reshape(6, 6)
    path = v5(tmp_path / "a.mat", Y=square, nRow=2, nCol=3)
    with pytest.raises(FormatError, match="either axis can hold the pixels; give axes='byx' or 'yxb'"):
        open_scene(path)
    assert open_scene(path, axes="yxb")["data"].shape == (2, 3, 6)


def test_the_pixels_of_a_table_must_be_as_many_as_rows_times_columns(tmp_path, write):
    path = write(tmp_path / "a.mat", Y=np.ones((5, 63)))
    with pytest.raises(FormatError, match="3 x 3 = 9 pixels"):
        open_scene(path, variable="Y", shape_yx=(3, 3))
    with pytest.raises(FormatError, match=r"plane, not a cube.*shape_yx="):
        open_scene(path)


def test_of_several_cubes_the_user_chooses_and_is_told_names_shapes_and_types(tmp_path, write):
    path = write(tmp_path / "a.mat", paviaU=CUBE, paviaC=CUBE[:, :, :3].astype("f8"))
    with pytest.raises(FormatError) as caught:
        open_scene(path)
    for word in (
        "paviaU 9 x 7 x 5 uint16",
        "paviaC 9 x 7 x 3",
        "double" if write is not v73 else "float64",
        "variable=",
    ):
        assert word in str(caught.value)
    assert open_scene(path, variable="paviaC")["data"].shape == (9, 7, 3)
    with pytest.raises(FormatError, match=r"no variable 'paviau'.*did you mean 'paviaU'"):
        open_scene(path, variable="paviau")


def test_two_cubes_of_one_file_never_share_a_name_in_a_graph(tmp_path, write):
    path = write(tmp_path / "a.mat", A=CUBE, B=CUBE + 1)
    difference = open_scene(path, variable="B")["data"].data - open_scene(path, variable="A")["data"].data
    assert (difference.compute() == 1).all()


def test_wavelengths_beside_the_cube_are_found_and_brought_to_nm(tmp_path, write):
    centres = np.linspace(450, 2400, 5)
    ds = open_scene(write(tmp_path / "a.mat", X=CUBE, wavelength_nm=centres, fwhm=np.full(5, 10.0)))
    assert np.array_equal(ds["wavelength"], centres)
    assert np.array_equal(ds["fwhm"], np.full(5, 10.0))
    with pytest.warns(BandstreamWarning, match="taken as um"):
        ds = open_scene(write(tmp_path / "b.mat", X=CUBE, wl=centres / 1000))
    assert np.allclose(ds["wavelength"], centres)


def test_wavelengths_that_fit_another_axis_contradict_the_default(tmp_path, write):
    path = write(tmp_path / "a.mat", X=CUBE.transpose(2, 0, 1), wavelength_nm=np.linspace(450, 2400, 5))
    with pytest.raises(FormatError, match=r"5 entries, as axis 1 of 5 x 9 x 7.*axes='byx'"):
        open_scene(path)
    assert np.array_equal(open_scene(path, axes="byx")["data"].values, CUBE)
    with pytest.warns(BandstreamWarning, match="5 entries for 7 bands"):
        assert open_scene(path, axes="yxb")["data"].shape == (5, 9, 7)


def test_a_first_axis_smaller_than_the_others_is_pointed_out(tmp_path, write):
    path = write(tmp_path / "a.mat", X=CUBE.transpose(2, 0, 1))
    with pytest.warns(BandstreamWarning, match=r"taken as \(rows, columns, bands\).*axes='byx'"):
        open_scene(path)


def test_what_is_no_array_of_real_numbers_is_refused_by_name(tmp_path):
    path = v5(
        tmp_path / "a.mat",
        z=CUBE.astype(complex), s={"a": 1}, c=np.array([[1, "x"]], object), t="text", m=CUBE > 9,
        p=scipy.sparse.csc_array(np.eye(3)),
    )  # fmt: skip
    with pytest.raises(FormatError, match="holds no cube") as caught:
        open_scene(path)
    for word in ("complex double", "struct", "cell", "char", "sparse", "logical"):
        assert word in str(caught.value)
    with pytest.raises(FormatError, match="'z' is complex double; a scene holds real numbers"):
        open_scene(path, variable="z")
    with h5py.File(tmp_path / "b.mat", "w", userblock_size=512) as out:
        out["z"] = np.zeros((3, 3, 3), np.dtype([("real", "f8"), ("imag", "f8")]))
        out.create_dataset("r", (2, 2, 2), h5py.ref_dtype)
        out.create_group("s")
    with pytest.raises(FormatError, match="complex") as caught:
        open_scene(tmp_path / "b.mat")
    assert "struct" in str(caught.value)


def test_big_endian_files_are_read_in_native_order(tmp_path):
    """SciPy writes in the machine's order, so the bytes are laid out by hand."""
    cube = CUBE.astype(">u2")
    name = b"X"
    part = struct.pack(">IIII", 6, 8, 11, 0) + struct.pack(">IIiiii", 5, 12, 9, 7, 5, 0)
    part += struct.pack(">HH4s", 1, 1, name) + struct.pack(">II", 4, cube.nbytes) + cube.tobytes(order="F")
    part += bytes(-len(part) % 8)
    head = b"MATLAB 5.0 MAT-file by hand".ljust(116) + bytes(8) + b"\x01\x00MI"
    path = tmp_path / "a.mat"
    path.write_bytes(head + struct.pack(">II", 14, len(part)) + part)
    assert np.array_equal(scipy.io.loadmat(path)["X"], CUBE)
    ds = open_scene(path)
    assert ds["data"].dtype == np.dtype("u2")
    assert ds["data"].dtype.isnative
    assert np.array_equal(ds["data"].values, CUBE)


def test_numbers_are_of_the_type_in_which_they_are_stored(tmp_path):
    """MATLAB stores a double of small whole numbers as uint8; SciPy gives that type too."""
    part = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIiiii", 5, 12, 2, 3, 2, 0)
    part += struct.pack("<HH4s", 1, 1, b"X") + struct.pack("<II", 2, 12) + bytes(range(12)) + bytes(4)
    path = tmp_path / "a.mat"
    head = b"MATLAB 5.0 MAT-file by hand".ljust(116) + bytes(8) + b"\x00\x01IM"
    path.write_bytes(head + struct.pack("<II", 14, len(part)) + part)
    ds = open_scene(path)
    theirs = scipy.io.loadmat(path)["X"]
    assert ds["data"].dtype == theirs.dtype == np.uint8
    assert np.array_equal(ds["data"].values, theirs)


def test_an_unpacked_file_is_read_in_windows_along_its_own_order(tmp_path, monkeypatch):
    """Column-major numbers are cut by columns, so that a chunk is one run per band."""
    monkeypatch.setattr("bandstream.pipeline.readers.cube.CHUNK_BYTES", 9 * 2 * 5 * 2)
    ds = open_scene(v5(tmp_path / "a.mat", compressed=False, X=CUBE))
    assert ds["data"].data.chunks == ((9,), (2, 2, 2, 1), (5,))
    assert "block_bytes" not in ds.attrs
    assert np.array_equal(ds["data"].values, CUBE)


def test_a_packed_variable_is_unpacked_once_and_counts_as_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("bandstream.pipeline.readers.cube.CHUNK_BYTES", 2 * 7 * 5 * 2)
    calls = []
    whole = unpacking._inflate
    monkeypatch.setattr(unpacking, "_inflate", lambda *a: calls.append(1) or whole(*a))
    ds = open_scene(v5(tmp_path / "a.mat", X=CUBE))
    assert ds["data"].data.numblocks[0] == 5
    assert CUBE.nbytes <= ds.attrs["block_bytes"] <= CUBE.nbytes + 256
    with dask.config.set(scheduler="threads"):
        block = ds["data"].data.compute()
    assert np.array_equal(block, CUBE)
    assert len(calls) == 1
    part = ds["data"].data[:2].compute()
    part[:] = 0  # what was given away is the caller's
    assert np.array_equal(ds["data"][:2].values, CUBE[:2])


def test_scenes_can_be_sent_to_other_processes(tmp_path, write):
    ds = open_scene(write(tmp_path / "a.mat", X=CUBE))
    again = pickle.loads(pickle.dumps(ds["data"].data))  # noqa: S301 - our own
    assert again.name == ds["data"].data.name
    assert np.array_equal(again.compute(), CUBE)


def test_overrides_win_and_the_largest_value_beside_a_cube_is_told_not_applied(tmp_path, write):
    path = write(tmp_path / "a.mat", X=CUBE, maxValue=np.uint16(5000))
    with pytest.warns(BandstreamWarning, match="maxValue = 5000.*not divided"):
        ds = open_scene(path)
    assert "scale" not in ds.attrs
    assert ds.attrs["quantity"] == "other"
    ds = open_scene(path, scale=1 / 5000, quantity="surface_reflectance", units="1", nodata=0)
    assert ds.attrs["scale"] == 1 / 5000
    assert ds.attrs["nodata"] == 0
    assert ds.attrs["quantity"] == "surface_reflectance"


def test_a_scene_is_cut_short_or_claims_too_much_without_taking_memory(tmp_path):
    path = v5(tmp_path / "a.mat", compressed=False, X=CUBE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(TruncatedFileError, match="cut short"):
        open_scene(path)
    # 10^12 numbers, claimed within a file of some hundred bytes, plain and packed
    part = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIiiii", 5, 12, 10000, 10000, 10000, 0)
    part += struct.pack("<HH4s", 1, 1, b"X")
    head = b"MATLAB 5.0 MAT-file by hand".ljust(116) + bytes(8) + b"\x00\x01IM"
    for size in (8 * 10**12 % 2**32, 2**31):
        bad = part + struct.pack("<II", 9, size) + bytes(64)
        for element in (
            struct.pack("<II", 14, len(bad)) + bad,
            struct.pack("<II", 15, len(z := zlib.compress(struct.pack("<II", 14, 2**31) + bad))) + z,
        ):
            path.write_bytes(head + element)
            with pytest.raises(FormatError):
                open_scene(path)
    # a claim that agrees with itself, but that no stream of this size can hold
    dims = struct.pack("<IIiiii", 5, 12, 1000, 1000, 250, 0)
    bad = (
        struct.pack("<IIII", 6, 8, 6, 0)
        + dims
        + struct.pack("<HH4s", 1, 1, b"X")
        + struct.pack("<II", 9, 2 * 10**9)
    )
    z = zlib.compress(struct.pack("<II", 14, len(bad) + 2 * 10**9) + bad)
    path.write_bytes(head + struct.pack("<II", 15, len(z)) + z)
    with pytest.raises(FormatError, match=r"more than its .* packed bytes can hold"):
        open_scene(path)


def test_a_packed_variable_whose_checksum_fails_is_refused(tmp_path):
    path = v5(tmp_path / "a.mat", X=RNG.integers(0, 99, (60, 50, 9)))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # the checksum at the end of the stream
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="packed variable"):
        open_scene(path)["data"].values  # noqa: B018 - reads


def test_links_out_of_a_file_are_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["X"] = CUBE.T
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as out:
        out["X"] = h5py.ExternalLink("other.h5", "/X")
    with pytest.raises(FormatError, match="link"):
        open_scene(path)


def test_version_4_is_refused_by_name(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.eye(3)}, format="4")
    with pytest.raises(FormatError, match="version 4 is not supported"):
        open_scene(path)


@pytest.mark.parametrize("kind", list(WRITERS))
def test_damaged_files_end_in_an_error_of_ours(tmp_path, kind):
    path = WRITERS[kind](tmp_path / "a.mat", X=CUBE, nRow=3, wavelength_nm=np.linspace(450, 900, 5))
    whole, rng = path.read_bytes(), np.random.default_rng(11)
    opened = 0
    for trial in range(60):
        raw = bytearray(whole)
        if trial % 3 == 0:
            raw = raw[: rng.integers(0, len(raw))]
        else:
            for at in rng.integers(0, min(len(raw), 700 if trial % 2 else len(raw)), 1 + trial % 4):
                raw[at] = rng.integers(0, 256)
        path.write_bytes(raw)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("warnings.warn", lambda *a, **k: None)
                open_scene(path)["data"].values  # noqa: B018 - reads
                opened += 1
        except BandstreamError:
            continue
    assert opened < 60


@pytest.mark.real
def test_jasper_ridge(data_root):
    path = data_root / "jasper_ridge_mat" / "jasperRidge2_R198.mat"
    with pytest.warns(BandstreamWarning) as told:
        ds = open_scene(path)
    theirs = scipy.io.loadmat(path)
    assert ds["data"].shape == (100, 100, 198)
    assert ds["data"].dtype == np.uint16
    # pixel = row + column * rows, as MATLAB's reshape(Y', lines, cols, bands)
    by_hand = np.empty((100, 100, 198), np.uint16)
    for col in range(100):
        by_hand[:, col] = theirs["Y"][:, col * 100 : (col + 1) * 100].T
    assert np.array_equal(ds["data"].values, by_hand)
    assert list(ds["band_name"].values) == [f"Band {n}" for n in theirs["GT"].reshape(-1)]
    assert {"GT", "maxValue"} <= {word for w in told for word in str(w.message).split()}
    # vegetation, water, soil and road: near-infrared above red in a good part of the scene, and water nearly black
    red, nir = (
        ds["data"].values[:, :, ds["band_name"].values.tolist().index(f"Band {n}")].astype(float)
        for n in (30, 50)
    )
    ndvi = (nir - red) / (nir + red)
    assert (ndvi > 0.5).mean() > 0.2
    assert (ndvi < 0).mean() > 0.05


@pytest.mark.real
@pytest.mark.parametrize("name", ["Indian_pines", "PaviaU", "Salinas"])
def test_a_file_of_labels_is_called_a_plane_and_can_be_read_as_one(data_root, name):
    path = data_root / "ground_truth_only" / f"{name}_gt.mat"
    with pytest.raises(FormatError, match=r"a plane, not a cube; if it holds labels"):
        open_scene(path)
    plane = load_plane(str(path))
    theirs = next(v for k, v in scipy.io.loadmat(path).items() if k.endswith("_gt"))
    assert plane.dtype == theirs.dtype
    assert np.array_equal(plane, theirs)


def test_planes_of_all_versions(tmp_path, write):
    labels = (CUBE[:, :, 0] % 4).astype("u1")
    path = str(write(tmp_path / "a.mat", gt=labels, X=CUBE))
    assert np.array_equal(load_plane(path), labels)
    assert np.array_equal(load_plane(path, "gt"), labels)
    with pytest.raises(FormatError, match="a plane has numbers and two axes"):
        load_plane(path, "X")
    path = str(write(tmp_path / "b.mat", train=labels, test=labels))
    with pytest.raises(FormatError, match=r"several arrays with two axes.*variable="):
        load_plane(path)


VARIANTS = [
    ("mat_v5", {}), ("mat_v5", {"compressed": False, "dtype": "f8"}), ("mat_v5", {"two_cubes": True}),
    ("mat_flat", {}), ("mat_flat", {"sizes": ("lines", "cols")}), ("mat_flat", {"with_sizes": False}),
    ("mat_v73", {}), ("mat_v73", {"two_cubes": True}), ("mat_v73", {"external_link": True}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::bandstream.pipeline.errors.BandstreamWarning")
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_files_that_somebody_else_wrote(products, tmp_path, name, variant):
    truth = products.make(name, tmp_path, **variant)
    if truth.refusal:
        with pytest.raises(FormatError, match=truth.refusal):
            open_scene(truth.paths[0])
    if "external_link" in variant:
        return
    given = {"shape_yx": truth.extra["shape_yx"]} if "shape_yx" in truth.extra else {}
    ds = open_scene(truth.paths[0], variable=truth.extra["variable"], **given)
    assert np.array_equal(ds["data"].values, truth.raw_yxb)
    assert ds["valid"].values.all()
