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
    round_robin   all by last start: ignores weights, and is the baseline of the figures

A heap entry is one integer: the time, then the key, then the index. Comparing two entries orders by time, then by key.
The *index* finds the schedulable in the index table; it is reused when a schedulable is gone (a key never is). An entry
is stale when it is not the current entry of its schedulable. Stale entries are dropped when they surface. Where nothing
is picked, as in the background of a busy core, none surfaces. So once there is one for every two live ones, each entry
that becomes stale also drops a few others. The least virtual time is never above the average, so under eevdf at least
one is always eligible.

One that is not eligible may be in the eligible heap all the same: if it surfaces there it goes to the waiting heap. One
with the longest span (from virtual time to deadline) of its queue never surfaces there too early, because its deadline
is later than that of any eligible one. So it enters the eligible heap at once, and one push and one pop are saved.
Where all have the same weight and slice, the waiting heap stays empty.

A and B of weight 1, slices of 6; A runs from 0, B blocks at 0 and wakes at 4:

    at 0    A runs             sums: A alone       time 0
    at 4    B wakes            the time is now 4 (A has run for 4): B had no lag and joins at 4, due at 10
    at 6    A stops at virtual time 6; the queue's time is 5: B is eligible and A is not
            B runs

**Lag is kept.** A schedulable that blocks keeps what it is owed, or owes, and has it again when it wakes: the sum of
all lags stays zero, so no entity is robbed by others that block and wake, however they do it, and none robs them. Where
several cores can be compared, that is its lag to their common time (`common_time` says why), else to its queue's time.
Credit is kept up to `CREDIT_MAX_NS`: sleeping saves nothing up. A debt that the queue's time has passed meanwhile is
forgiven, because an interactive schedulable that used a moment too much a long time ago should not wait for it; but
only so many of these that all together they are one part in `FORGIVEN_PART` of the time.

A *group* (the threads of a process) is a schedulable with a queue of its own inside: see `records.GroupRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush, heappushpop
from typing import Literal

from rota.cores.common_time import CommonTime
from rota.cores.telemetry import Counters
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import SCALE, LevelTime, reweighed, span

__all__ = ["NOT_QUEUED", "RULES", "IndexTable", "Rule", "RunQueue", "Schedulable"]

Rule = Literal["eevdf", "wfq", "round_robin"]
RULES: tuple[Rule, ...] = ("eevdf", "wfq", "round_robin")

INDEX_BITS = 28
INDEX_MASK = (1 << INDEX_BITS) - 1
TAIL_BITS = 32 + INDEX_BITS  # bits of an entry below the time: the key and the index, two digits of Python's integers
CREDIT_MAX_NS = 12_000_000  # service that one that leaves may still be owed when it returns: the longest usual slice
SWEPT_MAX = 8  # heap entries that are looked at when one has become stale
FORGIVEN_PART = 50  # one part in so many of the time is forgiven to those that return with a debt
FORGIVEN_PER_NS = SCALE // FORGIVEN_PART  # weight × virtual time that may be forgiven per ns: the division is exact
FORGIVEN_WINDOW_NS = FORGIVEN_PART * CREDIT_MAX_NS  # what was not forgiven for so long is not saved up further
SHARES_CACHED_MAX = 4_096  # pairs of weight and slice
NOT_QUEUED = -1  # the entry of a schedulable that is in no heap


class Schedulable:
    """An entity or a group that competes for a core."""

    __slots__ = (
        "ahead",
        "ahead_min",
        "entry",
        "entry_span",
        "key",
        "last_start_ns",
        "per_ns",
        "slice_ns",
        "span",
        "tail",
        "virtual_time",
        "weight",
    )

    def __init__(self, key: int, weight: int = WEIGHT_UNIT, slice_ns: int = 1) -> None:
        self.key = key
        self.tail = key << INDEX_BITS  # plus its index, once it has one
        self.entry = NOT_QUEUED
        self.virtual_time = 0
        self.ahead = 0  # while it is in no queue: how far its virtual time was ahead of the queue's when it left
        self.last_start_ns = 0
        self.set_share(weight, slice_ns)

    def set_share(self, weight: int, slice_ns: int) -> None:
        """Set the weight and slice. For a queued schedulable only `RunQueue.reweigh` may call this."""
        share = _share(weight, slice_ns)
        self.weight, self.slice_ns, self.span, self.ahead_min, self.entry_span, self.per_ns = share


@lru_cache(SHARES_CACHED_MAX)
def _share(weight: int, slice_ns: int) -> tuple[int, int, int, int, int, int]:
    """Return the numbers that follow from a weight and a slice.

    Schedulables with equal shares have the same integer objects, so that these stay in the processor's cache.
    """
    to_deadline = span(slice_ns, weight)  # from its virtual time to its virtual deadline
    ahead_min = -span(max(slice_ns, CREDIT_MAX_NS), weight)  # it is not further behind when it leaves
    per_ns = 0 if SCALE % weight else SCALE // weight  # virtual time for one ns, if that is a whole number
    return weight, slice_ns, to_deadline, ahead_min, to_deadline << TAIL_BITS, per_ns


class IndexTable:
    """Every schedulable of one engine, by index."""

    __slots__ = ("_free", "_gone", "items")

    def __init__(self) -> None:
        self._gone = Schedulable(0)  # in the place of one that was removed: no entry is its own
        self.items: list[Schedulable] = []
        self._free: list[int] = []  # indexes of removed schedulables

    def add(self, schedulable: Schedulable) -> None:
        """Assign an index to a new schedulable."""
        if not self._free:
            self._free.append(len(self.items))
            self.items.append(self._gone)
        index = self._free.pop()
        self.items[index] = schedulable
        schedulable.tail = schedulable.key << INDEX_BITS | index

    def remove(self, schedulable: Schedulable) -> None:
        """Free the index of a schedulable. Its heap entries remain stale, also when the index is reused."""
        index = schedulable.tail & INDEX_MASK
        self.items[index] = self._gone
        self._free.append(index)


class RunQueue:
    """The runnable schedulables of one core: those in the heaps, and the running one."""

    __slots__ = (
        "_clock",
        "_counters",
        "_eligible",
        "_forgiven_at_ns",
        "_is_eevdf",
        "_rule",
        "_schedulables",
        "_since_ns",
        "_span_max",
        "_stale",
        "_swept",
        "_waiting",
        "base",
        "common",
        "current",
        "weight",
        "weighted",
    )

    def __init__(self, index_table: IndexTable, rule: Rule, counters: Counters) -> None:
        self._schedulables = index_table.items  # by index, including those of other queues
        self._rule = rule
        self._is_eevdf = rule == "eevdf"
        self._counters = counters
        self.common: CommonTime | None = None  # lag that is kept is counted from it; None: from the queue's own time
        self.weight = 0  # Σ weight
        self.weighted = 0  # Σ weight × virtual time; that of the running one as of the start of its slice
        self._forgiven_at_ns = 0  # up to when debts were forgiven: it never passes the present
        self._clock = 0  # the time when the queue last became empty
        self.base = 0  # added to its times, it gives times that can be compared between the cores: see `placement`
        self._eligible: list[int] = []
        self._waiting: list[int] = []
        self._stale = 0  # stale entries in the heaps
        self._swept = 0  # the place, counted through both heaps, up to which stale entries were dropped
        self._span_max = 0  # the longest span of those that woke here since it was empty
        self.current: Schedulable | None = None  # the running schedulable
        self._since_ns = 0  # when its slice, or its last charge, began

    def __len__(self) -> int:
        return len(self._eligible) + len(self._waiting) - self._stale

    @property
    def entries(self) -> int:
        """The number of heap entries, live and stale."""
        return len(self._eligible) + len(self._waiting)

    # --- a slice ---------------------------------------------------------------------------------

    def enter(self, schedulable: Schedulable, now: int) -> bool:
        """A schedulable became runnable: it has the lag with which it left. Return whether it is eligible."""
        weight, weighted, own = self.weight, self.weighted, schedulable.weight
        elapsed = weighted  # Σ weight × virtual time, including the slice in progress: `weight` times the queue's time
        if self.current is not None:
            elapsed += (now - self._since_ns) * SCALE
        elif not weight:
            self._span_max = schedulable.span  # it is alone: it owes nothing to another one
            self.enter_at(schedulable, self._clock)
            return True
        joined = weight + own
        # `beyond` is `weight` times the distance from the queue's time to the newcomer's. Joining moves the queue's
        # time towards the newcomer, so its distance to the time of a queue that it is part of is `beyond / joined`.
        common = self.common
        if common is None:
            beyond = schedulable.ahead * joined
            virtual_time = (elapsed + beyond) // weight
        else:
            virtual_time = common.origin + common.speed * now + schedulable.ahead - self.base  # `common.at`, inlined
            beyond, least = virtual_time * weight - elapsed, schedulable.ahead_min * joined
            if not least <= beyond <= -least:
                beyond = least if beyond < least else -least
                virtual_time = (elapsed + beyond) // weight
        # rarely true, so asked first: so much may be forgiven, and the queue's time has passed its debt
        if (
            beyond > 0
            and beyond * own <= (now - self._forgiven_at_ns) * FORGIVEN_PER_NS * joined
            and elapsed >= schedulable.virtual_time * weight
            and self._forgive(beyond * own // joined, now)
        ):
            beyond, virtual_time = 0, elapsed // weight
        if not self._is_eevdf:
            self.enter_at(schedulable, virtual_time)
            return beyond <= 0
        # `enter_at` inlined with the known values: nearly every wake comes this way
        schedulable.virtual_time = virtual_time
        self.weight = joined
        self.weighted = weighted + own * virtual_time
        entry = (virtual_time << TAIL_BITS) + schedulable.tail
        # one with the longest span is not picked too early from the eligible heap either
        if beyond <= 0 or schedulable.span >= self._span_max:
            schedulable.entry = entry = entry + schedulable.entry_span
            heappush(self._eligible, entry)
            if schedulable.span > self._span_max:  # noqa: PLR1730  # max() costs a call at every wake
                self._span_max = schedulable.span
            return beyond <= 0
        schedulable.entry = entry
        heappush(self._waiting, entry)
        return False

    def _forgive(self, debt: int, now: int) -> bool:
        """Use up what may be forgiven now; return whether it was enough."""
        at_ns = max(self._forgiven_at_ns, now - FORGIVEN_WINDOW_NS) - (-debt // FORGIVEN_PER_NS)  # rounded up
        if at_ns > now:
            return False
        self._forgiven_at_ns = at_ns
        return True

    def take(  # noqa: PLR0912  # every slice ends here: a call for some of the branches would cost more than they do
        self, now: int, current: Schedulable | None = None
    ) -> Schedulable | None:
        """Take out the next schedulable, to run from now on; None when none waits.

        If the running one is given, it leaves first. Nearly every slice ends this way, so `leave` is inlined.
        """
        weight, weighted, waiting = self.weight, self.weighted, self._waiting
        if current is not None:
            own = current.weight
            before = current.virtual_time
            ran_ns, per_ns = now - self._since_ns, current.per_ns
            # `charged`, inlined; nearly every weight divides the scale, and dividing takes Python longest
            current.virtual_time = after = before + ran_ns * per_ns if per_ns else before - (-ran_ns * SCALE // own)
            self.weight = others = weight - own
            self.weighted = weighted = weighted - own * before
            time = weighted // others if others else after
            common, least = self.common, current.ahead_min
            # rarely negative, what is divided: dividing a negative number takes Python twice the time
            if common is None:
                ahead = (after - time) * others // weight
            else:
                ahead = after + self.base - common.origin - common.speed * now  # `common.at`, inlined
            current.ahead = ahead if ahead > least else least  # noqa: FURB136  # max() costs a call at every stop
            if not others:
                self._clock, self.current = after, None
                return None
        elif weight:
            time = weighted // weight
        else:
            return None
        eligible, schedulables = self._eligible, self._schedulables
        last: int | None = None  # became eligible: it is pushed and the first one popped in one operation
        while waiting:
            schedulable = schedulables[(entry := waiting[0]) & INDEX_MASK]
            if schedulable.entry is not entry:
                heappop(waiting)
                self._drop_stale()
                continue
            if schedulable.virtual_time > time:
                break
            heappop(waiting)
            if last is not None:
                heappush(eligible, last)
            schedulable.entry = last = entry + schedulable.entry_span
        while last is not None or eligible:
            entry = heappop(eligible) if last is None else heappushpop(eligible, last)
            last = None
            schedulable = schedulables[entry & INDEX_MASK]
            if schedulable.entry is not entry:
                self._drop_stale()
            elif schedulable.virtual_time <= time or not self._is_eevdf:
                schedulable.entry = NOT_QUEUED
                schedulable.last_start_ns = self._since_ns = now
                self.current = schedulable
                return schedulable
            else:
                self._demote(schedulable)
        self.current = None
        return None

    def _add_stale(self) -> None:
        """Count an entry that became stale; drop a few where there is one for every two live ones."""
        self._stale += 1
        if 2 * self._stale > len(self):
            for _look in range(min(SWEPT_MAX, self.entries)):
                self._sweep()

    def _sweep(self) -> None:
        """Look at the next entry of the heaps, and drop it if it is stale."""
        place = self._swept if self._swept < self.entries else 0
        heap, at = self._eligible, place
        if at >= len(heap):
            heap, at = self._waiting, at - len(heap)
        if self._live(heap[at]) is None:
            _remove_at(heap, at)
            self._drop_stale()
            self._swept = place  # another entry is there now
        else:
            self._swept = place + 1

    def _drop_stale(self) -> None:
        """Count a stale entry that was dropped."""
        self._stale -= 1
        self._counters.looks += 1

    def _demote(self, schedulable: Schedulable) -> None:
        """Return one that is not eligible to the waiting heap: it entered early, or the time dropped below its own."""
        schedulable.entry = entry = schedulable.virtual_time << TAIL_BITS | schedulable.tail
        heappush(self._waiting, entry)
        self._counters.looks += 1

    def leave(self, now: int) -> None:
        """The running schedulable is no longer runnable; it keeps its lag."""
        schedulable = self.current
        assert schedulable is not None  # noqa: S101  # only a running one can stop
        self._charge_current(schedulable, now)
        self.current = None
        self._take_out(schedulable, self.weighted // self.weight, now)

    def _take_out(self, schedulable: Schedulable, time: int, now: int) -> None:
        """Take a schedulable out of the sums; it keeps its debt, and its credit up to a limit."""
        compared_to = time if self.common is None else self.common.at(now) - self.base
        schedulable.ahead = max(schedulable.virtual_time - compared_to, schedulable.ahead_min)
        self.weight -= schedulable.weight
        self.weighted -= schedulable.weight * schedulable.virtual_time
        if not self.weight:
            self._clock = time

    def charge_outside(self, schedulable: Schedulable, ran_ns: int) -> None:
        """Charge one that is not in this queue for what it ran elsewhere: it enters with that much more debt."""
        debt = span(ran_ns, schedulable.weight)
        schedulable.virtual_time += debt
        # counted from the queue's own time, `ahead` is the distance to a time that its entry moves towards it
        joined = self.weight + schedulable.weight
        schedulable.ahead += debt * self.weight // joined if self.common is None else debt

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
        self._add_stale()
        schedulable.last_start_ns = self._since_ns = now
        self.current = schedulable

    # --- removing, changing, moving -------------------------------------------------------------

    def enter_at(self, schedulable: Schedulable, virtual_time: int) -> None:
        """A schedulable became runnable with a given virtual time."""
        self._join(schedulable, virtual_time)
        self._push(schedulable)

    def enter_moved(self, schedulable: Schedulable, common_time: int, limit_ns: int, now: int) -> None:
        """Add a schedulable that waited in another queue, at its common time; its lag here is at most `limit_ns`."""
        if not self.weight:
            self.base = common_time - self._clock
            self.enter_at(schedulable, self._clock)
            return
        self.enter_at(schedulable, self.limited(common_time - self.base, schedulable.weight, limit_ns, now))

    def limited(self, virtual_time: int, weight: int, limit_ns: int, now: int) -> int:
        """Return the virtual time at which a newcomer of some weight has at most this lag, credit or debt."""
        time = self.time(now).whole
        furthest = limit_ns * SCALE * (self.weight + weight) // (self.weight * weight)
        return min(max(virtual_time, time - furthest), time + furthest)

    def common_time(self, now: int) -> int:
        """The queue's time as a time that can be compared between the cores."""
        return self.time(now).whole + self.base

    def rebase(self, common_time: int) -> None:
        """An empty queue starts at this common time."""
        self.base = common_time - self._clock

    def advance(self, schedulable: Schedulable, by: int) -> None:
        """Charge a schedulable for what it used on other cores."""
        schedulable.virtual_time += by
        self.weighted += by * schedulable.weight

    def take_another(self, now: int) -> Schedulable | None:
        """Take another one in place of the one just taken, which waits again; None if no other is eligible."""
        held = self.current
        assert held is not None  # noqa: S101  # it was taken
        self.current = None
        other = self.take(now)
        if other is None:
            self.current = held
        else:
            self._push(held)
        return other

    def return_taken(self) -> None:
        """Put the schedulable that was just taken back: it was charged meanwhile and another one may be first."""
        schedulable = self.current
        assert schedulable is not None  # noqa: S101  # it was taken
        self.current = None
        self._push(schedulable)

    def remove(self, schedulable: Schedulable, now: int) -> None:
        """A waiting schedulable is no longer runnable. Its heap entry becomes stale."""
        schedulable.entry = NOT_QUEUED
        self._take_out(schedulable, self.time(now).whole, now)
        self._add_stale()

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
            self._push(schedulable)
            self._add_stale()

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

    # --- reading ---------------------------------------------------------------------------------

    def queued(self) -> Iterator[Schedulable]:
        """Every waiting schedulable, in no particular order."""
        for heap in (self._eligible, self._waiting):
            for entry in heap:
                if (schedulable := self._live(entry)) is not None:
                    yield schedulable

    def most_overdue(self, looks_max: int) -> list[Schedulable]:
        """Schedulables near the front, most overdue first, found with at most `looks_max` looks."""
        found: list[Schedulable] = []
        for heap in (self._eligible, self._waiting):
            while heap and self._live(heap[0]) is None:  # left by those that were moved away
                heappop(heap)
                self._drop_stale()
            live = (self._live(entry) for entry in sorted(heap[: looks_max - len(found)]))
            found += [one for one in live if one is not None]
        return found

    def drain(self, looks_max: int) -> Iterator[Schedulable]:
        """Yield waiting schedulables, at most `looks_max`; those that are still here afterwards stay in their places.

        It looks at the end of the heaps: a heap without its last entry is a heap, so nothing else is touched.
        """
        seen: list[tuple[list[int], int, Schedulable]] = []
        try:
            for heap in (self._eligible, self._waiting):
                while heap and looks_max:
                    looks_max -= 1
                    entry = heap.pop()
                    self._stale -= 1  # if the caller removes it, that is counted: its entry is gone already
                    one = self._live(entry)
                    if one is not None:
                        seen.append((heap, entry, one))
                        yield one
        finally:
            for heap, entry, one in seen:
                if one.entry is entry:
                    heappush(heap, entry)
                    self._stale += 1

    def only(self) -> Schedulable | None:
        """The only waiting schedulable while none runs; None if there are several."""
        if len(self) != 1 or self.current is not None:
            return None
        return next(iter(self.most_overdue(1)), None)

    def _live(self, entry: int) -> Schedulable | None:
        """The schedulable of an entry that is not stale."""
        schedulable = self._schedulables[entry & INDEX_MASK]
        return schedulable if schedulable.entry is entry else None

    # --- the heaps -------------------------------------------------------------------------------

    def _push(self, schedulable: Schedulable) -> None:
        """Add a schedulable, whose weight is already in the sums, to the right heap."""
        virtual_time, tail = schedulable.virtual_time, schedulable.tail
        if self._rule == "round_robin":
            entry, heap = schedulable.last_start_ns + 1 << TAIL_BITS | tail, self._eligible
        elif self._rule == "wfq" or virtual_time * self.weight <= self.weighted:
            entry, heap = (virtual_time << TAIL_BITS | tail) + schedulable.entry_span, self._eligible
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

    def charge_current(self, now: int) -> None:
        """Charge the running schedulable in the middle of its slice."""
        if self.current is not None:
            self._charge_current(self.current, now)

    def _charge_current(self, schedulable: Schedulable, now: int) -> None:
        step = span(now - self._since_ns, schedulable.weight)
        schedulable.virtual_time += step
        self.weighted += step * schedulable.weight
        self._since_ns = now


def _remove_at(heap: list[int], place: int) -> None:
    """Remove the entry at a place of a heap."""
    entry = heap.pop()
    if place == len(heap):
        return
    while place and entry < heap[above := (place - 1) // 2]:
        heap[place] = heap[above]
        place = above
    while (below := 2 * place + 1) < len(heap):
        if below + 1 < len(heap) and heap[below + 1] < heap[below]:
            below += 1
        if entry < heap[below]:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = entry
