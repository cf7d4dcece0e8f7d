"""Fair share at the seed's door, against the algorithm as it is described.

The baseline makes the same checks in the order in which they are described: sort every project's tasks, then
for each idle agent rank all projects anew, walk down the ranking, and look through the tasks of each project
that has room. It is written to be read, and is also what the tests hold rota's answers against.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from bench.harness import Arena, Case
from rota.policy.fair_share import (
    Agent,
    AgentState,
    AssignAction,
    Project,
    ProjectConstraint,
    ProjectStatus,
    Scheduler,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)

__all__ = ["Described", "cases"]

PROJECTS, TASKS, AGENTS = 1_000, 100_000, 100


def cases() -> Iterator[Case]:
    yield Case(
        name="fair-share-1000x100k",
        n=TASKS,
        unit="ms",
        baseline="all projects ranked anew for each idle agent",
        arena=lambda: _arena(PROJECTS, TASKS, AGENTS),
        goal=20,
    )


def _arena(projects: int, tasks: int, agents: int) -> Arena:
    state = _state(projects, tasks, agents, random.Random(3))
    return Arena(
        rota=lambda: Scheduler.schedule(state),
        base=lambda: Described(state).schedule(),
        verify=lambda ours, theirs: len(ours) == agents and ours == theirs,
    )


def _state(projects: int, tasks: int, agents: int, rng: random.Random) -> SchedulerState:
    """Nobody is at work yet, and a project may have one to five agents."""
    names = [f"project-{number}" for number in range(projects)]
    return SchedulerState(
        projects=[Project(name, name, rng.randint(1, 10), rng.randint(1, 5)) for name in names],
        tasks=[
            Task(f"task-{number}", rng.choice(names), priority=rng.randint(0, 200), status=TaskStatus.READY)
            for number in range(tasks)
        ],
        agents=[Agent(f"agent-{number}", f"agent {number}", "claude") for number in range(agents)],
        project_token_usage={name: rng.randint(0, 1_000_000) for name in names},
        project_active_agent_counts={},
        tasks_completed_in_window={name: rng.randint(0, 50) for name in names},
        project_available_workspaces=dict.fromkeys(names, 3),
    )


class Described:
    """One round of the described algorithm."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.agents_in = Counter(state.project_active_agent_counts)
        self.types_in = self._types_at_work()
        self.workspaces = dict(state.project_available_workspaces)
        self.held = {workspace for workspace, holder in state.workspace_locks.items() if holder is not None}
        self.given_tasks: set[str] = set()
        self.given_agents: set[str] = set()

    def schedule(self) -> list[AssignAction]:
        """The assignments of the round."""
        state = self.state
        if state.global_budget is not None and state.global_tokens_used >= state.global_budget:
            return []
        self.idle = [agent for agent in state.agents if self._is_idle(agent)]
        self.tasks = self._ready_tasks()
        self.projects = [p for p in state.projects if p.status == ProjectStatus.ACTIVE and p.id in self.tasks]
        self.total_weight = sum(project.credit_weight for project in self.projects)
        self.total_tokens = sum(state.project_token_usage.values()) or 1
        actions = [self._serve(agent) for agent in self.idle]
        return [action for action in actions if action is not None]

    def _serve(self, agent: Agent) -> AssignAction | None:
        if agent.id in self.given_agents:
            return None
        for project in sorted(self.projects, key=self._standing):
            if self._has_room(project, agent):
                task = self._choose(project, agent)
                if task is not None:
                    self._record(agent, task)
                    return AssignAction(agent.id, task.id, project.id)
        return None

    def _standing(self, project: Project) -> tuple[int, float]:
        served = 1 if self.state.tasks_completed_in_window.get(project.id, 0) > 0 else 0
        actual = self.state.project_token_usage.get(project.id, 0) / self.total_tokens
        target = project.credit_weight / self.total_weight if self.total_weight else 0.0
        return served, actual - target

    def _has_room(self, project: Project, agent: Agent) -> bool:
        state = self.state
        constraint = state.project_constraints.get(project.id, ProjectConstraint())
        if constraint.pause_scheduling:
            return False
        if project.budget_limit is not None and state.project_token_usage.get(project.id, 0) >= project.budget_limit:
            return False
        if self.agents_in[project.id] >= (1 if constraint.exclusive else project.max_concurrent_agents):
            return False
        for kind, most in constraint.max_agents_by_type.items():
            if kind in _types(agent) and self.types_in[project.id, kind] >= most:
                return False
        return not state.project_available_workspaces or self.workspaces.get(project.id, 0) > 0

    def _choose(self, project: Project, agent: Agent) -> Task | None:
        usable = self._usable(agent)
        fitting = [
            task
            for task in self.tasks[project.id]
            if task.id not in self.given_tasks
            and task.preferred_workspace_id not in self.held
            and (_need(task) is None or _need(task) in usable)
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda task: self._tier(task, agent))  # the first of them: they are sorted
        return None if self._tier(best, agent) == 3 else best

    def _tier(self, task: Task, agent: Agent) -> int:
        state, friend = self.state, task.affinity_agent_id
        if friend is None:
            return 1
        if friend == agent.id:
            return 0
        if any(other.id == friend and other.id not in self.given_agents for other in self.idle):
            return 2
        busy = any(other.id == friend and _is_busy(other) for other in state.agents)
        known = state.now > 0 and state.affinity_wait_seconds > 0 and task.created_at > 0
        return 3 if busy and known and state.now - task.created_at < state.affinity_wait_seconds else 1

    def _record(self, agent: Agent, task: Task) -> None:
        self.given_agents.add(agent.id)
        self.given_tasks.add(task.id)
        self.agents_in[task.project_id] += 1
        if task.project_id in self.workspaces:
            self.workspaces[task.project_id] -= 1
        if task.preferred_workspace_id:
            self.held.add(task.preferred_workspace_id)
        for kind in _types(agent):
            self.types_in[task.project_id, kind] += 1
        if task.task_type == TaskType.SYNC:
            self.tasks[task.project_id] = []

    def _ready_tasks(self) -> dict[str, list[Task]]:
        """Ready tasks by project, sorted; a sync task keeps the others of its project out."""
        ready: dict[str, list[Task]] = {}
        syncing: set[str] = set()
        for task in self.state.tasks:
            if task.status == TaskStatus.READY:
                ready.setdefault(task.project_id, []).append(task)
            elif task.task_type == TaskType.SYNC and task.status in (TaskStatus.ASSIGNED, TaskStatus.IN_PROGRESS):
                syncing.add(task.project_id)
        for project_id, tasks in ready.items():
            tasks.sort(key=lambda task: (task.priority, task.created_at, task.id))
            syncs = [task for task in tasks if task.task_type == TaskType.SYNC]
            ready[project_id] = [] if project_id in syncing else syncs or tasks
        return ready

    def _types_at_work(self) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        for agent in self.state.agents:
            if agent.current_task_id is not None and agent.state != AgentState.IDLE:
                for task in self.state.tasks:
                    if task.id == agent.current_task_id:
                        counts.update((task.project_id, kind) for kind in _types(agent))
        return counts

    def _is_idle(self, agent: Agent) -> bool:
        if agent.state != AgentState.IDLE:
            return False
        return not _types(agent) or bool(self._usable(agent))

    def _usable(self, agent: Agent) -> list[str]:
        return [kind for kind in _types(agent) if self.state.provider_cooldowns.get(kind, 0.0) <= self.state.now]


def _is_busy(agent: Agent) -> bool:
    return agent.state == AgentState.BUSY or (agent.current_task_id is not None and agent.state != AgentState.IDLE)


def _types(agent: Agent) -> set[str]:
    return {part.strip() for part in agent.agent_type.split(",") if part.strip()}


def _need(task: Task) -> str | None:
    need = (task.agent_type or "none").strip()
    return None if need.lower() in ("", "none", "null") else need
