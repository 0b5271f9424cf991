"""Paths that lead to a local folder or into a bucket, and what is said when a bucket cannot be used."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path, PosixPath

import pytest

from bandstream.pipeline import s3
from bandstream.pipeline.config import find_data
from bandstream.pipeline.errors import ConfigError, RemoteError
from bandstream.pipeline.storage import RemotePath, delete_tree, is_remote, locate, sizes_below, zarr_store

SECRET = "wJalrXUtnFEMIsecret"  # noqa: S105 - of nobody


def test_an_address_keeps_its_form_through_every_operation_of_a_path() -> None:
    root = locate("s3://bucket/some/stores")
    store = root / "flow-0123.zarr"
    assert isinstance(store, RemotePath)
    assert str(store) == store.as_posix() == "s3://bucket/some/stores/flow-0123.zarr"
    assert (store.bucket, store.key) == ("bucket", "some/stores/flow-0123.zarr")
    assert (store.name, store.stem, store.suffix) == ("flow-0123.zarr", "flow-0123", ".zarr")
    assert store.parent == root
    assert str(store.with_name("other.json")) == "s3://bucket/some/stores/other.json"
    assert str((store / "tiles/data/c").relative_to(store)) == "tiles/data/c"
    assert store.resolve() is store.expanduser() is store.absolute() is store
    assert store.is_absolute()
    copied = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    assert copied == store
    assert type(copied) is RemotePath
    assert sorted([root / "b", root / "a"]) == [root / "a", root / "b"]


def test_a_local_path_stays_the_path_that_it_is(tmp_path: Path) -> None:
    assert type(locate(str(tmp_path))) is PosixPath
    assert locate(tmp_path) == tmp_path
    assert not is_remote(tmp_path)
    assert zarr_store(tmp_path) == tmp_path
    # only an address is one: a folder may have a colon in its name
    assert type(locate("s3:/folder")) is PosixPath


def test_an_address_that_pathlib_has_cut_is_taken_for_what_it_was() -> None:
    assert str(locate(Path("s3://bucket/stores"))) == "s3://bucket/stores"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gs://bucket/x", "gs:// are not supported"),
        ("https://host/x.tif", "https:// are not supported"),
        ("s3://", "needs a bucket"),
        ("s3:///key", "needs a bucket"),
        (f"s3://key:{SECRET}@bucket/x", "no credentials in it"),
        (f"s3://bucket/x.tif?X-Amz-Signature={SECRET}", "signed query"),
        (f"S3://bucket/x.tif?a=b&x-amz-signature={SECRET}", "signed query"),
        ("s3://bucket/a/../b", "write it out"),
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_a_secret(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        locate(text)
    assert SECRET not in str(caught.value)


def test_addresses_in_a_workflow_are_not_looked_for_in_folders(tmp_path: Path) -> None:
    assert str(find_data("s3://bucket/scenes/*.tif", [tmp_path])) == "s3://bucket/scenes/*.tif"


def test_sizes_and_removal_of_a_local_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one").write_bytes(b"123")
    (tmp_path / "a" / "two").write_bytes(b"")
    assert sizes_below(tmp_path / "a") == {"b/one": 3, "two": 0}
    assert sizes_below(tmp_path / "nothing") == {}
    delete_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    s3._client.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'bandstream\[s3\]'"):
        locate("s3://bucket/x").is_file()


@pytest.mark.process
def test_obstore_is_imported_only_when_it_is_needed() -> None:
    code = (
        "import sys, bandstream.pipeline as p; from bandstream.pipeline import builder, store, writer, readers;"
        "print([name for name in sys.modules if name.split('.')[0] == 'obstore'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("endpoint", "allow", "fine"),
    [
        ("http://127.0.0.1:9000", None, True),
        ("http://localhost:9000", None, True),
        ("http://[::1]:9000", None, True),
        ("https://storage.example.org", None, True),
        ("http://storage.example.org", None, False),
        ("http://127.0.0.1.example.org", None, False),
        ("http://storage.example.org", "true", True),
        ("ftp://storage.example.org", "true", False),
        (f"https://key:{SECRET}@storage.example.org", None, False),
        (f"key:{SECRET}@storage.example.org:9000", None, False),
    ],
)
def test_plain_http_leaves_the_machine_only_when_allowed(
    endpoint: str, allow: str | None, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    if allow:
        monkeypatch.setenv("AWS_ALLOW_HTTP", allow)
    if fine:
        assert s3.endpoint_url() == endpoint
        return
    with pytest.raises(ConfigError) as caught:
        s3.endpoint_url()
    assert SECRET not in str(caught.value)


def test_what_a_server_says_is_worded_without_what_it_quotes() -> None:
    class PermissionDeniedError(Exception):
        pass

    body = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA{SECRET}</AWSAccessKeyId></Error>"
    told = s3.explain("s3://bucket/x", PermissionDeniedError(f"status code: 403 Forbidden: {body}"))
    assert isinstance(told, RemoteError)
    assert "SignatureDoesNotMatch" in str(told)
    assert "AWS_ACCESS_KEY_ID" in str(told)
    assert SECRET not in str(told)


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_a_number_of_attempts_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", text)
    with pytest.raises(ConfigError, match="AWS_MAX_ATTEMPTS"):
        s3.attempts()


def test_a_bucket_as_a_whole_is_never_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        pytest.fail("the server was asked")

    monkeypatch.setattr(RemotePath, "_call", asked)
    for place in (locate("s3://bucket"), locate("s3://bucket/"), locate("s3://bucket/key").parent):
        with pytest.raises(ConfigError, match="whole bucket"):
            delete_tree(place, ignore_errors=True)
