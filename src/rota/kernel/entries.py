"""Entries: looking at them, waiting for their end, changing and cancelling those that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from rota.kernel.core import READ_MAX, Core, Page, page
from rota.kernel.journal import append
from rota.kernel.results import Results
from rota.kernel.rows import entry_of, size_of
from rota.model.checks import Checks
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged, EntriesEnqueued
from rota.model.lifecycle import ENTRY, AgentState, advance
from rota.model.work import EXIT_KINDS, ReadyEntry
from rota.store import Row, Statement, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import queue as sql

__all__ = ["BATCH_MAX", "LIST_BYTES_MAX", "Entries", "EntryFilter", "lives"]

BATCH_MAX = 1_000  # entries changed in one transaction by a filter
LIST_BYTES_MAX = 32 * 1024 * 1024  # payloads and results in one page
_queue = Checks("Queue", SchedInvalidPayload)
_filter = Checks("Queue", SchedInvalidStateFilter)
_encode = msgspec.json.Encoder().encode
Ids: TypeAlias = list[int]


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries; None is any."""

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
            _queue.note(field, getattr(self, field))

    @property
    def row(self) -> tuple[Any, ...]:
        """As the statements take it."""
        return self.state, self.pid, self.project_id, self.trigger, self.exit_kind, self.tag


class Entries:
    """What can be done with entries that nobody runs."""

    def __init__(self, core: Core, results: Results) -> None:
        self._core = core
        self._results = results

    # --- looking ---------------------------------------------------------------------------------

    def get(self, sched_id: int) -> ReadyEntry:
        """One entry as it stands."""
        _queue.whole("sched_id", sched_id)
        rows = self._core.read(lambda tx: tx.run(sql.GET, (sched_id,)))
        if not rows:
            raise SchedUnknownId(sched_id)
        return entry_of(rows[0])

    def list(
        self, *, state: str | None = None, pid: int | None = None, limit: int = 100, offset: int = 0, **more: Any
    ) -> tuple[list[ReadyEntry], int]:
        """A page of entries by id, and how many match in all; also by project_id, trigger, exit_kind or tag."""
        wanted = EntryFilter(state=state, pid=pid, **more)
        at = page(limit, offset)
        statement = sql.FILTERED if pid is None else sql.FILTERED_OF_AGENT
        counting = sql.FILTERED_COUNT if pid is None else sql.FILTERED_COUNT_OF_AGENT
        if wanted.tag is not None:
            statement = sql.FILTERED_OF_TAG

        def work(tx: Transaction) -> tuple[list[ReadyEntry], int]:
            rows = _page_of(tx, statement, wanted, at)
            return [entry_of(row) for row in rows], int(tx.run(counting, wanted.row)[0][0])

        return self._core.read(work)

    def counts(self) -> dict[str, int]:
        """How many entries are in each state; those that wait for something also by why ("queued:time")."""
        rows = self._core.read(lambda tx: tx.run(sql.COUNT_BY_STATE))
        return {state if hold is None else f"{state}:{hold}": count for state, hold, count in rows}

    def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """The entry once it has ended; `WaitTimeout` if it has not within this time."""
        _queue.whole("sched_id", sched_id)
        _queue.duration("wait_s", wait_s)
        if not self._results.wait(sched_id, lambda: self.get(sched_id).state in ENTRY.final, wait_s):
            state = self.get(sched_id).state
            raise WaitTimeout(f"entry {sched_id} is still {state} after {wait_s:g} s", sched_id=sched_id)
        return self.get(sched_id)

    def watch(self, sched_id: int, call: Callable[[], None]) -> Callable[[], None]:
        """Have this called whenever there is reason to look whether an entry has ended; the answer ends it."""
        _queue.whole("sched_id", sched_id)
        return self._results.watch(sched_id, call)

    # --- changing what waits ---------------------------------------------------------------------

    def change(
        self,
        sched_id: int,
        *,
        priority: int | None = None,
        runnable_at: float | None = None,
        deadline: float | None = None,
    ) -> ReadyEntry:
        """Give a waiting entry another priority, time or deadline. A backed-off one can be sent on its way so."""
        changes: dict[str, Any] = {}
        if priority is not None:
            changes["priority"] = _queue.whole("priority", priority)
        if runnable_at is not None:
            changes["runnable_at"] = _queue.instant("runnable_at", runnable_at)
        if deadline is not None:
            changes["deadline"] = _queue.instant("deadline", deadline)
        now = self._core.now()

        def work(tx: Transaction) -> ReadyEntry:
            entry = _find(tx, sched_id)
            if entry.state != "queued":
                raise ENTRY.error(sched_id, entry.state, "change", legal=ENTRY.verbs(entry.state))
            changed = msgspec.structs.replace(entry, **changes)
            if changed.deadline is not None and changed.deadline < changed.runnable_at:
                raise _queue.refuse("deadline", f"({changed.deadline}) lies before runnable_at ({changed.runnable_at})")
            hold = _hold_after_change(entry, changed, now)
            tx.run(sql.CHANGE, (changed.priority, changed.runnable_at, changed.deadline, hold, sched_id))
            if hold == "worker":
                tx.run(sql.KEPT_PLACE, (changed.priority, changed.runnable_at, sched_id))
            elif entry.hold == "worker":
                affinity.forget(tx, [sched_id])
            event_id = append(tx, EntriesChanged(sched_ids=[sched_id], changes=changes), now=now, pid=entry.pid)
            if hold is None:
                flows.touch(tx, [(entry.pid, entry.project_id)], event_id=event_id)
            tx.notes.wake = True
            return _find(tx, sched_id)

        return self._core.write(work)

    def release(self, sched_id: int) -> ReadyEntry:
        """Let an entry run although one that it waits for failed, or although it is kept for a worker.

        For those under way it still waits.
        """
        now = self._core.now()

        def work(tx: Transaction) -> ReadyEntry:
            entry = _find(tx, sched_id)
            if entry.hold == "worker":
                affinity.release(tx, tx.run(sql.KEPT, (sched_id,)), now)
                return _find(tx, sched_id)
            held = tx.run(sql.DEPENDENT, (sched_id,))
            if not held:
                raise ENTRY.error(sched_id, entry.state, "release", legal=ENTRY.verbs(entry.state))
            append(tx, EntriesChanged(sched_ids=[sched_id], changes={"on_failed": "run"}), now=now, pid=entry.pid)
            dependencies.let_go(tx, self._core, held[0], now)
            return _find(tx, sched_id)

        return self._core.write(work)

    def cancel(self, sched_id: int) -> tuple[str, str]:
        """Cancel an entry that waits; the answer is (state before, state after)."""
        now = self._core.now()

        def work(tx: Transaction) -> tuple[str, str]:
            entry = _find(tx, sched_id)
            state = str(advance(ENTRY, entry.state, "cancel", sched_id))
            self._cancel(tx, [sched_id], now, None)
            return entry.state, state

        return self._core.write(work)

    def request_cancel(self, sched_id: int, *, by: str | None = None) -> str:
        """Ask an entry to stop: one that waits is cancelled, one that runs is told at its next heartbeat."""
        _queue.note("by", by)
        now = self._core.now()

        def work(tx: Transaction) -> str:
            entry = _find(tx, sched_id)
            if entry.state == "dispatched":
                tx.run(sql.REQUEST_CANCEL, (sched_id,))
                append(tx, CancelRequested(sched_ids=[sched_id], by=by), now=now, pid=entry.pid)
                return entry.state
            state = str(advance(ENTRY, entry.state, "cancel", sched_id))
            self._cancel(tx, [sched_id], now, by)
            return state

        return self._core.write(work)

    def cancel_where(self, wanted: EntryFilter, *, reason: str | None = None) -> int:
        """Cancel every waiting entry that matches, in bounded batches; the answer is how many."""
        _queue.note("reason", reason)
        _check_filter(wanted)
        if wanted.state not in (None, "queued"):
            return 0
        waiting = msgspec.structs.replace(wanted, state="queued")
        count = 0
        for ids in self._matching(waiting):
            now = self._core.now()

            def work(tx: Transaction, ids: list[int] = ids, now: float = now) -> int:
                still = [row[0] for row in tx.run(sql.WAITING, (_ids(ids),)) if row[1] == "queued"]
                if still:
                    self._cancel(tx, still, now, reason)
                return len(still)

            count += self._core.write(work)
        return count

    def cancel_some(self, tx: Transaction, wanted: EntryFilter, now: float, reason: str | None) -> None:
        """Cancel an agent's waiting entries, as many as one transaction should, with whatever else is in it."""
        waiting = msgspec.structs.replace(wanted, state="queued")
        ids = [row[0] for row in tx.run(sql.MATCHING_IDS_OF_AGENT, (*waiting.row, 0, BATCH_MAX))]
        if ids:
            self._cancel(tx, ids, now, reason)

    def retry(self, sched_id: int) -> int:
        """Run an entry again: a backed-off one at once, one that ended badly as a new entry, whose id is the answer."""
        now = self._core.now()

        def work(tx: Transaction) -> int:
            entry = _find(tx, sched_id)
            new = self._retry(tx, entry, now)
            if new is None:
                raise ENTRY.error(sched_id, entry.state, "retry", legal=ENTRY.verbs(entry.state))
            return new

        return self._core.write(work)

    def retry_where(self, wanted: EntryFilter) -> dict[int, int]:
        """Run again what matches: a backed-off entry at once, one that ended badly as a new entry.

        A finished entry never reopens, so its copy has an id of its own: the answer maps old to new.
        """
        _check_filter(wanted)
        again: dict[int, int] = {}
        for ids in self._matching(wanted):
            now = self._core.now()

            def work(tx: Transaction, ids: list[int] = ids, now: float = now) -> dict[int, int]:
                entries = [entry_of(row) for sched_id in ids for row in tx.run(sql.GET, (sched_id,))]
                return {entry.sched_id: new for entry in entries if (new := self._retry(tx, entry, now)) is not None}

            again |= self._core.write(work)
        return again

    def _retry(self, tx: Transaction, entry: ReadyEntry, now: float) -> int | None:
        if entry.state == "queued" and entry.hold == "backoff":
            tx.run(sql.CHANGE, (entry.priority, now, entry.deadline, None, entry.sched_id))
            fact = EntriesChanged(sched_ids=[entry.sched_id], changes={"runnable_at": now})
            flows.touch(tx, [(entry.pid, entry.project_id)], event_id=append(tx, fact, now=now, pid=entry.pid))
            tx.notes.wake = True
            return entry.sched_id
        if entry.state not in ENTRY.final or (entry.state == "completed" and entry.exit_kind == "completed"):
            return None
        if not lives(tx, entry.pid):
            return None
        new = int(tx.run(sql.COPY, (now, entry.sched_id))[0][0])
        tx.run(sql.COPY_TAGS, (new, entry.sched_id))
        cause = f"entry:{entry.sched_id}"
        append(tx, EntriesEnqueued(first_id=new), now=now, pid=entry.pid, causation_id=cause)
        tx.notes.wake = True
        return new

    def _cancel(self, tx: Transaction, sched_ids: Ids, now: float, reason: str | None) -> None:
        """Cancel entries that are known to wait, and see to those who wait for them."""
        affinity.forget(tx, sched_ids)
        tx.run_many(sql.CANCEL, [(now, reason, sched_id) for sched_id in sched_ids])
        append(tx, EntriesCancelled(sched_ids=sched_ids, reason=reason), now=now)
        ended = sched_ids + dependencies.ended(tx, self._core, sched_ids, now)
        tx.notes.after.append(lambda: self._results.tell(ended))

    def _matching(self, wanted: EntryFilter) -> Iterator[Ids]:
        """The ids that match, in batches; what is added meanwhile with a higher id may be met too."""
        seen_id = 0
        while True:
            statement = sql.MATCHING_IDS if wanted.pid is None else sql.MATCHING_IDS_OF_AGENT
            parameters = (*wanted.row, seen_id, BATCH_MAX)
            ids = [row[0] for row in self._core.read(lambda tx: tx.run(statement, parameters))]  # noqa: B023  # run at once
            if not ids:
                return
            yield ids
            seen_id = ids[-1]


# --- checks and look-ups -------------------------------------------------------------------------


def _check_filter(wanted: EntryFilter) -> None:
    if not isinstance(wanted, EntryFilter):
        raise _queue.refuse("wanted", f"must be an EntryFilter, not {type(wanted).__name__}")


def lives(tx: Transaction, pid: int) -> bool:
    """Whether an agent, which must exist, is alive."""
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    return bool(rows[0][0] != AgentState.DEAD)


def _page_of(tx: Transaction, statement: Statement, wanted: EntryFilter, at: Page) -> list[Row]:
    """The rows of a page, read in parts: one that is too large is refused before it fills the memory."""
    rows: list[Row] = []
    size = 0
    while len(rows) < at.limit:
        part = tx.run(statement, (*wanted.row, min(READ_MAX, at.limit - len(rows)), at.offset + len(rows)))
        rows += part
        size += sum(map(size_of, part))
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
    return entry_of(rows[0])


def _ids(values: Iterable[int]) -> str:
    return _encode(list(values)).decode()
