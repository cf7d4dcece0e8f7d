"""The pulse: one row that says when time next changes something, and what a claim has to look at.

Every claim begins with it. Most of the time it says that nothing is due and nobody has a cap, a ledger or a context,
and then an entry's own row decides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = ["Pulse", "pulse"]


class Pulse(NamedTuple):
    """When time next changes something, and what a pass has to look at besides the queue."""

    held_at: float | None  # the next held entry is due
    expires_at: float | None  # the next claim expires
    deadline: float | None  # the next waiting entry passes its deadline
    edge_at: float | None  # something leaves a usage window
    refill_at: float | None  # something comes back to a context
    kept_until: float | None  # the next entry has been kept for a worker long enough
    fallout: int  # dependents of ended entries wait to be seen to
    fleet_paused_by: str | None
    any_stopped: int  # agents that are paused or may run nothing
    any_capped: int
    any_ledger: int
    any_global_budget: int
    any_context: int

    @property
    def is_plain(self) -> bool:
        """Whether nobody has a cap, a ledger or a context: then only projects and needs have to be looked up."""
        return not (self.any_capped or self.any_ledger or self.any_global_budget or self.any_context)

    def is_due(self, now: float) -> bool:
        """Whether time has brought something about."""
        return (
            (self.held_at is not None and self.held_at <= now)
            or (self.expires_at is not None and self.expires_at <= now)
            or (self.deadline is not None and self.deadline < now)
            or (self.edge_at is not None and self.edge_at <= now)
            or (self.refill_at is not None and self.refill_at <= now)
            or (self.kept_until is not None and self.kept_until <= now)
            or bool(self.fallout)
        )

    @property
    def next_at(self) -> float | None:
        """When the next thing falls due; at once if something is left."""
        instants = (self.held_at, self.expires_at, self.deadline, self.edge_at, self.refill_at, self.kept_until)
        return 0.0 if self.fallout else min((at for at in instants if at is not None), default=None)

    @property
    def due_at(self) -> float | None:
        """When whoever waits should look again: a deadline is swept just after it has come."""
        after = None if self.deadline is None else math.nextafter(self.deadline, math.inf)
        return self._replace(deadline=after).next_at


def pulse(tx: Transaction) -> Pulse:
    """Take the pulse."""
    return Pulse(*tx.run(sql.PULSE)[0])
