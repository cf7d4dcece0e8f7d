"""Projects: the accounts that fair shares, caps and budgets belong to.

A cap (`max_concurrent`, a constraint) and a share (`weight`) are separate: a cap is never exceeded, a weight decides
which project goes first. A project also has workspaces (workspaces.py), and may reach into another one (grants.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from rota.errors import ProjectExists, ProjectInvalid, StoreCorrupt
from rota.kernel import usage_windows
from rota.kernel.agents import end_quarantines
from rota.kernel.environment import KernelEnvironment
from rota.kernel.grants import Grants
from rota.kernel.journal import append
from rota.kernel.lookups import find_project
from rota.kernel.paging import page
from rota.kernel.rows import json_text, project_from_row
from rota.kernel.settings import delete_setting, read_setting, write_setting
from rota.kernel.workspaces import Workspaces
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.cpu import CPU_KEY, read_cpu
from rota.model.events import (
    EventData,
    FlowReweighted,
    Paused,
    ProjectCreated,
    ProjectTransitioned,
    ProjectUpdated,
    Resumed,
)
from rota.model.lifecycle import PROJECT, advance
from rota.model.work import WEIGHT_UNIT, Project, ProjectConstraint
from rota.store import Transaction
from rota.store.statements import flows as flow_sql
from rota.store.statements import projects as sql

__all__ = ["FLEET_PAUSE_KEY", "Projects"]

FLEET_PAUSE_KEY = "fleet_paused_by"  # the setting in the store: who paused the fleet
_Change: TypeAlias = Callable[[Project], tuple[Project, list[EventData]]]
_checks = Checks("Project", ProjectInvalid)


class Projects(Workspaces, Grants):
    """Creating and changing projects, pausing them or the whole fleet, their workspaces and the grants between them."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def create(
        self,
        project_id: str,
        *,
        name: str | None = None,
        weight: int = WEIGHT_UNIT,
        max_concurrent: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Project:
        """Create a project. Its usage is counted from now on."""
        now = self._env.now()
        _checks.name("project_id", project_id)
        _checks.optional_name("name", name)
        if project_id == usage_windows.ALL_PROJECTS:
            raise _checks.refuse(
                "project_id", f"cannot be {usage_windows.ALL_PROJECTS!r}: that name means all projects"
            )
        project = Project(
            project_id=project_id,
            name=project_id if name is None else name,
            weight=weight,
            max_concurrent=max_concurrent,
            created_at=now,
            updated_at=now,
            metadata={} if metadata is None else metadata,
        )
        body = _metadata(project.metadata)

        def work(tx: Transaction) -> Project:
            if tx.run(sql.GET, (project_id,)):
                raise ProjectExists(f"project {project_id!r} already exists", project_id=project_id)
            row = (
                project_id,
                project.name,
                weight,
                max_concurrent,
                "{}",
                now,
                now,
                body,
            )
            tx.run(sql.CREATE, row)
            usage_windows.open_window(tx, project_id, usage_windows.SHARE, usage_windows.share_window_s(tx))
            event = ProjectCreated(project_id=project_id, weight=weight, max_concurrent=max_concurrent)
            tx.run(flow_sql.PROJECT_TOUCH, (project_id, append(tx, event, now=now)))
            return project

        return self._env.write(work)

    def get(self, project_id: str) -> Project:
        """Return one project."""
        return self._env.read(lambda tx: find_project(tx, project_id))

    def list(self, *, status: str | None = None, limit: int = 100, offset: int = 0) -> tuple[list[Project], int]:
        """Return a page of projects by id, and the total number."""
        if status is not None:
            _checks.one_of("status", status, PROJECT.states)
        at = page(limit, offset)

        def work(tx: Transaction) -> tuple[list[Project], int]:
            rows = tx.run(sql.LIST, (status, at.limit, at.offset))
            return [project_from_row(row) for row in rows], int(tx.run(sql.COUNT, (status,))[0][0])

        return self._env.read(work)

    def update(self, project_id: str, **changes: Any) -> Project:
        """Change name, weight, max_concurrent or metadata. The next claim uses the new weight."""
        for field in changes:
            _checks.one_of("field", field, ("name", "weight", "max_concurrent", "metadata"))
        if "metadata" in changes:
            _metadata(changes["metadata"])
        if "name" in changes:
            _checks.name("name", changes["name"])

        def change(project: Project) -> tuple[Project, list[EventData]]:
            facts: list[EventData] = [ProjectUpdated(project_id=project_id, changes=changes)]
            if changes.get("weight", project.weight) != project.weight:
                facts.append(
                    FlowReweighted(level="project", key=project_id, weight=changes["weight"], previous=project.weight)
                )
            return msgspec.structs.replace(project, **changes), facts

        return self._change(project_id, change)

    def constrain(self, project_id: str, constraint: ProjectConstraint) -> Project:
        """Set a project's constraint; an empty one removes it."""
        if not isinstance(constraint, ProjectConstraint):
            raise _checks.refuse("constraint", f"must be a ProjectConstraint, not {type(constraint).__name__}")

        def change(project: Project) -> tuple[Project, list[EventData]]:
            changes = {"constraint": msgspec.to_builtins(constraint)}
            return msgspec.structs.replace(project, constraint=constraint), [
                ProjectUpdated(project_id=project_id, changes=changes)
            ]

        return self._change(project_id, change)

    def move(self, project_id: str, verb: str, *, by: str = "operator") -> Project:
        """Pause, resume, archive or restore a project."""
        _checks.text("verb", verb)
        _checks.text("by", by)

        def change(project: Project) -> tuple[Project, list[EventData]]:
            status = advance(PROJECT, project.status, verb, project_id)
            paused_by = by if verb == "pause" else None
            event = ProjectTransitioned(project_id=project_id, prev_status=project.status, new_status=status, by=by)
            return msgspec.structs.replace(project, status=str(status), paused_by=paused_by), [event]

        return self._change(project_id, change)

    def _change(self, project_id: str, change: _Change) -> Project:
        now = self._env.now()

        def work(tx: Transaction) -> Project:
            project = find_project(tx, project_id)
            changed, facts = change(project)
            if project.unreadable is not None and not _repairs(project, changed):
                hint = "Write what cannot be read: `constrain` sets the constraint, `update` the metadata."
                raise StoreCorrupt(f"project {project_id} cannot be read: {project.unreadable}", hint=hint)
            event_id = [append(tx, event, now=now) for event in facts][-1]
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
            if changed.metadata is not project.metadata:
                end_quarantines(tx, project_id, now)
            tx.effects.wake_parked = True
            return find_project(tx, project_id)

        return self._env.write(work)

    # --- the fleet -------------------------------------------------------------------------------

    def pause_fleet(self, by: str, reason: str | None = None) -> None:
        """Stop all new claims until the fleet is resumed. Live runs continue."""
        _checks.text("by", by)
        _checks.optional_text("reason", reason)
        self._pause_fleet(by, Paused(level="fleet", key=usage_windows.ALL_PROJECTS, by=by, reason=reason))

    def resume_fleet(self, by: str) -> None:
        """End the fleet's pause."""
        _checks.text("by", by)
        self._pause_fleet(None, Resumed(level="fleet", key=usage_windows.ALL_PROJECTS, by=by))

    def fleet_paused_by(self) -> str | None:
        """Return who paused the fleet, or None."""
        return self._env.read(lambda tx: read_setting(tx, FLEET_PAUSE_KEY))

    def _pause_fleet(self, by: str | None, event: EventData) -> None:
        now = self._env.now()

        def work(tx: Transaction) -> None:
            if by is None:
                delete_setting(tx, FLEET_PAUSE_KEY)
            else:
                write_setting(tx, FLEET_PAUSE_KEY, by)
            append(tx, event, now=now)
            tx.effects.wake_parked = True

        self._env.write(work)


def _repairs(project: Project, changed: Project) -> bool:
    """Whether a change replaces a column that cannot be read; any other would write an empty one over it."""
    return changed.constraint is not project.constraint or changed.metadata is not project.metadata


def _metadata(value: Any) -> str:
    """Check a project's metadata and the settings in it, which its runs would fail to read; returns it encoded."""
    body = _json("metadata", value)
    read_cpu(value.get(CPU_KEY))
    return body


def _json(field: str, value: Any) -> str:
    return json_text(_checks, field, _checks.mapping(field, value), PAYLOAD_BYTES_MAX)
