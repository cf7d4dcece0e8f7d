"""Putting entries into the queue: one, many at once, or only if no similar one exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId, UnknownPid
from rota.kernel import affinity, dependencies
from rota.kernel.entries import Entries
from rota.kernel.journal import append
from rota.kernel.rows import NEEDS, decode_needs, encode_json, encode_needs_and_options, json_list
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import EntriesEnqueued
from rota.model.lifecycle import AgentState
from rota.model.work import ScheduleSpec
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import queue as sql

__all__ = ["ENQUEUE_MAX", "Enqueuing"]

ENQUEUE_MAX = 10_000  # entries in one enqueue_many
_DEDUPE_BY = ("pid", "trigger", "payload", "key")
_ATTEMPTS = ScheduleSpec(0).max_attempts  # as in the table's own default
_queue = Checks("Queue", SchedInvalidPayload)


class _NewEntry(NamedTuple):
    """A spec to be written, with its payload encoded."""

    spec: ScheduleSpec
    payload: str


class _Inserted:
    """The entries that a call has inserted."""

    __slots__ = ("held", "ids", "to_cancel")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.held: dict[str, list[int]] = {}  # by hold
        self.to_cancel: list[int] = []  # a predecessor has already failed

    def add(self, sched_id: int, hold: str | None) -> None:
        self.ids.append(sched_id)
        if hold == "cancel":
            self.to_cancel.append(sched_id)
        elif hold is not None:
            self.held.setdefault(hold, []).append(sched_id)


class Enqueuing(Entries):
    """Methods that put entries into the queue."""

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue; returns its sched_id once it is durable."""
        payload = _payload(spec)
        now = self._env.clock.now()
        if not spec.after and _is_simple(spec, now):
            # like write_keeping_cache, one call shorter: this is the most frequent path
            return self._env.store.write(lambda tx: self._enqueue_simple(tx, spec, payload, now))
        return self._env.write(lambda tx: self._enqueue(tx, [_NewEntry(spec, payload)], now)[0])

    def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Put many entries into the queue, all or none; an `after` of -1 is the previous entry of the call."""
        _queue.sequence("specs", specs)
        if len(specs) > ENQUEUE_MAX:
            raise _queue.refuse("specs", f"may be at most {ENQUEUE_MAX:,}, not {len(specs):,}")
        new: list[_NewEntry] = []
        try:
            for spec in specs:
                new.append(_checked(spec))  # noqa: PERF401  # the length says which spec was wrong
        except RotaError as error:
            raise _with_index(error, len(new)) from None
        if not new:
            return []
        now = self._env.now()
        if any(_needs_lookup(spec) for spec in specs):
            return self._env.write(lambda tx: self._enqueue(tx, new, now))
        if all(_is_simple(spec, now) for spec in specs):  # half the cost, for most batches
            return self._env.write_keeping_cache(lambda tx: self._enqueue_all_simple(tx, new, now))
        return self._env.write(lambda tx: self._enqueue_batch(tx, new, now))

    def _enqueue_simple(self, tx: Transaction, spec: ScheduleSpec, payload: str, now: float) -> int:
        """Write an entry that needs only its key and its agent looked up; the cache stays valid."""
        if spec.key is not None and (known := _by_key(tx, spec.key)) is not None:
            return known
        pid = spec.pid
        live_agents = self._env.cache.live_agents(tx)
        if pid not in live_agents:
            live_agents = {pid: _project_of(tx, pid)}
            self._env.cache.add_live_agents(tx, live_agents)
        sched_id = tx.insert(sql.ENQUEUE_PLAIN, _simple_row(spec, payload, live_agents[pid], now))
        append(tx, EntriesEnqueued(first_id=sched_id), now=now, pid=pid)
        tx.effects.wake_parked = True
        return sched_id

    def _enqueue_all_simple(self, tx: Transaction, batch: list[_NewEntry], now: float) -> list[int]:
        """Write many entries that need only their agents looked up; the cache stays valid."""
        live_agents = self._env.cache.live_agents(tx)
        if any(new.spec.pid not in live_agents for new in batch):
            live_agents = _check_agents(tx, batch)
            self._env.cache.add_live_agents(tx, live_agents)
        first_id = tx.insert_many(
            sql.ENQUEUE_PLAIN, [_simple_row(*new, live_agents[new.spec.pid], now) for new in batch]
        )
        append(tx, EntriesEnqueued(first_id=first_id, count=len(batch)), now=now)
        tx.effects.wake_parked = True
        return list(range(first_id, first_id + len(batch)))

    def _enqueue_batch(self, tx: Transaction, batch: list[_NewEntry], now: float) -> list[int]:
        """Write many entries that need only their agents looked up."""
        projects = _check_agents(tx, batch)
        first_id = tx.insert_many(sql.ENQUEUE, [_row(new, projects[new.spec.pid], now) for new in batch])
        held = [first_id + index for index, new in enumerate(batch) if new.spec.runnable_at > now]
        event = EntriesEnqueued(first_id=first_id, count=len(batch), held={"time": held} if held else {})
        append(tx, event, now=now)
        tx.effects.wake_parked = True
        return list(range(first_id, first_id + len(batch)))

    def enqueue_unique(self, spec: ScheduleSpec, dedupe_by: Sequence[str] = ("pid", "trigger")) -> tuple[int, bool]:
        """Put an entry into the queue unless a similar one waits or runs; returns its id and whether it is new.

        With `("key",)` only an entry with the same key is similar, in any state.
        """
        for field in _queue.texts("dedupe_by", tuple(dedupe_by) if isinstance(dedupe_by, list) else dedupe_by):
            _queue.one_of("dedupe_by", field, _DEDUPE_BY)
        new = _checked(spec)
        by_key = tuple(dedupe_by) == ("key",)
        if by_key and spec.key is None:
            raise _queue.refuse("key", "must be given to compare by it")
        if not by_key and "key" in dedupe_by:
            raise _queue.refuse("dedupe_by", "must not name key together with others")
        if not by_key and "pid" not in dedupe_by:
            raise _queue.refuse("dedupe_by", "must name pid: entries are compared within one agent")
        now = self._env.now()

        def work(tx: Transaction) -> tuple[int, bool]:
            trigger = spec.trigger if "trigger" in dedupe_by else None
            payload = new.payload if "payload" in dedupe_by else None
            existing = None if spec.key is None else _by_key(tx, spec.key)
            if existing is None and not by_key:
                existing = next((int(row[0]) for row in tx.run(sql.DUPLICATE, (spec.pid, trigger, payload))), None)
            if existing is not None:
                return existing, False
            return self._enqueue(tx, [new], now)[0], True

        return self._env.write(work)

    def enqueue_in(self, tx: Transaction, spec: ScheduleSpec, now: float) -> int:
        """Put an entry into the queue inside a transaction."""
        return self._enqueue(tx, [_checked(spec)], now)[0]

    def _enqueue(self, tx: Transaction, batch: list[_NewEntry], now: float) -> list[int]:
        """Write entries and one event for all of them. The ids of new entries are consecutive."""
        ids: list[int] = []
        inserted = _Inserted()
        for index, new in enumerate(batch):
            known = None if new.spec.key is None else _by_key(tx, new.spec.key)
            if known is not None:
                ids.append(known)
                continue
            try:
                sched_id, hold = self._insert(tx, new, ids, now)
            except RotaError as error:
                raise (_with_index(error, index) if len(batch) > 1 else error) from None
            ids.append(sched_id)
            inserted.add(sched_id, hold)
        if inserted.ids:
            self._record_enqueued(tx, batch, inserted, now)
        if inserted.to_cancel:
            self._cancel(tx, inserted.to_cancel, now, "predecessor_failed")
        return ids

    def _record_enqueued(self, tx: Transaction, batch: list[_NewEntry], inserted: _Inserted, now: float) -> None:
        count = len(inserted.ids)
        event = EntriesEnqueued(first_id=inserted.ids[0], count=count, held=inserted.held, deduped=len(batch) - count)
        pid = causation_id = correlation_id = None
        if len(batch) == 1:
            spec = batch[0].spec
            pid, causation_id, correlation_id = spec.pid, spec.causation_id, spec.correlation_id
        append(tx, event, now=now, pid=pid, causation_id=causation_id, correlation_id=correlation_id)
        tx.effects.wake_parked = True  # also for held entries: a parked claim must know when they fall due

    def _insert(self, tx: Transaction, new: _NewEntry, earlier: list[int], now: float) -> tuple[int, str | None]:
        """Write one entry; returns its id and its hold, or "cancel" if a predecessor has already failed."""
        spec = new.spec
        predecessors = tuple(_resolve(other, earlier) for other in spec.after)
        hold = dependencies.initial_hold(tx, predecessors, spec.on_failed) if predecessors else None
        stored = "after" if hold is not None else ("time" if spec.runnable_at > now else None)
        path = _call_path(tx, spec.parent_id)
        sched_id = tx.insert(sql.ENQUEUE, _row(new, _project_of(tx, spec.pid), now, hold=stored, path=path))
        if stored is None and spec.affinity is not None:
            stored = self._hold_for_worker(tx, sched_id, spec, now)
        if predecessors:
            dependencies.add_edges(tx, sched_id, predecessors)
        if spec.tags:
            tx.run_many(sql.TAG, [(tag, sched_id) for tag in dict.fromkeys(spec.tags)])
        return sched_id, hold if hold == "cancel" else stored

    def _hold_for_worker(self, tx: Transaction, sched_id: int, spec: ScheduleSpec, now: float) -> str | None:
        """Hold a new entry for the worker it names, if that worker is alive; returns the hold."""
        entry = affinity.AffinityEntry(sched_id, spec.affinity, spec.kind, spec.priority, spec.runnable_at)
        hold = affinity.hold_for_worker(tx, self._env.workers_seen, entry, now)
        if hold is not None:
            tx.run(sql.RELEASE, (hold, sched_id))
        return hold


# --- checks and rows -----------------------------------------------------------------------------


def _checked(spec: ScheduleSpec) -> _NewEntry:
    return _NewEntry(spec, _payload(spec))


def _payload(spec: ScheduleSpec) -> str:
    """Check that this is a spec and return its payload, encoded."""
    if not isinstance(spec, ScheduleSpec):
        raise _queue.refuse("spec", f"must be a ScheduleSpec, not {type(spec).__name__}")
    return "{}" if not spec.payload else encode_json("payload", spec.payload, PAYLOAD_BYTES_MAX)


def _with_index(error: RotaError, index: int) -> RotaError:
    """Return the error with the index of the spec that caused it."""
    error.message = f"specs[{index}]: {error.message}"
    error.data["index"] = index
    return error


def _by_key(tx: Transaction, key: str) -> int | None:
    """Return the entry that has this idempotency key, or None."""
    rows = tx.run(sql.BY_KEY, (key,))
    return int(rows[0][0]) if rows else None


def _project_of(tx: Transaction, pid: int) -> str | None:
    """Return the project of an agent; raises if the agent does not exist or is dead."""
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    state, project_id = rows[0]
    if state == AgentState.DEAD:
        raise _queue.refuse("pid", f"{pid} is dead: entries need a live agent")
    return project_id  # type: ignore[no-any-return]  # a row is untyped


def _row(
    new: _NewEntry, project_id: str | None, now: float, *, hold: str | None = None, path: str | None = None
) -> tuple[Any, ...]:
    spec = new.spec
    needs, options = encode_needs_and_options(spec, path)
    return (
        spec.pid,
        project_id,
        spec.priority,
        spec.runnable_at,
        spec.deadline,
        spec.trigger,
        new.payload,
        now,
        hold or ("time" if spec.runnable_at > now else None),
        spec.max_attempts,
        spec.key,
        spec.kind,
        needs,
        options,
    )


def _needs_lookup(spec: ScheduleSpec) -> bool:
    """Whether more than the agent has to be looked up before an entry is written."""
    names = spec.key is not None or spec.parent_id is not None or spec.affinity is not None
    return names or bool(spec.after or spec.tags)


def _is_simple(spec: ScheduleSpec, now: float) -> bool:
    """Whether an entry is ready now and has no fields beyond those that `ENQUEUE_PLAIN` writes."""
    has_more = spec.deadline is not None or spec.kind is not None or spec.max_attempts != _ATTEMPTS
    return not has_more and spec.runnable_at <= now and spec.is_plain


def _simple_row(spec: ScheduleSpec, payload: str, project_id: str | None, now: float) -> tuple[Any, ...]:
    return spec.pid, project_id, spec.priority, spec.runnable_at, spec.trigger, payload, now, spec.key


def _check_agents(tx: Transaction, batch: list[_NewEntry]) -> dict[int, str | None]:
    """Return the projects of a batch's agents; raises if an agent does not exist or is dead."""
    rows = tx.run(agent_sql.STATES, (json_list({new.spec.pid for new in batch}),))
    live_agents = {pid: project_id for pid, state, project_id in rows if state != AgentState.DEAD}
    for index, new in enumerate(batch):
        pid = new.spec.pid
        if pid not in live_agents:
            exists = any(row[0] == pid for row in rows)
            raise _with_index(
                _queue.refuse("pid", f"{pid} is dead: entries need a live agent") if exists else UnknownPid(pid), index
            )
    return live_agents


def _resolve(other: int, earlier: list[int]) -> int:
    """Return the sched_id of a predecessor; a negative number counts back in the same call."""
    if other > 0:
        return other
    if -other > len(earlier):
        raise _queue.refuse("after", f"({other}) counts back beyond the first entry of this call")
    return earlier[other]


def _call_path(tx: Transaction, parent_id: int | None) -> str | None:
    """Return the entry at the root of the parent's call path."""
    if parent_id is None:
        return None
    rows = tx.run(sql.GET, (parent_id,))
    if not rows:
        raise SchedUnknownId(parent_id)
    return decode_needs(rows[0][NEEDS]).path or str(parent_id)
