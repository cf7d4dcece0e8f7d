"""One level of virtual time, kept up to date: siblings that compete, and which of them is next.

`virtual_time.choose` finds the next sibling by looking at all of them. A `Level` always knows it, and every change
costs O(log n) amortised.

**Two heaps**: the *eligible* siblings by virtual deadline, and the *waiting* ones (those ahead of the level time V) by
virtual time. A run moves V forward and nearly always moves the served sibling from the first heap to the second, while
another sibling becomes eligible and moves from the second to the first. So a run is one replacement at the top of each
heap: that is the fast path of `Level.charge`.

    A and B of weight 1, each run requests and costs 6         eligible: A due 6, B due 6    waiting: –
    A runs: its virtual time is 6, V = 3                       eligible: B due 6             waiting: A at 6
    B runs: its virtual time is 6, V = 6                       eligible: A due 12, B due 12  waiting: –

**Heap entries.** An entry is one integer. From the high bits to the low ones it holds the sibling's time, the position
of its key among all keys, and its slot in a list. Comparing two such integers orders by time, then by key, at less than
half the cost of comparing two tuples, and the slot leads back to the sibling.

**Stale entries.** When a sibling leaves or changes, its old entry stays in the heap and is dead: it is not the
sibling's current entry. When a sibling leaves, V may also decrease, so that another one in the eligible heap is no
longer eligible. Each such step is counted. While the count is not zero, the top of a heap is checked before it is used;
after as many such steps as there are siblings, both heaps are rebuilt. So dead entries never outnumber live ones, and
the cost of rebuilding is spread over the steps. (One worst case remains: a sibling with most of the weight that keeps
joining and leaving moves V back and forth, and with it every sibling in between.)

**Memory.** A sibling that leaves is forgotten unless it owes; a debt is forgotten when V has passed it. eevdf keeps
debt until then, however old; fair_share forgets after its window. If most siblings run once and never return, V hardly
moves and debts accumulate, so a level keeps at most `DEBTS_MAX` of them and forgives the smallest beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from rota.model.snapshot import Account, Key
from rota.policy.virtual_time import SCALE, LevelTime, charged, joined, key_order, owes, reweighed, span

__all__ = ["DEBTS_MAX", "Level", "check_weight"]

SLOT_BITS = 32  # the low bits of a heap entry: the index of its sibling in the list
SLOT_MASK = (1 << SLOT_BITS) - 1
KEY_BITS_MIN = 32  # the bits above them: enough for every integer below 2^30
DEBTS_MAX = 100_000  # kept on one level
LENGTH_BITS = 32  # of a text key's bits, those for its length
DEAD = -1  # the entry of a sibling that left; a live entry ends in a slot, so it is never -1


class Level:
    """Siblings that compete, and which of them is next."""

    __slots__ = (
        "_bits",
        "_clock",
        "_debts",
        "_eligibility",
        "_eligible",
        "_free",
        "_next",
        "_siblings",
        "_slots",
        "_stale_steps",
        "_waiting",
        "_weight",
        "_weighted",
    )

    def __init__(self, *, eligibility: bool = True, debts_max: int = DEBTS_MAX, clock: int = 0) -> None:
        self._eligibility = eligibility
        self._siblings: dict[Key, _Sibling] = {}
        self._slots: list[_Sibling] = []
        self._free: list[int] = []  # slots of siblings that left
        self._weight = 0  # Σ weight
        self._weighted = 0  # Σ weight × virtual time
        self._clock = clock  # V when the last sibling left
        self._eligible: list[int] = []  # by deadline
        self._waiting: list[int] = []  # by virtual time
        self._next: _Sibling | None = None
        self._stale_steps = 0
        self._debts = _Debts(debts_max)
        self._bits = KEY_BITS_MIN + SLOT_BITS  # below the time in an entry

    def copy(self) -> Level:
        """Return an independent copy of the level."""
        made = Level(eligibility=self._eligibility, clock=self._clock)
        made._slots = [sibling.copy() for sibling in self._slots]
        made._siblings = {key: made._slots[sibling.slot] for key, sibling in self._siblings.items()}
        made._free = self._free.copy()
        made._weight, made._weighted = self._weight, self._weighted
        made._eligible, made._waiting = self._eligible.copy(), self._waiting.copy()
        made._next = None if self._next is None else made._slots[self._next.slot]
        made._stale_steps, made._bits = self._stale_steps, self._bits
        made._debts = self._debts.copy()
        return made

    def __len__(self) -> int:
        return len(self._siblings)

    def __contains__(self, key: Key) -> bool:
        return key in self._siblings

    @property
    def time(self) -> LevelTime:
        """The level time V."""
        return LevelTime(self._weighted, self._weight) if self._siblings else LevelTime.at(self._clock)

    @property
    def is_idle(self) -> bool:
        """Whether no sibling is ready and none owes."""
        return not self._siblings and not self._debts.by_key

    @property
    def entries(self) -> int:
        """The number of heap entries, live and dead; at most twice the number of siblings."""
        return len(self._eligible) + len(self._waiting)

    def pick(self) -> Key:
        """Return the next sibling's key. Nothing changes until it is charged."""
        if self._next is None:
            raise IndexError("no sibling is ready")
        return self._next.key

    def upcoming(self, count: int) -> list[Key]:
        """Return up to `count` siblings that are likely to be picked next, for reading ahead; `pick` decides."""
        if count == 1 and self._next is not None:
            return [self._next.key]
        found: list[Key] = []
        for heap in (self._eligible, self._waiting):
            for entry in _smallest(heap, count - len(found)):
                sibling = self._live(entry)
                if sibling is not None:
                    found.append(sibling.key)
        return found

    def virtual_time_of(self, key: Key) -> int:
        """Return the virtual time of a ready sibling."""
        return self._siblings[key].at >> self._bits

    def weight_of(self, key: Key) -> int:
        """Return the weight of a ready sibling."""
        return self._siblings[key].weight

    def charge(self, key: Key, cost: int) -> None:
        """Charge a ready sibling; a negative cost corrects an earlier charge."""
        sibling = self._next
        if self._stale_steps or cost < 0 or sibling is None or sibling.key != key:
            self._charge_slowly(self._siblings[key], cost)
            return
        # The fast path: the next sibling was served, so its entry is on top of the eligible heap, V does not decrease,
        # and every entry is in the right heap.
        weight, bits = sibling.weight, self._bits
        eligible, waiting, slots = self._eligible, self._waiting, self._slots
        step = -(-cost * SCALE // weight)  # `span`, inlined: this line runs for every pick
        sibling.at = sibling.entry = entry = sibling.at + (step << bits)
        self._weighted = weighted = self._weighted + step * weight
        # see `_eligible_below`
        below = (weighted // self._weight + 1) << bits if self._eligibility else entry + 1
        if entry < below:
            sibling.entry = entry = entry + sibling.span
            heapreplace(eligible, entry)
        elif waiting and waiting[0] < below:
            # it trades places with the first waiting sibling
            entry = heapreplace(waiting, entry)
            other = slots[entry & SLOT_MASK]
            other.entry = entry = entry + other.span
            heapreplace(eligible, entry)
        else:
            heappush(waiting, entry)
            heappop(eligible)
        while waiting and waiting[0] < below:
            entry = heappop(waiting)
            other = slots[entry & SLOT_MASK]
            other.entry = entry = entry + other.span
            heappush(eligible, entry)
        self._next = slots[eligible[0] & SLOT_MASK]
        if self._debts.heap:
            self._debts.forgive(self.time)

    def add(self, key: Key, account: Account, *, keep_credit: bool = False) -> None:
        """Add a sibling that became ready: it starts at the later of its own virtual time and the level time.

        With `keep_credit` it starts at its own virtual time, even if that is earlier.
        """
        if key in self._siblings:
            raise ValueError(f"sibling {key!r} was added already")
        check_weight(account.weight)
        before = self.time.whole
        own = self._own_time(key, account)
        self._debts.remove(key)
        self._insert(key, account, own if keep_credit else joined(own, self.time))
        self._stale_steps += self.time.whole < before  # only a start with credit makes V decrease
        self._settle()

    def remove(self, key: Key) -> None:
        """Remove a sibling that is no longer ready. A debt to the remaining siblings is kept."""
        sibling = self._take_out(key)
        virtual_time = sibling.at >> self._bits
        if not self._siblings:
            self._clock = virtual_time  # which is V: there was no other sibling
        elif owes(virtual_time, self.time):
            self._debts.add(key, _Debt(virtual_time, sibling.weight))
        self._stale_steps += 1
        self._settle()

    def take(self, key: Key) -> Account:
        """Take a sibling out that stays ready elsewhere, and return its account; no debt is kept here."""
        sibling = self._take_out(key)
        account = Account(sibling.weight, sibling.at >> self._bits, sibling.request)
        if not self._siblings:
            self._clock = account.virtual_time
        self._stale_steps += 1
        self._settle()
        return account

    def charge_and_remove(self, key: Key, cost: int) -> None:
        """Charge a sibling that is no longer ready and remove it, at the cost of one step."""
        sibling = self._siblings[key]
        step = span(cost, sibling.weight)
        sibling.at += step << self._bits
        self._weighted += step * sibling.weight
        self.remove(key)

    def add_all(self, siblings: Iterable[tuple[Key, Account]], *, keep_credit: bool = False) -> None:
        """Add siblings that became ready at the same moment, each as `add` does with the level time of that moment."""
        time = self.time
        for key, account in siblings:
            if key in self._siblings:
                raise ValueError(f"sibling {key!r} was added already")
            check_weight(account.weight)
            own = self._own_time(key, account)
            self._debts.remove(key)
            self._insert(key, account, own if keep_credit else joined(own, time))
        self._rebuild(self._eligible_below())
        self._settle()

    def reweigh(self, key: Key, weight: int) -> None:
        """Change the weight of a sibling, keeping its lag."""
        sibling = self._siblings[key]
        virtual_time = reweighed(sibling.at >> self._bits, sibling.weight, weight, self.time)
        self.set_account(key, Account(weight=weight, virtual_time=virtual_time, request=sibling.request))

    def set_account(self, key: Key, account: Account) -> None:
        """Set the weight, virtual time and request of a ready sibling."""
        check_weight(account.weight)
        self._take_out(key)
        self._insert(key, account, account.virtual_time)
        self._stale_steps += 1
        self._settle()

    def charge_departed(self, key: Key, account: Account, cost: int) -> None:
        """Correct the charge of a sibling that left: its debt changes, credit is dropped."""
        start = joined(self._own_time(key, account), self.time)
        self._debts.remove(key)
        virtual_time = charged(start, cost, account.weight)
        if owes(virtual_time, self.time):
            self._debts.add(key, _Debt(virtual_time, account.weight))

    def accounts(self) -> Iterator[tuple[Key, Account]]:
        """Yield the accounts of the ready siblings."""
        for key, sibling in self._siblings.items():
            yield key, Account(sibling.weight, sibling.at >> self._bits, sibling.request)

    def debts(self) -> Iterator[tuple[Key, Account]]:
        """Yield the accounts of the siblings that left with a debt."""
        for key, debt in self._debts.by_key.items():
            yield key, Account(debt.weight, debt.virtual_time)

    def _own_time(self, key: Key, account: Account) -> int:
        """Return the virtual time of a sibling that is not ready: of its account, or of its debt if that is later."""
        debt = self._debts.by_key.get(key)
        if debt is None:
            return account.virtual_time
        return max(account.virtual_time, reweighed(debt.virtual_time, debt.weight, account.weight, self.time))

    def _insert(self, key: Key, account: Account, virtual_time: int) -> None:
        if (needed := _key_bits(key) + SLOT_BITS) > self._bits:
            self._widen(needed)
        slot = self._free.pop() if self._free else len(self._slots)
        sibling = _Sibling(key, account.weight, account.request, slot)
        sibling.set_time(virtual_time, self._bits)
        self._siblings[key] = sibling
        self._slots[slot : slot + 1] = [sibling]  # in place of a sibling that left, or at the end
        self._weight += account.weight
        self._weighted += account.weight * virtual_time
        heappush(self._waiting, sibling.entry)  # `_settle` moves it if it is eligible

    def _take_out(self, key: Key) -> _Sibling:
        sibling = self._siblings.pop(key)
        sibling.entry = DEAD
        self._free.append(sibling.slot)
        self._weight -= sibling.weight
        self._weighted -= sibling.weight * (sibling.at >> self._bits)
        return sibling

    def _charge_slowly(self, sibling: _Sibling, cost: int) -> None:
        """Charge any sibling, by any amount, also while entries are stale."""
        step = span(cost, sibling.weight)
        self._weighted += step * sibling.weight
        sibling.at = sibling.entry = sibling.at + (step << self._bits)
        heappush(self._waiting, sibling.entry)  # the old entry is dead now
        self._stale_steps += 1
        self._settle()

    def _eligible_below(self) -> int:
        """Return the bound below which an entry's virtual time is not later than V."""
        return (self.time.whole + 1) << self._bits

    def _settle(self) -> None:
        """After a change, move the siblings that became eligible or ineligible, and find the next one."""
        below = self._eligible_below()
        if self._stale_steps > len(self._siblings):
            self._rebuild(below)
        while self._waiting and (self._waiting[0] < below or not self._eligibility):
            sibling = self._live(heappop(self._waiting))
            if sibling is not None:
                sibling.entry = sibling.at + sibling.span
                heappush(self._eligible, sibling.entry)
        self._next = self._find_next(below)
        self._debts.forgive(self.time)

    def _find_next(self, below: int) -> _Sibling | None:
        """Return the top of the eligible heap, after removing dead entries and siblings that lost eligibility."""
        while self._eligible:
            sibling = self._live(self._eligible[0])
            if sibling is not None and (sibling.at < below or not self._eligibility):
                return sibling
            heappop(self._eligible)
            if sibling is not None:
                sibling.entry = sibling.at
                heappush(self._waiting, sibling.entry)
        return None

    def _live(self, entry: int) -> _Sibling | None:
        """Return the sibling whose current entry this is; None if it is dead."""
        sibling = self._slots[entry & SLOT_MASK]
        return sibling if sibling.entry is entry else None

    def _rebuild(self, below: int) -> None:
        """Rebuild both heaps without dead entries."""
        self._eligible.clear()
        self._waiting.clear()
        for sibling in self._siblings.values():
            is_eligible = sibling.at < below or not self._eligibility
            sibling.entry = sibling.at + sibling.span if is_eligible else sibling.at
            (self._eligible if is_eligible else self._waiting).append(sibling.entry)
        heapify(self._eligible)
        heapify(self._waiting)
        self._stale_steps = 0

    def _widen(self, bits: int) -> None:
        """Use more bits for keys in the entries."""
        for sibling in self._siblings.values():
            sibling.set_time(sibling.at >> self._bits, bits)
        self._bits = bits
        self._rebuild(self._eligible_below())


class _Sibling:
    """A ready sibling. `at` and `span` are shifted like heap entries, so that a charge is an addition."""

    __slots__ = ("at", "entry", "key", "request", "slot", "span", "weight")

    def __init__(self, key: Key, weight: int, request: int, slot: int) -> None:
        self.key = key
        self.weight = weight
        self.request = request
        self.slot = slot

    def copy(self) -> _Sibling:
        """Return a copy that shares the entry object: a live entry is recognized by identity."""
        made = _Sibling(self.key, self.weight, self.request, self.slot)
        made.at, made.span, made.entry = self.at, self.span, self.entry
        return made

    def set_time(self, virtual_time: int, bits: int) -> None:
        """Set the virtual time, with an entry for the waiting heap."""
        low = _key_position(self.key, bits - SLOT_BITS) << SLOT_BITS | self.slot
        self.at = virtual_time << bits | low
        self.span = span(self.request, self.weight) << bits  # from there to the deadline
        self.entry = self.at  # `at` in the waiting heap, `at + span` in the eligible heap


def _smallest(heap: list[int], count: int) -> list[int]:
    """Return the first entries of a heap without changing it: the next one is a child of those found before."""
    found: list[int] = []
    reachable = [(heap[0], 0)] if heap else []
    while reachable and len(found) < count:
        entry, at = heappop(reachable)
        found.append(entry)
        for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
            heappush(reachable, (heap[child], child))
    return found


def check_weight(weight: int) -> None:
    """Refuse a weight below 1."""
    if weight < 1:
        raise ValueError(f"a weight is a whole number of thousandths, 1 or more, not {weight}")


def _key_bits(key: Key) -> int:
    """Return the number of bits a key needs in an entry: a power of two, so that growing is rare."""
    needed = 1
    if isinstance(key, int):
        needed = key.bit_length() + 2
    elif key is not None:
        needed = 8 * len(_bytes(key)) + LENGTH_BITS + 8
    return max(KEY_BITS_MIN, 1 << (needed - 1).bit_length())


def _key_position(key: Key, bits: int) -> int:
    """Return the position of a key among all keys in this many bits: None, then integers, then text."""
    quarter = 1 << (bits - 2)
    if key is None:
        return 0
    if isinstance(key, int):
        return quarter + key
    # Padded UTF-8 sorts as text does; the length distinguishes keys that differ only in trailing zeros.
    text = _bytes(key)
    padded = text.ljust((bits - LENGTH_BITS) // 8 - 1, b"\0")
    return 2 * quarter + (int.from_bytes(padded, "big") << LENGTH_BITS | len(text))


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


class _Debt(NamedTuple):
    virtual_time: int
    weight: int  # when it left: the debt in usage depends on it


class _Debts:
    """The debts of siblings that left, until the level time has passed them."""

    __slots__ = ("_debts_max", "by_key", "heap")

    def __init__(self, debts_max: int) -> None:
        self._debts_max = debts_max
        self.by_key: dict[Key, _Debt] = {}
        self.heap: list[tuple[int, tuple[int, int, str], Key]] = []  # by virtual time; cleaned lazily

    def copy(self) -> _Debts:
        """Return an independent copy."""
        made = _Debts(self._debts_max)
        made.by_key, made.heap = self.by_key.copy(), self.heap.copy()
        return made

    def add(self, key: Key, debt: _Debt) -> None:
        """Keep the debt of a sibling that left. Beyond the limit the smallest debt is forgiven."""
        self.by_key[key] = debt
        heappush(self.heap, (debt.virtual_time, key_order(key), key))
        while len(self.by_key) > self._debts_max:
            self._forgive_least()

    def remove(self, key: Key) -> None:
        """Remove a debt: the sibling is back, or its debt is computed again."""
        if self.by_key.pop(key, None) is not None and len(self.heap) > 2 * len(self.by_key):
            self.heap[:] = [(debt.virtual_time, key_order(key), key) for key, debt in self.by_key.items()]
            heapify(self.heap)

    def forgive(self, time: LevelTime) -> None:
        """Forget every debt that the level time has reached."""
        while self.heap and not owes(self.heap[0][0], time):
            self._forgive_least()

    def _forgive_least(self) -> None:
        virtual_time, _, key = heappop(self.heap)
        debt = self.by_key.get(key)
        if debt is not None and debt.virtual_time == virtual_time:
            del self.by_key[key]
