"""The ready tasks of one project, and which of them an agent gets.

Ready tasks are in queues: one for each combination of the agent type that is needed and the preferred agent. All tasks
of a queue are equivalent for an agent, so only the first tasks of the queues are compared:

    tier 0   it prefers this agent
    tier 1   it has no preference, or one that cannot be met: an unknown agent, a wait that is over, an agent with work
    tier 2   it prefers another agent that is idle; taken when there is nothing better
    tier 3   it prefers a busy agent and still waits for it: it is in no queue

Inside a tier the order is priority (lower is sooner), age, id. A sync task needs its project for itself: while one is
ready, no other task starts; while one runs, nothing starts.

During a round tasks only leave and workspaces are only taken. So a task that cannot be assigned now cannot be assigned
later in the round either, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from rota.policy.fair_share.scheduler_types import Task, TaskStatus, TaskType

__all__ = ["IdleAgent", "ProjectTasks", "Round", "need_of", "startable", "types_of", "waits_for_agent"]

_NO_TYPE = ("", "none", "null")
_READY = TaskStatus.READY
_SYNC = TaskType.SYNC
_RUNNING = (TaskStatus.ASSIGNED, TaskStatus.IN_PROGRESS)
_priority = attrgetter("priority")
_age_and_id = attrgetter("created_at", "id")

_Order: TypeAlias = tuple[int, int, float, str]  # tier, priority, age, id
_QueueKey: TypeAlias = tuple[str | None, str | None]  # the preferred agent, the type it needs


class IdleAgent(NamedTuple):
    """An agent without work: its types, and those of them that are not cooling down."""

    id: str
    types: tuple[str, ...]
    usable: tuple[str, ...]


class Round(NamedTuple):
    """What every project must know of the round; the first three sets change as tasks are assigned."""

    idle: set[str]  # agents without an assignment so far
    assigned: set[str]  # tasks
    held: set[str]  # workspaces that are locked or were assigned
    busy: set[str]  # agents
    now: float
    affinity_wait_s: float


def types_of(agent_type: str) -> tuple[str, ...]:
    """Split a comma-separated list of types, each once."""
    words = dict.fromkeys(part.strip() for part in agent_type.split(","))
    words.pop("", None)
    return tuple(words)


class ProjectTasks:
    """The tasks that one project can assign."""

    __slots__ = ("_queues", "_round")

    def __init__(self, tasks: Sequence[Task], this_round: Round) -> None:
        self._round = this_round
        self._queues = {key: _TaskQueue(queue, this_round) for key, queue in _by_key(tasks, this_round).items()}

    def best_for(self, agent: IdleAgent) -> Task | None:
        """Return the task that this agent should get, if there is one."""
        best: Task | None = None
        best_order: _Order | None = None
        for (preferred, need), queue in self._queues.items():
            if need is not None and need not in agent.usable:
                continue
            first = queue.first()
            if first is not None:
                order = self._tier(preferred, agent), first.priority, first.created_at, first.id
                if best_order is None or order < best_order:
                    best, best_order = first, order
        return best

    def is_empty(self) -> bool:
        """Whether no task is left for any agent."""
        return all(queue.first() is None for queue in self._queues.values())

    def _tier(self, preferred: str | None, agent: IdleAgent) -> int:
        if preferred == agent.id:
            return 0
        return 2 if preferred in self._round.idle else 1


class _TaskQueue:
    """Tasks that are equivalent for an agent. Only those of the most urgent priority are fully sorted."""

    __slots__ = ("_later", "_round", "_urgent")

    def __init__(self, tasks: Iterable[Task], this_round: Round) -> None:
        self._round = this_round
        self._urgent: list[Task] = []  # the first one last, to pop it
        self._later = sorted(tasks, key=_priority, reverse=True)

    def first(self) -> Task | None:
        """Return the first task that can be assigned, if there is one."""
        assigned, held = self._round.assigned, self._round.held
        while self._urgent or self._later:
            if not self._urgent:
                self._sort_next_priority()
            task = self._urgent[-1]
            if task.id not in assigned and task.preferred_workspace_id not in held:
                return task
            self._urgent.pop()
        return None

    def _sort_next_priority(self) -> None:
        later, urgent = self._later, self._urgent
        priority = later[-1].priority
        while later and later[-1].priority == priority:
            urgent.append(later.pop())
        if len(urgent) > 1:
            urgent.sort(key=_age_and_id, reverse=True)


def _by_key(tasks: Sequence[Task], this_round: Round) -> dict[_QueueKey, list[Task]]:
    """Group the tasks that may start by the agent they prefer and the type they need."""
    # this reads every task of every project that is reached, and most tasks are plain
    plain = [
        task
        for task in tasks
        if task.status == _READY
        and task.task_type != _SYNC
        and task.agent_type is None
        and task.affinity_agent_id is None
    ]
    if len(plain) == len(tasks):
        return {(None, None): plain}
    queues: dict[_QueueKey, list[Task]] = {}
    for task in startable(tasks):
        if not waits_for_agent(task, this_round):
            queues.setdefault((_preferred(task, this_round), need_of(task)), []).append(task)
    return queues


def waits_for_agent(task: Task, this_round: Round) -> bool:
    """Whether the task prefers a busy agent and its waiting time is not over."""
    if task.affinity_agent_id not in this_round.busy:
        return False
    known = this_round.now > 0 and this_round.affinity_wait_s > 0 and task.created_at > 0
    return known and this_round.now - task.created_at < this_round.affinity_wait_s


def _preferred(task: Task, this_round: Round) -> str | None:
    """The preferred agent if it is idle; other preferences cannot be met and do not count."""
    return task.affinity_agent_id if task.affinity_agent_id in this_round.idle else None


def need_of(task: Task) -> str | None:
    """The type of agent it needs; None is any."""
    need = (task.agent_type or "").strip()
    return None if need.lower() in _NO_TYPE else need


def startable(tasks: Sequence[Task]) -> list[Task]:
    """The ready tasks that sync tasks allow to start."""
    ready = [task for task in tasks if task.status == _READY]
    syncs = [task for task in tasks if task.task_type == _SYNC]
    if any(task.status in _RUNNING for task in syncs):
        return []
    return [task for task in syncs if task.status == _READY] or ready
