"""The methods for the cores of hosts: grants, leases, and what is granted now."""

from __future__ import annotations

from typing import Protocol

from rota import errors as e
from rota.model.core_grants import CoreAsk, CoreGrant, CoreHost, CoreStatus
from rota.service.api.declaration import REFUSED, method, viewed

__all__ = ["CoresApi"]


class CoresApi(Protocol):
    """The cores of hosts."""

    @method(
        "kernel.cores.grant",
        scope="work",
        execution="multi_commit",  # a refusal is recorded, too: it is raised after the commit
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(
            e.SchedUnknownId,
            e.StaleClaim,
            e.ContextInvalid,
            e.ContextRefused,
            e.LeaseRefused,
            e.IslandRefused,
        ),
    )
    def grant(self, sched_id: int, token: int, host: CoreHost, ask: CoreAsk) -> CoreGrant:
        """Grant a live claim what it asks of the cores of a host, or refuse it; the grant ends with the claim."""
        ...

    @method(
        "kernel.cores.release",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        result="released",
    )
    def release(self, sched_id: int, token: int) -> bool:
        """End the grant of a claim before the claim ends; returns whether there was one."""
        ...

    @method("kernel.cores.leased", scope="work", execution="read", bound=REFUSED, run="refused", result="cores")
    def leased(self, host: str) -> dict[int, int]:
        """Return the leased cores of a host, and the entry that leases each."""
        ...

    @method(
        "kernel.cores.status",
        scope="read",
        execution="read",
        bound=viewed("core_status"),
        run="view",
        command="rota cpu status",
    )
    def status(self, host: str | None = None) -> CoreStatus:
        """Return what live claims were granted of the cores of each host, refused entries, and budgets of CPU time."""
        ...
