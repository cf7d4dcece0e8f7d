"""The engine under virtual time: one driver of two. (The other one runs real processes.)

Time jumps from one event to the next. What the engine decides happens at once, a request to look again after
`reschedule_us`. Everything random is drawn from generators made from the scenario's seed, one for each thread,
so that the same scenario gives the same run, and one more thread does not change what the others do.

There are two lines of what comes next. A short one: the work of whoever runs on a core is done, a core is to look
again, a timer of the engine is due, something of the scenario happens. What was foreseen for a turn that ended
earlier is passed over when its time comes. And a long one: who sleeps, until when. There an event is one whole
number, the instant and then the entity, because that is what a long heap compares fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rota.cpu import Machine, ThreadCpuAccount
from rota.cpu.events import (
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
from rota.sim.cores.threads import Caller, Server, Thread

__all__ = ["NOTES_MAX", "SEGMENTS_MAX", "LagSample", "Segment", "Simulation"]

SEGMENTS_MAX = 200_000  # turns and lags kept for a drawing; the rest only counts
NOTES_MAX = 10_000  # decisions kept that people want to read
ANY_TURN = -1
ENTITY_BITS = 32
ENTITY_MASK = (1 << ENTITY_BITS) - 1
# At one instant, work that is done comes first, because it needs no further turn and no budget. Wakes come last.
_DONE, _TICK, _TIMER, _HAPPEN = range(4)


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
        self._line: list[tuple[int, int, int, int]] = []  # when, kind, whom, turn
        self._sleepers: list[int] = []  # when, and then whom
        self._turns = [0] * machine.core_count  # how many turns there were on each core
        self._on_core: list[Thread | None] = [None] * machine.core_count
        self._timers = machine.timers
        self._timer_at: int | None = None  # for which a `Timer` is in the line
        self._happenings: list[Callable[[], Sequence[Decision]]] = []

    # --- setting up ------------------------------------------------------------------------------

    def add(self, thread: Thread, starts_at_ns: int = 0) -> None:
        """Take in a thread; a server waits to be called, everybody else wakes at an instant."""
        self.threads[thread.entity] = thread
        if not isinstance(thread, Server):
            self._wake_at(thread, starts_at_ns)

    def happen(self, at_ns: int, what: Callable[[], Sequence[Decision]]) -> None:
        """Let something happen at an instant: a verb of the engine, called then."""
        heappush(self._line, (at_ns, _HAPPEN, len(self._happenings), ANY_TURN))
        self._happenings.append(what)

    def _wake_at(self, thread: Thread, at_ns: int) -> None:
        heappush(self._sleepers, at_ns << ENTITY_BITS | thread.entity)

    # --- running ---------------------------------------------------------------------------------

    def run(self, until_ns: int) -> None:
        """Let everything happen up to an instant, and stand there."""
        line, sleepers, turns = self._line, self._sleepers, self._turns
        beyond = until_ns + 1 << ENTITY_BITS
        while True:
            if line and (not sleepers or line[0][0] <= sleepers[0] >> ENTITY_BITS):
                if line[0][0] > until_ns:
                    break
                self.now, kind, whom, turn = heappop(line)
                if turn != ANY_TURN and turn != turns[whom]:
                    continue  # foreseen for a turn that ended earlier
                if kind == _DONE:
                    self._done(whom)
                else:
                    self._happens(kind, whom)
            elif sleepers and sleepers[0] < beyond:
                event = heappop(sleepers)
                self.now = event >> ENTITY_BITS
                self._wake(event & ENTITY_MASK)
            else:
                break
        self.now = until_ns
        for core, thread in enumerate(self._on_core):
            if thread is not None:
                self._stop_watch(core, thread)

    def _happens(self, kind: int, whom: int) -> None:
        """The next of the short line, unless it is somebody's work that is done."""
        if kind == _TICK:
            self._tick(whom)
        elif kind == _TIMER:
            self._timer_at = None
            self.step(Timer())
        else:
            self.obey(self._happenings[whom]())

    def step(self, event: Event) -> None:
        """Tell the engine something now, and carry out what it decides."""
        self.events += 1
        self.obey(self.machine.step(event, self.now))

    def _wake(self, entity: int) -> None:
        thread, now = self.threads.get(entity), self.now
        if thread is None:
            return
        thread.begin(now)
        thread.woken_at_ns = now
        self.events += 1
        decisions = self.machine.step(Wake(entity), now)
        if decisions or self.check is not None:  # whoever wakes for a busy core is only put in line
            self.obey(decisions)

    def _tick(self, core: int) -> None:
        thread = self._on_core[core]
        if thread is not None:
            self._stop_watch(core, thread)
        self.step(Tick(core))

    def _done(self, core: int) -> None:
        """The stretch of whoever runs on a core is done."""
        thread = self._on_core[core]
        assert thread is not None  # noqa: S101  # the turn under way is somebody's
        if self._observe:
            self._stop_watch(core, thread)
        thread.left_ns = 0
        then = thread.done(self.now)  # whatever it is, the engine answers with who has the core next, or nobody
        if then == "sleep":
            entity = thread.entity
            heappush(self._sleepers, thread.wakes_at_ns << ENTITY_BITS | entity)
            self.events += 1
            self.obey(self.machine.step(Block(entity), self.now))
        elif then == "reply":
            self.step(Reply(thread.entity))
        elif isinstance(thread, Caller) and thread.server is not None:
            thread.woken_at_ns = thread.server.woken_at_ns = self.now
            self._call(thread, thread.server)

    def _call(self, caller: Caller, server: Server) -> None:
        """Call a server; if it has ended, or too many wait for it, sleep instead."""
        try:
            self.step(Call(caller.entity, server.entity))
        except (EntityUnknown, LimitExceeded):
            server.forget(caller.entity)
            caller.done(self.now)
            self._wake_at(caller, caller.wakes_at_ns)
            self.step(Block(caller.entity))

    # --- obeying ---------------------------------------------------------------------------------

    def obey(self, decisions: Sequence[Decision]) -> None:
        """Carry out what the engine decided."""
        for decision in decisions:
            if type(decision) is Run:
                self._run(decision.core, self.threads[decision.entity], decision.until_ns)
            elif isinstance(decision, Reschedule):
                heappush(self._line, (self.now + self._reschedule_ns, _TICK, decision.core, ANY_TURN))
            elif isinstance(decision, Preempt | Idle):
                self._turns[decision.core] += 1
                self._on_core[decision.core] = None
            else:
                self._note(decision)
        if self._timers.next_at != self._timer_at:
            self._foresee_timer(self._timers.next_at)
        if self.check is not None:
            self.check(self.machine)

    def _foresee_timer(self, at_ns: int | None) -> None:
        self._timer_at = at_ns
        if at_ns is not None:
            heappush(self._line, (max(at_ns, self.now), _TIMER, 0, ANY_TURN))

    def _run(self, core: int, thread: Thread, until_ns: int) -> None:
        """A thread has a core: it is done there, or its turn ends, whatever comes first."""
        now, turn = self.now, self._turns[core] + 1
        self._turns[core] = turn
        self._on_core[core] = thread
        thread.started_at_ns = now
        if thread.begins_when_run and not thread.left_ns:
            thread.begin(now)
        if thread.woken_at_ns is not None:
            thread.latencies.append(now - thread.woken_at_ns)
            thread.woken_at_ns = None
        done_at = now + thread.left_ns
        heappush(self._line, (done_at, _DONE, core, turn) if done_at <= until_ns else (until_ns, _TICK, core, turn))
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
        self.ended.append((thread, self.machine.account(entity, self.now)))
        for core, on_core in enumerate(self._on_core):
            if on_core is thread:
                self._stop_watch(core, thread)
                self._on_core[core] = None
                self._turns[core] += 1
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
