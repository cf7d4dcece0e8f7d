"""`rota projects`: who pays, and for how much at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, By, Limit, Offset, Store

__all__ = ["projects"]

projects = typer.Typer(help="Projects: who a run is charged to, and their workspaces.", invoke_without_command=True)
workspaces = typer.Typer(help="A project's workspaces.", no_args_is_help=True)
projects.add_typer(workspaces, name="workspaces")

Id = Annotated[str, typer.Argument(help="The project.")]
Name = Annotated[str | None, typer.Option("--name", help="What it is called.")]
Weight = Annotated[int | None, typer.Option("--weight", help="Its share, in thousandths.")]
AtOnce = Annotated[int | None, typer.Option("--max-concurrent", help="How many runs at once.")]


@projects.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Projects: who a run is charged to. Without a command, list them."""
    if context.invoked_subcommand is None:
        show_list(store=store, as_json=as_json)


@projects.command("list")
def show_list(
    status: Annotated[str | None, typer.Option("--status", help="ACTIVE, PAUSED or ARCHIVED.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List projects by id."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page

    with open_desk(store) as desk:
        page = desk.projects.list(status=status, limit=limit, offset=offset)
    names = {"project": "project_id", "name": "name", "status": "status", "weight": "weight"}
    more = {"max concurrent": "max_concurrent", "paused by": "paused_by"}
    print_page("projects", page, names | more, as_json=as_json)


@projects.command()
def show(project: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show one project."""
    from rota.cli.connection import open_desk

    with open_desk(store) as desk:
        _print(desk.projects.get(project), as_json=as_json)


@projects.command()
def create(
    project: Id,
    *,
    name: Name = None,
    weight: Weight = None,
    max_concurrent: AtOnce = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Make a project, and the store if there is none yet."""
    from rota.cli.connection import open_desk

    settings = _given(name=name, weight=weight, max_concurrent=max_concurrent)
    with open_desk(store, create=True) as desk:
        _print(desk.projects.create(project, **settings), as_json=as_json)


@projects.command("set")
def change(
    project: Id,
    *,
    name: Name = None,
    weight: Weight = None,
    max_concurrent: AtOnce = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="As many runs at once as there are.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Change a project's name, weight or cap."""
    from rota.cli.connection import open_desk

    changes = _given(name=name, weight=weight, max_concurrent=max_concurrent)
    if unlimited:
        changes["max_concurrent"] = None
    with open_desk(store) as desk:
        _print(desk.projects.update(project, **changes), as_json=as_json)


@projects.command()
def constrain(
    project: Id,
    *,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="One run at a time.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="No runs at all.")] = False,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="At most so many of a kind: gpu=2.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Put a constraint on a project in place of the one it has; without options it is released."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import amounts
    from rota.model.work import ProjectConstraint

    most = amounts(kind or [], "kind")
    constraint = ProjectConstraint(exclusive=exclusive, pause_scheduling=paused, max_by_kind=most)
    with open_desk(store) as desk:
        _print(desk.projects.constrain(project, constraint), as_json=as_json)


@projects.command()
def archive(project: Id, by: By = "operator", store: Store = STORE, as_json: AsJson = False) -> None:
    """Put a project away; it can be restored."""
    _move(project, "archive", by, store, as_json=as_json)


@projects.command()
def restore(project: Id, by: By = "operator", store: Store = STORE, as_json: AsJson = False) -> None:
    """Bring an archived project back, paused."""
    _move(project, "restore", by, store, as_json=as_json)


@workspaces.command("list")
def list_workspaces(project: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """List a project's workspaces and who holds them."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_page

    with open_desk(store) as desk:
        found = desk.projects.workspaces(project)
    names = {"workspace": "workspace_id", "path": "path", "mode": "lock_mode", "held by": "held_by"}
    print_page("workspaces", (found, len(found)), names, as_json=as_json)


@workspaces.command("add")
def add_workspace(
    project: Id,
    workspace: Annotated[str, typer.Argument(help="What it is called.")],
    path: Annotated[str, typer.Argument(help="The folder.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Give a project a workspace."""
    from rota.cli.connection import open_desk

    with open_desk(store) as desk:
        _print(desk.projects.add_workspace(workspace, project, path), as_json=as_json)


@workspaces.command("remove")
def remove_workspace(
    workspace: Annotated[str, typer.Argument(help="The workspace.")], store: Store = STORE, as_json: AsJson = False
) -> None:
    """Take a workspace away; one that is held stays."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json

    with open_desk(store) as desk:
        desk.projects.remove_workspace(workspace)
    print_json({"removed": workspace}) if as_json else typer.echo(f"removed {workspace}")


def _move(project: str, verb: str, by: str, store: str, *, as_json: bool) -> None:
    from rota.cli.connection import open_desk

    with open_desk(store) as desk:
        _print(desk.projects.move(project, verb, by=by), as_json=as_json)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _print(thing: Any, *, as_json: bool) -> None:
    from rota.cli.output import print_fields, print_json

    print_json(thing) if as_json else print_fields(thing)
