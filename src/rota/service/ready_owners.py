"""The agents that may have ready entries and the accounts of their projects, kept in memory between passes.

With ten thousand agents a pass cannot query each of them. Instead, `sync` updates the set at the start of every pass
with what has changed: flows whose stamp is higher than the last one seen, and agents of entries whose id is higher than
the last one seen. Both come from rows, so changes by other processes are included.

The set may contain agents without ready entries: a pass finds that out when it looks for their entries, and removes
them with `drop`. It never misses an agent that has ready entries. What was read in a transaction that was rolled back
is forgotten, and everything is read again.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec

from rota.kernel.flows import NO_PROJECT
from rota.model.work import WEIGHT_UNIT
from rota.store import Transaction
from rota.store.statements import flows as sql

__all__ = ["FlowChange", "ProjectFlow", "ReadyAgent", "ReadyOwners"]

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class ReadyAgent(NamedTuple):
    """An agent that may have ready entries."""

    pid: int
    project_id: str
    virtual_time: int
    last_run_at: float
    weight: int
    intent: str
    created_at: float
    competed: int  # it had ready entries at the last look, so its virtual time stays as the row says


class ProjectFlow(NamedTuple):
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
        self._stamp = -1  # of the last flow change that was seen
        self._entry = 0  # the last entry that was seen
        self._loaded = False

    def forget(self) -> None:
        """Read everything again at the next `sync`."""
        self.__init__()  # type: ignore[misc]  # resets every field

    def copy(self) -> ReadyOwners:
        """Return an independent copy."""
        copied = ReadyOwners()
        copied.agents, copied.projects = self.agents.copy(), self.projects.copy()
        copied._stamp, copied._entry, copied._loaded = self._stamp, self._entry, self._loaded
        return copied

    def sync(self, tx: Transaction) -> tuple[list[FlowChange[ReadyAgent]], list[FlowChange[ProjectFlow]]]:
        """Read what has changed. Return the agents and projects that are new or have changed."""
        new = self._newly_ready(tx)
        rows = tx.run(sql.AGENTS_OF, (_encode(new).decode(),)) if new else []
        if self._loaded:
            rows += tx.run(sql.AGENTS_SINCE, (self._stamp,))
        project_rows = tx.run(sql.PROJECTS_SINCE, (self._stamp,))
        self._loaded = True
        agents = [FlowChange(self.agents.get(row[0]), ReadyAgent(*row[:8])) for row in rows]
        projects = [FlowChange(self.projects.get(row[0]), ProjectFlow(*row[:4])) for row in project_rows]
        self.agents.update((each.now.pid, each.now) for each in agents)
        self.projects.update((each.now.project_id, each.now) for each in projects)
        self._stamp = max([self._stamp, *(row[8] for row in rows), *(row[4] for row in project_rows)])
        return agents, projects

    def _newly_ready(self, tx: Transaction) -> list[int]:
        """Agents that are not in the set and have ready entries that were not seen before."""
        last = int(tx.run(sql.LAST_ENTRY)[0][0])
        if not self._loaded:
            pids = [row[0] for row in tx.run(sql.OWNERS_READY)]
        elif last > self._entry:
            pids = [row[0] for row in tx.run(sql.OWNERS_NEW, (self._entry,)) if row[0] not in self.agents]
        else:
            pids = []
        self._entry = last
        return pids

    def drop(self, pid: int) -> None:
        """Remove an agent that was found without ready entries."""
        self.agents.pop(pid, None)

    def on_written(self, stamp: int) -> None:
        """Skip changes up to this stamp: this pass wrote them itself."""
        self._stamp = max(self._stamp, stamp)
