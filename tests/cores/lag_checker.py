"""Checks that hold in every run after each step: lag, budgets, conservation.

**The lag law.** In the fluid ideal, every runnable entity of a core receives service by weight at every moment. Lag is
the difference to that ideal. For a constant population, an entity is never further from the ideal than one maximal
request (the largest slice): the theorem on eevdf. When the population changes, the queue's virtual time jumps, and with
it the ideal of every entity in the queue. The bound has to allow for these jumps:

*Ahead* (lag below zero): no allowance, as long as no entity is moved. An entity that is not owed service is not
eligible, so it gets below zero only by its own slice, by no more than the slice length. Others that come and go do not
push it further: an entity of weight w that begins a slice with lag a ≥ 0 at the queue's time V, beside others of weight
W, and leaves after running for s, has moved the time to V + s / (W + w) meanwhile and leaves with a debt of
s·W / (W + w) − a, which takes s / (W + w) − a / W back off. The time is at V + a / W, not below where the slice began.
A move is different. An entity that is moved here with credit c was not served on *another* core; the entities here owe
it that from now on although they took nothing, and the time drops by c / W. An entity that waits and is moved away (or
ends) with debt d takes its debt along, and the time drops by d / W. These two drops, and no others, are subtracted,
until the entity has no debt again.

*Behind* (lag above zero): an entity that leaves with credit leaves it to the others, and one that returns, or is moved
here, with debt owes it to the others: the time rises, although no entity was served meanwhile. The sum of such rises
since an entity was last not owed anything is not service withheld from it, and is subtracted.

    − largest slice  −  drops by moves  <  lag  <  largest slice  +  rises by arrivals and departures

Both sums follow an entity to another core, and so does the largest slice of the queue where it got its lag: moving does
not change the lag. And an entity beside others is never forgiven anything: its virtual time grows at least with its own
service.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.cores import CoresEngine
from rota.cores.runqueue import RunQueue, Schedulable
from rota.model.lifecycle import EntityState
from rota.policy.virtual_time import SCALE

TOLERANCE_NS = 50  # a join rounds the queue's time down, a charge rounds up, each by less than a unit


class LagShift:
    """The allowance of one schedulable, in any queue."""

    def __init__(self) -> None:
        self.added = 0.0  # ns, by rises, since it was last not owed service
        self.taken = 0.0  # ns, by moves, since it last had no debt
        self.slice_ns = 0  # the largest slice where it got its lag


class Seen(NamedTuple):
    """One schedulable after a step."""

    schedulable: Schedulable
    weight: int
    virtual_time: float  # including the slice in progress
    lag_ns: float
    runs: bool


class LagChecker:
    """Follows every fair queue of an engine and checks the lag law after each step."""

    def __init__(self) -> None:
        self._queues: dict[int, _QueueChecker] = {}  # by the queue's identity
        self._shifts: dict[int, LagShift] = {}  # by key
        self._waited: set[int] = set()  # schedulables that waited in any queue after the last step
        self.worst = 0.0  # the largest lag seen, as a part of the largest slice

    def __call__(self, engine: CoresEngine, now: int) -> None:
        waiting: set[int] = set()
        for queue in _fair_queues(engine):
            watch = self._queues.setdefault(id(queue), _QueueChecker(queue, self._shifts))
            self.worst = max(self.worst, watch.check(now, self._waited))
            waiting |= {key for key, one in watch.seen.items() if not one.runs}
        self._waited = waiting


def _fair_queues(engine: CoresEngine) -> list[RunQueue]:
    queues = engine._queues
    inside = [node.inside for group in queues.groups.values() for node in group.nodes.values()]
    return [*(core.fair for core in queues.cores), *(core.background for core in queues.cores), *inside]


class _QueueChecker:
    def __init__(self, queue: RunQueue, shifts: dict[int, LagShift]) -> None:
        self._queue = queue
        self._shifts = shifts
        self.seen: dict[int, Seen] = {}  # after the last step, by key
        self._time = 0.0  # the queue's time after the last step
        self._at = 0  # when that was
        self._slice = 0  # the largest seen

    def check(self, now: int, waited: set[int]) -> float:
        """Check every schedulable of the queue, given those that waited before; return the largest lag in slices."""
        before, time_before = self.seen, self._time
        self.seen = after = self._look(now)
        if not after:
            return 0.0
        passed = now - self._at if any(one.runs for one in before.values()) else 0
        expected = time_before + passed * SCALE / sum(one.weight for one in before.values()) if before else self._time
        if before:
            self._check_own_time(before, passed)
            rose = self._time - expected
            fell = min(max(0.0, -rose), self._by_moves(before, expected - time_before, waited))
            self._shift(before, max(0.0, rose), fell)
        self._record_newcomers(before, waited)
        self._at = now
        return max(self._check_one(one) for one in after.values())

    def _look(self, now: int) -> dict[int, Seen]:
        queue = self._queue
        schedulables = [*queue.queued(), *([queue.current] if queue.current else [])]
        if not schedulables:
            return {}
        self._slice = max(self._slice, *(one.slice_ns for one in schedulables))
        level = queue.time(now)
        self._time = time = level.weighted / level.weight
        seen = {}
        for one in schedulables:
            runs = one is queue.current
            stands = one.virtual_time + ((now - queue._since_ns) * SCALE / one.weight if runs else 0)
            seen[one.key] = Seen(one, one.weight, stands, one.weight * (time - stands) / SCALE, runs)
            self._shifts.setdefault(one.key, LagShift())
        return seen

    def _check_own_time(self, before: dict[int, Seen], passed: int) -> None:
        """Virtual time grows with the own service and never goes back: leaving and returning gains nothing."""
        if len(self.seen) == 1:
            return  # a single schedulable has no debt
        for key, one in self.seen.items():
            known = before.get(key)
            if known is None or known.weight != one.weight:
                continue
            stood = known.virtual_time + (passed * SCALE / one.weight if known.runs else 0)
            off_ns = (one.virtual_time - stood) * one.weight / SCALE
            assert off_ns > -TOLERANCE_NS, f"schedulable {key} was forgiven {-off_ns:,.0f} ns"

    def _by_moves(self, before: dict[int, Seen], rose: float, waited: set[int]) -> float:
        """How far the time dropped because of moves here with credit, and of departures while waiting with debt."""
        weight, fell = sum(one.weight for one in self.seen.values()), 0.0
        for key, one in self.seen.items():
            if key not in before and key in waited and one.lag_ns > 0:
                fell += one.lag_ns * SCALE / max(1, weight - one.weight)
        for key, one in before.items():
            if key not in self.seen and not one.runs:
                fell += max(0.0, -(one.lag_ns * SCALE + one.weight * rose)) / weight
        return fell

    def _shift(self, before: dict[int, Seen], rose: float, fell: float) -> None:
        for key, one in self.seen.items():
            if key in before:
                self._shifts[key].added += rose * one.weight / SCALE
                self._shifts[key].taken += fell * one.weight / SCALE

    def _record_newcomers(self, before: dict[int, Seen], waited: set[int]) -> None:
        """A schedulable that wakes joins without credit: lag in the same step comes from those that joined after it."""
        for key, one in self.seen.items():
            if key not in before and key not in waited:
                self._shifts[key].added = max(0.0, one.lag_ns)

    def _check_one(self, one: Seen) -> float:
        """Check one schedulable; return its distance in parts of the largest slice."""
        key, lag = one.schedulable.key, one.lag_ns
        shift = self._shifts[key]
        shift.added = shift.added if lag > 0 else 0.0
        shift.taken = shift.taken if lag < 0 else 0.0
        shift.slice_ns = max(shift.slice_ns, self._slice) if abs(lag) > TOLERANCE_NS else self._slice
        allowed, owed, owes = shift.slice_ns, lag - shift.added, -lag - shift.taken
        assert owes < allowed + TOLERANCE_NS, f"schedulable {key} is {owes:,.0f} ns ahead"
        assert owed < allowed + TOLERANCE_NS, f"schedulable {key} is {owed:,.0f} ns behind"
        return max(owed, owes) / allowed


def check_budgets(engine: CoresEngine) -> None:
    """With a driver that ticks on time no entity exceeds its budget, and the sum is exact to the unit."""
    for context in engine._contexts:
        view = engine.context(context.context_id)
        assert view.remaining + sum(refill.amount for refill in view.refills) == view.budget
        assert view.remaining >= 0


def check_conservation(engine: CoresEngine, now: int) -> None:
    """The runtime of all entities plus the idle time of all cores is the time that passed on all cores."""
    queues = engine._queues
    running = [core.current.details.delegate for core in queues.cores if core.current is not None]
    ran = engine._scheduler.exited_ns + sum(entity.runtime_ns for entity in queues.entities.values())
    ran += sum(now - delegate.last_start_ns for delegate in running)
    idle = sum(engine.idle_ns(core, now) for core in range(engine.core_count))
    assert ran + idle == engine.core_count * now
    assert all(delegate.state is EntityState.RUNNING for delegate in running)
