"""Runs the engine in virtual time: the driver that `cores.events` speaks of.

Time jumps from one event to the next. Decisions take effect immediately, except that a reschedule takes
`reschedule_us`. Random numbers come from one generator per thread, seeded by the scenario, so that the same scenario
gives the same run, and adding a thread does not change what the others do.

Two heaps hold what comes next. The event heap is short: the running thread's work is finished, a core must tick, an
engine timer is due, a scenario event happens. The wake heap is long: which thread sleeps until when. A heap entry is
one integer, because integers compare fastest: the instant, then the kind, then the subject. The entry for a slice that
ended early stays in the heap and is skipped when it comes up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rota.cores import CoresEngine, ThreadCpuAccount
from rota.cores.events import (
    Block,
    CallEntity,
    CallFailed,
    CoreTick,
    Decision,
    Event,
    ExitEntity,
    Idle,
    Kill,
    Preempt,
    Reply,
    Reschedule,
    RunEntity,
    TimerDue,
    Wake,
    trace_name,
)
from rota.errors import EntityUnknown, LimitExceeded
from rota.sim.threads import REPLY, CallerThread, ServerThread, SimThread

__all__ = ["DECISIONS_KEPT", "SEGMENTS_MAX", "LagSample", "Segment", "Simulation"]

SEGMENTS_MAX = 200_000  # run segments and lag samples kept for a drawing
DECISIONS_KEPT = 10_000  # decisions kept in the log
SUBJECT_BITS = 27  # more than an engine has entities
SUBJECT_MASK = (1 << SUBJECT_BITS) - 1
EVENT_BITS = 30  # bits below the instant: the subject and three bits of kind, one digit of Python's integers
EVENT_MASK = (1 << EVENT_BITS) - 1
# At one instant, finished work comes first, because it needs no further slice or budget. Wakes come last.
_DONE, _RESCHEDULE, _TICK, _TIMER, _SCHEDULED, _WAKE, _STOP = (kind << SUBJECT_BITS for kind in range(7))
NEVER = 1 << 128  # later than any event; ends the wake heap


class Segment(NamedTuple):
    """An interval in which a thread ran on a core."""

    core: int
    thread: str
    start_ns: int
    end_ns: int


class LagSample(NamedTuple):
    """The lag of a thread when it started or stopped running."""

    at_ns: int
    thread: str
    lag_ns: int


class Simulation:
    """An engine, its threads and the events to come."""

    def __init__(self, engine: CoresEngine, *, reschedule_ns: int = 0, observe: bool = True) -> None:
        self.engine = engine
        self.now = 0
        self.threads: dict[int, SimThread] = {}  # by entity, without ended ones
        self._by_entity: list[SimThread | None] = []  # the same by index, which is faster
        self.ended: list[tuple[SimThread, ThreadCpuAccount]] = []
        self.events = 0  # events sent to the engine
        self.decisions: Counter[str] = Counter()
        self.decision_log: list[tuple[int, Decision]] = []
        self.segments: list[Segment] = []
        self.lags: list[LagSample] = []
        self.lag_extremes: dict[str, tuple[int, int]] = {}
        self.check: Callable[[CoresEngine], None] | None = None  # called after every step
        self.on_decision: Callable[[Decision], None] | None = None  # called for those that are not about a slice
        self.on_end: Callable[[int], None] | None = None  # called when a thread has ended
        self._observe = observe
        self._reschedule_ns = reschedule_ns
        self._event_heap: list[int] = []
        self._wake_heap = [NEVER]
        self._slice_end = [NEVER] * engine.core_count  # by core: the entry that ends the current slice
        self._on_core: list[SimThread | None] = [None] * engine.core_count
        self._timers = engine.timers
        self._timer_at: int | None = None  # the instant of the engine timer in the event heap
        self._scheduled: list[Callable[[], Sequence[Decision]]] = []

    # --- setting up ------------------------------------------------------------------------------

    def add(self, thread: SimThread, starts_at_ns: int = 0) -> None:
        """Add a thread. A server waits to be called; other threads wake at `starts_at_ns`."""
        self.threads[thread.entity] = thread
        self._by_entity += [None] * (thread.entity + 1 - len(self._by_entity))
        self._by_entity[thread.entity] = thread
        if not isinstance(thread, ServerThread):
            self._wake_at(thread, starts_at_ns)

    def schedule(self, at_ns: int, action: Callable[[], Sequence[Decision]]) -> None:
        """Call an action at an instant and apply its decisions."""
        heappush(self._event_heap, at_ns << EVENT_BITS | _SCHEDULED | len(self._scheduled))
        self._scheduled.append(action)

    def _wake_at(self, thread: SimThread, at_ns: int) -> None:
        heappush(self._wake_heap, at_ns << EVENT_BITS | _WAKE | thread.entity)

    # --- running ---------------------------------------------------------------------------------

    def run(self, until_ns: int) -> None:
        """Run up to an instant."""
        events, wakes, slice_end, by_entity = self._event_heap, self._wake_heap, self._slice_end, self._by_entity
        heappush(events, until_ns << EVENT_BITS | _STOP)
        while True:
            if wakes[0] < events[0]:
                event = heappop(wakes)
                thread = by_entity[event & SUBJECT_MASK]
                if thread is not None:  # else it ended while it slept
                    self.now = now = event >> EVENT_BITS
                    self._wake(thread, now)
                continue
            event = heappop(events)
            what = event & EVENT_MASK
            if what < _RESCHEDULE:
                if slice_end[what] is event:  # compared by identity: an equal number may be void
                    self.now = now = event >> EVENT_BITS
                    self._done(what, now)
            elif what >= _STOP:
                break
            elif not _TICK <= what < _TIMER or slice_end[what - _TICK] is event:
                self.now = event >> EVENT_BITS
                self._handle(what)
        self.now = until_ns
        for core, thread in enumerate(self._on_core):
            if thread is not None:
                self._record_run(core, thread)

    def _handle(self, what: int) -> None:
        """Handle an event of the event heap other than finished work."""
        if what == _TIMER:
            self._timer_at = None
            self.step(TimerDue())
        elif what >= _SCHEDULED:
            self.apply(self._scheduled[what - _SCHEDULED]())
        else:
            self._tick(what & SUBJECT_MASK)

    def step(self, event: Event) -> None:
        """Send an event to the engine now and apply its decisions."""
        self.events += 1
        self.apply(self.engine.step(event, self.now))

    def _wake(self, thread: SimThread, now: int) -> None:
        thread.begin(now)
        thread.woken_at_ns = now
        self.events += 1
        decisions = self.engine.step(Wake(thread.entity), now)
        if decisions or self.check is not None:  # a thread that wakes for a busy core is only queued
            self.apply(decisions)

    def _tick(self, core: int) -> None:
        thread = self._on_core[core]
        if thread is not None:
            self._record_run(core, thread)
        self.step(CoreTick(core))

    def _done(self, core: int, now: int) -> None:
        """The running thread of a core has finished its work."""
        thread = self._on_core[core]
        assert thread is not None  # noqa: S101  # a slice in progress has a thread
        if self._observe:
            self._record_run(core, thread)
        thread.remaining_ns = 0
        then = thread.done(now)  # the engine answers each of these with the next thread of the core, or none
        if then >= 0:
            entity = thread.entity
            heappush(self._wake_heap, then << EVENT_BITS | _WAKE | entity)
            self.events += 1
            self.apply(self.engine.step(Block(entity), now))
        elif then == REPLY:
            self.step(Reply(thread.entity))
        elif isinstance(thread, CallerThread) and thread.server is not None:
            thread.woken_at_ns = thread.server.woken_at_ns = now
            self._call(thread, thread.server)

    def _call(self, caller: CallerThread, server: ServerThread) -> None:
        """Call a server; if it has ended or has too many callers, sleep instead."""
        try:
            self.step(CallEntity(caller.entity, server.entity))
        except (EntityUnknown, LimitExceeded):
            server.forget(caller.entity)
            self._wake_at(caller, caller.done(self.now))
            self.step(Block(caller.entity))

    # --- decisions -------------------------------------------------------------------------------

    def apply(self, decisions: Sequence[Decision]) -> None:
        """Apply the decisions of the engine."""
        for decision in decisions:
            if type(decision) is RunEntity:
                thread = self._by_entity[decision.entity]
                assert thread is not None  # noqa: S101  # the engine knows which threads ended
                self._run(decision.core, thread, decision.until_ns)
            elif isinstance(decision, Reschedule):
                heappush(self._event_heap, self.now + self._reschedule_ns << EVENT_BITS | _RESCHEDULE | decision.core)
            elif isinstance(decision, Preempt | Idle):
                self._slice_end[decision.core] = NEVER
                self._on_core[decision.core] = None
            else:
                self._log_decision(decision)
        if self._timers.next_at is not self._timer_at:  # a second entry for the same instant does nothing
            self._set_timer(self._timers.next_at)
        if self.check is not None:
            self.check(self.engine)

    def _set_timer(self, at_ns: int | None) -> None:
        self._timer_at = at_ns
        if at_ns is not None:
            heappush(self._event_heap, max(at_ns, self.now) << EVENT_BITS | _TIMER)

    def _run(self, core: int, thread: SimThread, until_ns: int) -> None:
        """Start a thread on a core: schedule the end of its work or of its slice, whichever is first."""
        now = self.now
        self._on_core[core] = thread
        thread.started_at_ns = now
        if not thread.remaining_ns and thread.begins_when_run:
            thread.begin(now)
        if thread.woken_at_ns is not None:
            thread.latencies.append(now - thread.woken_at_ns)
            thread.woken_at_ns = None
        done_at = now + thread.remaining_ns
        ends = done_at << EVENT_BITS | core if done_at <= until_ns else until_ns << EVENT_BITS | _TICK | core
        self._slice_end[core] = ends
        heappush(self._event_heap, ends)
        if self._observe:
            self._sample_lag(thread)

    def _log_decision(self, decision: Decision) -> None:
        self.decisions[trace_name(type(decision))] += 1
        if len(self.decision_log) < DECISIONS_KEPT:
            self.decision_log.append((self.now, decision))
        if self.on_decision is not None:
            self.on_decision(decision)
        if isinstance(decision, Kill):
            self.end(decision.entity)
        elif isinstance(decision, CallFailed):
            self.threads[decision.caller].woken_at_ns = self.now

    def end(self, entity: int) -> None:
        """End a thread in any state."""
        thread = self.threads.pop(entity, None)
        if thread is None:
            return
        self._by_entity[entity] = None
        self.ended.append((thread, self.engine.account(entity, self.now)))
        for core, on_core in enumerate(self._on_core):
            if on_core is thread:
                self._record_run(core, thread)
                self._on_core[core] = None
                self._slice_end[core] = NEVER
        if isinstance(thread, CallerThread) and thread.server is not None:
            thread.server.forget(entity)
        self.step(ExitEntity(entity))
        if self.on_end is not None:
            self.on_end(entity)

    # --- observing -------------------------------------------------------------------------------

    def _record_run(self, core: int, thread: SimThread) -> None:
        """Account for the work of the running thread up to now."""
        started_at_ns, thread.started_at_ns = thread.started_at_ns, self.now
        thread.remaining_ns -= self.now - started_at_ns
        if self._observe and self.now > started_at_ns:
            self._sample_lag(thread)
            if len(self.segments) < SEGMENTS_MAX:
                self.segments.append(Segment(core, thread.name, started_at_ns, self.now))

    def _sample_lag(self, thread: SimThread) -> None:
        lag_ns = self.engine.entity(thread.entity, self.now).lag_ns
        low, high = self.lag_extremes.get(thread.name, (0, 0))
        self.lag_extremes[thread.name] = min(low, lag_ns), max(high, lag_ns)
        if len(self.lags) < SEGMENTS_MAX:
            self.lags.append(LagSample(self.now, thread.name, lag_ns))
