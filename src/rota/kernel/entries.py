"""Entries: reading them, waiting for their end, changing and cancelling those that are queued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from rota.errors import (
    LimitExceeded,
    SchedInvalidPayload,
    SchedInvalidStateFilter,
    SchedUnknownId,
    UnknownPid,
    WaitTimeout,
)
from rota.kernel import affinity, dependencies, flows
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.paging import READ_MAX, Page, page
from rota.kernel.progress import NoRepeats
from rota.kernel.rows import entry_from_row, payload_bytes
from rota.model.checks import Checks
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged, EntriesEnqueued
from rota.model.lifecycle import ENTRY, AgentState, advance
from rota.model.work import EXIT_KINDS, ReadyEntry
from rota.store import Row, Statement, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import queue as sql

__all__ = ["BATCH_MAX", "LIST_BYTES_MAX", "Entries", "EntryFilter", "EntryGroup", "read_page"]

BATCH_MAX = 1_000  # entries changed in one transaction by a filter
LIST_BYTES_MAX = 32 * 1024 * 1024  # of payloads and results in one page
_queue = Checks("Queue", SchedInvalidPayload)
_filter = Checks("Queue", SchedInvalidStateFilter)
Ids: TypeAlias = list[int]  # in the class, `list` is a method
Groups: TypeAlias = "list[EntryGroup]"


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that an entry must meet; None matches any value."""

    state: str | None = None
    pid: int | None = None
    project_id: str | None = None
    trigger: str | None = None
    exit_kind: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None:
            _filter.one_of("state", self.state, ENTRY.states)
        if self.pid is not None:
            _queue.whole("pid", self.pid)
        if self.exit_kind is not None:
            _queue.one_of("exit_kind", self.exit_kind, EXIT_KINDS)
        for field in ("project_id", "trigger", "tag"):
            _queue.optional_text(field, getattr(self, field))

    @property
    def row(self) -> tuple[Any, ...]:
        """The filter as statement parameters."""
        return self.state, self.pid, self.project_id, self.trigger, self.exit_kind, self.tag


class EntryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one agent that have not ended and wait for the same: at any moment all of them may run, or none."""

    pid: int
    state: str  # queued or dispatched
    hold: str | None = None
    kind: str | None = None
    worker_id: str | None = None  # of those that run
    count: int
    sched_id: int  # the lowest
    runnable_at: float  # the earliest
    claim_expires_at: float | None = None  # the earliest, of those that run


class Entries:
    """Methods on entries that are not running."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    # --- reading and waiting ---------------------------------------------------------------------

    def get(self, sched_id: int) -> ReadyEntry:
        """Return one entry."""
        _queue.whole("sched_id", sched_id)
        rows = self._env.read(lambda tx: tx.run(sql.GET, (sched_id,)))
        if not rows:
            raise SchedUnknownId(sched_id)
        return entry_from_row(rows[0])

    def list(
        self, *, state: str | None = None, pid: int | None = None, limit: int = 100, offset: int = 0, **more: Any
    ) -> tuple[list[ReadyEntry], int]:
        """Return a page of entries by id and the total number; filters also by project_id, trigger, exit_kind, tag."""
        wanted = EntryFilter(state=state, pid=pid, **more)
        window = page(limit, offset)
        statement = sql.FILTERED if pid is None else sql.FILTERED_OF_AGENT
        counting = sql.FILTERED_COUNT if pid is None else sql.FILTERED_COUNT_OF_AGENT
        if wanted.tag is not None:
            statement = sql.FILTERED_OF_TAG

        def work(tx: Transaction) -> tuple[list[ReadyEntry], int]:
            rows = read_page(tx, statement, wanted.row, window)
            return [entry_from_row(row) for row in rows], int(tx.run(counting, wanted.row)[0][0])

        return self._env.read(work)

    def counts(self) -> dict[str, int]:
        """Return the number of entries by state, and by hold for those that have one ("queued:time")."""
        rows = self._env.read(lambda tx: tx.run(sql.COUNT_BY_STATE))
        return {state if hold is None else f"{state}:{hold}": count for state, hold, count in rows}

    def unfinished(self, limit: int = 1_000) -> Groups:
        """Return what is queued or running, in groups; the group with the lowest id first."""
        window = page(limit, 0)
        rows = self._env.read(lambda tx: tx.run(sql.UNFINISHED, (window.limit,)))
        return [EntryGroup(**dict(zip(EntryGroup.__struct_fields__, row, strict=True))) for row in rows]

    def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """Wait for an entry to end and return it; raises `WaitTimeout`."""
        _queue.whole("sched_id", sched_id)
        _queue.duration("wait_s", wait_s)
        if not self._env.waiters.wait(sched_id, lambda: self.get(sched_id).state in ENTRY.final, wait_s):
            state = self.get(sched_id).state
            raise WaitTimeout(f"entry {sched_id} is still {state} after {wait_s:g} s", sched_id=sched_id)
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
        deadline: float | None = None,
    ) -> ReadyEntry:
        """Change the priority, runnable_at or deadline of a queued entry; an earlier time also ends a back-off."""
        changes: dict[str, Any] = {}
        if priority is not None:
            changes["priority"] = _queue.whole("priority", priority)
        if runnable_at is not None:
            changes["runnable_at"] = _queue.instant("runnable_at", runnable_at)
        if deadline is not None:
            changes["deadline"] = _queue.instant("deadline", deadline)

        def work(tx: Transaction) -> ReadyEntry:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            if entry.state != "queued":
                raise ENTRY.error(sched_id, entry.state, "change", legal=ENTRY.verbs(entry.state))
            changed = msgspec.structs.replace(entry, **changes)
            if changed.deadline is not None and changed.deadline < changed.runnable_at:
                raise _queue.refuse("deadline", f"({changed.deadline}) is before runnable_at ({changed.runnable_at})")
            hold = _hold_after_change(entry, changed, now)
            by_date = None if runnable_at is None else runnable_at > now
            tx.run(sql.CHANGE, (changed.priority, changed.runnable_at, changed.deadline, hold, by_date, sched_id))
            if hold == "worker":
                tx.run(sql.AFFINITY_REORDER, (changed.priority, changed.runnable_at, sched_id))
            elif entry.hold == "worker":
                affinity.drop_holds(tx, [sched_id])
            event_id = append(tx, EntriesChanged(sched_ids=[sched_id], changes=changes), now=now, pid=entry.pid)
            if hold is None:
                flows.mark_ready(tx, [(entry.pid, entry.project_id)], event_id=event_id)
            tx.effects.wake_parked = True
            return _find(tx, sched_id)

        return self._env.write(work)

    def release(self, sched_id: int) -> ReadyEntry:
        """Release an entry from a failed predecessor or from its affinity hold.

        It still waits for predecessors that have not ended.
        """

        def work(tx: Transaction) -> ReadyEntry:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            if entry.hold == "worker":
                affinity.release(tx, self._env, tx.run(sql.AFFINITY_GET, (sched_id,)), now)
                return _find(tx, sched_id)
            held = tx.run(sql.DEPENDENT, (sched_id,))
            if not held:
                raise ENTRY.error(sched_id, entry.state, "release", legal=ENTRY.verbs(entry.state))
            append(tx, EntriesChanged(sched_ids=[sched_id], changes={"on_failed": "run"}), now=now, pid=entry.pid)
            dependencies.run_despite_failure(tx, self._env, held[0], now)
            return _find(tx, sched_id)

        return self._env.write(work)

    def cancel(self, sched_id: int) -> tuple[str, str]:
        """Cancel a queued entry; returns (state before, state after)."""

        def work(tx: Transaction) -> tuple[str, str]:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            state = str(advance(ENTRY, entry.state, "cancel", sched_id))
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
            state = str(advance(ENTRY, entry.state, "cancel", sched_id))
            self._cancel(tx, [sched_id], now, by)
            return state

        return self._env.write(work)

    def cancel_where(self, wanted: EntryFilter, *, reason: str | None = None) -> int:
        """Cancel every queued entry that matches, in bounded batches; returns the number."""
        _queue.optional_text("reason", reason)
        _check_filter(wanted)
        if wanted.state not in (None, "queued"):
            return 0
        queued = msgspec.structs.replace(wanted, state="queued")
        count = 0
        for ids in self._matching(queued):

            def work(tx: Transaction, ids: list[int] = ids) -> int:
                now = self._env.read_clock(tx)
                still = [row[0] for row in tx.run_for(sql.FOR_CHANGE, ids) if row[1] == "queued"]
                if still:
                    self._cancel(tx, still, now, reason)
                return len(still)

            count += self._env.write(work)
        return count

    def cancel_batch_in(self, tx: Transaction, wanted: EntryFilter, now: float, reason: str | None) -> None:
        """Cancel at most `BATCH_MAX` queued entries of an agent inside a transaction."""
        queued = msgspec.structs.replace(wanted, state="queued")
        ids = [row[0] for row in tx.run(sql.MATCHING_IDS_OF_AGENT, (*queued.row, 0, BATCH_MAX))]
        if ids:
            self._cancel(tx, ids, now, reason)

    def retry(self, sched_id: int) -> int:
        """End an entry's back-off, or enqueue a copy of an entry that did not succeed; returns the id that will run."""

        def work(tx: Transaction) -> int:
            now = self._env.read_clock(tx)
            entry = _find(tx, sched_id)
            new = self._retry(tx, entry, now)
            if new is None:
                raise ENTRY.error(sched_id, entry.state, "retry", legal=ENTRY.verbs(entry.state))
            return new

        return self._env.write(work)

    def retry_where(self, wanted: EntryFilter) -> dict[int, int]:
        """Retry every entry that matches, as `retry` does; returns a map from old ids to new ones.

        A finished entry never reopens, so its copy has a new id.
        """
        _check_filter(wanted)
        retried: dict[int, int] = {}
        for ids in self._matching(wanted):

            def work(tx: Transaction, ids: list[int] = ids) -> dict[int, int]:
                now = self._env.read_clock(tx)
                entries = [entry_from_row(row) for sched_id in ids for row in tx.run(sql.GET, (sched_id,))]
                return {entry.sched_id: new for entry in entries if (new := self._retry(tx, entry, now)) is not None}

            retried |= self._env.write(work)
        return retried

    def _retry(self, tx: Transaction, entry: ReadyEntry, now: float) -> int | None:
        if entry.state == "queued" and entry.hold == "backoff":
            tx.run(sql.CHANGE, (entry.priority, now, entry.deadline, None, False, entry.sched_id))
            event = EntriesChanged(sched_ids=[entry.sched_id], changes={"runnable_at": now})
            flows.mark_ready(tx, [(entry.pid, entry.project_id)], event_id=append(tx, event, now=now, pid=entry.pid))
            tx.effects.wake_parked = True
            return entry.sched_id
        if entry.state not in ENTRY.final or (entry.state == "completed" and entry.exit_kind == "completed"):
            return None
        if not _is_alive(tx, entry.pid):
            return None
        new = int(tx.run(sql.COPY, (now, entry.sched_id))[0][0])
        tx.run(sql.COPY_TAGS, (new, entry.sched_id))
        cause = f"entry:{entry.sched_id}"
        append(tx, EntriesEnqueued(first_id=new), now=now, pid=entry.pid, causation_id=cause)
        tx.effects.wake_parked = True
        return new

    def _cancel(self, tx: Transaction, sched_ids: Ids, now: float, reason: str | None) -> None:
        """Cancel entries that are known to be queued, and process their dependents."""
        affinity.drop_holds(tx, sched_ids)
        tx.run_many(sql.CANCEL, [(now, reason, sched_id) for sched_id in sched_ids])
        append(tx, EntriesCancelled(sched_ids=sched_ids, reason=reason), now=now)
        ended = sched_ids + dependencies.resolve_dependents(tx, self._env, sched_ids, now)
        self._env.waiters.notify_on_commit(tx, ended)

    def _matching(self, wanted: EntryFilter) -> Iterator[Ids]:
        """Yield matching ids in batches; entries enqueued meanwhile may be among them."""
        last_id, seen = 0, NoRepeats("entries")
        while True:
            statement = sql.MATCHING_IDS if wanted.pid is None else sql.MATCHING_IDS_OF_AGENT
            parameters = (*wanted.row, last_id, BATCH_MAX)
            ids = [row[0] for row in self._env.read(lambda tx: tx.run(statement, parameters))]  # noqa: B023  # runs before the loop continues
            if not ids:
                return
            seen.check(ids)
            yield ids
            last_id = ids[-1]


# --- checks and look-ups -------------------------------------------------------------------------


def _check_filter(wanted: EntryFilter) -> None:
    if not isinstance(wanted, EntryFilter):
        raise _queue.refuse("wanted", f"must be an EntryFilter, not {type(wanted).__name__}")


def _is_alive(tx: Transaction, pid: int) -> bool:
    """Whether an agent is alive; raises if it does not exist."""
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    return bool(rows[0][0] != AgentState.DEAD)


def read_page(tx: Transaction, statement: Statement, wanted: tuple[Any, ...], window: Page) -> list[Row]:
    """Read a page in parts, so that one that is too large is refused before it fills the memory."""
    rows: list[Row] = []
    size = 0
    while len(rows) < window.limit:
        part = tx.run(statement, (*wanted, min(READ_MAX, window.limit - len(rows)), window.offset + len(rows)))
        rows += part
        size += sum(map(payload_bytes, part))
        if size > LIST_BYTES_MAX:
            raise LimitExceeded("list_bytes_max", LIST_BYTES_MAX, size, field="limit")
        if len(part) < READ_MAX:
            break
    return rows


def _hold_after_change(entry: ReadyEntry, changed: ReadyEntry, now: float) -> str | None:
    if entry.hold == "after":
        return "after"
    if changed.runnable_at <= now:
        return "worker" if entry.hold == "worker" else None
    return entry.hold if entry.hold == "backoff" else "time"


def _find(tx: Transaction, sched_id: int) -> ReadyEntry:
    rows: Sequence[Row] = tx.run(sql.GET, (_queue.whole("sched_id", sched_id),))
    if not rows:
        raise SchedUnknownId(sched_id)
    return entry_from_row(rows[0])
