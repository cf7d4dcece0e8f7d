"""What an entry has to do with: its agent, its project, its parent and children, predecessors, limits and workspace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rota.errors import SchedUnknownId
from rota.kernel import limit_asks
from rota.kernel.rows import decode_spent
from rota.model.entry_report import LimitUse, RelatedEntry
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import entry_lists as list_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import loans as loan_sql
from rota.store.statements import projects as project_sql
from rota.store.statements import queue as queue_sql

__all__ = ["CHILDREN_MAX", "EntryRelations", "read_relations", "read_row"]

CHILDREN_MAX = 100  # of an entry, that are listed


class EntryRelations(NamedTuple):
    """What an entry has to do with; the fields are those of `EntryReport`."""

    agent: str
    project: str | None
    limits: tuple[LimitUse, ...]
    workspace_path: str | None
    lent: dict[str, int]
    parent: RelatedEntry | None
    children: tuple[RelatedEntry, ...]
    children_are_complete: bool
    after: tuple[RelatedEntry, ...]
    after_gone: tuple[int, ...]


def read_row(tx: Transaction, sched_id: int) -> tuple[Row, int]:
    """Read the row of an entry, and the id of the last event at that time; raises `SchedUnknownId`."""
    rows = tx.run(queue_sql.GET, (sched_id,))
    if not rows:
        raise SchedUnknownId(sched_id)
    return rows[0], int(tx.run(journal_sql.EVENT_ENDS)[0][1] or 0)


def read_relations(tx: Transaction, entry: ReadyEntry) -> EntryRelations:
    """Read what an entry has to do with, as it is now."""
    children = tx.run(list_sql.CHILDREN, (entry.sched_id, CHILDREN_MAX + 1))
    wanted = [row[0] for row in tx.run(queue_sql.PREDECESSORS, (entry.sched_id,))]
    named = [*wanted] if entry.parent_id is None else [*wanted, entry.parent_id]
    rows = {row[0]: row for row in tx.run_for(list_sql.RELATIVES, named)} if named else {}
    names: dict[int, str] = dict(
        tx.run_for(agent_sql.NAMES_OF, {entry.pid, *(row[1] for row in (*children, *rows.values()))})
    )
    parents = _related((rows[each] for each in (entry.parent_id,) if each in rows), names)
    lent = tx.run(loan_sql.LOAN, (entry.sched_id,))
    return EntryRelations(
        agent=names.get(entry.pid, ""),
        project=_project_name(tx, entry.project_id),
        limits=_limits(tx, entry),
        workspace_path=_workspace_path(tx, entry.workspace),
        lent=dict(decode_spent(lent[0][0])) if lent else {},
        parent=parents[0] if parents else None,
        children=_related(children[:CHILDREN_MAX], names),
        children_are_complete=len(children) <= CHILDREN_MAX,
        after=_related((rows[each] for each in wanted if each in rows), names),
        after_gone=tuple(each for each in wanted if each not in rows),
    )


def _related(rows: Iterable[Row], names: dict[int, str]) -> tuple[RelatedEntry, ...]:
    return tuple(RelatedEntry(row[0], row[1], names.get(row[1], ""), row[2], row[3]) for row in rows)


def _project_name(tx: Transaction, project_id: str | None) -> str | None:
    rows = [] if project_id is None else tx.run(project_sql.GET, (project_id,))
    return rows[0][1] if rows and isinstance(rows[0][1], str) else project_id


def _workspace_path(tx: Transaction, workspace_id: str | None) -> str | None:
    rows = [] if workspace_id is None else tx.run(project_sql.WORKSPACE_GET, (workspace_id,))
    return rows[0][2] if rows else None


def _limits(tx: Transaction, entry: ReadyEntry) -> tuple[LimitUse, ...]:
    """What the live run has acquired or waits for."""
    asks = [] if entry.state != "dispatched" else limit_asks.asks_of(tx, entry.sched_id, entry.token)
    return tuple(
        LimitUse(name=ask.name, amounts=dict(ask.asked), asked_at=ask.asked_at, granted_at=ask.granted_at)
        for ask in asks
        if ask.asked  # the row that says that the request of the start was returned has none
    )
