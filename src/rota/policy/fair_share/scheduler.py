"""`Scheduler.schedule` assigns ready tasks to idle agents, project by project, by fair share.

Active projects with a ready task compete. They are ranked once: guarantee, then deficit (see share_ranking.py), ties in
input order. Then each idle agent, in input order, gets a task of the first project in the ranking that passes every
check:

    pause        no constraint pauses the project
    budget       tokens used in the window have not reached budget_limit
    agents       fewer busy than max_concurrent_agents, or than 1 under an exclusive constraint
    types        fewer busy agents of each of the agent's types here than max_agents_by_type allows
    workspaces   one is left, unless workspaces are not tracked (an empty table)
    tasks        one that fits the agent, whose own workspace is free (see task_queues.py)

The ranking is fixed for the round: assignments do not change it. So with four idle agents a project that is behind may
take all four, up to its own limits, and of two projects with the guarantee the first may take both agents. "Every
project gets one first" holds over rounds, not inside one. Assigned agents, types and workspaces are reserved for the
round. (The policy in this package counts its own picks; prefer it if you can.)

The fixed ranking also makes this fast: it is computed once, not once per agent, and a full project leaves the list.
What remains is reading the tasks, a hundred thousand of them for a thousand projects. They are read at most twice:
until every active project has shown a ready task, and to collect the tasks of the projects that agents are likely to
reach.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop

from rota.policy.fair_share.passed_over import PassedOver, passed_over
from rota.policy.fair_share.scheduler_types import (
    Agent,
    AgentState,
    AssignAction,
    Project,
    ProjectConstraint,
    ProjectStatus,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)
from rota.policy.fair_share.share_ranking import deficit_ratio
from rota.policy.fair_share.task_queues import IdleAgent, ProjectTasks, Round, types_of

__all__ = ["Scheduler"]

_READY = TaskStatus.READY  # one lookup, not one per task
_UNCONSTRAINED = ProjectConstraint()


class Scheduler:
    """Fair share over a snapshot of projects, tasks and agents."""

    @staticmethod
    def schedule(state: SchedulerState) -> list[AssignAction]:
        """Return which idle agents should get which ready tasks."""
        if state.global_budget is not None and state.global_tokens_used >= state.global_budget:
            return []
        agents = _idle_agents(state)
        if not agents:
            return []
        this_round = _begin_round(state, agents)
        projects = _projects_with_capacity(state, _ranked(_competing(state), state))
        return _assign(agents, _RankedProjects(projects, len(agents), state.tasks, this_round), this_round)

    @staticmethod
    def passed_over(state: SchedulerState) -> list[PassedOver]:
        """Return the ready tasks to which `schedule` assigns no agent, in input order, each with its reason."""
        agents = _idle_agents(state)
        before = _begin_round(state, agents)
        return list(passed_over(state, Scheduler.schedule(state), agents, before, _busy_types(state)))


def _assign(agents: Iterable[IdleAgent], ranked: _RankedProjects, this_round: Round) -> list[AssignAction]:
    """Give each agent a task of the first project that has one for it."""
    actions: list[AssignAction] = []
    for agent in agents:
        for project in ranked:
            task = project.task_for(agent)
            if task is None:
                continue
            actions.append(AssignAction(agent.id, task.id, project.project_id))
            _reserve(this_round, agent, task)
            if project.count(agent, task):
                ranked.remove(project)
            break
    return actions


def _reserve(this_round: Round, agent: IdleAgent, task: Task) -> None:
    this_round.idle.discard(agent.id)
    this_round.assigned.add(task.id)
    if task.preferred_workspace_id:
        this_round.held.add(task.preferred_workspace_id)


# --- agents and projects that take part ----------------------------------------------------------


def _idle_agents(state: SchedulerState) -> list[IdleAgent]:
    """Return the agents without work in input order, each once, except those whose types are all cooling down."""
    idle: dict[str, IdleAgent] = {}
    for agent in state.agents:
        if agent.state == AgentState.IDLE and agent.id not in idle:  # a task that it still names is an old one
            types = types_of(agent.agent_type)
            usable = types
            if state.provider_cooldowns:
                usable = tuple(word for word in types if state.provider_cooldowns.get(word, 0.0) <= state.now)
            if usable or not types:
                idle[agent.id] = IdleAgent(agent.id, types, usable)
    return list(idle.values())


def _begin_round(state: SchedulerState, agents: Iterable[IdleAgent]) -> Round:
    return Round(
        idle={agent.id for agent in agents},
        assigned=set(),
        held={workspace for workspace, holder in state.workspace_locks.items() if holder is not None},
        busy={a.id for a in state.agents if a.state == AgentState.BUSY or _works(a)},
        now=state.now,
        affinity_wait_s=state.affinity_wait_seconds,
    )


def _competing(state: SchedulerState) -> list[Project]:
    """Return the active projects with a ready task, in input order."""
    active = [project for project in state.projects if project.status == ProjectStatus.ACTIVE]
    without = {project.id for project in active}
    for task in state.tasks:
        if task.project_id in without and task.status == _READY:
            without.discard(task.project_id)
            if not without:
                break  # every project has one: no need to read on
    return [project for project in active if project.id not in without]


def _ranked(projects: Sequence[Project], state: SchedulerState) -> Iterator[Project]:
    """Yield projects by guarantee, deficit and input order, from a heap: a round seldom needs the last one."""
    usage, completed = state.project_token_usage, state.tasks_completed_in_window
    total_usage = sum(usage.values()) or 1
    total_weight = sum(project.credit_weight for project in projects)
    heap = [
        (
            completed.get(project.id, 0) > 0,
            deficit_ratio(usage.get(project.id, 0), total_usage, project.credit_weight, total_weight),
            index,
        )
        for index, project in enumerate(projects)
    ]
    heapify(heap)
    while heap:
        yield projects[heappop(heap)[-1]]


# --- the capacity of a project -------------------------------------------------------------------


class _ProjectCapacity:
    """A project in the round, and how many more agents it may take."""

    __slots__ = ("capacity", "capacity_by_type", "project_id", "tasks")
    tasks: ProjectTasks  # set when its tasks are read

    def __init__(self, project_id: str, capacity: int, capacity_by_type: dict[str, int]) -> None:
        self.project_id = project_id
        self.capacity = capacity  # agents
        self.capacity_by_type = capacity_by_type  # agents of each limited type

    def task_for(self, agent: IdleAgent) -> Task | None:
        """Return its best task for this agent, unless one of the agent's types is at its limit here."""
        if self.capacity_by_type and any(self.capacity_by_type.get(word, 1) <= 0 for word in agent.types):
            return None
        return self.tasks.best_for(agent)

    def count(self, agent: IdleAgent, task: Task) -> bool:
        """Count an assignment; return whether the project can take no more."""
        self.capacity -= 1
        for word in self.capacity_by_type.keys() & agent.types:
            self.capacity_by_type[word] -= 1
        # an assigned sync task runs: its project takes nothing beside it
        return self.capacity <= 0 or task.task_type == TaskType.SYNC or self.tasks.is_empty()


def _projects_with_capacity(state: SchedulerState, ranked: Iterable[Project]) -> Iterator[_ProjectCapacity]:
    """Yield the projects that may take at least one agent, as they are needed."""
    limited = any(constraint.max_agents_by_type for constraint in state.project_constraints.values())
    busy_types = _busy_types(state) if limited else {}
    for project in ranked:
        constraint = state.project_constraints.get(project.id, _UNCONSTRAINED)
        capacity = _capacity(state, project, constraint)
        if capacity > 0:
            here = busy_types.get(project.id, Counter())
            by_type = {word: limit - here[word] for word, limit in constraint.max_agents_by_type.items()}
            yield _ProjectCapacity(project.id, capacity, by_type)


def _capacity(state: SchedulerState, project: Project, constraint: ProjectConstraint) -> int:
    """Return how many more agents a project may take: by pause, budget, busy agents and workspaces."""
    if constraint.pause_scheduling:
        return 0
    if project.budget_limit is not None and state.project_token_usage.get(project.id, 0) >= project.budget_limit:
        return 0
    limit = 1 if constraint.exclusive else project.max_concurrent_agents
    capacity = limit - state.project_active_agent_counts.get(project.id, 0)
    if state.project_available_workspaces:
        capacity = min(capacity, state.project_available_workspaces.get(project.id, 0))
    return capacity


def _works(agent: Agent) -> bool:
    """Whether an agent is at its task: an idle one may still name the last one it had."""
    return agent.current_task_id is not None and agent.state != AgentState.IDLE


def _busy_types(state: SchedulerState) -> dict[str, Counter[str]]:
    """Count the busy agents of each type in each project; an agent with several types counts for each."""
    tasks_held = {agent.current_task_id for agent in state.agents if _works(agent)}
    project_of = {task.id: task.project_id for task in state.tasks if task.id in tasks_held}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for agent in state.agents:
        if _works(agent) and agent.current_task_id in project_of:
            counts[project_of[agent.current_task_id]].update(types_of(agent.agent_type))
    return counts


# --- the ranking during the round ----------------------------------------------------------------


class _RankedProjects:
    """The projects in rank order. Tasks are read for the first projects that together have capacity for all agents;
    if an agent finds nothing there, for all the others too."""

    def __init__(
        self, ranked: Iterator[_ProjectCapacity], agents: int, tasks: Iterable[Task], this_round: Round
    ) -> None:
        self._tasks = tasks
        self._round = this_round
        self._unread = ranked
        self._open: list[_ProjectCapacity] = self._read(_with_capacity_for(agents, ranked))

    def __iter__(self) -> Iterator[_ProjectCapacity]:
        yield from self._open
        others = self._read(list(self._unread))
        self._open += others
        yield from others

    def remove(self, project: _ProjectCapacity) -> None:
        """Take out a full project; the current iteration must end after this."""
        self._open.remove(project)

    def _read(self, projects: list[_ProjectCapacity]) -> list[_ProjectCapacity]:
        """Read the tasks of the projects."""
        tasks_of: dict[str, list[Task]] = {project.project_id: [] for project in projects}
        wanted = set(tasks_of)  # a lookup in a set is faster than in a dictionary, and every task needs one
        for task in self._tasks if wanted else ():
            if task.project_id in wanted:
                tasks_of[task.project_id].append(task)
        for project in projects:
            project.tasks = ProjectTasks(tasks_of[project.project_id], self._round)
        return projects


def _with_capacity_for(agents: int, ranked: Iterator[_ProjectCapacity]) -> list[_ProjectCapacity]:
    """Return the first projects that together have capacity for all agents."""
    reached: list[_ProjectCapacity] = []
    capacity = 0
    while capacity < agents and (project := next(ranked, None)) is not None:
        reached.append(project)
        capacity += project.capacity
    return reached
