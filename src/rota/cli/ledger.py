"""`rota ledger`: grants and usage of agents, budgets of projects and of the whole store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.registers import register_group
from rota.cli.terminal_text import say

__all__ = ["ledger"]

ledger = typer.Typer(
    help="Grants and usage of agents; budgets of projects.", no_args_is_help=True, cls=register_group("ledger")
)

AgentName = Annotated[str, typer.Argument(help="The agent, by pid or name.")]
Dim = Annotated[str, typer.Argument(help="The dimension: tokens, cost_micro, …")]
Amount = Annotated[int, typer.Argument(min=0, help="The amount.")]


@ledger.command()
def grant(agent: AgentName, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Set an agent's total grant in one dimension."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import LedgerLine

    with open_api(store) as api:
        pid = pid_of(api, agent)
        if any(line.dim == dim for line in api.ledger.get(pid)):
            api.ledger.update_grant(pid, dim, amount)
        else:
            api.ledger.create(pid, {dim: amount})
        lines = api.ledger.get(pid)
    print_result(lines, list[LedgerLine], as_json=as_json)


@ledger.command()
def charge(agent: AgentName, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Charge usage outside a run, at every level."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import LedgerLine

    with open_api(store) as api:
        pid = pid_of(api, agent)
        api.ledger.charge(pid, dim, amount)
        lines = api.ledger.get(pid)
    print_result(lines, list[LedgerLine], as_json=as_json)


@ledger.command()
def budget(
    level: Annotated[Literal["project", "global"], typer.Argument(help="A project's budget or the global one.")],
    dim: Dim,
    *,
    limit: Annotated[int | None, typer.Argument(min=0, help="The maximum; without it, no budget.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="The project; required with `project`.")] = None,
    window: Annotated[str, typer.Option("--window", help="The rolling window: 1h, 1d.")] = "1d",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Set a project or global budget; without a limit, remove it."""
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    if (level == "project") != (project is not None):
        raise InvalidInput(
            "--project is required for a project budget and not allowed for the global one", field="project"
        )
    owner, window_s = project or "*", seconds(window, "window")
    with open_api(store) as api:
        api.ledger.set_budget(level, owner, dim, limit, window_s=window_s)
    if as_json:
        print_json({"level": level, "owner": owner, "dim": dim, "limit": limit, "window_s": window_s})
    else:
        say(f"{dim} of {level} {owner}: {'no budget' if limit is None else f'{limit:,} per {window}'}")
