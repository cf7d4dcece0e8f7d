"""Virtual time: usage divided by weight. The plain form of the policies *eevdf* and *wfq*.

Siblings compete on one *level*: groups at the root, owners inside a group. Each sibling has a weight (its share) and a
virtual time: its usage divided by its weight. Using 100 at weight one moves a sibling as far as using 300 at weight
three, so equal virtual times mean exactly fair shares.

    level time       V = Σ weight × virtual time / Σ weight, over the siblings that are ready
    lag              weight × (V − virtual time): what it is owed, in units of usage; negative if it owes
    eligible         lag ≥ 0: it has had no more than its share
    virtual deadline virtual time + request / weight: when a run of the requested size is due

*eevdf* (earliest eligible virtual deadline first) picks the least virtual deadline among the eligible siblings. *wfq*
(weighted fair queueing) omits the eligibility test, so a heavy sibling may take its whole share in one burst. Ties go
to the lower key. A pick is made at the root, then inside the group; the owner's first candidate in strict order runs,
and its cost is charged to the owner and to the group.

Two agents, A with weight 3 and B with weight 1; each run requests and costs 6 (virtual time in units of usage at weight
one; a run moves A by 2 and B by 6):

    run    A at   B at   V      lag A   lag B   eligible   deadlines A, B   runs
    1      0      0      0      0       0       A, B       2, 6             A
    2      2      0      1.5    −1.5    +1.5    B          4, 6             B
    3      2      6      3      +3      −3      A          4, 12            A
    4      4      6      4.5    +1.5    −1.5    A          6, 12            A
    5      6      6      6      0       0       A, B       8, 12            A, and so on: A three times, B once

In run 2 wfq would run A again (4 < 6), and a third time. Over a round the shares are the same, but the lag varies more.
If no run costs more than it requested, eevdf keeps every lag between minus the sibling's own request and the largest
request of all.

**Debt is kept, credit is not.** A sibling that becomes ready starts at the later of its own virtual time and the level
time: it gains nothing by sleeping. A sibling that leaves while it owes keeps its debt; one that owes nothing may be
forgotten. eevdf does not forget debt, however old; fair_share forgets after its window. A new weight keeps the lag.

**Priority first.** With `priority_first` only those owners of a group compete whose first candidate has the highest
priority in the group; these equals share by weight. Groups share as before, so a priority has an effect inside its own
group and takes nothing from the others. An owner of low priority may starve while its group has work of a higher one:
the bound on waiting then holds for groups. An owner whose next candidate has another priority takes its debt along.

Weak points: it knows no real deadlines; if costs are far above requests, the lag grows with the cost; and it shares
runs, not slots, so with slots of several kinds a sibling that needs a rare kind can be crowded out of it while its
group is served in other slots.

All numbers are integers. One unit of usage at weight one is `SCALE / 1000` = 25,200 units of virtual time, which every
whole weight from 1 to 10 divides exactly; any other charge is rounded up by less than one unit. A 64-bit column holds
3.6 × 10^14 units of usage at weight one: a billion tokens a day for a thousand years. (Cores count nanoseconds in
memory, where integers are unbounded.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Snapshot
from rota.policy.contract import FreeSlots
from rota.policy.ranking import strict_key

__all__ = [
    "SCALE",
    "LevelTime",
    "Sibling",
    "changed_band",
    "charged",
    "choose",
    "is_eligible",
    "joined",
    "key_order",
    "lag",
    "level_time",
    "owes",
    "passes_max",
    "passes_max_of_group",
    "rank",
    "reweighed",
    "span",
]

SCALE = 25_200_000  # virtual time of one unit of usage at weight one thousandth; 2,520 = lcm(1 … 10)

_Pair: TypeAlias = tuple[Key, Key]  # group, owner: an owner in two groups is a sibling in each


# --- the arithmetic ------------------------------------------------------------------------------


def span(usage: int, weight: int) -> int:
    """Return the virtual time of some usage at a weight, rounded up."""
    return -(-usage * SCALE // weight)


def charged(virtual_time: int, cost: int, weight: int) -> int:
    """Return the virtual time after a charge; a negative cost corrects an earlier charge."""
    return virtual_time + span(cost, weight)


class LevelTime(NamedTuple):
    """The level time V as a fraction: rounding it would move the boundary of eligibility."""

    weighted: int  # Σ weight × virtual time
    weight: int  # Σ weight

    @property
    def whole(self) -> int:
        """V rounded down. An integer virtual time is ≤ V exactly if it is ≤ this."""
        return self.weighted // self.weight

    @classmethod
    def at(cls, clock: int) -> LevelTime:
        """Return the time of a level without ready siblings: V when the last one left."""
        return cls(clock, 1)


def is_eligible(virtual_time: int, time: LevelTime) -> bool:
    """Whether a sibling has had no more than its share."""
    return virtual_time * time.weight <= time.weighted


def lag(virtual_time: int, weight: int, time: LevelTime) -> int:
    """Return what a sibling is owed, in units of usage; rounded down, so that the sign is exact."""
    return weight * (time.weighted - virtual_time * time.weight) // (time.weight * SCALE)


# --- joining, leaving, changing weight: for the owner of the accounts ------------------------------


def joined(virtual_time: int, time: LevelTime) -> int:
    """Return the virtual time of a sibling that becomes ready: debt is kept, credit is not.

    V is rounded down, so the new sibling is eligible immediately and makes no other ineligible.
    """
    return max(virtual_time, time.whole)


def owes(virtual_time: int, time: LevelTime) -> bool:
    """Whether a sibling that leaves owes something to the others, so that its debt must be kept."""
    return not is_eligible(virtual_time, time)


def changed_band(virtual_time: int, old: LevelTime, new: LevelTime) -> int:
    """Return the virtual time of a sibling that goes from one band of priority to another: debt is kept."""
    return new.whole + max(0, virtual_time - old.whole)


def reweighed(virtual_time: int, old: int, new: int, time: LevelTime) -> int:
    """Return the virtual time after a change of weight: V + (virtual time − V) × old / new.

    This keeps the lag in usage and does not move V. It is rounded up like every charge, so that repeated changes gain
    nothing.
    """
    ahead = (virtual_time * time.weight - time.weighted) * old
    return -(-(time.weighted * new + ahead) // (time.weight * new))


# --- choosing ------------------------------------------------------------------------------------


class Sibling(NamedTuple):
    """A competitor on a level."""

    key: Key
    weight: int
    virtual_time: int
    request: int

    @property
    def deadline(self) -> int:
        """The virtual time at which a run of the requested size is due."""
        return charged(self.virtual_time, self.request, self.weight)

    def after(self, cost: int) -> Sibling:
        """Return the sibling after a charge."""
        return self._replace(virtual_time=charged(self.virtual_time, cost, self.weight))


def key_order(key: Key) -> tuple[int, int, str]:
    """Return the sort key of a key: None, then integers, then text."""
    if key is None:
        return 0, 0, ""
    return (1, key, "") if isinstance(key, int) else (2, 0, key)


def level_time(siblings: Iterable[Sibling]) -> LevelTime:
    """Return the time of a level from its ready siblings; there must be at least one."""
    weight = weighted = 0
    for sibling in siblings:
        weight += sibling.weight
        weighted += sibling.weight * sibling.virtual_time
    return LevelTime(weighted, weight)


def choose(siblings: list[Sibling], time: LevelTime, *, eligibility: bool = True) -> Sibling:
    """Return the sibling with the least virtual deadline, by default among the eligible; ties go to the lower key.

    At least one sibling is eligible: the least virtual time is never above the average.
    """
    allowed = [one for one in siblings if is_eligible(one.virtual_time, time)] if eligibility else siblings
    return min(allowed, key=lambda one: (one.deadline, key_order(one.key)))


# --- the policy ----------------------------------------------------------------------------------


def rank(snapshot: Snapshot, *, eligibility: bool = True, priority_first: bool = False) -> Decisions:
    """Return the picks of one pass: best group, best owner in it, its first candidate, until nothing more fits."""
    slots = FreeSlots(snapshot.slots)
    queues = _by_owner(snapshot.candidates)
    groups = {group: _sibling(group, snapshot.groups.get(group)) for group, _ in queues}
    owners = {pair: _sibling(pair[1], snapshot.owners.get(pair[1])) for pair in queues}
    decisions: list[Decision] = []
    while firsts := _first_fitting(queues, slots):
        ready_groups = [groups[key] for key in {group for group, _ in firsts}]
        group_time = level_time(ready_groups)
        group = choose(ready_groups, group_time, eligibility=eligibility)
        ready = {pair: first for pair, first in firsts.items() if pair[0] == group.key}
        ready_owners = [owners[pair] for pair in (_highest(ready) if priority_first else ready)]
        owner_time = level_time(ready_owners)
        owner = choose(ready_owners, owner_time, eligibility=eligibility)

        pair = group.key, owner.key
        candidate = firsts[pair]
        slot_id = slots.take(candidate)
        assert slot_id is not None  # noqa: S101  # it fits a free slot
        words = f"{_words('group', group, group_time)}; in it {_words('owner', owner, owner_time)}"
        decisions.append(Decision(candidate.id, slot_id, PickReason("eevdf" if eligibility else "wfq", words)))
        groups[group.key] = group.after(candidate.cost)
        owners[pair] = owner.after(candidate.cost)
        queues[pair].remove(candidate)
        if priority_first:
            _change_band(pair, candidate, ready, owners, queues)
    return tuple(decisions)


def _highest(ready: Mapping[_Pair, Candidate]) -> list[_Pair]:
    """Return the owners whose first candidate has the highest priority."""
    top = max(first.priority for first in ready.values())
    return [pair for pair, first in ready.items() if first.priority == top]


def _change_band(
    pair: _Pair,
    served: Candidate,
    ready: Mapping[_Pair, Candidate],
    owners: dict[_Pair, Sibling],
    queues: Mapping[_Pair, list[Candidate]],
) -> None:
    """Move an owner that was served to the band of its next candidate."""
    if not queues[pair] or queues[pair][0].priority == served.priority:
        return
    old = [owners[each] for each, first in ready.items() if first.priority == served.priority]
    new = [owners[each] for each, first in ready.items() if first.priority == queues[pair][0].priority]
    if new:
        moved = changed_band(owners[pair].virtual_time, level_time(old), level_time(new))
        owners[pair] = owners[pair]._replace(virtual_time=moved)


def _by_owner(candidates: Iterable[Candidate]) -> dict[_Pair, list[Candidate]]:
    """Group the candidates by group and owner, in strict order."""
    queues: dict[_Pair, list[Candidate]] = {}
    for candidate in sorted(candidates, key=strict_key):
        queues.setdefault((candidate.group, candidate.owner), []).append(candidate)
    return queues


def _first_fitting(queues: dict[_Pair, list[Candidate]], slots: FreeSlots) -> dict[_Pair, Candidate]:
    """Return each owner's first candidate that fits a free slot; an owner without one does not compete."""
    if not slots:
        return {}
    kinds = slots.kinds()
    fitting = ((pair, next(_fitting(queue, kinds), None)) for pair, queue in queues.items())
    return {pair: candidate for pair, candidate in fitting if candidate is not None}


def _fitting(queue: list[Candidate], kinds: frozenset[str]) -> Iterator[Candidate]:
    return (candidate for candidate in queue if candidate.kind is None or candidate.kind in kinds)


def _sibling(key: Key, account: Account | None) -> Sibling:
    account = account or Account()
    return Sibling(key, account.weight, account.virtual_time, account.request)


def _words(level: str, sibling: Sibling, time: LevelTime) -> str:
    owed = lag(sibling.virtual_time, sibling.weight, time)
    return f"{level} {sibling.key} (lag {owed:,}, due at {sibling.deadline:,})"


# --- the bound on waiting --------------------------------------------------------------------------


def passes_max(snapshot: Snapshot, owner: Key) -> int:
    """Return how many passes an owner waits at most, in a closed world where every candidate fits every slot.

    Let W be the waiting sibling and S one that is picked before it. At that moment the virtual time of S is not later
    than the deadline of W: either both are eligible and the deadline of S comes first, or W is not eligible, and then S
    is at or before V and W after it. The deadline of W does not move while W waits, and each pick moves S forward, so
    the number of picks before W is bounded. In a pass of many slots, siblings whose candidates are used up leave the
    comparison; that only reduces the number of picks. Every run must cost something: a free run moves no sibling.
    """
    groups = {candidate.group for candidate in snapshot.candidates if candidate.owner == owner}
    picks = min((_picks_ahead(snapshot, group, owner) for group in groups), default=0)
    return -(-picks // max(1, len(snapshot.slots))) + 1


def passes_max_of_group(snapshot: Snapshot, group: Key) -> int:
    """Return how many passes a group waits at most: the same bound, for the level of groups alone."""
    least: dict[Key, int] = {}
    for candidate in snapshot.candidates:
        cost = max(1, candidate.cost)
        least[candidate.group] = min(cost, least.get(candidate.group, cost))
    picks = _runs_up_to(_sibling(group, snapshot.groups.get(group)).deadline, snapshot.groups, least, group)
    return -(-picks // max(1, len(snapshot.slots))) + 1


def _picks_ahead(snapshot: Snapshot, group: Key, owner: Key) -> int:
    """Return the maximum number of picks before an owner's: in its group, and of other groups meanwhile."""
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
    inside = _runs_up_to(due, snapshot.owners, least_by_owner, owner)
    # while that many runs of its group go to other owners, the group's deadline moves forward
    own = _sibling(group, snapshot.groups.get(group))
    last_due = own.deadline + inside * span(longest, own.weight)
    return inside + _runs_up_to(last_due, snapshot.groups, least_by_group, group)


def _runs_up_to(due: int, accounts: Mapping[Key, Account], least_cost: dict[Key, int], excluded: Key) -> int:
    """Return how many runs all siblings but one can start while their virtual time is not later than `due`."""
    runs = 0
    for key, cost in least_cost.items():
        sibling = _sibling(key, accounts.get(key))
        if key != excluded and sibling.virtual_time <= due:
            runs += (due - sibling.virtual_time) // span(cost, sibling.weight) + 1
    return runs
