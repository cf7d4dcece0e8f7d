"""`Scheduler.schedule`: idle agents are given ready tasks, project by project, by fair share.

Active projects with a ready task compete. They are ranked once: guarantee, then deficit (see shares), ties in
the order they were given. Then each idle agent, in the order given, walks down that list to the first project
that has room and a task for it:

    pause        no constraint pauses the project
    budget       tokens used in the window have not reached budget_limit
    agents       fewer at work than max_concurrent_agents, or than 1 under an exclusive constraint
    types        fewer of each of the agent's types at work here than max_agents_by_type allows
    workspaces   one is left, unless nobody tracks them (an empty table)
    tasks        one that fits the agent, whose own workspace is free (see backlog)

Ranking inputs are frozen for the round: what is given out does not move the ranking. So with four idle
agents a project that is behind may take all four, up to its own limits, and of two projects that both have
the guarantee the first may take both agents. "Everybody gets one first" holds over rounds, not inside one.
What a round gives out it does reserve: agents, types, workspaces. (The policy in this package counts its own
picks; prefer it where you can.)

The frozen ranking is also why this is fast: it is made once, not once per agent, and a project that can take
no more leaves the list. What remains is reading the tasks, a hundred thousand of them where the ranking has a
thousand projects, so they are read sparingly: once until every active project was seen to have one that is
ready, and once to collect those of the projects that agents can be expected to reach.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop

from rota.policy.fair_share.backlog import Backlog, IdleAgent, Round, types_of
from rota.policy.fair_share.nouns import (
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
from rota.policy.fair_share.shares import deficit_ratio

__all__ = ["Scheduler"]

_READY = TaskStatus.READY  # looked up once, not once per task
_UNCONSTRAINED = ProjectConstraint()


class Scheduler:
    """Fair share over a snapshot of projects, tasks and agents."""

    @staticmethod
    def schedule(state: SchedulerState) -> list[AssignAction]:
        """Say which idle agents should be given which ready tasks."""
        if state.global_budget is not None and state.global_tokens_used >= state.global_budget:
            return []
        agents = _idle_agents(state)
        if not agents:
            return []
        this_round = _begin_round(state, agents)
        contenders = _contenders(state, _ranked(_competing(state), state))
        return _give_out(agents, _Walk(contenders, len(agents), state.tasks, this_round), this_round)


def _give_out(agents: Iterable[IdleAgent], walk: _Walk, this_round: Round) -> list[AssignAction]:
    """Lead each agent past the projects to the first that has something for it."""
    actions: list[AssignAction] = []
    for agent in agents:
        for contender in walk:
            task = contender.offer(agent)
            if task is None:
                continue
            actions.append(AssignAction(agent.id, task.id, contender.project_id))
            _reserve(this_round, agent, task)
            if contender.give(agent, task):
                walk.leave(contender)
            break
    return actions


def _reserve(this_round: Round, agent: IdleAgent, task: Task) -> None:
    this_round.waiting.discard(agent.id)
    this_round.given.add(task.id)
    if task.preferred_workspace_id:
        this_round.held.add(task.preferred_workspace_id)


# --- who takes part ------------------------------------------------------------------------------


def _idle_agents(state: SchedulerState) -> list[IdleAgent]:
    """Agents without work, in the order given, each once; one whose every type is cooling down is not idle."""
    idle: dict[str, IdleAgent] = {}
    for agent in state.agents:
        if agent.state == AgentState.IDLE and agent.current_task_id is None and agent.id not in idle:
            types = types_of(agent.agent_type)
            usable = types
            if state.provider_cooldowns:
                usable = tuple(word for word in types if state.provider_cooldowns.get(word, 0.0) <= state.now)
            if usable or not types:
                idle[agent.id] = IdleAgent(agent.id, types, usable)
    return list(idle.values())


def _begin_round(state: SchedulerState, agents: Iterable[IdleAgent]) -> Round:
    return Round(
        waiting={agent.id for agent in agents},
        given=set(),
        held={workspace for workspace, holder in state.workspace_locks.items() if holder is not None},
        at_work={a.id for a in state.agents if a.state == AgentState.BUSY or a.current_task_id is not None},
        now=state.now,
        affinity_wait_s=state.affinity_wait_seconds,
    )


def _competing(state: SchedulerState) -> list[Project]:
    """The active projects with a ready task, in the order given."""
    active = [project for project in state.projects if project.status == ProjectStatus.ACTIVE]
    without = {project.id for project in active}
    for task in state.tasks:
        if task.project_id in without and task.status == _READY:
            without.discard(task.project_id)
            if not without:
                break  # everybody has one: no need to read on
    return [project for project in active if project.id not in without]


def _ranked(projects: Sequence[Project], state: SchedulerState) -> Iterator[Project]:
    """Guarantee, then deficit, then the order they came in. A heap: a round seldom asks for the last one."""
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


# --- what a project may still take ---------------------------------------------------------------


class _Contender:
    """A project in the round, with what it may still take."""

    __slots__ = ("backlog", "project_id", "room", "room_by_type")
    backlog: Backlog  # from the moment its tasks are read

    def __init__(self, project_id: str, room: int, room_by_type: dict[str, int]) -> None:
        self.project_id = project_id
        self.room = room  # agents
        self.room_by_type = room_by_type  # agents of each limited type

    def offer(self, agent: IdleAgent) -> Task | None:
        """The task it has for this agent, if it may take one of its types."""
        if self.room_by_type and any(self.room_by_type.get(word, 1) <= 0 for word in agent.types):
            return None
        return self.backlog.best_for(agent)

    def give(self, agent: IdleAgent, task: Task) -> bool:
        """Count what was given; the answer is whether it can take no more."""
        self.room -= 1
        for word in self.room_by_type.keys() & agent.types:
            self.room_by_type[word] -= 1
        # a sync task, once given, is under way: its project takes nothing beside it
        return self.room <= 0 or task.task_type == TaskType.SYNC or self.backlog.is_spent()


def _contenders(state: SchedulerState, ranked: Iterable[Project]) -> Iterator[_Contender]:
    """Those that may take at least one agent, made as they are asked for."""
    limited = any(constraint.max_agents_by_type for constraint in state.project_constraints.values())
    at_work = _types_at_work(state) if limited else {}
    for project in ranked:
        constraint = state.project_constraints.get(project.id, _UNCONSTRAINED)
        room = _room(state, project, constraint)
        if room > 0:
            here = at_work.get(project.id, {})
            by_type = {word: most - here.get(word, 0) for word, most in constraint.max_agents_by_type.items()}
            yield _Contender(project.id, room, by_type)


def _room(state: SchedulerState, project: Project, constraint: ProjectConstraint) -> int:
    """How many more agents a project may take: by pause, budget, agents at work and workspaces."""
    if constraint.pause_scheduling:
        return 0
    if project.budget_limit is not None and state.project_token_usage.get(project.id, 0) >= project.budget_limit:
        return 0
    most = 1 if constraint.exclusive else project.max_concurrent_agents
    room = most - state.project_active_agent_counts.get(project.id, 0)
    if state.project_available_workspaces:
        room = min(room, state.project_available_workspaces.get(project.id, 0))
    return room


def _types_at_work(state: SchedulerState) -> Mapping[str, Mapping[str, int]]:
    """How many agents of each type are at work in each project; who has several types counts for each."""
    tasks_held = {agent.current_task_id for agent in state.agents}
    project_of = {task.id: task.project_id for task in state.tasks if task.id in tasks_held}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for agent in state.agents:
        if agent.current_task_id in project_of:
            counts[project_of[agent.current_task_id]].update(types_of(agent.agent_type))
    return counts


# --- the walk ------------------------------------------------------------------------------------


class _Walk:
    """The contenders in their order. Tasks are read for as many of them as have room for all agents; should an
    agent find nothing there, for all the others too."""

    def __init__(self, ranked: Iterator[_Contender], agents: int, tasks: Iterable[Task], this_round: Round) -> None:
        self._tasks = tasks
        self._round = this_round
        self._ahead = ranked
        self._open: list[_Contender] = self._read(_with_room_for(agents, ranked))

    def __iter__(self) -> Iterator[_Contender]:
        yield from self._open
        others = self._read(list(self._ahead))
        self._open += others
        yield from others

    def leave(self, contender: _Contender) -> None:
        """It can take no more; end the walk after this."""
        self._open.remove(contender)

    def _read(self, contenders: list[_Contender]) -> list[_Contender]:
        """The contenders, with their tasks."""
        tasks_of: dict[str, list[Task]] = {contender.project_id: [] for contender in contenders}
        wanted = set(tasks_of)  # a set answers "is it in?" faster than a dictionary, and every task asks
        for task in self._tasks if wanted else ():
            if task.project_id in wanted:
                tasks_of[task.project_id].append(task)
        for contender in contenders:
            contender.backlog = Backlog(tasks_of[contender.project_id], self._round)
        return contenders


def _with_room_for(agents: int, ranked: Iterator[_Contender]) -> list[_Contender]:
    """The first contenders that together have room for all agents."""
    reached: list[_Contender] = []
    room = 0
    while room < agents and (contender := next(ranked, None)) is not None:
        reached.append(contender)
        room += contender.room
    return reached
