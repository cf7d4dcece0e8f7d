"""A plain HTTP client, like a browser or curl."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tests.daemon.harness import PATIENCE_S


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def fetch(url: str, path: str, *, method: str = "GET", body: bytes = b"", **headers: str) -> Response:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, found, response.read())
    finally:
        connection.close()


def rpc(url: str, token: str | None, body: Any, **headers: str) -> Response:
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return fetch(url, "/rpc", method="POST", body=raw, **headers)


def call(url: str, token: str | None, name: str, params: Any = None) -> Any:
    """Call a method and return the JSON-RPC response."""
    return rpc(url, token, {"jsonrpc": "2.0", "id": 1, "method": name, "params": params or {}}).json


class Frame(NamedTuple):
    id: str
    event: str
    data: Any


class Stream:
    """Server-sent events, frame by frame."""

    def __init__(self, url: str, token: str, path: str = "/events", **headers: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE_S)
        lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", f"Authorization: Bearer {token}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self.socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = dict(self._headers())

    def _headers(self) -> Iterator[tuple[str, str]]:
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(":")
            yield name.lower(), value.strip()

    def lines(self) -> Iterator[str]:
        """Yield the lines inside the chunks of the body."""
        rest = b""
        while size := int(self._file.readline() or b"0", 16):
            rest += self._file.read(size)
            self._file.readline()
            *whole, rest = rest.split(b"\n")
            yield from (line.decode() for line in whole)

    def frames(self) -> Iterator[Frame]:
        """Yield all frames except heartbeats."""
        found: dict[str, str] = {}
        for line in self.lines():
            if not line and "data" in found:
                yield Frame(found.get("id", ""), found["event"], msgspec.json.decode(found["data"]))
                found = {}
            name, _, value = line.partition(": ")
            found[name] = value

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
