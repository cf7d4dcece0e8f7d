"""Projects: the accounts that share. And their workspaces: folders that a run has for itself, or shares.

A cap (`max_concurrent`, a constraint) and a share (`weight`) are separate knobs: a cap says what may never be
passed, a weight who goes first. A workspace is held by the live claim that took it, and free when that claim
ends; there is no second record of who holds what. Its fence is the highest token that ever held it: whoever
comes with a lower one is a ghost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from rota.errors import ProjectExists, ProjectInvalid, ProjectUnknown, WorkspaceExists, WorkspaceHeld, WorkspaceUnknown
from rota.kernel import usage_windows
from rota.kernel.core import Core, page
from rota.kernel.journal import append
from rota.kernel.rows import needs_of
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import (
    Fact,
    FlowReweighted,
    Paused,
    ProjectCreated,
    ProjectTransitioned,
    ProjectUpdated,
    Resumed,
    WorkspaceAdded,
    WorkspaceRemoved,
)
from rota.model.lifecycle import PROJECT, advance
from rota.model.work import WEIGHT_UNIT, Project, ProjectConstraint, Workspace
from rota.store import Row, Transaction
from rota.store.statements import file as file_sql
from rota.store.statements import flows as flow_sql
from rota.store.statements import projects as sql

__all__ = ["FLEET_PAUSE", "Projects", "find_project", "holders", "project_of"]

FLEET_PAUSE = "fleet_paused_by"  # the file's setting that says who paused everybody
Workspaces: TypeAlias = list[Workspace]
_Change: TypeAlias = Callable[[Project], tuple[Project, list[Fact]]]
_checks = Checks("Project", ProjectInvalid)
_workspace = Checks("Workspace", ProjectInvalid)
_encoder = msgspec.json.Encoder()


def project_of(row: Row) -> Project:
    """The project in a row."""
    return Project(
        project_id=row[0],
        name=row[1],
        weight=row[2],
        max_concurrent=row[3],
        status=row[4],
        constraint=msgspec.json.decode(row[5], type=ProjectConstraint),
        paused_by=row[6],
        created_at=row[7],
        updated_at=row[8],
        metadata=msgspec.json.decode(row[9]),
    )


def find_project(tx: Transaction, project_id: str) -> Project:
    """A project, or the error that there is none."""
    _checks.text("project_id", project_id)
    rows = tx.run(sql.GET, (project_id,))
    if not rows:
        raise ProjectUnknown(f"there is no project {project_id!r}", project_id=project_id)
    return project_of(rows[0])


def holders(tx: Transaction, project_id: str) -> dict[str, list[tuple[int, str, float]]]:
    """Who holds each workspace of a project: (sched_id, mode, since)."""
    held: dict[str, list[tuple[int, str, float]]] = {}
    for workspace_id, sched_id, needs, since in tx.run(sql.WORKSPACE_HOLDERS, (project_id,)):
        held.setdefault(workspace_id, []).append((sched_id, needs_of(needs).mode or "exclusive", since))
    return held


class Projects:
    """Making and changing projects, pausing them and everybody, and their workspaces."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create(
        self,
        project_id: str,
        *,
        name: str | None = None,
        weight: int = WEIGHT_UNIT,
        max_concurrent: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Project:
        """Make a project. Its usage is counted from now on."""
        now = self._core.now()
        if project_id == usage_windows.EVERYBODY:
            raise _checks.refuse("project_id", f"cannot be {usage_windows.EVERYBODY!r}: that is everybody")
        project = Project(
            project_id=project_id,
            name=project_id if name is None else name,
            weight=weight,
            max_concurrent=max_concurrent,
            created_at=now,
            updated_at=now,
            metadata={} if metadata is None else metadata,
        )

        def work(tx: Transaction) -> Project:
            if tx.run(sql.GET, (project_id,)):
                raise ProjectExists(f"there is a project {project_id!r} already", project_id=project_id)
            row = (
                project_id,
                project.name,
                weight,
                max_concurrent,
                "{}",
                now,
                now,
                _json("metadata", project.metadata),
            )
            tx.run(sql.CREATE, row)
            usage_windows.open_window(tx, project_id, usage_windows.SHARE, usage_windows.share_window_s(tx))
            fact = ProjectCreated(project_id=project_id, weight=weight, max_concurrent=max_concurrent)
            tx.run(flow_sql.PROJECT_TOUCH, (project_id, append(tx, fact, now=now)))
            return project

        return self._core.write(work)

    def get(self, project_id: str) -> Project:
        """One project."""
        return self._core.read(lambda tx: find_project(tx, project_id))

    def list(self, *, status: str | None = None, limit: int = 100, offset: int = 0) -> tuple[list[Project], int]:
        """A page of projects by id, and how many there are in all."""
        if status is not None:
            _checks.one_of("status", status, PROJECT.states)
        at = page(limit, offset)

        def work(tx: Transaction) -> tuple[list[Project], int]:
            rows = tx.run(sql.LIST, (status, at.limit, at.offset))
            return [project_of(row) for row in rows], int(tx.run(sql.COUNT, (status,))[0][0])

        return self._core.read(work)

    def update(self, project_id: str, **changes: Any) -> Project:
        """Change name, weight, max_concurrent or metadata. Weights are read at the next dispatch."""
        for field in changes:
            _checks.one_of("field", field, ("name", "weight", "max_concurrent", "metadata"))
        if "metadata" in changes:
            _json("metadata", changes["metadata"])

        def change(project: Project) -> tuple[Project, list[Fact]]:
            facts: list[Fact] = [ProjectUpdated(project_id=project_id, changes=changes)]
            if changes.get("weight", project.weight) != project.weight:
                facts.append(
                    FlowReweighted(level="project", key=project_id, weight=changes["weight"], previous=project.weight)
                )
            return msgspec.structs.replace(project, **changes), facts

        return self._change(project_id, change)

    def constrain(self, project_id: str, constraint: ProjectConstraint) -> Project:
        """Put a constraint on a project; an empty one releases it."""
        if not isinstance(constraint, ProjectConstraint):
            raise _checks.refuse("constraint", f"must be a ProjectConstraint, not {type(constraint).__name__}")

        def change(project: Project) -> tuple[Project, list[Fact]]:
            changes = {"constraint": msgspec.to_builtins(constraint)}
            return msgspec.structs.replace(project, constraint=constraint), [
                ProjectUpdated(project_id=project_id, changes=changes)
            ]

        return self._change(project_id, change)

    def move(self, project_id: str, verb: str, *, by: str = "operator") -> Project:
        """Pause, resume, archive or restore a project."""
        _checks.text("verb", verb)
        _checks.text("by", by)

        def change(project: Project) -> tuple[Project, list[Fact]]:
            status = advance(PROJECT, project.status, verb, project_id)
            paused_by = by if verb == "pause" else None
            fact = ProjectTransitioned(project_id=project_id, prev_status=project.status, new_status=status, by=by)
            return msgspec.structs.replace(project, status=str(status), paused_by=paused_by), [fact]

        return self._change(project_id, change)

    def _change(self, project_id: str, change: _Change) -> Project:
        now = self._core.now()

        def work(tx: Transaction) -> Project:
            changed, facts = change(find_project(tx, project_id))
            event_id = [append(tx, fact, now=now) for fact in facts][-1]
            row = (
                changed.name,
                changed.weight,
                changed.max_concurrent,
                changed.status,
                _json("constraint", msgspec.to_builtins(changed.constraint)),
                changed.paused_by,
                now,
                _json("metadata", changed.metadata),
                project_id,
            )
            tx.run(sql.SET, row)
            tx.run(flow_sql.PROJECT_TOUCH, (project_id, event_id))
            tx.notes.wake = True
            return find_project(tx, project_id)

        return self._core.write(work)

    # --- everybody -------------------------------------------------------------------------------

    def pause_fleet(self, by: str, reason: str | None = None) -> None:
        """Give nobody any more runs until the fleet is resumed."""
        _checks.text("by", by)
        _checks.note("reason", reason)
        self._pause_fleet(by, Paused(level="fleet", key=usage_windows.EVERYBODY, by=by, reason=reason))

    def resume_fleet(self, by: str) -> None:
        """Lift the fleet's pause."""
        _checks.text("by", by)
        self._pause_fleet(None, Resumed(level="fleet", key=usage_windows.EVERYBODY, by=by))

    def fleet_paused_by(self) -> str | None:
        """Who paused everybody, if anybody did."""
        rows = self._core.read(lambda tx: tx.run(file_sql.META_GET, (FLEET_PAUSE,)))
        return rows[0][0] if rows else None

    def _pause_fleet(self, by: str | None, fact: Fact) -> None:
        now = self._core.now()

        def work(tx: Transaction) -> None:
            if by is None:
                tx.run(file_sql.META_UNSET, (FLEET_PAUSE,))
            else:
                tx.run(file_sql.META_SET, (FLEET_PAUSE, by))
            append(tx, fact, now=now)
            tx.notes.wake = True

        self._core.write(work)

    # --- workspaces ------------------------------------------------------------------------------

    def add_workspace(self, workspace_id: str, project_id: str, path: str, *, source: str = "folder") -> Workspace:
        """Give a project a workspace."""
        _workspace.text("workspace_id", workspace_id)
        _workspace.text("path", path, 4096)
        _workspace.one_of("source", source, ("folder", "worktree"))
        now = self._core.now()

        def work(tx: Transaction) -> Workspace:
            find_project(tx, project_id)
            if tx.run(sql.WORKSPACE_GET, (workspace_id,)):
                raise WorkspaceExists(f"there is a workspace {workspace_id!r} already", workspace_id=workspace_id)
            if taken := tx.run(sql.WORKSPACE_AT, (path,)):
                raise WorkspaceExists(f"{path} is workspace {taken[0][0]!r} already", workspace_id=taken[0][0])
            tx.run(sql.WORKSPACE_ADD, (workspace_id, project_id, path, source))
            append(tx, WorkspaceAdded(workspace_id=workspace_id, project_id=project_id, path=path), now=now)
            tx.notes.wake = True
            return self._workspace(tx, workspace_id)

        return self._core.write(work)

    def remove_workspace(self, workspace_id: str) -> None:
        """Take a workspace away, if nobody holds it."""
        now = self._core.now()

        def work(tx: Transaction) -> None:
            workspace = self._workspace(tx, workspace_id)
            if workspace.held_by:
                raise WorkspaceHeld(
                    f"workspace {workspace_id!r} is held by entry {workspace.held_by[0]}", workspace_id=workspace_id
                )
            tx.run(sql.WORKSPACE_REMOVE, (workspace_id,))
            append(tx, WorkspaceRemoved(workspace_id=workspace_id), now=now)

        self._core.write(work)

    def workspace(self, workspace_id: str) -> Workspace:
        """One workspace and who holds it."""
        return self._core.read(lambda tx: self._workspace(tx, workspace_id))

    def workspaces(self, project_id: str) -> Workspaces:
        """A project's workspaces and who holds them."""

        _checks.text("project_id", project_id)

        def work(tx: Transaction) -> Workspaces:
            held = holders(tx, project_id)
            return [_workspace_of(row, held) for row in tx.run(sql.WORKSPACES_OF, (project_id,))]

        return self._core.read(work)

    def _workspace(self, tx: Transaction, workspace_id: str) -> Workspace:
        rows = tx.run(sql.WORKSPACE_GET, (_workspace.text("workspace_id", workspace_id),))
        if not rows:
            raise WorkspaceUnknown(f"there is no workspace {workspace_id!r}", workspace_id=workspace_id)
        return _workspace_of(rows[0], holders(tx, rows[0][1]))


def _workspace_of(row: Row, held: dict[str, list[tuple[int, str, float]]]) -> Workspace:
    workspace_id, project_id, path, source, fence = row
    claims = held.get(workspace_id, [])
    return Workspace(
        workspace_id=workspace_id,
        project_id=project_id,
        path=path,
        source=source,
        lock_mode=claims[0][1] if claims else None,  # type: ignore[arg-type]  # the store holds only the two
        held_by=tuple(sched_id for sched_id, _, _ in claims),
        held_since=min((since for _, _, since in claims), default=None),
        fence=fence,
    )


def _json(field: str, value: Any) -> str:
    _checks.mapping(field, value)
    try:
        body = _encoder.encode(value)
    except (TypeError, ValueError) as problem:
        raise _checks.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > PAYLOAD_BYTES_MAX:
        raise _checks.refuse(field, f"is {len(body):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
    return body.decode()
