"""One level of virtual time, kept up to date: siblings that compete, and who of them goes next.

`virtual_time.choose` says who goes next by looking at everybody; a `Level` knows it at any moment, and every
change costs O(log n) amortised.

**Two heaps**: the *eligible* by virtual deadline, and the *waiting* (those ahead of
the level's time V) by virtual time. Serving somebody moves V forward and nearly always moves the served
one from the first heap to the second, while another one's time comes and it moves from the second to the
first. So a turn is one replacement at the top of each heap: that is the fast half of `Level.charge`.

    A and B of weight 1, each turn asks for 6 and costs 6      eligible: A due 6, B due 6    waiting: –
    A runs: it stands at 6, V = 3                              eligible: B due 6             waiting: A at 6
    B runs: it stands at 6, V = 6                              eligible: A due 12, B due 12  waiting: –

**What is in the heaps.** One whole number per sibling: from the high bits to the low ones its time, the
place of its key among all keys, and its slot in a list. Comparing two such numbers orders by time, then by
key, at less than half of what comparing two tuples costs, and the slot leads back to the sibling.

**Doubt.** An entry is left where it is when its sibling leaves or changes (it is then dead: not the
sibling's present entry), and when somebody leaves V may fall, so that one who stands among the eligible
no longer belongs there. Each such step is counted. While there is doubt the top of a heap is looked at
twice before it is believed; after as many doubtful steps as there are siblings both heaps are built
afresh. So dead entries never outnumber living ones, and the cost of building is spread over the steps. (One
worst case remains: a sibling with most of the weight that keeps coming and going swings V, and with it moves
everybody it swings over.)

**Memory.** A sibling that leaves is forgotten unless it owes; a debt is forgotten when V has passed it.
eevdf never forgets debt before that, however old; fair_share forgets after its window. Where most run once
and never return V hardly moves and debts pile up, so a level keeps at most `DEBTS_MAX` of them: beyond that
the smallest is forgiven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from rota.model.snapshot import Account, Key
from rota.policy.virtual_time import SCALE, LevelTime, charged, joined, key_order, owes, reweighed, span

__all__ = ["DEBTS_MAX", "Level", "check_weight"]

SLOT_BITS = 32  # the low bits of a heap entry: where its sibling is in the list
SLOT_MASK = (1 << SLOT_BITS) - 1
KEY_BITS_MIN = 32  # the bits above them: enough for every whole number below 2^30
DEBTS_MAX = 100_000  # remembered on one level
LENGTH_BITS = 32  # of a text key's bits, those for its length
DEAD = -1  # the entry of one who left; a living entry ends in a slot, so it is never this


class Level:
    """Siblings that compete, and who of them goes next."""

    __slots__ = (
        "_bits",
        "_clock",
        "_debts",
        "_doubts",
        "_eligibility",
        "_eligible",
        "_free",
        "_next",
        "_siblings",
        "_slots",
        "_waiting",
        "_weight",
        "_weighted",
    )

    def __init__(self, *, eligibility: bool = True, debts_max: int = DEBTS_MAX, clock: int = 0) -> None:
        self._eligibility = eligibility
        self._siblings: dict[Key, _Sibling] = {}
        self._slots: list[_Sibling] = []
        self._free: list[int] = []  # slots of those who left
        self._weight = 0  # Σ weight
        self._weighted = 0  # Σ weight × virtual time
        self._clock = clock  # V at the moment the last one left
        self._eligible: list[int] = []  # by deadline
        self._waiting: list[int] = []  # by virtual time
        self._next: _Sibling | None = None
        self._doubts = 0
        self._debts = _Debts(debts_max)
        self._bits = KEY_BITS_MIN + SLOT_BITS  # below the time in an entry

    def twin(self) -> Level:
        """The same level once more: what happens to the one from here on does not happen to the other."""
        made = Level(eligibility=self._eligibility, clock=self._clock)
        made._slots = [sibling.twin() for sibling in self._slots]
        made._siblings = {key: made._slots[sibling.slot] for key, sibling in self._siblings.items()}
        made._free = self._free.copy()
        made._weight, made._weighted = self._weight, self._weighted
        made._eligible, made._waiting = self._eligible.copy(), self._waiting.copy()
        made._next = None if self._next is None else made._slots[self._next.slot]
        made._doubts, made._bits = self._doubts, self._bits
        made._debts = self._debts.twin()
        return made

    def __len__(self) -> int:
        return len(self._siblings)

    def __contains__(self, key: Key) -> bool:
        return key in self._siblings

    @property
    def time(self) -> LevelTime:
        """The level's time V."""
        return LevelTime(self._weighted, self._weight) if self._siblings else LevelTime.at(self._clock)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is ready and nobody owes."""
        return not self._siblings and not self._debts.by_key

    @property
    def entries(self) -> int:
        """How many heap entries are kept, living and dead; at most twice as many as siblings."""
        return len(self._eligible) + len(self._waiting)

    def pick(self) -> Key:
        """Who goes next. Nothing changes until it is charged."""
        if self._next is None:
            raise IndexError("nobody is ready")
        return self._next.key

    def stands_at(self, key: Key) -> int:
        """The virtual time of one who is ready."""
        return self._siblings[key].at >> self._bits

    def weight_of(self, key: Key) -> int:
        """The weight of one who is ready."""
        return self._siblings[key].weight

    def charge(self, key: Key, cost: int) -> None:
        """A sibling used so much; a negative cost corrects an earlier charge."""
        sibling = self._next
        if self._doubts or cost < 0 or sibling is None or sibling.key != key:
            self._charge_slowly(self._siblings[key], cost)
            return
        # The fast half: the one that goes next was served, so its entry is on top of the eligible heap,
        # V does not fall, and every entry of both heaps is where it belongs.
        weight, bits = sibling.weight, self._bits
        eligible, waiting, slots = self._eligible, self._waiting, self._slots
        step = -(-cost * SCALE // weight)  # `span`, written out: this line runs at every turn
        sibling.at = sibling.entry = entry = sibling.at + (step << bits)
        self._weighted = weighted = self._weighted + step * weight
        line = (weighted // self._weight + 1) << bits if self._eligibility else entry + 1  # see `_line`
        if entry < line:
            sibling.entry = entry = entry + sibling.span
            heapreplace(eligible, entry)
        elif waiting and waiting[0] < line:
            # it trades places with the one who has waited longest
            entry = heapreplace(waiting, entry)
            other = slots[entry & SLOT_MASK]
            other.entry = entry = entry + other.span
            heapreplace(eligible, entry)
        else:
            heappush(waiting, entry)
            heappop(eligible)
        while waiting and waiting[0] < line:
            entry = heappop(waiting)
            other = slots[entry & SLOT_MASK]
            other.entry = entry = entry + other.span
            heappush(eligible, entry)
        self._next = slots[eligible[0] & SLOT_MASK]
        if self._debts.heap:
            self._debts.forgive(self.time)

    def add(self, key: Key, account: Account, *, as_told: bool = False) -> None:
        """A sibling became ready: it starts at the later of its own and the level's time.

        With `as_told` it starts at its own, even when that is credit.
        """
        if key in self._siblings:
            raise ValueError(f"sibling {key!r} is there already")
        check_weight(account.weight)
        before = self.time.whole
        own = self._own_time(key, account)
        self._debts.take(key)
        self._insert(key, account, own if as_told else joined(own, self.time))
        self._doubts += self.time.whole < before  # only a start as told, with credit, makes V fall
        self._settle()

    def remove(self, key: Key) -> None:
        """A sibling is no longer ready. What it owes those who remain is remembered."""
        sibling = self._take_out(key)
        virtual_time = sibling.at >> self._bits
        if not self._siblings:
            self._clock = virtual_time  # which is V: there was nobody else
        elif owes(virtual_time, self.time):
            self._debts.remember(key, _Debt(virtual_time, sibling.weight))
        self._doubts += 1
        self._settle()

    def retire(self, key: Key, cost: int) -> None:
        """A sibling used so much and is no longer ready: a charge and a removal at the cost of one."""
        sibling = self._siblings[key]
        step = span(cost, sibling.weight)
        sibling.at += step << self._bits
        self._weighted += step * sibling.weight
        self.remove(key)

    def add_all(self, siblings: Iterable[tuple[Key, Account]], *, as_told: bool = False) -> None:
        """Many became ready at the same moment: each starts at the later of its own and that moment's time.

        With `as_told` each starts at its own, even when that is credit.
        """
        time = self.time
        for key, account in siblings:
            if key in self._siblings:
                raise ValueError(f"sibling {key!r} is there already")
            check_weight(account.weight)
            own = self._own_time(key, account)
            self._debts.take(key)
            self._insert(key, account, own if as_told else joined(own, time))
        self._rebuild(self._line())
        self._settle()

    def reweigh(self, key: Key, weight: int) -> None:
        """Give a sibling another weight, keeping its lag."""
        sibling = self._siblings[key]
        virtual_time = reweighed(sibling.at >> self._bits, sibling.weight, weight, self.time)
        self.tell(key, Account(weight=weight, virtual_time=virtual_time, request=sibling.request))

    def tell(self, key: Key, account: Account) -> None:
        """Say where a ready sibling stands from now on: weight, virtual time and request."""
        check_weight(account.weight)
        self._take_out(key)
        self._insert(key, account, account.virtual_time)
        self._doubts += 1
        self._settle()

    def charge_departed(self, key: Key, account: Account, cost: int) -> None:
        """Somebody who left cost more, or less, than it was charged: its debt changes, credit is dropped."""
        start = joined(self._own_time(key, account), self.time)
        self._debts.take(key)
        virtual_time = charged(start, cost, account.weight)
        if owes(virtual_time, self.time):
            self._debts.remember(key, _Debt(virtual_time, account.weight))

    def standings(self) -> Iterator[tuple[Key, Account]]:
        """Where everybody stands who is ready."""
        for key, sibling in self._siblings.items():
            yield key, Account(sibling.weight, sibling.at >> self._bits, sibling.request)

    def debts(self) -> Iterator[tuple[Key, Account]]:
        """Where everybody stands who left owing."""
        for key, debt in self._debts.by_key.items():
            yield key, Account(debt.weight, debt.virtual_time)

    def _own_time(self, key: Key, account: Account) -> int:
        """Where a sibling that is not ready stands: what it was told, or what it owes if that is later."""
        debt = self._debts.by_key.get(key)
        if debt is None:
            return account.virtual_time
        return max(account.virtual_time, reweighed(debt.virtual_time, debt.weight, account.weight, self.time))

    def _insert(self, key: Key, account: Account, virtual_time: int) -> None:
        if (needed := _key_bits(key) + SLOT_BITS) > self._bits:
            self._widen(needed)
        slot = self._free.pop() if self._free else len(self._slots)
        sibling = _Sibling(key, account.weight, account.request, slot)
        sibling.stand(virtual_time, self._bits)
        self._siblings[key] = sibling
        self._slots[slot : slot + 1] = [sibling]  # in place of one who left, or at the end
        self._weight += account.weight
        self._weighted += account.weight * virtual_time
        heappush(self._waiting, sibling.entry)  # `_settle` moves it on if it is eligible

    def _take_out(self, key: Key) -> _Sibling:
        sibling = self._siblings.pop(key)
        sibling.entry = DEAD
        self._free.append(sibling.slot)
        self._weight -= sibling.weight
        self._weighted -= sibling.weight * (sibling.at >> self._bits)
        return sibling

    def _charge_slowly(self, sibling: _Sibling, cost: int) -> None:
        """Charge anybody, by any amount, also while there is doubt."""
        step = span(cost, sibling.weight)
        self._weighted += step * sibling.weight
        sibling.at = sibling.entry = sibling.at + (step << self._bits)
        heappush(self._waiting, sibling.entry)  # the old entry is dead now
        self._doubts += 1
        self._settle()

    def _line(self) -> int:
        """Whoever stands below this stands at V or before it."""
        return (self.time.whole + 1) << self._bits

    def _settle(self) -> None:
        """After a change: move whoever became eligible or ineligible, and find who goes next."""
        line = self._line()
        if self._doubts > len(self._siblings):
            self._rebuild(line)
        while self._waiting and (self._waiting[0] < line or not self._eligibility):
            sibling = self._living(heappop(self._waiting))
            if sibling is not None:
                sibling.entry = sibling.at + sibling.span
                heappush(self._eligible, sibling.entry)
        self._next = self._find_next(line)
        self._debts.forgive(self.time)

    def _find_next(self, line: int) -> _Sibling | None:
        """The top of the eligible heap, once the dead and those who lost eligibility are out of the way."""
        while self._eligible:
            sibling = self._living(self._eligible[0])
            if sibling is not None and (sibling.at < line or not self._eligibility):
                return sibling
            heappop(self._eligible)
            if sibling is not None:
                sibling.entry = sibling.at
                heappush(self._waiting, sibling.entry)
        return None

    def _living(self, entry: int) -> _Sibling | None:
        """Whose present entry this is, or None when it is dead."""
        sibling = self._slots[entry & SLOT_MASK]
        return sibling if sibling.entry is entry else None

    def _rebuild(self, line: int) -> None:
        """Build both heaps afresh, without dead entries."""
        self._eligible.clear()
        self._waiting.clear()
        for sibling in self._siblings.values():
            is_eligible = sibling.at < line or not self._eligibility
            sibling.entry = sibling.at + sibling.span if is_eligible else sibling.at
            (self._eligible if is_eligible else self._waiting).append(sibling.entry)
        heapify(self._eligible)
        heapify(self._waiting)
        self._doubts = 0

    def _widen(self, bits: int) -> None:
        """Make room for longer keys in the entries."""
        for sibling in self._siblings.values():
            sibling.stand(sibling.at >> self._bits, bits)
        self._bits = bits
        self._rebuild(self._line())


class _Sibling:
    """One who is ready. `at` and `span` are shifted like heap entries, so that a turn is an addition."""

    __slots__ = ("at", "entry", "key", "request", "slot", "span", "weight")

    def __init__(self, key: Key, weight: int, request: int, slot: int) -> None:
        self.key = key
        self.weight = weight
        self.request = request
        self.slot = slot

    def twin(self) -> _Sibling:
        """The same once more, with the very same entry: a living entry is known by its identity."""
        made = _Sibling(self.key, self.weight, self.request, self.slot)
        made.at, made.span, made.entry = self.at, self.span, self.entry
        return made

    def stand(self, virtual_time: int, bits: int) -> None:
        """Take a place in virtual time, waiting."""
        place = _place(self.key, bits - SLOT_BITS) << SLOT_BITS | self.slot
        self.at = virtual_time << bits | place
        self.span = span(self.request, self.weight) << bits  # from there to the deadline
        self.entry = self.at  # in the waiting heap `at`, among the eligible `at + span`


def check_weight(weight: int) -> None:
    """Refuse a weight that is no share at all."""
    if weight < 1:
        raise ValueError(f"a weight is a whole number of thousandths, at least 1, not {weight}")


def _key_bits(key: Key) -> int:
    """How many bits a key needs in an entry: a power of two, so that growing is rare."""
    needed = 1
    if isinstance(key, int):
        needed = key.bit_length() + 2
    elif key is not None:
        needed = 8 * len(_bytes(key)) + LENGTH_BITS + 8
    return max(KEY_BITS_MIN, 1 << (needed - 1).bit_length())


def _place(key: Key, bits: int) -> int:
    """The place of a key among all keys, as a number of so many bits: None, whole numbers, text."""
    quarter = 1 << (bits - 2)
    if key is None:
        return 0
    if isinstance(key, int):
        return quarter + key
    # Padded UTF-8 sorts as text does; the length tells apart keys that differ in trailing zeros only.
    text = _bytes(key)
    padded = text.ljust((bits - LENGTH_BITS) // 8 - 1, b"\0")
    return 2 * quarter + (int.from_bytes(padded, "big") << LENGTH_BITS | len(text))


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


class _Debt(NamedTuple):
    virtual_time: int
    weight: int  # when it left: what it owes in usage depends on it


class _Debts:
    """What those who left owe, until the level's time has passed it."""

    __slots__ = ("_most", "by_key", "heap")

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_key: dict[Key, _Debt] = {}
        self.heap: list[tuple[int, tuple[int, int, str], Key]] = []  # by virtual time; lazily cleaned

    def twin(self) -> _Debts:
        """The same debts once more."""
        made = _Debts(self._most)
        made.by_key, made.heap = self.by_key.copy(), self.heap.copy()
        return made

    def remember(self, key: Key, debt: _Debt) -> None:
        """It left owing. Of too many debts the smallest is forgiven."""
        self.by_key[key] = debt
        heappush(self.heap, (debt.virtual_time, key_order(key), key))
        while len(self.by_key) > self._most:
            self._forgive_least()

    def take(self, key: Key) -> None:
        """It is back, or its debt is counted anew."""
        if self.by_key.pop(key, None) is not None and len(self.heap) > 2 * len(self.by_key):
            self.heap[:] = [(debt.virtual_time, key_order(key), key) for key, debt in self.by_key.items()]
            heapify(self.heap)

    def forgive(self, time: LevelTime) -> None:
        """Forget every debt that the level's time has reached."""
        while self.heap and not owes(self.heap[0][0], time):
            self._forgive_least()

    def _forgive_least(self) -> None:
        virtual_time, _, key = heappop(self.heap)
        debt = self.by_key.get(key)
        if debt is not None and debt.virtual_time == virtual_time:
            del self.by_key[key]
