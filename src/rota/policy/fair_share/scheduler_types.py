"""The types of `Scheduler`: projects, tasks, agents, the state of one round, assignments.

They are used by `Scheduler` alone. Elsewhere in rota its *agent* is a slot and its *task* is an entry, and here a
**lower** priority number is sooner. Every type checks its fields when it is created. A status may be given as its
string. Fields that scheduling does not read are kept for the program that owns the objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from rota.errors import ProjectInvalid, SchedInvalidPayload
from rota.model.checks import Checks
from rota.model.lifecycle import ProjectStatus, SlotState, TaskStatus

__all__ = [
    "Agent",
    "AgentState",
    "AssignAction",
    "Project",
    "ProjectConstraint",
    "ProjectStatus",
    "SchedulerState",
    "Task",
    "TaskStatus",
    "TaskType",
]

AgentState = SlotState  # the public name of this module

_project = Checks("Project", ProjectInvalid)
_constraint = Checks("ProjectConstraint", ProjectInvalid)
_task = Checks("Task", SchedInvalidPayload)
_agent = Checks("Agent", SchedInvalidPayload)
_state = Checks("SchedulerState", SchedInvalidPayload)

_Word = TypeVar("_Word", bound=StrEnum)


def _word(checks: Checks, field_name: str, value: object, words: type[_Word]) -> _Word:
    """Return the member of an enumeration, given as itself or as its string."""
    if type(value) is words:
        return value
    return words(checks.one_of(field_name, value, [word.value for word in words]))


class TaskType(StrEnum):
    """The type of a task; scheduling depends on `sync` only."""

    FEATURE = "feature"
    BUGFIX = "bugfix"
    REFACTOR = "refactor"
    TEST = "test"
    DOCS = "docs"
    CHORE = "chore"
    RESEARCH = "research"
    PLAN = "plan"
    SYNC = "sync"  # runs alone in its project


@dataclass(slots=True)
class Project:
    """A tenant with a weight, to which tokens are charged."""

    id: str
    name: str
    credit_weight: float = 1.0  # its share, against the other projects' weights
    max_concurrent_agents: int = 2
    status: ProjectStatus = ProjectStatus.ACTIVE
    total_tokens_used: int = 0
    budget_limit: int | None = None  # tokens in the window; None: no limit
    repo_url: str = ""
    repo_default_branch: str = "main"
    default_profile_id: str | None = None
    default_agent_type: str | None = None

    def __post_init__(self) -> None:
        _project.text("id", self.id)
        _project.number("credit_weight", self.credit_weight, 0)
        _project.whole("max_concurrent_agents", self.max_concurrent_agents, 0)
        self.status = _word(_project, "status", self.status, ProjectStatus)
        if self.budget_limit is not None:
            _project.whole("budget_limit", self.budget_limit, 0)


@dataclass(slots=True)
class Task:
    """A piece of work for one agent."""

    id: str
    project_id: str
    title: str = ""
    description: str = ""
    priority: int = 100  # lower is sooner
    status: TaskStatus = TaskStatus.DEFINED
    retry_count: int = 0
    max_retries: int = 3
    parent_task_id: str | None = None
    assigned_agent_id: str | None = None
    branch_name: str | None = None
    resume_after: float | None = None
    requires_approval: bool = False
    task_type: TaskType | None = None
    preferred_workspace_id: str | None = None  # the task waits until this one is free
    agent_type: str | None = None  # the type of agent it needs; None, "none" and "null" take any
    affinity_agent_id: str | None = None  # the preferred agent
    affinity_reason: str | None = None
    workspace_mode: str | None = None
    workflow_id: str | None = None
    created_at: float = 0.0  # epoch seconds; 0 is unknown

    def __post_init__(self) -> None:
        _task.text("id", self.id)
        _task.text("project_id", self.project_id)
        _task.whole("priority", self.priority)
        self.status = _word(_task, "status", self.status, TaskStatus)
        if self.task_type is not None:
            self.task_type = _word(_task, "task_type", self.task_type, TaskType)
        _task.instant("created_at", self.created_at)


@dataclass(slots=True)
class Agent:
    """A worker that does one task at a time."""

    id: str
    name: str
    agent_type: str = ""  # one type, or a comma-separated list
    state: SlotState = SlotState.IDLE
    current_task_id: str | None = None
    pid: int | None = None
    last_heartbeat: float | None = None
    total_tokens_used: int = 0
    session_tokens_used: int = 0

    def __post_init__(self) -> None:
        _agent.text("id", self.id)
        self.state = _word(_agent, "state", self.state, SlotState)


@dataclass(slots=True)
class ProjectConstraint:
    """A constraint that an operator puts on a project until it is released."""

    exclusive: bool = False  # one agent at a time
    max_agents_by_type: dict[str, int] = field(default_factory=dict)
    pause_scheduling: bool = False

    def __post_init__(self) -> None:
        _constraint.amounts("max_agents_by_type", self.max_agents_by_type)


@dataclass(frozen=True, slots=True)
class AssignAction:
    """Assign this task to this agent."""

    agent_id: str
    task_id: str
    project_id: str


@dataclass(slots=True)
class SchedulerState:
    """The input of one round. The caller counts what is per window."""

    projects: list[Project]
    tasks: list[Task]
    agents: list[Agent]
    project_token_usage: dict[str, int]  # in the window; also of projects that do not compete
    project_active_agent_counts: dict[str, int]
    tasks_completed_in_window: dict[str, int]
    project_available_workspaces: dict[str, int] = field(default_factory=dict)  # empty: not tracked
    workspace_locks: dict[str, str | None] = field(default_factory=dict)  # workspace → the task that holds it
    global_budget: int | None = None
    global_tokens_used: int = 0
    provider_cooldowns: dict[str, float] = field(default_factory=dict)  # agent type → end of its cooldown
    project_constraints: dict[str, ProjectConstraint] = field(default_factory=dict)
    now: float = 0.0  # epoch seconds; 0 is unknown
    affinity_wait_seconds: float = 120.0  # how long a task waits for its preferred agent while that is busy

    def __post_init__(self) -> None:
        if len({project.id for project in self.projects}) < len(self.projects):
            raise _state.refuse("projects", "must not contain a project twice")
        _state.amounts("project_token_usage", self.project_token_usage)
        if self.global_budget is not None:
            _state.whole("global_budget", self.global_budget, 0)
        _state.whole("global_tokens_used", self.global_tokens_used, 0)
        _state.instant("now", self.now)
        _state.duration("affinity_wait_seconds", self.affinity_wait_seconds)
