"""The budgets of a graph: what is written in its file, as lines of the ledger.

    graph:      {name: report, budget: {tokens: 100000, usd: 2.50}}
    components:
      - id: writer
        execution: {agent: writer, budget: {tokens: 20000}, on_over_budget: wait}

A budget is by dimension, in whole numbers; `usd` is in dollars and may have up to six digits after the point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.graph.spec import GraphSpec
from rota.model.checks import AMOUNT_MAX
from rota.model.money import USD, in_micro
from rota.model.work import DIMENSIONS

__all__ = ["BUDGET_DIMENSIONS", "amounts_of", "has_budgets", "lines_of"]

BUDGET_DIMENSIONS = (*DIMENSIONS, USD)


def amounts_of(budget: Mapping[str, Any] | None) -> dict[str, int]:
    """Return a budget as whole amounts per dimension of the ledger; `ValueError` says which amount is none."""
    found: dict[str, int] = {}
    for dim, amount in in_micro(budget or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount != int(amount):
            raise ValueError(f"{dim} must be a whole number, not {amount!r}")
        if not 0 <= amount <= AMOUNT_MAX:
            raise ValueError(f"{dim} must be from 0 to {AMOUNT_MAX:,}, not {amount:,}")
        found[dim] = int(amount)
    return found


def lines_of(spec: GraphSpec, budget: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
    """Return the budgets of a graph that was checked: by component, and under "" that of the run.

    `budget` is what the run was started with: it takes precedence over the graph's own, per dimension.
    """
    lines = {"": {**amounts_of(spec.graph.budget), **(budget or {})}}
    lines |= {each.id: amounts_of(each.execution.budget) for each in spec.components}
    return {node: amounts for node, amounts in lines.items() if amounts}


def has_budgets(spec: GraphSpec, budget: Mapping[str, int] | None = None) -> bool:
    """Whether a run of the graph has any budget."""
    return bool(budget or spec.graph.budget or any(each.execution.budget for each in spec.components))
