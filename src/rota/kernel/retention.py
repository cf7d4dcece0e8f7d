"""Retention: checkpoints, and the removal of old events and finished entries.

Events are removed only behind a checkpoint, so the state can always be rebuilt. Finished entries are removed when they
are old enough and no entry waits for them. Both happen in batches of `PRUNE_MAX`, each in its own transaction, so a
writer waits for one batch at most. The row with the highest id always stays, so no id is used twice.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.errors import InvalidPayload
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.replay import KernelState, id_ranges
from rota.model.checks import Checks
from rota.model.events import JournalCheckpointed, RowsPruned
from rota.store import Transaction
from rota.store.statements import flows as flow_sql
from rota.store.statements import journal as sql
from rota.store.statements import queue as queue_sql

__all__ = ["PRUNE_MAX", "PruneResult", "Retention"]

PRUNE_MAX = 1_000  # rows in one transaction
_checks = Checks("Retention", InvalidPayload)


class PruneResult(NamedTuple):
    """What was removed."""

    events: int
    entries: int
    checkpoint_id: int


class Retention:
    """Writing checkpoints and removing old rows."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def checkpoint(self) -> int:
        """Write a checkpoint; returns the id of the last event that it includes."""
        now = self._env.now()
        state = self._env.read(KernelState.from_tables)  # one consistent view, which delays no writer
        for number, body in enumerate(state.checkpoint_parts()):
            row = (state.through_id, number, now, body)
            self._env.write(lambda tx, row=row: tx.run(sql.CHECKPOINT_PUT, row))  # type: ignore[misc]  # runs before the loop continues

        def finish(tx: Transaction) -> None:
            tx.run(sql.CHECKPOINT_DROP, (state.through_id,))
            append(tx, JournalCheckpointed(through_id=state.through_id), now=now)

        self._env.write(finish)
        return state.through_id

    def prune(self, *, events_older_than_s: float, entries_older_than_s: float) -> PruneResult:
        """Write a checkpoint, then remove events and finished entries older than these ages."""
        _checks.duration("events_older_than_s", events_older_than_s)
        _checks.duration("entries_older_than_s", entries_older_than_s)
        now = self._env.now()
        through_id = self.checkpoint()
        entries = self._prune_entries(now - entries_older_than_s, now)
        events = self._prune_events(through_id, now - events_older_than_s, now)
        return PruneResult(events, entries, through_id)

    def _prune_events(self, through_id: int, before_at: float, now: float) -> int:
        def work(tx: Transaction) -> int:
            gone = [row[0] for row in tx.run(sql.EVENTS_PRUNE, (through_id, before_at, PRUNE_MAX))]
            if gone:
                append(tx, RowsPruned(table="agent_events", count=len(gone), ranges=[(min(gone), max(gone))]), now=now)
            return len(gone)

        count = 0
        while gone := self._env.write(work):
            count += gone
        return count

    def _prune_entries(self, before_at: float, now: float) -> int:
        last = self._env.read(lambda tx: int(tx.run(flow_sql.LAST_ENTRY)[0][0]))
        count = 0
        for start in range(0, last, PRUNE_MAX):

            def work(tx: Transaction, start: int = start) -> int:
                rows = tx.run(queue_sql.FINISHED_PRUNE, (start, start + PRUNE_MAX, before_at))
                gone = {row[0]: "" for row in rows}
                if gone:
                    ranges = [(first, first + number - 1) for first, number, _ in id_ranges(gone)]
                    append(tx, RowsPruned(table="agent_schedule_queue", count=len(gone), ranges=ranges), now=now)
                return len(gone)

            count += self._env.write(work)
        return count
