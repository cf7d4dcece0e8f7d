"""Entries: putting them into the queue, looking at them, changing and cancelling those that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rota.errors import (
    RotaError,
    SchedInvalidPayload,
    SchedInvalidStateFilter,
    SchedUnknownId,
    UnknownPid,
    WaitTimeout,
)
from rota.kernel import after, flows
from rota.kernel.core import Core, page
from rota.kernel.journal import append
from rota.kernel.results import Results
from rota.kernel.rows import encode_json, entry_of, needs_of, written
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged, EntriesEnqueued
from rota.model.lifecycle import ENTRY, AgentState, advance
from rota.model.work import EXIT_KINDS, ReadyEntry, ScheduleSpec
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import queue as sql

__all__ = ["BATCH_MAX", "ENQUEUE_MAX", "Entries", "EntryFilter"]

ENQUEUE_MAX = 10_000  # entries in one enqueue_many
BATCH_MAX = 1_000  # entries changed in one transaction by a filter
_queue = Checks("Queue", SchedInvalidPayload)
_filter = Checks("Queue", SchedInvalidStateFilter)
_encode = msgspec.json.Encoder().encode
Ids: TypeAlias = list[int]
_DEDUPE_BY = ("pid", "trigger", "payload")


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


class _New(NamedTuple):
    """An entry about to be written."""

    spec: ScheduleSpec
    payload: str


class _Fresh:
    """The entries a call has made."""

    __slots__ = ("held", "ids", "in_vain")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.held: dict[str, list[int]] = {}  # by reason
        self.in_vain: list[int] = []  # they wait for what has already failed

    def add(self, sched_id: int, hold: str | None) -> None:
        self.ids.append(sched_id)
        if hold == "cancel":
            self.in_vain.append(sched_id)
        elif hold is not None:
            self.held.setdefault(hold, []).append(sched_id)


class Entries:
    """What can be done with entries that nobody runs."""

    def __init__(self, core: Core, results: Results) -> None:
        self._core = core
        self._results = results

    # --- in --------------------------------------------------------------------------------------

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue; its sched_id is the answer once it is durable."""
        new = _checked(spec)
        now = self._core.now()
        simple = spec.is_plain and spec.key is None and not spec.after
        if not simple or spec.runnable_at > now or spec.deadline is not None:
            return self._core.write(lambda tx: self._enqueue(tx, [new], now)[0])
        return self._core.write_steadily(lambda tx: self._enqueue_simple(tx, new, now))

    def _enqueue_simple(self, tx: Transaction, new: _New, now: float) -> int:
        """Write one entry of the usual kind, ready at once, of which nothing has to be looked up."""
        sched_id = _write(tx, new, None, None, now)
        append(tx, EntriesEnqueued(first_id=sched_id), now=now, pid=new.spec.pid)
        tx.notes.wake = True
        return sched_id

    def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Put many entries in: all or none. An `after` of -1 is the entry just before, in the same call."""
        _queue.sequence("specs", specs)
        if len(specs) > ENQUEUE_MAX:
            raise _queue.refuse("specs", f"may be at most {ENQUEUE_MAX:,}, not {len(specs):,}")
        new: list[_New] = []
        try:
            for spec in specs:
                new.append(_checked(spec))  # noqa: PERF401  # how far it came says which one was wrong
        except RotaError as error:
            raise _naming(error, len(new)) from None
        if not new:
            return []
        now = self._core.now()
        if any(spec.key is not None or spec.after or spec.tags or spec.parent_id is not None for spec in specs):
            return self._core.write(lambda tx: self._enqueue(tx, new, now))
        return self._core.write(lambda tx: self._enqueue_together(tx, new, now))

    def _enqueue_together(self, tx: Transaction, batch: list[_New], now: float) -> list[int]:
        """Write many entries of which nothing but their agents has to be looked up."""
        projects = _living(tx, batch)
        first_id = tx.insert_many(sql.ENQUEUE_MANY, [_row(new, projects[new.spec.pid], now) for new in batch])
        held = [first_id + index for index, new in enumerate(batch) if new.spec.runnable_at > now]
        fact = EntriesEnqueued(first_id=first_id, count=len(batch), held={"time": held} if held else {})
        append(tx, fact, now=now)
        tx.notes.wake = True
        return list(range(first_id, first_id + len(batch)))

    def enqueue_unique(self, spec: ScheduleSpec, dedupe_by: Sequence[str] = ("pid", "trigger")) -> tuple[int, bool]:
        """Put an entry in unless one like it waits or runs; the answer is its id, and whether it is new."""
        for field in _queue.texts("dedupe_by", tuple(dedupe_by) if isinstance(dedupe_by, list) else dedupe_by):
            _queue.one_of("dedupe_by", field, _DEDUPE_BY)
        if "pid" not in dedupe_by:
            raise _queue.refuse("dedupe_by", "must name pid: entries are compared within one agent")
        new = _checked(spec)
        now = self._core.now()

        def work(tx: Transaction) -> tuple[int, bool]:
            trigger = spec.trigger if "trigger" in dedupe_by else None
            payload = new.payload if "payload" in dedupe_by else None
            there = tx.run(sql.BY_KEY, (spec.key,)) if spec.key is not None else []
            there = there or tx.run(sql.ALIKE, (spec.pid, trigger, payload))
            if there:
                return int(there[0][0]), False
            return self._enqueue(tx, [new], now)[0], True

        return self._core.write(work)

    def _enqueue(self, tx: Transaction, batch: list[_New], now: float) -> list[int]:
        """Write entries and the one fact about them. Ids of new entries follow one another."""
        ids: list[int] = []
        fresh = _Fresh()
        for index, new in enumerate(batch):
            known = tx.run(sql.BY_KEY, (new.spec.key,)) if new.spec.key is not None else ()
            if known:
                ids.append(int(known[0][0]))
                continue
            try:
                sched_id, hold = self._insert(tx, new, ids, now)
            except RotaError as error:
                raise (_naming(error, index) if len(batch) > 1 else error) from None
            ids.append(sched_id)
            fresh.add(sched_id, hold)
        if fresh.ids:
            self._tell(tx, batch, fresh, now)
        if fresh.in_vain:
            self._cancel(tx, fresh.in_vain, now, "predecessor_failed")
        return ids

    def _tell(self, tx: Transaction, batch: list[_New], fresh: _Fresh, now: float) -> None:
        count = len(fresh.ids)
        fact = EntriesEnqueued(first_id=fresh.ids[0], count=count, held=fresh.held, deduped=len(batch) - count)
        pid = cause = story = None
        if len(batch) == 1:
            spec = batch[0].spec
            pid, cause, story = spec.pid, spec.causation_id, spec.correlation_id
        append(tx, fact, now=now, pid=pid, causation_id=cause, correlation_id=story)
        tx.notes.wake = True  # also for what is held: a parked claim learns when it falls due

    def _insert(self, tx: Transaction, new: _New, earlier: list[int], now: float) -> tuple[int, str | None]:
        """Write one entry; the answer is its id and why it is held (or "cancel" if it waits in vain)."""
        spec = new.spec
        predecessors = tuple(_resolve(other, earlier) for other in spec.after)
        hold = after.hold_for(tx, predecessors, spec.on_failed) if predecessors else None
        stored = "after" if hold is not None else ("time" if spec.runnable_at > now else None)
        sched_id = _write(tx, new, stored, _call_path(tx, spec.parent_id), now)
        if predecessors:
            after.wait_for(tx, sched_id, predecessors)
        if spec.tags:
            tx.run_many(sql.TAG, [(tag, sched_id) for tag in dict.fromkeys(spec.tags)])
        return sched_id, hold if hold == "cancel" else stored

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
            rows = tx.run(statement, (*wanted.row, at.limit, at.offset))
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
            event_id = append(tx, EntriesChanged(sched_ids=[sched_id], changes=changes), now=now, pid=entry.pid)
            if hold is None:
                flows.touch(tx, [(entry.pid, entry.project_id)], event_id=event_id)
            tx.notes.wake = True
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
        if not _lives(tx, entry.pid):
            return None
        new = int(tx.run(sql.COPY, (now, entry.sched_id))[0][0])
        tx.run(sql.COPY_TAGS, (new, entry.sched_id))
        cause = f"entry:{entry.sched_id}"
        append(tx, EntriesEnqueued(first_id=new), now=now, pid=entry.pid, causation_id=cause)
        tx.notes.wake = True
        return new

    def _cancel(self, tx: Transaction, sched_ids: Ids, now: float, reason: str | None) -> None:
        """Cancel entries that are known to wait, and see to those who wait for them."""
        tx.run_many(sql.CANCEL, [(now, reason, sched_id) for sched_id in sched_ids])
        append(tx, EntriesCancelled(sched_ids=sched_ids, reason=reason), now=now)
        ended = sched_ids + after.ended(tx, sched_ids, now)
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


def _checked(spec: ScheduleSpec) -> _New:
    if not isinstance(spec, ScheduleSpec):
        raise _queue.refuse("spec", f"must be a ScheduleSpec, not {type(spec).__name__}")
    return _New(spec, "{}" if not spec.payload else encode_json("payload", spec.payload, PAYLOAD_BYTES_MAX))


def _check_filter(wanted: EntryFilter) -> None:
    if not isinstance(wanted, EntryFilter):
        raise _queue.refuse("wanted", f"must be an EntryFilter, not {type(wanted).__name__}")


def _naming(error: RotaError, index: int) -> RotaError:
    """The same error, saying which of many specs was wrong."""
    error.message = f"specs[{index}]: {error.message}"
    error.data["index"] = index
    return error


def _write(tx: Transaction, new: _New, hold: str | None, path: str | None, now: float) -> int:
    """Write an entry's row; its agent must exist and live."""
    spec = new.spec
    needs, options = written(spec, path)
    row = (
        spec.priority,
        spec.runnable_at,
        spec.deadline,
        spec.trigger,
        new.payload,
        now,
        hold,
        spec.max_attempts,
        spec.key,
        spec.kind,
        needs,
        options,
        spec.pid,
    )
    sched_id = tx.insert(sql.ENQUEUE, row)
    if not sched_id and not _lives(tx, spec.pid):
        raise _queue.refuse("pid", f"{spec.pid} is dead and runs no more")
    return sched_id


def _row(new: _New, project_id: str | None, now: float) -> tuple[Any, ...]:
    spec = new.spec
    hold = "time" if spec.runnable_at > now else None
    needs, options = written(spec)
    return (
        spec.pid,
        project_id,
        spec.priority,
        spec.runnable_at,
        spec.deadline,
        spec.trigger,
        new.payload,
        now,
        hold,
        spec.max_attempts,
        spec.kind,
        needs,
        options,
    )


def _living(tx: Transaction, batch: list[_New]) -> dict[int, str | None]:
    """The projects of a batch's agents, all of which must exist and live."""
    rows = tx.run(agent_sql.STATES, (_ids({new.spec.pid for new in batch}),))
    living = {pid: project_id for pid, state, project_id in rows if state != AgentState.DEAD}
    for index, new in enumerate(batch):
        pid = new.spec.pid
        if pid not in living:
            there = any(row[0] == pid for row in rows)
            raise _naming(_queue.refuse("pid", f"{pid} is dead and runs no more") if there else UnknownPid(pid), index)
    return living


def _lives(tx: Transaction, pid: int) -> bool:
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    return bool(rows[0][0] != AgentState.DEAD)


def _resolve(other: int, earlier: list[int]) -> int:
    """The sched_id of a predecessor: itself, or counted back in the same call."""
    if other > 0:
        return other
    if -other > len(earlier):
        raise _queue.refuse("after", f"({other}) counts back beyond the first entry of this call")
    return earlier[other]


def _call_path(tx: Transaction, parent_id: int | None) -> str | None:
    """The entry at the root of a call path."""
    if parent_id is None:
        return None
    rows = tx.run(sql.GET, (parent_id,))
    if not rows:
        raise SchedUnknownId(parent_id)
    return needs_of(rows[0][25]).path or str(parent_id)


def _hold_after_change(entry: ReadyEntry, changed: ReadyEntry, now: float) -> str | None:
    if entry.hold == "after":
        return "after"
    if changed.runnable_at <= now:
        return None
    return entry.hold if entry.hold == "backoff" else "time"


def _find(tx: Transaction, sched_id: int) -> ReadyEntry:
    rows: Sequence[Row] = tx.run(sql.GET, (_queue.whole("sched_id", sched_id),))
    if not rows:
        raise SchedUnknownId(sched_id)
    return entry_of(rows[0])


def _ids(values: Iterable[int]) -> str:
    return _encode(list(values)).decode()
