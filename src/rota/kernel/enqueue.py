"""Intake: how entries come into the queue, one, many, or only if there is none like it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId, UnknownPid
from rota.kernel import affinity, dependencies
from rota.kernel.entries import Entries
from rota.kernel.journal import append
from rota.kernel.rows import NEEDS, encode_json, needs_of, written
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import AffinityWaitSet, EntriesEnqueued
from rota.model.lifecycle import AgentState
from rota.model.work import ScheduleSpec
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import file as file_sql
from rota.store.statements import queue as sql

__all__ = ["ENQUEUE_MAX", "Intake"]

ENQUEUE_MAX = 10_000  # entries in one enqueue_many
_DEDUPE_BY = ("pid", "trigger", "payload", "key")
_ATTEMPTS = ScheduleSpec(0).max_attempts  # as in the table's own default
_queue = Checks("Queue", SchedInvalidPayload)
_encode = msgspec.json.Encoder().encode


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


class Intake(Entries):
    """Putting entries into the queue."""

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue; its sched_id is the answer once it is durable."""
        payload = _payload(spec)
        now = self._core.clock.now()
        if not spec.after and _is_usual(spec, now):
            # as write_steadily does; after a flush every call on the way is dear, and this is the way most take
            return self._core.store.write(lambda tx: self._enqueue_usual(tx, spec, payload, now))
        return self._core.write(lambda tx: self._enqueue(tx, [_New(spec, payload)], now)[0])

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
        if any(_is_looked_up(spec) for spec in specs):
            return self._core.write(lambda tx: self._enqueue(tx, new, now))
        if all(_is_usual(spec, now) for spec in specs):  # half the cost, for what most batches are
            return self._core.write_steadily(lambda tx: self._enqueue_all_usual(tx, new, now))
        return self._core.write(lambda tx: self._enqueue_together(tx, new, now))

    def _enqueue_usual(self, tx: Transaction, spec: ScheduleSpec, payload: str, now: float) -> int:
        """Write one entry of the usual kind: nothing but its key and its agent is looked up, and the pulse stays."""
        if spec.key is not None and (known := _by_key(tx, spec.key)) is not None:
            return known
        pid = spec.pid
        living = self._core.memo.living(tx)
        if pid not in living:
            living = {pid: _project_of(tx, pid)}
            self._core.memo.keep_living(tx, living)
        sched_id = tx.insert(sql.ENQUEUE_PLAIN, _usual_row(spec, payload, living[pid], now))
        append(tx, EntriesEnqueued(first_id=sched_id), now=now, pid=pid)
        tx.notes.wake = True
        return sched_id

    def _enqueue_all_usual(self, tx: Transaction, batch: list[_New], now: float) -> list[int]:
        """Write many entries of the usual kind."""
        living = self._core.memo.living(tx)
        if any(new.spec.pid not in living for new in batch):
            living = _living(tx, batch)
            self._core.memo.keep_living(tx, living)
        first_id = tx.insert_many(sql.ENQUEUE_PLAIN, [_usual_row(*new, living[new.spec.pid], now) for new in batch])
        append(tx, EntriesEnqueued(first_id=first_id, count=len(batch)), now=now)
        tx.notes.wake = True
        return list(range(first_id, first_id + len(batch)))

    def _enqueue_together(self, tx: Transaction, batch: list[_New], now: float) -> list[int]:
        """Write many entries of which nothing but their agents has to be looked up."""
        projects = _living(tx, batch)
        first_id = tx.insert_many(sql.ENQUEUE, [_row(new, projects[new.spec.pid], now) for new in batch])
        held = [first_id + index for index, new in enumerate(batch) if new.spec.runnable_at > now]
        fact = EntriesEnqueued(first_id=first_id, count=len(batch), held={"time": held} if held else {})
        append(tx, fact, now=now)
        tx.notes.wake = True
        return list(range(first_id, first_id + len(batch)))

    def enqueue_unique(self, spec: ScheduleSpec, dedupe_by: Sequence[str] = ("pid", "trigger")) -> tuple[int, bool]:
        """Put an entry in unless one like it waits or runs; the answer is its id, and whether it is new.

        By `("key",)` only one with the same key is like it, whether that still runs or has long ended.
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
        now = self._core.now()

        def work(tx: Transaction) -> tuple[int, bool]:
            trigger = spec.trigger if "trigger" in dedupe_by else None
            payload = new.payload if "payload" in dedupe_by else None
            there = None if spec.key is None else _by_key(tx, spec.key)
            if there is None and not by_key:
                there = next((int(row[0]) for row in tx.run(sql.ALIKE, (spec.pid, trigger, payload))), None)
            if there is not None:
                return there, False
            return self._enqueue(tx, [new], now)[0], True

        return self._core.write(work)

    def put(self, tx: Transaction, spec: ScheduleSpec, now: float) -> int:
        """Put an entry in inside a transaction."""
        return self._enqueue(tx, [_checked(spec)], now)[0]

    def _enqueue(self, tx: Transaction, batch: list[_New], now: float) -> list[int]:
        """Write entries and the one fact about them. Ids of new entries follow one another."""
        ids: list[int] = []
        fresh = _Fresh()
        for index, new in enumerate(batch):
            known = None if new.spec.key is None else _by_key(tx, new.spec.key)
            if known is not None:
                ids.append(known)
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
        hold = dependencies.hold_for(tx, predecessors, spec.on_failed) if predecessors else None
        stored = "after" if hold is not None else ("time" if spec.runnable_at > now else None)
        path = _call_path(tx, spec.parent_id)
        sched_id = tx.insert(sql.ENQUEUE, _row(new, _project_of(tx, spec.pid), now, hold=stored, path=path))
        if stored is None and spec.affinity is not None:
            stored = self._keep(tx, sched_id, spec, now)
        if predecessors:
            dependencies.wait_for(tx, sched_id, predecessors)
        if spec.tags:
            tx.run_many(sql.TAG, [(tag, sched_id) for tag in dict.fromkeys(spec.tags)])
        return sched_id, hold if hold == "cancel" else stored

    def _keep(self, tx: Transaction, sched_id: int, spec: ScheduleSpec, now: float) -> str | None:
        """Keep a new entry that could be ready for the worker it would rather have, if that is about."""
        wish = affinity.Wish(sched_id, spec.affinity, spec.kind, spec.priority, spec.runnable_at)
        hold = affinity.hold_for(tx, self._core.seen, wish, now)
        if hold is not None:
            tx.run(sql.RELEASE, (hold, sched_id))
        return hold

    # --- for whom entries are kept -----------------------------------------------------------------

    def affinity_wait(self) -> float:
        """How long an entry is kept for the worker it would rather have, in seconds."""
        return self._core.read(affinity.affinity_wait_s)

    def set_affinity_wait(self, wait_s: float) -> None:
        """Keep entries this long for the worker they would rather have; those that are kept already, no longer."""
        _queue.duration("wait_s", wait_s)
        now = self._core.now()

        def work(tx: Transaction) -> None:
            before_s = affinity.affinity_wait_s(tx)
            if before_s != wait_s:
                tx.run(file_sql.META_SET, (affinity.AFFINITY_WAIT, repr(float(wait_s))))
                tx.run(sql.KEEP_NO_LONGER, (now + wait_s,))
                append(tx, AffinityWaitSet(wait_s=wait_s, previous_s=before_s), now=now)
                tx.notes.wake = True

        self._core.write(work)


# --- checks and rows -----------------------------------------------------------------------------


def _checked(spec: ScheduleSpec) -> _New:
    return _New(spec, _payload(spec))


def _payload(spec: ScheduleSpec) -> str:
    """The payload of what is found to be a spec, as it is stored."""
    if not isinstance(spec, ScheduleSpec):
        raise _queue.refuse("spec", f"must be a ScheduleSpec, not {type(spec).__name__}")
    return "{}" if not spec.payload else encode_json("payload", spec.payload, PAYLOAD_BYTES_MAX)


def _naming(error: RotaError, index: int) -> RotaError:
    """The same error, saying which of many specs was wrong."""
    error.message = f"specs[{index}]: {error.message}"
    error.data["index"] = index
    return error


def _by_key(tx: Transaction, key: str) -> int | None:
    """The entry of an idempotency key, if there is one."""
    rows = tx.run(sql.BY_KEY, (key,))
    return int(rows[0][0]) if rows else None


def _project_of(tx: Transaction, pid: int) -> str | None:
    """The project of an agent, which must exist and live."""
    rows = tx.run(agent_sql.STATE, (pid,))
    if not rows:
        raise UnknownPid(pid)
    state, project_id = rows[0]
    if state == AgentState.DEAD:
        raise _queue.refuse("pid", f"{pid} is dead and runs no more")
    return project_id  # type: ignore[no-any-return]  # a row is untyped


def _row(
    new: _New, project_id: str | None, now: float, *, hold: str | None = None, path: str | None = None
) -> tuple[Any, ...]:
    spec = new.spec
    needs, options = written(spec, path)
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


def _is_looked_up(spec: ScheduleSpec) -> bool:
    """Whether more than its agent has to be looked up before an entry is written."""
    names = spec.key is not None or spec.parent_id is not None or spec.affinity is not None
    return names or bool(spec.after or spec.tags)


def _is_usual(spec: ScheduleSpec, now: float) -> bool:
    """Whether an entry leaves at its default what most do, and is ready at once."""
    said = spec.deadline is not None or spec.kind is not None or spec.max_attempts != _ATTEMPTS
    return not said and spec.runnable_at <= now and spec.is_plain


def _usual_row(spec: ScheduleSpec, payload: str, project_id: str | None, now: float) -> tuple[Any, ...]:
    return spec.pid, project_id, spec.priority, spec.runnable_at, spec.trigger, payload, now, spec.key


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
    return needs_of(rows[0][NEEDS]).path or str(parent_id)


def _ids(values: Iterable[int]) -> str:
    return _encode(list(values)).decode()
