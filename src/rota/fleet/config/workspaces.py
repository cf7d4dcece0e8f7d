"""The workspaces of a fleet file: folders that are made, and git worktrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rota.errors import FleetInvalid
from rota.fleet.config import worktrees
from rota.fleet.config.changes import Change
from rota.fleet.config.reader import dotted
from rota.fleet.config.steps import Step, later
from rota.fleet.config.tables import Fleet, ProjectTable, WorktreesTable
from rota.model.checks import ID_CHARS_MAX
from rota.service.api import Registers

__all__ = ["workspace_steps"]


class _Place(NamedTuple):
    workspace_id: str
    path: str
    source: str


def _places(fleet: Fleet, project_id: str, table: ProjectTable) -> list[_Place]:
    """The workspaces that the file gives a project. Their ids are made of what the file says, so they last."""
    said = table.workspaces
    if isinstance(said, tuple):
        return [_Place(f"{project_id}/{folder}"[-ID_CHARS_MAX:], fleet.at(folder), "folder") for folder in said]
    base = Path(fleet.at(said.folder or f"worktrees/{project_id}"))
    return [
        _Place(f"{project_id}/worktree-{number}", str(base / str(number)), "worktree")
        for number in range(1, said.count + 1)
    ]


def workspace_steps(
    desk: Registers, fleet: Fleet, project_id: str, table: ProjectTable, *, exists: bool
) -> Iterator[Step]:
    """What has to be done for a project to have the workspaces of the file."""
    known = {each.workspace_id: each for each in desk.projects.workspaces(project_id)} if exists else {}
    wanted = {place.workspace_id: place for place in _places(fleet, project_id, table)}
    for workspace_id in known.keys() - wanted.keys():
        change = Change(
            what="workspace", name=workspace_id, verb="removed", note=f"{known[workspace_id].path} stays on disk"
        )
        yield Step(change, later(desk.projects.remove_workspace, workspace_id))
    for workspace_id, place in wanted.items():
        there = known.get(workspace_id)
        if there is None:
            change = Change(what="workspace", name=workspace_id, verb="created", note=place.path)
            yield Step(change, later(_give, desk, fleet, project_id, place))
        elif there.path != place.path:
            change = Change(
                what="workspace", name=workspace_id, verb="changed", fields={"path": [there.path, place.path]}
            )
            yield Step(change, later(_move, desk, fleet, project_id, place))
        elif not Path(place.path).is_dir():
            change = Change(what="workspace", name=workspace_id, verb="changed", note=f"{place.path} was gone")
            yield Step(change, later(_prepare, fleet, project_id, place))


def _move(desk: Registers, fleet: Fleet, project_id: str, place: _Place) -> None:
    desk.projects.remove_workspace(place.workspace_id)
    _give(desk, fleet, project_id, place)


def _give(desk: Registers, fleet: Fleet, project_id: str, place: _Place) -> None:
    _prepare(fleet, project_id, place)
    desk.projects.add_workspace(place.workspace_id, project_id, place.path, source=place.source)


def _prepare(fleet: Fleet, project_id: str, place: _Place) -> None:
    """Make the folder or the worktree, so that a run never finds its workspace missing."""
    key = f"{dotted('projects', project_id)}.workspaces"
    said = fleet.projects[project_id].workspaces
    if isinstance(said, WorktreesTable):
        worktrees.add(fleet.at(said.worktrees_of), place.path, said.branch, key=f"{key}.worktrees_of")
        return
    try:
        Path(place.path).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FleetInvalid(f"{key}: {place.path} cannot be made: {problem.strerror}", field=key) from problem
