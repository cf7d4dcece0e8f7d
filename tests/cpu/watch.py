"""What must be true of every run, watched step by step: lag, budgets, conservation.

**The lag law.** In the fluid ideal everybody who is runnable on a core receives service by weight at every
moment. For a population that stays the same nobody is ever further from that than the largest request (the
largest slice): that is the theorem on eevdf. When somebody leaves owing, returns with its debt, leaves with
credit or is moved here with it, the ideal of the others is shifted at that instant: the level's time jumps. What
such jumps have added for somebody since it was last not owed is no service that was withheld from it, and what
they have taken since it last owed nothing is no service it took. Both come off, for whoever is there when it happens:
what is owed does not change in one's sleep. So, for everybody on every queue at every step:

    − largest slice  −  what jumps down took  <  lag  <  largest slice  +  what jumps up added

Both follow whoever moves to another core, as does the largest slice of where it got its lag.
"""

from __future__ import annotations

from rota.cpu import Machine
from rota.cpu.runqueue import RunQueue, Sibling
from rota.model.lifecycle import EntityState
from rota.policy.virtual_time import SCALE

TOLERANCE_NS = 50  # a join rounds the level's time down, a charge rounds up, each by less than a unit


class Standing:
    """What was shifted for one sibling, wherever it was."""

    def __init__(self) -> None:
        self.added = 0.0  # ns, by jumps up, since it was last not owed
        self.taken = 0.0  # ns, by jumps down, since it last owed nothing
        self.slice_ns = 0  # the largest where it got its lag


class LagWatch:
    """Follows every fair queue of an engine and checks the lag law after each step."""

    def __init__(self) -> None:
        self._queues: dict[int, _QueueWatch] = {}  # by the queue's identity
        self._standings: dict[int, Standing] = {}  # by key
        self.worst = 0.0  # the furthest lag seen, as a part of the largest slice

    def __call__(self, machine: Machine, now: int) -> None:
        for queue in _fair_queues(machine):
            watch = self._queues.setdefault(id(queue), _QueueWatch(queue, self._standings))
            self.worst = max(self.worst, watch.check(now))


def _fair_queues(machine: Machine) -> list[RunQueue]:
    queues = machine._queues
    inside = [node.inside for group in queues.groups.values() for node in group.nodes.values()]
    return [*(core.fair for core in queues.cores), *inside]


class _QueueWatch:
    def __init__(self, queue: RunQueue, standings: dict[int, Standing]) -> None:
        self._queue = queue
        self._standings = standings
        self._time: float | None = None  # after the last step; None if nobody was there
        self._at = 0
        self._weight_running = 0  # the weight of all, if somebody ran after the last step; else 0
        self._present: set[int] = set()  # after the last step
        self._slice = 0  # the largest seen

    def check(self, now: int) -> float:
        queue = self._queue
        siblings = [*queue.queued(), *([queue.current] if queue.current else [])]
        if not siblings:
            self._time, self._present = None, set()
            return 0.0
        self._slice = max(self._slice, *(one.slice_ns for one in siblings))
        level = queue.time(now)
        time = level.weighted / level.weight
        jump = time - self._expected(now) if self._time is not None else 0.0
        for one in siblings:
            standing = self._standings.setdefault(one.key, Standing())
            if one.key in self._present:
                standing.taken += max(0.0, -jump) * one.weight / SCALE
                standing.added += max(0.0, jump) * one.weight / SCALE
        worst = max(self._check_one(one, time, now) for one in siblings)
        self._time, self._at = time, now
        self._present = {one.key for one in siblings}
        self._weight_running = queue.weight if queue.current else 0
        return worst

    def _check_one(self, one: Sibling, time: float, now: int) -> float:
        """Check one sibling; the answer is how much of the largest slice it is away."""
        ran = (now - self._queue._since_ns) * SCALE / one.weight if one is self._queue.current else 0.0
        lag = one.weight * (time - one.virtual_time - ran) / SCALE
        standing = self._standings[one.key]
        standing.added = standing.added if lag > 0 else 0.0
        standing.taken = standing.taken if lag < 0 else 0.0
        standing.slice_ns = max(standing.slice_ns, self._slice) if abs(lag) > TOLERANCE_NS else self._slice
        allowed, owed, owes = standing.slice_ns, lag - standing.added, -lag - standing.taken
        assert owes < allowed + TOLERANCE_NS, f"sibling {one.key} is {owes:,.0f} ns ahead"
        assert owed < allowed + TOLERANCE_NS, f"sibling {one.key} is {owed:,.0f} ns behind"
        return max(owed, owes) / allowed

    def _expected(self, now: int) -> float:
        """Where the level's time would be if only service had moved it."""
        assert self._time is not None
        if not self._weight_running:
            return self._time
        return self._time + (now - self._at) * SCALE / self._weight_running


def check_budgets(machine: Machine) -> None:
    """With a driver that ticks on time nobody runs past its budget at all, and the sum is right to the unit."""
    for context in machine._contexts:
        picture = machine.context(context.context_id)
        assert picture.remaining + sum(refill.amount for refill in picture.refills) == picture.budget
        assert picture.remaining >= 0


def check_conservation(machine: Machine, now: int) -> None:
    """What everybody ran, and what every core idled, is the time that passed on all cores."""
    queues = machine._queues
    running = [core.current.ties.actor for core in queues.cores if core.current is not None]
    ran = machine._cores.ended_ns + sum(entity.runtime_ns for entity in queues.entities.values())
    ran += sum(now - actor.last_start_ns for actor in running)
    idle = sum(machine.idle_ns(core, now) for core in range(machine.core_count))
    assert ran + idle == machine.core_count * now
    assert all(actor.state is EntityState.RUNNING for actor in running)
