"""The daemon's life cycle: open the store, listen, serve, and stop after the pending calls."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from rota import store
from rota.clock import Clock
from rota.errors import SchemaMismatch, StoreUnavailable
from rota.kernel import Kernel
from rota.kernel.daemon_addresses import forget_daemon_address, write_daemon_address
from rota.kernel.journal import append
from rota.model.events import DaemonChanged
from rota.policy.contract import PolicyIsolation
from rota.rpc.daemon.agent_recovery import AgentRecovery
from rota.rpc.daemon.buffers import SharedMemory
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.connections import fit_open_files
from rota.rpc.daemon.lost_workers import watch_workers, welcome_workers
from rota.rpc.daemon.runtime_dir import DaemonInfo, RuntimeDirectory
from rota.rpc.daemon.systemd import SystemdNotifier
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.daemon.unix_listener import UnixListener
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import PROTOCOL
from rota.service.dispatcher import Dispatcher
from rota.service.retention_thread import RetentionThread

__all__ = ["Daemon", "DaemonSettings", "Transport", "TransportFactory"]

_log = logging.getLogger("rota.daemon")
RETENTION_AFTER_S = 10.0  # how long after its start it looks for old rows: clients that reconnect come first


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve, and how."""

    store: str
    socket: str | None = None  # default: in a directory beside the file
    policy: str | None = None  # None: the store's, if it has one
    policy_params: dict[str, Any] = {}
    policy_isolation: PolicyIsolation = "thread"  # of policies of other packages
    limits: DaemonLimits = DaemonLimits()
    rota_version: str = ""


class Transport(Protocol):
    """A transport besides the unix socket."""

    @property
    def address_for_others(self) -> str | None:
        """The address at which other machines reach it, while it is open; None if they do not."""
        ...

    async def open(self) -> str:
        """Listen, and return the address."""
        ...

    async def close(self) -> None:
        """Finish pending requests and stop listening."""
        ...


TransportFactory: TypeAlias = Callable[[CallExecutor, RpcHandlers, SharedMemory, DaemonLimits], Transport]


class Daemon:
    """A daemon that serves one file."""

    def __init__(
        self, settings: DaemonSettings, make_transport: TransportFactory | None = None, *, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._directory = RuntimeDirectory(settings.store, settings.socket)
        self._memory = SharedMemory(settings.limits)
        self.listener: UnixListener
        self._stop = asyncio.Event()
        self._notifier = SystemdNotifier()
        self._make_transport = make_transport
        self.transport: Transport | None = None
        self.addresses: tuple[str, ...] = ()

    async def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` or a signal; `started` is called when clients can connect."""
        self._directory.acquire()
        try:
            joined = store.open_joined(self._settings.store, clock=self._clock)
            try:
                await self._serve(joined, started)
            finally:
                joined.close()
        finally:
            self._directory.release()

    def stop(self) -> None:
        """Stop serving; a second call does nothing."""
        self._stop.set()

    async def _serve(self, joined: store.JoinedStore, started: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        kernel = Kernel(joined)
        dispatcher = Dispatcher(kernel, policy_isolation=settings.policy_isolation)
        if settings.policy is not None:
            dispatcher.policies.set(
                settings.policy,
                settings.policy_params,
                isolation=settings.policy_isolation,
                by="rota serve --policy",
                replace=False,
            )
        dispatcher.load_stored()
        dispatcher.logs.set_maxima(settings.limits.logs_max, settings.limits.logs_bytes_max)
        self.store = joined
        self.handlers = handlers = RpcHandlers(
            kernel, dispatcher, store=store.shown_address(settings.store), rota_version=settings.rota_version
        )
        limits = fit_open_files(settings.limits, transports=1 if self._make_transport is None else 2)
        self.executor = executor = CallExecutor(loop, joined, handlers, limits)
        self.listener = UnixListener(executor, self._memory, limits)
        make = self._make_transport
        recovery = AgentRecovery(kernel)
        watching = [loop.create_task(watch_workers(kernel))]
        retention = RetentionThread(kernel, RETENTION_AFTER_S)
        self.transport = transport = None if make is None else make(executor, handlers, self._memory, limits)
        try:
            welcome_workers(kernel)
            await self._listen()
            address = f"unix:{self._directory.socket}"
            self.addresses = (address,) if transport is None else (address, await transport.open())
            self._record(kernel, "started")
            retention.start()
            if recovery.look():
                watching.append(loop.create_task(recovery.watch()))
            self._publish(kernel.clock.now())
            if threading.current_thread() is threading.main_thread():  # other threads cannot handle signals
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self.stop)
            joined.on_change(partial(self._stop_without_store, loop), foreign_only=True)
            self._notifier.ready()
            self._notifier.keep_alive(loop)
            _log.info("serving %s at %s", store.shown_address(settings.store), ", ".join(self.addresses))
            started()
            await self._stop.wait()
            await self._finish(transport)
            self._record_stop(kernel)
        finally:
            for task in watching:
                task.cancel()
            retention.close()
            dispatcher.close_policies()
            executor.close()
            handlers.close()

    def _record_stop(self, kernel: Kernel) -> None:
        """Record the stop; a server that is away, or was migrated by a newer rota, is no reason to fail."""
        try:
            self._record(kernel, "stopped")
        except (StoreUnavailable, SchemaMismatch) as problem:
            if isinstance(problem, StoreUnavailable) and "address" not in problem.data:
                raise  # this machine's disk is full, for example
            _log.warning("the stop is not in the journal: %s", problem)

    def _stop_without_store(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop serving when the store's file is no longer at its path; recording the stop raises its error then."""
        if self.store.lost is not None:
            _log.error("stopping: %s", self.store.lost.message)
            loop.call_soon_threadsafe(self.stop)

    async def _listen(self) -> None:
        try:
            await self.listener.open(self._directory.socket)
        except OSError as problem:
            text = f"cannot listen on {self._directory.socket}: {problem.strerror or problem}"
            raise StoreUnavailable(text, hint="Free disk space, or give --socket in a writable directory.") from problem

    def _publish(self, now: float) -> None:
        info = DaemonInfo(
            pid=os.getpid(),
            started_at=now,
            addresses=self.addresses,
            rota_version=self._settings.rota_version,
            protocol=PROTOCOL,
        )
        self._directory.publish(info)

    def _record(self, kernel: Kernel, verb: str) -> None:
        fact = DaemonChanged(verb=verb, rota_version=self._settings.rota_version)  # type: ignore[arg-type]  # one of two
        host = kernel.store.host_name
        address = None if self.transport is None else self.transport.address_for_others

        def work(tx: store.Transaction) -> None:
            append(tx, fact, now=kernel.clock.now())
            if host is not None and address is not None:
                (write_daemon_address if verb == "started" else forget_daemon_address)(tx, host, address)

        kernel.store.write(work)

    async def _finish(self, transport: Transport | None) -> None:
        pending = self.executor.pending_calls
        _log.info("stopping: %d calls are pending", len(pending))
        self._notifier.stopping()
        if not await self.listener.close(*([] if transport is None else [transport.close()])):
            text = "stopped with %d calls without a response, and %d clients that had not read theirs"
            _log.warning(text, len(pending), len(self.listener.connections))
