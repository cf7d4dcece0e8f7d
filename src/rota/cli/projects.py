"""`rota projects`: list, create, change and archive projects and their workspaces."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, By, Limit, Offset, Store

__all__ = ["projects"]

projects = typer.Typer(help="List, create and change projects and workspaces.", invoke_without_command=True)
workspaces = typer.Typer(help="The workspaces of a project.", no_args_is_help=True)
projects.add_typer(workspaces, name="workspaces")

Id = Annotated[str, typer.Argument(help="The project id.")]
Name = Annotated[str | None, typer.Option("--name", help="Its display name.")]
Weight = Annotated[int | None, typer.Option("--weight", help="Its share, in thousandths. Default: 1000.")]
MaxConcurrent = Annotated[int | None, typer.Option("--max-concurrent", help="Maximum number of concurrent runs.")]


@projects.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """List, create and change projects and workspaces. Without a command: list."""
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
    from rota.cli.connection import open_api
    from rota.cli.output import print_page

    with open_api(store) as api:
        page = api.projects.list(status=status, limit=limit, offset=offset)
    names = {"project": "project_id", "name": "name", "status": "status", "weight": "weight"}
    more = {"max concurrent": "max_concurrent", "paused by": "paused_by"}
    print_page("projects", page, names | more, as_json=as_json)


@projects.command()
def show(project: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show one project."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.projects.get(project), as_json=as_json)


@projects.command()
def create(
    project: Id,
    *,
    name: Name = None,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Create a project, and the store if it does not exist."""
    from rota.cli.connection import open_api

    settings = _given(name=name, weight=weight, max_concurrent=max_concurrent)
    with open_api(store, create=True) as api:
        _print(api.projects.create(project, **settings), as_json=as_json)


@projects.command("set")
def change(
    project: Id,
    *,
    name: Name = None,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Remove the maximum of concurrent runs.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Change a project's name, weight or cap."""
    from rota.cli.connection import open_api

    changes = _given(name=name, weight=weight, max_concurrent=max_concurrent)
    if unlimited:
        changes["max_concurrent"] = None
    with open_api(store) as api:
        _print(api.projects.update(project, **changes), as_json=as_json)


@projects.command()
def constrain(
    project: Id,
    *,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="One run at a time.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="No runs at all.")] = False,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="Maximum of a kind: gpu=2; repeatable.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Replace a project's constraint; without options, remove it."""
    from rota.cli.arguments import amounts
    from rota.cli.connection import open_api
    from rota.model import ProjectConstraint

    max_by_kind = amounts(kind or [], "kind")
    constraint = ProjectConstraint(exclusive=exclusive, pause_scheduling=paused, max_by_kind=max_by_kind)
    with open_api(store) as api:
        _print(api.projects.constrain(project, constraint), as_json=as_json)


@projects.command()
def archive(project: Id, by: By = "operator", store: Store = STORE, as_json: AsJson = False) -> None:
    """Archive a project; `restore` undoes it."""
    _move(project, "archive", by, store, as_json=as_json)


@projects.command()
def restore(project: Id, by: By = "operator", store: Store = STORE, as_json: AsJson = False) -> None:
    """Restore an archived project; it is paused."""
    _move(project, "restore", by, store, as_json=as_json)


@workspaces.command("list")
def list_workspaces(project: Id, store: Store = STORE, as_json: AsJson = False) -> None:
    """List a project's workspaces and the runs that hold them."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_page

    with open_api(store) as api:
        found = api.projects.workspaces(project)
    names = {"workspace": "workspace_id", "path": "path", "mode": "lock_mode", "held by": "held_by"}
    print_page("workspaces", (found, len(found)), names, as_json=as_json)


@workspaces.command("add")
def add_workspace(
    project: Id,
    workspace: Annotated[str, typer.Argument(help="The workspace id.")],
    path: Annotated[str, typer.Argument(help="The folder.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Add a workspace to a project."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.projects.add_workspace(workspace, project, path), as_json=as_json)


@workspaces.command("remove")
def remove_workspace(
    workspace: Annotated[str, typer.Argument(help="The workspace id.")], store: Store = STORE, as_json: AsJson = False
) -> None:
    """Remove a workspace that no run holds."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    with open_api(store) as api:
        api.projects.remove_workspace(workspace)
    print_json({"removed": workspace}) if as_json else typer.echo(f"removed {workspace}")


def _move(project: str, verb: str, by: str, store: str, *, as_json: bool) -> None:
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.projects.move(project, verb, by=by), as_json=as_json)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _print(thing: Any, *, as_json: bool) -> None:
    from rota.cli.output import print_fields, print_json

    print_json(thing) if as_json else print_fields(thing)
