"""The methods for usage reports and the prices of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rota import errors as e
from rota.model.prices import ModelPrice
from rota.model.usage import UsageKey, UsageReport
from rota.service.api.declaration import REFUSED, method, own_reads, unfiltered

__all__ = ["UsageApi"]


class UsageApi(Protocol):
    """What was used, per day."""

    @method(
        "kernel.usage.report",
        command="usage",
        scope="read",
        execution="multi_commit",  # it first brings the usage per day up to date
        bound=own_reads("usage"),
        run="view",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def report(
        self,
        by: tuple[UsageKey, ...] = ("project",),
        since_at: float | None = None,
        until_at: float | None = None,
        *,
        project_id: str | None = None,
        agent: str | None = None,
    ) -> UsageReport:
        """Return runs, failures, tokens, cost, CPU time and waits of some days, by project, agent, model or day."""
        ...

    @method(
        "kernel.usage.prices",
        scope="read",
        execution="read",
        bound=unfiltered("what providers charge is the same for all projects"),
        run="view",
        result="prices",
    )
    def prices(self) -> dict[str, ModelPrice]:
        """Return the prices of models, by which a run's tokens get a cost."""
        ...

    @method(
        "kernel.usage.set_prices",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def set_prices(self, prices: Mapping[str, ModelPrice | None]) -> None:
        """Set the prices of some models; null removes one."""
        ...
