"""`rota limits`: budgets per period, shared by name or bound to an agent or a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

if TYPE_CHECKING:
    from rota.model import SchedulingContext

__all__ = ["limits"]

limits = typer.Typer(help="Limits per period, shared by name or per agent.", invoke_without_command=True)

Id = Annotated[int, typer.Argument(help="The limit id.")]
Budget = Annotated[int, typer.Option("--budget", min=1, help="The amount per period.")]
Period = Annotated[str, typer.Option("--period", help="The period: 60s, 1h, 1d.")]


@limits.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Limits per period, shared by name or per agent. Without a command: list."""
    if context.invoked_subcommand is None:
        show_list(store=store, as_json=as_json)


@limits.command("list")
def show_list(limit: Limit = 100, offset: Offset = 0, store: Store = STORE, as_json: AsJson = False) -> None:
    """List limits by id."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        found = api.contexts.list(limit=limit, offset=offset)
    _print(found, as_json=as_json)


@limits.command()
def create(
    bound_to: Annotated[Literal["name", "agent", "project"], typer.Argument(help="What it is bound to.")],
    key: Annotated[str, typer.Argument(help="The shared name, the agent or the project.")],
    *,
    budget: Budget,
    period: Period = "60s",
    unit: Annotated[Literal["tokens", "requests"], typer.Option("--unit", help="What is counted.")] = "tokens",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Create a limit; a named one is shared by its entries."""
    from rota.cli.arguments import pid_of, seconds
    from rota.cli.connection import open_api

    period_s = seconds(period, "period")
    with open_api(store) as api:
        bound_id = str(pid_of(api, key)) if bound_to == "agent" else key
        made = api.contexts.create(bound_to=bound_to, bound_id=bound_id, budget=budget, period_s=period_s, unit=unit)
    _print([made], as_json=as_json)


@limits.command("set")
def change(context_id: Id, budget: Budget, period: Period, store: Store = STORE, as_json: AsJson = False) -> None:
    """Change a limit from its next refill on."""
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api

    with open_api(store) as api:
        changed = api.contexts.adjust(context_id, budget=budget, period_s=seconds(period, "period"))
    _print([changed], as_json=as_json)


@limits.command()
def revoke(context_id: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """Remove a limit."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        api.contexts.revoke(context_id)
        gone = api.contexts.get(context_id)
    _print([gone], as_json=as_json)


@limits.command()
def throttle(
    name: Annotated[str, typer.Argument(help="The name of the limit.")],
    pause: Annotated[str, typer.Argument(help="How long: 30s, 5m.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Pause a named limit, as a provider's Retry-After asks."""
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api
    from rota.cli.output import now, print_json, when

    with open_api(store) as api:
        until_at = api.contexts.throttle(name, seconds(pause, "pause"))
    print_json({"until_at": until_at}) if as_json else typer.echo(f"{name}: resumes {when(until_at, now())}")


def _print(found: list[SchedulingContext], *, as_json: bool) -> None:
    from rota.cli.output import print_json, print_table

    if as_json:
        print_json({"limits": found})
        return
    rows = [
        (each.context_id, each.bound_to, each.bound_id, each.unit, each.remaining, each.budget, each.state)
        for each in found
    ]
    print_table(("limit", "bound to", "name", "unit", "left", "budget", "state"), rows, empty="no limits")
