"""The fair queue of one core: which of its runnable schedulables runs next.

It applies `policy.virtual_time` incrementally to a core. There the usual step is not "serve the first and put it back"
(for which `policy.level` is built) but "one wakes, one blocks". Two things follow:

- **The running schedulable is not in the heaps.** Blocking then touches no heap, it only changes the sums. Picking is
  one pop, waking is one push.
- **The queue's time includes the slice in progress.** The running schedulable is charged when it stops. Until then its
  service is added whenever the time is read, so that one that wakes in the middle of a long slice joins at the current
  time and not at the time when the slice began.

Three rules order the heaps. The same sums are kept under each, so a queue can change its rule at any time:

    eevdf         the eligible ones by virtual deadline, the others wait by virtual time (the default)
    wfq           all by virtual deadline
    round_robin   all by last start: the fallback that needs no weights

A heap entry is one integer: the time, then the key, then the index. Comparing two entries orders by time, then by key.
The *index* finds the schedulable in the index table; it is reused when a schedulable is gone (a key never is). An entry
is stale when it is not the current entry of its schedulable. Stale entries are dropped when they surface, and both
heaps are rebuilt before stale entries outnumber live ones. The least virtual time is never above the average, so under
eevdf at least one is always eligible.

A and B of weight 1, slices of 6; A runs from 0, B blocks at 0 and wakes at 4:

    at 0    A runs             sums: A alone       time 0
    at 4    B wakes            the time is now 4 (A has run for 4): B joins at 4, due at 10
    at 6    A stops at virtual time 6; the queue's time is 5: B is eligible and A is not
            B runs

**Time drops.** A schedulable that is moved here with credit is placed below the queue's time, which drops by that. The
fewer and lighter the others are, the larger the drop: they alone balance the credit. A schedulable that sleeps
meanwhile has taken nothing from the others, so the drop is subtracted from its own time when it returns. Otherwise its
debt would grow while it sleeps, without limit: beside one of weight 1, a credit of a millisecond is a second to one of
weight 1,000.

A *group* (the threads of a process) is a schedulable with a queue of its own inside: see `records.GroupRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Literal

from rota.cores.telemetry import Counters
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import SCALE, LevelTime, reweighed, span

__all__ = ["NOT_QUEUED", "RULES", "IndexTable", "Rule", "RunQueue", "Schedulable", "moved"]

Rule = Literal["eevdf", "wfq", "round_robin"]
RULES: tuple[Rule, ...] = ("eevdf", "wfq", "round_robin")

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
TAIL_BITS = 32 + INDEX_BITS  # bits of an entry below the time: the key and the index
NOT_QUEUED = -1  # the entry of a schedulable that is in no heap


def moved(virtual_time: int, weight: int, source: LevelTime, target: LevelTime) -> int:
    """Return the virtual time on another queue at which a schedulable has the same lag after it has joined.

    Joining moves the target's time a little towards the newcomer, which is taken into account. Rounded up, like every
    charge, so that moving back and forth gains nothing.
    """
    owed = source.weighted - virtual_time * source.weight
    sought = target.weighted * source.weight - owed * (target.weight + weight)
    return -(-sought // (target.weight * source.weight))


class Schedulable:
    """An entity or a group that competes for a core."""

    __slots__ = (
        "deadline_offset",
        "entry",
        "key",
        "last_start_ns",
        "slice_ns",
        "span",
        "tail",
        "time_drop",
        "virtual_time",
        "weight",
    )

    def __init__(self, key: int, weight: int = WEIGHT_UNIT, slice_ns: int = 1) -> None:
        self.key = key
        self.tail = key << INDEX_BITS  # plus its index, once it has one
        self.entry = NOT_QUEUED
        self.virtual_time = 0
        self.time_drop = 0  # the queue's total time drop when it left
        self.last_start_ns = 0
        self.set_share(weight, slice_ns)

    def set_share(self, weight: int, slice_ns: int) -> None:
        """Set the weight and slice. For a queued schedulable only `RunQueue.reweigh` may call this."""
        self.weight = weight
        self.slice_ns = slice_ns
        self.span = span(slice_ns, weight)  # from its virtual time to its virtual deadline
        # added to a shifted virtual time this gives a heap entry
        self.deadline_offset = self.span << TAIL_BITS | self.tail


class IndexTable:
    """Every schedulable of one engine, by index."""

    __slots__ = ("_free", "items")

    def __init__(self) -> None:
        self.items: list[Schedulable | None] = []
        self._free: list[int] = []  # indexes of removed schedulables

    def add(self, schedulable: Schedulable) -> None:
        """Assign an index to a new schedulable."""
        if not self._free:
            self._free.append(len(self.items))
            self.items.append(None)
        index = self._free.pop()
        self.items[index] = schedulable
        schedulable.tail = schedulable.key << INDEX_BITS | index
        schedulable.set_share(schedulable.weight, schedulable.slice_ns)

    def remove(self, schedulable: Schedulable) -> None:
        """Free the index of a schedulable. Its heap entries remain stale, also when the index is reused."""
        index = schedulable.tail & INDEX_MASK
        self.items[index] = None
        self._free.append(index)


class RunQueue:
    """The runnable schedulables of one core: those in the heaps, and the running one."""

    __slots__ = (
        "_clock",
        "_counters",
        "_eligible",
        "_is_eevdf",
        "_rule",
        "_schedulables",
        "_since_ns",
        "_stale",
        "_waiting",
        "current",
        "time_drop",
        "weight",
        "weighted",
    )

    def __init__(self, index_table: IndexTable, rule: Rule, counters: Counters) -> None:
        self._schedulables = index_table.items  # by index, including those of other queues
        self._rule = rule
        self._is_eevdf = rule == "eevdf"
        self._counters = counters
        self.weight = 0  # Σ weight
        self.weighted = 0  # Σ weight × virtual time; that of the running one as of the start of its slice
        self._clock = 0  # the time when the queue last became empty
        self.time_drop = 0  # total time drop caused by schedulables moved here with credit
        self._eligible: list[int] = []
        self._waiting: list[int] = []
        self._stale = 0  # stale entries in the heaps
        self.current: Schedulable | None = None  # the running schedulable
        self._since_ns = 0  # when its slice, or its last charge, began

    def __len__(self) -> int:
        return len(self._eligible) + len(self._waiting) - self._stale

    @property
    def entries(self) -> int:
        """The number of heap entries, live and stale."""
        return len(self._eligible) + len(self._waiting)

    # --- a slice ---------------------------------------------------------------------------------

    def enter(self, schedulable: Schedulable, now: int) -> None:
        """A schedulable became runnable: it starts at the later of its own and the queue's time."""
        weight, weighted = self.weight, self.weighted
        if self.current is not None:
            time = (weighted + (now - self._since_ns) * SCALE) // weight
        else:
            time = weighted // weight if weight else self._clock
        if schedulable.time_drop != self.time_drop:
            self.apply_time_drop(schedulable)
        virtual_time = schedulable.virtual_time
        if not self._is_eevdf:
            self.enter_at(schedulable, max(virtual_time, time))
            return
        # `enter_at` inlined with the known values: nearly every wake comes this way
        if virtual_time <= time:
            schedulable.virtual_time = virtual_time = time
            schedulable.entry = entry = (virtual_time << TAIL_BITS) + schedulable.deadline_offset
            heappush(self._eligible, entry)
        else:
            schedulable.entry = entry = virtual_time << TAIL_BITS | schedulable.tail
            heappush(self._waiting, entry)
        self.weight = weight + schedulable.weight
        self.weighted = weighted + schedulable.weight * virtual_time

    def take(self, now: int, current_leaves: bool = False) -> Schedulable | None:
        """Take out the next schedulable, to run from now on; None when none waits.

        With `current_leaves` the running one leaves first. Nearly every slice ends this way, so `leave` is inlined.
        """
        if current_leaves and (current := self.current) is not None:
            own, virtual_time = current.weight, current.virtual_time
            self.weight = weight = self.weight - own
            self.weighted = weighted = self.weighted - own * virtual_time
            current.virtual_time = virtual_time - ((self._since_ns - now) * SCALE // own)
            current.time_drop = self.time_drop
            self.current = None
            if not weight:
                self._clock = current.virtual_time
                return None
        else:
            weight, weighted = self.weight, self.weighted
            if not weight:
                return None
        eligible, waiting, schedulables = self._eligible, self._waiting, self._schedulables
        time = weighted // weight
        while waiting and waiting[0] >> TAIL_BITS <= time:  # the first one is eligible now
            entry = heappop(waiting)
            schedulable = schedulables[entry & INDEX_MASK]
            if schedulable is not None and schedulable.entry is entry:
                schedulable.entry = entry = (schedulable.virtual_time << TAIL_BITS) + schedulable.deadline_offset
                heappush(eligible, entry)
            else:
                self._drop_stale()
        while eligible:
            entry = heappop(eligible)
            schedulable = schedulables[entry & INDEX_MASK]
            if schedulable is None or schedulable.entry is not entry:
                self._drop_stale()
            elif schedulable.virtual_time <= time or not self._is_eevdf:
                schedulable.entry = NOT_QUEUED
                schedulable.last_start_ns = self._since_ns = now
                self.current = schedulable
                return schedulable
            else:
                self._demote(schedulable)
        return None

    def _drop_stale(self) -> None:
        """Count a stale entry that surfaced."""
        self._stale -= 1
        self._counters.looks += 1

    def _demote(self, schedulable: Schedulable) -> None:
        """Return a schedulable to the waiting heap: one with debt has left, and the time dropped below its own."""
        schedulable.entry = entry = schedulable.virtual_time << TAIL_BITS | schedulable.tail
        heappush(self._waiting, entry)
        self._counters.looks += 1

    def leave(self, now: int) -> None:
        """The running schedulable is no longer runnable."""
        schedulable = self.current
        assert schedulable is not None  # noqa: S101  # only a running one can stop
        weight, virtual_time = schedulable.weight, schedulable.virtual_time
        self.weighted -= weight * virtual_time
        self.weight -= weight
        schedulable.virtual_time = virtual_time - ((self._since_ns - now) * SCALE // weight)  # `charged`, inlined
        schedulable.time_drop = self.time_drop
        self.current = None
        if not self.weight:
            self._clock = schedulable.virtual_time

    def put_back(self, now: int) -> None:
        """The running schedulable gives up the core and stays runnable."""
        schedulable = self.current
        assert schedulable is not None  # noqa: S101  # only a running one can stop
        self._charge_current(schedulable, now)
        self.current = None
        self._push(schedulable)

    def start(self, schedulable: Schedulable, now: int) -> None:
        """Start a waiting schedulable out of order; none may be running."""
        schedulable.entry = NOT_QUEUED
        self._stale += 1
        schedulable.last_start_ns = self._since_ns = now
        self.current = schedulable

    # --- removing, changing, moving -------------------------------------------------------------

    def enter_at(self, schedulable: Schedulable, virtual_time: int) -> None:
        """A schedulable became runnable with a given virtual time."""
        self._join(schedulable, virtual_time)
        self._push(schedulable)

    def enter_moved(self, schedulable: Schedulable, source: LevelTime, now: int) -> None:
        """Add a schedulable that waited in another queue, whose time was `source`; its lag stays the same."""
        before = self.time(now)
        if not self.weight:
            self.enter_at(schedulable, before.whole)
            return
        self.enter_at(schedulable, moved(schedulable.virtual_time, schedulable.weight, source, before))
        self.time_drop += max(0, before.whole - self.time(now).whole)

    def apply_time_drop(self, schedulable: Schedulable) -> None:
        """Subtract the time drops since a schedulable left this queue."""
        schedulable.virtual_time -= self.time_drop - schedulable.time_drop
        schedulable.time_drop = self.time_drop

    def remove(self, schedulable: Schedulable) -> None:
        """A waiting schedulable is no longer runnable. Its heap entry becomes stale."""
        schedulable.entry = NOT_QUEUED
        schedulable.time_drop = self.time_drop
        self._stale += 1
        self.weight -= schedulable.weight
        self.weighted -= schedulable.weight * schedulable.virtual_time
        if not self.weight:
            self._clock = schedulable.virtual_time

    def reweigh(self, schedulable: Schedulable, weight: int, slice_ns: int, now: int) -> None:
        """Change the weight and slice of a runnable schedulable; its lag stays the same."""
        runs = schedulable is self.current
        if runs:
            self._charge_current(schedulable, now)
        old, time = schedulable.weight, self.time(now)
        self.weight += weight - old
        self.weighted -= old * schedulable.virtual_time
        schedulable.virtual_time = reweighed(schedulable.virtual_time, old, weight, time)
        schedulable.set_share(weight, slice_ns)
        self.weighted += weight * schedulable.virtual_time
        if not runs:
            self._stale += 1
            self._push(schedulable)
            self.compact()

    def time(self, now: int) -> LevelTime:
        """The queue's virtual time, including the slice in progress."""
        if not self.weight:
            return LevelTime.at(self._clock)
        weighted = self.weighted
        if self.current is not None:
            weighted += (now - self._since_ns) * SCALE
        return LevelTime(weighted, self.weight)

    def change_rule(self, rule: Rule) -> None:
        """Order by another rule; usage is kept."""
        self._rule = rule
        self._is_eevdf = rule == "eevdf"
        self._rebuild()

    def compact(self) -> None:
        """Rebuild the heaps if stale entries outnumber live ones."""
        if self._stale > len(self):
            self._rebuild()

    # --- reading ---------------------------------------------------------------------------------

    def queued(self) -> Iterator[Schedulable]:
        """Every waiting schedulable, in no particular order."""
        for heap in (self._eligible, self._waiting):
            for entry in heap:
                schedulable = self._schedulables[entry & INDEX_MASK]
                if schedulable is not None and schedulable.entry is entry:
                    yield schedulable

    def most_overdue(self, looks_max: int) -> list[Schedulable]:
        """Schedulables near the front, most overdue first, found with at most `looks_max` looks."""
        entries = sorted(self._eligible[:looks_max]) or sorted(self._waiting[:looks_max])
        schedulables = ((entry, self._schedulables[entry & INDEX_MASK]) for entry in entries)
        return [one for entry, one in schedulables if one is not None and one.entry is entry]

    # --- the heaps -------------------------------------------------------------------------------

    def _push(self, schedulable: Schedulable) -> None:
        """Add a schedulable, whose weight is already in the sums, to the right heap."""
        virtual_time, tail = schedulable.virtual_time, schedulable.tail
        if self._rule == "round_robin":
            entry, heap = schedulable.last_start_ns + 1 << TAIL_BITS | tail, self._eligible
        elif self._rule == "wfq" or virtual_time * self.weight <= self.weighted:
            entry, heap = (virtual_time << TAIL_BITS) + schedulable.deadline_offset, self._eligible
        else:
            entry, heap = virtual_time << TAIL_BITS | tail, self._waiting
        schedulable.entry = entry
        heappush(heap, entry)

    def _rebuild(self) -> None:
        living = list(self.queued())
        self._eligible.clear()
        self._waiting.clear()
        self._stale = 0
        for schedulable in living:
            self._push(schedulable)

    def _join(self, schedulable: Schedulable, virtual_time: int) -> None:
        schedulable.virtual_time = virtual_time
        self.weight += schedulable.weight
        self.weighted += schedulable.weight * virtual_time

    def _charge_current(self, schedulable: Schedulable, now: int) -> None:
        """Charge the running schedulable in the middle of its slice."""
        step = span(now - self._since_ns, schedulable.weight)
        schedulable.virtual_time += step
        self.weighted += step * schedulable.weight
        self._since_ns = now
