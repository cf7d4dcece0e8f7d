"""The methods for agents and projects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import UNSET, UnsetType

from rota import errors as e
from rota.kernel.agents import Recovery
from rota.kernel.paging import LIST_MAX
from rota.model.work import WEIGHT_UNIT, Agent, Intent, Project, ProjectConstraint, ProjectGrant, Workspace
from rota.service.api.declaration import REFUSED, method, own_reads, owned, unfiltered, viewed

__all__ = ["AgentsApi", "ProjectsApi"]

AgentList: TypeAlias = list[Agent]  # in the class, `list` is a method
ProjectList: TypeAlias = list[Project]
_AGENT = (e.UnknownPid, e.InvalidPayload)
_SETTINGS = (e.FleetInvalid, *_AGENT)  # where the settings in an agent's metadata are written
_PROJECT = (e.ProjectUnknown, e.ProjectInvalid)


class AgentsApi(Protocol):
    """Agents."""

    @method(
        "kernel.agent.create",
        command="agents create",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        result="pid",
        errors=(e.ProjectUnknown, *_SETTINGS),
    )
    def create(
        self,
        name: str,
        template: str = "callable",
        *,
        parent_pid: int | None = None,
        metadata: dict[str, Any] | None = None,
        project_id: str | None = None,
        priority: int = 0,
        weight: int = WEIGHT_UNIT,
        intent: Intent = Intent.NEUTRAL,
        rerunnable: bool = True,
        max_concurrent: int | None = None,
        unique: bool = False,
    ) -> int:
        """Create an agent; nothing is enqueued."""
        ...

    @method(
        "kernel.agent.get",
        command="agents show",
        scope="read",
        execution="read",
        bound=owned("pid"),
        run="view",
        errors=_AGENT,
    )
    def get(self, pid: int) -> Agent:
        """Return one agent."""
        ...

    @method(
        "kernel.agent.find",
        scope="read",
        execution="read",
        bound=viewed("agents"),
        run="view",
        result="agents",
        errors=(e.InvalidPayload,),
    )
    def find(self, name: str) -> list[Agent]:
        """Return the living agents of a name, youngest first."""
        ...

    @method(
        "kernel.agent.names",
        scope="read",
        execution="read",
        bound=own_reads("agent_names"),
        run="view",
        result="names",
        errors=(e.InvalidPayload,),
    )
    def names(self, pids: Sequence[int]) -> dict[int, str]:
        """Return the names of agents by pid, also of dead ones; unknown pids are left out."""
        ...

    @method(
        "kernel.agent.paused",
        scope="read",
        execution="read",
        bound=own_reads("paused"),
        run="view",
        result="agents",
        errors=(e.InvalidPayload,),
    )
    def paused(self, by: str, *, limit: int = LIST_MAX, prefix: bool = False) -> list[Agent]:
        """Return the agents paused by a given person or program, or by one whose name begins so."""
        ...

    @method(
        "kernel.agent.transition",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        audited=False,
        errors=(e.IllegalTransition, *_AGENT),
    )
    def transition(
        self,
        pid: int,
        state: str,
        *,
        reason: str | None = None,
        expect: str | None = None,
        queued: Literal["cancel", "keep"] = "cancel",
    ) -> Agent:
        """Move an agent to another state, if its state machine allows it; DEAD cancels its queued entries."""
        ...

    @method(
        "kernel.agent.update",
        command="agents set",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_SETTINGS,
    )
    def update(
        self,
        pid: int,
        *,
        priority: int | UnsetType = UNSET,
        weight: int | UnsetType = UNSET,
        intent: Intent | UnsetType = UNSET,
        max_concurrent: int | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType = UNSET,
    ) -> Agent:
        """Change an agent's priority, weight, intent, max_concurrent or metadata."""
        ...

    @method(
        "kernel.agent.pause",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_AGENT,
    )
    def pause(self, pid: int, by: str, reason: str | None = None) -> None:
        """Pause an agent: its entries are not claimed until it is resumed."""
        ...

    @method(
        "kernel.agent.resume",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_AGENT,
    )
    def resume(self, pid: int, by: str) -> None:
        """Resume a paused agent."""
        ...

    @method(
        "kernel.agent.recover",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        audited=False,
        result="pids",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def recover(self, policy: Recovery = "mark-suspended", *, reason: str = "daemon_restart") -> list[int]:
        """Mark the agents that were running at a crash as suspended or dead."""
        ...

    @method(
        "kernel.agent.list",
        command="agents list",
        scope="read",
        execution="read",
        bound=own_reads("agents"),
        run="view",
        result=("agents", "total"),
        errors=(e.InvalidPayload,),
    )
    def list(
        self,
        *,
        state: str | None = None,
        project_id: str | None = None,
        parent_pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[AgentList, int]:
        """Return a page of agents by pid, and the number of matches."""
        ...


class ProjectsApi(Protocol):
    """Projects, workspaces, the fleet's pause."""

    @method(
        "kernel.project.create",
        command="projects create",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.ProjectExists, e.ProjectInvalid, e.FleetInvalid),
    )
    def create(
        self,
        project_id: str,
        *,
        name: str | None = None,
        weight: int = WEIGHT_UNIT,
        max_concurrent: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Project:
        """Create a project."""
        ...

    @method(
        "kernel.project.get",
        command="projects show",
        scope="read",
        execution="read",
        bound=owned("project_id"),
        run="view",
        errors=_PROJECT,
    )
    def get(self, project_id: str) -> Project:
        """Return one project."""
        ...

    @method(
        "kernel.project.update",
        command="projects set",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.FleetInvalid, *_PROJECT),
    )
    def update(
        self,
        project_id: str,
        *,
        name: str | UnsetType = UNSET,
        weight: int | UnsetType = UNSET,
        max_concurrent: int | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType = UNSET,
    ) -> Project:
        """Change a project's name, weight, max_concurrent or metadata."""
        ...

    @method(
        "kernel.project.constrain",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_PROJECT,
    )
    def constrain(self, project_id: str, constraint: ProjectConstraint) -> Project:
        """Set a constraint on a project; an empty one removes it."""
        ...

    @method(
        "kernel.project.move",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.ProjectIllegalTransition, *_PROJECT),
    )
    def move(self, project_id: str, verb: str, *, by: str = "operator") -> Project:
        """Pause, resume, archive or restore a project."""
        ...

    @method(
        "kernel.project.pause_fleet",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.ProjectInvalid,),
    )
    def pause_fleet(self, by: str, reason: str | None = None) -> None:
        """Pause the whole fleet: nothing is claimed until it is resumed."""
        ...

    @method(
        "kernel.project.resume_fleet",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.ProjectInvalid,),
    )
    def resume_fleet(self, by: str) -> None:
        """Resume the fleet."""
        ...

    @method(
        "kernel.project.fleet_paused_by",
        scope="read",
        execution="read",
        bound=unfiltered("the fleet belongs to no project"),
        run="view",
        result="paused_by",
    )
    def fleet_paused_by(self) -> str | None:
        """Return who paused the fleet, or null."""
        ...

    @method(
        "kernel.project.add_workspace",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.WorkspaceExists, *_PROJECT),
    )
    def add_workspace(self, workspace_id: str, project_id: str, path: str, *, source: str = "folder") -> Workspace:
        """Add a workspace to a project."""
        ...

    @method(
        "kernel.project.remove_workspace",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.WorkspaceUnknown, e.WorkspaceHeld, e.ProjectInvalid),
    )
    def remove_workspace(self, workspace_id: str, reason: str | None = None) -> None:
        """Remove a workspace that no run holds."""
        ...

    @method(
        "kernel.project.keep_workspace",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        errors=(e.WorkspaceUnknown, e.ProjectInvalid),
    )
    def keep_workspace(self, workspace_id: str, reason: str) -> None:
        """Record why the worktree of an entry that has ended is kept."""
        ...

    @method(
        "kernel.project.workspace",
        scope="read",
        execution="read",
        bound=owned("workspace_id"),
        run="view",
        errors=(e.WorkspaceUnknown, e.ProjectInvalid),
    )
    def workspace(self, workspace_id: str) -> Workspace:
        """Return one workspace and the runs that hold it."""
        ...

    @method(
        "kernel.project.workspaces",
        command="projects workspaces list",
        scope="read",
        execution="read",
        bound=viewed("workspaces"),
        run="view",
        result="workspaces",
        errors=(e.ProjectInvalid,),
    )
    def workspaces(self, project_id: str) -> list[Workspace]:
        """Return a project's workspaces and the runs that hold them."""
        ...

    @method(
        "kernel.project.grant",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.LimitExceeded, *_PROJECT),
    )
    def grant(self, from_project: str | None, to_project: str | None) -> ProjectGrant:
        """Let runs and entries of one project reach into another; null is no project."""
        ...

    @method(
        "kernel.project.revoke_grant",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="revoked",
        retry_safe=True,
        errors=(e.ProjectInvalid,),
    )
    def revoke_grant(self, from_project: str | None, to_project: str | None) -> bool:
        """Take back a grant; what it allowed before stays as it is."""
        ...

    @method(
        "kernel.project.grants",
        scope="operate",
        execution="read",
        bound=REFUSED,
        run="refused",
        audited=False,
        result="grants",
    )
    def grants(self) -> list[ProjectGrant]:
        """Return every grant between projects."""
        ...

    @method(
        "kernel.project.list",
        command="projects list",
        scope="read",
        execution="read",
        bound=own_reads("projects"),
        run="view",
        result=("projects", "total"),
        errors=(e.ProjectInvalid,),
    )
    def list(self, *, status: str | None = None, limit: int = 100, offset: int = 0) -> tuple[ProjectList, int]:
        """Return a page of projects by id, and the number of matches."""
        ...
