"""Retention: what is kept, and how old rows go without anybody waiting for it.

Facts go only behind a checkpoint, so that the state can always be folded again. Finished entries go when they are old
enough and nobody waits for them any more. Both in batches of `PRUNE_MAX`, each its own transaction, so a writer waits
for one batch at most. What was numbered last always stays, so that no number is given twice.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.errors import InvalidPayload
from rota.kernel.core import Core
from rota.kernel.journal import append
from rota.kernel.replay import State, stretches
from rota.model.checks import Checks
from rota.model.events import Checkpointed, Pruned
from rota.store import Transaction
from rota.store.statements import flows as flow_sql
from rota.store.statements import journal as sql
from rota.store.statements import queue as queue_sql

__all__ = ["PRUNE_MAX", "Pruning", "Retention"]

PRUNE_MAX = 1_000  # rows in one transaction
_checks = Checks("Retention", InvalidPayload)


class Pruning(NamedTuple):
    """What was removed."""

    events: int
    entries: int
    checkpoint_id: int


class Retention:
    """Writing checkpoints and removing what is old."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def checkpoint(self) -> int:
        """Write down the folded state; the answer is the event it is true at."""
        now = self._core.now()
        state = self._core.read(State.of_tables)  # one view, which nobody has to wait for
        for number, body in enumerate(state.parts()):
            row = (state.through_id, number, now, body)
            self._core.write(lambda tx, row=row: tx.run(sql.CHECKPOINT_PUT, row))  # type: ignore[misc]  # run at once

        def done(tx: Transaction) -> None:
            tx.run(sql.CHECKPOINT_DROP, (state.through_id,))
            append(tx, Checkpointed(through_id=state.through_id), now=now)

        self._core.write(done)
        return state.through_id

    def prune(self, *, events_older_than_s: float, entries_older_than_s: float) -> Pruning:
        """Remove facts and finished entries that are older, behind a new checkpoint."""
        _checks.duration("events_older_than_s", events_older_than_s)
        _checks.duration("entries_older_than_s", entries_older_than_s)
        now = self._core.now()
        through_id = self.checkpoint()
        entries = self._prune_entries(now - entries_older_than_s, now)
        events = self._prune_events(through_id, now - events_older_than_s, now)
        return Pruning(events, entries, through_id)

    def _prune_events(self, through_id: int, before_at: float, now: float) -> int:
        def work(tx: Transaction) -> int:
            gone = [row[0] for row in tx.run(sql.EVENTS_PRUNE, (through_id, before_at, PRUNE_MAX))]
            if gone:
                append(tx, Pruned(table="agent_events", count=len(gone), ranges=[(min(gone), max(gone))]), now=now)
            return len(gone)

        count = 0
        while gone := self._core.write(work):
            count += gone
        return count

    def _prune_entries(self, before_at: float, now: float) -> int:
        last = self._core.read(lambda tx: int(tx.run(flow_sql.LAST_ENTRY)[0][0]))
        count = 0
        for start in range(0, last, PRUNE_MAX):

            def work(tx: Transaction, start: int = start) -> int:
                rows = tx.run(queue_sql.FINISHED_PRUNE, (start, start + PRUNE_MAX, before_at))
                gone = {row[0]: "" for row in rows}
                if gone:
                    ranges = [(first, first + number - 1) for first, number, _ in stretches(gone)]
                    append(tx, Pruned(table="agent_schedule_queue", count=len(gone), ranges=ranges), now=now)
                return len(gone)

            count += self._core.write(work)
        return count
