"""The policy `fair_share`: guarantee, then deficit of the group, then strict order inside the group.

Unlike `Scheduler` in this package it counts its own picks: live runs and picks use up the guarantee and add to usage,
so that one pass over many slots already spreads them.

It forgets after its window; eevdf does not forget debt. Inside a group it is strict, so a low-priority entry of a busy
group may starve. No group starves; `passes_max` bounds its wait.

**The bound.** Take a group g that is not picked, in a closed world: all candidates stay ready, each pass fills the
slots, each pick is charged its cost, every entry fits every slot and costs at least 1. Let u be the usage of a group, f
its target (weight divided by total weight), U the usage of all groups.

1.  A group h is picked before g only if its deficit is no larger: u_h − u_g ≤ (f_h − f_g) · U. So after any of its
    picks u_h is at most u_g + d_h · U + c_h, where d_h is how much larger its target is (0 if it is not) and c_h the
    cost of its most expensive entry. A pick by guarantee may ignore deficits, but comes once, first, and adds at most
    c_h to the usage of h. Either way h has gained at most  max(0, u_g − u_h) + c_h + d_h · U  since the start.
2.  Summed over all others, with K = Σ (max(0, u_g − u_h) + c_h) and r = Σ d_h:  U ≤ U_start + K + r · U.
    Targets add up to 1 and g has one, so r < 1, and U ≤ (U_start + K) / (1 − r).
    (If no group used anything, the deficits are taken with U = 1; after one pick U is at least that.)
3.  Each pick adds at least the lowest cost, which bounds the number of picks before g's own.
4.  If g has the guarantee, only other groups with the guarantee go first, each once.
5.  An unserved g competes for every slot of a pass, so picks divided by picks per pass are passes.

    A and B have weight 1 and entries of cost 10; A used 100, B nothing. One slot. How long can A wait?
    K = 100 + 10 and r = 0, so U grows from 100 to at most 210: 11 picks, and A runs in pass 12 at the latest.
    In fact B is picked until it has used 100 too, 10 times, and once more if it wins the tie.

If entries need kinds of slots, there is no such bound. A heavy group that only a scarce slot can serve stays behind its
target while others run elsewhere, and so always comes first on that slot.
"""

from __future__ import annotations

from fractions import Fraction

from rota.errors import PolicyInvalid
from rota.model.checks import Checks
from rota.model.snapshot import Decision, Decisions, Key, Snapshot
from rota.policy.contract import Bound, FreeSlots, Policy
from rota.policy.fair_share.share_ranking import GroupStanding, ShareRanking

__all__ = ["fair_share", "passes_max"]


def fair_share(*, min_guarantee: bool = True) -> Policy:
    """The group furthest behind its weight; with the guarantee, first the groups that had no run at all."""
    if type(min_guarantee) is not bool:
        raise Checks("fair_share", PolicyInvalid).refuse("min_guarantee", f"must be a bool, not {min_guarantee!r}")

    def rank(snapshot: Snapshot) -> Decisions:
        return _rank(snapshot, min_guarantee)

    def passes(snapshot: Snapshot, group: Key) -> int:
        return passes_max(snapshot, group, min_guarantee=min_guarantee)

    return Policy(
        name="fair_share",
        rank=rank,
        sentence=(
            "The group furthest behind its weight in the window, strict inside a group. Forgets after the window; "
            "a low-priority entry of a busy group may starve."
        ),
        bound=Bound(
            "group",
            passes,
            "No group waits longer than others need to catch up with its usage, if every entry fits every slot and "
            "costs at least 1.",
        ),
        window="share",
        guarantee=min_guarantee,
    )


def _rank(snapshot: Snapshot, min_guarantee: bool) -> Decisions:
    """Pick until the slots are full or no candidate fits."""
    ranking = ShareRanking.of(snapshot, min_guarantee=min_guarantee)
    slots = FreeSlots(snapshot.slots)
    decisions: list[Decision] = []
    while slots:
        group = ranking.next(slots.kinds())
        if group is None:
            break
        reason = ranking.reason(group)
        candidate = ranking.pick(group)
        slot_id = slots.take(candidate)
        assert slot_id is not None, "the ranking offers only what fits"  # noqa: S101  # a programmer's error
        decisions.append(Decision(candidate.id, slot_id, reason))
    return tuple(decisions)


# --- the bound on waiting ------------------------------------------------------------------------


def passes_max(snapshot: Snapshot, group: Key, *, min_guarantee: bool) -> int:
    """Return the pass in which a group with candidates is served at the latest."""
    ranking = ShareRanking.of(snapshot, min_guarantee=min_guarantee)
    waiting = ranking.groups[group]
    others = [each for each in ranking.groups.values() if each is not waiting]
    picks_before = _picks_before(waiting, others, ranking)
    picks_per_pass = min(len(snapshot.slots), len(snapshot.candidates))
    return picks_before // max(1, picks_per_pass) + 1


def _picks_before(waiting: GroupStanding, others: list[GroupStanding], ranking: ShareRanking) -> int:
    """Return how many picks of others can come first."""
    if not others:
        return 0
    if waiting.guaranteed:
        return sum(other.guaranteed for other in others)
    gained = sum(max(0, waiting.usage - other.usage) + _cost_max(other) for other in others)
    heavier = sum(max(0, other.weight - waiting.weight) for other in others)
    start = ranking.usage_charged
    end_max = Fraction((start + gained) * ranking.weight_total, ranking.weight_total - heavier)
    cost_min = max(1, min(candidate.cost for other in others for candidate in other.candidates))
    return int((end_max - start) // cost_min)


def _cost_max(group: GroupStanding) -> int:
    return max(candidate.cost for candidate in group.candidates)
