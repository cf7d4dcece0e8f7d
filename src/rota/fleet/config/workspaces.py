"""The workspaces of a fleet file: folders that are created, and git worktrees.

A worktree gives each run its own checkout of one repository. Those that runs take turns in (`per = "slot"`) are created
here, detached at the requested commit, because git checks out a branch only once. They are never deleted, because they
may hold work that exists nowhere else. Only git's records of worktrees whose folders are gone are pruned.

The worktree of an agent is registered here and created by its first run; that of an entry is the supervisor's alone
(fleet/worktrees).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rota.errors import FleetInvalid
from rota.fleet.config.changes import FleetChange, PendingChange
from rota.fleet.config.tables import Fleet, ProjectTable, WorktreesTable
from rota.host.command import filter_environment
from rota.model.checks import ID_CHARS_MAX
from rota.model.struct_reader import join_key
from rota.service.api import KernelApi

__all__ = ["GIT_TIMEOUT_S", "add_worktree", "is_worktree", "workspace_changes"]

MADE_BY_RUN = "agent"  # the source, here, of a worktree that the agent's first run makes
GIT_TIMEOUT_S = 300.0  # enough to check out a large repository


class _Workspace(NamedTuple):
    workspace_id: str
    path: str
    source: str


def _workspaces(fleet: Fleet, project_id: str, table: ProjectTable) -> list[_Workspace]:
    """The workspaces of a project. Ids are made from what the file says, so they stay the same at each reload."""
    written = table.workspaces
    if isinstance(written, tuple):
        return [
            _Workspace(f"{project_id}/{folder}"[-ID_CHARS_MAX:], fleet.resolve(folder), "folder") for folder in written
        ]
    base = Path(fleet.resolve(written.folder or f"worktrees/{project_id}"))
    if (own := written.settings(project_id, fleet.resolve)) is not None and own.per != "slot":
        users = [name for name, agent in fleet.agents.items() if agent.project == project_id and agent.workspace]
        found = [(own.workspace_id(project_id, name), own.path(name, 0)) for name in users if own.per == "agent"]
        return [_Workspace(each, path, MADE_BY_RUN) for each, path in found if each is not None and path is not None]
    return [
        _Workspace(f"{project_id}/worktree-{number}", str(base / str(number)), "worktree")
        for number in range(1, written.count + 1)
    ]


def workspace_changes(
    api: KernelApi, fleet: Fleet, project_id: str, table: ProjectTable, *, exists: bool
) -> Iterator[PendingChange]:
    """Yield what has to change for a project to have the workspaces of the file."""
    if isinstance(table.workspaces, WorktreesTable) and table.workspaces.per != "slot":
        key = f"{join_key('projects', project_id)}.workspaces.worktrees_of"
        _check_repository(fleet.resolve(table.workspaces.worktrees_of), key)
    found = api.projects.workspaces(project_id) if exists else []
    known = {each.workspace_id: each for each in found if each.source != "entry"}  # those are the supervisors'
    wanted = {each.workspace_id: each for each in _workspaces(fleet, project_id, table)}
    for workspace_id in known.keys() - wanted.keys():
        note = f"{known[workspace_id].path} stays on disk"
        change = FleetChange(what="workspace", name=workspace_id, verb="removed", note=note)
        yield PendingChange(change, partial(api.projects.remove_workspace, workspace_id))
    for workspace_id, workspace in wanted.items():
        stored = known.get(workspace_id)
        if stored is None:
            change = FleetChange(what="workspace", name=workspace_id, verb="created", note=workspace.path)
            yield PendingChange(change, partial(_add, api, fleet, project_id, workspace))
        elif stored.path != workspace.path:
            fields = {"path": [stored.path, workspace.path]}
            change = FleetChange(what="workspace", name=workspace_id, verb="changed", fields=fields)
            yield PendingChange(change, partial(_move, api, fleet, project_id, workspace))
        elif workspace.source != MADE_BY_RUN and not Path(workspace.path).is_dir():
            note = f"{workspace.path} was missing and is created again"
            change = FleetChange(what="workspace", name=workspace_id, verb="changed", note=note)
            yield PendingChange(change, partial(_create_folder, fleet, project_id, workspace))


def _move(api: KernelApi, fleet: Fleet, project_id: str, workspace: _Workspace) -> None:
    api.projects.remove_workspace(workspace.workspace_id)
    _add(api, fleet, project_id, workspace)


def _add(api: KernelApi, fleet: Fleet, project_id: str, workspace: _Workspace) -> None:
    if workspace.source != MADE_BY_RUN:
        _create_folder(fleet, project_id, workspace)
    source = "worktree" if workspace.source == MADE_BY_RUN else workspace.source
    api.projects.add_workspace(workspace.workspace_id, project_id, workspace.path, source=source)


def _create_folder(fleet: Fleet, project_id: str, workspace: _Workspace) -> None:
    """Create the folder or the worktree before the store knows it, so that a run never finds it missing."""
    key = f"{join_key('projects', project_id)}.workspaces"
    written = fleet.projects[project_id].workspaces
    if isinstance(written, WorktreesTable):
        repository = fleet.resolve(written.worktrees_of)
        add_worktree(repository, workspace.path, written.branch, key=f"{key}.worktrees_of")
        return
    try:
        Path(workspace.path).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FleetInvalid(f"{key}: cannot create {workspace.path}: {problem.strerror}", field=key) from problem


# --- git worktrees ---------------------------------------------------------------------------------


def add_worktree(repository: str, path: str, commit: str = "HEAD", *, key: str = "worktrees_of") -> None:
    """Create a worktree at a path unless it exists. Errors name `key`."""
    _check_repository(repository, key)
    if is_worktree(repository, path):
        return
    if Path(path).exists() and any(Path(path).iterdir()):
        raise FleetInvalid(f"{key}: {path} exists, is not empty and is not a worktree of {repository}", field=key)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _git(repository, key, "worktree", "prune")  # otherwise git refuses the path of a removed worktree
    _git(repository, key, "worktree", "add", "--detach", path, commit)


def is_worktree(repository: str, path: str) -> bool:
    """Whether there is a worktree of this repository at a path."""
    if not Path(path).is_dir():
        return False
    repository_dir, worktree_dir = (
        _query(folder, "rev-parse", "--path-format=absolute", "--git-common-dir") for folder in (repository, path)
    )
    top = _query(path, "rev-parse", "--show-toplevel")
    is_same_repository = repository_dir is not None and repository_dir == worktree_dir
    return is_same_repository and top is not None and os.path.realpath(path) == os.path.realpath(top)


def _check_repository(path: str, key: str) -> None:
    if not Path(path).is_dir():
        raise FleetInvalid(f"{key}: folder {path} does not exist", field=key)
    if _query(path, "rev-parse", "--git-common-dir") is None:
        raise FleetInvalid(f"{key}: {path} is not a git repository", field=key)


def _query(folder: str, *arguments: str) -> str | None:
    """Return the output of a git command; None if the command fails."""
    done = _run(folder, arguments, "git")
    return done.stdout.strip() if done.returncode == 0 else None


def _git(folder: str, key: str, *arguments: str) -> None:
    done = _run(folder, arguments, key)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise FleetInvalid(f"{key}: git {' '.join(arguments[:2])} failed: {reason}", field=key)


def _run(folder: str, arguments: tuple[str, ...], key: str) -> subprocess.CompletedProcess[str]:
    # filtered environment: GIT_DIR and similar variables of rota's own environment would select another repository
    try:
        return subprocess.run(  # noqa: S603  # a list, no shell
            ["git", "-C", folder, *arguments],  # noqa: S607  # the git on the user's PATH
            env=filter_environment(os.environ, extra={"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as problem:
        raise FleetInvalid(f"{key}: git is not installed", field=key) from problem
    except subprocess.TimeoutExpired as problem:
        raise FleetInvalid(
            f"{key}: git {arguments[0]} did not finish within {GIT_TIMEOUT_S:g} s", field=key
        ) from problem
