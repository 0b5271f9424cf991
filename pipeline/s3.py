"""The client of an S3-compatible object store: settings, credentials, retries, and errors that a user can act on.

obstore does the work. It is imported on first use only, so that who works on local files need not have it.

Settings come from the usual environment: AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3), AWS_REGION, AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for public buckets; AWS_MAX_ATTEMPTS bounds the tries.
Plain http goes to this machine only, unless AWS_ALLOW_HTTP=true.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .errors import BandstreamError, ConfigError, RemoteError

T = TypeVar("T")

CONNECT_SECONDS = 10
REQUEST_SECONDS = 120
"""For one request with its body, which is at most `PART_BYTES` or a chunk of an array: 70 KB/s are enough."""

RETRY_SECONDS = 180
PART_BYTES = 8 << 20
"""Larger objects are sent in parts of this size, each retried by itself; the object appears when all are there."""

PARTS_AT_ONCE = 4
_WAITS = (0.1, 0.4, 1.6, 4.0)
"""Seconds before each further try of ours, for what obstore does not try again: a body that breaks off."""

_SETTINGS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_ALLOW_HTTP",
    "AWS_MAX_ATTEMPTS",
)
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def obstore() -> Any:
    """Return the package obstore.

    Raises
    ------
    ConfigError
        It is not installed.
    """
    try:
        import obstore as package
    except ImportError as error:
        raise ConfigError(
            "Addresses that begin with s3:// need the package obstore: pip install 'bandstream[s3]'."
        ) from error
    return package


def client(bucket: str) -> Any:
    """Return this process's client of a bucket, for the environment as it is now.

    Raises
    ------
    ConfigError
        obstore is missing, there are no credentials, plain http would leave this machine, or this process was forked
        from one that had a client.
    """
    require_own_process()
    return _client(bucket, os.getpid(), tuple(os.environ.get(name) for name in _SETTINGS))


def require_own_process() -> None:
    """Refuse to go on in a forked process: obstore's threads stay behind in its parent, and it would wait for ever.

    Raises
    ------
    ConfigError
        It is such a process.
    """
    if _USED_BY and _USED_BY[0] != os.getpid():
        raise ConfigError(
            "This process was forked from one that has used s3:// already, which does not survive that. Start workers "
            'by spawn or forkserver (DataLoader: multiprocessing_context="spawn").'
        )


_USED_BY: list[int] = []


@lru_cache(maxsize=16)
def _client(bucket: str, process: int, settings: tuple[str | None, ...]) -> Any:
    """Make a client; `settings` only tell one from another."""
    del settings
    obstore()
    if not _USED_BY:
        _USED_BY.append(process)
    from obstore.store import S3Store

    endpoint = endpoint_url()
    config: Any = {}
    options: Any = {
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    if endpoint:
        config["endpoint"] = endpoint
        options["allow_http"] = endpoint.startswith("http://")
    provider = _credentials(bucket)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    # boto3's provider brings the region of its profile
    if region or provider is None:
        config["region"] = region or "us-east-1"
    return S3Store(
        bucket,
        config=config,
        client_options=options,
        retry_config={
            "max_retries": attempts() - 1,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
        },
        credential_provider=provider,
    )


def attempts() -> int:
    """Return how often a request is tried at most: AWS_MAX_ATTEMPTS, else 8.

    Raises
    ------
    ConfigError
        It is no number from 1.
    """
    text = os.environ.get("AWS_MAX_ATTEMPTS", "").strip() or "8"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"AWS_MAX_ATTEMPTS = {text!r} is not allowed; give a number from 1.")
    return int(text)


def endpoint_url() -> str | None:
    """Return the address of the S3 server, None for Amazon's own.

    Raises
    ------
    ConfigError
        It holds credentials, is no http address, or plain http to another machine that was not allowed.
    """
    text = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not text:
        return None
    parts = urlsplit(text)
    if "@" in text or parts.query:
        raise ConfigError(
            "AWS_ENDPOINT_URL holds credentials or a query; give scheme, host and port only, and the credentials by "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"AWS_ENDPOINT_URL = {text!r} is no address; write it as https://host or https://host:port."
        )
    if parts.scheme == "http" and not _is_loopback(parts.hostname) and not _is_true("AWS_ALLOW_HTTP"):
        raise ConfigError(
            f"AWS_ENDPOINT_URL = {text!r} would send data to {parts.hostname} unencrypted; use https, or set "
            "AWS_ALLOW_HTTP=true if you trust the network."
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _credentials(bucket: str) -> Any:
    """Return boto3's credentials where obstore's own look at the environment finds none; None where it does.

    Raises
    ------
    ConfigError
        There are none.
    """
    if _is_true("AWS_SKIP_SIGNATURE") or any(os.environ.get(name) for name in _OWN_CREDENTIALS):
        return None
    if sys.modules.get("boto3", True) is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, where blocked
        del sys.modules["boto3"]  # kept from rasterio by the command line
    try:
        import boto3
    except ImportError:
        boto3 = None
    if boto3 is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            session: Any = boto3.Session()  # takes AWS_PROFILE, single sign-on, and the roles of machines
            if session.get_credentials() is not None:
                return Boto3CredentialProvider(session)
        except Exception as error:  # noqa: BLE001 - botocore's own classes: a profile that is not there, an expired sign-on
            raise ConfigError(
                f"The credentials for s3://{bucket} cannot be had: {type(error).__name__}. Check AWS_PROFILE and sign in "
                "again, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from None
    profiles = "AWS_PROFILE" if boto3 is not None else "AWS_PROFILE (which needs the package boto3)"
    raise ConfigError(
        f"There are no credentials for s3://{bucket}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or {profiles}; or "
        "AWS_SKIP_SIGNATURE=true if the bucket is public."
    )


def attempt(url: str, function: Callable[[], T]) -> T:
    """Call a function that talks to the server, again where a body broke off, and word what went wrong.

    Parameters
    ----------
    url
        The object, for messages.
    function
        May be called several times.

    Raises
    ------
    FileNotFoundError
        There is no such object.
    RemoteError
        Anything else.
    """
    for wait in (*_WAITS, None):
        try:
            return function()
        except BandstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - worded by explain
            told = explain(url, error)
            if wait is None or not may_pass(error):
                # obstore's own text quotes the server, which may quote a key
                raise told from None
        time.sleep(wait)
    raise AssertionError


class ShortBodyError(Exception):
    """Fewer bytes came than were asked for."""


def may_pass(error: Exception) -> bool:
    """Return whether trying again may help: not after a refusal, nor when obstore has tried long enough."""
    if isinstance(error, ShortBodyError):
        return True
    if type(error).__name__ != "GenericError":
        return False
    text = str(error)
    tried = re.search(r"after (\d+) retries, max_retries: (\d+)", text)
    if tried and int(tried[1]) >= int(tried[2]):
        return False
    return re.search(r"status code: [34]\d\d", text) is None


def waits() -> tuple[float, ...]:
    """Return the seconds to wait before each further try."""
    return _WAITS


def explain(url: str, error: Exception) -> Exception:
    """Return the error to raise: what obstore said, without the server's text, and what to set."""
    kind, text = type(error).__name__, str(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    word = code[1] if code else ""
    if word == "NoSuchBucket":
        return RemoteError(
            f"{url}: there is no such bucket at {_where()}. Check the name, AWS_ENDPOINT_URL and AWS_REGION."
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"There is no object {url}")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or "status code: 403" in text:
        return RemoteError(
            f"{url}: {_where()} refuses access{f' ({word})' if word else ''}. Check the credentials (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE), AWS_REGION, and what they may do in this bucket."
        )
    if kind == "PreconditionError":
        return RemoteError(f"{url} has changed since it was first looked at; start again.")
    return RemoteError(
        f"{url}: {_where()} could not be used: {_reason(kind, text, word)}. Check the network and AWS_ENDPOINT_URL; "
        "run the same command again to go on."
    )


def _where() -> str:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return f"the server {urlsplit(endpoint).netloc.rpartition('@')[2]}" if endpoint else "Amazon S3"


_REASONS = (
    (r"timed? ?out", "it did not answer in time"),
    (r"refused", "it refuses connections"),
    (r"dns|resolve|lookup", "its name is not known"),
    (r"certificate|tls|ssl", "the encrypted connection failed"),
    (r"reset|closed|incomplete|decoding|eof|broken|body", "the connection broke off"),
    (r"connect", "it cannot be reached"),
)


def _reason(kind: str, text: str, word: str) -> str:
    """Word the cause with what is safe to repeat: a status, S3's own code, a kind of network failure."""
    if kind == "ShortBodyError":
        return text
    status = re.search(r"status code: (\d{3})", text)
    tried = re.search(r"after (\d+) retries", text)
    what = f"status {status[1]}{f' {word}' if word else ''}" if status else ""
    if not what:
        # obstore also names its own limit and the address, in which any word may stand
        cause = re.sub(r"retry_timeout|https?://\S+", "", text)
        what = next((said for pattern, said in _REASONS if re.search(pattern, cause, re.IGNORECASE)), kind)
    return what + (f" (tried {int(tried[1]) + 1} times)" if tried else "")
