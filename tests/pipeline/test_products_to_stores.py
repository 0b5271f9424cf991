"""Products on their whole way into a store: what a product says about its bands and pixels holds there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandstream.pipeline import PatchStore, build, transform
from bandstream.pipeline import open_scene as open_scene_itself
from bandstream.pipeline.errors import BandstreamWarning


def open_scene(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():  # experimental readers say so
        warnings.simplefilter("ignore", BandstreamWarning)
        return open_scene_itself(path, **options)


def _build(folder: Path, scene: Path, *stages: Any, **keys: Any) -> PatchStore:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandstreamWarning)
        return build(
            {
                "version": 1,
                "name": "product",
                "scenes": [{"path": str(scene), **keys}],
                "stages": list(stages),
                "tiles": {"size": 16},
                "store": {"root": str(folder / "stores")},
            }
        )


def _tile(store: PatchStore, shape_yx: tuple[int, int], name: str = "data") -> np.ndarray:
    return np.asarray(store.array(name)[0])[..., : shape_yx[0], : shape_yx[1]]


def test_emit_reflectance_loses_exactly_the_bands_that_hold_the_constant(
    products: Any, tmp_path: Path
) -> None:
    truth = products.make("emit_rfl", tmp_path)
    store = _build(tmp_path, truth.paths[0], {"calibrate": {}}, {"drop_bands": {"listed": True}})
    constant = np.nanstd(truth.physical_yxb, axis=(0, 1)) == 0
    assert constant.sum() == 41
    np.testing.assert_allclose(store.wavelength_nm, truth.wavelength_nm[~constant], rtol=1e-6)
    data = _tile(store, truth.physical_yxb.shape[:2])
    valid = _tile(store, truth.physical_yxb.shape[:2], "valid")
    assert not np.isclose(data[:, valid], -0.01, atol=1e-7).all(axis=1).any()
    np.testing.assert_allclose(
        data[:, valid], truth.physical_yxb[valid][:, ~constant].T, rtol=1e-5, atol=1e-7
    )


def test_prisma_radiance_keeps_single_zeros_and_masks_pixels_of_zeros(products: Any, tmp_path: Path) -> None:
    truth = products.make("prisma_l1", tmp_path)
    store = _build(tmp_path, truth.paths[0], {"calibrate": {"to": "radiance"}}, {"mask": {"saturated": None}})
    shape = truth.raw_yxb.shape[:2]
    raw = truth.raw_yxb[:, :, truth.good_band]
    nothing = (raw == 0).all(axis=2)
    single = (raw == 0).any(axis=2) & ~nothing
    assert nothing.any()
    assert single.any()
    np.testing.assert_array_equal(_tile(store, shape, "valid"), ~nothing)
    scene = open_scene(truth.paths[0])
    np.testing.assert_array_equal(transform(scene, store)["valid"].values, ~nothing)


@pytest.mark.parametrize("name", ["prisma_l1", "emit_rad", "desis_l1c", "enmap_l1c"])
def test_radiance_in_a_store_is_in_one_unit_whatever_the_products(
    products: Any, tmp_path: Path, name: str
) -> None:
    """Per um: times 1, 10, 10 and 1000, which the truth works out by itself."""
    truth = products.make(name, tmp_path)
    store = _build(tmp_path, truth.paths[0], {"calibrate": {"to": "radiance"}})
    shape = truth.physical_yxb.shape[:2]
    data, valid = _tile(store, shape), _tile(store, shape, "valid")
    bands = truth.order(np.asarray(store.wavelength_nm), tolerance_nm=0.01)
    expected = truth.physical_yxb[valid][:, bands].T
    np.testing.assert_allclose(data[:, valid], expected, rtol=2e-5, atol=1e-5)
    assert open_scene(truth.paths[0]).attrs["units"] == "W m-2 sr-1 um-1"


@pytest.mark.real
def test_the_real_emit_clip_comes_with_244_bands_in_order(data_root: Path, tmp_path: Path) -> None:
    path = data_root / "emit_reflectance_10x10" / "emit20250324t221005_jpl_unmix_ex.hdr"
    store = _build(tmp_path, path, {"drop_bands": {"listed": True}})
    assert store.bands == 244
    scene = open_scene(path)
    kept = scene["good_band"].values
    np.testing.assert_allclose(store.wavelength_nm, scene["wavelength"].values[kept])
    valid = _tile(store, (10, 10), "valid")
    expected = scene["data"].values[:, :, kept][valid].T
    np.testing.assert_allclose(_tile(store, (10, 10))[:, valid], expected, rtol=1e-6)
