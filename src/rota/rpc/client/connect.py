"""Connecting to a daemon by its address."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rota.errors import InvalidInput
from rota.kernel.run_tokens import is_run_token
from rota.rpc.client.async_client import AsyncClient
from rota.rpc.client.client import Client
from rota.rpc.client.connections import Connection, HttpConnection, UnixConnection, tls_context
from rota.store import without_password
from rota.store.socket_paths import check_socket_path

__all__ = ["connect", "connect_async", "is_remote", "shown_token"]

_SCHEMES = ("unix:", "http://", "https://")


def is_remote(address: str) -> bool:
    """Return whether an address is a daemon's and not a file's."""
    return address.startswith(_SCHEMES)


def connect(
    address: str,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 30.0,
    **options: Any,
) -> Client:
    """Return a client of the daemon at `unix:/path` or `http(s)://host:port`.

    Over HTTP it needs an access token: `token`, else the contents of `token_file`, else `ROTA_ACCESS_TOKEN`, else the
    contents of the file named by `ROTA_ACCESS_TOKEN_FILE`. `ca_file`, else `ROTA_CA_FILE`, is a PEM file with the CA of
    the daemon's certificate; the default is the system's CAs.

    Over the unix socket a client has the rights of the local user. With a token that is given, or a run's own token in
    `ROTA_ACCESS_TOKEN`, it has only the rights of that token.
    """
    ca_file = (ca_file or os.environ.get("ROTA_CA_FILE")) if address.startswith("https") else None
    open_connection = _opener(address, timeout_s, token=token, token_file=token_file, ca_file=ca_file)
    return Client(open_connection, address, timeout_s=timeout_s, ca_file=ca_file, **options)


def connect_async(
    address: str, *, timeout_s: float = 30.0, retry_s: float = 30.0, keys: bool = True, **options: Any
) -> AsyncClient:
    """Return an async client, like `connect`. Call it inside the event loop."""
    http = token = None
    if address.startswith("unix:"):
        check_socket_path(address.removeprefix("unix:"))
        token = _local_token(options.get("token"), options.get("token_file"))
    else:
        http = connect(address, timeout_s=timeout_s, retry_s=retry_s, keys=keys, **options)
    return AsyncClient(address, http=http, token=token, timeout_s=timeout_s, retry_s=retry_s, keys=keys)


def shown_token(address: str, *, token: str | None = None, token_file: str | None = None) -> str | None:
    """Return the access token that a client of this address shows; None: none, it has the local user's rights."""
    return _local_token(token, token_file) if address.startswith("unix:") else _token(token, token_file)


def _opener(
    address: str,
    timeout_s: float,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> Callable[[], Connection]:
    """Return a function that opens a connection to an address."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        check_socket_path(path)
        return partial(UnixConnection, path, _local_token(token, token_file), timeout_s)
    if is_remote(address):
        secret = _token(token, token_file)
        tls = tls_context(ca_file) if address.startswith("https") else None
        return partial(HttpConnection, address, secret, timeout_s, tls)
    hint = "Give unix:/path, http://host:port or https://host:port."
    text = f"{without_password(address)!r} is not the address of a daemon"
    raise InvalidInput(text, field="address", hint=hint)


def _local_token(token: str | None, token_file: str | None) -> str | None:
    """Return the access token for the unix socket; of the environment's only a run's, which limits what it may do."""
    if token is not None or token_file is not None:
        return _token(token, token_file)
    found = os.environ.get("ROTA_ACCESS_TOKEN", "").strip()
    return found if is_run_token(found) else None


def _token(token: str | None, token_file: str | None) -> str | None:
    """Return the access token; arguments take precedence over the environment."""
    if token is None and token_file is None:
        token, token_file = os.environ.get("ROTA_ACCESS_TOKEN"), os.environ.get("ROTA_ACCESS_TOKEN_FILE")
    if token is None and token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidInput(f"the token file cannot be read: {problem}", field="token_file") from problem
    return None if token is None else token.strip()
