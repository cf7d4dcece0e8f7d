"""Reads the last events of a journal and makes sentences of those that a reader wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rota.model.events import Event
from rota.observe.event_text import EventText
from rota.observe.fleet_state import FleetState, StartingState
from rota.observe.journal_times import last_event_before
from rota.observe.overview import EntryLookup, read_agents
from rota.observe.text_filter import TextFilter

if TYPE_CHECKING:
    from rota.service import SchedulerApi

__all__ = ["SentenceReader"]

READ_BACK = (500, 2_000, 10_000)  # events before the last one that are read, until enough of them match
WARM_UP = 500  # events before the first one shown: they say which runs were going on
LOOKUPS_MAX = 500  # entries looked up for one page of events


class SentenceReader:
    """Reads events and makes sentences of them. `state` has the names, as of the last event that was read."""

    def __init__(self, api: SchedulerApi, wanted: TextFilter) -> None:
        self._api = api
        self._wanted = wanted
        self._lookup = EntryLookup(api, LOOKUPS_MAX)
        self._agents = read_agents(api)
        self._cursor = api.journal.cursor()
        self.state = self._state_after(self._cursor)

    def _state_after(self, event_id: int) -> FleetState:
        start = StartingState(through_id=event_id, at=self._api.clock.now(), agents=self._agents)
        return FleetState(start, lookup=self._lookup)

    def history(self, count: int, since_s: float | None = None) -> list[tuple[Event, EventText]]:
        """Return what was said last: `count` sentences, or all of the last `since_s`."""
        if since_s is not None:
            first = last_event_before(self._api.journal, self._api.clock.now() - since_s, self._cursor)
            return self._shown_between(max(0, first - WARM_UP), first)
        for size in READ_BACK:
            begin = max(0, self._cursor - size)
            shown = self._shown_between(max(0, begin - WARM_UP), begin)
            if len(shown) >= count or not begin:
                break
        return shown[len(shown) - count :] if count < len(shown) else shown

    def _shown_between(self, warm_up: int, first: int) -> list[tuple[Event, EventText]]:
        """Return the sentences about events after `first` up to the cursor; those after `warm_up` are folded too."""
        self.state = self._state_after(warm_up)
        shown: list[tuple[Event, EventText]] = []
        while self.state.through_id < self._cursor:
            page = [event for event in self._api.journal.tail(self.state.through_id) if event.event_id <= self._cursor]
            shown += [each for each in self.sentences(page) if each[0].event_id > first]
            if not page:
                break
        self.state.through_id = self._cursor
        return shown

    def sentences(self, page: list[Event]) -> Iterator[tuple[Event, EventText]]:
        """Fold events, in order, and yield the sentences that are wanted."""
        self._lookup.refill()
        for event in page:
            for text in self.state.fold(event):
                if self._wanted.wants(event, text, self.state, self._agent_of):
                    yield event, text

    def _agent_of(self, sched_id: int) -> int | None:
        entry = self._lookup(sched_id)
        return None if entry is None else entry.pid
