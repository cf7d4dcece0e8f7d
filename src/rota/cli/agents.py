"""`rota agents`: list, create, change and terminate agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

__all__ = ["agents"]

agents = typer.Typer(help="List, create, change and terminate agents.", invoke_without_command=True)

AgentName = Annotated[str, typer.Argument(help="The agent, by pid or name.")]
Priority = Annotated[int | None, typer.Option("--priority", help="Higher runs sooner.")]
Weight = Annotated[int | None, typer.Option("--weight", help="Its share, in thousandths. Default: 1000.")]
MaxConcurrent = Annotated[int | None, typer.Option("--max-concurrent", help="Maximum number of concurrent runs.")]
Intent = Annotated[str | None, typer.Option("--intent", help="Its intent: PROTECT, DISCOVER, …")]
ExitKind = Literal["completed", "cancelled", "failed", "crashed"]


@agents.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """List, create, change and terminate agents. Without a command: list."""
    if context.invoked_subcommand is None:
        show_list(store=store, as_json=as_json)


@agents.command("list")
def show_list(
    *,
    state: Annotated[str | None, typer.Option("--state", help="Only in this state: READY, RUNNING, DEAD, …")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project's.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List agents by pid."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_page

    with open_api(store) as api:
        page = api.agents.list(state=state, project_id=project, limit=limit, offset=offset)
    names = ("pid", "name", "state", "project_id", "priority", "weight", "intent", "max_concurrent", "paused_by")
    print_page("agents", page, {name.replace("_id", "").replace("_", " "): name for name in names}, as_json=as_json)


@agents.command()
def show(agent: AgentName, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show one agent."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.agents.get(pid_of(api, agent)), as_json=as_json)


@agents.command()
def create(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    *,
    template: Annotated[str, typer.Option("--template", help="Its template.")] = "callable",
    project: Annotated[str | None, typer.Option("--project", help="The project it belongs to.")] = None,
    priority: Priority = None,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    intent: Intent = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Create an agent and print its pid.

    Creates the store if it does not exist. Enqueues nothing.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    settings = _given(priority=priority, weight=weight, max_concurrent=max_concurrent, intent=intent)
    with open_api(store, create=True) as api:
        pid = api.agents.create(name, template, project_id=project, **settings)
    print_json({"pid": pid}) if as_json else typer.echo(pid)


@agents.command("set")
def change(
    agent: AgentName,
    *,
    priority: Priority = None,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Remove the maximum of concurrent runs.")] = False,
    intent: Intent = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Change an agent's priority, weight, cap or intent."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api

    changes = _given(priority=priority, weight=weight, max_concurrent=max_concurrent, intent=intent)
    if unlimited:
        changes["max_concurrent"] = None
    with open_api(store) as api:
        _print(api.agents.update(pid_of(api, agent), **changes), as_json=as_json)


@agents.command()
def end(
    agent: AgentName,
    exit_kind: Annotated[ExitKind, typer.Option("--exit-kind", help="Its exit kind.")] = "completed",
    keep: Annotated[bool, typer.Option("--keep", help="Keep its queued entries.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Terminate an agent and cancel its queued entries."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.terminate(pid_of(api, agent), exit_kind, queued="keep" if keep else "cancel"), as_json=as_json)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _print(found: Any, *, as_json: bool) -> None:
    from rota.cli.output import print_fields, print_json

    print_json(found) if as_json else print_fields(found)
