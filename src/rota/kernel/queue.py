"""The queue: one place where every "this agent should run" is written down.

Each verb is one transaction with its fact in it. The queue decides whether an entry may run; in
strict order (priority, then time, then id) it also hands out the first ones in one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rota.clock import Clock
from rota.errors import SchedInvalidPayload, SchedUnknownId, StaleClaim, UnknownPid
from rota.kernel.journal import append
from rota.model.checks import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, Checks
from rota.model.events import ClaimedEntry, CompletedEntry, EntriesClaimed, EntriesCompleted, EntriesEnqueued
from rota.model.lifecycle import ENTRY, AgentState, advance
from rota.model.work import EXIT_KINDS, ReadyEntry, ScheduleSpec
from rota.store import Store, Transaction
from rota.store import statements as sql
from rota.store.protocol import Row

__all__ = ["CLAIM_MAX", "Queue"]

CLAIM_MAX = 1_000  # entries in one claim

_queue = Checks("Queue", SchedInvalidPayload)
_encoder = msgspec.json.Encoder()


def _json(field: str, value: Any, bytes_max: int) -> str:
    try:
        body = _encoder.encode(value)
    except (TypeError, ValueError) as problem:
        raise _queue.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > bytes_max:
        raise _queue.refuse(field, f"is {len(body):,} bytes; at most {bytes_max:,} are taken")
    return body.decode()


def _entry(row: Row) -> ReadyEntry:
    seed = (*row[:6], msgspec.json.decode(row[6]), *row[7:13])
    result = None if row[14] is None else msgspec.json.decode(row[14])
    return ReadyEntry(*seed, attempt=row[13], result=result, token=row[15])


class Queue:
    """Enqueue, claim, complete, and look."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue; its sched_id is the answer once it is durable."""
        payload = _json("payload", spec.payload, PAYLOAD_BYTES_MAX)
        now = self._clock.now()

        def work(tx: Transaction) -> int:
            owner = tx.run(sql.AGENT_STATE, (spec.pid,))
            if not owner:
                raise UnknownPid(spec.pid)
            if owner[0][0] == AgentState.DEAD:
                raise _queue.refuse("pid", f"{spec.pid} is dead and runs no more")
            row = (spec.pid, spec.priority, spec.runnable_at, spec.deadline, spec.trigger, payload, now)
            sched_id = int(tx.run(sql.ENTRY_ENQUEUE, row)[0][0])
            append(tx, EntriesEnqueued(first_id=sched_id), now=now, pid=spec.pid)
            return sched_id

        return self._store.write(work)

    def claim(self, *, worker_id: str, max_n: int = 1, now: float | None = None) -> list[ReadyEntry]:
        """Hand the first ready entries, in strict order, to this worker and nobody else."""
        _queue.text("worker_id", worker_id)
        most = min(_queue.whole("max_n", max_n, 1), CLAIM_MAX)
        at = self._clock.now() if now is None else _queue.instant("now", now)
        return self._store.write(lambda tx: self._claim_strict(tx, worker_id, most, at))

    def _claim_strict(self, tx: Transaction, worker_id: str, most: int, now: float) -> list[ReadyEntry]:
        rows = tx.run(sql.ENTRY_CLAIM_STRICT, (worker_id, now, most))
        if not rows:
            return []
        entries = sorted((_entry(row) for row in rows), key=_strict_order)
        fact = EntriesClaimed(
            worker_id=worker_id,
            incarnation="",
            entries=[ClaimedEntry(entry.sched_id, entry.pid, entry.attempt) for entry in entries],
            policy="strict",
        )
        token = append(tx, fact, now=now)
        for entry in entries:
            tx.run(sql.ENTRY_TOKEN, (token, entry.sched_id))
        return [msgspec.structs.replace(entry, token=token) for entry in entries]

    def complete(
        self, sched_id: int, exit_kind: str, *, token: int | None = None, result: Any = None
    ) -> tuple[str, str]:
        """End a run; the answer is (state before, state after). A token, if given, must be the live claim's."""
        _queue.one_of("exit_kind", exit_kind, EXIT_KINDS)
        body = None if result is None else _json("result", result, RESULT_BYTES_MAX)
        now = self._clock.now()

        def work(tx: Transaction) -> tuple[str, str]:
            entry = self._find(tx, sched_id)
            if token is not None and entry.token != token:
                raise StaleClaim(f"token {token} is not the live claim of entry {sched_id}", sched_id=sched_id)
            after = advance(ENTRY, entry.state, "complete", sched_id)
            tx.run(sql.ENTRY_COMPLETE, (now, exit_kind, body, sched_id))
            append(tx, EntriesCompleted(entries=[CompletedEntry(sched_id, exit_kind)]), now=now, pid=entry.pid)
            return entry.state, str(after)

        return self._store.write(work)

    def get(self, sched_id: int) -> ReadyEntry:
        """One entry as it stands."""
        return self._store.read(lambda tx: self._find(tx, sched_id))

    def _find(self, tx: Transaction, sched_id: int) -> ReadyEntry:
        rows: Sequence[Row] = tx.run(sql.ENTRY_GET, (sched_id,))
        if not rows:
            raise SchedUnknownId(sched_id)
        return _entry(rows[0])


def _strict_order(entry: ReadyEntry) -> tuple[int, float, int]:
    return -entry.priority, entry.runnable_at, entry.sched_id
