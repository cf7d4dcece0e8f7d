"""The first ready entries of each agent or project (its *heads*), kept in memory between passes.

A policy looks at the heads of many owners and claims a few entries. Reading all heads in every pass would cost as much
as there are owners; so they are kept, and a pass reads again only those of the owners that were touched since. The kept
rows have no payload, and they only say which entries to try: an entry is read again before it is claimed.

Heads hold for requests with the same kinds of slots. They are read again, all of them, when the cache cannot say what
was touched, when time has gone back, or when the deadline of an entry is this very instant (one that has passed is
swept before the pass). An entry without a hold whose time has not come is rare: a claim that named a later time has
released it. Its owner is read again in every pass until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.environment import ChangeMark
from rota.kernel.flows import NO_PROJECT
from rota.kernel.rows import PRIORITY, RUNNABLE_AT, json_list
from rota.store import Row, Statement, Transaction
from rota.store.statements import ready_heads as sql

__all__ = ["KINDS_MAX", "AgentHeads", "ProjectHeads", "agents_with_ready_entries", "for_kinds", "read_ready"]

KINDS_MAX = 8  # sets of slot kinds for which something is kept
T = TypeVar("T")
K = TypeVar("K", int, str)  # an owner: the pid of an agent, or a project


def for_kinds(kept: dict[tuple[str, ...], T], kinds: tuple[str, ...], make: Callable[[], T]) -> T:
    """Return what is kept for requests with these kinds of slots; what was used longest ago is dropped."""
    kept[kinds] = found = kept.pop(kinds, None) or make()
    if len(kept) > KINDS_MAX:
        del kept[next(iter(kept))]
    return found


def read_ready(tx: Transaction, sched_ids: Collection[int]) -> dict[int, Row]:
    """Read entries that are still ready, with all columns that a claim needs."""
    return {row[0]: row for row in tx.run_for(sql.ENTRIES, sched_ids)}


def agents_with_ready_entries(tx: Transaction, pids: Iterable[int]) -> set[int]:
    """Return those of some agents that have an entry without a hold, even if no claim can take it now."""
    return {row[0] for row in tx.run(sql.AGENTS, (json_list(pids),))}


def _strict_order(row: Row) -> tuple[int, float, int]:
    return -row[PRIORITY], row[RUNNABLE_AT], row[0]


class _KeptHeads(Generic[K]):
    """The heads of some owners, and what is known about them."""

    def __init__(self) -> None:
        self.rows: dict[K, list[Row]] = {}  # in strict order
        self.depth = 0  # heads of each owner
        self._early: set[K] = set()  # owners with an entry whose time has not come
        self._mark: ChangeMark | None = None
        self._now = -math.inf

    def _touched(self, claim: ClaimPass, depth: int) -> list[tuple[int, str | None]] | None:
        """Return the owners (pid, project) to read again; None: all."""
        cache = claim.env.cache
        touched = cache.touched_since(claim.tx, self._mark)
        due = cache.due_summary(claim.tx)
        if due is None or (due.deadline is not None and due.deadline <= claim.now):
            touched = None
        if claim.now < self._now or depth > self.depth:
            touched = None
        if touched is None:
            self.depth = depth
        self._mark, self._now = cache.mark(claim.tx), claim.now
        return touched

    def _read(self, claim: ClaimPass, statement: Statement, keys: Collection[K], *excluded: str) -> None:
        """Read the heads of some owners; in the end each of them has some, or an empty list."""
        if not keys:
            return
        self._early.difference_update(keys)
        found = self._fetch(claim, statement, keys, math.inf, *excluded)
        early = [key for key, rows in found.items() if any(row[RUNNABLE_AT] > claim.now for row in rows)]
        if early:
            self._early.update(early)
            found |= self._fetch(claim, statement, early, claim.now, *excluded)
        self.rows |= found

    def _fetch(
        self, claim: ClaimPass, statement: Statement, keys: Collection[K], runnable_by: float, *excluded: str
    ) -> dict[K, list[Row]]:
        found: dict[K, list[Row]] = {key: [] for key in keys}
        kinds = json_list(claim.request.kinds)
        parameters: tuple[Any, ...] = (json_list(keys), claim.now, runnable_by, kinds, self.depth, *excluded)
        for key, *row in claim.tx.run(statement, parameters):
            found[key].append(tuple(row))
        if self.depth > 1:
            for rows in found.values():
                rows.sort(key=_strict_order)
        return found


class AgentHeads(_KeptHeads[int]):
    """The heads of the agents of a window."""

    def sync(self, claim: ClaimPass, pids: Collection[int], depth: int) -> Collection[int]:
        """Read the heads of these agents, as far as they are not known. Return the agents that were read."""
        touched = self._touched(claim, depth)
        if touched is None or len(self.rows) > 2 * len(pids) + depth:  # most of them have left the window
            self.rows.clear()
        for key in (*(pid for pid, _ in touched or ()), *self._early):
            self.rows.pop(key, None)
        unknown = [pid for pid in pids if pid not in self.rows]
        self._read(claim, sql.OF_AGENTS, unknown)
        return unknown


class ProjectHeads(_KeptHeads[str]):
    """The heads of every project that has ready entries, without those of blocked agents."""

    def __init__(self) -> None:
        super().__init__()
        self._blocked: set[int] = set()

    def sync(self, claim: ClaimPass, depth: int) -> Collection[str] | None:
        """Read the heads that may have changed. Return the projects that were read; None: all."""
        touched = self._touched(claim, depth)
        changed: set[str]
        if touched is None:
            self.rows.clear()
            changed = {row[0] for row in claim.tx.run(sql.PROJECTS)}
        else:
            changed = {project_id or NO_PROJECT for _, project_id in touched} | self._early
            differing = claim.blocked_pids ^ self._blocked
            if differing:
                changed.update(row[0] for row in claim.tx.run_for(sql.PROJECTS_OF_AGENTS, differing))
        self._blocked = set(claim.blocked_pids)
        self._read(claim, sql.OF_PROJECTS, changed, json_list(self._blocked))
        for project_id in changed:
            if not self.rows[project_id]:
                del self.rows[project_id]
        return None if touched is None else changed
