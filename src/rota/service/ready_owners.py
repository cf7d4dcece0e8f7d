"""The roster: who may have ready entries, and where they stand, kept in memory between passes.

With ten thousand agents a pass cannot ask about each. So the roster is brought up to date instead, at the start
of every pass, by what has changed: flows with a later stamp than the last one seen, and agents of entries with a
higher id than the last one seen. Both come from rows, whoever wrote them, so it does not matter in which process.

It may be too optimistic: whether an agent really has something that may run is found out when it is its turn, and
then `drop` takes it off. It never leaves anybody out. What was read in a transaction that did not become durable
is forgotten, and everything is read again.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec

from rota.kernel.flows import NO_PROJECT
from rota.model.work import WEIGHT_UNIT
from rota.store import Transaction
from rota.store.statements import flows as sql

__all__ = ["Group", "Moved", "Owner", "Roster"]

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Owner(NamedTuple):
    """An agent that may have ready entries."""

    pid: int
    project_id: str
    virtual_time: int
    last_run_at: float
    weight: int
    intent: str
    created_at: float
    in_line: int  # it competed when somebody last looked, so it is owed what its row says


class Group(NamedTuple):
    """A project's flow."""

    project_id: str
    virtual_time: int = 0
    clock: int = 0  # the time of its agents
    weight: int = WEIGHT_UNIT


class Moved(NamedTuple, Generic[T]):
    """Somebody on the roster, as it was (None: it was not on it) and as it is."""

    before: T | None
    now: T


class Roster:
    """Who may have ready entries."""

    def __init__(self) -> None:
        self.owners: dict[int, Owner] = {}
        self.groups: dict[str, Group] = {NO_PROJECT: Group(NO_PROJECT)}
        self._stamp = -1  # the last change of a flow that was seen
        self._entry = 0  # the last entry that was seen
        self._loaded = False

    def forget(self) -> None:
        """Read everything again next time."""
        self.__init__()  # type: ignore[misc]  # to be as new

    def twin(self) -> Roster:
        """The same roster once more."""
        made = Roster()
        made.owners, made.groups = self.owners.copy(), self.groups.copy()
        made._stamp, made._entry, made._loaded = self._stamp, self._entry, self._loaded
        return made

    def sync(self, tx: Transaction) -> tuple[list[Moved[Owner]], list[Moved[Group]]]:
        """Bring the roster up to date; the answer is who is new on it or stands elsewhere, with where it stood."""
        fresh = self._newly_ready(tx)
        rows = tx.run(sql.AGENTS_OF, (_encode(fresh).decode(),)) if fresh else []
        if self._loaded:
            rows += tx.run(sql.AGENTS_SINCE, (self._stamp,))
        groups = tx.run(sql.PROJECTS_SINCE, (self._stamp,))
        self._loaded = True
        changed = [Moved(self.owners.get(row[0]), Owner(*row[:8])) for row in rows]
        moved = [Moved(self.groups.get(row[0]), Group(*row[:4])) for row in groups]
        self.owners.update((each.now.pid, each.now) for each in changed)
        self.groups.update((each.now.project_id, each.now) for each in moved)
        self._stamp = max([self._stamp, *(row[8] for row in rows), *(row[4] for row in groups)])
        return changed, moved

    def _newly_ready(self, tx: Transaction) -> list[int]:
        """Agents that are not on the roster and have ready entries that were not seen before."""
        last = int(tx.run(sql.LAST_ENTRY)[0][0])
        if not self._loaded:
            pids = [row[0] for row in tx.run(sql.OWNERS_READY)]
        elif last > self._entry:
            pids = [row[0] for row in tx.run(sql.OWNERS_NEW, (self._entry,)) if row[0] not in self.owners]
        else:
            pids = []
        self._entry = last
        return pids

    def drop(self, pid: int) -> None:
        """An agent was found without ready entries."""
        self.owners.pop(pid, None)

    def wrote(self, stamp: int) -> None:
        """Changes up to here are this pass's own, and known."""
        self._stamp = max(self._stamp, stamp)
