"""`rota limits`: budgets per period, shared by name or bound to an agent or a project."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.registers import register_group, run_command
from rota.cli.terminal_text import say

__all__ = ["limits"]

limits = typer.Typer(
    help="Limits per period, shared by name or per agent.", invoke_without_command=True, cls=register_group("limits")
)

Id = Annotated[int, typer.Argument(help="The limit id.")]
Budget = Annotated[int, typer.Option("--budget", min=1, help="The amount per period.")]
Period = Annotated[str, typer.Option("--period", help="The period: 60s, 1h, 1d.")]


@limits.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Limits per period, shared by name or per agent. Without a command: list."""
    if context.invoked_subcommand is None:
        run_command("limits list", store=store, as_json=as_json)


@limits.command()
def create(
    bound_to: Annotated[Literal["name", "agent", "project"], typer.Argument(help="What it is bound to.")],
    key: Annotated[str, typer.Argument(help="The shared name, the agent or the project.")],
    *,
    budget: Budget,
    period: Period = "60s",
    unit: Annotated[
        Literal["tokens", "requests", "cpu_ms"],
        typer.Option("--unit", help="What is counted: tokens, starts of runs, or measured CPU time in milliseconds."),
    ] = "tokens",
    project: Annotated[
        str | None, typer.Option("--project", help="Of a named limit: only this project's entries draw on it.")
    ] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Create a limit; a named one is shared by its entries."""
    from rota.cli.arguments import pid_of, seconds
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import SchedulingContext

    period_s = seconds(period, "period")
    with open_api(store) as api:
        bound_id = str(pid_of(api, key)) if bound_to == "agent" else key
        made = api.contexts.create(
            bound_to=bound_to, bound_id=bound_id, budget=budget, period_s=period_s, unit=unit, project_id=project
        )
    print_result(made, SchedulingContext, as_json=as_json)


@limits.command()
def revoke(context_id: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """Remove a limit."""
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import SchedulingContext

    with open_api(store) as api:
        api.contexts.revoke(context_id)
        gone = api.contexts.get(context_id)
    print_result(gone, SchedulingContext, as_json=as_json)


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
    print_json({"until_at": until_at}) if as_json else say(f"{name}: resumes {when(until_at, now())}")


@limits.command()
def resume(
    name: Annotated[str, typer.Argument(help="The name of the limit.")], store: Store = STORE, as_json: AsJson = False
) -> None:
    """End the pause of a named limit."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    with open_api(store) as api:
        api.contexts.resume(name)
    print_json({"resumed": name}) if as_json else say(f"{name}: resumed")
