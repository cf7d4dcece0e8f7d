"""Where every project stands in the window: read once in a pass, with what the pass has taken since."""

from __future__ import annotations

from collections import Counter

from rota.kernel.claims import ClaimPass
from rota.kernel.flows import NO_PROJECT
from rota.model.snapshot import Account
from rota.model.work import WEIGHT_UNIT
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as claim_sql

__all__ = ["Shares"]


class Shares:
    """What projects used, and what their runs under way are expected to use."""

    def __init__(self, claim: ClaimPass) -> None:
        self._used: dict[str, tuple[int, int]] = {
            owner: (used, ended) for owner, used, ended in claim.tx.run(budget_sql.WINDOWS_SHARED)
        }
        self._live: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        for project_id, count, estimate in claim.tx.run(claim_sql.LIVE_SHARES):
            self._live[project_id or NO_PROJECT] += count
            self._reserved[project_id or NO_PROJECT] += estimate
        self._counted = 0  # of what the pass has taken

    @property
    def names(self) -> set[str]:
        """Every project that used something or has runs under way."""
        return {*self._used, *self._live}

    def count(self, claim: ClaimPass) -> None:
        """Count what the pass has taken since this was last asked."""
        for each in claim.taken[self._counted :]:
            self._live[each.project_id or NO_PROJECT] += 1
            self._reserved[each.project_id or NO_PROJECT] += each.estimate
        self._counted = len(claim.taken)

    def account(self, name: str, weight: int = WEIGHT_UNIT, virtual_time: int = 0) -> Account:
        """A project's account."""
        used, ended = self._used.get(name, (0, 0))
        return Account(
            weight=weight,
            virtual_time=virtual_time,
            usage=used,
            reserved=self._reserved[name],
            live=self._live[name],
            ended=ended,
        )
