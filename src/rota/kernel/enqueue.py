"""Putting entries into the queue: one, many at once, or only if no similar one exists.

An idempotency key belongs to the project of the entry: the same key in another project is another one. What an entry
names (its parent, its predecessors, the entry that caused it) its project must be able to reach (see grants.py). A run
that spawns an entry has proved by its claim token that it is the parent; then the run's project has to reach all this,
and the project of the entry.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rota.errors import RotaError, SchedInvalidPayload, UnknownPid
from rota.kernel import affinity, dependencies
from rota.kernel.entries import Entries
from rota.kernel.environment import CachedAgent
from rota.kernel.grants import check_reachable, may_reach, unreachable_entry
from rota.kernel.graph_budgets import check_account
from rota.kernel.journal import append
from rota.kernel.rows import NEEDS, PROJECT, decode_needs, encode_json, encode_needs_and_options
from rota.model.checks import INTEGER_MAX, PAYLOAD_BYTES_MAX, Checks
from rota.model.events import EntriesEnqueued
from rota.model.graph_budgets import GraphAccount
from rota.model.work import ScheduleSpec
from rota.store import Transaction
from rota.store.statements import contexts as context_sql
from rota.store.statements import queue as sql

__all__ = ["ENQUEUE_MAX", "Enqueuing", "with_index"]

ENQUEUE_MAX = 10_000  # entries in one enqueue_many
_DEDUPE_BY = ("pid", "trigger", "payload", "key")
_CAUSED_BY = "entry:"  # the beginning of a causation_id that names an entry
_queue = Checks("Queue", SchedInvalidPayload)
_Keys: TypeAlias = dict[tuple[str, str | None], int]  # key and project: the entry that has it


class _NewEntry(msgspec.Struct, frozen=True, gc=False):
    """A spec to be written, with its payload encoded."""

    spec: ScheduleSpec
    payload: str
    is_simple: bool = True  # only its agent, its priority and its payload are given, as in nearly all
    refers: bool = False  # to more than its agent and its key, or to the time at which it is written
    spawner: tuple[str | None] | None = None  # the project of the run that spawns it
    within: GraphAccount | None = None  # of the node that the graph run is which spawns it


class Enqueuing(Entries):
    """Methods that put entries into the queue."""

    begin_graph_run: Callable[[Transaction, int, float], None]  # of an entry that coordinates one; the kernel sets it
    _has_unended_index = False  # as far as this process knows

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue; returns its sched_id once it is durable."""
        new, now = _checked(spec), self._env.clock.now()
        return self._env.store.write(lambda tx: self._enqueue_one(tx, new, now))

    def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Put many entries into the queue, all or none; an `after` of -1 is the previous entry of the call."""
        batch = _checked_batch(specs)
        if not batch:
            return []
        now = self._env.clock.now()
        return self._env.store.write(lambda tx: self._enqueue(tx, batch, now, indexed=True))

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
            existing = None if spec.key is None else self.entry_with_key(tx, spec)
            if existing is None and not by_key:
                existing = self._duplicate(tx, new, dedupe_by)
            if existing is not None:
                return existing, False
            return self._enqueue_one(tx, new, now), True

        return self._env.store.write(work)

    def _duplicate(self, tx: Transaction, new: _NewEntry, dedupe_by: Sequence[str]) -> int | None:
        """Return a queued or running entry of the same agent, and of the same trigger and payload if these count."""
        if not self._has_unended_index:
            tx.run(sql.INDEX_UNENDED)
            tx.effects.on_commit.append(lambda: setattr(self, "_has_unended_index", True))
        pid, payload = new.spec.pid, new.payload if "payload" in dedupe_by else None
        if "trigger" in dedupe_by:
            rows = tx.run(sql.DUPLICATE, (pid, new.spec.trigger, payload))
        else:
            rows = tx.run(sql.DUPLICATE_OF_ANY_TRIGGER, (pid, payload))
        return int(rows[0][0]) if rows else None

    def enqueue_in(self, tx: Transaction, spec: ScheduleSpec, now: float) -> int:
        """Put an entry into the queue inside a transaction."""
        return self._enqueue_one(tx, _checked(spec), now)

    def enqueue_each_in(self, tx: Transaction, specs: Sequence[ScheduleSpec], now: float) -> list[int | RotaError]:
        """Put entries into the queue inside a transaction, each for itself: one that is refused yields its error."""
        try:
            batch = _checked_batch(specs)
            if not any(new.refers or new.spec.key is not None for new in batch):
                return list(self._enqueue(tx, batch, now)) if batch else []
        except RotaError:  # found before anything was written
            pass
        keys = _known_keys(tx, specs, self._env.cache.agents(tx, {spec.pid for spec in specs}))
        return [self._enqueue_or_error(tx, spec, keys) for spec in specs]

    def _enqueue_or_error(self, tx: Transaction, spec: ScheduleSpec, keys: _Keys) -> int | RotaError:
        try:
            return self._enqueue_each(tx, (_checked(spec),), indexed=False, keys=keys)[0]
        except RotaError as problem:
            return problem

    def spawn_in(self, tx: Transaction, spec: ScheduleSpec, from_project: str | None, now: float) -> int:
        """Put the child of a run of a project into the queue inside a transaction."""
        agent = self._env.cache.agents(tx, {spec.pid}).get(spec.pid)
        if agent is None or not may_reach(tx, from_project, agent.project_id):
            raise UnknownPid(spec.pid)
        new = msgspec.structs.replace(_checked(spec), spawner=(from_project,))
        return self._enqueue_one(tx, new, now)

    def checked_batch(self, specs: Sequence[ScheduleSpec]) -> list[_NewEntry]:
        """Check specs outside of a transaction, for `enqueue_batch_in`."""
        return _checked_batch(specs)

    def enqueue_batch_in(
        self,
        tx: Transaction,
        batch: Sequence[_NewEntry],
        from_project: str | None,
        now: float,
        *,
        within: GraphAccount | None = None,
    ) -> list[int]:
        """Put entries of agents that a project may reach into the queue, inside a transaction.

        They count in the budgets of an account `within` which their graph run is.
        """
        agents = self._env.cache.agents(tx, {new.spec.pid for new in batch})
        for pid in {new.spec.pid for new in batch}:
            agent = agents.get(pid)
            if agent is None or not may_reach(tx, from_project, agent.project_id):
                raise UnknownPid(pid)
        more = {} if within is None else {"within": within, "is_simple": False, "refers": True}
        spawned = [msgspec.structs.replace(new, spawner=(from_project,), **more) for new in batch]
        return self._enqueue(tx, spawned, now, indexed=True)

    def entry_with_key(self, tx: Transaction, spec: ScheduleSpec) -> int | None:
        """Return the entry that has the key of a spec, in the project of its agent."""
        agent = self._env.cache.agents(tx, {spec.pid}).get(spec.pid)
        return None if agent is None or spec.key is None else _by_key(tx, spec.key, agent.project_id)

    def _enqueue(self, tx: Transaction, batch: Sequence[_NewEntry], now: float, *, indexed: bool = False) -> list[int]:
        """Write entries and one event for all of them. The ids of new entries are consecutive.

        With `indexed` an error names the entry of the batch that caused it.
        """
        if len(batch) == 1:
            return [self._enqueue_one(tx, batch[0], now, indexed=indexed)]
        return self._enqueue_together(tx, batch, now, indexed=indexed)

    def _enqueue_together(self, tx: Transaction, batch: Sequence[_NewEntry], now: float, *, indexed: bool) -> list[int]:
        """Write entries with one statement, if none of them needs more."""
        cache = self._env.cache
        agents = cache.cached_agents(tx)
        keys: _Keys | None = None  # entries that have keys of the batch
        if keyed := [new.spec for new in batch if new.spec.key is not None]:
            if any(spec.pid not in agents for spec in keyed):
                agents = cache.agents(tx, {each.spec.pid for each in batch})
            keys = _known_keys(tx, keyed, agents)
            if keys or len({spec.key for spec in keyed}) < len(keyed):
                return self._enqueue_each(tx, batch, indexed=indexed, keys=keys)
        are_simple = all(new.is_simple for new in batch)
        rows: list[tuple[Any, ...]] = []  # written together, at half the cost of one by one (batch-100)
        held: list[int] = []  # indexes of those that are not ready yet
        is_timed = False
        owners: list[tuple[int, str | None]] = []
        limits: set[tuple[str, str | None]] = set()  # that were looked up for an earlier entry
        for index, new in enumerate(batch):
            if new.refers:
                return self._enqueue_each(tx, batch, indexed=indexed, keys=keys)
            spec = new.spec
            if spec.pid not in agents:
                agents = cache.agents(tx, {each.spec.pid for each in batch})
            agent = agents.get(spec.pid)
            if agent is None or agent.is_dead:
                raise _not_alive(agent, spec.pid, index if indexed else None)
            owners.append((spec.pid, agent.project_id))
            if are_simple:
                rows.append(_simple_row(new, agent.project_id, now))
                continue
            hold = None
            if spec.runnable_at > now:
                hold = "time"
                held.append(index)
            if spec.draws_on:
                _check_limits(tx, spec, agent.project_id, limits, index if indexed else None)
            rows.append((*_row(new, agent.project_id, now), spec.deadline, hold))
            if hold is not None or spec.deadline is not None:
                is_timed = True
                cache.lower_due_summary(held_at=spec.runnable_at if hold else None, deadline=spec.deadline)
        if not (are_simple or is_timed):
            rows = [row[:-2] for row in rows]
        statement = sql.ENQUEUE_SIMPLE if are_simple else sql.ENQUEUE if is_timed else sql.ENQUEUE_READY
        first_id = tx.insert_many(statement, rows)
        ids = [first_id] if len(rows) == 1 else list(range(first_id, first_id + len(rows)))
        holds = {"time": [ids[index] for index in held]} if held else {}
        _record(tx, batch, EntriesEnqueued(first_id=first_id, count=len(rows), held=holds), now)
        cache.touch_all(owners)
        return ids

    def _enqueue_one(self, tx: Transaction, new: _NewEntry, now: float, *, indexed: bool = False) -> int:
        """Write one entry, nearly always in one statement, also if it has a key."""
        cache, spec = self._env.cache, new.spec
        agents = cache.cached_agents(tx)
        agent = (agents if spec.pid in agents else cache.agents(tx, {spec.pid})).get(spec.pid)
        if agent is None or agent.is_dead or new.refers or spec.draws_on:
            return self._enqueue_together(tx, (new,), now, indexed=indexed)[0]
        hold = "time" if spec.runnable_at > now else None
        is_timed = hold is not None or spec.deadline is not None
        sched_id: int | None
        if new.is_simple:
            sched_id = tx.insert(sql.ENQUEUE_SIMPLE, _simple_row(new, agent.project_id, now))
        else:
            row, statement = _row(new, agent.project_id, now), sql.ENQUEUE_READY
            if is_timed:
                row, statement = (*row, spec.deadline, hold), sql.ENQUEUE
            if spec.key is None:
                sched_id = tx.insert(statement, row)
            else:
                sched_id = tx.insert_unless(statement, row, (sql.BY_KEY, (spec.key, agent.project_id)))
        if sched_id is None:  # its key is known
            return self._enqueue_together(tx, (new,), now, indexed=indexed)[0]
        if is_timed:
            cache.lower_due_summary(held_at=spec.runnable_at if hold else None, deadline=spec.deadline)
        event = EntriesEnqueued(first_id=sched_id, count=1, held={hold: [sched_id]} if hold else {})
        append(tx, event, now=now, pid=spec.pid, causation_id=spec.causation_id, correlation_id=spec.correlation_id)
        tx.effects.wake_parked = True
        cache.touch(spec.pid, agent.project_id)
        return sched_id

    def _enqueue_each(
        self, tx: Transaction, batch: Sequence[_NewEntry], *, indexed: bool, keys: _Keys | None = None
    ) -> list[int]:
        """Write entries of which some have a delay or a known key, or refer to an entry, a worker or tags.

        `keys` are those of the batch that exist, if the caller has read them; new ones are added.
        """
        now = self._env.read_clock(tx, writes=False)  # delays and affinity holds end a time from now
        cache, written = self._env.cache, _Written([], [], {}, [], [])
        limits: set[tuple[str, str | None]] = set()
        agents = cache.agents(tx, {new.spec.pid for new in batch})
        keys = _known_keys(tx, [new.spec for new in batch], agents) if keys is None else keys
        for index, new in enumerate(batch):
            pid = new.spec.pid
            try:
                agent = agents.get(pid)
                if agent is None:
                    raise _not_alive(agent, pid, None)
                known = None if new.spec.key is None else keys.get((new.spec.key, agent.project_id))
                if known is not None:
                    written.ids.append(known)
                    continue
                if agent.is_dead:
                    raise _not_alive(agent, pid, None)
                _check_limits(tx, new.spec, agent.project_id, limits, None)
                self._insert(tx, new, agent.project_id, written, now)
                if new.spec.key is not None:
                    keys[new.spec.key, agent.project_id] = written.ids[-1]
            except RotaError as error:
                raise (with_index(error, index) if indexed else error) from None
            cache.touch(pid, agent.project_id)
        if written.new_ids:
            self._env.note_time(tx, now)
            count = len(written.new_ids)
            event = EntriesEnqueued(
                first_id=written.new_ids[0], count=count, held=written.held, deduped=len(batch) - count
            )
            _record(tx, batch, event, now)
            for sched_id in written.coordinators:
                self.begin_graph_run(tx, sched_id, now)
            cache.drop_due_summary()  # the hold or the deadline of one of them may be the next to fall due
        if written.to_cancel:
            cache.invalidate()
            self._cancel(tx, written.to_cancel, now, "predecessor_failed")
        return written.ids

    def _insert(self, tx: Transaction, new: _NewEntry, project_id: str | None, written: _Written, now: float) -> None:
        """Write one entry with all that it refers to."""
        spec = new.spec
        predecessors = tuple(_resolve(other, written.ids) for other in spec.after)
        (reaches_from,) = new.spawner or (project_id,)
        verdict = dependencies.initial_hold(tx, predecessors, spec.on_failed, reaches_from) if predecessors else None
        if spec.causation_id is not None and (cause := _entry_named_by(spec.causation_id)) is not None:
            check_reachable(tx, reaches_from, (cause,))
        if spec.delay_s and spec.deadline is not None and spec.deadline < now + spec.delay_s:
            raise _queue.refuse("deadline", f"lies before the end of the delay ({spec.delay_s:g} s)")
        is_later = spec.runnable_at > now or spec.delay_s > 0
        hold = "after" if verdict is not None else ("time" if is_later else None)
        if spec.account is not None:
            check_account(tx, spec.account, project_id)
        path, account = _call_path(tx, spec.parent_id, reaches_from)
        account = account or new.within
        row = (*_row(new, project_id, now, path, account), spec.deadline, hold)
        sched_id = tx.insert(sql.ENQUEUE, row)
        if hold is None and spec.affinity is not None:
            hold = self._hold_for_worker(tx, sched_id, spec, now)
        if predecessors:
            dependencies.add_edges(tx, sched_id, predecessors)
        if spec.tags:
            tx.run_many(sql.TAG, [(tag, sched_id) for tag in dict.fromkeys(spec.tags)])
        written.ids.append(sched_id)
        written.new_ids.append(sched_id)
        if spec.account is not None and not spec.account.node:
            written.coordinators.append(sched_id)
        if verdict == "cancel":
            written.to_cancel.append(sched_id)
        elif hold is not None:
            written.held.setdefault(hold, []).append(sched_id)

    def _hold_for_worker(self, tx: Transaction, sched_id: int, spec: ScheduleSpec, now: float) -> str | None:
        """Hold a new entry for the worker it names, if that worker is alive; returns the hold."""
        entry = affinity.AffinityEntry(sched_id, spec.affinity, spec.kind, spec.priority, spec.runnable_at)
        hold = affinity.hold_for_worker(tx, self._env, entry, now)
        if hold is not None:
            tx.run(sql.RELEASE, (hold, sched_id))
        return hold


class _Written(NamedTuple):
    """What a call has written."""

    ids: list[int]  # of the batch: new entries, and older ones with the same key
    new_ids: list[int]
    held: dict[str, list[int]]  # by hold
    to_cancel: list[int]  # a predecessor has already failed
    coordinators: list[int]  # of graph runs


def _record(tx: Transaction, batch: Sequence[_NewEntry], event: EntriesEnqueued, now: float) -> None:
    pid = causation_id = correlation_id = None
    if len(batch) == 1:
        spec = batch[0].spec
        pid, causation_id, correlation_id = spec.pid, spec.causation_id, spec.correlation_id
    append(tx, event, now=now, pid=pid, causation_id=causation_id, correlation_id=correlation_id)
    tx.effects.wake_parked = True  # also for held entries: a parked claim must know when they fall due


# --- checks and rows -----------------------------------------------------------------------------


def _checked_batch(specs: Sequence[ScheduleSpec]) -> list[_NewEntry]:
    """Check the specs of one call; an error names the spec that caused it."""
    _queue.sequence("specs", specs)
    if len(specs) > ENQUEUE_MAX:
        raise _queue.refuse("specs", f"may be at most {ENQUEUE_MAX:,}, not {len(specs):,}")
    batch: list[_NewEntry] = []
    try:
        for spec in specs:
            batch.append(_checked(spec))  # noqa: PERF401  # the length says which spec was wrong
    except RotaError as error:
        raise with_index(error, len(batch)) from None
    return batch


def _checked(spec: ScheduleSpec) -> _NewEntry:
    """Check that this is a spec, and encode its payload."""
    if not isinstance(spec, ScheduleSpec):
        raise _queue.refuse("spec", f"must be a ScheduleSpec, not {type(spec).__name__}")
    payload = "{}" if not spec.payload else encode_json("payload", spec.payload, PAYLOAD_BYTES_MAX)
    if spec.is_simple:
        return _NewEntry(spec, payload)
    refers = bool(spec.after) or spec.delay_s != 0.0
    if not (spec.is_plain or refers):
        refers = spec.parent_id is not None or spec.affinity is not None or bool(spec.tags)
        refers = refers or spec.account is not None
        refers = refers or (spec.causation_id is not None and _entry_named_by(spec.causation_id) is not None)
    return _NewEntry(spec, payload, is_simple=False, refers=refers)


def _check_limits(
    tx: Transaction, spec: ScheduleSpec, project_id: str | None, known: set[tuple[str, str | None]], index: int | None
) -> None:
    """Refuse a name in `draws_on` that no limit of the project has: the entry would not be limited at all."""
    for name in spec.draws_on:
        if (name, project_id) in known:
            continue
        if not tx.run(context_sql.NAMED_FOR, (name, project_id)):
            error = _queue.refuse("draws_on", f"names {name!r}, and no limit has this name")
            error.hint = f"Create it: rota limits create name {shlex.quote(name)} --unit requests --budget 60."
            raise error if index is None else with_index(error, index)
        known.add((name, project_id))


def with_index(error: RotaError, index: int) -> RotaError:
    """Return the error with the index of the spec that caused it."""
    error.message = f"specs[{index}]: {error.message}"
    error.data["index"] = index
    return error


def _known_keys(tx: Transaction, specs: Sequence[ScheduleSpec], agents: Mapping[int, CachedAgent]) -> _Keys:
    """Return the entries that have the keys of some specs, in the projects of their agents."""
    wanted = {(spec.key, agents[spec.pid].project_id) for spec in specs if spec.key is not None and spec.pid in agents}
    if len(wanted) > 1:
        tx.read_together([(sql.BY_KEY, each) for each in wanted])
    found = {(key, project_id): _by_key(tx, key, project_id) for key, project_id in wanted}
    return {each: sched_id for each, sched_id in found.items() if sched_id is not None}


def _by_key(tx: Transaction, key: str, project_id: str | None) -> int | None:
    """Return the entry of a project that has this idempotency key, or None."""
    rows = tx.run(sql.BY_KEY, (key, project_id))
    return int(rows[0][0]) if rows else None


def _not_alive(agent: CachedAgent | None, pid: int, index: int | None) -> RotaError:
    """Return the error for an agent that does not exist or is dead."""
    error = UnknownPid(pid) if agent is None else _queue.refuse("pid", f"{pid} is dead: entries need a live agent")
    return error if index is None else with_index(error, index)


def _simple_row(new: _NewEntry, project_id: str | None, now: float) -> tuple[Any, ...]:
    """Return the parameters of `statements.queue.ENQUEUE_SIMPLE`."""
    return new.spec.pid, project_id, new.spec.priority, new.payload, now


def _row(
    new: _NewEntry, project_id: str | None, now: float, path: str | None = None, account: GraphAccount | None = None
) -> tuple[Any, ...]:
    """Return the parameters of `statements.queue.ENQUEUE_READY`; those of `ENQUEUE` have a deadline and a hold more."""
    spec = new.spec
    needs, options = encode_needs_and_options(spec, path, account)
    runnable_at, by_date = (spec.runnable_at, spec.runnable_at > 0) if not spec.delay_s else (now + spec.delay_s, False)
    return (
        spec.pid, project_id, spec.priority, runnable_at, spec.trigger, new.payload, now, spec.max_attempts, spec.key,
        spec.kind, needs, options, by_date,
    )  # fmt: skip


def _resolve(other: int, earlier: list[int]) -> int:
    """Return the sched_id of a predecessor; a negative number counts back in the same call."""
    if other > 0:
        return other
    if -other > len(earlier):
        raise _queue.refuse("after", f"({other}) counts back beyond the first entry of this call")
    return earlier[other]


def _entry_named_by(causation_id: str) -> int | None:
    """Return the entry that a causation_id names, as that of a copy does (`Entries.retry`); None if it names none."""
    number = causation_id.removeprefix(_CAUSED_BY)
    if not causation_id.startswith(_CAUSED_BY) or not (number.isascii() and number.isdecimal()):
        return None
    return min(int(number[:20]), INTEGER_MAX)  # a longer one names no entry


def _call_path(
    tx: Transaction, parent_id: int | None, reaches_from: str | None
) -> tuple[str | None, GraphAccount | None]:
    """Return the entry at the root of the parent's call path, and the graph run that the parent counts in."""
    if parent_id is None:
        return None, None
    rows = tx.run(sql.GET, (parent_id,))
    if not rows or not may_reach(tx, reaches_from, rows[0][PROJECT]):
        raise unreachable_entry(parent_id)
    needs = decode_needs(rows[0][NEEDS])
    return needs.path or str(parent_id), needs.account
