"""`rota ledger`: what agents were given and used, and the budgets above them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["ledger"]

ledger = typer.Typer(help="Ledgers of agents, and budgets of projects and of everybody.", no_args_is_help=True)

Who = Annotated[str, typer.Argument(help="The agent, by pid or by name.")]
Dim = Annotated[str, typer.Argument(help="The dimension: tokens, cost_micro, …")]
Amount = Annotated[int, typer.Argument(min=0, help="How much.")]

_LINES = {"agent": "pid", "dimension": "dim", "used": "used", "granted": "granted", "limit": "hard_limit"}


@ledger.command()
def show(who: Who, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show what an agent was given and has used."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        lines = desk.ledger.get(pid_of(desk, who))
    print_page("lines", (lines, len(lines)), _LINES, as_json=as_json)


@ledger.command()
def grant(who: Who, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Give an agent so much in all of one dimension, in place of what it had."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        pid = pid_of(desk, who)
        if any(line.dim == dim for line in desk.ledger.get(pid)):
            desk.ledger.update_grant(pid, dim, amount)
        else:
            desk.ledger.create(pid, {dim: amount})
        lines = desk.ledger.get(pid)
    print_page("lines", (lines, len(lines)), _LINES, as_json=as_json)


@ledger.command()
def charge(who: Who, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Record usage outside of any run, at every level."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        pid = pid_of(desk, who)
        desk.ledger.charge(pid, dim, amount)
        lines = desk.ledger.get(pid)
    print_page("lines", (lines, len(lines)), _LINES, as_json=as_json)


@ledger.command()
def refund(who: Who, dim: Dim, amount: Amount, store: Store = STORE, as_json: AsJson = False) -> None:
    """Give usage back, at every level; not more than was used."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        lines = [desk.ledger.refund(pid_of(desk, who), dim, amount)]
    print_page("lines", (lines, len(lines)), _LINES, as_json=as_json)


@ledger.command()
def breached(store: Store = STORE, as_json: AsJson = False) -> None:
    """List every agent's line that is used up and more."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page

    with open_desk(store) as desk:
        lines = desk.ledger.list_breached()
    print_page("lines", (lines, len(lines)), _LINES, as_json=as_json)


@ledger.command()
def budgets(store: Store = STORE, as_json: AsJson = False) -> None:
    """List the budgets of projects and of everybody, per rolling window."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page

    with open_desk(store) as desk:
        lines = desk.ledger.budgets()
    names = {"level": "level", "owner": "owner", "dimension": "dim", "used": "used", "reserved": "reserved"}
    print_page("budgets", (lines, len(lines)), names | {"limit": "limit", "window s": "window_s"}, as_json=as_json)


@ledger.command()
def budget(
    level: Annotated[Literal["project", "global"], typer.Argument(help="A project's, or everybody's.")],
    dim: Dim,
    *,
    limit: Annotated[int | None, typer.Argument(min=0, help="At most so much; without it, no budget.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Whose, of a project's.")] = None,
    window: Annotated[str, typer.Option("--window", help="Per rolling window: 1h, 1d.")] = "1d",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Set what a project, or everybody, may use per rolling window; without a limit it is lifted."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json
    from rota.cli.typed import seconds
    from rota.errors import InvalidInput

    if (level == "project") != (project is not None):
        raise InvalidInput("a project's budget names its --project, everybody's names none", field="project")
    owner, window_s = project or "*", seconds(window, "window")
    with open_desk(store) as desk:
        desk.ledger.set_budget(level, owner, dim, limit, window_s=window_s)
    if as_json:
        print_json({"level": level, "owner": owner, "dim": dim, "limit": limit, "window_s": window_s})
    else:
        typer.echo(f"{dim} of {level} {owner}: {'no budget' if limit is None else f'{limit:,} per {window}'}")
