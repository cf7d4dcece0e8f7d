"""Retention: checkpoints, the removal of old events and finished entries, and the space that they occupied.

Pruning works in many small transactions, so that a writer waits for one of them at most. It may be killed between any
two of them, and several processes may prune at once. The law *checkpoint + the events after it = the tables*
(`replay.py`) holds after every one of these commits:

1. The state is read in one view of the file. The last event in that view is the checkpoint's `through_id`.
2. The state is stored in parts, one transaction each. No reader uses them yet: replay starts from the *current*
   checkpoint, which a setting names, and that is still the previous one.
3. One transaction makes the new checkpoint current, if it is newer than the current one. So the current checkpoint only
   ever becomes newer, and its parts never change.
4. Old events are deleted up to the current checkpoint, which is read in the transaction that deletes them. Finished
   entries are deleted together with the event that names them. Entries that a live entry depends on stay.
5. Parts of older checkpoints are deleted: those of the previous one, and those that were never made current, because
   their process was killed or another one was faster.

    prune 1                                  prune 2                                 current checkpoint
    reads the state up to event 100                                                    40
    stores parts 0, 1 of 100                 reads the state up to event 120           40
    stores part 2, makes 100 current         stores parts 0, 1, 2 of 120               100
    deletes events up to 100                 makes 120 current                         120
    is killed                                deletes events up to 120, parts of 100    120

Two prunes that read up to the same event store equal parts, because the events up to there determine the state. So one
may overwrite what the other has stored, or what a killed one has left, until one of them makes the checkpoint current.

The event and the entry with the highest id always stay, so no id is used twice.

**Space.** SQLite reuses the pages of deleted rows and does not shorten the file by itself. A file that this version
created (`auto_vacuum`, see `sqlite_engine.py`) can return free pages to the file system in small transactions, which is
the end of a prune. An older file keeps them for reuse until `SqliteStore.vacuum` rewrites it.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.errors import InvalidPayload
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.replay import Checkpoint, KernelState, current_checkpoint, id_ranges, set_current_checkpoint
from rota.model.checks import Checks
from rota.model.events import JournalCheckpointed, RowsPruned
from rota.store import Transaction
from rota.store.statements import file as file_sql
from rota.store.statements import journal as sql
from rota.store.statements import queue as queue_sql

__all__ = ["PRUNE_MAX", "PruneResult", "Retention"]

PRUNE_MAX = 1_000  # rows in one transaction
DROP_MAX = 4  # parts of old checkpoints deleted in one transaction: a part may have some 300 KB
_checks = Checks("Retention", InvalidPayload)


class PruneResult(NamedTuple):
    """What was removed."""

    events: int
    entries: int
    checkpoint_id: int
    freed_bytes: int = 0  # by which the file became shorter
    free_bytes: int = 0  # that new rows will use before the file grows


class Retention:
    """Writing checkpoints and removing old rows."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def checkpoint(self) -> int:
        """Write a checkpoint; returns the id of the last event that the current checkpoint includes."""
        now = self._env.now()
        state = self._env.read(KernelState.from_tables)  # one consistent view, which delays no writer
        new = Checkpoint(state.through_id, self._store_parts(state, now))

        def finish(tx: Transaction) -> int:
            current = current_checkpoint(tx)
            if current.through_id >= new.through_id:  # another process was faster
                return current.through_id
            set_current_checkpoint(tx, new)
            append(tx, JournalCheckpointed(through_id=new.through_id), now=now)
            return new.through_id

        through_id = self._env.write(finish)
        while self._env.write(lambda tx: tx.run(sql.CHECKPOINT_DROP, (through_id, DROP_MAX))):
            pass
        return through_id

    def _store_parts(self, state: KernelState, now: float) -> int:
        """Store a checkpoint's parts; returns their number. Ends early if another process has stored a newer one."""

        def store(tx: Transaction, part: int, body: str) -> bool:
            if current_checkpoint(tx).through_id >= state.through_id:
                return False
            tx.run(sql.CHECKPOINT_PUT, (state.through_id, part, now, body))
            return True

        parts = 0
        for body in state.checkpoint_parts():
            if not self._env.write(lambda tx, part=parts, body=body: store(tx, part, body)):  # type: ignore[misc]  # runs before the loop continues
                break
            parts += 1
        return parts

    def prune(self, *, events_older_than_s: float, entries_older_than_s: float) -> PruneResult:
        """Write a checkpoint, remove events and finished entries older than these ages, and shorten the file."""
        _checks.duration("events_older_than_s", events_older_than_s)
        _checks.duration("entries_older_than_s", entries_older_than_s)
        now = self._env.now()
        through_id = self.checkpoint()
        entries = self._prune_entries(now - entries_older_than_s, now)
        events = self._prune_events(now - events_older_than_s, now)
        return PruneResult(events, entries, through_id, *self._return_space())

    def _prune_events(self, before_at: float, now: float) -> int:
        def work(tx: Transaction) -> int:
            through_id = current_checkpoint(tx).through_id
            gone = [row[0] for row in tx.run(sql.EVENTS_PRUNE, (through_id, before_at, PRUNE_MAX))]
            if gone:
                append(tx, RowsPruned(table="agent_events", count=len(gone), ranges=[(min(gone), max(gone))]), now=now)
            return len(gone)

        count = 0
        while gone := self._env.write(work):
            count += gone
        return count

    def _prune_entries(self, before_at: float, now: float) -> int:
        ((first, last),) = self._env.read(lambda tx: tx.run(queue_sql.ENTRY_ENDS))
        count = 0
        for start in range((first or 1) - 1, last or 0, PRUNE_MAX):

            def work(tx: Transaction, start: int = start) -> int:
                rows = tx.run(queue_sql.FINISHED_PRUNE, (start, start + PRUNE_MAX, before_at))
                gone = {row[0]: "" for row in rows}
                if gone:
                    ranges = [(first, first + number - 1) for first, number, _ in id_ranges(gone)]
                    append(tx, RowsPruned(table="agent_schedule_queue", count=len(gone), ranges=ranges), now=now)
                return len(gone)

            count += self._env.write(work)
        return count

    def _return_space(self) -> tuple[int, int]:
        """Return free pages to the file system, in steps; returns the bytes that it got and those still free."""

        def step(tx: Transaction) -> tuple[int, int, int]:
            tx.run(file_sql.VACUUM_STEP)
            return _space(tx)

        page_bytes, before, free = self._env.read(_space)
        pages, left = before, free
        while left:
            _, pages, now_left = self._env.write_keeping_cache(step)
            if now_left >= left:  # an older file, or other processes free pages as fast
                break
            left = now_left
        return max(0, before - pages) * page_bytes, left * page_bytes


def _space(tx: Transaction) -> tuple[int, int, int]:
    ((page_bytes, pages, free),) = tx.run(file_sql.SPACE)
    return page_bytes, pages, free
