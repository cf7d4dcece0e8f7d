"""`rota ledger`: grants and usage of agents, budgets of projects and of the whole store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store, complete_agent
from rota.cli.registers import register_group
from rota.cli.terminal_text import say

__all__ = ["ledger"]

ledger = typer.Typer(
    help="Grants and usage of agents; budgets of projects.", no_args_is_help=True, cls=register_group("ledger")
)

AgentName = Annotated[str, typer.Argument(help="The agent, by pid or name.", autocompletion=complete_agent)]
Dim = Annotated[str, typer.Argument(help="The dimension: tokens, usd, …")]
Amount = Annotated[str, typer.Argument(help="The amount: a whole number; of usd, dollars such as 5.00.")]
Alerts = Annotated[
    list[float] | None,
    typer.Option("--alert", help="A share of the budget at which an alert is recorded, such as 0.5; may be repeated."),
]


@ledger.command()
def grant(
    agent: AgentName, dim: Dim, amount: Amount, *, alert: Alerts = None, store: Store = STORE, as_json: AsJson = False
) -> None:
    """Set an agent's total grant in one dimension."""
    from rota.cli.arguments import amount_of, pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import ALERTS, LedgerLine

    dim, granted = amount_of(dim, amount, "amount")
    alerts = None if alert is None else tuple(alert)
    with open_api(store) as api:
        pid = pid_of(api, agent)
        if any(line.dim == dim for line in api.ledger.get(pid)):
            api.ledger.update_grant(pid, dim, granted, alerts=alerts)
        else:
            api.ledger.create(pid, {dim: granted}, alerts=ALERTS if alerts is None else alerts)
        lines = api.ledger.get(pid)
    print_result(lines, list[LedgerLine], as_json=as_json)


@ledger.command()
def charge(agent: AgentName, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Charge usage outside a run, at every level."""
    from rota.cli.arguments import amount_of, pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import LedgerLine

    dim, used = amount_of(dim, amount, "amount")
    with open_api(store) as api:
        pid = pid_of(api, agent)
        api.ledger.charge(pid, dim, used)
        lines = api.ledger.get(pid)
    print_result(lines, list[LedgerLine], as_json=as_json)


@ledger.command()
def refund(agent: AgentName, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Take back usage, at every level, up to what was used."""
    from rota.cli.arguments import amount_of, pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import LedgerLine

    dim, returned = amount_of(dim, amount, "amount")
    with open_api(store) as api:
        line = api.ledger.refund(pid_of(api, agent), dim, returned)
    print_result(line, LedgerLine, as_json=as_json)


@ledger.command()
def budget(
    level: Annotated[Literal["project", "global"], typer.Argument(help="A project's budget or the global one.")],
    dim: Dim,
    *,
    limit: Annotated[str | None, typer.Argument(help="The maximum, of usd in dollars; without it, no budget.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="The project; required with `project`.")] = None,
    window: Annotated[str, typer.Option("--window", help="The rolling window: 1h, 1d.")] = "1d",
    alert: Alerts = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Set a project or global budget; without a limit, remove it."""
    from rota.cli.arguments import amount_of, seconds
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.errors import InvalidInput
    from rota.model import COST_DIM, USD, amount_text, dim_text

    if (level == "project") != (project is not None):
        raise InvalidInput(
            "--project is required for a project budget and not allowed for the global one", field="project"
        )
    owner, window_s = project or "*", seconds(window, "window")
    maximum: int | None = None
    if limit is not None:
        dim, maximum = amount_of(dim, limit, "limit")
    elif dim == USD:
        dim = COST_DIM
    with open_api(store) as api:
        alerts = None if alert is None else tuple(alert)
        api.ledger.set_budget(level, owner, dim, maximum, window_s=window_s, alerts=alerts)
    if as_json:
        print_json({"level": level, "owner": owner, "dim": dim, "limit": maximum, "window_s": window_s})
    else:
        shown = "no budget" if maximum is None else f"{amount_text(dim, maximum)} per {window}"
        say(f"{dim_text(dim)} of {level} {owner}: {shown}")
