"""Simulated scenes: what is in the files, against SPy, rasterio and numpy; and what they are good for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import rasterio
import spectral.io.envi as spy_envi
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import uniform_filter
from scipy.optimize import nnls
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bandstream.pipeline import spectra
from bandstream.pipeline.errors import ConfigError
from bandstream.pipeline.pictures import class_palette
from bandstream.pipeline.readers import open_scene
from bandstream.pipeline.scene_model import NODATA, SceneModel
from bandstream.pipeline.simulation import INTERLEAVES, SimulatedScene, simulate

SMALL = {"rows": 70, "cols": 60, "bands": 24, "classes": 4, "seed": 5}


def small_model(**changes: object) -> SceneModel:
    return replace(SceneModel((70, 60, 24), 4, 5), **changes)


@pytest.fixture(scope="module", params=INTERLEAVES)
def scene(request, tmp_path_factory) -> SimulatedScene:
    return simulate(tmp_path_factory.mktemp(request.param) / "s.hdr", interleave=request.param, **SMALL)


def test_spy_reads_every_interleave_back(scene):
    """SPy sees the same numbers, wavelengths, widths and bad bands in bil, bip and bsq."""
    image = spy_envi.open(str(scene.header), str(scene.data))
    expected, _ = small_model().rows(0, 70)
    model = small_model()
    assert image.shape == (70, 60, 24)
    assert np.array_equal(np.asarray(image.open_memmap(interleave="bip")), expected)
    assert np.allclose(image.bands.centers, model.wavelength_nm, atol=1e-3)
    assert np.allclose(image.bands.bandwidths, model.fwhm_nm, atol=1e-3)
    assert [int(v) for v in image.metadata["bbl"]] == model.good_band.astype(int).tolist()
    assert float(image.metadata["reflectance scale factor"]) == 10_000


def test_rasterio_finds_data_and_labels_on_one_grid(scene):
    """The raw file and the labels share CRS, transform and size; nodata and class tags are told."""
    with rasterio.open(scene.data) as cube, rasterio.open(scene.labels) as labels:
        assert cube.crs == labels.crs == rasterio.crs.CRS.from_epsg(32632)
        assert cube.transform == labels.transform
        assert cube.shape == labels.shape == (70, 60)
        assert cube.nodata == NODATA
        assert labels.dtypes == ("uint8",)
        assert json.loads(labels.tags()["class_names"]) == list(scene.class_names)
        table = labels.colormap(1)
        for number, color in enumerate(scene.class_colors, start=1):
            assert "#{:02x}{:02x}{:02x}".format(*table[number][:3]) == color
        expected, codes = small_model().rows(0, 70)
        assert np.array_equal(np.moveaxis(cube.read(), 0, -1), expected)
        assert np.array_equal(labels.read(1), codes)


def test_the_reader_opens_it_without_warnings(scene):
    """The product's own reader takes the scene as reflectance in 0..1 with nothing to complain about."""
    opened = open_scene(scene.header)
    assert opened.attrs["warnings"] == []
    assert opened.attrs["nodata"] == NODATA
    assert opened.attrs["scale"] == pytest.approx(1e-4)
    assert np.array_equal(opened["good_band"].values, small_model().good_band)
    assert np.array_equal(opened["valid"].values, small_model().valid(range(70)))


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path):
    one, two, other = (
        simulate(tmp_path / f"{name}.hdr", **{**SMALL, "seed": seed})
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for kind in ("header", "data", "labels"):
        assert getattr(one, kind).read_bytes() == getattr(two, kind).read_bytes()
    assert one.data.read_bytes() != other.data.read_bytes()
    assert one.labels.read_bytes() != other.labels.read_bytes()


@settings(max_examples=10, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 69), max_size=6, unique=True),
    cols=st.integers(1, 70),
    classes=st.integers(1, 20),
    seed=st.integers(0, 2**64 - 1),
)
def test_rows_do_not_depend_on_how_they_are_grouped(cuts, cols, classes, seed):
    model = SceneModel((70, cols, 9), classes, seed)
    data, labels = model.rows(0, 70)
    edges = [0, *sorted(cuts), 70]
    parts = [model.rows(a, b) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate([p[0] for p in parts]), data)
    assert np.array_equal(np.concatenate([p[1] for p in parts]), labels)


def test_slab_size_does_not_change_the_file(tmp_path, monkeypatch):
    whole = simulate(tmp_path / "whole.hdr", **SMALL)
    monkeypatch.setattr("bandstream.pipeline.simulation._SLAB_BYTES", 1)
    rows = simulate(tmp_path / "rows.hdr", **SMALL)
    assert whole.data.read_bytes() == rows.data.read_bytes()
    with rasterio.open(whole.labels) as a, rasterio.open(rows.labels) as b:
        assert np.array_equal(a.read(), b.read())


def test_a_longer_scene_begins_like_a_shorter_one():
    """Without the slanted edges, rows know nothing of the number of rows."""
    short = small_model(nodata_border=0.0)
    long = replace(short, shape_yxb=(100_000, 60, 24))
    for a, b in zip(short.rows(30, 50), long.rows(30, 50), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(long.rows(99_950, 99_970)[0], long.rows(30, 50)[0])


ISOLATED = [
    ("green vegetation", 680),
    ("green vegetation", 970),
    ("green vegetation", 1200),
    ("conifer forest", 1940),
    ("clay soil", 2205),
    ("dry grass", 2100),
    ("limestone", 2335),
    ("iron oxide soil", 530),
    ("iron oxide soil", 900),
    ("kaolinite", 2165),
    ("kaolinite", 2207),
    ("gypsum", 1750),
    ("plastic sheet", 1732),
    ("plastic sheet", 2310),
    ("asphalt", 2310),
    ("snow", 1030),
    ("alunite", 2165),
]


@pytest.mark.parametrize(("name", "centre_nm"), ISOLATED)
def test_features_lie_at_their_published_centres(name, centre_nm):
    """The minimum below a straight line between a feature's shoulders is within 8 nm of the published centre."""
    item = next(m for m in spectra.MATERIALS if m.name == name)
    width = next(f.fwhm_nm for f in item.features if f.centre_nm == centre_nm)
    nm = np.arange(centre_nm - 1.2 * width, centre_nm + 1.2 * width)
    rho = spectra.reflectance(item, nm)
    removed = rho / np.interp(nm, nm[[0, -1]], rho[[0, -1]])
    assert removed.min() < 0.99
    assert abs(nm[removed.argmin()] - centre_nm) <= 8.0


def test_the_red_edge_rises_between_680_and_750_nm():
    nm = np.arange(600.0, 800.0)
    for item in (m for m in spectra.MATERIALS if m.red_edge is not None):
        rho = spectra.reflectance(item, nm)
        assert 690 < nm[np.diff(rho).argmax()] < 740
        assert rho[nm == 780] > 4 * rho[nm == 680]


def test_sixty_classes_have_different_names_and_spectra():
    model = SceneModel((8, 8, 100), 60)
    rho, names = spectra.endmembers(60, model.wavelength_nm, model.fwhm_nm)
    assert tuple(names) == model.class_names
    assert len(set(names)) == 60
    assert rho.min() > 0
    assert rho.max() < 1
    apart = np.sqrt(((rho[:, None] - rho[None]) ** 2).mean(axis=-1)) + np.eye(60)
    assert apart.min() > 0.002


def test_without_noise_pixels_are_mixtures_of_library_spectra():
    """Least squares on endmembers, endmembers with stronger features, and both sloped leaves only rounding."""
    model = small_model(noise=0.0, nodata_border=0.0)
    data, _ = model.rows(0, 70)
    good = model.good_band
    pure, _ = spectra.endmembers(4, model.wavelength_nm, model.fwhm_nm)
    strong, _ = spectra.endmembers(4, model.wavelength_nm, model.fwhm_nm, strength=1.25)
    sources = np.concatenate([pure, strong, pure * (model.wavelength_nm - 1450.0)])[:, good].T
    pixels = data[..., good].reshape(-1, good.sum()).T / 1e4
    left = pixels - sources @ np.linalg.lstsq(sources, pixels, rcond=1e-12)[0]
    assert np.abs(left).max() < 1.5e-4
    assert pixels.std() > 0.05


def test_each_material_fills_most_of_its_own_class():
    """Unmixing the mean spectrum of each class (non-negative least squares) finds a material mostly in its class."""
    model = SceneModel((192, 192, 60), 6, 1, texture=0.0)
    data, labels = model.rows(0, 192)
    pure, _ = spectra.endmembers(6, model.wavelength_nm, model.fwhm_nm)
    good = model.good_band
    means = [data[labels == k + 1][:, good].mean(axis=0) / 1e4 for k in range(6)]
    shares = np.stack([nnls(pure[:, good].T, mean)[0] for mean in means])
    shares /= shares.sum(axis=1, keepdims=True)
    assert shares.argmax(axis=0).tolist() == list(range(6))
    assert shares.diagonal().min() > 0.4


def test_water_vapour_bands_are_listed_bad_and_hold_no_signal():
    model = SceneModel((40, 40, 211), 3)
    nm = model.wavelength_nm
    inside = ((nm >= 1350) & (nm <= 1450)) | ((nm >= 1800) & (nm <= 1960))
    assert np.array_equal(~model.good_band, inside)
    data, _ = model.rows(0, 40)
    means = data[model.valid(range(40))].mean(axis=0)
    assert np.abs(means[inside]).max() < 0.1 * means[~inside & (nm > 1300) & (nm < 2200)].min()


def test_nodata_edges_slant_and_blank_whole_pixels():
    """Beyond the slanted strip every band is nodata and the label 0; inside no number is nodata."""
    model = SceneModel((120, 90, 12), 3, nodata_border=0.1)
    data, labels = model.rows(0, 120)
    missing = data == NODATA
    assert np.array_equal(missing.any(axis=-1), missing.all(axis=-1))
    gone = missing.all(axis=-1)
    assert (labels[gone] == 0).all()
    first = (~gone).argmax(axis=1)
    assert first[15] > first[60] > first[100]
    # The quadrangle cuts 2 b (w - b) / 2 + 2 b (h - b) / 2 pixels off, b = 0.1 * 90.
    assert gone.sum() == pytest.approx(9 * (90 - 9) + 9 * (120 - 9), rel=0.03)
    assert not (small_model(nodata_border=0.0).rows(0, 70)[0] == NODATA).any()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_the_labelled_share_is_met_and_every_class_told(share):
    model = SceneModel((256, 256, 2), 8, 2, labelled_share=share)
    _, labels = model.rows(0, 256)
    told = (labels > 0).sum() / model.valid(range(256)).sum()
    assert told == pytest.approx(share, abs=0.06)
    assert set(np.unique(labels[labels > 0])) == (set(range(1, 9)) if share else set())


def test_noise_has_the_stated_size_and_grows_at_the_detector_ends():
    """The difference to the noiseless scene: 0.01 at reflectance 0.3 in mid-detector, more at 400 and 2500 nm."""
    clean = SceneModel((64, 512, 60), 5, noise=0.0, nodata_border=0.0)
    signal = clean.rows(0, 64)[0] / 1e4
    noise = replace(clean, noise=0.01).rows(0, 64)[0] / 1e4 - signal
    noise -= noise.mean(axis=0)
    nm = clean.wavelength_nm

    def deviation(wavelength_nm: float, level: float) -> float:
        band = int(np.abs(nm - wavelength_nm).argmin())
        return float(noise[..., band][np.abs(signal[..., band] - level) < 0.03].std())

    assert deviation(1650, 0.3) == pytest.approx(0.01, rel=0.1)
    assert deviation(1650, 0.2) < 0.9 * deviation(1650, 0.45)
    assert deviation(2500, 0.2) > 2 * deviation(1650, 0.2)
    assert deviation(400, 0.1) > 2 * deviation(700, 0.1)


def test_stripes_are_constant_along_columns():
    """Column means of the noise in the upper and the lower half of a scene agree; those of rows do not."""
    clean = SceneModel((400, 120, 6), 2, noise=0.0, nodata_border=0.0)
    noise = replace(clean, noise=0.01).rows(0, 400)[0][..., 2] - clean.rows(0, 400)[0][..., 2]
    upper, lower = noise[:200].mean(axis=0), noise[200:].mean(axis=0)
    assert np.corrcoef(upper, lower)[0, 1] > 0.9
    left, right = noise[:, :60].mean(axis=1), noise[:, 60:].mean(axis=1)
    assert abs(np.corrcoef(left, right)[0, 1]) < 0.3


def score(features: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy of logistic regression trained on the left half and tested on the right."""
    rng = np.random.default_rng(0)
    half = labels.shape[1] // 2
    train_x, train_y = features[:, :half][labels[:, :half] > 0], labels[:, :half][labels[:, :half] > 0]
    some = rng.permutation(len(train_y))[:4000]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-3))
    model.fit(train_x[some], train_y[some])
    return model.score(features[:, half:][labels[:, half:] > 0], labels[:, half:][labels[:, half:] > 0])


def test_single_pixels_leave_doubt_that_neighbours_dispel():
    """Linear single-pixel accuracy is 80-92 %; means over 3 x 3 pixels gain at least 4 points."""
    model = SceneModel((256, 256, 24), 6)
    data, labels = model.rows(0, 256)
    cube = np.where(data == NODATA, 0, data)[..., model.good_band] / 1e4
    alone, together = score(cube, labels), score(uniform_filter(cube, (3, 3, 1)), labels)
    assert 0.80 < alone < 0.92
    assert together > alone + 0.04


MEASURE = """
import sys
from pathlib import Path
from bandstream.pipeline.simulation import simulate
for rows in (1_000, 8_000):
    simulate(sys.argv[1], rows=rows, cols=24, bands=96, classes=3)
    # Not ru_maxrss: that of the parent is inherited.
    print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Eight times the rows (a file of 37 MB) take at most 8 MB more at the peak."""
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "m.hdr")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    few, many = (int(line) / 1024 for line in done.stdout.split())
    assert (tmp_path / "m.img").stat().st_size == 8_000 * 24 * 96 * 2
    assert many - few < 8
    assert many < 300


def test_a_failure_leaves_nothing_and_spares_what_was_there(tmp_path):
    """When the progress hook raises half-way, an older scene of that name is untouched and no file is added."""
    simulate(tmp_path / "s.hdr", **SMALL)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "s.hdr", **{**SMALL, "seed": 6}, progress=stop)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert sorted(before) == ["s.hdr", "s.img", "s_labels.tif"]


def test_progress_counts_the_rows_and_files_are_replaced(tmp_path):
    rows: list[int] = []
    simulate(tmp_path / "deep" / "s.hdr", **SMALL)
    again = simulate(tmp_path / "deep" / "s.hdr", **{**SMALL, "rows": 33}, progress=rows.append)
    assert sum(rows) == 33
    assert again.data.stat().st_size == 33 * 60 * 24 * 2
    assert again.class_colors == tuple(class_palette(4))


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("rows", 0, "from 1"),
        ("cols", 2.5, "whole numbers"),
        ("bands", 1, "from 2"),
        ("classes", 256, "to 255"),
        ("seed", -1, "from 0"),
        ("interleave", "bup", "bil, bip, bsq"),
        ("noise", -0.1, "from 0"),
        ("noise", float("nan"), "from 0"),
        ("texture", "much", "numbers"),
        ("labelled_share", 1.5, "to 1"),
        ("nodata_border", 0.5, "to 0.45"),
        ("rows", 2**31 - 1, "bytes"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, argument, value, allowed):
    """The message names the argument, what was got and what is allowed; nothing is written."""
    options = {**SMALL, "cols": 2**20, argument: value} if value == 2**31 - 1 else {**SMALL, argument: value}
    with pytest.raises(ConfigError, match=allowed) as caught:
        simulate(tmp_path / "s.hdr", **options)
    assert str(value) in str(caught.value) or repr(value) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_name_must_be_that_of_a_header(tmp_path):
    with pytest.raises(ConfigError, match=r"scene\.hdr"):
        simulate(tmp_path / "scene.img", **SMALL)
    Path(tmp_path / "s.img").mkdir()
    with pytest.raises(ConfigError, match="folder"):
        simulate(tmp_path / "s.hdr", **SMALL)


@pytest.mark.parametrize(("rows", "cols", "classes"), [(1, 1, 1), (1, 7, 2), (9, 1, 3), (5, 4, 40)])
def test_the_smallest_scenes_work(tmp_path, rows, cols, classes):
    made = simulate(tmp_path / "s.hdr", rows=rows, cols=cols, bands=2, classes=classes, seed=2**64 - 1)
    with rasterio.open(made.labels) as labels:
        assert labels.shape == (rows, cols)
        assert labels.read(1).max() <= classes
