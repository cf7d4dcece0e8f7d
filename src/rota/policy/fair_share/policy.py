"""The policy `fair_share`: guarantee, then deficit of the group, then strict order inside it.

It differs from the door of the same package in one thing: it counts. Runs under way and its own picks use up
the guarantee and add to usage, so that one pass over many slots already spreads them.

It forgets after its window; eevdf never forgets debt. Inside a group it is strict, so an unimportant entry of
a busy group may starve; no group does (see waiting for the number, and for where it does not hold).
"""

from __future__ import annotations

from rota.errors import PolicyInvalid
from rota.model.checks import Checks
from rota.model.snapshot import Decision, Decisions, Key, Snapshot
from rota.policy.contract import Bound, Places, Policy
from rota.policy.fair_share.contest import Contest
from rota.policy.fair_share.waiting import passes_max

__all__ = ["fair_share"]


def fair_share(*, min_guarantee: bool = True) -> Policy:
    """Whichever group is furthest behind its weight; with a guarantee, first those that had no run at all."""
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
            "an unimportant entry of a busy group may starve."
        ),
        bound=Bound(
            "group",
            passes,
            "No group waits longer than others need to catch up with what it used, where every entry fits every "
            "slot and costs at least 1.",
        ),
        heads="share",
        guarantee=min_guarantee,
    )


def _rank(snapshot: Snapshot, min_guarantee: bool) -> Decisions:
    """Pick until the slots are full or nobody fits."""
    contest = Contest.of(snapshot, min_guarantee=min_guarantee)
    places = Places(snapshot.slots)
    decisions: list[Decision] = []
    while places:
        entrant = contest.next(places.kinds())
        if entrant is None:
            break
        because = contest.because(entrant)
        candidate = contest.pick(entrant)
        slot_id = places.take(candidate)
        assert slot_id is not None, "the contest offers only what fits"  # noqa: S101  # a programmer's error
        decisions.append(Decision(candidate.id, slot_id, because))
    return tuple(decisions)
