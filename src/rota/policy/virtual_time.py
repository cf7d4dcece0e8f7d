"""Virtual time: who is owed a turn, and who is due first. The plain form of *eevdf* and *wfq*.

Siblings compete on one *level*: groups at the root, owners inside a group. Each has a weight (its
share) and a virtual time: what it has used, divided by its weight. Using 100 at weight one moves a
sibling as far as using 300 at weight three, so equal virtual times mean exactly fair shares.

    level's time     V = Σ weight × virtual time / Σ weight, over the siblings that are ready
    lag              weight × (V − virtual time): what it is owed, in units of usage; below 0 it owes
    eligible         lag ≥ 0: it has had no more than its share
    virtual deadline virtual time + request / weight: when a turn of the size it asks for is due

*eevdf* picks, among the eligible, the least virtual deadline. *wfq* leaves out the eligibility test:
it looks at deadlines only, so a heavy sibling may take its whole share in one burst. Ties go to the
lower key. A pick is made at the root, then inside the group; the owner's first candidate in strict
order runs, and its cost is charged to the owner and to the group.

Two agents, A of weight 3 and B of weight 1, each turn asks for and costs 6 (virtual time in units
of usage at weight one; A moves by 2 a turn and B by 6):

    turn   A at   B at   V      lag A   lag B   eligible   deadlines A, B   runs
    1      0      0      0      0       0       A, B       2, 6             A
    2      2      0      1.5    −1.5    +1.5    B          4, 6             B
    3      2      6      3      +3      −3      A          4, 12            A
    4      4      6      4.5    +1.5    −1.5    A          6, 12            A
    5      6      6      6      0       0       A, B       8, 12            A, and so on: A three times, B once

In turn 2 wfq would run A again (4 < 6), and a third time; over a round the shares are the same, but
its lag swings further. When no turn costs more than it asked for, eevdf keeps every lag between minus
the sibling's own request and the largest request of all.

**Debt is kept, credit is not.** A sibling that becomes ready starts at the later of its own and the
level's time: sleeping saves nothing up. One that leaves while it owes is met again with its debt; one
that owes nothing may be forgotten. eevdf never forgets debt, however old; fair_share forgets after its
window. A new weight keeps the lag.

Where it does badly: it knows no deadlines of the outside world; with costs far above requests the lag
grows with the cost; and it shares turns, not slots, so with slots of several kinds a sibling that needs
a rare one can be crowded out of it while its group is paid in others.

Everything is a whole number. One unit of usage at weight one is `SCALE / 1000` = 25,200 units of
virtual time, which every whole weight from 1 to 10 divides exactly; any other charge is rounded up by
less than one unit. A row of 64 bits then holds 3.6 × 10^14 units of usage at weight one: a billion
tokens a day for a thousand years. (Cores count nanoseconds, in memory, where numbers have no end.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from rota.model.reasons import Because
from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Snapshot
from rota.policy.contract import Places
from rota.policy.ranking import strict_key

__all__ = [
    "SCALE",
    "LevelTime",
    "Sibling",
    "charged",
    "choose",
    "is_eligible",
    "joined",
    "key_order",
    "lag",
    "level_time",
    "owes",
    "passes_max",
    "rank",
    "reweighed",
    "span",
]

SCALE = 25_200_000  # virtual time of one unit of usage at weight one thousandth; 2,520 = lcm(1 … 10)

_Pair: TypeAlias = tuple[Key, Key]  # group, owner: an owner that works for two groups stands in each


# --- the arithmetic ------------------------------------------------------------------------------


def span(usage: int, weight: int) -> int:
    """How much virtual time so much usage is at this weight, rounded up."""
    return -(-usage * SCALE // weight)


def charged(virtual_time: int, cost: int, weight: int) -> int:
    """Where a sibling stands after using so much; a negative cost corrects an earlier charge."""
    return virtual_time + span(cost, weight)


class LevelTime(NamedTuple):
    """A level's time V as a fraction, because rounding it would move the line between owed and owing."""

    weighted: int  # Σ weight × virtual time
    weight: int  # Σ weight

    @property
    def whole(self) -> int:
        """V rounded down. A whole virtual time is ≤ V exactly when it is ≤ this."""
        return self.weighted // self.weight

    @classmethod
    def at(cls, clock: int) -> LevelTime:
        """The time of a level where nobody is ready: V at the moment the last one left."""
        return cls(clock, 1)


def is_eligible(virtual_time: int, time: LevelTime) -> bool:
    """Whether it has had no more than its share."""
    return virtual_time * time.weight <= time.weighted


def lag(virtual_time: int, weight: int, time: LevelTime) -> int:
    """What it is owed, in units of usage; rounded down, so that its sign is exact."""
    return weight * (time.weighted - virtual_time * time.weight) // (time.weight * SCALE)


# --- joining, leaving, changing weight: for whoever owns the accounts ------------------------------


def joined(virtual_time: int, time: LevelTime) -> int:
    """Where a sibling starts when it becomes ready: debt is kept, credit is not.

    V is rounded down, so a newcomer is eligible at once and makes nobody else ineligible.
    """
    return max(virtual_time, time.whole)


def owes(virtual_time: int, time: LevelTime) -> bool:
    """Whether a sibling that left must be remembered, seen from those who remain."""
    return not is_eligible(virtual_time, time)


def reweighed(virtual_time: int, old: int, new: int, time: LevelTime) -> int:
    """Where a sibling stands when its weight changes: V + (virtual time − V) × old / new.

    This keeps its lag in usage and leaves V where it is. Rounded up like every charge, so that changing
    back and forth gains nothing.
    """
    ahead = (virtual_time * time.weight - time.weighted) * old
    return -(-(time.weighted * new + ahead) // (time.weight * new))


# --- choosing ------------------------------------------------------------------------------------


class Sibling(NamedTuple):
    """Somebody who competes on a level."""

    key: Key
    weight: int
    virtual_time: int
    request: int

    @property
    def deadline(self) -> int:
        """When a turn of the size it asks for is due, in virtual time."""
        return charged(self.virtual_time, self.request, self.weight)

    def after(self, cost: int) -> Sibling:
        """The same sibling once it has used so much."""
        return self._replace(virtual_time=charged(self.virtual_time, cost, self.weight))


def key_order(key: Key) -> tuple[int, int, str]:
    """How keys sort: None, then whole numbers, then text."""
    if key is None:
        return 0, 0, ""
    return (1, key, "") if isinstance(key, int) else (2, 0, key)


def level_time(siblings: Iterable[Sibling]) -> LevelTime:
    """The time of a level, from those who are ready; there must be at least one."""
    weight = weighted = 0
    for sibling in siblings:
        weight += sibling.weight
        weighted += sibling.weight * sibling.virtual_time
    return LevelTime(weighted, weight)


def choose(siblings: list[Sibling], time: LevelTime, *, eligibility: bool = True) -> Sibling:
    """The least virtual deadline, among the eligible unless told otherwise; ties go to the lower key.

    Somebody is always eligible: the least virtual time is never above the average.
    """
    allowed = [one for one in siblings if is_eligible(one.virtual_time, time)] if eligibility else siblings
    return min(allowed, key=lambda one: (one.deadline, key_order(one.key)))


# --- the policy ----------------------------------------------------------------------------------


def rank(snapshot: Snapshot, *, eligibility: bool = True) -> Decisions:
    """The picks of one pass: best group, best owner in it, its first candidate, until nothing more fits."""
    places = Places(snapshot.slots)
    lines = _lines(snapshot.candidates)
    groups = {group: _sibling(group, snapshot.groups.get(group)) for group, _ in lines}
    owners = {pair: _sibling(pair[1], snapshot.owners.get(pair[1])) for pair in lines}
    decisions: list[Decision] = []
    while heads := _heads(lines, places):
        group_rivals = [groups[key] for key in {group for group, _ in heads}]
        group_time = level_time(group_rivals)
        group = choose(group_rivals, group_time, eligibility=eligibility)
        owner_rivals = [owners[pair] for pair in heads if pair[0] == group.key]
        owner_time = level_time(owner_rivals)
        owner = choose(owner_rivals, owner_time, eligibility=eligibility)

        pair = group.key, owner.key
        candidate = heads[pair]
        slot_id = places.take(candidate)
        assert slot_id is not None  # noqa: S101  # a head fits a free slot
        words = f"{_words('group', group, group_time)}; in it {_words('owner', owner, owner_time)}"
        decisions.append(Decision(candidate.id, slot_id, Because("eevdf" if eligibility else "wfq", words)))
        groups[group.key] = group.after(candidate.cost)
        owners[pair] = owner.after(candidate.cost)
        lines[pair].remove(candidate)
    return tuple(decisions)


def _lines(candidates: Iterable[Candidate]) -> dict[_Pair, list[Candidate]]:
    """Each owner's candidates in strict order."""
    lines: dict[_Pair, list[Candidate]] = {}
    for candidate in sorted(candidates, key=strict_key):
        lines.setdefault((candidate.group, candidate.owner), []).append(candidate)
    return lines


def _heads(lines: dict[_Pair, list[Candidate]], places: Places) -> dict[_Pair, Candidate]:
    """Each owner's first candidate that fits a free slot; an owner without one does not take part."""
    if not places:
        return {}
    kinds = places.kinds()
    fitting = ((pair, next(_fitting(line, kinds), None)) for pair, line in lines.items())
    return {pair: candidate for pair, candidate in fitting if candidate is not None}


def _fitting(line: list[Candidate], kinds: frozenset[str]) -> Iterator[Candidate]:
    return (candidate for candidate in line if candidate.kind is None or candidate.kind in kinds)


def _sibling(key: Key, account: Account | None) -> Sibling:
    account = account or Account()
    return Sibling(key, account.weight, account.virtual_time, account.request)


def _words(level: str, sibling: Sibling, time: LevelTime) -> str:
    owed = lag(sibling.virtual_time, sibling.weight, time)
    return f"{level} {sibling.key} (lag {owed:,}, due at {sibling.deadline:,})"


# --- the promise about waiting ---------------------------------------------------------------------


def passes_max(snapshot: Snapshot, owner: Key) -> int:
    """How many passes an owner waits at most, in a closed world where every candidate fits every slot.

    Whoever is picked while a sibling waits stands, at that moment, no later than the deadline of the one
    who waits: either both were eligible and its deadline came first, or the other was not eligible, and
    then it stands before V and the other behind it. That deadline stands still while its owner waits, and
    each pick moves the picked one on, so it can be passed over only so often. In a pass of many slots
    siblings whose candidates are all out drop out of the comparison; that only makes picks fewer.
    A turn must cost something: one that is free moves nobody.
    """
    groups = {candidate.group for candidate in snapshot.candidates if candidate.owner == owner}
    picks = min((_picks_ahead(snapshot, group, owner) for group in groups), default=0)
    return -(-picks // max(1, len(snapshot.slots))) + 1


def _picks_ahead(snapshot: Snapshot, group: Key, owner: Key) -> int:
    """How many picks there are at most before an owner's: in its group, and of other groups meanwhile."""
    least_by_owner: dict[Key, int] = {}
    least_by_group: dict[Key, int] = {}
    longest = 1
    for candidate in snapshot.candidates:
        cost = max(1, candidate.cost)
        least_by_group[candidate.group] = min(cost, least_by_group.get(candidate.group, cost))
        if candidate.group == group:
            least_by_owner[candidate.owner] = min(cost, least_by_owner.get(candidate.owner, cost))
            longest = max(longest, cost)
    due = _sibling(owner, snapshot.owners.get(owner)).deadline
    inside = _turns_up_to(due, snapshot.owners, least_by_owner, owner)
    # while that many of its own turns go to others, the group's deadline moves on
    own = _sibling(group, snapshot.groups.get(group))
    last_due = own.deadline + inside * span(longest, own.weight)
    return inside + _turns_up_to(last_due, snapshot.groups, least_by_group, group)


def _turns_up_to(due: int, accounts: Mapping[Key, Account], least_cost: dict[Key, int], but: Key) -> int:
    """How many turns all siblings but one can begin while they stand no later than `due`."""
    turns = 0
    for key, cost in least_cost.items():
        sibling = _sibling(key, accounts.get(key))
        if key != but and sibling.virtual_time <= due:
            turns += (due - sibling.virtual_time) // span(cost, sibling.weight) + 1
    return turns
