"""The engine under virtual time: one driver of two. (The other one runs real processes.)

Time jumps from one event to the next. What the engine decides happens at once, a request to look again after
`reschedule_us`. Everything random is drawn from generators made from the scenario's seed, one for each thread,
so that the same scenario gives the same run, and one more thread does not change what the others do.

There are two lines of what comes next. A short one: the work of whoever runs on a core is done, a core is to look
again, a timer of the engine is due, something of the scenario happens. And a long one: who sleeps, until when. What
comes next is one whole number, because that is what a heap compares fastest: the instant, then the kind, then whom
it is about. What was foreseen for a turn that ended earlier stays in the line and is passed over when its time comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rota.cores import Machine, ThreadCpuAccount
from rota.cores.events import (
    Block,
    Call,
    CallFailed,
    Decision,
    Event,
    Exit,
    Idle,
    Kill,
    Preempt,
    Reply,
    Reschedule,
    Run,
    Tick,
    Timer,
    Wake,
)
from rota.errors import EntityUnknown, LimitExceeded
from rota.sim.threads import REPLY, Caller, Server, Thread

__all__ = ["NOTES_MAX", "SEGMENTS_MAX", "LagSample", "Segment", "Simulation"]

SEGMENTS_MAX = 200_000  # turns and lags kept for a drawing; the rest only counts
NOTES_MAX = 10_000  # decisions kept that people want to read
WHOM_BITS = 32
WHOM_MASK = (1 << WHOM_BITS) - 1
AT_BITS = 35  # what stands below the instant: whom, and three bits of kind
WHAT_MASK = (1 << AT_BITS) - 1
# At one instant, work that is done comes first, because it needs no further turn and no budget. Wakes come last.
_DONE, _LOOK, _TICK, _TIMER, _HAPPEN, _WAKE, _STAND = (kind << WHOM_BITS for kind in range(7))
NEVER = 1 << 128  # later than anything that is foreseen; in the line of sleepers it stands for nobody


class Segment(NamedTuple):
    """A stretch of time in which a thread ran on a core."""

    core: int
    thread: str
    start_ns: int
    end_ns: int


class LagSample(NamedTuple):
    """What a thread was owed when it was given a core, or when its turn ended."""

    at_ns: int
    thread: str
    lag_ns: int


class Simulation:
    """An engine, its threads, and what happens next."""

    def __init__(self, machine: Machine, *, reschedule_ns: int = 0, observe: bool = True) -> None:
        self.machine = machine
        self.now = 0
        self.threads: dict[int, Thread] = {}  # by entity, those that ended excepted
        self._by_entity: list[Thread | None] = []  # the same, found with fewer steps
        self.ended: list[tuple[Thread, ThreadCpuAccount]] = []
        self.events = 0  # that the engine was told
        self.decisions: Counter[str] = Counter()
        self.notes: list[tuple[int, Decision]] = []
        self.segments: list[Segment] = []
        self.lags: list[LagSample] = []
        self.lag_extremes: dict[str, tuple[int, int]] = {}
        self.check: Callable[[Machine], None] | None = None  # called after every step
        self._observe = observe
        self._reschedule_ns = reschedule_ns
        self._line: list[int] = []
        self._sleepers = [NEVER]
        self._foreseen = [NEVER] * machine.core_count  # how the turn under way ends; anything else in the line is void
        self._on_core: list[Thread | None] = [None] * machine.core_count
        self._timers = machine.timers
        self._timer_at: int | None = None  # for which a `Timer` is in the line
        self._happenings: list[Callable[[], Sequence[Decision]]] = []

    # --- setting up ------------------------------------------------------------------------------

    def add(self, thread: Thread, starts_at_ns: int = 0) -> None:
        """Take in a thread; a server waits to be called, everybody else wakes at an instant."""
        self.threads[thread.entity] = thread
        self._by_entity += [None] * (thread.entity + 1 - len(self._by_entity))
        self._by_entity[thread.entity] = thread
        if not isinstance(thread, Server):
            self._wake_at(thread, starts_at_ns)

    def happen(self, at_ns: int, what: Callable[[], Sequence[Decision]]) -> None:
        """Let something happen at an instant: a verb of the engine, called then."""
        heappush(self._line, at_ns << AT_BITS | _HAPPEN | len(self._happenings))
        self._happenings.append(what)

    def _wake_at(self, thread: Thread, at_ns: int) -> None:
        heappush(self._sleepers, at_ns << AT_BITS | _WAKE | thread.entity)

    # --- running ---------------------------------------------------------------------------------

    def run(self, until_ns: int) -> None:
        """Let everything happen up to an instant, and stand there."""
        line, sleepers, foreseen = self._line, self._sleepers, self._foreseen
        heappush(line, until_ns << AT_BITS | _STAND)
        while True:
            if sleepers[0] < line[0]:
                event = heappop(sleepers)
                self.now = now = event >> AT_BITS
                self._wake(event & WHOM_MASK, now)
                continue
            event = heappop(line)
            what = event & WHAT_MASK
            if what < _LOOK:
                if foreseen[what] is event:  # the very number that was foreseen, not one that is as large
                    self.now = now = event >> AT_BITS
                    self._done(what, now)
            elif what >= _STAND:
                break
            elif not _TICK <= what < _TIMER or foreseen[what - _TICK] is event:
                self.now = event >> AT_BITS
                self._happens(what)
        self.now = until_ns
        for core, thread in enumerate(self._on_core):
            if thread is not None:
                self._stop_watch(core, thread)

    def _happens(self, what: int) -> None:
        """The next of the short line, unless it is somebody's work that is done."""
        if what == _TIMER:
            self._timer_at = None
            self.step(Timer())
        elif what >= _HAPPEN:
            self.obey(self._happenings[what - _HAPPEN]())
        else:
            self._tick(what & WHOM_MASK)

    def step(self, event: Event) -> None:
        """Tell the engine something now, and carry out what it decides."""
        self.events += 1
        self.obey(self.machine.step(event, self.now))

    def _wake(self, entity: int, now: int) -> None:
        thread = self._by_entity[entity]
        if thread is None:
            return  # it ended in its sleep
        thread.begin(now)
        thread.woken_at_ns = now
        self.events += 1
        decisions = self.machine.step(Wake(thread.entity), now)
        if decisions or self.check is not None:  # whoever wakes for a busy core is only put in line
            self.obey(decisions)

    def _tick(self, core: int) -> None:
        thread = self._on_core[core]
        if thread is not None:
            self._stop_watch(core, thread)
        self.step(Tick(core))

    def _done(self, core: int, now: int) -> None:
        """The stretch of whoever runs on a core is done."""
        thread = self._on_core[core]
        assert thread is not None  # noqa: S101  # the turn under way is somebody's
        if self._observe:
            self._stop_watch(core, thread)
        thread.left_ns = 0
        then = thread.done(now)  # whatever it is, the engine answers with who has the core next, or nobody
        if then >= 0:
            entity = thread.entity
            heappush(self._sleepers, then << AT_BITS | _WAKE | entity)
            self.events += 1
            self.obey(self.machine.step(Block(entity), now))
        elif then == REPLY:
            self.step(Reply(thread.entity))
        elif isinstance(thread, Caller) and thread.server is not None:
            thread.woken_at_ns = thread.server.woken_at_ns = now
            self._call(thread, thread.server)

    def _call(self, caller: Caller, server: Server) -> None:
        """Call a server; if it has ended, or too many wait for it, sleep instead."""
        try:
            self.step(Call(caller.entity, server.entity))
        except (EntityUnknown, LimitExceeded):
            server.forget(caller.entity)
            self._wake_at(caller, caller.done(self.now))
            self.step(Block(caller.entity))

    # --- obeying ---------------------------------------------------------------------------------

    def obey(self, decisions: Sequence[Decision]) -> None:
        """Carry out what the engine decided."""
        for decision in decisions:
            if type(decision) is Run:
                thread = self._by_entity[decision.entity]
                assert thread is not None  # noqa: S101  # the engine was told of those who ended
                self._run(decision.core, thread, decision.until_ns)
            elif isinstance(decision, Reschedule):
                heappush(self._line, self.now + self._reschedule_ns << AT_BITS | _LOOK | decision.core)
            elif isinstance(decision, Preempt | Idle):
                self._foreseen[decision.core] = NEVER
                self._on_core[decision.core] = None
            else:
                self._note(decision)
        if self._timers.next_at is not self._timer_at:  # one foreseen twice does nothing the second time
            self._foresee_timer(self._timers.next_at)
        if self.check is not None:
            self.check(self.machine)

    def _foresee_timer(self, at_ns: int | None) -> None:
        self._timer_at = at_ns
        if at_ns is not None:
            heappush(self._line, max(at_ns, self.now) << AT_BITS | _TIMER)

    def _run(self, core: int, thread: Thread, until_ns: int) -> None:
        """A thread has a core: it is done there, or its turn ends, whatever comes first."""
        now = self.now
        self._on_core[core] = thread
        thread.started_at_ns = now
        if thread.begins_when_run and not thread.left_ns:
            thread.begin(now)
        if thread.woken_at_ns is not None:
            thread.latencies.append(now - thread.woken_at_ns)
            thread.woken_at_ns = None
        done_at = now + thread.left_ns
        ends = done_at << AT_BITS | core if done_at <= until_ns else until_ns << AT_BITS | _TICK | core
        self._foreseen[core] = ends
        heappush(self._line, ends)
        if self._observe:
            self._sample_lag(thread)

    def _note(self, decision: Decision) -> None:
        self.decisions[type(decision).__name__] += 1
        if len(self.notes) < NOTES_MAX:
            self.notes.append((self.now, decision))
        if isinstance(decision, Kill):
            self.end(decision.entity)
        elif isinstance(decision, CallFailed):
            self.threads[decision.caller].woken_at_ns = self.now

    def end(self, entity: int) -> None:
        """A thread is gone, whatever it was doing."""
        thread = self.threads.pop(entity, None)
        if thread is None:
            return
        self._by_entity[entity] = None
        self.ended.append((thread, self.machine.account(entity, self.now)))
        for core, on_core in enumerate(self._on_core):
            if on_core is thread:
                self._stop_watch(core, thread)
                self._on_core[core] = None
                self._foreseen[core] = NEVER
        if isinstance(thread, Caller) and thread.server is not None:
            thread.server.forget(entity)
        self.step(Exit(entity))

    # --- watching --------------------------------------------------------------------------------

    def _stop_watch(self, core: int, thread: Thread) -> None:
        """Whoever runs on a core has worked up to now."""
        started_at_ns, thread.started_at_ns = thread.started_at_ns, self.now
        thread.left_ns -= self.now - started_at_ns
        if self._observe and self.now > started_at_ns:
            self._sample_lag(thread)
            if len(self.segments) < SEGMENTS_MAX:
                self.segments.append(Segment(core, thread.name, started_at_ns, self.now))

    def _sample_lag(self, thread: Thread) -> None:
        lag_ns = self.machine.entity(thread.entity, self.now).lag_ns
        low, high = self.lag_extremes.get(thread.name, (0, 0))
        self.lag_extremes[thread.name] = min(low, lag_ns), max(high, lag_ns)
        if len(self.lags) < SEGMENTS_MAX:
            self.lags.append(LagSample(self.now, thread.name, lag_ns))
