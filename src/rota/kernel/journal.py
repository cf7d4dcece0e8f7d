"""The journal: facts appended in the transaction that makes them true, and read from a cursor."""

from __future__ import annotations

import msgspec

from rota.model.events import Event, Fact, encode
from rota.store import Store, Transaction
from rota.store import statements as sql

__all__ = ["TAIL_MAX", "Journal", "append"]

TAIL_MAX = 10_000  # events in one answer


def append(tx: Transaction, fact: Fact, *, now: float, pid: int | None = None) -> int:
    """Append a fact to the journal; its event id is the answer."""
    rows = tx.run(sql.EVENT_APPEND, (pid, now, fact.kind, encode(fact).decode(), None, None))
    return int(rows[0][0])


class Journal:
    """Reading what happened."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tail(self, since: int = 0, limit: int = 1_000) -> list[Event]:
        """Events after `since`, oldest first, at most `TAIL_MAX`."""
        most = max(1, min(limit, TAIL_MAX))
        rows = self._store.read(lambda tx: tx.run(sql.EVENT_TAIL, (since, most)))
        return [Event(row[0], row[1], row[2], row[3], msgspec.json.decode(row[4]), row[5], row[6]) for row in rows]
