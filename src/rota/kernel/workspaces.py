"""Workspaces: folders of a project that a run uses alone, or shares with other runs.

A workspace is held by the live claim that took it and is free when that claim ends; there is no second record of its
holders. Its fence is the highest claim token that ever held it: a process that comes with a lower token has lost its
claim. An entry keeps the name of the workspace that its last attempt held, and prefers it when it is retried.

A workspace may belong to one entry: its name in the entry's spec has `{entry}` in place of the entry's id. Such a
workspace needs no row to be claimed, because only its own entry asks for it; the supervisor creates it when the entry
first runs.
"""

from __future__ import annotations

from typing import TypeAlias

from rota.errors import ProjectInvalid, WorkspaceExists, WorkspaceHeld, WorkspaceUnknown
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import find_project
from rota.kernel.rows import decode_needs
from rota.model.checks import NOTE_CHARS_MAX, Checks
from rota.model.events import WorkspaceAdded, WorkspaceKept, WorkspaceRemoved
from rota.model.work import Workspace
from rota.store import Row, Transaction
from rota.store.statements import projects as sql

__all__ = ["OF_ENTRY", "Workspaces", "unknown_workspace", "workspace_holders"]

OF_ENTRY = "{entry}"  # in the name of a workspace: it belongs to one entry

WorkspaceHolders: TypeAlias = dict[str, list[tuple[int, str, float]]]  # by workspace: sched_id, mode, since
_project = Checks("Project", ProjectInvalid)
_workspace = Checks("Workspace", ProjectInvalid)


def workspace_holders(tx: Transaction, project_id: str) -> WorkspaceHolders:
    """Return the live claims that hold each workspace of a project."""
    held: WorkspaceHolders = {}
    for workspace_id, sched_id, needs, since in tx.run(sql.WORKSPACE_HOLDERS, (project_id,)):
        held.setdefault(workspace_id, []).append((sched_id, decode_needs(needs).mode or "exclusive", since))
    return held


class Workspaces:
    """Adding, removing and reading the workspaces of projects."""

    _env: KernelEnvironment

    def add_workspace(self, workspace_id: str, project_id: str, path: str, *, source: str = "folder") -> Workspace:
        """Add a workspace to a project."""
        _workspace.name("workspace_id", workspace_id)
        _workspace.text("path", path, 4096)
        _workspace.one_of("source", source, ("folder", "worktree", "entry"))
        now = self._env.now()

        def work(tx: Transaction) -> Workspace:
            find_project(tx, project_id)
            if tx.run(sql.WORKSPACE_GET, (workspace_id,)):
                raise WorkspaceExists(f"workspace {workspace_id!r} already exists", workspace_id=workspace_id)
            if existing := tx.run(sql.WORKSPACE_AT, (path,)):
                raise WorkspaceExists(f"{path} is already workspace {existing[0][0]!r}", workspace_id=existing[0][0])
            tx.run(sql.WORKSPACE_ADD, (workspace_id, project_id, path, source))
            append(tx, WorkspaceAdded(workspace_id=workspace_id, project_id=project_id, path=path), now=now)
            tx.effects.wake_parked = True
            return _find_workspace(tx, workspace_id)

        return self._env.write(work)

    def keep_workspace(self, workspace_id: str, reason: str) -> None:
        """Record why the worktree of an entry that has ended is kept."""
        _workspace.text("reason", reason, NOTE_CHARS_MAX)
        now = self._env.now()

        def work(tx: Transaction) -> None:
            workspace = _find_workspace(tx, workspace_id)
            tx.run(sql.WORKSPACE_KEPT, (reason, workspace_id))
            event = WorkspaceKept(workspace_id=workspace_id, project_id=workspace.project_id, reason=reason)
            append(tx, event, now=now)

        self._env.write(work)

    def remove_workspace(self, workspace_id: str, reason: str | None = None) -> None:
        """Remove a workspace that no run holds."""
        _workspace.optional_text("reason", reason)
        now = self._env.now()

        def work(tx: Transaction) -> None:
            workspace = _find_workspace(tx, workspace_id)
            if workspace.held_by:
                holder = workspace.held_by[0]
                text = f"workspace {workspace_id!r} is held by entry {holder}"
                raise WorkspaceHeld(text, workspace_id=workspace_id, sched_id=holder)
            tx.run(sql.WORKSPACE_REMOVE, (workspace_id,))
            append(tx, WorkspaceRemoved(workspace_id=workspace_id, reason=reason), now=now)

        self._env.write(work)

    def workspace(self, workspace_id: str) -> Workspace:
        """Return one workspace with its holders."""
        return self._env.read(lambda tx: _find_workspace(tx, workspace_id))

    def workspaces(self, project_id: str) -> list[Workspace]:
        """Return a project's workspaces with their holders."""

        _project.text("project_id", project_id)

        def work(tx: Transaction) -> list[Workspace]:
            held = workspace_holders(tx, project_id)
            return [_workspace_from_row(row, held) for row in tx.run(sql.WORKSPACES_OF, (project_id,))]

        return self._env.read(work)


def unknown_workspace(workspace_id: str) -> WorkspaceUnknown:
    """Return the error for a workspace that does not exist."""
    return WorkspaceUnknown(f"there is no workspace {workspace_id!r}", workspace_id=workspace_id)


def _find_workspace(tx: Transaction, workspace_id: str) -> Workspace:
    rows = tx.run(sql.WORKSPACE_GET, (_workspace.text("workspace_id", workspace_id),))
    if not rows:
        raise unknown_workspace(workspace_id)
    return _workspace_from_row(rows[0], workspace_holders(tx, rows[0][1]))


def _workspace_from_row(row: Row, held: WorkspaceHolders) -> Workspace:
    workspace_id, project_id, path, source, fence, kept = row
    claims = held.get(workspace_id, [])
    return Workspace(
        workspace_id=workspace_id,
        project_id=project_id,
        path=path,
        source=source,
        lock_mode=claims[0][1] if claims else None,  # type: ignore[arg-type]  # the store has only these two modes
        held_by=tuple(sched_id for sched_id, _, _ in claims),
        held_since=min((since for _, _, since in claims), default=None),
        fence=fence,
        kept=kept,
    )
