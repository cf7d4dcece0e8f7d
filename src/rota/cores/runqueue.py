"""The fair queue of one core: who of its runnable siblings goes next.

It is `policy.virtual_time` kept up to date for a core, where the usual turn is not "serve the first and put it
back" (what `policy.level` is built for) but "somebody wakes, somebody blocks". Two things follow:

- **Whoever runs is out of the heaps.** Blocking then touches no heap at all: it only leaves the sums. Picking is
  one pop, waking is one push.
- **The level's time includes the turn under way.** The one who runs is charged when it stops. Until then its
  service is added wherever the time is asked for, so that somebody who wakes in the middle of a long slice joins
  where the level stands now and not where it stood when the slice began.

Three rules order the heaps, and the same sums are kept under each, so that a queue can change its rule at any time:

    eevdf         the eligible by virtual deadline, the others wait by virtual time (the default)
    wfq           everybody by virtual deadline
    round_robin   everybody by last start: the recovery path when nobody can be trusted to set weights

A heap entry is one whole number: the time, then the key, then the seat. Comparing two of them orders by time, then by
key; the *seat* is where its sibling is found, an index that is used again when somebody is gone (a key never is). An
entry is dead when it is not its sibling's present one; dead entries are dropped when they surface, and both
heaps are built afresh before the dead outnumber the living. The least virtual time is never above the average,
so under eevdf somebody is always eligible.

A and B of weight 1, slices of 6; A runs from 0, B blocks at 0 and wakes at 4:

    at 0    A runs             sums: A alone       time 0
    at 4    B wakes            the time is now 4 (A has run for 4): B joins at 4, due at 10
    at 6    A stops, it stands at 6; the time is 5: B is eligible and A is not
            B runs

**Falls.** Somebody who is moved here with credit is placed below the level's time, which falls by that. The fewer and
lighter those who are here, the further it falls: they alone stand against the credit. Whoever sleeps meanwhile has
taken nothing from anybody, so the fall is taken off its own time when it returns. Otherwise its debt would grow in
its sleep, without limit: beside a sibling of weight 1, credit of a millisecond is a second to one of weight 1,000.

A *group* (the threads of a process) is a sibling that has a queue of its own inside: see `records.Group`.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Literal

from rota.cores.evidence import Evidence
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import SCALE, LevelTime, reweighed, span

__all__ = ["NOT_QUEUED", "RULES", "Rule", "RunQueue", "Seats", "Sibling", "moved"]

Rule = Literal["eevdf", "wfq", "round_robin"]
RULES: tuple[Rule, ...] = ("eevdf", "wfq", "round_robin")

SEAT_BITS = 32
SEAT_MASK = (1 << SEAT_BITS) - 1
TAIL_BITS = 32 + SEAT_BITS  # of an entry, below the time: the key and the seat
NOT_QUEUED = -1  # the entry of one that is in no heap


def moved(virtual_time: int, weight: int, source: LevelTime, target: LevelTime) -> int:
    """Where somebody stands on another queue, so that once it has joined it is owed there what it was owed here.

    Joining moves the target's time a little towards the newcomer, which is allowed for. Rounded up, like every charge,
    so that moving to and fro gains nothing.
    """
    owed = source.weighted - virtual_time * source.weight
    sought = target.weighted * source.weight - owed * (target.weight + weight)
    return -(-sought // (target.weight * source.weight))


class Sibling:
    """Somebody who competes for a core."""

    __slots__ = ("due", "entry", "fallen", "key", "last_start_ns", "slice_ns", "span", "tail", "virtual_time", "weight")

    def __init__(self, key: int, weight: int = WEIGHT_UNIT, slice_ns: int = 1) -> None:
        self.key = key
        self.tail = key << SEAT_BITS  # and its seat, once it has one
        self.entry = NOT_QUEUED
        self.virtual_time = 0
        self.fallen = 0  # how far the level had fallen when it left
        self.last_start_ns = 0
        self.shape(weight, slice_ns)

    def shape(self, weight: int, slice_ns: int) -> None:
        """Take another weight or slice. In a queue only `RunQueue.reweigh` may do this."""
        self.weight = weight
        self.slice_ns = slice_ns
        self.span = span(slice_ns, weight)  # from its virtual time to its virtual deadline
        self.due = self.span << TAIL_BITS | self.tail  # added to a shifted virtual time this is a heap entry


class Seats:
    """Everybody who may stand in some queue of one engine, by seat."""

    __slots__ = ("_free", "holders")

    def __init__(self) -> None:
        self.holders: list[Sibling | None] = []
        self._free: list[int] = []  # seats of those who are gone

    def take(self, sibling: Sibling) -> None:
        """Give a seat to somebody new."""
        if not self._free:
            self._free.append(len(self.holders))
            self.holders.append(None)
        seat = self._free.pop()
        self.holders[seat] = sibling
        sibling.tail = sibling.key << SEAT_BITS | seat
        sibling.shape(sibling.weight, sibling.slice_ns)

    def leave(self, sibling: Sibling) -> None:
        """Somebody is gone. Entries that it left in heaps are dead whoever has its seat next: they are not theirs."""
        seat = sibling.tail & SEAT_MASK
        self.holders[seat] = None
        self._free.append(seat)


class RunQueue:
    """The siblings that are runnable on one core: those in the heaps, and the one who runs."""

    __slots__ = (
        "_clock",
        "_dead",
        "_eligible",
        "_evidence",
        "_is_eevdf",
        "_rule",
        "_siblings",
        "_since_ns",
        "_waiting",
        "current",
        "fallen",
        "weight",
        "weighted",
    )

    def __init__(self, seats: Seats, rule: Rule, evidence: Evidence) -> None:
        self._siblings = seats.holders  # everybody by seat, also of other queues
        self._rule = rule
        self._is_eevdf = rule == "eevdf"
        self._evidence = evidence
        self.weight = 0  # Σ weight
        self.weighted = 0  # Σ weight × virtual time; of the one who runs, at the start of its turn
        self._clock = 0  # the time at the moment the last one left
        self.fallen = 0  # how far the time has fallen in all because of who was moved here with credit
        self._eligible: list[int] = []
        self._waiting: list[int] = []
        self._dead = 0  # entries in the heaps that are nobody's
        self.current: Sibling | None = None  # who runs
        self._since_ns = 0  # since when

    def __len__(self) -> int:
        return len(self._eligible) + len(self._waiting) - self._dead

    @property
    def entries(self) -> int:
        """How many heap entries are kept, living and dead."""
        return len(self._eligible) + len(self._waiting)

    # --- a turn ----------------------------------------------------------------------------------

    def enter(self, sibling: Sibling, now: int) -> None:
        """A sibling became runnable: it starts at the later of its own and the level's time."""
        weight, weighted = self.weight, self.weighted
        if self.current is not None:
            time = (weighted + (now - self._since_ns) * SCALE) // weight
        else:
            time = weighted // weight if weight else self._clock
        if sibling.fallen != self.fallen:
            self.forgive_falls(sibling)
        virtual_time = sibling.virtual_time
        if not self._is_eevdf:
            self.enter_at(sibling, max(virtual_time, time))
            return
        # what `enter_at` does, without asking again what is known here: nearly every wake comes this way
        if virtual_time <= time:
            sibling.virtual_time = virtual_time = time
            sibling.entry = entry = (virtual_time << TAIL_BITS) + sibling.due
            heappush(self._eligible, entry)
        else:
            sibling.entry = entry = virtual_time << TAIL_BITS | sibling.tail
            heappush(self._waiting, entry)
        self.weight = weight + sibling.weight
        self.weighted = weighted + sibling.weight * virtual_time

    def take(self, now: int, current_leaves: bool = False) -> Sibling | None:
        """Take out whoever goes next, to run from now on; None when nobody waits.

        With `current_leaves` whoever runs is no longer runnable and leaves first. That is how nearly every turn
        ends, so `leave` is written out here.
        """
        if current_leaves and (current := self.current) is not None:
            own, stands = current.weight, current.virtual_time
            self.weight = weight = self.weight - own
            self.weighted = weighted = self.weighted - own * stands
            current.virtual_time = stands - ((self._since_ns - now) * SCALE // own)
            current.fallen = self.fallen
            self.current = None
            if not weight:
                self._clock = current.virtual_time
                return None
        else:
            weight, weighted = self.weight, self.weighted
            if not weight:
                return None
        eligible, waiting, siblings = self._eligible, self._waiting, self._siblings
        time = weighted // weight
        while waiting and waiting[0] >> TAIL_BITS <= time:  # the time of the first has come
            entry = heappop(waiting)
            sibling = siblings[entry & SEAT_MASK]
            if sibling is not None and sibling.entry is entry:
                sibling.entry = entry = (sibling.virtual_time << TAIL_BITS) + sibling.due
                heappush(eligible, entry)
            else:
                self._drop_dead()
        while eligible:
            entry = heappop(eligible)
            sibling = siblings[entry & SEAT_MASK]
            if sibling is None or sibling.entry is not entry:
                self._drop_dead()
            elif sibling.virtual_time <= time or not self._is_eevdf:
                sibling.entry = NOT_QUEUED
                sibling.last_start_ns = self._since_ns = now
                self.current = sibling
                return sibling
            else:
                self._demote(sibling)
        return None

    def _drop_dead(self) -> None:
        """An entry that surfaced is nobody's."""
        self._dead -= 1
        self._evidence.looks += 1

    def _demote(self, sibling: Sibling) -> None:
        """Somebody who owed has left, the time fell, and this one is no longer owed: it waits again."""
        sibling.entry = entry = sibling.virtual_time << TAIL_BITS | sibling.tail
        heappush(self._waiting, entry)
        self._evidence.looks += 1

    def leave(self, now: int) -> None:
        """Whoever runs is no longer runnable."""
        sibling = self.current
        assert sibling is not None  # noqa: S101  # only who runs can stop
        weight, virtual_time = sibling.weight, sibling.virtual_time
        self.weighted -= weight * virtual_time
        self.weight -= weight
        sibling.virtual_time = virtual_time - ((self._since_ns - now) * SCALE // weight)  # `charged`, written out
        sibling.fallen = self.fallen
        self.current = None
        if not self.weight:
            self._clock = sibling.virtual_time

    def put_back(self, now: int) -> None:
        """Whoever runs gives the core up and stays runnable."""
        sibling = self.current
        assert sibling is not None  # noqa: S101  # only who runs can stop
        self._charge_current(sibling, now)
        self.current = None
        self._push(sibling)

    def start(self, sibling: Sibling, now: int) -> None:
        """A sibling that waits runs at once, out of turn; nobody else runs."""
        sibling.entry = NOT_QUEUED
        self._dead += 1
        sibling.last_start_ns = self._since_ns = now
        self.current = sibling

    # --- leaving the line, changing, moving ------------------------------------------------------

    def enter_at(self, sibling: Sibling, virtual_time: int) -> None:
        """A sibling became runnable and stands where it is told."""
        self._join(sibling, virtual_time)
        self._push(sibling)

    def enter_moved(self, sibling: Sibling, source: LevelTime, now: int) -> None:
        """A sibling that waited elsewhere, where the time was this, waits here from now on and is owed as much."""
        before = self.time(now)
        if not self.weight:
            self.enter_at(sibling, before.whole)
            return
        self.enter_at(sibling, moved(sibling.virtual_time, sibling.weight, source, before))
        self.fallen += max(0, before.whole - self.time(now).whole)

    def forgive_falls(self, sibling: Sibling) -> None:
        """Take off what the level has fallen since a sibling that is not here left."""
        sibling.virtual_time -= self.fallen - sibling.fallen
        sibling.fallen = self.fallen

    def remove(self, sibling: Sibling) -> None:
        """A sibling that waits is no longer runnable. Its entry dies where it is."""
        sibling.entry = NOT_QUEUED
        sibling.fallen = self.fallen
        self._dead += 1
        self.weight -= sibling.weight
        self.weighted -= sibling.weight * sibling.virtual_time
        if not self.weight:
            self._clock = sibling.virtual_time

    def reweigh(self, sibling: Sibling, weight: int, slice_ns: int, now: int) -> None:
        """Give somebody who is runnable here another weight and slice, keeping its lag."""
        runs = sibling is self.current
        if runs:
            self._charge_current(sibling, now)
        old, time = sibling.weight, self.time(now)
        self.weight += weight - old
        self.weighted -= old * sibling.virtual_time
        sibling.virtual_time = reweighed(sibling.virtual_time, old, weight, time)
        sibling.shape(weight, slice_ns)
        self.weighted += weight * sibling.virtual_time
        if not runs:
            self._dead += 1
            self._push(sibling)
            self.tidy()

    def time(self, now: int) -> LevelTime:
        """The level's time, with the turn under way."""
        if not self.weight:
            return LevelTime.at(self._clock)
        weighted = self.weighted
        if self.current is not None:
            weighted += (now - self._since_ns) * SCALE
        return LevelTime(weighted, self.weight)

    def change_rule(self, rule: Rule) -> None:
        """Order by another rule from now on; what everybody has had is kept."""
        self._rule = rule
        self._is_eevdf = rule == "eevdf"
        self._rebuild()

    def tidy(self) -> None:
        """Build the heaps afresh if the dead outnumber the living."""
        if self._dead > len(self):
            self._rebuild()

    # --- looking ---------------------------------------------------------------------------------

    def queued(self) -> Iterator[Sibling]:
        """Everybody who waits, in no particular order."""
        for heap in (self._eligible, self._waiting):
            for entry in heap:
                sibling = self._siblings[entry & SEAT_MASK]
                if sibling is not None and sibling.entry is entry:
                    yield sibling

    def most_overdue(self, looks_max: int) -> list[Sibling]:
        """Those near the front of the line, most overdue first, found with no more than so many looks."""
        entries = sorted(self._eligible[:looks_max]) or sorted(self._waiting[:looks_max])
        siblings = ((entry, self._siblings[entry & SEAT_MASK]) for entry in entries)
        return [one for entry, one in siblings if one is not None and one.entry is entry]

    # --- the heaps -------------------------------------------------------------------------------

    def _push(self, sibling: Sibling) -> None:
        """Put somebody into the heap where it belongs; its sums are in already."""
        virtual_time, tail = sibling.virtual_time, sibling.tail
        if self._rule == "round_robin":
            entry, heap = sibling.last_start_ns + 1 << TAIL_BITS | tail, self._eligible
        elif self._rule == "wfq" or virtual_time * self.weight <= self.weighted:
            entry, heap = (virtual_time << TAIL_BITS) + sibling.due, self._eligible
        else:
            entry, heap = virtual_time << TAIL_BITS | tail, self._waiting
        sibling.entry = entry
        heappush(heap, entry)

    def _rebuild(self) -> None:
        living = list(self.queued())
        self._eligible.clear()
        self._waiting.clear()
        self._dead = 0
        for sibling in living:
            self._push(sibling)

    def _join(self, sibling: Sibling, virtual_time: int) -> None:
        sibling.virtual_time = virtual_time
        self.weight += sibling.weight
        self.weighted += sibling.weight * virtual_time

    def _charge_current(self, sibling: Sibling, now: int) -> None:
        """Bring the one who runs up to date, in the middle of its turn."""
        step = span(now - self._since_ns, sibling.weight)
        sibling.virtual_time += step
        self.weighted += step * sibling.weight
        self._since_ns = now
