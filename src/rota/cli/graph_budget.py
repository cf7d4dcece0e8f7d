"""`rota graph budget`: what a graph run and its nodes may use, what they have used, and how to raise it."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.terminal_text import say

__all__ = ["budget"]


def budget(
    run: Annotated[str, typer.Argument(help="The run, by its id.")],
    amounts: Annotated[
        list[str] | None, typer.Argument(help="New budgets: tokens=200000 usd=5.00; without any, show them.")
    ] = None,
    *,
    node: Annotated[str, typer.Option("--node", help="The node whose budget it is; without it, the whole run.")] = "",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Show the budgets of a graph run and of its nodes, or set them while it runs or waits.

    What waits for a budget that is raised goes on.
    """
    from rota.cli.arguments import amounts as parse_amounts
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import GraphBudgetLine

    wanted = parse_amounts(amounts or [], "budget")
    with open_api(store) as api:
        for dim, limit in wanted.items():
            api.ledger.set_graph_budget(run, dim, limit, node=node)
        lines = api.ledger.graph_budgets(run)
    if as_json:
        print_result(lines, list[GraphBudgetLine], as_json=True)
        return
    shown = [line for line in lines if not node or line.node == node]
    for line in shown:
        say(line.sentence())
    if not shown:
        say(f"run {run} has no budget" if not node else f"node {node} of run {run} has no budget of its own")
