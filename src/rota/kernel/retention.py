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
   entries are deleted together with the event that names them; those that are needed stay (finished_entries.py).
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

Usage per day is added up from the journal (`usage.py`). So no event is deleted before it is in there, and no entry
before all events are: the transaction that deletes entries first adds what is left, at most one step of it.

The event and the entry with the highest id always stay, so no id is used twice.

**Space.** SQLite reuses the pages of deleted rows and does not shorten the file by itself. A file that this version
created (`auto_vacuum`, see `sqlite_engine.py`) can return free pages to the file system in small transactions, which is
the end of a prune. An older file keeps them for reuse until `SqliteStore.vacuum` rewrites it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rota.errors import InvalidPayload
from rota.kernel.environment import KernelEnvironment
from rota.kernel.finished_entries import Finished, collect, finished_before, finished_cursor, remove
from rota.kernel.journal import append
from rota.kernel.replay import Checkpoint, KernelState, current_checkpoint, set_current_checkpoint
from rota.kernel.usage import Usage, fold_in, usage_cursor
from rota.model.checks import INTEGER_MAX, Checks
from rota.model.events import JournalCheckpointed, RowsPruned
from rota.store import Transaction
from rota.store.statements import file as file_sql
from rota.store.statements import journal as sql
from rota.store.statements import retention as retention_sql

__all__ = ["PRUNE_MAX", "PruneResult", "Retention", "file_space"]

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
        self._usage = Usage(env)

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
        _, pages, _ = self._env.read(file_space)
        through_id = self.checkpoint()
        self._usage.fold()
        entries = self._prune_entries(now - entries_older_than_s, now)
        events = self._prune_events(now - events_older_than_s, now)
        return PruneResult(events, entries, through_id, *self.return_space(pages))

    def _prune_events(self, before_at: float, now: float) -> int:
        count = 0
        while gone := self.remove_events(before_at, INTEGER_MAX, PRUNE_MAX, now):
            count += gone
        return count

    def remove_events(self, before_at: float, until: int, max_n: int, now: float) -> int:
        """Delete the first events before a time and up to an id, in one transaction, behind the checkpoint.

        Returns how many.
        """

        def work(tx: Transaction) -> int:
            through_id = min(until, current_checkpoint(tx).through_id, usage_cursor(tx), finished_cursor(tx))
            gone = [row[0] for row in tx.run(sql.EVENTS_PRUNE, (through_id, before_at, max_n))]
            if gone:
                append(tx, RowsPruned(table="agent_events", count=len(gone), ranges=[(min(gone), max(gone))]), now=now)
            return len(gone)

        return self._env.write_keeping_cache(work)

    def _prune_entries(self, before_at: float, now: float) -> int:
        """Remove every finished entry that ended before a time and that nothing needs."""
        while collect(self._env):
            pass
        (_, until, _), after, count = self._env.read(lambda tx: tx.run(retention_sql.FINISHED_ENDS)[0]), 0, 0
        while finished := self._env.read(partial(_finished_before, before_at, after, until)):
            count += self.remove_finished(finished, now)
            after = finished[-1].place
        return count

    def remove_finished(self, finished: list[Finished], now: float) -> int:
        """Delete entries in one transaction, after the usage of all events was added up; returns how many."""

        def work(tx: Transaction) -> int | None:
            return remove(tx, finished, now) if fold_in(tx) else None

        while (gone := self._env.write_keeping_cache(work)) is None:  # many events came in between
            self._usage.fold()
        return gone

    def return_space(self, before: int) -> tuple[int, int]:
        """Return free pages to the file system, in steps; returns the bytes by which the file, which had `before`
        pages, became shorter, and those still free."""

        def step(tx: Transaction) -> tuple[int, int, int]:
            tx.run(file_sql.VACUUM_STEP)
            return file_space(tx)

        page_bytes, pages, left = self._env.read(file_space)
        while left:
            _, pages, now_left = self._env.write_keeping_cache(step)
            if now_left >= left:  # an older file, or other processes free pages as fast
                break
            left = now_left
        return max(0, before - pages) * page_bytes, left * page_bytes


def _finished_before(before_at: float, after: int, until: int, tx: Transaction) -> list[Finished]:
    return finished_before(tx, before_at, after, until, PRUNE_MAX)


def file_space(tx: Transaction) -> tuple[int, int, int]:
    """Return the size of a page, the number of pages, and how many of them are free."""
    ((page_bytes, pages, free),) = tx.run(file_sql.SPACE)
    return page_bytes, pages, free
