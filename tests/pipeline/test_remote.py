"""Stores and scenes in a bucket, against moto's S3 server behind a proxy that fails by a seed."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import pickle
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import rasterio
import requests
from rasterio.transform import from_origin
from typer.testing import CliRunner

from bandstream.pipeline import PatchStore, build, open_scene, s3
from bandstream.pipeline.builder import run_build
from bandstream.pipeline.cli import app
from bandstream.pipeline.config import dump_yaml
from bandstream.pipeline.errors import (
    ConfigError,
    FormatError,
    RemoteError,
    SceneNotFoundError,
    StoreCorruptError,
    StoreIncompleteError,
    StoreNotFoundError,
)
from bandstream.pipeline.readers import remote as remote_reader
from bandstream.pipeline.storage import RemotePath, delete_tree, locate, sizes_below
from bandstream.pipeline.store import TILE_ARRAYS, list_stores
from bandstream.pipeline.writers import write_scene

from .conftest import MadeScene, make_envi
from .flaky_server import FAULTS, FlakyServer

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")

KEY, SECRET = "AKIATESTKEYOFNOBODY", "a-secret-that-must-not-be-seen"
Flow = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Generator[FlakyServer]:
    """A flaky proxy before one S3 server for all tests here."""
    logging.getLogger("werkzeug").disabled = True
    behind = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    behind.start()
    proxy = FlakyServer(behind.get_host_and_port()[1])
    yield proxy
    proxy.stop()
    behind.stop()


def _environment(patch: pytest.MonkeyPatch, server: FlakyServer, name: str) -> RemotePath:
    """Make a bucket and set the environment that leads to it."""
    for variable in (*s3._SETTINGS, "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        patch.delenv(variable, raising=False)
    patch.setenv("AWS_ENDPOINT_URL", server.url)
    patch.setenv("AWS_ACCESS_KEY_ID", KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setattr(s3, "_WAITS", (0.01, 0.05, 0.1, 0.2))
    server.calm()
    assert requests.put(f"{server.url}/{name}", timeout=10).status_code == 200
    return cast("RemotePath", locate(f"s3://{name}"))


@pytest.fixture
def bucket(
    server: FlakyServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> RemotePath:
    """A bucket of the test's own, with the environment that leads to it."""
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    return _environment(monkeypatch, server, f"b{name}")


@pytest.fixture(scope="module")
def built(server: FlakyServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a store that the command line has built in a bucket."""
    folder = tmp_path_factory.mktemp("built")
    made = make_envi(folder)
    flow = {
        "version": 1,
        "name": "flow",
        "scenes": [{"path": str(made.path), "labels": str(made.labels_path)}],
        "stages": [{"mask": {}}, {"drop_bands": {}}, {"reduce": {"components": 3}}],
        "tiles": {"size": 16, "halo": 2},
        "split": {"by": "blocks", "block": 13, "seed": 1},
        "store": {"root": "s3://built/stores"},
    }
    (folder / "flow.yaml").write_text(dump_yaml(flow))
    with pytest.MonkeyPatch.context() as patch:
        _environment(patch, server, "built")
        done = CliRunner().invoke(app, ["run", str(folder / "flow.yaml"), "--json"])
    assert done.exit_code == 0, done.output
    return str(json.loads(done.stdout)["store"])


def _at(flow: Flow, root: object, name: str = "flow") -> Flow:
    return {**copy.deepcopy(flow), "name": name, "store": {**flow["store"], "root": str(root)}}


def _same_bytes(store: PatchStore, local: PatchStore) -> None:
    """Compare every object with the local file of that name."""
    found = sizes_below(store.path)
    assert found == sizes_below(local.path)
    for name in found:
        assert (store.path / name).read_bytes() == (local.path / name).read_bytes(), name


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.slow), 0.25])
def test_a_store_in_a_bucket_holds_the_bytes_of_a_local_one_whatever_the_network_does(
    flow: Flow, tmp_path: Path, bucket: RemotePath, server: FlakyServer, share: float
) -> None:
    local = build(flow)
    server.storm(seed=5, share=share)
    far = build(_at(flow, bucket / "stores"))
    assert str(far.path) == f"{bucket}/stores/{local.path.name}"
    seen = server.faults
    index = far.index
    for name in TILE_ARRAYS:
        np.testing.assert_array_equal(
            far.read_tiles(name, 0, len(far)), local.read_tiles(name, 0, len(local))
        )
    np.testing.assert_array_equal(index.labelled, local.index.labelled)
    assert far.verify() == local.verify()
    np.testing.assert_array_equal(far.chain.kept, local.chain.kept)
    assert far.to_xarray().load().identical(local.to_xarray().load())
    assert not share or set(seen) == set(FAULTS)
    server.calm()
    _same_bytes(far, local)
    again = run_build(_at(flow, bucket / "stores"), quiet=True)
    assert again.reused
    assert not [item for item in server.seen if item.method == "PUT" and ".zarr" in item.path]


def test_a_build_that_lost_its_server_goes_on_where_it_was(
    flow: Flow, bucket: RemotePath, server: FlakyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("bandstream.pipeline.writer.SHARD_BYTES", (1 << 10, 1 << 20))
    monkeypatch.setattr("bandstream.pipeline.writer.MIN_CHUNK_BYTES", 1 << 10)
    local = build(flow)
    target = _at(flow, bucket)

    def gone_after_a_shard(method: str, path: str) -> str:
        done = [item for item in server.seen if item.method == "PUT" and "shard-" in item.path]
        return "busy" if done else ""

    server.calm()
    server.choose = gone_after_a_shard
    with pytest.raises(RemoteError, match="status 503"):
        build(target)
    server.calm()
    (found,) = list_stores(bucket)
    assert found[1] is None
    with pytest.raises(StoreIncompleteError, match="not finished"):
        PatchStore.open(found[0])
    journal = [name for name in sizes_below(found[0]) if "/shard-" in name]
    kept = {name for text in journal for name in json.loads((found[0] / text).read_text())["files"]}
    far = build(target)
    written = {item.path.partition(".zarr/")[2] for item in server.seen if item.method == "PUT"}
    assert kept
    assert not kept & written  # a finished shard is not written again
    assert [name for name in written if "/c/" in name]
    server.calm()
    _same_bytes(far, local)


@pytest.fixture
def tif(tmp_path: Path) -> tuple[Path, MadeScene]:
    """A tiled GeoTIFF and its labels."""
    made = make_envi(tmp_path, (96, 150), bands=8, stem="area")
    path = tmp_path / "area.tif"
    with rasterio.open(
        path, "w", driver="GTiff", height=96, width=150, count=8, dtype="int16", crs="EPSG:32633", nodata=-9999,
        transform=from_origin(366000, 5810000, 30, 30), tiled=True, blockxsize=64, blockysize=64, interleave="pixel",
        compress="deflate",
    ) as out:  # fmt: skip
        out.write(made.raw_yxb.transpose(2, 0, 1))
    return path, made


def _upload(path: Path, target: RemotePath) -> str:
    if path.is_dir():
        for name in sizes_below(path):
            cast("RemotePath", target / name).write_bytes((path / name).read_bytes())
    else:
        target.write_bytes(path.read_bytes())
    return str(target)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_geotiff_in_a_bucket_is_read_as_the_local_one(
    tif: tuple[Path, MadeScene], bucket: RemotePath, server: FlakyServer, share: float
) -> None:
    url = _upload(tif[0], cast("RemotePath", bucket / "scenes/area.tif"))
    server.storm(seed=1, share=share)
    near, far = open_scene(tif[0]), open_scene(url)
    np.testing.assert_array_equal(far["data"].values, near["data"].values)
    assert far["data"].dtype == near["data"].dtype
    assert far.attrs["files"] == [url]
    assert far["spatial_ref"].attrs["crs_wkt"] == near["spatial_ref"].attrs["crs_wkt"]
    met = server.faults.copy()
    remote_reader._block.cache_clear()
    np.testing.assert_array_equal(far["data"][50:70, 20:120].values, near["data"][50:70, 20:120].values)
    assert not share or met


def test_opening_a_geotiff_and_reading_a_window_fetches_a_part_of_it(
    tmp_path: Path, bucket: RemotePath, server: FlakyServer
) -> None:
    rng = np.random.default_rng(3)
    path, raw = tmp_path / "big.tif", rng.integers(0, 30000, (4, 1024, 1024), dtype=np.int16)
    with rasterio.open(
        path, "w", driver="GTiff", height=1024, width=1024, count=4, dtype="int16", tiled=True, crs="EPSG:32633",
        blockxsize=128, blockysize=128, interleave="pixel", transform=from_origin(0, 1024, 2, 2),
    ) as out:  # fmt: skip
        out.write(raw)
    url = _upload(path, cast("RemotePath", bucket / "big.tif"))
    server.calm()
    scene = open_scene(url)
    opened = sum(item.sent for item in server.seen)
    window = scene["data"][512:600, 128:256].values
    np.testing.assert_array_equal(window, raw[:, 512:600, 128:256].transpose(1, 2, 0))
    size = path.stat().st_size
    assert opened < size / 10
    assert sum(item.sent for item in server.seen) < size / 3


def test_a_zarr_scene_in_a_bucket_is_read_as_the_local_one(
    tif: tuple[Path, MadeScene], bucket: RemotePath, server: FlakyServer, tmp_path: Path
) -> None:
    write_scene(open_scene(tif[0]), tmp_path / "area.zarr")
    url = _upload(tmp_path / "area.zarr", cast("RemotePath", bucket / "area.zarr"))
    server.storm(seed=4, share=0.2)
    near, far = open_scene(tmp_path / "area.zarr"), open_scene(url)
    np.testing.assert_array_equal(far["data"].values, near["data"].values)
    assert server.faults
    server.calm()
    chunk = next(name for name in sizes_below(locate(url)) if name.startswith("data/c/"))
    (locate(url) / chunk).unlink()
    with pytest.raises(FormatError, match="chunks"):
        open_scene(url)


def test_a_workflow_over_objects_gives_the_tiles_of_the_local_files_and_tells_no_secret(
    tif: tuple[Path, MadeScene], flow: Flow, bucket: RemotePath, tmp_path: Path
) -> None:
    labels = _upload(tif[1].labels_path, cast("RemotePath", bucket / "labels/area.tif"))
    _upload(tif[0], cast("RemotePath", bucket / "scenes/area.tif"))
    flow["stages"] = [{"mask": {}}, {"drop_bands": {}}, {"reduce": {"components": 3}}]
    near = build(
        _at(flow | {"scenes": [{"path": str(tif[0]), "labels": str(tif[1].labels_path)}]}, tmp_path / "near")
    )
    scenes = [{"path": f"{bucket}/scenes/*.tif", "labels": labels}]
    result = run_build(_at(flow | {"scenes": scenes}, tmp_path / "far"), quiet=True)
    far = cast("PatchStore", result.store)
    for name in TILE_ARRAYS:
        np.testing.assert_array_equal(far.read_tiles(name, 0, len(far)), near.read_tiles(name, 0, len(near)))
    provenance = json.loads(next((tmp_path / "far").glob("*.provenance.json")).read_text())
    assert f"{bucket}/scenes/area.tif" in provenance["files"]
    for path in (tmp_path / "far").rglob("*"):
        assert not path.is_file() or not any(word.encode() in path.read_bytes() for word in (KEY, SECRET))
    assert run_build(_at(flow | {"scenes": scenes}, tmp_path / "far"), quiet=True).reused
    with rasterio.open(tif[0], "r+") as raster:
        raster.write(np.full((1, 9, 9), 77, np.int16), [1], window=rasterio.windows.Window(60, 60, 9, 9))
    _upload(tif[0], cast("RemotePath", bucket / "scenes/area.tif"))
    changed = run_build(_at(flow | {"scenes": scenes}, tmp_path / "far"), quiet=True)
    assert not changed.reused
    assert changed.fingerprint != result.fingerprint


def test_an_object_that_changes_while_it_is_read_is_an_error(
    tif: tuple[Path, MadeScene], bucket: RemotePath
) -> None:
    place = cast("RemotePath", bucket / "area.tif")
    scene = open_scene(_upload(tif[0], place))
    place.write_bytes(tif[0].read_bytes() + b"more")
    remote_reader._block.cache_clear()
    with pytest.raises(RemoteError, match="has changed"):
        scene["data"].values  # noqa: B018 - reading is what fails


def test_damage_in_a_bucket_is_found_and_named(built: str, bucket: RemotePath) -> None:
    for name in sizes_below(locate(built)):
        cast("RemotePath", bucket / "copy.zarr" / name).write_bytes((locate(built) / name).read_bytes())
    store = PatchStore.open(str(bucket / "copy.zarr"))
    shard = cast("RemotePath", store.shard_path("data", 0))
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    fresh = PatchStore.open(str(store.path))
    with pytest.raises(StoreCorruptError, match=r"tiles/data/c/0/0/0/0 \(bytes changed\)"):
        fresh.verify()
    with pytest.raises(StoreCorruptError, match="cannot be decoded"):
        fresh.read_tiles("data", 0, len(fresh))
    shard.unlink()
    with pytest.raises(StoreCorruptError, match=r"data/c/0/0/0/0 is missing"):
        PatchStore.open(store.path).read_tiles("data", 0, len(fresh))
    with pytest.raises(StoreCorruptError, match="is missing"):
        PatchStore.open(store.path).check_present()


def test_refusals_and_absences_are_told_at_once_and_without_the_key(
    bucket: RemotePath, server: FlakyServer
) -> None:
    with pytest.raises(StoreNotFoundError, match="There is no store at s3://"):
        PatchStore.open(str(bucket / "none.zarr"))
    with pytest.raises(SceneNotFoundError, match="does not exist"):
        open_scene(f"{bucket}/none.tif")
    (bucket / "cube.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(FormatError, match="allowed there: Zarr"):
        open_scene(f"{bucket}/cube.npy")
    with pytest.raises(RemoteError, match="no such bucket"):
        PatchStore.open("s3://no-such-bucket-here/x.zarr")
    server.calm()
    server.choose = lambda method, path: "403"
    with pytest.raises(RemoteError, match=r"refuses access.*AWS_ACCESS_KEY_ID") as caught:
        PatchStore.open(str(bucket / "none.zarr"))
    assert server.faults["403"] == 1
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    server.calm()


def test_a_server_that_never_answers_is_given_up(
    bucket: RemotePath, server: FlakyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(s3, "REQUEST_SECONDS", 0.3)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3._client.cache_clear()
    server.choose = lambda method, path: time.sleep(2) or ""
    try:
        with pytest.raises(RemoteError, match=r"in time.*tried 2 times"):
            (bucket / "x").read_bytes()
    finally:
        server.calm()
        s3._client.cache_clear()


def test_a_connection_that_is_cut_is_no_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither obstore's own `retry_timeout` in the text nor words of the address are taken for the cause."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def cut() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                connection.recv(4096)
                connection.close()

        cutting = threading.Thread(target=cut)
        cutting.start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listening.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_MAX_ATTEMPTS": "2",
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteError, match=r"the connection broke off \(tried 2 times\)"):
            RemotePath("s3:/bucket/refused-dns-timeout").read_bytes()
        cutting.join()


def test_of_many_that_create_or_exchange_an_object_one_gets_it(
    bucket: RemotePath, server: FlakyServer
) -> None:
    lock = cast("RemotePath", bucket / "lock")
    server.storm(seed=9, share=0.3, faults=("busy", "lost", "slow"))

    def race(function: Any) -> list[bytes]:
        won: list[bytes] = []

        def one(text: bytes) -> None:
            if function(text):
                won.append(text)

        threads = [threading.Thread(target=one, args=(f"holder {n}".encode(),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won

    (first,) = race(lock.create)
    assert lock.read_bytes() == first
    (second,) = race(lambda text: lock.exchange(first, b"next " + text))
    assert lock.read_bytes() == b"next " + second
    assert not lock.exchange(first, b"late")


def test_the_command_line_lists_describes_and_checks_a_store_in_a_bucket(
    built: str, bucket: RemotePath
) -> None:
    run = CliRunner().invoke
    assert built.startswith("s3://built/stores/flow-")
    listed = json.loads(run(app, ["store", "list", "s3://built/stores", "--json"]).stdout)
    assert [(row["store"], row["finished"]) for row in listed] == [(built, True)]
    assert listed[0]["bytes"] == sum(sizes_below(locate(built)).values())
    told = json.loads(run(app, ["store", "info", built, "--json"]).stdout)
    assert (told["store"], told["name"]) == (built, "flow")
    assert told["provenance"]["fingerprint"] == told["fingerprint"]
    checked = run(app, ["store", "verify", built])
    assert checked.exit_code == 0
    assert built in checked.stdout


def test_a_store_in_a_bucket_goes_to_other_processes_without_its_credentials(
    built: str, bucket: RemotePath
) -> None:
    store = PatchStore.open(built)
    labels = store.read_tiles("labels", 0, 2)
    sent = pickle.dumps(store)
    assert SECRET.encode() not in sent
    assert KEY.encode() not in sent
    there = pickle.loads(sent)  # noqa: S301 - our own
    np.testing.assert_array_equal(there.read_tiles("labels", 0, 2), labels)


def test_credentials_come_from_a_profile_or_are_asked_for(
    bucket: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bucket / "x").write_bytes(b"123")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=r"no credentials for s3://.*AWS_SKIP_SIGNATURE"):
        (bucket / "x").read_bytes()
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(RemoteError, match="refuses access"):  # it is nobody who asks
        (bucket / "x").read_bytes()
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert (bucket / "x").read_bytes() == b"123"
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(ConfigError, match="ProfileNotFound"):
        (bucket / "x").read_bytes()


@pytest.mark.process
def test_a_forked_process_is_told_that_it_cannot_go_on(bucket: RemotePath) -> None:
    (bucket / "x").write_bytes(b"123")
    read, write = os.pipe()
    child = os.fork()
    if not child:  # in the child nothing but this may happen
        try:
            (bucket / "x").read_bytes()
        except ConfigError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert "multiprocessing_context" in os.read(read, 1000).decode()
    os.close(read)


def test_what_lies_beside_no_store_is_said_for_a_whole_bucket_too(bucket: RemotePath) -> None:
    with pytest.raises(StoreNotFoundError, match="There is no store at s3://"):
        PatchStore.open(str(bucket))
    (bucket / "stores/flow-0123456789ab.zarr/manifest.json").write_bytes(b"{}")
    with pytest.raises(StoreNotFoundError, match=r"Stores in s3://\S+/stores: flow-0123456789ab\.zarr"):
        PatchStore.open(str(bucket / "stores"))


def test_deleting_a_folder_leaves_those_that_begin_with_its_name(bucket: RemotePath) -> None:
    names = ["st/a.zarr/x", "st/a.zarr/y/z", "st/a.zarr", "st/a.zarr2/x", "st/a.zarr.provenance.json"]
    for name in names:
        (bucket / name).write_bytes(b"1")
    delete_tree(bucket / "st/a.zarr")
    assert set(sizes_below(bucket)) == set(names[2:])


def test_what_works_on_local_folders_only_says_so(bucket: RemotePath) -> None:
    done = CliRunner().invoke(app, ["store", "gc", f"{bucket}/stores"])
    assert isinstance(done.exception, ConfigError)
    assert "local folders only" in str(done.exception)


def test_a_store_in_a_bucket_is_streamed(built: str, bucket: RemotePath) -> None:
    pytest.importorskip("torch")
    from bandstream.train import PatchStream

    stream = PatchStream(PatchStore.open(built), split="train", patch=5, batch_size=64)
    assert sum(len(batch["label"]) for batch in stream) > 0
