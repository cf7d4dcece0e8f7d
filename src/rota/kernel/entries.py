"""Entries: waiting for their end, changing and cancelling those that are queued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rota.errors import IllegalTransition, SchedInvalidPayload, SchedUnknownId, UnknownPid, WaitTimeout
from rota.kernel import affinity, dependencies, flows
from rota.kernel.entry_reads import EntryFilter, EntryReads
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.rows import entry_from_row, options_with_tags
from rota.model.checks import Checks
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged, EntriesEnqueued
from rota.model.lifecycle import ENTRY, AgentState
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import entry_lists as list_sql
from rota.store.statements import queue as sql

__all__ = ["BATCH_MAX", "Entries", "EntryFilter"]

BATCH_MAX = 1_000  # entries changed in one transaction by a filter
_queue = Checks("Queue", SchedInvalidPayload)
Ids: TypeAlias = list[int]  # in the class, `list` is a method


class RowToChange(NamedTuple):
    """What is read of an entry to change it; the order is the statement's."""

    sched_id: int
    state: str
    hold: str | None
    exit_kind: str | None
    runnable_at: float
    deadline: float | None
    priority: int
    pid: int
    project_id: str | None
    created_at: float
    options: str | None
    cancel_requested: int


class Entries(EntryReads):
    """Methods on entries that are not running."""

    def __init__(self, env: KernelEnvironment) -> None:
        super().__init__(env)
        self._env = env

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """Wait for an entry to end and return it; raises `WaitTimeout`."""
        _queue.whole("sched_id", sched_id)
        _queue.duration("wait_s", wait_s)
        if not self._env.waiters.wait(sched_id, lambda: self.get(sched_id).state in ENTRY.final, wait_s):
            status = self.get(sched_id).status
            raise WaitTimeout(f"entry {sched_id} is still {status} after {wait_s:g} s", sched_id=sched_id)
        return self.get(sched_id)

    def watch(self, sched_id: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever an entry may have ended; returns a function that stops it."""
        _queue.whole("sched_id", sched_id)
        return self._env.waiters.watch(sched_id, call)

    # --- changing queued entries -----------------------------------------------------------------

    def change(
        self,
        sched_id: int,
        *,
        priority: int | None = None,
        runnable_at: float | None = None,
        deadline: float | UnsetType | None = UNSET,
        tags: Sequence[str] | None = None,
    ) -> ReadyEntry:
        """Change the priority, runnable_at, deadline or tags of a queued entry; an earlier time also ends a back-off.

        The given tags replace all of its tags. A deadline of None removes it.
        """
        changes = checked_changes(priority=priority, runnable_at=runnable_at, deadline=deadline, tags=tags)

        def work(tx: Transaction) -> ReadyEntry:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            if entry.state != "queued":
                raise _illegal(entry, "change")
            (row,) = rows_to_change(tx, [sched_id])
            self._change(tx, [row], changes, now)
            return _find(tx, sched_id)

        return self._env.write(work)

    def _change(self, tx: Transaction, rows: Sequence[RowToChange], changes: dict[str, Any], now: float) -> None:
        """Change queued entries in the same way, with one event for all of them."""
        ready = [row for row in rows if _change_row(tx, row, changes, now) is None]
        event = EntriesChanged(sched_ids=[row.sched_id for row in rows], changes=changes)
        event_id = append(tx, event, now=now, pid=rows[0].pid if len(rows) == 1 else None)
        if ready:
            flows.mark_ready(tx, [(row.pid, row.project_id) for row in ready], event_id=event_id)
        tx.effects.wake_parked = True

    def wake_in(self, tx: Transaction, rows: Sequence[RowToChange], now: float) -> None:
        """End the wait of queued entries for a time, inside a transaction; those past their deadline are left."""
        changes = {"runnable_at": now}
        waiting = [row for row in rows if row.hold == "time" and problem_with_change(row, changes) is None]
        if waiting:
            self._env.cache.invalidate()
            self._change(tx, waiting, changes, now)
            self._env.cache.invalidate()

    def release(self, sched_id: int) -> ReadyEntry:
        """Release an entry from a failed predecessor or from its affinity hold.

        It still waits for predecessors that have not ended.
        """

        def work(tx: Transaction) -> ReadyEntry:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            (row,) = rows_to_change(tx, [sched_id])
            if not self._release(tx, row, now):
                raise _illegal(entry, "release")
            return _find(tx, sched_id)

        return self._env.write(work)

    def _release(self, tx: Transaction, row: RowToChange, now: float) -> bool:
        """Release an entry; returns whether it was held for a predecessor or a worker."""
        if row.hold == "worker":
            affinity.release(tx, self._env, tx.run(sql.AFFINITY_GET, (row.sched_id,)), now)
            return True
        held = tx.run(sql.DEPENDENT, (row.sched_id,))
        if held:
            append(tx, EntriesChanged(sched_ids=[row.sched_id], changes={"on_failed": "run"}), now=now, pid=row.pid)
            dependencies.run_despite_failure(tx, self._env, held[0], now)
        return bool(held)

    def cancel(self, sched_id: int) -> tuple[str, str]:
        """Cancel a queued entry; returns (state before, state after)."""

        def work(tx: Transaction) -> tuple[str, str]:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            state = _cancelled(entry)
            self._cancel(tx, [sched_id], now, None)
            return entry.state, state

        return self._env.write(work)

    def request_cancel(self, sched_id: int, *, by: str | None = None) -> str:
        """Cancel a queued entry, or ask a running one to stop at its next heartbeat; returns its state."""
        _queue.optional_text("by", by)

        def work(tx: Transaction) -> str:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            if entry.state == "dispatched":
                tx.run(sql.REQUEST_CANCEL, (sched_id,))
                append(tx, CancelRequested(sched_ids=[sched_id], by=by), now=now, pid=entry.pid)
                return entry.state
            state = _cancelled(entry)
            self._cancel(tx, [sched_id], now, by)
            return state

        return self._env.write(work)

    def cancel_batch_in(self, tx: Transaction, wanted: EntryFilter, now: float, reason: str | None) -> None:
        """Cancel at most `BATCH_MAX` queued entries of an agent inside a transaction."""
        queued = msgspec.structs.replace(wanted, state="queued")
        ids = [row[0] for row in tx.run(list_sql.MATCHING_IDS_OF_AGENT, (*queued.row, 0, BATCH_MAX))]
        if ids:
            self._cancel(tx, ids, now, reason)

    def retry(self, sched_id: int) -> int:
        """End an entry's back-off, or enqueue a copy of an entry that did not succeed; returns the id that will run."""

        def work(tx: Transaction) -> int:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            (row,) = rows_to_change(tx, [sched_id])
            new = self._retry(tx, row, now)
            if new is None:
                raise _illegal(entry, "retry")
            return new

        return self._env.write(work)

    def _retry(self, tx: Transaction, row: RowToChange, now: float) -> int | None:
        if row.state == "queued" and row.hold == "backoff":
            tx.run(sql.CHANGE, (row.priority, now, row.deadline, None, False, row.sched_id))
            event = EntriesChanged(sched_ids=[row.sched_id], changes={"runnable_at": now})
            flows.mark_ready(tx, [(row.pid, row.project_id)], event_id=append(tx, event, now=now, pid=row.pid))
            tx.effects.wake_parked = True
            return row.sched_id
        if row.state not in ENTRY.final or (row.state == "completed" and row.exit_kind == "completed"):
            return None
        if not is_alive(tx, row.pid):
            return None
        new = int(tx.run(sql.COPY, (now, row.sched_id))[0][0])
        tx.run(sql.COPY_TAGS, (new, row.sched_id))
        cause = f"entry:{row.sched_id}"
        append(tx, EntriesEnqueued(first_id=new), now=now, pid=row.pid, causation_id=cause)
        tx.effects.wake_parked = True
        return new

    def _cancel(self, tx: Transaction, sched_ids: Ids, now: float, reason: str | None) -> None:
        """Cancel entries that are known to be queued, and process their dependents."""
        affinity.drop_holds(tx, sched_ids)
        tx.run_many(sql.CANCEL, [(now, reason, sched_id) for sched_id in sched_ids])
        append(tx, EntriesCancelled(sched_ids=sched_ids, reason=reason), now=now)
        ended = sched_ids + dependencies.resolve_dependents(tx, self._env, sched_ids, now)
        self._env.waiters.notify_on_commit(tx, ended)


# --- checks and look-ups -------------------------------------------------------------------------


def checked_changes(
    *,
    priority: int | None = None,
    runnable_at: float | None = None,
    deadline: float | UnsetType | None = UNSET,
    tags: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return what is given, by field, or raise for an invalid value. A deadline of None removes it."""
    changes: dict[str, Any] = {}
    if priority is not None:
        changes["priority"] = _queue.whole("priority", priority)
    if runnable_at is not None:
        changes["runnable_at"] = _queue.instant("runnable_at", runnable_at)
    if deadline is not UNSET:
        changes["deadline"] = None if deadline is None else _queue.instant("deadline", deadline)
    if tags is not None:
        given = tuple(tags) if isinstance(tags, list) else tags
        changes["tags"] = tuple(dict.fromkeys(_queue.names("tags", given)))
    return changes


def is_alive(tx: Transaction, pid: int) -> bool:
    """Whether an agent is alive; raises if it does not exist."""
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    return bool(rows[0][0] != AgentState.DEAD)


def rows_to_change(tx: Transaction, sched_ids: Sequence[int]) -> list[RowToChange]:
    """Return the rows of some entries, by id."""
    return [RowToChange(*row) for row in tx.run_for(sql.FOR_CHANGE, sched_ids)]


def problem_with_change(row: RowToChange, changes: dict[str, Any]) -> str | None:
    """Return why the deadline and the time that an entry would have exclude each other; None if they do not."""
    deadline, runnable_at = changes.get("deadline", row.deadline), changes.get("runnable_at", row.runnable_at)
    if deadline is None or deadline >= runnable_at:
        return None
    return f"lies {runnable_at - deadline:,.0f} s before runnable_at"


def _change_row(tx: Transaction, row: RowToChange, changes: dict[str, Any], now: float) -> str | None:
    """Change one queued entry; returns its hold then."""
    if (problem := problem_with_change(row, changes)) is not None:
        raise _queue.refuse("deadline", problem)
    changed = row._replace(**{field: value for field, value in changes.items() if field != "tags"})
    hold = _hold_after_change(row, changed, now)
    by_date = changed.runnable_at > now if "runnable_at" in changes else None
    tx.run(sql.CHANGE, (changed.priority, changed.runnable_at, changed.deadline, hold, by_date, row.sched_id))
    if hold == "worker":
        tx.run(sql.AFFINITY_REORDER, (changed.priority, changed.runnable_at, row.sched_id))
    elif row.hold == "worker":
        affinity.drop_holds(tx, [row.sched_id])
    if "tags" in changes:
        tx.run(sql.SET_OPTIONS, (options_with_tags(row.options, changes["tags"]), row.sched_id))
        tx.run(sql.UNTAG, (row.sched_id,))
        for tag in changes["tags"]:
            tx.run(sql.TAG, (tag, row.sched_id))
    return hold


def _hold_after_change(row: RowToChange, changed: RowToChange, now: float) -> str | None:
    if row.hold == "after":
        return "after"
    if changed.runnable_at <= now:
        return "worker" if row.hold == "worker" else None
    return row.hold if row.hold == "backoff" else "time"


def _cancelled(entry: ReadyEntry) -> str:
    """Return the state of an entry once it is cancelled, or raise if it cannot be."""
    state = ENTRY.arrows.get((entry.state, "cancel"))
    if state is None:
        raise _illegal(entry, "cancel")
    return str(state)


_DONE = {"cancel": "cancelled", "change": "changed", "release": "released", "retry": "retried"}


def _illegal(entry: ReadyEntry, verb: str) -> IllegalTransition:
    """Return the error for a verb that does not apply to an entry, with what can be done instead."""
    error = ENTRY.error(entry.sched_id, entry.state, verb, legal=ENTRY.verbs(entry.state))
    error.message = f"entry {entry.sched_id} is {entry.status} and cannot be {_DONE[verb]}"
    if entry.state == "dispatched":
        error.hint = f"It is running: `rota cancel {entry.sched_id} --stop` asks it to stop."
    elif entry.state == "queued":
        error.hint = f"It is queued: `rota why {entry.sched_id}` says what it waits for."
    elif verb != "retry":
        error.hint = f"It has ended: `rota show {entry.sched_id}` says how."
    elif entry.exit_kind == "completed":
        error.hint = "It succeeded: enqueue a new entry to run its agent again."
    else:
        error.hint = f"Its agent, {entry.pid}, has ended: enqueue a new entry of another one."
    return error


def _find(tx: Transaction, sched_id: int) -> ReadyEntry:
    rows: Sequence[Row] = tx.run(sql.GET, (_queue.whole("sched_id", sched_id),))
    if not rows:
        raise SchedUnknownId(sched_id)
    return entry_from_row(rows[0])
