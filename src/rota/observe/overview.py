"""What `rota top` and the dashboard read: the tables at one moment, and what the journal says about the last minutes.

All of it goes through the scheduler API, so it is the same beside a running fleet and at a daemon. A token that is
bound to projects sees its own projects; what is refused to it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rota.errors import Forbidden, RotaError
from rota.model import BudgetLine, Event, PolicyInForce, ReadyEntry, SchedulingContext, WorkerInfo
from rota.observe.event_text import EventText
from rota.observe.fleet_report import ProjectReport
from rota.observe.fleet_state import AgentName, FleetState, StartingState
from rota.observe.recent_usage import AgentShare
from rota.observe.run_chart import WINDOW_S

if TYPE_CHECKING:
    from rota.service import SchedulerApi

__all__ = [
    "HISTORY_EVENTS_MAX",
    "EntryLookup",
    "Overview",
    "TopReport",
    "read_agents",
    "read_counts",
    "read_overview",
    "read_weights",
    "recent_state",
    "report_of",
]

HISTORY_EVENTS_MAX = 10_000  # of the journal, read at the start
HISTORY_PAGE = 1_000
RUNNING_MAX = 1_000  # runs that are read
PROJECTS_MAX = 50  # projects whose waiting entries are counted
LIMITS_MAX = 1_000
AGENTS_MAX = 20_000  # agents whose names are read at the start
LIST_PAGE = 1_000
START_TRIES = 5
EVENTS_SHOWN = 20  # in one snapshot
LOOKUP_EVENTS = 500  # of the events read at the start, the last ones whose failed runs are looked up
LOOKUPS_MAX = 20  # entries looked up at the start and in one refresh


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the tables at one moment."""

    at: float
    cursor: int
    policy: PolicyInForce
    paused_by: str | None
    counts: dict[str, int]  # by state, and by hold
    statuses: dict[str, int]
    workers: tuple[WorkerInfo, ...] | None  # None: refused to the caller
    running: tuple[ReadyEntry, ...]
    oldest: ReadyEntry | None  # of those that are ready
    ready: dict[str, int]  # by project, how many entries are ready
    budgets: tuple[BudgetLine, ...]
    limits: tuple[SchedulingContext, ...]

    @property
    def slots(self) -> int:
        """The slots of all workers."""
        return sum(worker.slots for worker in self.workers or ())

    @property
    def oldest_wait_s(self) -> float | None:
        """How long the oldest ready entry has waited."""
        if self.oldest is None:
            return None
        return max(0.0, self.at - max(self.oldest.created_at, self.oldest.runnable_at))


def read_overview(api: SchedulerApi) -> Overview:
    """Read the tables."""
    return Overview(
        at=api.clock.now(),
        cursor=api.journal.cursor(),
        policy=api.policies.get(),
        paused_by=api.projects.fleet_paused_by(),
        counts=api.queue.counts(),
        statuses=api.queue.counts("status"),
        workers=_workers(api),
        running=tuple(api.queue.list(state="dispatched", limit=RUNNING_MAX)[0]),
        oldest=next(iter(api.queue.list(status="ready", limit=1)[0]), None),
        ready=_ready(api),
        budgets=tuple(api.ledger.budgets()),
        limits=tuple(api.contexts.list(limit=LIMITS_MAX)),
    )


def _workers(api: SchedulerApi) -> tuple[WorkerInfo, ...] | None:
    try:
        return tuple(api.workers.list())
    except Forbidden:  # workers belong to no project
        return None


def _ready(api: SchedulerApi) -> dict[str, int]:
    projects, _ = api.projects.list(limit=PROJECTS_MAX)
    found = {
        project.project_id: api.queue.list(status="ready", project_id=project.project_id, limit=1)[1]
        for project in projects
    }
    return {project_id: count for project_id, count in found.items() if count}


# --- the last minutes ----------------------------------------------------------------------------


def recent_state(api: SchedulerApi) -> FleetState:
    """Return the fleet state of the last minutes, folded from the end of the journal and corrected by the tables."""
    now = api.clock.now()
    cursor = api.journal.cursor()
    running, _ = api.queue.list(state="dispatched", limit=RUNNING_MAX)
    first, since_at, history = _history(api, cursor, now)
    in_force = api.policies.get()
    start = StartingState(
        through_id=first,
        at=since_at,
        weights=read_weights(api),
        agents=read_agents(api),
        runs=tuple(entry for entry in running if (entry.dispatched_at or now) < since_at),
        policy=in_force.short(),
        share_by=in_force.share_by,
    )
    lookup = EntryLookup(api)
    state = FleetState(start, lookup=lookup)
    for left, event in zip(range(len(history), 0, -1), history, strict=True):
        if left == LOOKUP_EVENTS or left == len(history) <= LOOKUP_EVENTS:  # only the last events are shown
            lookup.refill()
        state.fold(event)
    state.policy, state.share_by = start.policy, start.share_by
    counts, _ = read_counts(api)
    state.queued = sum(count for name, count in counts.items() if name.partition(":")[0] == "queued")
    state.running = counts.get("dispatched", 0)
    return state


def _history(api: SchedulerApi, cursor: int, now: float) -> tuple[int, float, list[Event]]:
    """Return the events of the last minutes, oldest first, the id before the first one, and since when they are all."""
    since, found = cursor, list[Event]()
    while since > max(0, cursor - HISTORY_EVENTS_MAX):
        upper, since = since, max(0, since - HISTORY_PAGE)
        page = [event for event in api.journal.tail(since, HISTORY_PAGE) if event.event_id <= upper]
        found = page + found
        if page and page[0].ts < now - WINDOW_S:
            break
    recent = [event for event in found if event.ts >= now - WINDOW_S]
    is_whole = since == 0 or len(recent) < len(found)
    since_at = now - WINDOW_S if is_whole or not found else found[0].ts
    first = recent[0].event_id - 1 if recent else cursor
    return first, since_at, recent


class EntryLookup:
    """Reads entries whose runs failed, to say why; at most so many in a row that a burst of failures costs little."""

    def __init__(self, api: SchedulerApi, reads_max: int = LOOKUPS_MAX) -> None:
        self._api = api
        self._reads_max = reads_max
        self._left = 0

    def refill(self) -> None:
        """Allow the next reads."""
        self._left = self._reads_max

    def __call__(self, sched_id: int) -> ReadyEntry | None:
        """Return the entry, or None if it cannot be read or enough were."""
        if self._left <= 0:
            return None
        self._left -= 1
        try:
            return self._api.queue.get(sched_id)
        except RotaError:  # it was pruned, or is of another project
            return None


def read_counts(api: SchedulerApi) -> tuple[dict[str, int], int]:
    """Return the entries in each state and the id of the last event; they belong together unless the store is busy."""
    for _ in range(START_TRIES):
        cursor = api.journal.cursor()
        counts = api.queue.counts()
        if api.journal.cursor() == cursor:  # otherwise the counts may be off by a few entries
            break
    return counts, cursor


def read_weights(api: SchedulerApi) -> dict[str, int]:
    """Return the weights of all projects."""
    weights: dict[str, int] = {}
    while True:
        page, count = api.projects.list(limit=LIST_PAGE, offset=len(weights))
        weights |= {project.project_id: project.weight for project in page}
        if not page or len(weights) >= count:
            return weights


def read_agents(api: SchedulerApi) -> dict[int, AgentName]:
    """Return the names of agents, up to `AGENTS_MAX`."""
    agents: dict[int, AgentName] = {}
    while True:
        page, count = api.agents.list(limit=LIST_PAGE, offset=len(agents))
        agents |= {agent.pid: AgentName(agent.name, agent.project_id, agent.weight) for agent in page}
        if not page or len(agents) >= min(count, AGENTS_MAX):
            return agents


# --- the same facts, typed -----------------------------------------------------------------------


class TopReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `rota top --json` prints."""

    at: float
    cursor: int
    policy: PolicyInForce
    paused_by: str | None
    slots: dict[str, int] | None  # total and busy
    workers: tuple[WorkerInfo, ...] | None
    counts: dict[str, int]
    statuses: dict[str, int]
    running: list[dict[str, Any]]
    waits: dict[str, Any]
    shares: dict[str, Any]
    budgets: tuple[BudgetLine, ...]
    limits: tuple[SchedulingContext, ...]
    events: tuple[EventText, ...]


def report_of(overview: Overview, state: FleetState) -> TopReport:
    """Return the facts of one moment."""
    mean_s, starts = state.recent_wait_s()
    shares = state.recent_shares(overview.at, overview.ready)
    oldest = None if overview.oldest is None else overview.oldest.sched_id
    slots = {"total": overview.slots, "busy": len(overview.running)}
    return TopReport(
        at=overview.at,
        cursor=overview.cursor,
        policy=overview.policy,
        paused_by=overview.paused_by,
        slots=None if overview.workers is None else slots,
        workers=overview.workers,
        counts=overview.counts,
        statuses=overview.statuses,
        running=[{"agent": state.agent(entry.pid), **msgspec.to_builtins(entry)} for entry in overview.running],
        waits={"oldest_s": overview.oldest_wait_s, "oldest": oldest, "mean_s": mean_s, "starts": starts},
        shares={
            "measure": shares.measure,
            "window_s": shares.window_s,
            "projects": [_project(project, overview) for project in shares.projects],
            "agents": list[AgentShare](shares.agents),
        },
        budgets=overview.budgets,
        limits=overview.limits,
        events=tuple(state.texts)[-EVENTS_SHOWN:],
    )


def _project(project: ProjectReport, overview: Overview) -> dict[str, Any]:
    return {**msgspec.to_builtins(project), "ready": overview.ready.get(project.project_id, 0)}
