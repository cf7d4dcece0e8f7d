"""What must be true of every run, watched step by step: lag, budgets, conservation.

**The lag law.** In the fluid ideal everybody who is runnable on a core receives service by weight at every moment.
Lag is what somebody has missed of that. For a population that stays the same nobody is ever further from the ideal
than one maximal request (the largest slice): the theorem on eevdf. When the population changes, the level's time
jumps, and with it the ideal of everybody who is there. Which jumps the bound has to allow for:

*Ahead* (lag below zero): none, as long as nobody is moved. Whoever is not owed anything is not eligible, so it falls
behind zero only by its own turn, by no more than its slice. Others who come and go do not push it further: somebody
of weight w who begins a turn with lag a ≥ 0 at the level's time V, beside others of weight W, and leaves after
running for s, has moved the level to V + s / (W + w) meanwhile and leaves owing s·W / (W + w) − a, which takes
s / (W + w) − a / W back off. The level is at V + a / W: never below where the turn began.
A move is different. Somebody who is moved here with credit c was not served on *another* core; those who are here
owe it that from now on although they took nothing, and the level falls by c / W. Somebody who waits and is moved
away (or ends) owing d takes its debt along, and the level falls by d / W. These two, and no other fall, come off,
until one has nothing to owe again.

*Behind* (lag above zero): whoever leaves with credit leaves it to the others, and whoever returns, or is moved here,
with debt owes it to the others: the level rises, although nobody was served meanwhile. What such rises have added
for somebody since it was last not owed is no service that was withheld from it, and comes off.

    − largest slice  −  what moves took  <  lag  <  largest slice  +  what comings and goings added

Both follow whoever moves to another core, as does the largest slice of where it got its lag: what is owed does not
change on the way. And nobody who stays beside others is forgiven anything: one's own virtual time moves on with one's
own service at least.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.cores import Machine
from rota.cores.runqueue import RunQueue, Sibling
from rota.model.lifecycle import EntityState
from rota.policy.virtual_time import SCALE

TOLERANCE_NS = 50  # a join rounds the level's time down, a charge rounds up, each by less than a unit


class Standing:
    """What was shifted for one sibling, wherever it was."""

    def __init__(self) -> None:
        self.added = 0.0  # ns, by rises, since it was last not owed
        self.taken = 0.0  # ns, by moves, since it last owed nothing
        self.slice_ns = 0  # the largest where it got its lag


class Seen(NamedTuple):
    """One sibling as it stood after a step."""

    sibling: Sibling
    weight: int
    virtual_time: float  # with the turn under way
    lag_ns: float
    runs: bool


class LagWatch:
    """Follows every fair queue of an engine and checks the lag law after each step."""

    def __init__(self) -> None:
        self._queues: dict[int, _QueueWatch] = {}  # by the queue's identity
        self._standings: dict[int, Standing] = {}  # by key
        self._waited: set[int] = set()  # whoever waited in any queue after the last step
        self.worst = 0.0  # the furthest lag seen, as a part of the largest slice

    def __call__(self, machine: Machine, now: int) -> None:
        waiting: set[int] = set()
        for queue in _fair_queues(machine):
            watch = self._queues.setdefault(id(queue), _QueueWatch(queue, self._standings))
            self.worst = max(self.worst, watch.check(now, self._waited))
            waiting |= {key for key, one in watch.seen.items() if not one.runs}
        self._waited = waiting


def _fair_queues(machine: Machine) -> list[RunQueue]:
    queues = machine._queues
    inside = [node.inside for group in queues.groups.values() for node in group.nodes.values()]
    return [*(core.fair for core in queues.cores), *(core.background for core in queues.cores), *inside]


class _QueueWatch:
    def __init__(self, queue: RunQueue, standings: dict[int, Standing]) -> None:
        self._queue = queue
        self._standings = standings
        self.seen: dict[int, Seen] = {}  # after the last step, by key
        self._time = 0.0  # of the level, after the last step
        self._at = 0  # when that was
        self._slice = 0  # the largest seen

    def check(self, now: int, waited: set[int]) -> float:
        """Look at everybody here, who of all waited somewhere before; the answer is the furthest lag, in slices."""
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
        self._welcome(before, waited)
        self._at = now
        return max(self._check_one(one) for one in after.values())

    def _look(self, now: int) -> dict[int, Seen]:
        queue = self._queue
        siblings = [*queue.queued(), *([queue.current] if queue.current else [])]
        if not siblings:
            return {}
        self._slice = max(self._slice, *(one.slice_ns for one in siblings))
        level = queue.time(now)
        self._time = time = level.weighted / level.weight
        seen = {}
        for one in siblings:
            runs = one is queue.current
            stands = one.virtual_time + ((now - queue._since_ns) * SCALE / one.weight if runs else 0)
            seen[one.key] = Seen(one, one.weight, stands, one.weight * (time - stands) / SCALE, runs)
            self._standings.setdefault(one.key, Standing())
        return seen

    def _check_own_time(self, before: dict[int, Seen], passed: int) -> None:
        """One's own time moves on with one's own service, and never back: leaving and coming back gains nothing."""
        if len(self.seen) == 1:
            return  # whoever is alone owes nobody
        for key, one in self.seen.items():
            known = before.get(key)
            if known is None or known.weight != one.weight:
                continue
            stood = known.virtual_time + (passed * SCALE / one.weight if known.runs else 0)
            off_ns = (one.virtual_time - stood) * one.weight / SCALE
            assert off_ns > -TOLERANCE_NS, f"sibling {key} was forgiven {-off_ns:,.0f} ns"

    def _by_moves(self, before: dict[int, Seen], rose: float, waited: set[int]) -> float:
        """How far those who were moved here with credit, or waited here with debt and are gone, let the level fall."""
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
                self._standings[key].added += rose * one.weight / SCALE
                self._standings[key].taken += fell * one.weight / SCALE

    def _welcome(self, before: dict[int, Seen], waited: set[int]) -> None:
        """Whoever wakes joins without credit: what it is owed in the same step was added by those who came after it."""
        for key, one in self.seen.items():
            if key not in before and key not in waited:
                self._standings[key].added = max(0.0, one.lag_ns)

    def _check_one(self, one: Seen) -> float:
        """Check one sibling; the answer is how much of the largest slice it is away."""
        key, lag = one.sibling.key, one.lag_ns
        standing = self._standings[key]
        standing.added = standing.added if lag > 0 else 0.0
        standing.taken = standing.taken if lag < 0 else 0.0
        standing.slice_ns = max(standing.slice_ns, self._slice) if abs(lag) > TOLERANCE_NS else self._slice
        allowed, owed, owes = standing.slice_ns, lag - standing.added, -lag - standing.taken
        assert owes < allowed + TOLERANCE_NS, f"sibling {key} is {owes:,.0f} ns ahead"
        assert owed < allowed + TOLERANCE_NS, f"sibling {key} is {owed:,.0f} ns behind"
        return max(owed, owes) / allowed


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
