"""How long a group can wait: a number, and why it holds.

Take a group g that is not picked, in a closed world: everybody stays ready, each pass fills the slots, each
pick is charged its cost, every entry fits every slot and costs at least 1. Write u for what a group used,
f for its target (weight over total weight), U for what everybody used.

1.  A group h is picked before g only if its deficit is no larger: u_h − u_g ≤ (f_h − f_g) · U. So after any of
    its picks u_h is at most u_g + d_h · U + c_h, where d_h is how much larger its target is (0 if it is not)
    and c_h its dearest entry. A pick by guarantee may ignore deficits, but comes once, first, and adds at most
    c_h to what h had. Either way h has gained at most  max(0, u_g − u_h) + c_h + d_h · U  since the start.
2.  Summed over all others, with K = Σ (max(0, u_g − u_h) + c_h) and r = Σ d_h:  U ≤ U_start + K + r · U.
    Targets add up to 1 and g has one, so r < 1, and U ≤ (U_start + K) / (1 − r).
    (Where nobody used anything the deficits are taken with U = 1; after one pick U is at least that.)
3.  Each pick adds at least the cheapest cost, which bounds the picks before g's own.
4.  If g has the guarantee, only others that have it too go first, each once.
5.  An unserved g competes for every slot of a pass, so picks divided by picks per pass are passes.

    A and B have weight 1 and entries of cost 10; A used 100, B nothing. One slot. How long can A wait?
    K = 100 + 10 and r = 0, so U grows from 100 to at most 210: 11 picks, and A runs in pass 12 at the latest.
    In truth B is picked until it has used 100 too, 10 times, and once more if it wins the tie.

Where entries need kinds of slots there is no such number. A heavy group that only a scarce slot can serve
stays behind its target for ever while others run elsewhere, and so always comes first on that slot.
"""

from __future__ import annotations

from fractions import Fraction

from rota.model.snapshot import Key, Snapshot
from rota.policy.fair_share.contest import Contest, Entrant

__all__ = ["passes_max"]


def passes_max(snapshot: Snapshot, group: Key, *, min_guarantee: bool) -> int:
    """The pass in which a group with candidates is served at the latest."""
    contest = Contest.of(snapshot, min_guarantee=min_guarantee)
    waiting = next(entrant for entrant in contest.entrants if entrant.group == group)
    others = [entrant for entrant in contest.entrants if entrant is not waiting]
    picks_before = _picks_before(waiting, others, contest)
    picks_per_pass = min(len(snapshot.slots), len(snapshot.candidates))
    return picks_before // max(1, picks_per_pass) + 1


def _picks_before(waiting: Entrant, others: list[Entrant], contest: Contest) -> int:
    """How often the others can be picked first."""
    if not others:
        return 0
    if waiting.guaranteed:
        return sum(other.guaranteed for other in others)
    gained = sum(max(0, waiting.usage - other.usage) + _dearest(other) for other in others)
    heavier = sum(max(0, other.weight - waiting.weight) for other in others)
    start = contest.usage_charged
    end_max = Fraction((start + gained) * contest.weight_total, contest.weight_total - heavier)
    cheapest = max(1, min(candidate.cost for other in others for candidate in other.line))
    return int((end_max - start) // cheapest)


def _dearest(entrant: Entrant) -> int:
    return max(candidate.cost for candidate in entrant.line)
