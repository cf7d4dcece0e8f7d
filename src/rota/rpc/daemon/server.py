"""A daemon's life: open, announce, serve, and stop so that nobody is left without an answer."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from rota import store
from rota.clock import Clock
from rota.kernel import Kernel
from rota.kernel.journal import append
from rota.model.events import DaemonMoved
from rota.rpc.daemon.exchange import Exchange
from rota.rpc.daemon.limits import Limits
from rota.rpc.daemon.lines import Connections, LineProtocol
from rota.rpc.daemon.presence import Note, Presence
from rota.rpc.daemon.systemd import Notifier
from rota.rpc.handlers import Office
from rota.rpc.methods import PROTOCOL
from rota.service.dispatcher import Dispatcher
from rota.service.policy_in_force import announce

__all__ = ["Daemon", "Door", "MakeDoor", "Settings"]

_log = logging.getLogger("rota.daemon")
BACKLOG = 512  # connections that wait to be accepted


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon is to serve."""

    store: str
    socket: str | None = None  # None: in a folder beside the file
    policy: str = "strict"
    limits: Limits = Limits()
    rota_version: str = ""


class Door(Protocol):
    """Another way in."""

    async def open(self) -> str:
        """Listen; the answer is the address."""
        ...

    async def close(self) -> None:
        """Answer what is under way, and listen no more."""
        ...


MakeDoor: TypeAlias = Callable[[Exchange, Office, Limits], Door]


class Daemon:
    """One daemon over one file."""

    def __init__(self, settings: Settings, make_door: MakeDoor | None = None, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._presence = Presence(settings.store, settings.socket)
        self._connections = Connections()
        self._stop = asyncio.Event()
        self._notifier = Notifier()
        self._make_door = make_door  # of another transport, besides the unix socket
        self.door: Door | None = None
        self.addresses: tuple[str, ...] = ()

    async def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop; `started` hears when the first call can come."""
        self._presence.enter()
        try:
            joint = store.open_joint(self._settings.store, clock=self._clock)
            try:
                await self._serve(joint, started)
            finally:
                joint.close()
        finally:
            self._presence.leave()

    def stop(self) -> None:
        """Serve no more. May be called again."""
        self._stop.set()

    async def _serve(self, joint: store.JointStore, started: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        kernel = Kernel(joint)
        desk = Dispatcher(kernel, settings.policy)
        self.joint = joint
        self.office = office = Office(
            kernel, desk, store=os.path.realpath(settings.store), rota_version=settings.rota_version
        )
        self.exchange = exchange = Exchange(loop, joint, office)
        self.door = door = None if self._make_door is None else self._make_door(exchange, office, settings.limits)
        try:
            listener = await self._listen(loop, exchange)
            address = f"unix:{self._presence.socket}"
            self.addresses = (address,) if door is None else (address, await door.open())
            self._record(kernel, "started")
            announce(kernel.journal, settings.policy, by="the daemon")
            self._announce(kernel.clock.now())
            if threading.current_thread() is threading.main_thread():  # elsewhere signals are not heard
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self.stop)
            self._notifier.ready()
            self._notifier.keep_alive(loop)
            _log.info("serving %s at %s", settings.store, ", ".join(self.addresses))
            started()
            await self._stop.wait()
            await self._finish(listener, door, exchange)
            self._record(kernel, "stopped")
        finally:
            exchange.close()
            office.close()

    async def _listen(self, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> asyncio.AbstractServer:
        protocol = partial(LineProtocol, exchange, self._connections, self._settings.limits)
        before = os.umask(0o177)
        try:
            return await loop.create_unix_server(protocol, self._presence.socket, backlog=BACKLOG)
        finally:
            os.umask(before)

    def _announce(self, now: float) -> None:
        note = Note(
            pid=os.getpid(),
            started_at=now,
            addresses=self.addresses,
            rota_version=self._settings.rota_version,
            protocol=PROTOCOL,
        )
        self._presence.announce(note)

    def _record(self, kernel: Kernel, verb: str) -> None:
        fact = DaemonMoved(verb=verb, rota_version=self._settings.rota_version)  # type: ignore[arg-type]  # one of two
        kernel.store.write(lambda tx: append(tx, fact, now=kernel.clock.now()))

    async def _finish(self, listener: asyncio.AbstractServer, door: Door | None, exchange: Exchange) -> None:
        """Take nothing new, let those who wait go, and give what is under way its time."""
        _log.info("stopping: %d calls are under way", len(exchange.jobs))
        self._notifier.stopping()
        listener.close()
        exchange.stop_waiting()
        for connection in list(self._connections.open):
            connection.finish()
        ends = [self._all_gone(exchange)] + ([door.close()] if door is not None else [])
        try:
            async with asyncio.timeout(self._settings.limits.grace_s):
                await asyncio.gather(*ends)
        except TimeoutError:
            _log.warning("%d calls were not answered in time", len(exchange.jobs))

    async def _all_gone(self, exchange: Exchange) -> None:
        while exchange.jobs or self._connections.open:
            await asyncio.sleep(0.01)
