"""`rota projects`: list, create, change and archive projects, their workspaces, and the grants between them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, By, Store, complete_project
from rota.cli.registers import register_group, run_command
from rota.cli.terminal_text import say

__all__ = ["projects"]

projects = typer.Typer(
    help="List, create and change projects and workspaces.", invoke_without_command=True, cls=register_group("projects")
)
workspaces = typer.Typer(
    help="The workspaces of a project.", no_args_is_help=True, cls=register_group("projects workspaces")
)
projects.add_typer(workspaces, name="workspaces")

NO_PROJECT = "-"  # on the command line: what has no project
Id = Annotated[str, typer.Argument(help="The project id.", autocompletion=complete_project)]
From = Annotated[
    str,
    typer.Argument(help="The project that may reach into the other; - is no project.", autocompletion=complete_project),
]
To = Annotated[
    str, typer.Argument(help="The project that it may reach into; - is no project.", autocompletion=complete_project)
]


@projects.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """List, create and change projects and workspaces. Without a command: list."""
    if context.invoked_subcommand is None:
        run_command("projects list", store=store, as_json=as_json)


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


@projects.command()
def grant(from_project: From, to_project: To, store: Store = STORE, as_json: AsJson = False) -> None:
    """Let one project start agents and name entries of another."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.projects.grant(_project(from_project), _project(to_project)), as_json=as_json)


@projects.command()
def revoke(from_project: From, to_project: To, store: Store = STORE, as_json: AsJson = False) -> None:
    """Take back what `grant` allowed."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    with open_api(store) as api:
        revoked = api.projects.revoke_grant(_project(from_project), _project(to_project))
    text = "revoked" if revoked else "there was no grant"
    print_json({"revoked": revoked}) if as_json else say(f"{from_project} → {to_project}: {text}")


@projects.command()
def grants(store: Store = STORE, as_json: AsJson = False) -> None:
    """List which project may reach into which."""
    from rota.cli.connection import open_api
    from rota.cli.output import now, print_json, print_table, when

    with open_api(store) as api:
        found = api.projects.grants()
    if as_json:
        print_json({"grants": found})
        return
    at = now()
    rows = [
        (each.from_project or NO_PROJECT, each.to_project or NO_PROJECT, when(each.granted_at, at), each.granted_by)
        for each in found
    ]
    print_table(("from", "to", "granted", "by"), rows, empty="no project may reach into another")


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
    print_json({"removed": workspace}) if as_json else say(f"removed {workspace}")


def _move(project: str, verb: str, by: str, store: str, *, as_json: bool) -> None:
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.projects.move(project, verb, by=by), as_json=as_json)


def _project(argument: str) -> str | None:
    return None if argument == NO_PROJECT else argument


def _print(thing: Any, *, as_json: bool) -> None:
    from rota.cli.output import print_fields, print_json

    print_json(thing) if as_json else print_fields(thing)
