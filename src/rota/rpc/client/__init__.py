"""Talking to a daemon: `connect("unix:/path")` or `connect("http://host:port")` is a desk."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rota.errors import InvalidInput
from rota.rpc.client.async_client import AsyncClient
from rota.rpc.client.client import Client
from rota.rpc.client.connections import Connection, HttpConnection, LineConnection, trusting

__all__ = ["AsyncClient", "Client", "connect", "connect_async", "is_remote"]

_SCHEMES = ("unix:", "http://", "https://")


def is_remote(address: str) -> bool:
    """Whether an address is a daemon's, and not a file's."""
    return address.startswith(_SCHEMES)


def connect(
    address: str,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 30.0,
    **how: Any,
) -> Client:
    """A client of the daemon at `unix:/path` or `http(s)://host:port`.

    The token is the one given, else that in the file given, else that in `ROTA_ACCESS_TOKEN`, else that in the file
    named by `ROTA_ACCESS_TOKEN_FILE`; the unix socket needs none. `ca_file`, else `ROTA_CA_FILE`, is a PEM file of
    whoever signed the daemon's certificate, where this machine does not trust them anyway.
    """
    open_connection = opener(address, timeout_s, token=token, token_file=token_file, ca_file=ca_file)
    return Client(open_connection, address, timeout_s=timeout_s, **how)


def connect_async(
    address: str, *, timeout_s: float = 30.0, retry_s: float = 30.0, keys: bool = True, **how: Any
) -> AsyncClient:
    """The same for a program with an event loop; to be called inside it."""
    threads = None
    if not address.startswith("unix:"):
        threads = connect(address, timeout_s=timeout_s, retry_s=retry_s, keys=keys, **how)
    return AsyncClient(address, threads=threads, timeout_s=timeout_s, retry_s=retry_s, keys=keys)


def opener(
    address: str,
    timeout_s: float,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> Callable[[], Connection]:
    """What opens a connection to an address."""
    if address.startswith("unix:"):
        return partial(LineConnection, address.removeprefix("unix:"), timeout_s)
    if is_remote(address):
        secret = _token(token, token_file)
        trust = trusting(ca_file or os.environ.get("ROTA_CA_FILE")) if address.startswith("https") else None
        return partial(HttpConnection, address, secret, timeout_s, trust)
    hint = "Give unix:/path, http://host:port or https://host:port."
    raise InvalidInput(f"{address!r} is no daemon's address", field="address", hint=hint)


def _token(token: str | None, token_file: str | None) -> str | None:
    """What is said in the call goes before what is said in the environment."""
    if token is None and token_file is None:
        token, token_file = os.environ.get("ROTA_ACCESS_TOKEN"), os.environ.get("ROTA_ACCESS_TOKEN_FILE")
    if token is None and token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidInput(f"the token's file cannot be read: {problem}", field="token_file") from problem
    return None if token is None else token.strip()
