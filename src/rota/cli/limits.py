"""`rota limits`: budgets per period, shared by name or bound to an agent or a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

if TYPE_CHECKING:
    from rota.model.budgets import SchedulingContext

__all__ = ["limits"]

limits = typer.Typer(help="Limits: so much per period, shared by name or one's own.", invoke_without_command=True)

Id = Annotated[int, typer.Argument(help="The limit's number.")]
Budget = Annotated[int, typer.Option("--budget", min=1, help="How much.")]
Period = Annotated[str, typer.Option("--period", help="Per which time: 60s, 1h, 1d.")]


@limits.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Limits: so much per period, shared by name or one's own. Without a command, list them."""
    if context.invoked_subcommand is None:
        show_list(store=store, as_json=as_json)


@limits.command("list")
def show_list(limit: Limit = 100, offset: Offset = 0, store: Store = STORE, as_json: AsJson = False) -> None:
    """List limits by number."""
    from rota.cli.connection import open_desk

    with open_desk(store) as desk:
        found = desk.contexts.list(limit=limit, offset=offset)
    _print(found, as_json=as_json)


@limits.command()
def create(
    bound_to: Annotated[Literal["name", "agent", "project"], typer.Argument(help="What it is bound to.")],
    whose: Annotated[str, typer.Argument(help="The name that is shared, the agent's pid, or the project's id.")],
    *,
    budget: Budget,
    period: Period = "60s",
    unit: Annotated[Literal["tokens", "requests"], typer.Option("--unit", help="What is counted.")] = "tokens",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Make a limit: one by name is shared by every entry that draws on it."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of, seconds

    period_s = seconds(period, "period")
    with open_desk(store) as desk:
        bound_id = str(pid_of(desk, whose)) if bound_to == "agent" else whose
        made = desk.contexts.create(bound_to=bound_to, bound_id=bound_id, budget=budget, period_s=period_s, unit=unit)
    _print([made], as_json=as_json)


@limits.command("set")
def change(context_id: Id, budget: Budget, period: Period, store: Store = STORE, as_json: AsJson = False) -> None:
    """Give a limit other numbers, in force from its next refill on."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import seconds

    with open_desk(store) as desk:
        changed = desk.contexts.adjust(context_id, budget=budget, period_s=seconds(period, "period"))
    _print([changed], as_json=as_json)


@limits.command()
def revoke(context_id: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """Take a limit away."""
    from rota.cli.connection import open_desk

    with open_desk(store) as desk:
        desk.contexts.revoke(context_id)
        gone = desk.contexts.get(context_id)
    _print([gone], as_json=as_json)


@limits.command()
def throttle(
    name: Annotated[str, typer.Argument(help="The name that is shared.")],
    pause: Annotated[str, typer.Argument(help="For so long: 30s, 5m.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """A provider asked for a pause: everybody who draws on this name waits."""
    from rota.cli.connection import open_desk
    from rota.cli.output import now, print_json, when
    from rota.cli.typed import seconds

    with open_desk(store) as desk:
        until_at = desk.contexts.throttle(name, seconds(pause, "pause"))
    print_json({"until_at": until_at}) if as_json else typer.echo(f"{name}: again {when(until_at, now())}")


def _print(found: list[SchedulingContext], *, as_json: bool) -> None:
    from rota.cli.output import print_json, print_table

    if as_json:
        print_json({"limits": found})
        return
    rows = [
        (each.context_id, each.bound_to, each.bound_id, each.unit, each.remaining, each.budget, each.state)
        for each in found
    ]
    print_table(("limit", "bound to", "whose", "unit", "left", "budget", "state"), rows, empty="no limits")
