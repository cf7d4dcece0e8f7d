"""A worker's entry in the register: written when it starts, renewed while it works, removed at its end.

A worker that cannot register works all the same: the register only says who is there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from importlib import metadata

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.model.workers import WORKER_REFRESH_S, SlotPool, WorkerKind
from rota.service.api import SchedulerApi

__all__ = ["WorkerRegistration"]


class WorkerRegistration:
    """Registers one worker. Several threads may use it."""

    def __init__(
        self,
        api: SchedulerApi,
        worker_id: str,
        incarnation: str,
        kind: WorkerKind,
        pools: Callable[[], Sequence[SlotPool]],
    ) -> None:
        self._api = api
        self._id = worker_id, incarnation
        self._kind: WorkerKind = kind
        self._pools = pools  # read at each renewal: the number of slots may change
        self._is_draining = self._has_left = False
        self._faults = FaultLog("rota.fleet")
        self._renew_at = 0.0  # on the advancing clock
        self._lock = threading.Lock()  # so that a renewal does not write what is out of date

    def start(self) -> None:
        """Register. A supervisor replaces earlier processes of its id: only one at a time works under it."""
        self._write(replaces=self._kind == "supervisor")

    def drain(self) -> None:
        """Record that the worker claims no more entries."""
        self._is_draining = True
        self._write()

    @property
    def due_in_s(self) -> float:
        """How long until the registration is to be renewed."""
        return self._renew_at - self._api.clock.monotonic()

    def renew_if_due(self) -> None:
        """Renew the registration if it is time."""
        if self.due_in_s <= 0:
            self._write()

    def renew(self) -> None:
        """Write the registration again: its slots have changed."""
        if self._renew_at:
            self._write()

    def leave(self) -> None:
        """Remove the worker from the register."""
        with self._lock:
            self._has_left = True
            self._call(lambda: self._api.workers.leave(*self._id))

    def _write(self, *, replaces: bool = False) -> None:
        with self._lock:
            self._renew_at = self._api.clock.monotonic() + WORKER_REFRESH_S
            if self._has_left:
                return
            self._call(
                lambda: self._api.workers.register(
                    *self._id,
                    kind=self._kind,
                    host=socket.gethostname(),
                    os_pid=os.getpid(),
                    pools=self._pools(),
                    version=_version(),
                    draining=self._is_draining,
                    replaces=replaces,
                )
            )

    def _call(self, write: Callable[[], None]) -> None:
        try:
            write()
        except RotaError as problem:
            self._faults.failed("the register of workers cannot be written", problem)
        else:
            self._faults.worked()


def _version() -> str:
    try:
        return metadata.version("rota")
    except metadata.PackageNotFoundError:  # run from its sources
        return ""
