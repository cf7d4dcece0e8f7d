"""The tasks of one project, and which of them an agent is given.

Ready tasks stand in lines: one for each type of agent that is needed, together with the agent they would
rather have. All tasks of a line look alike to an agent, so only the heads of the lines are compared:

    tier 0   it would rather have this agent
    tier 1   it has no wish, or one that nobody can meet: unknown agent, waited long enough, given other work
    tier 2   it would rather have another agent, who is idle; taken when there is nothing better
    tier 3   it would rather have an agent who is at work, and still waits for it: it is in no line

Inside a tier the order is priority (lower is sooner), age, id. A sync task has its project to itself: while a
ready one waits no other starts, and while one is under way nothing starts at all.

Tasks only ever leave during a round and workspaces are only ever taken, so what cannot be given now cannot be
given later in the round either, and is dropped for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from rota.policy.fair_share.nouns import Task, TaskStatus, TaskType

__all__ = ["Backlog", "IdleAgent", "Round", "types_of"]

_NO_TYPE = ("", "none", "null")
_READY = TaskStatus.READY
_SYNC = TaskType.SYNC
_UNDER_WAY = (TaskStatus.ASSIGNED, TaskStatus.IN_PROGRESS)
_priority = attrgetter("priority")
_age_and_id = attrgetter("created_at", "id")

_Place: TypeAlias = tuple[int, int, float, str]  # tier, priority, age, id
_Wish: TypeAlias = tuple[str | None, str | None]  # the agent it would rather have, the type it needs


class IdleAgent(NamedTuple):
    """An agent to be given work, with its types, and those of them that are not cooling down."""

    id: str
    types: tuple[str, ...]
    usable: tuple[str, ...]


class Round(NamedTuple):
    """What every project must know of the round; the first three change as work is given out."""

    waiting: set[str]  # agents who are idle and were given nothing yet
    given: set[str]  # tasks that were given out
    held: set[str]  # workspaces that are locked or were given out
    at_work: set[str]  # agents
    now: float
    affinity_wait_s: float


def types_of(agent_type: str) -> tuple[str, ...]:
    """The types in a list with commas, each once."""
    words = dict.fromkeys(part.strip() for part in agent_type.split(","))
    words.pop("", None)
    return tuple(words)


class Backlog:
    """What one project has to give out."""

    __slots__ = ("_lines", "_round")

    def __init__(self, tasks: Sequence[Task], this_round: Round) -> None:
        self._round = this_round
        self._lines = {wish: _Line(line, this_round) for wish, line in _by_wish(tasks, this_round).items()}

    def best_for(self, agent: IdleAgent) -> Task | None:
        """The task this agent should be given, if there is one."""
        best: Task | None = None
        best_place: _Place | None = None
        for (friend, need), line in self._lines.items():
            if need is not None and need not in agent.usable:
                continue
            head = line.head()
            if head is not None:
                place = self._tier(friend, agent), head.priority, head.created_at, head.id
                if best_place is None or place < best_place:
                    best, best_place = head, place
        return best

    def is_spent(self) -> bool:
        """Whether there is nothing left for anybody."""
        return all(line.head() is None for line in self._lines.values())

    def _tier(self, friend: str | None, agent: IdleAgent) -> int:
        if friend == agent.id:
            return 0
        return 2 if friend in self._round.waiting else 1


class _Line:
    """Tasks that look alike to an agent. Only those of the most urgent priority are put in full order."""

    __slots__ = ("_later", "_round", "_urgent")

    def __init__(self, tasks: Iterable[Task], this_round: Round) -> None:
        self._round = this_round
        self._urgent: list[Task] = []  # the first one last, to pop it
        self._later = sorted(tasks, key=_priority, reverse=True)

    def head(self) -> Task | None:
        """The first task that can be given, if there is one."""
        given, held = self._round.given, self._round.held
        while self._urgent or self._later:
            if not self._urgent:
                self._fetch_urgent()
            task = self._urgent[-1]
            if task.id not in given and task.preferred_workspace_id not in held:
                return task
            self._urgent.pop()
        return None

    def _fetch_urgent(self) -> None:
        later, urgent = self._later, self._urgent
        priority = later[-1].priority
        while later and later[-1].priority == priority:
            urgent.append(later.pop())
        if len(urgent) > 1:
            urgent.sort(key=_age_and_id, reverse=True)


def _by_wish(tasks: Sequence[Task], this_round: Round) -> dict[_Wish, list[Task]]:
    """The tasks that may start, by the agent they would rather have and the type they need."""
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
    lines: dict[_Wish, list[Task]] = {}
    for task in _startable(tasks):
        if not _still_waits(task, this_round):
            lines.setdefault((_friend(task, this_round), _need(task)), []).append(task)
    return lines


def _still_waits(task: Task, this_round: Round) -> bool:
    """Whether it would rather have an agent who is at work, and has not waited long enough for it."""
    if task.affinity_agent_id not in this_round.at_work:
        return False
    known = this_round.now > 0 and this_round.affinity_wait_s > 0 and task.created_at > 0
    return known and this_round.now - task.created_at < this_round.affinity_wait_s


def _friend(task: Task, this_round: Round) -> str | None:
    """The idle agent it would rather have; other wishes cannot be met and count for nothing."""
    return task.affinity_agent_id if task.affinity_agent_id in this_round.waiting else None


def _need(task: Task) -> str | None:
    """The type of agent it needs; None is any."""
    need = (task.agent_type or "").strip()
    return None if need.lower() in _NO_TYPE else need


def _startable(tasks: Sequence[Task]) -> list[Task]:
    """The ready tasks, as far as sync tasks let them start."""
    ready = [task for task in tasks if task.status == _READY]
    syncs = [task for task in tasks if task.task_type == _SYNC]
    if any(task.status in _UNDER_WAY for task in syncs):
        return []
    return [task for task in syncs if task.status == _READY] or ready
