"""Checks that hold in every run after each step: lag, budgets, conservation.

**The lag law.** In the fluid ideal, every runnable entity of a core receives service by weight at every moment. Lag is
the difference to that ideal. For a constant population, an entity is never further from the ideal than one maximal
request: the largest slice of its queue, whatever its own slice is (the theorem on eevdf). So a sensitive entity beside
one of the class batch may be 12 ms behind, sixteen of its own slices.

When the population changes, the queue's time jumps, and with it the ideal of every entity in the queue: the time rises
when an entity leaves with credit, or joins with debt, or when a group is charged for what it used on other cores; it
drops when an entity joins with credit or leaves with debt. No such jump is service given or withheld here. Their sums
since an entity was last even are therefore allowed, and so is the lag with which it joined, which it brought along:

    − largest slice  −  drops  −  joined with  <  lag  <  largest slice  +  rises  +  joined with  +  overdrawn

All lags of a queue sum to zero. So what some are ahead by more than a slice, after such jumps, others are behind, and
the theorem does not say which of them: those with the earliest deadlines are served first. *Overdrawn* is that sum.

The law is for entities. A group's place on one core also depends on the others: `test_shares_over_cores` has its bound.
And an entity beside others is never forgiven anything: its virtual time grows at least with its own service.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.cores import CoresEngine
from rota.cores.records import GroupNode
from rota.cores.runqueue import RunQueue, Schedulable
from rota.model.lifecycle import EntityState
from rota.policy.virtual_time import SCALE

TOLERANCE_NS = 50  # a join rounds the queue's time down, a charge rounds up, each by less than a unit


class LagShift:
    """The allowance of one schedulable, in any queue."""

    def __init__(self) -> None:
        self.added = 0.0  # ns, by rises, since it was last not owed service
        self.taken = 0.0  # ns, by drops, since it last had no debt
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
        self.worst = 0.0  # the largest lag seen, as a part of the largest slice

    def __call__(self, engine: CoresEngine, now: int) -> None:
        for queue in _fair_queues(engine):
            watch = self._queues.setdefault(id(queue), _QueueChecker(queue, self._shifts))
            self.worst = max(self.worst, watch.check(now))


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

    def check(self, now: int) -> float:
        """Check every entity of the queue; return the largest lag in slices."""
        before, time_before = self.seen, self._time
        self.seen = after = self._look(now)
        if not after:
            return 0.0
        passed = now - self._at if any(one.runs for one in before.values()) else 0
        expected = time_before + passed * SCALE / sum(one.weight for one in before.values()) if before else self._time
        if before:
            self._check_own_time(before, passed)
            self._shift(before, self._time - expected)
        for key, one in after.items():
            if key not in before:
                self._shifts[key].added, self._shifts[key].taken = max(0.0, one.lag_ns), max(0.0, -one.lag_ns)
        self._at = now
        overdrawn = sum(max(0.0, -one.lag_ns - self._slice) for one in after.values())
        return max(self._check_one(one, overdrawn) for one in after.values())

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
            if known is None or known.weight != one.weight or isinstance(one.schedulable, GroupNode):
                continue
            stood = known.virtual_time + (passed * SCALE / one.weight if known.runs else 0)
            off_ns = (one.virtual_time - stood) * one.weight / SCALE
            assert off_ns > -TOLERANCE_NS, f"schedulable {key} was forgiven {-off_ns:,.0f} ns"

    def _shift(self, before: dict[int, Seen], rose: float) -> None:
        for key, one in self.seen.items():
            if key in before:
                self._shifts[key].added += max(0.0, rose) * one.weight / SCALE
                self._shifts[key].taken += max(0.0, -rose) * one.weight / SCALE

    def _check_one(self, one: Seen, overdrawn: float) -> float:
        """Check one entity; return its distance in parts of the largest slice."""
        if isinstance(one.schedulable, GroupNode):
            return 0.0
        key, lag = one.schedulable.key, one.lag_ns
        shift = self._shifts[key]
        shift.added = shift.added if lag > 0 else 0.0
        shift.taken = shift.taken if lag < 0 else 0.0
        shift.slice_ns = max(shift.slice_ns, self._slice) if abs(lag) > TOLERANCE_NS else self._slice
        allowed, owed, owes = shift.slice_ns, lag - shift.added, -lag - shift.taken
        assert owes < allowed + TOLERANCE_NS, f"schedulable {key} is {owes:,.0f} ns ahead"
        assert owed < allowed + overdrawn + TOLERANCE_NS, f"schedulable {key} is {owed:,.0f} ns behind"
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
