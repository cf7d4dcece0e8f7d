"""The agents that may have ready entries and the accounts of their projects, kept in memory between passes.

With a hundred thousand agents a pass cannot query each of them. Instead, `sync` updates the set at the start of every
pass with what has changed. The cache names the owners that this process has touched since. If anything else may have
changed, rows tell it: flows whose stamp is higher than the last one seen, and agents of entries whose id is higher than
the last one seen; so changes by other processes are included.

The set may contain agents without ready entries: a pass finds that out when it looks for their entries, and removes
them with `drop`. It never misses an agent that has ready entries. What was read in a transaction that was rolled back
is forgotten, and everything is read again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rota.kernel.environment import ChangeMark, KernelCache
from rota.kernel.flows import NO_PROJECT
from rota.kernel.rows import json_list
from rota.model.work import WEIGHT_UNIT
from rota.store import Row, Transaction
from rota.store.statements import flows as sql

__all__ = ["FlowChange", "ProjectFlow", "ReadyAgent", "ReadyOwners", "first_priorities", "read_agents"]

BY_NAME_MAX = 16  # touched owners that are read by name
T = TypeVar("T")


class ReadyAgent(msgspec.Struct, frozen=True, gc=False):  # there may be 100,000: the collector need not look
    """An agent that may have ready entries."""

    pid: int
    project_id: str
    virtual_time: int
    last_run_at: float
    weight: int
    intent: str
    created_at: float
    competed: int  # it had ready entries at the last look, so its virtual time stays as the row says


class ProjectFlow(msgspec.Struct, frozen=True, gc=False):
    """The flow of a project."""

    project_id: str
    virtual_time: int = 0
    clock: int = 0  # the virtual time of the level of its agents
    weight: int = WEIGHT_UNIT


class FlowChange(NamedTuple, Generic[T]):
    """An agent or a project before (None: it was not known) and after a change."""

    before: T | None
    now: T


class ReadyOwners:
    """The agents that may have ready entries, and every project."""

    def __init__(self) -> None:
        self.agents: dict[int, ReadyAgent] = {}
        self.projects: dict[str, ProjectFlow] = {NO_PROJECT: ProjectFlow(NO_PROJECT)}
        self.with_new_entries: set[int] = set()  # agents that may have got a new first entry, at the last `sync_agents`
        self._mark: ChangeMark | None = None
        self._agent_stamp = -1  # of the last flow change of an agent that was seen
        self._project_stamp = -1
        self._entry = 0  # the last entry that was seen
        self._loaded = False

    def forget(self) -> None:
        """Read everything again at the next `sync`."""
        self.__init__()  # type: ignore[misc]  # resets every field

    def copy(self) -> ReadyOwners:
        """Return an independent copy."""
        copied = ReadyOwners()
        copied.agents, copied.projects = self.agents.copy(), self.projects.copy()
        copied._agent_stamp, copied._project_stamp = self._agent_stamp, self._project_stamp
        copied._entry, copied._loaded = self._entry, self._loaded
        return copied

    def _touched(self, tx: Transaction, cache: KernelCache) -> list[tuple[int, str | None]] | None:
        """Return the owners to read by name; None: read by stamp, which costs the same however many changed."""
        touched = cache.touched_since(tx, self._mark)
        return None if touched is None or len(touched) > BY_NAME_MAX else touched

    def sync_agents(self, tx: Transaction, cache: KernelCache) -> list[FlowChange[ReadyAgent]]:
        """Read what has changed about agents. Return those that are new or have changed."""
        touched = self._touched(tx, cache)
        self._mark = cache.mark(tx)
        self.with_new_entries = set() if touched is None else {pid for pid, _ in touched}
        rows = self._rows_by_stamp(tx) if touched is None else self._rows_of(tx, self.with_new_entries)
        found = [FlowChange(self.agents.get(row[0]), ReadyAgent(*row[:8])) for row in rows]
        self.agents.update((each.now.pid, each.now) for each in found)
        self._agent_stamp = max([self._agent_stamp, *(row[8] for row in rows)])
        return found

    def sync_projects(self, tx: Transaction, cache: KernelCache) -> list[FlowChange[ProjectFlow]]:
        """Read what has changed about projects, before `sync_agents`. Return those that are new or have changed."""
        touched = self._touched(tx, cache)
        if touched is None:
            if self._loaded:  # with what `sync_agents` reads next
                agents = (
                    (sql.LAST_ENTRY, ()),
                    (sql.OWNERS_NEW, (self._entry,)),
                    (sql.AGENTS_SINCE, (self._agent_stamp,)),
                )
                tx.read_together([(sql.PROJECTS_SINCE, (self._project_stamp,)), *agents])
            rows = tx.run(sql.PROJECTS_SINCE, (self._project_stamp,))
        else:
            names = {project_id or NO_PROJECT for _, project_id in touched}
            rows = tx.run_for(sql.PROJECTS_OF, names) if names else []
            rows = [row for row in rows if row[4] > self._project_stamp]
        found = [FlowChange(self.projects.get(row[0]), ProjectFlow(*row[:4])) for row in rows]
        self.projects.update((each.now.project_id, each.now) for each in found)
        self._project_stamp = max([self._project_stamp, *(row[4] for row in rows)])
        return found

    def _rows_of(self, tx: Transaction, pids: set[int]) -> list[Row]:
        """The rows of touched agents that are new and have ready entries, or whose flow was stamped since."""
        rows = tx.run_for(sql.AGENTS_CHANGED, pids) if pids else []
        if rows:
            self._entry = rows[0][10]
        return [row for row in rows if (row[8] > self._agent_stamp if row[0] in self.agents else row[9])]

    def _rows_by_stamp(self, tx: Transaction) -> list[Row]:
        """The rows of agents whose flow was stamped, and of agents that have new ready entries."""
        before, self._entry = self._entry, int(tx.run(sql.LAST_ENTRY)[0][0])
        if not self._loaded:
            self._loaded = True
            return self._with_new_entries(tx.run(sql.AGENTS_READY))
        new = [row[0] for row in tx.run(sql.OWNERS_NEW, (before,))] if self._entry > before else []
        self.with_new_entries.update(new)
        new = [pid for pid in new if pid not in self.agents]
        rows = tx.run_for(sql.AGENTS_OF, new) if new else []
        return rows + self._with_new_entries(tx.run(sql.AGENTS_SINCE, (self._agent_stamp,)))

    def _with_new_entries(self, rows: list[Row]) -> list[Row]:
        self.with_new_entries.update(row[0] for row in rows)
        return rows

    def drop(self, pid: int) -> None:
        """Remove an agent that was found without ready entries."""
        self.agents.pop(pid, None)

    def on_written(self, stamp: int) -> None:
        """Skip changes up to this stamp: this pass wrote them itself."""
        self._agent_stamp = max(self._agent_stamp, stamp)
        self._project_stamp = max(self._project_stamp, stamp)


def first_priorities(tx: Transaction, pids: Collection[int]) -> dict[int, int]:
    """Return the priority of the first ready entry of each of some agents; those without one are missing."""
    rows = tx.run(sql.FIRST_PRIORITIES, (json_list(pids),)) if pids else []
    return {pid: priority for pid, priority in rows if priority is not None}


def read_agents(tx: Transaction, pids: Collection[int]) -> dict[int, ReadyAgent]:
    """Read some agents."""
    return {row[0]: ReadyAgent(*row[:8]) for row in tx.run_for(sql.AGENTS_OF, pids)}
