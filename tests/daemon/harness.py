"""A daemon for tests, in a thread of this process or in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from rota import store
from rota.kernel import Kernel
from rota.policy.contract import PolicyIsolation
from rota.rpc import Client, connect
from rota.rpc.daemon.http import HttpServer
from rota.rpc.daemon.server import Daemon, DaemonSettings
from rota.rpc.daemon.tcp import HttpSettings
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher
from rota.store.socket_paths import socket_path
from tests.stores import address_of

PATIENCE_S = 30.0


class Served:
    """A daemon in a thread of this process, with both its transports."""

    def __init__(
        self,
        path: str,
        *,
        limits: DaemonLimits | None = None,
        policy: str | None = None,
        policy_isolation: PolicyIsolation = "thread",
        http: bool = True,
    ) -> None:
        self.path = path
        self.settings = DaemonSettings(
            store=path,
            limits=limits or DaemonLimits(),
            policy=policy,
            policy_isolation=policy_isolation,
            rota_version="test",
        )
        self._transport = partial(HttpServer, HttpSettings(port=0)) if http else None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-daemon")
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.daemon = Daemon(self.settings, self._transport)
        await self.daemon.serve(self._started.set)

    @property
    def unix(self) -> str:
        return self.daemon.addresses[0]

    @property
    def url(self) -> str:
        return self.daemon.addresses[1]

    def client(self, **options: Any) -> Client:
        return connect(self.unix, **options)

    def until_parked(self, count: int) -> None:
        """Wait until this many claims are parked."""
        self._until(lambda: self.daemon.store.parked >= count)

    def until_watched(self, sched_id: int) -> None:
        """Wait until a call waits for this entry's end."""
        results: Any = self.daemon.handlers.kernel.queue._env.waiters
        self._until(lambda: sched_id in results._waiters)

    def until_no_subscriber(self) -> None:
        """Wait until no subscriber is left."""
        transport = self.daemon.transport
        assert isinstance(transport, HttpServer)
        self._until(lambda: not transport.events._subscribers)

    def _until(self, happened: Callable[[], bool]) -> None:
        """Wait until a condition holds; real time only ends a test that would hang."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S * 1_000)):
            if happened():
                return
            pause.wait(0.001)
        raise AssertionError("the condition was never true")

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure


@contextlib.contextmanager
def serving(path: Path | str, **options: Any) -> Iterator[Served]:
    served = Served(str(path), **options)
    try:
        yield served
    finally:
        served.stop()


def make_token(path: str, scope: str, *, projects: tuple[str, ...] | None = None, **more: Any) -> str:
    """Create a token in the file, as `rota token create` does."""
    kernel = Kernel(store.open(path))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    try:
        token: str = handlers.call("system.token_create", name="test", scope=scope, projects=projects, **more).token
        return token
    finally:
        handlers.close()
        kernel.store.close()


class Process:
    """A daemon in a process of its own."""

    def __init__(self, path: str, *options: str) -> None:
        self.path = path
        command = [sys.executable, "-m", "rota", "serve", "--store", address_of(path), "--log-level", "info", *options]
        self._child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.log.append(line)
            if " serving " in line:
                break
        else:
            self._child.wait(PATIENCE_S)
            self._child.stderr.close()
            raise AssertionError("".join(self.log))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.log.append(line)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def addresses(self) -> list[str]:
        return next(line for line in self.log if " serving " in line).strip().split(" at ")[1].split(", ")

    def memory_kib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.is_alive():
            os.kill(self.pid, number)
        code = self._child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._child.stderr is not None
        self._child.stderr.close()
        return code


class Raw:
    """A unix socket that can send any bytes."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        with socket_path(address.removeprefix("unix:")) as path:
            self.socket.connect(path)
        self._file = self.socket.makefile("rb")

    def send(self, body: bytes) -> None:
        self.socket.sendall(body)

    def receive(self) -> Any:
        """Return the next line, decoded; None at the end."""
        line = self._file.readline()
        return msgspec.json.decode(line) if line else None

    def ask(self, method: str, params: Any = None, ident: Any = 1) -> Any:
        request = {"jsonrpc": "2.0", "id": ident, "method": method, "params": {} if params is None else params}
        self.send(msgspec.json.encode(request) + b"\n")
        return self.receive()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def no_room(pid: int, path: Path) -> Iterator[None]:
    """Let no file of a process grow beyond the size that its store has now, as on a full disk."""
    size = max(each.stat().st_size for each in (path, path.with_name(f"{path.name}-wal")) if each.exists())
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
