"""The methods for budgets: ledgers, and contexts with a budget per period."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from rota import errors as e
from rota.kernel.ledger import WARN_AT, ChargePreview, ChargeResult
from rota.kernel.usage_windows import SHARE_WINDOW_S
from rota.model.budgets import ALERTS, BudgetLine, Handle, LedgerLine, SchedulingContext
from rota.model.graph_budgets import GraphBudgetLine
from rota.service.api.declaration import REFUSED, method, own_reads, owned, unfiltered, viewed

__all__ = ["ContextsApi", "LedgerApi"]

ContextList: TypeAlias = list[SchedulingContext]  # in the class, `list` is a method
_CONTEXT = (e.ContextUnknown, e.ContextInvalid)
_LINE = (e.UnknownPid, e.LedgerUnknownDim, e.LedgerInvalidAmount)


class LedgerApi(Protocol):
    """Grants, charges, budgets."""

    @method(
        "kernel.ledger.create",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="entries",
        errors=(e.LedgerExists, e.LedgerInvalidWarnAt, *_LINE),
    )
    def create(
        self,
        pid: int,
        grants: Mapping[str, int],
        warn_at: float = WARN_AT,
        *,
        alerts: tuple[float, ...] = ALERTS,
    ) -> list[LedgerLine]:
        """Grant an agent a total for each dimension: all or none."""
        ...

    @method(
        "kernel.ledger.get",
        command="ledger show",
        scope="read",
        execution="read",
        bound=viewed("ledger_lines"),
        run="view",
        result="entries",
        errors=(e.LedgerInvalidAmount,),
    )
    def get(self, pid: int) -> list[LedgerLine]:
        """Return an agent's ledger lines; the list may be empty."""
        ...

    @method("kernel.ledger.charge", scope="work", execution="write", bound=REFUSED, run="refused", errors=_LINE)
    def charge(self, pid: int, dim: str, amount: int) -> ChargeResult:
        """Record usage of one dimension of an agent's ledger."""
        ...

    @method("kernel.ledger.check", scope="read", execution="read", bound=owned("pid"), run="view", errors=_LINE)
    def check(self, pid: int, dim: str, amount: int) -> ChargePreview:
        """Return what a charge would do, without charging."""
        ...

    @method(
        "kernel.ledger.refund",
        command="ledger refund",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.LedgerInvalidRefund, *_LINE),
    )
    def refund(self, pid: int, dim: str, amount: int) -> LedgerLine:
        """Take back usage, at every level, up to what was used."""
        ...

    @method(
        "kernel.ledger.update_grant",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_LINE,
    )
    def update_grant(self, pid: int, dim: str, granted: int, *, alerts: tuple[float, ...] | None = None) -> LedgerLine:
        """Change a grant, and its limit with it."""
        ...

    @method(
        "kernel.ledger.list_breached",
        command="ledger breached",
        scope="read",
        execution="read",
        bound=viewed("ledger_lines"),
        run="view",
        result="entries",
    )
    def list_breached(self) -> list[LedgerLine]:
        """Return every ledger line whose usage exceeds its limit."""
        ...

    @method(
        "kernel.ledger.set_budget",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.ProjectUnknown, e.LedgerInvalidAmount),
    )
    def set_budget(
        self,
        level: Literal["project", "global"],
        owner: str,
        dim: str,
        limit: int | None,
        *,
        window_s: float = SHARE_WINDOW_S,
        alerts: tuple[float, ...] | None = None,
    ) -> None:
        """Set the budget of a project, or of the whole store, per rolling window."""
        ...

    @method(
        "kernel.ledger.share_window",
        scope="read",
        execution="read",
        bound=unfiltered("a setting of the store"),
        run="view",
        result="window_s",
    )
    def share_window(self) -> float:
        """Return how far back fair_share looks."""
        ...

    @method(
        "kernel.ledger.set_share_window",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.LedgerInvalidAmount,),
    )
    def set_share_window(self, window_s: float) -> None:
        """Set how far back fair_share looks."""
        ...

    @method(
        "kernel.ledger.budgets",
        command="ledger budgets",
        scope="read",
        execution="read",
        bound=viewed("budgets"),
        run="view",
        result="budgets",
    )
    def budgets(self) -> list[BudgetLine]:
        """Return the project budgets and the global budgets, with usage and reservations."""
        ...

    @method(
        "kernel.ledger.graph_budgets",
        command="graph budget",
        scope="read",
        execution="read",
        bound=viewed("graph_budgets"),
        run="view",
        result="lines",
        errors=(e.LedgerInvalidAmount,),
    )
    def graph_budgets(self, run_id: str) -> list[GraphBudgetLine]:
        """Return the budgets of a graph run and of its nodes, with usage and reservations; the list may be empty."""
        ...

    @method(
        "kernel.ledger.open_graph_budgets",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        result="lines",
        errors=(e.LedgerInvalidAmount,),
    )
    def open_graph_budgets(self, run_id: str, budgets: dict[str, dict[str, int]]) -> list[GraphBudgetLine]:
        """Give a graph run (node "") and its nodes budgets; those that exist stay as they are."""
        ...

    @method(
        "kernel.ledger.charge_graph",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="lines",
        errors=(e.LedgerInvalidAmount, e.SchedInvalidPayload),
    )
    def charge_graph(
        self,
        run_id: str,
        amounts: Mapping[str, int],
        *,
        node: str = "",
        model: str | None = None,
        key: str | None = None,
    ) -> list[GraphBudgetLine]:
        """Record what a node of a graph used in the process that executes the run itself.

        A second charge of a run with the same key records nothing, so a charge may be repeated.
        """
        ...

    @method(
        "kernel.ledger.set_graph_budget",
        command="graph budget",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        result="lines",
        errors=(e.LedgerInvalidAmount,),
    )
    def set_graph_budget(self, run_id: str, dim: str, limit: int, *, node: str = "") -> list[GraphBudgetLine]:
        """Set a budget of a graph run, or of one of its nodes; what waits for it goes on."""
        ...


class ContextsApi(Protocol):
    """Budgets per period, named limits."""

    @method(
        "kernel.context.create",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.ContextExists, e.UnknownPid, e.ProjectUnknown, e.ContextInvalid),
    )
    def create(
        self,
        *,
        bound_to: str,
        bound_id: str | int,
        budget: int,
        period_s: float,
        unit: str = "tokens",
        project_id: str | None = None,
    ) -> SchedulingContext:
        """Create a context: a budget per period."""
        ...

    @method(
        "kernel.context.get", scope="read", execution="read", bound=owned("context_id"), run="view", errors=_CONTEXT
    )
    def get(self, context_id: int) -> SchedulingContext:
        """Return one context."""
        ...

    @method(
        "kernel.context.adjust",
        command="limits set",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.StaleHandle, *_CONTEXT),
    )
    def adjust(self, context_id: int, *, budget: int, period_s: float) -> SchedulingContext:
        """Change a context's budget and period from the next refill on."""
        ...

    @method(
        "kernel.context.revoke",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.ContextIllegalTransition, *_CONTEXT),
    )
    def revoke(self, context_id: int) -> None:
        """Revoke a context; all its handles become stale."""
        ...

    @method(
        "kernel.context.resolve",
        scope="read",
        execution="read",
        bound=owned("handle"),
        run="view",
        errors=(e.StaleHandle, *_CONTEXT),
    )
    def resolve(self, handle: Handle) -> SchedulingContext:
        """Return the context of a handle."""
        ...

    @method(
        "kernel.context.charge",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        operate_fields=("now",),
        errors=(e.StaleHandle, *_CONTEXT),
    )
    def charge(self, context_id: int, amount: int, now: float | None = None) -> SchedulingContext:
        """Charge a context outside of any run."""
        ...

    @method(
        "kernel.context.throttle",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="until_at",
        errors=_CONTEXT,
    )
    def throttle(self, name: str, retry_after_s: float, *, by: int | None = None) -> float:
        """Pause a named limit because its provider asked for it: at most one day."""
        ...

    @method(
        "kernel.context.resume",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_CONTEXT,
    )
    def resume(self, name: str) -> None:
        """End the pause of a named limit."""
        ...

    @method(
        "kernel.context.list",
        command="limits list",
        scope="read",
        execution="read",
        bound=own_reads("contexts"),
        run="view",
        result="contexts",
    )
    def list(self, *, limit: int = 100, offset: int = 0) -> ContextList:
        """Return a page of contexts, by id."""
        ...
