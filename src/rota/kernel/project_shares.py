"""The account of every project: its weight, its usage in the window and what its live runs are expected to use.

They are kept in memory between passes. A pass reads again those of the projects that were touched since, or all of them
when the cache cannot say which.
"""

from __future__ import annotations

from collections.abc import Collection

from rota.kernel.environment import ChangeMark, KernelCache
from rota.kernel.flows import NO_PROJECT
from rota.kernel.rows import json_list
from rota.model.snapshot import Account, Key
from rota.store import Transaction
from rota.store.statements import budgets as sql

__all__ = ["ProjectShares"]


class ProjectShares:
    """The accounts of all projects; `NO_PROJECT` has one too, for the live runs of agents without a project."""

    def __init__(self) -> None:
        self.accounts: dict[Key, Account] = {}
        self._mark: ChangeMark | None = None

    def sync(self, tx: Transaction, cache: KernelCache, now: float) -> Collection[str] | None:
        """Read the accounts that may have changed. Return their projects; None: all."""
        if not cache.share_notes.ranks:
            cache.count_shares(tx, now, ranks=True)
        touched = cache.touched_since(tx, self._mark)
        self._mark = cache.mark(tx)
        if touched is None:
            self.accounts.clear()
            self._read(tx, None)
            return None
        changed = {project_id or NO_PROJECT for _, project_id in touched}
        if changed:
            self._read(tx, json_list(changed))
        return changed

    def _read(self, tx: Transaction, project_ids: str | None) -> None:
        for project_id, weight, virtual_time, used, reserved, live, ended in tx.run(sql.SHARES, (project_ids,)):
            self.accounts[project_id] = Account(
                weight=weight, virtual_time=virtual_time, usage=used, reserved=reserved, live=live, ended=ended
            )
