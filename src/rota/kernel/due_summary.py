"""The due summary: one row that says when something next falls due, and which checks a claim needs.

Every claim begins with it. Usually nothing is due and no agent has a cap, a ledger or a context; then an entry's own
row decides whether it may run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = ["DueSummary", "read_due_summary"]


class DueSummary(NamedTuple):
    """The instants at which something falls due, and which kinds of limits exist."""

    held_at: float | None  # the next held entry becomes ready
    expires_at: float | None  # the next claim expires
    deadline: float | None  # the next queued entry passes its deadline
    window_edge_at: float | None  # usage leaves a window
    refill_at: float | None  # a context gets budget back
    affinity_until: float | None  # the next affinity hold ends
    dependents_pending: int  # dependents of ended entries are still to be released or cancelled
    fleet_paused_by: str | None
    any_stopped: int  # agents that are paused or have a cap of 0
    any_capped: int
    any_ledger: int
    any_global_budget: int
    any_context: int

    @property
    def is_unrestricted(self) -> bool:
        """Whether no cap, ledger, global budget or context exists: only projects and needs have to be checked."""
        return not (self.any_capped or self.any_ledger or self.any_global_budget or self.any_context)

    def is_due(self, now: float) -> bool:
        """Whether maintenance has something to do."""
        return (
            (self.held_at is not None and self.held_at <= now)
            or (self.expires_at is not None and self.expires_at <= now)
            or (self.deadline is not None and self.deadline < now)
            or (self.window_edge_at is not None and self.window_edge_at <= now)
            or (self.refill_at is not None and self.refill_at <= now)
            or (self.affinity_until is not None and self.affinity_until <= now)
            or bool(self.dependents_pending)
        )

    @property
    def next_at(self) -> float | None:
        """When the next thing falls due; 0 if some of it is left over from before."""
        instants = (
            self.held_at,
            self.expires_at,
            self.deadline,
            self.window_edge_at,
            self.refill_at,
            self.affinity_until,
        )
        return 0.0 if self.dependents_pending else min((at for at in instants if at is not None), default=None)

    @property
    def retry_at(self) -> float | None:
        """When a parked claim should run again: for a deadline just after it, since only past deadlines are swept."""
        after = None if self.deadline is None else math.nextafter(self.deadline, math.inf)
        return self._replace(deadline=after).next_at


def read_due_summary(tx: Transaction) -> DueSummary:
    """Read the due summary."""
    return DueSummary(*tx.run(sql.DUE_SUMMARY)[0])
