"""Statistics are read from the cache only where a build that reads its scenes would find the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import yaml
import zarr
from pyogrio.raw import write

from bandstream.pipeline import PatchStore, build
from bandstream.pipeline.storage import delete_tree

from .conftest import MadeScene, make_envi

Flow = dict[str, Any]


def _arrays(store: PatchStore) -> dict[str, bytes]:
    return {name: values.tobytes() for name, (_, values) in store.chain.arrays().items()}


def test_what_was_kept_before_decides_no_byte(flow: Flow, tmp_path: Path) -> None:
    """Variances come out alike, whether covariances were summed with them or not."""
    large = make_envi(tmp_path, (120, 150), bands=40, stem="large")
    flow = flow | {"scenes": [{"path": str(large.path)}], "split": {"by": "none"}}
    plain = flow | {"stages": ["drop_bands", {"normalize": {}}]}
    alone = build(plain)
    first, std = _arrays(alone), alone.band_values("std")
    delete_tree(Path(flow["store"]["root"]))
    build(flow | {"stages": ["drop_bands", {"normalize": {}}, {"reduce": {"components": 3}}]})
    after = build(plain)
    assert after.fingerprint == alone.fingerprint
    assert _arrays(after) == first
    assert after.band_values("std").tobytes() == std.tobytes()


def test_another_order_of_class_names_is_other_statistics(
    flow: Flow, made: MadeScene, tmp_path: Path
) -> None:
    """Classes told by name are numbered by `class_names`, though no file has changed."""
    west, east = (shapely.box(366000 + x, 5808800, 366780 + x, 5810000) for x in (0, 780))
    path = tmp_path / "fields.gpkg"
    write(
        path,
        np.array(shapely.to_wkb([west, east]), object),
        [np.array(["oak", "larch"], object)],
        ["kind"],
        geometry_type="Polygon",
        crs="EPSG:32633",
    )
    scenes = [{"path": str(made.path), "labels": {"path": str(path), "attribute": "kind"}}]
    flow = flow | {"scenes": scenes, "stages": ["drop_bands", {"normalize": {}}], "split": {"by": "none"}}
    means = [
        zarr.open_array(build(flow | {"class_names": names}).path, path="classes/mean", mode="r")[:]
        for names in (["oak", "larch"], ["larch", "oak"])
    ]
    assert np.abs(means[0][0] - means[0][1]).max() > 1
    np.testing.assert_allclose(means[0], means[1][::-1])


def test_other_wavelengths_in_a_catalog_are_other_statistics(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They decide what a stage in front of the first fitted one does, though no file has changed."""
    cube = np.random.default_rng(0).integers(100, 4000, (9, 30, 37)).astype("<i2")
    folder = tmp_path / "bare"
    folder.mkdir()
    cube.tofile(folder / "bare.img")
    (folder / "bare.hdr").write_text(
        "ENVI\nsamples = 37\nlines = 30\nbands = 9\nheader offset = 0\nfile type = ENVI Standard\n"
        "data type = 2\ninterleave = bsq\nbyte order = 0\n"
    )
    entry = {"version": 1, "name": "bare", "title": "A", "description": "B", "license": "none"}
    entry |= {"providers": ["C"], "citation": "D", "source": "E", "folder": "bare", "dtype": "int16"}
    entry |= {"scenes": [{"path": "bare.hdr"}], "shape_yxb": [30, 37, 9]}
    monkeypatch.setenv("BANDSTREAM_DATA", str(tmp_path))
    monkeypatch.setenv("BANDSTREAM_CATALOG", str(tmp_path / "bare.yaml"))
    smooth = {"smooth": {"window": 5, "polynomial": 2}}
    flow = flow | {"scenes": {"catalog": "bare"}, "stages": [smooth, {"normalize": {}}]}
    for centres in (np.linspace(450, 850, 9), np.array([450, 455, 470, 560, 600, 620, 790, 830, 850.0])):
        (tmp_path / "bare.yaml").write_text(yaml.safe_dump(entry | {"wavelength_nm": centres.tolist()}))
        store = build(flow | {"split": {"by": "none"}})
        smoothed = cube.reshape(9, -1).T @ store.chain.stages[0].affine().gain
        np.testing.assert_allclose(store.chain.stages[1].affine().centre, smoothed.mean(0), rtol=1e-6)
