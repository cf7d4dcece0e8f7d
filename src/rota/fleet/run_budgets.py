"""What a run may still use: of its own ceiling, of its agent's grants, and of the budgets of its graph run."""

from __future__ import annotations

from collections.abc import Mapping

from rota.model.graph_budgets import GraphAccount, left_of
from rota.service.api import SchedulerApi

__all__ = ["remaining_budget"]


def remaining_budget(
    api: SchedulerApi, pid: int, ceiling: Mapping[str, int], account: GraphAccount | None = None
) -> dict[str, int]:
    """Return what is left per dimension: of the agent's grants, or of the run's own `ceiling` where that is less.

    A run that counts in the budgets of a graph run has no more than what is left of those.
    """
    left = {line.dim: line.hard_limit - line.used for line in api.ledger.get(pid)}
    for amounts in (ceiling, {} if account is None else _left_in_graph(api, account)):
        left |= {dim: min(amount, left.get(dim, amount)) for dim, amount in amounts.items()}
    return left


def _left_in_graph(api: SchedulerApi, account: GraphAccount) -> dict[str, int]:
    lines = api.ledger.graph_budgets(account.run_id)
    return left_of(line for line in lines if line.node in ("", account.node))
