"""The methods for the register of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota import errors as e
from rota.model.workers import SlotPool, WorkerInfo, WorkerKind
from rota.service.api.declaration import REFUSED, method

__all__ = ["WorkersApi"]


class WorkersApi(Protocol):
    """The workers that are there."""

    @method(
        "kernel.worker.register",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def register(
        self,
        worker_id: str,
        incarnation: str,
        *,
        kind: WorkerKind,
        host: str,
        os_pid: int,
        pools: Sequence[SlotPool],
        version: str = "",
        draining: bool = False,
        replaces: bool = False,
    ) -> None:
        """Register a worker, or renew its registration, which is due every 15 s."""
        ...

    @method(
        "kernel.worker.leave",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def leave(self, worker_id: str, incarnation: str) -> None:
        """Remove a worker from the register, at its end."""
        ...

    @method("kernel.worker.list", scope="read", execution="read", bound=REFUSED, run="refused", result="workers")
    def list(self, *, lost: bool = False) -> list[WorkerInfo]:
        """Return the workers that are alive, by id; with lost also those that vanished and are not removed yet."""
        ...
