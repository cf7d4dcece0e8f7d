"""The live feed: one follower of the journal for all pages of one access.

    a thread      asks for the events after a cursor and waits for them; at most once per `PACE_S`, however many come
    the loop      folds them into one `FleetState`, and calls the open pages at most once per `TICK_S`

So a page costs the store nothing by being open, and a burst of a thousand events is one update. With many pages updates
become rarer (`rest_s`): drawing takes a fifth of one core at most, and all pages together make at most `CALLS_S_MAX`
calls a second, however many are open and whatever they show. A follower that falls behind by more than `BEHIND_MAX`
events does not read them one by one: it starts again from the tables, and counts what it skipped. Without events, pages
are called every `IDLE_S`, because durations and refills change by time alone.

While the daemon cannot be reached the thread tries again every `RETRY_S`, and pages say so. It begins where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, TypeAlias
from weakref import WeakSet

from rota.clock import SystemClock
from rota.errors import Forbidden, NotFound, RotaError, StoreError, Unauthenticated
from rota.fault_log import FaultLog
from rota.host.process_cpu import thread_cpu_s
from rota.model import Event, ReadyEntry
from rota.model.events import EntriesCompleted, EntriesReturned, StoreFailedOver
from rota.observe import EntryLookup, EventText, FleetState, recent_state
from rota.service import SchedulerApi

__all__ = ["EVENTS_KEPT", "IDLE_S", "TICK_S", "Feed", "FeedStatus", "Listener", "SeenEvent", "rest_s"]

PACE_S = 0.2  # between two requests for events
TICK_S = 0.4  # between two updates of the pages
IDLE_S = 5.0  # between two updates without an event
POLL_S = 10.0  # how long one request waits for events
RETRY_S = 0.5  # after a request failed
BATCH_MAX = 1_000  # events in one request
BEHIND_MAX = 20_000  # events that are read one by one
EVENTS_KEPT = 2_000  # for the journal page
FAILED_MAX = 20  # failed entries of one request that are read, to say why
DRAWING_MAX = 8  # pages that are drawn at the same time
REST_PER_CPU = 4.0  # seconds of rest for each second of CPU time that pages took
CALLS_S_MAX = 50.0  # calls that all pages make, per second
FEEDS_OF_FULL_PACE = 4  # with more callers signed in, each follows the journal more slowly
_log = logging.getLogger("rota.web")

FeedStatus: TypeAlias = Literal["connecting", "live", "lost", "ended"]
Listener: TypeAlias = Callable[[], Awaitable[None]]
_following: WeakSet[Feed] = WeakSet()  # the feeds of this process whose threads run


def rest_s(took_s: float, cpu_s: float, calls: int, feeds: int = 1) -> float:
    """Return how long to wait before the next update, from what the last one took and cost."""
    crowd = max(1.0, feeds / FEEDS_OF_FULL_PACE)
    return max(TICK_S * crowd, took_s, min(IDLE_S, REST_PER_CPU * cpu_s), calls * crowd / CALLS_S_MAX)


class SeenEvent:
    """An event, and the sentences about it."""

    __slots__ = ("event", "texts")

    def __init__(self, event: Event, texts: list[EventText]) -> None:
        self.event = event
        self.texts = texts


class Feed:
    """Follows the journal with one caller's rights. Its thread runs while a page is open."""

    def __init__(self, api: SchedulerApi, name: str) -> None:
        self.status: FeedStatus = "connecting"
        self.problem = ""  # why the daemon cannot be reached, or why the access ended
        self.state: FleetState | None = None  # None: nothing was read yet
        self.events: deque[SeenEvent] = deque(maxlen=EVENTS_KEPT)
        self.cursor = 0  # the last event that was read
        self.generation = 0  # counts updates; answers of one generation are shared
        self.touches = 0  # counts what this caller has changed here; older answers are not used after it
        self.calls = 0  # that pages have made
        self.folded = 0  # events since the start
        self.skipped = 0  # events that were not read one by one
        self._api = api
        self._name = name
        self._clock = SystemClock()
        self._pause = threading.Condition()
        self._is_reading = False  # whether the thread has a state and reached the store last time
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._listeners: dict[Listener, None] = {}
        self._faults = FaultLog("rota.web")  # of the journal, and of each page
        self._drawing = asyncio.Semaphore(DRAWING_MAX)

    # --- pages -----------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> None:
        """Call a page from now on whenever something changed."""
        self._listeners[listener] = None
        if self._thread is None and not self._stopped:
            self._loop = asyncio.get_running_loop()
            self._ticker = asyncio.create_task(self._tick())
            _following.add(self)
            self._thread = threading.Thread(target=self._follow, name=f"rota-web-feed-{self._name}", daemon=True)
            self._thread.start()

    def unsubscribe(self, listener: Listener) -> None:
        """Call a page no longer."""
        self._listeners.pop(listener, None)
        self._faults.worked(listener)

    @property
    def open_pages(self) -> int:
        """How many pages follow it."""
        return len(self._listeners)

    def touch(self) -> None:
        """Update the pages now: this caller has just changed something."""
        self.generation += 1
        self.touches += 1
        self._changed.set()

    def stop(self) -> None:
        """Stop following. The thread ends with its request."""
        self._stopped = True
        _following.discard(self)
        if self._ticker is not None:
            self._ticker.cancel()
        with self._pause:
            self._pause.notify_all()

    async def _tick(self) -> None:
        cpu_s = thread_cpu_s()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), IDLE_S)
            self._changed.clear()
            self.generation += 1
            began, calls = self._clock.monotonic(), self.calls
            await asyncio.gather(*(self._draw(listener) for listener in tuple(self._listeners)))
            took_s, cpu_before_s = self._clock.monotonic() - began, cpu_s
            cpu_s = thread_cpu_s()  # what was sent after the update before this one counts as well
            await asyncio.sleep(rest_s(took_s, cpu_s - cpu_before_s, self.calls - calls, len(_following)))

    async def _draw(self, listener: Listener) -> None:
        async with self._drawing:
            try:
                await listener()
            except Exception as problem:  # one page must not end the updates of the others
                self._faults.failed("a page could not be updated", problem, of=listener)
            else:
                self._faults.worked(listener)

    # --- the thread ------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stopped:
            try:
                self._read_once()
                self._faults.worked()
                pause_s = PACE_S * max(1.0, len(_following) / FEEDS_OF_FULL_PACE)
            except (Unauthenticated, Forbidden) as problem:
                self._post(self._fail, "ended", problem.message)
                return
            except RotaError as problem:
                self._is_reading = False
                if isinstance(problem, StoreError | NotFound):
                    _log.debug("the journal cannot be read: %s", problem)
                else:
                    self._faults.failed("the journal cannot be read", problem)
                self._post(self._fail, "lost", problem.message)
                pause_s = RETRY_S
            with self._pause:
                if not self._stopped:
                    self._clock.wait(self._pause, pause_s)

    def _read_once(self) -> None:
        if not self._is_reading:
            end = self._api.journal.cursor()
            if not 0 < self.cursor <= end <= self.cursor + BEHIND_MAX:  # also of another store at the same address
                self._restart()
            self._is_reading = True
            self._post(self._recovered)
        events = self._api.journal.tail(self.cursor, BATCH_MAX, wait_s=POLL_S)
        if events:
            self.cursor = events[-1].event_id
            self._post(self._fold, events, self._failed_entries(events))
        if self._is_lost(events) or (
            len(events) == BATCH_MAX and self._api.journal.cursor() > self.cursor + BEHIND_MAX
        ):
            self._restart()

    def _is_lost(self, events: list[Event]) -> bool:
        """Whether what was folded may never have been: a standby that lacks the last commits was promoted.

        Until a process writes there, its journal only ends before the last event that was read.
        """
        has_failed_over = any(event.kind == StoreFailedOver.kind for event in events)
        return has_failed_over or (not events and self._api.journal.cursor() < self.cursor)

    def _restart(self) -> None:
        state = recent_state(self._api)
        before, self.cursor = self.cursor, state.through_id
        self._post(self._replace, state, max(0, state.through_id - before) if before else 0)

    def _failed_entries(self, events: list[Event]) -> dict[int, ReadyEntry]:
        """Read entries whose runs failed here, because the loop must not wait for the store."""
        found = EntryLookup(self._api, FAILED_MAX)
        found.refill()
        entries = {sched_id: found(sched_id) for sched_id in dict.fromkeys(_failed(events))}
        return {sched_id: entry for sched_id, entry in entries.items() if entry is not None}

    def _post(self, function: Callable[..., None], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    # --- the loop --------------------------------------------------------------------------------

    def _replace(self, state: FleetState, skipped: int) -> None:
        state.look_up_with(None)
        self.state = state
        self.skipped += skipped
        self._changed.set()

    def _fold(self, events: list[Event], failed: dict[int, ReadyEntry]) -> None:
        if self.state is None:
            return
        self.state.look_up_with(failed.get)
        for event in events:
            if event.event_id > self.state.through_id:
                self.events.append(SeenEvent(event, self.state.fold(event)))
        self.folded += len(events)
        self._changed.set()

    def _fail(self, status: FeedStatus, problem: str) -> None:
        if (self.status, self.problem) != (status, problem):
            self.status, self.problem = status, problem
            self._changed.set()

    def _recovered(self) -> None:
        if self.status != "live":
            self.status, self.problem = "live", ""
            self._changed.set()


def _failed(events: list[Event]) -> Iterator[int]:
    """Yield the entries whose runs failed."""
    for event in events:
        if event.kind == EntriesReturned.kind:
            yield from event.payload.get("sched_ids", ())
        elif event.kind == EntriesCompleted.kind:
            yield from (entry[0] for entry in event.payload.get("entries", ()) if entry[1] != "completed")
