"""Which runs there were in an interval, read from the journal: for charts of hours and days.

`FleetState` keeps the runs of the last minutes in memory. Older ones are read when they are asked for: the journal is
searched for the first event of the interval, and events about claims are folded from there on. Runs that began before
the interval are found if they began within one length of it, or if they still run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from rota.model.events import EntriesClaimed, EntriesCompleted, EntriesReturned, Event, RunEnded
from rota.observe.fleet_state import FleetState, StartingState
from rota.observe.journal_times import last_event_before
from rota.observe.overview import RUNNING_MAX, read_agents
from rota.observe.run_chart import ChartRow, ChartRows

if TYPE_CHECKING:
    from rota.service import SchedulerApi

__all__ = ["EVENTS_READ_MAX", "RunHistory", "read_runs"]

EVENTS_READ_MAX = 50_000  # events of all kinds between the first and the last one that is read
SPANS_MAX = 20_000  # runs in one row
PAGE = 1_000
_KINDS = (EntriesClaimed.kind, EntriesCompleted.kind, EntriesReturned.kind, RunEnded.kind)


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of an interval, by worker and row."""

    since_at: float  # later than asked for, if there were too many events
    until_at: float
    rows: list[ChartRow]
    names: dict[int, str]  # of agents
    is_whole: bool


def read_runs(api: SchedulerApi, since_at: float, until_at: float) -> RunHistory:
    """Read the runs between two instants; of too many events, the last `EVENTS_READ_MAX`."""
    cursor = api.journal.cursor()
    last = last_event_before(api.journal, until_at, cursor)
    wanted = last_event_before(api.journal, since_at - (until_at - since_at), last)
    first = max(wanted, last - EVENTS_READ_MAX)
    events = _between(api, first, last)
    begin_at = since_at if first == wanted or not events else max(since_at, events[0].ts)
    agents = read_agents(api)
    running, _ = api.queue.list(state="dispatched", limit=RUNNING_MAX)
    began_before = tuple(entry for entry in running if _began_before(entry.dispatched_at, events, until_at))
    start = StartingState(through_id=first, at=begin_at, agents=agents, runs=began_before)
    chart = ChartRows(window_s=float("inf"), spans_max=SPANS_MAX)
    state = FleetState(start, chart=chart)
    for event in events:
        state.fold(event)
    return RunHistory(
        since_at=begin_at,
        until_at=until_at,
        rows=[row for row in chart.rows() if row.spans],
        names={pid: agent.name for pid, agent in agents.items()},
        is_whole=first == wanted,
    )


def _began_before(dispatched_at: float | None, events: list[Event], until_at: float) -> bool:
    """Return whether a run that still runs began before the first event that is folded."""
    return dispatched_at is not None and dispatched_at < (events[0].ts if events else until_at)


def _between(api: SchedulerApi, first: int, last: int) -> list[Event]:
    return list(_pages(api, first, last))


def _pages(api: SchedulerApi, since: int, last: int) -> Iterator[Event]:
    while since < last and (page := api.journal.tail(since, PAGE, kinds=_KINDS)):
        yield from (event for event in page if event.event_id <= last)
        since = page[-1].event_id
