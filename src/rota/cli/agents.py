"""`rota agents`: who may be scheduled."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

__all__ = ["agents"]

agents = typer.Typer(help="Agents: who may be scheduled.", invoke_without_command=True)

Who = Annotated[str, typer.Argument(help="The agent, by pid or by name.")]
Priority = Annotated[int | None, typer.Option("--priority", help="Higher is sooner.")]
Weight = Annotated[int | None, typer.Option("--weight", help="Its share, in thousandths.")]
AtOnce = Annotated[int | None, typer.Option("--max-concurrent", help="How many runs at once.")]
Intent = Annotated[str | None, typer.Option("--intent", help="What it is after: PROTECT, DISCOVER, …")]
ExitKind = Literal["completed", "cancelled", "failed", "crashed"]


@agents.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Agents: who may be scheduled. Without a command, list them."""
    if context.invoked_subcommand is None:
        show_list(store=store, as_json=as_json)


@agents.command("list")
def show_list(
    *,
    state: Annotated[str | None, typer.Option("--state", help="In which state: READY, RUNNING, DEAD, …")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List agents by pid."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page

    with open_desk(store) as desk:
        page = desk.agents.list(state=state, project_id=project, limit=limit, offset=offset)
    names = ("pid", "name", "state", "project_id", "priority", "weight", "intent", "max_concurrent", "paused_by")
    print_page("agents", page, {name.replace("_id", "").replace("_", " "): name for name in names}, as_json=as_json)


@agents.command()
def show(who: Who, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show one agent."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        _print(desk.agents.get(pid_of(desk, who)), as_json=as_json)


@agents.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    *,
    template: Annotated[str, typer.Option("--template", help="What kind of agent it is.")] = "callable",
    project: Annotated[str | None, typer.Option("--project", help="The project that pays for it.")] = None,
    priority: Priority = None,
    weight: Weight = None,
    max_concurrent: AtOnce = None,
    intent: Intent = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Make an agent, and the store if there is none yet; its pid is printed. Nothing is enqueued."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json

    settings = _given(priority=priority, weight=weight, max_concurrent=max_concurrent, intent=intent)
    with open_desk(store, create=True) as desk:
        pid = desk.agents.create(name, template, project_id=project, **settings)
    print_json({"pid": pid}) if as_json else typer.echo(pid)


@agents.command("set")
def change(
    who: Who,
    *,
    priority: Priority = None,
    weight: Weight = None,
    max_concurrent: AtOnce = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="As many runs at once as there are.")] = False,
    intent: Intent = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Change an agent's priority, weight, cap or intent."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of

    changes = _given(priority=priority, weight=weight, max_concurrent=max_concurrent, intent=intent)
    if unlimited:
        changes["max_concurrent"] = None
    with open_desk(store) as desk:
        _print(desk.agents.update(pid_of(desk, who), **changes), as_json=as_json)


@agents.command()
def end(
    who: Who,
    exit_kind: Annotated[ExitKind, typer.Option("--exit-kind", help="How it ended.")] = "completed",
    keep: Annotated[bool, typer.Option("--keep", help="Keep its waiting entries instead of cancelling them.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """End an agent for good; its waiting entries are cancelled."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        _print(desk.terminate(pid_of(desk, who), exit_kind, queued="keep" if keep else "cancel"), as_json=as_json)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _print(agent: Any, *, as_json: bool) -> None:
    from rota.cli.output import print_fields, print_json

    print_json(agent) if as_json else print_fields(agent)
