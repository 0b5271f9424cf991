"""Every stage in a build, against NumPy, scikit-learn, SciPy and SPy on the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import scipy.linalg
import zarr
from scipy.signal import savgol_filter
from sklearn.decomposition import PCA

from bandstream.pipeline import PatchStore, build, open_scene, reading, transform
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.errors import BandstreamWarning, ConfigError
from bandstream.pipeline.storeinfo import describe, lines

from .conftest import SCALE, MadeScene, make_envi
from .test_builder import _scene_of, _with

Flow = dict[str, Any]
REFLECTANCE = {"calibrate": {"to": "surface_reflectance"}}


def _stages(flow: Flow, *stages: Any, **others: Any) -> Flow:
    return _with(flow, stages=[REFLECTANCE, "drop_bands", *stages], **others)


def _pixels(store: PatchStore, made: MadeScene) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return reflectance and outputs of the valid pixels (n, bands), and which of them are training pixels."""
    valid = made.valid
    reflectance = made.raw_yxb[valid][:, ~made.bad] * SCALE
    return reflectance, _scene_of(store)[:, valid].T, _scene_of(store, "split")[valid] == 1


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _zscore(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    return (x - x[train].mean(0)) / x[train].std(0)


def _percentile(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    low, high = np.percentile(x[train], [5, 95], axis=0)
    return (x - low) / (high - low)


def _pca(x: np.ndarray, train: np.ndarray, count: int) -> np.ndarray:
    return PCA(count, svd_solver="full").fit(x[train]).transform(x)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"normalize": {"method": "unit_norm"}}], lambda x, _: _unit(x)),
        (
            [{"normalize": {"method": "percentile", "low_percent": 5, "high_percent": 95}}],
            _percentile,
        ),
        (
            [{"normalize": {"method": "unit_norm"}}, {"normalize": {"method": "zscore"}}],
            lambda x, train: _zscore(_unit(x), train),
        ),
        (
            [{"normalize": {"method": "zscore"}}, {"normalize": {"method": "unit_norm"}}],
            lambda x, train: _unit(_zscore(x, train)),
        ),
        (
            [{"normalize": {"method": "unit_norm"}}, {"reduce": {"components": 3}}],
            lambda x, train: _pca(_unit(x), train, 3),
        ),
        (
            [{"normalize": "zscore"}, {"reduce": {"explained": 0.9, "whiten": True}}],
            lambda x, train: (
                PCA(0.9, svd_solver="full", whiten=True)
                .fit(_zscore(x, train)[train])
                .transform(_zscore(x, train))
            ),
        ),
    ],
    ids=[
        "unit norm",
        "percentile",
        "unit norm, zscore",
        "zscore, unit norm",
        "unit norm, pca",
        "whitened pca",
    ],
)
def test_stages_equal_the_same_computed_at_once(
    flow: Flow, made: MadeScene, stages: list[Any], expected: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    stages = [{"normalize": {"method": "zscore"}} if s == {"normalize": "zscore"} else s for s in stages]
    store = build(_stages(flow, *stages))
    reflectance, found, train = _pixels(store, made)
    wanted = expected(reflectance, train)
    signs = np.sign((found * wanted).sum(0)) if "reduce" in stages[-1] else 1
    np.testing.assert_allclose(found * signs, wanted, atol=1e-3 * wanted.std(), rtol=1e-3)


def test_smoothing_equals_scipy_and_joins_the_projection_behind_it(flow: Flow, made: MadeScene) -> None:
    smooth = {"smooth": {"window": 5, "polynomial": 2}}
    even = _with(flow, name="smooth")
    # without the dropped band the wavelengths are even on either side of a gap that is no break
    plain = build(_stages(even, smooth))
    reduced = build(_stages(even, smooth, {"reduce": {"components": 3}}, name="reduced"))
    reflectance, found, train = _pixels(plain, made)
    both = plain.chain.stages[0].affine().gain
    np.testing.assert_allclose(found, reflectance @ both, rtol=1e-4, atol=1e-5)
    scores = _pixels(reduced, made)[1]
    expected = _pca(reflectance @ both, train, 3)
    np.testing.assert_allclose(scores * np.sign((scores * expected).sum(0)), expected, atol=2e-4)


def test_a_derivative_of_even_bands_equals_scipy(flow: Flow, made: MadeScene) -> None:
    keep_all = {"drop_bands": {"listed": False, "all_nodata": False, "windows_nm": [[1000, 2500]]}}
    flow = _with(flow, stages=[REFLECTANCE, keep_all, {"derivative": {"window": 3, "polynomial": 2}}])
    store = build(flow)
    first = store.chain.kept
    valid = _scene_of(store, "valid")
    reflectance = made.raw_yxb[valid][:, first] * SCALE
    step = float(np.diff(store.band_values("wavelength"))[0])
    expected = savgol_filter(reflectance, 3, 2, deriv=1, delta=step, axis=1, mode="interp")
    np.testing.assert_allclose(_scene_of(store)[:, valid].T, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("noise", ["x", "y", "both", "diagonal"])
def test_mnf_solves_the_generalised_problem_of_the_training_pixels(
    flow: Flow, made: MadeScene, noise: str
) -> None:
    store = build(_stages(flow, {"reduce": {"method": "mnf", "noise": noise, "components": 4}}))
    split = _scene_of(store, "split")
    train = made.valid & (split == 1)
    cube = made.raw_yxb[:, :, ~made.bad] * SCALE
    scatter, count = np.zeros((11, 11)), 0
    for down, right in {"x": [(0, 1)], "y": [(1, 0)], "both": [(0, 1), (1, 0)], "diagonal": [(1, 1)]}[noise]:
        first, second = cube[: 40 - down, : 52 - right], cube[down:, right:]
        pairs = train[: 40 - down, : 52 - right] & train[down:, right:]
        apart = (first - second)[pairs]
        apart = apart - apart.mean(0)
        scatter, count = scatter + apart.T @ apart, count + len(apart)
    signal = np.cov(cube[train].T, bias=True)
    expected = scipy.linalg.eigh(signal, scatter / count / 2, eigvals_only=True)[::-1]
    fitted = store.chain.stages[0]
    np.testing.assert_allclose(fitted.eigenvalues, expected[:4], rtol=0, atol=1e-8 * expected[0])
    scores = _scene_of(store)[:, train]
    np.testing.assert_allclose(np.cov(scores, bias=True), np.diag(expected[:4]), atol=2e-3 * expected[0])


def test_selected_bands_are_the_scenes_own_and_tell_their_wavelengths(flow: Flow, made: MadeScene) -> None:
    select = {"reduce": {"method": "select", "rank": "osp", "components": 4}}
    store = build(_stages(flow, {"normalize": {"method": "zscore"}}, select))
    reflectance, found, train = _pixels(store, made)
    own = store.chain.output_bands
    assert own is not None
    chosen = np.searchsorted(np.flatnonzero(~made.bad), own)
    np.testing.assert_allclose(found, _zscore(reflectance, train)[:, chosen], atol=1e-3)
    through = transform(open_scene(made.path), store)
    np.testing.assert_array_equal(through["band"].values, own + 1)
    np.testing.assert_allclose(through["wavelength"].values, np.linspace(450, 2400, 12)[own], atol=1e-3)
    told = describe(store)["selected"]
    assert [item["band"] for item in told] == (own + 1).tolist()
    assert all(item["reason"].startswith("osp") for item in told)
    assert any("osp 1" in line for line in lines(describe(store)))


def test_classes_weigh_the_same_when_balanced(flow: Flow, made: MadeScene) -> None:
    store = build(_stages(flow, {"normalize": {"method": "zscore"}}, statistics={"balance": "classes"}))
    reflectance, found, train = _pixels(store, made)
    labels = made.labels[made.valid]
    parts = [reflectance[train & (labels == number)] for number in (1, 2, 3, 4)]
    mean = np.mean([part.mean(0) for part in parts], axis=0)
    spread = np.sqrt(np.mean([part.var(0) + (part.mean(0) - mean) ** 2 for part in parts], axis=0))
    np.testing.assert_allclose(found, (reflectance - mean) / spread, atol=1e-3)
    with pytest.raises(ConfigError, match="stripes"):
        build(_stages(flow, statistics={"balance": "stripes"}))


def test_each_scene_is_scaled_by_its_own_pixels(flow: Flow, tmp_path: Path) -> None:
    first, second = (
        make_envi(tmp_path, seed=1, stem="a"),
        make_envi(tmp_path, (30, 44), seed=2, stem="b", east=900000),
    )
    scenes = [{"path": str(m.path), "labels": str(m.labels_path)} for m in (first, second)]
    flow = _stages(flow, {"normalize": {"per": "scene"}}, scenes=scenes)
    store = build(flow)
    for number, made in enumerate((first, second)):
        values = made.raw_yxb[made.valid][:, ~made.bad].astype(float)
        expected = (values - values.mean(0)) / values.std(0)
        through = transform(open_scene(made.path), store)
        np.testing.assert_allclose(through["data"].values[made.valid], expected, atol=1e-3)
        tiles = np.flatnonzero(store.index.scene == number)
        data, valid = store.read_tiles("data", 0, len(store)), store.read_tiles("valid", 0, len(store))
        held = data.transpose(0, 2, 3, 1)[tiles][valid[tiles]]
        assert np.abs(held.mean(0)).max() < 0.5
    new = make_envi(tmp_path, (21, 33), seed=9, stem="new")
    values = new.raw_yxb[new.valid][:, ~new.bad].astype(float)
    through = transform(open_scene(new.path), store)
    np.testing.assert_allclose(
        through["data"].values[new.valid], (values - values.mean(0)) / values.std(0), atol=1e-3
    )


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (["drop_bands", {"reduce": {}}, {"smooth": {}}], "out of order"),
        ([{"normalize": {}}, {"normalize": {"per": "scene"}}], "before all other"),
        (
            [{"normalize": {}}, {"normalize": {"method": "unit_norm"}}, {"reduce": {}}],
            "another reading",
        ),
        ([{"reduce": {}}, {"normalize": {"method": "minmax"}}], "range is not known"),
        ([{"reduce": {"method": "select"}}], "features"),
        ([{"reduce": {"method": "mnf", "rank": "osp"}}], "rank"),
    ],
)
def test_orders_that_mean_nothing_are_refused(flow: Flow, stages: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(_with(flow, stages=stages))


def test_other_components_and_tiles_read_no_scene_for_statistics_again(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted where blocks are read."""
    counted = [0]
    real = reading.read_block

    def counting(*arguments: Any) -> np.ndarray:
        block = real(*arguments)
        counted[0] += block.nbytes
        return block

    from bandstream.pipeline import gathering, tiles

    monkeypatch.setattr(gathering, "read_block", counting)
    flow = _stages(flow, {"normalize": {}}, {"reduce": {"components": 5}})
    build(flow)
    assert counted[0] == 40 * 52 * 12 * 2
    counted[0] = 0
    other = build(
        _stages(flow, {"normalize": {}}, {"reduce": {"components": 3}}, tiles={"size": 20, "halo": 2})
    )
    assert counted[0] == 0
    plain = build(_stages(flow, {"normalize": {}}))
    assert counted[0] == 0
    build(_stages(flow, {"normalize": {}}, {"reduce": {"method": "mnf", "components": 3}}))
    assert counted[0] == 40 * 52 * 12 * 2
    assert len({store.fingerprint for store in (other, plain)}) == 2
    monkeypatch.setattr(tiles, "read_block", counting)
    counted[0] = 0
    again = run_build(flow)
    assert again.reused
    assert counted[0] == 0
    assert again.seconds < 1


def test_a_workflow_transforms_a_scene_as_its_build_does(flow: Flow, made: MadeScene) -> None:
    flow = _stages(flow, {"normalize": {}}, {"reduce": {"components": 5}})
    store = build(flow)
    scene = open_scene(made.path)
    by_store, by_flow = transform(scene, store), transform(scene, flow)
    np.testing.assert_array_equal(by_store["data"].values, by_flow["data"].values)
    np.testing.assert_allclose(
        by_flow["data"].values[made.valid].T, _scene_of(store)[:, made.valid], atol=1e-5
    )
    assert by_flow["data"].chunks is not None
    np.testing.assert_array_equal(by_flow["y"], scene["y"])


def test_a_workflow_without_scenes_is_fitted_on_the_scene_itself(made: MadeScene) -> None:
    stages = [
        "drop_bands",
        {"normalize": {"method": "zscore"}},
        {"reduce": {"method": "pca", "components": 3}},
    ]
    found = transform(open_scene(made.path), {"stages": stages})["data"].values[made.valid]
    values = made.raw_yxb[made.valid][:, ~made.bad].astype(float)
    expected = _pca(_zscore(values, np.ones(len(values), bool)), np.ones(len(values), bool), 3)
    np.testing.assert_allclose(found * np.sign((found * expected).sum(0)), expected, atol=1e-3)


def test_constant_bands_do_not_reach_the_stages_in_front(flow: Flow, made: MadeScene) -> None:
    """A band that never changes would pull every spectrum's continuum; the scene is read again without it."""
    raw = made.raw_yxb.copy()
    raw[:, :, 8] = 31000
    raw.transpose(0, 2, 1).astype("<i2").tofile(made.path.with_suffix(".img"))
    store = build(_stages(flow, {"normalize": {"method": "unit_norm"}}, {"normalize": {}}))
    assert 8 not in store.chain.kept
    assert any("9" in note and "constant" in note for note in store.attrs["notes"])
    reflectance = raw[made.valid][:, store.chain.kept] * SCALE
    train = _scene_of(store, "split")[made.valid] == 1
    np.testing.assert_allclose(
        _scene_of(store)[:, made.valid].T, _zscore(_unit(reflectance), train), atol=2e-3
    )


def test_interpolated_grids_are_told_before_mnf(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    from bandstream.pipeline import fitting

    monkeypatch.setattr(fitting, "mnf_warning", lambda _: "it was interpolated")
    with pytest.warns(BandstreamWarning, match="interpolated"):
        build(_stages(flow, {"reduce": {"method": "mnf", "components": 2}}))


def test_transform_takes_a_store_by_its_path_and_says_what_else_it_takes(flow: Flow, made: MadeScene) -> None:
    store, scene = build(flow), open_scene(made.path)
    by_path = transform(scene, str(store.path))
    np.testing.assert_array_equal(by_path["data"].values, transform(scene, store)["data"].values)
    for nothing in ([{"normalize": {"method": "zscore"}}], None):
        with pytest.raises(ConfigError, match=r'in a dict: \{"stages"'):
            transform(scene, nothing)  # pyright: ignore[reportArgumentType] - as a notebook's user would


@pytest.mark.parametrize("reduce", [{"components": 3}, {"method": "select", "rank": "osp", "components": 3}])
def test_unit_norm_takes_what_a_reduction_leaves(flow: Flow, made: MadeScene, reduce: Flow) -> None:
    plain = _pixels(build(_stages(flow, {"reduce": reduce}, name="plain")), made)[1]
    store = build(_stages(flow, {"reduce": reduce}, {"normalize": {"method": "unit_norm"}}))
    assert store.chain.outputs == 3
    np.testing.assert_allclose(_pixels(store, made)[1], _unit(plain), atol=1e-5)


def test_a_second_percentile_behind_components_is_measured_on_them(flow: Flow, made: MadeScene) -> None:
    percentile = {"normalize": {"method": "percentile"}}
    flow = _with(flow, stages=["drop_bands", percentile, {"reduce": {"components": 3}}])
    scores = _pixels(build(_with(flow, name="scores")), made)[1]
    _, found, train = _pixels(build(_with(flow, stages=[*flow["stages"], percentile])), made)
    low, high = np.percentile(scores[train], [2, 98], axis=0)
    np.testing.assert_allclose(found, (scores - low) / (high - low), atol=1e-4)


def test_continuum_removal_takes_nothing_that_is_no_reflectance_any_more(flow: Flow) -> None:
    removal = {"normalize": {"method": "continuum_removal"}}
    for before, named in (
        ({"normalize": {}}, "normalize zscore"),
        ({"derivative": {}}, "derivative"),
        ({"reduce": {}}, "reduce pca"),
        ({"normalize": {"per": "scene"}}, "normalize zscore"),
    ):
        with pytest.raises(
            ConfigError, match=f"behind {named}, and what comes out of that is no reflectance"
        ):
            build(_stages(flow, before, removal))
    selected = {"reduce": {"method": "select", "rank": "osp", "components": 5}}
    assert build(_stages(flow, {"smooth": {"window": 3}}, selected, removal)).chain.outputs == 5


def test_a_scene_without_labels_stands_beside_one_with_them(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    bare = make_envi(tmp_path, (30, 44), seed=2, stem="bare", east=900000)
    scenes = [{"path": str(made.path), "labels": str(made.labels_path)}, {"path": str(bare.path)}]
    flow = _stages(flow, {"normalize": {}}, scenes=scenes, split={"by": "none"})
    values = [m.raw_yxb[m.valid][:, ~m.bad] * SCALE for m in (made, bare)]
    centre = build(flow).chain.stages[0].affine().centre
    np.testing.assert_allclose(centre, np.concatenate(values).mean(0), rtol=1e-9)
    balanced = build(_with(flow, statistics={"balance": "classes"})).chain.stages[0].affine().centre
    labels = made.labels[made.valid]
    expected = np.mean([values[0][labels == number].mean(0) for number in (1, 2, 3, 4)], axis=0)
    np.testing.assert_allclose(balanced, expected, rtol=1e-9)
    select = {"reduce": {"method": "select", "rank": "mutual_information", "components": 3}}
    alone = build(_stages(flow, select, scenes=scenes[:1], name="alone")).chain.output_bands
    np.testing.assert_array_equal(build(_stages(flow, select)).chain.output_bands, alone)


def test_classes_that_no_pixel_has_may_be_named(flow: Flow) -> None:
    build(_stages(flow, {"normalize": {}}))
    store = build(_stages(flow, {"normalize": {}}, class_names=list("abcdef")))
    assert len(store.attrs["classes"]["names"]) == len(store.attrs["classes"]["colors"]) == 6
    count = np.asarray(zarr.open_array(store.path, path="classes/count", mode="r")[:])
    assert (count[:4] > 0).all()
    assert count[4:].tolist() == [0, 0]


def test_quantiles_are_not_balanced_and_say_so(flow: Flow) -> None:
    with pytest.raises(ConfigError, match="no quantiles"):
        build(_stages(flow, {"normalize": {"method": "percentile"}}, statistics={"balance": "classes"}))


@pytest.mark.parametrize(("dtype", "code", "offset"), [("<i4", 3, 2_000_000_000), ("<f8", 5, 1e8)])
def test_quantiles_of_large_numbers_keep_their_digits(
    flow: Flow, tmp_path: Path, dtype: str, code: int, offset: float
) -> None:
    cube = (np.random.default_rng(1).normal(0, 50, (4, 30, 37)) + offset).astype(dtype)
    cube.tofile(tmp_path / "large.img")
    (tmp_path / "large.hdr").write_text(
        f"ENVI\nsamples = 37\nlines = 30\nbands = 4\nheader offset = 0\nfile type = ENVI Standard\n"
        f"data type = {code}\ninterleave = bsq\nbyte order = 0\n"
    )
    stages = [{"normalize": {"method": "percentile"}}]
    scenes = [{"path": str(tmp_path / "large.hdr")}]
    store = build(_with(flow, scenes=scenes, stages=stages, split={"by": "none"}))
    expected = np.quantile(cube.reshape(4, -1).astype(float), [0.02, 0.98], axis=1)
    centre, spread = store.chain.stages[0].state()[1].values()
    np.testing.assert_allclose(centre - offset, expected[0] - offset, rtol=0, atol=1e-4)
    np.testing.assert_allclose(spread, np.diff(expected, axis=0)[0], rtol=1e-5)


def test_a_scene_without_variation_scaled_by_itself_lies_at_the_mean(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    flat = make_envi(tmp_path, (20, 20), stem="flat", east=900000)
    raw = np.broadcast_to(np.arange(12) * 10 + 100, (20, 20, 12))
    raw.transpose(0, 2, 1).astype("<i2").tofile(flat.path.with_suffix(".img"))
    stages = ["drop_bands", {"normalize": {"per": "scene"}}, {"reduce": {"components": 3}}]
    scenes = [{"path": str(made.path)}, {"path": str(flat.path)}]
    store = build(_with(flow, scenes=scenes, stages=stages, split={"by": "none"}))
    through = transform(open_scene(flat.path), store)["data"].values
    expected = store.chain.stages[0].transform(np.zeros((1, 11)))
    np.testing.assert_allclose(through, np.broadcast_to(expected, through.shape), atol=1e-6)


def test_a_band_without_training_data_does_not_part_tiles_from_transform(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    """Each scene is measured on the same pixels in a build and behind it."""
    raw = made.raw_yxb.copy()
    raw[:20, :, 8] = raw[20:, :26, 8] = -9999
    raw.transpose(0, 2, 1).astype("<i2").tofile(made.path.with_suffix(".img"))
    with rasterio.open(made.labels_path) as source:
        profile = source.profile
    with rasterio.open(tmp_path / "split.tif", "w", **profile) as out:
        out.write(np.repeat([1, 2], [20, 20]).astype("uint8")[:, None].repeat(52, axis=1), 1)
    split = {"by": "given", "raster": str(tmp_path / "split.tif")}
    flow = _with(flow, stages=["drop_bands", {"normalize": {"per": "scene"}}], split=split)
    store = build(flow)
    assert 8 not in store.chain.kept
    again = PatchStore.open(store.path)
    through = transform(open_scene(made.path), again)["data"].values.transpose(2, 0, 1)
    np.testing.assert_allclose(through, _scene_of(store), atol=1e-6)
