"""Which ready tasks a round of `Scheduler.schedule` passes over, and why.

Each ready task that gets no agent has one reason: the first check that it fails, in the order of the checks, first as
things stood before the round and then with the round's own assignments. A task that fails none was outranked: the idle
agents got other tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rota.policy.fair_share.scheduler_types import (
    AssignAction,
    Project,
    ProjectConstraint,
    ProjectStatus,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)
from rota.policy.fair_share.task_queues import IdleAgent, Round, need_of, startable, waits_for_agent

__all__ = ["PassedOver", "PassedOverReason", "passed_over"]

_UNCONSTRAINED = ProjectConstraint()


class PassedOverReason(StrEnum):
    """Why a ready task got no agent."""

    GLOBAL_BUDGET = "global_budget"  # all projects together have used their tokens
    PROJECT_INACTIVE = "project_inactive"  # unknown, paused or archived
    SCHEDULING_PAUSED = "scheduling_paused"  # by a constraint on the project
    PROJECT_BUDGET = "project_budget"  # the project has used its tokens
    NO_IDLE_AGENT = "no_idle_agent"
    AGENTS_MAX = "agents_max"  # the project has as many agents as it may have
    NO_WORKSPACE = "no_workspace"  # the project has none left
    SYNC = "sync"  # a sync task runs in the project, or goes first
    WORKSPACE_HELD = "workspace_held"  # the one that the task prefers
    WAITS_FOR_AGENT = "waits_for_agent"  # the preferred agent is busy
    NO_AGENT_OF_TYPE = "no_agent_of_type"  # none of the idle ones, or all of that type cool down
    TYPE_MAX = "type_max"  # the project has as many agents of the type as it may have
    OUTRANKED = "outranked"  # other tasks got the agents


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A ready task without an agent."""

    task_id: str
    project_id: str
    reason: PassedOverReason
    detail: str


def passed_over(
    state: SchedulerState,
    actions: Sequence[AssignAction],
    agents: Sequence[IdleAgent],
    this_round: Round,
    busy_types: dict[str, Counter[str]],
) -> Iterator[PassedOver]:
    """Yield the ready tasks that are in none of the round's actions, in input order.

    `agents` and `this_round` are as at the begin of the round.
    """
    look = _Look(state, actions, agents, this_round, busy_types)
    assigned = {action.task_id for action in actions}
    for task in state.tasks:
        if task.status == TaskStatus.READY and task.id not in assigned:
            reason, detail = look.at(task)
            yield PassedOver(task.id, task.project_id, reason, detail)


class _Look:
    """What the reasons of all tasks need to know."""

    def __init__(
        self,
        state: SchedulerState,
        actions: Sequence[AssignAction],
        agents: Sequence[IdleAgent],
        this_round: Round,
        busy_types: dict[str, Counter[str]],
    ) -> None:
        self._state = state
        self._round = this_round
        self._agents = agents
        self._projects = {project.id: project for project in state.projects}
        by_id, tasks = {agent.id: agent for agent in agents}, {task.id: task for task in state.tasks}
        self._started = Counter(action.project_id for action in actions)
        self._started_types: Counter[tuple[str, str]] = Counter(
            (action.project_id, word) for action in actions for word in by_id[action.agent_id].types
        )
        self._taken = {tasks[action.task_id].preferred_workspace_id: action.task_id for action in actions}
        self._syncing = {
            action.project_id: action.task_id for action in actions if tasks[action.task_id].task_type == TaskType.SYNC
        }
        self._busy_types = busy_types
        self._startable: dict[str, set[str]] = {}  # by project, the tasks that its sync tasks allow

    def at(self, task: Task) -> tuple[PassedOverReason, str]:
        """Return the reason of one task."""
        state, reasons = self._state, PassedOverReason
        if state.global_budget is not None and state.global_tokens_used >= state.global_budget:
            return reasons.GLOBAL_BUDGET, f"{state.global_tokens_used:,} of {state.global_budget:,} tokens are used"
        project = self._projects.get(task.project_id)
        if project is None:
            return reasons.PROJECT_INACTIVE, f"there is no project {task.project_id}"
        if project.status != ProjectStatus.ACTIVE:
            return reasons.PROJECT_INACTIVE, f"project {project.id} is {project.status}"
        found = self._of_project(project) or self._of_task(task, project) or self._of_round(task, project)
        return found or (reasons.OUTRANKED, f"all {len(self._agents)} idle agents that it could have got other tasks")

    def _of_project(self, project: Project) -> tuple[PassedOverReason, str] | None:
        state, reasons = self._state, PassedOverReason
        if state.project_constraints.get(project.id, _UNCONSTRAINED).pause_scheduling:
            return reasons.SCHEDULING_PAUSED, f"a constraint pauses project {project.id}"
        used = state.project_token_usage.get(project.id, 0)
        if project.budget_limit is not None and used >= project.budget_limit:
            return reasons.PROJECT_BUDGET, f"{used:,} of {project.budget_limit:,} tokens are used"
        if not self._agents:
            return reasons.NO_IDLE_AGENT, "no agent is idle, or all types cool down"
        return self._full(project, 0)

    def _full(self, project: Project, started: int) -> tuple[PassedOverReason, str] | None:
        """Return why a project that has started some tasks in this round takes no more agents."""
        state, reasons = self._state, PassedOverReason
        exclusive = state.project_constraints.get(project.id, _UNCONSTRAINED).exclusive
        limit = 1 if exclusive else project.max_concurrent_agents
        active = state.project_active_agent_counts.get(project.id, 0) + started
        if active >= limit:
            return reasons.AGENTS_MAX, f"project {project.id} has {active} of {limit} agents"
        if state.project_available_workspaces:
            left = state.project_available_workspaces.get(project.id, 0) - started
            if left <= 0:
                return reasons.NO_WORKSPACE, f"project {project.id} has no free workspace"
        return None

    def _of_task(self, task: Task, project: Project) -> tuple[PassedOverReason, str] | None:
        reasons = PassedOverReason
        if task.id not in self._startable_of(project.id):
            return reasons.SYNC, f"a sync task of project {project.id} runs or goes first"
        if task.preferred_workspace_id in self._round.held:
            return reasons.WORKSPACE_HELD, f"workspace {task.preferred_workspace_id} is locked"
        if waits_for_agent(task, self._round):
            return reasons.WAITS_FOR_AGENT, f"agent {task.affinity_agent_id} is busy"
        need = need_of(task)
        fitting = [agent for agent in self._agents if need is None or need in agent.usable]
        if not fitting:
            return reasons.NO_AGENT_OF_TYPE, f"no idle agent of type {need}"
        return self._type_full(project, fitting, started=False)

    def _type_full(
        self, project: Project, fitting: Sequence[IdleAgent], *, started: bool
    ) -> tuple[PassedOverReason, str] | None:
        """Return the type that is at its limit, if each fitting agent has one."""
        limits = self._state.project_constraints.get(project.id, _UNCONSTRAINED).max_agents_by_type
        busy = self._busy_types.get(project.id, Counter())
        full = {
            word: limit
            for word, limit in limits.items()
            if busy[word] + (self._started_types[project.id, word] if started else 0) >= limit
        }
        if full and all(full.keys() & set(agent.types) for agent in fitting):
            word = min(full)
            return PassedOverReason.TYPE_MAX, f"project {project.id} has its {full[word]} agents of type {word}"
        return None

    def _of_round(self, task: Task, project: Project) -> tuple[PassedOverReason, str] | None:
        """What the round's own assignments leave."""
        if project.id in self._syncing:
            return PassedOverReason.SYNC, f"sync task {self._syncing[project.id]} starts in this round"
        full = self._full(project, self._started[project.id])
        if full is not None:
            return full
        if task.preferred_workspace_id is not None and task.preferred_workspace_id in self._taken:
            holder = self._taken[task.preferred_workspace_id]
            return PassedOverReason.WORKSPACE_HELD, f"task {holder} gets workspace {task.preferred_workspace_id}"
        need = need_of(task)
        fitting = [agent for agent in self._agents if need is None or need in agent.usable]
        return self._type_full(project, fitting, started=True)

    def _startable_of(self, project_id: str) -> set[str]:
        if project_id not in self._startable:
            own = [task for task in self._state.tasks if task.project_id == project_id]
            self._startable[project_id] = {task.id for task in startable(own)}
        return self._startable[project_id]
