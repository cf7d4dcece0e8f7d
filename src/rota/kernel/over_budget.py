"""Which budget a run has exceeded, after a charge: the event by which its supervisor stops it.

A function charges through its supervisor, which sees this itself. A program charges through the run's own socket or a
daemon; its supervisor reads the event in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping

from rota.kernel.ledger import ChargeResult
from rota.kernel.rows import Needs
from rota.model.events import RunOverBudget
from rota.model.graph_budgets import GraphBudgetLine

__all__ = ["over_budget_of"]


def over_budget_of(  # noqa: PLR0917  # what a charge knows
    sched_id: int,
    token: int | None,
    needs: Needs,
    spent: Mapping[str, int],
    lines: Mapping[str, ChargeResult],
    in_graph: GraphBudgetLine | None,
) -> RunOverBudget | None:
    """Return the first budget that a run has exceeded: its own ceiling, its agent's grant, or those of its graph run.

    The coordinator of a graph run goes on, as `charge_lines` says: it decides what happens then.
    """
    for dim, most in needs.ceiling.items():
        if spent.get(dim, 0) > most:
            return RunOverBudget(sched_id=sched_id, token=token, level="run", dim=dim, used=spent[dim], limit=most)
    for dim, line in lines.items():
        if line.over_limit:
            return RunOverBudget(
                sched_id=sched_id, token=token, level="agent", dim=dim, used=line.used, limit=line.hard_limit
            )
    if in_graph is not None:
        dim, used, limit = in_graph.dim, in_graph.used, in_graph.limit
        return RunOverBudget(sched_id=sched_id, token=token, level="graph", dim=dim, used=used, limit=limit)
    return None
