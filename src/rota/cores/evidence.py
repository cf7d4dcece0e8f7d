"""What the engine has counted: evidence before policy.

Every counter is *permanent* (part of what rota promises, and exact) or *diagnostic* (it explains where time and
looks went, may change from version to version, and is never read by a decision: a test sets them all to
nonsense and finds the same decisions). `LABELS` says which is which.

    counter               kind          what it counts
    picks                 permanent     times a core chose what to run
    idles                 permanent     of these, times it found nothing
    preemptions           permanent     entities stopped that would have gone on
    steals                permanent     entities taken by a core that had nothing to do
    migrations            permanent     entities moved because they had to, or to even out loads
    reschedules           permanent     requests to another core to look again
    depletions            permanent     contexts that ran out under an entity that would have gone on
    timeouts              permanent     notices posted about that
    misses                permanent     activations that ended after their deadline
    affinity_broken       permanent     entities put outside their mask, for want of any core inside it
    stale_orders          permanent     orders of the policy service dropped because of their epoch
    fallbacks             permanent     times the engine went over to round robin
    looks                 diagnostic    candidates looked at by picks, beyond the one that was taken
    reschedules_merged    diagnostic    requests to a core that had one already
    ticks                 diagnostic    timer events
    ticks_early           diagnostic    of these, those that came before their time and changed nothing
    steals_tried          diagnostic    queues that a core with nothing to do looked into
    timeouts_merged       diagnostic    notices added to one that nobody has taken yet
    trace_bytes           diagnostic    bytes of trace written
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = ["LABELS", "Evidence"]

Label = Literal["permanent", "diagnostic"]

LABELS: Mapping[str, Label] = {
    **dict.fromkeys(
        (
            "picks",
            "idles",
            "preemptions",
            "steals",
            "migrations",
            "reschedules",
            "depletions",
            "timeouts",
            "misses",
            "affinity_broken",
            "stale_orders",
            "fallbacks",
        ),
        "permanent",
    ),
    **dict.fromkeys(
        ("looks", "reschedules_merged", "ticks", "ticks_early", "steals_tried", "timeouts_merged", "trace_bytes"),
        "diagnostic",
    ),
}


class Evidence:
    """The counters of one engine. They only grow."""

    __slots__ = tuple(LABELS)

    picks: int
    idles: int
    preemptions: int
    steals: int
    migrations: int
    reschedules: int
    depletions: int
    timeouts: int
    misses: int
    affinity_broken: int
    stale_orders: int
    fallbacks: int
    looks: int
    reschedules_merged: int
    ticks: int
    ticks_early: int
    steals_tried: int
    timeouts_merged: int
    trace_bytes: int

    def __init__(self) -> None:
        for name in LABELS:
            setattr(self, name, 0)

    def counted(self, label: Label | None = None) -> dict[str, int]:
        """Every counter, or those of one kind."""
        return {name: getattr(self, name) for name, kind in LABELS.items() if label in (None, kind)}
