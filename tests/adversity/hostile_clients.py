"""Clients that mean no good: they never read, send without end, or only hold connections."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rota.store.socket_paths import socket_path
from tests.daemon.harness import PATIENCE_S, Process, make_token

MIB = 1024 * 1024


class Daemon(Process):
    """A daemon in a process of its own, with a token of each kind, whose memory is watched."""

    def __init__(self, path: Path, *options: str, **limits: float) -> None:
        words = [word for name, value in limits.items() for word in ("--limit", f"{name}={value}")]
        self.token = make_token(str(path), "admin")
        super().__init__(str(path), "--listen", "127.0.0.1:0", *words, *options)
        self.unix, self.url = self.addresses
        self.watch()

    def watch(self) -> None:
        """Begin to measure the largest amount of memory from here on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        self._before = self.memory_kib()

    def growth_mib(self) -> float:
        """The most memory that it had since then, compared with the beginning."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        most = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
        return (most - self._before) / 1024

    def post(self, body: Any, *, token: bool = True) -> bytes:
        """A request over HTTP, as bytes."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = ["POST /rpc HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(raw)}"]
        lines += [f"Authorization: Bearer {self.token}"] if token else []
        return "\r\n".join([*lines, "", ""]).encode() + raw

    def get(self, path: str, *, token: bool = True, host: str = "127.0.0.1", **headers: str) -> bytes:
        """A request for a page, as bytes."""
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}"]
        lines += [f"Authorization: Bearer {self.token}"] if token else []
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()


@contextlib.contextmanager
def daemon(path: Path, *options: str, **limits: float) -> Iterator[Daemon]:
    """A daemon that must end well, whatever its clients did."""
    started = Daemon(path, *options, **limits)
    try:
        yield started
    finally:
        code = started.stop()
    log = "".join(started.log)
    assert code == 0, log[-4_000:]
    assert "Traceback" not in log, log[-4_000:]
    assert "defect" not in log, log[-4_000:]


def connection(address: str, *, receive_bytes: int = 0) -> socket.socket:
    """A connection over the unix socket or TCP; with a small buffer, the daemon has to keep what is not read."""
    if address.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    parts = urlsplit(address)
    with socket_path(address.removeprefix("unix:")) as path:
        to = path if address.startswith("unix:") else (parts.hostname, parts.port)
        for _ in range(int(PATIENCE_S * 100)):
            try:
                made.connect(to)
            except BlockingIOError:  # more connections wait to be accepted than the system allows
                select.select([], [], [], 0.01)
            else:
                return made
    made.close()
    raise AssertionError("the daemon accepts no connection")


def send_until_stuck(client: socket.socket, data: bytes, stuck_s: float = 0.5) -> int:
    """Send without reading, until all is sent or the daemon takes nothing more; return how much was sent."""
    sent, view = 0, memoryview(data)
    client.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while sent < len(data):
            if not select.select([], [client], [], stuck_s)[1]:
                break
            sent += client.send(view[sent : sent + MIB])
    client.settimeout(PATIENCE_S)
    return sent


def read_to_end(client: socket.socket) -> bytes:
    """All that the daemon still sends until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(MIB):
            parts.append(part)
    return b"".join(parts)
