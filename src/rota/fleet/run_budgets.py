"""What a run may still use: of its own ceiling, of its agent's grants, and of the budgets of its graph run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rota.model.graph_budgets import GraphAccount, GraphBudgetLine, GraphPlace, left_of
from rota.service.api import SchedulerApi

__all__ = ["left_in_graph", "remaining_budget", "waits_over_budget"]


def remaining_budget(
    api: SchedulerApi, pid: int, ceiling: Mapping[str, int], account: GraphAccount | None = None
) -> dict[str, int]:
    """Return what is left per dimension: of the agent's grants, or of the run's own `ceiling` where that is less.

    A run that counts in the budgets of a graph run has no more than what is left of those.
    """
    left = {line.dim: line.hard_limit - line.used for line in api.ledger.get(pid)}
    for amounts in (ceiling, {} if account is None else left_in_graph(api, account.places)):
        left |= {dim: min(amount, left.get(dim, amount)) for dim, amount in amounts.items()}
    return left


def left_in_graph(api: SchedulerApi, places: Iterable[GraphPlace]) -> dict[str, int]:
    """Return what is left per dimension of the budgets of graph runs and of their nodes."""
    return left_of(line for place in places for line in _lines(api, place))


def waits_over_budget(api: SchedulerApi, account: GraphAccount) -> bool:
    """Whether a run that is over a budget of its graph goes back to the queue: each node that is over waits for it."""
    places = account.held_by
    if len({place.on_over for place in places}) > 1:
        places = tuple(place for place in places if any(line.left < 0 for line in _lines(api, place)))
    return all(place.on_over == "wait" for place in places)


def _lines(api: SchedulerApi, place: GraphPlace) -> list[GraphBudgetLine]:
    return [line for line in api.ledger.graph_budgets(place.run_id) if line.node in ("", place.node)]
