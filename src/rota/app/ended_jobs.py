"""Waiting for many entries to end, without a thread for each: the journal says which ended.

`ended_in_order` waits on the calling thread. For coroutines, `EndWatch` has one thread that follows the journal while
anything is awaited; however many jobs a program awaits, they share it. A caller registers first and looks at the entry
then, so an end between the two is not missed. An event that a caller may not see must not make it wait for ever: every
`RECHECK_S` the entries themselves are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from rota.errors import WaitTimeout
from rota.kernel.journal import TAIL_MAX
from rota.model.events import EntriesCancelled, EntriesCompleted, EntriesExpired, Event
from rota.model.lifecycle import ENTRY
from rota.service.api import SchedulerApi

__all__ = ["EndWatch", "ended_in_order"]

RECHECK_S = 10.0
_KINDS = (EntriesCancelled.kind, EntriesCompleted.kind, EntriesExpired.kind)
OnEnd = Callable[[Exception | None], None]  # called with an error if the journal cannot be followed any more


def _ended_by(event: Event) -> list[int]:
    """Return the entries that ended with an event."""
    if event.kind == EntriesCompleted.kind:
        return [entry[0] for entry in event.payload.get("entries", [])]
    return list(event.payload.get("sched_ids", []))


def _ended_between(api: SchedulerApi, since: int, until: int) -> Iterator[int]:
    """Yield the entries that ended after one event, up to another."""
    while since < until:
        events = api.journal.tail(since, TAIL_MAX, kinds=_KINDS)
        for event in events:
            yield from _ended_by(event)
        since = events[-1].event_id if events else until


def _has_ended(api: SchedulerApi, sched_id: int) -> bool:
    return api.queue.get(sched_id).state in ENTRY.final


def ended_in_order(api: SchedulerApi, sched_ids: Iterable[int], wait_s: float | None) -> Iterator[int]:
    """Yield entries as they end; raise `WaitTimeout` when the time has passed and some have not."""
    waiting = dict.fromkeys(sched_ids)
    cursor = api.journal.cursor()
    give_up_at = None if wait_s is None else api.clock.monotonic() + wait_s
    ended: Iterable[int] = [sched_id for sched_id in waiting if _has_ended(api, sched_id)]
    while True:
        for sched_id in ended:
            if sched_id in waiting:
                del waiting[sched_id]
                yield sched_id
        if not waiting:
            return
        left_s = RECHECK_S if give_up_at is None else give_up_at - api.clock.monotonic()
        if left_s <= 0:
            text = f"{len(waiting):,} of the jobs have not ended after {wait_s:g} s: {', '.join(map(str, waiting))}"
            raise WaitTimeout(text, sched_ids=list(waiting))
        last = api.journal.wait(cursor, min(left_s, RECHECK_S))
        ended = [each for each in waiting if _has_ended(api, each)] if last == cursor else []
        ended = ended or list(_ended_between(api, cursor, last))
        cursor = last


class EndWatch:
    """Calls a function when an entry ends. One thread follows the journal while anything is watched."""

    def __init__(self, api: SchedulerApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._calls: dict[int, list[OnEnd]] = {}
        self._cursor = 0
        self._thread: threading.Thread | None = None

    def watch(self, sched_id: int, call: OnEnd) -> None:
        """Call a function when the entry may have ended. The caller looks at the entry after this returns."""
        with self._lock:
            if self._thread is None:
                self._cursor = self._api.journal.cursor()
                self._thread = threading.Thread(target=self._follow, name="rota-ended-jobs", daemon=True)
                self._thread.start()
            self._calls.setdefault(sched_id, []).append(call)

    def forget(self, sched_id: int, call: OnEnd) -> None:
        """Do not call a function any more."""
        with self._lock:
            calls = self._calls.get(sched_id, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(sched_id, None)

    def _follow(self) -> None:
        while True:
            try:
                last = self._api.journal.wait(self._cursor, RECHECK_S)
                ended = set(_ended_between(self._api, self._cursor, last)) if last > self._cursor else None
            except Exception as problem:  # also a defect: those that wait must hear of it
                self._fail(problem)
                return
            self._cursor = last
            with self._lock:
                found = [
                    (each, self._calls[each]) for each in (self._calls if ended is None else ended & {*self._calls})
                ]
                if not self._calls:
                    self._thread = None
                    return
            for _, calls in found:
                for call in list(calls):
                    call(None)

    def _fail(self, problem: Exception) -> None:
        with self._lock:
            calls, self._calls, self._thread = self._calls, {}, None
        for each in calls.values():
            for call in each:
                call(problem)
